"""LastConfirmedMessageID (seed 000): the place to read from so that nothing later is missed.

Promise: when a message carries `last_confirmed` L, every message with a larger TimeTick, assembled
transactions included, lies at or behind L.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from tidegate.log.message import Position

_SLACK: Final = 64


class Session(Protocol):
    """The transaction an append belongs to, as far as this module cares."""

    def is_resolved(self, confirmed: int) -> bool:
        """Whether it is committed, rolled back or expired at TimeTick `confirmed`: no more bodies can come."""


class AllResolved:
    """Several transactions whose appends were written together."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = sessions

    def is_resolved(self, confirmed: int) -> bool:
        return all(session.is_resolved(confirmed) for session in self.sessions)


class LastConfirmed:
    """Finds the largest position that is safe to read from.

    Both conditions of the seed hold for `position`: everything allocated while an append was written is
    confirmed, so that no smaller position can still appear with a larger TimeTick; and its transaction is resolved,
    so that nothing behind it will still be assembled from here. `resume` waits for the first condition alone: whoever
    assembles transactions by the positions their commit names may read on from there, whatever is open.

    Invariants: neither goes back; `position <= resume`. An open transaction costs one entry, however much is
    appended beside it.
    """

    def __init__(self, position: Position, open_from: Position | None = None) -> None:
        """Begin at `position`; `open_from` is where transactions begin that were open before, and are held next."""
        self.position = position if open_from is None else open_from
        self.resume = position
        self._reached = int(position)
        self._heap: list[tuple[int, int, int]] = []
        """(first position, last position, largest TimeTick allocated when it was acknowledged)"""
        self._open: list[tuple[int, int, Session]] = []
        """(first position, a number that makes entries comparable, transaction)"""
        self._first: dict[int, int] = {}
        """The smallest position noted for a transaction, by its identity, while it is in `_open`."""
        self._entries = 0
        self._open_once = 0
        """How many of `_open` counted when all of them were looked at last."""

    def __len__(self) -> int:
        """Appends and transactions it waits for."""
        return len(self._heap) + len(self._first)

    def add(self, position: int, end: int, session: Session | None = None, *, first: int | None = None) -> None:
        """Note a confirmed append whose last message is at `position`, and its first at `first` if it has several.

        `end` is the largest TimeTick that had been allocated when its write was acknowledged.
        """
        first = position if first is None else first
        heappush(self._heap, (first, position, end))
        if session is not None:
            for each in session.sessions if isinstance(session, AllResolved) else (session,):
                self.hold(first, each)

    def hold(self, first: int, session: Session) -> None:
        """Stay at or before position `first` until the transaction is resolved."""
        known = self._first.get(id(session))
        if known is None or first < known:
            self._first[id(session)] = first
            self._entries += 1
            heappush(self._open, (first, self._entries, session))

    def advance(self, confirmed: int) -> Position:
        """Move as far as TimeTick `confirmed` allows.

        Appends that were written together may lie inside one another, so what is left in the heap bounds how far the
        others count.
        """
        heap = self._heap
        while heap and heap[0][2] < confirmed:
            self._reached = max(self._reached, heappop(heap)[1])
        safe = min(self._reached, heap[0][0]) if heap else self._reached
        if safe > self.resume:
            self.resume = Position(safe)
        opened = self._open
        while opened and not self._is_unresolved(opened[0], confirmed):
            heappop(opened)
        if len(opened) > 2 * self._open_once + _SLACK:
            # One old transaction at the top would keep all that came and went behind it.
            opened[:] = [each for each in opened if self._is_unresolved(each, confirmed)]
            heapify(opened)
            self._open_once = len(opened)
        held = min(safe, opened[0][0]) if opened else safe
        if held > self.position:
            self.position = Position(held)
        return self.position

    def _is_unresolved(self, entry: tuple[int, int, Session], confirmed: int) -> bool:
        """Whether the entry still counts; if not, it goes."""
        first, _, session = entry
        if self._first.get(id(session)) != first:
            return False  # The transaction has an entry at a smaller position, or none any more.
        if session.is_resolved(confirmed):
            del self._first[id(session)]
            return False
        return True
