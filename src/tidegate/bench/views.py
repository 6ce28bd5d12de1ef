"""What views cost: sums and a join with retractions against Spark's own streaming, small changes against large views.

Both sides read the same log: ours folds it and keeps table and view, Spark's streaming reads it through
`format("tidegate")` and keeps its state. Each measurement starts its own database, and with it Spark.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import tidegate
from tidegate.bench.report import Report
from tidegate.bench.work import Measure, Work, measure_all
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import InvariantBroken

_BATCH: Final = 100_000
_WARM_S: Final = 180.0
_REGIONS: Final = 50

SUMS: Final = "SELECT key, sum(amount) AS total, count(*) AS n FROM events GROUP BY key"
BY_REGION: Final = (
    "SELECT c.region, sum(o.amount) AS total, count(*) AS n FROM orders o JOIN customers c ON o.customer = c.id"
    " GROUP BY c.region"
)


def keyed(report: Report, work: Work) -> None:
    """Sums by key while rows come and, one of five, go; against Spark's streaming sums, which cannot take away."""
    changes, keys = work.pick(5_000_000, 20_000), work.pick(100_000, 500)
    with _database(work, "keyed.tide", barrier_interval_ms=600_000) as db:
        db.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, key BIGINT, amount BIGINT) SHARDS 4")
        db.sql(f"CREATE MATERIALIZED VIEW sums AS {SUMS}")
        _warm_up(db, "events", {"id": -1, "key": -1, "amount": 0})
        db.pause_pipeline()
        written = 0
        while written < changes:
            count = min(_BATCH, changes - written)
            added = count * 4 // 5
            first = written * 4 // 5
            db.insert("events", _events(first, added, keys))
            # Those of an earlier batch, so that both are there to be seen.
            gone = max(first - 5 * added, 0)
            db.delete("events", [int(id) for id in range(gone, gone + count - added)] if first else [])
            written += count
        ours = _until_flushed(db)
        _check(db, "sums", SUMS)
        theirs = _spark_stream(work.directory / "keyed.tide", "keyed", work)
    report.add(
        "views.keyed_aggregation",
        changes / ours,
        "changes/s",
        against=f"Spark's streaming aggregation of the same log: {changes / theirs:,.0f} changes/s",
        ratio=theirs / ours,
        goal=">= 0.8",
    )


