"""Which messages may be delivered next: given back ones first, then new ones; and those that wait for their time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from tidegate.topics.sub_entry import READY, WAITING, Entry

_Again = tuple[int, int, int, Entry]
_Due = tuple[int, int, Entry]


class Queue:
    """Messages in the order in which they are to be delivered.

    Ordering: messages of a shard come in delivery order among the new ones, and among those given back. A message stays
    queued when it changes state, and is skipped when its turn comes and it is not READY; so one that was pending
    when it was fed and is freed in time still has its place.
    """

    __slots__ = ("_again", "_due", "_new", "_serial")

    def __init__(self) -> None:
        self._new: deque[Entry] = deque()
        self._again: list[_Again] = []
        self._due: list[_Due] = []
        self._serial = 0

    def add_new(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            entry.queued = True
            self._new.append(entry)

    def add_again(self, entry: Entry) -> None:
        """An entry in state READY that was delivered before."""
        if not entry.queued:
            entry.queued = True
            shard, timestamp, position = entry.id
            # By time first, so that no shard starves another.
            heappush(self._again, (timestamp, position, shard, entry))

    def add_waiting(self, entry: Entry, live: int) -> None:
        """An entry in state WAITING, with its `due_ms`; `live` entries exist."""
        self._serial += 1
        heappush(self._due, (entry.due_ms, self._serial, entry))
        if len(self._due) > 2 * live + 64:
            # Acknowledged in the meantime; they need not stay until their time comes.
            self._due = [each for each in self._due if _waits(each)]
            heapify(self._due)

    def wake(self, now_ms: int) -> None:
        """Make READY what has waited long enough."""
        due = self._due
        while due and due[0][0] <= now_ms:
            if _waits(first := heappop(due)):
                entry = first[2]
                entry.state = READY
                self.add_again(entry)

    def next_due_ms(self) -> int | None:
        due = self._due
        while due and not _waits(due[0]):
            heappop(due)
        return due[0][0] if due else None

    def pop(self, count: int) -> list[Entry]:
        """At most `count` entries in state READY."""
        found: list[Entry] = []
        again, new = self._again, self._new
        while again and len(found) < count:
            entry = heappop(again)[3]
            entry.queued = False
            if entry.state == READY:
                found.append(entry)
        while new and len(found) < count:
            entry = new.popleft()
            entry.queued = False
            if entry.state == READY:
                found.append(entry)
        return found


def _waits(item: _Due) -> bool:
    """Whether the entry still waits for this time, and was not taken, acknowledged or nacked anew."""
    return item[2].state == WAITING and item[2].due_ms == item[0]
