"""Expressions: each node of the tree that is known here is typed as Spark types it, and written as DuckDB's SQL.

An allow list: a node, or a part of one, that is not known is `NeedsSpark`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tidegate.reads import labels, literals, time_functions
from tidegate.reads.aggregates import AGGREGATES, aggregate, joined, one_zero, ranked
from tidegate.reads.casts import cast, try_cast
from tidegate.reads.failing import may_fail
from tidegate.reads.grouping import ALL_KEYS
from tidegate.reads.nested_functions import at, field, struct
from tidegate.reads.operators import Operators, QueryCompiler, only
from tidegate.reads.scope import Scope
from tidegate.reads.spark_functions import FUNCTIONS, WrongArguments, call, held
from tidegate.reads.spark_types import (
    BINARY,
    BOOL,
    INT,
    LONG,
    VOID,
    NeedsSpark,
    Typed,
    duck,
    is_list,
    is_nested,
    is_number,
    is_struct,
    shown,
    wider,
)

_ONE_OF: Final = {"first", "first_value", "last", "last_value", "any_value"}
_HIGHER: Final = {"transform", "filter", "exists", "forall"}


class Expressions(Operators):
    """Writes the expressions of one SELECT. `query` writes a subquery."""

    def __init__(self, scope: Scope, query: QueryCompiler, windows: dict[str, exp.Window] | None = None) -> None:
        super().__init__(scope, query)
        self._windows = windows or {}

    def write(self, node: exp.Expr) -> Typed:
        """Raises: `NeedsSpark`, `InvalidArgument`."""
        for kind in type(node).__mro__:
            found = _WRITERS.get(kind)
            if found is not None:
                return found(self, node)
        operator = self.operator(node)
        if operator is not None:
            return operator
        raise NeedsSpark(f"{type(node).__name__} ({node.sql('spark')[:60]})")

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
        only(node, "this", "expression")
        if not isinstance(node.expression, exp.Identifier):
            raise NeedsSpark(node.sql("spark")[:60])
        x, name = self.write(node.this), node.expression.name
        return Typed(*field(x, name), f"{x.name}.{name}")

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
            return literals.typed_literal(node.this.this, literals.type_of(node.this.args["to"]), "-")
        found = self.write(node.this)
        if not is_number(found.type):
            raise NeedsSpark(f"- of {shown(found.type)}")
        return Typed(f"CAST(- {found.sql} AS {duck(found.type)})", found.type, f"(- {found.name})")

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
        yes, no = cast(then.sql, then.type, type_), cast(other.sql, other.type, type_)
        return Typed(
            f"CASE WHEN {when.sql} THEN {yes} ELSE {no} END", type_, f"(IF({when.name}, {then.name}, {other.name}))"
        )

    def _cast(self, node: exp.Expr) -> Typed:
        only(node, "this", "to", "safe")
        target = literals.type_of(node.args["to"])
        if not node.meta.get("explicit") and isinstance(node.this, exp.Literal):
            return literals.typed_literal(node.this, target)
        found = self.write(node.this)
        name = f"CAST({found.name} AS {shown(target).replace(', ', ',')})"
        if isinstance(node, exp.TryCast):
            sql, _ = held([found], lambda one: (try_cast(one[0].sql, one[0].type, target), target))
            return Typed(sql, target, f"TRY_{name}")
        # A column alone keeps its name.
        alias = found.name if isinstance(node.this, exp.Column) and not found.alias else ""
        sql, _ = held([found], lambda one: (cast(one[0].sql, one[0].type, target), target))
        return Typed(sql, target, found.name if is_list(target) else name, alias=alias)

    def _bracket(self, node: exp.Expr) -> Typed:
        only(node, "this", "expressions")
        if len(node.expressions) != 1 or node.args.get("offset"):
            raise NeedsSpark(node.sql("spark"))
        x, key = self.write(node.this), self.write(node.expressions[0])
        name = f"{x.name}.{key.name}" if is_struct(x.type) else f"{x.name}[{key.name}]"
        return Typed(*held([x, key], lambda both: at(*both)), name)

    def _extract(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        x = self.write(node.expression)
        try:
            found = held([x], lambda one: time_functions.extract(node.this.name, one[0]))
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
        if name in ("grouping", "grouping_id"):
            return self._grouping(name, node)
        if name in ("window", "session_window"):
            window = self.scope.time_window()
            if window is None or window.column.name != name:
                raise NeedsSpark(f"{name}() here")
            return window.column
        args = self.all(node.expressions)
        if name in literals.TYPES and len(args) == 1:
            target = literals.TYPES[name]
            return Typed(cast(args[0].sql, args[0].type, target), target, args[0].name, alias=args[0].alias)
        return Typed(*call(name, args), labels.called(name, args))

    def _grouping(self, name: str, node: exp.Expr) -> Typed:
        """Which keys of a grouping set are left out: 1, and bits of all of them."""
        args = self.all(node.expressions)
        if name == "grouping" and len(args) != 1:
            raise NeedsSpark(f"grouping of {len(args)} columns")
        keys = ", ".join(each.sql for each in args) or ALL_KEYS
        type_ = pa.int8() if name == "grouping" else LONG
        return Typed(f"CAST(grouping({keys}) AS {duck(type_)})", type_, labels.called(name, args))

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
        each = Typed(f"x_{literals.plain(argument)}", array.type.value_type, "namedlambdavariable()")
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
        label = labels.called(name, args, "DISTINCT " if distinct else "") + shown_where
        return Typed(found.sql(where, over), found.type, label)

    def _ignoring(self, node: exp.Expr) -> Typed:
        return self.write(_ignoring_nulls(node))

    def _within(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        call = node.this
        if not isinstance(call, exp.Anonymous) or call.name.lower() not in ("listagg", "string_agg"):
            raise NeedsSpark(node.sql("spark")[:60])
        args, keys = self.all(call.expressions), [self.ordered(each) for each in node.expression.expressions]
        found = joined(args, ", ".join(sql for sql, _ in keys))
        name = labels.called(call.name.lower(), args)
        return Typed(found.sql(), found.type, f"{name} WITHIN GROUP (ORDER BY {', '.join(name for _, name in keys)})")

    def _filter(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        if isinstance(node.this, exp.IgnoreNulls):
            node = exp.Filter(this=_ignoring_nulls(node.this), expression=node.expression)
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
        if isinstance(function, exp.IgnoreNulls):
            function = _ignoring_nulls(function)
        if not isinstance(function, exp.Anonymous):
            raise NeedsSpark(node.sql("spark")[:60])
        offset = function.expressions[1].name if len(function.expressions) > 1 else "1"
        over, shown_over = self._over(window, function.name.lower(), offset)
        if (
            function.name.lower() not in AGGREGATES
            and ranked(function.name.lower(), self.all(function.expressions)) is None
        ):
            raise NeedsSpark(f"the function {function.name.lower()} over a window")
        found = self._aggregate(function, where, f" OVER ({over})", shown_where)
        return replace(found, name=f"{found.name} OVER ({shown_over})")

    def _over(self, node: exp.Expr, function: str, offset: str) -> tuple[str, str]:
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
        frame = literals.frame(node.args.get("spec"), order is not None, function, offset)
        written = " ".join(parts)
        if may_fail(written):
            # To DuckDB such an expression is volatile, and no window may be of one.
            raise NeedsSpark("a window by an expression that may fail")
        if frame and node.args.get("spec"):
            written += f" {frame}"
        return written, " ".join([*names, *([frame] if frame else [])])

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


def _ignoring_nulls(node: exp.Expr) -> exp.Expr:
    """`first_value(x) IGNORE NULLS` is `first(x, true)`."""
    only(node, "this")
    call = node.this
    if not isinstance(call, exp.Anonymous) or len(call.expressions) != 1 or call.name.lower() not in _ONE_OF:
        raise NeedsSpark(node.sql("spark")[:60])
    name = call.name.lower()
    known = name if name == "any_value" else name.removesuffix("_value")
    return exp.Anonymous(this=known, expressions=[*call.expressions, exp.true()])


def direction(node: exp.Expr) -> str:
    """Spark sorts NULL first, and in a descending order last."""
    return f"{'DESC' if node.args.get('desc') else 'ASC'} NULLS {'FIRST' if node.args.get('nulls_first') else 'LAST'}"


_WRITERS: Final[dict[type, Callable[[Expressions, Any], Typed]]] = {
    exp.Column: Expressions._column,
    exp.Identifier: Expressions._identifier,
    exp.Dot: Expressions._dot,
    exp.Literal: Expressions._literal,
    exp.RawString: lambda _, node: literals.literal(node.name, True),
    exp.HexString: lambda _, node: Typed(f"unhex('{node.name}')", BINARY, f"X'{node.name.upper()}'"),
    exp.Null: lambda *_: Typed("NULL", VOID, "NULL"),
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
    exp.Escape: Expressions._escaped,
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
    exp.IgnoreNulls: Expressions._ignoring,
    exp.WithinGroup: Expressions._within,
    exp.Window: Expressions._window,
    exp.Subquery: Expressions._subquery,
    exp.Exists: Expressions._exists,
}
