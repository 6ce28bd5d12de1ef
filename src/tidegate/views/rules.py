"""Which rule maintains a node, and what a linear aggregate keeps for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, cast

import pyarrow as pa
from sqlglot import exp

from tidegate.tables.column_type import to_sql
from tidegate.tables.spark_sql import DIALECT
from tidegate.views.accumulate import WIDE
from tidegate.views.names import function_name
from tidegate.views.operators import (
    Accumulator,
    Aggregate,
    Filter,
    Left,
    Node,
    Op,
    Project,
    Semi,
    SetOperation,
    Top,
    Window,
    blocking,
    column,
    walk,
)

Typer = Callable[[Op], dict[str, pa.DataType]]
_DECIMAL_MAX = 38
_AVERAGED_MAX: Final = 15
_EXTREMES_OF: Final = {
    True: "sums are added to, and min() and max() found anew in groups that lose their extreme",
    False: "sums are added to, and min() and max() found anew when the extreme of all is taken away",
}


def has_filter(op: Op) -> bool:
    """Whether rows of a blocking operator are left out above it."""
    while isinstance(op, Filter | Project):
        if isinstance(op, Filter):
            return True
        op = op.child
    return False


def choose(node: Node, typer: Typer) -> None:
    """Decide a node's rule; a linear aggregate gets its accumulators."""
    if node.root is None:
        return
    block = blocking(node.root)
    match block:
        case None:
            joins = [each for each in walk(node.root) if isinstance(each, Left | Semi)]
            if joins:
                node.rule = "affected keys"
                node.why = "rows whose partners in an outer, semi or anti join may have changed are joined anew"
            else:
                node.rule, node.why = "linear", "each change passes through row by row"
        case Aggregate():
            reason = _linear(node, block, typer)
            if reason:
                node.rule = "affected keys" if block.groups else "full"
                node.why = reason if block.groups else f"{reason}, and there is one group of all rows"
            elif all(each.how == "sum" for each in node.accumulators):
                node.rule, node.why = "linear", "sums and counts are added to"
            else:
                node.rule, node.why = "affected keys", _EXTREMES_OF[bool(block.groups)]
        case Window():
            node.rule = "affected keys" if block.partition else "full"
            node.why = (
                f"windows are computed anew for each partition ({', '.join(block.partition)}) that changed"
                if block.partition
                else "a window without PARTITION BY is one of all rows"
            )
        case SetOperation():
            node.rule, node.why = "affected keys", f"{block.word} is decided anew for each row that changed"
        case Top():
            if block.limit is None or block.offset:
                node.rule, node.why = "full", "the rows after an OFFSET are found anew among all"
            else:
                node.rule = "affected keys"
                node.why = "the first rows are merged with the change, and found anew when others move up"


def linear_reason(block: Aggregate, typer: Typer) -> str:
    """Why an aggregate is not linear; empty when it is."""
    types = typer(block.child)
    for call in block.aggregates.values():
        name = function_name(call)
        if name is None:
            return "an aggregate with FILTER or an order"
        args = call.expressions
        if any(isinstance(each, exp.Distinct) for each in args):
            return f"{name}(DISTINCT ...) needs the values of the group"
        if name == "count" and len(args) == 1:
            continue
        if name in ("min", "max") and len(args) == 1 and isinstance(args[0], exp.Column):
            if _is_ordered(types[args[0].name]):
                continue
            return f"{name}() of the type {to_sql(types[args[0].name])} is compared row by row"
        if name not in ("sum", "avg", "count_if") or len(args) != 1:
            return f"{name}() needs the rows of the group"
        if not isinstance(args[0], exp.Column):
            return f"{name}() of an expression"
        type = types[args[0].name]
        if name == "sum" and (pa.types.is_integer(type) or pa.types.is_decimal(type)):
            continue
        if name == "avg" and (pa.types.is_integer(type) or _is_narrow(type)):
            continue
        if name == "count_if" and pa.types.is_boolean(type):
            continue
        if name == "avg" and pa.types.is_decimal(type):
            return f"avg() of the type {to_sql(type)} has more digits than the quotient of a sum and a count"
        return f"{name}() of the type {to_sql(type)} is not exact when values are taken away again"
    return ""


