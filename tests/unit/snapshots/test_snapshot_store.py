"""Checkpoints: all of an epoch becomes visible in one step or nothing does, and nothing ever goes back.

Promises 2, 5 and 6 of the design; contract C5 to C7 of seed 001; sections 3 and 4 of the checkpoint facts.
"""

import json

import pytest
from snapshot_rig import ACCOUNTS, EVENTS, SnapshotRig, at

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, InvalidArgument, InvariantBroken, NotLeader, OutcomeUnknown, StoreUnavailable
from tidegate.snapshots.damage import SnapshotDamaged
from tidegate.snapshots.manifest import BASE, Manifest, Pointer
from tidegate.snapshots.store import POINTER_KEY, SnapshotStore


def test_before_the_first_checkpoint_every_table_is_empty(snapshots: SnapshotRig) -> None:
    assert snapshots.store.pointer() == Pointer()
    assert snapshots.rows(ACCOUNTS, snapshots.store.manifest(), schema=ACCOUNTS.schema) == []


def test_what_is_staged_is_not_visible_before_the_checkpoint(snapshots: SnapshotRig) -> None:
    """C7: batches that are not committed are invisible to queries."""
    snapshots.write(ACCOUNTS, [{"id": 1, "name": "ann", "balance": 5}])
    staged = snapshots.stage(ACCOUNTS, [{"id": 2, "name": "bo", "balance": 6}], 2)
    assert [row["id"] for row in snapshots.rows(ACCOUNTS)] == [1]
    snapshots.commit(staged)
    assert [row["id"] for row in snapshots.rows(ACCOUNTS)] == [1, 2]


def test_a_checkpoint_shows_all_tables_of_an_epoch_at_once(snapshots: SnapshotRig) -> None:
    """Promise 2: one compare-and-set over all tables."""
    files = [snapshots.stage(ACCOUNTS, [{"id": 1}], 1), snapshots.stage(EVENTS, [{"id": 9, "name": "x"}], 1)]
    before = snapshots.store.manifest()
    snapshots.commit(*files)
    after = snapshots.store.manifest()
    assert (before.files(7), before.files(8)) == ((), ())
    assert {each.path for each in files} == after.paths


def test_any_process_finds_the_newest_checkpoint_by_the_pointer(snapshots: SnapshotRig) -> None:
    pointer = snapshots.write(ACCOUNTS, [{"id": 1}])
    other = SnapshotStore(snapshots.root, snapshots.metadata)
    assert other.pointer() == pointer
    assert other.manifest() == snapshots.store.manifest()
    found = snapshots.metadata.get(POINTER_KEY)
    assert found is not None
    assert json.loads(found.value) == {
        "checkpoint": 1,
        "epoch": 1,
        "timestamp": int(at(1)),
        "term": 1,
        "manifest": pointer.manifest,
    }


