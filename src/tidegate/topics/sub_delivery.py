"""`Delivery`: who gets which message. The volatile half of a subscription.

- `redelivery_count` counts each time a message was given back, by whatever: nack, `redeliver`, an aborted transaction,
  a consumer that left. It starts at zero when the subscription is opened.
- A nack moves a message behind those delivered already, and with a delay behind new ones, also where order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Literal, get_args

from tidegate.errors import Backpressure, InUse, InvalidArgument, LeaseLost
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_entry import (
    DEAD,
    DELIVERED,
    GONE,
    PENDING,
    READY,
    WAITING,
    Consumer,
    Delivered,
    Entry,
    SubscriptionStatus,
)
from tidegate.topics.sub_queue import Queue
from tidegate.topics.sub_shard import Shard

SubscriptionKind = Literal["exclusive", "failover", "shared"]

_delivered: Final[Callable[[Iterable[Any]], Delivered]] = partial(tuple.__new__, Delivered)
"""Makes one of a tuple without a call in Python."""
BUFFER_MAX: Final = 10_000
UNACKED_MAX: Final = 10_000


class Delivery:
    """The volatile part of a subscription. Use it as `Subscription`, which adds acknowledgements.

    Invariants: a message is in at most one consumer's hands; only one in state READY is handed out.
    """

    def __init__(
        self,
        name: str,
        kind: SubscriptionKind,
        *,
        acknowledgements: Acknowledgements | None = None,
        max_redeliveries: int | None = None,
        buffer_max: int = BUFFER_MAX,
        unacked_max: int = UNACKED_MAX,
    ) -> None:
        """`acknowledgements` is what its log and snapshot say; feed it from `marks()` on.

        `buffer_max` messages are kept in memory; a consumer holds at most `unacked_max`. A message given back more
        often than `max_redeliveries` is not delivered again but returned by `dead_letters()`; None never gives up.
        """
        if kind not in get_args(SubscriptionKind):
            raise InvalidArgument(f"subscription {name!r}: kind is exclusive, failover or shared, not {kind!r}")
        for what, value, least in (
            ("buffer_max", buffer_max, 1),
            ("unacked_max", unacked_max, 1),
            ("max_redeliveries", max_redeliveries, 0),
        ):
            if value is not None and value < least:
                raise InvalidArgument(f"subscription {name!r}: {what} is {value}; it must be at least {least}")
        self.name: Final = name
        self.kind: Final = kind
        self.max_redeliveries: Final = max_redeliveries
        self.buffer_max: Final = buffer_max
        self.unacked_max: Final = unacked_max
        self.acknowledgements: Final = Acknowledgements() if acknowledgements is None else acknowledgements
        self._entries: dict[MessageId, Entry] = {}
        self._shards: dict[int, Shard] = {}
        self._queue = Queue()
        self._consumers: dict[str, Consumer] = {}
        self._txns: dict[bytes, dict[MessageId, Entry]] = {}
        """What is in memory and pending one by one."""
        self._dead: dict[MessageId, Entry] = {}
        """In state DEAD and not returned yet, unless the state has changed since."""
        self._delivered_total = 0
        self._redelivered_total = 0
        self._acknowledged_total = 0
        self._dead_total = 0

    # -- consumers ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> str | None:
        """The consumer that receives, where only one does: the first that came and is still there."""
        return None if self.kind == "shared" else next(iter(self._consumers), None)

    @property
    def consumers(self) -> tuple[str, ...]:
        return tuple(self._consumers)

    def add_consumer(self, consumer: str) -> None:
        """Connect a consumer.

        Raises: `InUse` when the subscription is exclusive and has one, or the name is taken.
        """
        if consumer in self._consumers:
            raise InUse(f"subscription {self.name!r} has a consumer {consumer!r} already; connect with another name")
        if self.kind == "exclusive" and self._consumers:
            holder = next(iter(self._consumers))
            raise InUse(
                f"subscription {self.name!r} is exclusive and belongs to consumer {holder!r}; close that one,"
                f" or subscribe with kind 'failover' or 'shared'"
            )
        self._consumers[consumer] = Consumer(consumer)

    def remove_consumer(self, consumer: str) -> list[MessageId]:
        """Disconnect a consumer. What it held and did not acknowledge is given back: those ids.

        Of a failover subscription, the consumer that came next takes over. An unknown consumer is no error.
        """
        gone = self._consumers.pop(consumer, None)
        if gone is None:
            return []
        gone.alive = False
        return self._give_back(each for each in self._entries.values() if each.consumer is gone)

    def _consumer(self, name: str) -> Consumer:
        found = self._consumers.get(name)
        if found is None:
            raise LeaseLost(
                f"subscription {self.name!r}: consumer {name!r} is not connected, and what it held was given to others;"
                f" subscribe again"
            )
        return found

    # -- delivery ----------------------------------------------------------------------------------------------------

    def wants(self) -> int:
        """How many more messages may be fed."""
        return max(0, self.buffer_max - len(self._entries))

    @property
    def backlog_in_memory(self) -> int:
        """Messages fed and not acknowledged."""
        return len(self._entries)

    def feed(self, shard: int, items: Iterable[tuple[MessageId, Any]]) -> int:
        """Take in messages of a shard as (id, payload), in delivery order; how many of them are to be acknowledged.

        After a restart, feed from the mark on: what is acknowledged already is dropped.
        Raises: `Backpressure` when there are more than `wants()`; `InvariantBroken` when one was fed before.
        """
        given = list(items)
        if len(given) > self.buffer_max - len(self._entries):
            raise Backpressure(
                f"subscription {self.name!r}: {len(given):,} messages were fed and {self.wants():,} were wanted;"
                f" wait for acknowledgements or raise `buffer_max`"
            )
        place = self._shard(shard)
        added = place.feed(given)
        entries = self._entries
        for each in added:
            entries[each.id] = each
            if each.txn is not None:
                self._txns.setdefault(each.txn, {})[each.id] = each
        self._queue.add_new(added)
        place.advance()
        return len(added)

    def take(self, consumer: str, max_messages: int, now_ms: int) -> list[Delivered]:
        """Hand messages to a consumer: those given back first, then new ones.

        Ordering: new messages of a shard come in delivery order, and so do those given back.
        Nothing comes while the consumer holds `unacked_max`, or when another one of a failover subscription is active.
        Raises: `LeaseLost` when the consumer is not connected.
        """
        holder = self._consumer(consumer)
        if self.kind == "failover" and self.active != consumer:
            return []
        room = min(max_messages, self.unacked_max - holder.unacked)
        if room <= 0:
            return []
        self._queue.wake(now_ms)
        taken = self._queue.pop(room)
        for entry in taken:
            entry.state = DELIVERED
            entry.consumer = holder
            if entry.count:
                self._redelivered_total += 1
        found = list(map(_delivered, [(each.id, each.payload, each.count) for each in taken]))
        holder.unacked += len(found)
        self._delivered_total += len(found)
        return found

    def next_due_ms(self) -> int | None:
        """When the next negatively acknowledged message becomes deliverable; None if none waits."""
        return self._queue.next_due_ms()

    def nack(self, consumer: str, ids: Iterable[MessageId], now_ms: int, delay_ms: int = 0) -> list[MessageId]:
        """Give messages back, to be delivered again after `delay_ms`; those it had an effect on.

        No effect on what the consumer does not hold: acknowledged, pending in a transaction, or given to another.
        Raises: `LeaseLost` when the consumer is not connected.
        """
        holder = self._consumer(consumer)
        if delay_ms < 0:
            raise InvalidArgument(f"subscription {self.name!r}: a nack is delayed by {delay_ms} ms; use 0 or more")
        held = (self._entries.get(id) for id in dict.fromkeys(ids))
        due_ms = now_ms + delay_ms if delay_ms else None
        return self._give_back([each for each in held if each is not None and each.consumer is holder], due_ms)

    def redeliver(self, consumer: str) -> list[MessageId]:
        """Give back everything a consumer holds and has not acknowledged, not even in a transaction (fact 34).

        Raises: `LeaseLost` when the consumer is not connected.
        """
        holder = self._consumer(consumer)
        return self._give_back(each for each in self._entries.values() if each.consumer is holder)

    def dead_letters(self) -> list[Delivered]:
        """Messages given back too often, each returned once.

        Ordering: the caller sends each to the dead-letter topic and acknowledges it (`ack_in_txn` without a
        consumer) in one transaction. When that is aborted they are returned again; when it could not even be begun,
        say so with `return_dead_letters`.
        """
        found = [each for each in self._dead.values() if each.state == DEAD]
        self._dead.clear()
        return [Delivered(each.id, each.payload, each.count) for each in found]

    def return_dead_letters(self, ids: Iterable[MessageId]) -> None:
        """They could not be moved: `dead_letters` returns them again."""
        for id in ids:
            entry = self._entries.get(id)
            if entry is not None and entry.state == DEAD:
                self._dead[id] = entry

    def _give_back(self, entries: Iterable[Entry], due_ms: int | None = None) -> list[MessageId]:
        given = [each for each in entries if each.state == DELIVERED]
        for entry in given:
            if entry.consumer is not None:
                entry.consumer.unacked -= 1
            self._free(entry, due_ms)
        return sorted(each.id for each in given if each.state != DEAD)

    def _free(self, entry: Entry, due_ms: int | None = None) -> None:
        """Count one more time that it was handed out in vain, and make it deliverable, or dead."""
        entry.count += 1
        entry.consumer = None
        self._make_deliverable(entry, due_ms)
        self._dead_total += entry.state == DEAD

    def _make_deliverable(self, entry: Entry, due_ms: int | None = None) -> None:
        if self.max_redeliveries is not None and entry.count > self.max_redeliveries:
            entry.state = DEAD
            self._dead[entry.id] = entry
        elif due_ms is not None:
            entry.state = WAITING
            entry.due_ms = due_ms
            self._queue.add_waiting(entry, len(self._entries))
        else:
            entry.state = READY
            self._queue.add_again(entry)

    # -- questions ----------------------------------------------------------------------------------------------------

    def marks(self) -> dict[int, MessageId]:
        """Per shard, the id at or below which everything is acknowledged, durably."""
        return self.acknowledgements.marks()

    def snapshot(self) -> bytes:
        """The durable part: what is in the log, and nothing that is on its way there."""
        return self.acknowledgements.snapshot()

    def pending_txns(self) -> list[bytes]:
        """Transactions that hold something here. After a restart, end those that the coordinator has ended."""
        here = {place.cumulative_txn for place in self._shards.values() if place.cumulative_txn is not None}
        return sorted(here | set(self._txns) | set(self.acknowledgements.pending_txns()))

    def status(self) -> SubscriptionStatus:
        states = [0] * (GONE + 1)
        for entry in self._entries.values():
            states[entry.state] += 1
        oldest = {number: place.oldest() for number, place in sorted(self._shards.items())}
        return SubscriptionStatus(
            name=self.name,
            kind=self.kind,
            active=self.active,
            consumers={name: each.unacked for name, each in self._consumers.items()},
            backlog_in_memory=len(self._entries),
            ready=states[READY],
            waiting=states[WAITING],
            pending=states[PENDING],
            pending_txns=tuple(self.pending_txns()),
            dead=states[DEAD],
            acked_above_mark=self.acknowledgements.acked_above_mark,
            oldest_unacked={number: id for number, id in oldest.items() if id is not None},
            delivered_total=self._delivered_total,
            redelivered_total=self._redelivered_total,
            acknowledged_total=self._acknowledged_total,
            dead_total=self._dead_total,
        )

    def _shard(self, number: int) -> Shard:
        place = self._shards.get(number)
        if place is None:
            place = self._shards[number] = Shard(number, self.acknowledgements)
        return place
