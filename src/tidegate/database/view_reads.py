"""Views in queries: their stored rows at a checkpoint, their SQL over the tables at any other time (promise 4).

A view at T is its query over the tables at T. So a read that is fresher than the last checkpoint need not wait for one:
the query takes the view's place in it. Whichever is likely to be sooner is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from tidegate.catalog.views import View
from tidegate.database.cut_reader import TableAt, shown
from tidegate.database.read_gate import ReadPlace
from tidegate.database.view_plans import Plans, ties
from tidegate.errors import InvariantBroken, TidegateError, Unavailable
from tidegate.pipeline.view_run import WAITS
from tidegate.reads.translate import NeedsSpark, parse_any, parse_query
from tidegate.snapshots.manifest import Manifest, ViewState
from tidegate.tables.column_type import to_sql
from tidegate.tables.schema import Table
from tidegate.tables.spark_sql import DIALECT, shorten
from tidegate.views.delta import full
from tidegate.views.functions import is_function
from tidegate.views.operators import Plan

ROWS_PER_MS: Final = 10_000
"""About what DuckDB computes of a view's query."""
START_MS: Final = 20
VIEW_MS: Final = 3
"""About what reading and planning the query of one view takes."""
_LAST: Final = 1 << 31
"""Behind the numbers of all nodes of a view."""


@dataclass(slots=True)
class Views:
    """What a query reads once its views are resolved."""

    tables: dict[str, TableAt]
    inlined: dict[str, tuple[View, ReadPlace]] = field(default_factory=dict)
    """Views whose queries take their place, by the names that the query has for them."""
    how: dict[str, str] = field(default_factory=dict)
    """Of each view: `stored` or `computed`."""


def resolve(names: Mapping[str, str], place: ReadPlace, manifest: Manifest | None) -> Views:
    """What `names` stand for, by the names of tables and views, at a place; `manifest` is the checkpoint at or before.

    Raises: `Unavailable` for a view that has failed.
    """
    found = Views({})
    for name, of in names.items():
        view = place.views.get(of)
        if view is None:
            found.tables[name] = TableAt(place.tables[of], place.at)
            continue
        if manifest is None:
            raise InvariantBroken(f"view {of!r} without a checkpoint")
        state = manifest.views.get(view.id)
        if state is not None and state.state == "failed":
            raise Unavailable(_not_well(view, state, place, manifest))
        if state is not None and state.state == "live" and manifest.timestamp == place.at:
            found.tables[name] = TableAt(view.table, place.at, manifest)
            found.how[of] = "stored"
        else:
            found.inlined[name] = view, place
            found.how[of] = "computed"
    return found


def _not_well(view: View, state: ViewState, place: ReadPlace, manifest: Manifest) -> str:
    before = "its rows before can be read with FOR TIMESTAMP AS OF"
    if not state.error.startswith(WAITS):
        # The error says what to do.
        return f"view {view.name!r} has failed at {state.timestamp}: {state.error}; {before}"
    # Resuming it would not help: it goes on by itself, once what it waits for does.
    text = f"view {view.name!r} stands still since {state.timestamp}: {state.error}; it goes on when that one does"
    for each in place.under:
        other = manifest.views.get(each.id) if isinstance(each, View) else None
        if other is not None and other.state == "failed" and not other.error.startswith(WAITS):
            text += f". {each.name!r} has failed: {other.error}"
    return f"{text}; {before}"


def is_sooner_stored(place: ReadPlace, manifest: Manifest) -> bool:
    """Whether waiting for a checkpoint is likely to take less time than computing the views."""
    if place.checkpoint_ms is None:
        return False
    views = sum(isinstance(each, View) for each in place.under)
    files = (file for each in place.under if not isinstance(each, View) for file in manifest.files(each.id))
    return START_MS + VIEW_MS * views + sum(each.rows for each in files) / ROWS_PER_MS > place.checkpoint_ms


def may_differ(views: Views) -> bool:
    """Whether one of the views to be computed may take other rows than are stored, among those that are equal by its
    order."""
    for view, place in views.inlined.values():
        plans = Plans(place.under)
        for each in (view, *place.under):
            if isinstance(each, View) and ties(each.sql) and plans.of(each) is None:
                return True
    return False


