"""Values on their way into a table and out again: every type, and what is refused.

Issue 4: the types Spark, Arrow, Parquet and DuckDB share. Design: every error names the thing it is about, and leaves
nothing half done.
"""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import NamedTuple

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from database_rig import Desk
from tidegate import LogSettings, errors
from tidegate.tables.column_type import from_sql, may_be_key


@pytest.fixture
def open_desk(tmp_path):
    opened = []

    def open_(through="owner", **options):
        desk = Desk(tmp_path / f"{len(opened)}.tide", through, pipeline=False, **options)
        opened.append(desk)
        desk.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name STRING, n BIGINT) SHARDS 3")
        return desk

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def owner(open_desk):
    return open_desk().db


def rows(db, sql="SELECT * FROM t", **options):
    return sorted((tuple(row.values()) for row in db.query(sql, **options).rows()), key=repr)


class Kind(NamedTuple):
    """A type, values of it, and how SQL writes them."""

    type: str
    values: list
    sql: list[str]


def whole(type, bits):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return Kind(type, [low, 0, high], [f"CAST('{low}' AS {type})", "0", str(high)])


INSTANT = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
LOCAL = datetime(1969, 12, 31, 23, 59, 59, 999999)
LONG = "1234567890123456789012345678.0123456789"
WAVE = "naïve \u2603 \U0001f30a"
KINDS = [
    Kind("BOOLEAN", [True, False], ["true", "false"]),
    whole("TINYINT", 8),
    whole("SMALLINT", 16),
    whole("INT", 32),
    whole("BIGINT", 64),
    Kind("FLOAT", [0.5, -(2.0**66)], ["CAST(0.5 AS FLOAT)", "-73786976294838206464.0"]),
    Kind("DOUBLE", [0.1, 1e300, -5e-324], ["0.1", "1e300", "-5e-324"]),
    Kind("DECIMAL(10, 2)", [Decimal("12345678.90"), Decimal("-0.01")], ["12345678.90", "-0.01"]),
    Kind("DECIMAL(38, 10)", [Decimal(LONG)], [LONG]),
    Kind("STRING", ["", "it's", WAVE, "a\0b"], ["''", "'it\\'s'", f"'{WAVE}'", "concat('a', chr(0), 'b')"]),
    Kind("BINARY", [b"", b"\0\xff"], ["X''", "X'00FF'"]),
    Kind("DATE", [date(1, 1, 1), date(9999, 12, 31)], ["DATE '0001-01-01'", "DATE '9999-12-31'"]),
    Kind("TIMESTAMP", [INSTANT], ["TIMESTAMP '2024-02-29 23:59:59.123456'"]),
    Kind("TIMESTAMP_NTZ", [LOCAL], ["TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'"]),
    Kind("ARRAY<INT>", [[], [1, None, 3]], ["array()", "array(1, NULL, 3)"]),
    Kind("STRUCT<a: INT, b: STRING>", [{"a": 1, "b": None}], ["named_struct('a', 1, 'b', NULL)"]),
    Kind("MAP<STRING, BIGINT>", [{}, {"k": 1, "l": None}], ["map()", "map('k', 1, 'l', NULL)"]),
    Kind(
        "ARRAY<STRUCT<m: MAP<STRING, ARRAY<DOUBLE>>, d: DATE>>",
        [[{"m": {"k": [0.5, None]}, "d": date(2020, 1, 2)}, None]],
        ["array(named_struct('m', map('k', array(0.5, NULL)), 'd', DATE '2020-01-02'), NULL)"],
    ),
]  # fmt: skip


KEYS = [each for each in KINDS if may_be_key(from_sql(each.type))]


