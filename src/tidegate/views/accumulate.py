"""What aggregates keep, as SQL: sums that changes are added to, and extremes that stay unless they are taken away.

A group has *lost* an extreme when a row that had it is gone and none that came is as good: it is computed anew.

What came and what is gone may together be more than a sum of BIGINT can be, though the sum is not before and not after:
so changes have more digits, and the sum is narrowed once it is whole.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from sqlglot import exp

from tidegate.tables.column_type import to_sql
from tidegate.views import write
from tidegate.views.operators import Accumulator, Aggregate, Node
from tidegate.views.write import W, listed, quoted, same

_GONE: Final = "_gone"
_PICK: Final = {"min": "least", "max": "greatest"}
_BEATS: Final = {"min": "<", "max": ">"}
WIDE: Final = pa.decimal128(28, 0)
"""Holds a billion times any BIGINT; with more digits than this, sums would be of as many as there can be."""
_WIDE: Final = to_sql(WIDE)


def of_rows(node: Node, block: Aggregate, rows: str) -> str:
    """The accumulators of rows."""
    made = ", ".join(f"{_of_rows(each)} AS {quoted(each.name)}" for each in node.accumulators)
    if not block.groups:
        return f"SELECT 0 AS {quoted(block.one)}, {made} FROM ({rows})"
    by = listed(block.groups)
    return f"SELECT {by}, {made} FROM ({rows}) GROUP BY {by}"


def _of_rows(each: Accumulator) -> str:
    text = write.text(each.expr)
    if each.how == "sum":
        return f"CAST(coalesce(sum({text}), 0) AS {to_sql(each.type)})"
    return f"{each.how}({text})"


def of_change(node: Node, block: Aggregate, delta: str) -> str:
    """What changed rows add to sums, the best of those that came, and the best of those that are gone."""
    made = []
    for each in node.accumulators:
        text, name = write.text(each.expr), quoted(each.name)
        if each.how == "sum":
            type = _WIDE if _is_widened(each) else to_sql(each.type)
            value = f"CAST({text} AS {_WIDE})" if _is_widened(each) else text
            made.append(f"CAST(sum(CASE WHEN {W} > 0 THEN {value} ELSE -{value} END) AS {type}) AS {name}")
        else:
            made.append(f"{each.how}(CASE WHEN {W} > 0 THEN {text} END) AS {name}")
            made.append(f"{each.how}(CASE WHEN {W} < 0 THEN {text} END) AS {quoted(each.name + _GONE)}")
    if not block.groups:
        return f"SELECT {', '.join(made)} FROM ({delta})"
    by = listed(block.groups)
    return f"SELECT {by}, {', '.join(made)} FROM ({delta}) GROUP BY {by}"


def lost(node: Node, block: Aggregate, change: str, kept: str) -> str:
    """The groups that have lost an extreme, as a query; empty where there is none to lose.

    `change` and `kept` are relations: what `of_change` gave, and what is stored of its groups.
    """
    conds = []
    for each in node.accumulators:
        if each.how == "sum":
            continue
        gone, new = f"d.{quoted(each.name + _GONE)}", f"d.{quoted(each.name)}"
        old, beats = f"b.{quoted(node.columns[each.name])}", _BEATS[each.how]
        conds.append(f"({gone} IS NOT NULL AND NOT {old} {beats} {gone} AND ({new} IS NULL OR {gone} {beats} {new}))")
    if not conds:
        return ""
    where = f"({' OR '.join(conds)})"
    if block.groups:
        # A group that is gone has nothing to find.
        where += f" AND b.{quoted(node.columns[node.count])} + d.{quoted(node.count)} > 0"
    groups = ", ".join(f"d.{quoted(each)} AS {quoted(each)}" for each in block.groups) or "1 AS `_none`"
    return f"SELECT {groups} FROM {quoted(change)} AS d JOIN {quoted(kept)} AS b ON {_on(node, block)} WHERE {where}"


def added(node: Node, block: Aggregate, change: str, kept: str | None, lost: str | None) -> str:
    """The accumulators as they are, of groups that changed and are not `lost`: a relation, as the others."""
    rows = f"{quoted(change)} AS d"
    if kept is not None:
        rows += f" LEFT JOIN {quoted(kept)} AS b ON {_on(node, block)}"
    if lost is not None:
        rows += f" LEFT ANTI JOIN {quoted(lost)} AS l ON {same(block.groups, block.groups, 'd', 'l')}"
    made = [f"d.{quoted(each)} AS {quoted(each)}" for each in block.groups] or [f"0 AS {quoted(block.one)}"]
    for each in node.accumulators:
        new, name = f"d.{quoted(each.name)}", quoted(each.name)
        old = f"b.{quoted(node.columns[each.name])}"
        if each.how == "sum":
            before = f"CAST({old} AS {_WIDE})" if _is_widened(each) else old
            total = f"coalesce({new}, 0)" if kept is None else f"coalesce({before}, 0) + coalesce({new}, 0)"
            made.append(f"CAST({total} AS {to_sql(each.type)}) AS {name}")
        else:
            made.append(f"{new} AS {name}" if kept is None else f"{_PICK[each.how]}({old}, {new}) AS {name}")
    now = f"SELECT {', '.join(made)} FROM {rows}"
    return f"SELECT * FROM ({now}) WHERE {quoted(node.count)} > 0" if block.groups else now


def _is_widened(each: Accumulator) -> bool:
    """Whether it is a sum of BIGINT values; what counts rows is a sum of 0 and 1."""
    return bool(pa.types.is_integer(each.type)) and isinstance(each.expr, exp.Anonymous)


def _on(node: Node, block: Aggregate) -> str:
    return same([node.columns[each] for each in block.groups], block.groups, "b", "d")
