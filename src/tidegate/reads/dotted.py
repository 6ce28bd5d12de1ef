"""Tables whose names have several parts, `shop.orders`: columns by the whole name, and texts for Spark.

A table without an alias is known by the last part of its name. Its columns may be written with the whole name too:
`shop.orders.id`. Where two tables of one FROM have the same last part, each is known by its whole name instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidegate.tables.spark_sql import DIALECT

_OWNERS = (exp.Select, exp.Update, exp.Delete)


def name_columns_shortly(tree: exp.Expr) -> None:
    """Give columns that are written with a table's whole name the name that the table has in its FROM."""
    for column in list(tree.find_all(exp.Column)):
        parts = column.parts
        found = _table_of(column, parts) if _may_be_whole(parts) else None
        if found is not None:
            table, length = found
            alias = exp.to_identifier(_name_in_from(table), quoted=True)
            if not table.alias:
                table.set("alias", exp.TableAlias(this=alias.copy()))
            left = [alias, *parts[length:]]
            for key, part in zip(("this", "table", "db", "catalog"), [*reversed(left), None, None, None]):
                column.set(key, part)


def with_single_names(sql: str) -> str:
    """The same query with each table's name as one, in backticks, and in the words that it was written in."""
    try:
        (tree,) = DIALECT.parser().parse(DIALECT.tokenize(sql), sql)
    except (SqlglotError, ValueError, RecursionError):
        return sql  # Whoever reads it says what is wrong.
    if tree is None:
        return sql
    edits: list[tuple[int, int, str]] = []
    for column in tree.find_all(exp.Column):
        found = _table_of(column, column.parts) if _may_be_whole(column.parts) else None
        if found is not None:
            table, length = found
            edits.append(_edit(column.parts[:length], _quoted(_name_in_from(table))))
    for table in tree.find_all(exp.Table):
        if len(table.parts) > 1 and all(isinstance(each, exp.Identifier) for each in table.parts):
            alias = "" if table.alias or table.args.get("version") else f" AS {_quoted(_name_in_from(table))}"
            edits.append(_edit(table.parts, _quoted(_whole(table)) + alias))
    for start, end, text in sorted(edits, reverse=True):
        sql = sql[:start] + text + sql[end:]
    return sql


def _may_be_whole(parts: Sequence[exp.Expr]) -> bool:
    return len(parts) > 2 or (len(parts) == 2 and "." in parts[0].name)


def _table_of(column: exp.Column, parts: Sequence[exp.Expr]) -> tuple[exp.Table, int] | None:
    """The table without an alias that the first parts are the whole name of, and how many."""
    scope: exp.Expr | None = column
    while scope is not None:
        scope = scope.find_ancestor(*_OWNERS)
        for table in [] if scope is None else _tables_in(scope):
            if table.alias and table.alias != _name_in_from(table):
                continue
            for length in range(len(parts) - 1, 0, -1):
                if ".".join(each.name for each in parts[:length]).casefold() == _whole(table).casefold():
                    return (table, length) if "." in _whole(table) else None
    return None


def _tables_in(scope: exp.Expr) -> list[exp.Table]:
    """The tables that a SELECT, UPDATE or DELETE names itself."""
    given = scope.args.get("from_")
    first = scope.this if given is None else given.this
    joined = [each.this for each in scope.args.get("joins") or ()]
    nested = [each.this for each in getattr(first, "args", {}).get("joins") or ()]
    return [each for each in (first, *nested, *joined) if isinstance(each, exp.Table)]


def _name_in_from(table: exp.Table) -> str:
    """The last part of its name, or all of it where another has the same last part."""
    last: str = table.name.rpartition(".")[2]
    scope = table.find_ancestor(*_OWNERS)
    others = [] if scope is None else [each for each in _tables_in(scope) if each is not table]
    taken = {(each.alias or each.name.rpartition(".")[2]).casefold() for each in others}
    return _whole(table) if last.casefold() in taken else last


def _whole(table: exp.Table) -> str:
    return ".".join(each.name for each in table.parts)


def _edit(parts: Sequence[exp.Expr], text: str) -> tuple[int, int, str]:
    return parts[0].meta["start"], parts[-1].meta["end"] + 1, text


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
