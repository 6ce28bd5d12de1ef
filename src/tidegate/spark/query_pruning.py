"""What a query needs of each table that it reads: which columns, and which rows at most.

Spark tells a source in Python neither: it is read off the query. In doubt everything is needed: `columns` and `where`
may take in too much, never too little, and Spark applies the query's own conditions again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidegate.database.cut_reader import shown
from tidegate.errors import InvalidArgument
from tidegate.spark.row_condition import NotSimple, simple_sql
from tidegate.spark.table_cut import TableCut
from tidegate.tables.schema import Column, TableSchema
from tidegate.tables.spark_sql import DIALECT


class Wanted(NamedTuple):
    """What is read of a table."""

    columns: list[str]
    where: str | None = None
    """A condition in Spark SQL that every row which is needed fulfils."""


class NotRead(InvalidArgument):
    """A query that sqlglot does not read."""


def parse_query(sql: str) -> exp.Expr:
    """Raises: `InvalidArgument` when it is no query: nothing else is run on Spark; `NotRead` when that is not known."""
    try:
        tree = sqlglot.parse_one(sql, read=DIALECT)
    except SqlglotError as error:
        raise NotRead(f"{shown(sql)} is not understood: {error}") from error
    if not isinstance(tree, exp.Query) or tree.find(exp.Into):
        raise InvalidArgument(f"{shown(sql)} is not a query; run statements with `sql`")
    return tree


def wanted_of(tree: exp.Expr, cuts: Mapping[str, TableCut]) -> dict[str, Wanted]:
    """For each table, what the query needs of it."""
    named = None if _names_everything(tree) else {each.name.casefold() for each in tree.find_all(exp.Identifier)}
    found = {}
    for name, cut in cuts.items():
        schema = cut.schema
        columns = [each for each in schema.names if named is None or each.casefold() in named]
        found[name] = Wanted(columns or schema.names[:1], _where(tree, name, schema))
    return found


def _names_everything(tree: exp.Expr) -> bool:
    """Whether columns may be meant that are not named: by `*`, NATURAL, or a form that is not looked into here."""
    for each in tree.walk():
        match each:
            case exp.Star() if not isinstance(each.parent, exp.Count):
                return True
            case exp.Join() if str(each.args.get("method") or "").upper() == "NATURAL":
                return True
            case exp.Select() if not each.expressions:
                return True
            case exp.Query() if not isinstance(each, exp.Select | exp.SetOperation | exp.Subquery):
                return True
            case exp.Pivot() | exp.Command():
                return True
    return False


def _where(tree: exp.Expr, name: str, schema: TableSchema) -> str | None:
    """What the query asks of every row of a table: the conditions of the one SELECT that reads it."""
    uses = [each for each in tree.find_all(exp.Table) if each.name.casefold() == name.casefold()]
    if len(uses) != 1:
        return None
    table = uses[0]
    source = table.parent
    select = source.parent if isinstance(source, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select) or select.args.get("where") is None or table.args.get("pivots"):
        return None
    if _has_ctes_named(tree, name) or select.args.get("laterals") or table.args.get("sample"):
        return None
    joins = select.args.get("joins") or []
    for join in joins:
        side = str(join.args.get("side") or "").upper()
        if side in ("RIGHT", "FULL") or (side == "LEFT" and join is source):
            # Rows of the table may be padded with NULLs there: a condition on them says nothing of the table's own.
            return None
    alias = (table.alias or table.name).casefold()

    def find(column: exp.Column) -> Column:
        if column.table:
            if column.table.casefold() != alias or column.args.get("db"):
                raise NotSimple("another table's")
        elif joins:
            raise NotSimple("it may be another table's")
        for each in schema.columns:
            if each.name.casefold() == column.name.casefold():
                return each
        raise NotSimple("not a column")

    kept = []
    for each in _conjuncts(select.args["where"].this):
        try:
            simple_sql(each, find)
        except NotSimple:
            continue
        plain = each.copy()
        for column in list(plain.find_all(exp.Column)):
            column.set("table", None)
        kept.append(f"({plain.sql(DIALECT)})")
    return " AND ".join(kept) or None


def _has_ctes_named(tree: exp.Expr, name: str) -> bool:
    return any(each.alias.casefold() == name.casefold() for each in tree.find_all(exp.CTE))


def _conjuncts(tree: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.And):
        yield from _conjuncts(tree.this)
        yield from _conjuncts(tree.expression)
    else:
        yield tree
