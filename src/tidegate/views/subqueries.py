"""Subqueries as joins: EXISTS and IN as semi-joins, their negations as anti-joins, scalar ones as joins with a value.

A subquery that looks at the query around it does so in conditions of its own WHERE (*links*). Where it aggregates, the
links must be equalities: it is grouped by their inner sides and stored, and joined by them.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tidegate.tables.spark_sql import DIALECT, shorten
from tidegate.views.building import Env, Names, NotUnderstood, Out, Select, null_of, number_of
from tidegate.views.distinct import in_two
from tidegate.views.names import aggregates_in, function_name, subqueries_in, windows_in
from tidegate.views.operators import Aggregate, Filter, Inner, Left, Op, Project, Semi, blocking, column, names_in

_ZERO: Final = "0"
_OF_NO_ROWS: Final = {
    **dict.fromkeys(("approx_count_distinct", "count", "count_if", "regr_count"), _ZERO),
    **dict.fromkeys(("array_agg", "collect_list", "collect_set"), "[]"),
    **dict.fromkeys(("any", "any_value", "avg", "bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "every")),
    **dict.fromkeys(("corr", "covar_pop", "covar_samp", "first", "first_value", "kurtosis", "last", "last_value")),
    **dict.fromkeys(("listagg", "max", "max_by", "mean", "median", "min", "min_by", "mode", "percentile")),
    **dict.fromkeys(("approx_percentile", "percentile_approx", "percentile_cont", "percentile_disc", "skewness")),
    **dict.fromkeys(("some", "std", "stddev", "stddev_pop", "stddev_samp", "string_agg", "sum", "try_avg", "try_sum")),
    **dict.fromkeys(("var_pop", "var_samp", "variance")),
}
"""What aggregates give of no rows; None: NULL."""


class Subqueries:
    """Puts the subqueries of one condition, or of one expression, on top of a SELECT that is being built."""

    def __init__(self, builder: Names, at: Select) -> None:
        self._builder = builder
        self._at = at

    def condition(self, node: exp.Expr, *, resolved: bool = False) -> None:
        """Keep the rows for which a condition with subqueries holds."""
        at = self._at
        bare, is_not = _stripped(node)
        if isinstance(bare, exp.Exists):
            self._exists(bare, is_not)
            return
        if isinstance(bare, exp.In) and bare.args.get("query") is not None:
            self._in(bare, is_not, resolved)
            return
        expr = node if resolved else self._builder.resolve_keeping(node, at)
        expr = self.scalar_parts(expr, in_filter=True)
        missing = names_in(expr) - set(at.op.cols)
        if missing:
            raise NotUnderstood(f"a subquery's condition on {', '.join(sorted(missing))}")
        at.op = Filter(at.op, expr)

    def scalar_parts(self, node: exp.Expr, *, in_filter: bool = False) -> exp.Expr:
        """An expression in which columns stand for its subqueries."""
        node = node.copy()
        for each in subqueries_in(node):
            match each:
                case exp.Subquery():
                    new = self._scalar(each.this)
                case exp.Exists():
                    new = self._mark(each.this, None)
                case exp.In() if in_filter and not _is_negated(each):
                    new = self._mark(_query_of(each), each.this)
                case _:
                    raise NotUnderstood(f"{_said(each)} where NULL is another answer than no")
            if each is node:
                return new
            each.replace(new)
        return node

    # -- EXISTS and IN ---------------------------------------------------------------------------------------

    def _exists(self, node: exp.Expr, is_not: bool) -> None:
        out, links = self._plain(_uncut(node.this))
        at = self._at
        at.op = Semi(self._left(), out.op, exp.and_(*links) if links else exp.true(), is_not)

    def _in(self, node: exp.Expr, is_not: bool, resolved: bool) -> None:
        out, links = self._plain(_query_of(node))
        given = node.this if resolved else self._builder.resolve(node.this, self._at)
        wanted = list(given.expressions) if isinstance(given, exp.Tuple) else [_unwrapped(given)]
        if len(wanted) != len(out.columns):
            raise NotUnderstood("IN with another number of columns")
        equal: list[exp.Expr] = []
        for one, (_, inner) in zip(wanted, out.columns):
            same: exp.Expr = exp.EQ(this=one.copy(), expression=column(inner))
            if is_not:
                # NOT IN is unknown, hence not true, when either is NULL.
                same = exp.paren(exp.or_(same, _is_null(one.copy()), _is_null(column(inner))))
            equal.append(same)
        at = self._at
        at.op = Semi(self._left(), out.op, exp.and_(*equal, *links), is_not)

    def _mark(self, query: exp.Expr, given: exp.Expr | None) -> exp.Expr:
        """EXISTS or IN somewhere in a condition: whether the row has a partner. Unknown counts as no."""
        builder = self._builder
        out, links = self._plain(query)
        inner, outer = self._equalities(links, out.op)
        if given is not None:
            if len(out.columns) != 1 or isinstance(given, exp.Tuple):
                raise NotUnderstood("IN of several columns beside another condition")
            inner.append(column(out.columns[0][1]))
            outer.append(_unwrapped(given).copy())
        keys = [builder.fresh("link") for _ in inner]
        made = dict(zip(keys, inner))
        op: Op = Aggregate(Project(out.op, made, ()), tuple(keys), {}, builder.fresh("one"))
        if not keys:
            count = builder.fresh("found")
            op = Aggregate(Project(out.op, {}, ()), (), {count: _count()}, builder.fresh("one"))
            stored = builder.store(Out(op, [(count, count)]), "EXISTS is a question about all of its rows")
            self._at.op = Inner([self._left(), stored.op], [])
            return exp.GT(this=column(stored.columns[0][1]), expression=exp.Literal.number(0))
        flag = builder.fresh("found")
        op = Project(op, {**{name: column(name) for name in keys}, flag: exp.true()}, tuple(keys))
        stored = builder.store(
            Out(op, [(each, each) for each in [*keys, flag]]), "it is asked whether a partner is there"
        )
        names = [each for _, each in stored.columns]
        on = [exp.EQ(this=one, expression=column(name)) for one, name in zip(outer, names)]
        self._at.op = Left(self._left(), stored.op, exp.and_(*on), True)
        return exp.Coalesce(this=column(names[-1]), expressions=[exp.false()])

    # -- scalar ----------------------------------------------------------------------------------------------

    def _scalar(self, query: exp.Expr) -> exp.Expr:
        while isinstance(query, exp.Subquery):
            query = query.this
        if not isinstance(query, exp.Select) or len(query.expressions) != 1:
            raise NotUnderstood("a scalar subquery of this form")
        value = query.expressions[0]
        value = value.this if isinstance(value, exp.Alias) else value
        if windows_in(value) or query.args.get("qualify"):
            raise NotUnderstood("a window in a scalar subquery")
        if query.args.get("with_"):
            raise NotUnderstood("a WITH in a subquery")
        plain = query.args.get("group") is None and query.args.get("having") is None
        if plain and aggregates_in(value):
            return self._scalar_aggregate(query, value)
        return self._scalar_row(query)

    def _scalar_row(self, query: exp.Expr) -> exp.Expr:
        """One that finds a row by its key."""
        out, links = self._plain(query)
        inner, _ = self._equalities(links, out.op)
        found = {each.name for each in inner if isinstance(each, exp.Column)}
        if not links or not set(out.op.keys) <= found:
            raise NotUnderstood("a scalar subquery that may have several rows")
        self._at.op = Left(self._left(), out.op, exp.and_(*links), True)
        return column(out.columns[0][1])

    def _scalar_aggregate(self, query: exp.Expr, value: exp.Expr) -> exp.Expr:
        builder = self._builder
        if number_of(query, "limit") == 0 or number_of(query, "offset"):
            raise NotUnderstood("a scalar subquery that takes no row")
        bare = query.copy()
        bare.set("expressions", [])
        bare.set("limit", None)
        bare.set("order", None)
        inside = builder.from_clause(bare, self._outer())
        if blocking(inside.op) is not None:
            inside.op = builder.row_level(Out(inside.op, [(each, each) for each in inside.op.cols]), "").op
        resolved = builder.resolve_keeping(value, inside)
        if subqueries_in(resolved) or names_in(resolved) - set(inside.op.cols):
            raise NotUnderstood("a scalar subquery within another")
        inner, outer = self._equalities(inside.links, inside.op)
        keys = [builder.fresh("link") for _ in inner]
        calls: dict[str, exp.Expr] = {}
        given: dict[str, exp.Expr] = {}
        empty: dict[str, str | None] = {}
        result = exp.Paren(this=resolved.copy())
        for each in aggregates_in(result):
            name = builder.fresh("value")
            calls[name] = builder.plain_call(each.copy(), given)
            empty[name] = _of_no_rows(each) if keys else None
            if empty[name] == _ZERO and each is not result.this:
                raise NotUnderstood("a count within the expression of a subquery")
            each.replace(column(name))
        used = {name for each in calls.values() for name in names_in(each)}
        exprs: dict[str, exp.Expr] = {name: given.get(name, column(name)) for name in sorted(used)}
        exprs |= dict(zip(keys, inner))
        rows = Project(inside.op, exprs, ())
        aggregate: Op | None = None if keys else in_two(builder, rows, calls)
        aggregate = aggregate or Aggregate(rows, tuple(keys), calls, builder.fresh("one"))
        if not keys:
            shown = builder.fresh("value")
            op = Project(
                aggregate, {**{key: column(key) for key in aggregate.keys}, shown: _bare(result)}, aggregate.keys
            )
            stored = builder.store(Out(op, [(each, each) for each in op.cols]), "a subquery's value")
            self._at.op = Inner([self._left(), stored.op], [])
            return column(stored.columns[-1][1])
        # The expression is of the row around it: where no row of the subquery is linked, it has aggregates of none.
        types = builder.typer(aggregate)
        stored = builder.store(Out(aggregate, [(each, each) for each in aggregate.cols]), "a subquery's value")
        now = dict(zip(aggregate.cols, [each for _, each in stored.columns]))
        on = [exp.EQ(this=one, expression=column(now[key])) for one, key in zip(outer, keys)]
        self._at.op = Left(self._left(), stored.op, exp.and_(*on), True)

        def filled(each: exp.Expr) -> exp.Expr:
            if not isinstance(each, exp.Column):
                return each
            if each.name not in empty:
                raise NotUnderstood(f"the column {each.name}, which is not grouped by")
            if empty[each.name] is None:
                return column(now[each.name])
            return exp.Coalesce(this=column(now[each.name]), expressions=[_empty(types[each.name])])

        return _bare(result.transform(filled))

    # -- parts -----------------------------------------------------------------------------------------------

    def _outer(self) -> Env:
        return {**self._at.outer, **self._at.env}

    def _left(self) -> Op:
        """The rows so far; stored, if they are groups."""
        at = self._at
        if blocking(at.op) is not None:
            # Their names must stay what the expressions above call them.
            out = Out(at.op, [(each, each) for each in at.op.cols])
            stored = self._builder.store(out, "it is joined with a subquery")
            names = {each: column(inner) for (each, _), (_, inner) in zip(out.columns, stored.columns)}
            if len(names) != len(out.columns):
                raise NotUnderstood("columns of the same name")
            keys = {inner: each for each, inner in ((name, one.name) for name, one in names.items())}
            at.op = Project(stored.op, dict(names), tuple(keys[each] for each in stored.op.keys))
        return at.op

    def _plain(self, query: exp.Expr) -> tuple[Out, list[exp.Expr]]:
        """A subquery as rows, and its links."""
        builder = self._builder
        while isinstance(query, exp.Subquery):
            query = query.this
        if not isinstance(query, exp.Select):
            out = builder.query(query)
            return builder.row_level(out, "rows are looked for in it"), []
        if query.args.get("with_"):
            raise NotUnderstood("a WITH in a subquery")
        out, inside = builder.select(query, self._outer())
        if inside.links:
            if blocking(out.op) is not None:
                raise NotUnderstood("a subquery that groups, and looks at the query around it")
            # The links may use columns that it does not show.
            exprs: dict[str, exp.Expr] = {}
            if isinstance(out.op, Project):
                exprs = dict(out.op.exprs)
                base = out.op.child
            else:
                base = out.op
            for name in {name for each in inside.links for name in names_in(each)}:
                if name in base.cols and name not in exprs:
                    exprs[name] = column(name)
            out = Out(Project(base, exprs, out.op.keys), out.columns)
        return builder.row_level(out, "rows are looked for in it"), inside.links

    def _equalities(self, links: list[exp.Expr], op: Op) -> tuple[list[Any], list[Any]]:
        """The two sides of links that are equalities: the subquery's, and the other."""
        mine = set(op.cols)
        inner, outer = [], []
        for each in links:
            bare = each.this if isinstance(each, exp.Paren) else each
            if not isinstance(bare, exp.EQ):
                raise NotUnderstood(f"a subquery that is linked by {_said(each)}, and not by equality")
            one, other = bare.this, bare.expression
            if names_in(one) <= mine and not names_in(other) & mine:
                inner.append(one.copy())
                outer.append(other.copy())
            elif names_in(other) <= mine and not names_in(one) & mine:
                inner.append(other.copy())
                outer.append(one.copy())
            else:
                raise NotUnderstood(f"a subquery that is linked by {_said(each)}, and not by equality")
        return inner, outer


