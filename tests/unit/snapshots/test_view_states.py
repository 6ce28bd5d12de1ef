"""How views stand is part of the checkpoint: it changes in the same step as the rows of all tables (views.md; issue 6,
"all of an epoch's views committed in the same checkpoint as its tables")."""

from __future__ import annotations

import json

import pytest
from snapshot_rig import ACCOUNTS, SnapshotRig, at

from tidegate.clock.timestamp import Timestamp
from tidegate.snapshots.manifest import Manifest, ViewState

LIVE = ViewState("live", 1, at(1), signature="a1")
FAILED = ViewState("failed", 2, at(2), "division by zero", "a1")


def test_a_view_becomes_live_in_the_step_that_shows_its_rows(snapshots: SnapshotRig) -> None:
    before = snapshots.store.manifest()
    snapshots.commit(snapshots.stage(ACCOUNTS, [{"id": 1}], 1), views={7: LIVE})
    after = snapshots.store.manifest()
    assert (before.views, before.files(7)) == ({}, ())
    assert after.views == {7: LIVE} and len(after.files(7)) == 1


def test_any_process_finds_how_views_stand_and_the_past_keeps_how_they_stood(snapshots: SnapshotRig) -> None:
    snapshots.commit(views={7: LIVE, 9: LIVE})
    snapshots.commit(views={9: FAILED})
    snapshots.reopen()
    assert snapshots.store.manifest().views == {7: LIVE, 9: FAILED}
    assert snapshots.store.at(at(1)).views == {7: LIVE, 9: LIVE}


def test_an_epoch_that_only_changes_how_a_view_stands_is_a_checkpoint(snapshots: SnapshotRig) -> None:
    first = snapshots.commit(views={7: LIVE})
    assert first.checkpoint == 1 and first.manifest
    same = snapshots.commit(views={7: LIVE})
    assert (same.checkpoint, same.epoch, same.manifest) == (1, 2, first.manifest), "nothing changed: no manifest"
    assert snapshots.commit(views={7: FAILED}).checkpoint == 2


def test_compaction_leaves_views_as_they_stand(snapshots: SnapshotRig) -> None:
    snapshots.commit(snapshots.stage(ACCOUNTS, [{"id": 1}], 1), views={7: LIVE})
    snapshots.compact(ACCOUNTS, level=-1)
    assert snapshots.store.manifest().views == {7: LIVE}


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_dropped_view_is_gone_also_when_it_stored_nothing(snapshots: SnapshotRig, has_rows: bool) -> None:
    staged = [snapshots.stage(ACCOUNTS, [{"id": 1}], 1)] if has_rows else []
    snapshots.commit(*staged, views={7: LIVE, 9: FAILED}, epoch=1)
    snapshots.commit(dropped=[7])
    assert snapshots.store.manifest().views == {9: FAILED}
    assert snapshots.store.manifest().files(7) == ()


def test_a_view_that_is_emptied_and_filled_again_stands_as_it_is_said(snapshots: SnapshotRig) -> None:
    snapshots.commit(snapshots.stage(ACCOUNTS, [{"id": 1}], 1), views={7: LIVE})
    again = ViewState("filling", 2, at(2), signature="b2")
    snapshots.commit(dropped=[7], views={7: again})
    assert snapshots.store.manifest().views == {7: again} and snapshots.store.manifest().files(7) == ()


def test_a_manifest_without_views_is_the_one_from_before_there_were_any() -> None:
    """Old checkpoints are read, and a database without views writes what it always wrote."""
    _, content = Manifest(3, 4, Timestamp(5), 1).encode("00")
    assert "views" not in json.loads(content)
    assert Manifest.decode(content).views == {}
    _, content = Manifest(3, 4, Timestamp(5), 1, views={7: FAILED}).encode("00")
    found = Manifest.decode(content)
    assert found.views == {7: FAILED} and isinstance(found.views[7].timestamp, Timestamp)
