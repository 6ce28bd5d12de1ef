"""`plan`: a view's SQL as nodes that are stored, each with the rule that maintains it.

    SQL ──▶ parsed, names resolved ──▶ operators ──▶ nodes ──▶ columns nobody needs left out ──▶ a rule for each

What is not understood is one node that is computed in full. Raises `InvalidArgument` only for what cannot be a view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from tidegate.errors import InvalidArgument
from tidegate.reads.translate import BARE, NeedsSpark, Translated, parse_any, parse_query, tables_in, translate
from tidegate.tables.spark_sql import DIALECT, shorten
from tidegate.views.build import Builder
from tidegate.views.building import NotUnderstood
from tidegate.views.delta import after, full
from tidegate.views.functions import function_reads
from tidegate.views.names import NotGrouped, cut_without_order, subqueries_in, unsettled_in
from tidegate.views.nested_keys import is_nested
from tidegate.views.operators import Node, Op, Plan, Scan, Source, expressions, walk
from tidegate.views.own_names import find_source, with_own_names
from tidegate.views.prune import prune
from tidegate.views.rules import choose
from tidegate.views.time_windows import with_windows
from tidegate.views.write import beside_weight

Translator = Callable[[str, Mapping[str, pa.Schema]], Translated]


def plan(
    sql: str,
    sources: Mapping[str, Source],
    *,
    name: str = "view",
    names: Sequence[str] = (),
    translator: Translator = translate,
) -> Plan:
    """`names` are the view's own names for its columns, where it has any.

    Raises: `InvalidArgument` for what cannot be a view, naming it; `NotFound`; `NeedsSpark` when only Spark can say
    what its columns are.
    """
    tree = parse_any(sql)
    if found := unsettled_in(tree):
        raise InvalidArgument(
            f"view {name!r} uses {found[0]}, which {found[1]}: a view is the same whenever it is computed. Store the"
            f" value in a table when a row is written, and use that"
        )
    if cut := cut_without_order(tree):
        raise InvalidArgument(
            f"view {name!r} takes {cut} without ORDER BY, which may be any rows: say by ORDER BY which ones are first"
        )
    types = _Types(sources, translator)
    shown = types.of_query(sql)
    columns = _columns(name, shown, names)
    try:
        nodes = _nodes(sql, sources, types, name, columns)
    except NotGrouped as error:
        raise InvalidArgument(
            f"view {name!r} shows the column {error.column!r} of rows that it groups: GROUP BY it too, or take one of"
            f" its values with any_value()"
        ) from None
    except (NotUnderstood, NeedsSpark) as error:
        what = error.what if isinstance(error, NotUnderstood) else error.reason
        why = f"no rule covers {what}: it is computed anew"
        nodes = [_unknown(name, sql, columns, [type for _, type in shown], why, sources)]
    for each in nodes:
        each.types = dict(types.of_node(each))
    inputs = {each.relation for node in nodes for each in _scans(node)} - {each.name for each in nodes}
    used = {relation: frozenset(_used(nodes, relation)) for relation in inputs}
    if nodes[-1].root is None:
        inputs, used = _all_of(sql, sources)
    return Plan(nodes, list(columns), inputs, used)


class _Types:
    """What types columns have: DuckDB's translation says it."""

    def __init__(self, sources: Mapping[str, Source], translator: Translator) -> None:
        self._translator = translator
        self._plain = {
            each.name: pa.schema([(name, each.types[name]) for name in each.names]) for each in sources.values()
        }
        self._known: dict[str, dict[str, pa.DataType]] = {}
        self._schemas = {
            f"{each.name}@a": pa.schema([(beside_weight(name), type) for name, type in each.types.items()])
            for each in sources.values()
        }

    def of_query(self, sql: str) -> list[tuple[str, pa.DataType]]:
        found = self._translator(sql, self._plain)
        return list(zip(found.names, found.types))

    def of(self, op: Op) -> dict[str, pa.DataType]:
        return self._of_part(after(op))

    def of_node(self, node: Node) -> dict[str, pa.DataType]:
        return self._of(full(node))

    def add(self, node: Node) -> None:
        self._schemas[f"{node.name}@a"] = pa.schema(list(self._of_part(full(node)).items()))

    def _of_part(self, sql: str) -> dict[str, pa.DataType]:
        """Raises: `NotUnderstood`: the query has a meaning, so what has none was not taken apart well."""
        try:
            return self._of(sql)
        except InvalidArgument as error:
            raise NotUnderstood(f"its parts ({shorten(str(error))})") from None

    def _of(self, sql: str) -> dict[str, pa.DataType]:
        """Asked more than once of the same text; a name has one type within a view."""
        if sql not in self._known:
            found = self._translator(sql, {**self._plain, **self._schemas})
            self._known[sql] = dict(zip(found.names, found.types))
        return dict(self._known[sql])


