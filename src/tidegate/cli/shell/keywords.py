"""Words of SQL that are coloured and completed."""

from __future__ import annotations

from typing import Final


def _listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(each.split()) for each in text.split(","))


STARTS: Final = _listed(
    """
    SELECT, INSERT INTO, UPDATE, DELETE FROM, WITH, CREATE TABLE, CREATE MATERIALIZED VIEW, CREATE TOPIC, ALTER TABLE,
    ALTER MATERIALIZED VIEW, DROP TABLE, DROP MATERIALIZED VIEW, DROP TOPIC, EXPLAIN MATERIALIZED VIEW,
    SHOW MATERIALIZED VIEWS,
    DROP SUBSCRIPTION, DESCRIBE, DESCRIBE TOPIC, SHOW TABLES, SHOW TOPICS, SHOW SUBSCRIPTIONS, SHOW TRANSACTIONS,
    SHOW CREATE TABLE, SHOW SET, SET, BEGIN, COMMIT, ROLLBACK, VALUES
    """
)
"""What a statement may begin with."""

KEYWORDS: Final = _listed(
    """
    ADD, ALL, ALTER, AND, ANTI, AS, ASC, BEGIN, BETWEEN, BY, CASE, CAST, COLUMN, COMMIT, CONFLICT, CREATE, CROSS,
    DELETE, DESC, DESCRIBE, DISTINCT, DO, DROP, ELSE, END, EXCEPT, EXISTS, EXPLAIN, FALSE, FROM, FULL, GROUP, HAVING,
    IF, IN, INNER, INSERT, INTERSECT, INTERVAL, INTO, IS, JOIN, KEY, LEFT, LIKE, LIMIT, MATERIALIZED, NOT, NOTHING,
    NULL, NULLS, OFFSET, ON, OR, ORDER, OUTER, OVER, PARTITION, PRIMARY, RENAME, RESUME, RIGHT, ROLLBACK, ROWS,
    SELECT, SEMI, SET, SHARDS, SHOW, SUBSCRIPTION, SUBSCRIPTIONS, TABLE, TABLES, THEN, TO, TOPIC, TOPICS, TRANSACTION,
    TRANSACTIONS, TRUE, UNION, UPDATE, USING, VALUES, VIEW, VIEWS, WHEN, WHERE, WITH
    """
)

TYPES: Final = _listed(
    """
    ARRAY, BIGINT, BINARY, BOOLEAN, DATE, DECIMAL, DOUBLE, FLOAT, INT, MAP, SMALLINT, STRING, STRUCT, TIMESTAMP,
    TIMESTAMP_NTZ, TINYINT
    """
)

FUNCTIONS: Final = _listed(
    """
    abs, avg, ceil, coalesce, concat, count, current_timestamp, date_trunc, first, floor, greatest, last, least,
    length, lower, max, min, nullif, rank, round, row_number, substring, sum, trim, upper
    """
)
