"""`spark.read.format("tidegate")` on a table: its rows at one cut, in users' own Spark jobs. Promise 4, issue 5."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidegate
from children import Child
from folding import folding
from tidegate import Database, DatabaseSettings, LogSettings
from tidegate.database import engine as engine_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
FLUSH_S = 60.0


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    settings = DatabaseSettings(log=LogSettings(tick_interval_ms=5), channels=2, barrier_interval_ms=3_600_000)
    with tidegate.open(tmp_path / "shop.tide", settings=settings) as db:
        yield db


def load(spark: SparkSession, path: Path, table: str, **options: str) -> DataFrame:
    return spark.read.format("tidegate").options(path=str(path), table=table, **options).load()


def said(frame: DataFrame) -> list[str]:
    return sorted(repr(each) for each in frame.toArrow().to_pylist())


def test_rows_at_every_level_are_those_of_a_query_and_a_frame_stays_at_its_cut(
    spark: SparkSession, db: Database
) -> None:
    """Updates, deletes and changes of the schema, in the checkpoint and in the log behind it, in several shards."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 3")
    db.insert("t", [{"id": id, "v": "old"} for id in range(30)])
    db.flush(FLUSH_S)
    db.sql("ALTER TABLE t ADD COLUMN n INT")
    db.upsert("t", [{"id": id, "v": "new", "n": id} for id in range(0, 30, 2)])
    db.delete("t", [4, 5])
    frames = {}
    for level in ("strong", "session", "bounded", "eventual"):
        frame = frames[level] = load(spark, db.path, "t", consistency=level)
        assert frame.columns == ["id", "v", "n"]
    last = db.upsert("t", [{"id": 1, "v": "later", "n": 1}]).timestamp
    earlier = db.query("SELECT * FROM t", type(last)(int(last) - 1))
    for level in ("strong", "session"):
        assert said(frames[level]) == sorted(map(repr, earlier.rows()))
    assert said(frames["eventual"]) == sorted(map(repr, db.session().query("SELECT * FROM t", "eventual").rows()))
    now = load(spark, db.path, "t", timestamp=str(last))
    assert said(now) == sorted(map(repr, db.query("SELECT * FROM t", last).rows()))
    assert now.count() == frames["strong"].count() == 28


ALL = {
    "b": ("BOOLEAN", True), "t": ("TINYINT", -128), "s": ("SMALLINT", 7), "i": ("INT", -7), "l": ("BIGINT", 1 << 62),
    "f": ("FLOAT", 1.5), "d": ("DOUBLE", float("-inf")), "dec": ("DECIMAL(38, 10)", Decimal("-1.0000000001")),
    "w": ("STRING", "ä\\'日"), "raw": ("BINARY", b"\x00\xff"), "day": ("DATE", date(1, 1, 1)),
    "at": ("TIMESTAMP", datetime(2026, 1, 31, 12, 0, 0, 1, UTC)),
    "local": ("TIMESTAMP_NTZ", datetime(2026, 1, 31, 12, 0, 0, 1)),
    "list": ("ARRAY<STRING>", ["a", None]), "map": ("MAP<STRING, ARRAY<INT>>", {"k": [1, None]}),
    "st": ("STRUCT<x: INT, y: STRUCT<z: TIMESTAMP_NTZ>>", {"x": 1, "y": {"z": datetime(2026, 1, 1)}}),
}  # fmt: skip


