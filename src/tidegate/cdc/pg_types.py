"""The types of PostgreSQL's columns: which type a column gets here, and `Reading`: how its texts are read.

    bool BOOLEAN   int2 SMALLINT   int4 INT   int8, oid BIGINT   float4 FLOAT   float8 DOUBLE   bytea BINARY
    numeric(p, s) DECIMAL(p, s)   date DATE   timestamp TIMESTAMP_NTZ   timestamptz TIMESTAMP   T[] ARRAY<T>

A domain is read as what it is based on. All others are STRING, as PostgreSQL writes them; so is numeric without a
precision, or with one above 38.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Form = Literal["bool", "integer", "float", "decimal", "bytes", "date", "time", "zoned", "text", "array"]
"""How texts are read."""
DIGITS_MAX: Final = 38
_NUMERIC: Final = 1700
_SCALARS: Final[dict[int, tuple[str, Form]]] = {
    16: ("BOOLEAN", "bool"),
    21: ("SMALLINT", "integer"),
    23: ("INT", "integer"),
    20: ("BIGINT", "integer"),
    26: ("BIGINT", "integer"),
    700: ("FLOAT", "float"),
    701: ("DOUBLE", "float"),
    17: ("BINARY", "bytes"),
    1082: ("DATE", "date"),
    1114: ("TIMESTAMP_NTZ", "time"),
    1184: ("TIMESTAMP", "zoned"),
}


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """What the server's catalog says of a type that is not one of the simple ones."""

    base: int = 0
    """Of a domain: what it is based on; 0 for no domain."""
    modifier: int = -1
    """Of a domain: the modifier of its base."""
    element: int = 0
    """Of an array: its elements; 0 for no array."""
    separator: str = ","
    """Of an array: what stands between its elements."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A column's type in Spark SQL, and how its texts become values of it."""

    sql: str
    form: Form
    element: Reading | None = None
    separator: str = ","

    @property
    def may_be_key(self) -> bool:
        """Whether values of it can identify a row: floats and arrays cannot."""
        return self.form not in ("float", "array")


STRING: Final = Reading("STRING", "text")


def reading_of(type: int, modifier: int, types: Mapping[int, TypeInfo]) -> Reading:
    """Of a column with PostgreSQL's number of a type and its modifier, -1 for none."""
    scalar = _SCALARS.get(type)
    if scalar is not None:
        return Reading(*scalar)
    if type == _NUMERIC:
        return _numeric(modifier)
    info = types.get(type)
    if info is None:
        return STRING
    if info.base:
        # A domain over a domain has its modifier at whichever level it was said.
        return reading_of(info.base, info.modifier if info.modifier != -1 else modifier, types)
    if info.element:
        element = reading_of(info.element, modifier, types)
        if element.form == "array":  # A domain over an array.
            return STRING
        return Reading(f"ARRAY<{element.sql}>", "array", element, info.separator)
    return STRING


def _numeric(modifier: int) -> Reading:
    if modifier < 4:
        return STRING
    precision = (modifier - 4) >> 16 & 0xFFFF
    scale = ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    # A scale below 0 rounds before the point, one above the precision has zeros behind it.
    digits = precision - scale if scale < 0 else max(precision, scale)
    if digits > DIGITS_MAX:
        return STRING
    return Reading(f"DECIMAL({digits}, {max(scale, 0)})", "decimal")
