"""Keys of SQLite in columns without a declared type: the number 1 and the text '1' are two of them, and one text here.

Such twins end the capture. They are looked for among what is there, and among the changes that are read together: at
the latest when one of them goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from tidegate.capture.change_log import Reader
from tidegate.capture.sqlite_shape import Shape
from tidegate.capture.sqlite_triggers import quoted, text
from tidegate.cdc.record import Value
from tidegate.cdc.sqlite_types import text_of
from tidegate.errors import SourceUnreadable

_STORED: Final[dict[type, str]] = {int: "integer", float: "real", str: "text"}
_INTEGERS: Final = range(-(1 << 63), 1 << 63)


def check_all(reader: Reader, shape: Shape) -> None:
    """Raises: `SourceUnreadable` if two rows of a table have keys that are one here."""
    if not shape.untyped_key:
        return
    groups = ", ".join(
        f"CAST({quoted(shape.columns[at])} AS TEXT)" if at in shape.untyped_key else quoted(shape.columns[at])
        for at in shape.key
    )
    for at in shape.untyped_key:
        column = quoted(shape.columns[at])
        found = reader.query(
            f"SELECT min({column}), max({column}) FROM {quoted(shape.name)} WHERE typeof({column}) <> 'blob'"
            f" GROUP BY {groups} HAVING min({column}) <> max({column}) LIMIT 1"
        )
        if found:
            raise twins(shape, at, *found[0])


def check_one(reader: Reader, shape: Shape, key: tuple[Value, ...], is_gone: bool) -> None:
    """As `check_all`, for one key, its values as they are stored, in the order of the key.

    One that is not there by now, though it did not go in these changes, may have become its twin since. One that went
    must have none: the twin's row would go with it.
    """
    others = [[value, *(_others(value) if at in shape.untyped_key else ())] for at, value in zip(shape.key, key)]
    if all(len(each) == 1 for each in others):
        return
    there = {str(row[1]).lower() for row in reader.query(f"PRAGMA table_info({text(shape.name)})")}
    if not all(shape.columns[at].lower() in there for at in shape.key):
        return  # What is there by now is another table, or none.
    where = " AND ".join(f"{quoted(shape.columns[at])} = ?" for at in shape.key)
    sql = f"SELECT 1 FROM {quoted(shape.name)} WHERE {where}"
    if not is_gone and not reader.query(sql, *key):
        return
    for other in product(*others):
        at = next((n for n, (a, b) in enumerate(zip(key, other)) if type(a) is not type(b)), None)
        if at is not None and reader.query(sql, *other):
            raise twins(shape, shape.key[at], key[at], other[at])


def _others(value: Value) -> Iterator[Value]:
    """What would be the same text."""
    if isinstance(value, int | float):
        yield text_of(value)
    elif isinstance(value, str):
        for kind in (int, float):
            try:
                number: int | float = kind(value)
            except ValueError:
                continue
            if text_of(number) == value and (isinstance(number, float) or number in _INTEGERS):
                yield number


def twins(shape: Shape, at: int, one: Value, other: Value) -> SourceUnreadable:
    """What is wrong with two keys."""
    said = " and ".join(f"{each!r} ({_STORED.get(type(each), 'blob')})" for each in (one, other))
    column = shape.columns[at]
    return SourceUnreadable(
        f"table {shape.name!r}, column {column!r}: {said} are two keys at the source and would be one here, as the"
        f" column has no type: declare one and keep keys of one kind in it, and take a new snapshot: restart=True, or"
        f" --restart; or leave the table out"
    )
