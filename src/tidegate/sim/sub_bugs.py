"""Known bugs of acknowledgements, planted one at a time, to prove that the simulator can fail. See `bugs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.database import sub_host
from tidegate.database.sub_acks import Acks, recover
from tidegate.runtime.journal import Journal
from tidegate.runtime.pieces import Piece
from tidegate.sim.bugs import Bug, replaced
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_entry import PENDING, Change
from tidegate.topics.subscription import Subscription
from tidegate.txn.txn_id import TxnId

SUB_BUGS: dict[str, Callable[[], Any]] = {}


def _bug(plant: Bug) -> Bug:
    SUB_BUGS[plant.__name__.replace("_", "-")] = contextmanager(plant)
    return plant


@_bug
def pending_acknowledgements_are_not_restored() -> Iterator[None]:
    """After a restart nobody knows what open transactions hold."""

    def forgetful(journal: Journal, since: Any) -> Acknowledgements:
        found = recover(journal, since)
        for txn in found.pending_txns():
            found.release(txn)
        return found

    with replaced(sub_host, "recover", forgetful):
        yield


@_bug
def acknowledgement_outside_of_its_transaction() -> Iterator[None]:
    """What a transaction acknowledges is acknowledged at once."""

    def ack_in_txn(
        self: Subscription,
        consumer: Any,
        ids: Any,
        txn: bytes,  # noqa: ARG001
        *,
        later: bool = False,  # noqa: ARG001
    ) -> Change:
        return self.ack(consumer, ids)

    def ack_cumulative_in_txn(self: Subscription, consumer: Any, id: MessageId, txn: bytes) -> Change:  # noqa: ARG001
        return self.ack_cumulative(consumer, id)

    with (
        replaced(Subscription, "ack_in_txn", ack_in_txn),
        replaced(Subscription, "ack_cumulative_in_txn", ack_cumulative_in_txn),
    ):
        yield


@_bug
def aborted_messages_are_not_given_back() -> Iterator[None]:
    """What an aborted transaction held stays pending."""
    original = Acks.end

    def end(self: Acks, raw: bytes, committed: bool) -> None:
        if committed:
            original(self, raw, committed)

    with replaced(Acks, "end", end):
        yield


@_bug
def commit_without_its_acknowledgements() -> Iterator[None]:
    """A commit carries the messages of a transaction, and not what it acknowledges."""
    original = Acks.prepare

    def prepare(self: Acks, txn: TxnId) -> Iterable[tuple[str, Piece]]:
        original(self, txn)
        return []

    with replaced(Acks, "prepare", prepare):
        yield


@_bug
def snapshot_while_an_acknowledgement_is_on_its_way() -> Iterator[None]:
    """A subscription's snapshot does not wait for records that are being written."""
    enter, leave = Journal.enter, Journal.leave

    def only_others(original: Callable[[Journal], None]) -> Callable[[Journal], None]:
        def call(self: Journal) -> None:
            if not self.vchannel.startswith("subscription/"):
                original(self)

        return call

    with replaced(Journal, "enter", only_others(enter)), replaced(Journal, "leave", only_others(leave)):
        yield


@_bug
def two_transactions_hold_one_message() -> Iterator[None]:
    """Nobody looks whether a message is pending already."""
    original = Subscription._find

    def find(self: Subscription, ids: Any, txn: Any) -> Any:
        if txn is None:
            return original(self, ids, txn)
        found = [self._entries.get(id) for id in ids]
        if any(each is None or each.state != PENDING for each in found):
            return original(self, ids, txn)
        return found

    with replaced(Subscription, "_find", find):
        yield


@_bug
def acknowledgement_before_it_is_durable() -> Iterator[None]:
    """An acknowledgement is confirmed when its record is handed over, not when it is in the log."""

    def do(self: Acks, decide: Callable[[], Change]) -> Any:
        self._journal.enter()
        try:
            with self._lock:
                change = decide()
                if change.record is not None:
                    self._journal.request(change.record).begin()
                    self._machine.confirm(change)
        finally:
            self._journal.leave()
        yield from ()

    with replaced(Acks, "_do", do):
        yield
