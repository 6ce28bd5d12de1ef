"""Asking the catalog: topics, subscriptions, tables and views by name, by id, and as of a Timestamp."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.catalog.entries import Subscription, Topic
from tidegate.catalog.names import near
from tidegate.catalog.table_fold import TableFold
from tidegate.catalog.view_fold import ViewFold
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import NotFound
from tidegate.tables.schema import Table


class Lookup:
    """What there is. It changes nothing: that is `Catalog`'s part."""

    def __init__(self, tables: TableFold, views: ViewFold) -> None:
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._tables = tables
        self._views = views

    def topic(self, name: str) -> Topic:
        """Raises: `NotFound`, with names that come near."""
        topic = self._topics.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name!r}{near(name, self._topics)}")
        return topic

    def followed(self, name: str) -> Topic | View:
        """What a subscription may be on: a topic, or a view, whose changes it gives. Raises: as `topic`."""
        view = self._views.get(name)
        return self.topic(name) if view is None else view

    def subscription(self, topic: str, name: str) -> Subscription:
        """Raises: `NotFound`, with names that come near."""
        of = self.followed(topic)
        found = self._subscriptions.get((topic, name))
        if found is None:
            names = [each.name for each in self.subscriptions(topic)]
            what = "view" if isinstance(of, View) else "topic"
            raise NotFound(f"{what} {topic!r} has no subscription {name!r}{near(name, names)}")
        return found

    def topics(self) -> tuple[Topic, ...]:
        """All of them, by name."""
        return tuple(topic for _, topic in sorted(self._topics.items()))

    def subscriptions(self, topic: str | None = None) -> tuple[Subscription, ...]:
        """All of them or those of one topic or view, by its name and theirs. Raises: `NotFound` for an unknown one."""
        if topic is not None:
            self.followed(topic)
        return tuple(each for _, each in sorted(self._subscriptions.items()) if topic in (None, each.topic))

    def table(self, name: str) -> Table:
        """Raises: `NotFound`, with names that come near."""
        if name in self._topics:
            raise NotFound(f"{name!r} is a topic, not a table")
        if self._views.get(name) is not None:
            raise NotFound(f"{name!r} is a materialized view, not a table: its rows follow from its query")
        return self._tables.table(name)

    def table_by_id(self, id: int) -> Table:
        """Also what a view stores, and a dropped one, while it is remembered. Raises: `NotFound`."""
        found = self._tables.by_id(id) or self._views.node(id)
        if found is None:
            raise NotFound(f"there is no table with the id {id}, or it was dropped and is no longer remembered")
        return found

    def tables(self) -> tuple[Table, ...]:
        """Those that are there and were created as such, by name. What views store is not among them: see `stored`."""
        return self._tables.tables()

    def tables_at(self, timestamp: Timestamp) -> tuple[Table, ...]:
        """Those that a cut at this time shows, by name; since dropped ones too, while they are remembered."""
        return self._tables.at(timestamp)

    def tables_changed(self, names: Sequence[str]) -> Timestamp:
        """When one of the tables and views that have, or had, these names was last created, altered or dropped."""
        return max(self._tables.changed(names), self._views.changed(names))

    def view(self, name: str) -> View:
        """Raises: `NotFound`, with names that come near."""
        for what, there in (("topic", self._topics.get(name)), ("table", self._tables.get(name))):
            if there is not None:
                raise NotFound(f"{name!r} is a {what}, not a materialized view")
        return self._views.view(name)

    def view_by_id(self, id: int) -> View:
        """Also a dropped one, while it is remembered. Raises: `NotFound`."""
        return self._views.by_id(id)

    def read_by(self, view: View, into: dict[int, Table | View]) -> None:
        """Add all that a view reads, directly or through other views, by id."""
        waiting = [view]  # A chain of views may be longer than Python's own stack.
        while waiting:
            for id, _ in waiting.pop().inputs.values():
                if id in into:
                    continue
                try:
                    found: Table | View = self.view_by_id(id)
                except NotFound:
                    found = self.table_by_id(id)
                into[id] = found
                if isinstance(found, View):
                    waiting.append(found)

    def views(self) -> tuple[View, ...]:
        """Those that are there, by name."""
        return self._views.views()

    def views_at(self, timestamp: Timestamp) -> tuple[View, ...]:
        """Those that a cut at this time shows, by name; since dropped ones too, while they are remembered."""
        return self._views.at(timestamp)

    def stored(self) -> tuple[Table, ...]:
        """All that has files: the tables that are there, then what the views store."""
        return (*self.tables(), *(node for each in self.views() for node in each.nodes))

    def stored_at(self, timestamp: Timestamp) -> tuple[Table, ...]:
        """All that has files at this time: the tables, then what the views store."""
        return (*self.tables_at(timestamp), *(node for each in self.views_at(timestamp) for node in each.nodes))
