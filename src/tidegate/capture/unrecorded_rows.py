"""Rows that a table had from its beginning without a record of them, as of CREATE TABLE AS SELECT.

They are the rows that the table has now, less what was recorded since: a row that was changed is as it was before its
first change, and one that came is none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tidegate.capture.change_log import ChangeLog, Reader
from tidegate.capture.source import Rows
from tidegate.capture.sqlite_shape import Shape, columns_of
from tidegate.capture.sqlite_triggers import quoted
from tidegate.cdc.change_table import ChangeRow, Kind
from tidegate.cdc.sqlite_types import convert
from tidegate.errors import SourceGone, SourceUnreadable

PAGE: Final = 10_000


def unrecorded_rows(reader: Reader, log: ChangeLog, shape: Shape, now: Shape, since: int) -> Iterator[Rows]:
    """What a table that was made by change `since` had then; `now` is how it looks by now.

    Ordering: within one read transaction.
    Raises: `SourceGone` if there are such rows and the table was altered since, `SourceUnreadable` if changes were
    recorded without what they changed.
    """
    count = reader.query(f"SELECT count(*) FROM {quoted(shape.name)}")[0][0]
    if count <= log.net_rows(shape.name, since):
        return
    if not now.same_images(shape):
        raise SourceGone(
            f"table {shape.name!r} was made with rows that are not recorded, and altered since: what they were cannot"
            f" be told; take a new snapshot: restart=True, or --restart"
        )
    first = _first_changes(log, shape, since)
    columns = shape.table.columns
    for rows in reader.stream(f"SELECT {columns_of(shape)} FROM {quoted(shape.name)}", PAGE):
        found = []
        for raw in rows:
            row = tuple(convert(value, column.type) for value, column in zip(raw, columns))
            if _key(shape, row) not in first:
                found.append(row)
        if found:
            yield Rows(shape.table.name, found)
    found = [row for row in first.values() if row is not None]
    if found:
        yield Rows(shape.table.name, found)


def _first_changes(log: ChangeLog, shape: Shape, since: int) -> dict[tuple[Any, ...], tuple[Any, ...] | None]:
    """By key, rows as they were before they were first changed; None for those that were not there."""
    found: dict[tuple[Any, ...], tuple[Any, ...] | None] = {}
    last = log.last_id()
    while rows := log.rows_of(shape.name, since, last, PAGE):
        since = rows[-1].id
        for row in rows:
            before = None
            if row.kind != Kind.INSERT:
                before = _row(shape, row, row.before)
                found.setdefault(_key(shape, before), before)
            if row.kind != Kind.DELETE:
                found.setdefault(_key(shape, _row(shape, row, row.after or row.before)), None)
    return found


def _row(shape: Shape, row: ChangeRow, image: bytes | None) -> tuple[Any, ...]:
    if image is None:
        raise SourceUnreadable(
            f"table {shape.name!r} had rows that were not recorded, and change {row.id} does not say what it changed:"
            f" record with mode='full', and take a new snapshot: restart=True, or --restart"
        )
    values = shape.layout.read(image, row.row)
    return (row.row, *values) if shape.has_own_rowid else values


def _key(shape: Shape, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:1] if shape.has_own_rowid else shape.key_of(row)
