"""The relations that a statement of a view names: what stands in backticks after FROM or JOIN, and nothing else.

A column may be called as a relation is (`t@a`, `#1`), and so may a text be; neither is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

_IN_SPARK: Final = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`((?:[^`]|``)*)`""", re.DOTALL
)
_IN_DUCKDB: Final = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)\"""")
_READS: Final = re.compile(r"\b(?:FROM|JOIN)\s+\Z", re.IGNORECASE)
_READS_LENGTH: Final = 8
"""So many characters before a name are looked at; generated statements have one blank there."""
_VERSION: Final = re.compile(r"(.+)@([bdsa])", re.DOTALL)
_Places = Sequence[tuple[int, int, str]]
"""Where names stand, quotes and all, and which."""


def relations_in(sql: str) -> Sequence[str]:
    """The relations that a statement in Spark SQL names in backticks, each once."""
    return tuple(dict.fromkeys(name for _, _, name in _places(sql)))


def version_of(relation: str) -> tuple[str, str] | None:
    """`t@a` as `t` and `a`."""
    found = _VERSION.fullmatch(relation)
    return None if found is None else (found[1], found[2])


def renamed(sql: str, to: Callable[[str], str | None]) -> str:
    """A statement in Spark SQL with other names for the relations that `to` has one for."""
    return _replaced(sql, _places(sql), to, "`")


def renamed_in_duckdb(sql: str, to: Callable[[str], str | None]) -> str:
    """As `renamed`, for DuckDB."""
    return _replaced(sql, _places_in_duckdb(sql), to, '"')


def _replaced(sql: str, places: _Places, to: Callable[[str], str | None], quote: str) -> str:
    parts, at = [], 0
    for start, end, name in places:
        if (new := to(name)) is not None:
            parts += [sql[at:start], quote, new.replace(quote, quote * 2), quote]
            at = end
    return "".join([*parts, sql[at:]])


# Statements are the same from batch to batch.


@lru_cache(maxsize=1024)
def _places(sql: str) -> _Places:
    return _found(sql, _IN_SPARK, "`")


@lru_cache(maxsize=1024)
def _places_in_duckdb(sql: str) -> _Places:
    return _found(sql, _IN_DUCKDB, '"')


def _found(sql: str, pattern: re.Pattern[str], quote: str) -> _Places:
    return [
        (found.start(), found.end(), found[1].replace(quote * 2, quote))
        for found in pattern.finditer(sql)
        if found[1] is not None and _is_read(sql, found.start())
    ]


def _is_read(sql: str, at: int) -> bool:
    return _READS.search(sql[max(at - _READS_LENGTH, 0) : at]) is not None
