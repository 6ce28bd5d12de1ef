"""`SubscriptionHost`: one subscription in the process that owns the database: who gets which message, and what is kept.

It reads the shards of its topic, or the changes of its view, feeds the machine as far as there is room, and hands
messages to consumers. Its acknowledgements are `Acks`; they are rebuilt from its virtual channel when it is opened, and
what is pending in a transaction that is still open goes on being pending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tidegate.catalog.entries import Subscription, Topic
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.database.received import Received
from tidegate.database.sub_acks import Acks, recover
from tidegate.database.sub_feed import Feed
from tidegate.database.sub_source import ArrowRows, Bell
from tidegate.database.sub_view_feed import ViewChanges
from tidegate.errors import Closed, InUse, InvalidArgument, InvariantBroken, TidegateError
from tidegate.runtime.journal import Journal
from tidegate.snapshots.reader import Duck
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_entry import Delivered
from tidegate.topics.subscription import Subscription as Machine
from tidegate.txn.txn_id import TxnId

if TYPE_CHECKING:
    from tidegate.database.engine import Engine

_WAIT_MAX_S: Final = 1.0
_CATCH_UP_S: Final = 0.1
"""How long one look for messages may read what concerns others."""
_SNAPSHOT_WAIT_S: Final = 0.2
_QUIET_S: Final = 5.0


class SubscriptionHost:
    """One open subscription. Its methods may be called from any thread.

    `ack`, `ack_cumulative` and their `_in_txn` forms are `Steps`: run them.
    """

    def __init__(
        self,
        engine: Engine,
        followed: Topic | View,
        subscription: Subscription,
        *,
        monotonic: Callable[[], float],
        duck: Callable[[], Duck] | None = None,
    ) -> None:
        """Rebuild it from the log. With `duck` the changes of a view are read."""
        topic = followed if isinstance(followed, Topic) else Topic(followed.id, followed.name, 1, followed.created)
        self.topic: Final = topic
        """A view is taken for a topic with one shard."""
        self.subscription: Final = subscription
        self._engine = engine
        self._monotonic = monotonic
        self._lock = Lock()
        """Covers the machine and the sources. Held for no append."""
        self._bell = Bell()
        self._clients: dict[str, tuple[str, str]] = {}
        """The client and the name of each consumer."""
        self._closed: TidegateError | None = None
        self._dead_lettered = 0
        self._quiet_until_s = 0.0
        """No snapshot is tried before."""
        self.journal: Final = Journal(
            engine.log,
            engine.channel_of(topic.id, 0),
            subscription.vchannel,
            snapshot_every=engine.settings.snapshot_records,
        )
        self.machine: Final = Machine(
            subscription.name,
            subscription.kind,
            acknowledgements=recover(self.journal, since=subscription.created),
            max_redeliveries=subscription.max_redeliveries,
            buffer_max=engine.settings.receive_buffer,
            unacked_max=engine.settings.receive_buffer,
        )
        self._feed = self._feed_of(followed, duck)
        self._acks = Acks(self.machine, self.journal, engine.transactions, self._lock, self._bell.ring)
        self.ack = self._acks.ack
        self.ack_cumulative = self._acks.ack_cumulative
        self.ack_in_txn = self._acks.ack_in_txn
        self.ack_cumulative_in_txn = self._acks.ack_cumulative_in_txn
        if not self.journal.has_snapshot:
            self._feed.pin()
            self.journal.snapshot(self.machine.snapshot)  # From now on its records are kept.
        for raw in self.machine.pending_txns():
            # What is still pending for one that has ended was never confirmed to it, or it was aborted.
            if not engine.transactions.take_part_again(TxnId.from_bytes16(raw), self._acks.name, self._acks):
                self._acks.end(raw, False)

    def _feed_of(self, followed: Topic | View, duck: Callable[[], Duck] | None) -> Feed | ViewChanges:
        engine = self._engine
        if isinstance(followed, View):
            if duck is None:
                raise InvariantBroken(f"{self} is on a view, and nothing to read it with was given")
            return ViewChanges(
                followed,
                self.subscription,
                self.machine,
                metadata=engine.log.metadata,
                store=lambda: engine.pipeline.store,  # It is not there yet when the database is being opened.
                duck=duck,
                barrier=lambda: engine.pipeline.ask_barrier(f"{self}"),
            )
        return Feed(
            engine.log,
            followed,
            self.subscription,
            self.machine,
            self._bell,
            channel_of=lambda shard: engine.channel_of(followed.id, shard),
            transaction_ms_max=engine.settings.transaction_timeout_max_ms,
        )

    # -- consumers ---------------------------------------------------------------------------------------------------

    def connect(self, client: str, name: str | None = None) -> str:
        """Connect a consumer of a client; its id, which is not given again.

        Raises: `InUse` when the subscription is exclusive and has one, or the name is taken.
        """
        name = name or client
        id = f"{name}#{int(self._engine.log.allocate(1))}"
        with self._lock:
            self._check_open()
            taken = any(each == name for _, each in self._clients.values())
            if taken and name != client:
                raise InUse(f"{self} has a consumer {name!r} already; connect with another name, or close that one")
            self.machine.add_consumer(id)
            self._clients[id] = (client, name)
        return id

    def disconnect(self, consumer: str) -> None:
        """A consumer leaves; what it holds is given to others."""
        with self._lock:
            self._clients.pop(consumer, None)
            self.machine.remove_consumer(consumer)
        self._bell.ring()

    def consumers_of(self, client: str) -> list[str]:
        """The consumers that a client has connected."""
        with self._lock:
            return [id for id, (owner, _) in self._clients.items() if owner == client]

    # -- delivery ----------------------------------------------------------------------------------------------------

    def receive(self, consumer: str, max_messages: int = 1, timeout_s: float = 0.0) -> list[Received]:
        """Up to `max_messages`, as soon as there is one; empty when the time is up.

        Raises: `LeaseLost` when the consumer is not connected.
        """
        if max_messages < 1:
            raise InvalidArgument(f"{self}: `max_messages` is at least 1, not {max_messages}")
        deadline = self._monotonic() + timeout_s
        found, _ = self._take(consumer, max_messages)
        if found or timeout_s <= 0:
            if not found:
                self._feed.ask()  # Whoever comes again finds it.
            return found
        with self._bell.listening():
            while True:
                heard = self._bell.rings
                found, due_s = self._take(consumer, max_messages)
                if found:
                    return found
                left = deadline - self._monotonic()
                if left <= 0:
                    return []
                self._feed.ask()
                self._bell.wait(heard, min(left, due_s, self._feed.wait_s))

    def _take(self, consumer: str, max_messages: int) -> tuple[list[Received], float]:
        """What there is now, and for how long to wait for more at most."""
        started = self._monotonic()
        found: list[Delivered] = []
        fed: int | None = None
        with self._lock:
            self._check_open()
            while True:
                now_ms = int(self._monotonic() * 1000)
                found += self.machine.take(consumer, max_messages - len(found), now_ms)
                if len(found) >= max_messages:
                    break
                fed = self._feed.read()
                if fed is None or (not fed and (found or self._monotonic() - started > _CATCH_UP_S)):
                    break
            due_ms = self.machine.next_due_ms()
        wait_s = _WAIT_MAX_S if due_ms is None else min(_WAIT_MAX_S, max(due_ms - now_ms, 1) / 1000)
        if not found and fed is not None:
            wait_s = 0.0  # There is more to read.
        return _received(found, self.topic.name), wait_s

    def nack(self, consumer: str, ids: Sequence[MessageId], delay_ms: int = 0) -> None:
        """Give messages back, to be delivered again after `delay_ms`. No effect on what the consumer does not hold."""
        with self._lock:
            self.machine.nack(consumer, ids, ceil(self._monotonic() * 1000), delay_ms)  # Never earlier than asked.
        self._bell.ring()

    def redeliver(self, consumer: str) -> None:
        """Give back all that a consumer holds and has not acknowledged."""
        with self._lock:
            self.machine.redeliver(consumer)
        self._bell.ring()

    # -- dead letters ------------------------------------------------------------------------------------------------

    def take_dead_letters(self) -> list[Received]:
        """Messages given back too often, each returned once; the caller moves them."""
        if self.subscription.max_redeliveries is None or self._closed is not None:
            return []
        with self._lock:
            found = self.machine.dead_letters()
        return _received(found, self.topic.name)

    def dead_letters_moved(self, count: int) -> None:
        """They are in the dead-letter topic, and acknowledged here."""
        with self._lock:
            self._dead_lettered += count

    def return_dead_letters(self, ids: Sequence[MessageId]) -> None:
        """They could not be moved; `take_dead_letters` returns them again."""
        with self._lock:
            self.machine.return_dead_letters(ids)

    # -- what is kept --------------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Write a snapshot when it is time, and let go of the log that nobody needs."""
        now = self._monotonic()
        if self._closed is not None or now < self._quiet_until_s:
            return
        if not (self._feed.may_let_go or self.journal.wants_snapshot()):
            return
        needed: dict[str, Timestamp] = {}

        def make() -> bytes:
            with self._lock:
                needed.update(self._feed.needed())
                return self.machine.snapshot()

        if self.journal.snapshot(make, timeout_s=_SNAPSHOT_WAIT_S):
            self._feed.pin(needed)
        else:  # A commit is on its way, or its outcome is not known. Acknowledgements are not held up again soon.
            self._quiet_until_s = now + _QUIET_S

    # -- the whole -----------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """How far it has come, counted exactly as of the newest ticks. Reads what was not delivered yet."""
        with self._lock:
            self._check_open()
            found, oldest = self._summary()
            unread = self._feed.unread()
        count, first = unread.count(self.machine.acknowledgements)
        oldest = min((each for each in (oldest, first) if each is not None), default=None)
        lag_ms = 0 if oldest is None else max(unread.newest.ms_since(Timestamp(oldest)), 0)
        return {**found, "backlog": found["in_memory"] + count, "lag_ms": lag_ms}

    def summary(self) -> dict[str, Any]:
        """What is known without reading."""
        with self._lock:
            return self._summary()[0]

    def _summary(self) -> tuple[dict[str, Any], int | None]:
        status = self.machine.status()
        consumers = {id: status.consumers.get(id, 0) for id in self._clients}
        found = {
            "topic": self.topic.name,
            "name": self.subscription.name,
            "kind": self.subscription.kind,
            "active": status.active,
            "consumers": consumers,
            "in_memory": status.backlog_in_memory,
            "unacked": sum(consumers.values()),
            "pending": status.pending,
            "pending_transactions": [str(TxnId.from_bytes16(raw)) for raw in status.pending_txns],
            "waiting": status.waiting,
            "delivered": status.delivered_total,
            "redelivered": status.redelivered_total,
            "acknowledged": status.acknowledged_total,
            "dead": status.dead,
            "dead_lettered": self._dead_lettered,
        }
        return found, min((id.timestamp for id in status.oldest_unacked.values()), default=None)

    def close(self, why: TidegateError | None = None, *, dropped: bool = False) -> None:
        """Stop; whoever waits is told. A dropped one takes part in no transaction any more."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = why or Closed(f"{self} was closed; open the database again")
            self._feed.close()
        if dropped:
            self._acks.close()
        self._bell.ring()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)

    def __str__(self) -> str:
        return f"subscription {self.subscription.name!r} on {self.topic.name!r}"


def _received(found: Sequence[Delivered], topic: str) -> list[Received]:
    return [
        Received(id, topic, count, payload) if type(payload) is bytes else _row(id, topic, count, *payload)
        for id, payload, count in found
    ]


def _row(id: MessageId, topic: str, count: int, rows: ArrowRows, index: int) -> Received:
    return Received(id, topic, count, None, rows[index])
