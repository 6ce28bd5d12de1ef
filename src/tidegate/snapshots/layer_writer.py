"""Writing one Parquet file of a table's changes, batch by batch, in bounded memory.

A file is not visible until a manifest names it, so it is written under its final name, which nobody else has.
Snappy, a dictionary for text only, and differences for keys and system columns were the fastest of what was measured,
to write and to read.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.errors import Closed, InvalidArgument
from tidegate.snapshots.durable import make_directory, remove, storage_errors, sync_directory
from tidegate.snapshots.manifest import BASE, FileEntry, Origin, data_path
from tidegate.tables.schema import OP, SEQ, TS, TableSchema

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 << 20
"""A group of rows is written before it gets larger in memory, however few rows that is."""
TRIES_MAX = 5
FIELD_ID = b"PARQUET:field_id"


def new_token() -> str:
    """What makes a file's name one of its kind."""
    return secrets.token_hex(6)


def file_schema(schema: TableSchema) -> pa.Schema:
    """The columns of a table's files. All but a key without NULLs may be NULL: a delete has nothing else."""
    fields = [
        pa.field(each.name, each.type, each.nullable or each.id not in schema.key, {FIELD_ID: str(each.id).encode()})
        for each in schema.columns
    ]
    system = [(TS, pa.int64()), (OP, pa.int8()), (SEQ, pa.int64())]
    return pa.schema([*fields, *(pa.field(name, type, nullable=False) for name, type in system)])


