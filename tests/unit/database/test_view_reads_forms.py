"""Views in queries in all their forms: what is computed is what would be stored, however the query names them.

Promise 4 and issue 6, "Views queried ... at any consistency level, exactly as tables".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from folding import folding
from tidegate import Database, DatabaseSettings
from tidegate.database import engine as engine_module
from tidegate.database import view_reads
from tidegate.errors import InvalidArgument, NotFound, Unavailable
from tidegate.runtime.settings import LogSettings

Rows = list[dict[str, Any]]


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Computing is taken for the faster way, however long a checkpoint takes here."""
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    monkeypatch.setattr(view_reads, "START_MS", -1_000_000)
    settings = DatabaseSettings(log=LogSettings(tick_interval_ms=20), channels=2, barrier_interval_ms=3_600_000)
    with tidegate.open(tmp_path / "shop.tide", settings=settings) as db:
        yield db


def asked(db: Database, sql: str, level: str, how: str) -> Rows:
    found = db.query(sql, level)
    assert set(found.views.values()) == {how}, found.views
    return found.rows()


def both(db: Database, sql: str) -> Rows:
    """The answer, the same computed and stored."""
    computed = asked(db, sql, "strong", "computed")
    db.flush()
    assert asked(db, sql, "eventual", "stored") == computed
    return computed


# -- tables that were altered --------------------------------------------------------------------------------------


def test_columns_that_no_view_uses_may_be_dropped_and_named_anew(db: Database) -> None:
    """Issue 6: "What a view reads cannot be dropped", and only that; also where its text names a column for nothing."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, g STRING, a BIGINT, b STRING)")
    views = {
        "v": "SELECT id FROM (SELECT id, a + 1 AS z, b FROM t)",
        "w": "SELECT g, count(*) AS c FROM t GROUP BY g",
        "x": "SELECT id FROM t ORDER BY a, b",
        "y": "SELECT l.id FROM t l JOIN t r ON l.id = r.id",
    }
    for name, sql in views.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
    db.insert("t", {"id": 1, "g": "a", "a": 1, "b": "x"})
    db.flush()
    db.sql("ALTER TABLE t DROP COLUMN a")
    db.sql("ALTER TABLE t RENAME COLUMN b TO other")
    db.insert("t", {"id": 2, "g": "a", "other": "y"})
    for name in ("v", "x", "y"):
        assert asked(db, f"SELECT * FROM {name} ORDER BY id", "strong", "computed") == [{"id": 1}, {"id": 2}]
    assert asked(db, "SELECT * FROM w", "strong", "computed") == [{"g": "a", "c": 2}]
    db.sql("ALTER TABLE t ADD COLUMN a STRING")  # Another one of that name.
    db.insert("t", {"id": 3, "g": "b", "a": "zz"})
    assert both(db, "SELECT v.id, w.c FROM v, w WHERE w.g = 'b' ORDER BY 1")[-1] == {"id": 3, "c": 1}


def test_a_key_that_is_named_anew_and_of_which_another_column_gets_the_name(db: Database) -> None:
    """Columns are known by their number, whatever they are called (schema.md)."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, g STRING)")
    db.sql("CREATE MATERIALIZED VIEW w AS SELECT g, count(*) AS c FROM t GROUP BY g")
    db.insert("t", [{"id": 1, "g": "a"}, {"id": 2, "g": "a"}])
    db.flush()
    db.sql("ALTER TABLE t RENAME COLUMN id TO k")
    db.insert("t", {"k": 1, "g": "b"})
    assert both(db, "SELECT * FROM w ORDER BY g") == [{"g": "a", "c": 1}, {"g": "b", "c": 1}]
    db.sql("ALTER TABLE t ADD COLUMN id BIGINT")
    db.insert("t", {"k": 2, "g": "b", "id": 7})
    assert both(db, "SELECT * FROM w ORDER BY g") == [{"g": "b", "c": 2}]


def test_a_view_that_only_counts_outlives_all_the_columns_there_were(db: Database) -> None:
    db.sql("CREATE TABLE t (a BIGINT)")
    db.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS c FROM t")
    db.insert("t", [{"a": 1}, {"a": 2}])
    db.flush()
    db.sql("ALTER TABLE t ADD COLUMN b BIGINT")
    db.sql("ALTER TABLE t DROP COLUMN a")
    db.insert("t", {"b": 3})
    assert both(db, "SELECT c FROM n") == [{"c": 3}]


# -- what hangs on a name ------------------------------------------------------------------------------------------


