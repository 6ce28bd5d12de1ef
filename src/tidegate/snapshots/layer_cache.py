"""`LayerCache`: the recent layers of a table as columns in memory, so that a read need not open many small files.

Files never change and a name is never used twice, so what was read stays right. Of each key only the newest change is
kept, as `merge_sql` would have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

import pyarrow as pa

from tidegate.snapshots.manifest import FileEntry
from tidegate.snapshots.one_key import OneKey, only_key
from tidegate.tables.changes import net
from tidegate.tables.schema import Table, TableSchema

ROWS_MAX: Final = 200_000
"""Layers of more rows than that together are left to DuckDB."""
BYTES_MAX: Final = 64 << 20
"""Of files that were read, and as much of what was made of them; files of an eighth of it together are kept."""
_MERGED: Final = 16

Read = Callable[[Table, TableSchema, Sequence[FileEntry]], pa.Table]
"""Reads layers with all columns of a schema, and the system's."""
_Key = tuple[int, int, tuple[str, ...]]


class LayerCache:
    """Layers of one store. Safe to use from several threads."""

    def __init__(self, read: Read, *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._read = read
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._files: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._merged: OrderedDict[_Key, pa.Table] = OrderedDict()
        self._nbytes = self._merged_bytes = 0
        self._lock = Lock()

    def changes(self, table: Table, schema: TableSchema, layers: Sequence[FileEntry]) -> pa.Table | None:
        """The newest change of each key in some layers; None when they are too large to be kept."""
        if not self._fit(layers):
            return None
        key = table.id, schema.version, tuple(each.path for each in layers)
        with self._lock:
            found = self._merged.get(key)
            if found is None:
                parts = [self._file(table, schema, each) for each in layers]
                found = net(pa.concat_tables(parts), [each.name for each in schema.key_columns]).combine_chunks()
                # Of each table the newest, mostly: an older one is read by whoever was overtaken.
                self._merged[key] = found
                self._merged_bytes += found.nbytes
                while len(self._merged) > 1 and (self._merged_bytes > self._bytes_max or len(self._merged) > _MERGED):
                    self._merged_bytes -= self._merged.popitem(last=False)[1].nbytes
            else:
                self._merged.move_to_end(key)
        return found

    def lookup(self, table: Table, schema: TableSchema, layers: Sequence[FileEntry], key: OneKey) -> pa.Table | None:
        """The changes of one key in some layers; None when they are too large to be kept."""
        if not self._fit(layers):
            return None
        with self._lock:
            parts = [self._file(table, schema, each) for each in layers]
        return pa.concat_tables([only_key(each, key) for each in parts])

    def _fit(self, layers: Sequence[FileEntry]) -> bool:
        rows, size = sum(each.rows for each in layers), sum(each.bytes for each in layers)
        return rows <= self._rows_max and size <= self._bytes_max // 8

    def _file(self, table: Table, schema: TableSchema, file: FileEntry) -> pa.Table:
        key = file.path, schema.version
        found = self._files.get(key)
        if found is not None:
            self._files.move_to_end(key)
            return found
        found = self._files[key] = self._read(table, schema, [file])
        self._nbytes += found.nbytes
        while self._nbytes > self._bytes_max and len(self._files) > 1:
            self._nbytes -= self._files.popitem(last=False)[1].nbytes
        return found
