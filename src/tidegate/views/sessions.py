"""GROUP BY session_window(time, gap): sessions as numbers of rows, counted by windows of the other columns.

A row begins a session when the one before it, in its group, is more than the gap away. How many have begun so far is
the number of a row's session. What then is grouped by that number gives the session's own start and end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from tidegate.views.names import NotUnderstood, function_name
from tidegate.views.operators import column
from tidegate.views.time_windows import call, duration


def is_session(node: exp.Expr) -> bool:
    return function_name(node) == "session_window"


def gap_of(node: exp.Expr) -> int:
    """In microseconds."""
    if len(node.expressions) != 2 or not (found := duration(node.expressions[1])):
        raise NotUnderstood(node.sql()[:60])
    return found


def micros(time: exp.Expr) -> exp.Expr:
    return call("unix_micros", time.copy())


def begins(time: str, among: Sequence[str], keys: Sequence[str], gap: int) -> exp.Expr:
    """Whether a row begins a session."""
    before = exp.Add(this=_over(call("lag", column(time)), among, [time, *keys]), expression=_number(gap))
    return exp.Coalesce(this=exp.paren(exp.GT(this=column(time), expression=before)), expressions=[exp.true()])


def number(begun: exp.Expr, among: Sequence[str], order: Sequence[str]) -> exp.Expr:
    """How many sessions have begun."""
    one = exp.Case(ifs=[exp.If(this=begun.copy(), true=_number(1))], default=_number(0))
    return _over(call("sum", one), among, order)


def written_out(node: exp.Expr, time: str, gap: int) -> exp.Expr:
    """An expression over groups, with a session's start and end for the calls."""

    def replace(each: exp.Expr) -> exp.Expr:
        if isinstance(each, exp.Dot) and is_session(each.this):
            name = each.expression.name.lower()
            if name not in ("start", "end"):
                raise NotUnderstood(f"session_window.{name}")
            return _bound(name, time, gap)
        if is_session(each):
            fields = [(exp.Literal.string(name), _bound(name, time, gap)) for name in ("start", "end")]
            return exp.Anonymous(this="named_struct", expressions=[part for pair in fields for part in pair])
        return each

    return node.transform(replace)


def _bound(name: str, time: str, gap: int) -> exp.Expr:
    if name == "start":
        return call("timestamp_micros", call("min", column(time)))
    return call("timestamp_micros", exp.Add(this=call("max", column(time)), expression=_number(gap)))


def _over(function: exp.Expr, among: Sequence[str], order: Sequence[str]) -> exp.Expr:
    ordered: list[Any] = [exp.Ordered(this=column(each), desc=False) for each in order]
    return exp.Window(
        this=function, partition_by=[column(each) for each in among], order=exp.Order(expressions=ordered)
    )


def _number(value: int) -> exp.Expr:
    return exp.Literal.number(value)
