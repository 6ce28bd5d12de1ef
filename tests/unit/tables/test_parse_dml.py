"""INSERT, UPDATE and DELETE in Spark SQL: what is read, and what an error says (issue: writing)."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.catalog.statements import parse, parse_with_sqlglot
from tidegate.errors import InvalidArgument
from tidegate.tables.parse_values import plain_insert
from tidegate.tables.statements import Delete, Insert, Update

INSERTS: list[tuple[str, Insert]] = [
    (
        "INSERT INTO accounts VALUES (1, 'ann', 100), (2, 'bo', 50)",
        Insert("accounts", constants=[(1, "ann", 100), (2, "bo", 50)]),
    ),
    ("insert into table shop.T (A, `b c`) values (1, NULL);", Insert("shop.T", ("A", "b c"), [(1, None)])),
    (
        "INSERT INTO t VALUES (-1, +2, -0.50, 1e3, TRUE, false)",
        Insert("t", None, [(-1, 2, Decimal("-0.50"), 1e3, True, False)]),
    ),
    ("INSERT INTO t VALUES 1, 2", Insert("t", None, [(1,), (2,)])),
    ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", Insert("t", None, [(1,)], keep_existing=True)),
    (
        "INSERT INTO t VALUES (1) ON CONFLICT (a, b) DO NOTHING",
        Insert("t", None, [(1,)], keep_existing=True, conflict_columns=("a", "b")),
    ),
    ("INSERT INTO t (a) -- one\nVALUES /* two */ (1)", Insert("t", ("a",), [(1,)])),
    (
        "INSERT INTO t VALUES (99999999999999999999999999999999999999, -0.00000000000000000000000000000000000001)",
        Insert("t", None, [(10**38 - 1, Decimal("-1E-38"))]),
    ),
]


@pytest.mark.parametrize(("sql", "expected"), INSERTS, ids=[sql for sql, _ in INSERTS])
def test_rows_of_literals_are_python_values(sql: str, expected: Insert) -> None:
    assert parse(sql) == expected
    assert parse_with_sqlglot(sql) == expected


def test_strings_are_read_as_spark_4_reads_them() -> None:
    """Backslashes escape, and so does a doubled quote (spark.sql.legacy.consecutiveStringLiterals.enabled: false)."""
    values = [r"'it''s'", r"'it\'s'", '"say ""x"" "', r"'a\\b'", r"'a\nb'", r"'\u00e9é'", "''", "'--'", "'); DROP'"]
    sql = f"INSERT INTO t VALUES ({', '.join(values)})"
    read = parse(sql)
    assert isinstance(read, Insert)
    assert read.constants == [("it's", "it's", 'say "x" ', "a\\b", "a\nb", "éé", "", "--", "); DROP")]


def test_other_constants_stay_expressions_that_duckdb_can_evaluate() -> None:
    read = parse(
        "INSERT INTO t VALUES (1 + 2 * 3, DATE '2026-01-31', TIMESTAMP '2026-01-31 12:00:00', X'00ff',"
        " array(1, 2), map('a', 1), named_struct('x', 1, 'y', 'z'), CAST('7' AS INT), NULL, 5L)"
    )
    assert isinstance(read, Insert) and read.constants is None and read.rows is not None
    [row] = read.rows
    select = ", ".join(f"{each.sql('duckdb')} AS c{place}" for place, each in enumerate(row))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        [result] = connection.sql(f"SELECT {select}").to_arrow_table().to_pylist()
    assert list(result.values()) == [
        7,
        date(2026, 1, 31),
        datetime(2026, 1, 31, 12, tzinfo=UTC),
        b"\x00\xff",
        [1, 2],
        [("a", 1)],
        {"x": 1, "y": "z"},
        7,
        None,
        5,
    ]


def test_a_cast_is_strict_as_in_spark_4() -> None:
    """Not NULL for what cannot be cast; TRY_CAST is the one that gives it."""
    read = parse("INSERT INTO t VALUES (CAST('x' AS INT), TRY_CAST('x' AS INT))")
    assert isinstance(read, Insert) and read.rows is not None
    assert [each.sql("duckdb") for each in read.rows[0]] == ["CAST('x' AS INT)", "TRY_CAST('x' AS INT)"]


@pytest.mark.parametrize(
    ("sql", "query"),
    [
        ("INSERT INTO t (a) SELECT b FROM u WHERE c > 1", "SELECT b FROM u WHERE c > 1"),
        ("INSERT INTO t (a) WITH x AS (SELECT 1) SELECT * FROM x", "WITH x AS (SELECT 1) SELECT * FROM x"),
        ("WITH x AS (SELECT 1) INSERT INTO t (a) SELECT * FROM x", "WITH x AS (SELECT 1) SELECT * FROM x"),
        ("INSERT INTO t (a) TABLE u", "SELECT * FROM u"),
        ("INSERT INTO t (a) SELECT 1 UNION ALL SELECT 2", "SELECT 1 UNION ALL SELECT 2"),
    ],
)
def test_a_query_is_kept_as_a_query(sql: str, query: str) -> None:
    read = parse(sql)
    assert isinstance(read, Insert) and read.query is not None
    assert (read.table, read.columns, read.query.sql("spark")) == ("t", ("a",), query)
    assert not read.keep_existing and not read.by_name
    kept = parse("INSERT INTO t BY NAME SELECT 1 AS a ON CONFLICT DO NOTHING")
    assert isinstance(kept, Insert) and kept.keep_existing and kept.by_name


def test_an_update_has_assignments_over_the_row_before() -> None:
    read = parse("UPDATE accounts SET balance = balance + 1, `Owner` = 'x' WHERE id IN (SELECT id FROM u)")
    assert isinstance(read, Update) and read.where is not None
    assert (read.table, read.alias) == ("accounts", None)
    assert [(name, node.sql("duckdb")) for name, node in read.assignments] == [
        ("balance", "balance + 1"),
        ("Owner", "'x'"),
    ]
    assert read.where.sql("duckdb") == "id IN (SELECT id FROM u)"
    aliased = parse("UPDATE shop.t AS x SET x.a = 1")
    assert isinstance(aliased, Update)
    assert (aliased.table, aliased.alias, aliased.where, aliased.assignments[0][0]) == ("shop.t", "x", None, "a")


def test_a_delete_has_any_condition_or_none() -> None:
    read = parse("DELETE FROM t AS x WHERE x.a = 1 OR b IS NULL;")
    assert isinstance(read, Delete) and read.where is not None
    assert (read.table, read.alias, read.where.sql("duckdb")) == ("t", "x", "x.a = 1 OR b IS NULL")
    assert parse("DELETE FROM shop.t") == Delete("shop.t")


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("INSERT INTO t", "ends where VALUES .* or a query"),
        ("INSERT INTO t VALUES", "ends where INSERT INTO name"),
        ("INSERT INTO t VALUES ()", "at least one value"),
        ("INSERT INTO t VALUES (1, 2", r"ends where \) is expected"),
        ("INSERT INTO t VALUES (1,,2)", "',' at column 25"),
        ("INSERT INTO t VALUES (1, 2), (3)", "number of values in row 2 is 1, but the first row has 2"),
        ("INSERT INTO t (a) VALUES (1), (2, 3)", "number of values in row 2 is 2, but 1 columns are named"),
        ("INSERT INTO t (a, A) VALUES (1, 2)", "column 'A' is named twice"),
        ("INSERT INTO t (a.b) VALUES (1)", "'a.b' at column 16 is not understood: the name of a column"),
        ("INSERT INTO t VALUES (x)", "'x' at column 23: VALUES take constants, not names"),
        ("INSERT INTO t VALUES (1 + x)", "'x' at column 27: VALUES take constants"),
        ("INSERT INTO t VALUES (?)", "VALUES take constants"),
        ("INSERT INTO t VALUES (DEFAULT)", "'DEFAULT': VALUES take constants"),
        ("INSERT INTO t VALUES ('abc", "a quote or a comment is not closed"),
        ("INSERT INTO t VALUES (1e400)", "larger than any DOUBLE"),
        ("INSERT INTO t VALUES (" + "9" * 5000 + ")", "has 5000 digits"),
        ("INSERT INTO t VALUES (1); DROP TABLE t", "';' at column 25 .*one statement at a time"),
        ("INSERT OVERWRITE t VALUES (1)", "OVERWRITE is not understood"),
        ("INSERT OR REPLACE INTO t VALUES (1)", "INSERT OR REPLACE is not understood: INSERT INTO replaces the row"),
        ("INSERT INTO t PARTITION (a=1) VALUES (1)", "PARTITION.* is not understood"),
        ("INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 1", "ON CONFLICT DO NOTHING is expected"),
        ("INSERT INTO t VALUES (1) RETURNING a", "'RETURNING a'.* is not understood"),
        ("UPDATE t", "ends where column = expression"),
        ("UPDATE t SET a = ", "ends where UPDATE name SET"),
        ("UPDATE t SET a", "'a' at column 14 is not understood: column = expression"),
        ("UPDATE t SET a = 1, A = 2", "column 'A' is named twice"),
        ("UPDATE t SET s.x = 3", "'s.x' at column 14: 's' is not the table; a field of a STRUCT"),
        ("UPDATE t SET (a, b) = (1, 2)", "the name of a column before ="),
        ("UPDATE t SET a = 1 FROM u", "'FROM u' at column 20 is not understood: UPDATE name SET"),
        ("DELETE t WHERE a = 1", "'t' at column 8 is not understood: DELETE FROM name"),
        ("DELETE FROM t WHERE", "ends where DELETE FROM name"),
        ("DELETE FROM t WHERE a = 1 LIMIT 3", "'LIMIT 3' at column 27"),
        ("DELETE FROM t USING u WHERE t.a = u.a", "'u' at column 21"),
        ("DELETE FROM t WHERE " + "(" * 3000 + "1" + ")" * 3000, "nests too deeply"),
    ],
    ids=lambda text: text[:60],
)
def test_what_is_not_understood_is_named_with_its_place_and_what_is_expected(sql: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse(sql)


def test_plain_rows_take_the_short_way_and_others_do_not() -> None:
    plain = "INSERT INTO t (a) VALUES (1), ('it''s') ON CONFLICT DO NOTHING;"
    assert plain_insert(plain) == parse_with_sqlglot(plain)
    for other in (
        "INSERT INTO t VALUES (1 + 1)",
        r"INSERT INTO t VALUES ('a\n')",
        "INSERT INTO t VALUES ('a' 'b')",
        "INSERT INTO t VALUES (1), (2, 3)",
        "INSERT INTO t (a, A) VALUES (1, 2)",
        "INSERT INTO t VALUES (1) x",
        "INSERT INTO t VALUES (1),",
        "INSERT INTO t SELECT 1",
        "INSERT INTO `t` VALUES (1)",
        "INSERT INTO table VALUES (1)",
    ):
        assert plain_insert(other) is None, other


literals = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=5).map(lambda value: f"{value:f}"),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: f"{value:e}"),
    st.text().map(lambda text: "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"),
    st.sampled_from(["NULL", "null", "TRUE", "False", "- 5", "--5\n 7", "'a' 'b'", "5L", "1 + 1", '"x"', "x"]),
)
blanks = st.sampled_from(["", " ", "\n\t"])


@given(st.lists(st.lists(literals, min_size=1, max_size=3), min_size=1, max_size=3), blanks, st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_short_way_reads_what_the_long_way_reads(rows: list[list[str]], blank: str, keep: bool) -> None:
    """Clever code against its twin. The long way may read more, never something else."""
    values = f"{blank},{blank}".join(f"({blank}{f'{blank},'.join(row)}{blank})" for row in rows)
    sql = f"INSERT INTO t VALUES{blank}{values}{' ON CONFLICT DO NOTHING' if keep else ''}"
    short = plain_insert(sql)
    if short is not None:
        long = parse_with_sqlglot(sql)
        assert isinstance(long, Insert)
        assert repr(short) == repr(long), "by repr, since 1 == 1.0 == True"
