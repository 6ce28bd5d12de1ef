"""Queries: SELECT, its clauses, and what is made of several.

Every column of every query is c0, c1 and so on for DuckDB: no name of Spark's can mean something else there. The names
are kept beside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from tidegate.errors import NotFound
from tidegate.reads import grouping, time_windows
from tidegate.reads.aggregates import AGGREGATES, one_zero
from tidegate.reads.casts import cast
from tidegate.reads.expressions import Expressions, direction
from tidegate.reads.grouping import ALL_KEYS, Groups
from tidegate.reads.operators import only
from tidegate.reads.scope import Scope
from tidegate.reads.sources import Schemas, Sources, is_generator
from tidegate.reads.spark_types import TIMESTAMP, NeedsSpark, Typed, is_float, is_nested, shown, wider

_SET_OPERATIONS: Final[dict[type[exp.Expr], str]] = {
    exp.Union: "UNION",
    exp.Intersect: "INTERSECT",
    exp.Except: "EXCEPT",
}
Columns = list[Typed]


class Queries:
    """Writes one statement."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._ctes: dict[str, tuple[str, Columns]] = {}
        self._count = 0

    def fresh(self) -> str:
        self._count += 1
        return f"s{self._count}"

    def write(self, node: exp.Expr, outer: Scope | None = None) -> tuple[str, Columns]:
        """A query: its SQL, and its columns by their names in it. Raises: `NeedsSpark`, `InvalidArgument`."""
        before = self._ctes
        prefix = self._with(node)
        try:
            if isinstance(node, exp.Select):
                sql, columns = self._select(node, outer)
            elif type(node) in _SET_OPERATIONS:
                sql, columns = self._set_operation(node, outer)
            elif isinstance(node, exp.Subquery):
                sql, columns = self._parenthesised(node, outer)
            elif isinstance(node, exp.Values):
                only(node, "expressions", "order", "limit", "with_")
                if node.args.get("order") or node.args.get("limit"):
                    raise NeedsSpark("VALUES with ORDER BY or LIMIT")
                sql, columns = Sources(self._schemas, self._ctes, self.fresh, self.write, None).values(node)
            else:
                raise NeedsSpark(f"{type(node).__name__} as a query")
        finally:
            self._ctes = before
        return prefix + sql, columns

    def _with(self, node: exp.Expr) -> str:
        given = node.args.get("with_")
        if given is None:
            return ""
        only(given, "expressions")
        parts = []
        for each in given.expressions:
            only(each, "this", "alias")
            sql, columns = self.write(each.this)
            names = [column.name for column in each.args["alias"].args.get("columns") or []]
            if names and len(names) != len(columns):
                raise NeedsSpark(f"{len(names)} names for {len(columns)} columns")
            name = self.fresh()
            named = [replace(one, name=new) for one, new in zip(columns, names or [one.name for one in columns])]
            self._ctes = {**self._ctes, each.alias.casefold(): (name, named)}
            parts.append(f"{name} AS ({sql})")
        return f"WITH {', '.join(parts)} "

    # -- SELECT ----------------------------------------------------------------------------------------------

    def _select(self, node: exp.Expr, outer: Scope | None) -> tuple[str, Columns]:
        only(
            node, "expressions", "from_", "joins", "laterals", "where", "group", "having", "order", "limit", "offset",
            "distinct", "windows", "qualify", "with_",
        )  # fmt: skip
        sources = self._from(node, outer)
        is_session = self._add_time_window(node, sources)
        windows = {each.name.casefold(): each for each in node.args.get("windows") or []}
        write = Expressions(sources.scope, self.write, windows)
        items = self._items(node.expressions, sources, write)
        where = node.args.get("where")
        # The names of the columns are not known to WHERE.
        bare = replace(sources.scope, aliases={})
        window = sources.scope.window
        conditions = [Expressions(bare, self.write).condition(where.this).sql] if where and not is_session else []
        conditions += [window.condition] if window is not None and window.condition else []
        condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        groups = self._group(node, items, write)
        keys = groups.keys
        having = node.args.get("having")
        if having is not None:
            self._check_clash(having, items, sources.scope)
        after = self._having(having, groups, write) + self._qualify(node, items, sources, write)
        distinct = node.args.get("distinct")
        if distinct is not None:
            only(distinct)
        order = self._order(node, items, sources, windows, distinct is not None)
        shown_items = [one_zero(each.sql, each.type) if distinct else each.sql for each in items]
        listed = ", ".join(f"{sql} AS c{index}" for index, sql in enumerate(shown_items))
        sql = f"SELECT {'DISTINCT ' if distinct else ''}{listed}"
        rest = after + order
        for key in keys:
            if is_float(key.type):
                # Spark groups -0.0 with 0.0 and shows 0.0.
                pattern = re.compile(re.escape(key.sql) + r"(?!\w)")
                sql = pattern.sub(lambda _, key=key: one_zero(key.sql, key.type), sql)  # type: ignore[misc]
                rest = pattern.sub(lambda _, key=key: one_zero(key.sql, key.type), rest)  # type: ignore[misc]
        columns = [Typed(f"c{index}", each.type, each.alias or each.name) for index, each in enumerate(items)]
        written = f"{sql}{sources.sql}{condition}{groups.sql}{rest}{_limit(node)}"
        return written.replace(ALL_KEYS, ", ".join(one_zero(each.sql, each.type) for each in keys)), columns

    def _add_time_window(self, node: exp.Expr, sources: Sources) -> bool:
        """`window(..)` anywhere in this SELECT: rows for each of the windows, and a column of that name.

        True: of sessions, and WHERE is written already.
        """
        calls = list(time_windows.calls(node))
        if not calls:
            return False
        name = calls[0].name.lower()
        if any(each.name.casefold() == name for each in sources.scope.star()):
            raise NeedsSpark(f"{name}() beside a column of that name")
        if name == "session_window":
            self._add_sessions(node, calls, sources)
        for each in calls if name == "window" else []:
            found = time_windows.of_rows(sources.expressions().all(each.expressions), self.fresh)
            known = sources.scope.window
            if each.name.lower() != name or (known is not None and known.key != found.key):
                raise NeedsSpark("two kinds of windows in one SELECT")
            if known is None:
                sources.scope.window = found
                sources.sql = (sources.sql or " FROM (SELECT 1) AS one") + found.source
        if sources.scope.window is not None:
            sources.scope.aliases[name] = sources.scope.window.column
        return name == "session_window"

    def _add_sessions(self, node: exp.Expr, calls: list[exp.Expr], sources: Sources) -> None:
        group, where = node.args.get("group"), node.args.get("where")
        if group is None or len(calls) != 1 or calls[0] not in group.expressions:
            raise NeedsSpark("session_window() but once in GROUP BY")
        only(group, "expressions")
        keys = [each for each in group.expressions if each is not calls[0]]
        if any(not isinstance(each, exp.Column) for each in keys):
            raise NeedsSpark("session_window() beside a key that is no column")
        write, scope = sources.expressions(), sources.scope
        try:
            grouped = write.all(keys)
        except NotFound:
            raise NeedsSpark("session_window() beside a key that SELECT names") from None
        condition = f"{write.condition(where.this).sql} AND " if where else ""
        time = write.all(calls[0].expressions)
        rows = f"{sources.sql} WHERE {condition}{time[0].sql} IS NOT NULL"
        columns = sorted(
            {each.sql for part in scope.sources for each in part.columns} | {each.sql for each in scope.merged}
        )
        sources.sql, scope.window = time_windows.sessions(time, grouped, columns, rows, self.fresh)
        alias = scope.window.column.sql.removesuffix(".w")
        places = {each: f"{alias}.d{index}" for index, each in enumerate(columns)}
        scope.sources = [
            replace(part, columns=[replace(each, sql=places[each.sql]) for each in part.columns])
            for part in scope.sources
        ]
        scope.merged = [replace(each, sql=places[each.sql]) for each in scope.merged]

    def _having(self, having: exp.Expr | None, groups: Groups, write: Expressions) -> str:
        conditions = [write.condition(having.this).sql] if having else []
        if groups.has_sets:
            # Spark has no total over no rows.
            conditions.append("count(*) > 0")
        return f" HAVING {' AND '.join(conditions)}" if conditions else ""

    def _qualify(self, node: exp.Expr, items: list[Typed], sources: Sources, write: Expressions) -> str:
        given = node.args.get("qualify")
        if given is None:
            return ""
        self._check_clash(given, items, sources.scope)
        if not any(part.find(exp.Window) for part in [given, *node.expressions]):
            raise NeedsSpark("QUALIFY without a window")
        if node.args.get("group"):
            raise NeedsSpark("QUALIFY with GROUP BY")
        return f" QUALIFY {write.condition(given.this).sql}"

    def _from(self, node: exp.Expr, outer: Scope | None) -> Sources:
        sources = Sources(self._schemas, self._ctes, self.fresh, self.write, outer)
        joins, laterals = node.args.get("joins") or [], node.args.get("laterals") or []
        if node.args.get("from_"):
            sources.add_from(node.args["from_"])
        if joins and laterals and min(map(_place, laterals)) < max(map(_place, joins)):
            raise NeedsSpark("a JOIN behind a LATERAL VIEW")
        for each in joins:
            sources.add_join(each)
        for each in laterals:
            sources.add_lateral(each)
        return sources

    def _items(self, nodes: Sequence[exp.Expr], sources: Sources, write: Expressions) -> list[Typed]:
        """The columns of a SELECT; `alias` is the name of each."""
        items: list[Typed] = []
        generators = 0
        for node in nodes:
            inner = node.this if isinstance(node, exp.Alias | exp.Aliases) else node
            if isinstance(node, exp.Star):
                only(node, "except_")
                items += _star(sources.scope, None, node)
            elif isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
                only(node, "this", "table")
                only(node.this, "except_")
                items += _star(sources.scope, node.args["table"].name, node.this)
            elif is_generator(inner):
                generators += 1
                if generators > 1:
                    raise NeedsSpark("two generators in one SELECT")
                names = [node.alias] if isinstance(node, exp.Alias) else []
                if isinstance(node, exp.Aliases):
                    names = [each.name for each in node.expressions]
                items += [Typed(each.sql, each.type, each.name) for each in sources.generate(inner, names)]
            elif isinstance(node, exp.Alias):
                only(node, "this", "alias")
                found = write.write(inner)
                items.append(replace(found, alias=node.alias))
                # A second column of the same name would make it ambiguous.
                known = sources.scope.aliases
                if node.alias.casefold() in known and known[node.alias.casefold()].sql != found.sql:
                    known[node.alias.casefold()] = replace(found, sql="", name=node.alias)
                else:
                    known[node.alias.casefold()] = found
            else:
                items.append(write.write(node))
        return items

    def _group(self, node: exp.Expr, items: list[Typed], write: Expressions) -> Groups:
        group = node.args.get("group")
        if group is None:
            return Groups()
        if group.args.get("all"):
            only(group, "all")
            if len(items) != len(node.expressions):
                raise NeedsSpark("GROUP BY ALL with *")
            found = Groups()
            plain = [each for each, item in zip(items, node.expressions) if not has_aggregate(item)]
            found.keys = [self._key(each, write.scope) for each in plain]
            found.parts = [one_zero(each.sql, each.type) for each in found.keys]
            return found

        def key(each: exp.Expr) -> Typed:
            if isinstance(each, exp.Literal) and not each.is_string:
                if not each.name.isdigit() or not 1 <= int(each.name) <= len(items):
                    raise NeedsSpark(f"GROUP BY {each.name}")
                return self._key(items[int(each.name) - 1], write.scope)
            return self._key(write.write(each), write.scope)

        found = grouping.written(group, key)
        if found.has_sets and write.scope.window is not None:
            raise NeedsSpark("window() and grouping sets")
        return found

    def _key(self, found: Typed, scope: Scope) -> Typed:
        """A window is grouped by its start."""
        if scope.window is not None and found.sql == scope.window.column.sql:
            return replace(found, sql=scope.window.start, type=TIMESTAMP)
        return found

    def _order(
        self, node: exp.Expr, items: list[Typed], sources: Sources, windows: dict[str, exp.Window], is_distinct: bool
    ) -> str:
        order = node.args.get("order")
        if order is None:
            return ""
        only(order, "expressions")
        outputs = {(each.alias or each.name).casefold(): each for each in items}
        scope = Scope(outer=sources.scope, names=outputs)
        write = Expressions(scope, self.write, windows)
        positions = {each.sql: index for index, each in reversed(list(enumerate(items)))}
        keys = []
        for each in order.expressions:
            only(each, "this", "desc", "nulls_first")
            place = _ordinal(each.this, len(items))
            if place is None:
                if not isinstance(each.this, exp.Column):
                    self._check_clash(each.this, items, sources.scope)
                elif (
                    len({one.sql for one in items if (one.alias or one.name).casefold() == each.this.name.casefold()})
                    > 1
                ):
                    raise NeedsSpark(f"ORDER BY {each.this.name}, which two columns are called,")
                found = _qualified(each.this, sources) or write.write(each.this)
                place = positions.get(found.sql)
                if place is None and is_distinct:
                    raise NeedsSpark("ORDER BY of something that SELECT DISTINCT does not show")
                key = found.sql if place is None else str(place + 1)
            else:
                found, key = items[place], str(place + 1)
            if is_nested(found.type):
                raise NeedsSpark(f"the order of {shown(found.type)}")
            keys.append(f"{key} {direction(each)}")
        return f" ORDER BY {', '.join(keys)}"

    def _check_clash(self, node: exp.Expr, items: list[Typed], scope: Scope) -> None:
        """Raises: `NeedsSpark` where a name is both a column of FROM and another one of SELECT."""
        outputs = {each.alias.casefold(): each for each in items if each.alias}
        for each in node.find_all(exp.Column):
            named = outputs.get(each.name.casefold())
            if named is None or len(each.parts) != 1:
                continue
            try:
                found = replace(scope, aliases={}, outer=None).resolve([each.name])[0]
            except NotFound:
                continue
            if found.sql != named.sql:
                raise NeedsSpark(f"the name {each.name}, which is a column of FROM and another one of SELECT,")

    # -- several queries -------------------------------------------------------------------------------------

    def _parenthesised(self, node: exp.Expr, outer: Scope | None) -> tuple[str, Columns]:
        only(node, "this", "order", "limit", "offset", "with_")
        sql, columns = self.write(node.this, outer)
        return self._ordered(node, sql, columns) if _is_cut(node) else (sql, columns)

    def _set_operation(self, node: exp.Expr, outer: Scope | None) -> tuple[str, Columns]:
        only(node, "this", "expression", "distinct", "order", "limit", "offset", "with_")
        (left, mine), (right, other) = self.write(node.this, outer), self.write(node.expression, outer)
        word = _SET_OPERATIONS[type(node)]
        if len(mine) != len(other):
            raise NeedsSpark(f"{word} of {len(mine)} and {len(other)} columns")
        types = [wider(one.type, two.type, word) for one, two in zip(mine, other)]
        distinct = bool(node.args.get("distinct"))
        parts = []
        for sql, columns in ((left, mine), (right, other)):
            casts = [cast(each.sql, each.type, type) for each, type in zip(columns, types)]
            if distinct or word != "UNION":
                casts = [one_zero(each, type) for each, type in zip(casts, types)]
            if casts != [each.sql for each in columns]:
                listed = ", ".join(f"{each} AS c{index}" for index, each in enumerate(casts))
                sql = f"SELECT {listed} FROM ({sql}) AS {self.fresh()}"
            parts.append(f"({sql})")
        sql = f"{parts[0]} {word}{'' if distinct else ' ALL'} {parts[1]}"
        columns = [replace(each, type=type) for each, type in zip(mine, types)]
        return self._ordered(node, sql, columns) if _is_cut(node) else (sql, columns)

    def _ordered(self, node: exp.Expr, sql: str, columns: Columns) -> tuple[str, Columns]:
        """A query's rows in an order, by its own columns."""
        alias = self.fresh()
        items = [replace(each, sql=f"{alias}.{each.sql}") for each in columns]
        sources = Sources(self._schemas, self._ctes, self.fresh, self.write, None)
        order = self._order(node, items, sources, {}, is_distinct=False)
        listed = ", ".join(f"{each.sql} AS c{index}" for index, each in enumerate(items))
        return f"SELECT {listed} FROM ({sql}) AS {alias}{order}{_limit(node)}", columns


