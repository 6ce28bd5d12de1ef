"""The SQL of materialized views (issue 6, "What must work"): what is read, and what is said about what is not."""

from __future__ import annotations

import pytest

from tidegate.catalog.statements import parse
from tidegate.errors import InvalidArgument
from tidegate.tables.show_create import show_create_view
from tidegate.tables.statements import DescribeTable, ShowCreateTable
from tidegate.tables.view_statements import (
    CreateView,
    DescribeView,
    DropView,
    ExplainView,
    ResumeView,
    ShowCreateView,
    ShowViews,
    ViewStatement,
)

ONE = "SELECT 1 AS one"
READ: list[tuple[str, ViewStatement]] = [
    (f"CREATE MATERIALIZED VIEW v AS {ONE}", CreateView("v", ONE)),
    (f"create materialized view if not exists shop.v as {ONE};", CreateView("shop.v", ONE, if_not_exists=True)),
    (f"CREATE MATERIALIZED VIEW `a``b` (x, `y z`) AS {ONE}", CreateView("a`b", ONE, ("x", "y z"))),
    (f"CREATE MATERIALIZED VIEW v COMMENT 'it''s' AS {ONE}", CreateView("v", ONE, comment="it's")),
    (f"CREATE MATERIALIZED VIEW v COMMENT '' AS {ONE}", CreateView("v", ONE, comment="")),
    (f"CREATE MATERIALIZED VIEW v TBLPROPERTIES ('retention_s' = '90') AS {ONE}", CreateView("v", ONE, retention_s=90)),
    (
        f"CREATE MATERIALIZED VIEW v TBLPROPERTIES (retention_s = 90) COMMENT 'c' AS {ONE}",
        CreateView("v", ONE, comment="c", retention_s=90),
    ),
    ("CREATE MATERIALIZED VIEW comment AS VALUES (1)", CreateView("comment", "VALUES (1)")),
    ("DROP MATERIALIZED VIEW v", DropView("v")),
    ("DROP MATERIALIZED VIEW v RESTRICT;", DropView("v")),
    ("drop materialized view if exists shop.v cascade", DropView("shop.v", if_exists=True, cascade=True)),
    ("ALTER MATERIALIZED VIEW shop.v RESUME", ResumeView("shop.v")),
    ("SHOW MATERIALIZED VIEWS;", ShowViews()),
    ("SHOW CREATE MATERIALIZED VIEW `v w`", ShowCreateView("v w")),
    ("DESCRIBE MATERIALIZED VIEW v", DescribeView("v")),
    ("DESC MATERIALIZED VIEW v", DescribeView("v")),
    ("EXPLAIN MATERIALIZED VIEW v", ExplainView("v")),
    (f"EXPLAIN MATERIALIZED VIEW AS {ONE}", ExplainView(CreateView("", ONE))),
    (f"EXPLAIN MATERIALIZED VIEW v AS {ONE}", ExplainView(CreateView("v", ONE))),
    (f"EXPLAIN CREATE MATERIALIZED VIEW v (x) AS {ONE}", ExplainView(CreateView("v", ONE, ("x",)))),
]


@pytest.mark.parametrize(("sql", "expected"), READ, ids=[sql for sql, _ in READ])
def test_each_statement_is_read(sql: str, expected: ViewStatement) -> None:
    assert parse(sql) == expected


