"""What the pipeline carries: bulk loads, freshness under small transactions, updates of large tables, many epochs.

Each measurement starts its own database, and with it Spark, and warms it up before it counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

import tidegate
from tidegate.bench.report import Report
from tidegate.bench.work import Measure, Work, measure_all
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import InvariantBroken

_BATCH: Final = 100_000
_COLUMNS: Final = "(id BIGINT PRIMARY KEY, owner STRING, balance BIGINT, rate DOUBLE)"
_WARM_S: Final = 120.0


def bulk(report: Report, work: Work) -> None:
    """Rows from append to visible in a checkpoint, against Spark reading and writing the same rows as Parquet."""
    count = work.pick(5_000_000, 20_000)
    with _database(work, "bulk.tide") as db:
        db.sql(f"CREATE TABLE t {_COLUMNS} SHARDS 4")
        _warm_up(db, "t")
        batches = [_rows(start, min(_BATCH, count - start)) for start in range(0, count, _BATCH)]
        before = _rss_mb()
        began = time.perf_counter()
        for batch in batches:
            db.insert("t", batch)
        db.flush(600)
        seconds = time.perf_counter() - began
        grown = _rss_mb() - before
        found = db.query("SELECT count(*) AS n FROM t WHERE id >= 0", "eventual").rows()[0]["n"]
        if found != count:
            raise InvariantBroken(f"{found:,} rows are in the checkpoint, not {count:,}")
        spark_s = _spark_copy(work, batches)
    report.add(
        "pipeline.bulk",
        count / seconds,
        "rows/s",
        against=f"500,000 rows/s (Spark, Parquet to Parquet: {count / spark_s:,.0f} rows/s)",
        ratio=count / seconds / 500_000,
        goal=">= 1.0",
    )
    report.add(
        "pipeline.bulk.memory", grown, "MB", against="500 MB, this process", ratio=max(grown, 0) / 500, goal="<= 1.0"
    )


def freshness(report: Report, work: Work) -> None:
    """From commit to visible in a checkpoint, at 5,000 rows a second in small transactions."""
    seconds, rate, each = work.pick(20.0, 2.0), 5_000, 10
    with _database(work, "fresh.tide") as db:
        db.sql(f"CREATE TABLE t {_COLUMNS}")
        _warm_up(db, "t")
        pipeline = db.engine.pipeline
        committed: list[tuple[int, float]] = []
        stop = threading.Event()
        seen: list[tuple[int, float]] = []

        def watch() -> None:
            last = pipeline.service_time
            while not stop.is_set():
                pipeline.wait_for(tidegate.Timestamp(int(last) + 1), 0.2)
                if pipeline.service_time > last:
                    last = pipeline.service_time
                    seen.append((int(last), time.perf_counter()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began, number = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < seconds:
            behind = number * each / rate - (now - began)
            if behind > 0:
                time.sleep(behind)
            with db.transaction() as txn:
                txn.upsert("t", [_row((number * each + at) % 100_000) for at in range(each)])
            committed.append((int(txn.commit_timestamp or 0), time.perf_counter()))
            number += 1
        spent = time.perf_counter() - began
        db.flush(60)
        time.sleep(0.3)
        stop.set()
        watcher.join()
    delays, at = [], 0
    for timestamp, when in committed:
        while seen[at][0] < timestamp:
            at += 1
        delays.append(max(seen[at][1] - when, 0.0))
    median, worst = float(np.median(delays)), float(np.percentile(delays, 99))
    reached = number * each / spent
    for name, value, goal_s in (("median", median, 1.5), ("p99", worst, 3.0)):
        report.add(
            f"pipeline.freshness.{name}",
            value * 1000,
            "ms",
            against=f"{goal_s * 1000:,.0f} ms, at {reached:,.0f} rows/s",
            ratio=value / goal_s,
            goal="<= 1.0",
        )


def updates(report: Report, work: Work) -> None:
    """One epoch that updates many rows of a large table, and few of a larger one."""
    for name, rows, changed, goal_s in (
        ("100k_of_1m", work.pick(1_000_000, 10_000), work.pick(100_000, 1_000), 2.0),
        ("1k_of_10m", work.pick(10_000_000, 20_000), work.pick(1_000, 100), 1.5),
    ):
        with _database(work, f"update-{name}.tide", barrier_interval_ms=600_000) as db:
            db.sql(f"CREATE TABLE t {_COLUMNS} SHARDS 2")
            _warm_up(db, "t")
            for start in range(0, rows, _BATCH):
                db.insert("t", _rows(start, min(_BATCH, rows - start)))
                if start % 1_000_000 == 0:
                    db.flush(600)
            db.flush(600)
            found = []
            for turn in range(work.pick(5, 1)):
                db.upsert("t", _rows(turn * changed, changed))
                began = time.perf_counter()
                db.flush(600)
                found.append(time.perf_counter() - began)
        value = float(np.median(found))
        report.add(
            f"pipeline.update.{name}",
            value * 1000,
            "ms",
            against=f"{goal_s * 1000:,.0f} ms for the epoch",
            ratio=value / goal_s,
            goal="<= 1.0",
        )


def epochs(report: Report, work: Work) -> None:
    """The time of an epoch after many of them, against that after few; and how many files there are.

    After few the JVM still warms up, which would hide an epoch that grows slower; so it is compared with that after a
    tenth of them as well.
    """
    count, few = work.pick(2_000, 30), work.pick(20, 10)
    warm = work.pick(200, 20)
    with _database(work, "epochs.tide", barrier_interval_ms=600_000) as db:
        db.sql(f"CREATE TABLE t {_COLUMNS}")
        _warm_up(db, "t")
        times, most = [], 0
        for number in range(count):
            db.upsert("t", [_row(id) for id in range(number % 1000, number % 1000 + 10)])
            began = time.perf_counter()
            db.flush(60)
            times.append(time.perf_counter() - began)
            if number % 50 == 0:
                most = max(most, len(db.engine.pipeline.store.manifest().paths))
    early, late = float(np.median(times[few : 5 * few])), float(np.median(times[-4 * few :]))
    report.add(
        "pipeline.epochs",
        late * 1000,
        "ms",
        against=f"after {few} epochs: {early * 1000:,.0f} ms; at most {most} files",
        ratio=late / early,
        goal="<= 1.2",
    )
    settled = float(np.median(times[warm : warm + few + 1]))
    report.add(
        "pipeline.epochs.warm",
        late * 1000,
        "ms",
        against=f"after {warm} epochs, with the JVM warm: {settled * 1000:,.0f} ms",
        ratio=late / settled,
        goal="<= 1.2",
    )


MEASURES: Final[dict[str, Measure]] = {
    "pipeline.bulk": bulk,
    "pipeline.freshness": freshness,
    "pipeline.update": updates,
    "pipeline.epochs": epochs,
}


run: Final = partial(measure_all, MEASURES)


@contextmanager
def _database(work: Work, name: str, *, barrier_interval_ms: int = 1_000) -> Iterator[Database]:
    settings = DatabaseSettings(barrier_interval_ms=barrier_interval_ms)
    with tidegate.open(work.directory / name, settings=settings) as db:
        yield db


def _warm_up(db: Database, table: str) -> None:
    """Start Spark, and let it meet rows: keys below zero, which nothing measured has."""
    for turn in range(3):
        db.insert(table, [_row(-1 - turn)])
        db.flush(_WARM_S)


def _row(id: int) -> dict[str, object]:
    return {"id": id, "owner": f"owner {id % 1000}", "balance": id * 7, "rate": id / 3}


def _rows(start: int, count: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count, dtype=np.int64)
    owners = pa.array([f"owner {number}" for number in range(1000)]).take(pa.array(ids % 1000))
    return pa.RecordBatch.from_pydict({"id": ids, "owner": owners, "balance": ids * 7, "rate": ids / 3})


def _spark_copy(work: Work, batches: list[pa.RecordBatch]) -> float:
    """Seconds that Spark takes to copy the same rows from Parquet to Parquet, in a session like the pipeline's."""
    import pyarrow.parquet as pq

    source = work.directory / "source"
    source.mkdir()
    for number in range(4):
        pq.write_table(
            pa.Table.from_batches(batches[number::4], schema=batches[0].schema), source / f"{number}.parquet"
        )
    script = (
        "import sys, time\n"
        "from tidegate.spark.session import start_session, stop_session\n"
        "work, source, target = sys.argv[1:]\n"
        "spark = start_session(work)\n"
        "spark.conf.set('spark.sql.codegen.wholeStage', 'true')\n"
        "spark.conf.set('spark.sql.codegen.factoryMode', 'FALLBACK')\n"
        "spark.read.parquet(source).limit(1000).write.parquet(target + '-warm')\n"
        "began = time.perf_counter()\n"
        "spark.read.parquet(source).write.parquet(target)\n"
        "print(time.perf_counter() - began)\n"
        "stop_session(spark, work)\n"
    )
    arguments = [str(work.directory / name) for name in ("spark", "source", "target")]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    return float(done.stdout.split()[-1])


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
