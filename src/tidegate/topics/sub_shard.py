"""One shard of a subscription in memory: its messages in delivery order, and who acknowledges cumulatively."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter, lt
from typing import Any, Final

from tidegate.errors import InvariantBroken
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_entry import GONE, PENDING, READY, Entry, Run

COMPACT_ABOVE: Final = 1024
"""Acknowledged messages behind a gap that are kept one by one before they are written as ranges."""

_BY_ID: Final = attrgetter("id")


class Shard:
    """Fed messages from the mark on.

    Invariant: `order[head:]` ascends, and holds every message fed above the mark: those not acknowledged as entries,
    those acknowledged as entries or runs in state GONE. `gone` counts the latter.
    """

    __slots__ = ("_acks", "cumulative_txn", "gone", "head", "last_fed", "levels", "number", "order")

    def __init__(self, number: int, acks: Acknowledgements) -> None:
        self.number: Final = number
        self._acks: Final = acks
        self.order: list[Entry] = []
        self.head = 0
        self.gone = 0
        self.last_fed: MessageId | None = None
        self.cumulative_txn: bytes | None = None
        self.levels: list[MessageId] = []
        """How far `cumulative_txn` acknowledges: ascending, the last one counts. More than one while it extends, so
        that one whose record cannot be written falls back to the one before."""
        self.load_cumulative()

    def load_cumulative(self) -> None:
        """Take over what the durable part says of who acknowledges cumulatively."""
        held = self._acks.cumulative().get(self.number)
        self.cumulative_txn, self.levels = (None, []) if held is None else (held[0], [held[1]])

    def covers(self, id: MessageId) -> bool:
        """Whether a transaction's cumulative acknowledgement reaches up to the message."""
        return bool(self.levels) and id <= self.levels[-1]

    def feed(self, items: list[tuple[MessageId, Any]]) -> list[Entry]:
        """Enter new messages; those that are not acknowledged yet.

        Raises: `InvariantBroken` when they are of another shard or not in delivery order.
        """
        acks, order, last = self._acks, self.order, self.last_fed
        mark = acks.mark(self.number)
        special = acks.has_exceptions(self.number) or bool(self.levels)
        if not items:
            return []
        ids = [id for id, _ in items]
        # Ascending ids lie in one shard if the first and the last do.
        if not (
            ids[0][0] == ids[-1][0] == self.number and (last is None or ids[0] > last) and all(map(lt, ids, ids[1:]))
        ):
            self._refuse(ids)
        self.last_fed = ids[-1]
        if not special and (mark is None or ids[0] > mark):
            new = [Entry(id, payload, READY) for id, payload in items]
            order += new
            return new
        added: list[Entry] = []
        for id, payload in items:
            if mark is not None and id <= mark:
                continue
            entry = Entry(id, payload, READY)
            if special:
                if acks.is_acknowledged(id):
                    entry.state, entry.payload = GONE, None
                    self.gone += 1
                    order.append(entry)
                    continue
                entry.txn = acks.single_pending_for(id)
                if entry.txn is not None or self.covers(id):
                    entry.state = PENDING
            order.append(entry)
            added.append(entry)
        return added

    def _refuse(self, ids: list[MessageId]) -> None:
        last = self.last_fed
        for id in ids:
            if id.shard != self.number or (last is not None and id <= last):
                raise InvariantBroken(f"shard {self.number}: message {id} was fed after {last}")
            last = id

    def between(self, above: MessageId | None, upto: MessageId | None) -> list[Entry]:
        """The entries above one id and at or below another, without those that are acknowledged."""
        order = self.order
        start = self.head if above is None else bisect_right(order, above, lo=self.head, key=_BY_ID)
        stop = len(order) if upto is None else bisect_right(order, upto, lo=start, key=_BY_ID)
        return [each for each in order[start:stop] if each.state != GONE]

    def advance(self) -> None:
        """Move the mark over what is acknowledged without a gap."""
        order, head = self.order, self.head
        size = len(order)
        while head < size and order[head].state == GONE:
            head += 1
        if head > self.head:
            mark = order[head - 1].id
            self._acks.advance(mark, [each.id for each in order[self.head : head]])
            if self.levels and self.levels[-1] <= mark:
                # All of it was acknowledged by others' leave: it holds nothing.
                self.cumulative_txn, self.levels = None, []
            self.gone -= head - self.head
            self.head = head
            if head >= COMPACT_ABOVE and 2 * head >= size:
                del order[:head]
                self.head = 0
        if self.gone > COMPACT_ABOVE + 2 * (len(self.order) - self.head - self.gone):
            self._compact()

    def oldest(self) -> MessageId | None:
        """The first message that is not acknowledged. After `advance`, that is the head."""
        return self.order[self.head].id if self.head < len(self.order) else None

    def _compact(self) -> None:
        kept: list[Entry] = []
        runs: list[Run] = []
        singles: list[MessageId] = []
        for each in self.order[self.head :]:
            if each.state != GONE:
                kept.append(each)
                continue
            first = each.first if isinstance(each, Run) else each.id
            singles.append(each.id)
            if kept and kept[-1].state == GONE:
                kept[-1].id = each.id
            else:
                runs.append(Run(first, each.id))
                kept.append(runs[-1])
        self.order, self.head, self.gone = kept, 0, len(runs)
        self._acks.merge(self.number, [(run.first, run.id) for run in runs], singles, self.last_fed)