@pytest.fixture
def pairs(db: Database) -> Database:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, g STRING, a BIGINT)")
    db.sql("CREATE MATERIALIZED VIEW v AS SELECT id, g, a FROM t")
    db.insert("t", [{"id": 1, "g": "x", "a": 100}, {"id": 2, "g": "y", "a": 200}])
    return db


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a, g FROM {} AS x(a, g, id) ORDER BY a",
        "SELECT x.one, y.id FROM {0} AS x(one, two, three) JOIN {0} AS y ON x.one = y.id ORDER BY 1",
        "SELECT p.id, q.a FROM ({0} p JOIN {0} q ON p.id = q.id) ORDER BY 1",
        "SELECT id, e FROM {} LATERAL VIEW explode(array(1, 2)) z AS e ORDER BY 1, 2",
        "SELECT {0}.id FROM {0} WHERE {0}.a > 100",
        "VALUES ((SELECT max(a) FROM {0}))",
        "(SELECT id FROM {0}) UNION ALL (SELECT a FROM {0}) ORDER BY 1",
        "WITH w AS (SELECT * FROM {0}) SELECT count(*) AS c FROM w, {0}",
    ],
)
def test_a_view_is_read_with_all_that_a_table_is_read_with(pairs: Database, sql: str) -> None:
    """Of a table, of computed rows and of stored ones it is the same answer."""

    def told(name: str, level: str) -> Any:
        try:
            return pairs.query(sql.format(name), level, engine="duckdb").rows()
        except (InvalidArgument, NotFound) as error:
            return type(error)

    of_table, computed = told("t", "strong"), told("v", "strong")
    pairs.flush()
    assert computed == of_table == told("v", "eventual")


@pytest.mark.parametrize(
    "clause",
    ["PIVOT (sum(a) FOR g IN ('x', 'y'))", "UNPIVOT (v FOR k IN (id, a))", "TABLESAMPLE (0 ROWS)"],
)
def test_what_only_spark_can_answer_is_not_left_out(pairs: Database, clause: str) -> None:
    """A computed read of `FROM v PIVOT ...` was answered as if there were no PIVOT."""
    for level in ("strong", "eventual"):
        with pytest.raises(InvalidArgument, match=r"DuckDB cannot answer .SELECT \* FROM v \w+ \("):
            pairs.query(f"SELECT * FROM v {clause}", level, engine="duckdb")
        pairs.flush()


# -- names ---------------------------------------------------------------------------------------------------------


def test_tables_and_views_with_dots_in_their_names(db: Database) -> None:
    """`shop.orders` is not `orders`, in the query of a view neither."""
    db.sql("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, n BIGINT)")
    db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, n BIGINT)")
    db.sql("CREATE TABLE `shop-orders` (id BIGINT PRIMARY KEY, n BIGINT)")
    views = {
        "v1": "SELECT id FROM shop.orders",
        "v2": "SELECT o.id, p.n FROM shop.orders o JOIN orders p ON o.id = p.id JOIN `shop-orders` q ON q.id = p.id",
        "x.v3": "SELECT orders.id, orders.n FROM shop.orders",
        "v4": "SELECT id, n FROM x.v3",
        "v5": "WITH orders AS (SELECT id FROM shop.orders) SELECT id FROM orders",
    }
    for name, sql in views.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
    db.insert("shop.orders", [{"id": 1, "n": 10}, {"id": 2, "n": 20}])
    db.insert("orders", [{"id": 2, "n": 200}, {"id": 3, "n": 300}])
    db.insert("shop-orders", [{"id": 2, "n": 0}])
    assert asked(db, "SELECT id FROM v1 ORDER BY id", "strong", "computed") == [{"id": 1}, {"id": 2}]
    assert asked(db, "SELECT * FROM v2", "strong", "computed") == [{"id": 2, "n": 200}]
    assert asked(db, "SELECT v3.n FROM x.v3 WHERE v3.id = 2", "strong", "computed") == [{"n": 20}]
    assert asked(db, "SELECT n FROM v4 ORDER BY id", "strong", "computed") == [{"n": 10}, {"n": 20}]
    assert asked(db, "SELECT id FROM v5 ORDER BY id", "strong", "computed") == [{"id": 1}, {"id": 2}]


