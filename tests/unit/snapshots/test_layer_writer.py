"""Layers: what is written is durable, says what it holds, and leaves nothing when it fails."""

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from snapshot_rig import ACCOUNTS, EVENTS, SnapshotRig, at

from tidegate.errors import Closed, DiskFull, InvalidArgument, StorageFailed
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import BASE, StagedName


def writer(root: Path, **options: Any) -> LayerWriter:
    table = options.pop("table", ACCOUNTS)
    return LayerWriter(root, table.id, table.schema, **{"shard": 0, "first": 3, "last": 4, **options})


def rows(count: int, start: int = 0) -> pa.Table:
    return pa.table(
        {"id": range(start, start + count), "balance": range(count), "_ts": [int(at(3)) + n for n in range(count)]}
    )


def test_the_entry_says_what_the_file_holds(tmp_path: Path) -> None:
    with writer(tmp_path, shard=2, sorted=True) as layer:
        layer.write(rows(10))
        layer.write(pa.table({"id": [4, 5], "_ts": [9, 8], "_op": [-1, -1]}))
        entry = layer.close()
    assert entry is not None
    assert (entry.table, entry.shard, entry.level, entry.first, entry.last, entry.schema) == (7, 2, 0, 3, 4, 1)
    assert (entry.rows, entry.deletes, entry.min_ts, entry.max_ts) == (12, 2, 8, int(at(3)) + 9)
    assert entry.bytes == (tmp_path / entry.path).stat().st_size
    assert StagedName.parse(entry.path) == StagedName("e", 3, 4, 2)


def test_columns_carry_their_number_and_the_key_its_statistics(tmp_path: Path) -> None:
    """Anything that reads Parquet can read them; groups of rows are skipped by their key."""
    with writer(tmp_path, row_group_rows=100) as layer:
        for start in range(0, 450, 45):
            layer.write(rows(45, start))
        entry = layer.close()
    assert entry is not None
    file = pq.ParquetFile(tmp_path / entry.path)
    assert [file.schema_arrow.field(name).metadata[b"PARQUET:field_id"] for name in ("id", "name", "balance")] == [
        b"1",
        b"2",
        b"3",
    ]
    groups = [file.metadata.row_group(each) for each in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [100, 100, 100, 100, 50]
    assert [group.column(0).statistics.min for group in groups] == [0, 100, 200, 300, 400]


def test_memory_is_bounded_by_a_group_of_rows(tmp_path: Path) -> None:
    with writer(tmp_path, row_group_rows=1000) as layer:
        layer.write(rows(999))
        assert layer.bytes == 0
        layer.write(rows(999, 999))
        first = layer.bytes
        assert first > 0
        layer.write(rows(999, 1998))
        assert layer.bytes > first


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    with writer(tmp_path) as layer:
        layer.write(rows(0))
        assert layer.close() is None
    assert not list(tmp_path.rglob("*.parquet"))


def test_running_an_epoch_again_never_overwrites_a_file(tmp_path: Path) -> None:
    paths = set()
    for _ in range(2):
        with writer(tmp_path) as layer:
            layer.write(rows(1))
            entry = layer.close()
        assert entry is not None
        paths.add(entry.path)
    assert len(paths) == 2
    with (
        pytest.raises(StorageFailed, match="exists"),
        writer(tmp_path, token="zz") as one,
        writer(tmp_path, token="zz") as two,
    ):
        one.write(rows(1))
        one.close()
        two.write(rows(1))
        two.close()
    assert len(list(tmp_path.rglob("*zz.parquet"))) == 1


@pytest.mark.parametrize(
    ("table", "batch", "why"),
    [
        (ACCOUNTS, {"id": [1]}, "'_ts' is missing"),
        (ACCOUNTS, {"_ts": [1]}, "'id' is missing"),
        (ACCOUNTS, {"id": [None], "_ts": [1]}, "'id' has 1 NULLs"),
        (ACCOUNTS, {"id": [1], "_ts": [1], "salary": [1]}, "'salary' is not a column of schema version 1"),
        (EVENTS, {"id": [1], "_ts": [1], "_op": [-1]}, "without a primary key holds no deletes"),
    ],
)
def test_rows_that_are_not_of_the_table_are_refused(
    tmp_path: Path, table: Any, batch: dict[str, Any], why: str
) -> None:
    schema = pa.schema([(name, pa.int64()) for name in batch])
    with writer(tmp_path, table=table) as layer, pytest.raises(InvalidArgument, match=why):
        layer.write(pa.table(batch, schema))


def test_a_base_holds_no_deletes(tmp_path: Path) -> None:
    with writer(tmp_path, level=BASE) as layer, pytest.raises(InvalidArgument, match="a base holds no deletes"):
        layer.write(pa.table({"id": [1], "_ts": [1], "_op": [-1]}))


def test_what_was_closed_takes_no_more(tmp_path: Path) -> None:
    with writer(tmp_path) as layer:
        layer.write(rows(1))
        layer.close()
        with pytest.raises(Closed):
            layer.write(rows(1))
        with pytest.raises(Closed):
            layer.close()
    assert len(list(tmp_path.rglob("*.parquet"))) == 1, "leaving the block keeps what was closed"


def test_a_layer_that_is_left_in_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), writer(tmp_path, row_group_rows=10) as layer:
        layer.write(rows(100))
        assert list(tmp_path.rglob("*.parquet"))
        raise KeyError
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageFailed)])
def test_a_disk_that_refuses_leaves_nothing_half_visible(
    snapshots: SnapshotRig, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    """Promise 6. Neither a layer nor a manifest."""
    before = snapshots.write(ACCOUNTS, [{"id": 1}])
    files = snapshots.data_files() | snapshots.manifest_files()

    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(kind, match="nothing became visible"):
        snapshots.stage(ACCOUNTS, [{"id": 2}], 2)
    assert snapshots.data_files() | snapshots.manifest_files() == files
    monkeypatch.undo()
    entry = snapshots.stage(ACCOUNTS, [{"id": 2}], 2)
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(kind):
        snapshots.commit(entry)
    monkeypatch.undo()
    assert snapshots.data_files() | snapshots.manifest_files() == files | {entry.path}
    assert snapshots.store.pointer() == before
    assert snapshots.commit(entry).epoch == 2


def test_a_disk_that_is_full_half_way_leaves_nothing(tmp_path: Path) -> None:
    with writer(tmp_path, row_group_rows=1000) as layer:
        layer.write(rows(1000))
        (path,) = tmp_path.rglob("*.parquet")
        (opened,) = (fd for fd in os.listdir("/proc/self/fd") if _target(fd) == str(path))
        with open("/dev/full", "wb") as full:  # noqa: PTH123
            os.dup2(full.fileno(), int(opened))
        with pytest.raises(DiskFull, match=path.name):
            for start in range(1, 100):
                layer.write(rows(1000, 1000 * start))
    assert not list(tmp_path.rglob("*.parquet"))


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return ""