@contextmanager
def naming(asked: str, computed: str) -> Iterator[None]:
    """Errors name the query that was asked, not the one with the views in it."""
    try:
        yield
    except TidegateError as error:
        if asked != computed:
            error.args = tuple(
                each.replace(shown(computed), shown(asked)).replace(shorten(computed), shorten(asked))
                if isinstance(each, str)
                else each
                for each in error.args
            )
        raise


def inline(sql: str, views: Views) -> str:
    """The query with the queries of views in their places; what those read is added to the tables.

    Each view is there once, in WITH, however many read it: views on views take as long as they take together.
    """
    return _Inlining(sql, views).text() if views.inlined else sql


class _Inlining:
    """The views of one query. Views below others have smaller ids, so in the order of those each finds what it reads.

    A time is known by its number.
    """

    def __init__(self, sql: str, views: Views) -> None:
        self._sql = sql
        self._tables = views.tables
        self._inlined = views.inlined
        self._times = list(dict.fromkeys(place.at for _, place in views.inlined.values()))
        self._plans = [Plans() for _ in self._times]
        for _, place in views.inlined.values():
            self._plans[self._times.index(place.at)].add(place.under)
        self._todo: list[Callable[[], None]] = []
        self._parts: dict[tuple[int, int, int], exp.CTE] = {}
        """By time and view: its nodes, where it is computed by those, then the view itself."""
        self._altered: list[exp.CTE] = []
        self._mark = self._unused_mark()

    def _unused_mark(self) -> str:
        """What no name in the query and in those of the views has in it."""
        texts = [self._sql]
        for view, place in self._inlined.values():
            texts += [each.sql for each in (view, *place.under) if isinstance(each, View)]
        mark = " #"
        while any(mark in each for each in texts):
            mark += "#"
        return mark

    def text(self) -> str:
        tree = _parsed(self._sql)

        def source(name: str) -> str | None:
            found = self._inlined.get(name)
            return None if found is None else self._view(found[0], self._times.index(found[1].at))

        _replace(tree, frozenset(), source)
        while self._todo:
            self._todo.pop()()
        if isinstance(tree, exp.Values):
            tree = exp.select("*").from_(tree)
        given = tree.args.get("with_")
        own = [] if given is None else given.expressions
        ours = [*self._altered, *(self._parts[each] for each in sorted(self._parts))]
        is_recursive = given is not None and given.args.get("recursive")
        tree.set("with_", exp.With(expressions=[*ours, *own], recursive=is_recursive))
        return str(tree.sql(DIALECT))

    def _view(self, view: View, time: int) -> str:
        """The name of a view, which is added sooner or later."""
        if (time, view.id, _LAST) not in self._parts:
            self._parts[time, view.id, _LAST] = exp.CTE()
            self._todo.append(lambda: self._add(view, time))
        return f"{_plain(view.name)}{self._mark}{time}-{view.id}"

    def _add(self, view: View, time: int) -> None:
        if is_function(view.sql):
            raise NeedsSpark(f"the view {view.name!r}, a function,")
        plan = self._plans[time].of(view) if ties(view.sql) else None
        if plan is not None:
            rows = exp.Table(this=_quoted(self._stored(view, plan, time)))
            query: Any = exp.select(*map(_column, view.columns)).from_(rows)
        else:
            query = _parsed(view.sql)

            def source(name: str) -> str | None:
                of = _input(view, name)
                if of is None:
                    return None
                found = self._plans[time].under[of[0]]
                return self._view(found, time) if isinstance(found, View) else self._table(found, of[1], time)

            _replace(query, frozenset(), source)
        self._parts[time, view.id, _LAST] = _cte(self._view(view, time), query, view.columns)

    def _stored(self, view: View, plan: Plan, time: int) -> str:
        """The name of a view with all that is stored of it, keys too; it is added sooner or later."""
        names = {
            node.name: f"{_plain(view.name)}{self._mark}{time}-{view.id}-{at}" for at, node in enumerate(plan.nodes)
        }
        if (time, view.id, 0) not in self._parts:
            self._parts[time, view.id, 0] = exp.CTE()
            self._todo.append(lambda: self._add_nodes(view, plan, time, names))
        return names[plan.nodes[-1].name]

    def _add_nodes(self, view: View, plan: Plan, time: int, names: Mapping[str, str]) -> None:
        plans = self._plans[time]
        hidden = plans.hidden(view, plan)

        def source(name: str) -> str | None:
            relation = name.removesuffix("@a")
            if relation in names:
                return names[relation]
            id, version = view.inputs[relation]
            found = plans.under[id]
            if not isinstance(found, View):
                return self._table(found, version, time)
            below = plans.of(found) if hidden.get(id) else None
            return self._view(found, time) if below is None else self._stored(found, below, time)

        for at, node in enumerate(plan.nodes):
            query = _parsed(full(node))
            _replace(query, frozenset(), source)
            self._parts[time, view.id, at] = _cte(names[node.name], query)

    def _table(self, table: Table, version: int, time: int) -> str:
        """The name of a table with the columns that it had in a version: those are what the view's query means."""
        at = self._times[time]
        relation = f"{_plain(table.name)}{self._mark}{time}-{table.id}-{version}"
        now, then = table.at(at), table.version(version).columns
        kept = [now.by_id(each.id) for each in then]
        names = tuple(each.name for each in kept if each is not None)
        self._tables[relation] = TableAt(table, at, None, names or tuple(now.names[:1]))
        if names == tuple(each.name for each in then):
            return relation
        # No view uses the columns that were dropped or named anew since, but its text may name them.
        columns = [
            exp.alias_(
                exp.cast(exp.null(), to_sql(old.type), dialect=DIALECT) if new is None else _column(new.name),
                old.name,
                quoted=True,
            )
            for old, new in zip(then, kept, strict=True)
        ]
        altered = f"{relation}-{len(self._altered)}"
        self._altered.append(_cte(altered, exp.select(*columns).from_(exp.Table(this=_quoted(relation)))))
        return altered


