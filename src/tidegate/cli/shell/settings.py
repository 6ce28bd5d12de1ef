"""What `SET` and `\\set` change in a shell, and how their values are written."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, Literal

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, NotFound

Level = Literal["strong", "session", "bounded", "eventual"]

LEVELS: Final[tuple[Level, ...]] = ("strong", "session", "bounded", "eventual")
ENGINES: Final = ("auto", "duckdb", "spark")
SWITCHES: Final = ("on", "off")
EXPANDED: Final = ("auto", "on", "off")
LIMIT: Final = 200
"""Rows on a screen, unless told otherwise."""
_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h)?", re.IGNORECASE)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """A shell's settings. `limit` 0 is all rows; `timeout_s` and `staleness_s` None are the database's own."""

    consistency: Level | Timestamp = "session"
    staleness_s: float | None = None
    engine: str = "auto"
    timeout_s: float | None = None
    limit: int = LIMIT
    expanded: str = "auto"
    timing: bool = True


DEFAULTS: Final = Settings()

VALUES: Final[dict[str, tuple[str, ...]]] = {
    "consistency": (*LEVELS, "bounded 2s"),
    "engine": ENGINES,
    "timeout": ("none", "30"),
    "limit": ("all", str(LIMIT)),
    "expanded": EXPANDED,
    "timing": SWITCHES,
}
"""What may be proposed for each setting."""

MEANINGS: Final = {
    "consistency": "how fresh: strong, session, bounded [2s], eventual, 'time'",
    "engine": "what answers: auto, duckdb or spark",
    "timeout": "seconds to wait for an answer, or none",
    "limit": "rows shown of an answer, or all",
    "expanded": "a line for each value: auto (if too wide), on or off",
    "timing": "time taken, shown with each answer: on or off",
}


def change(settings: Settings, name: str, value: str) -> Settings:
    """The settings with one changed; `value` as it was written, quotes included.

    Raises: `NotFound` for an unknown setting, `InvalidArgument` for a value it cannot have.
    """
    name = name.lower()
    if name not in VALUES:
        near = get_close_matches(name, VALUES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(VALUES)}"
        raise NotFound(f"there is no setting {name!r}; {hint}")
    value = value.strip()
    if value.upper() == "DEFAULT":
        return _default(settings, name)
    match name:
        case "consistency":
            level, staleness_s = read_consistency(value)
            return replace(settings, consistency=level, staleness_s=staleness_s)
        case "engine":
            return replace(settings, engine=_one_of(name, value, ENGINES))
        case "timeout":
            return replace(settings, timeout_s=None if _plain(value) in ("none", "0") else _seconds(name, value))
        case "limit":
            return replace(settings, limit=0 if _plain(value) in ("all", "none") else _count(value))
        case "expanded":
            return replace(settings, expanded=_one_of(name, value, EXPANDED))
        case _:
            return replace(settings, timing=_one_of(name, value, SWITCHES) == "on")


def shown(settings: Settings) -> dict[str, str]:
    """Each setting as it would be written."""
    level = settings.consistency
    consistency = f"'{level}'" if isinstance(level, Timestamp) else level
    if settings.staleness_s is not None:
        consistency += f" {settings.staleness_s:g}s"
    return {
        "consistency": consistency,
        "engine": settings.engine,
        "timeout": "none" if settings.timeout_s is None else f"{settings.timeout_s:g}",
        "limit": str(settings.limit) if settings.limit else "all",
        "expanded": settings.expanded,
        "timing": "on" if settings.timing else "off",
    }


def read_consistency(text: str) -> tuple[Level | Timestamp, float | None]:
    """A level, and for `bounded` the span behind it, if one is given.

    Raises: `InvalidArgument`.
    """
    plain = _plain(text)
    head, _, rest = plain.partition(" ")
    for each in LEVELS:
        if head != each:
            continue
        if not rest:
            return each, None
        if each == "bounded":
            return each, _seconds("consistency = bounded", rest)
        raise InvalidArgument(f"consistency {each!r} takes nothing behind it, and {rest!r} is there")
    try:
        return Timestamp.parse(_unquoted(text)), None
    except InvalidArgument as error:
        near = get_close_matches(head, LEVELS, n=1)
        if near and not head[:1].isdecimal():
            raise InvalidArgument(f"{text} is no consistency; did you mean {near[0]!r}?") from None
        raise InvalidArgument(
            f"consistency is strong, session, bounded, bounded 2s, eventual or a Timestamp in quotes: {error}"
        ) from None


def _default(settings: Settings, name: str) -> Settings:
    match name:
        case "consistency":
            return replace(settings, consistency=DEFAULTS.consistency, staleness_s=None)
        case "timeout":
            return replace(settings, timeout_s=DEFAULTS.timeout_s)
        case _:
            return change(settings, name, shown(DEFAULTS)[name])


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _plain(text: str) -> str:
    return " ".join(_unquoted(text).lower().split())


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    found = _plain(value)
    if found not in allowed:
        raise InvalidArgument(f"{name} is {', '.join(allowed[:-1])} or {allowed[-1]}, not {value}")
    return found


def _seconds(name: str, value: str) -> float:
    match = _SPAN.fullmatch(_plain(value))
    if match is None or not float(match[1]):
        raise InvalidArgument(f"{name} takes a span of time such as 30, 500ms or 2s, not {value}")
    return float(match[1]) * _UNIT_S[match[2] or "s"]


def _count(value: str) -> int:
    found = _plain(value)
    if not found.isdecimal() or len(found) > 12:
        raise InvalidArgument(f"limit is a number of rows or all, not {value}")
    return int(found)