def test_every_type_of_a_column_comes_as_spark_has_it(spark: SparkSession, db: Database) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in ALL.items())
    db.sql(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    row: dict[str, Any] = {"id": 1} | {name: value for name, (_, value) in ALL.items()}
    db.insert("t", [row, {"id": 2}])
    db.flush(FLUSH_S)
    db.insert("t", [row | {"id": 3}])  # From the log.
    frame = load(spark, db.path, "t", consistency="strong")
    types = {each.name: each.dataType.simpleString() for each in frame.schema}
    assert types["local"] == "timestamp_ntz" and types["at"] == "timestamp" and types["dec"] == "decimal(38,10)"
    assert types["st"] == "struct<x:int,y:struct<z:timestamp_ntz>>"
    assert said(frame) == sorted(map(repr, db.query("SELECT * FROM t", "strong").to_arrow().to_pylist()))


def test_a_frame_used_twice_gives_each_use_its_own_rows(spark: SparkSession, db: Database) -> None:
    """Spark 4 keeps one plan of a Python source for all uses of a frame: a filter in it would be everybody's."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    db.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    db.sql("CREATE TOPIC audit")
    db.insert("t", [{"id": id} for id in range(4)])
    for each in range(4):
        db.send("audit", each, key=str(each))
    topic = spark.read.format("tidegate").options(path=str(db.path), topic="audit").load()
    for frame, name in ((load(spark, db.path, "t", consistency="strong"), "id"), (topic, "key")):
        one, two = frame.where(f"{name} = '1'"), frame.where(f"{name} = '2'")
        assert (one.count(), frame.count()) == (1, 4)
        assert sorted(str(row[name]) for row in one.union(two).collect()) == ["1", "2"]


def test_conditions_and_columns_are_chosen_while_reading(spark: SparkSession, db: Database) -> None:
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, v STRING, n INT)")
    db.insert("t", [{"id": id, "v": str(id), "n": -id} for id in range(10)])
    options = {"path": str(db.path), "table": "t", "where": "id >= 7 AND v <> '8'"}
    frame = spark.read.format("tidegate").options(**options).schema("n INT").load()
    assert sorted(row.n for row in frame.collect()) == [-9, -7]
    with pytest.raises(Exception, match="column 'n' is asked for as STRING"):
        spark.read.format("tidegate").options(**options).schema("n STRING").load().collect()
    with pytest.raises(Exception, match="cannot be applied while reading"):
        load(spark, db.path, "t", where="id + 1 = 2").collect()


def test_rows_without_a_named_cut_have_times_and_changes_are_asked_for(spark: SparkSession, db: Database) -> None:
    """Spark does not say whether a schema is for a batch or a stream, and a stream needs those columns."""
    db.sql("CREATE TABLE grows (v STRING) SHARDS 2")
    with db.transaction() as txn:
        txn.insert("grows", [{"v": "a"}, {"v": "b"}])
    first = txn.commit_timestamp
    db.flush(FLUSH_S)
    second = db.insert("grows", [{"v": "b"}]).timestamp
    frame = load(spark, db.path, "grows")
    assert frame.columns == ["v", "_ts", "_seq", "_op"]
    found = sorted((row.v, row._ts, row._op) for row in frame.collect())
    assert found == [("a", int(first), 1), ("b", int(first), 1), ("b", int(second), 1)]
    assert said(load(spark, db.path, "grows", changes="false")) == ["{'v': 'a'}", "{'v': 'b'}", "{'v': 'b'}"]
    changes = load(spark, db.path, "grows", changes="true", startingTimestamp=str(int(first)))
    assert [(row.v, row._ts) for row in changes.collect()] == [("b", int(second))]
    with pytest.raises(Exception, match="'changes', 'true'"):
        load(spark, db.path, "grows", startingTimestamp="1").collect()
    with pytest.raises(Exception, match="a stream of a table is its changes"):
        stream = spark.readStream.format("tidegate").options(path=str(db.path), table="grows", consistency="strong")
        stream.load().writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)


OWNER = """
import sys, time, tidegate
db = tidegate.open(sys.argv[1], settings=tidegate.DatabaseSettings(pipeline=False))
db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 2")
db.insert("t", [{"id": id, "v": "x"} for id in range(5)])
print("ready", flush=True)
time.sleep(600)
"""


def test_the_guarantee_is_the_owners_wherever_he_is_and_a_closed_database_is_read_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "shop.tide"
    owner = Child(OWNER, path, errors=tmp_path / "errors").wait_ready()
    try:
        assert load(spark, path, "t", consistency="strong").count() == 5
        with tidegate.open(path) as client:
            assert not client.is_owner
            session = client.session()
            session.delete("t", [0])
            assert load(spark, path, "t", sessionToken=session.token).count() == 4
    finally:
        owner.kill()
    assert load(spark, path, "t", consistency="strong").count() == 4
    with tidegate.open(path, settings=DatabaseSettings(pipeline=False)) as db:
        assert db.is_owner  # Nobody has kept it.