def test_describe_and_show_create_table_take_a_view_as_spark_does() -> None:
    assert parse("DESCRIBE v") == DescribeTable("v")
    assert parse("SHOW CREATE TABLE v") == ShowCreateTable("v")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT  a ,\n\t`b c`, 'it''s; AS x'  FROM t",
        "with x AS (SELECT 1) select * from x",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "-- why\nSELECT /*+ BROADCAST(t) */ * FROM t -- within\n WHERE a > 1",
        "SELECT 'größe 😀' AS ä FROM t",
    ],
)
def test_the_text_of_the_query_is_kept_exactly_as_it_is_written(query: str) -> None:
    """So that SHOW CREATE gives back what somebody wrote, and every engine reads the same."""
    for end in ("", ";", " ;\n", "\n/* the end */", " -- the end"):
        assert parse(f"CREATE MATERIALIZED VIEW v\nAS\n  {query}{end}") == CreateView("v", query)


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("CREATE VIEW v AS SELECT 1", "'VIEW' at column 8 .* write CREATE MATERIALIZED VIEW"),
        (
            "CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT 1",
            r"'OR' at column 8 .*\(OR REPLACE is not supported: DROP",
        ),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", "OR REPLACE is not supported"),
        ("CREATE MATERIALIZED TABLE v AS SELECT 1", "'TABLE' at column 21 is not understood: VIEW is expected"),
        ("CREATE MATERIALIZED VIEW", "ends where the name of a view is expected"),
        ("CREATE MATERIALIZED VIEW 'v' AS SELECT 1", "\"'v'\" at column 26 is not understood: the name of a view"),
        ("CREATE MATERIALIZED VIEW a. AS SELECT 1", "'SELECT' at column 32 is not understood"),
        ("CREATE MATERIALIZED VIEW IF EXISTS v AS SELECT 1", "'EXISTS' at column 29 .* IF NOT EXISTS is expected"),
        ("CREATE MATERIALIZED VIEW v", r"ends where \(column, \.\.\.\), COMMENT 'text', TBLPROPERTIES .* or AS query"),
        ("CREATE MATERIALIZED VIEW v (a INT) AS SELECT 1", "'INT' at column 31 .* have the types of its query"),
        ("CREATE MATERIALIZED VIEW v () AS SELECT 1", r"'\)' at column 29 .* the name of a column"),
        ("CREATE MATERIALIZED VIEW v COMMENT x AS SELECT 1", "'x' at column 36 .* a text in quotes"),
        ("CREATE MATERIALIZED VIEW v COMMENT 'a' COMMENT 'b' AS SELECT 1", "'COMMENT' at column 40"),
        (
            "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('shards' = '2') AS SELECT 1",
            "'shards'\" at column 43 .*retention_s",
        ),
        ("CREATE MATERIALIZED VIEW v TBLPROPERTIES ('retention_s' = '-1') AS SELECT 1", "`retention_s` cannot be '-1'"),
        ("CREATE MATERIALIZED VIEW v SHARDS 2 AS SELECT 1", "'SHARDS' at column 28"),
        ("CREATE MATERIALIZED VIEW v AS", "ends where a query is expected"),
        ("CREATE MATERIALIZED VIEW v AS ;", "ends where a query is expected"),
        ("CREATE MATERIALIZED VIEW v AS DELETE FROM t", "'DELETE' at column 31 is not understood: a query"),
        ("CREATE MATERIALIZED VIEW v AS\n\nSELECT a,, b FROM t", "',' at line 3, column 10 is not understood"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1; SELECT 2", r"';' at column 39 .*\(one statement at a time"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 'x", "a quote or a comment is not closed"),
        ("DROP VIEW v", "'VIEW' at column 6 .* write DROP MATERIALIZED VIEW"),
        ("DROP MATERIALIZED VIEW v, w", "',' at column 25 is not understood: CASCADE, RESTRICT or the end"),
        ("DROP MATERIALIZED VIEW v CASCADE RESTRICT", "'RESTRICT' at column 34 is not understood: the end of"),
        ("ALTER VIEW v AS SELECT 1", "'VIEW' at column 7 .* write ALTER MATERIALIZED VIEW"),
        ("ALTER MATERIALIZED VIEW v", "ends where RESUME"),
        ("ALTER MATERIALIZED VIEW v AS SELECT 1", "'AS' at column 27 .* drop the view and create it again"),
        ("ALTER MATERIALIZED VIEW v RESUME now", "'now' at column 34 is not understood: the end"),
        ("SHOW VIEWS", "'VIEWS' at column 6 .* MATERIALIZED VIEWS"),
        ("SHOW MATERIALIZED VIEWS LIKE 'a'", "'LIKE' at column 25 is not understood: the end"),
        ("SHOW CREATE VIEW v", "'VIEW' at column 13 .* write SHOW CREATE MATERIALIZED VIEW"),
        ("DESCRIBE VIEW v", "'VIEW' at column 10 .* write DESCRIBE MATERIALIZED VIEW"),
        ("EXPLAIN MATERIALIZED VIEW", "ends where the name of a view is expected"),
        ("EXPLAIN CREATE TABLE t (a INT)", "'TABLE' at column 16 is not understood: MATERIALIZED"),
    ],
)
def test_what_is_not_understood_is_named_with_its_place_and_what_is_expected(sql: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse(sql)


@pytest.mark.parametrize("comment", ["plain", "it's", "a \\ b", "", 'two\n"lines"'])
def test_what_show_create_gives_is_read_as_the_same_view(comment: str) -> None:
    """Law: reading it gives the view's name, columns, query and options."""
    sql = show_create_view("a`b", ["x", "y z"], ONE, {"comment": comment, "retention_s": 90})
    assert parse(sql) == CreateView("a`b", ONE, ("x", "y z"), comment=comment, retention_s=90)
    assert parse(show_create_view("v", ["x"], ONE, {})) == CreateView("v", ONE, ("x",))
