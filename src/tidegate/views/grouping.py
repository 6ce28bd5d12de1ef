"""ROLLUP, CUBE and GROUPING SETS, as the sets of columns they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

from sqlglot import exp

from tidegate.views.operators import column


def grouping_sets(group: Any, given: Sequence[exp.Expr]) -> tuple[list[exp.Expr], list[frozenset[int]] | None]:
    """The expressions that are grouped by, each once, and the sets of their places; no sets where there is one."""
    if group is None:
        return [], None
    items = [*given]
    for name in ("rollup", "cube", "grouping_sets"):
        for each in group.args.get(name) or []:
            if isinstance(each, exp.Rollup | exp.Cube) and not each.expressions:
                # `GROUP BY a, b WITH ROLLUP` is of all that stands before it.
                items = [type(each)(expressions=items)]
            elif isinstance(each, exp.Expr):
                items.append(each)
    flat: list[exp.Expr] = []

    def place(each: exp.Expr) -> int:
        if isinstance(each, exp.Paren):
            each = each.this
        for number, known in enumerate(flat):
            if known == each:
                return number
        flat.append(each)
        return len(flat) - 1

    def places(each: exp.Expr) -> frozenset[int]:
        if isinstance(each, exp.Tuple):
            return frozenset(place(one) for one in each.expressions)
        return frozenset({place(each)})

    def sets_of(each: exp.Expr) -> list[frozenset[int]]:
        match each:
            case exp.Rollup():
                parts = [places(one) for one in each.expressions]
                return [frozenset().union(*parts[:length]) for length in range(len(parts), -1, -1)]
            case exp.Cube():
                parts = [places(one) for one in each.expressions]
                every = range(len(parts), -1, -1)
                return [frozenset().union(*chosen) for length in every for chosen in combinations(parts, length)]
            case exp.GroupingSets():
                return [
                    found
                    for one in each.expressions
                    for found in (
                        sets_of(one) if isinstance(one, exp.Rollup | exp.Cube | exp.GroupingSets) else [places(one)]
                    )
                ]
            case _:
                return [places(each)]

    listed = [sets_of(each) for each in items]
    if all(
        isinstance(each, exp.Expr) and not isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets) for each in items
    ):
        return flat, None
    return flat, [frozenset().union(*chosen) for chosen in product(*listed)]


def with_grouping(
    call: exp.Expr, groups: Sequence[exp.Expr], sets: Sequence[frozenset[int]], tag: str
) -> exp.Expr | None:
    """`grouping(x)` and `grouping_id(...)` by the number `tag`, which says what columns a set leaves out; else None."""
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in ("grouping", "grouping_id"):
        return None
    given = list(call.expressions)
    if call.name.lower() == "grouping_id" and (not given or given == [*groups]):
        return column(tag)
    places = [list(groups).index(each) for each in given]
    values: dict[int, int] = {}
    for chosen in sets:
        bits = sum(1 << (len(places) - 1 - at) for at, place in enumerate(places) if place not in chosen)
        values[set_id(chosen, len(groups))] = bits
    ifs = [
        exp.If(this=exp.EQ(this=column(tag), expression=exp.Literal.number(id)), true=exp.Literal.number(value))
        for id, value in sorted(values.items())
    ]
    type = "TINYINT" if call.name.lower() == "grouping" else "BIGINT"
    return exp.cast(exp.Case(ifs=ifs, default=exp.Literal.number(0)), type)


def set_id(chosen: frozenset[int], width: int) -> int:
    """The number of a grouping set, as `grouping_id()` gives it."""
    return sum(1 << (width - 1 - place) for place in range(width) if place not in chosen)
