"""Laws of the catalog: a snapshot and the records after it equal all records; ids never come back; every cut keeps the
tables, schemas and views of its time (time-log fact 45); what a view reads is there, with the columns it uses (issue
6).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.entries import (
    Change,
    SubscriptionCreated,
    SubscriptionDropped,
    TableAltered,
    TableCreated,
    TableDropped,
    TopicCreated,
    TopicDropped,
    ViewCreated,
    ViewDropped,
    ViewResumed,
)
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, InvalidArgument
from tidegate.tables.definition import AddColumn, ColumnDef, DropColumn, NodeDef, RenameColumn

names = st.sampled_from(["a", "b", "c"])
starts = st.sampled_from(["earliest", "latest", Timestamp(7)])
columns = st.sampled_from(["k", "x", "X", "y", "z"])
types = st.sampled_from([pa.int64(), pa.string(), pa.float64(), pa.list_(pa.decimal128(5, 2))])
tables = st.one_of(
    st.tuples(
        st.just("create_table"),
        names,
        st.lists(st.tuples(columns, types), min_size=1, max_size=3).map(tuple),
        st.lists(columns, max_size=2).map(tuple),
    ),
    st.tuples(st.just("drop_table"), names, st.booleans()),
    st.tuples(st.just("add"), names, columns, types),
    st.tuples(st.just("remove"), names, columns),
    st.tuples(st.just("rename"), names, columns, columns),
)
views = st.one_of(
    st.tuples(
        st.just("create_view"),
        names,
        st.lists(names, max_size=2, unique=True).map(tuple),
        st.sets(columns, max_size=2).map(frozenset),
        st.integers(1, 3),
    ),
    st.tuples(st.just("drop_view"), names, st.booleans()),
    st.tuples(st.just("resume"), names),
)
steps = st.one_of(
    tables,
    tables,
    views,
    st.tuples(st.just("create"), names, st.integers(1, 3)),
    st.tuples(st.just("drop"), names),
    st.tuples(st.just("subscribe"), names, names, starts, st.none() | names),
    st.tuples(st.just("unsubscribe"), names, names),
)


def plan(catalog: Catalog, step: tuple[Any, ...]) -> bytes | None:
    try:
        match step:
            case ("create", name, shards):
                return catalog.plan_create_topic(name, shards=shards, options={"n": shards})
            case ("drop", name):
                return catalog.plan_drop_topic(name)
            case ("subscribe", topic, name, start, dead):
                redeliveries = None if dead is None else 3
                return catalog.plan_create_subscription(
                    topic, name, start=start, max_redeliveries=redeliveries, dead_letter_topic=dead
                )
            case ("unsubscribe", topic, name):
                return catalog.plan_drop_subscription(topic, name)
            case ("create_table", name, with_columns, key):
                return catalog.plan_create_table(name, [ColumnDef(*each) for each in with_columns], key)
            case ("drop_table", name, cascade):
                return catalog.plan_drop_table(name, cascade=cascade)
            case ("create_view", name, reads, used, nodes):
                return plan_view(catalog, name, reads, used, nodes)
            case ("drop_view", name, cascade):
                return catalog.plan_drop_view(name, cascade=cascade)
            case ("resume", name):
                return catalog.plan_resume_view(name)
            case ("add", name, column, type):
                return catalog.plan_alter_table(name, AddColumn(column, type))
            case ("remove", name, column):
                return catalog.plan_alter_table(name, DropColumn(column))
            case ("rename", name, column, to):
                return catalog.plan_alter_table(name, RenameColumn(column, to))
    except InvalidArgument:
        return None
    raise AssertionError(step)


NODE = NodeDef((ColumnDef("x", pa.float64()), ColumnDef("y", pa.string()), ColumnDef("_k", pa.int64())), ("x", "_k"), 1)


def plan_view(catalog: Catalog, name: str, reads: tuple[str, ...], used: frozenset[str], nodes: int) -> bytes | None:
    """A view that reads these, as they are now; of those columns it uses what they have."""
    there = {each.name: each for each in catalog.stored() if each.name in reads}
    inputs = {each: (there[each].id, there[each].schema.version) if each in there else (1, 1) for each in reads}
    using = {
        each: {column.name for column in of.schema.columns if column.name.lower() in {one.lower() for one in used}}
        for each, of in there.items()
    }
    try:
        return catalog.plan_create_view(name, f"SELECT {reads}", ["x", "y"], [NODE] * nodes, inputs, using)
    except Conflict:
        assert there.keys() != set(reads)
        return None


def state(catalog: Catalog) -> tuple[Any, ...]:
    cuts = [
        (catalog.tables_at(Timestamp(n)), catalog.views_at(Timestamp(n)), catalog.stored_at(Timestamp(n)))
        for n in range(int(catalog.changed) + 1)
    ]
    known = (catalog.topics(), catalog.subscriptions(), catalog.tables(), catalog.views(), catalog.stored())
    return (known, cuts, catalog.version, catalog.snapshot())


def written(catalog: Catalog, groups: list[list[tuple[Any, ...]]]) -> list[tuple[bytes, Timestamp, Change | None]]:
    """Play the steps. Those of one group are planned side by side, so that later ones may lose the race."""
    log: list[tuple[bytes, Timestamp, Change | None]] = []
    for group in groups:
        for record in [plan(catalog, step) for step in group]:
            if record is not None:
                when = Timestamp(len(log) + 1)
                log.append((record, when, catalog.apply(record, when)))
    return log


histories = st.lists(st.lists(steps, min_size=1, max_size=3), max_size=25)


@given(histories, st.data())
@settings(max_examples=200, deadline=None)
def test_a_snapshot_and_the_records_after_it_equal_all_records(
    groups: list[list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    live = Catalog()
    log = written(live, groups)
    cut = data.draw(st.integers(0, len(log)))
    replayed = Catalog()
    for record, when, change in log[:cut]:
        assert replayed.apply(record, when) == change
    replayed = Catalog.restore(replayed.snapshot())
    for record, when, change in log[cut:]:
        assert replayed.apply(record, when) == change
    assert state(replayed) == state(live)


def _without(subscriptions: dict[tuple[str, str], Any], of: str) -> dict[tuple[str, str], Any]:
    """Those of a view end with it."""
    return {key: each for key, each in subscriptions.items() if key[0] != of}


@given(histories)
@settings(max_examples=200, deadline=None)
def test_changes_tell_the_whole_story_and_ids_never_come_back(groups: list[list[tuple[Any, ...]]]) -> None:
    """A twin that follows only the changes ends where the catalog ends."""
    catalog = Catalog()
    topics: dict[str, Any] = {}
    subscriptions: dict[tuple[str, str], Any] = {}
    found: dict[str, Any] = {}
    stored: dict[str, Any] = {}
    ids = [0]
    for _, _, change in written(catalog, groups):
        match change:
            case TopicCreated(topic):
                assert topic.id > ids[-1] and topic.name not in topics
                ids.append(topic.id)
                topics[topic.name] = topic
            case TopicDropped(topic, dropped):
                assert topics.pop(topic.name) == topic
                gone = {(each.topic, each.name) for each in dropped}
                assert gone == {key for key in subscriptions if key[0] == topic.name}
                for key in gone:
                    del subscriptions[key]
            case SubscriptionCreated(made):
                assert (made.topic, made.name) not in subscriptions
                subscriptions[made.topic, made.name] = made
            case SubscriptionDropped(made):
                assert subscriptions.pop((made.topic, made.name)) == made
            case TableCreated(table):
                assert table.id > ids[-1] and table.name not in found
                ids.append(table.id)
                found[table.name] = table
            case TableAltered(table):
                assert table.versions[:-1] == found[table.name].versions
                assert table.schema.columns != found[table.name].schema.columns
                found[table.name] = table
            case TableDropped(table, gone_views):
                for each in gone_views:
                    assert stored.pop(each.name).id == each.id and each.dropped == table.dropped
                    subscriptions = _without(subscriptions, each.name)
                assert found.pop(table.name).versions == table.versions
            case ViewCreated(view):
                assert [each.id for each in view.nodes] == list(range(ids[-1] + 1, view.id + 1))
                assert view.name not in stored
                ids.append(view.id)
                stored[view.name] = view
            case ViewDropped(gone_views):
                for each in gone_views:
                    assert stored.pop(each.name).id == each.id
                    subscriptions = _without(subscriptions, each.name)
            case ViewResumed(view):
                assert stored[view.name].nodes == view.nodes and stored[view.name].resumed < view.resumed
                stored[view.name] = view
        assert len(topics.keys() | found.keys() | stored.keys()) == len(topics) + len(found) + len(stored)
        # Of what was told so far: the catalog may be ahead of it.
        for view in stored.values():
            for name, (id, _) in view.inputs.items():
                read = stored[name].table if name in stored else found[name]
                assert read.id == id and view.used[name] <= set(read.schema.names)
        for each in catalog.subscriptions():
            assert catalog.followed(each.topic).id == each.topic_id
            assert each.dead_letter_topic is None or catalog.topic(each.dead_letter_topic)
    assert catalog.topics() == tuple(topics[name] for name in sorted(topics))
    assert catalog.subscriptions() == tuple(subscriptions[key] for key in sorted(subscriptions))
    assert catalog.tables() == tuple(found[name] for name in sorted(found))
    assert catalog.views() == tuple(stored[name] for name in sorted(stored))


class Model:
    """The dumbest database: a list of (column, type) per table, copied whole at every timestamp."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.tables: dict[str, tuple[list[tuple[str, pa.DataType]], set[str]]] = {}
        self.views: dict[str, dict[str, set[str]]] = {}
        """What each reads, and which columns of it."""
        self.cuts: list[tuple[dict[str, list[tuple[str, pa.DataType]]], set[str]]] = [({}, set())]

    def do(self, step: tuple[Any, ...]) -> bool:
        """Whether it can be; if so it has been done."""
        done = self._do(step)
        if done:
            self.cuts.append(({name: list(of) for name, (of, _) in self.tables.items()}, set(self.views)))
        return done

    def _do(self, step: tuple[Any, ...]) -> bool:
        what, name, *rest = step
        taken = name in self.topics or name in self.tables or name in self.views
        if what == "create":
            if not taken:
                self.topics.add(name)
            return not taken
        if what == "drop":
            there = name in self.topics
            self.topics.discard(name)
            return there
        if what == "create_table":
            return not taken and self._create(name, *rest)
        if what == "create_view":
            return not taken and self._create_view(name, *rest)
        if what == "resume":
            return name in self.views
        if name not in (self.views if what == "drop_view" else self.tables):
            return False
        if what in ("drop_table", "drop_view"):
            return self._drop(name, *rest)
        used = {column.lower() for each in self.views.values() for column in each.get(name, ())}
        if what in ("remove", "rename") and rest[0].lower() in used:
            return False
        return self._alter(what, *self.tables[name], *rest)

    def _create_view(self, name: str, reads: tuple[str, ...], used: frozenset[str], _: int) -> bool:
        if not all(each in self.tables or each in self.views for each in reads):
            return False
        folded = {each.lower() for each in used}
        self.views[name] = {
            each: {column for column, _ in self.tables[each][0] if column.lower() in folded}
            for each in reads
            if each in self.tables
        } | {each: set() for each in reads if each in self.views}
        return True

    def _drop(self, name: str, cascade: bool) -> bool:
        gone = {name}
        while more := {each for each, reads in self.views.items() if gone & reads.keys()} - gone:
            gone |= more
        if len(gone) > 1 and not cascade:
            return False
        for each in gone:
            self.tables.pop(each, None)
            self.views.pop(each, None)
        return True

    def _create(self, name: str, of: tuple[tuple[str, pa.DataType], ...], key: tuple[str, ...]) -> bool:
        types = {column.lower(): type for column, type in of}
        keys = [each.lower() for each in key]
        if len(types) < len(of) or len(set(keys)) < len(keys):
            return False
        if not all(types.get(each) in (pa.int64(), pa.string()) for each in keys):
            return False
        self.tables[name] = (list(of), set(keys))
        return True

    def _alter(self, what: str, of: list[tuple[str, Any]], keys: set[str], column: str, more: Any = None) -> bool:
        known = [each.lower() for each, _ in of]
        old = column.lower()
        if what == "add":
            if old not in known:
                of.append((column, more))
            return old not in known
        if old not in known:
            return False
        place = known.index(old)
        if what == "remove":
            if old in keys or len(of) == 1:
                return False
            del of[place]
            return True
        if (more.lower() in known and more.lower() != old) or more == of[place][0]:
            return False
        if old in keys:
            keys.remove(old)
            keys.add(more.lower())
        of[place] = (more, of[place][1])
        return True


