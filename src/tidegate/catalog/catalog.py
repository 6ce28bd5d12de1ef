"""The catalog: which topics, subscriptions and tables exist, as a fold over the records of one virtual channel.

    plan_create_topic(...) ──▶ record ── durable at a timestamp ──▶ apply(record, timestamp) ──▶ Change

A plan checks and changes nothing; what it returns must be in the log before it is applied. Two plans may be made
before either is in the log: the one that comes second and no longer fits is applied as nothing (`None`), here and in
every replay, and whoever planned it plans again to learn why. Ids are given when a record is applied, and never twice.
Topics and tables share their names and the row of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, get_args

from tidegate.catalog import records
from tidegate.catalog.entries import (
    Change,
    Kind,
    Options,
    Start,
    Subscription,
    SubscriptionCreated,
    SubscriptionDropped,
    Topic,
    TopicCreated,
    TopicDropped,
)
from tidegate.catalog.names import check_name, check_shards, count, near
from tidegate.catalog.table_fold import TABLES_MAX, TableFold
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken, LimitExceeded, NotFound
from tidegate.tables.definition import COLUMNS_MAX, ColumnChange, ColumnDef
from tidegate.tables.schema import Table

CATALOG_VCHANNEL: Final = "catalog"
TOPICS_MAX: Final = 10_000
SUBSCRIPTIONS_MAX: Final = 100_000


class Catalog:
    """Topics, subscriptions and tables by name.

    Invariants: ids rise and are never reused; no topic and table have the same name; every subscription's topic and
    dead-letter topic exist; the same records in the same order give the same catalog.
    """

    def __init__(
        self,
        *,
        topics_max: int = TOPICS_MAX,
        subscriptions_max: int = SUBSCRIPTIONS_MAX,
        tables_max: int = TABLES_MAX,
        columns_max: int = COLUMNS_MAX,
    ) -> None:
        self.version = 0
        """How many records have changed it."""
        self.changed = Timestamp.ZERO
        """When it was last changed."""
        self._applied = Timestamp.ZERO
        self._next_id = 1
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._tables = TableFold(tables_max=tables_max, columns_max=columns_max)
        self._topics_max = topics_max
        self._subscriptions_max = subscriptions_max

    # -- asking ----------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Raises: `NotFound`, with names that come near."""
        topic = self._topics.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name!r}{near(name, self._topics)}")
        return topic

    def subscription(self, topic: str, name: str) -> Subscription:
        """Raises: `NotFound`, with names that come near."""
        self.topic(topic)
        found = self._subscriptions.get((topic, name))
        if found is None:
            names = [each.name for each in self.subscriptions(topic)]
            raise NotFound(f"topic {topic!r} has no subscription {name!r}{near(name, names)}")
        return found

    def topics(self) -> tuple[Topic, ...]:
        """All of them, by name."""
        return tuple(topic for _, topic in sorted(self._topics.items()))

    def subscriptions(self, topic: str | None = None) -> tuple[Subscription, ...]:
        """All of them or those of one topic, by topic and name. Raises: `NotFound` for an unknown topic."""
        if topic is not None:
            self.topic(topic)
        return tuple(each for _, each in sorted(self._subscriptions.items()) if topic in (None, each.topic))

    def table(self, name: str) -> Table:
        """Raises: `NotFound`, with names that come near."""
        if name in self._topics:
            raise NotFound(f"{name!r} is a topic, not a table")
        return self._tables.table(name)

    def table_by_id(self, id: int) -> Table:
        """Also a dropped one, while it is remembered. Raises: `NotFound`."""
        return self._tables.by_id(id)

    def tables(self) -> tuple[Table, ...]:
        """Those that are there, by name."""
        return self._tables.tables()

    def tables_at(self, timestamp: Timestamp) -> tuple[Table, ...]:
        """Those that a cut at this time shows, by name; since dropped ones too, while they are remembered."""
        return self._tables.at(timestamp)

    def tables_changed(self, names: Sequence[str]) -> Timestamp:
        """When one of the tables that have, or had, these names was last created, altered or dropped."""
        return self._tables.changed(names)

    # -- planning --------------------------------------------------------------------------------------------

    def plan_create_topic(
        self, name: str, *, shards: int = 1, options: Options | None = None, if_not_exists: bool = False
    ) -> bytes | None:
        """The record that creates a topic; None when it exists and that is fine.

        Raises: `InvalidArgument` for a bad name or number of shards and for one that exists, `LimitExceeded`.
        """
        check_name("topic", name)
        check_shards("topic", name, shards)
        self._check_free(name, self._tables.get(name), "table")
        there = self._topics.get(name)
        if there is not None:
            if if_not_exists:
                return None
            raise InvalidArgument(
                f"topic {name!r} exists since {there.created} with {count(there.shards, 'shard')};"
                f" use IF NOT EXISTS, or drop it first"
            )
        if len(self._topics) >= self._topics_max:
            raise LimitExceeded("the number of topics", len(self._topics) + 1, self._topics_max, "topics_max")
        return records.write("create_topic", name=name, shards=shards, options=dict(options or {}))

    def plan_drop_topic(self, name: str, *, if_exists: bool = False) -> bytes | None:
        """The record that drops a topic and its subscriptions; None when there is none and that is fine.

        Raises: `NotFound`; `InvalidArgument` while another topic's subscription uses it for dead letters.
        """
        if if_exists and name not in self._topics:
            return None
        topic = self.topic(name)
        user = self._dead_letter_user(name)
        if user is not None:
            raise InvalidArgument(
                f"topic {name!r} takes the dead letters of subscription {user.name!r} on {user.topic!r};"
                f" drop that subscription first"
            )
        return records.write("drop_topic", id=topic.id, name=name)

    def plan_create_subscription(
        self,
        topic: str,
        name: str,
        *,
        kind: Kind = "shared",
        start: Start = "latest",
        max_redeliveries: int | None = None,
        dead_letter_topic: str | None = None,
        if_not_exists: bool = False,
    ) -> bytes | None:
        """The record that creates a subscription; None when it exists and that is fine.

        Raises: `NotFound` for an unknown topic, `InvalidArgument` for anything else that is wrong, `LimitExceeded`.
        """
        of = self.topic(topic)
        check_name("subscription", name)
        about = f"subscription {name!r} on {topic!r}"
        if kind not in get_args(Kind):
            raise InvalidArgument(f"{about}: a kind is one of {', '.join(get_args(Kind))}, not {kind!r}")
        if start not in ("earliest", "latest") and not isinstance(start, Timestamp):
            raise InvalidArgument(f"{about}: it starts at earliest, latest or a Timestamp, not {start!r}")
        self._check_dead_letters(about, topic, max_redeliveries, dead_letter_topic)
        there = self._subscriptions.get((topic, name))
        if there is not None:
            if if_not_exists:
                return None
            raise InvalidArgument(
                f"{about} exists since {there.created} as {there.kind}; use IF NOT EXISTS, or drop it first"
            )
        count = len(self._subscriptions)
        if count >= self._subscriptions_max:
            raise LimitExceeded("the number of subscriptions", count + 1, self._subscriptions_max, "subscriptions_max")
        return records.write(
            "create_subscription",
            topic_id=of.id,
            topic=topic,
            name=name,
            kind=kind,
            start=start,
            max_redeliveries=max_redeliveries,
            dead_letter_topic=dead_letter_topic,
        )

    def plan_drop_subscription(self, topic: str, name: str, *, if_exists: bool = False) -> bytes | None:
        """The record that drops a subscription; None when there is none and that is fine. Raises: `NotFound`."""
        if if_exists and (topic, name) not in self._subscriptions:
            return None
        dropped = self.subscription(topic, name)
        return records.write("drop_subscription", topic_id=dropped.topic_id, topic=topic, name=name)

    def plan_create_table(
        self,
        name: str,
        columns: Sequence[ColumnDef],
        key: Sequence[str] = (),
        *,
        shards: int = 1,
        options: Options | None = None,
        if_not_exists: bool = False,
    ) -> bytes | None:
        """The record that creates a table; None when it exists and that is fine. Without a `key` it only grows.

        Raises: `InvalidArgument` for a name, column, key or number of shards that cannot be and for a name that is
        taken, `LimitExceeded`.
        """
        check_name("table", name)
        self._check_free(name, self._topics.get(name), "topic")
        return self._tables.plan_create(name, columns, key, shards=shards, options=options, if_not_exists=if_not_exists)

    def plan_alter_table(self, name: str, *changes: ColumnChange, if_exists: bool = False) -> bytes | None:
        """The record of the table's next schema, all changes in one; None when they leave it as it is.

        Raises: `NotFound` for an unknown table or column, `InvalidArgument` for a change that cannot be.
        """
        return self._tables.plan_alter(name, changes, if_exists=if_exists)

    def plan_drop_table(self, name: str, *, if_exists: bool = False) -> bytes | None:
        """The record that drops a table; None when there is none and that is fine. Raises: `NotFound`."""
        return self._tables.plan_drop(name, if_exists=if_exists)

    def _check_free(self, name: str, there: Topic | Table | None, what: str) -> None:
        if there is not None:
            raise InvalidArgument(
                f"{what} {name!r} exists since {there.created}; topics and tables share their names: take another one"
            )

    def _check_dead_letters(self, about: str, topic: str, redeliveries: int | None, dead_letters: str | None) -> None:
        if redeliveries is not None and (type(redeliveries) is not int or redeliveries < 0):
            raise InvalidArgument(f"{about}: `max_redeliveries` is 0 or more, not {redeliveries!r}")
        if (redeliveries is None) != (dead_letters is None):
            raise InvalidArgument(
                f"{about}: `max_redeliveries` and `dead_letter_topic` are given together or not at all"
            )
        if dead_letters is None:
            return
        if dead_letters == topic:
            raise InvalidArgument(f"{about}: its dead letters cannot go back to {topic!r}; name another topic")
        self.topic(dead_letters)

    # -- the fold --------------------------------------------------------------------------------------------

    def apply(self, record: bytes, timestamp: Timestamp) -> Change | None:
        """Take over a record that is in the log at `timestamp`; None when what came before leaves it no meaning.

        Ordering: records come in the order of the log, each once, so timestamps never go back.
        Raises: `InvariantBroken` when they do, or for a record that is not one of the catalog.
        """
        if timestamp < self._applied:
            raise InvariantBroken(f"catalog: the record at {timestamp} comes after the one at {self._applied}")
        self._applied = timestamp
        what, facts = records.read(record)
        match what:
            case "create_topic":
                change: Change | None = self._create_topic(facts, timestamp)
            case "drop_topic":
                change = self._drop_topic(facts)
            case "create_subscription":
                change = self._create_subscription(facts, timestamp)
            case "drop_subscription":
                change = self._drop_subscription(facts)
            case "create_table":
                change = self._create_table(facts, timestamp)
            case "alter_table":
                change = self._tables.alter(facts, timestamp)
            case "drop_table":
                change = self._tables.drop(facts, timestamp)
            case _:
                raise InvariantBroken(f"catalog: a record at {timestamp} says {what!r}, which means nothing here")
        if change is not None:
            self.version += 1
            self.changed = timestamp
        return change

    def _create_topic(self, facts: dict[str, Any], timestamp: Timestamp) -> Change | None:
        if self._is_taken(facts["name"]):
            return None
        topic = Topic(self._next_id, facts["name"], facts["shards"], timestamp, facts["options"])
        self._next_id += 1
        self._topics[topic.name] = topic
        return TopicCreated(topic)

    def _create_table(self, facts: dict[str, Any], timestamp: Timestamp) -> Change | None:
        if self._is_taken(facts["name"]):
            return None
        created = self._tables.create(facts, self._next_id, timestamp)
        self._next_id += 1
        return created

    def _is_taken(self, name: str) -> bool:
        return name in self._topics or self._tables.get(name) is not None

    def _drop_topic(self, facts: dict[str, Any]) -> Change | None:
        topic = self._topics.get(facts["name"])
        if topic is None or topic.id != facts["id"] or self._dead_letter_user(topic.name) is not None:
            return None
        dropped = self.subscriptions(topic.name)
        for each in dropped:
            del self._subscriptions[each.topic, each.name]
        del self._topics[topic.name]
        return TopicDropped(topic, dropped)

    def _create_subscription(self, facts: dict[str, Any], timestamp: Timestamp) -> Change | None:
        topic = self._topics.get(facts["topic"])
        dead_letters = facts["dead_letter_topic"]
        if topic is None or topic.id != facts["topic_id"] or (topic.name, facts["name"]) in self._subscriptions:
            return None
        if dead_letters is not None and dead_letters not in self._topics:
            return None
        subscription = Subscription.of({**facts, "created": timestamp})
        self._subscriptions[topic.name, subscription.name] = subscription
        return SubscriptionCreated(subscription)

    def _drop_subscription(self, facts: dict[str, Any]) -> Change | None:
        there = self._subscriptions.get((facts["topic"], facts["name"]))
        if there is None or there.topic_id != facts["topic_id"]:
            return None
        del self._subscriptions[there.topic, there.name]
        return SubscriptionDropped(there)

    def _dead_letter_user(self, topic: str) -> Subscription | None:
        """A subscription of another topic whose dead letters go to this one."""
        users = (each for each in self._subscriptions.values() if topic == each.dead_letter_topic)
        return min(users, key=lambda each: (each.topic, each.name), default=None)

    def forget_dropped(self, before: Timestamp) -> tuple[Table, ...]:
        """Forget the tables that no cut from `before` on shows, and say which.

        Not in the log: after a replay the same call forgets them again.
        """
        return self._tables.forget(before)

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """All of it; `restore` and the records after it give what all records give."""
        return records.write(
            "snapshot",
            version=self.version,
            changed=self.changed,
            applied=self._applied,
            next_id=self._next_id,
            topics=[asdict(each) for each in self.topics()],
            subscriptions=[asdict(each) for each in self.subscriptions()],
            tables=self._tables.facts(),
        )

    @classmethod
    def restore(cls, snapshot: bytes, **limits: int) -> Catalog:
        """The catalog a snapshot was taken of. Raises: `InvariantBroken` when it is none."""
        what, facts = records.read(snapshot)
        if what != "snapshot":
            raise InvariantBroken(f"catalog: a snapshot says {what!r}")
        catalog = cls(**limits)
        catalog.version = facts["version"]
        catalog.changed = Timestamp(facts["changed"])
        catalog._applied = Timestamp(facts["applied"])
        catalog._next_id = facts["next_id"]
        for each in facts["topics"]:
            topic = Topic(**{**each, "created": Timestamp(each["created"])})
            catalog._topics[topic.name] = topic
        for each in facts["subscriptions"]:
            subscription = Subscription.of(each)
            catalog._subscriptions[subscription.topic, subscription.name] = subscription
        catalog._tables.load(facts.get("tables", ()))  # Snapshots from before there were tables have none.
        return catalog
