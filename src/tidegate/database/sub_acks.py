"""A subscription's acknowledgements on their way into the log, and its part in transactions (seed 002).

Procedures are `Steps`. The machine decides under the lock, the record is appended without it, and what became of the
append is told to the machine. An acknowledgement in a transaction is logged as pending before it is confirmed; the
acknowledgement itself is a message of the transaction, so it counts if and only if the transaction commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final, Protocol

from tidegate.clock.timestamp import Timestamp
from tidegate.database.live_transactions import LiveTransactions, RecordLog
from tidegate.errors import InvalidArgument
from tidegate.log.message import Message, MessageType
from tidegate.runtime.journal import Journal
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import Request, Steps
from tidegate.topics import sub_records as records
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_entry import Change
from tidegate.topics.subscription import Subscription as Machine
from tidegate.txn.txn_id import TxnId


class PlacedLog(RecordLog, Protocol):
    """A `Journal`: it also says where its records are."""

    @property
    def channel(self) -> str: ...

    @property
    def vchannel(self) -> str: ...


class Acks:
    """One subscription's acknowledgements. Takes part in transactions as `Enlisted`.

    Ordering: what `ack` confirms is durable; what `ack_in_txn` confirms is pending durably. No snapshot is made
    while a record, or a commit that carries one, is on its way.
    """

    def __init__(
        self,
        machine: Machine,
        journal: PlacedLog,
        transactions: LiveTransactions,
        lock: Lock,
        changed: Callable[[], None],
    ) -> None:
        """`lock` covers the machine; `changed` is called, without it, when something may be deliverable again."""
        self._machine = machine
        self._journal = journal
        self._transactions = transactions
        self._lock = lock
        self._changed = changed
        self.name: Final = journal.vchannel
        """By which transactions know it."""
        self._prepared: set[TxnId] = set()
        self._is_closed = False

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, consumer: str | None, ids: Sequence[MessageId]) -> Steps[None]:
        """Acknowledge messages, all or none. Raises: as the machine, and what an append raises: then none is."""
        return self._do(lambda: self._machine.ack(consumer, ids))

    def ack_cumulative(self, consumer: str | None, id: MessageId) -> Steps[None]:
        """Acknowledge everything in the message's shard up to it."""
        return self._do(lambda: self._machine.ack_cumulative(consumer, id))

    def ack_in_txn(self, txn: TxnId, consumer: str | None, ids: Sequence[MessageId]) -> Steps[None]:
        """Acknowledge messages if the transaction commits. Raises: as the machine and as writing to a transaction."""
        raw = txn.to_bytes16()
        return self._take_part(txn, lambda: self._machine.ack_in_txn(consumer, ids, raw))

    def ack_cumulative_in_txn(self, txn: TxnId, consumer: str | None, id: MessageId) -> Steps[None]:
        """Acknowledge everything in the message's shard up to it if the transaction commits."""
        raw = txn.to_bytes16()
        return self._take_part(txn, lambda: self._machine.ack_cumulative_in_txn(consumer, id, raw))

    def _take_part(self, txn: TxnId, decide: Callable[[], Change]) -> Steps[None]:
        return self._transactions.take_part(txn, self.name, self, lambda: self._do(decide))

    def _do(self, decide: Callable[[], Change]) -> Steps[None]:
        if self._is_closed:
            raise InvalidArgument(f"{self.name!r} was dropped; subscribe again")
        self._journal.enter()
        try:
            with self._lock:
                change = decide()
            if change.record is None:
                self._journal.leave()
                return
            request = self._journal.request(change.record)
        except BaseException:
            self._journal.leave()
            raise
        try:
            yield [request]
        except BaseException:  # Nobody waits for it any more; whoever writes it sees to the rest.
            request.begin()
            request.add_done_callback(lambda _: self._settle(change, request))
            raise
        self._settle(change, request)
        if request.error is not None:
            raise request.error

    def _settle(self, change: Change, request: Request) -> None:
        with self._lock:
            if request.error is None:
                self._machine.confirm(change)
            else:
                # Also when it is not known: the caller was told so, and before anything else is written there the
                # channel cuts off what was left of it.
                self._machine.revert(change)
        self._journal.leave()
        self._changed()

    def pending(self, txn: TxnId) -> dict[str, int]:
        """How many messages a transaction holds one by one, and in how many shards everything up to one."""
        raw = txn.to_bytes16()
        with self._lock:
            acks = self._machine.acknowledgements
            upto = sum(1 for holder, _ in acks.cumulative().values() if holder == raw)
            return {"messages": len(acks.pending_ids(raw)), "shards_up_to_one": upto}

    # -- taking part in transactions ---------------------------------------------------------------------------------

    def prepare(self, txn: TxnId) -> Iterable[tuple[str, Piece]]:
        """The acknowledgements, as messages of the transaction: whatever is pending for it, since whenever."""
        if self._is_closed:
            return []  # It was dropped: there is nothing left to acknowledge (fact 46).
        self._journal.enter()
        self._prepared.add(txn)
        raw = txn.to_bytes16()
        with self._lock:
            acks = self._machine.acknowledgements
            single = sorted(acks.pending_ids(raw))
            everything = [id for holder, id in acks.cumulative().values() if holder == raw]
        found = []
        if single:
            found.append(records.ack(single))
        if everything:
            found.append(records.ack_cumulative(everything))
        return [(self._journal.channel, Piece(self.name, each, MessageType.ACK)) for each in found]

    def unprepare(self, txn: TxnId) -> None:
        """The commit failed; everything is pending as before."""
        if txn in self._prepared:
            self._prepared.discard(txn)
            self._journal.leave()

    def ended(self, txn: TxnId, committed: bool) -> None:
        """What is pending for the transaction is acknowledged, or given back."""
        self.end(txn.to_bytes16(), committed)
        self.unprepare(txn)

    def end(self, raw: bytes, committed: bool) -> None:
        """As `ended`, for whatever id a transaction has."""
        with self._lock:
            acks = self._machine.acknowledgements
            held = bool(acks.pending_ids(raw)) or any(holder == raw for holder, _ in acks.cumulative().values())
            self._machine.end_txn(raw, committed)
        if held and not committed and not self._is_closed:
            self._journal.enter()
            request = self._journal.request(records.release(raw))
            request.begin()
            # If it is lost, the next owner asks the coordinator.
            request.add_done_callback(lambda _: self._journal.leave())
        self._changed()

    def close(self) -> None:
        """The subscription is gone."""
        self._is_closed = True


def recover(journal: Journal, since: Timestamp) -> Acknowledgements:
    """What a subscription has acknowledged, and what is pending in it, as its log says."""
    found = [Acknowledgements()]

    def restore(snapshot: bytes) -> None:
        found[0] = Acknowledgements.restore(snapshot)

    def apply(record: bytes, message: Message) -> None:
        found[0].apply(record, message.txn)

    journal.recover(restore, apply, since)
    return found[0]