def _is_cut(node: exp.Expr) -> bool:
    return any(node.args.get(each) for each in ("order", "limit", "offset"))


def has_aggregate(node: exp.Expr) -> bool:
    """Whether an expression needs the rows of a group."""
    if isinstance(node, exp.Window | exp.Query):
        return False
    if isinstance(node, exp.WithinGroup) or (isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES):
        return True
    return any(has_aggregate(each) for each in node.iter_expressions())


def _star(scope: Scope, alias: str | None, node: exp.Expr) -> list[Typed]:
    without = {each.name.casefold() for each in node.args.get("except_") or []}
    columns = scope.star(alias)
    known = {each.name.casefold() for each in columns}
    if not without <= known:
        raise NeedsSpark("EXCEPT of a column that is not there")
    if not columns:
        raise NeedsSpark("* without FROM")
    return [Typed(each.sql, each.type, each.name) for each in columns if each.name.casefold() not in without]


def _qualified(node: exp.Expr, sources: Sources) -> Typed | None:
    """`table.column`, which is not a column of SELECT by its bare name."""
    if isinstance(node, exp.Column) and len(node.parts) > 1 and sources.scope.sources:
        return sources.scope.resolve([each.name for each in node.parts])[0]
    return None


def _ordinal(node: exp.Expr, count: int) -> int | None:
    if not isinstance(node, exp.Literal) or node.is_string:
        return None
    if not node.name.isdigit() or not 1 <= int(node.name) <= count:
        raise NeedsSpark(f"ORDER BY {node.name}")
    return int(node.name) - 1


def _limit(node: exp.Expr) -> str:
    found = ""
    for name in ("limit", "offset"):
        given = node.args.get(name)
        if given is None:
            continue
        only(given, "expression")
        number = given.expression
        if isinstance(number, exp.Var) and number.name.upper() == "ALL":
            continue
        if not isinstance(number, exp.Literal) or not number.name.isdigit():
            raise NeedsSpark(f"{name.upper()} {number.sql('spark')}")
        found += f" {name.upper()} {number.name}"
    return found


def _place(node: exp.Expr) -> int:
    """Where a part stands in the text."""
    return min((each.meta["start"] for each in node.walk() if "start" in each.meta), default=0)