topics = st.one_of(st.tuples(st.just("create"), names, st.just(1)), st.tuples(st.just("drop"), names))
ddl = st.one_of(topics, tables, tables, views)


@given(st.lists(ddl, max_size=40), st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_every_cut_shows_the_tables_schemas_and_views_that_a_dumb_model_had_then(
    history: list[tuple[Any, ...]], forgotten: int
) -> None:
    catalog, model = Catalog(), Model()
    for step in history:
        record = plan(catalog, step)
        assert (record is not None) == model.do(step), step
        if record is not None:
            assert catalog.apply(record, Timestamp(len(model.cuts) - 1)) is not None

    def at(cut: Timestamp) -> tuple[dict[str, list[tuple[str, pa.DataType]]], set[str]]:
        shown = catalog.tables_at(cut)
        assert {each.name for each in catalog.stored_at(cut) if "#" not in each.name} == {
            each.name for each in (*shown, *catalog.views_at(cut))
        }
        assert all(catalog.table_by_id(each.id) == each for each in catalog.stored_at(cut))
        found = {each.name: [(column.name, column.type) for column in each.at(cut).columns] for each in shown}
        return found, {each.name for each in catalog.views_at(cut)}

    assert [at(Timestamp(n)) for n in range(len(model.cuts))] == model.cuts
    assert {each.name for each in catalog.tables()} == model.tables.keys()
    assert {each.name for each in catalog.views()} == model.views.keys()
    catalog.forget_dropped(Timestamp(forgotten))
    catalog = Catalog.restore(catalog.snapshot())
    kept = range(forgotten, len(model.cuts))
    assert [at(Timestamp(n)) for n in kept] == [model.cuts[n] for n in kept]
