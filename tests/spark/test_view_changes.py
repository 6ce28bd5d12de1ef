"""The changes of a view in a user's own Spark job (issue 6, "A change feed for each view")."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import tidegate
from database_rig import quick
from folding import folding
from helpers import eventually
from tidegate.database import engine as engine_module
from tidegate.errors import InvalidArgument
from tidegate.snapshots.collector import Collector
from tidegate.snapshots.compaction import Compactor
from tidegate.snapshots.plan_compaction import Tiers
from tidegate.snapshots.plan_gc import Retention
from tidegate.spark.source import TidegateSource

pytestmark = pytest.mark.slow


@pytest.fixture
def db(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    with tidegate.open(tmp_path / "shop.tide", settings=quick(barrier_interval_ms=3_600_000)) as found:
        found.sql("CREATE TABLE o (id BIGINT PRIMARY KEY, g STRING, n BIGINT)")
        found.sql("CREATE MATERIALIZED VIEW sums AS SELECT g, sum(n) AS s FROM o GROUP BY g")
        write(found, (1, "a", 1), (2, "b", 2))
        yield found


def write(db, *rows):
    db.upsert("o", [dict(zip(("id", "g", "n"), row)) for row in rows])
    return db.flush()


class Query:
    """A stream of a view's changes: what each of its micro-batches held."""

    def __init__(self, spark, db, tmp_path: Path, **options) -> None:
        self._stream = spark.readStream.format("tidegate").options(path=str(db.path), table="sums", **options).load()
        self._at = tmp_path / "query"
        self.batches: list[tuple[int, list[tuple]]] = []
        self.fail_in: int | None = None

    def _take(self, frame, number):
        rows = [tuple(row) for row in frame.select("_epoch", "_change", "g", "s").collect()]
        self.batches.append((number, sorted(rows, key=lambda row: (row[0], row[2], row[1] == "update_after"))))
        if number == self.fail_in:
            raise RuntimeError("as the test wants it")

    def run(self, **trigger):
        """Until there is nothing more to read; again it goes on."""
        writer = self._stream.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._at))
        query = writer.trigger(**(trigger or {"availableNow": True})).start()
        assert query.awaitTermination(120)
        return query

    @property
    def changes(self):
        """What was told, each micro-batch once: as it was when it was told last."""
        return [row[1:] for _, rows in sorted(dict(self.batches).items()) for row in rows]

    @property
    def copy(self):
        found = Counter()
        for change, *row in self.changes:
            found[tuple(row)] += 1 if change in ("insert", "update_after") else -1
        assert all(count >= 0 for count in found.values())
        return sorted((found - Counter()).elements())


def rows_of(db):
    return sorted((row["g"], row["s"]) for row in db.query("SELECT g, s FROM sums").rows())


def compact(db):
    compactor = Compactor(db.engine.pipeline.store, tiers=Tiers(fan=2, base_fraction=0.01))
    jobs = 0
    while found := compactor.due(db.engine.pipeline.store.manifest(), set()):
        compactor.run(found[0], db.engine.catalog.table_by_id(found[0].table))
        jobs += 1
    return jobs


def test_a_stream_of_a_view_gives_its_rows_and_then_its_changes_once(spark, db, tmp_path):
    """Issue 6. While tables change, with a query that ends, one that fails in the middle, and compaction in between;
    what a micro-batch held it holds again when it is done again."""
    query = Query(spark, db, tmp_path, maxEpochs="2")
    query.run()
    assert query.changes == [("insert", "a", 1), ("insert", "b", 2)]
    for n in range(5, 9):
        write(db, (1, "a", n), (3, "c", n))
    db.delete("o", [{"id": 2}])
    db.flush()
    query.fail_in = 2
    with pytest.raises(Exception, match="as the test wants it"):
        query.run()
    assert compact(db)
    write(db, (3, "c", 9))
    told = dict(query.batches)
    query.fail_in = None
    query.run()
    again = [rows for number, rows in query.batches if number == 2]
    assert len(again) == 2 and again[0] == again[1], "the same whole checkpoints"
    assert dict(query.batches)[1] == told[1]
    assert all(len({row[0] for row in rows}) <= 2 for _, rows in query.batches), "at most two epochs"
    assert query.copy == rows_of(db) == [("a", 8), ("c", 9)]
    assert query.changes[2:6] == [
        ("update_before", "a", 1),
        ("update_after", "a", 5),
        ("insert", "c", 5),
        ("update_before", "a", 5),
    ]
    offsets = [json.loads(line) for line in (tmp_path / "query/offsets/1").read_text().splitlines()[2:]]
    assert set(offsets[0]) == {"epoch", "timestamp"}