def _input(view: View, name: str) -> tuple[int, int] | None:
    """What a name in a view's query stands for: id and version."""
    found = view.inputs.get(name)
    if found is not None:
        return found
    return next((of for each, of in view.inputs.items() if each.casefold() == name.casefold()), None)


def _cte(name: str, query: Any, columns: tuple[str, ...] = ()) -> exp.CTE:
    return exp.CTE(this=query, alias=exp.TableAlias(this=_quoted(name), columns=[_quoted(each) for each in columns]))


def _quoted(name: str) -> exp.Identifier:
    return exp.Identifier(this=name, quoted=True)


def _column(name: str) -> exp.Column:
    return exp.Column(this=_quoted(name))


def _plain(name: str) -> str:
    """A dot would part a name."""
    return name.replace(".", "-")


def _name(table: exp.Table) -> str:
    return ".".join(part.name for part in table.parts)


def _parsed(sql: str) -> Any:
    try:
        return parse_query(sql)
    except NeedsSpark:
        return parse_any(sql)


def _replace(node: Any, hides: frozenset[str], source: Callable[[str], str | None]) -> None:
    """Let tables below a node be what `source` says, but not what a WITH in sight gives its name to.

    They keep the names that the query has for them, and all that hangs on them: columns' names, PIVOT, a sample, joins.
    """
    given = node.args.get("with_")
    if given is not None:
        for each in given.expressions:
            name = each.alias.casefold()
            _replace(each.this, hides | {name} if given.args.get("recursive") else hides, source)
            hides |= {name}
    for each in list(node.iter_expressions()):
        if each is given:
            continue
        if isinstance(each, exp.Table) and isinstance(each.this, exp.Identifier | exp.Dot):
            name = _name(each)
            relation = None if name.casefold() in hides else source(name)
            if relation is not None:
                alias = each.args.get("alias") or exp.TableAlias()
                if not alias.this:
                    alias.set("this", _quoted(name.rsplit(".", 1)[-1]))
                each.set("alias", alias)
                each.set("this", _quoted(relation))
                each.set("db", None)
                each.set("catalog", None)
        _replace(each, hides, source)
