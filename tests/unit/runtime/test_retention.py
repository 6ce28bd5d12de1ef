"""Retention: what may be removed, oldest first and whole, and never what somebody needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers import BROKEN, Rig, eventually, tick
from tidegate.errors import NotFound, Truncated
from tidegate.log.message import Position
from tidegate.runtime.log import Log
from tidegate.runtime.pending import Appended
from tidegate.runtime.retention import facts, remove_old

NOTHING = {"needed_from": None, "before": None, "age_max_s": None, "bytes_max": None, "now_ms": 1_700_000_000_000}


def five_segments(rig: Rig, *, sealed: bool = True) -> list[Appended]:
    """Four closed segments of one message and an open one."""
    writer = rig.writer()
    results = []
    for _ in range(4):
        results.append(writer.append("a", b"x"))
        tick(writer)
        writer.segments.roll()
    results.append(writer.append("a", b"x"))
    tick(writer)
    if sealed:
        rig.seal(writer)
    return results


def left(rig: Rig) -> list[int]:
    return [each.number for each in rig.channel.segments()]


def test_without_a_reason_nothing_is_removed(rig: Rig) -> None:
    five_segments(rig)
    assert remove_old(rig.channel, **NOTHING) == []
    assert left(rig) == [1, 2, 3, 4, 5]


def test_truncating_removes_segments_that_lie_wholly_before_the_position(rig: Rig) -> None:
    results = five_segments(rig)
    last_of_second = facts(rig.channel)[1].last_position
    assert last_of_second is not None
    remove_old(rig.channel, **{**NOTHING, "before": last_of_second})
    assert left(rig) == [2, 3, 4, 5], "the second still holds that very position"
    remove_old(rig.channel, **{**NOTHING, "before": Position(last_of_second + 1)})
    assert left(rig) == [3, 4, 5]
    assert [each.position for each in rig.messages()] == [each.position for each in results[2:]]


def test_the_open_segment_is_never_removed(rig: Rig) -> None:
    five_segments(rig)
    remove_old(rig.channel, **{**NOTHING, "before": Position(1 << 60)})
    assert left(rig) == [5]


def test_a_segment_that_is_not_sealed_keeps_itself_and_all_behind_it(rig: Rig) -> None:
    five_segments(rig, sealed=False)
    assert remove_old(rig.channel, **{**NOTHING, "before": Position(1 << 60)}) == []


def test_a_pin_keeps_everything_from_its_position_on(rig: Rig) -> None:
    results = five_segments(rig)
    pinned = results[2].position
    for reason in ({"before": Position(1 << 60)}, {"age_max_s": 0.001, "now_ms": 1 << 50}, {"bytes_max": 1}):
        remove_old(rig.channel, **{**NOTHING, "needed_from": pinned, **reason})
        assert left(rig) == [3, 4, 5]
    assert [each.position for each in rig.messages(position=pinned)] == [each.position for each in results[2:]]


def test_age_counts_from_when_the_next_segment_began(rig: Rig) -> None:
    """A segment that was written to until a moment ago is not old, however long ago it was begun."""
    now = 1_700_000_000_000
    five_segments(rig)
    assert remove_old(rig.channel, **{**NOTHING, "age_max_s": 10.0, "now_ms": now + 10_000}) == []
    assert len(remove_old(rig.channel, **{**NOTHING, "age_max_s": 10.0, "now_ms": now + 10_001})) == 4


def test_a_clock_that_went_back_removes_nothing(rig: Rig) -> None:
    five_segments(rig)
    assert remove_old(rig.channel, **{**NOTHING, "age_max_s": 10.0, "now_ms": 0}) == []


def test_size_removes_only_as_much_as_it_must(rig: Rig) -> None:
    five_segments(rig)
    sizes = [each.size for each in facts(rig.channel)]
    remove_old(rig.channel, **{**NOTHING, "bytes_max": sum(sizes)})
    assert left(rig) == [1, 2, 3, 4, 5]
    remove_old(rig.channel, **{**NOTHING, "bytes_max": sum(sizes) - 1})
    assert left(rig) == [2, 3, 4, 5]


def test_a_removal_that_fails_stops_there_and_can_be_repeated(rig: Rig) -> None:
    five_segments(rig)
    with rig.files.failing(BROKEN, "remove", after=1), pytest.raises(OSError):
        remove_old(rig.channel, **{**NOTHING, "before": Position(1 << 60)})
    assert left(rig) == [2, 3, 4, 5]
    remove_old(rig.channel, **{**NOTHING, "before": Position(1 << 60)})
    assert left(rig) == [5]


def test_a_writer_opens_a_log_whose_beginning_is_gone(rig: Rig) -> None:
    results = five_segments(rig)
    remove_old(rig.channel, **{**NOTHING, "before": Position(1 << 60)})
    writer = rig.writer()
    assert writer.append("a", b"y").position > results[-1].position
    tick(writer)
    assert rig.bodies() == [b"x", b"y"]


# -- through the log ---------------------------------------------------------------------------------------------


def rolled(log: Log, segments: int = 4) -> list[Appended]:
    writer = log.channel("c")
    results = [writer.append("a", bytes(40 << 10)) for _ in range(segments)]
    log.seal()
    return results


def test_pins_are_kept_with_the_log_and_hold_until_they_are_taken_away(open_log: Callable[..., Log]) -> None:
    log = open_log()
    results = rolled(log)
    log.pin("c", "billing", results[1].position)
    log.pin("c", "audit/2", results[2].position)
    log.pin("c", "billing", results[2].position)
    log.close()
    log = open_log()
    assert log.pins("c") == {"billing": results[2].position, "audit/2": results[2].position}
    assert log.pins("d") == {}
    log.channel("c")
    log.seal()
    assert len(log.truncate("c", Position(1 << 60))) == 2
    log.unpin("c", "billing")
    log.unpin("c", "nobody")
    assert log.truncate("c", Position(1 << 60)) == []
    log.unpin("c", "audit/2")
    assert len(log.truncate("c", Position(1 << 60))) >= 1
    with pytest.raises(NotFound):
        log.truncate("nowhere", Position(5))


def test_retention_by_size_works_in_the_background_and_spares_pins(open_log: Callable[..., Log]) -> None:
    log = open_log(retention_bytes=1)
    log.channel("c")
    log.pin("c", "me", Position(1))
    results = rolled(log)
    log.seal()
    assert log.segments("c")[0].number == 1
    log.unpin("c", "me")
    eventually(lambda: log.segments("c")[0].number >= 4)
    reader = log.reader("c", position=results[0].position)
    with pytest.raises(Truncated), reader:
        reader.read(1)