def _linear(node: Node, block: Aggregate, typer: Typer) -> str:
    reason = linear_reason(block, typer)
    if reason:
        return reason
    types = typer(block.child)
    averaged = {call.expressions[0].name for call in block.aggregates.values() if function_name(call) == "avg"}
    kept: dict[str, Accumulator] = {}

    def keep(text: str, expr: exp.Expr, type: pa.DataType) -> exp.Expr:
        if text not in kept:
            kept[text] = Accumulator(f"_a{len(kept)}", expr, type)
        return column(kept[text].name)

    def when(cond: exp.Expr) -> exp.Expr:
        return exp.Paren(this=exp.Case(ifs=[exp.If(this=cond, true=_number(1))], default=_number(0)))

    def count_of(name: str) -> exp.Expr:
        return keep(f"count {name}", when(exp.Not(this=exp.Is(this=column(name), expression=exp.null()))), pa.int64())

    rows = keep("rows", _number(1), pa.int64())
    for shown, call in block.aggregates.items():
        name = function_name(call)
        arg = call.expressions[0]
        if name == "count":
            if isinstance(arg, exp.Star | exp.Literal):
                node.finals[shown] = rows.copy()
            elif isinstance(arg, exp.Column):
                node.finals[shown] = count_of(arg.name)
            else:
                node.finals[shown] = keep(
                    f"count {arg.sql()}",
                    when(exp.Not(this=exp.Is(this=exp.paren(arg.copy()), expression=exp.null()))),
                    pa.int64(),
                )
            continue
        if name == "count_if":
            node.finals[shown] = keep(f"if {arg.name}", when(column(arg.name)), pa.int64())
            continue
        if name in ("min", "max"):
            key, how = f"{name} {arg.name}", cast(Literal["min", "max"], name)
            kept.setdefault(key, Accumulator(f"_a{len(kept)}", column(arg.name), types[arg.name], how))
            node.finals[shown] = column(kept[key].name)
            continue
        sum_type = _sum_type(types[arg.name])
        # The sum of what is averaged may be more than a BIGINT, as it may in Spark.
        type = WIDE if arg.name in averaged and sum_type == pa.int64() else sum_type
        value = exp.Anonymous(this="coalesce", expressions=[_cast(column(arg.name), type), _cast(_number(0), type)])
        total = keep(f"sum {arg.name}", value, type)
        count = count_of(arg.name)
        if name == "avg":
            given = types[arg.name]
            is_decimal = pa.types.is_decimal(given)
            shown_type = pa.decimal128(given.precision + 4, given.scale + 4) if is_decimal else pa.float64()
            divided = exp.Div(this=total if is_decimal else _cast(total, pa.float64()), expression=count)
            result: exp.Expr = _cast(exp.paren(divided), shown_type) if is_decimal else divided
        else:
            shown_type, result = sum_type, total if type == sum_type else _cast(total, sum_type)
        none = exp.EQ(this=count.copy(), expression=_number(0))
        node.finals[shown] = exp.Paren(
            this=exp.Case(ifs=[exp.If(this=none, true=_cast(exp.null(), shown_type))], default=result)
        )
    node.accumulators = list(kept.values())
    node.count = rows.name
    for each in node.accumulators:
        node.columns[each.name] = each.name
    return ""


def _is_narrow(type: pa.DataType) -> bool:
    """Whether the quotient of a sum and a count has so many digits that it is rounded as by avg(): once.

    The quotient has 28 - precision places more than the values, avg() has 4: with 9 between them no count below a
    billion makes a half of what is not one.
    """
    return bool(pa.types.is_decimal(type)) and type.precision <= _AVERAGED_MAX


def _is_ordered(type: pa.DataType) -> bool:
    """Whether values are either equal in every way, or one comes before the other."""
    found = pa.types
    kinds = (found.is_integer, found.is_decimal, found.is_date, found.is_timestamp, found.is_string, found.is_boolean)
    return any(each(type) for each in kinds)


def _sum_type(type: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(type):
        return pa.decimal128(min(type.precision + 10, _DECIMAL_MAX), type.scale)
    return pa.int64()


def _number(value: int) -> exp.Expr:
    return exp.Literal.number(value)


def _cast(node: exp.Expr, type: pa.DataType) -> exp.Expr:
    return exp.cast(node, to_sql(type), dialect=DIALECT)
