"""Idempotent producers: a repeated send is recognised, after reconnects and restarts too.

A producer's record and its messages are one transaction: either both are in the log or neither. The record lies in
the channel of the topic's first shard, so that a send to that shard alone is one write.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from tidegate.catalog.entries import Change, Topic, TopicDropped
from tidegate.clock.timestamp import Timestamp
from tidegate.database.clients import OWNER
from tidegate.database.live_transactions import Keys, Writes
from tidegate.errors import (
    Closed,
    InvalidTransactionState,
    InvariantBroken,
    OutcomeUnknown,
    TidegateError,
    Unavailable,
)
from tidegate.log.message import Message
from tidegate.runtime.journal import Journal
from tidegate.runtime.steps import Gate, Steps, run
from tidegate.topics.producers import Duplicate, Opened, Producers, Sending
from tidegate.txn.txn_id import TxnId

if TYPE_CHECKING:
    from tidegate.database.engine import Engine

_logger = logging.getLogger("tidegate.producers")
_PREFIX: Final = "producers/"


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a send."""

    timestamp: Timestamp | None
    """When it became visible; None for a repeat of something so long ago that this was forgotten."""
    duplicate: bool
    """It had been sent before; nothing was sent now."""


class ProducerHost:
    """The producers of one topic. Thread-safe; its procedures are `Steps`."""

    def __init__(self, engine: Engine, topic: Topic) -> None:
        """Rebuild them from the log."""
        self.topic: Final = topic
        self._engine = engine
        self._lock = Lock()
        self._gates: dict[Sending, Gate] = {}
        """Opened when the outcome is known."""
        self._unknown: dict[Sending, TxnId] = {}
        """Sends whose outcome was not known at the time, and their transactions, which will tell."""
        self._opening: Gate | None = None
        self.journal: Final = Journal(
            engine.log,
            engine.channel_of(topic.id, 0),
            topic.producers_vchannel,
            snapshot_every=engine.settings.snapshot_records,
        )
        self._producers = Producers(topic.name)
        self.journal.recover(self._restore, self._recover, since=topic.created)
        if not self.journal.has_snapshot:
            self.journal.snapshot(self._producers.snapshot)

    def _restore(self, snapshot: bytes) -> None:
        self._producers = Producers.restore(self.topic.name, snapshot)

    def _recover(self, record: bytes, message: Message) -> None:
        self._producers.apply(record, message.time_tick)

    # -- opening -----------------------------------------------------------------------------------------------------

    def open(self, name: str, *, strict: bool = True) -> Steps[tuple[int, int | None]]:
        """Open a producer, or take its name over: its epoch, and the last number that was accepted.

        Raises: `Conflict` while another opens it; `InvalidArgument`, `LimitExceeded`; what an append raises.
        """
        gate = Gate()
        while True:  # One at a time, since epochs follow the order of the log.
            with self._lock:
                before = self._opening
                if before is None:
                    self._opening = gate
                    break
            yield [before]
        try:
            return (yield from self._open(name, strict))
        finally:
            with self._lock:
                self._opening = None
            gate.open()

    def _open(self, name: str, strict: bool) -> Steps[tuple[int, int | None]]:
        now = self._engine.log.allocate(1)
        with self._lock:
            opening = self._producers.begin_open(name, now, strict=strict)
        try:
            for each in opening.after:
                yield from self._wait_for(each)
            self.journal.enter()
            try:
                request = self.journal.request(opening.record)
                yield [request]
                if request.error is not None:
                    raise request.error
                with self._lock:
                    opened = self._producers.apply(opening.record, request.item.result().time_tick)
            finally:
                self.journal.leave()
        finally:
            if not opening.ended:
                with self._lock:
                    self._producers.fail(opening)
        if not isinstance(opened, Opened):
            raise InvariantBroken(f"opening producer {name!r} of topic {self.topic.name!r} became {opened}")
        return opened.epoch, opened.last

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, name: str, epoch: int, first: int, count: int, writes: Writes, keys: Keys = ()) -> Steps[Sent]:
        """Send `count` messages with the numbers from `first` on, unless they were sent before.

        A repeat waits while the first one is under way.
        Raises: `LeaseLost` when the producer was opened again since; `InvalidArgument` for a gap; what a commit raises.
        """
        while True:
            self.journal.enter()
            try:
                with self._lock:
                    begun = self._producers.begin(name, epoch, first, count)
                    if isinstance(begun, Sending):
                        self._gates[begun] = Gate()
            except BaseException:
                self.journal.leave()
                raise
            if isinstance(begun, Sending):
                return (yield from self._send(begun, writes, keys))
            self.journal.leave()
            if isinstance(begun, Duplicate):
                return Sent(begun.timestamp, True)
            yield from self._wait_for(begun.on)

    def _send(self, sending: Sending, writes: Writes, keys: Keys) -> Steps[Sent]:
        engine = self._engine
        everything = {channel: list(pieces) for channel, pieces in writes.items()}
        everything.setdefault(self.journal.channel, []).append(self.journal.piece(sending.record))
        txn: TxnId | None = None
        try:
            txn = engine.begin(OWNER)
            try:
                timestamp = yield from engine.transactions.commit(txn, everything, keys)
            except (OutcomeUnknown, Unavailable):
                raise
            except TidegateError:
                yield from engine.transactions.abort(txn)
                raise
        except BaseException as error:
            self._failed(sending, txn, error)
            raise
        with self._lock:
            self._producers.apply(sending.record, timestamp)
        self._end(sending)
        return Sent(timestamp, False)

    def _failed(self, sending: Sending, txn: TxnId | None, error: BaseException) -> None:
        known = isinstance(error, TidegateError) and not isinstance(error, OutcomeUnknown | Unavailable)
        with self._lock:
            if known or txn is None:
                self._producers.fail(sending)
            else:
                self._unknown[sending] = txn
        self._end(sending)

    def _end(self, sending: Sending) -> None:
        with self._lock:
            gate = self._gates.pop(sending)
        self.journal.leave()
        gate.open()

    def _wait_for(self, sending: Sending) -> Steps[None]:
        """Wait until it is known what became of a send.

        Raises: `OutcomeUnknown` when that is not known yet, or only the next owner will know.
        """
        with self._lock:
            gate = self._gates.get(sending)
        if gate is not None:
            yield [gate]
        with self._lock:
            txn = self._unknown.get(sending)
        if txn is None:
            return
        transactions = self._engine.transactions
        timestamp = None
        try:
            yield from transactions.abort(txn)  # Whoever asks sends it again if it was not sent.
        except InvalidTransactionState:
            timestamp = transactions.committed_at(txn)
            if timestamp is None:
                raise self._in_doubt(sending) from None
        except (OutcomeUnknown, Unavailable) as error:
            raise self._in_doubt(sending) from error
        with self._lock:
            if self._unknown.pop(sending, None) is None:
                return  # Another one was faster.
            if timestamp is None:
                self._producers.fail(sending)
            else:
                self._producers.apply(sending.record, timestamp)

    def _in_doubt(self, sending: Sending) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"whether producer {sending.name!r} of topic {self.topic.name!r} has sent {sending.first} to {sending.last}"
            f" is not known as long as the disk fails; repeat it later, or once the database was opened again"
        )

    def maintain(self) -> None:
        """Write a snapshot when it is time."""
        if self.journal.wants_snapshot():
            self.journal.snapshot(self._snapshot)

    def _snapshot(self) -> bytes:
        with self._lock:
            return self._producers.snapshot()


