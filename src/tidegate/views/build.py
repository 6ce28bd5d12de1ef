"""From a query to operators: FROM and WHERE become row-level ones, the rest of a SELECT blocking ones, one by one.

Names are resolved by sqlglot first (`qualify`), so that every column says which source it is of. What is not
understood raises `NotUnderstood`: the view is then computed in full, which is right all the same.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlglot import exp

from tidegate.views.building import Env, NotUnderstood, Out, Select, cast_to, is_cut, number_of
from tidegate.views.from_clause import GENERATORS
from tidegate.views.group_clause import GroupClause
from tidegate.views.names import aggregates_in, conjuncts, subqueries_in, windows_in
from tidegate.views.operators import (
    Aggregate,
    Filter,
    Op,
    Project,
    SetOperation,
    Top,
    Union,
    blocking,
    column,
    is_one_read,
)
from tidegate.views.subqueries import Subqueries


class Builder(GroupClause):
    """Builds one view."""

    def query(self, node: exp.Expr, outer: Env | None = None) -> Out:
        before = self.ctes
        if given := node.args.get("with_"):
            if given.args.get("recursive"):
                raise NotUnderstood("a recursive query")
            for each in given.expressions:
                if each.args["alias"].args.get("columns"):
                    raise NotUnderstood("a WITH that names columns")
                self.ctes = {**self.ctes, each.alias.casefold(): self.cte(each.this)}
        try:
            match node:
                case exp.Select():
                    return self.select(node, outer or {})[0]
                case exp.Subquery():
                    inner = self.query(node.this, outer)
                    return self._ordered(node, inner, None) if is_cut(node) else inner
                case exp.Union() | exp.Except() | exp.Intersect():
                    found = self._set_operation(node)
                    return self._ordered(node, found, None) if is_cut(node) else found
                case exp.Values():
                    return self.values(node)
                case _:
                    raise NotUnderstood(f"{type(node).__name__} as a query")
        finally:
            self.ctes = before

    # -- SELECT ----------------------------------------------------------------------------------------------

    def select(self, node: exp.Expr, outer: Env) -> tuple[Out, Select]:
        if node.args.get("hint") or node.args.get("sample") or node.args.get("pivots"):
            raise NotUnderstood("a hint, a sample or a pivot")
        at = self.from_clause(node, outer)
        windows = {each.name.casefold(): each for each in node.args.get("windows") or []}
        shown: list[str] = []
        exprs: list[exp.Expr] = []
        generators = 0
        for each in node.expressions:
            inner = each.this if isinstance(each, exp.Alias | exp.Aliases) else each
            if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
                raise NotUnderstood("*")
            if isinstance(inner, exp.Anonymous) and inner.name.lower() in GENERATORS:
                generators += 1
                given = (
                    [one.name for one in each.expressions] if isinstance(each, exp.Aliases) else [each.alias_or_name]
                )
                counts, made = self.explode(inner, given if isinstance(each, exp.Aliases) else [], False, at)
                names = given if isinstance(each, exp.Aliases) else (["pos", "col"] if counts else given)
                shown += names
                exprs += [column(one) for one in made]
                continue
            shown.append(each.alias_or_name)
            exprs.append(self.windowed(self.resolve_keeping(inner, at), windows, at))
        if generators > 1:
            raise NotUnderstood("two generators in one SELECT")
        having = node.args.get("having")
        conditions = [self.resolve_keeping(each, at) for each in conjuncts(having.this if having else None)]
        order = self._order_of(node, shown, exprs, at, windows)
        qualify = node.args.get("qualify")
        kept = None if qualify is None else self.windowed(self.resolve_keeping(qualify.this, at), windows, at)
        every = [*exprs, *conditions, *(each.this for each in order), *([] if kept is None else [kept])]
        if node.args.get("group") is not None or any(aggregates_in(each) for each in every):
            every = self.aggregate(node, self._joined_within(every, at), at)
        elif having is not None:
            raise NotUnderstood("HAVING without an aggregate")
        else:
            every = self.time_windows(every, at)
        parts = iter(every)
        exprs = [next(parts) for _ in exprs]
        conditions = [next(parts) for _ in conditions]
        keys = [next(parts) for _ in order]
        kept = None if kept is None else next(parts)
        for each in conditions:
            if subqueries_in(each):
                Subqueries(self, at).condition(each, resolved=True)
            else:
                at.op = Filter(at.op, each)
        listed = self._joined([*exprs, *keys, *([] if kept is None else [kept])], at)
        exprs, keys = listed[: len(exprs)], listed[len(exprs) : len(exprs) + len(keys)]
        kept = None if kept is None else listed[-1]
        if any(windows_in(each) for each in listed):
            listed = self.windows(listed, at)
            exprs, keys = listed[: len(exprs)], listed[len(exprs) : len(exprs) + len(keys)]
            kept = None if kept is None else listed[-1]
        if kept is not None:
            at.op = Filter(at.op, kept)
        for old, new in zip(order, keys, strict=True):
            old.set("this", new)
        return self._shown(node, shown, exprs, order, at), at

    def _joined(self, exprs: list[exp.Expr], at: Select) -> list[exp.Expr]:
        """Expressions with columns for their subqueries, each of which is joined once."""
        done: dict[str, exp.Expr] = {}
        for each in exprs:
            if subqueries_in(each) and each.sql() not in done:
                done[each.sql()] = Subqueries(self, at).scalar_parts(each)
        return [done[each.sql()].copy() if subqueries_in(each) else each for each in exprs]

    def _joined_within(self, exprs: list[exp.Expr], at: Select) -> list[exp.Expr]:
        """Expressions with columns for the subqueries that aggregates are given: those are joined before rows are
        grouped, each once."""
        done: dict[str, exp.Expr] = {}
        found = []
        for each in exprs:
            holder = exp.Paren(this=each.copy())
            for call in aggregates_in(holder):
                if not subqueries_in(call):
                    continue
                if (text := call.sql()) not in done:
                    done[text] = Subqueries(self, at).scalar_parts(call)
                call.replace(done[text].copy())
            found.append(holder.this)
        return found

    def _shown(self, node: exp.Expr, shown: list[str], exprs: list[exp.Expr], order: list[Any], at: Select) -> Out:
        """The columns of a SELECT, then DISTINCT, ORDER BY and LIMIT."""
        made: dict[str, exp.Expr] = {}
        inner: list[str] = []
        for name, each in zip(shown, exprs, strict=True):
            if isinstance(each, exp.Column) and each.name in at.op.cols:
                inner.append(each.name)
                made[each.name] = each
            else:
                new = self.fresh(name)
                inner.append(new)
                made[new] = each
        distinct = node.args.get("distinct")
        limit, offset = number_of(node, "limit"), number_of(node, "offset") or 0
        is_cut = limit is not None or bool(offset)
        keys = at.op.keys
        sorted_by = {}
        if is_cut:
            for number, each in enumerate(order):
                if not isinstance(each.this, exp.Column) or each.this.name not in {*made, *at.op.cols}:
                    new = self.fresh(f"order{number}")
                    sorted_by[new] = each.this
                    each.set("this", column(new))
                else:
                    sorted_by[each.this.name] = each.this
        if distinct is not None:
            if distinct.args.get("on"):
                raise NotUnderstood("DISTINCT ON")
            if not {each.this.name for each in order if is_cut} <= set(made):
                raise NotUnderstood("ORDER BY of something that SELECT DISTINCT does not show")
            # What is stored below it is told apart by its own keys.
            carried = {name: column(name) for name in keys if name not in made}
            out = Out(Project(at.op, {**made, **carried}, keys), list(zip(shown, inner)))
            out = self.row_level(out, "DISTINCT is of its rows")
            inner = [name for _, name in out.columns]
            mapping = dict(zip(made, list(dict.fromkeys(inner))))
            for each in order:
                if isinstance(each.this, exp.Column) and each.this.name in mapping:
                    each.set("this", column(mapping[each.this.name]))
            out = Out(Aggregate(out.op, tuple(dict.fromkeys(inner)), {}), list(zip(shown, inner)))
        else:
            carried = {name: column(name) for name in keys if name not in made}
            carried |= {name: each for name, each in sorted_by.items() if name not in made}
            out = Out(Project(at.op, {**made, **carried}, keys), list(zip(shown, inner)))
        return self._top(out, order, limit, offset) if is_cut else out

    def _ordered(self, node: exp.Expr, out: Out, _: None) -> Out:
        """ORDER BY and LIMIT of a query in parentheses or of several."""
        limit, offset = number_of(node, "limit"), number_of(node, "offset") or 0
        if limit is None and not offset:
            return out
        order = []
        by_name = {name.casefold(): inner for name, inner in out.columns}
        for each in (node.args.get("order") or exp.Order(expressions=[])).expressions:
            each = each.copy()
            if not isinstance(each.this, exp.Column) or each.this.name.casefold() not in by_name:
                raise NotUnderstood(f"ORDER BY {each.this.sql()}")
            each.set("this", column(by_name[each.this.name.casefold()]))
            order.append(each)
        return self._top(out, order, limit, offset)

    def _top(self, out: Out, order: list[Any], limit: int | None, offset: int) -> Out:
        if blocking(out.op) is not None or not is_one_read(out.op):
            names = {each.this.name for each in order}
            shown = {inner for _, inner in out.columns}
            extra = [name for name in names - shown if name in out.op.cols]
            wide = Out(out.op, [*out.columns, *((f"order {name}", name) for name in extra)])
            stored = self.store(wide, "its first rows are taken")
            renamed = dict(zip([inner for _, inner in wide.columns], [inner for _, inner in stored.columns]))
            for each in order:
                each.set("this", column(renamed[each.this.name]))
            out = Out(stored.op, stored.columns[: len(out.columns)])
        # Rows that are equal by the order come in the order of their keys, so that the same ones are always taken.
        ties = [exp.Ordered(this=column(name), desc=False) for name in out.op.keys]
        return Out(Top(out.op, [*order, *ties], limit, offset), out.columns)

    def _order_of(
        self, node: exp.Expr, shown: list[str], exprs: list[exp.Expr], at: Select, windows: dict[str, Any]
    ) -> list[Any]:
        """ORDER BY, where it decides which rows there are."""
        if number_of(node, "limit") is None and not number_of(node, "offset"):
            return []
        found = []
        by_name = {name.casefold(): each for name, each in zip(shown, exprs)}
        for each in (node.args.get("order") or exp.Order(expressions=[])).expressions:
            each = each.copy()
            key = each.this
            if isinstance(key, exp.Column) and not key.table and key.name.casefold() in by_name:
                each.set("this", by_name[key.name.casefold()].copy())
            elif isinstance(key, exp.Literal) and not key.is_string:
                each.set("this", exprs[int(key.name) - 1].copy())
            else:
                aliases = set(by_name)
                if any(not one.table and one.name.casefold() in aliases for one in key.find_all(exp.Column)):
                    key = key.copy().transform(
                        lambda one: (
                            by_name[one.name.casefold()].copy()
                            if isinstance(one, exp.Column) and not one.table and one.name.casefold() in by_name
                            else one
                        )
                    )
                    each.set("this", self.windowed(self.rest(key, at), windows, at))
                else:
                    each.set("this", self.windowed(self.resolve_keeping(key, at), windows, at))
            found.append(each)
        return found

    # -- several queries -------------------------------------------------------------------------------------

    def _set_operation(self, node: exp.Expr) -> Out:
        if node.args.get("by_name"):
            raise NotUnderstood("UNION BY NAME")
        sides = [self.row_level(self.query(each), "it is part of a set") for each in (node.this, node.expression)]
        left, right = sides
        if len(left.columns) != len(right.columns):
            raise NotUnderstood("sets with different numbers of columns")
        names = [self.fresh(name) for name, _ in left.columns]
        types = [self.typer(each.op) for each in sides]
        wanted = [
            types[0][one] if types[0][one] == types[1][other] else None
            for (_, one), (_, other) in zip(left.columns, right.columns)
        ]
        if None in wanted:
            wanted = self._common(sides)
        parts: list[Op] = []
        for side, known in zip(sides, types):
            exprs: dict[str, exp.Expr] = {}
            for name, (_, inner), type in zip(names, side.columns, wanted):
                exprs[name] = column(inner) if known[inner] == type or type is None else cast_to(column(inner), type)
            is_distinct = bool(node.args.get("distinct"))
            keeps = isinstance(node, exp.Union) and not is_distinct
            carried = {name: column(name) for name in side.op.keys} if keeps else {}
            parts.append(Project(side.op, {**exprs, **carried}, side.op.keys if keeps else ()))
        shown = list(zip([name for name, _ in left.columns], names))
        if isinstance(node, exp.Union):
            if node.args.get("distinct"):
                return Out(Aggregate(Union(parts, self.fresh("side"), names, {}), tuple(names), {}), shown)
            keys = {name: types[place][name] for place, side in enumerate(sides) for name in side.op.keys}
            return Out(Union(parts, self.fresh("side"), names, keys), shown)
        word: Any = "EXCEPT" if isinstance(node, exp.Except) else "INTERSECT"
        number = "" if node.args.get("distinct") else self.fresh("number")
        return Out(SetOperation(parts[0], parts[1], word, names, number), shown)

    def _common(self, sides: list[Out]) -> list[pa.DataType]:
        """The types that the columns of a set have."""
        names = [self.fresh("common") for _ in sides[0].columns]
        parts: list[Op] = [
            Project(side.op, {name: column(inner) for name, (_, inner) in zip(names, side.columns)}, ())
            for side in sides
        ]
        found = self.typer(Union(parts, self.fresh("side"), names, {}))
        return [found[name] for name in names]