def joined(report: Report, work: Work) -> None:
    """Orders, some updated, joined with changing customers and grouped; against Spark's stream-stream join."""
    orders, customers = work.pick(2_000_000, 10_000), work.pick(200_000, 500)
    with _database(work, "joined.tide", barrier_interval_ms=600_000) as db:
        db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, amount BIGINT) SHARDS 2")
        db.sql("CREATE TABLE customers (id BIGINT PRIMARY KEY, region BIGINT) SHARDS 2")
        db.sql(f"CREATE MATERIALIZED VIEW by_region AS {BY_REGION}")
        _warm_up(db, "orders", {"id": -1, "customer": -1, "amount": 0})
        db.pause_pipeline()
        db.insert("customers", _customers(0, customers, 0))
        new = orders * 9 // 10
        for start in range(0, new, _BATCH):
            db.insert("orders", _orders(start, min(_BATCH, new - start), customers, 0))
        for start in range(0, orders - new, _BATCH):
            db.upsert("orders", _orders(start * 3, min(_BATCH, orders - new - start), customers, 1))
        db.upsert("customers", _customers(0, customers // 10, 1))
        ours = _until_flushed(db)
        _check(db, "by_region", BY_REGION)
        theirs = _spark_stream(work.directory / "joined.tide", "joined", work)
    changes = orders + customers + customers // 10
    report.add(
        "views.join",
        changes / ours,
        "changes/s",
        against=f"Spark's stream-stream join, which takes nothing back: {changes / theirs:,.0f} changes/s",
        ratio=theirs / ours,
        goal=">= 5",
    )


def strong(report: Report, work: Work) -> None:
    """A strong read of sums over a large table while it is written to."""
    rows, seconds = work.pick(1_000_000, 10_000), work.pick(15.0, 2.0)
    with _database(work, "strong.tide") as db:
        db.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, key BIGINT, amount BIGINT) SHARDS 2")
        db.sql(f"CREATE MATERIALIZED VIEW sums AS {SUMS}")
        for start in range(0, rows, _BATCH):
            db.insert("events", _events(start, min(_BATCH, rows - start), 1000))
        db.flush(_WARM_S)
        stop = threading.Event()
        written = [0]

        def write() -> None:
            began = time.perf_counter()
            while not stop.is_set():
                ahead = written[0] / 2_000 - (time.perf_counter() - began)
                if ahead > 0:
                    time.sleep(ahead)
                start = (written[0] * 37) % rows
                db.upsert("events", [{"id": start + at, "key": at, "amount": at} for at in range(10)])
                written[0] += 10

        writer = threading.Thread(target=write)
        pipeline = db.engine.pipeline
        before_rows = pipeline.service_time
        writer.start()
        if not pipeline.wait_for(before_rows.next(), _WARM_S):
            raise InvariantBroken("no checkpoint came while rows were written")
        times, how = [], set()
        began, before = time.perf_counter(), written[0]
        while time.perf_counter() - began < seconds:
            at = time.perf_counter()
            found = db.query("SELECT sum(total) AS total, count(*) AS n FROM sums", "strong")
            times.append(time.perf_counter() - at)
            how.add(found.views["sums"])
            time.sleep(0.05)
        rate = (written[0] - before) / (time.perf_counter() - began)
        stop.set()
        writer.join()
    value = statistics.median(times)
    report.add(
        "views.strong",
        value * 1000,
        "ms",
        against=f"200 ms, while {rate:,.0f} rows/s are written; the view was {' and '.join(sorted(how))}",
        ratio=value / 0.2,
        goal="<= 1.0",
    )


def small_changes(report: Report, work: Work) -> None:
    """One epoch of 1,000 changed rows against a join view of a million rows, and of ten; and against ten views."""
    one = _epoch_s(work, "1m", work.pick(1_000_000, 10_000), 1)
    report.add("views.epoch.1m", one * 1000, "ms", against="800 ms", ratio=one / 0.8, goal="<= 1.0")
    ten_views = _epoch_s(work, "10v", work.pick(1_000_000, 10_000), 10)
    report.add(
        "views.epoch.ten_views", ten_views * 1000, "ms", against="one view", ratio=ten_views / one, goal="<= 4.0"
    )
    large = _epoch_s(work, "10m", work.pick(10_000_000, 50_000), 1)
    report.add("views.epoch.10m", large * 1000, "ms", against="a million rows", ratio=large / one, goal="<= 2.0")


def history(report: Report, work: Work) -> None:
    """The time of an epoch after a thousand of them, against the start."""
    count, few = work.pick(1_000, 30), work.pick(100, 10)
    with _database(work, "history.tide", barrier_interval_ms=600_000) as db:
        _shop(db, work.pick(100_000, 2_000), 1)
        times = []
        for number in range(count):
            db.upsert("orders", _orders(number * 10 % 50_000, 100, 1_000, number))
            began = time.perf_counter()
            db.flush(_WARM_S)
            times.append(time.perf_counter() - began)
        _check(db, "lines0", _lines(0))
    early, late = statistics.median(times[few // 2 : few + few // 2]), statistics.median(times[-few:])
    report.add(
        "views.epochs",
        late * 1000,
        "ms",
        against=f"at the start: {early * 1000:,.0f} ms",
        ratio=late / early,
        goal="<= 1.2",
    )


MEASURES: Final[dict[str, Measure]] = {
    "views.keyed_aggregation": keyed,
    "views.join": joined,
    "views.strong": strong,
    "views.epoch": small_changes,
    "views.epochs": history,
}


run: Final = partial(measure_all, MEASURES)


# -- databases -------------------------------------------------------------------------------------------------------


@contextmanager
def _database(work: Work, name: str, *, barrier_interval_ms: int = 1_000) -> Iterator[Database]:
    settings = DatabaseSettings(barrier_interval_ms=barrier_interval_ms)
    with tidegate.open(work.directory / name, settings=settings) as db:
        yield db


def _warm_up(db: Database, table: str, row: dict[str, Any]) -> None:
    """Start Spark, and let it meet rows."""
    for _ in range(3):
        db.upsert(table, [row])
        db.flush(_WARM_S)


def _until_flushed(db: Database) -> float:
    """Seconds until all that was written while the pipeline stood still is in a checkpoint."""
    began = time.perf_counter()
    db.resume_pipeline()
    db.flush(1_200)
    return time.perf_counter() - began


def _check(db: Database, view: str, sql: str) -> None:
    """Raises: `InvariantBroken` when the stored view is not what its query gives at the same checkpoint."""
    stored = db.query(f"SELECT * FROM {view}", "eventual")
    computed = db.query(sql, stored.timestamp)
    if stored.views[view] != "stored" or _sorted(stored) != _sorted(computed):
        raise InvariantBroken(f"view {view!r} is not what its query gives at {stored.timestamp}")


def _sorted(found: Any) -> list[str]:
    return sorted(json.dumps(each, default=str) for each in found.rows())


def _shop(db: Database, rows: int, views: int) -> None:
    db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, amount BIGINT) SHARDS 2")
    db.sql("CREATE TABLE customers (id BIGINT PRIMARY KEY, region BIGINT)")
    db.insert("customers", _customers(0, 1_000, 0))
    for start in range(0, rows, _BATCH):
        db.insert("orders", _orders(start, min(_BATCH, rows - start), 1_000, 0))
    db.flush(_WARM_S)
    for number in range(views):
        db.sql(f"CREATE MATERIALIZED VIEW lines{number} AS {_lines(number)}")
    wait_live(db)


def wait_live(db: Database, timeout_s: float = 600.0) -> None:
    """Until all views are filled. Raises: `InvariantBroken` when they are not in time."""
    deadline = time.monotonic() + timeout_s
    while any(each["state"] != "live" for each in db.sql("SHOW MATERIALIZED VIEWS")):
        if time.monotonic() > deadline:
            raise InvariantBroken(f"views are not filled: {db.sql('SHOW MATERIALIZED VIEWS')}")
        db.flush(_WARM_S)
        time.sleep(0.1)


def _lines(number: int) -> str:
    return f"SELECT o.id, o.amount + {number} AS amount, c.region FROM orders o JOIN customers c ON o.customer = c.id"


def _epoch_s(work: Work, name: str, rows: int, views: int) -> float:
    with _database(work, f"epoch-{name}.tide", barrier_interval_ms=600_000) as db:
        _shop(db, rows, views)
        times = []
        for turn in range(work.pick(12, 2)):
            db.upsert("orders", _orders(turn * 5_000 % rows, 1_000, 1_000, turn + 1))
            began = time.perf_counter()
            db.flush(_WARM_S)
            times.append(time.perf_counter() - began)
    return statistics.median(times[len(times) // 4 :])


def _events(start: int, count: int, keys: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count, dtype=np.int64)
    return pa.RecordBatch.from_pydict({"id": ids, "key": (ids * 2_654_435_761) % keys, "amount": ids % 1_000})


def _orders(start: int, count: int, customers: int, turn: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count, dtype=np.int64)
    return pa.RecordBatch.from_pydict(
        {"id": ids, "customer": (ids * 7_919 + turn) % customers, "amount": ids % 500 + turn}
    )


def _customers(start: int, count: int, turn: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count, dtype=np.int64)
    return pa.RecordBatch.from_pydict({"id": ids, "region": (ids + turn) % _REGIONS})


# -- Spark's own streaming -------------------------------------------------------------------------------------------

_STREAMS: Final = """
import sys, time
from pyspark.sql import functions as F
from tidegate.spark.session import start_session, stop_session
work, path, which = sys.argv[1:]
spark = start_session(work)
spark.conf.set("spark.sql.codegen.wholeStage", "true")
spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
spark.conf.set("spark.sql.shuffle.partitions", "2")
spark.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
def stream(table):
    return spark.readStream.format("tidegate").option("path", path).option("table", table).load()
def weighted(frame):
    return frame.where("_op = 1")
if which == "keyed":
    found = weighted(stream("events")).groupBy("key").agg(F.sum("amount"), F.count("*"))
    mode = "update"
else:
    orders, customers = weighted(stream("orders")), weighted(stream("customers")).withColumnRenamed("id", "cid")
    joined = orders.join(customers, orders.customer == customers.cid)
    found, mode = joined.groupBy("region").agg(F.sum("amount"), F.count("*")), "update"
for turn in ("warm", "measured"):
    began = time.perf_counter()
    query = found.writeStream.outputMode(mode).format("noop").option("checkpointLocation", f"{work}/state-{turn}")
    query.trigger(availableNow=True).start().awaitTermination()
    print(time.perf_counter() - began)
stop_session(spark, work)
"""


def _spark_stream(path: Path, which: str, work: Work) -> float:
    """Seconds that Spark's own streaming takes for the log of a database, the second time, when Java is warm."""
    done = subprocess.run(
        [sys.executable, "-c", _STREAMS, str(work.directory / "spark-own"), str(path), which],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise InvariantBroken(f"Spark's own stream ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return float(done.stdout.split()[-1])
