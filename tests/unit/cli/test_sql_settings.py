"""SET: how fresh answers are, who answers, and how they are shown (issue 5)."""

from __future__ import annotations

import pytest

from tidegate import Timestamp
from tidegate.cli.shell.settings import DEFAULTS, VALUES, Settings, change, shown
from tidegate.errors import InvalidArgument, NotFound, TidegateError


@pytest.mark.parametrize("level", ["strong", "session", "bounded", "eventual"])
def test_the_levels_of_consistency_are_those_of_a_query(level: str) -> None:
    assert change(DEFAULTS, "consistency", level.upper()).consistency == level


def test_bounded_may_say_how_far_behind() -> None:
    found = change(DEFAULTS, "consistency", "bounded 500ms")
    assert (found.consistency, found.staleness_s) == ("bounded", 0.5)
    assert change(found, "consistency", "bounded").staleness_s is None


def test_a_timestamp_is_a_consistency_too() -> None:
    at = Timestamp.parse("2026-01-31T12:00:00Z")
    assert change(DEFAULTS, "consistency", "'2026-01-31T12:00:00Z'").consistency == at
    assert change(DEFAULTS, "consistency", str(int(at))).consistency == at


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("consistency", "storng", "did you mean 'strong'"),
        ("consistency", "strong 2s", "takes nothing behind it"),
        ("consistency", "bounded soon", "a span of time"),
        ("consistency", "'2026-01-31'", "time zone"),
        ("engine", "flink", "auto, duckdb or spark"),
        ("timeout", "-1", "a span of time"),
        ("limit", "many", "a number of rows"),
        ("expanded", "maybe", "auto, on or off"),
        ("timing", "1", "on or off"),
    ],
)
def test_a_wrong_value_says_what_is_right(name: str, value: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        change(DEFAULTS, name, value)


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="did you mean 'consistency'"):
        change(DEFAULTS, "consistancy", "strong")


def test_what_is_shown_can_be_set_again() -> None:
    """Every setting, at values other than its default."""
    settings = Settings()
    for name, value in [
        ("consistency", "bounded 2s"), ("engine", "duckdb"), ("timeout", "1.5"), ("limit", "all"), ("expanded", "on"),
        ("timing", "off"),
    ]:  # fmt: skip
        settings = change(settings, name, value)
    again = Settings()
    for name, value in shown(settings).items():
        again = change(again, name, value)
    assert again == settings != DEFAULTS
    for name in VALUES:
        settings = change(settings, name, "DEFAULT")
    assert settings == DEFAULTS


def test_what_is_proposed_can_be_set() -> None:
    for name, values in VALUES.items():
        for value in values:
            try:
                change(DEFAULTS, name, value)
            except TidegateError as error:
                pytest.fail(f"{name} = {value}: {error}")
