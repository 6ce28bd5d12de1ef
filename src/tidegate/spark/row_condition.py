"""Conditions on a table's rows that are applied while it is read: a small part of Spark SQL, as DuckDB's.

A column compared with a constant, IN, BETWEEN, IS NULL, NOT of these, AND and OR: where both engines say the same.
What is not of this kind is refused: numbers with a floating point, as statistics in files know nothing of NaN; nested
types; a constant that is not of the column's type.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidegate.errors import InvalidArgument, NotFound
from tidegate.snapshots.merge_sql import quoted
from tidegate.tables.schema import Column, TableSchema
from tidegate.tables.spark_sql import DIALECT

_COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
}
_TURNED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}

Find = Callable[[exp.Column], Column]
"""Which column a query means. Raises: `NotSimple` when it is none of the table's."""


class NotSimple(InvalidArgument):
    """A condition that is not applied while reading."""


def condition_sql(text: str, schema: TableSchema) -> str:
    """The condition `text` of Spark SQL on rows of `schema`, for DuckDB. Raises: `InvalidArgument`."""
    try:
        tree = sqlglot.parse_one(f"SELECT 1 WHERE {text}", read=DIALECT)
    except SqlglotError as error:
        raise InvalidArgument(f"option 'where': {text!r} is not understood: {error}") from error
    where = tree.args.get("where")
    if where is None or [name for name, value in tree.args.items() if value and name not in ("expressions", "where")]:
        raise InvalidArgument(f"option 'where': {text!r} is more than a condition")

    def find(column: exp.Column) -> Column:
        if column.table:
            raise NotSimple(f"write {column.name!r} without a table's name")
        try:
            return schema.column(column.name)
        except NotFound as error:
            raise NotSimple(str(error)) from error

    try:
        return simple_sql(where.this, find)
    except NotSimple as error:
        raise InvalidArgument(
            f"option 'where': {text!r} cannot be applied while reading: {error}; use .where(...) on the DataFrame"
        ) from error


def simple_sql(tree: exp.Expr, find: Find) -> str:
    """A condition for DuckDB. Raises: `NotSimple`."""
    match tree:
        case exp.Paren():
            return simple_sql(tree.this, find)
        case exp.And() | exp.Or():
            word = "AND" if isinstance(tree, exp.And) else "OR"
            return f"({simple_sql(tree.this, find)} {word} {simple_sql(tree.expression, find)})"
        case exp.Not():
            return f"(NOT {simple_sql(tree.this, find)})"
        case exp.Is() if isinstance(tree.expression, exp.Null) and isinstance(tree.this, exp.Column):
            return f"({quoted(find(tree.this).name)} IS NULL)"
        case exp.In() if isinstance(tree.this, exp.Column) and tree.expressions and not tree.args.get("query"):
            column = _comparable(find(tree.this))
            constants = ", ".join(_constant(column, each) for each in tree.expressions)
            return f"({quoted(column.name)} IN ({constants}))"
        case exp.Between() if isinstance(tree.this, exp.Column):
            column = _comparable(find(tree.this))
            low, high = (_constant(column, tree.args[each]) for each in ("low", "high"))
            return f"({quoted(column.name)} BETWEEN {low} AND {high})"
    sign = _COMPARISONS.get(type(tree))
    if sign is None:
        raise NotSimple(f"{tree.sql(DIALECT)} is not a comparison of a column with a constant")
    left, right = tree.this, tree.expression
    if not isinstance(left, exp.Column):
        left, right, sign = right, left, _TURNED.get(sign, sign)
    if not isinstance(left, exp.Column):
        raise NotSimple(f"{tree.sql(DIALECT)} is not a comparison of a column with a constant")
    column = _comparable(find(left))
    return f"({quoted(column.name)} {sign} {_constant(column, right)})"


def _comparable(column: Column) -> Column:
    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise NotSimple(f"column {column.name!r} is of the type {kind}")
    return column


def _constant(column: Column, tree: exp.Expr) -> str:
    """A constant of exactly the column's type."""
    kind = column.type
    try:
        if pa.types.is_boolean(kind) and isinstance(tree, exp.Boolean):
            return "true" if tree.this else "false"
        if pa.types.is_string(kind) and isinstance(tree, exp.Literal) and tree.is_string:
            return "'" + str(tree.this).replace("'", "''") + "'"
        if pa.types.is_integer(kind):
            number = int(_number(tree))
            if -(1 << 63) <= number < 1 << 63:
                return str(number)
        elif pa.types.is_decimal(kind):
            exact = Decimal(_number(tree))
            digits = exact.as_tuple()
            places = -digits.exponent if isinstance(digits.exponent, int) else kind.scale + 1
            if places <= kind.scale and abs(exact) < Decimal(10) ** (kind.precision - kind.scale):
                return f"CAST('{exact:f}' AS DECIMAL({kind.precision}, {kind.scale}))"
        elif pa.types.is_date(kind):
            return f"DATE '{date.fromisoformat(_text(tree)).isoformat()}'"
        elif pa.types.is_timestamp(kind):
            when = datetime.fromisoformat(_text(tree))
            if kind.tz is None:
                if when.tzinfo is None:
                    return f"TIMESTAMP '{when.isoformat(sep=' ')}'"
            else:
                when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
                return f"TIMESTAMPTZ '{when.isoformat(sep=' ')}'"
    except (ValueError, InvalidOperation, OverflowError):
        pass
    raise NotSimple(f"{tree.sql(DIALECT)} is not a constant of the type of column {column.name!r}, {kind}")


def _number(tree: exp.Expr) -> str:
    sign = ""
    while isinstance(tree, exp.Neg | exp.Paren):
        sign = sign if isinstance(tree, exp.Paren) else "" if sign else "-"
        tree = tree.this
    if isinstance(tree, exp.Literal) and not tree.is_string:
        return sign + str(tree.this)
    raise ValueError(tree)


def _text(tree: exp.Expr) -> str:
    """The text of DATE '...' and TIMESTAMP '...', or a plain one."""
    if isinstance(tree, exp.Cast) and tree.to.this in (
        exp.DataType.Type.DATE,
        exp.DataType.Type.TIMESTAMP,
        exp.DataType.Type.TIMESTAMPTZ,
        exp.DataType.Type.TIMESTAMPLTZ,
        exp.DataType.Type.TIMESTAMPNTZ,
    ):
        tree = tree.this
    if isinstance(tree, exp.Literal) and tree.is_string:
        return str(tree.this)
    raise ValueError(tree)
