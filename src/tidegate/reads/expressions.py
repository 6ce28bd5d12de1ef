"""Expressions: each node of the tree that is known here is typed as Spark types it, and written as DuckDB's SQL.

An allow list: a node, or a part of one, that is not known is `NeedsSpark`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tidegate.reads import literals, time_functions
from tidegate.reads.aggregates import AGGREGATES, aggregate, one_zero, ranked
from tidegate.reads.casts import cast, try_cast
from tidegate.reads.nested_functions import at, struct
from tidegate.reads.scope import Scope
from tidegate.reads.spark_functions import FUNCTIONS, WrongArguments, call, string
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
    is_list,
    is_nested,
    is_number,
    shown,
    text,
    wider,
)

_ARITHMETIC: Final = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_COMPARISONS: Final = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_BITS: Final = {exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^"}
_HIGHER: Final = {"transform", "filter", "exists", "forall"}

QueryCompiler = Callable[[exp.Expr, Scope], tuple[str, list[Typed]]]


def only(node: exp.Expr, *allowed: str) -> None:
    """Raises: `NeedsSpark` when a node says more than the `allowed` parts."""
    for name, value in node.args.items():
        if value and name not in allowed and name != "_type":
            raise NeedsSpark(f"{name.rstrip('_').replace('_', ' ').upper()} in {type(node).__name__.upper()}")


class Expressions:
    """Writes the expressions of one SELECT. `query` writes a subquery."""

    def __init__(self, scope: Scope, query: QueryCompiler, windows: dict[str, exp.Window] | None = None) -> None:
        self.scope = scope
        self._query = query
        self._windows = windows or {}

    def write(self, node: exp.Expr) -> Typed:
        """Raises: `NeedsSpark`, `InvalidArgument`."""
        for kind in type(node).__mro__:
            found = _WRITERS.get(kind)
            if found is not None:
                return found(self, node)
        if type(node) in _ARITHMETIC:
            return self._arithmetic(node)
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if type(node) in _BITS:
            return self._bits(node)
        raise NeedsSpark(f"{type(node).__name__} ({node.sql('spark')[:60]})")

    def all(self, nodes: Sequence[exp.Expr]) -> list[Typed]:
        return [self.write(each) for each in nodes]

    def condition(self, node: exp.Expr) -> Typed:
        found = self.write(node)
        if found.type not in (BOOL, VOID):
            raise NeedsSpark(f"a condition of the type {shown(found.type)}")
        return replace(found, sql=cast(found.sql, found.type, BOOL))

    # -- names and literals ----------------------------------------------------------------------------------

    def _column(self, node: exp.Expr) -> Typed:
        only(node, "this", "table", "db", "catalog")
        parts = [each.name for each in node.parts]  # type: ignore[attr-defined]
        if isinstance(node.this, exp.Star):
            raise NeedsSpark("* inside of an expression")
        found, inside = self.scope.resolve(parts)
        return replace(found, alias=parts[-1]) if inside else found

    def _identifier(self, node: exp.Expr) -> Typed:
        return self.scope.resolve([node.name])[0]

    def _dot(self, node: exp.Expr) -> Typed:
        raise NeedsSpark(f"{node.sql('spark')}")

    def _literal(self, node: exp.Expr) -> Typed:
        return literals.literal(node.name, bool(node.args["is_string"]))

    def _paren(self, node: exp.Expr) -> Typed:
        only(node, "this")
        found = self.write(node.this)
        return replace(found, sql=f"({found.sql})")

    def _neg(self, node: exp.Expr) -> Typed:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return literals.literal("-" + node.this.name, False)
        if isinstance(node.this, exp.Cast) and not node.this.meta.get("explicit"):
            raise NeedsSpark(f"the literal {node.sql('spark')}")
        found = self.write(node.this)
        if not is_number(found.type):
            raise NeedsSpark(f"- of {shown(found.type)}")
        return Typed(f"CAST(- {found.sql} AS {duck(found.type)})", found.type, f"(- {found.name})")

    # -- operators -------------------------------------------------------------------------------------------

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

    # -- conditionals and casts ------------------------------------------------------------------------------

    def _case(self, node: exp.Expr) -> Typed:
        only(node, "this", "ifs", "default")
        operand = self.write(node.this) if node.this else None
        whens, thens = [], []
        for each in node.args["ifs"]:
            if operand is None:
                whens.append(self.condition(each.this))
            else:
                value = self.write(each.this)
                a, b = self.compared(operand, value)
                whens.append(Typed(f"({a} = {b})", BOOL, f"({operand.name} = {value.name})"))
            thens.append(self.write(each.args["true"]))
        default = node.args.get("default")
        last = self.write(default) if default is not None else None
        type_: pa.DataType = VOID
        for branch in [*thens, *([last] if last else [])]:
            type_ = wider(type_, branch.type, "CASE")
        parts = [f"WHEN {w.sql} THEN {cast(t.sql, t.type, type_)}" for w, t in zip(whens, thens)]
        names = [f"WHEN {w.name} THEN {t.name}" for w, t in zip(whens, thens)]
        if last is not None:
            parts.append(f"ELSE {cast(last.sql, last.type, type_)}")
            names.append(f"ELSE {last.name}")
        return Typed(f"CASE {' '.join(parts)} END", type_, f"CASE {' '.join(names)} END")

    def _if(self, node: exp.Expr) -> Typed:
        only(node, "this", "true", "false")
        if node.args.get("false") is None:
            raise NeedsSpark("IF without an ELSE")
        when = self.condition(node.this)
        then, other = self.write(node.args["true"]), self.write(node.args["false"])
        type_ = wider(then.type, other.type, "IF")
        sql = f"CASE WHEN {when.sql} THEN {cast(then.sql, then.type, type_)} ELSE {cast(other.sql, other.type, type_)} END"
        return Typed(sql, type_, f"(IF({when.name}, {then.name}, {other.name}))")

    def _cast(self, node: exp.Expr) -> Typed:
        only(node, "this", "to", "safe")
        target = literals.type_of(node.args["to"])
        if not node.meta.get("explicit") and isinstance(node.this, exp.Literal):
            return literals.typed_literal(node.this, target)
        found = self.write(node.this)
        name = f"CAST({found.name} AS {shown(target)})"
        if isinstance(node, exp.TryCast):
            return Typed(try_cast(found.sql, found.type, target), target, f"TRY_{name}")
        return Typed(cast(found.sql, found.type, target), target, name)

    def _bracket(self, node: exp.Expr) -> Typed:
        only(node, "this", "expressions")
        if len(node.expressions) != 1 or node.args.get("offset"):
            raise NeedsSpark(node.sql("spark"))
        x, key = self.write(node.this), self.write(node.expressions[0])
        return Typed(*at(x, key), f"{x.name}[{key.name}]")

    def _extract(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        x = self.write(node.expression)
        try:
            found = time_functions.extract(node.this.name, x)
        except WrongArguments:
            raise NeedsSpark(f"EXTRACT from {shown(x.type)}") from None
        return Typed(*found, f"extract({node.this.name} FROM {x.name})")

    # -- functions -------------------------------------------------------------------------------------------

    def _function(self, node: exp.Expr) -> Typed:
        name = node.name.lower()
        if name in AGGREGATES:
            return self._aggregate(node, "", "")
        if name in _HIGHER:
            return self._higher(name, node)
        if name == "struct":
            return self._struct(node)
        args = self.all(node.expressions)
        return Typed(*call(name, args), f"{_NAMES.get(name, name)}({', '.join(each.name for each in args)})")

    def _now(self, node: exp.Expr) -> Typed:
        only(node)
        name = "current_date" if isinstance(node, exp.CurrentDate) else "current_timestamp"
        return Typed(*FUNCTIONS[name]([]), f"{name}()")

    def _struct(self, node: exp.Expr) -> Typed:
        names, values = [], []
        for number, each in enumerate(node.expressions):
            value = self.write(each.this if isinstance(each, exp.Alias) else each)
            is_name = isinstance(each, exp.Alias | exp.Column)
            names.append(each.alias_or_name if is_name else f"col{number + 1}")
            values.append(value)
        shown_parts = ", ".join(
            f"{each.name} AS {name}" if isinstance(part, exp.Alias) else each.name
            for name, each, part in zip(names, values, node.expressions)
        )
        return Typed(*struct(names, values), f"struct({shown_parts})")

    def _higher(self, name: str, node: exp.Expr) -> Typed:
        """Functions of arrays with a lambda."""
        if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Lambda):
            raise NeedsSpark(f"the function {name} without a lambda")
        array, given = self.write(node.expressions[0]), node.expressions[1]
        only(given, "this", "expressions")
        if not is_list(array.type) or len(given.expressions) != 1:
            raise NeedsSpark(f"the function {name} of {shown(array.type)}")
        argument = given.expressions[0].name
        each = Typed(f"x_{literals.plain(argument)}", array.type.value_type, f"namedlambdavariable()")
        inner = Scope(outer=self.scope, names={argument.casefold(): each})
        body = Expressions(inner, self._query).write(given.this)
        if name == "transform":
            sql, type_ = f"list_transform({array.sql}, lambda {each.sql}: {body.sql})", pa.list_(body.type)
            if body.type == VOID:
                raise NeedsSpark("transform to NULL")
        else:
            if body.type != BOOL:
                raise NeedsSpark(f"{name} with a condition of the type {shown(body.type)}")
            type_ = array.type if name == "filter" else BOOL
            sql = f"list_filter({array.sql}, lambda {each.sql}: {body.sql})"
            if name != "filter":
                tests = f"list_transform({array.sql}, lambda {each.sql}: {body.sql})"
                found, miss = ("true", "false") if name == "exists" else ("false", "true")
                sql = (
                    f"CASE WHEN {array.sql} IS NULL THEN NULL WHEN list_contains({tests}, {found}) THEN {found}"
                    f" WHEN list_position({tests}, NULL) IS NOT NULL THEN NULL ELSE {miss} END"
                )
        return Typed(sql, type_, f"{name}({array.name}, lambdafunction({body.name}, namedlambdavariable()))")

    def _aggregate(self, node: exp.Expr, where: str, over: str, shown_where: str = "") -> Typed:
        name = node.name.lower()
        parts = node.expressions
        distinct = len(parts) == 1 and isinstance(parts[0], exp.Distinct)
        if distinct:
            only(parts[0], "expressions")
            parts = parts[0].expressions
        if name == "count" and len(parts) == 1 and isinstance(parts[0], exp.Star) and not parts[0].args.get("except_"):
            args = [Typed("1", INT, "1", 1)]
        else:
            args = self.all(parts)
        if distinct and over:
            raise NeedsSpark("DISTINCT in a window")
        found = (ranked(name, args) if over else None) or aggregate(name, args, distinct)
        shown_args = ("DISTINCT " if distinct else "") + ", ".join(each.name for each in args)
        label = f"{_NAMES.get(name, name)}({shown_args}){shown_where}"
        return Typed(found.sql(where, over), found.type, label)

    def _filter(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        if not isinstance(node.this, exp.Anonymous) or node.this.name.lower() not in AGGREGATES:
            raise NeedsSpark(node.sql("spark")[:60])
        where = self.condition(node.expression.this)
        return self._aggregate(node.this, where.sql, "", f" FILTER (WHERE {where.name})")

    def _window(self, node: exp.Expr) -> Typed:
        only(node, "this", "partition_by", "order", "spec", "over", "alias")
        window = node
        if node.args.get("alias"):
            named = self._windows.get(node.args["alias"].name.casefold())
            if named is None or node.args.get("partition_by") or node.args.get("order"):
                raise NeedsSpark(f"the window {node.args['alias'].name}")
            only(named, "this", "partition_by", "order", "spec")
            window = named
        function: Any = node.this
        where, shown_where = "", ""
        if isinstance(function, exp.Filter):
            condition = self.condition(function.expression.this)
            where, shown_where = condition.sql, f" FILTER (WHERE {condition.name})"
            function = function.this
        if not isinstance(function, exp.Anonymous):
            raise NeedsSpark(node.sql("spark")[:60])
        over, shown_over = self._over(window, function.name.lower())
        if (
            function.name.lower() not in AGGREGATES
            and ranked(function.name.lower(), self.all(function.expressions)) is None
        ):
            raise NeedsSpark(f"the function {function.name.lower()} over a window")
        found = self._aggregate(function, where, f" OVER ({over})", shown_where)
        return replace(found, name=f"{found.name} OVER ({shown_over})")

    def _over(self, node: exp.Expr, function: str) -> tuple[str, str]:
        partition = self.all(node.args.get("partition_by") or [])
        parts = [f"PARTITION BY {', '.join(one_zero(each.sql, each.type) for each in partition)}"] if partition else []
        names = [f"PARTITION BY {', '.join(each.name for each in partition)}"] if partition else []
        order = node.args.get("order")
        if order is not None:
            keys = [self.ordered(each) for each in order.expressions]
            parts.append(f"ORDER BY {', '.join(sql for sql, _ in keys)}")
            names.append(f"ORDER BY {', '.join(name for _, name in keys)}")
        elif function in ("row_number", "rank", "dense_rank", "ntile", "lag", "lead", "percent_rank", "cume_dist"):
            raise NeedsSpark(f"the function {function} without ORDER BY")
        frame = literals.frame(node.args.get("spec"), order is not None, function)
        if frame and node.args.get("spec"):
            parts.append(frame)
        return " ".join(parts), " ".join([*names, *([frame] if frame else [])])

    def ordered(self, node: exp.Expr) -> tuple[str, str]:
        """One key of an ORDER BY, and its name."""
        only(node, "this", "desc", "nulls_first")
        found = self.write(node.this)
        if is_nested(found.type):
            raise NeedsSpark(f"the order of {shown(found.type)}")
        return f"{found.sql} {direction(node)}", f"{found.name} {direction(node)}"

    # -- subqueries ------------------------------------------------------------------------------------------

    def _subquery(self, node: exp.Expr) -> Typed:
        only(node, "this")
        sql, columns = self._query(node.this, self.scope)
        if len(columns) != 1:
            raise NeedsSpark("a subquery with several columns as a value")
        return Typed(f"({sql})", columns[0].type, "scalarsubquery()")

    def _exists(self, node: exp.Expr) -> Typed:
        only(node, "this")
        sql, _ = self._query(node.this, self.scope)
        return Typed(f"EXISTS ({sql})", BOOL, "exists()")


def direction(node: exp.Expr) -> str:
    """Spark sorts NULL first, and in a descending order last."""
    return f"{'DESC' if node.args.get('desc') else 'ASC'} NULLS {'FIRST' if node.args.get('nulls_first') else 'LAST'}"


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


_NAMES: Final = {"any": "any", "some": "some"}
"""Functions that Spark shows under another name than they were called by."""

_WRITERS: Final[dict[type, Callable[[Expressions, Any], Typed]]] = {
    exp.Column: Expressions._column,
    exp.Identifier: Expressions._identifier,
    exp.Dot: Expressions._dot,
    exp.Literal: Expressions._literal,
    exp.RawString: lambda _, node: literals.literal(node.name, True),
    exp.Null: lambda _, node: Typed("NULL", VOID, "NULL"),
    exp.Boolean: lambda _, node: Typed(str(node.this).lower(), BOOL, str(node.this).lower(), bool(node.this)),
    exp.Paren: Expressions._paren,
    exp.Neg: Expressions._neg,
    exp.IntDiv: Expressions._int_div,
    exp.NullSafeEQ: Expressions._null_safe,
    exp.NullSafeNEQ: Expressions._null_safe,
    exp.And: Expressions._and_or,
    exp.Or: Expressions._and_or,
    exp.Not: Expressions._not,
    exp.Is: Expressions._is,
    exp.Between: Expressions._between,
    exp.In: Expressions._in,
    exp.Like: Expressions._like,
    exp.ILike: Expressions._like,
    exp.RegexpLike: Expressions._rlike,
    exp.DPipe: Expressions._pipes,
    exp.Case: Expressions._case,
    exp.If: Expressions._if,
    exp.Cast: Expressions._cast,
    exp.Bracket: Expressions._bracket,
    exp.Extract: Expressions._extract,
    exp.Anonymous: Expressions._function,
    exp.CurrentDate: Expressions._now,
    exp.CurrentTimestamp: Expressions._now,
    exp.Filter: Expressions._filter,
    exp.Window: Expressions._window,
    exp.Subquery: Expressions._subquery,
    exp.Exists: Expressions._exists,
}
__all__ = ["Expressions", "comparable", "direction", "only", "string"]
