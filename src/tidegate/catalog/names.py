"""What may be a name, and what is said about one that is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from tidegate.errors import InvalidArgument

NAME_LENGTH_MAX: Final = 200
SHARDS_MAX: Final = 1024
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


def check_name(what: str, name: str) -> None:
    """Raises: `InvalidArgument` for what cannot be a name; `what` is "topic", "subscription" or "table"."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        shown = name if not isinstance(name, str) or len(name) <= NAME_LENGTH_MAX else name[:40] + "..."
        raise InvalidArgument(
            f"{shown!r} cannot name a {what}: a name has letters, digits, _ - and ., begins with a letter or _,"
            f" and has at most {NAME_LENGTH_MAX} characters"
        )


def check_shards(what: str, name: str, shards: int) -> None:
    """Raises: `InvalidArgument` for a number of shards that cannot be."""
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise InvalidArgument(f"{what} {name!r}: the number of shards is from 1 to {SHARDS_MAX}, not {shards!r}")


def near(name: str, names: Iterable[str]) -> str:
    known = sorted(names)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(repr(each) for each in close)}?"
    if not known:
        return "; none has been created yet"
    return f"; there are {', '.join(repr(each) for each in known[:5])}{' and others' if len(known) > 5 else ''}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
