"""Reading a table at a checkpoint with DuckDB, in bounded memory and without a JVM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

import duckdb
import pyarrow as pa

from tidegate.errors import InvalidArgument, StorageFailed, TidegateError, Truncated
from tidegate.snapshots.damage import SnapshotDamaged, find_damage
from tidegate.snapshots.layer_writer import new_token
from tidegate.snapshots.manifest import FileEntry, Manifest
from tidegate.snapshots.merge_sql import merge_sql
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.changes import changes_schema
from tidegate.tables.schema import OP, SEQ, SYSTEM_COLUMNS, TS, Table, TableSchema

BATCH_ROWS = 131_072
_SYSTEM_TYPES = {TS: pa.int64(), OP: pa.int8(), SEQ: pa.int64()}


class Duck:
    """DuckDB without a database of its own. What does not fit into its memory goes to a directory below `spill`.

    It starts with the first cursor: most of what could need one never does, and a start costs 25 ms.
    """

    def __init__(self, spill: Path, *, threads: int, memory_limit: str) -> None:
        # Instances that share a directory for this overwrite each other's files.
        self._directory = spill / new_token()
        self._threads = threads
        self._memory_limit = memory_limit
        self._lock = Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._is_closed = False

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Raises: `duckdb.ConnectionException` after `close`."""
        with self._lock:
            if self._is_closed:
                raise duckdb.ConnectionException("Connection Error: Connection already closed!")
            # Garbage collection removes one that nobody has touched for long.
            self._directory.mkdir(parents=True, exist_ok=True)
            os.utime(self._directory)
            if self._connection is None:
                self._connection = self._start()
            return self._connection.cursor()

    def _start(self) -> duckdb.DuckDBPyConnection:
        found = duckdb.connect(
            ":memory:",
            config={
                "threads": self._threads,
                "memory_limit": self._memory_limit,
                "temp_directory": str(self._directory),
                "autoinstall_known_extensions": False,
            },
        )
        # Files never change, and a name is never used twice.
        found.execute("SET parquet_metadata_cache = true")
        return found

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            found, self._connection = self._connection, None
        if found is not None:
            found.close()
            shutil.rmtree(self._directory, ignore_errors=True)


