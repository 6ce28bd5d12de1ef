"""The catalog: which topics, subscriptions, tables and views exist, as a fold over the records of one virtual channel.

    plan_create_topic(...) ──▶ record ── durable at a timestamp ──▶ apply(record, timestamp) ──▶ Change

A plan checks and changes nothing; what it returns must be in the log before it is applied. Two plans may be made
before either is in the log: the one that comes second and no longer fits is applied as nothing (`None`), here and in
every replay, and whoever planned it plans again to learn why. Ids are given when a record is applied, and never twice.
Topics, tables and views share their names, and with what views store the row of ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    TableDropped,
    Topic,
    TopicCreated,
    TopicDropped,
)
from tidegate.catalog.lookup import Lookup
from tidegate.catalog.names import check_name, check_shards, count
from tidegate.catalog.table_fold import TABLES_MAX, TableFold
from tidegate.catalog.view_fold import VIEWS_MAX, ViewFold, refuse_change
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken, LimitExceeded
from tidegate.tables.definition import COLUMNS_MAX, ColumnChange, ColumnDef, NodeDef
from tidegate.tables.schema import Column, Table

CATALOG_VCHANNEL: Final = "catalog"
TOPICS_MAX: Final = 10_000
SUBSCRIPTIONS_MAX: Final = 100_000


class Catalog(Lookup):
    """Topics, subscriptions, tables and views by name.

    Invariants: ids rise and are never reused; no two topics, tables or views have the same name; every subscription's
    topic, or view, and dead-letter topic exist; so does all that a view reads, with the columns it uses; the same
    records in the same order give the same catalog.
    """

    def __init__(
        self,
        *,
        topics_max: int = TOPICS_MAX,
        subscriptions_max: int = SUBSCRIPTIONS_MAX,
        tables_max: int = TABLES_MAX,
        views_max: int = VIEWS_MAX,
        columns_max: int = COLUMNS_MAX,
    ) -> None:
        super().__init__(
            TableFold(tables_max=tables_max, columns_max=columns_max),
            ViewFold(views_max=views_max, columns_max=columns_max),
        )
        self.version = 0
        """How many records have changed it."""
        self.changed = Timestamp.ZERO
        """When it was last changed."""
        self._applied = Timestamp.ZERO
        self._next_id = 1
        self._topics_max = topics_max
        self._subscriptions_max = subscriptions_max

    # -- planning --------------------------------------------------------------------------------------------

    def plan_create_topic(
        self, name: str, *, shards: int = 1, options: Options | None = None, if_not_exists: bool = False
    ) -> bytes | None:
        """The record that creates a topic; None when it exists and that is fine.

        Raises: `InvalidArgument` for a bad name or number of shards and for one that exists, `LimitExceeded`.
        """
        check_name("topic", name)
        check_shards("topic", name, shards)
        self._check_free(name, "table", "view")
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

        It may be on a view: then it is of the view's changes.
        Raises: `NotFound` for an unknown topic, `InvalidArgument` for anything else that is wrong, `LimitExceeded`.
        """
        of = self.followed(topic)
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
        channels: int = 1,
    ) -> bytes | None:
        """The record that creates a table; None when it exists and that is fine. Without a `key` it only grows.

        `channels` is how many the database has: by the option `beside` it lies in the same one as another table.
        Raises: `InvalidArgument` for a name, column, key or number of shards that cannot be and for a name that is
        taken, `NotFound` for a table that it is to lie beside, `LimitExceeded`.
        """
        check_name("table", name)
        self._check_free(name, "topic", "view")
        return self._tables.plan_create(
            name, columns, key, shards=shards, options=options, if_not_exists=if_not_exists, channels=channels
        )

    def plan_alter_table(self, name: str, *changes: ColumnChange, if_exists: bool = False) -> bytes | None:
        """The record of the table's next schema, all changes in one; None when they leave it as it is.

        Raises: `NotFound` for an unknown table or column, `InvalidArgument` for a change that cannot be.
        """
        if not if_exists:
            self.table(name)
        return self._tables.plan_alter(name, changes, if_exists=if_exists, check=self._check_use)

    def plan_drop_table(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> bytes | None:
        """The record that drops a table; None when there is none and that is fine. With `cascade` it drops all views
        that read it, at the same Timestamp.

        Raises: `NotFound`; `InvalidArgument` while views read it, with all their names.
        """
        if if_exists and self._tables.get(name) is None:
            return None
        table = self.table(name)
        views = self._views.check_drop("table", name, table.id, f"DROP TABLE {name}", cascade=cascade)
        facts = {"views": views} if views else {}
        return records.write("drop_table", id=table.id, name=name, **facts)

    def may_create_view(self, name: str, *, if_not_exists: bool = False) -> bool:
        """Whether there is something to do; False when the view exists and that is fine.

        Raises: `InvalidArgument` for a name that cannot be or is taken, `LimitExceeded`.
        """
        check_name("view", name)
        self._check_free(name, "topic", "table")
        return self._views.check_new(name, if_not_exists=if_not_exists)

    def plan_create_view(
        self,
        name: str,
        sql: str,
        columns: Sequence[str],
        nodes: Sequence[NodeDef],
        inputs: Mapping[str, tuple[int, int]],
        used: Mapping[str, Collection[str]],
        *,
        options: Options | None = None,
        if_not_exists: bool = False,
    ) -> bytes | None:
        """The record that creates a view; None when it exists and that is fine.

        `inputs` has the ids and schema versions of what the query reads, as it was looked at.
        Raises: `InvalidArgument` for a name that is taken and for what cannot be a view; `Conflict` when an input has
        changed since: look at the query again; `LimitExceeded`.
        """
        if not self.may_create_view(name, if_not_exists=if_not_exists):
            return None
        there = self._readable(inputs)
        return self._views.plan_create(name, sql, columns, nodes, inputs, used, there=there, options=options)

    def plan_drop_view(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> bytes | None:
        """The record that drops a view, with `cascade` also all that read it; None when there is none and that is fine.

        Raises: `NotFound`; `InvalidArgument` while other views read it, with all their names.
        """
        if not if_exists:
            self.view(name)
        return self._views.plan_drop(name, if_exists=if_exists, cascade=cascade)

    def plan_resume_view(self, name: str) -> bytes:
        """The record that has a view repaired, if it has failed by then. Raises: `NotFound`."""
        return self._views.plan_resume(self.view(name).name)

    def _readable(self, names: Collection[str]) -> dict[str, Table]:
        """The tables, and the own nodes of the views, that have these names."""
        views = {each: self._views.get(each) for each in names}
        tables = {each: self._tables.get(each) if view is None else view.table for each, view in views.items()}
        return {each: table for each, table in tables.items() if table is not None}

    def _check_use(self, table: Table, columns: tuple[Column, ...]) -> None:
        use = self._views.first_use(table, columns)
        if use is not None:
            raise refuse_change(table, *use)

    def _check_free(self, name: str, *kinds: str) -> None:
        of: dict[str, Mapping[str, Topic] | TableFold | ViewFold]
        of = {"topic": self._topics, "table": self._tables, "view": self._views}
        for what in kinds:
            there = of[what].get(name)
            if there is not None:
                raise InvalidArgument(
                    f"{what} {name!r} exists since {there.created}; topics, tables and views share their names: take"
                    f" another one"
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
                change = self._tables.alter(facts, timestamp, self._is_unused)
            case "drop_table":
                change = self._drop_table(facts, timestamp)
            case "create_view":
                change = self._create_view(facts, timestamp)
            case "drop_view":
                change = self._drop_view(facts, timestamp)
            case "resume_view":
                change = self._views.resume(facts, timestamp)
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
        # The channels of a table follow from its id: one that lies beside another takes the next that leads there.
        channels, channel = facts.get("channel", (1, 0))
        created = self._tables.create(facts, self._next_id + (channel - self._next_id) % channels, timestamp)
        self._next_id = created.table.id + 1
        return created

    def _drop_table(self, facts: dict[str, Any], timestamp: Timestamp) -> Change | None:
        table = self._tables.get(facts["name"])
        if table is None or table.id != facts["id"]:
            return None
        views = self._views.drop_dependants(table.id, facts.get("views", ()), timestamp)
        if views is None:
            return None
        self._end_subscriptions(views)
        return TableDropped(self._tables.drop(table, timestamp), views)

    def _create_view(self, facts: dict[str, Any], timestamp: Timestamp) -> Change | None:
        if self._is_taken(facts["name"]):
            return None
        created = self._views.create(facts, self._next_id, timestamp, self._readable(facts["inputs"]))
        if created is not None:
            self._next_id += len(created.view.nodes)
        return created

    def _drop_view(self, facts: dict[str, Any], timestamp: Timestamp) -> Change | None:
        dropped = self._views.drop(facts, timestamp)
        if dropped is not None:
            self._end_subscriptions(dropped.views)
        return dropped

    def _end_subscriptions(self, views: Sequence[View]) -> None:
        """Those on views that are gone end with them."""
        ids = {each.id for each in views}
        self._subscriptions = {key: each for key, each in self._subscriptions.items() if each.topic_id not in ids}

    def _is_unused(self, table: Table, after: tuple[Column, ...]) -> bool:
        return self._views.first_use(table, after) is None

    def _is_taken(self, name: str) -> bool:
        return any(each.get(name) is not None for each in (self._topics, self._tables, self._views))

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
        topic = self._topics.get(facts["topic"]) or self._views.get(facts["topic"])
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
        """Forget the tables and views that no cut from `before` on shows; which tables, and what the views stored.

        Not in the log: after a replay the same call forgets them again.
        """
        return (*self._tables.forget(before), *self._views.forget(before))

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
            views=self._views.facts(),
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
        # Snapshots from before there were tables, or views, have none.
        catalog._tables.load(facts.get("tables", ()))
        catalog._views.load(facts.get("views", ()))
        return catalog