def test_a_name_with_a_dot_has_a_past_too(db: Database) -> None:
    """`shop.orders TIMESTAMP AS OF` was read as `orders` then."""
    db.sql("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY)")
    db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY)")
    db.sql("CREATE MATERIALIZED VIEW shop.v AS SELECT id FROM shop.orders")
    db.insert("shop.orders", {"id": 1})
    db.insert("orders", {"id": 2})
    then = db.query("SELECT 1", "strong").timestamp
    db.sql("DELETE FROM shop.orders WHERE id = 1")
    for name, alias in (("shop.orders", "orders"), ("shop.v", "v"), ("`shop.v`", "v")):
        sql = f"SELECT {alias}.id FROM {name} TIMESTAMP AS OF '{then}'"
        assert db.query(sql, "strong").rows() == [{"id": 1}]


def test_names_of_a_query_are_never_taken_for_ours(pairs: Database) -> None:
    """What a view's query is called inside of another query is a name that this one does not have."""
    inner = view_reads.inline("SELECT * FROM v", _inlined(pairs, "v"))
    ours = inner.split("`")[1]
    sql = f"WITH `{ours}` AS (SELECT 7 AS id) SELECT v.id FROM v, `{ours}` AS o WHERE o.id = 7 ORDER BY 1"
    assert both(pairs, sql) == [{"id": 1}, {"id": 2}]


def _inlined(db: Database, *names: str) -> view_reads.Views:
    place = db.place_at(names, db.query("SELECT 1", "strong").timestamp)
    return view_reads.Views({}, {each: (place.views[each], place) for each in names})


def test_an_error_names_the_query_that_was_asked(pairs: Database) -> None:
    with pytest.raises(NotFound, match=r"nosuch.* in SELECT nosuch FROM v"):
        pairs.query("SELECT nosuch FROM v", "strong")
    with pytest.raises(InvalidArgument, match=r"^'SELECT 1 div 0 AS x FROM v'"):
        pairs.query("SELECT 1 div 0 AS x FROM v", "strong", engine="duckdb")


# -- many views ----------------------------------------------------------------------------------------------------


