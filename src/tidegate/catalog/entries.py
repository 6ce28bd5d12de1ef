"""What the catalog holds, and how it says that something changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.tables.schema import Table

Kind = Literal["exclusive", "failover", "shared"]
Start = Literal["earliest", "latest"] | Timestamp
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. A dropped one and a later one of the same name differ in `id`, hence in their virtual channels."""

    id: int
    name: str
    shards: int
    created: Timestamp
    options: dict[str, Any] = field(default_factory=dict)

    def vchannel(self, shard: int) -> str:
        """The virtual channel of one shard."""
        if not 0 <= shard < self.shards:
            raise InvalidArgument(f"topic {self.name!r} has the shards 0 to {self.shards - 1}, not {shard}")
        return f"topic/{self.id}.{self.name}/{shard}"

    @property
    def vchannels(self) -> tuple[str, ...]:
        return tuple(self.vchannel(shard) for shard in range(self.shards))

    @property
    def producers_vchannel(self) -> str:
        """Where the records of its idempotent producers go."""
        return f"producers/{self.id}.{self.name}"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A named reader of a topic, or of a view's changes: then `topic_id` and `topic` are the view's."""

    topic_id: int
    topic: str
    name: str
    kind: Kind
    created: Timestamp
    start: Start
    max_redeliveries: int | None = None
    dead_letter_topic: str | None = None

    @property
    def vchannel(self) -> str:
        """The virtual channel of its acknowledgements."""
        return f"subscription/{self.topic_id}.{self.topic}/{self.name}"

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Subscription:
        """The one that a record or a snapshot tells of."""
        start = facts["start"]
        start = Timestamp(start) if isinstance(start, int) else start
        return cls(**{**facts, "created": Timestamp(facts["created"]), "start": start})


@dataclass(frozen=True, slots=True)
class TopicCreated:
    topic: Topic


@dataclass(frozen=True, slots=True)
class TopicDropped:
    """The topic is gone, and with it its `subscriptions`."""

    topic: Topic
    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True)
class SubscriptionCreated:
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class SubscriptionDropped:
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class TableCreated:
    table: Table


@dataclass(frozen=True, slots=True)
class TableAltered:
    """The newest version of the table's schema is new, in effect `since` the timestamp of the record."""

    table: Table


@dataclass(frozen=True, slots=True)
class TableDropped:
    """The table as it was, with the timestamp at which it was `dropped`; and with it the `views` that read it."""

    table: Table
    views: tuple[View, ...] = ()
    """In the order of their ends: what reads comes before what is read."""


@dataclass(frozen=True, slots=True)
class ViewCreated:
    view: View


@dataclass(frozen=True, slots=True)
class ViewDropped:
    """The views as they were, with the timestamp at which all were `dropped`.

    Invariant: what reads comes before what is read; the last is the one that was to be dropped.
    """

    views: tuple[View, ...]


@dataclass(frozen=True, slots=True)
class ViewResumed:
    """The view is to be repaired if it had failed by the time it was `resumed`."""

    view: View


TableChange = TableCreated | TableAltered | TableDropped
ViewChange = ViewCreated | ViewDropped | ViewResumed
Change = TopicCreated | TopicDropped | SubscriptionCreated | SubscriptionDropped | TableChange | ViewChange
