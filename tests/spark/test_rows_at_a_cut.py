"""A table's rows in parts, as a batch of the data source reads them; no Spark in it. Promises 2 and 4, issue 5.

Checkpoints are made by `flush` alone, so that a test decides what the last one holds and what only the log does.
"""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlglot

import tidegate
from folding import folding
from tidegate import Database, DatabaseSettings, LogSettings, errors
from tidegate.database import engine as engine_module
from tidegate.snapshots import compaction
from tidegate.snapshots.collector import Collector
from tidegate.snapshots.compaction import Compactor
from tidegate.snapshots.plan_compaction import Tiers
from tidegate.snapshots.plan_gc import Retention
from tidegate.spark.row_condition import condition_sql
from tidegate.spark.table_cut import CUT, TableCut, find_cut
from tidegate.spark.table_rows import let_all_go, plan_rows, read_rows, row_fields

FLUSH_S = 60.0
SMALL = Tiers(fan=2, base_fraction=0.0, large_rows=1, file_rows=15)
"""Everything is merged into bases of files with few rows, so that parts of one shard are several."""


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    monkeypatch.setattr(compaction, "BATCH_ROWS", 15)
    settings = DatabaseSettings(log=LogSettings(tick_interval_ms=5), channels=3, barrier_interval_ms=3_600_000)
    with tidegate.open(tmp_path / "shop.tide", settings=settings) as db:
        yield db
    let_all_go()


def cut_of(db: Database, table: str = "t", **options: str) -> TableCut:
    return find_cut({"path": str(db.path), "table": table, **options})


def later_than_the_opening(db: Database) -> None:
    """A bound that reaches back to the opening counts all of that millisecond to it, see `OwnerTime`."""
    opened = db.engine.log.allocate(1).physical_ms
    deadline = time.monotonic() + FLUSH_S
    while db.engine.log.allocate(1).physical_ms == opened:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def rows(cut: TableCut, part_bytes: int = 1, where: str | None = None) -> list[dict[str, Any]]:
    """What the parts hold, each read as another process would; in the order of their texts."""
    condition = None if where is None else condition_sql(where, cut.schema)
    found = []
    for part in pickle.loads(pickle.dumps(plan_rows(cut, part_bytes=part_bytes))):
        for batch in read_rows(part, row_fields(cut.table, cut.schema), condition):
            found += batch.to_pylist()
    return sorted(found, key=repr)


def asked(db: Database, cut: TableCut) -> list[str]:
    """The same by a query at the same cut."""
    found = db.query(f"SELECT * FROM {cut.table.name}", cut.at, engine="duckdb")
    return sorted(repr(each) for each in found.rows())


def compact(db: Database, tiers: Tiers = SMALL) -> None:
    store = db.engine.pipeline.store
    tables = {each.id: each for each in db.engine.catalog.tables()}
    compactor = Compactor(store, tiers=tiers)
    for _ in range(8):
        due = compactor.due(store.manifest(), {each.id for each in tables.values() if not each.schema.key})
        if not due:
            return
        compactor.run(due[0], tables[due[0].table])


