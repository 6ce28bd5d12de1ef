"""Commits, compaction, garbage collection and readers at once, on one directory, through the real metadata store."""

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from snapshot_rig import ACCOUNTS, SMALL, at

from tidegate.errors import Conflict, Truncated
from tidegate.snapshots.collector import Collector
from tidegate.snapshots.compaction import Compactor
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.pins import Pins
from tidegate.snapshots.plan_gc import Retention
from tidegate.snapshots.reader import SnapshotReader
from tidegate.snapshots.store import SnapshotStore
from tidegate.stores.sqlite_metadata import SqliteMetadataStore

EPOCHS = 40
COUNT = 50


@pytest.mark.slow
def test_money_is_never_torn_while_everything_goes_on_and_nothing_is_kept_but_pins(tmp_path: Path) -> None:
    """Promises 2, 4 and 5: each epoch moves money; the sum never changes, and no reader goes back.

    Without any retention only the pins keep what is being read.
    """
    metadata = SqliteMetadataStore(tmp_path / "metadata.db")
    store = SnapshotStore(tmp_path / "snapshots", metadata)
    done = threading.Event()
    failures: list[BaseException] = []
    reads: list[int] = []
    compactions: list[int] = []
    deleted: list[int] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)
                done.set()

        return run

    def write(epoch: int, balances: dict[int, int]) -> None:
        with LayerWriter(store.root, ACCOUNTS.id, ACCOUNTS.schema, shard=0, first=epoch, last=epoch) as writer:
            columns = {
                "id": list(balances),
                "balance": list(balances.values()),
                "_ts": [int(at(epoch))] * len(balances),
            }
            writer.write(pa.table(columns))
            entry = writer.close()
        assert entry is not None
        store.commit(store.pointer(), added=[entry], epoch=epoch, timestamp=at(epoch), term=1)

    def writing() -> None:
        rng = Random(7)
        balances = dict.fromkeys(range(COUNT), 100)
        for epoch in range(2, EPOCHS + 2):
            one, two = rng.sample(range(COUNT), 2)
            balances[one] -= epoch
            balances[two] += epoch
            write(epoch, {one: balances[one], two: balances[two]})
        done.set()

    def compacting() -> None:
        own = SnapshotStore(store.root, metadata)
        compactor = Compactor(own, tiers=SMALL, memory_limit="100MB")
        while not done.is_set():
            for job in compactor.due(own.manifest(), set()):
                try:
                    compactor.run(job, ACCOUNTS)
                    compactions.append(job.level)
                except Conflict:
                    pass

    def collecting() -> None:
        collector = Collector(SnapshotStore(store.root, metadata))
        while not done.wait(0.01):
            deleted.append(collector.collect(Retention(0)).files)

    def reading() -> None:
        own = SnapshotStore(store.root, metadata)
        reader = SnapshotReader(own, threads=1, memory_limit="100MB")
        pins = Pins(own, threading.current_thread().name)
        newest = 0
        while not done.is_set():
            pointer = own.pointer()
            try:
                pins.pin(pointer.checkpoint)
            except Truncated:
                continue
            found = reader.read_all(own.manifest(pointer), ACCOUNTS, columns=["balance"])["balance"].to_pylist()
            pins.unpin(pointer.checkpoint)
            assert (len(found), sum(found)) == (COUNT, 100 * COUNT), f"torn at checkpoint {pointer.checkpoint}"
            assert pointer.epoch >= newest
            newest = pointer.epoch
            reads.append(newest)
        pins.close()
        reader.close()

    write(1, dict.fromkeys(range(COUNT), 100))
    threads = [threading.Thread(target=guarded(work)) for work in (writing, compacting, collecting, reading, reading)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    metadata.close()
    if failures:
        raise failures[0]
    assert reads and compactions and sum(deleted), "all of them had something to do"
