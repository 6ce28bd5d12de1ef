"""Settings are checked when made, and say which of them is wrong."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields

import pytest

from tidegate.errors import InvalidArgument
from tidegate.runtime.settings import Durability, LogSettings

NUMBERS = [field.name for field in fields(LogSettings) if field.name != "durability"]


def test_the_defaults_are_valid_and_cannot_be_changed() -> None:
    settings = LogSettings()
    assert settings.durability is Durability.SYNC
    assert settings.tick_interval_ms == 200
    with pytest.raises(FrozenInstanceError):
        settings.tick_interval_ms = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        LogSettings(Durability.SYNC)  # type: ignore[misc]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_no_number_is_zero_negative_or_no_number(name: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=name):
        LogSettings(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_is_text(name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        LogSettings(**{name: "5"})


@pytest.mark.parametrize("text", ["sync", "interval", "none"])
def test_durability_may_be_written_as_text(text: str) -> None:
    assert LogSettings(durability=text).durability is Durability(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["always", "", None, 1])
def test_an_unknown_durability_names_the_choices(value: object) -> None:
    with pytest.raises(InvalidArgument, match="sync, interval, none"):
        LogSettings(durability=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"batch_rows_max": (1 << 18) + 1}, "batch_rows_max"),
        ({"segment_bytes": 100}, "segment_bytes"),
        ({"segment_bytes": 1 << 40}, "segment_bytes"),
        ({"block_bytes_max": (1 << 30) + 1, "in_flight_bytes_max": 1 << 31}, "block_bytes_max"),
        ({"message_bytes_max": 2000, "block_bytes_max": 1000}, "message_bytes_max"),
        ({"in_flight_bytes_max": 1000}, "in_flight_bytes_max"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(wrong: dict[str, int], names: str) -> None:
    with pytest.raises(InvalidArgument, match=names):
        LogSettings(**wrong)


def test_the_largest_and_smallest_allowed_values_are_allowed() -> None:
    LogSettings(batch_rows_max=1 << 18)
    LogSettings(segment_bytes=64 << 10)
    LogSettings(message_bytes_max=1000, block_bytes_max=1000, in_flight_bytes_max=1000)
    LogSettings(retention_age_s=0.5, retention_bytes=1)
