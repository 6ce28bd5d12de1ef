"""The pipeline without Spark: barriers, cuts, a worker that folds, checkpoints. Seed 001, promises 2, 6 and 7."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from folding import Crash, folding
from helpers import eventually
from tidegate import Database, DatabaseSettings, Timestamp
from tidegate.database import engine as engine_module
from tidegate.errors import InvalidArgument, Retryable, Unavailable, WaitTimeout
from tidegate.pipeline.machines import now_ms
from tidegate.pipeline.upkeep import Upkeep
from tidegate.runtime.settings import LogSettings

Opening = Callable[..., Database]


@pytest.fixture
def open_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    """Opens the database of the test, again and again if need be; `crash` says when its worker dies."""
    opened: list[Database] = []

    def shop(crash: Crash = lambda *_: False, **settings: Any) -> Database:
        while opened:
            opened.pop().close()
        monkeypatch.setattr(engine_module, "spark_worker", folding(crash))
        made = DatabaseSettings(
            log=LogSettings(tick_interval_ms=20), **{"channels": 2, "barrier_interval_ms": 50, **settings}
        )
        opened.append(tidegate.open(tmp_path / "shop.tide", settings=made))
        return opened[-1]

    yield shop
    for each in opened:
        each.close()


def at_checkpoint(db: Database, sql: str = "SELECT * FROM t ORDER BY id") -> list[dict[str, Any]]:
    return db.query(sql, "eventual").rows()


def at_rest(db: Database) -> int:
    """Wait until what was written is in a checkpoint and no barrier is due or under way; the epoch then."""
    pipeline = db.engine.pipeline

    def is_at_rest() -> bool:
        with pipeline._lock:
            machines = pipeline._machines
            return (
                machines is not None
                and not pipeline._is_dirty
                and not machines.alignment.pending
                and not machines.epochs.uncommitted
                and machines.clock.taken_ms is not None
                and now_ms() - machines.clock.taken_ms > machines.clock.settings.interval_ms
            )

    eventually(is_at_rest, 20, "rest")
    return int(pipeline.pointer.epoch)


def test_a_flush_makes_a_checkpoint_of_everything_written_before(open_shop: Opening) -> None:
    """Seed 001: FLUSH; design: `db.flush()`."""
    db = open_shop()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    db.insert("t", [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    db.delete("t", [2])
    sent = db.insert("t", {"id": 3, "v": "c"})
    flushed = db.flush()
    assert flushed > sent.timestamp
    assert at_checkpoint(db) == [{"id": 1, "v": "a"}, {"id": 3, "v": "c"}]
    assert db.query("SELECT 1 AS one FROM t LIMIT 1", "eventual").timestamp >= flushed


def test_without_being_asked_it_takes_a_barrier_every_interval_while_something_is_written(open_shop: Opening) -> None:
    """Seed 001, C6; an idle database makes no checkpoints."""
    db = open_shop()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    db.insert("t", {"id": 1, "v": "a"})
    eventually(lambda: at_checkpoint(db) == [{"id": 1, "v": "a"}])
    pipeline = db.engine.pipeline
    epoch = at_rest(db)
    time.sleep(0.5)
    assert pipeline.pointer.epoch == epoch, "nothing was written"
    db.insert("t", {"id": 2, "v": "b"})
    eventually(lambda: len(at_checkpoint(db)) == 2)


def test_a_transaction_over_tables_and_channels_is_in_one_checkpoint_or_in_none(open_shop: Opening) -> None:
    """Promise 2. Money moves between tables on different channels; every checkpoint has all of it."""
    db = open_shop()
    for name in "abc":
        db.sql(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, n BIGINT) SHARDS 2")
        db.insert(name, [{"id": id, "n": 100} for id in range(4)])
    db.flush()
    have = {(name, id): 100 for name in "abc" for id in range(4)}
    dice, sums = random.Random(1), set()
    for _ in range(60):
        one, other = dice.sample(sorted(have), 2)
        have[one] -= 7
        have[other] += 7
        with db.transaction() as txn:
            for name, id in (one, other):
                txn.upsert(name, [{"id": id, "n": have[name, id]}])
        found = at_checkpoint(
            db, "SELECT sum(n) AS s FROM (SELECT n FROM a UNION ALL SELECT n FROM b UNION ALL SELECT n FROM c)"
        )
        sums.add(int(found[0]["s"]))
    assert sums == {1200}
    db.flush()
    for name in "abc":
        rows = at_checkpoint(db, f"SELECT * FROM {name} ORDER BY id")
        assert rows == [{"id": id, "n": have[name, id]} for id in range(4)]


@pytest.mark.parametrize("point", ["folded", "reported"])
def test_a_worker_that_dies_is_started_again_and_nothing_is_lost_or_done_twice(open_shop: Opening, point: str) -> None:
    """Seed 001: an epoch whose worker died is not committed, and done again. Promise 7."""
    died: list[int] = []

    def crash(at: str, epoch: int) -> bool:
        if at == point and len(died) < 2 and epoch > 1:
            died.append(epoch)
            return True
        return False

    db = open_shop(crash)
    db.sql("CREATE TABLE grows (v STRING)")
    for number in range(6):
        db.insert("grows", {"v": str(number)})
        if not died or number > 2:
            db.flush()
    db.flush()
    assert len(died) == 2
    assert [row["v"] for row in at_checkpoint(db, "SELECT v FROM grows ORDER BY v")] == list("012345")
    assert db.engine.pipeline.failure is None


def test_the_next_owner_goes_on_from_the_last_checkpoint(open_shop: Opening) -> None:
    """Recovery: the pointer and the recorded cuts are all it needs."""
    db = open_shop()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    db.insert("t", {"id": 1, "v": "a"})
    db.flush()
    before = db.engine.pipeline.pointer
    db.insert("t", {"id": 2, "v": "b"})
    for number in range(3):
        db = open_shop()
        assert db.engine.pipeline.pointer.epoch >= before.epoch
        db.insert("t", {"id": 10 + number, "v": "c"})
        flushed = db.flush()
        assert flushed > before.timestamp
        before = db.engine.pipeline.pointer
    assert [row["id"] for row in at_checkpoint(db)] == [1, 2, 10, 11, 12]


def test_a_change_of_a_table_takes_effect_at_one_epoch(open_shop: Opening) -> None:
    """Barriers carry DDL: what a checkpoint shows is read by the schema of its time."""
    db = open_shop(barrier_interval_ms=10_000)
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING)")
    db.insert("t", {"id": 1, "v": "a"})
    old = db.flush()
    db.sql("ALTER TABLE t RENAME COLUMN v TO w")
    db.sql("ALTER TABLE t ADD COLUMN n BIGINT")
    db.insert("t", {"id": 2, "w": "b", "n": 5})
    new = db.flush()
    assert at_checkpoint(db) == [{"id": 1, "w": "a", "n": None}, {"id": 2, "w": "b", "n": 5}]
    assert db.query("SELECT * FROM t ORDER BY id", new).rows() == at_checkpoint(db)
    assert db.query("SELECT * FROM t ORDER BY id", old).rows() == [{"id": 1, "v": "a"}]


def test_a_dropped_table_ends_with_its_checkpoint_and_comes_back_empty(open_shop: Opening) -> None:
    db = open_shop()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.insert("t", {"id": 1})
    db.flush()
    table = db.table("t").table.id
    db.sql("DROP TABLE t")
    db.flush()
    assert db.engine.pipeline.store.manifest().files(table) == ()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.flush()
    assert at_checkpoint(db) == []


def test_without_a_pipeline_a_flush_says_so_at_once(open_shop: Opening) -> None:
    db = open_shop(pipeline=False)
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.insert("t", {"id": 1})
    with pytest.raises(Unavailable, match="without a pipeline"):
        db.flush()
    assert db.query("SELECT * FROM t").rows() == [{"id": 1}], "strong reads need none"


def test_a_worker_that_always_fails_is_told_of_instead_of_waited_for(open_shop: Opening) -> None:
    """Promise 8."""
    db = open_shop(lambda *_: True)
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.insert("t", {"id": 1})
    with pytest.raises(Unavailable, match="it crashed as it was told to"):
        db.flush(30)
    assert "it crashed" in db.engine.pipeline.status()["failure"]


def test_a_flush_that_waits_for_too_long_says_what_for(open_shop: Opening) -> None:
    """Promise 8: a held place in a channel keeps its ticks, and so every barrier, below it."""
    db = open_shop()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.flush()
    writer = db.engine.log.channel("data-1")
    with writer.reserve("x"), pytest.raises(WaitTimeout, match="data-1 did not tick past"):
        db.flush(0.5)
    assert db.flush() > Timestamp.ZERO


def test_paused_it_makes_no_checkpoint_and_says_so(open_shop: Opening) -> None:
    db = open_shop()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.flush()
    db.pause_pipeline()
    db.insert("t", {"id": 1})
    with pytest.raises(Retryable, match="paused"):
        db.flush(5)
    assert at_checkpoint(db) == []
    db.resume_pipeline()
    eventually(lambda: at_checkpoint(db) == [{"id": 1}])


def test_how_often_barriers_come_can_be_changed_while_it_runs(open_shop: Opening) -> None:
    """Seed 001: `barrier_interval_ms`; both settings take effect at once, through another process too."""
    db = open_shop(barrier_interval_ms=600_000)
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.flush()
    with tidegate.open(db.path) as other:
        assert not other.is_owner
        other.insert("t", {"id": 1})
        other.set_barriers(50)
        eventually(lambda: at_checkpoint(db) == [{"id": 1}])
        with pytest.raises(InvalidArgument, match="at least 50 ms"):
            other.set_barriers(49)
        other.set_barriers(600_000, checkpoint_every=5)
        other.insert("t", {"id": 2})
        assert other.flush() > Timestamp.ZERO
        assert [row["id"] for row in at_checkpoint(other)] == [1, 2]


def test_the_same_rows_come_from_checkpoints_and_from_the_log(open_shop: Opening) -> None:
    """Random writes, a checkpoint now and then: strong reads, checkpoints and a model agree at every Timestamp."""
    db = open_shop(barrier_interval_ms=60_000)
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT) SHARDS 3")
    dice, model, known = random.Random(7), dict[int, int](), []
    for step in range(80):
        with db.transaction() as txn:
            for _ in range(dice.randint(1, 4)):
                id = dice.randrange(20)
                if dice.random() < 0.3:
                    txn.delete("t", [id])
                    model.pop(id, None)
                else:
                    txn.upsert("t", {"id": id, "v": step})
                    model[id] = step
        assert txn.commit_timestamp is not None
        known.append((txn.commit_timestamp, dict(model)))
        if dice.random() < 0.15:
            db.flush()
            assert {row["id"]: row["v"] for row in at_checkpoint(db)} == model
    for timestamp, expected in dice.sample(known, 25):
        rows = db.query("SELECT * FROM t", timestamp).rows()
        assert {row["id"]: row["v"] for row in rows} == expected


def test_upkeep_keeps_files_few_and_changes_no_answer(open_shop: Opening) -> None:
    """Snapshots are compacted beside the pipeline; every checkpoint that is kept reads as before."""
    db = open_shop(barrier_interval_ms=60_000)
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT) SHARDS 2")
    db.sql("CREATE TABLE grows (v BIGINT)")
    store = db.engine.pipeline.store
    upkeep = Upkeep(db.path, store, 3600)
    dice, model, known, most = random.Random(3), dict[int, int](), list[tuple[Timestamp, dict[int, int]]](), 0
    for step in range(60):
        ids = dice.sample(range(200), 8)
        db.upsert("t", [{"id": id, "v": step} for id in ids])
        db.delete("t", ids[:2])
        db.insert("grows", {"v": step})
        model.update(dict.fromkeys(ids, step))
        for id in ids[:2]:
            del model[id]
        known.append((db.flush(), dict(model)))
        while upkeep.compact_once():
            pass
        most = max(most, len(store.manifest().paths))
    assert upkeep.compactions > 5 and most < 60, "layers of 60 epochs and 3 shards would be 180"
    upkeep.collect()
    for timestamp, expected in [*dice.sample(known, 10), known[-1]]:
        assert {row["id"]: row["v"] for row in db.query("SELECT * FROM t", timestamp).rows()} == expected
    assert [row["v"] for row in at_checkpoint(db, "SELECT v FROM grows ORDER BY v")] == list(range(60))


def test_opening_a_database_where_nothing_was_written_makes_no_epoch_and_starts_no_worker(open_shop: Opening) -> None:
    """Looking at a database must not change it."""
    db = open_shop()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.insert("t", {"id": 1})
    db.flush()
    epoch = at_rest(db)
    for _ in range(2):
        db = open_shop()
        time.sleep(0.4)
        status = db.engine.pipeline.status()
        assert (status["epoch"], status["uncommitted_epochs"], status["worker"]) == (epoch, 0, None)
    db.insert("t", {"id": 2})
    db = open_shop()
    eventually(lambda: [row["id"] for row in at_checkpoint(db)] == [1, 2], 20)


def test_a_table_may_have_a_retention_of_its_own(open_shop: Opening) -> None:
    db = open_shop()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY) TBLPROPERTIES ('retention_s' = '60')")
    assert db.table("t").table.options == {"retention_s": 60}
    assert "'retention_s' = '60'" in db.sql("SHOW CREATE TABLE t")[0]["statement"]
    with pytest.raises(InvalidArgument, match="`retention_s` is at least 60, not 59"):
        db.sql("CREATE TABLE u (id BIGINT PRIMARY KEY) TBLPROPERTIES ('retention_s' = '59')")
    db.insert("t", {"id": 1})
    db.flush()
    Upkeep(db.path, db.engine.pipeline.store, 3600).collect()
    assert at_checkpoint(db) == [{"id": 1}]
