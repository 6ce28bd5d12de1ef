"""The whole pipeline on real Spark: a database, its worker, kills. Seed 001; promises 2, 6 and 7."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidegate
from helpers import eventually
from tidegate import Database, DatabaseSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]
FLUSH_S = 120.0


def rows(db: Database, sql: str = "SELECT * FROM t ORDER BY id") -> list[dict[str, Any]]:
    return db.query(sql, "eventual").rows()


def worker(db: Database) -> int:
    eventually(lambda: db.engine.pipeline.status()["worker"] is not None, 60)
    found = db.engine.pipeline.status()["worker"]
    assert isinstance(found, int)
    return found


def jvm_of(pid: int) -> int | None:
    """The JVM that a worker has started."""
    found = subprocess.run(["pgrep", "-g", str(pid), "-f", "org.apache.spark"], capture_output=True, text=True)
    pids = [int(each) for each in found.stdout.split() if int(each) != pid]
    return pids[0] if pids else None


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_runs_on_a_session_that_is_handed_over_and_leaves_it_alone(spark: SparkSession, tmp_path: Path) -> None:
    with tidegate.open(tmp_path / "shop.tide", settings=DatabaseSettings(barrier_interval_ms=200)) as db:
        db.run_pipeline_on(spark)
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 2")
        for number in range(4):
            db.insert("t", [{"id": id, "v": str(number)} for id in range(number, 8)])
            db.flush(FLUSH_S)
        assert [row["v"] for row in rows(db)] == ["0", "1", "2", "3", "3", "3", "3", "3"]
        assert worker(db) == os.getpid()
    assert spark.range(3).count() == 3
    assert not [each for each in spark.streams.active if each.name == "tidegate"]


def test_spark_finds_the_format_by_the_name_of_a_package() -> None:
    """`spark.read.format("tidegate")` needs no registration where the package is installed."""
    from pyspark_tidegate import DefaultSource

    assert DefaultSource.name() == "tidegate"


def test_tables_survive_the_death_of_the_worker_and_of_its_jvm(tmp_path: Path) -> None:
    """Recovery: after SIGKILL of either, starting again goes on from the last checkpoint; nothing acknowledged is lost,
    nothing is applied twice, and no process stays behind."""
    dice, model = random.Random(5), dict[int, int]()
    settings = DatabaseSettings(barrier_interval_ms=200)
    seen: list[int] = []
    with tidegate.open(tmp_path / "shop.tide", settings=settings) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT) SHARDS 2")
        db.sql("CREATE TABLE grows (v BIGINT)")
        count = 0

        def write(times: int) -> None:
            nonlocal count
            for _ in range(times):
                with db.transaction() as txn:
                    ids = dice.sample(range(50), 3)
                    txn.upsert("t", [{"id": id, "v": count} for id in ids])
                    txn.delete("t", ids[:1])
                    txn.insert("grows", [{"v": count}])
                model.update(dict.fromkeys(ids, count))
                del model[ids[0]]
                count += 1

        def check() -> None:
            db.flush(FLUSH_S)
            assert {row["id"]: row["v"] for row in rows(db)} == model
            assert [row["v"] for row in rows(db, "SELECT v FROM grows ORDER BY v")] == list(range(count))

        write(20)
        check()
        pid = worker(db)
        jvm = jvm_of(pid)
        assert jvm is not None
        seen += [pid, jvm]
        write(20)
        os.kill(jvm, signal.SIGKILL)
        write(20)
        eventually(lambda: not is_alive(pid), 60)
        check()
        pid = worker(db)
        assert pid not in seen
        seen.append(pid)
        write(5)
        os.kill(pid, signal.SIGKILL)
        write(5)
        check()
        last = worker(db)
        seen += [last, *filter(None, [jvm_of(last)])]
    eventually(lambda: not any(is_alive(each) for each in seen), 30)
    with tidegate.open(tmp_path / "shop.tide", settings=DatabaseSettings(pipeline=False)) as db:
        found = db.query("SELECT * FROM t").rows()
        assert {row["id"]: row["v"] for row in found} == model


def test_on_a_cluster_of_two_the_death_of_an_executor_is_no_more_than_a_delay(tmp_path: Path) -> None:
    """`spark.master` is the user's to choose. Tasks of an executor that is killed are run by the other one."""
    options = {"spark.master": "local-cluster[2,1,512]", "spark.executor.memory": "512m"}
    settings = DatabaseSettings(barrier_interval_ms=60_000, spark_options=options)
    with tidegate.open(tmp_path / "shop.tide", settings=settings) as db:
        db.sql("CREATE TABLE grows (v BIGINT) SHARDS 4")
        count = 0
        for turn in range(3):
            db.insert("grows", [{"v": count + number} for number in range(100)])
            count += 100
            if turn:
                executors = subprocess.run(
                    ["pgrep", "-g", str(worker(db)), "-f", "CoarseGrainedExecutorBackend"],
                    capture_output=True,
                    text=True,
                ).stdout.split()
                assert executors
                os.kill(int(executors[0]), signal.SIGKILL)
            db.flush(FLUSH_S)
            assert [row["v"] for row in rows(db, "SELECT v FROM grows ORDER BY v")] == list(range(count))


OWNER = """
import sys, time, tidegate
from tidegate import DatabaseSettings
with tidegate.open(sys.argv[1], settings=DatabaseSettings(barrier_interval_ms=200)) as db:
    db.sql("CREATE TABLE grows (v BIGINT) SHARDS 2")
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT)")
    for number in range(1_000_000):
        with db.transaction() as txn:
            txn.insert("grows", [{"v": number}])
            txn.upsert("t", [{"id": number % 7, "v": number}])
        print(number, db.engine.pipeline.pointer.epoch, db.engine.pipeline.status()["worker"], flush=True)
        time.sleep(0.01)
"""


def test_tables_survive_the_death_of_the_owner(tmp_path: Path) -> None:
    """SIGKILL of the process that owns the database, with checkpoints under way: its worker and JVM end by themselves,
    and the next owner goes on from the last checkpoint with everything that was acknowledged."""
    path = tmp_path / "shop.tide"
    with subprocess.Popen([sys.executable, "-c", OWNER, str(path)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        acknowledged, worker_pid = -1, 0
        for line in owner.stdout:
            number, epoch, pid = line.split()
            acknowledged = int(number)
            if int(epoch) >= 3 and pid != "None":
                worker_pid = int(pid)
                break
        group = subprocess.run(["pgrep", "-g", str(worker_pid)], capture_output=True, text=True).stdout.split()
        assert len(group) >= 2, "the worker and its JVM"
        owner.kill()
        rest = [line for line in owner.stdout if line.endswith("\n")]
        if rest:
            acknowledged = int(rest[-1].split()[0])
    eventually(lambda: not any(is_alive(int(each)) for each in group), 60)
    with tidegate.open(path) as db:
        db.flush(FLUSH_S)
        found = [row["v"] for row in rows(db, "SELECT v FROM grows ORDER BY v")]
        assert found == list(range(len(found))) and len(found) in (acknowledged + 1, acknowledged + 2)
        last = len(found) - 1
        expected = {number % 7: number for number in range(max(0, last - 6), last + 1)}
        assert {row["id"]: row["v"] for row in rows(db)} == expected
