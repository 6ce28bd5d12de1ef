"""`format("tidegate")`: topics and changes in users' own Spark jobs: whole transactions only, offsets are epochs."""

from __future__ import annotations

import json
import pickle

import pytest

from helpers import eventually
from tidegate.spark.cuts import CutFile

pytestmark = pytest.mark.slow


def batch(spark, bench, **options):
    return spark.read.format("tidegate").options(path=str(bench.path), topic="audit", **options).load()


def run(stream, tmp_path, seen, **trigger):
    """Let a stream read all there is; what each micro-batch held is added to `seen`."""

    def take(frame, number):
        seen.append(sorted(json.loads(row.value) for row in frame.select("value").collect()))

    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "query"))
    query = writer.trigger(**(trigger or {"availableNow": True})).start()
    assert query.awaitTermination(120)
    return query


def test_a_batch_holds_every_message_with_its_key_headers_shard_and_time(spark, bench):
    bench.db.sql("CREATE TOPIC audit SHARDS 3")
    with bench.db.transaction() as txn:
        txn.send("audit", {"what": "moved", "n": 1}, key="ann", headers={"by": "me"})
        txn.send("audit", b"\x00raw", key=7)
    bench.cut()
    rows = sorted(batch(spark, bench).collect(), key=lambda row: row.value or "")
    assert [(row.key, row.value, row.bytes, row.headers) for row in rows] == [
        ("7", None, bytearray(b"\x00raw"), {}),
        ("ann", '{"what":"moved","n":1}', None, {"by": "me"}),
    ]
    assert {row._ts for row in rows} == {int(txn.commit_timestamp)}
    assert len({bytes(row._txn) for row in rows}) == 1


def test_what_is_not_committed_or_lies_outside_the_times_is_not_read(spark, bench):
    bench.db.sql("CREATE TOPIC audit")
    bench.send("audit", 1)
    first = bench.cut()
    bench.send("audit", 2)
    second = bench.cut()
    bench.send("audit", 3)
    bench.cut()
    txn = bench.db.transaction()
    txn.send("audit", 4)
    times = {"startingTimestamp": str(int(first.timestamp)), "endingTimestamp": str(int(second.timestamp))}
    assert [row.value for row in batch(spark, bench, **times).collect()] == ["2"]
    assert sorted(row.value for row in batch(spark, bench).collect()) == ["1", "2", "3"]
    txn.abort()


def test_a_topic_that_does_not_exist_or_options_that_name_nothing_are_errors_that_say_so(spark, bench):
    bench.db.sql("CREATE TOPIC audit")
    bench.cut()
    reader = spark.read.format("tidegate").option("path", str(bench.path))
    with pytest.raises(Exception, match=r"there is no topic 'audits'.*audit"):
        reader.option("topic", "audits").load()
    with pytest.raises(Exception, match="either"):
        spark.read.format("tidegate").option("path", str(bench.path)).load()


def test_a_stream_reads_from_cut_to_cut_and_never_a_part_of_a_transaction(spark, bench, tmp_path):
    """Promise 2; and Spark's offset is the epoch."""
    bench.db.sql("CREATE TOPIC audit SHARDS 4")
    cuts = CutFile(tmp_path / "cuts")
    for epoch in range(3):
        bench.send("audit", *range(10 * epoch, 10 * epoch + 8))
        cuts.append(bench.cut())
    bench.send("audit", 100)  # No cut is behind it yet.
    stream = spark.readStream.format("tidegate").options(
        path=str(bench.path), topic="audit", cuts=str(cuts.path), maxEpochs="1"
    )
    seen: list[list[int]] = []
    query = run(stream.load(), tmp_path, seen)
    assert seen == [[*range(8)], [*range(10, 18)], [*range(20, 28)]]
    assert json.loads(query.lastProgress["sources"][0]["endOffset"]) == {
        "epoch": 3,
        "timestamp": int(bench.cuts[-1].timestamp),
    }
    # It goes on where it was, and without a limit takes all that is left at once.
    cuts.append(bench.cut())
    bench.send("audit", 101)
    cuts.append(bench.cut())
    again = spark.readStream.format("tidegate").options(path=str(bench.path), topic="audit", cuts=str(cuts.path))
    run(again.load(), tmp_path, seen)
    assert seen[3:] == [[100, 101]]


