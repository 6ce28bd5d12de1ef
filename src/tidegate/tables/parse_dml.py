"""Reads INSERT, UPDATE and DELETE."""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from tidegate.errors import InvalidArgument
from tidegate.tables.parse_values import number
from tidegate.tables.spark_sql import Source, shorten
from tidegate.tables.statements import Delete, Insert, Update

_INSERT: Final = "INSERT INTO name [(column, ...)] VALUES (...), ... or a query, [ON CONFLICT DO NOTHING]"
_UPDATE: Final = "UPDATE name SET column = expression, ... [WHERE condition]"
_DELETE: Final = "DELETE FROM name [WHERE condition]"
_NAME_OF_COLUMN: Final = "the name of a column"
_NOT_PLAIN: Final = object()


def insert(source: Source) -> Insert:
    """Raises: `InvalidArgument`."""
    return read_insert(source, source.parse(_INSERT))


def read_insert(source: Source, node: exp.Expr) -> Insert:
    """An INSERT out of its tree, which may have begun by WITH. Raises: `InvalidArgument`."""
    if not isinstance(node, exp.Insert):
        raise source.unexpected(node, _INSERT)
    if node.args.get("alternative"):
        raise InvalidArgument(
            f"INSERT OR {node.args['alternative']} is not understood: INSERT INTO replaces the row of the same key, and"
            f" ON CONFLICT DO NOTHING keeps it; in {shorten(source.sql)}"
        )
    allowed = ("this", "expression", "conflict", "by_name", "source", "with_")
    source.only(node, allowed, _INSERT)
    target = node.this
    columns = None
    if isinstance(target, exp.Schema):
        columns = tuple(source.column_name(each, _NAME_OF_COLUMN) for each in target.expressions)
        _check_once(source, columns)
        target = target.this
    table = source.table_name(target, _INSERT)
    keep, conflict_columns = _conflict(source, node.args.get("conflict"))
    rest: dict[str, Any] = {"keep_existing": keep, "conflict_columns": conflict_columns}
    values = node.expression
    if isinstance(values, exp.Values) and not values.args.get("alias"):
        rows = [each.expressions if isinstance(each, exp.Tuple) else [each] for each in values.expressions]
        _check_widths(source, rows, columns)
        constants = _constants(rows)
        if constants is not None:
            return Insert(table, columns, constants=constants, **rest)
        for row in rows:
            for each in row:
                _check_constant(source, each)
        return Insert(table, columns, rows=tuple(tuple(row) for row in rows), **rest)
    return Insert(table, columns, query=_query(source, node), by_name=bool(node.args.get("by_name")), **rest)


def update(source: Source) -> Update:
    """Raises: `InvalidArgument`."""
    node = source.parse(_UPDATE)
    if not isinstance(node, exp.Update):
        raise source.unexpected(node, _UPDATE)
    source.only(node, ("this", "expressions", "where"), _UPDATE)
    table = source.table_name(node.this, _UPDATE)
    alias = node.this.alias or None
    if not node.expressions:
        raise source.unexpected(None, "column = expression")
    assignments = tuple(_assignment(source, each, table, alias) for each in node.expressions)
    _check_once(source, tuple(name for name, _ in assignments))
    return Update(table, assignments, _where(node), alias)


def delete(source: Source) -> Delete:
    """Raises: `InvalidArgument`."""
    node = source.parse(_DELETE)
    if not isinstance(node, exp.Delete):
        raise source.unexpected(node, _DELETE)
    source.only(node, ("this", "where"), _DELETE)
    return Delete(source.table_name(node.this, _DELETE), _where(node), node.this.alias or None)


def _where(node: exp.Expr) -> exp.Expr | None:
    where = node.args.get("where")
    return where.this if where is not None else None


def _assignment(source: Source, node: exp.Expr, table: str, alias: str | None) -> tuple[str, exp.Expr]:
    if not isinstance(node, exp.EQ):
        raise source.unexpected(node, "column = expression")
    target = node.this
    if isinstance(target, exp.Column) and len(target.parts) > 1:
        of = ".".join(part.name for part in target.parts[:-1])
        if of not in (table, alias):
            raise source.refused(target, f"{of!r} is not the table; a field of a STRUCT cannot be set by itself")
        target = target.this
    return source.column_name(target, "the name of a column before ="), node.expression


def _conflict(source: Source, node: exp.Expr | None) -> tuple[bool, tuple[str, ...]]:
    if node is None:
        return False, ()
    source.only(node, ("action", "conflict_keys"), "ON CONFLICT DO NOTHING")
    action = node.args.get("action")
    if action is None or action.name.upper() != "DO NOTHING":
        raise source.unexpected(node, "ON CONFLICT DO NOTHING, or nothing: INSERT replaces the row of the same key")
    keys = [each.this if isinstance(each, exp.Ordered) else each for each in node.args.get("conflict_keys") or ()]
    return True, tuple(source.column_name(each, _NAME_OF_COLUMN) for each in keys)


def _query(source: Source, node: exp.Insert) -> exp.Query:
    query = node.expression
    table = node.args.get("source")
    if isinstance(table, exp.Table):  # INSERT INTO t TABLE u
        query = exp.select("*").from_(table)
    if not isinstance(query, exp.Query):
        raise source.unexpected(query if isinstance(query, exp.Expr) else None, "VALUES (...) or a query")
    outer = node.args.get("with_")
    if outer is not None:  # WITH x AS (...) INSERT INTO t SELECT ...
        if query.args.get("with_"):
            raise source.unexpected(outer, "WITH once")
        query = query.copy()
        query.set("with_", outer.copy())
    return query


def _check_once(source: Source, columns: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for each in columns:
        if each.casefold() in seen:
            raise InvalidArgument(f"column {each!r} is named twice in {shorten(source.sql)}")
        seen.add(each.casefold())


def _check_widths(source: Source, rows: list[list[exp.Expr]], columns: tuple[str, ...] | None) -> None:
    width = len(columns) if columns is not None else len(rows[0])
    if not width:
        raise InvalidArgument(f"a row of VALUES needs at least one value: {shorten(source.sql)}")
    for place, row in enumerate(rows, 1):
        if len(row) != width:
            wide = f"{len(columns)} columns are named" if columns is not None else f"the first row has {width}"
            raise InvalidArgument(
                f"the number of values in row {place} is {len(row)}, but {wide}: {shorten(source.sql)}"
            )


def _check_constant(source: Source, node: exp.Expr) -> None:
    """Raises: `InvalidArgument` for an expression that reads a row there is none of."""
    for each in node.find_all(exp.Column, exp.Placeholder, exp.Var):
        if isinstance(each, exp.Var) and each.parent is not node.parent:
            continue  # A word of a function's own syntax, as in interval or extract.
        if each.find_ancestor(exp.Query) is None:
            raise source.refused(each, "VALUES take constants, not names; quote a string by '")


def _constants(rows: list[list[exp.Expr]]) -> list[tuple[Any, ...]] | None:
    """The rows as Python values; None when one has more than literals."""
    found: list[tuple[Any, ...]] = []
    for row in rows:
        values = tuple(_constant(each) for each in row)
        if _NOT_PLAIN in values:
            return None
        found.append(values)
    return found


def _constant(node: exp.Expr) -> Any:
    match node:
        case exp.Literal():
            return node.this if node.is_string else number(node.this)
        case exp.Null():
            return None
        case exp.Boolean():
            return bool(node.this)
        case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number("-" + node.this.this)
        case _:
            return _NOT_PLAIN