def test_views_on_views_to_any_depth(db: Database) -> None:
    """docs/views.md: "Views may read views, to any depth"."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
    db.insert("t", {"id": 1, "n": 0})
    db.engine.pipeline.pause()
    before = "t"
    for number in range(150):
        db.sql(f"CREATE MATERIALIZED VIEW c{number} AS SELECT id, n + 1 AS n FROM {before}")
        before = f"c{number}"
    assert asked(db, f"SELECT n FROM {before}", "strong", "computed") == [{"n": 150}]


def test_a_view_is_computed_once_however_often_it_is_read(db: Database) -> None:
    """Each view reads the one before it twice: computed for each of those reads, the last would be of 2^24 tables."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
    db.insert("t", [{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    db.engine.pipeline.pause()
    before = "t"
    for number in range(24):
        sql = f"SELECT a.id, sum(a.n + b.n) AS n FROM {before} a JOIN {before} b ON a.id = b.id GROUP BY a.id"
        db.sql(f"CREATE MATERIALIZED VIEW d{number} AS {sql}")
        before = f"d{number}"
    found = asked(db, f"SELECT * FROM {before} ORDER BY id", "strong", "computed")
    assert found == [{"id": 1, "n": 1 << 24}, {"id": 2, "n": 1 << 25}]


def test_one_view_at_two_times_in_one_query(pairs: Database) -> None:
    then = pairs.query("SELECT 1", "strong").timestamp
    pairs.insert("t", {"id": 3, "g": "x", "a": 5})
    sql = f"""
        SELECT now.id, count(old.id) AS k FROM v AS now LEFT JOIN v FOR TIMESTAMP AS OF '{then}' AS old
        ON old.id = now.id GROUP BY now.id ORDER BY now.id
    """
    assert pairs.query(sql, "strong").rows() == [{"id": 1, "k": 1}, {"id": 2, "k": 1}, {"id": 3, "k": 0}]


# -- rows that are equal by an order -------------------------------------------------------------------------------

TIES = [
    "SELECT id, a FROM t ORDER BY a LIMIT 3",
    "SELECT a, g FROM t ORDER BY a LIMIT 3",
    "SELECT id, a FROM t ORDER BY a DESC LIMIT 2 OFFSET 1",
    "SELECT l.id, r.id AS other FROM t l JOIN t r ON l.a = r.a ORDER BY l.a LIMIT 5",
    "SELECT a, count(*) AS c FROM t GROUP BY a ORDER BY c LIMIT 2",
    "SELECT DISTINCT a FROM t ORDER BY a LIMIT 1",
    "SELECT id FROM t UNION ALL SELECT a FROM t ORDER BY 1 LIMIT 4",
    "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY g ORDER BY a) AS r FROM t) WHERE r = 1",
    "SELECT id, lag(id) OVER (ORDER BY a) AS before, ntile(2) OVER (PARTITION BY g ORDER BY a DESC) AS half FROM t",
    "SELECT id, sum(id) OVER (ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM t",
    "SELECT g, first_value(id) OVER (PARTITION BY g ORDER BY a) AS f, id FROM t",
]


@pytest.mark.parametrize("sql", TIES)
def test_of_equal_rows_the_same_are_taken_computed_and_stored(db: Database, sql: str) -> None:
    """docs/views.md: "among rows that are equal by the order, those with the smallest keys"; promise 4: one answer."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, g STRING, a BIGINT)")
    db.sql(f"CREATE MATERIALIZED VIEW v AS {sql}")
    shown = "SELECT * FROM v ORDER BY " + ", ".join(map(str, range(1, 1 + len(db.sql("DESCRIBE v")))))
    for ids in ((9, 8, 7), (5, 6, 4), (2, 1, 3, 12, 10, 11)):
        db.insert("t", [{"id": each, "g": "xy"[each % 2], "a": each % 3 // 2} for each in ids])
        both(db, shown)
    db.sql("DELETE FROM t WHERE id IN (1, 4, 8)")
    both(db, shown)


def test_the_first_rows_of_views_whose_keys_nobody_sees(db: Database) -> None:
    """What is stored has the key of `t` as its own; the view below does not show it."""
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT, b STRING)")
    db.sql("CREATE MATERIALIZED VIEW low AS SELECT a, b FROM t WHERE a < 5")
    db.sql("CREATE MATERIALIZED VIEW mid AS SELECT a, concat(b, '!') AS b FROM low")
    db.sql("CREATE MATERIALIZED VIEW top AS SELECT b FROM mid ORDER BY a LIMIT 2")
    db.insert("t", [{"id": each, "a": 1, "b": f"b{each}"} for each in (9, 3, 7, 5)])
    assert both(db, "SELECT b FROM top ORDER BY b") == [{"b": "b3!"}, {"b": "b5!"}]


def test_where_rows_have_no_keys_a_checkpoint_is_waited_for(db: Database) -> None:
    """Which of the equal rows of a table without a key came first is known to the pipeline alone."""
    db.sql("CREATE TABLE k (a BIGINT, b BIGINT)")
    db.sql("CREATE MATERIALIZED VIEW top AS SELECT b FROM k ORDER BY a LIMIT 2")
    db.sql("CREATE MATERIALIZED VIEW rest AS SELECT b FROM k")
    db.flush()  # Until the pipeline has started, nobody knows when a checkpoint comes.
    db.insert("k", [{"a": 1, "b": each} for each in (9, 3, 7, 5)])
    found = asked(db, "SELECT b FROM top ORDER BY b", "strong", "stored")
    assert len(asked(db, "SELECT b FROM rest", "eventual", "stored")) == 4
    db.insert("k", {"a": 2, "b": 1})
    assert asked(db, "SELECT b FROM top ORDER BY b", "strong", "stored") == found
    db.insert("k", {"a": 2, "b": 1})
    db.engine.pipeline.pause()
    assert len(asked(db, "SELECT b FROM top ORDER BY b", "strong", "computed")) == 2, "none comes"


# -- views that wait -----------------------------------------------------------------------------------------------


def test_a_view_that_only_waits_says_for_which_one_and_not_to_resume_it(db: Database) -> None:
    db.sql("CREATE TABLE o (id BIGINT PRIMARY KEY, n BIGINT)")
    db.sql("CREATE MATERIALIZED VIEW shares AS SELECT id, 12 div n AS x FROM o")
    db.sql("CREATE MATERIALIZED VIEW most AS SELECT max(x) AS m FROM shares")
    db.insert("o", {"id": 5, "n": 0})
    db.flush()
    with pytest.raises(Unavailable, match=r"'most' .*'shares'.*division by zero.*MATERIALIZED VIEW shares RESUME") as e:
        db.query("SELECT * FROM most", "eventual")
    assert "most RESUME" not in str(e.value)
    with pytest.raises(Unavailable, match=r"'shares' has failed at .*division by zero") as failed:
        db.query("SELECT * FROM shares", "eventual")
    assert str(failed.value).count("RESUME") == 1