class TestEveryType:
    @pytest.mark.parametrize("kind", KINDS, ids=lambda each: each.type)
    def test_comes_back_as_it_went_in(self, owner, kind):
        """Alone and in thousands, as Python values, Arrow and SQL, with NULL among them."""
        owner.sql(f"CREATE TABLE v (id INT PRIMARY KEY, v {kind.type})")
        type, values = from_sql(kind.type), [*kind.values, None]
        expected = dict(enumerate(values))

        def check(what):
            found = owner.query("SELECT id, v FROM v WHERE id < 100")
            assert {each["id"]: each["v"] for each in found.rows()} == expected, what
            assert found.to_arrow().schema.field("v").type == type, what
            owner.sql("DELETE FROM v")

        owner.insert("v", list(enumerate(values)))
        check("a few tuples")
        many = list(enumerate(values)) + [(100 + number, values[number % len(values)]) for number in range(50)]
        owner.insert("v", [{"id": id, "v": value} for id, value in many])
        check("many dicts")
        arrow = pa.table({"id": pa.array(list(expected), pa.int32()), "v": pa.array(values, type)})
        owner.insert("v", arrow)
        check("Arrow")
        owner.insert("v", pl.from_arrow(arrow) if not kind.type.startswith("MAP") else arrow)
        check("Polars")
        listed = ", ".join(f"({id}, {text})" for id, text in enumerate([*kind.sql, "NULL"]))
        owner.sql(f"INSERT INTO v VALUES {listed}")
        check("SQL")
        owner.insert("v", arrow)
        owner.sql("UPDATE v SET v = v")
        owner.sql("INSERT INTO v SELECT id + 100, v FROM v")
        owner.sql("UPDATE v SET id = id - 100 WHERE id >= 100")
        check("a row that was read and written again")

    def test_a_time_with_a_zone_is_an_instant(self, owner):
        owner.sql("CREATE TABLE v (id INT PRIMARY KEY, v TIMESTAMP)")
        there = timezone(timedelta(hours=5, minutes=30))
        owner.insert("v", [(1, INSTANT.astimezone(there))])
        (found,) = owner.query("SELECT v, CAST(v AS STRING) AS s FROM v").rows()
        assert (
            found["v"] == INSTANT and found["v"].utcoffset() == timedelta(0) and found["s"].startswith("2024-02-29 23")
        )

    @pytest.mark.parametrize(
        "kind",
        [each for each in KINDS if "<" not in each.type and each.type not in ("FLOAT", "DOUBLE")],
        ids=lambda each: each.type,
    )
    def test_whatever_may_be_a_key_finds_its_row_again(self, owner, kind):
        """Routing and conflicts go by a stable hash of the key, whichever way it comes."""
        owner.sql(f"CREATE TABLE v (k {kind.type}, l STRING, n INT, PRIMARY KEY (l, k)) SHARDS 3")
        owner.insert("v", [(each, "x", 0) for each in kind.values])
        for each, text in zip(kind.values, kind.sql, strict=True):
            assert owner.sql(f"UPDATE v SET n = n + 1 WHERE k = {text}") == [{"rows": 1}], each
            owner.sql(f"INSERT INTO v VALUES ({text}, 'x', 9) ON CONFLICT DO NOTHING")
        owner.insert("v", pa.table({"k": pa.array(kind.values, from_sql(kind.type)), "l": ["y"] * len(kind.values)}))
        assert owner.query("SELECT sum(n) AS s, count(*) AS c FROM v").rows() == [
            {"s": len(kind.values), "c": 2 * len(kind.values)}
        ]
        owner.delete("v", [("x", each) for each in kind.values])
        owner.delete("v", [{"k": each, "l": "y"} for each in kind.values])
        assert len(owner.query("SELECT * FROM v")) == 0


