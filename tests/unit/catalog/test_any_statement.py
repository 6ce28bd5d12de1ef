"""One entry for all SQL: topics, tables, queries, and what is none of them (issue: DDL; the public face: db.sql)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidegate.catalog.statements import Query, parse
from tidegate.errors import InvalidArgument
from tidegate.tables.statements import DescribeTable, DropTable
from tidegate.tables.view_statements import CreateView, ShowViews
from tidegate.topics.statements import CreateTopic, DescribeTopic, DropTopic


def test_each_kind_of_statement_finds_its_reader() -> None:
    assert parse("CREATE TOPIC audit SHARDS 2") == CreateTopic("audit", 2)
    assert parse("DESCRIBE TOPIC audit") == DescribeTopic("audit")
    assert parse("DESCRIBE audit") == DescribeTable("audit")
    assert parse("DROP TOPIC audit") == DropTopic("audit")
    assert parse("DROP TABLE audit") == DropTable("audit")
    assert parse("CREATE MATERIALIZED VIEW v AS SELECT 1") == CreateView("v", "SELECT 1")
    assert parse("/* all */ SHOW MATERIALIZED VIEWS") == ShowViews()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "  -- note\n/* and */ select * from t",
        "(SELECT 1)",
        "VALUES (1)",
        "FROM t SELECT a",
        "TABLE t",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "(SELECT 1) UNION (SELECT 2)",
    ],
)
def test_what_reads_rows_is_a_query_with_its_text_untouched(sql: str) -> None:
    assert parse(sql) == Query(sql)


@pytest.mark.parametrize("sql", ["", "  ", ";", "-- only a note", "/* only a note */ ;"])
def test_a_statement_without_words_is_told_so(sql: str) -> None:
    with pytest.raises(InvalidArgument, match=r"(is empty;|ends where|';' at column).* SELECT, INSERT"):
        parse(sql)


@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ("TRUNCATE TABLE t", "'TRUNCATE' at column 1 is not understood: SELECT, INSERT, UPDATE, DELETE, CREATE TABLE"),
        ("EXPLAIN SELECT 1", "'EXPLAIN' at column 1"),
        ("7", "'7' at column 1"),
        ("'x'", "\"'x'\" at column 1"),
        ("CREATE TOPIC", "the name of a topic is expected"),
        ("WITH x AS (SELECT 1) DELETE FROM t", "is not understood: INSERT INTO"),
        ("CREATE VIEW v AS SELECT 1", "'VIEW' at column 8 is not understood: MATERIALIZED VIEW"),
    ],
)
def test_what_is_neither_is_told_what_there_is(sql: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse(sql)


def test_sqlglot_is_loaded_only_when_it_is_needed() -> None:
    """It takes a sixth of a second, which no topic, query or plain INSERT has to wait for."""
    program = (
        "import sys; from tidegate.catalog.statements import parse\n"
        "for sql in ('SELECT 1', 'SHOW TOPICS', 'INSERT INTO t VALUES (1)'): parse(sql)\n"
        "early = 'sqlglot' in sys.modules; parse('SHOW TABLES')\n"
        "print(early, 'sqlglot' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "True"]
