"""Which type a column of SQLite has for us, and its values as that type.

SQLite lets any value into any column: a declared type is an intention. Numbers in a STRING column are taken as the text
that SQLite has for them; anything else that does not fit is an error that names the place, never another value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import NoneType
from typing import Any, Final, Literal

import pyarrow as pa

from tidegate.cdc.record import Value

Type = Literal["BIGINT", "STRING", "DOUBLE", "BINARY", "BOOLEAN"]
TYPES: Final[tuple[Type, ...]] = ("BIGINT", "STRING", "DOUBLE", "BINARY", "BOOLEAN")
ARROW: Final[dict[str, pa.DataType]] = {
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "DOUBLE": pa.float64(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
}
_PYTHON: Final[dict[str, set[Any]]] = {
    "BIGINT": {int},
    "STRING": {str},
    "DOUBLE": {float},
    "BINARY": {bytes},
    "BOOLEAN": set(),
}
_kind: Final = type
EXACT: Final = 1 << 53
"""Integers up to here are the same as doubles."""
_BOOLEANS: Final = ("BOOL", "BOOLEAN")
_TIMES: Final = ("DATE", "TIME")
_NUMBERS: Final = ("NUMERIC", "DECIMAL", "NUMBER", "MONEY")


def type_of(declared: str) -> Type:
    """The type of a column by its declaration: SQLite's affinity, and what people mean by BOOLEAN and DATE."""
    name = declared.upper().partition("(")[0].strip()
    if name in _BOOLEANS:
        return "BOOLEAN"
    if name.startswith(_TIMES):  # DATETIME and TIMESTAMP too: SQLite has texts or numbers for them.
        return "STRING"
    if "INT" in name:
        return "BIGINT"
    if any(each in name for each in ("CHAR", "CLOB", "TEXT")):
        return "STRING"
    if "BLOB" in name:
        return "BINARY"
    if any(each in name for each in ("REAL", "FLOA", "DOUB")):
        return "DOUBLE"
    return "DOUBLE" if name.startswith(_NUMBERS) else "STRING"


def text_of(number: int | float) -> str:
    """The text that SQLite has for a number."""
    if isinstance(number, int):
        return str(number)
    if math.isinf(number):
        return "Inf" if number > 0 else "-Inf"
    digits, mark, exponent = f"{number + 0.0:.15g}".partition("e")  # SQLite writes -0.0 as 0.0.
    return f"{digits if '.' in digits else f'{digits}.0'}{mark}{exponent}"


def convert(value: Value, type: str) -> Any:
    """A value as of a type. Raises: `ValueError` if it is none."""
    if value is None:
        return None
    match type, value:
        case "STRING", str():
            return value
        case "STRING", int() | float():
            return text_of(value)
        case "BIGINT", int():
            return value
        case "DOUBLE", float():
            return value
        case "DOUBLE", int() if -EXACT <= value <= EXACT or int(float(value)) == value:
            return float(value)
        case "BOOLEAN", int() if value in (0, 1):
            return value == 1
        case "BINARY", bytes():
            return value
    raise ValueError(f"{value!r} is no {type}")


def array_of(values: Sequence[Value], type: str) -> pa.Array:
    """A column. Raises: `ValueError` if a value does not fit: look for it with `convert`."""
    kinds = set(map(_kind, values))
    kinds.discard(NoneType)
    if kinds <= _PYTHON[type]:
        # Arrow itself would take a float for an integer, and bytes for a text.
        return pa.array(values, ARROW[type])
    if type == "BOOLEAN" and kinds == {int} and set(values) <= {0, 1, None}:
        return pa.array(values, pa.int64()).cast(pa.bool_())
    return pa.array([convert(each, type) for each in values], ARROW[type])
