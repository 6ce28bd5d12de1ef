"""FROM and WHERE: sources, joins and generators as row-level operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlglot import exp

from tidegate.views.building import Env, Names, NotUnderstood, Out, Select, by_name, inner_join, null_of
from tidegate.views.names import conjuncts, subqueries_in
from tidegate.views.operators import Constant, Explode, Left, Op, Project, Scan, Semi, Union, blocking, column, names_in
from tidegate.views.own_names import hangs_on
from tidegate.views.subqueries import Subqueries

GENERATORS: Final = frozenset({"explode", "explode_outer", "posexplode", "posexplode_outer"})


class FromClause(Names):
    """Builds what stands before SELECT's own columns."""

    def _source(self, node: exp.Expr) -> tuple[str, Out]:
        """What stands in FROM: its alias and its operator."""
        match node:
            case exp.Table() if isinstance(node.this, exp.Identifier):
                if hangs_on(node) or (node.args.get("alias") or exp.TableAlias()).args.get("columns"):
                    raise NotUnderstood(f"{node.sql()} in FROM")
                name = node.name.casefold()
                if name in self.ctes and not node.args.get("db"):
                    return node.alias_or_name.casefold(), self._cte(name)
                return node.alias_or_name.casefold(), self._scan(name)
            case exp.Subquery():
                columns = (node.args.get("alias") or exp.TableAlias()).args.get("columns")
                inner = node.copy()
                inner.set("alias", None)
                out = self.query(inner)
                if columns:
                    out = Out(out.op, [(new.name, at) for new, (_, at) in zip(columns, out.columns, strict=True)])
                return node.alias_or_name.casefold(), out
            case exp.Values():
                return node.alias_or_name.casefold(), self.values(node)
            case _:
                raise NotUnderstood(f"{type(node).__name__} in FROM")

    def _scan(self, name: str) -> Out:
        relation = self.relations.get(name)
        if relation is None:
            raise NotUnderstood(f"the table {name}")
        names = {self.fresh(f"{relation.name}_{each}"): each for each in relation.types}
        by_source = {source: inner for inner, source in names.items()}
        keys = tuple(by_source[each] for each in relation.key)
        return Out(Scan(relation.name, names, keys), [(each, by_source[each]) for each in relation.names])

    def _cte(self, name: str) -> Out:
        """A WITH that blocks is stored once, however often it is used."""
        cte = self.ctes[name]
        if cte.meaning in self.stored:
            return self.scan_node(*self.stored[cte.meaning])
        outside, self.ctes = self.ctes, cte.sees
        try:
            out = self.apart(self.query(cte.query))
        finally:
            self.ctes = outside
        if blocking(out.op) is None:
            return out
        node = self.node_of(out, self.node_name(len(self.nodes) + 1), f"WITH {name}", is_view=False)
        self.add(node)
        self.stored[cte.meaning] = node, out
        return self.scan_node(node, out)

    def values(self, node: exp.Expr) -> Out:
        alias = node.args.get("alias")
        names = [each.name for each in (alias.args.get("columns") or [])] if alias else []
        rows = [each.expressions if isinstance(each, exp.Tuple) else [each] for each in node.expressions]
        width = len(rows[0])
        names = names or [f"col{number + 1}" for number in range(width)]
        inner = [self.fresh(each) for each in names]
        parts: list[Op] = [Constant(dict(zip(inner, row, strict=True)), ()) for row in rows]
        return Out(Union(parts, self.fresh("row"), inner, {}), list(zip(names, inner)))

    def from_clause(self, node: exp.Expr, outer: Env) -> Select:
        given = node.args.get("from_")
        if given is None:
            one = self.fresh("one")
            return Select({}, outer, Constant({one: exp.Literal.number(0)}, (one,)))
        alias, out = self._source(given.this)
        out = self.row_level(out, "it is read with others, or once more")
        at = Select({alias: by_name(out)}, outer, out.op)
        group: list[Op] = [out.op]
        conds: list[exp.Expr] = []
        for join in node.args.get("joins") or []:
            alias, out = self._source(join.this)
            out = self.row_level(out, "it is joined")
            side, kind = join.side.upper(), join.kind.upper()
            if join.args.get("using") or join.args.get("method") or alias in at.env:
                raise NotUnderstood(f"the join {join.sql()}")
            columns = by_name(out)
            both = Select({**at.env, alias: columns}, outer, at.op)
            on = join.args.get("on")
            if on is not None and subqueries_in(on):
                raise NotUnderstood("a subquery in ON")
            cond = exp.true() if on is None else self.resolve(on, both)
            if kind in ("SEMI", "ANTI"):
                group, conds = [Semi(inner_join(group, conds), out.op, cond, kind == "ANTI")], []
                continue
            at.env = both.env
            match side:
                case "":
                    group.append(out.op)
                    conds += [] if on is None else conjuncts(cond)
                case "LEFT":
                    group, conds = [Left(inner_join(group, conds), out.op, cond)], []
                case "RIGHT":
                    group, conds = [Left(out.op, inner_join(group, conds), cond)], []
                case "FULL":
                    group, conds = [self._full(inner_join(group, conds), out.op, cond)], []
                case _:
                    raise NotUnderstood(f"a {side} {kind} JOIN")
        where = node.args.get("where")
        plain: list[exp.Expr] = []
        later: list[exp.Expr] = []
        for each in conjuncts(where.this if where else None):
            (later if subqueries_in(each) else plain).append(each)
        for each in plain:
            cond = self.resolve(each, at)
            here = {name for one in group for name in one.cols}
            if names_in(cond) <= here:
                conds.append(cond)
            else:
                at.links.append(cond)
        at.op = inner_join(group, conds)
        for lateral in node.args.get("laterals") or []:
            self._lateral(lateral, at)
        if at.links and node.args.get("laterals"):
            raise NotUnderstood("a LATERAL VIEW in a subquery")
        for each in later:
            Subqueries(self, at).condition(each)
        return at

    def _full(self, left: Op, right: Op, on: exp.Expr) -> Op:
        """A full join: the left join, and the rows of the right side that have no partner."""
        types = self.typer(left) | self.typer(right)
        alone: dict[str, exp.Expr] = {name: null_of(types[name]) for name in left.cols}
        alone |= {name: column(name) for name in right.cols}
        both = Left(left, right, on)
        parts: list[Op] = [both, Project(Semi(right, left, on, True), alone, right.keys)]
        keys = {name: types[name] for name in both.keys}
        return Union(parts, self.fresh("side"), [*left.cols, *right.cols], keys)

    def _lateral(self, node: exp.Expr, at: Select) -> None:
        function = node.this
        name = function.name.lower() if isinstance(function, exp.Anonymous) else ""
        if name not in GENERATORS:
            raise NotUnderstood(f"LATERAL VIEW {function.sql()[:40]}")
        alias = node.args["alias"]
        given = [each.name for each in alias.args.get("columns") or []]
        counts, made = self.explode(function, given, bool(node.args.get("outer")), at)
        shown = given if given else (["pos", "col"] if counts else ["col"])
        at.env = {**at.env, alias.name.casefold(): dict(zip((each.casefold() for each in shown), made))}

    def explode(self, function: Any, given: Sequence[str], outer: bool, at: Select) -> tuple[bool, list[str]]:
        """Put a generator on top; whether it shows the position, and the columns it makes."""
        name = function.name.lower()
        counts = name.startswith("pos")
        arg = self.resolve(function.expressions[0], at)
        width = max(len(given) - counts, 1)
        names = [self.fresh(each) for each in (given[counts:] or ["col"] * width)]
        place = self.fresh("pos")
        generator = exp.Anonymous(this="posexplode", expressions=[arg])
        at.op = Explode(at.op, generator, place, names, outer or name.endswith("_outer"))
        return counts, [place, *names] if counts else names
