"""A store of snapshots on a directory of its own, for specifications."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.snapshots.collector import Collector
from tidegate.snapshots.compaction import Compactor
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import FileEntry, Manifest, Pointer
from tidegate.snapshots.plan_compaction import CompactionJob, Tiers
from tidegate.snapshots.reader import SnapshotReader
from tidegate.snapshots.store import SnapshotStore
from tidegate.stores.memory_metadata import ManualClock, MemoryMetadataStore, MemoryState
from tidegate.tables.schema import Column, Table, TableSchema

START_MS = 1_700_000_000_000


def at(epoch: int) -> Timestamp:
    """Epochs of these tests are a second apart."""
    return Timestamp.compose(START_MS + 1000 * epoch)


def schema(version: int, columns: list[Column], key: tuple[int, ...] = (1,), since: int = 0) -> TableSchema:
    return TableSchema(version, at(since), tuple(columns), key)


ID = Column(1, "id", pa.int64(), nullable=False)
NAME = Column(2, "name", pa.string())
BALANCE = Column(3, "balance", pa.int64())
ACCOUNTS = Table(7, "accounts", 1, at(0), (schema(1, [ID, NAME, BALANCE]),))
EVENTS = Table(8, "events", 1, at(0), (schema(1, [ID, NAME], key=()),))


class SnapshotRig:
    """Everything around one directory. `reopen` drops what is in memory, as a crash does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.state = MemoryState()
        self.metadata = MemoryMetadataStore(self.clock, self.state)
        self.store = SnapshotStore(root, self.metadata)
        self.reader = SnapshotReader(self.store, memory_limit="200MB")
        self.epoch = 0

    def reopen(self) -> None:
        self.reader.close()
        self.metadata = MemoryMetadataStore(self.clock, self.state)
        self.store = SnapshotStore(self.root, self.metadata)
        self.reader = SnapshotReader(self.store, memory_limit="200MB")

    def close(self) -> None:
        self.reader.close()

    def stage(self, table: Table, rows: Iterable[dict[str, Any]], epoch: int, **options: Any) -> FileEntry:
        """Write a layer. Rows may give `_op` and `_seq`; `_ts` is the epoch's unless given."""
        rows = [{"_ts": int(at(epoch)), "_op": 1, "_seq": index, **row} for index, row in enumerate(rows)]
        newest = options.pop("schema", table.schema)
        options = {"shard": 0, "first": epoch, "last": epoch, **options}
        with LayerWriter(self.store.root, table.id, newest, **options) as writer:
            names = list(dict.fromkeys(name for row in rows for name in row))
            writer.write(pa.table({name: [row.get(name) for row in rows] for name in names}))
            entry = writer.close()
        assert entry is not None
        return entry

    def commit(self, *added: FileEntry, epoch: int | None = None, term: int = 1, **options: Any) -> Pointer:
        previous = self.store.pointer()
        epoch = epoch or (max(each.last for each in added) if added else previous.epoch + 1)
        return self.store.commit(previous, added=added, epoch=epoch, timestamp=at(epoch), term=term, **options)

    def write(self, table: Table, rows: Iterable[dict[str, Any]], **options: Any) -> Pointer:
        """One epoch."""
        epoch = self.store.pointer().epoch + 1
        return self.commit(self.stage(table, rows, epoch, **options))

    def rows(self, table: Table, manifest: Manifest | None = None, **options: Any) -> list[dict[str, Any]]:
        manifest = manifest or self.store.manifest()
        found: list[dict[str, Any]] = self.reader.read_all(manifest, table, **options).to_pylist()
        return sorted(found, key=repr)

    def compact(self, table: Table, *, level: int, files: list[FileEntry] | None = None, **options: Any) -> Pointer:
        inputs = files or self.store.manifest().shards()[(table.id, 0)]
        job = CompactionJob(table.id, 0, tuple(inputs), level, "asked for")
        return Compactor(self.store, **options).run(job, table)

    def collector(self, **options: Any) -> Collector:
        return Collector(self.store, **options)

    def data_files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.glob("tables/*/*.parquet")}

    def manifest_files(self) -> set[str]:
        return {path.name for path in (self.root / "manifests").iterdir()}


SMALL = Tiers(fan=3, large_rows=1000, file_rows=100_000)
