"""Keys of nested types, as text: what is stored is told apart by plain values.

Two values have the same text exactly when GROUP BY takes them for the same: every part says how long it is, NULL has a
sign of its own, and the two zeros are one.
"""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from tidegate.reads.translate import parse_any
from tidegate.tables.column_type import to_sql
from tidegate.views.names import NotUnderstood
from tidegate.views.write import quoted


def is_nested(type: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type))


def as_text(name: str, type: pa.DataType) -> exp.Expr:
    """The text of a column. Raises: `NotUnderstood` for a type that has none."""
    found: exp.Expr = parse_any(f"SELECT {_text(quoted(name), type, 0)} AS k").expressions[0].this
    return found


def _text(value: str, type: pa.DataType, depth: int) -> str:
    if pa.types.is_list(type):
        each = f"e{depth}"
        inner = f"array_join(transform({value}, {each} -> {_text(each, type.value_type, depth + 1)}), '')"
        return f"CASE WHEN {value} IS NULL THEN 'n' ELSE concat('[', {inner}, ']') END"
    if pa.types.is_struct(type):
        parts = ", ".join(_text(f"{value}.{quoted(each.name)}", each.type, depth) for each in type)
        return f"CASE WHEN {value} IS NULL THEN 'n' ELSE concat('(', {parts}, ')') END"
    if is_nested(type) or pa.types.is_binary(type) or pa.types.is_large_binary(type):
        raise NotUnderstood(f"a key that contains {to_sql(type)}")
    if pa.types.is_floating(type):
        value = f"(CAST({value} AS DOUBLE) + 0.0D)"
    plain = f"CAST({value} AS STRING)"
    return f"CASE WHEN {value} IS NULL THEN 'n' ELSE concat(CAST(length({plain}) AS STRING), ':', {plain}) END"
