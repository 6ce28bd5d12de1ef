"""Spark's meanings as macros of DuckDB, made when a query first calls them: all of them cost 25 ms, and most queries
need none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final

import duckdb

from tidegate.reads.translate import SETUP

_CALLED: Final = re.compile(r"\b(spark_\w+)\(")
_MADE: Final = {
    name.group(1): each.replace(" TEMP ", " ", 1)  # For all connections.
    for each in SETUP
    if not each.startswith("SET ") and (name := _CALLED.search(each))
}
"""The statement that makes each macro, behind those that it needs."""


class Macros:
    """Those that one DuckDB has. Safe to use from several threads."""

    def __init__(self, cursor: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._cursor = cursor
        self._there: set[str] = set()
        self._lock = Lock()

    def make(self, sql: str) -> None:
        """Make what a translated query calls and is not there yet."""
        wanted = set(_called(sql))
        if wanted <= self._there:
            return
        with self._lock:
            missing = wanted - self._there
            if not missing:
                return
            cursor = self._cursor()
            try:
                for name, statement in _MADE.items():
                    if name in missing:
                        cursor.execute(statement)
            finally:
                cursor.close()
            self._there |= missing


def _called(sql: str) -> Iterator[str]:
    """The macros in a text, and those that they call."""
    for name in _CALLED.findall(sql):
        # Also of a text in quotes, where one too many does no harm, and none need be there.
        if name in _MADE:
            yield name
            yield from _called(_MADE[name].partition(" AS ")[2])
