"""The Timestamp value: reference section 1 and fact 8."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from tidegate.clock.timestamp import LOGICAL_COUNT, PHYSICAL_MS_MAX, Timestamp
from tidegate.errors import InvalidArgument

MS = 1_700_000_000_123


def test_a_timestamp_is_46_bits_of_milliseconds_above_18_logical_bits() -> None:
    ts = Timestamp.compose(MS, 7)
    assert int(ts) == (MS << 18) | 7
    assert (ts.physical_ms, ts.logical) == (MS, 7)


def test_an_over_large_logical_part_carries_into_the_physical_part() -> None:
    assert Timestamp.compose(MS, LOGICAL_COUNT) == Timestamp.compose(MS + 1)
    assert Timestamp.compose(MS, LOGICAL_COUNT - 1).next() == Timestamp.compose(MS + 1)


def test_integer_order_is_time_order() -> None:
    parts = [(MS, 0), (MS, 1), (MS, LOGICAL_COUNT - 1), (MS + 1, 0), (MS + 2, 5)]
    stamps = [Timestamp.compose(*part) for part in parts]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == len(parts)


def test_fact_8_a_time_makes_the_round_trip_to_the_millisecond() -> None:
    when = datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)
    assert Timestamp.from_datetime(when).to_datetime() == when.replace(microsecond=123_000)


@pytest.mark.parametrize("seconds", [20, -20])
def test_fact_8_moving_by_seconds_equals_composing_the_shifted_time(seconds: int) -> None:
    moved = Timestamp.compose(MS, 9).add(seconds=seconds)
    shifted = Timestamp.compose(MS, 9).to_datetime() + timedelta(seconds=seconds)
    assert moved.physical_ms == Timestamp.from_datetime(shifted).physical_ms
    assert moved.logical == 9


def test_fact_8_raw_milliseconds_are_no_plausible_timestamp_and_a_timestamp_is() -> None:
    assert not Timestamp(MS).is_plausible
    assert Timestamp.compose(MS).is_plausible
    assert not Timestamp.compose(1_546_300_799_999).is_plausible
    assert Timestamp.compose(1_546_300_800_000).is_plausible


def test_a_move_counts_whole_milliseconds_and_cannot_leave_the_timeline() -> None:
    ts = Timestamp.compose(MS, 3)
    assert ts.add(milliseconds=1.9) == Timestamp.compose(MS + 1, 3)
    assert ts.add(milliseconds=-1.9) == Timestamp.compose(MS - 1, 3)
    with pytest.raises(InvalidArgument, match="leaves the timeline"):
        ts.add(milliseconds=-MS - 1)
    with pytest.raises(InvalidArgument, match="leaves the timeline"):
        Timestamp.compose(PHYSICAL_MS_MAX).add(milliseconds=1)


def test_distance_is_signed_and_looks_at_physical_parts_alone() -> None:
    a, b = Timestamp.compose(MS, 9), Timestamp.compose(MS + 5, 1)
    assert (b.ms_since(a), a.ms_since(b), a.ms_since(Timestamp.compose(MS))) == (5, -5, 0)


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_what_does_not_fit_64_bits_is_refused(value: int) -> None:
    with pytest.raises(InvalidArgument):
        Timestamp(value)


def test_what_is_printed_can_be_parsed() -> None:
    ts = Timestamp.compose(MS, 7)
    assert str(ts) == "2023-11-14T22:13:20.123Z+7"
    assert Timestamp.parse(str(ts)) == ts
    assert Timestamp.parse(str(int(ts))) == ts
    assert Timestamp.parse("2023-11-14T23:13:20.123+01:00") == Timestamp.compose(MS)
    assert Timestamp.parse(str(Timestamp.MAX)) == Timestamp.MAX


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2023-11-14T22:13:20", "2023-11-14T22:13:20.123Z+262144", "-5", "9" * 5000]
)
def test_what_is_no_timestamp_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Timestamp.parse(text)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59Z", "1969-12-31T23:59:59.999Z", "4199-11-24T01:22:57.664Z"])
def test_a_time_that_46_bits_of_milliseconds_cannot_hold_is_refused_with_those_they_can(text: str) -> None:
    with pytest.raises(InvalidArgument, match="from 1970-01-01 to 4199-11-24"):
        Timestamp.parse(text)
    assert Timestamp.parse("4199-11-24T01:22:57.663Z").physical_ms == PHYSICAL_MS_MAX
    assert Timestamp.parse("1970-01-01T00:00:00Z") == Timestamp.ZERO


def test_a_time_without_a_zone_is_answered_with_one_that_has_it() -> None:
    with pytest.raises(InvalidArgument, match=r"no time zone; write 2026-01-31T12:00:00Z"):
        Timestamp.parse("2026-01-31T12:00:00")


def test_a_timestamp_keeps_its_type_through_pickle() -> None:
    ts = pickle.loads(pickle.dumps(Timestamp.compose(MS, 7)))
    assert type(ts) is Timestamp
    assert ts == Timestamp.compose(MS, 7)
