"""Views that are functions of DataFrames: their query calls `tidegate_function`, which `spark/` alone can answer."""

from __future__ import annotations

from sqlglot import exp

from tidegate.reads.translate import parse_any

FUNCTION = "tidegate_function"


def is_function(sql: str) -> bool:
    """Whether a view's query is a function of DataFrames."""
    return f"{FUNCTION}(" in sql


def function_reads(sql: str) -> list[str]:
    """The tables and views that the function of a query is given."""
    if not is_function(sql):
        return []
    calls = parse_any(sql).find_all(exp.Anonymous)
    return [arg.name for each in calls if each.name == FUNCTION for arg in each.expressions[1:]]
