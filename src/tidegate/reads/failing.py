"""Which of DuckDB's expressions may fail by `error()`, directly or through a macro: DuckDB takes those for volatile."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_CALL: Final = re.compile(r"\b(\w+)\(")


def may_fail(sql: str) -> bool:
    """Whether a text calls something that may fail so."""
    return any(each in _failing() for each in _CALL.findall(sql))


@lru_cache(maxsize=1)
def _failing() -> frozenset[str]:
    from tidegate.reads import aggregates, casts, nested_functions, spark_functions, text_functions, time_functions

    modules = (aggregates, casts, nested_functions, spark_functions, text_functions, time_functions)
    calls = {
        each.partition("(")[0].strip(): set(_CALL.findall(each.partition(" AS ")[2]))
        for module in modules
        for each in module.MACROS
    }
    found = {"error"}
    while more := {name for name, called in calls.items() if called & found} - found:
        found |= more
    return frozenset(found)
