"""All common types of PostgreSQL, as a real server writes them: by snapshot, streaming and polling."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from pg_mirror import begin, catch_up, opened
from pg_server import Server
from tidegate.errors import SourceUnreadable
from tidegate.tables.column_type import from_sql, to_sql

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'it''s, "ok"');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN money_like AS numeric(8, 3);
CREATE DOMAIN more AS money_like;
CREATE DOMAIN short AS varchar(5);
CREATE DOMAIN list AS int[];
"""
# What it is declared as; what it is here; literals of SQL and the values that they become.
TYPES: list[tuple[str, str, list[tuple[str, Any]]]] = [
    ("bool", "BOOLEAN", [("true", True), ("false", False)]),
    ("int2", "SMALLINT", [("-32768", -32768), ("32767", 32767)]),
    ("int4", "INT", [("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)]),
    ("int8", "BIGINT", [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)]),
    ("oid", "BIGINT", [("4294967295", 2**32 - 1)]),
    ("float4", "FLOAT", [("'NaN'", math.nan), ("'Infinity'", math.inf), ("1.5", 1.5), ("3.4028235e38", 3.4028235e38)]),
    (
        "float8",
        "DOUBLE",
        [
            ("'NaN'", math.nan),
            ("'-Infinity'", -math.inf),
            ("0.1", 0.1),
            ("'-0'", -0.0),
            ("1.7976931348623157e308", 1.7976931348623157e308),
            ("'5e-324'", 5e-324),
        ],
    ),
    ("numeric(10, 2)", "DECIMAL(10, 2)", [("1.5", Decimal("1.50")), ("-99999999.99", Decimal("-99999999.99"))]),
    ("numeric(38, 0)", "DECIMAL(38, 0)", [("9" * 38, Decimal("9" * 38))]),
    ("numeric(38, 38)", "DECIMAL(38, 38)", [("0." + "9" * 38, Decimal("0." + "9" * 38))]),
    ("numeric(3, 5)", "DECIMAL(5, 5)", [("0.00123", Decimal("0.00123"))]),
    ("numeric(2, -3)", "DECIMAL(5, 0)", [("12345", Decimal(12000))]),
    ("numeric", "STRING", [("1.500", "1.500"), ("'NaN'", "NaN"), ("1e50", "1" + "0" * 50)]),
    ("numeric(39, 1)", "STRING", [("1", "1.0")]),
    (
        "text",
        "STRING",
        [
            ("''", ""),
            ("'NULL'", "NULL"),
            (r"'\N'", r"\N"),
            (r"'\.'", r"\."),
            (r"""'a,"b" ''c'''""", "a,\"b\" 'c'"),
            (r"E'line\nline\r\n\ttab\\'", "line\nline\r\n\ttab\\"),
            ("'Tür 中 😀'", "Tür 中 😀"),
            ("' '", " "),
            (r"E'\x01'", "\x01"),
        ],
    ),
    ("varchar(5)", "STRING", [("'abc'", "abc")]),
    ("char(5)", "STRING", [("'abc'", "abc  ")]),
    ("name", "STRING", [("'abc'", "abc")]),
    ('"char"', "STRING", [("'x'", "x")]),
    ("uuid", "STRING", [("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]),
    ("json", "STRING", [("""'{"a": [1,  2]}'""", '{"a": [1,  2]}')]),
    ("jsonb", "STRING", [("""'{"b":1,"a":null}'""", '{"a": null, "b": 1}')]),
    ("inet", "STRING", [("'10.0.0.1/8'", "10.0.0.1/8"), ("'::1'", "::1")]),
    ("cidr", "STRING", [("'10.0.0.0/8'", "10.0.0.0/8")]),
    ("macaddr", "STRING", [("'08-00-2b-01-02-03'", "08:00:2b:01:02:03")]),
    ("mood", "STRING", [("'sad'", "sad"), ("""'it''s, "ok"'""", 'it\'s, "ok"')]),
    ("pair", "STRING", [("(1, 'x y')", '(1,"x y")')]),
    ("interval", "STRING", [("'1 year 2 days 03:04:05.6'", "1 year 2 days 03:04:05.6")]),
    ("money", "STRING", [("12.5", "$12.50")]),
    ("bit(4)", "STRING", [("B'1010'", "1010")]),
    ("varbit", "STRING", [("B'101'", "101")]),
    ("tsvector", "STRING", [("'a fat cat'", "'a' 'cat' 'fat'")]),
    ("time", "STRING", [("'04:05:06.789'", "04:05:06.789"), ("'24:00'", "24:00:00")]),
    ("timetz", "STRING", [("'04:05:06+02'", "04:05:06+02")]),
    ("int4range", "STRING", [("'[1,5)'", "[1,5)")]),
    ("point", "STRING", [("'(1,2)'", "(1,2)")]),
    ("bytea", "BINARY", [(r"'\x'", b""), (r"'\x00ff5c27'", b"\x00\xff\x5c'")]),
    ("date", "DATE", [("'2024-02-29'", date(2024, 2, 29)), ("'0001-01-01'", date.min), ("'9999-12-31'", date.max)]),
    (
        "timestamp",
        "TIMESTAMP_NTZ",
        [
            ("'2024-02-29 12:34:56.789'", datetime(2024, 2, 29, 12, 34, 56, 789000)),
            ("'1969-12-31 23:59:59.999999'", datetime(1969, 12, 31, 23, 59, 59, 999999)),
            ("'0001-01-01'", datetime.min),
            ("'9999-12-31 23:59:59.999999'", datetime.max),
        ],
    ),
    ("timestamp(0)", "TIMESTAMP_NTZ", [("'2024-02-29 12:34:56'", datetime(2024, 2, 29, 12, 34, 56))]),
    (
        "timestamptz",
        "TIMESTAMP",
        [
            ("'2024-02-29 12:34:56.5+02'", datetime(2024, 2, 29, 10, 34, 56, 500000, UTC)),
            ("'1800-01-01 00:00:00+00'", datetime(1800, 1, 1, tzinfo=UTC)),
        ],
    ),
    ("positive", "INT", [("5", 5)]),
    ("more", "DECIMAL(8, 3)", [("5", Decimal("5.000"))]),
    ("short", "STRING", [("'ab'", "ab")]),
    ("int4[]", "ARRAY<INT>", [("'{1,NULL,3}'", [1, None, 3]), ("'{}'", []), ("'[5:6]={1,2}'", [1, 2])]),
    (
        "text[]",
        "ARRAY<STRING>",
        [
            (r"""ARRAY['a,b', 'q"\', NULL, 'NULL']""", ["a,b", 'q"\\', None, "NULL"]),
            (r"""ARRAY['', 'x y', '{', E'\n']""", ["", "x y", "{", "\n"]),
        ],
    ),
    ("numeric(6, 2)[]", "ARRAY<DECIMAL(6, 2)>", [("'{1.5,-2}'", [Decimal("1.50"), Decimal("-2.00")])]),
    ("bool[]", "ARRAY<BOOLEAN>", [("'{t,f,NULL}'", [True, False, None])]),
    ("date[]", "ARRAY<DATE>", [("'{2024-02-29}'", [date(2024, 2, 29)])]),
    ("bytea[]", "ARRAY<BINARY>", [(r"""ARRAY['\x00ff'::bytea, '\x']""", [b"\x00\xff", b""])]),
    (
        "timestamptz[]",
        "ARRAY<TIMESTAMP>",
        [("""'{"2024-02-29 12:00:00+00"}'""", [datetime(2024, 2, 29, 12, tzinfo=UTC)])],
    ),
    ("mood[]", "ARRAY<STRING>", [("""ARRAY['it''s, "ok"'::mood]""", ['it\'s, "ok"'])]),
    ("positive[]", "ARRAY<INT>", [("'{1,2}'", [1, 2])]),
    ("box[]", "ARRAY<STRING>", [("'{(1,1),(0,0);(2,2),(0,0)}'", ["(1,1),(0,0)", "(2,2),(0,0)"])]),
    ("int2vector", "STRING", [("'1 2'", "1 2")]),
    ("list", "ARRAY<INT>", [("'{1}'", [1])]),
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        close = math.isclose(one, other, rel_tol=1e-7) or one == other
        return (math.isnan(one) and math.isnan(other)) or (close and math.copysign(1, one) == math.copysign(1, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("copies", [1, 60], ids=["few rows", "many rows"])
@pytest.mark.parametrize("mode", ["streaming", "polling"])
def test_every_type_is_what_it_is_said_to_be(postgres: Server, pg_database: str, mode: str, copies: int) -> None:
    """Issue 7: all common types. NULL, an empty text and the text NULL are three things."""
    count = max(len(values) for _, _, values in TYPES) + 1
    columns = ", ".join(f"c{at} {declared}" for at, (declared, _, _) in enumerate(TYPES))
    rows = [
        [values[number][0] if number < len(values) else "NULL" for _, _, values in TYPES] for number in range(count)
    ]

    def insert(first: int) -> str:
        found = []
        for copy in range(copies):
            for number, row in enumerate(rows):
                cells = ", ".join(f"({text})::{declared}" for text, (declared, _, _) in zip(row, TYPES, strict=True))
                found.append(f"INSERT INTO t VALUES ({first + copy * count + number}, {cells})")
        return "; ".join(found)

    with postgres.connect(pg_database) as db, opened(postgres.url(pg_database, mode=mode)) as source:
        db.execute(SETUP)  # type: ignore[arg-type]
        db.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")  # type: ignore[call-overload]
        db.execute(insert(0))  # type: ignore[call-overload]
        mirror = begin(source)
        db.execute(insert(100_000))  # type: ignore[call-overload]
        catch_up(source, mirror)
    declared = {TYPES[at][0]: column.type for at, column in enumerate(mirror.tables["t"].columns[1:])}
    assert declared == {name: sql for name, sql, _ in TYPES}
    assert all(to_sql(from_sql(each)) == each for each in declared.values()), "each is a type of a table"
    assert len(mirror.rows["t"]) == 2 * copies * count
    for (number,), row in mirror.rows["t"].items():
        for at, (name, _, values) in enumerate(TYPES):
            which = number % 100_000 % count
            expected = values[which][1] if which < len(values) else None
            assert same(row[f"c{at}"], expected), (name, row[f"c{at}"], expected)


@pytest.mark.parametrize(
    ("declared", "literal", "said"),
    [
        ("numeric(5, 2)", "'NaN'", "NaN is no value of a DECIMAL"),
        ("date", "'infinity'", "infinity is no value"),
        ("timestamp", "'-infinity'", "-infinity is no value"),
        ("timestamptz", "'infinity'", "infinity is no value"),
        ("date", "'10000-01-01'", "years 1 to 9999"),
        ("timestamp", "'0044-03-15 BC'", "years 1 to 9999"),
        ("int4[]", "'{{1,2},{3,4}}'", "more than one dimension"),
        ("date[]", "'{infinity}'", "infinity is no value"),
    ],
)
@pytest.mark.parametrize("count", [1, 100])
def test_a_value_that_cannot_be_here_names_table_and_column(postgres, pg_database, declared, literal, said, count):
    with postgres.connect(pg_database) as db, opened(postgres.url(pg_database)) as source:
        db.execute(f"CREATE TABLE odd (id int PRIMARY KEY, v {declared})")
        mirror = begin(source)
        db.execute(f"INSERT INTO odd SELECT i, {literal}::{declared} FROM generate_series(1, {count}) i")
        with pytest.raises(SourceUnreadable, match=f"table 'odd', column 'v': .*{said}"):
            catch_up(source, mirror)
    with (
        opened(postgres.url(pg_database), name="other") as source,
        pytest.raises(SourceUnreadable, match=r"'odd'.*'v'"),
    ):
        begin(source)


def test_texts_that_are_no_utf8_are_refused(postgres):
    """A database without an encoding holds any bytes; its server does not send them."""
    with postgres.connect("postgres") as db:
        db.execute("CREATE DATABASE raw_bytes TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    try:
        with opened(postgres.url("raw_bytes")) as source, postgres.connect("raw_bytes") as db:
            db.execute("CREATE TABLE odd (id int PRIMARY KEY, v text)")
            mirror = begin(source)
            db.execute(r"INSERT INTO odd SELECT i, convert_from('\xff', 'SQL_ASCII') FROM generate_series(1, 100) i")
            with pytest.raises(SourceUnreadable, match="no text in UTF-8"):
                catch_up(source, mirror)
    finally:
        postgres.drop_database("raw_bytes")


def test_a_type_that_was_made_later_is_known(postgres, pg_database):
    with postgres.connect(pg_database) as db, opened(postgres.url(pg_database)) as source:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        mirror = begin(source)
        db.execute("CREATE DOMAIN price AS numeric(7, 2); ALTER TABLE t ADD p price, ADD q price[]")
        db.execute("INSERT INTO t VALUES (1, 2.5, '{1}')")
        catch_up(source, mirror)
        assert [column.type for column in mirror.tables["t"].columns[1:]] == ["DECIMAL(7, 2)", "ARRAY<DECIMAL(7, 2)>"]
        assert mirror.rows["t"] == {(1,): {"id": 1, "p": Decimal("2.50"), "q": [Decimal("1.00")]}}
