"""Laws of keys that may be NULL: whatever a view's node is given, it equals a dictionary in which NULL is a key.

views.md: keys of nodes may be NULL, and merging is by IS NOT DISTINCT FROM there. As Spark groups, NaN equals NaN and
-0.0 equals 0.0 (checkpoints-and-views, sections 5 to 7).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.snapshots.compaction import Compactor
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import FileEntry
from tidegate.snapshots.plan_compaction import Tiers
from tidegate.snapshots.reader import SnapshotReader
from tidegate.snapshots.store import SnapshotStore
from tidegate.stores.memory_metadata import ManualClock, MemoryMetadataStore, MemoryState
from tidegate.tables.changes import changes_schema, net
from tidegate.tables.schema import Column, Table, TableSchema

NAN = float("nan")
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bigint": (pa.int64(), [None, 0, 1, -5, 2**62]),
    "string": (pa.string(), [None, "", "a", "NULL"]),
    "double": (pa.float64(), [None, NAN, 0.0, -0.0, 1.5, float("inf")]),
    "float": (pa.float32(), [None, NAN, 0.0, -0.0, 1.5]),
    "decimal": (pa.decimal128(5, 2), [None, 0, 1]),
    "boolean": (pa.bool_(), [None, True, False]),
}
Key = tuple[Any, ...]
Step = tuple[Any, ...]


def at(epoch: int) -> Timestamp:
    return Timestamp.compose(1_700_000_000_000 + 1000 * epoch)


def same(key: Key) -> Key:
    """Equal exactly for equal keys."""
    return tuple("NaN" if each != each else each for each in key)  # In a dictionary -0.0 is 0.0.


@st.composite
def lives(draw: st.DrawFn) -> tuple[tuple[str, ...], list[Step]]:
    """The types of a key, and what is done: changes of an epoch, or compaction, of all or of the layers alone."""
    types = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=2).map(tuple))
    keys = st.tuples(*(st.sampled_from(TYPES[each][1]) for each in types))
    changes = st.lists(st.tuples(keys, st.sampled_from([1, 1, -1]), st.integers(0, 99)), min_size=1, max_size=7)
    steps = st.one_of(st.tuples(st.just("write"), changes), st.tuples(st.just("write"), changes), st.just(("compact",)))
    return types, draw(st.lists(steps, min_size=1, max_size=6))


class Node:
    """The files of one node, and beside them the rows that they must hold."""

    def __init__(self, root: Path, types: tuple[str, ...]) -> None:
        self.names = [f"k{number}" for number in range(len(types))]
        self.types = [TYPES[each][0] for each in types]
        columns = [Column(n, name, type) for n, (name, type) in enumerate(zip(self.names, self.types), 1)]
        schema = TableSchema(
            1, Timestamp.ZERO, (*columns, Column(9, "v", pa.int64())), tuple(each.id for each in columns)
        )
        self.table = Table(3, "totals", 1, Timestamp.ZERO, (schema,))
        self.store = SnapshotStore(root, MemoryMetadataStore(ManualClock(), MemoryState()))
        self.reader = SnapshotReader(self.store, threads=1, memory_limit="100MB")
        self.model: dict[Key, int] = {}

    def keys(self, keys: list[Key]) -> dict[str, pa.Array]:
        return {name: pa.array([key[n] for key in keys], self.types[n]) for n, name in enumerate(self.names)}

    def write(self, changes: list[tuple[Key, int, int]]) -> None:
        epoch = self.store.pointer().epoch + 1
        rows = pa.table(
            {
                **self.keys([key for key, _, _ in changes]),
                "v": pa.array([value if op == 1 else None for _, op, value in changes], pa.int64()),
                "_ts": pa.array([int(at(epoch))] * len(changes), pa.int64()),
                "_seq": pa.array(range(len(changes)), pa.int64()),
                "_op": pa.array([op for _, op, _ in changes], pa.int8()),
            }
        ).cast(changes_schema(self.table.schema))
        with LayerWriter(self.store.root, 3, self.table.schema, shard=0, first=epoch, last=epoch, distinct=True) as one:
            one.write(net(rows, self.names))
            entry = one.close()
        assert entry is not None
        self.store.commit(self.store.pointer(), added=[entry], epoch=epoch, timestamp=at(epoch), term=1)
        for key, op, value in changes:
            self.model.pop(same(key), None)
            if op == 1:
                self.model[same(key)] = value

    def compact(self) -> None:
        compactor = Compactor(self.store, tiers=Tiers(fan=2, large_rows=5, file_rows=3), memory_limit="100MB")
        for job in compactor.due(self.store.manifest(), set()):
            compactor.run(job, self.table)
            for each in self.store.manifest().files(3):
                if each.sorted:
                    self.check_order(each)

    def check_order(self, file: FileEntry) -> None:
        found = pq.read_table(self.store.root / file.path).select(self.names)
        assert [same(key) for key in rows_of(found)] == [
            same(key) for key in rows_of(found.sort_by([(name, "ascending") for name in self.names]))
        ], "NULLs last, as Arrow sorts"

    def check(self) -> None:
        manifest = self.store.manifest()
        found = self.reader.read_all(manifest, self.table)
        assert found.schema.field(self.names[0]).nullable
        rows = [(same(row[:-1]), row[-1]) for row in rows_of(found)]
        assert len(rows) == len(self.model) and dict(rows) == self.model
        asked = [(None,) * len(self.names), *(key for key in self.model if "NaN" not in key)][:3]
        some = self.reader.lookup(manifest, self.table, pa.table(self.keys(asked)))
        expected = {key: value for key, value in self.model.items() if key in asked}
        assert {same(row[:-1]): row[-1] for row in rows_of(some)} == expected


def rows_of(table: pa.Table) -> list[Key]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.slow
@given(lives())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_layers_with_null_keys_merge_to_what_a_dictionary_has(life: tuple[tuple[str, ...], list[Step]]) -> None:
    types, steps = life
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory), types)
        for step in steps:
            if step[0] == "write":
                node.write(step[1])
            else:
                node.compact()
            node.check()
        node.compact()
        node.check()
        node.reader.close()


@given(lives())
@settings(max_examples=200, deadline=None)
def test_of_changes_with_null_keys_the_last_of_each_key_is_left(life: tuple[tuple[str, ...], list[Step]]) -> None:
    types, steps = life
    keys = [key for step in steps if step[0] == "write" for key, _, _ in step[1]]
    columns = [pa.array([key[n] for key in keys], TYPES[type][0]) for n, type in enumerate(types)]
    names = [f"k{n}" for n in range(len(types))]
    count = pa.array(range(len(keys)), pa.int64())
    changes = pa.table({**dict(zip(names, columns, strict=True)), "_ts": count, "_seq": count})
    assert sorted(net(changes, names).column("_ts").to_pylist()) == sorted(
        {same(k): n for n, k in enumerate(keys)}.values()
    )
