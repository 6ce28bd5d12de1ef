"""The relations that a statement of a view names: what stands in backticks after FROM or JOIN, and nothing else.

A column may be called as a relation is (`t@a`, `#1`), and so may a text be; neither is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from tidegate.snapshots.merge_sql import quoted

_IN_SPARK: Final = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`((?:[^`]|``)*)`""", re.DOTALL
)
_IN_DUCKDB: Final = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)\"""")
_READS: Final = re.compile(r"\b(?:FROM|JOIN)\s+\Z", re.IGNORECASE)
_READS_LENGTH: Final = 8
"""So many characters before a name are looked at; generated statements have one blank there."""
_VERSION: Final = re.compile(r"(.+)@([bdsa])", re.DOTALL)


def relations_in(sql: str) -> Sequence[str]:
    """The relations that a statement in Spark SQL names in backticks, each once."""
    return tuple(dict.fromkeys(name for _, _, name in _places(sql)))


def version_of(relation: str) -> tuple[str, str] | None:
    """`t@a` as `t` and `a`."""
    found = _VERSION.fullmatch(relation)
    return None if found is None else (found[1], found[2])


def renamed(sql: str, to: Callable[[str], str | None]) -> str:
    """A statement in Spark SQL with other names for the relations that `to` has one for."""
    parts, at = [], 0
    for start, end, name in _places(sql):
        if (new := to(name)) is not None:
            parts += [sql[at:start], "`", new.replace("`", "``"), "`"]
            at = end
    return "".join([*parts, sql[at:]])


def renamed_in_duckdb(sql: str, to: Callable[[str], str | None]) -> str:
    """As `renamed`, for DuckDB."""

    def replace(found: re.Match[str]) -> str:
        if found[1] is None or not _is_read(sql, found.start()):
            return found[0]
        new = to(found[1].replace('""', '"'))
        return found[0] if new is None else quoted(new)

    return _IN_DUCKDB.sub(replace, sql)


@lru_cache(maxsize=1024)
def _places(sql: str) -> Sequence[tuple[int, int, str]]:
    return [
        (found.start(), found.end(), found[1].replace("``", "`"))
        for found in _IN_SPARK.finditer(sql)
        if found[1] is not None and _is_read(sql, found.start())
    ]


def _is_read(sql: str, at: int) -> bool:
    return _READS.search(sql[max(at - _READS_LENGTH, 0) : at]) is not None
