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
        self._heap: list[tuple[int, int, Session | None]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, position: int, end: int, session: Session | None = None) -> None:
        """Note a confirmed append whose last message is at `position`.

        `end` is the largest TimeTick that had been allocated when its write was acknowledged.
        """
        heappush(self._heap, (position, end, session))

    def advance(self, confirmed: int) -> Position:
        """Move as far as TimeTick `confirmed` allows.

        Both conditions of the seed: everything allocated while the append was written is confirmed, so that
        no smaller position can still appear with a larger TimeTick; and its transaction is resolved, so
        that nothing behind it will still be assembled from here.
        """
        heap = self._heap
        while heap:
            position, end, session = heap[0]
            if end >= confirmed or (session is not None and not session.is_resolved(confirmed)):
                break
            heappop(heap)
            if position > self.position:
                self.position = Position(position)
        return self.position