@pytest.mark.parametrize("seed", range(3))
def test_the_parts_together_are_the_table_at_every_cut_whatever_was_folded_by_then(db: Database, seed: int) -> None:
    """Promise 4: rows in base, layers and log; updates, deletes, changes of the schema, compaction; one part a shard,
    several, or one for all."""
    dice = random.Random(seed)
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING, n INT) SHARDS 3")
    db.sql("CREATE TABLE grows (v STRING, n INT) SHARDS 2")
    known: list[tuple[TableCut, list[dict[str, Any]]]] = []
    model: dict[int, int] = {}
    for number in range(16):
        match dice.choice(["upsert", "upsert", "delete", "insert", "flush", "compact", "alter"]):
            case "upsert":
                ids = dice.sample(range(60), 20)
                db.upsert("t", [{"id": id, "v": f"v{number}", "n": number} for id in ids])
                model |= dict.fromkeys(ids, number)
            case "delete":
                ids = dice.sample(range(60), 8)
                db.delete("t", ids)
                model = {id: value for id, value in model.items() if id not in ids}
            case "insert":
                db.insert("grows", [{"v": "x", "n": each} for each in range(30)])
            case "flush":
                db.flush(FLUSH_S)
            case "compact":
                db.flush(FLUSH_S)
                compact(db)
            case "alter":
                db.sql(f"ALTER TABLE t ADD COLUMN c{number} BIGINT")
                db.upsert("t", [{"id": 1, "v": "altered", "n": number, f"c{number}": 7}])
                model[1] = number
        for name in ("t", "grows"):
            level = dice.choice(["strong", "strong", "session", "bounded", "eventual"])
            cut = cut_of(db, name, consistency=level)
            found = rows(cut, part_bytes=dice.choice([1, 2000, 1 << 30]))
            assert [*map(repr, found)] == asked(db, cut)
            known.append((cut, found))
            if name == "t" and level in ("strong", "session"):
                assert {row["id"]: row["n"] for row in found} == model
    for cut, before in dice.sample(known, 8):  # The past does not change.
        assert rows(cut_of(db, cut.table.name, timestamp=str(int(cut.at)))) == before


def test_a_large_shard_is_read_in_several_parts_that_share_nothing(db: Database) -> None:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING) SHARDS 1")
    db.insert("t", [{"id": id, "v": "base"} for id in range(100)])
    db.flush(FLUSH_S)
    db.upsert("t", [{"id": 100, "v": "base"}])
    db.flush(FLUSH_S)
    compact(db)
    db.upsert("t", [{"id": id, "v": "layer"} for id in range(0, 100, 3)])
    db.delete("t", [1])
    db.flush(FLUSH_S)
    db.upsert("t", [{"id": id, "v": "log"} for id in range(0, 100, 5)])
    db.delete("t", [2])
    cut = cut_of(db, consistency="strong")
    parts = plan_rows(cut, part_bytes=1)
    assert len(parts) >= 5 and sum(each.leads for each in parts) == 1
    each_part = [
        {
            row["id"]: row["v"]
            for batch in read_rows(part, row_fields(cut.table, cut.schema))
            for row in batch.to_pylist()
        }
        for part in parts
    ]
    whole = {id: "log" if id % 5 == 0 else "layer" if id % 3 == 0 else "base" for id in range(101) if id not in (1, 2)}
    whole[100] = "base"
    assert sum(len(each) for each in each_part) == len(whole)
    assert {id: v for each in each_part for id, v in each.items()} == whole
    assert len(plan_rows(cut)) == 1  # A small table is one part, however many files it has.


VALUES = {
    "b": "BOOLEAN", "t": "TINYINT", "s": "SMALLINT", "i": "INT", "l": "BIGINT", "dec": "DECIMAL(10, 2)", "w": "STRING",
    "d": "DATE", "at": "TIMESTAMP", "local": "TIMESTAMP_NTZ",
}  # fmt: skip


def any_constant(dice: random.Random, kind: str) -> Any:
    match kind:
        case "BOOLEAN":
            return dice.random() < 0.5
        case "STRING":
            return dice.choice(["", "a", "B", "é", "it's", "日本"])
        case "DATE":
            return date(2026, 1, dice.randint(1, 5))
        case "TIMESTAMP":
            return datetime(2026, 1, dice.randint(1, 5), 12, 0, 0, dice.choice([0, 1]), UTC)
        case "TIMESTAMP_NTZ":
            return datetime(2026, 1, dice.randint(1, 5), 12, 0, 0, dice.choice([0, 1]))
    if kind.startswith("DECIMAL"):
        return Decimal(dice.randint(-300, 300)) / 100
    return dice.randint(-3, 3)


def as_sql(value: Any) -> str:
    match value:
        case bool():
            return str(value).upper()
        case str():
            return "'" + value.replace("'", "\\'") + "'"
        case datetime():
            # A plain text takes the type of what it is compared with.
            return f"'{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
    return str(value)


