"""GROUP BY, HAVING and windows: the parts of a SELECT that block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlglot import exp

from tidegate.views import sessions
from tidegate.views.building import NotUnderstood, Out, Select, is_resolved, null_of
from tidegate.views.distinct import in_two
from tidegate.views.from_clause import FromClause
from tidegate.views.grouping import grouping_sets, set_id, with_grouping
from tidegate.views.names import NotGrouped, aggregates_in, is_aggregate, subqueries_in, window_function, windows_in
from tidegate.views.operators import Aggregate, Explode, Filter, Op, Project, Union, Window, blocking, column, names_in
from tidegate.views.ties import settled
from tidegate.views.time_windows import check_time, hops, hops_in


class GroupClause(FromClause):
    """Builds aggregates and windows."""

    def aggregate(self, node: exp.Expr, every: list[exp.Expr], at: Select) -> list[exp.Expr]:
        """Group; what stood over the rows then stands over the groups."""
        group = node.args.get("group")
        given = [] if group is None else list(group.expressions)
        if group is not None and (group.args.get("all") or group.args.get("totals")):
            if any(not isinstance(each, exp.Alias) for each in node.expressions):
                raise NotUnderstood("GROUP BY ALL")
            given = [each.this.copy() for each in node.expressions if not aggregates_in(each)]
        flat, sets = grouping_sets(group, given)
        if any(subqueries_in(each) for each in flat):
            raise NotUnderstood("a subquery in GROUP BY")
        groups = [self.rest(each.copy(), at) if not is_resolved(each, at) else each for each in flat]
        groups, every = self.time_windows(groups, at), self.time_windows(every, at)
        if any(sessions.is_session(each) for each in groups):
            if sets is not None:
                raise NotUnderstood("session_window() in GROUPING SETS")
            groups, every = self._sessions(groups, every, at)
        elif sets is None:
            _check_shown(every[: len(node.expressions)], groups, at)
        made: dict[str, exp.Expr] = {}
        names: list[str] = []
        for each in groups:
            if isinstance(each, exp.Column):
                name = each.name
            else:
                name = self.fresh("group")
            names.append(name)
            made[name] = each
        calls: dict[str, exp.Expr] = {}
        by_text: dict[str, str] = {}

        def replaced(each: exp.Expr) -> exp.Expr:
            for name, expr in zip(names, groups, strict=True):
                if each == expr:
                    return column(name)
            if is_aggregate(each):
                if sets is not None and (found := with_grouping(each, groups, sets, "grouping_id_")) is not None:
                    return found
                key = each.sql()
                if key not in by_text:
                    by_text[key] = self.fresh(each.this.name if isinstance(each.this, exp.Expr) else each.name)
                    calls[by_text[key]] = each
                return column(by_text[key])
            if isinstance(each, exp.Column):
                raise NotUnderstood(f"the column {each.name}, which is not grouped by")
            if isinstance(each, exp.Query | exp.Subquery):
                return each
            copy = each.copy()
            window = copy if isinstance(copy, exp.Window) else None
            for key, value in list(copy.args.items()):
                if window is not None and key == "this":
                    function = window_function(window)
                    for inner_key, inner in list(function.args.items()):
                        if isinstance(inner, list):
                            function.set(
                                inner_key, [replaced(one) if isinstance(one, exp.Expr) else one for one in inner]
                            )
                        elif isinstance(inner, exp.Expr):
                            function.set(inner_key, replaced(inner))
                elif isinstance(value, exp.Expr):
                    copy.set(key, replaced(value))
                elif isinstance(value, list):
                    copy.set(key, [replaced(one) if isinstance(one, exp.Expr) else one for one in value])
            return copy

        after = [replaced(each) for each in every]
        for shown, inner in _links(after, at):
            if sets is not None:
                raise NotUnderstood("a subquery that is linked to grouping sets")
            if inner not in names:
                raise NotGrouped(shown)
        given_to: dict[str, exp.Expr] = {}
        calls = {name: self.plain_call(each, given_to) for name, each in calls.items()}
        used = {name for each in calls.values() for name in names_in(each)}
        child = at.op
        if blocking(child) is not None:
            raise NotUnderstood("an aggregate of what blocks")
        exprs = {**{name: given_to.get(name, column(name)) for name in sorted(used) if name not in made}, **made}
        # The tag says of which grouping set a row is.
        if sets is None:
            rows = Project(child, exprs, ())
            in_parts = None if names else in_two(self, rows, calls)
            at.op = in_parts or Aggregate(rows, tuple(dict.fromkeys(names)), calls, self.fresh("one"))
            return after
        types = self.typer(Project(child, made, ()))
        parts: list[Op] = []
        mine = {name: self.fresh(f"grouped_{name}") for name in dict.fromkeys(names)}
        tag = self.fresh("grouping_id_")
        width = len(names)
        for chosen in sets:
            bits = set_id(chosen, width)
            row: dict[str, exp.Expr] = {name: given_to.get(name, column(name)) for name in exprs if name in used}
            row |= {
                mine[name]: made[name].copy() if place in chosen else null_of(types[name])
                for place, name in enumerate(names)
            }
            row[tag] = exp.cast(exp.Literal.number(bits), "BIGINT")
            parts.append(Project(child, row, ()))
        columns = [*(name for name in exprs if name in used), *mine.values(), tag]
        which = self.fresh("which")
        op = Union(parts, which, columns, {})
        at.op = Aggregate(op, (*mine.values(), tag, which), calls)

        def renamed(each: exp.Expr) -> exp.Expr:
            if isinstance(each, exp.Column):
                if each.name == "grouping_id_":
                    return column(tag)
                if each.name in mine:
                    return column(mine[each.name])
            return each

        return [each.transform(renamed) for each in after]

    def time_windows(self, exprs: list[exp.Expr], at: Select) -> list[exp.Expr]:
        """Rows for the windows of time they lie in; expressions with those windows for the calls."""
        calls = {one.sql(): one for each in exprs for one in hops_in(each)}
        if not calls:
            return exprs
        if len(calls | ({} if at.hops is None else {at.hops[0]: None})) > 1:
            raise NotUnderstood("two windows of time in one SELECT")
        ((text, call),) = calls.items()
        if at.hops is None:
            found = hops(call)
            time = self.fresh("time")
            check_time(self.typer(Project(at.op, {time: found.time.copy()}, ()))[time])
            number = None
            if found.count > 1:
                number, place = self.fresh("hop"), self.fresh("pos")
                at.op = Explode(at.op, found.numbers(), place, [number], False)
            at.op = Filter(at.op, found.condition(number))
            at.hops = text, found.struct(number)
        struct = at.hops[1]
        found_exprs = []
        for each in exprs:
            holder = exp.Paren(this=each.copy())
            for one in hops_in(holder):
                one.replace(struct.copy())
            found_exprs.append(holder.this)
        return found_exprs

    def _sessions(
        self, groups: list[exp.Expr], every: list[exp.Expr], at: Select
    ) -> tuple[list[exp.Expr], list[exp.Expr]]:
        """Number the sessions of rows; what is grouped by, and what is shown, with that."""
        (call,) = [each for each in groups if sessions.is_session(each)]
        others = [each for each in groups if not sessions.is_session(each)]
        gap, time = sessions.gap_of(call), self.fresh("time")
        named = {each.name if isinstance(each, exp.Column) else self.fresh("group"): each for each in others}
        check_time(self.typer(Project(at.op, {time: call.expressions[0].copy()}, ()))[time])
        exprs = {**{name: column(name) for name in at.op.cols}, **named, time: sessions.micros(call.expressions[0])}
        rows = Project(at.op, exprs, at.op.keys)
        at.op = Filter(rows, exp.Not(this=exp.Is(this=column(time), expression=exp.null())))

        def over_names(each: exp.Expr) -> exp.Expr:
            for name, known in named.items():
                if each == known:
                    return column(name)
            return each

        every = [sessions.written_out(each.transform(over_names), time, gap) for each in every]
        # The columns are stored twice on the way, and have other names after that.
        used = {name for each in every for name in names_in(each)} & set(at.op.cols)
        carried = list(dict.fromkeys((*named, time, *at.op.keys, *sorted(used))))
        keys, now = at.op.keys, {each: each for each in carried}

        def renamed(found: list[exp.Expr]) -> exp.Expr:
            for old, new in zip(carried, found[1:], strict=True):
                now[old] = new.name
            return found[0]

        begun = renamed(self.windows([sessions.begins(time, list(named), keys, gap), *map(column, carried)], at))
        among, order = [now[each] for each in named], [now[each] for each in (time, *keys)]
        count = sessions.number(begun, among, order)
        count = renamed(self.windows([count, *(column(now[each]) for each in carried)], at))
        listed = [count, *(column(now[each]) for each in carried)]
        at.op, rename = self._stored_here(at.op, {name for each in listed for name in names_in(each)})
        count = renamed([each.transform(rename) for each in listed])

        def over_now(each: exp.Expr) -> exp.Expr:
            return column(now[each.name]) if isinstance(each, exp.Column) and each.name in now else each

        return [*(column(now[each]) for each in named), count], [each.transform(over_now) for each in every]

    def windowed(self, node: exp.Expr, windows: dict[str, Any], at: Select) -> exp.Expr:
        """With named windows written out."""

        def replace(each: exp.Expr) -> exp.Expr:
            if isinstance(each, exp.Window) and (name := each.args.get("alias")) is not None:
                named = windows.get(name.name.casefold())
                if named is None:
                    raise NotUnderstood(f"the window {name.name}")
                each = each.copy()
                each.set("alias", None)
                for key in ("partition_by", "order", "spec"):
                    if each.args.get(key) is None and named.args.get(key) is not None:
                        value = named.args[key]
                        if isinstance(value, list):
                            each.set(key, [self.resolve(one, at) for one in value])
                        else:
                            each.set(key, self.resolve(value, at))
            return each

        return node.transform(replace) if windows else node

    def windows(self, exprs: list[exp.Expr], at: Select) -> list[exp.Expr]:
        """Compute windows, those of one partition together; each expression then names their columns."""
        found: dict[str, exp.Expr] = {}
        for each in exprs:
            for window in windows_in(each):
                found.setdefault(window.sql(), window)
        if blocking(at.op) is not None:
            at.op, rename = self._stored_here(at.op, {n for w in [*found.values(), *exprs] for n in names_in(w)})
            exprs = [each.transform(rename) for each in exprs]
            found = {}
            for each in exprs:
                for window in windows_in(each):
                    found.setdefault(window.sql(), window)
        names: dict[str, str] = {}
        for number in range(len({_partition_of(each) for each in found.values()})):
            if number:
                need = {n for each in exprs for n in names_in(each)} | set(names.values())
                at.op, rename = self._stored_here(at.op, need)
                exprs = [each.transform(rename) for each in exprs]
                names = {text: rename(column(name)).name for text, name in names.items()}
            done = {one.sql(): one for each in exprs for one in windows_in(each)}
            # Windows are found again: their text may name other columns by now.
            first = next(iter(done.values()))
            todo = [one for one in done.values() if _partition_of(one) == _partition_of(first)]
            computed: dict[str, exp.Expr] = {}
            partition = []
            for one in first.args.get("partition_by") or []:
                name = one.name if isinstance(one, exp.Column) else self.fresh("part")
                partition.append(name)
                if not isinstance(one, exp.Column):
                    computed[name] = one
            if computed:
                base = {name: column(name) for name in at.op.cols}
                at.op = Project(at.op, {**base, **computed}, at.op.keys)
            made: dict[str, exp.Expr] = {}
            mapping: dict[str, str] = {}
            for one in todo:
                name = self.fresh("window")
                mapping[one.sql()] = names[one.sql()] = name
                made[name] = one.copy()
                made[name].set("partition_by", [column(each) for each in dict.fromkeys(partition)])
                settled(made[name], at.op.keys)
            at.op = Window(at.op, tuple(dict.fromkeys(partition)), made)
            exprs = [
                each.transform(
                    lambda x, m=mapping: column(m[x.sql()]) if isinstance(x, exp.Window) and x.sql() in m else x
                )
                for each in exprs
            ]
        return exprs

    def _stored_here(self, op: Op, need: set[str]) -> tuple[Op, Callable[[exp.Expr], exp.Expr]]:
        """Store an operator's columns, and scan them; how their names have changed."""
        chosen = [name for name in op.cols if name in need or name in op.keys]
        out = Out(op, [(name, name) for name in chosen])
        stored = self.store(out, "windows are computed over it")
        names = dict(zip(chosen, [inner for _, inner in stored.columns]))

        def rename(each: exp.Expr) -> exp.Expr:
            return column(names[each.name]) if isinstance(each, exp.Column) and each.name in names else each

        return stored.op, rename


