"""A subscription's acknowledgements on their way into the log, and its part in transactions (seed 002).

Procedures are `Steps`. The machine decides under the lock, the record is appended without it, and what became of the
append is told to the machine. An acknowledgement in a transaction is logged as pending before it is confirmed, or,
in a transaction that ends with this process, when it is still open a moment `later`; the acknowledgement itself is
a message of the transaction, so it counts if and only if the transaction commits.
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

    Ordering: what `ack` confirms is durable; what `ack_in_txn` confirms is pending durably, unless `later`. No snapshot
    is made while a record, or a commit that carries one, is on its way.
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
        self._unlogged: set[bytes] = set()
        """Transactions for which something is pending that is to be logged later. The lock covers them."""
        self._is_closed = False

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, consumer: str | None, ids: Sequence[MessageId]) -> Steps[None]:
        """Acknowledge messages, all or none. Raises: as the machine, and what an append raises: then none is."""
        return self._do(lambda: self._machine.ack(consumer, ids))

    def ack_cumulative(self, consumer: str | None, id: MessageId) -> Steps[None]:
        """Acknowledge everything in the message's shard up to it."""
        return self._do(lambda: self._machine.ack_cumulative(consumer, id))

    def ack_in_txn(
        self, txn: TxnId, consumer: str | None, ids: Sequence[MessageId], *, later: bool = False
    ) -> Steps[None]:
        """Acknowledge messages if the transaction commits. Raises: as the machine and as writing to a transaction.

        `later` is for a transaction that ends with this process: see `LiveTransactions.take_part`.
        """
        raw = txn.to_bytes16()
        return self._take_part(txn, lambda: self._machine.ack_in_txn(consumer, ids, raw, later=later), later)

    def ack_cumulative_in_txn(
        self, txn: TxnId, consumer: str | None, id: MessageId, *, later: bool = False
    ) -> Steps[None]:
        """Acknowledge everything in the message's shard up to it if the transaction commits."""
        raw = txn.to_bytes16()
        return self._take_part(txn, lambda: self._machine.ack_cumulative_in_txn(consumer, id, raw), later)

    def _take_part(self, txn: TxnId, decide: Callable[[], Change], later: bool) -> Steps[None]:
        do = self._do_later if later else self._do
        return self._transactions.take_part(txn, self.name, self, lambda: do(decide), later=later)

    def _do_later(self, decide: Callable[[], Change]) -> Steps[None]:
        self._check_open()
        with self._lock:
            change = decide()
            if change.txn is not None:
                self._unlogged.add(change.txn)
            # A snapshot may hold it before a record does, as it may one that no coordinator knows: see `recover`.
            self._machine.confirm(change)
        return
        yield

    def log_held(self, txn: TxnId) -> Steps[None]:
        """Log what is pending for the transaction and was to be logged later."""
        raw = txn.to_bytes16()
        with self._lock:
            if raw not in self._unlogged or self._is_closed:
                return
            single, everything = self._held(raw)
        self._journal.enter()
        try:
            requests = []
            if single:
                requests.append(self._journal.request(records.pending(raw, single)))
            if everything:
                requests.append(self._journal.request(records.pending_cumulative(raw, everything)))
            yield requests
        finally:
            self._journal.leave()
        for request in requests:
            if request.error is not None:
                raise request.error
        with self._lock:
            self._unlogged.discard(raw)

    def _held(self, raw: bytes) -> tuple[list[MessageId], list[MessageId]]:
        """What is pending for a transaction: messages, and those up to which everything is."""
        acks = self._machine.acknowledgements
        return sorted(acks.pending_ids(raw)), [id for holder, id in acks.cumulative().values() if holder == raw]

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidArgument(f"{self.name!r} was dropped; subscribe again")

    def _do(self, decide: Callable[[], Change]) -> Steps[None]:
        self._check_open()
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
            single, everything = self._held(raw)
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
            self._unlogged.discard(raw)
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
