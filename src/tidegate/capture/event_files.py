"""`EventFiles`: events in files of JSON lines, which may grow while they are read; and what is asked of any `Events`.

Only whole lines are read. A part is a file, a place is where a line begins in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from tidegate.errors import NotFound, SourceGone, SourceUnreadable

TURN: Final = 200
"""Lines of one file that are read before those of the next: what belongs together is then not far apart."""
_LOOK_BACK: Final = 64 << 20
"""Bytes before a position in which transactions are looked for that may come again."""
_BOUNDARY: Final = re.compile(rb'"(?:BEGIN|END)\\*"')
_HEAD: Final = 256
"""Bytes at the beginning of a file by which it is known."""


class Place(NamedTuple):
    """Where an event is kept."""

    part: str
    offset: int


class Record(NamedTuple):
    """An event, with its key if that is kept."""

    key: Mapping[str, Any] | None
    value: Mapping[str, Any] | None
    """None for a tombstone."""


class Events(Protocol):
    """Where a connector's events are read from, and can be read again.

    Ordering: those of one part come in order; a transaction's boundaries are in one part.
    """

    identity: str

    def parts(self) -> list[str]:
        """All there are, in a fixed order. Of those that have boundaries of transactions each goes on where the one
        before it ends; others are read side by side."""

    def read(self, part: str, offset: int, most: int) -> list[tuple[int, Record, int]]:
        """Events from a place on: where each is, what it is, and what follows it. Empty if there are none yet."""

    def may_have_boundaries(self, part: str, offset: int) -> bool:
        """Whether there may be a BEGIN or END of a transaction behind an offset, as far as it has come."""

    def fetch(self, place: Place) -> Record:
        """One event again."""

    def head(self, part: str) -> str:
        """What tells a part from another of its name; empty as long as it is."""

    def ended(self, part: str, offset: int) -> Iterator[Mapping[str, Any]]:
        """Values of ENDs before a place, as far back as is useful."""


class EventFiles:
    """A file, or all files of a directory but hidden ones, in the order of their names: numbers in them are numbers."""

    def __init__(self, path: str) -> None:
        """Raises: `NotFound`."""
        self._path = Path(path).absolute()
        if not self._path.exists():
            raise NotFound(f"there is no file or directory of events {path}")
        self.identity = f"debezium:///{self._path}"

    def parts(self) -> list[str]:
        if self._path.is_file():
            return [self._path.name]
        found = [each.name for each in self._path.iterdir() if each.is_file() and not each.name.startswith(".")]
        return sorted(found, key=_in_order)

    def _file(self, part: str) -> Path:
        return self._path if self._path.is_file() else self._path / part

    def read(self, part: str, offset: int, most: int) -> list[tuple[int, Record, int]]:
        """Raises: `SourceGone` if the file ends before the offset, `SourceUnreadable` for a line that is no JSON."""
        found: list[tuple[int, Record, int]] = []
        with self._file(part).open("rb") as file:
            size = file.seek(0, 2)
            if size < offset:
                raise SourceGone(
                    f"{self._file(part)} has {size:,} bytes, and {offset:,} were read: it was cut off, or is another"
                    f" file; take a new snapshot: restart=True, or --restart"
                )
            file.seek(offset)
            while len(found) < most:
                line = file.readline()
                if not line.endswith(b"\n"):
                    break
                if line.strip():
                    found.append((offset, self._record(part, offset, line), offset + len(line)))
                offset += len(line)
        return found

    def may_have_boundaries(self, part: str, offset: int) -> bool:
        with self._file(part).open("rb") as file:
            if file.seek(0, 2) <= offset:
                return False
            with mmap(file.fileno(), 0, access=ACCESS_READ) as events:
                return _BOUNDARY.search(events, offset) is not None

    def fetch(self, place: Place) -> Record:
        with self._file(place.part).open("rb") as file:
            file.seek(place.offset)
            return self._record(place.part, place.offset, file.readline())

    def head(self, part: str) -> str:
        try:
            with self._file(part).open("rb") as file:
                line = file.readline(_HEAD)
        except FileNotFoundError:
            return ""
        return f"{crc32(line):x}" if line.endswith(b"\n") or len(line) == _HEAD else ""

    def ended(self, part: str, offset: int) -> Iterator[Mapping[str, Any]]:
        with self._file(part).open("rb") as file:
            at = max(0, offset - _LOOK_BACK)
            file.seek(at)
            while at < offset:
                line = file.readline()
                if not line:
                    return
                if b'"END"' in line and line.endswith(b"\n") and line.startswith(b"{"):
                    value = self._record(part, at, line).value
                    if value is not None:
                        yield value
                at += len(line)

    def _record(self, part: str, offset: int, line: bytes) -> Record:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise SourceUnreadable(f"{self._file(part)} at {offset:,}: no JSON: {line[:80]!r}") from error
        return record_of(value, f"{self._file(part)} at {offset:,}")


def _in_order(name: str) -> list[tuple[bool, int, str]]:
    """`events.9` is before `events.10`."""
    pieces = [each for each in re.split(r"([0-9]+)", name) if each]
    return [(not each.isdecimal(), int(each) if each.isdecimal() else 0, each) for each in pieces]


def record_of(value: Any, where: str) -> Record:
    """An event, or one with its key: `{"key": ..., "value": ...}`. Raises: `SourceUnreadable` for what is neither."""
    if value is None:
        return Record(None, None)
    if not isinstance(value, dict):
        raise SourceUnreadable(f"{where}: no event of Debezium: {str(value)[:80]!r}")
    if "value" in value and "op" not in value and "payload" not in value:
        said = value["value"]
        return Record(_payload(value.get("key")), json.loads(said) if isinstance(said, str) else said)
    return Record(None, value)


def _payload(key: Any) -> Mapping[str, Any] | None:
    if isinstance(key, str):
        key = json.loads(key)
    if isinstance(key, dict) and "payload" in key and "schema" in key:
        key = key["payload"]
    return key if isinstance(key, dict) else None
