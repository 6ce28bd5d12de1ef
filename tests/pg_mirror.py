"""`Mirror`: folds what a source gives into tables of Python values; and readers of a source, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tidegate.capture.pg_source import PgSource
from tidegate.capture.source import (
    Change,
    Dropped,
    Patch,
    Reshaped,
    Rows,
    Source,
    SourceTable,
    SourceTransaction,
    Truncated,
)

Key = tuple[Any, ...]


class Mirror:
    """Captured tables, as a fold over what came."""

    def __init__(self, tables: list[SourceTable]) -> None:
        self.tables = {table.name: table for table in tables}
        self.rows: dict[str, dict[Key, dict[str, Any]]] = {table.name: {} for table in tables}
        self.loose: dict[str, list[dict[str, Any]]] = {table.name: [] for table in tables}
        """Rows of tables without a key."""
        self.position = ""

    def take(self, transaction: SourceTransaction) -> list[Change]:
        changes = list(transaction.changes)
        for change in changes:
            self.apply(change)
        self.position = transaction.position
        return changes

    def apply(self, change: Change) -> None:
        match change:
            case Rows(table, rows, is_delete):
                shape = self.tables[table]
                names = shape.key if is_delete else tuple(column.name for column in shape.columns)
                for row in as_tuples(rows, names):
                    if is_delete:
                        self.rows[table].pop(row, None)
                    else:
                        self._put(shape, dict(zip(names, row, strict=True)))
            case Patch(table, keys, rows, absent):
                shape = self.tables[table]
                names = tuple(column.name for column in shape.columns)
                found = []
                for key, row, missing in zip(keys, rows, absent, strict=True):
                    old = self.rows[table][key]
                    new = dict(zip(names, row, strict=True))
                    assert not set(missing) & set(shape.key)
                    found.append(new | {each: old[each] for each in missing})
                for row in found:
                    self._put(shape, row)
            case Truncated(table):
                self.rows[table].clear()
                self.loose.setdefault(table, []).clear()
            case Reshaped(table, renamed, filled):
                self.tables[table.name] = table
                names = [column.name for column in table.columns]
                old = list(self.rows.get(table.name, {}).values())
                self.rows[table.name] = {}
                for row in old:
                    row = {renamed.get(name, name): value for name, value in row.items()}
                    self._put(table, {name: row.get(name, filled.get(name)) for name in names})
            case Dropped(table):
                del self.rows[table]

    def _put(self, table: SourceTable, row: dict[str, Any]) -> None:
        if table.key:
            self.rows[table.name][tuple(row[name] for name in table.key)] = row
        else:
            self.loose.setdefault(table.name, []).append(row)


def as_tuples(rows: Any, names: tuple[str, ...]) -> list[Key]:
    if isinstance(rows, pa.RecordBatch):
        assert tuple(rows.schema.names) == names
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert all(type(row) is tuple and len(row) == len(names) for row in rows)
    return list(rows)


def begin(source: Source, *names: str) -> Mirror:
    """A mirror with the snapshot in it."""
    mirror = Mirror(source.tables(list(names) or None))
    snapshot = source.snapshot()
    try:
        for rows in snapshot.batches():
            mirror.apply(rows)
        mirror.position = snapshot.position
    finally:
        snapshot.close()
    source.confirm(mirror.position)
    return mirror


def catch_up(
    source: Source,
    mirror: Mirror,
    *,
    confirm: bool = True,
    each: Callable[[SourceTransaction, list[Change]], None] | None = None,
) -> list[tuple[SourceTransaction, list[Change]]]:
    """Take all that was committed before this call; what it was."""
    mark = source.mark()
    taken: list[tuple[SourceTransaction, list[Change]]] = []
    deadline = time.monotonic() + 60
    while True:
        for transaction in source.transactions(0.2):
            changes = mirror.take(transaction)
            if changes:
                taken.append((transaction, changes))
            if each is not None:
                each(transaction, changes)
        if confirm and mirror.position:
            source.confirm(mirror.position)
        if source.has_passed(mark):
            return taken
        assert time.monotonic() < deadline, f"the source does not come to its mark: {source.behind()}"


@contextmanager
def opened(url: str, name: str = "test", **options: Any) -> Iterator[PgSource]:
    source = PgSource(url, name=name, **options)
    try:
        yield source
    finally:
        source.close()
