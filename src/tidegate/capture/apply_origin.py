"""Where a transaction first happened: what it says of it, however many databases it has gone through since.

What a database applies says `tidegate:<its id>`; of a transaction that it has captured also where that first happened,
behind `/from `: the name of the source, or another Tidegate's id. So a transaction that comes round is known.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from typing import Final

OURS: Final = "tidegate:"
SAID: Final = "tidegate.origin"
"""The prefix under which a transaction of PostgreSQL says its origin in a logical message."""
_FROM: Final = "/from "
_LONGEST: Final = 400
"""Bytes of an origin. PostgreSQL takes 512, and a name may have to go between."""


def origin_text(ours: str, first: str | None) -> str:
    """What a transaction says that `ours` applies; `first` is None for one of its own."""
    if first is None or first == ours:
        return ours
    text = f"{ours}{_FROM}{first}"
    return text if len(text.encode()) <= _LONGEST else f"{ours}{_FROM}{_short(first)}"


def with_name(origin: str, name: str) -> str:
    """The same origin for another session. `name` is one that has no slash."""
    ours, separator, first = origin.partition(_FROM)
    return f"{ours}/{name}{separator}{first}"


def applied_by(origin: str) -> str:
    """Which Tidegate wrote it; another writer's own name."""
    return origin.partition("/")[0] if origin.startswith(OURS) else origin


def first_of(origin: str | None, source: str) -> str:
    """Where a transaction first happened that was taken from `source`, which says `origin` of it."""
    if origin is None or not origin.startswith(OURS):
        return source  # What others call their own says nothing here.
    by, separator, first = origin.partition(_FROM)
    return first if separator else by.partition("/")[0]


def has_come_round(origin: str | None, source: str, ours: str) -> bool:
    """Whether a transaction that was taken from `source` had been here before: it was applied by us, or by another one
    after it had first happened here or at that very source."""
    if origin is None or not origin.startswith(OURS):
        return False
    return applied_by(origin) == ours or is_one_of(first_of(origin, source), (ours, source))


def is_one_of(first: str, names: Collection[str]) -> bool:
    """Whether it is one of these names, or stands for one that is long."""
    return first in names or (first.startswith("#") and first in map(_short, names))


def _short(name: str) -> str:
    return f"#{sha256(name.encode()).hexdigest()}"