class SnapshotReader:
    """Reads tables by the manifests of one store. Safe to use from several threads."""

    def __init__(self, store: SnapshotStore, *, threads: int = 2, memory_limit: str = "1GB") -> None:
        self._store = store
        self._connection = Duck(store.root / "spill", threads=threads, memory_limit=memory_limit)

    def close(self) -> None:
        self._connection.close()

    def sql(self, table: Table, schema: TableSchema, files: Sequence[FileEntry]) -> str:
        """What some files of a table hold together, as a query for DuckDB, to be put into a larger one."""
        return merge_sql(table, schema, files, str(self._store.root))

    def layers(self, table: Table, schema: TableSchema, files: Sequence[FileEntry]) -> pa.Table:
        """The changes in layers, deletes too, as `tables.changes` has them."""
        found = changes_schema(schema)
        sql = merge_sql(table, schema, files, str(self._store.root), columns=found.names, deletes=True)
        cursor = self._connection.cursor()
        try:
            rows = cursor.sql(sql).to_arrow_table()
        finally:
            cursor.close()
        batches = [conformed(each, found) for each in rows.combine_chunks().to_batches()]
        return pa.Table.from_batches(batches, schema=found)

    def read(
        self,
        manifest: Manifest,
        table: Table,
        schema: TableSchema | None = None,
        *,
        columns: Sequence[str] | None = None,
        keys: pa.Table | None = None,
        where: str | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> pa.RecordBatchReader:
        """The rows of a table, batch by batch, in no order.

        By the schema of the checkpoint's time unless another is given. `columns` chooses, and may name `_ts` and
        `_seq`; `keys` has the key's columns and gives only their rows; `where` is a condition in DuckDB's SQL on the
        columns chosen.

        Raises: `SnapshotDamaged`, `Truncated`, also while batches are taken.
        """
        schema = table.at(manifest.timestamp) if schema is None else schema
        files = manifest.files(table.id)
        cursor = self._connection.cursor()
        sql = merge_sql(
            table,
            schema,
            files,
            str(self._store.root),
            columns=columns,
            keys="wanted_keys" if keys is not None else None,
        )
        if keys is not None:
            cursor.register("wanted_keys", _key_rows(keys, table, schema))
        if where is not None:
            sql = f"SELECT * FROM ({sql}) WHERE {where}"
        arrow = result_schema(table, schema, files, columns)
        try:
            batches = cursor.sql(sql).to_arrow_reader(batch_rows)
        except duckdb.Error as error:
            cursor.close()
            raise self._explained(error, manifest, table, files) from error
        return pa.RecordBatchReader.from_batches(arrow, self._taken(batches, arrow, cursor, manifest, table, files))

    def read_all(
        self,
        manifest: Manifest,
        table: Table,
        schema: TableSchema | None = None,
        *,
        columns: Sequence[str] | None = None,
        keys: pa.Table | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """As `read`, all at once."""
        return self.read(manifest, table, schema, columns=columns, keys=keys, where=where).read_all()

    def lookup(
        self, manifest: Manifest, table: Table, keys: pa.Table, *, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows with the given keys. Groups of rows whose statistics exclude the keys are not read."""
        return self.read_all(manifest, table, columns=columns, keys=keys)

    def _taken(
        self,
        batches: pa.RecordBatchReader,
        schema: pa.Schema,
        cursor: duckdb.DuckDBPyConnection,
        manifest: Manifest,
        table: Table,
        files: Sequence[FileEntry],
    ) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                yield conformed(batch, schema)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise self._explained(error, manifest, table, files) from error
        finally:
            cursor.close()

    def _explained(
        self, error: Exception, manifest: Manifest, table: Table, files: Sequence[FileEntry]
    ) -> TidegateError | Exception:
        return self.damage(manifest, table, files) or _failed(error, table)

    def damage(
        self, manifest: Manifest, table: Table, files: Sequence[FileEntry] | None = None
    ) -> Truncated | SnapshotDamaged | None:
        """What is wrong with the files of a table at a checkpoint, if anything is."""
        files = manifest.files(table.id) if files is None else files
        damage = find_damage(self._store.root, files, whole=False) or find_damage(self._store.root, files, whole=True)
        if damage is None:
            return None
        entry, why = damage
        path = self._store.root / entry.path
        floor = self._store.floor().of(table.id)
        if manifest.checkpoint < floor and not path.exists():
            return Truncated(
                f"table {table.name!r} at checkpoint {manifest.checkpoint} is older than its retention time; the oldest"
                f" that is kept is {floor}. Read there, or raise the table's retention time"
            )
        return SnapshotDamaged(str(path), why, checkpoint=manifest.checkpoint, table=table.id, name=table.name)


def _failed(error: Exception, table: Table) -> Exception:
    """The error for a read that failed though every file is as it was written."""
    if isinstance(error, duckdb.ProgrammingError):
        return InvalidArgument(f"table {table.name!r}: {error}")
    if isinstance(error, duckdb.Error | OSError):
        return StorageFailed(
            f"reading table {table.name!r} failed: {error}; read less at once, or give it more memory or disk"
        )
    return error


def result_schema(
    table: Table, schema: TableSchema, files: Sequence[FileEntry], columns: Sequence[str] | None
) -> pa.Schema:
    """What a read gives. A column that some file does not have yet is NULL there, whatever the schema says."""
    versions = [table.version(number) for number in {each.schema for each in files}]
    fields = []
    for name in schema.names if columns is None else columns:
        if name in SYSTEM_COLUMNS:
            fields.append(pa.field(name, _SYSTEM_TYPES[name], nullable=False))
        else:
            column = schema.column(name)
            everywhere = all(each.by_id(column.id) is not None for each in versions)
            fields.append(pa.field(column.name, column.type, column.nullable or not everywhere))
    return pa.schema(fields)


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the schema's types: DuckDB names the parts of nested ones, and time zones, in its own way."""
    columns = [
        column if column.type == field.type else column.cast(field.type) for column, field in zip(batch.columns, schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _key_rows(keys: pa.Table, table: Table, schema: TableSchema) -> pa.Table:
    if not schema.key:
        raise InvalidArgument(f"table {table.name!r} has no primary key to look up; read it with a filter instead")
    names = [each.name for each in schema.key_columns]
    if missing := [name for name in names if name not in keys.schema.names]:
        raise InvalidArgument(f"table {table.name!r}: the keys lack the column {', '.join(map(repr, missing))}")
    return keys.select(names).cast(pa.schema([(each.name, each.type) for each in schema.key_columns]))
