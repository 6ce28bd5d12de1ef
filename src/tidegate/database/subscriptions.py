"""`Subscriptions`: all subscriptions of a database, opened when they are first asked for.

A subscription that takes part in an open transaction is opened with the database, so that no commit goes without it.
Whatever was decided when a subscription was created (kind, redeliveries, dead letters) stays: to subscribe with
something else is refused, also while nobody is connected. `start` counts only for the one who creates it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from tidegate.catalog.entries import (
    Change,
    Kind,
    Start,
    Subscription,
    SubscriptionDropped,
    TableDropped,
    TopicDropped,
    ViewDropped,
)
from tidegate.database.sub_dead_letters import move_dead_letters
from tidegate.database.sub_feed import pin_name
from tidegate.database.sub_host import SubscriptionHost
from tidegate.database.sub_view_feed import PREFIX as PLACES
from tidegate.database.sub_view_feed import place_key
from tidegate.errors import Closed, InvalidArgument, LeaseLost, NotFound, StorageFailed, TidegateError
from tidegate.runtime.journal import Journal
from tidegate.runtime.steps import run
from tidegate.snapshots.reader import Duck

if TYPE_CHECKING:
    from tidegate.database.engine import Engine

_logger = logging.getLogger("tidegate.subscriptions")
_PREFIX = "subscription/"
_MEMORY = "512MB"


class Subscriptions:
    """Thread-safe."""

    def __init__(self, engine: Engine, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Ordering: made when the transactions have been taken up, before any of them can end."""
        self._engine = engine
        self._monotonic = monotonic
        self._lock = RLock()
        self._hosts: dict[str, SubscriptionHost] = {}
        """By virtual channel."""
        self._consumers: dict[str, SubscriptionHost] = {}
        self._is_closed = False
        self._duck_lock = Lock()
        self._duck: Duck | None = None
        """Reads the changes of views, once somebody wants some."""
        engine.on_catalog.append(self._catalog_changed)
        engine.on_client_gone.append(self._client_gone)
        known = {each.vchannel: each for each in engine.catalog.subscriptions()}
        self._drop_pins(known)
        for name in engine.transactions.taking_part(_PREFIX):
            if name in known:
                self._open(known[name])

    # -- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        client: str,
        topic: str,
        name: str,
        *,
        kind: Kind | None = None,
        kind_if_new: Kind = "shared",
        start: Start = "latest",
        max_redeliveries: int | None = None,
        dead_letter_topic: str | None = None,
        consumer: str | None = None,
    ) -> str:
        """Connect a consumer to a subscription, which is created if it does not exist; the consumer's id.

        `topic` may be a view: then the messages are its changes.
        Raises: `NotFound` for an unknown topic; `InvalidArgument` when it exists and differs from what is asked for;
        `InUse` when it is exclusive and has a consumer.
        """
        self._engine.clients.check(client)
        wanted = {"kind": kind, "max_redeliveries": max_redeliveries, "dead_letter_topic": dead_letter_topic}
        self._engine.change_catalog(
            lambda catalog: catalog.plan_create_subscription(
                topic,
                name,
                kind=kind or kind_if_new,
                start=start,
                max_redeliveries=max_redeliveries,
                dead_letter_topic=dead_letter_topic,
                if_not_exists=True,
            )
        )
        host = self.host(topic, name)
        _check_same(host.subscription, **wanted)
        id = host.connect(client, consumer)
        with self._lock:
            self._consumers[id] = host
        return id

    def unsubscribe(self, topic: str, name: str) -> None:
        """Drop a subscription, and with it what it has acknowledged. Raises: `NotFound`."""
        self._engine.change_catalog(lambda catalog: catalog.plan_drop_subscription(topic, name))

    def host(self, topic: str, name: str) -> SubscriptionHost:
        """The subscription, opened if it was not.

        Raises: `NotFound`.
        """
        with self._lock:
            found = self._engine.catalog.subscription(topic, name)
            return self._hosts.get(found.vchannel) or self._open(found)

    def of(self, consumer: str) -> SubscriptionHost:
        """The subscription of a connected consumer.

        Raises: `LeaseLost` when it is not connected.
        """
        host = self._consumers.get(consumer)
        if host is None:
            raise LeaseLost(
                f"consumer {consumer!r} is not connected: it was closed, its subscription dropped, or its client silent"
                f" for too long; subscribe again"
            )
        return host

    def disconnect(self, consumer: str) -> None:
        """A consumer leaves. An unknown one is no error."""
        with self._lock:
            host = self._consumers.pop(consumer, None)
        if host is not None:
            host.disconnect(consumer)

    def stats(self, topic: str, name: str) -> dict[str, Any]:
        """Backlog, lag and counts of a subscription, consumers or not. Raises: `NotFound`."""
        return self.host(topic, name).stats()

    def _open(self, subscription: Subscription) -> SubscriptionHost:
        if self._is_closed:
            raise Closed(f"the database at {self._engine.path} was closed; open it again")
        of = self._engine.catalog.followed(subscription.topic)
        try:
            host = SubscriptionHost(self._engine, of, subscription, monotonic=self._monotonic, duck=self._the_duck)
        except OSError as error:
            raise StorageFailed(
                f"subscription {subscription.name!r} on {of.name!r} could not be read back: {error}; check the disk"
            ) from error
        self._hosts[subscription.vchannel] = host
        return host

    def _the_duck(self) -> Duck:
        with self._duck_lock:
            if self._duck is None:
                self._duck = Duck(self._engine.pipeline.store.root / "spill", threads=1, memory_limit=_MEMORY)
            return self._duck

    # -- what happens elsewhere --------------------------------------------------------------------------------------

    def _catalog_changed(self, change: Change) -> None:
        match change:
            case SubscriptionDropped(dropped):
                self._dropped((dropped,))
            case TopicDropped(_, subscriptions):
                self._dropped(subscriptions)
            case ViewDropped(views) | TableDropped(views=views) if views:
                ids = {each.id for each in views}
                with self._lock:
                    hosts = list(self._hosts.values())
                self._dropped(tuple(each.subscription for each in hosts if each.subscription.topic_id in ids))

    def _dropped(self, subscriptions: tuple[Subscription, ...]) -> None:
        for each in subscriptions:
            with self._lock:
                host = self._hosts.pop(each.vchannel, None)
                self._consumers = {id: at for id, at in self._consumers.items() if at is not host}
            if host is not None:
                gone = NotFound(f"{host} was dropped; subscribe again")
                host.close(gone, dropped=True)
        self._drop_pins({each.vchannel: each for each in self._engine.catalog.subscriptions()})

    def _drop_pins(self, known: dict[str, Subscription]) -> None:
        """Let go of the log that was kept for subscriptions that are gone, also if a crash came in between."""
        kept = {pin_name(each) for each in known.values()}
        log = self._engine.log
        places = {place_key(each) for each in known.values()}
        for key, value in log.metadata.list(PLACES).items():
            if key not in places:
                log.metadata.compare_and_set(key, None, expected=value.version)
        for channel in self._engine.channels:
            for name in log.pins(channel):
                kind, _, rest = name.partition(" ")
                if kind == "unread" and name not in kept:
                    log.unpin(channel, name)
                elif kind == "journal" and rest.startswith(_PREFIX) and rest not in known:
                    Journal(log, channel, rest, snapshot_every=1).forget()

    def _client_gone(self, client: str) -> None:
        with self._lock:
            hosts = list(self._hosts.values())
        for host in hosts:
            for consumer in host.consumers_of(client):
                self.disconnect(consumer)

    # -- looking after -----------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Move dead letters, write snapshots, let go of the log that nobody needs."""
        with self._lock:
            hosts = list(self._hosts.values())
        for host in hosts:
            try:
                run(move_dead_letters(self._engine, host))
                host.maintain()
            except TidegateError as error:
                _logger.warning("%s: %s", host, error)

    def status(self) -> list[dict[str, Any]]:
        """What is open, without reading anything."""
        with self._lock:
            hosts = sorted(self._hosts.items())
        return [host.summary() for _, host in hosts]

    def close(self) -> None:
        """Stop all of them; whoever waits for a message is told."""
        with self._lock:
            self._is_closed = True
            hosts, self._hosts, self._consumers = list(self._hosts.values()), {}, {}
        for host in hosts:
            host.close()
        with self._duck_lock:
            if self._duck is not None:
                self._duck.close()


def _check_same(there: Subscription, **asked: Any) -> None:
    """Whether an existing subscription is what somebody asks for; None asks for nothing.

    Raises: `InvalidArgument`.
    """
    for name, value in asked.items():
        if value is not None and value != (found := getattr(there, name)):
            raise InvalidArgument(
                f"subscription {there.name!r} on {there.topic!r} has {name}={found!r} since {there.created}, not"
                f" {value!r}; leave it out, or drop the subscription first"
            )