def _nodes(sql: str, sources: Mapping[str, Source], types: _Types, name: str, columns: Sequence[str]) -> list[Node]:
    tree, named = with_own_names(with_windows(parse_query(sql)), sources)
    builder = Builder(named, types.of, lambda number: f"{name}#{number}", types.add)
    out = builder.apart(builder.query(_qualified(tree, named)))
    last = builder.node_of(out, name, "", is_view=True, shown=columns)
    nodes = [*builder.nodes, last]
    for each in nodes:
        _check(each)
    prune(nodes)
    for each in nodes:
        choose(each, types.of)
        types.add(each)
    return nodes


def _check(node: Node) -> None:
    """A subquery that is left as text would read what nobody knows of. Raises: `NotUnderstood`."""
    for op in [] if node.root is None else walk(node.root):
        for each in expressions(op):
            if subqueries_in(each):
                raise NotUnderstood(f"the subquery in {shorten(each.sql(DIALECT).replace('`', ''))}")


def _qualified(tree: exp.Expr, named: Mapping[str, Source]) -> exp.Expr:
    schema: dict[str, Any] = {own: dict.fromkeys(each.names, "string") for own, each in named.items()}
    try:
        return qualify(tree, schema=schema, dialect=BARE)
    except (SqlglotError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise NotUnderstood(f"its names ({str(error).splitlines()[0]})") from None


def _columns(name: str, shown: Any, names: Sequence[str]) -> list[str]:
    found = [each for each, _ in shown]
    if names:
        if len(names) != len(found):
            raise InvalidArgument(f"view {name!r} names {len(names)} columns, and its query has {len(found)}")
        found = list(names)
    folded = [each.casefold() for each in found]
    for each in found:
        if folded.count(each.casefold()) > 1:
            raise InvalidArgument(f"view {name!r} has two columns {each!r}; give one another name with AS")
        if each.startswith("_"):
            raise InvalidArgument(
                f"view {name!r}: the column {each!r} begins with _, as Tidegate's own; name it with AS"
            )
    for each, type in shown:
        if pa.types.is_null(type):
            raise InvalidArgument(f"view {name!r}: the column {each!r} is NULL and has no type; cast it")
    return found


def _unknown(
    name: str,
    sql: str,
    columns: Sequence[str],
    types: Sequence[pa.DataType],
    what: str,
    sources: Mapping[str, Source],
) -> Node:
    stored = {each: each for each in columns} | {"_k0": "_k0"}
    # Rows are numbered among those that are the same in all that is not nested.
    key = [each for each, type in zip(columns, types, strict=True) if not is_nested(type)]
    node = Node(name, None, stored, (*key, "_k0"), len(columns), "full", what, sql)
    node.inputs = frozenset(_all_of(sql, sources)[0])
    return node


def _scans(node: Node) -> list[Scan]:
    return [] if node.root is None else [each for each in walk(node.root) if isinstance(each, Scan)]


def _used(nodes: Sequence[Node], relation: str) -> set[str]:
    return {
        each for node in nodes for scan in _scans(node) if scan.relation == relation for each in scan.columns.values()
    }


def _all_of(sql: str, sources: Mapping[str, Source]) -> tuple[set[str], dict[str, frozenset[str]]]:
    named = (find_source(each, sources) for each in {*tables_in(sql), *function_reads(sql)})
    found = {each.name: frozenset(each.names) for each in named if each is not None}
    return set(found), found
