"""Spark's types as Arrow's, and its rules for them: which type two have in common, and which one arithmetic gives.

The rules are those of Spark 4 with ANSI on. A rule that would lose digits of a DECIMAL is none of ours: `NeedsSpark`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidegate.tables.column_type import to_sql

BOOL: Final = pa.bool_()
INT: Final = pa.int32()
LONG: Final = pa.int64()
FLOAT: Final = pa.float32()
DOUBLE: Final = pa.float64()
STRING: Final = pa.string()
BINARY: Final = pa.binary()
DATE: Final = pa.date32()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
VOID: Final = pa.null()
DIGITS_MAX: Final = 38
_INTEGERS: Final = (pa.int8(), pa.int16(), INT, LONG)
_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, INT: 10, LONG: 20}
_DUCK: Final = {
    BOOL: "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    INT: "INTEGER",
    LONG: "BIGINT",
    FLOAT: "FLOAT",
    DOUBLE: "DOUBLE",
    STRING: "VARCHAR",
    BINARY: "BLOB",
    DATE: "DATE",
    TIMESTAMP: "TIMESTAMPTZ",
    TIMESTAMP_NTZ: "TIMESTAMP",
}


class NeedsSpark(Exception):
    """Only Spark answers this query as Spark does; `reason` names what is in the way."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} is answered by Spark alone; run the query with engine='spark'")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression: DuckDB's SQL for it, its type in Spark, and the name that Spark would give it as a column."""

    sql: str
    type: pa.DataType
    name: str
    value: Any = None
    """Of a literal: what it is."""
    alias: str = ""
    """Its name where it stands alone; "": `name`."""


def is_integer(type: pa.DataType) -> bool:
    return type in _INTEGERS


def is_decimal(type: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(type))


def is_float(type: pa.DataType) -> bool:
    return type in (FLOAT, DOUBLE)


def is_number(type: pa.DataType) -> bool:
    return is_integer(type) or is_float(type) or is_decimal(type)


def is_time(type: pa.DataType) -> bool:
    return type in (TIMESTAMP, TIMESTAMP_NTZ)


def is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type))


def is_map(type: pa.DataType) -> bool:
    return bool(pa.types.is_map(type))


def is_struct(type: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type))


def is_nested(type: pa.DataType) -> bool:
    return is_list(type) or is_map(type) or is_struct(type)


def has_float(type: pa.DataType) -> bool:
    """Whether there is a floating point number in it, also inside."""
    if is_nested(type):
        return any(has_float(type.field(index).type) for index in range(type.num_fields))
    return is_float(type)


def has_map(type: pa.DataType) -> bool:
    """Whether there is a MAP in it, or it is one."""
    if is_list(type) or is_struct(type):
        return any(has_map(type.field(index).type) for index in range(type.num_fields))
    return is_map(type)


def spark_type(type: pa.DataType) -> pa.DataType:
    """A type of a table's column as the types here are written. Raises: `NeedsSpark`."""
    if is_list(type) or pa.types.is_large_list(type):
        return pa.list_(spark_type(type.value_type))
    if is_map(type):
        return pa.map_(spark_type(type.key_type), spark_type(type.item_type))
    if is_struct(type):
        return pa.struct([(each.name, spark_type(each.type)) for each in type])
    if pa.types.is_large_string(type):
        return STRING
    if type in _DUCK or type == VOID or pa.types.is_decimal128(type):
        return type
    raise NeedsSpark(f"a column of the type {type}")


def duck(type: pa.DataType) -> str:
    """How DuckDB calls it."""
    if is_decimal(type):
        return f"DECIMAL({type.precision}, {type.scale})"
    if is_list(type):
        return f"{duck(type.value_type)}[]"
    if is_map(type):
        return f"MAP({duck(type.key_type)}, {duck(type.item_type)})"
    if is_struct(type):
        return f"STRUCT({', '.join(f'{quoted(each.name)} {duck(each.type)}' for each in type)})"
    if type == VOID:
        return "INTEGER"  # DuckDB's own choice for a column of nothing but NULL.
    return _DUCK[type]


def shown(type: pa.DataType) -> str:
    """How Spark writes it in a name."""
    return "VOID" if type == VOID else to_sql(type)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def decimal(precision: int, scale: int) -> pa.DataType:
    if not 0 <= scale <= precision <= DIGITS_MAX:
        raise NeedsSpark(f"a DECIMAL of {precision} digits, {scale} of them behind the point,")
    return pa.decimal128(precision, scale)


def as_decimal(type: pa.DataType, value: Any = None) -> pa.DataType:
    """The DECIMAL that holds every value of an integer type; of a literal, just this one."""
    if is_decimal(type):
        return type
    if value is not None:
        return decimal(len(str(abs(value))), 0)
    return decimal(_DIGITS[type], 0)


def wider(left: pa.DataType, right: pa.DataType, what: str) -> pa.DataType:
    """The type that values of both are brought to without a loss. Raises: `NeedsSpark`."""
    if left == right or right == VOID:
        return left
    if left == VOID:
        return right
    if is_number(left) and is_number(right):
        return _wider_number(left, right)
    if {left, right} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    if is_list(left) and is_list(right):
        return pa.list_(wider(left.value_type, right.value_type, what))
    raise NeedsSpark(f"{what} of {shown(left)} and {shown(right)}")


def _wider_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if is_integer(left) and is_integer(right):
        return max(left, right, key=_INTEGERS.index)
    if is_float(left) or is_float(right):
        # An integer and a FLOAT meet in DOUBLE: a FLOAT does not hold every integer.
        return DOUBLE
    one, other = as_decimal(left), as_decimal(right)
    scale = max(one.scale, other.scale)
    return decimal(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)


def arithmetic(operator: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type of a result of two DECIMALs. Raises: `NeedsSpark`."""
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    match operator:
        case "+" | "-":
            return _bounded(max(s1, s2) + max(p1 - s1, p2 - s2) + 1, max(s1, s2))
        case "*":
            return _bounded(p1 + p2 + 1, s1 + s2)
        case "/":
            scale = max(6, s1 + p2 + 1)
            return _bounded(p1 - s1 + s2 + scale, scale)
        case _:
            return decimal(min(p1 - s1, p2 - s2) + max(s1, s2), max(s1, s2))


def _bounded(precision: int, scale: int) -> pa.DataType:
    """Where there are too many digits, those behind the point go first, but for six."""
    if precision <= DIGITS_MAX:
        return decimal(precision, scale)
    return decimal(DIGITS_MAX, max(DIGITS_MAX - (precision - scale), min(scale, 6)))
