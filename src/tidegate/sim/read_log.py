"""`ReadLog`: what is durable in the world of reads: channels, decided commits, changes of tables, checkpoints.

It stands in for log, coordinator and snapshots, which other worlds play. An older term writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Fenced

CHANNELS: Final = ("c0", "c1", "c2")
SYSTEM: Final = "sys"
TABLES: Final = ("accounts", "books", "cash")
KEYS: Final = 4

Changes = dict[tuple[str, int], int]
"""By table and key, how much is added."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A table at one cut."""

    version: int
    values: dict[int, int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tables at one Timestamp."""

    timestamp: Timestamp = Timestamp.ZERO
    tables: dict[str, Contents] = field(default_factory=lambda: dict.fromkeys(TABLES, Contents(0, {})))


@dataclass(frozen=True, slots=True)
class Decided:
    """A commit after the point of no return."""

    timestamp: Timestamp
    changes: Changes


def channel_of(table: str, key: int) -> str:
    return CHANNELS[(TABLES.index(table) + key) % len(CHANNELS)]


def parts_of(changes: Changes) -> dict[str, Changes]:
    """A transaction's changes by channel."""
    parts: dict[str, Changes] = {}
    for (table, key), by in changes.items():
        parts.setdefault(channel_of(table, key), {})[table, key] = by
    return dict(sorted(parts.items()))


class ReadLog:
    """Survives every process."""

    def __init__(self, was_decided: Callable[[Decided], None], was_changed: Callable[[str, Timestamp], None]) -> None:
        self.decided: dict[str, Decided] = {}
        self.changed: list[tuple[Timestamp, str]] = []
        """Changes of tables, in the system channel."""
        self.checkpoints = [Checkpoint()]
        self._rows: dict[str, list[Decided]] = {name: [] for name in CHANNELS}
        self._parts: set[tuple[str, str]] = set()
        """Transactions and the channels that they have been written to."""
        self._was_decided = was_decided
        self._was_changed = was_changed
        self._fence = 0

    def next_term(self) -> int:
        """Raise the fence: nobody older writes from here on."""
        self._fence += 1
        return self._fence

    def require(self, term: int) -> None:
        """Raises: `Fenced`."""
        if term < self._fence:
            raise Fenced(SYSTEM, term, self._fence)

    def decide(self, term: int, txn: str, decided: Decided) -> Decided:
        """Log COMMITTING; what was decided first counts."""
        self.require(term)
        if txn not in self.decided:
            self.decided[txn] = decided
            self._was_decided(decided)
        return self.decided[txn]

    def append(self, term: int, channel: str, txn: str, part: Decided) -> int:
        """One channel's part of a commit; its position."""
        self.require(term)
        if (txn, channel) not in self._parts:
            self._parts.add((txn, channel))
            self._rows[channel].append(part)
        return len(self._rows[channel])

    def unwritten(self) -> list[tuple[str, str, Decided]]:
        """Parts of decided commits that are not in their channels."""
        return [
            (txn, channel, Decided(decided.timestamp, part))
            for txn, decided in self.decided.items()
            for channel, part in parts_of(decided.changes).items()
            if (txn, channel) not in self._parts
        ]

    def change(self, term: int, table: str, at: Timestamp) -> None:
        self.require(term)
        self.changed.append((at, table))
        self._was_changed(table, at)

    def commit(self, term: int, checkpoint: Checkpoint) -> None:
        """Make a checkpoint visible."""
        self.require(term)
        self.checkpoints.append(checkpoint)

    def positions(self) -> dict[str, int]:
        return {SYSTEM: len(self.changed), **{name: len(rows) for name, rows in self._rows.items()}}

    def checkpoint_at(self, at: Timestamp) -> Checkpoint:
        return next(each for each in reversed(self.checkpoints) if each.timestamp <= at)

    def read(self, table: str, base: Checkpoint, at: Timestamp) -> Contents:
        """A table from a checkpoint and what the channels hold behind it, up to a cut."""
        values = dict(base.tables[table].values)
        for channel in CHANNELS:
            add(values, table, (row for row in self._rows[channel] if base.timestamp < row.timestamp <= at))
        tail = sum(1 for when, name in self.changed if name == table and base.timestamp < when <= at)
        return Contents(base.tables[table].version + tail, values)


def add(values: dict[int, int], table: str, commits: Iterable[Decided]) -> None:
    """Fold commits into a table's values."""
    for commit in commits:
        for (name, key), by in commit.changes.items():
            if name == table:
                values[key] = values.get(key, 0) + by
