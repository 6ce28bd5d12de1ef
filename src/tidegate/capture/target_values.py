"""Values of Tidegate's types as other databases take them: whole columns, Arrow in and Python lists out.

What a database has no type for becomes text that loses nothing: a decimal its digits in SQLite, an array, struct or map
its JSON. In JSON decimals are strings, times are ISO texts, binary is hexadecimal, a map with keys other than strings
is a list of pairs, and what is no number is its name.
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa


def for_sqlite(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As SQLite stores them. Times are UTC, with six digits, so that their texts sort as they do."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return [None if each is None else int(each) for each in column.to_pylist()]
    if pa.types.is_timestamp(kind):
        return _list(column.cast(pa.timestamp("us")).cast(pa.string()))
    if pa.types.is_decimal(kind):
        return [None if each is None else format(each, "f") for each in column.to_pylist()]
    if pa.types.is_date(kind):
        return _list(column.cast(pa.string()))
    if pa.types.is_nested(kind):
        return as_json(column)
    return _list(column)


def for_postgres(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As psycopg takes them: arrays of simple values as lists, other nested ones as JSON.

    A time of a year that Python does not know is its text: the database says whether it has such a value.
    """
    kind = column.type
    if pa.types.is_nested(kind) and not is_simple_list(kind):
        return as_json(column)
    try:
        return _list(column)
    except (OverflowError, ValueError):
        if not pa.types.is_temporal(kind):
            raise
    return [_time(each) for each in column]


def _time(value: pa.Scalar[Any]) -> Any:
    """As Python has it, or its text."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        plain = value.cast(pa.timestamp("us")) if pa.types.is_timestamp(value.type) else value
        return plain.cast(pa.string()).as_py()


def is_simple_list(kind: pa.DataType) -> bool:
    """Whether it is an array of what is no array itself."""
    return pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type)


def as_json(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    kind = column.type
    return [
        None if each is None else json.dumps(_plain(each, kind), ensure_ascii=False, separators=(",", ":"))
        for each in column.to_pylist()
    ]


def _list(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    found: list[Any] = column.to_pylist()
    return found


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = [(_plain(key, kind.key_type), _plain(each, kind.item_type)) for key, each in value]
        if pa.types.is_string(kind.key_type) and len({key for key, _ in pairs}) == len(pairs):
            return dict(pairs)
        return [list(each) for each in pairs]
    match value:
        case Decimal():
            return format(value, "f")
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value
