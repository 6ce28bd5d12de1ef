"""`answer`: queries over tables at one cut, computed by Spark in this process. Promise 4, issue 5."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from query_tables import TABLES
from test_query_corpus import corpus, left_to_spark, shown

import tidegate
from folding import folding
from tidegate import Database, DatabaseSettings, LogSettings, Timestamp, errors
from tidegate.database import engine as engine_module
from tidegate.database.cancel import Cancel
from tidegate.database.cut_reader import TableAt
from tidegate.snapshots.manifest import Manifest
from tidegate.spark import query_session
from tidegate.spark.query import answer
from tidegate.spark.query_pruning import parse_query, wanted_of
from tidegate.spark.table_cut import TableCut
from tidegate.tables.column_type import to_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
FLUSH_S = 60.0


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """The corpus's tables, a half of each in a checkpoint and a half in the log."""
    settings = DatabaseSettings(log=LogSettings(tick_interval_ms=5), channels=2, barrier_interval_ms=3_600_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "spark_worker", folding())
        with tidegate.open(tmp_path_factory.mktemp("answers") / "shop.tide", settings=settings) as db:
            for name, table in TABLES.items():
                columns = ", ".join(f"{each.name} {to_sql(each.type)}" for each in table.schema)
                key = ", PRIMARY KEY (id)" if "id" in table.column_names else ""
                db.sql(f"CREATE TABLE {name} ({columns}{key})")
                db.insert(name, table.slice(0, len(table) // 2))
            db.flush(FLUSH_S)
            for name, table in TABLES.items():
                db.insert(name, table.slice(len(table) // 2))
            yield db


def tables_of(db: Database, at: Timestamp | None = None, *names: str) -> dict[str, TableAt]:
    at = at or db.query("SELECT count(*) FROM nums", "strong").timestamp
    return {name: TableAt(db.engine.table(name, at), at) for name in names or TABLES}


def ask(db: Database, sql: str, **options: Any) -> pa.Table:
    options = {"timeout_s": 60.0, "cancel": None} | options
    tables = options.pop("tables", None) or tables_of(db)
    return answer(db.path, sql, tables, **options)


def test_answers_are_those_of_duckdb_with_the_same_names_and_types(spark: SparkSession, db: Database) -> None:
    """A query from each subject of the corpus; the values from checkpoint and log."""
    left = set(left_to_spark())
    by_subject: dict[str, str] = {}
    for subject, query in corpus():
        if query not in left and " FROM " in query:
            by_subject.setdefault(subject, query)
    chosen = list(by_subject.items())[::2]
    assert len(chosen) >= 8
    tables = tables_of(db)
    for subject, query in chosen:
        try:
            expected = db.query(query, next(iter(tables.values())).at, engine="duckdb").to_arrow()
        except errors.InvalidArgument:
            with pytest.raises(errors.InvalidArgument):
                ask(db, query, tables=tables)
            continue
        assert shown(ask(db, query, tables=tables), subject, query) == shown(expected, subject, query), query


def test_db_query_goes_on_to_spark_and_no_text_of_a_value_is_replaced_there(spark: SparkSession, db: Database) -> None:
    """Spark would put ${env:HOME} in before it parses the query."""
    text = "${env:HOME} ${spark.app.name}"
    found = db.query("SELECT ? AS x, hash(1) IS NOT NULL AS h", params=[text])
    assert found.engine == "spark" and found.rows() == [{"x": text, "h": True}]
    assert db.query("SELECT ? AS x", params=[text], engine="spark").rows() == [{"x": text}]


def test_a_query_that_only_spark_can_read_is_answered_by_it_when_asked_to(spark: SparkSession, db: Database) -> None:
    """Its tables are found by Spark's own parser; without `engine` the error says how."""
    piped = "FROM nums |> WHERE i > 1 |> SET i = i - 1 |> SELECT i"
    plain = db.query("SELECT i - 1 AS i FROM nums WHERE i > 1", "strong")
    with pytest.raises(errors.InvalidArgument, match="engine='spark'"):
        db.query(piped, "strong")
    found = db.query(piped, "strong", engine="spark")
    assert sorted(map(str, found.rows())) == sorted(map(str, plain.rows())) and found.engine == "spark"
    with pytest.raises(errors.InvalidArgument, match="not a query"):
        db.query("CREATE TEMPORARY VIEW x AS FROM nums |> SET i = 1", engine="spark")
    with pytest.raises(errors.InvalidArgument, match="PARSE_SYNTAX_ERROR"):
        db.query("FROM nums |> SET SET", engine="spark")


def test_each_table_is_at_its_own_cut_under_any_name(spark: SparkSession, db: Database) -> None:
    """Time travel reads a table twice, under names that are no words of SQL."""
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    before = db.insert("t", [{"id": id, "v": 1} for id in range(4)]).timestamp
    after = db.upsert("t", [{"id": 1, "v": 5}]).timestamp
    tables = {f"t @{int(at)}": TableAt(db.engine.table("t", at), at) for at in (before, after)}
    old, new = tables
    sql = f"SELECT a.v AS was, b.v AS `is` FROM `{old}` a JOIN `{new}` AS b ON a.id = b.id WHERE a.v <> b.v"
    assert ask(db, sql, tables=tables).to_pylist() == [{"was": 1, "is": 5}]


def test_tables_whose_names_have_several_parts_are_found_by_spark_too(spark: SparkSession, tmp_path: Path) -> None:
    """As captured tables of other schemas have them."""
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as db:
        for schema in ("shop", "old"):
            db.sql(f"CREATE TABLE {schema}.orders (id BIGINT PRIMARY KEY, v STRING)")
            db.insert(f"{schema}.orders", [{"id": 1, "v": schema}])
        for query in (
            "SELECT v FROM shop.orders",
            "SELECT shop.orders.v FROM shop.orders",
            "SELECT o.v FROM shop.orders o",
            "SELECT shop.orders.v FROM old.orders JOIN shop.orders ON old.orders.id = shop.orders.id",
        ):
            assert db.query(query, "strong", engine="spark").rows() == [{"v": "shop"}]


def test_nothing_of_the_users_session_is_touched(spark: SparkSession, db: Database) -> None:
    before = {each.tableName for each in spark.sql("SHOW TABLES").collect()}  # Of tests with the same session.
    spark.sql("SELECT 'mine' AS whose").createOrReplaceTempView("nums")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    spark.sparkContext.setJobGroup("mine", "my job")
    try:
        found = ask(db, "SELECT count(*) AS n, current_timezone() AS zone FROM nums")
        assert found.to_pylist() == [{"n": len(TABLES["nums"]), "zone": "UTC"}]
        assert spark.sql("SELECT * FROM nums").collect()[0].whose == "mine"
        assert {each.tableName for each in spark.sql("SHOW TABLES").collect()} == {*before, "nums"}
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"
        assert type(spark).getActiveSession() is spark
    finally:
        spark.catalog.dropTempView("nums")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            spark.sparkContext.setLocalProperty(name, None)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nosuch FROM nums", r"\[UNRESOLVED_COLUMN.WITH_SUGGESTION\].*dec"),
        ("SELECT 1 / (i - i) FROM nums", r"\[DIVIDE_BY_ZERO\]"),
        ("SELECT CAST(s AS INT) FROM words", r"\[CAST_INVALID_INPUT\]"),
        ("SELECT nosuch(i) FROM nums", r"\[UNRESOLVED_ROUTINE\]"),
        ("DROP TABLE nums", "not a query"),
        ("SELECT i FROM nums WHERE (", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_what_spark_refuses_is_an_error_of_one_line_with_its_class(
    spark: SparkSession, db: Database, sql: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(errors.InvalidArgument, match=said) as found:
        ask(db, sql)
    assert "\n" not in str(found.value)
    assert "Traceback" not in capfd.readouterr().err  # It was raised, and not written as well.


LONG = "SELECT count(*) FROM nums a, nums b, nums c, nums d, nums e, nums f, nums g, nums h, nums i, nums j, nums k"


def test_a_query_ends_when_its_time_is_up_or_it_is_cancelled(spark: SparkSession, db: Database) -> None:
    began = time.monotonic()
    with pytest.raises(errors.WaitTimeout, match="timeout of 1 s"):
        ask(db, LONG, timeout_s=1.0)
    cancel = Cancel()
    timer = threading.Timer(1.0, cancel.set)
    timer.start()
    with pytest.raises(errors.WaitTimeout, match="cancelled"):
        ask(db, LONG, timeout_s=None, cancel=cancel)
    timer.join()
    assert time.monotonic() - began < 30
    assert ask(db, "SELECT count(*) AS n FROM nums").to_pylist() == [{"n": len(TABLES["nums"])}]
    deadline = time.monotonic() + 20
    while spark.sparkContext.statusTracker().getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(spark.sparkContext.statusTracker().getActiveJobsIds())


def test_queries_run_side_by_side_from_threads_that_have_no_session(spark: SparkSession, db: Database) -> None:
    found: list[Any] = []

    def run(number: int) -> None:
        found.append(ask(db, f"SELECT {number} AS k, count(*) AS n FROM orders WHERE qty > {number}").to_pylist()[0])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    many = TABLES["orders"].column("qty").to_pylist()
    expected = [{"k": k, "n": sum(each > k for each in many)} for k in range(4)]
    assert sorted(found, key=lambda each: each["k"]) == expected


@pytest.mark.parametrize(
    ("sql", "columns", "where"),
    [
        ("SELECT i FROM nums WHERE id > 3", ["id", "i"], "(id > 3)"),
        ("SELECT * FROM nums WHERE id > 3 AND i + 1 = 2", None, "(id > 3)"),
        ("SELECT count(*) FROM nums", ["id"], None),
        ("SELECT x.i FROM nums AS x WHERE x.id = 1 AND x.f > 0 OR x.id = 2", ["id", "i", "f"], None),
        ("SELECT a.i FROM nums a JOIN nums b ON a.id = b.id WHERE a.id = 1", ["id", "i"], None),
        ("SELECT i FROM words LEFT JOIN nums ON words.id = nums.id WHERE nums.l = 1", ["id", "i", "l"], None),
        ("SELECT i FROM nums LEFT JOIN words ON words.id = nums.id WHERE nums.l = 1", ["id", "i", "l"], "(l = 1)"),
        ("SELECT i FROM nums, words WHERE l = 1", ["i", "l"], None),
        ("SELECT i FROM nums NATURAL JOIN words", None, None),
        ("WITH c AS (SELECT i FROM nums WHERE id < 5) SELECT a.i FROM c a, c b", ["id", "i"], "(id < 5)"),
        ("SELECT s FROM words WHERE 1 IN (SELECT i FROM nums WHERE t = 1 AND i = l)", ["t", "s", "i", "l"], "(t = 1)"),
        ("SELECT i FROM nums WHERE id > 3 UNION ALL SELECT i FROM nums WHERE id < 2", ["id", "i"], None),
        ("TABLE nums", None, None),
    ],
)  # fmt: skip
def test_only_what_a_query_can_need_is_read(
    db: Database, sql: str, columns: list[str] | None, where: str | None
) -> None:
    """Columns by any name in it; rows by conditions of the one SELECT that reads a table, where they hold for all."""
    cuts = {name: TableCut.of(db.path, each.table, each.at, Manifest()) for name, each in tables_of(db).items()}
    try:
        tree = parse_query(sql)
    except errors.InvalidArgument:
        assert sql == "TABLE nums"
        return
    found = wanted_of(tree, cuts)["nums"]
    assert found.columns == (TABLES["nums"].column_names if columns is None else columns)
    assert found.where == where


ALONE = """
import sys, pathlib, warnings
warnings.simplefilter("ignore")
import tidegate
from tidegate.database.cut_reader import TableAt
from tidegate.spark.query import answer
if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    with tidegate.open(path, settings=tidegate.DatabaseSettings(pipeline=False)) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        at = db.insert("t", [{"id": 1}, {"id": 2}]).timestamp
        tables = {"t": TableAt(db.backend.table("t", at), at)}
        for _ in range(2):
            print(answer(path, "SELECT sum(id) AS s FROM t", tables, timeout_s=100, cancel=None).to_pylist())
    from tidegate.spark.session import jvm_pid
    from tidegate.spark.query_session import running_session
    print(jvm_pid(running_session()), len(list(path.glob("pipeline/query-*"))))
"""


@pytest.mark.timeout(290)
def test_a_process_without_a_session_starts_one_and_leaves_neither_java_nor_files_behind(tmp_path: Path) -> None:
    path = tmp_path / "shop.tide"
    (path / "pipeline" / "query-999999999-dead").mkdir(parents=True)  # Of a process that was killed.
    ran = subprocess.run([sys.executable, "-c", ALONE, str(path)], capture_output=True, text=True, timeout=280)
    lines = ran.stdout.splitlines()
    assert lines[:2] == ["[{'s': 3}]"] * 2, ran.stderr
    pid, directories = map(int, lines[2].split())
    assert directories == 1
    assert not list(path.glob("pipeline/query-*"))
    assert not Path(f"/proc/{pid}").exists()


def test_without_spark_the_error_says_what_to_install(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_session, "_idle", [])
    for name in ("pyspark", "pyspark.sql", "pyspark.errors"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.InvalidArgument, match=r"pip install 'tidegate\[spark\]'"):
        ask(db, "SELECT 1")
