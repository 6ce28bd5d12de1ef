"""`PipeLog`: the log as the pipeline sees it, reduced to Timestamps: appends that take their time, ticks, cut records.

What the log itself does under faults is the matter of other worlds; here what was acknowledged is simply there.
"""

from __future__ import annotations

from typing import Final

from tidegate.barrier.cut import Place
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Fenced
from tidegate.log.message import Position, Term

SYSTEM: Final = "system"
DATA: Final = ("d0", "d1", "d2", "d3")

Row = tuple[int, int]
"""Timestamp, number of the write."""


class PipeChannel:
    """One channel: rows in physical order, which is not that of their Timestamps."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.in_flight: set[int] = set()

    def tick(self, last: int) -> Place:
        """The newest tick possible, `last` being the newest Timestamp handed out, and where all above it begins."""
        at = min(last, min(self.in_flight, default=last + 1) - 1)
        first = next((place for place, (timestamp, _) in enumerate(self.rows) if timestamp > at), len(self.rows))
        return Place(Position(first), Timestamp(at))

    def read(self, begin: Place | None, after: int, upto: int) -> list[Row]:
        """What a reader delivers: above `after` and at or below `upto`, in order."""
        first = begin.position if begin is not None else 0
        return sorted(row for row in self.rows[first:] if after < row[0] <= upto)


class PipeLog:
    """All channels, the oracle, the catalog's versions and the cut records."""

    def __init__(self) -> None:
        self.last = 0
        self.channels = {name: PipeChannel() for name in (*DATA, SYSTEM)}
        self.cuts: list[bytes] = []
        self.catalog: list[tuple[Timestamp, int]] = []
        self.newest_write = 0
        self._fence = 0

    def next_timestamp(self, wall_ms: int) -> Timestamp:
        """A fresh Timestamp, whatever the clock does."""
        self.last = max(self.last + 1, int(Timestamp.compose(wall_ms)))
        return Timestamp(self.last)

    def fence(self, term: Term) -> None:
        """No older owner records a cut from here on."""
        self._fence = max(self._fence, term)

    def record_cut(self, term: Term, data: bytes) -> None:
        """Raises: `Fenced` for an older owner."""
        if term < self._fence:
            raise Fenced(SYSTEM, term, self._fence)
        self.cuts.append(data)

    def change_catalog(self, timestamp: Timestamp) -> None:
        self.catalog.append((timestamp, len(self.catalog) + 1))

    def catalog_at(self, timestamp: int) -> int:
        return max((version for at, version in self.catalog if at <= timestamp), default=0)
