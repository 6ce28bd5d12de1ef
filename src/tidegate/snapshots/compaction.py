"""Doing a compaction job: read its files in order, write new ones, and name those instead in the newest manifest.

Readers and commits never wait for it. Whatever happens on the way, nothing changes but for files that nobody names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

import duckdb
import pyarrow as pa

from tidegate.errors import Conflict, OutcomeUnknown, StorageFailed, TidegateError
from tidegate.snapshots.damage import SnapshotDamaged, find_damage
from tidegate.snapshots.durable import remove, storage_errors
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import BASE, FileEntry, Manifest, Pointer
from tidegate.snapshots.merge_sql import merge_sql, quoted
from tidegate.snapshots.plan_compaction import CompactionJob, Tiers, plan_compaction
from tidegate.snapshots.plan_gc import GRACE_MS
from tidegate.snapshots.reader import Duck, conformed
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.schema import OP, SEQ, TS, Column, Table, TableSchema

BATCH_ROWS = 65_536


class Cancelled(Conflict):
    """The compaction was asked to stop; it changed nothing."""


@dataclass(slots=True)
class Progress:
    """How far a job is."""

    job: CompactionJob
    rows: int = 0
    """Written so far; at most `job.rows`."""


class Compactor:
    """Compacts the tables of one store, one job per shard at a time. Safe to use from several threads."""

    def __init__(
        self,
        store: SnapshotStore,
        *,
        tiers: Tiers | None = None,
        threads: int = 1,
        memory_limit: str = "512MB",
        grace_ms: int = GRACE_MS,
    ) -> None:
        self._store = store
        self._tiers = tiers or Tiers()
        self._threads, self._memory_limit = threads, memory_limit
        self._grace_ms = grace_ms
        self._running: dict[tuple[int, int], Progress] = {}
        self._lock = Lock()

    @property
    def progress(self) -> list[Progress]:
        """The jobs that are running."""
        with self._lock:
            return list(self._running.values())

    def due(self, manifest: Manifest, keyless: set[int]) -> list[CompactionJob]:
        """What should be compacted, and nobody here does already."""
        with self._lock:
            busy = set(self._running)
        return plan_compaction(manifest, keyless, tiers=self._tiers, busy=busy)

    def run(self, job: CompactionJob, table: Table, cancelled: Callable[[], bool] = lambda: False) -> Pointer:
        """Do a job. `cancelled` is asked between batches.

        Raises: `Conflict` when an input is gone or the shard is being compacted; `Cancelled`; `SnapshotDamaged`;
        `DiskFull`, `StorageFailed`, `StoreUnavailable`: nothing changed. `OutcomeUnknown`: the new files may have
        become visible.
        """
        where = (job.table, job.shard)
        with self._lock:
            if where in self._running:
                raise Conflict(f"shard {job.shard} of table {table.name!r} is being compacted; wait for it")
            progress = self._running[where] = Progress(job)
        outputs: list[FileEntry] = []
        try:
            if _is_base_already(job, table.version(job.inputs[0].schema), self._tiers):
                return self._store.replace_files(job.inputs, [replace(job.inputs[0], level=BASE)])
            self._write(job, table, progress, outputs, cancelled)
            return self._store.replace_files(job.inputs, outputs, still_fresh=lambda: self._must_be_fresh(outputs))
        except OutcomeUnknown:
            raise  # garbage collection finds out whether the files are needed
        except BaseException:
            for each in outputs:
                remove(self._store.root / each.path)
            raise
        finally:
            with self._lock:
                del self._running[where]

    def _write(
        self,
        job: CompactionJob,
        table: Table,
        progress: Progress,
        outputs: list[FileEntry],
        cancelled: Callable[[], bool],
    ) -> None:
        schema = table.version(max(each.schema for each in job.inputs))
        columns = [*schema.names, TS, OP, SEQ]
        to_base = job.level == BASE
        sql = merge_sql(table, schema, job.inputs, str(self._store.root), columns=columns, deletes=not to_base)
        if schema.key:
            sql = f"SELECT * FROM ({sql}) ORDER BY {', '.join(map(_in_order, schema.key_columns))}"
        connection = Duck(self._store.root / "spill", threads=self._threads, memory_limit=self._memory_limit)
        writer: LayerWriter | None = None
        arrow = pa.schema(
            [*((each.name, each.type) for each in schema.columns), (TS, pa.int64()), (OP, pa.int8()), (SEQ, pa.int64())]
        )
        try:
            for batch in connection.cursor().sql(sql).to_arrow_reader(BATCH_ROWS):
                if cancelled():
                    raise Cancelled(f"compaction of table {table.name!r}, shard {job.shard}, was stopped")
                writer = writer or self._writer(job, schema)
                writer.write(conformed(batch, arrow))
                progress.rows += batch.num_rows
                if writer.bytes >= self._tiers.file_bytes or writer.rows >= self._tiers.file_rows:
                    outputs.extend(filter(None, [writer.close()]))
                    writer = None
                    self._touch(outputs)
            if writer is not None:
                outputs.extend(filter(None, [writer.close()]))
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._explained(error, job, table) from error
        finally:
            if writer is not None:
                writer.abandon()
            connection.close()

    def _writer(self, job: CompactionJob, schema: TableSchema) -> LayerWriter:
        keyed = bool(schema.key)
        return LayerWriter(
            self._store.root,
            job.table,
            schema,
            shard=job.shard,
            first=job.first,
            last=job.last,
            level=job.level,
            origin="c",
            sorted=keyed,
            distinct=keyed,
        )

    def _touch(self, outputs: list[FileEntry]) -> None:
        """Tell garbage collection that these files are still wanted, before it could doubt it."""
        self._must_be_fresh(outputs)
        for each in outputs:
            path = self._store.root / each.path
            with storage_errors(path):
                os.utime(path)

    def _must_be_fresh(self, outputs: list[FileEntry]) -> None:
        for each in outputs:
            path = self._store.root / each.path
            with storage_errors(path):
                age_ms = (time.time() - path.stat().st_mtime) * 1000
            if age_ms > self._grace_ms / 2:
                raise Conflict(
                    f"{each.path} was written {age_ms / 1000:,.0f} s ago, and may be taken for left behind;"
                    f" it is compacted again"
                )

    def _explained(self, error: Exception, job: CompactionJob, table: Table) -> TidegateError:
        newest = self._store.manifest()
        if gone := [each.path for each in job.inputs if each.path not in newest.paths]:
            return Conflict(f"{', '.join(gone)} is not part of checkpoint {newest.checkpoint} any more; plan again")
        damage = find_damage(self._store.root, job.inputs, whole=False)
        damage = damage or find_damage(self._store.root, job.inputs, whole=True)
        if damage is None:
            return StorageFailed(
                f"compaction of table {table.name!r}, shard {job.shard}: {error}; nothing changed, it is tried again"
            )
        entry, why = damage
        path = str(self._store.root / entry.path)
        return SnapshotDamaged(path, why, checkpoint=newest.checkpoint, table=table.id, name=table.name)


def _in_order(column: Column) -> str:
    """NULLs come last, as where Arrow sorts."""
    return f"{quoted(column.name)} NULLS LAST" if column.nullable else quoted(column.name)


def _is_base_already(job: CompactionJob, schema: TableSchema, tiers: Tiers) -> bool:
    """Whether the only input may just be called a base: nothing needs to be written."""
    only = job.inputs[0]
    small = only.bytes <= 4 * tiers.file_bytes
    plain = only.sorted and only.distinct and not only.deletes
    return len(job.inputs) == 1 and job.level == BASE and bool(schema.key) and plain and small