class TestBadInput:
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ([{"id": 1, "nam": "x"}], "'nam'.*did you mean name"),
            ([{"id": 1, "zzz": "x"}], "'zzz'.*there are id, name, n"),
            ([(1, "x")], "2 values for 3 columns: id, name, n"),
            ([(1, "x", 1, 1)], "4 values for 3 columns"),
            ([(1, "x", 1), (None, "x", 1)], "row 1.*'id'.*NULL"),
            ([{"name": "x"}], "'id'.*NULL"),
            ([(1, "x", "one")], "row 0.*'n'.*'one'"),
            ([(1, "x", 1), (2, "x", 1.5)], "row 1.*'n'.*1.5"),
            ([(1, 5, 1)], "'name'.*5"),
            ([(2**63, "x", 1)], "'id'.*9223372036854775808"),
            (pa.table({"id": [1, 2], "n": ["x", "y"]}), "'n'"),
            (pa.table({"id": pa.array([1, None])}), "row 1.*'id'.*NULL"),
            (pa.table({"n": [1]}), "'id'.*NULL"),
            (pd.DataFrame({"id": [1], "who": [2]}), "'who'"),
            ([(number, "x", 1) for number in range(50)] + [(51, "x", True)], "row 50.*'n'"),
            ("rows", "not a str"),
            (7, "not a int"),
            (None, "not a NoneType"),
        ],
        ids=lambda each: each if isinstance(each, str) else type(each).__name__,
    )
    def test_wrong_rows_name_the_thing_and_nothing_is_written(self, owner, given, says):
        """Every error names what it is about; nothing is left half done."""
        with pytest.raises(errors.InvalidArgument, match=says):
            owner.insert("t", given)
        with owner.transaction() as txn:
            txn.insert("t", [(9, "kept", 9)])
            with pytest.raises(errors.InvalidArgument, match=says):
                txn.insert("t", given)
        assert rows(owner) == [(9, "kept", 9)]

    @pytest.mark.parametrize(
        ("sql", "says"),
        [
            ("INSERT INTO t VALUES (1, 'a')", "2 values are given for the 3 columns id, name, n"),
            ("INSERT INTO t (id, nam) VALUES (1, 'a')", "'nam'"),
            ("INSERT INTO t (id, n) VALUES (1, 'a')", "'n'.*'a'"),
            ("INSERT INTO t (id, n) VALUES (NULL, 1)", "'id'.*NULL"),
            ("INSERT INTO t (id, n) VALUES (1, CAST('x' AS INT))", "'x'"),
            ("INSERT INTO t (id, n) VALUES (1, nofunction(2))", "(?i)nofunction"),
            ("INSERT INTO tt VALUES (1)", "'tt'.*did you mean 't'"),
            ("UPDATE t SET nam = 1", "'nam'"),
            ("UPDATE t SET n = 'x'", "'n'.*'x'"),
            ("UPDATE t SET id = NULL", "'id'.*NULL"),
            ("UPDATE t SET n = nope + 1", "nope"),
            ("UPDATE tt SET n = 1", "'tt'.*did you mean 't'"),
            ("DELETE FROM t WHERE nope = 1", "nope"),
            ("DELETE FROM t WHERE", "WHERE"),
            ("SELECT nope FROM t", "nope"),
            ("SELECT * FROM", "FROM"),
        ],
    )
    def test_wrong_statements_name_the_thing_and_nothing_is_written(self, owner, sql, says):
        owner.insert("t", [(1, "a", 1)])
        with pytest.raises(errors.InvalidArgument, match=says):
            owner.sql(sql)
        assert rows(owner) == [(1, "a", 1)]

    def test_a_row_that_is_too_large_is_refused_by_its_size(self, open_desk):
        db = open_desk(log=LogSettings(tick_interval_ms=5, message_bytes_max=10_000, block_bytes_max=100_000)).db
        with pytest.raises(errors.LimitExceeded, match=r"'t', row 1.*message_bytes_max") as info:
            db.insert("t", [(1, "ok", 1), (2, "x" * 20_000, 2)])
        assert info.value.value > 20_000 and info.value.limit == 10_000
        with pytest.raises(errors.LimitExceeded, match=r"'t', row 0.*block_bytes_max"):
            db.insert("t", pa.table({"id": [1], "name": ["x" * 200_000]}))
        assert rows(db) == []