def _check_shown(shown: list[exp.Expr], groups: list[exp.Expr], at: Select) -> None:
    """Raises: `NotGrouped` for a column that no group has, where it stands by itself or in arithmetic: what is given
    to a function may be given to an aggregate that nobody knows."""
    grouped = {name for each in groups for name in names_in(each)}
    found = list(shown)
    while found:
        each = found.pop()
        if isinstance(each, exp.Column) and each.name in at.op.cols and each.name not in grouped:
            raise NotGrouped(at.shown(each.name))
        if isinstance(each, exp.Binary | exp.Paren | exp.Neg | exp.Cast):
            found += [one for one in each.iter_expressions() if not isinstance(one, exp.DataType)]


def _links(exprs: list[exp.Expr], at: Select) -> Iterator[tuple[str, str]]:
    """The columns of a SELECT that its subqueries look at: how it calls them, and their names in the operator."""
    for query in (one for each in exprs for one in subqueries_in(each)):
        inside = {each.alias_or_name.casefold() for each in query.find_all(exp.Table, exp.Subquery, exp.Values)}
        for each in query.find_all(exp.Column):
            known = {} if each.table.casefold() in inside else at.env.get(each.table.casefold(), {})
            if (inner := known.get(each.name.casefold())) is not None:
                yield each.name, inner


def _partition_of(window: exp.Expr) -> tuple[str, ...]:
    return tuple(sorted(each.sql() for each in window.args.get("partition_by") or []))