def any_condition(dice: random.Random, depth: int = 2) -> str:
    if depth and dice.random() < 0.5:
        left, right = any_condition(dice, depth - 1), any_condition(dice, depth - 1)
        return dice.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
    name = dice.choice(list(VALUES))
    one, two = (as_sql(any_constant(dice, VALUES[name])) for _ in range(2))
    sign = dice.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
    return dice.choice([
        f"{name} {sign} {one}", f"{one} {sign} {name}", f"{name} IS NULL", f"{name} IS NOT NULL",
        f"{name} IN ({one}, {two})", f"{name} BETWEEN {one} AND {two}", f"{name} NOT IN ({one})",
    ])  # fmt: skip


def test_a_condition_applied_while_reading_keeps_what_it_would_keep_of_all_rows(db: Database) -> None:
    """Of rows as they are in the cut: one that was overwritten is not found by what it was."""
    dice = random.Random(7)
    columns = ", ".join(f"{name} {kind}" for name, kind in VALUES.items())
    db.sql(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {columns}) SHARDS 2")

    def write(count: int) -> None:
        db.upsert("t", [
            {"id": id, **{name: None if dice.random() < 0.2 else any_constant(dice, kind)
                          for name, kind in VALUES.items()}}
            for id in dice.sample(range(120), count)
        ])  # fmt: skip

    for _ in range(3):
        write(60)
        db.flush(FLUSH_S)
    compact(db)
    write(20)
    db.flush(FLUSH_S)
    write(20)
    cut = cut_of(db, consistency="strong")
    kept = 0
    whole = db.query("SELECT * FROM t", cut.at).to_arrow()
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    duck.register("whole", whole)
    for number in range(50):
        condition = any_condition(dice)
        found = rows(cut, part_bytes=1 << 30 if number % 10 else 1, where=condition)
        query = sqlglot.transpile(f"SELECT id FROM whole WHERE {condition}", read="spark", write="duckdb")[0]
        assert sorted(each["id"] for each in found) == sorted(id for (id,) in duck.sql(query).fetchall()), condition
        kept += len(found)
    duck.close()
    assert kept > 300  # It was not all about nothing.


@pytest.mark.parametrize(
    "condition", ["f > 1", "id + 1 = 2", "id = v", "nosuch = 1", "id = '1'", "v = 1", "a IS NULL AND a[0] = 1", "id ="]
)
def test_a_condition_that_engines_may_see_differently_is_refused(db: Database, condition: str) -> None:
    """NaN is above all numbers in Spark, and in no statistics of a file."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v STRING, f DOUBLE, a ARRAY<INT>)")
    with pytest.raises(errors.InvalidArgument, match="where"):
        condition_sql(condition, db.engine.catalog.table("t").schema)


def test_cuts_are_named_by_levels_times_checkpoints_and_sessions(db: Database) -> None:
    """Issue 5: each level as a query has it; a session's token is not forgotten by Spark."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.insert("t", [{"id": 1}])
    db.flush(FLUSH_S)
    first = db.engine.pipeline.store.pointer()
    session = db.session()
    later_than_the_opening(db)
    late = session.insert("t", [{"id": 2}]).timestamp

    def ids(**options: str) -> int:
        return len(rows(cut_of(db, **options)))

    assert ids() == ids(consistency="session") == ids(consistency="strong") == 2
    assert ids(consistency="bounded", staleness="0") == 2
    assert ids(consistency="eventual") == ids(version=str(first.checkpoint)) == 1
    assert ids(consistency="bounded", staleness="3600") == 1  # The last checkpoint is fresh enough.
    assert ids(consistency="session", sessionToken=session.token) == 2
    assert ids(timestamp=str(late)) == ids(timestamp=str(int(late))) == 2
    assert ids(timestamp=str(int(late) - 1)) == 1
    assert ids(timestamp=late.to_datetime().isoformat()) == 2  # To the end of its millisecond, as AS OF.
    cut = cut_of(db, consistency="strong")
    assert find_cut({"path": str(db.path), "table": "t", CUT: cut.encode()}) == cut


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"consistency": "sometimes"}, "'strong'"),
        ({"consistency": "strong", "timestamp": "1"}, "give one"),
        ({"staleness": "3"}, "'bounded'"),
        ({"consistency": "bounded", "staleness": "a lot"}, "seconds"),
        ({"version": "newest"}, "number of a checkpoint"),
        ({"version": "77"}, "no checkpoint 77"),
        ({"timestamp": "yesterday"}, "not a Timestamp"),
        ({"sessionToken": "tg1-x"}, "token"),
    ],
)
def test_options_that_name_no_cut_are_errors_that_say_so(db: Database, options: dict[str, str], said: str) -> None:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    with pytest.raises(errors.InvalidArgument, match=said):
        cut_of(db, **options)


