"""One entry for every SQL statement: about topics, about tables, about views, or a query.

    parse(sql) ──▶ a statement of tidegate.topics.statements, of tidegate.tables.statements,
                   of tidegate.tables.view_statements, or Query(sql)

Topics have a reader of their own; tables and views are read by sqlglot, which is loaded when
the first such statement comes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvalidArgument
from tidegate.tables.parse_values import plain_insert
from tidegate.tables.statements import TableStatement
from tidegate.tables.view_statements import ViewStatement
from tidegate.topics import statements as topics

_SKIP: Final = re.compile(r"(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z_]+|.", re.DOTALL)
_QUERIES: Final = frozenset({"SELECT", "FROM", "VALUES", "TABLE", "("})
_STATEMENTS: Final = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE TABLE, ALTER TABLE, DROP TABLE, SHOW TABLES, DESCRIBE, CREATE MATERIALIZED"
    " VIEW, ALTER MATERIALIZED VIEW, DROP MATERIALIZED VIEW, SHOW MATERIALIZED VIEWS, EXPLAIN MATERIALIZED VIEW,"
    " CREATE TOPIC, DROP TOPIC, SHOW TOPICS, SHOW SUBSCRIPTIONS, DROP SUBSCRIPTION or SHOW TRANSACTIONS"
)


@dataclass(frozen=True, slots=True)
class Query:
    """A statement that reads rows and changes nothing. Its text is looked at by whoever answers it."""

    sql: str


AnyStatement = topics.Statement | TableStatement | ViewStatement | Query


def parse(sql: str) -> AnyStatement:
    """Read one statement.

    Raises: `InvalidArgument` with the offending part, where it stands, and what was expected there.
    """
    if topics.is_topic_statement(sql):
        return topics.parse(sql)
    first = _first_word(sql)
    if first in _QUERIES:
        return Query(sql)
    plain = plain_insert(sql) if first == "INSERT" else None
    return plain if plain is not None else _table_statement(sql, first)


def parse_with_sqlglot(sql: str) -> AnyStatement:
    """`parse` without the short way for plain INSERTs, to compare them."""
    return _table_statement(sql, _first_word(sql))


def _first_word(sql: str) -> str:
    """In capitals; looks no further, since other SQL may be megabytes long."""
    start = _SKIP.match(sql)
    word = _WORD.match(sql, start.end() if start else 0)
    if word is None or not sql.strip(" \t\r\n;"):
        raise InvalidArgument(f"the statement is empty; {_STATEMENTS} is expected")
    return word.group().upper()


def _table_statement(sql: str, first: str) -> AnyStatement:
    from tidegate.tables import parse_ddl, parse_dml, parse_views
    from tidegate.tables.spark_sql import Source, is_query

    source = Source(sql)
    if parse_views.is_view_statement(source):
        return parse_views.read(source)
    match first:
        case "CREATE":
            return parse_ddl.create(source)
        case "ALTER":
            return parse_ddl.alter(source)
        case "DROP":
            return parse_ddl.drop(source)
        case "DESCRIBE" | "DESC":
            return parse_ddl.describe(source)
        case "SHOW":
            return parse_ddl.show(source)
        case "INSERT":
            return parse_dml.insert(source)
        case "UPDATE":
            return parse_dml.update(source)
        case "DELETE":
            return parse_dml.delete(source)
        case "WITH":  # Of a query, or of an INSERT.
            node = source.parse("a query or INSERT")
            return Query(sql) if is_query(node) else parse_dml.read_insert(source, node)
        case _:
            raise source.unexpected(source.tokens[0] if source.tokens else None, _STATEMENTS)
