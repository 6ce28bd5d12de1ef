"""LastConfirmedMessageID (seed 000): the place to read from so that nothing later is missed.

Promise: when a message carries `last_confirmed` L, every message with a larger TimeTick, assembled
transactions included, lies at or behind L.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from tidegate.log.message import Position


class Session(Protocol):
    """The transaction an append belongs to, as far as this module cares."""

    def is_resolved(self, confirmed: int) -> bool:
        """Whether it is committed, rolled back or expired at TimeTick `confirmed`: no more bodies can come."""


class AllResolved:
    """Several transactions whose appends were written together."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions

    def is_resolved(self, confirmed: int) -> bool:
        return all(session.is_resolved(confirmed) for session in self._sessions)


class LastConfirmed:
    """Finds the largest position that is safe to read from.

    Invariant: `position` never goes back.
    """

    def __init__(self, position: Position) -> None:
        self.position = position
        self._reached = int(position)
        self._heap: list[tuple[int, int, int, Session | None]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, position: int, end: int, session: Session | None = None, *, first: int | None = None) -> None:
        """Note a confirmed append whose last message is at `position`, and its first at `first` if it has several.

        `end` is the largest TimeTick that had been allocated when its write was acknowledged.
        """
        heappush(self._heap, (position if first is None else first, position, end, session))

    def advance(self, confirmed: int) -> Position:
        """Move as far as TimeTick `confirmed` allows.

        Both conditions of the seed: everything allocated while the append was written is confirmed, so that
        no smaller position can still appear with a larger TimeTick; and its transaction is resolved, so
        that nothing behind it will still be assembled from here. Appends that were written together may lie
        inside one another, so what is left in the heap bounds how far the others count.
        """
        heap = self._heap
        while heap:
            _, position, end, session = heap[0]
            if end >= confirmed or (session is not None and not session.is_resolved(confirmed)):
                break
            heappop(heap)
            self._reached = max(self._reached, position)
        safe = min(self._reached, heap[0][0]) if heap else self._reached
        if safe > self.position:
            self.position = Position(safe)
        return self.position