def _of_no_rows(call: exp.Expr) -> str | None:
    """Raises: `NotUnderstood` for an aggregate of which it is not known."""
    while isinstance(call, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    name = function_name(call) or ""
    if name not in _OF_NO_ROWS:
        raise NotUnderstood(f"{name}() in a subquery that looks at the query around it")
    return _OF_NO_ROWS[name]


def _empty(type: pa.DataType) -> exp.Expr:
    """A count of nothing, or a list of it."""
    if not pa.types.is_list(type):
        return exp.Literal.number(0)
    one = exp.Anonymous(this="array", expressions=[null_of(type.value_type)])
    return exp.Anonymous(this="slice", expressions=[one, exp.Literal.number(1), exp.Literal.number(0)])


def _bare(node: exp.Expr) -> exp.Expr:
    """Without parentheses around one column or call."""
    return node.this if isinstance(node.this, exp.Column | exp.Coalesce) else node


def _said(node: exp.Expr) -> str:
    """An expression as a reason names it."""
    return shorten(node.sql(DIALECT).replace("`", ""))


def _uncut(query: exp.Expr) -> exp.Expr:
    """A query of which only is asked whether it has a row: a LIMIT that lets one through changes nothing."""
    limit = query.args.get("limit")
    if limit is None or query.args.get("offset") or not isinstance(limit.expression, exp.Literal):
        return query
    if not limit.expression.name.isdigit() or int(limit.expression.name) < 1:
        return query
    query = query.copy()
    query.set("limit", None)
    query.set("order", None)
    return query


def _stripped(node: exp.Expr) -> tuple[exp.Expr, bool]:
    is_not = False
    while isinstance(node, exp.Paren | exp.Not):
        is_not ^= isinstance(node, exp.Not)
        node = node.this
    return node, is_not


def _is_negated(node: exp.Expr) -> bool:
    """Whether a condition stands where unknown is not the same as no."""
    parent = node.parent
    while parent is not None and not isinstance(parent, exp.Where | exp.Having):
        if not isinstance(parent, exp.And | exp.Or | exp.Paren):
            return True
        parent = parent.parent
    return False


def _query_of(node: exp.Expr) -> Any:
    query = node.args["query"]
    return query.this if isinstance(query, exp.Subquery) else query


def _unwrapped(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.Paren) else node


def _is_null(node: exp.Expr) -> exp.Expr:
    return exp.Is(this=node, expression=exp.null())


def _count() -> exp.Expr:
    return exp.Anonymous(this="count", expressions=[exp.Star()])