def test_what_is_no_database_or_table_is_not_made_by_asking(db: Database, tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound):
        find_cut({"path": str(tmp_path / "elsewhere"), "table": "t"})
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(errors.NotFound, match="'t'"):
        cut_of(db)


def test_an_empty_table_has_no_rows_and_the_columns_of_its_cut(db: Database) -> None:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a INT NOT NULL)")
    before = cut_of(db, consistency="strong")
    assert rows(before) == []
    db.sql("ALTER TABLE t RENAME COLUMN a TO b")
    db.sql("ALTER TABLE t ADD COLUMN c INT")
    now = cut_of(db, consistency="strong")
    assert row_fields(before.table, before.schema).names == ["id", "a"]
    fields = row_fields(now.table, now.schema)
    assert [(each.name, each.nullable) for each in fields] == [("id", False), ("b", False), ("c", True)]


def test_no_file_is_collected_under_a_plan_or_a_part(db: Database) -> None:
    """A query never fails because a file was collected under it: whoever plans or reads keeps the checkpoint."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT) SHARDS 2")
    db.insert("t", [{"id": id, "v": 0} for id in range(200)])
    db.flush(FLUSH_S)
    store = db.engine.pipeline.store
    collector = Collector(store, grace_ms=0)

    def replace_everything(v: int) -> None:
        db.upsert("t", [{"id": id, "v": v} for id in range(200)])
        db.flush(FLUSH_S)
        compact(db)
        db.upsert("t", [{"id": 0, "v": v}])
        db.flush(FLUSH_S)
        collector.collect(Retention(0))
        collector.collect(Retention(0))

    cut = cut_of(db, consistency="eventual")
    parts = plan_rows(cut)
    files = [store.root / file.path for part in parts for file in (*part.files, *part.layers)]
    replace_everything(1)
    assert files and all(each.exists() for each in files)  # The plan keeps them.
    reading = [read_rows(part, row_fields(cut.table, cut.schema)) for part in parts]
    first = [next(each) for each in reading]
    let_all_go()  # The planner's process ends; this one reads on.
    replace_everything(2)
    assert all(each.exists() for each in files)
    found = [row["v"] for batch in first for row in batch.to_pylist()]
    found += [row["v"] for each in reading for batch in each for row in batch.to_pylist()]
    assert found == [0] * 200
    let_all_go()
    replace_everything(3)
    assert not any(each.exists() for each in files)  # Nobody needs them now.
    with pytest.raises(errors.Truncated, match=r"'t'.*load it again"):
        plan_rows(cut)


def test_many_parts_are_read_at_once_in_one_process(db: Database) -> None:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY) SHARDS 4")
    db.insert("t", [{"id": id} for id in range(1000)])
    db.flush(FLUSH_S)
    cut = cut_of(db, consistency="strong")
    found: list[int] = []

    def read(part: Any) -> None:
        for batch in read_rows(part, row_fields(cut.table, cut.schema)):
            found.extend(batch.column(0).to_pylist())

    threads = [threading.Thread(target=read, args=(part,)) for part in plan_rows(cut, part_bytes=1)]
    assert len(threads) == 4
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == list(range(1000))
