"""What a subscription has acknowledged, and what it will have if a transaction commits: a fold over its records.

Per shard there is a *mark*, at or below which everything is acknowledged; above it, single ids and ranges; and what
is *pending* in transactions that have not ended (seed 002). The fold trusts its records: whoever appends one has
checked it (`Subscription`).

A message may seem pending for several transactions: the one that holds it, and others that were aborted without a
record that says so, or with one that came too early. So the order in which records of different transactions were
appended does not matter: once those that have ended are ended here too, as after a restart they must be, only the
holder is left.

A committed transaction's ACK and ACK_CUMULATIVE records are part of the transaction itself, so they appear if and only
if it commits. RELEASE only saves asking the coordinator at recovery what became of it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tidegate.errors import Corruption
from tidegate.topics import sub_records as records
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_records import Kind

SNAPSHOT_VERSION: Final = 1
_LENGTH: Final = struct.Struct("<I")


class _Shard:
    """One shard's part.

    Invariant: `single`, the ranges and `pending` lie above the mark; `firsts[i] <= lasts[i] < firsts[i + 1]`.
    """

    __slots__ = ("cumulative", "firsts", "lasts", "mark", "pending", "single")

    def __init__(self) -> None:
        self.mark: MessageId | None = None
        self.single: set[MessageId] = set()
        self.firsts: list[MessageId] = []
        self.lasts: list[MessageId] = []
        self.pending: dict[MessageId, tuple[bytes, ...]] = {}
        self.cumulative: dict[bytes, MessageId] = {}
        """Who will acknowledge everything at or below which id."""

    def holds(self, id: MessageId) -> bool:
        if self.mark is not None and id <= self.mark:
            return True
        if id in self.single:
            return True
        if not self.firsts:
            return False
        at = bisect_right(self.firsts, id) - 1
        return at >= 0 and id <= self.lasts[at]


class Acknowledgements:
    """The durable part of a subscription.

    Invariants: applying a record twice is applying it once; what is acknowledged stays so; an acknowledged message is
    pending for nobody; the mark of a shard never goes back. `snapshot()` and the records after it give what all
    records give.
    """

    __slots__ = ("_by_txn", "_shards")

    def __init__(self) -> None:
        self._shards: dict[int, _Shard] = {}
        self._by_txn: dict[bytes, set[MessageId]] = {}

    # -- the fold ----------------------------------------------------------------------------------------------------

    def apply(self, record: bytes, txn: bytes | None = None) -> None:
        """Take in one record; `txn` is the transaction whose commit made it visible, if any.

        Raises: `Corruption` when the bytes are not a record.
        """
        read = records.decode(record)
        if txn is not None and read.kind in (Kind.ACK, Kind.ACK_CUMULATIVE):
            # It has committed. What it held beyond its ACK records was never confirmed to it.
            self.release(txn)
        match read.kind:
            case Kind.ACK:
                self.acknowledge(read.ids)
            case Kind.ACK_CUMULATIVE:
                for each in read.ids:
                    self.acknowledge_cumulative(each)
            case Kind.ACK_RANGES:
                for first, last in zip(read.ids[::2], read.ids[1::2]):
                    self.merge(first.shard, [(first, last)], (), None)
            case Kind.PENDING:
                self.set_pending(read.txn, read.ids)
            case Kind.PENDING_CUMULATIVE:
                for each in read.ids:
                    self.set_pending_cumulative(read.txn, each)
            case Kind.RELEASE:
                self.release(read.txn)

    def acknowledge(self, ids: Iterable[MessageId]) -> None:
        for id in ids:
            shard = self._shards.get(id[0]) or self._shard(id[0])
            if shard.pending:
                self._forget_pending(shard, id)
            if (shard.mark is None or id > shard.mark) and not (shard.firsts and shard.holds(id)):
                shard.single.add(id)

    def acknowledge_cumulative(self, id: MessageId) -> None:
        shard = self._shard(id.shard)
        if shard.mark is None or id > shard.mark:
            shard.mark = id
            shard.single = {each for each in shard.single if each > id}
            self._cut(shard)
        for each in [each for each in shard.pending if each <= id]:
            self._forget_pending(shard, each)
        _drop_passed(shard, id)

    def set_pending(self, txn: bytes, ids: Iterable[MessageId]) -> None:
        ids = list(ids)
        held = self._by_txn.setdefault(txn, set())
        if ids and self._is_new(ids):
            self._shard(ids[0][0]).pending.update(dict.fromkeys(ids, (txn,)))
            held.update(ids)
            return
        for id in ids:
            shard = self._shards.get(id[0]) or self._shard(id[0])
            holders = shard.pending.get(id, ())
            if txn not in holders and not shard.holds(id):
                shard.pending[id] = (*holders, txn)
                held.add(id)
        if not held:
            del self._by_txn[txn]

    def set_pending_cumulative(self, txn: bytes, id: MessageId) -> None:
        shard = self._shard(id.shard)
        if shard.mark is not None and id <= shard.mark:
            return
        if (held := shard.cumulative.get(txn)) is None or held < id:
            shard.cumulative[txn] = id

    def release(self, txn: bytes) -> None:
        """Nothing is pending for the transaction any more, and nothing of it acknowledged."""
        ids = self._by_txn.pop(txn, ())
        for shard in self._shards.values():
            if ids and len(shard.pending) == len(ids) and shard.pending.keys() == ids:
                # Mostly one transaction at a time holds something, and nobody before it.
                shard.pending = {id: _without(held, txn) for id, held in shard.pending.items() if len(held) > 1}
                ids = ()
        for id in ids:
            pending = self._shards[id.shard].pending
            holders = pending.pop(id)
            if len(holders) > 1:
                pending[id] = _without(holders, txn)
        for shard in self._shards.values():
            shard.cumulative.pop(txn, None)

    def advance(self, mark: MessageId, passed: Sequence[MessageId]) -> None:
        """Move the mark up to an id when `passed` are all the acknowledged single ids between the two.

        Only a `Subscription`, which has seen every message in order, can know that nothing lies between. It changes
        how the state is written, not what it says, so no record is needed.
        """
        shard = self._shard(mark.shard)
        if shard.single:
            shard.single.difference_update(passed)
        if shard.mark is None or mark > shard.mark:
            shard.mark = mark
            self._cut(shard)
            _drop_passed(shard, mark)

    def merge(
        self,
        number: int,
        ranges: Sequence[tuple[MessageId, MessageId]],
        singles: Iterable[MessageId],
        known: MessageId | None,
    ) -> None:
        """Write acknowledged messages that follow each other as ranges instead of single ids.

        With `known`, these are all ranges at or below it; without, they come on top of those there are.
        """
        shard = self._shard(number)
        shard.single.difference_update(singles)
        kept = [(a, b) for a, b in zip(shard.firsts, shard.lasts) if known is None or b > known]
        shard.firsts, shard.lasts = [], []
        for first, last in sorted([*ranges, *kept]):
            if shard.lasts and first <= shard.lasts[-1]:
                shard.lasts[-1] = max(shard.lasts[-1], last)
            else:
                shard.firsts.append(first)
                shard.lasts.append(last)
        if known is None:
            shard.single = {each for each in shard.single if not any(a <= each <= b for a, b in ranges)}
        self._cut(shard)

    # -- questions ---------------------------------------------------------------------------------------------------

    def is_acknowledged(self, id: MessageId) -> bool:
        shard = self._shards.get(id.shard)
        return shard is not None and shard.holds(id)

    def pending_for(self, id: MessageId) -> bytes | None:
        """The transaction that will acknowledge it if it commits."""
        shard = self._shards.get(id.shard)
        if shard is None or shard.holds(id):
            return None
        if holders := shard.pending.get(id):
            return holders[-1]
        return max((txn for txn, upto in shard.cumulative.items() if id <= upto), default=None)

    def single_pending_for(self, id: MessageId) -> bytes | None:
        """The same, leaving out what is pending only because everything below some id is."""
        shard = self._shards.get(id.shard)
        return None if shard is None else shard.pending.get(id, (None,))[-1]

    def has_exceptions(self, number: int) -> bool:
        """Whether anything above the shard's mark is acknowledged or pending one by one."""
        shard = self._shards.get(number)
        return shard is not None and bool(shard.single or shard.firsts or shard.pending)

    def mark(self, number: int) -> MessageId | None:
        shard = self._shards.get(number)
        return None if shard is None else shard.mark

    def marks(self) -> dict[int, MessageId]:
        """Per shard, the id at or below which everything is acknowledged. Read on from here after a restart."""
        return {number: each.mark for number, each in sorted(self._shards.items()) if each.mark is not None}

    def cumulative(self) -> dict[int, tuple[bytes, MessageId]]:
        """Per shard, who will acknowledge everything at or below which id; of several, who reaches furthest."""
        found = {}
        for number, shard in sorted(self._shards.items()):
            if shard.cumulative:
                id, txn = max((id, txn) for txn, id in shard.cumulative.items())
                found[number] = (txn, id)
        return found

    def pending_txns(self) -> list[bytes]:
        """Transactions that hold something here. After a restart, end those that the coordinator has ended."""
        cumulative = {txn for each in self._shards.values() for txn in each.cumulative}
        return sorted(cumulative | set(self._by_txn))

    def pending_ids(self, txn: bytes) -> frozenset[MessageId]:
        """What a transaction holds one by one."""
        return frozenset(self._by_txn.get(txn, ()))

    @property
    def acked_above_mark(self) -> int:
        """Single ids and ranges kept in memory because something below them is not acknowledged."""
        return sum(len(each.single) + len(each.firsts) for each in self._shards.values())

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The whole state, as the shortest list of records that leads to it."""
        parts = [bytes([SNAPSHOT_VERSION])]
        for record in self._as_records():
            parts += (_LENGTH.pack(len(record)), record)
        return b"".join(parts)

    @classmethod
    def restore(cls, snapshot: bytes) -> Acknowledgements:
        """Read a snapshot.

        Raises: `Corruption` when it is not one.
        """
        if snapshot[:1] != bytes([SNAPSHOT_VERSION]):
            raise Corruption(
                "a snapshot of acknowledgements", 0, f"version {snapshot[:1].hex() or 'none'} is not known"
            )
        found = cls()
        at = 1
        while at < len(snapshot):
            if at + _LENGTH.size > len(snapshot):
                raise Corruption("a snapshot of acknowledgements", at, "it ends too early")
            (length,) = _LENGTH.unpack_from(snapshot, at)
            at += _LENGTH.size
            found.apply(snapshot[at : at + length])
            at += length
        return found

    def _as_records(self) -> Iterator[bytes]:
        marks = self.marks()
        if marks:
            yield records.ack_cumulative(list(marks.values()))
        for _, shard in sorted(self._shards.items()):
            if shard.firsts:
                yield records.ack_ranges([id for ends in zip(shard.firsts, shard.lasts) for id in ends])
        single = sorted(id for each in self._shards.values() for id in each.single)
        if single:
            yield records.ack(single)
        for txn, ids in sorted(self._by_txn.items()):
            yield records.pending(txn, sorted(ids))
        for _, shard in sorted(self._shards.items()):
            for txn, id in sorted(shard.cumulative.items()):
                yield records.pending_cumulative(txn, [id])

    # -- parts -------------------------------------------------------------------------------------------------------

    def _is_new(self, ids: Sequence[MessageId]) -> bool:
        """Whether nothing is known of messages of one shard, seen at a glance."""
        shard = self._shard(ids[0][0])
        if shard.pending or shard.single or shard.firsts:
            return False
        least = min(ids)
        return least[0] == max(ids)[0] and (shard.mark is None or least > shard.mark)

    def _shard(self, number: int) -> _Shard:
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = _Shard()
        return shard

    def _forget_pending(self, shard: _Shard, id: MessageId) -> None:
        for txn in shard.pending.pop(id, ()):
            ids = self._by_txn[txn]
            ids.discard(id)
            if not ids:
                del self._by_txn[txn]

    @staticmethod
    def _cut(shard: _Shard) -> None:
        """Drop ranges at or below the mark; one that it lies in begins above it, which no message can tell."""
        if shard.mark is None or not shard.firsts:
            return
        at = bisect_right(shard.lasts, shard.mark)
        del shard.firsts[:at], shard.lasts[:at]
        if shard.firsts and shard.firsts[0] <= shard.mark:
            shard.mark = shard.lasts.pop(0)
            del shard.firsts[0]


def _without(holders: tuple[bytes, ...], txn: bytes) -> tuple[bytes, ...]:
    return tuple([each for each in holders if each != txn])


def _drop_passed(shard: _Shard, mark: MessageId) -> None:
    """A cumulative acknowledgement that the mark has passed holds nothing."""
    if shard.cumulative:
        shard.cumulative = {txn: id for txn, id in shard.cumulative.items() if id > mark}