class LayerWriter:
    """Writes one file below `root` and says what the manifest must hold of it.

    Batches have the table's columns and `_ts`; `_op` is 1 and `_seq` is 0 where they are absent, and a column that is
    absent is NULL. `sorted` and `distinct` are the caller's word that the rows come in the order of the key, and each
    key once.

    Ordering: once `close` has returned, the file and its name are durable.
    """

    def __init__(
        self,
        root: Path,
        table: int,
        schema: TableSchema,
        *,
        shard: int,
        first: int,
        last: int,
        level: int = 0,
        origin: Origin = "e",
        token: str | None = None,
        sorted: bool = False,
        distinct: bool = False,
        row_group_rows: int = ROW_GROUP_ROWS,
    ) -> None:
        self.path = data_path(table, origin, first, last, shard, token or new_token())
        self.rows = 0
        self._root = root
        self._table, self._shard, self._level = table, shard, level
        self._first, self._last = first, last
        self._sorted, self._distinct = sorted, distinct
        self._versioned = schema
        self._schema = file_schema(schema)
        self._row_group_rows = row_group_rows
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._deletes = 0
        self._min_ts, self._max_ts = 1 << 63, -1
        self._file: BufferedWriter | None = None
        self._parquet: pq.ParquetWriter | None = None
        self._ended = False

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows.

        Raises: `InvalidArgument` when they are not of the table; `DiskFull`, `StorageFailed`, after which the file is
        gone.
        """
        if self._ended:
            raise Closed(f"{self.path}: this layer was closed; begin another")
        if rows.num_rows == 0:
            return
        table = self._conformed(rows)
        self._count(table)
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self._waiting_bytes += table.nbytes
        if self._waiting_rows >= self._row_group_rows or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush(last=False)

    @property
    def bytes(self) -> int:
        """How large the file is so far."""
        return self._file.tell() if self._file is not None else 0

    def close(self) -> FileEntry | None:
        """Make the file durable; what the manifest must hold of it, or None when it has no rows and was not written."""
        if self._ended:
            raise Closed(f"{self.path}: this layer was closed; begin another")
        if self.rows == 0:
            self.abandon()
            return None
        self._flush(last=True)
        path = self._root / self.path
        try:
            with storage_errors(path):
                if self._parquet is None or self._file is None:
                    raise OSError("it was never opened")
                self._parquet.close()
                self._file.flush()
                os.fsync(self._file.fileno())
                size = self._file.tell()
                self._file.close()
                sync_directory(path.parent)
        except BaseException:
            self.abandon()
            raise
        self._ended = True
        return FileEntry(
            self._table,
            self._shard,
            self._level,
            self._first,
            self._last,
            self._versioned.version,
            self.rows,
            size,
            self._min_ts,
            self._max_ts,
            self._deletes,
            self.path,
            self._sorted,
            self._distinct,
        )

    def abandon(self) -> None:
        """Give up, leaving nothing. Once closed, the file stays."""
        if self._ended:
            return
        self._ended = True
        self._waiting.clear()
        if self._file is not None:
            # Parquet's own writer would write its footer now; the file is deleted, so whether that works is all the
            # same.
            for part in (self._parquet, self._file):
                try:
                    if part is not None:
                        part.close()
                except (OSError, ValueError, pa.ArrowException):
                    pass
            remove(self._root / self.path)

    def __enter__(self) -> LayerWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()

    def _conformed(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        names = rows.schema.names
        if unknown := [name for name in names if name not in self._schema.names]:
            raise InvalidArgument(
                f"{self.path}: {', '.join(map(repr, unknown))} is not a column of schema version"
                f" {self._versioned.version}; there are {', '.join(self._versioned.names)}"
            )
        columns = []
        for field in self._schema:
            if field.name in names:
                column = rows.column(field.name)
                if column.type != field.type:
                    column = column.cast(field.type)
                if not field.nullable and column.null_count:
                    raise InvalidArgument(
                        f"{self.path}: column {field.name!r} has {column.null_count:,} NULLs; it is part of every row"
                    )
            elif field.name == OP:
                column = pa.repeat(pa.scalar(1, pa.int8()), rows.num_rows)
            elif field.name == SEQ:
                column = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
            elif field.nullable:
                column = pa.nulls(rows.num_rows, field.type)
            else:
                raise InvalidArgument(f"{self.path}: the column {field.name!r} is missing; it is part of every row")
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _count(self, table: pa.Table) -> None:
        deletes = table.num_rows - pc.sum(pc.equal(table.column(OP), 1)).as_py()
        if deletes and (self._level == BASE or not self._versioned.key):
            what = "a base" if self._level == BASE else "a table without a primary key"
            raise InvalidArgument(f"{self.path}: {what} holds no deletes, and {deletes:,} were given")
        spread = pc.min_max(table.column(TS)).as_py()
        self.rows += table.num_rows
        self._deletes += deletes
        self._min_ts = min(self._min_ts, spread["min"])
        self._max_ts = max(self._max_ts, spread["max"])

    def _flush(self, *, last: bool) -> None:
        if not self._waiting_rows:
            return
        rows = pa.concat_tables(self._waiting)
        keep = 0 if last else rows.num_rows % self._row_group_rows
        # Too large already: what is left over would not wait for a full group in bounded memory.
        keep = 0 if keep == rows.num_rows else keep
        ready = rows.slice(0, rows.num_rows - keep)
        try:
            with storage_errors(self._root / self.path):
                self._opened().write_table(ready, row_group_size=self._row_group_rows)
        except BaseException:
            self.abandon()
            raise
        left = rows.slice(rows.num_rows - keep)
        self._waiting = [left] if keep else []
        self._waiting_rows, self._waiting_bytes = keep, left.nbytes if keep else 0

    def _opened(self) -> pq.ParquetWriter:
        if self._parquet is None:
            self._file = self._created(self._root / self.path)
            keys = {each.name for each in self._versioned.key_columns if pa.types.is_integer(each.type)}
            wide = {name for name in keys if self._schema.field(name).type.bit_width >= 32}
            texts = [each.name for each in self._schema if _repeats(each.type) and each.name not in wide]
            self._parquet = pq.ParquetWriter(
                self._file,
                self._schema,
                compression="snappy",
                use_dictionary=[*texts, OP],
                column_encoding=dict.fromkeys([*sorted(wide), TS, SEQ], "DELTA_BINARY_PACKED"),
                store_schema=False,
                write_page_checksum=True,
                # The least and greatest of floats leave out NaN, which SQL takes for greater than all: whoever skips
                # rows by them would lose it.
                write_statistics=[each.name for each in self._schema if not _may_hold_nan(each.type)],
            )
        return self._parquet

    def _created(self, path: Path) -> BufferedWriter:
        for _ in range(TRIES_MAX):
            make_directory(path.parent)
            # Garbage collection removes the directory of a table without files.
            with suppress(FileNotFoundError):
                return path.open("xb")
        return path.open("xb")


def _may_hold_nan(type: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type) or pa.types.is_nested(type))


def _repeats(type: pa.DataType) -> bool:
    """Whether values of a type are worth a dictionary: numbers seldom are, and it slows their writing threefold."""
    return bool(pa.types.is_string(type) or pa.types.is_binary(type) or pa.types.is_large_string(type))