def test_a_stream_may_begin_with_what_changes_from_now_on_or_above_a_time(spark, db, tmp_path):
    """`startingFrom` latest and `startingTimestamp`: no rows come first."""
    late = Query(spark, db, tmp_path / "late", startingFrom="latest")
    late.run()
    at = write(db, (1, "a", 7))
    write(db, (2, "b", 3))
    late.run()
    assert late.changes == [
        ("update_before", "a", 1), ("update_after", "a", 7), ("update_before", "b", 2), ("update_after", "b", 3)
    ]  # fmt: skip
    above = Query(spark, db, tmp_path / "above", startingTimestamp=str(int(at)))
    above.run()
    assert above.changes == [("update_before", "b", 2), ("update_after", "b", 3)]


def test_a_stream_follows_a_view_while_tables_change_and_ends_with_it(spark, db):
    """Into memory, as it comes. When the view is dropped the query says so."""
    source = spark.readStream.format("tidegate").options(path=str(db.path), table="sums", waitMs="20").load()
    query = source.writeStream.format("memory").queryName("followed").start()
    try:
        for n in range(5, 9):
            write(db, (1, "a", n), (n, "c", n))
            eventually(lambda: spark.table("followed").where(f"g = 'a' AND s = {n}").count(), timeout_s=60)  # noqa: B023
        rows = [tuple(row) for row in spark.table("followed").orderBy("_epoch").collect()]
        told = Counter((change, g, s) for g, s, change, *_ in rows)
        assert told["update_after", "a", 8] == told["update_before", "a", 7] == told["update_after", "a", 7] == 1
        assert sum(1 if each[2] in ("insert", "update_after") else -1 for each in rows) == len(rows_of(db)) == 3
        db.sql("DROP MATERIALIZED VIEW sums")
        with pytest.raises(Exception, match="view 'sums' was dropped at"):
            query.awaitTermination(60)
    finally:
        query.stop()


def test_a_batch_of_a_view_is_its_rows_or_its_changes(spark, db):
    """As of tables: `changes` says which; without it the rows have the columns of the changes, and are inserts."""
    first = db.engine.pipeline.store.pointer().timestamp
    second = write(db, (1, "a", 7))
    write(db, (1, "a", 8))

    def read(**options):
        frame = spark.read.format("tidegate").options(path=str(db.path), table="sums", **options).load()
        return sorted(tuple(row)[:3] for row in frame.collect())

    assert read() == [("a", 8, "insert"), ("b", 2, "insert")]
    assert read(consistency="eventual") == [("a", 8), ("b", 2)]
    times = {"startingTimestamp": str(int(first)), "endingTimestamp": str(int(second))}
    assert read(changes="true", **times) == [("a", 1, "update_before"), ("a", 7, "update_after")]
    assert len(read(changes="true")) == 6, "everything that is kept"
    chosen = spark.read.format("tidegate").options(path=str(db.path), table="sums").schema("s BIGINT, _change STRING")
    assert sorted(map(tuple, chosen.load().collect())) == [(2, "insert"), (8, "insert")]


def test_a_query_that_was_away_for_too_long_fails_and_says_why(spark, db, tmp_path):
    """Nothing is skipped: `Truncated` by its own words."""
    query = Query(spark, db, tmp_path)
    query.run()
    for n in (5, 6):
        write(db, (1, "a", n))
    Collector(db.engine.pipeline.store, grace_ms=0).collect(Retention(0))
    with pytest.raises(Exception, match=r"view 'sums': its changes since .* are older than the retention time"):
        query.run()


def test_options_that_do_not_go_together_are_refused(db):
    def stream(**options):
        source = TidegateSource({"path": str(db.path), "table": "sums", **options})
        return source.streamReader(source.schema())

    stream(startingFrom="LATEST")
    with pytest.raises(InvalidArgument, match="'startingFrom' is earliest or latest, not 'now'"):
        stream(startingFrom="now")
    with pytest.raises(InvalidArgument, match="give one of them"):
        stream(startingFrom="latest", startingTimestamp="5")
    with pytest.raises(InvalidArgument, match="'startingFrom' is for a view"):
        stream(table="o", startingFrom="latest")
    batch = TidegateSource({"path": str(db.path), "table": "sums", "startingFrom": "latest"})
    with pytest.raises(InvalidArgument, match="'startingFrom' is for streams"):
        batch.reader(batch.schema())
