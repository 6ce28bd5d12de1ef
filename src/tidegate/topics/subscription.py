"""`Subscription`: who gets which message, and what an acknowledgement does (seed 002).

Delivery is volatile, `Acknowledgements` durable. An acknowledgement takes effect in memory at once, so that nobody else
gets or acknowledges the message, and in the durable part when its record is in the log:

    change = subscription.ack("c1", ids)      refuses, or reserves
    append change.record                      the shell's part
    subscription.confirm(change)              or revert(change), when the append is known to have failed

Choices, where others chose differently:
- An ordinary acknowledgement of a message that is pending in a transaction is refused, as seed 002 has it.
- A cumulative acknowledgement and another transaction's single one exclude each other where they overlap.
- Aborting a cumulative acknowledgement gives everything delivered in the shard back, in order, at once: new messages
  come after what was given back, so the order holds without the consumer's help.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.errors import Conflict, InvalidArgument, InvariantBroken
from tidegate.topics import sub_records as records
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_delivery import Delivery
from tidegate.topics.sub_entry import ACKING, DELIVERED, GONE, PENDING, READY, WAITING, Change, Entry
from tidegate.topics.sub_shard import Shard
from tidegate.txn.txn_id import TxnId


class Subscription(Delivery):
    """One subscription of a topic, with all its shards.

    Invariants: an acknowledged message is never delivered again; a message is in at most one consumer's hands; one
    that is pending in a transaction is in nobody's, whatever is asked; every other message becomes deliverable when
    its holder gives it back or leaves; no message is acknowledged by two transactions.
    """

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def ack(self, consumer: str | None, ids: Sequence[MessageId]) -> Change:
        """Acknowledge messages, all or none; None is the subscription itself, for dead letters.

        Any connected consumer may acknowledge what was delivered, so that one whose message was given to another in
        the meantime can still say that it is done. What is acknowledged already is no error.
        Raises: `Conflict` when one is pending in a transaction; `InvalidArgument` when one was never delivered;
        `LeaseLost` when the consumer is not connected.
        """
        if consumer is not None:
            self._consumer(consumer)
        found = self._find(ids, None)
        self._reserve(found)
        done = tuple([each.id for each in found])
        return Change(records.ack(done) if done else None, done, entries=found)

    def ack_in_txn(self, consumer: str | None, ids: Sequence[MessageId], txn: bytes, *, later: bool = False) -> Change:
        """Acknowledge messages if the transaction commits, all or none. `later`: no record is to be appended now.

        Raises: `Conflict` when one is acknowledged, or pending in any transaction, this one included (3.2); else as
        `ack`.
        """
        if consumer is not None:
            self._consumer(consumer)
        records.check_txn(txn)
        if not ids:
            raise InvalidArgument(f"subscription {self.name!r}: nothing to acknowledge in transaction {_named(txn)}")
        found = self._find(ids, txn)
        held = self._txns.setdefault(txn, {})
        for entry in found:
            holder = entry.consumer
            if holder is not None and entry.state == DELIVERED:
                holder.unacked -= 1
            entry.state = PENDING
            entry.txn = txn
            held[entry.id] = entry
        done = tuple([each.id for each in found])
        if later:
            return Change(None, done, txn, entries=found)
        pending, ack = records.pending_and_ack(txn, done)
        return Change(pending, done, txn, ack, entries=found)

    def ack_cumulative(self, consumer: str | None, id: MessageId) -> Change:
        """Acknowledge everything in the message's shard up to it.

        Raises: `InvalidArgument` on a shared subscription; `Conflict` when it covers something that is pending in a
        transaction, or was given back and waits to be delivered again; else as `ack`.
        """
        place = self._cumulative(consumer, id, None)
        found = place.between(None, id)
        for entry in found:
            if entry.state == PENDING:
                raise self._conflict(entry.id, self._holder(entry), None)
            self._check_in_hand(entry)
        if not found:
            return Change(None, (), cumulative=True, entries=[])
        self._reserve(found)
        return Change(records.ack_cumulative([id]), (id,), cumulative=True, entries=found)

    def ack_cumulative_in_txn(self, consumer: str | None, id: MessageId, txn: bytes) -> Change:
        """Acknowledge everything in the message's shard up to it if the transaction commits.

        The same transaction may go on to a later message.
        Raises: `Conflict` when the message is at or below the mark or what this transaction has reached, another
        transaction acknowledges the shard cumulatively, or one of the messages covered; else as `ack_cumulative`.
        """
        records.check_txn(txn)
        place = self._cumulative(consumer, id, txn)
        if place.levels and (place.cumulative_txn != txn or id <= place.levels[-1]):
            raise self._conflict(id, place.cumulative_txn, txn)
        found = place.between(place.levels[-1] if place.levels else None, id)
        for entry in found:
            if entry.txn is not None and entry.txn != txn:
                raise self._conflict(entry.id, entry.txn, txn)
            self._check_in_hand(entry)
        for entry in found:
            if entry.state not in (PENDING, ACKING):
                self._hold(entry)
        place.cumulative_txn = txn
        place.levels.append(id)
        return Change(
            records.pending_cumulative(txn, [id]),
            (id,),
            txn,
            records.ack_cumulative([id]),
            cumulative=True,
            entries=found,
        )

    def confirm(self, change: Change) -> None:
        """The change's record is in the log."""
        entries = _settle(change)
        acks = self.acknowledgements
        if change.txn is None:
            if change.cumulative:
                for id in change.ids:
                    acks.acknowledge_cumulative(id)
            self._drop(entries)
        elif not change.cumulative:
            # What the transaction's end has decided in the meantime stays decided.
            acks.set_pending(change.txn, [each.id for each in entries if each.txn == change.txn])
        else:
            for id in change.ids:
                place = self._shards[id.shard]
                if place.cumulative_txn == change.txn and id in place.levels:
                    acks.set_pending_cumulative(change.txn, id)
                    # Whatever becomes of the earlier ones, this one covers them.
                    place.levels = [each for each in place.levels if each >= id]

    def revert(self, change: Change) -> None:
        """The change's record is known not to be in the log: it never happened.

        A message goes back to the consumer that had it, which may acknowledge it again; to the queue if that has left.
        """
        entries = _settle(change)
        if change.txn is None:
            for entry in entries:
                entry.flights -= 1
                if entry.state == ACKING and entry.flights == 0:
                    self._undo(entry)
        elif not change.cumulative:
            held = self._txns.get(change.txn, {})
            for entry in entries:
                if held.pop(entry.id, None) is not None:
                    entry.txn = None
                    self._undo(entry)
            if not held:
                self._txns.pop(change.txn, None)
        else:
            for id in change.ids:
                self._lower(self._shards[id.shard], id, change.txn)

    # -- the end of a transaction ------------------------------------------------------------------------------------

    def end_txn(self, txn: bytes, committed: bool) -> list[MessageId]:
        """The transaction has ended: what it acknowledged is acknowledged, or given back; the ids given back.

        Ending it again, or one that holds nothing here, has no effect (facts 44, 46).
        Ordering: a commit is durable before. After an abort append `sub_records.release(txn)`; if that is lost,
        `pending_txns()` names the transaction after a restart.
        """
        acks = self.acknowledgements
        single = list(self._txns.pop(txn, {}).values())
        places = [place for place in self._shards.values() if place.cumulative_txn == txn]
        covered = {place.number: place.levels[-1] for place in places}
        for number, (holder, id) in acks.cumulative().items():
            if holder == txn and number not in covered:
                covered[number] = id
        unfed = acks.pending_ids(txn) - self._entries.keys()
        acks.release(txn)
        for entry in single:
            entry.txn = None
        for place in places:
            single += place.between(None, covered[place.number])
            place.load_cumulative()
        if committed:
            for id in covered.values():
                acks.acknowledge_cumulative(id)
            self._drop(single)
            # What has not been fed again since a restart.
            acks.acknowledge(unfed)
            return []
        freed = [each for each in single if each.state == PENDING and not self._held_by_another(each)]
        for entry in dict.fromkeys(freed):
            self._free(entry)
        ids = [each.id for each in dict.fromkeys(freed) if each.state == READY]
        for place in places:
            # Everything that follows comes again too, or the order would be broken.
            ids += self._give_back(place.between(covered[place.number], None))
        return sorted(ids)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _find(self, ids: Sequence[MessageId], txn: bytes | None) -> list[Entry]:
        """The entries to acknowledge one by one, or the reason why not."""
        found = []
        for id in ids:
            entry = self._entries.get(id)
            if entry is None:
                if self.acknowledgements.is_acknowledged(id):
                    if txn is not None:
                        raise self._conflict(id, None, txn)
                    continue
                self._check_known(id, txn)
                raise InvariantBroken(f"subscription {self.name!r}: message {id} is neither known nor unknown")
            if entry.state != DELIVERED:
                if entry.state == PENDING:
                    raise self._conflict(id, self._holder(entry), txn)
                if entry.state == ACKING and txn is not None:
                    raise self._conflict(id, None, txn)
                if not entry.was_delivered:
                    raise self._unknown(id)
            found.append(entry)
        return found if len(set(ids)) == len(ids) else list(dict.fromkeys(found))

    def _cumulative(self, consumer: str | None, id: MessageId, txn: bytes | None) -> Shard:
        """The shard in which everything up to a message may be acknowledged, as far as that is known without `txn`."""
        if self.kind == "shared":
            raise InvalidArgument(
                f"subscription {self.name!r} is shared: others hold messages before {id}; acknowledge one by one"
            )
        if consumer is not None:
            self._consumer(consumer)
        self._check_known(id, txn)
        place = self._shard(id.shard)
        mark = self.acknowledgements.mark(id.shard)
        if mark is not None and id <= mark:
            if txn is not None:
                raise self._conflict(id, None, txn)
        elif place.last_fed is None or id > place.last_fed:
            # Acknowledged by itself in an earlier life. What lies before it has not been read again.
            raise self._unknown(id)
        return place

    def _check_in_hand(self, entry: Entry) -> None:
        """Everything up to a message covers only what was delivered, and is not to be delivered again.

        What was given back, as by a transaction that was aborted, nobody has processed: it would be lost.
        """
        if not entry.was_delivered:
            raise self._unknown(entry.id)
        if entry.state in (READY, WAITING):
            raise Conflict(
                f"subscription {self.name!r}: message {entry.id} was given back and waits to be delivered again;"
                f" receive it before acknowledging everything up to a later one"
            )

    def _check_known(self, id: MessageId, txn: bytes | None) -> None:
        entry = self._entries.get(id)
        if entry is not None:
            if entry.was_delivered:
                return
        elif (holder := self.acknowledgements.pending_for(id)) is not None:
            raise self._conflict(id, holder, txn)
        elif self.acknowledgements.is_acknowledged(id):
            return
        raise self._unknown(id)

    def _unknown(self, id: MessageId) -> InvalidArgument:
        return InvalidArgument(
            f"subscription {self.name!r}: message {id} was not delivered since the subscription was opened;"
            f" receive it before acknowledging it"
        )

    def _holder(self, entry: Entry) -> bytes | None:
        return entry.txn if entry.txn is not None else self._shards[entry.id.shard].cumulative_txn

    def _conflict(self, id: MessageId, holder: bytes | None, txn: bytes | None) -> Conflict:
        if holder is None:
            why = "is acknowledged already"
        elif holder == txn:
            why = "is acknowledged by this transaction already"
        else:
            why = f"is being acknowledged by transaction {_named(holder)}"
        if txn is None:
            todo = "wait for it to end; the message comes again if it is aborted"
        else:
            todo = f"abort transaction {_named(txn)} and receive again"
        return Conflict(f"subscription {self.name!r}: message {id} {why}; {todo}")

    def _reserve(self, entries: list[Entry]) -> None:
        for entry in entries:
            holder = entry.consumer
            if entry.state == DELIVERED and holder is not None:
                holder.unacked -= 1
            entry.state = ACKING
            entry.flights += 1

    @staticmethod
    def _hold(entry: Entry) -> None:
        holder = entry.consumer
        if entry.state == DELIVERED and holder is not None:
            holder.unacked -= 1
        entry.state = PENDING

    def _undo(self, entry: Entry) -> None:
        """Nobody acknowledges it any more, unless cumulatively."""
        if self._shards[entry.id.shard].covers(entry.id):
            entry.state = PENDING
        elif entry.consumer is None:
            self._make_deliverable(entry)
        elif entry.consumer.alive:
            entry.state = DELIVERED
            entry.consumer.unacked += 1
        else:
            self._free(entry)

    def _held_by_another(self, entry: Entry) -> bool:
        """Whether a transaction is left that holds it. Only after a restart: see `Acknowledgements`."""
        entry.txn = self.acknowledgements.single_pending_for(entry.id)
        if entry.txn is not None:
            self._txns.setdefault(entry.txn, {})[entry.id] = entry
        return entry.txn is not None or self._shards[entry.id.shard].covers(entry.id)

    def _lower(self, place: Shard, level: MessageId, txn: bytes) -> None:
        if place.cumulative_txn != txn or level not in place.levels:
            return
        place.levels.remove(level)
        if not place.levels:
            place.cumulative_txn = None
        for entry in place.between(place.levels[-1] if place.levels else None, level):
            if entry.state == PENDING and entry.txn is None and not place.covers(entry.id):
                self._undo(entry)

    def _drop(self, entries: Iterable[Entry]) -> None:
        """These are acknowledged, durably."""
        by_shard: dict[int, list[MessageId]] = {}
        for entry in entries:
            if entry.state == GONE:
                continue
            holder = entry.consumer
            if entry.state == DELIVERED and holder is not None:
                holder.unacked -= 1
            entry.state = GONE
            entry.payload = None
            id = entry.id
            del self._entries[id]
            ids = by_shard.get(id[0])
            if ids is None:
                ids = by_shard[id[0]] = []
            ids.append(id)
        acks = self.acknowledgements
        for number, ids in by_shard.items():
            place = self._shards[number]
            place.gone += len(ids)
            self._acknowledged_total += len(ids)
            place.advance()
            # Mostly the mark has passed them all by now.
            mark = acks.mark(number)
            if mark is None or max(ids) > mark:
                acks.acknowledge(ids)


def _settle(change: Change) -> list[Entry]:
    if change.entries is None:
        raise InvariantBroken(f"an acknowledgement of {len(change.ids)} messages was confirmed or reverted twice")
    entries, change.entries = change.entries, None
    return entries


def _named(txn: bytes) -> str:
    return str(TxnId.from_bytes16(txn))
