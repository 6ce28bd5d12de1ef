"""Compaction: other files, the same rows; never in anybody's way."""

import os

import pyarrow as pa
import pytest
from snapshot_rig import ACCOUNTS, EVENTS, SMALL, SnapshotRig, at

from tidegate.errors import Conflict, OutcomeUnknown
from tidegate.snapshots.compaction import Cancelled, Compactor
from tidegate.snapshots.damage import SnapshotDamaged
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import BASE
from tidegate.snapshots.plan_compaction import CompactionJob, Tiers
from tidegate.snapshots.plan_gc import Retention


def job(rig: SnapshotRig, level: int = BASE) -> CompactionJob:
    return CompactionJob(ACCOUNTS.id, 0, tuple(rig.store.manifest().shards()[(ACCOUNTS.id, 0)]), level, "asked for")


def fill(rig: SnapshotRig, epochs: int = 3, rows: int = 10) -> None:
    for _ in range(epochs):
        epoch = rig.store.pointer().epoch + 1
        changes = [{"id": each, "balance": epoch} for each in range(epoch, epoch + rows)]
        rig.write(ACCOUNTS, [*changes, {"id": epoch - 1, "_op": -1}])


def test_a_new_base_is_sorted_and_has_each_key_once_and_no_deletes(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    before = snapshots.rows(ACCOUNTS)
    snapshots.compact(ACCOUNTS, level=BASE)
    (base,) = snapshots.store.manifest().files(ACCOUNTS.id)
    assert (base.is_base, base.sorted, base.distinct, base.deletes, base.rows) == (True, True, True, 0, len(before))
    assert (base.first, base.last) == (1, 3)
    assert snapshots.rows(ACCOUNTS) == before


def test_deletes_are_kept_while_something_lies_below(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": each} for each in range(3)])
    snapshots.compact(ACCOUNTS, level=BASE)
    snapshots.write(ACCOUNTS, [{"id": 0, "_op": -1}])
    snapshots.write(ACCOUNTS, [{"id": 1, "_op": -1}])
    layers = list(snapshots.store.manifest().files(ACCOUNTS.id)[1:])
    snapshots.compact(ACCOUNTS, level=1, files=layers)
    _, layer = snapshots.store.manifest().files(ACCOUNTS.id)
    assert (layer.level, layer.rows, layer.deletes) == (1, 2, 2)
    assert [row["id"] for row in snapshots.rows(ACCOUNTS)] == [2]


def test_a_base_in_which_everything_was_deleted_is_no_file(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": 1}])
    snapshots.write(ACCOUNTS, [{"id": 1, "_op": -1}])
    snapshots.compact(ACCOUNTS, level=BASE)
    assert snapshots.store.manifest().files(ACCOUNTS.id) == ()
    assert snapshots.rows(ACCOUNTS) == []


def test_a_base_is_split_by_size_along_the_key(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": (each * 7919) % 200_003} for each in range(200_003)])
    snapshots.compact(ACCOUNTS, level=BASE, tiers=Tiers(file_rows=65_536))
    bases = snapshots.store.manifest().files(ACCOUNTS.id)
    assert len(bases) == 4
    assert sum(each.rows for each in bases) == 200_003
    sizes = snapshots.reader.read_all(snapshots.store.manifest(), ACCOUNTS, columns=["id"])["id"].to_pylist()
    assert sorted(sizes) == list(range(200_003))


def test_one_layer_that_is_a_base_already_is_only_called_so(snapshots: SnapshotRig) -> None:
    """A bulk load is not written twice."""
    snapshots.write(ACCOUNTS, [{"id": each} for each in range(10)], sorted=True, distinct=True)
    files = snapshots.data_files()
    snapshots.compact(ACCOUNTS, level=BASE)
    assert snapshots.data_files() == files
    assert [each.level for each in snapshots.store.manifest().files(ACCOUNTS.id)] == [BASE]
    assert len(snapshots.rows(ACCOUNTS)) == 10


def test_commits_go_on_while_it_runs_and_are_kept(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    started = job(snapshots)

    def commit_once() -> bool:
        if snapshots.store.pointer().epoch == 3:
            snapshots.write(ACCOUNTS, [{"id": 1000, "balance": 7}, {"id": 5, "_op": -1}])
        return False

    pointer = Compactor(snapshots.store).run(started, ACCOUNTS, commit_once)
    assert (pointer.epoch, pointer.timestamp) == (4, at(4))
    ids = [row["id"] for row in snapshots.rows(ACCOUNTS)]
    assert 1000 in ids and 5 not in ids and 4 in ids


@pytest.mark.parametrize("what", ["compacted by another", "table dropped"])
def test_it_gives_way_when_its_files_are_gone(snapshots: SnapshotRig, what: str) -> None:
    fill(snapshots)
    started = job(snapshots)
    if what == "table dropped":
        snapshots.commit(epoch=4, dropped=[ACCOUNTS.id])
    else:
        snapshots.compact(ACCOUNTS, level=1)
    files = snapshots.data_files()
    with pytest.raises(Conflict, match="not part of checkpoint"):
        Compactor(snapshots.store).run(started, ACCOUNTS)
    assert snapshots.data_files() == files, "what it wrote is gone again"


def test_it_gives_way_when_its_files_were_collected_while_it_ran(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    started = job(snapshots)
    snapshots.commit(epoch=4, dropped=[ACCOUNTS.id])
    snapshots.collector().collect(Retention(0))
    assert snapshots.data_files() == set()
    with pytest.raises(Conflict, match="not part of checkpoint 4"):
        Compactor(snapshots.store).run(started, ACCOUNTS)


def test_it_stops_when_asked_and_changes_nothing(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    before, files = snapshots.store.pointer(), snapshots.data_files()
    with pytest.raises(Cancelled):
        Compactor(snapshots.store).run(job(snapshots), ACCOUNTS, lambda: True)
    assert (snapshots.store.pointer(), snapshots.data_files()) == (before, files)


def test_one_job_per_shard_at_a_time(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    compactor = Compactor(snapshots.store, tiers=SMALL)
    seen = []

    def look() -> bool:
        seen.append(compactor.due(snapshots.store.manifest(), set()))
        seen.append([progress.job for progress in compactor.progress])
        with pytest.raises(Conflict, match="is being compacted"):
            compactor.run(job(snapshots), ACCOUNTS)
        return False

    (due,) = compactor.due(snapshots.store.manifest(), set())
    compactor.run(due, ACCOUNTS, look)
    assert seen == [[], [due]]
    assert compactor.progress == []


def test_files_that_may_be_taken_for_left_behind_are_not_committed(snapshots: SnapshotRig) -> None:
    """Garbage collection may have listed them as orphans: naming them now could name files that are about to go."""
    fill(snapshots)
    compactor = Compactor(snapshots.store, grace_ms=60_000)
    original = snapshots.store.replace_files

    def slow(inputs, outputs, **options):  # type: ignore[no-untyped-def]
        for each in outputs:
            path = snapshots.root / each.path
            os.utime(path, (path.stat().st_mtime - 31, path.stat().st_mtime - 31))
        return original(inputs, outputs, **options)

    snapshots.store.replace_files = slow  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="may be taken for left behind"):
        compactor.run(job(snapshots), ACCOUNTS)
    assert len(snapshots.data_files()) == 3


def test_an_unknown_outcome_keeps_the_files(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    before = snapshots.rows(ACCOUNTS)

    def fault(operation: str, key: str, done: bool) -> None:
        if operation == "compare_and_set" and done:
            raise OutcomeUnknown("the answer was lost")

    snapshots.metadata.fault = fault
    with pytest.raises(OutcomeUnknown):
        snapshots.compact(ACCOUNTS, level=BASE)
    snapshots.metadata.fault = None
    assert [each.level for each in snapshots.store.manifest().files(ACCOUNTS.id)] == [BASE]
    assert snapshots.rows(ACCOUNTS) == before


def test_a_damaged_input_is_named_and_nothing_changes(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    started = job(snapshots)
    path = snapshots.root / started.inputs[1].path
    path.write_bytes(path.read_bytes()[:-20])
    before = snapshots.store.pointer()
    with pytest.raises(SnapshotDamaged, match=path.name):
        Compactor(snapshots.store).run(started, ACCOUNTS)
    assert snapshots.store.pointer() == before


def test_rows_of_a_table_without_a_key_are_joined(snapshots: SnapshotRig) -> None:
    for each in range(3):
        snapshots.write(EVENTS, [{"id": each, "name": "x"}] * 2)
    (due,) = Compactor(snapshots.store, tiers=SMALL).due(snapshots.store.manifest(), {EVENTS.id})
    Compactor(snapshots.store).run(due, EVENTS)
    (joined,) = snapshots.store.manifest().files(EVENTS.id)
    assert (joined.level, joined.rows, joined.distinct) == (1, 6, False)
    assert [row["id"] for row in snapshots.rows(EVENTS)] == [0, 0, 1, 1, 2, 2]


def test_more_than_fits_into_memory_is_compacted(snapshots: SnapshotRig) -> None:
    """Bounded memory: what does not fit goes to files, which are gone afterwards."""
    count = 200_003
    for part in range(2):
        names = pa.array([f"{each * 7919 % count:0100d}" for each in range(count)])
        ids = pa.array([each * 104_729 % count for each in range(count)])
        with LayerWriter(snapshots.root, 7, ACCOUNTS.schema, shard=0, first=part + 1, last=part + 1) as writer:
            times = pa.repeat(int(at(part + 1)), count)
            writer.write(pa.table({"id": ids, "name": names, "balance": pa.repeat(part, count), "_ts": times}))
            entry = writer.close()
        assert entry is not None
        snapshots.commit(entry)
    spilled = []
    started = job(snapshots)
    compactor = Compactor(snapshots.store, memory_limit="50MB")
    compactor.run(started, ACCOUNTS, lambda: spilled.extend((snapshots.root / "spill").rglob("*.tmp")) or False)
    assert spilled, "this test must not fit into memory"
    found = snapshots.reader.read_all(snapshots.store.manifest(), ACCOUNTS, columns=["id", "balance"])
    assert (found.num_rows, set(found["balance"].to_pylist())) == (count, {1})
    assert not list((snapshots.root / "spill").rglob("*.tmp"))