def test_an_epoch_without_changes_moves_only_the_pointer(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": 1}])
    files = snapshots.manifest_files()
    pointer = snapshots.commit(epoch=2)
    assert (pointer.checkpoint, pointer.epoch, pointer.timestamp) == (1, 2, at(2))
    assert snapshots.manifest_files() == files
    assert snapshots.store.manifest().timestamp == at(2)


def test_of_two_who_commit_the_same_epoch_one_wins_and_the_other_is_told_by_whom(snapshots: SnapshotRig) -> None:
    """C2: a version never goes back; a report that comes late changes nothing."""
    previous = snapshots.store.pointer()
    mine, other = (snapshots.stage(ACCOUNTS, [{"id": each}], 1) for each in (1, 2))
    snapshots.store.commit(previous, added=[mine], epoch=1, timestamp=at(1), term=1)
    kept = snapshots.manifest_files()
    with pytest.raises(Conflict, match="checkpoint 1 of epoch 1 in term 1 came first"):
        snapshots.store.commit(previous, added=[other], epoch=1, timestamp=at(1), term=1)
    assert [row["id"] for row in snapshots.rows(ACCOUNTS)] == [1]
    assert snapshots.manifest_files() == kept, "the loser leaves no manifest"


def test_an_older_term_cannot_commit(snapshots: SnapshotRig) -> None:
    """Recovery: whoever was replaced while it slept changes nothing."""
    snapshots.write(ACCOUNTS, [{"id": 1}])
    stale = snapshots.store.pointer()
    snapshots.metadata.compare_and_set(
        POINTER_KEY, Pointer(1, 1, at(1), 5, stale.manifest).encode(), expected=stale.version
    )
    layer = snapshots.stage(ACCOUNTS, [{"id": 2}], 2)
    with pytest.raises(NotLeader, match="term 1 was followed by term 5"):
        snapshots.store.commit(stale, added=[layer], epoch=2, timestamp=at(2), term=1)
    assert snapshots.store.pointer().epoch == 1


@pytest.mark.parametrize(("epoch", "when", "term"), [(1, 2, 1), (2, 0, 1), (2, 2, 0)])
def test_a_checkpoint_never_goes_back(snapshots: SnapshotRig, epoch: int, when: int, term: int) -> None:
    """Promise 5."""
    previous = snapshots.write(ACCOUNTS, [{"id": 1}])
    with pytest.raises(InvalidArgument, match="does not come after"):
        snapshots.store.commit(previous, epoch=epoch, timestamp=at(when), term=term)


def test_an_epoch_takes_along_what_compaction_committed_meanwhile(snapshots: SnapshotRig) -> None:
    """Compaction never blocks a commit, and a commit never undoes a compaction."""
    snapshots.write(ACCOUNTS, [{"id": 1}])
    previous = snapshots.write(ACCOUNTS, [{"id": 2}])
    layer = snapshots.stage(ACCOUNTS, [{"id": 3}], 3)
    snapshots.compact(ACCOUNTS, level=BASE)
    pointer = snapshots.store.commit(previous, added=[layer], epoch=3, timestamp=at(3), term=1)
    assert pointer.checkpoint == 4
    assert [each.level for each in snapshots.store.manifest().files(ACCOUNTS.id)] == [BASE, 0]
    assert [row["id"] for row in snapshots.rows(ACCOUNTS)] == [1, 2, 3]


def test_a_layer_of_an_epoch_that_has_passed_is_refused(snapshots: SnapshotRig) -> None:
    """Fact 4.2: what was staged and not committed in time is cleared. Garbage collection relies on it."""
    snapshots.write(ACCOUNTS, [{"id": 1}])
    old = snapshots.stage(ACCOUNTS, [{"id": 2}], 1)
    with pytest.raises(InvalidArgument, match="stage its changes again"):
        snapshots.commit(old, epoch=2)


def test_a_dropped_table_is_gone_whatever_its_files_are_called_by_then(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": 1}])
    previous = snapshots.write(EVENTS, [{"id": 1}])
    snapshots.compact(ACCOUNTS, level=BASE)
    snapshots.store.commit(previous, dropped=[ACCOUNTS.id], epoch=3, timestamp=at(3), term=1)
    assert set(snapshots.store.manifest().tables) == {EVENTS.id}


def test_a_table_is_replaced_as_a_whole_in_one_step(snapshots: SnapshotRig) -> None:
    """What a view that is computed anew needs: the old rows end and the new ones begin at one checkpoint."""
    snapshots.write(ACCOUNTS, [{"id": 1}, {"id": 2}])
    anew = snapshots.stage(ACCOUNTS, [{"id": 3}], 2, level=BASE, sorted=True, distinct=True)
    snapshots.commit(anew, dropped=[ACCOUNTS.id])
    assert [row["id"] for row in snapshots.rows(ACCOUNTS)] == [3]
    assert [row["id"] for row in snapshots.rows(ACCOUNTS, snapshots.store.at(at(1)))] == [1, 2]


def test_several_files_of_one_shard_and_epoch_are_one_set_of_changes(snapshots: SnapshotRig) -> None:
    """Several tasks may write one shard; which of their files is named first means nothing."""
    files = [snapshots.stage(ACCOUNTS, [{"id": 1, "balance": each, "_seq": each}], 1) for each in (3, 9, 5)]
    snapshots.commit(*files)
    assert [row["balance"] for row in snapshots.rows(ACCOUNTS)] == [9]


def test_removing_a_file_that_is_gone_is_a_conflict(snapshots: SnapshotRig) -> None:
    snapshots.write(ACCOUNTS, [{"id": 1}])
    with pytest.raises(Conflict, match="is not part of checkpoint 1 any more"):
        snapshots.commit(epoch=2, removed=["tables/7/e-0-0-s0-aa.parquet"])


def test_a_missing_staged_file_is_found_before_the_checkpoint(snapshots: SnapshotRig) -> None:
    layer = snapshots.stage(ACCOUNTS, [{"id": 1}], 1)
    (snapshots.root / layer.path).unlink()
    with pytest.raises(SnapshotDamaged, match=r"tables/7/.*missing"):
        snapshots.commit(layer)
    assert snapshots.store.pointer() == Pointer()


def test_an_unknown_outcome_is_settled_by_reading_the_pointer(snapshots: SnapshotRig) -> None:
    """The store's law 9. The commit happened; running it again finds that."""
    layer = snapshots.stage(ACCOUNTS, [{"id": 1}], 1)

    def fault(operation: str, key: str, done: bool) -> None:
        if operation == "compare_and_set" and done:
            raise OutcomeUnknown("the answer was lost")

    snapshots.metadata.fault = fault
    with pytest.raises(OutcomeUnknown):
        snapshots.commit(layer)
    snapshots.metadata.fault = None
    assert snapshots.store.pointer().epoch == 1
    assert [row["id"] for row in snapshots.rows(ACCOUNTS)] == [1]


def test_a_store_that_does_not_answer_leaves_nothing_visible(snapshots: SnapshotRig) -> None:
    layer = snapshots.stage(ACCOUNTS, [{"id": 1}], 1)

    def fault(operation: str, key: str, done: bool) -> None:
        if operation == "compare_and_set":
            raise StoreUnavailable("no answer")

    snapshots.metadata.fault = fault
    with pytest.raises(StoreUnavailable):
        snapshots.commit(layer)
    snapshots.metadata.fault = None
    assert snapshots.store.pointer() == Pointer()
    assert snapshots.manifest_files() == set()
    assert snapshots.commit(layer).epoch == 1


def test_a_damaged_manifest_is_named_with_its_checkpoint(snapshots: SnapshotRig) -> None:
    pointer = snapshots.write(ACCOUNTS, [{"id": 1}])
    (snapshots.root / "manifests" / pointer.manifest).write_text("{}")
    snapshots.reopen()
    with pytest.raises(SnapshotDamaged, match=rf"{pointer.manifest}.*checkpoint 1.*restore"):
        snapshots.store.manifest()


def test_a_large_manifest_is_compressed_and_reads_the_same(snapshots: SnapshotRig) -> None:
    for epoch in range(1, 4):
        snapshots.write(ACCOUNTS, [{"id": epoch}])
    manifest = snapshots.store.manifest()
    many = Manifest(4, 3, at(3), 1, "before", {table: manifest.files(7) for table in range(100)})
    many = Manifest(
        4,
        3,
        at(3),
        1,
        "before",
        {
            table: tuple(type(each)(table, *(getattr(each, name) for name in each.__slots__[1:])) for each in files)
            for table, files in many.tables.items()
        },
    )
    name, content = many.encode("aa")
    assert name == f"000000000004-{int(at(3))}-aa.json.gz"
    assert Manifest.decode(content) == many
    assert len(content) < 10_000


def test_a_layer_older_than_its_base_is_a_defect(snapshots: SnapshotRig) -> None:
    """The read rule rests on it: a base's row counts only if no layer has its key."""
    for each in (1, 2, 3):
        snapshots.write(ACCOUNTS, [{"id": each}])
    newest = snapshots.store.manifest().files(ACCOUNTS.id)[1:]
    with pytest.raises(InvariantBroken, match="not younger than its base"):
        snapshots.compact(ACCOUNTS, level=BASE, files=list(newest))
    assert len(snapshots.data_files()) == 3, "what it wrote is gone again"


class TestTimeTravel:
    """Fact 3: reading at an earlier time, within retention, by the manifest of that time."""

    def test_the_checkpoint_of_a_time_is_the_newest_at_or_before_it(self, snapshots: SnapshotRig) -> None:
        for epoch in (1, 2, 3):
            snapshots.write(ACCOUNTS, [{"id": epoch}])
        for epoch in (1, 2, 3):
            for when in (at(epoch), at(epoch).add(milliseconds=500)):
                found = snapshots.rows(ACCOUNTS, snapshots.store.at(when))
                assert [row["id"] for row in found] == list(range(1, epoch + 1))
        assert snapshots.store.at(Timestamp(5)) == Manifest()

    def test_compaction_does_not_change_the_past(self, snapshots: SnapshotRig) -> None:
        for epoch in (1, 2, 3):
            snapshots.write(ACCOUNTS, [{"id": 1, "balance": epoch}])
        snapshots.compact(ACCOUNTS, level=BASE)
        snapshots.write(ACCOUNTS, [{"id": 1, "balance": 4}])
        found = [snapshots.rows(ACCOUNTS, snapshots.store.at(at(epoch)))[0]["balance"] for epoch in (1, 2, 3, 4)]
        assert found == [1, 2, 3, 4]

    def test_a_manifest_that_lost_the_race_is_never_taken_for_history(self, snapshots: SnapshotRig) -> None:
        """A crash between writing a manifest and naming it leaves one with a number that is then used."""
        snapshots.write(ACCOUNTS, [{"id": 1}])
        manifest = snapshots.store.manifest()
        for token in ("000000000000", "zzzzzzzzzzzz"):
            for number in (1, 2, 3):
                name, content = manifest.numbered(number, "").encode(token)
                (snapshots.root / "manifests" / name).write_bytes(content)
        pointers = [snapshots.store.pointer(), *(snapshots.write(ACCOUNTS, [{"id": each}]) for each in (2, 3))]
        committed, strays = snapshots.store.history()
        assert [each.file for each in committed] == [each.manifest for each in pointers]
        assert len(strays) == 6
