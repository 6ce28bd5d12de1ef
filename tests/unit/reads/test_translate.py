"""Spark SQL for DuckDB: what is translated and how, what is refused, and which tables are read (issue 5, reads).

That answers are Spark's own is proved on Spark, in tests/spark/test_query_corpus.py.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from spark_duck import spark_cursor
from tidegate.errors import InvalidArgument, NotFound
from tidegate.reads.translate import UNANSWERED, NeedsSpark, as_spark, tables_in, translate

SALES = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int32()),
        "name": pa.array(["ann", None, "bob"], pa.string()),
        "amount": pa.array([Decimal("1.50"), Decimal("2.25"), None], pa.decimal128(10, 2)),
        "share": pa.array([-0.0, 0.0, float("nan")], pa.float64()),
        "tags": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
    }
)
TIMES = pa.table(
    {
        "id": pa.array([1, 2, 3, 4]),
        "at": pa.array([-1, 0, 599_999_999, None], pa.timestamp("us", tz="UTC")),
    }
)
SCHEMAS = {"sales": SALES.schema, "times": TIMES.schema}


def connect():
    connection = spark_cursor()
    connection.register("sales", SALES)
    connection.register("times", TIMES)
    return connection


def answer(sql):
    translated = translate(sql, SCHEMAS)
    with connect() as connection:
        return as_spark(connection.sql(translated.sql).to_arrow_table(), translated)


def test_columns_have_the_names_that_spark_gives_them():
    found = answer("SELECT count(*), sum(id), id + 1, CAST(id AS STRING), NAME FROM sales GROUP BY id, name")
    assert found.column_names == ["count(1)", "sum(id)", "(id + 1)", "id", "NAME"]


def test_results_have_the_types_that_spark_gives_them():
    found = answer("SELECT sum(id), sum(amount), avg(amount), id / 2, amount * amount, NULL FROM sales GROUP BY ALL")
    assert found.schema.types == [
        pa.int64(),
        pa.decimal128(20, 2),
        pa.decimal128(14, 6),
        pa.float64(),
        pa.decimal128(21, 4),
        pa.null(),
    ]


def test_nulls_are_first_and_in_a_descending_order_last():
    assert answer("SELECT name FROM sales ORDER BY name")["name"].to_pylist() == [None, "ann", "bob"]
    assert answer("SELECT name FROM sales ORDER BY name DESC")["name"].to_pylist() == ["bob", "ann", None]


def test_zero_and_minus_zero_are_one_group_and_shown_as_zero():
    found = answer("SELECT share, count(*) AS n FROM sales WHERE NOT isnan(share) GROUP BY share").to_pylist()
    assert [(str(row["share"]), row["n"]) for row in found] == [("0.0", 2)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 / 0",
        "SELECT 1.5 / 0",
        "SELECT id % 0 FROM sales",
        "SELECT 2147483647 + 1",
        "SELECT CAST('x' AS INT)",
        "SELECT CAST('1.5' AS INT)",
        "SELECT tags[7] FROM sales",
    ],
)
def test_what_is_an_error_with_ansi_on_is_an_error(sql):
    with connect() as connection, pytest.raises(duckdb.Error) as error:
        connection.execute(translate(sql, SCHEMAS).sql).fetchall()
    assert UNANSWERED not in str(error.value)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT xxhash64(id) FROM sales", "xxhash64"),
        ("SELECT no_such_function(id) FROM sales", "no_such_function"),
        ("SELECT CAST(share AS STRING) FROM sales", "DOUBLE to STRING"),
        ("SELECT * FROM sales TABLESAMPLE (5 ROWS)", "SAMPLE"),
        ("SELECT 'a' RLIKE '(?<=a)b'", "regular expression"),
        ("SELECT coalesce(name, 1) FROM sales", "STRING and INT"),
        ("SELECT id FROM sales QUALIFY id = 1", "QUALIFY"),
        ("SELECT count(*) FROM times GROUP BY window(at, '1 month')", "1 month"),
        ("SELECT count(*) FROM times GROUP BY window(at, '1 hour'), window(at, '1 day')", "two kinds of windows"),
        ("SELECT id FROM sales NATURAL ANTI JOIN sales", "NATURAL"),
        ("SELECT tags < tags FROM sales", "comparison"),
        (r"SELECT '\u0041'", "literal"),
    ],
)
def test_what_is_not_known_to_be_alike_is_refused_by_name(sql, reason):
    with pytest.raises(NeedsSpark) as error:
        translate(sql, SCHEMAS)
    assert reason in error.value.reason


def test_a_value_for_which_the_translation_does_not_hold_is_refused_when_it_is_met():
    """Java writes ß in capitals with two letters."""
    with connect() as connection, pytest.raises(duckdb.Error, match=UNANSWERED):
        connection.execute(translate("SELECT upper(concat('stra', 'ße'))").sql).fetchall()


@pytest.mark.parametrize("sql", ["SELECT FROM WHERE", "SELECT 'a", "DROP TABLE t", "SELECT 1; SELECT 2", "", "hello ("])
def test_what_is_no_query_is_invalid(sql):
    with pytest.raises(InvalidArgument):
        translate(sql, SCHEMAS)
    with pytest.raises(InvalidArgument):
        tables_in(sql)


def test_a_column_or_a_table_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(NotFound, match=r"'nme'.*id, name, amount"):
        translate("SELECT nme FROM sales", SCHEMAS)
    with pytest.raises(NotFound, match="'sale'"):
        translate("SELECT * FROM sale", SCHEMAS)


def test_a_name_that_means_two_columns_is_ambiguous():
    with pytest.raises(InvalidArgument, match="ambiguous"):
        translate("SELECT id FROM sales a JOIN sales b ON a.id = b.id", SCHEMAS)
    with pytest.raises(InvalidArgument, match="ambiguous"):
        translate("SELECT s.id FROM sales s CROSS JOIN sales S", SCHEMAS)


def test_a_query_grows_by_its_own_length_however_deep_it_nests():
    def length(depth):
        sql = "amount"
        for _ in range(depth):
            sql = f"({sql} / 3)"
        for _ in range(depth):
            sql = f"CAST({sql} AS DECIMAL(10, 2))"
        return len(translate(f"SELECT {sql} FROM sales", SCHEMAS).sql)

    assert length(6) - length(4) < 3 * (length(4) - length(2))


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1", set()),
        ("SELECT * FROM a", {"a"}),
        ("TABLE a", {"a"}),
        ("TABLE a UNION ALL TABLE b", {"a", "b"}),
        ("SELECT * FROM a, b JOIN c ON true", {"a", "b", "c"}),
        ("SELECT * FROM s.a", {"s.a"}),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", {"t"}),
        ("WITH t AS (SELECT * FROM a) SELECT * FROM T", {"a"}),
        ("WITH x AS (SELECT 1), y AS (SELECT * FROM x JOIN z ON true) SELECT * FROM y", {"z"}),
        ("WITH y AS (SELECT * FROM x), x AS (SELECT 1) SELECT * FROM y", {"x"}),
        ("SELECT * FROM (WITH t AS (SELECT 1) SELECT * FROM t), t", {"t"}),
        ("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t", set()),
        ("SELECT (SELECT max(x) FROM b) FROM a WHERE x IN (SELECT y FROM c)", {"a", "b", "c"}),
        ("SELECT e FROM a LATERAL VIEW explode(x) v AS e", {"a"}),
        ("SELECT * FROM range(5)", set()),
        ("SELECT explode(array(1, 2))", set()),
        ("SELECT * FROM VALUES (1) AS t(x)", set()),
        ("SELECT trim(BOTH 'x' FROM a) FROM b", {"b"}),
        ("SELECT a.b FROM a UNION SELECT 1", {"a"}),
    ],
)
def test_the_tables_that_a_query_reads(sql, tables):
    assert tables_in(sql) == tables


def rows(sql):
    return sorted(tuple(row.values()) for row in answer(sql).to_pylist())


def minutes(*numbers):
    return [datetime.fromtimestamp(60 * each, UTC) for each in numbers]


def test_a_tumbling_window_holds_its_start_and_not_its_end_also_before_1970():
    found = rows("SELECT window.start, count(*) AS n, max(id) FROM times GROUP BY window(at, '10 minutes')")
    before, zero = minutes(-10, 0)
    assert found == [(before, 1, 1), (zero, 2, 3)]


def test_a_row_is_in_every_hopping_window_over_it_and_in_none_without_a_time():
    found = rows("SELECT id, window.end AS e FROM times GROUP BY id, window(at, '10 minutes', '5 minutes')")
    assert found == list(zip([1, 1, 2, 2, 3, 3], minutes(0, 5, 5, 10, 10, 15)))
    # Windows that share three minutes of eight: this row is in one of them alone.
    sliding = rows("SELECT window(at, '8 minutes', '5 minutes').start AS s, id FROM times WHERE id = 3")
    assert sliding == [(minutes(5)[0], 3)]


def test_a_window_may_start_later_than_the_hour():
    found = rows("SELECT window(at, '1 hour', '1 hour', '15 minutes').start AS s FROM times WHERE id = 2")
    assert found == [(minutes(-45)[0],)]


def test_a_session_goes_on_while_no_gap_is_longer_than_it_may_be():
    """Rows a whole gap apart are in one session still."""
    sql = "SELECT session_window.start, session_window.end, count(*) FROM times GROUP BY session_window(at, '{}')"
    first, last = datetime.fromtimestamp(-1e-6, UTC), datetime.fromtimestamp(599.999999, UTC)
    gap = timedelta(microseconds=599_999_999)
    assert rows(sql.format("599999999 microseconds")) == [(first, last + gap, 3)]
    assert [row[2] for row in rows(sql.format("599999998 microseconds"))] == [2, 1]


def test_window_is_a_name_unless_it_begins_a_clause():
    sql = "SELECT sum(id) OVER window FROM sales WINDOW window AS (PARTITION BY name)"
    assert rows(sql) == [(1,), (2,), (3,)]
    found = answer("SELECT window FROM times GROUP BY window(at, '10 minutes')")
    assert found.schema.field("window").type == pa.struct(
        [("start", pa.timestamp("us", tz="UTC")), ("end", pa.timestamp("us", tz="UTC"))]
    )


def test_a_total_over_no_rows_is_no_row_as_in_spark():
    """Standard SQL, and DuckDB, would give one."""
    assert rows("SELECT name, count(*) FROM sales WHERE id < 0 GROUP BY ROLLUP (name)") == []
    assert rows("SELECT count(*) AS n, grouping_id() FROM sales GROUP BY ROLLUP (id)") == [(1, 0)] * 3 + [(3, 1)]


def test_several_columns_in_a_query_are_unknown_where_a_null_could_make_them_the_same():
    sql = "SELECT id, (name, id) IN (SELECT name, 2 FROM sales) FROM sales"
    assert {row[0]: row[1] for row in answer(sql).rename_columns(["a", "b"]).to_pandas().values.tolist()} == {
        1: False,
        2: None,
        3: False,
    }


def test_arrays_are_the_same_with_a_null_in_the_same_place_and_unknown_where_one_is_missing():
    sql = "SELECT id, tags = array(1, 2), tags <=> CAST(NULL AS ARRAY<INT>) FROM sales"
    assert rows(sql) == [(1, True, False), (2, False, False), (3, None, True)]
    assert rows("SELECT array(1, NULL) = array(1, NULL)") == [(True,)]


def test_texts_are_joined_in_the_order_that_is_asked_for():
    sql = "SELECT listagg(name, '-') WITHIN GROUP (ORDER BY id DESC) FROM sales"
    assert rows(sql) == [("bob-ann",)]


def test_rows_of_tables_come_through_a_join_using_once():
    found = answer("SELECT * FROM (SELECT id, name FROM sales) a JOIN (SELECT id, amount FROM sales) b USING (id)")
    assert found.column_names == ["id", "name", "amount"]


def test_a_value_beyond_its_type_is_an_error_and_names_the_column():
    translated = translate("SELECT id FROM sales", SCHEMAS)
    with pytest.raises(InvalidArgument, match="'id'"):
        as_spark(pa.table({"c0": pa.array([2**40])}), translated)


def test_a_text_that_was_translated_before_means_what_the_tables_of_now_make_of_it():
    """Promise 3: translations are kept by text, and a text means another thing where a table has changed."""
    whole, text = pa.schema([("x", pa.int64())]), pa.schema([("x", pa.string())])
    sql = "SELECT x, x = x AS same FROM kept"
    for _ in range(2):
        for schema in (whole, text, pa.schema([*whole, ("y", pa.int64())])):
            assert translate(sql, {"kept": schema, "other": whole}).types[0] == schema.types[0]
        with pytest.raises(NotFound, match="kept"):
            translate(sql, {"other": whole})
        assert len(translate("SELECT * FROM kept", {"kept": whole}).names) == 1
        assert len(translate("SELECT * FROM kept", {"kept": pa.schema([*whole, ("y", pa.int64())])}).names) == 2


def test_of_one_text_and_the_same_tables_there_is_one_translation():
    schemas = {"kept": pa.schema([("x", pa.int64())])}
    one = translate("SELECT x + 7 FROM kept", schemas)
    assert translate("SELECT x + 7 FROM kept", {"kept": pa.schema([("x", pa.int64())]), "more": SALES.schema}) is one
