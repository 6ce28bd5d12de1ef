"""Views in queries: their stored rows at a checkpoint, their SQL over the tables at any other time (promise 4).

A view at T is its query over the tables at T. So a read that is fresher than the last checkpoint need not wait for one:
the query takes the view's place in it. Whichever is likely to be sooner is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.database.cut_reader import TableAt
from tidegate.database.read_gate import ReadPlace
from tidegate.errors import InvariantBroken, Unavailable
from tidegate.reads.translate import NeedsSpark, parse_any, parse_query
from tidegate.snapshots.manifest import Manifest
from tidegate.tables.spark_sql import DIALECT
from tidegate.views.functions import is_function

ROWS_PER_MS: Final = 10_000
"""About what DuckDB computes of a view's query."""
START_MS: Final = 20


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
            raise Unavailable(
                f"view {of!r} has failed at {state.timestamp}: {state.error}. Mend what it says, then run ALTER"
                f" MATERIALIZED VIEW {of} RESUME; its rows before can be read with FOR TIMESTAMP AS OF"
            )
        if state is not None and state.state == "live" and manifest.timestamp == place.at:
            found.tables[name] = TableAt(view.table, place.at, manifest)
            found.how[of] = "stored"
        else:
            found.inlined[name] = view, place
            found.how[of] = "computed"
    return found


def is_sooner_stored(place: ReadPlace, manifest: Manifest) -> bool:
    """Whether waiting for a checkpoint is likely to take less time than computing the views."""
    if place.checkpoint_ms is None:
        return False
    files = (file for each in place.under if not isinstance(each, View) for file in manifest.files(each.id))
    return START_MS + sum(each.rows for each in files) / ROWS_PER_MS > place.checkpoint_ms


def inline(sql: str, views: Views) -> str:
    """The query with the queries of views in their places; what those read is added to the tables."""
    if not views.inlined:
        return sql
    tree = _parsed(sql)
    by_place: dict[Timestamp, int] = {}

    def read(view: View, place: ReadPlace, name: str) -> exp.Expr:
        if is_function(view.sql):
            raise NeedsSpark(f"the view {view.name!r}, a function,")
        query = _parsed(view.sql)
        under = {each.id: each for each in place.under}
        number = by_place.setdefault(place.at, len(by_place))

        def source(each: exp.Table) -> exp.Expr | None:
            of = view.inputs.get(each.name)
            if of is None:
                return None
            id, version = of
            found = under[id]
            alias = each.alias_or_name
            if isinstance(found, View):
                return read(found, place, alias)
            # No name of a query's own can be this one.
            relation = f"{each.name}@{version}.{number}".replace(".", "-")
            columns = tuple(found.version(version).names)
            views.tables[relation] = TableAt(found, place.at, None, columns)
            return exp.Table(
                this=exp.to_identifier(relation, quoted=True),
                alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)),
            )

        _replace(query, frozenset(), source)
        columns = [exp.to_identifier(each, quoted=True) for each in view.columns]
        alias = exp.TableAlias(this=exp.to_identifier(name, quoted=True), columns=columns)
        return exp.Subquery(this=query, alias=alias)

    def outermost(each: exp.Table) -> exp.Expr | None:
        found = views.inlined.get(".".join(part.name for part in each.parts))
        return None if found is None else read(*found, each.alias_or_name)

    _replace(tree, frozenset(), outermost)
    return str(tree.sql(DIALECT))


def _parsed(sql: str) -> Any:
    try:
        return parse_query(sql)
    except NeedsSpark:
        return parse_any(sql)


def _replace(node: Any, hidden: frozenset[str], source: Any) -> None:
    """Replace tables below a node, but not what a WITH in sight gives its name to."""
    given = node.args.get("with_")
    if given is not None:
        for each in given.expressions:
            name = each.alias.casefold()
            _replace(each.this, hidden | {name} if given.args.get("recursive") else hidden, source)
            hidden |= {name}
    for each in list(node.iter_expressions()):
        if each is given:
            continue
        if isinstance(each, exp.Table) and isinstance(each.this, exp.Identifier | exp.Dot):
            if each.name.casefold() in hidden and not each.args.get("db"):
                continue
            new = source(each)
            if new is not None:
                each.replace(new)
        else:
            _replace(each, hidden, source)
