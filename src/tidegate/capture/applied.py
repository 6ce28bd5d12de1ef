"""`Applied`: the figures of what was applied to a target, and the conflicts that were left as they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.capture.target import Conflict
from tidegate.clock.timestamp import Timestamp

_CONFLICTS_KEPT: Final = 100


@dataclass(slots=True)
class Applied:
    """What was done so far."""

    transactions: int = 0
    rows: int = 0
    """Rows of the log: a row that changed twice within a chunk counts twice."""
    copied: int = 0
    """Rows that were there at the start."""
    chunks: int = 0
    left_out: int = 0
    """Transactions that came from the target itself."""
    conflicts: int = 0
    """Rows that were left as they are."""
    last_conflicts: deque[Conflict] = field(default_factory=lambda: deque(maxlen=_CONFLICTS_KEPT))
    position: Timestamp = Timestamp.ZERO
    """Everything at or below it is at the target."""
    warning: str = ""
    """What will go wrong unless somebody does something, though nothing has so far."""

    def count(self, transactions: int, rows: int) -> None:
        """A chunk was applied."""
        self.transactions += transactions
        self.rows += rows
        self.chunks += 1

    def note(self, skipped: Sequence[Conflict]) -> None:
        """Rows were left as they are."""
        self.conflicts += len(skipped)
        self.last_conflicts.extend(skipped)

    def kept(self) -> Applied:
        """The figures as they are now, for `undo`."""
        return replace(self, last_conflicts=self.last_conflicts.copy())

    def undo(self, kept: Applied) -> None:
        """What was copied since is not there any more."""
        self.copied, self.conflicts = kept.copied, kept.conflicts
        self.last_conflicts.clear()
        self.last_conflicts.extend(kept.last_conflicts)
