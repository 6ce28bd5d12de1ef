"""Operators of Spark SQL: arithmetic, comparisons and conditions, in the types in which Spark computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tidegate.reads import literals, time_functions
from tidegate.reads.casts import UNANSWERED, cast
from tidegate.reads.scope import Scope
from tidegate.reads.spark_functions import call, held
from tidegate.reads.spark_types import (
    BOOL,
    DATE,
    DIGITS_MAX,
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
    has_float,
    has_map,
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


class Operators(ABC):
    """What `Expressions` is made of: it writes the sides."""

    def __init__(self, scope: Scope, query: QueryCompiler) -> None:
        self.scope = scope
        self._query = query

    @abstractmethod
    def write(self, node: exp.Expr) -> Typed:
        """Raises: `NeedsSpark`, `InvalidArgument`."""

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
            return Typed(*self._computed(operator, left, right, type_), name)
        if is_decimal(left.type) or is_decimal(right.type):
            if VOID in (left.type, right.type):
                raise NeedsSpark(f"{shown(left.type)} {operator} {shown(right.type)}")
            return Typed(*held([left, right], lambda sides: self._decimal(operator, *sides)), name)
        return Typed(*self._computed(operator, left, right, wider(left.type, right.type, operator)), name)

    def _computed(self, operator: str, left: Typed, right: Typed, type: pa.DataType) -> tuple[str, pa.DataType]:
        def write(sides: Sequence[Typed]) -> tuple[str, pa.DataType]:
            one, other = (cast(each.sql, each.type, type) for each in sides)
            if operator in "/%" and (sides[1].value is None or not sides[1].value):
                found = f"spark_{'divide' if operator == '/' else 'modulo'}({one}, {other})"
            else:
                found = f"({one} {operator} {other})"
            # DuckDB adds small integers in wider ones; in Spark they overflow.
            return (f"CAST({found} AS {duck(type)})" if type not in (INT, LONG, DOUBLE) else found), type

        return held([left, right], write)

    def _decimal(self, operator: str, left: Typed, right: Typed) -> tuple[str, pa.DataType]:
        one = as_decimal(left.type, left.value if is_integer(left.type) else None)
        other = as_decimal(right.type, right.value if is_integer(right.type) else None)
        result = arithmetic(operator, one, other)
        a, b = cast(left.sql, left.type, one), cast(right.sql, right.type, other)
        if operator == "/":
            return f"CAST({_quotient(a, b, one, other, result)} AS {duck(result)})", result
        scale = max(one.scale, other.scale)
        if operator == "%":
            wide = duck(decimal(max(one.precision - one.scale, other.precision - other.scale) + scale, scale))
            return f"CAST(spark_modulo(CAST({a} AS {wide}), CAST({b} AS {wide})) AS {duck(result)})", result
        if operator == "*":
            scale = one.scale + other.scale
            # In all digits that there are: DuckDB multiplies in as many as the sides have.
            found = f"CAST({a} AS DECIMAL({DIGITS_MAX}, {one.scale})) * {b}"
            size = f"abs(CAST({a} AS DOUBLE) * CAST({b} AS DOUBLE))"
            is_wide = one.precision + other.precision + 1 > DIGITS_MAX
        else:
            wide = f"DECIMAL({DIGITS_MAX}, {scale})"
            found = f"CAST({a} AS {wide}) {operator} CAST({b} AS {wide})"
            size = f"greatest(abs(CAST({a} AS DOUBLE)), abs(CAST({b} AS DOUBLE)))"
            is_wide = max(one.precision - one.scale, other.precision - other.scale) + scale + 1 > DIGITS_MAX
        if is_wide:
            if scale >= DIGITS_MAX - 1:
                raise NeedsSpark(f"{shown(one)} {operator} {shown(other)}")
            fits = f"{size} >= 1e{DIGITS_MAX - 1 - scale} THEN error('{UNANSWERED}: more digits than 38')"
            found = f"CASE WHEN {fits} ELSE {found} END"
        return f"CAST({found} AS {duck(result)})", result

    def _shifted(self, node: exp.Expr, other: exp.Expr, interval: exp.Expr, operator: str) -> Typed:
        only(interval, "this", "unit")
        if operator not in "+-" or (operator == "-" and interval is node.this) or isinstance(other, exp.Interval):
            raise NeedsSpark(node.sql("spark"))
        if not isinstance(interval.this, exp.Literal) or not isinstance(interval.args.get("unit"), exp.Var):
            raise NeedsSpark(interval.sql("spark"))
        arg = self.write(other)
        unit = interval.args["unit"].name.upper()
        sql, type_ = time_functions.shift(arg, interval.this.name, unit, operator)
        return Typed(sql, type_, time_functions.shown_shift(arg, int(interval.this.name), unit, operator))

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

    def _equated(self, left: Typed, right: Typed) -> tuple[str, str]:
        """Both, to be asked whether they are the same. Inside of structs and arrays NULL is the same as NULL."""
        if is_nested(left.type) and left.type == right.type and not has_float(left.type) and not has_map(left.type):
            return left.sql, right.sql
        return self.compared(left, right)

    def _comparison(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        left, right = self.write(node.this), self.write(node.expression)
        a, b = self._equated(left, right) if isinstance(node, exp.EQ | exp.NEQ) else self.compared(left, right)
        if isinstance(node, exp.NEQ):
            return Typed(f"({a} <> {b})", BOOL, f"(NOT ({left.name} = {right.name}))")
        operator = _COMPARISONS[type(node)]
        shown_left, shown_right = _shown_sides(operator, left, right)
        return Typed(f"({a} {operator} {b})", BOOL, f"({shown_left} {operator} {shown_right})")

    def _null_safe(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        left, right = self.write(node.this), self.write(node.expression)
        a, b = self._equated(left, right)
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
        if isinstance(node.this, exp.Tuple) and node.args.get("query"):
            return self._several_in(node)
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

    def _several_in(self, node: exp.Expr) -> Typed:
        """`(a, b) IN (SELECT ..)`: unknown where a pair is met that could be the same but for a NULL."""
        xs, query = self.all(node.this.expressions), node.args["query"]
        sql, columns = self._query(query.this if isinstance(query, exp.Subquery) else query, self.scope)
        if len(columns) != len(xs):
            raise NeedsSpark(f"IN of {len(xs)} values and {len(columns)} columns")
        sides = []
        for x, column in zip(xs, columns):
            if comparable(x, column) != column.type:
                raise NeedsSpark(f"IN of {shown(x.type)} and {shown(column.type)}")
            a, _ = self.compared(x, column)
            sides.append(f"{a} = among.{column.sql}")
        same = " AND ".join(sides)
        found = f"EXISTS (SELECT 1 FROM ({sql}) AS among WHERE {same})"
        if not _is_asked_alone(node):
            unknown = f"EXISTS (SELECT 1 FROM ({sql}) AS among WHERE ({same}) IS NULL)"
            found = f"CASE WHEN {found} THEN true WHEN {unknown} THEN NULL ELSE false END"
        parts = zip(node.this.expressions, xs)
        names = ", ".join(f"{_field_name(part, at)}, {x.name}" for at, (part, x) in enumerate(parts))
        return Typed(found, BOOL, f"(named_struct({names}) IN (listquery()))")

    def _like(self, node: exp.Expr) -> Typed:
        return self._matched(node, "\\")

    def _escaped(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        sign = self.write(node.expression).value
        if type(node.this) is not exp.Like or not isinstance(sign, str) or len(sign) != 1:
            raise NeedsSpark(node.sql("spark")[:60])
        found = self._matched(node.this, sign)
        return replace(found, name=f"{found.name} ESCAPE '{sign}'") if sign != "\\" else found

    def _matched(self, node: exp.Expr, sign: str) -> Typed:
        only(node, "this", "expression", "negate")
        x, pattern = self.write(node.this), self.write(node.expression)
        if x.type != STRING or not isinstance(pattern.value, str):
            raise NeedsSpark(f"LIKE of {shown(x.type)} and {pattern.name}")
        if literals.like_is_broken(pattern.value, sign) or (sign != "\\" and node.args.get("negate")):
            raise NeedsSpark(f"the pattern {pattern.value!r}")
        sql = f"({x.sql} LIKE {pattern.sql} ESCAPE {text(sign)})"
        if isinstance(node, exp.ILike):
            sql = f"spark_letters({x.sql}, (lower({x.sql}) LIKE {text(pattern.value.lower())} ESCAPE '\\'))"
            if not pattern.value.isascii():
                raise NeedsSpark(f"ILIKE {pattern.value!r}")
            return _negated(node, Typed(sql, BOOL, f"ilike({x.name}, {pattern.name})"))
        return _negated(node, Typed(sql, BOOL, f"{x.name} LIKE {pattern.name}"))

    def _rlike(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression", "negate")
        x, pattern = self.write(node.this), self.write(node.expression)
        return _negated(node, Typed(*call("rlike", [x, pattern]), f"RLIKE({x.name}, {pattern.name})"))

    def _pipes(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression", "safe")
        parts = self.all([node.this, node.expression])
        return Typed(*call("concat", parts), f"concat({', '.join(each.name for each in parts)})")


def _is_asked_alone(node: exp.Expr) -> bool:
    """Whether a condition is one of those that WHERE asks for all together: false and unknown are the same there."""
    parent = node.parent
    while isinstance(parent, exp.And | exp.Paren):
        parent = parent.parent
    return isinstance(parent, exp.Where)


def _field_name(part: exp.Expr, at: int) -> str:
    return f"'{part.name}'" if isinstance(part, exp.Column) else f"'_{at}'"


def _negated(node: exp.Expr, found: Typed) -> Typed:
    """`x NOT LIKE y` comes as one node."""
    return Typed(f"(NOT {found.sql})", BOOL, f"(NOT {found.name})") if node.args.get("negate") else found


def _shown_sides(operator: str, left: Typed, right: Typed) -> tuple[str, str]:
    """An integer is compared with a whole number: Spark rounds the literal, and shows that. Raises: `NeedsSpark`."""
    for one, other, up in ((left, right, operator in (">=", "<")), (right, left, operator in (">", "<="))):
        if is_integer(one.type) and is_decimal(other.type) and isinstance(other.value, Decimal) and operator != "=":
            whole = int(other.value.to_integral_value(ROUND_CEILING if up else ROUND_FLOOR))
            if abs(whole) >= 2**63:
                raise NeedsSpark(f"a comparison of {shown(one.type)} with {other.name}")
            return (left.name, str(whole)) if other is right else (str(whole), right.name)
    return left.name, right.name


def _quotient(a: str, b: str, one: pa.DataType, other: pa.DataType, result: pa.DataType) -> str:
    """Two DECIMALs divided as integers, rounded half up: a text. Raises: `NeedsSpark`."""
    shift = result.scale - one.scale + other.scale
    if not 0 <= shift < DIGITS_MAX:
        raise NeedsSpark(f"{shown(one)} / {shown(other)}")
    digits = f"spark_digits({a}) * CAST('{10**shift}' AS HUGEINT)"
    found = f"spark_scaled(spark_half_up({digits}, spark_digits({b})), {result.scale})"
    cases = f"WHEN {b} = 0 AND {a} IS NOT NULL THEN error('division by zero')"
    if one.precision + shift > DIGITS_MAX:
        most = f"CAST('{10 ** (DIGITS_MAX - shift)}' AS HUGEINT)"
        cases += f" WHEN abs(spark_digits({a})) >= {most} THEN error('{UNANSWERED}: more digits than 38')"
    if other.precision >= DIGITS_MAX:
        # Twice a rest is compared with it.
        most = f"CAST('{10 ** (DIGITS_MAX - 1)}' AS HUGEINT)"
        cases += f" WHEN abs(spark_digits({b})) >= {most} THEN error('{UNANSWERED}: more digits than 37')"
    return f"CASE {cases} ELSE {found} END"


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
        if is_decimal(sides[0]) and is_decimal(sides[1]):
            # Where there are too many digits, those behind the point are rounded away.
            scale = max(sides[0].scale, sides[1].scale)
            whole = max(each.precision - each.scale for each in sides)
            return decimal(min(whole + scale, DIGITS_MAX), min(scale, DIGITS_MAX - whole))
        return wider(sides[0], sides[1], "a comparison")
    return wider(left.type, right.type, "a comparison")
