"""The views' part of the catalog: which there are, what they read and store, and which there were.

A record holds the nodes' columns as they are, so that replaying it needs no rules. A view is remembered after its end
until `forget`, with the tables it stored: cuts before still show it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tidegate.catalog import records
from tidegate.catalog.entries import Options, ViewCreated, ViewDropped, ViewResumed
from tidegate.catalog.names import near
from tidegate.catalog.table_fold import column_facts, columns_of, table_facts, table_of
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, InvalidArgument, LimitExceeded, NotFound
from tidegate.tables.definition import COLUMNS_MAX, NodeDef, define_node
from tidegate.tables.schema import HIDDEN, Column, Table, TableSchema

VIEWS_MAX: Final = 1000
NODES_MAX: Final = 1000
"""Of one view."""


class ViewFold:
    """Views by name and by id, and the tables that hold their rows by id.

    Invariants: a name has at most one view at any time; every view that is there reads only what is there.
    """

    def __init__(self, *, views_max: int = VIEWS_MAX, columns_max: int = COLUMNS_MAX) -> None:
        self._by_name: dict[str, View] = {}
        self._by_id: dict[int, View] = {}
        """The dropped ones too."""
        self._nodes: dict[int, Table] = {}
        """Those of dropped ones too."""
        self._views_max = views_max
        self._columns_max = columns_max

    # -- asking ----------------------------------------------------------------------------------------------

    def get(self, name: str) -> View | None:
        return self._by_name.get(name)

    def view(self, name: str) -> View:
        view = self._by_name.get(name)
        if view is None:
            raise NotFound(f"there is no materialized view {name!r}{near(name, self._by_name)}")
        return view

    def by_id(self, id: int) -> View:
        view = self._by_id.get(id)
        if view is None:
            raise NotFound(f"there is no view with the id {id}, or it was dropped and is no longer remembered")
        return view

    def views(self) -> tuple[View, ...]:
        return tuple(view for _, view in sorted(self._by_name.items()))

    def at(self, timestamp: Timestamp) -> tuple[View, ...]:
        there = (each for each in self._by_id.values() if each.existed(timestamp))
        return tuple(sorted(there, key=lambda each: each.name))

    def node(self, id: int) -> Table | None:
        return self._nodes.get(id)

    def changed(self, names: Sequence[str]) -> Timestamp:
        found = [each.dropped or each.created for each in self._by_id.values() if each.name in names]
        return max(found, default=Timestamp.ZERO)

    def dependants(self, id: int) -> tuple[View, ...]:
        """The views that read a table or view, directly or through others, in the order in which they can go."""
        found: dict[int, View] = {}
        for each in sorted(self._by_name.values(), key=lambda each: each.id):  # What it reads comes before it.
            if any(read == id or read in found for read, _ in each.inputs.values()):
                found[each.id] = each
        return tuple(reversed(found.values()))

    def first_use(self, table: Table, after: Iterable[Column]) -> tuple[str, tuple[View, ...]] | None:
        """The first column that views use and that is another, or gone, `after` a change; and those views."""
        left = {each.id: (each.name, each.type) for each in after}
        readers = sorted((each for each in self._by_name.values() if each.reads(table.id)), key=lambda each: each.name)
        for column in table.schema.columns:
            if left.get(column.id) != (column.name, column.type):
                users = tuple(each for each in readers if column.name in each.used.get(table.name, ()))
                if users:
                    return column.name, users
        return None

    # -- planning --------------------------------------------------------------------------------------------

    def check_new(self, name: str, *, if_not_exists: bool) -> bool:
        """Whether it is to be created; False when it exists and that is fine."""
        there = self._by_name.get(name)
        if there is not None:
            if if_not_exists:
                return False
            raise InvalidArgument(
                f"view {name!r} exists since {there.created}; use IF NOT EXISTS, or drop it first:"
                f" DROP MATERIALIZED VIEW {name}"
            )
        if len(self._by_name) >= self._views_max:
            raise LimitExceeded("the number of views", len(self._by_name) + 1, self._views_max, "views_max")
        return True

    def plan_create(
        self,
        name: str,
        sql: str,
        columns: Sequence[str],
        nodes: Sequence[NodeDef],
        inputs: Mapping[str, tuple[int, int]],
        used: Mapping[str, Collection[str]],
        *,
        there: Mapping[str, Table],
        options: Options | None,
    ) -> bytes:
        """`there` has the tables, and the own nodes of the views, that `inputs` names, as they are now."""
        for each, (id, version) in inputs.items():
            _check_input(name, each, id, version, there.get(each))
        if strange := sorted(used.keys() - inputs.keys()):
            raise InvalidArgument(f"view {name!r}: it uses columns of {strange[0]!r}, which it does not read")
        using = {each: sorted({there[each].schema.column(one).name for one in used[each]}) for each in sorted(used)}
        if not nodes:
            raise InvalidArgument(f"view {name!r} stores nothing; it needs a node")
        if len(nodes) > NODES_MAX:
            raise InvalidArgument(
                f"view {name!r} has {len(nodes):,} parts, and {NODES_MAX:,} are the most; make two views of it"
            )
        shown = tuple(each.name for each in nodes[-1].visible)
        if not columns or tuple(columns) != shown:
            raise InvalidArgument(f"view {name!r} has the columns {list(columns)}, but stores {list(shown)}")
        made = []
        for node in nodes:
            found, key = define_node(name, node, columns_max=self._columns_max)
            made.append({"columns": column_facts(found), "key": key, "hidden": node.hidden})
        return records.write(
            "create_view",
            name=name,
            sql=sql,
            columns=list(columns),
            nodes=made,
            inputs={each: list(of) for each, of in inputs.items()},
            used=using,
            options=dict(options or {}),
        )

    def plan_drop(self, name: str, *, if_exists: bool, cascade: bool) -> bytes | None:
        if if_exists and name not in self._by_name:
            return None
        view = self.view(name)
        ids = self.check_drop("view", name, view.id, f"DROP MATERIALIZED VIEW {name}", cascade=cascade)
        return records.write("drop_view", id=view.id, name=name, views=ids)

    def check_drop(self, what: str, name: str, id: int, statement: str, *, cascade: bool) -> list[int]:
        """The ids of the views that go first. Raises: `InvalidArgument` when there are some, without `cascade`."""
        found = self.dependants(id)
        if found and not cascade:
            names = ", ".join(repr(each.name) for each in found)
            raise InvalidArgument(
                f"{what} {name!r} is read by {'view' if len(found) == 1 else 'views'} {names}; drop"
                f" {'it' if len(found) == 1 else 'them, in this order,'} first, or all at once: {statement} CASCADE"
            )
        return [each.id for each in found]

    def plan_resume(self, name: str) -> bytes:
        return records.write("resume_view", id=self.view(name).id, name=name)

    # -- the fold --------------------------------------------------------------------------------------------

    def create(
        self, facts: dict[str, Any], next_id: int, timestamp: Timestamp, there: Mapping[str, Table]
    ) -> ViewCreated | None:
        """Takes an id for each node, from `next_id` on. None when an input is no longer what the view was planned for.

        The name must be free.
        """
        inputs = {each: (id, version) for each, (id, version) in facts["inputs"].items()}
        for each, of in inputs.items():
            if _place(there.get(each)) != of:
                return None
        name, options, last = facts["name"], facts["options"], len(facts["nodes"])
        nodes = []
        for number, node in enumerate(facts["nodes"], 1):
            called = name if number == last else f"{name}#{number}"
            schema = TableSchema(1, timestamp, columns_of(node["columns"]), tuple(node["key"]))
            own = {**options, HIDDEN: node["hidden"]}
            nodes.append(Table(next_id + number - 1, called, 1, timestamp, (schema,), options=own))
        view = View(
            nodes[-1].id,
            name,
            facts["sql"],
            timestamp,
            tuple(facts["columns"]),
            inputs,
            {each: frozenset(of) for each, of in facts["used"].items()},
            tuple(nodes),
            options=options,
        )
        self._put(view)
        return ViewCreated(view)

    def drop(self, facts: dict[str, Any], timestamp: Timestamp) -> ViewDropped | None:
        """None when the view is not the one that was meant, or others read it that were not."""
        view = self._by_name.get(facts["name"])
        if view is None or view.id != facts["id"]:
            return None
        gone = self.drop_dependants(view.id, facts["views"], timestamp)
        return None if gone is None else ViewDropped((*gone, self._end(view, timestamp)))

    def drop_dependants(self, id: int, expected: Collection[int], timestamp: Timestamp) -> tuple[View, ...] | None:
        """Drop all that read a table or view; None, and nothing is done, when some of them were not `expected`."""
        found = self.dependants(id)
        if any(each.id not in expected for each in found):
            return None
        return tuple(self._end(each, timestamp) for each in found)

    def resume(self, facts: dict[str, Any], timestamp: Timestamp) -> ViewResumed | None:
        view = self._by_name.get(facts["name"])
        if view is None or view.id != facts["id"]:
            return None
        view = replace(view, resumed=timestamp)
        self._put(view)
        return ViewResumed(view)

    def forget(self, before: Timestamp) -> tuple[Table, ...]:
        """Forget views that no cut from `before` on shows; the tables that held their rows."""
        gone = [each for each in self._by_id.values() if each.dropped is not None and each.dropped <= before]
        for each in gone:
            del self._by_id[each.id]
            for node in each.nodes:
                del self._nodes[node.id]
        return tuple(node for each in gone for node in each.nodes)

    def _end(self, view: View, timestamp: Timestamp) -> View:
        nodes = tuple(replace(each, dropped=timestamp) for each in view.nodes)
        view = replace(view, dropped=timestamp, nodes=nodes)
        del self._by_name[view.name]
        self._put(view)
        return view

    def _put(self, view: View) -> None:
        self._by_id[view.id] = view
        if view.dropped is None:
            self._by_name[view.name] = view
        self._nodes.update((each.id, each) for each in view.nodes)

    # -- snapshots -------------------------------------------------------------------------------------------

    def facts(self) -> list[dict[str, Any]]:
        """All views, also the dropped ones, for a snapshot."""
        return [view_facts(each) for _, each in sorted(self._by_id.items())]

    def load(self, facts: Iterable[dict[str, Any]]) -> None:
        """Take over what `facts` gave."""
        for each in facts:
            self._put(view_of(each))


def view_facts(view: View) -> dict[str, Any]:
    """A view as plain data; `view_of` makes it a view again."""
    return {
        "id": view.id,
        "name": view.name,
        "sql": view.sql,
        "created": view.created,
        "columns": list(view.columns),
        "inputs": {each: list(of) for each, of in view.inputs.items()},
        "used": {each: sorted(of) for each, of in view.used.items()},
        "nodes": [table_facts(each) for each in view.nodes],
        "dropped": view.dropped,
        "resumed": view.resumed,
        "options": dict(view.options),
    }


def view_of(facts: dict[str, Any]) -> View:
    """The view that `view_facts` was given."""
    return View(
        facts["id"],
        facts["name"],
        facts["sql"],
        Timestamp(facts["created"]),
        tuple(facts["columns"]),
        {each: (id, version) for each, (id, version) in facts["inputs"].items()},
        {each: frozenset(of) for each, of in facts["used"].items()},
        tuple(table_of(each) for each in facts["nodes"]),
        None if facts["dropped"] is None else Timestamp(facts["dropped"]),
        Timestamp(facts["resumed"]),
        facts["options"],
    )


def _place(table: Table | None) -> tuple[int, int] | None:
    return None if table is None else (table.id, table.schema.version)


def _check_input(view: str, name: str, id: int, version: int, there: Table | None) -> None:
    """Raises: `Conflict` when what the view reads has changed since its query was looked at."""
    if there is None:
        raise Conflict(f"view {view!r}: {name!r}, which it reads, is there no more; look at its query again")
    if there.id != id:
        raise Conflict(f"view {view!r}: {name!r}, which it reads, was created anew; look at its query again")
    if there.schema.version != version:
        raise Conflict(
            f"view {view!r}: {name!r}, which it reads, has schema version {there.schema.version} by now, not {version};"
            f" look at its query again"
        )


def refuse_change(table: Table, column: str, views: Sequence[View]) -> InvalidArgument:
    """The error for a change of a column that views use."""
    names = ", ".join(repr(each.name) for each in views)
    one = len(views) == 1
    return InvalidArgument(
        f"table {table.name!r}: column {column!r} stays as it is: {'view' if one else 'views'} {names}"
        f" {'uses it; drop the view first' if one else 'use it; drop the views first'}"
    )
