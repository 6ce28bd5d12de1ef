"""How fast reads are: points and aggregates against DuckDB on one plain Parquet file, with layers, while rows come in.

Checkpoints of large tables are written here as the pipeline writes them, without Spark; where rows come in, or a flush
is measured, the real pipeline runs.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidegate
from tidegate.bench.first_answer import command_s, shell_s
from tidegate.bench.report import Report, alternate
from tidegate.bench.work import Measure, Work, measure_all
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import InvariantBroken
from tidegate.snapshots.compaction import Compactor
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import BASE
from tidegate.snapshots.plan_compaction import CompactionJob
from tidegate.tables.schema import OP, SEQ, TS

_COLUMNS: Final = "(id BIGINT PRIMARY KEY, owner STRING, balance BIGINT, rate DOUBLE)"
_POINT: Final = "SELECT * FROM t WHERE id = {}"
_SUMS: Final = "SELECT owner, sum(balance) AS total, avg(rate) AS mean, count(*) AS n FROM t GROUP BY owner"
_PEER_SUMS: Final = "SELECT owner, sum(balance), avg(rate), count(*) FROM '{}' GROUP BY owner"


def point(report: Report, work: Work) -> None:
    """A point query at the last checkpoint of a million rows."""
    rows = work.pick(1_000_000, 20_000)
    with _database(work, "point.tide", pipeline=False) as db, _peer(work, rows) as (peer, file):
        _fill(db, rows)
        rng = random.Random(1)

        def ours() -> None:
            found = db.query(_POINT.format(rng.randrange(rows)), "eventual")
            if len(found) != 1:
                raise InvariantBroken(f"a key has {len(found)} rows")

        def plain() -> None:
            peer.sql(f"SELECT * FROM '{file}' WHERE id = {rng.randrange(rows)}").to_arrow_table()

        mine, theirs = alternate(ours, plain, work.pick(100, 3))
    report.add("reads.point.eventual", mine * 1000, "ms", against="30 ms", ratio=mine / 0.030, goal="<= 1.0")
    report.add(
        "reads.point.vs_duckdb",
        mine * 1000,
        "ms",
        against=f"DuckDB, one Parquet file: {theirs * 1000:.1f} ms",
        ratio=mine / theirs,
        goal="<= 2.0",
    )


def strong(report: Report, work: Work) -> None:
    """A strong point query of a million rows while 2,000 rows a second are written, with the pipeline running."""
    rows, rate, seconds = work.pick(1_000_000, 20_000), 2_000, work.pick(15.0, 1.0)
    with _database(work, "strong.tide") as db:
        db.sql(f"CREATE TABLE t {_COLUMNS} SHARDS 2")
        for start in range(0, rows, 100_000):
            db.insert("t", _rows(start, min(100_000, rows - start)))
        db.flush(300)
        stop = threading.Event()
        written = [0]

        def write() -> None:
            began, rng = time.perf_counter(), random.Random(2)
            while not stop.is_set():
                ahead = written[0] / rate - (time.perf_counter() - began)
                if ahead > 0:
                    time.sleep(ahead)
                db.upsert("t", [_row(rng.randrange(rows)) for _ in range(10)])
                written[0] += 10

        writer = threading.Thread(target=write)
        writer.start()
        rng, times, began = random.Random(3), [], time.perf_counter()
        try:
            time.sleep(min(2.0, seconds / 4))
            while time.perf_counter() - began < seconds:
                asked = time.perf_counter()
                found = db.query(_POINT.format(rng.randrange(rows)), "strong")
                times.append(time.perf_counter() - asked)
                if len(found) != 1:
                    raise InvariantBroken(f"a key has {len(found)} rows")
                time.sleep(0.02)
            reached = written[0] / (time.perf_counter() - began)
        finally:
            stop.set()
            writer.join()
    value = statistics.median(times)
    report.add(
        "reads.point.strong",
        value * 1000,
        "ms",
        against=f"60 ms, while {reached:,.0f} rows/s are written",
        ratio=value / 0.060,
        goal="<= 1.0",
    )


def aggregate(report: Report, work: Work) -> None:
    """An aggregation over ten million rows."""
    rows = work.pick(10_000_000, 50_000)
    with _database(work, "sums.tide", pipeline=False) as db, _peer(work, rows) as (peer, file):
        _fill(db, rows)
        mine, theirs = alternate(
            lambda: db.query(_SUMS, "eventual"),
            lambda: peer.sql(_PEER_SUMS.format(file)).to_arrow_table(),
            work.pick(9, 1),
        )
    report.add(
        "reads.aggregate",
        mine * 1000,
        "ms",
        against=f"DuckDB, one Parquet file: {theirs * 1000:.0f} ms",
        ratio=mine / theirs,
        goal="<= 1.5",
    )


def layers(report: Report, work: Work) -> None:
    """The same table with 50 recent layers that are not compacted, and compacted."""
    rows, count, each = work.pick(1_000_000, 20_000), work.pick(50, 5), work.pick(1_000, 100)
    with _database(work, "layers.tide", pipeline=False) as db:
        _fill(db, rows)
        rng = np.random.default_rng(4)
        for _ in range(count):
            _layer(db, rng.choice(rows, each, replace=False).astype(np.int64))
        found = []
        for turn in range(2):
            times = []
            for number in range(work.pick(15, 2)):
                began = time.perf_counter()
                db.query(_SUMS, "eventual")
                if number:
                    times.append(time.perf_counter() - began)
            found.append(statistics.median(times))
            if not turn:
                _compact(db)
    report.add(
        "reads.layers",
        found[0] * 1000,
        "ms",
        against=f"compacted: {found[1] * 1000:.0f} ms; {count} layers",
        ratio=found[0] / found[1],
        goal="<= 2.0",
    )


def flush(report: Report, work: Work) -> None:
    """`flush()` on an idle database."""
    with _database(work, "flush.tide") as db:
        db.sql(f"CREATE TABLE t {_COLUMNS}")
        for number in range(3):
            db.insert("t", [_row(number)])
            db.flush(300)
        times = []
        for number in range(work.pick(10, 2)):
            time.sleep(work.pick(1.5, 0.1))
            db.insert("t", [_row(10 + number)])
            began = time.perf_counter()
            db.flush(60)
            times.append(time.perf_counter() - began)
    value = statistics.median(times)
    report.add("reads.flush.idle", value * 1000, "ms", against="1,000 ms", ratio=value, goal="<= 1.0")


def first_answer(report: Report, work: Work) -> None:
    """`tidegate sql` on a database with layers, and rows that are in no checkpoint: the first answer of a process."""
    path, compiled = work.directory / "first.tide", work.directory / "compiled"
    names = ("t", "u", "v", "w")
    with _database(work, path.name) as db:
        for name in names:
            db.sql(f"CREATE TABLE {name} {_COLUMNS}")
        for number in range(work.pick(4, 1)):
            for name in names:
                db.upsert(name, [_row(number * 500 + each) for each in range(2_000)])
            db.flush(300)
    with _database(work, path.name, pipeline=False) as db:
        for name in names:
            db.upsert(name, [_row(each) for each in range(300)])
    command_s(path, _SUMS, compiled)  # Compiles what is loaded.
    shell_s(path, _SUMS, "1,000 rows", compiled)
    rounds = range(work.pick(7, 1))
    answered, ended = zip(*[command_s(path, _SUMS, compiled) for _ in rounds])
    prompted, told = zip(*[shell_s(path, _SUMS, "1,000 rows", compiled) for _ in rounds])
    for name, times in (("command", answered), ("command_end", ended), ("prompt", prompted), ("shell", told)):
        value = statistics.median(times)
        report.add(
            f"reads.first_answer.{name}", value * 1000, "ms", against="1,500 ms", ratio=value / 1.5, goal="<= 1.0"
        )


MEASURES: Final[dict[str, Measure]] = {
    "reads.point": point,
    "reads.aggregate": aggregate,
    "reads.layers": layers,
    "reads.strong": strong,
    "reads.flush": flush,
    "reads.first_answer": first_answer,
}


run: Final = partial(measure_all, MEASURES)


# -- what is read ----------------------------------------------------------------------------------------------------


@contextmanager
def _database(work: Work, name: str, *, pipeline: bool = True) -> Iterator[Database]:
    with tidegate.open(work.directory / name, settings=DatabaseSettings(pipeline=pipeline)) as db:
        yield db


@contextmanager
def _peer(work: Work, rows: int) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    """DuckDB as the reader has it, and the same rows in one file."""
    file = str(work.directory / "plain.parquet")
    with pq.ParquetWriter(file, _rows(0, 1).schema) as writer:
        for start in range(0, rows, 1_000_000):
            writer.write_batch(_rows(start, min(1_000_000, rows - start)), row_group_size=122_880)
    peer = duckdb.connect(":memory:", config={"threads": 2})
    peer.execute("SET parquet_metadata_cache = true")
    try:
        yield peer, file
    finally:
        peer.close()


def _fill(db: Database, rows: int) -> None:
    """A checkpoint with these rows, as they are after compaction."""
    db.sql(f"CREATE TABLE t {_COLUMNS}")
    for start in range(0, rows, 1_000_000):
        _layer(db, np.arange(start, min(start + 1_000_000, rows), dtype=np.int64))
    _compact(db)


def _layer(db: Database, ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    engine = db.engine
    table, store = engine.table("t"), engine.pipeline.store
    at, previous = engine.log.allocate(1), store.pointer()
    batch = _batch(ids)
    system = {TS: np.full(len(ids), int(at)), OP: np.full(len(ids), 1, np.int8), SEQ: np.arange(len(ids))}
    columns = {**{name: batch.column(name) for name in batch.schema.names}, **system}
    epoch = previous.epoch + 1
    with LayerWriter(store.root, table.id, table.schema, shard=0, first=epoch, last=epoch) as writer:
        writer.write(pa.table(columns))
        entry = writer.close()
    store.commit(previous, added=[entry] if entry else [], epoch=epoch, timestamp=at, term=previous.term)
    engine.pipeline.reload()


def _compact(db: Database) -> None:
    engine = db.engine
    table, store = engine.table("t"), engine.pipeline.store
    inputs = store.manifest().shards()[table.id, 0]
    Compactor(store).run(CompactionJob(table.id, 0, tuple(inputs), BASE, "measured"), table)
    engine.pipeline.reload()


def _row(id: int) -> dict[str, object]:
    return {"id": id, "owner": f"owner {id % 1000}", "balance": id * 7, "rate": id / 3}


def _rows(start: int, count: int) -> pa.RecordBatch:
    return _batch(np.arange(start, start + count, dtype=np.int64))


def _batch(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
    owners = pa.array([f"owner {number}" for number in range(1000)]).take(pa.array(ids % 1000))
    return pa.RecordBatch.from_pydict({"id": ids, "owner": owners, "balance": ids * 7, "rate": ids / 3})
