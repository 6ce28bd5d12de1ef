"""Operators of Spark SQL: arithmetic, comparisons and conditions, in the types in which Spark computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tidegate.reads import literals, time_functions
from tidegate.reads.casts import cast
from tidegate.reads.scope import Scope
from tidegate.reads.spark_functions import call
from tidegate.reads.spark_types import (
    BOOL,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    VOID,
    NeedsSpark,
    Typed,
    arithmetic,
    as_decimal,
    decimal,
    duck,
    is_decimal,
    is_float,
    is_integer,
    is_nested,
    is_number,
    shown,
    text,
    wider,
)

_ARITHMETIC: Final[dict[type[exp.Expr], str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_BITS: Final[dict[type[exp.Expr], str]] = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^"}

QueryCompiler = Callable[[exp.Expr, Scope], tuple[str, list[Typed]]]


def only(node: exp.Expr, *allowed: str) -> None:
    """Raises: `NeedsSpark` when a node says more than the `allowed` parts."""
    for name, value in node.args.items():
        if value and name not in allowed and name != "_type":
            raise NeedsSpark(f"{name.rstrip('_').replace('_', ' ').upper()} in {type(node).__name__.upper()}")


class Operators:
    """What `Expressions` is made of: it writes the sides."""

    def __init__(self, scope: Scope, query: QueryCompiler) -> None:
        self.scope = scope
        self._query = query

    def write(self, node: exp.Expr) -> Typed:
        """Raises: `NeedsSpark`, `InvalidArgument`."""
        raise NotImplementedError

    def all(self, nodes: Sequence[exp.Expr]) -> list[Typed]:
        return [self.write(each) for each in nodes]

    def condition(self, node: exp.Expr) -> Typed:
        found = self.write(node)
        if found.type not in (BOOL, VOID):
            raise NeedsSpark(f"a condition of the type {shown(found.type)}")
        return replace(found, sql=cast(found.sql, found.type, BOOL))

    def operator(self, node: exp.Expr) -> Typed | None:
        """None: it is none of two sides."""
        if type(node) in _ARITHMETIC:
            return self._arithmetic(node)
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if type(node) in _BITS:
            return self._bits(node)
        return None

    def _arithmetic(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression", "typed", "safe")
        operator = _ARITHMETIC[type(node)]
        for side, other in ((node.this, node.expression), (node.expression, node.this)):
            if isinstance(side, exp.Interval):
                return self._shifted(node, other, side, operator)
        left, right = self.write(node.this), self.write(node.expression)
        name = f"({left.name} {operator} {right.name})"
        if left.type == DATE and is_integer(right.type) and operator in "+-":
            function = "date_add" if operator == "+" else "date_sub"
            return Typed(*call(function, [left, right]), f"{function}({left.name}, {right.name})")
        if (
            not all(is_number(each.type) or each.type == VOID for each in (left, right))
            or left.type == right.type == VOID
        ):
            raise NeedsSpark(f"{shown(left.type)} {operator} {shown(right.type)}")
        if (
            is_float(left.type)
            or is_float(right.type)
            or (operator == "/" and not (is_decimal(left.type) or is_decimal(right.type)))
        ):
            type_ = wider(left.type, right.type, operator) if operator != "/" else DOUBLE
            return Typed(self._computed(operator, left, right, type_, type_), type_, name)
        if is_decimal(left.type) or is_decimal(right.type):
            if VOID in (left.type, right.type):
                raise NeedsSpark(f"{shown(left.type)} {operator} {shown(right.type)}")
            return Typed(*self._decimal(operator, left, right), name)
        type_ = wider(left.type, right.type, operator)
        return Typed(self._computed(operator, left, right, type_, type_), type_, name)

    def _computed(self, operator: str, left: Typed, right: Typed, operand: pa.DataType, result: pa.DataType) -> str:
        one, other = cast(left.sql, left.type, operand), cast(right.sql, right.type, operand)
        if operator in "/%":
            found = f"spark_{'divide' if operator == '/' else 'modulo'}({one}, {other})"
        else:
            found = f"({one} {operator} {other})"
        # DuckDB adds small integers in wider ones; in Spark they overflow.
        return f"CAST({found} AS {duck(result)})" if result not in (INT, LONG, DOUBLE) else found

    def _decimal(self, operator: str, left: Typed, right: Typed) -> tuple[str, pa.DataType]:
        one = as_decimal(left.type, left.value if is_integer(left.type) else None)
        other = as_decimal(right.type, right.value if is_integer(right.type) else None)
        result = arithmetic(operator, one, other)
        a, b = cast(left.sql, left.type, one), cast(right.sql, right.type, other)
        match operator:
            case "/":
                power = 10 ** (result.scale - one.scale + other.scale)
                digits = f"spark_digits({a}) * CAST('{power}' AS HUGEINT)"
                quotient = f"spark_scaled(spark_half_up({digits}, spark_digits({b})), {result.scale})"
                zero = f"{b} = 0 AND {a} IS NOT NULL"
                return (
                    f"CAST(CASE WHEN {zero} THEN error('division by zero') ELSE {quotient} END AS {duck(result)})",
                    result,
                )
            case "*":
                return f"CAST({a} * {b} AS {duck(result)})", result
            case "%":
                wide = decimal(
                    max(one.precision - one.scale, other.precision - other.scale) + result.scale, result.scale
                )
                a, b = f"CAST({a} AS {duck(wide)})", f"CAST({b} AS {duck(wide)})"
                return f"CAST(spark_modulo({a}, {b}) AS {duck(result)})", result
            case _:
                return (
                    f"CAST(CAST({a} AS {duck(result)}) {operator} CAST({b} AS {duck(result)}) AS {duck(result)})",
                    result,
                )

    def _shifted(self, node: exp.Expr, other: exp.Expr, interval: exp.Expr, operator: str) -> Typed:
        only(interval, "this", "unit")
        if operator not in "+-" or (operator == "-" and interval is node.this) or isinstance(other, exp.Interval):
            raise NeedsSpark(node.sql("spark"))
        if not isinstance(interval.this, exp.Literal) or not isinstance(interval.args.get("unit"), exp.Var):
            raise NeedsSpark(interval.sql("spark"))
        arg = self.write(other)
        unit = interval.args["unit"].name.upper()
        sql, type_ = time_functions.shift(arg, interval.this.name, unit, operator)
        shown_interval = f"INTERVAL '{int(interval.this.name)}' {unit.removesuffix('S')}"
        pair = (arg.name, shown_interval) if interval is node.expression else (shown_interval, arg.name)
        return Typed(sql, type_, f"{pair[0]} {operator} {pair[1]}")

    def _int_div(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        left, right = self.write(node.this), self.write(node.expression)
        if not is_integer(left.type) or not is_integer(right.type):
            raise NeedsSpark(f"{shown(left.type)} div {shown(right.type)}")
        a, b = cast(left.sql, left.type, LONG), cast(right.sql, right.type, LONG)
        return Typed(f"({a} // {b})", LONG, f"({left.name} div {right.name})")

    def _bits(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        left, right = self.write(node.this), self.write(node.expression)
        if not is_integer(left.type) or not is_integer(right.type):
            raise NeedsSpark(f"bits of {shown(left.type)} and {shown(right.type)}")
        type_ = wider(left.type, right.type, "bits")
        a, b = cast(left.sql, left.type, type_), cast(right.sql, right.type, type_)
        operator = _BITS[type(node)]
        sql = f"xor({a}, {b})" if operator == "^" else f"({a} {operator} {b})"
        return Typed(sql, type_, f"({left.name} {operator} {right.name})")

    def compared(self, left: Typed, right: Typed) -> tuple[str, str]:
        """Both brought to the type in which Spark compares them. Raises: `NeedsSpark`."""
        type_ = comparable(left, right)
        return cast(left.sql, left.type, type_), cast(right.sql, right.type, type_)

    def _comparison(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        left, right = self.write(node.this), self.write(node.expression)
        a, b = self.compared(left, right)
        if isinstance(node, exp.NEQ):
            return Typed(f"({a} <> {b})", BOOL, f"(NOT ({left.name} = {right.name}))")
        operator = _COMPARISONS[type(node)]
        return Typed(f"({a} {operator} {b})", BOOL, f"({left.name} {operator} {right.name})")

    def _null_safe(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        left, right = self.write(node.this), self.write(node.expression)
        a, b = self.compared(left, right)
        same = f"({left.name} <=> {right.name})"
        if isinstance(node, exp.NullSafeNEQ):
            return Typed(f"({a} IS DISTINCT FROM {b})", BOOL, f"(NOT {same})")
        return Typed(f"({a} IS NOT DISTINCT FROM {b})", BOOL, same)

    def _and_or(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        word = "AND" if isinstance(node, exp.And) else "OR"
        left, right = self.condition(node.this), self.condition(node.expression)
        return Typed(f"({left.sql} {word} {right.sql})", BOOL, f"({left.name} {word} {right.name})")

    def _not(self, node: exp.Expr) -> Typed:
        only(node, "this")
        if isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Null):
            found = self.write(node.this.this)
            return Typed(f"({found.sql} IS NOT NULL)", BOOL, f"({found.name} IS NOT NULL)")
        found = self.condition(node.this)
        return Typed(f"(NOT {found.sql})", BOOL, f"(NOT {found.name})")

    def _is(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        found = self.write(node.this)
        if isinstance(node.expression, exp.Null):
            return Typed(f"({found.sql} IS NULL)", BOOL, f"({found.name} IS NULL)")
        if isinstance(node.expression, exp.Boolean) and found.type == BOOL:
            word = "true" if node.expression.this else "false"
            return Typed(f"({found.sql} IS NOT DISTINCT FROM {word})", BOOL, f"({found.name} <=> {word})")
        raise NeedsSpark(node.sql("spark"))

    def _between(self, node: exp.Expr) -> Typed:
        only(node, "this", "low", "high")
        x, low, high = self.all([node.this, node.args["low"], node.args["high"]])
        above, below = self.compared(x, low), self.compared(x, high)
        sql = f"({above[0]} >= {above[1]} AND {below[0]} <= {below[1]})"
        return Typed(sql, BOOL, f"between({x.name}, {low.name}, {high.name})")

    def _in(self, node: exp.Expr) -> Typed:
        only(node, "this", "expressions", "query")
        x = self.write(node.this)
        if node.args.get("query"):
            query = node.args["query"]
            sql, columns = self._query(query.this if isinstance(query, exp.Subquery) else query, self.scope)
            if len(columns) != 1:
                raise NeedsSpark("IN with several columns")
            if comparable(x, columns[0]) != columns[0].type:
                raise NeedsSpark(f"IN of {shown(x.type)} and {shown(columns[0].type)}")
            a, _ = self.compared(x, columns[0])
            return Typed(f"({a} IN ({sql}))", BOOL, f"({x.name} IN (listquery()))")
        among = self.all(node.expressions)
        type_ = x.type
        for each in among:
            type_ = comparable(Typed("", type_, ""), each)
        parts = ", ".join(cast(each.sql, each.type, type_) for each in among)
        name = f"({x.name} IN ({', '.join(each.name for each in among)}))"
        return Typed(f"({cast(x.sql, x.type, type_)} IN ({parts}))", BOOL, name)

    def _like(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        x, pattern = self.write(node.this), self.write(node.expression)
        if x.type != STRING or not isinstance(pattern.value, str):
            raise NeedsSpark(f"LIKE of {shown(x.type)} and {pattern.name}")
        if literals.like_is_broken(pattern.value):
            raise NeedsSpark(f"the pattern {pattern.value!r}")
        sql = f"({x.sql} LIKE {pattern.sql} ESCAPE '\\')"
        if isinstance(node, exp.ILike):
            sql = f"spark_letters({x.sql}, (lower({x.sql}) LIKE {text(pattern.value.lower())} ESCAPE '\\'))"
            if not pattern.value.isascii():
                raise NeedsSpark(f"ILIKE {pattern.value!r}")
            return Typed(sql, BOOL, f"ilike({x.name}, {pattern.name})")
        return Typed(sql, BOOL, f"{x.name} LIKE {pattern.name}")

    def _rlike(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        x, pattern = self.write(node.this), self.write(node.expression)
        return Typed(*call("rlike", [x, pattern]), f"RLIKE({x.name}, {pattern.name})")

    def _pipes(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression", "safe")
        parts = self.all(list(node.flatten()))
        return Typed(*call("concat", parts), f"concat({', '.join(each.name for each in parts)})")


def comparable(left: Typed, right: Typed) -> pa.DataType:
    """The type in which two values are compared. Raises: `NeedsSpark`."""
    kinds = {left.type, right.type}
    if is_nested(left.type) or is_nested(right.type):
        raise NeedsSpark(f"a comparison of {shown(left.type)} and {shown(right.type)}")
    if STRING in kinds and len(kinds) == 2:
        other = left.type if right.type == STRING else right.type
        if is_integer(other):
            return LONG
        if is_float(other) or is_decimal(other):
            return DOUBLE
        if other in (DATE, TIMESTAMP, BOOL):
            return other
    if is_decimal(left.type) or is_decimal(right.type):
        sides = [
            as_decimal(each.type, each.value) if is_integer(each.type) and each.value is not None else each.type
            for each in (left, right)
        ]
        return wider(sides[0], sides[1], "a comparison")
    return wider(left.type, right.type, "a comparison")
