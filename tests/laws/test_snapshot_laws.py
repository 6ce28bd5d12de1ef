"""Laws of snapshots: whatever is written, compacted, collected, pinned or lost in a crash, every table at every
checkpoint that may be read equals a dictionary; and nothing is left over.

Promises 2, 4, 5 and 6 of the design.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, OutcomeUnknown, StoreUnavailable, Truncated
from tidegate.snapshots.collector import Collector
from tidegate.snapshots.compaction import Cancelled, Compactor
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import FileEntry, Manifest
from tidegate.snapshots.pins import Pins, live_pins
from tidegate.snapshots.plan_compaction import Tiers
from tidegate.snapshots.plan_gc import Retention
from tidegate.snapshots.reader import SnapshotReader
from tidegate.snapshots.store import SnapshotStore
from tidegate.stores.memory_metadata import ManualClock, MemoryMetadataStore, MemoryState
from tidegate.tables.schema import Column, Table, TableSchema

START_MS = 1_700_000_000_000
SHARDS = 2


def at(epoch: int) -> Timestamp:
    return Timestamp.compose(START_MS + 1000 * epoch)


ID = Column(1, "id", pa.int64(), nullable=False)
OLD, NEW, LATER = Column(2, "v", pa.int64()), Column(2, "value", pa.int64()), Column(3, "v", pa.int64())
KEYED = Table(
    1,
    "keyed",
    SHARDS,
    at(0),
    (TableSchema(1, at(0), (ID, OLD), (1,)), TableSchema(2, at(6), (ID, NEW, LATER), (1,))),
)
ROWS = Table(2, "rows", SHARDS, at(0), (TableSchema(1, at(0), (ID, OLD)),))

keys = st.integers(0, 7)
changes = st.lists(st.tuples(keys, st.sampled_from([1, 1, -1]), st.integers(0, 99)), min_size=1, max_size=6)
endings = st.sampled_from(["well"] * 5 + ["staged only", "unavailable", "unknown, done", "unknown, not done"])
steps = st.one_of(
    st.tuples(st.just("write"), changes, st.booleans(), endings),
    st.tuples(st.just("write"), changes, st.booleans(), endings),
    st.tuples(st.just("compact"), endings),
    st.tuples(st.just("collect"), st.sampled_from([0, 1500, 10**7]), st.sampled_from([0, 3_600_000])),
    st.tuples(st.just("pin")),
    st.tuples(st.just("unpin")),
    st.tuples(st.just("quiet epoch")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("crash")),
)

Model = dict[int, Any]
"""By epoch: the rows of both tables."""


class World:
    """The store, and beside it what it must answer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.state = MemoryState()
        self.lives = 0
        self.keyed: dict[int, tuple[int, int | None]] = {}
        self.rows: list[tuple[int, int]] = []
        self.epochs: Model = {0: ({}, [])}
        self.pinned: list[tuple[Manifest, Any]] = []
        self.lowest = 0
        self.open()

    def open(self) -> None:
        self.lives += 1
        self.metadata = MemoryMetadataStore(self.clock, self.state)
        self.store = SnapshotStore(self.root, self.metadata)
        self.reader = SnapshotReader(self.store, threads=1, memory_limit="100MB")
        self.pins = Pins(self.store, f"life {self.lives}")
        self.collector = Collector(self.store, grace_ms=3_600_000)

    def crash(self) -> None:
        """Nothing in memory survives; files and metadata do."""
        self.reader.close()
        self.state.owner_died(f"life {self.lives}")
        self.pinned.clear()
        self.open()

    def end_as(self, ending: str) -> None:
        def fault(operation: str, key: str, done: bool) -> None:
            if operation == "compare_and_set" and key == "snapshots/checkpoint":
                if ending == "unavailable":
                    raise StoreUnavailable("no answer")
                if ending == "unknown, done" and done:
                    raise OutcomeUnknown("lost")
                if ending == "unknown, not done" and not done:
                    raise OutcomeUnknown("lost")

        self.metadata.fault = fault

    def play(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("write", batch, keyed, ending):
                self.write(batch, keyed, ending)
            case ("compact", ending):
                self.compact(ending)
            case ("collect", kept_ms, age_ms):
                self.collect(kept_ms, age_ms)
            case ("pin",):
                manifest = self.store.manifest()
                self.pins.pin(manifest.checkpoint)
                self.pinned.append((manifest, self.epochs[manifest.epoch]))
            case ("unpin",):
                if self.pinned:
                    self.pins.unpin(self.pinned.pop(0)[0].checkpoint)
            case ("quiet epoch",):
                self.commit([], "well")
            case ("drop",):
                self.rows = []
                self.commit([], "well", dropped=[ROWS.id])
            case ("crash",):
                self.crash()

    def write(self, batch: list[tuple[int, int, int]], keyed: bool, ending: str) -> None:
        epoch = self.store.pointer().epoch + 1
        table = KEYED if keyed else ROWS
        schema = table.at(at(epoch))
        staged: list[FileEntry] = []
        for shard in range(SHARDS):
            mine = [(seq, key, op, value) for seq, (key, op, value) in enumerate(batch) if key % SHARDS == shard]
            mine = [each for each in mine if keyed or each[2] == 1]
            names = schema.names
            with LayerWriter(self.root, table.id, schema, shard=shard, first=epoch, last=epoch) as writer:
                columns = {
                    "id": [key for _, key, _, _ in mine],
                    names[1]: [value if op == 1 else None for _, _, op, value in mine],
                    "_seq": [seq for seq, _, _, _ in mine],
                    "_op": [op for _, _, op, _ in mine],
                    "_ts": [int(at(epoch))] * len(mine),
                }
                if len(names) > 2:
                    columns[names[2]] = [value + 1 if op == 1 else None for _, _, op, value in mine]
                writer.write(pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}))
                staged += filter(None, [writer.close()])
        if self.commit(staged, ending):
            for key, op, value in batch:
                if keyed and op == 1:
                    self.keyed[key] = (value, value + 1 if schema.version == 2 else None)
                elif keyed:
                    self.keyed.pop(key, None)
                elif op == 1:
                    self.rows.append((key, value))
            self.epochs[epoch] = (dict(self.keyed), sorted(self.rows))

    def commit(self, staged: list[FileEntry], ending: str, dropped: tuple[int, ...] | list[int] = ()) -> bool:
        """Whether it took place, found out as a restarted process does: by the pointer."""
        pointer = self.store.pointer()
        epoch = pointer.epoch + 1
        if ending != "staged only":
            self.end_as(ending)
            with suppress(StoreUnavailable, OutcomeUnknown):
                self.store.commit(pointer, added=staged, dropped=dropped, epoch=epoch, timestamp=at(epoch), term=1)
            self.metadata.fault = None
        if ending != "well":
            self.crash()
        done = self.store.pointer().epoch == epoch
        assert done == (ending in ("well", "unknown, done"))
        if done:
            self.epochs[epoch] = (dict(self.keyed), sorted(self.rows))
        return done

    def compact(self, ending: str) -> None:
        compactor = Compactor(self.store, tiers=Tiers(fan=2, large_rows=5, file_rows=3), memory_limit="100MB")
        for job in compactor.due(self.store.manifest(), {ROWS.id}):
            table = KEYED if job.table == KEYED.id else ROWS
            self.end_as(ending)
            with suppress(StoreUnavailable, OutcomeUnknown, Cancelled, Conflict):
                compactor.run(job, table, lambda: ending == "staged only")
            self.metadata.fault = None
        if ending != "well":
            self.crash()

    def collect(self, kept_ms: int, age_ms: int) -> None:
        for path in self.root.glob("tables/*/*"):
            when = path.stat().st_mtime - (age_ms + 1000) / 1000
            os.utime(path, (when, when))
        self.collector.collect(Retention(kept_ms))
        horizon = self.store.pointer().timestamp.physical_ms - kept_ms
        within = [epoch for epoch in self.epochs if at(epoch).physical_ms <= max(horizon, START_MS)]
        self.lowest = max(self.lowest, *within)
        self.check_history()

    def check(self) -> None:
        newest = self.store.manifest()
        assert self.answer(newest) == self.epochs[newest.epoch]
        for manifest, expected in self.pinned:
            assert self.answer(manifest) == expected

    def check_history(self) -> None:
        for epoch in self.epochs:
            if epoch >= self.lowest:
                assert self.answer(self.store.at(at(epoch))) == self.epochs[epoch], f"epoch {epoch}"
            elif epoch:
                try:
                    manifest = self.store.at(at(epoch))
                except Truncated:
                    continue
                assert self.answer(manifest) == self.epochs[epoch], f"epoch {epoch}, older than was asked to be kept"

    def answer(self, manifest: Manifest) -> Any:
        if manifest.epoch == 0:
            return {}, []
        schema = KEYED.schema  # the newest, whatever the files were written with
        keyed = self.reader.read_all(manifest, KEYED, schema).to_pylist()
        rows = self.reader.read_all(manifest, ROWS).to_pylist()
        assert len({row["id"] for row in keyed}) == len(keyed), "a key twice"
        return {row["id"]: (row["value"], row["v"]) for row in keyed}, sorted((row["id"], row["v"]) for row in rows)

    def finish(self) -> None:
        """Without pins and retention, what lies on disk is what the newest manifest names."""
        self.check_history()
        self.crash()
        self.commit([], "well")
        self.collect(0, 3_600_000)
        self.check()
        files = {str(path.relative_to(self.root)) for path in self.root.glob("tables/*/*")}
        pointer = self.store.pointer()
        ahead = {path for path in files if path not in self.store.manifest().paths}
        assert all(f"e-{pointer.epoch + 1}" in path for path in ahead), ahead
        assert {path.name for path in (self.root / "manifests").iterdir()} <= {pointer.manifest} | {
            path.name for path in (self.root / "manifests").glob(f"{pointer.checkpoint + 1:012d}-*")
        }
        assert live_pins(self.store) == set()
        self.reader.close()


@pytest.mark.slow
@given(plan=st.lists(steps, min_size=4, max_size=16))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_readable_checkpoint_equals_the_model(plan: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        for step in plan:
            world.play(step)
            world.check()
        world.finish()
