"""count(DISTINCT x) of all rows, in two parts: a group for every x, which is stored, and an aggregate of the groups.

So a change costs what it touches. Without that all values would be counted anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tidegate.views.building import Names, Out, cast_to
from tidegate.views.names import function_name
from tidegate.views.operators import Aggregate, Op, Project, column

_ADDED: Final = frozenset({"count", "count_if", "sum"})
_PICKED: Final = frozenset({"min", "max"})


def in_two(builder: Names, child: Op, calls: Mapping[str, exp.Expr]) -> Op | None:
    """An operator that gives what aggregates of all rows of `child` give; None where two parts do not help."""
    wanted = {arg.sql(): arg for each in calls.values() if (arg := _distinct(each)) is not None}
    if len(wanted) != 1 or not all(_distinct(each) is not None or _is_partial(each) for each in calls.values()):
        return None
    (value,) = wanted.values()
    types = builder.typer(child)
    used = [each.expressions[0].name for each in calls.values() if function_name(each) == "sum"]
    if any(not pa.types.is_integer(types[each]) and not pa.types.is_decimal(types[each]) for each in used):
        return None
    by = builder.fresh("value")
    rows = Project(child, {**{name: column(name) for name in child.cols}, by: value.copy()}, ())
    partial = {builder.fresh("part"): name for name, each in calls.items() if _distinct(each) is None}
    inner = Aggregate(rows, (by,), {part: calls[name].copy() for part, name in partial.items()})
    part_types = builder.typer(inner)
    stored = builder.store(Out(inner, [(each, each) for each in inner.cols]), "its groups are counted")
    now = dict(zip(inner.cols, [name for _, name in stored.columns]))
    outer: dict[str, exp.Expr] = {}
    finals: dict[str, exp.Expr] = {}
    parts = {name: part for part, name in partial.items()}
    for name, each in calls.items():
        if name not in parts:
            outer[name] = _call("count", now[by])
            finals[name] = column(name)
            continue
        function = function_name(each) or ""
        outer[name] = _call("sum" if function in _ADDED else function, now[parts[name]])
        finals[name] = column(name)
        if function in _ADDED:
            finals[name] = cast_to(column(name), part_types[parts[name]])
        if function in ("count", "count_if"):
            finals[name] = exp.Coalesce(this=finals[name], expressions=[exp.Literal.number(0)])
    one = builder.fresh("one")
    groups = Aggregate(Project(stored.op, {each: column(each) for each in now.values()}, ()), (), outer, one)
    return Project(groups, {one: column(one), **finals}, (one,))


def _distinct(call: exp.Expr) -> exp.Expr | None:
    """What count(DISTINCT ...) counts, if a call is that, of one column."""
    if function_name(call) != "count" or len(call.expressions) != 1:
        return None
    (arg,) = call.expressions
    return arg.expressions[0] if isinstance(arg, exp.Distinct) and len(arg.expressions) == 1 else None


def _is_partial(call: exp.Expr) -> bool:
    """Whether an aggregate of all rows follows from those of groups."""
    name, args = function_name(call), call.expressions
    if name == "count" and len(args) == 1 and isinstance(args[0], exp.Star | exp.Literal):
        return True
    return name in _ADDED | _PICKED and len(args) == 1 and isinstance(args[0], exp.Column)


def _call(name: str, of: str) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[column(of)])
