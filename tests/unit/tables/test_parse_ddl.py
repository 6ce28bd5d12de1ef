"""DDL in Spark SQL: what is read, and what an error says (issue: catalog and DDL; errors name the thing)."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from tidegate.catalog.statements import parse
from tidegate.errors import InvalidArgument
from tidegate.tables.definition import AddColumn, ColumnDef, DropColumn, RenameColumn
from tidegate.tables.statements import (
    AlterTable,
    CreateTable,
    DescribeTable,
    DropTable,
    ShowCreateTable,
    ShowTables,
    TableStatement,
)

A = (ColumnDef("a", pa.int32()),)
READ: list[tuple[str, TableStatement]] = [
    ("CREATE TABLE t (a INT)", CreateTable("t", A)),
    ("create table if not exists T (a int);", CreateTable("T", A, if_not_exists=True)),
    (
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner STRING, balance BIGINT)",
        CreateTable(
            "accounts",
            (ColumnDef("id", pa.int64()), ColumnDef("owner", pa.string()), ColumnDef("balance", pa.int64())),
            ("id",),
        ),
    ),
    (
        "CREATE TABLE t (a INT NOT NULL, b DATE NULL, PRIMARY KEY (b, A))",
        CreateTable("t", (ColumnDef("a", pa.int32(), False), ColumnDef("b", pa.date32())), ("b", "A")),
    ),
    ("CREATE TABLE t (a INT, CONSTRAINT pk PRIMARY KEY (a))", CreateTable("t", A, ("a",))),
    ("CREATE TABLE t (a INT) SHARDS 4", CreateTable("t", A, shards=4)),
    ("CREATE TABLE t (a INT) with (shards = 4);", CreateTable("t", A, shards=4)),
    ("CREATE TABLE t (a INT) TBLPROPERTIES ('shards'='4')", CreateTable("t", A, shards=4)),
    ("CREATE TABLE t (a INT) TBLPROPERTIES (shards = 4)", CreateTable("t", A, shards=4)),
    (
        "CREATE TABLE t (a INT) TBLPROPERTIES ('retention_s'='3600', 'shards'='4')",
        CreateTable("t", A, shards=4, retention_s=3600),
    ),
    ("CREATE TABLE t (a INT) TBLPROPERTIES ('beside'='shop.u')", CreateTable("t", A, beside="shop.u")),
    ("CREATE TABLE shop.orders (a INT)", CreateTable("shop.orders", A)),
    ("CREATE TABLE `my-t` (a INT)", CreateTable("my-t", A)),
    (
        "CREATE TABLE t (`a b` INT, `c``d` INT, shards INT, timestamp TIMESTAMP)",
        CreateTable(
            "t",
            (
                ColumnDef("a b", pa.int32()),
                ColumnDef("c`d", pa.int32()),
                ColumnDef("shards", pa.int32()),
                ColumnDef("timestamp", pa.timestamp("us", tz="UTC")),
            ),
        ),
    ),
    ("-- first\nCREATE /* a */ TABLE t -- b\n (a INT); -- c", CreateTable("t", A)),
    ("ALTER TABLE t ADD COLUMN a INT", AlterTable("t", (AddColumn("a", pa.int32()),))),
    (
        "ALTER TABLE IF EXISTS t ADD COLUMNS (a INT, b STRING NOT NULL)",
        AlterTable("t", (AddColumn("a", pa.int32()), AddColumn("b", pa.string(), False)), True),
    ),
    (
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS a INT, ADD COLUMN b ARRAY<INT>",
        AlterTable("t", (AddColumn("a", pa.int32(), if_not_exists=True), AddColumn("b", pa.list_(pa.int32())))),
    ),
    ("ALTER TABLE t DROP COLUMN A", AlterTable("t", (DropColumn("A"),))),
    ("ALTER TABLE t DROP COLUMN IF EXISTS a", AlterTable("t", (DropColumn("a", True),))),
    ("ALTER TABLE t DROP COLUMNS (a, `b c`)", AlterTable("t", (DropColumn("a"), DropColumn("b c")))),
    ("ALTER TABLE shop.t RENAME COLUMN a TO B", AlterTable("shop.t", (RenameColumn("a", "B"),))),
    ("DROP TABLE t", DropTable("t")),
    ("DROP TABLE IF EXISTS shop.t;", DropTable("shop.t", True)),
    ("DROP TABLE t CASCADE", DropTable("t", cascade=True)),
    ("drop table if exists shop.t restrict", DropTable("shop.t", if_exists=True)),
    ("SHOW TABLES", ShowTables()),
    ("show /* all */ tables;", ShowTables()),
    ("SHOW CREATE TABLE `my-t`", ShowCreateTable("my-t")),
    ("DESCRIBE t", DescribeTable("t")),
    ("DESC shop.t", DescribeTable("shop.t")),
    ("DESCRIBE TABLE t", DescribeTable("t")),
]


@pytest.mark.parametrize(("sql", "expected"), READ, ids=[sql for sql, _ in READ])
def test_each_statement_is_read(sql: str, expected: TableStatement) -> None:
    assert parse(sql) == expected


TYPES = {
    "BOOLEAN": pa.bool_(),
    "BYTE": pa.int8(),
    "TINYINT": pa.int8(),
    "SHORT": pa.int16(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL": pa.decimal128(10, 0),
    "DECIMAL(5)": pa.decimal128(5, 0),
    "NUMERIC(38, 9)": pa.decimal128(38, 9),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "ARRAY<ARRAY<INT>>": pa.list_(pa.list_(pa.int32())),
    "MAP<STRING, DECIMAL(3, 1)>": pa.map_(pa.string(), pa.decimal128(3, 1)),
    "STRUCT<a: INT, `b c`: STRUCT<d: DATE>>": pa.struct([("a", pa.int32()), ("b c", pa.struct([("d", pa.date32())]))]),
}


@pytest.mark.parametrize("text", TYPES)
def test_a_type_in_a_statement_means_what_it_means_by_itself(text: str) -> None:
    """One meaning, whether sqlglot reads it here or the catalog out of a record."""
    from tidegate.tables.column_type import from_sql

    read = parse(f"CREATE TABLE t (x {text} NOT NULL)")
    assert isinstance(read, CreateTable)
    assert read.columns == (ColumnDef("x", TYPES[text], nullable=False),)
    assert from_sql(text) == TYPES[text]


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("CREATE", "the statement ends where CREATE TABLE"),
        ("CREATE VIEW v AS SELECT 1", "'VIEW' at column 8 is not understood: MATERIALIZED VIEW"),
        ("CREATE TABLE t", r"ends where \(column TYPE, ...\)"),
        ("CREATE TABLE t (a INT", r"ends where \) is expected"),
        ("CREATE TABLE t (a)", "'a' at column 17: this column has no type"),
        ("CREATE TABLE t (a UUID)", "UUID is not a type of a column: there are BOOLEAN, "),
        ("CREATE TABLE t (a VARCHAR(10))", "lengths of strings are not checked; write STRING"),
        ("CREATE TABLE t (a DECIMAL(39, 0))", "1 to 38 digits"),
        ("CREATE TABLE t (a ARRAY)", "ARRAY is not a type of a column"),
        ("CREATE TABLE t (a STRUCT<b: INT NOT NULL>)", "b INT NOT NULL is not a field of a STRUCT"),
        ("CREATE TABLE t (a STRUCT<b: INT, B: INT>)", "two fields 'b' and 'B'"),
        ("CREATE TABLE t (a INT,, b INT)", "',' at column 23 is not understood: something behind the comma"),
        ("CREATE TABLE t (a INT,)", r"'\)' at column 23 is not understood"),
        ("CREATE TABLE t (,a INT)", "',' at column 17 is not understood: something before the comma"),
        ("CREATE TABLE t (a INT DEFAULT 4)", "column 'a': DEFAULT 4 is not understood: NOT NULL or PRIMARY KEY"),
        ("CREATE TABLE t (a INT COMMENT 'x')", "column 'a': COMMENT 'x' is not understood"),
        ("CREATE TABLE t (a INT, UNIQUE (a))", r"'UNIQUE \(a\)' at column 24 is not understood: column TYPE or"),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)", r"one primary key; write PRIMARY KEY \(a, b\)"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (a DESC))", "'DESC' at column 39"),
        ("CREATE TABLE t AS SELECT 1", "'SELECT 1' at column 19 is not understood: CREATE TABLE"),
        ("CREATE TABLE t LIKE u", "'LIKE u' at column 16 is not understood"),
        ("CREATE OR REPLACE TABLE t (a INT)", "REPLACE is not understood"),
        ("CREATE TEMPORARY TABLE t (a INT)", "'TEMPORARY' is not understood"),
        ("CREATE TABLE t (a INT) USING parquet", "'USING PARQUET'.* is not understood: SHARDS n"),
        ("CREATE TABLE t (a INT) SHARDS", "'SHARDS' at column 24"),
        ("CREATE TABLE t (a INT) SHARDS 1.5", "number of shards cannot be '1.5'"),
        ("CREATE TABLE t (a INT) SHARDS 12345678901", "number of shards cannot be '12345678901'"),
        ("CREATE TABLE t (a INT) WITH (shards = 4) SHARDS 3", "the number of shards once"),
        ("CREATE TABLE t (a INT) WITH (speed = 4)", r"'speed'=4.* is not understood: SHARDS n"),
        ("CREATE TABLE t (a INT) TBLPROPERTIES ('shards'='x')", "number of shards cannot be 'x'"),
        ("CREATE TABLE t (a INT) TBLPROPERTIES ('retention_s'='1h')", "`retention_s` cannot be '1h'"),
        ("CREATE TABLE t (a INT); DROP TABLE t", "';' at column 23 is not understood: the end"),
        ("CREATE TABLE t (a INT) -- x\n SHARD 3", "'SHARD' at line 2, column 2 is not understood"),
        ("ALTER TABLE t", "ends where ALTER TABLE name followed by ADD COLUMN"),
        ("ALTER TABLE t FOO", "'FOO' at column 15 is not understood: ALTER TABLE name followed by"),
        ("ALTER TABLE t RENAME TO u", "'RENAME TO u' at column 15 is not understood"),
        ("ALTER TABLE t ALTER COLUMN a TYPE BIGINT", "'ALTER COLUMN a TYPE BIGINT' at column 15"),
        ("ALTER TABLE t ADD COLUMN a INT FIRST", "'FIRST' is not understood"),
        ("ALTER TABLE t ADD COLUMN a INT PRIMARY KEY", "'a INT PRIMARY KEY' at column 26: the primary key .* stays"),
        ("ALTER TABLE t ADD COLUMN a.b INT", "'a.b' at column 26 is not understood: the name of a column"),
        ("ALTER TABLE t ADD COLUMN a", "is not understood: ALTER TABLE"),
        ("ALTER TABLE t DROP COLUMN a CASCADE", "CASCADE is not understood"),
        ("ALTER TABLE t RENAME COLUMN a b", "ALTER TABLE name followed by"),
        ("ALTER TABLE t SET TBLPROPERTIES ('a'='b')", "is not understood: ALTER TABLE"),
        ("ALTER VIEW v AS SELECT 1", "'VIEW' at column 7 is not understood: MATERIALIZED VIEW"),
        ("DROP TABLE", r"ends where DROP TABLE \[IF EXISTS\] name"),
        ("DROP TABLE t, u", "'u' at column 15 is not understood: the name of one table"),
        ("DROP INDEX v", "'INDEX' at column 6 is not understood: TABLE, MATERIALIZED VIEW, TOPIC or SUBSCRIPTION"),
        ("CREATE INDEX v ON t (a)", "'INDEX' at column 8 is not understood: TABLE, MATERIALIZED VIEW or TOPIC"),
        ("DROP TABLE t PURGE", "PURGE is not understood"),
        ("DROP VIEW v", "'VIEW' at column 6 is not understood: MATERIALIZED VIEW"),
        ("SHOW", "ends where TABLES, MATERIALIZED VIEWS, TOPICS, SUBSCRIPTIONS, TRANSACTIONS, CREATE TABLE or"),
        ("SHOW DATABASES", "'DATABASES' at column 6 is not understood"),
        ("SHOW TABLES LIKE 'a*'", "'LIKE' at column 13 is not understood: the end of the statement"),
        ("SHOW CREATE TABLE", "ends where the name of a table"),
        ("SHOW CREATE TABLE 7", "'7' at column 19 is not understood: the name of a table"),
        ("DESCRIBE", r"ends where DESCRIBE \[TABLE\] name"),
        ("DESCRIBE EXTENDED t", "EXTENDED is not understood"),
        ("DESCRIBE SELECT 1", "'SELECT 1' at column 10 is not understood"),
    ],
)
def test_what_is_not_understood_is_named_with_its_place_and_what_is_expected(
    sql: str, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(InvalidArgument, match=complaint):
        parse(sql)
    assert not caplog.records, "sqlglot's own warnings stay inside"


def test_an_error_about_a_long_statement_is_short() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse("CREATE TABLE t (" + ", ".join(f"c{n} INT" for n in range(1000)) + ") FOO")
    assert len(str(caught.value)) < 400 and "'FOO' at column" in str(caught.value)