def test_a_stream_on_a_database_without_recorded_cuts_ends_its_batches_at_ticks(spark, bench, tmp_path):
    bench.db.sql("CREATE TOPIC audit SHARDS 2")
    bench.send("audit", 1, 2, 3)
    bench.cut()
    seen: list[list[int]] = []
    options = {"path": str(bench.path), "topic": "audit"}
    run(spark.readStream.format("tidegate").options(**options).load(), tmp_path, seen)
    assert [each for each in seen if each] == [[1, 2, 3]]
    bench.send("audit", 4, 5)
    bench.cut()
    run(spark.readStream.format("tidegate").options(**options).load(), tmp_path, seen)
    assert [each for each in seen if each] == [[1, 2, 3], [4, 5]]


def test_a_tables_changes_are_rows_with_their_time_and_what_became_of_them(spark, bench):
    from datetime import UTC, datetime

    bench.db.sql("CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner STRING, at TIMESTAMP, tags ARRAY<STRING>)")
    when = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with bench.db.transaction() as txn:
        txn.insert("accounts", [{"id": 1, "owner": "ann", "at": when, "tags": ["a"]}, {"id": 2, "owner": "bo"}])
    with bench.db.transaction() as later:
        later.delete("accounts", [2])
    bench.cut()
    frame = spark.read.format("tidegate").options(path=str(bench.path), table="accounts", changes="true").load()
    rows = (
        frame.selectExpr("id", "owner", "unix_seconds(at) AS at", "tags", "_op", "_ts").orderBy("_ts", "id").collect()
    )
    assert [tuple(row) for row in rows] == [
        (1, "ann", int(when.timestamp()), ["a"], 1, int(txn.commit_timestamp)),
        (2, "bo", None, None, 1, int(txn.commit_timestamp)),
        (2, None, None, None, -1, int(later.commit_timestamp)),
    ]


def test_a_partition_has_all_that_reading_needs_and_looks_nothing_up(bench, tmp_path, monkeypatch):
    """The catalog is asked once a batch, where the batch is planned; also for schemas newer than the stream's."""
    from tidegate.pipeline.catalog_file import write_catalog
    from tidegate.spark import reading
    from tidegate.spark.source import TidegateStreamReader

    bench.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 3")
    bench.db.insert("t", [{"id": id, "v": "old"} for id in range(4)])
    cuts = CutFile(tmp_path / "cuts")
    cuts.append(bench.cut())
    reader = TidegateStreamReader({"path": str(bench.path), "table": "t", "cuts": str(cuts.path)})
    bench.db.sql("ALTER TABLE t ADD COLUMN more BIGINT")
    bench.db.insert("t", [{"id": id, "v": "new", "more": id} for id in range(4, 8)])
    newest = bench.cut()
    for version in (None, bench.db.engine.catalog.version):  # As told by the log, and by the catalog's file.
        if version is not None:
            write_catalog(bench.path, bench.db.engine.catalog)
        monkeypatch.setattr(reader._points, "catalog_version", lambda _, version=version: version)
        end = {"epoch": newest.epoch, "timestamp": int(newest.timestamp)}
        with monkeypatch.context() as patch:
            if version is not None:
                patch.setattr(reading, "catalog_log", None)
            planned = reader.partitions(reader.initialOffset(), end)
        with monkeypatch.context() as patch:
            patch.setattr(reading, "catalog_log", None)
            patch.setattr(reading, "newest_catalog", None)
            read = [rows for each in pickle.loads(pickle.dumps(planned)) for rows in reader.read(each)]
        found = sorted((row["id"], row["v"]) for rows in read for row in rows.to_pylist())
        assert found == [(id, "old" if id < 4 else "new") for id in range(8)]


def test_the_catalog_in_the_log_is_read_on_and_is_what_reading_it_all_gives(bench):
    from tidegate.spark.reading import CatalogLog

    following = CatalogLog(str(bench.path))
    for number in range(3):
        bench.db.sql(f"CREATE TABLE t{number} (id BIGINT)")
        bench.cut()
        expected = bench.db.engine.catalog.snapshot()
        # The system's channel ticks by itself.
        eventually(lambda expected=expected: CatalogLog(str(bench.path)).now().snapshot() == expected)
        assert following.now().snapshot() == expected