class Producing:
    """The producers of all topics, opened when they are first asked for. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._hosts: dict[int, ProducerHost] = {}
        self._is_closed = False
        engine.on_catalog.append(self._catalog_changed)
        self._drop_pins()

    def host(self, topic: str) -> ProducerHost:
        """Raises: `NotFound`."""
        found = self._engine.topic(topic)
        with self._lock:
            if self._is_closed:
                raise Closed(f"the database at {self._engine.path} was closed; open it again")
            host = self._hosts.get(found.id)
            if host is None:
                host = self._hosts[found.id] = ProducerHost(self._engine, found)
            return host

    def open_producer(self, client: str, topic: str, name: str, *, strict: bool = True) -> tuple[int, int | None]:
        """Open a producer of a topic: its epoch, and the last number that was accepted. See `ProducerHost.open`."""
        self._engine.clients.check(client)
        return run(self.host(topic).open(name, strict=strict))

    def send(
        self,
        client: str,
        topic: str,
        producer: str,
        epoch: int,
        first: int,
        count: int,
        writes: Writes,
        keys: Keys = (),
    ) -> Sent:
        """Send messages once, however often it is asked for. See `ProducerHost.send`."""
        self._engine.clients.check(client)
        return run(self.host(topic).send(producer, epoch, first, count, writes, keys))

    def maintain(self) -> None:
        """Write snapshots when it is time."""
        with self._lock:
            hosts = list(self._hosts.values())
        for host in hosts:
            try:
                host.maintain()
            except TidegateError as error:
                _logger.warning("producers of topic %r: %s", host.topic.name, error)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._hosts.clear()

    def _catalog_changed(self, change: Change) -> None:
        if isinstance(change, TopicDropped):
            with self._lock:
                self._hosts.pop(change.topic.id, None)
            self._drop_pins()

    def _drop_pins(self) -> None:
        known = {each.producers_vchannel for each in self._engine.catalog.topics()}
        log = self._engine.log
        for channel in self._engine.channels:
            for name in log.pins(channel):
                kind, _, rest = name.partition(" ")
                if kind == "journal" and rest.startswith(_PREFIX) and rest not in known:
                    Journal(log, channel, rest, snapshot_every=1).forget()
