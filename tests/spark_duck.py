"""DuckDB with Spark's meanings as macros, which take longer to make than most tests: made once for all of a process."""

from __future__ import annotations

from functools import cache

import duckdb

from tidegate.reads.translate import SETUP


def spark_cursor() -> duckdb.DuckDBPyConnection:
    """A connection of its own: what it registers, and its temporary tables, no other sees."""
    cursor = _database().cursor()
    for each in SETUP:
        if each.startswith("SET "):
            cursor.execute(each)
    return cursor


@cache
def _database() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect(config={"threads": 1})
    for each in SETUP:
        found.execute(each.replace(" TEMP ", " ", 1))
    return found
