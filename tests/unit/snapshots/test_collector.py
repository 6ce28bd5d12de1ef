"""Garbage collection on real files, with pins of several processes and orphans of crashes."""

import os
import time

import pytest
from snapshot_rig import ACCOUNTS, EVENTS, SnapshotRig, at

from tidegate.errors import LeaseLost, Truncated
from tidegate.snapshots.collector import Collected
from tidegate.snapshots.manifest import BASE, Pointer
from tidegate.snapshots.pins import Pins, live_pins
from tidegate.snapshots.plan_gc import Retention
from tidegate.stores.memory_metadata import MemoryMetadataStore

NOTHING = Retention(0)
ALL = Retention()


def fill(rig: SnapshotRig, epochs: int = 3) -> None:
    for _ in range(epochs):
        rig.write(ACCOUNTS, [{"id": 1, "balance": rig.store.pointer().epoch + 1}])


def balances(rig: SnapshotRig, epoch: int) -> list[int]:
    return [row["balance"] for row in rig.rows(ACCOUNTS, rig.store.at(at(epoch)))]


def age(rig: SnapshotRig, path: str, hours: int = 2) -> None:
    when = time.time() - hours * 3600
    os.utime(rig.root / path, (when, when))


def test_the_past_is_readable_until_retention_ends_it(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    snapshots.compact(ACCOUNTS, level=BASE)
    collector = snapshots.collector()
    assert collector.collect(ALL) == Collected()
    assert balances(snapshots, 1) == [1]
    assert collector.collect(NOTHING) == Collected(manifests=3, files=3)
    with pytest.raises(Truncated, match=r"older than the retention time; the oldest that is kept is checkpoint 4"):
        snapshots.store.at(at(1))
    assert balances(snapshots, 3) == [3]
    assert len(snapshots.data_files()) == len(snapshots.manifest_files()) == 1
    assert collector.collect(NOTHING) == Collected()


def test_a_pinned_checkpoint_stays_readable(snapshots: SnapshotRig) -> None:
    """Fact 3: dropping the pin releases."""
    fill(snapshots, 2)
    old = snapshots.store.at(at(1))
    pins = Pins(snapshots.store, "reader")
    with pins.pinned(old.checkpoint), pins.pinned(old.checkpoint):
        snapshots.compact(ACCOUNTS, level=BASE)
        snapshots.collector().collect(NOTHING)
        assert [row["balance"] for row in snapshots.rows(ACCOUNTS, old)] == [1]
        assert len(snapshots.data_files()) == 2
    assert live_pins(snapshots.store) == set()
    snapshots.collector().collect(NOTHING)
    assert len(snapshots.data_files()) == 1


def test_the_pins_of_a_process_that_died_or_fell_silent_end(snapshots: SnapshotRig) -> None:
    fill(snapshots, 2)
    other = MemoryMetadataStore(snapshots.clock, snapshots.state)
    first, second = Pins(snapshots.store, "dies"), Pins(snapshots.store, "sleeps", ttl_ms=60_000)
    first.pin(1)
    second.pin(2)
    assert live_pins(snapshots.store) == {1, 2}
    snapshots.state.owner_died("dies")
    snapshots.clock.pass_s(50)
    second.renew()
    snapshots.clock.pass_s(50)
    assert live_pins(snapshots.store) == {2}
    snapshots.clock.pass_s(11)
    assert live_pins(snapshots.store) == set()
    assert other.list("snapshots/pins/") == {}, "what they wrote is cleaned up"
    with pytest.raises(LeaseLost, match="the pins on checkpoints 2 ended"):
        second.renew()
    second.pin(2)
    assert live_pins(snapshots.store) == {2}
    second.close()
    assert live_pins(snapshots.store) == set()


def test_a_checkpoint_that_is_gone_cannot_be_pinned(snapshots: SnapshotRig) -> None:
    fill(snapshots)
    snapshots.collector().collect(NOTHING)
    pins = Pins(snapshots.store, "late")
    with pytest.raises(Truncated, match=r"checkpoint 1 is older.*is 3"):
        pins.pin(1)
    assert live_pins(snapshots.store) == set()
    pins.pin(3)


def test_a_pin_that_comes_while_garbage_is_collected_is_kept_or_refused(snapshots: SnapshotRig) -> None:
    """A reader writes his pin, then reads the floor; collection raises the floor, then reads the pins again."""
    outcomes = set()
    for moment in range(12):
        rig = SnapshotRig(snapshots.root / f"run {moment}")
        fill(rig, 2)
        old = rig.store.at(at(1))
        rig.compact(ACCOUNTS, level=BASE)
        reader = Pins(rig.store, "reader")
        calls = 0
        pinned = refused = False
        metadata = rig.metadata

        def fault(operation: str, key: str, done: bool) -> None:
            nonlocal calls, pinned, refused
            calls += 1
            if calls == moment + 1:  # noqa: B023
                metadata.fault = None  # noqa: B023
                try:
                    reader.pin(old.checkpoint)  # noqa: B023
                    pinned = True
                except Truncated:
                    refused = True
                metadata.fault = fault  # noqa: B023

        metadata.fault = fault
        rig.collector().collect(NOTHING)
        metadata.fault = None
        if pinned:
            assert [row["balance"] for row in rig.rows(ACCOUNTS, old)] == [1], f"pinned at call {moment}"
        outcomes.add((pinned, refused))
        rig.close()
    assert {(True, False), (False, True)} <= outcomes


def test_orphans_of_a_crashed_epoch_go_once_it_was_done_again(snapshots: SnapshotRig) -> None:
    """Fact 4: staging is cleared on recovery, files of it are collected later."""
    crashed = snapshots.stage(ACCOUNTS, [{"id": 1, "balance": 0}], 1)
    age(snapshots, crashed.path, hours=1000)
    snapshots.reopen()
    assert snapshots.collector().collect(ALL) == Collected(), "it may still be committed"
    again = snapshots.stage(ACCOUNTS, [{"id": 1, "balance": 1}], 1)
    snapshots.commit(again)
    assert snapshots.collector().collect(ALL) == Collected(files=1)
    assert snapshots.data_files() == {again.path}


def test_orphans_of_a_crashed_compaction_go_after_the_grace_time(snapshots: SnapshotRig) -> None:
    fill(snapshots, 1)
    left = snapshots.stage(ACCOUNTS, [{"id": 1}], 1, origin="c", level=BASE)
    before = snapshots.store.pointer()
    assert snapshots.collector().collect(ALL) == Collected()
    assert snapshots.store.pointer() == before
    age(snapshots, left.path)
    assert snapshots.collector().collect(ALL) == Collected(files=1)
    after = snapshots.store.pointer()
    assert after.version != before.version, "whoever has read the pointer before must read it again"
    assert after == Pointer(1, 1, at(1), 1, before.manifest, after.version)
    assert balances(snapshots, 1) == [1]


def test_a_commit_between_the_listing_and_the_fence_keeps_everything(snapshots: SnapshotRig) -> None:
    fill(snapshots, 2)
    inputs = snapshots.store.manifest().files(ACCOUNTS.id)
    output = snapshots.stage(ACCOUNTS, [{"id": 1, "balance": 9}], 2, origin="c", level=BASE, first=1, sorted=True)
    age(snapshots, output.path)
    done = False

    def fault(operation: str, key: str, after: bool) -> None:
        nonlocal done
        if operation == "list" and not done:  # the pins are read: the plan is about to be made
            done = True
            snapshots.store.replace_files(inputs, [output])

    snapshots.metadata.fault = fault
    snapshots.collector().collect(ALL)
    snapshots.metadata.fault = None
    assert done
    assert balances(snapshots, 2) == [9]


def test_a_manifest_of_a_crash_goes_and_history_stays(snapshots: SnapshotRig) -> None:
    fill(snapshots, 1)
    name, content = snapshots.store.manifest().numbered(2, "").encode("crashed")
    (snapshots.root / "manifests" / name).write_bytes(content)
    assert snapshots.collector().collect(ALL) == Collected(), "its number is not taken yet"
    fill(snapshots, 1)
    assert snapshots.collector().collect(ALL) == Collected(manifests=1)
    assert (balances(snapshots, 1), balances(snapshots, 2)) == ([1], [2])


def test_the_directory_of_a_dropped_table_goes_with_its_files(snapshots: SnapshotRig) -> None:
    fill(snapshots, 1)
    snapshots.write(EVENTS, [{"id": 1}])
    snapshots.commit(epoch=3, dropped=[ACCOUNTS.id])
    snapshots.collector().collect(NOTHING)
    assert [each.name for each in (snapshots.root / "tables").iterdir()] == [str(EVENTS.id)]


def test_a_table_with_a_shorter_retention_says_so_when_it_is_read_too_late(snapshots: SnapshotRig) -> None:
    fill(snapshots, 2)
    old = snapshots.store.at(at(1))
    snapshots.compact(ACCOUNTS, level=BASE)
    snapshots.collector().collect(Retention(tables={ACCOUNTS.id: 0}))
    assert snapshots.store.at(at(1)) == old
    with pytest.raises(Truncated, match="'accounts' at checkpoint 1 is older than its retention time; the oldest"):
        snapshots.rows(ACCOUNTS, old)


def test_a_table_with_a_longer_retention_is_readable_for_longer(snapshots: SnapshotRig) -> None:
    fill(snapshots, 2)
    snapshots.compact(ACCOUNTS, level=BASE)
    snapshots.collector().collect(Retention(0, {ACCOUNTS.id: 10**6}))
    assert balances(snapshots, 1) == [1]
    with Pins(snapshots.store, "reader").pinned(1):
        snapshots.collector().collect(NOTHING)
        assert [
            row["balance"]
            for row in snapshots.rows(
                ACCOUNTS,
                snapshots.store.read_manifest(
                    next(each.file for each in snapshots.store.history()[0] if each.checkpoint == 1), 1
                ),
            )
        ] == [1]


def test_what_a_dead_query_left_on_disk_is_removed(snapshots: SnapshotRig) -> None:
    for name, hours in (("dead", 25), ("alive", 1)):
        (snapshots.root / "spill" / name).mkdir(parents=True)
        (snapshots.root / "spill" / name / "x.tmp").touch()
        for path in (f"spill/{name}/x.tmp", f"spill/{name}"):
            age(snapshots, path, hours)
    snapshots.collector().collect(ALL)
    assert [each.name for each in (snapshots.root / "spill").iterdir()] == ["alive"]
