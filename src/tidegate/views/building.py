"""What is known while a view is built: its names, its nodes, and the SELECT that is being read."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tidegate.tables.column_type import to_sql
from tidegate.tables.spark_sql import DIALECT
from tidegate.views.names import NotUnderstood as NotUnderstood
from tidegate.views.names import function_name, subqueries_in
from tidegate.views.nested_keys import as_text, is_nested
from tidegate.views.operators import (
    Aggregate,
    Filter,
    Inner,
    Left,
    Node,
    Op,
    Project,
    Scan,
    Semi,
    SetOperation,
    Source,
    blocking,
    column,
    names_in,
    stored_for,
)
from tidegate.views.rules import Typer, has_filter, linear_reason

OF_A_COLUMN: Final = frozenset({"avg", "count", "count_if", "max", "min", "sum"})
"""Aggregates that leave out NULLs, and that there is something to gain for when they are of a column."""
_PLAIN: Final = re.compile(r"\W+")


@dataclass(slots=True)
class Out:
    """A query: its operator, and its columns by the names that others know them by."""

    op: Op
    columns: list[tuple[str, str]]
    """Name, and name in the operator."""


Env = dict[str, dict[str, str]]
"""Sources by alias: the operator's columns by name."""


@dataclass(slots=True)
class Select:
    """A SELECT while it is built."""

    env: Env
    outer: Env
    op: Op
    links: list[exp.Expr] = field(default_factory=list)
    """Conditions that link it to the query around it."""
    hops: tuple[str, exp.Expr] | None = None
    """The call of `window` that it has, and what stands for it."""

    def shown(self, name: str) -> str:
        """The name that a query has for a column of the operator."""
        return next((known for each in self.env.values() for known, inner in each.items() if inner == name), name)


@dataclass(frozen=True, slots=True)
class Cte:
    """A query of a WITH."""

    query: exp.Expr
    sees: dict[str, Cte]
    """Those before it, where it stands: the same names may mean others where it is used."""
    meaning: int
    """The same number: the same rows."""


class Names(ABC):
    """The names and the nodes of one view. `nodes` are what must be stored before the last operator is computed.

    `relations` are by the names that the query has for them.
    """

    def __init__(
        self,
        relations: Mapping[str, Source],
        typer: Typer,
        node_name: Callable[[int], str],
        on_node: Callable[[Node], None],
    ) -> None:
        self.relations = dict(relations)
        self.typer = typer
        self.node_name = node_name
        self._on_node = on_node
        self.taken: set[str] = set()
        self.ctes: dict[str, Cte] = {}
        self.stored: dict[int, tuple[Node, Out]] = {}
        self._meanings: dict[tuple[object, ...], int] = {}
        self.nodes: list[Node] = []

    @abstractmethod
    def query(self, node: exp.Expr, outer: Env | None = None) -> Out:
        """Build a query; `outer` is what it may look at of the one around it."""

    @abstractmethod
    def select(self, node: exp.Expr, outer: Env) -> tuple[Out, Select]:
        """Build one SELECT; also how it stands to the query around it."""

    @abstractmethod
    def from_clause(self, node: exp.Expr, outer: Env) -> Select:
        """Build its FROM and WHERE alone."""

    # -- names -----------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        plain = _PLAIN.sub("_", hint).strip("_").lower() or "c"
        name, number = plain, 1
        while name in self.taken or name.startswith("_"):
            number += 1
            name = f"{plain}_{number}"
        self.taken.add(name)
        return name

    def resolve(self, node: exp.Expr, at: Select) -> exp.Expr:
        """An expression with its columns by the names of operators."""

        def replace(each: exp.Expr) -> exp.Expr:
            if isinstance(each, exp.Column) and not isinstance(each.this, exp.Star):
                return column(self.find(each, at))
            return each

        return node.copy().transform(replace)

    def find(self, node: exp.Column, at: Select) -> str:
        alias, name = node.table.casefold(), node.name.casefold()
        for env in (at.env, at.outer):
            if alias in env and name in env[alias]:
                return env[alias][name]
            if not alias:
                found = [each[name] for each in env.values() if name in each]
                if len(found) == 1:
                    return found[0]
        raise NotUnderstood(f"the column {node.sql()}")

    # -- queries ---------------------------------------------------------------------------------------------

    def cte(self, query: exp.Expr) -> Cte:
        """A query of a WITH, at the place where it is defined."""
        named = {each.name.casefold() for each in query.find_all(exp.Table)}
        seen = ((name, each.meaning) for name, each in sorted(self.ctes.items()) if name in named)
        meaning = self._meanings.setdefault((query.sql(), *seen), len(self._meanings))
        return Cte(query, self.ctes, meaning)

    def resolve_keeping(self, node: exp.Expr, at: Select) -> exp.Expr:
        """As `resolve`; what stands in subqueries is left as it is, and resolved when they are built."""
        kept = subqueries_in(node)
        if not kept:
            return self.resolve(node, at)

        def visit(each: exp.Expr) -> exp.Expr:
            if isinstance(each, exp.Query | exp.Subquery):
                return each
            if isinstance(each, exp.Column) and not isinstance(each.this, exp.Star):
                return column(self.find(each, at))
            for name, value in list(each.args.items()):
                if isinstance(value, exp.Expr):
                    each.set(name, visit(value))
                elif isinstance(value, list):
                    each.set(name, [visit(one) if isinstance(one, exp.Expr) else one for one in value])
            return each

        return visit(node.copy())

    def rest(self, node: exp.Expr, at: Select) -> exp.Expr:
        """Resolves those columns that are not resolved yet."""
        known = set(at.op.cols)

        def replace(each: exp.Expr) -> exp.Expr:
            if isinstance(each, exp.Column) and (each.table or each.name not in known):
                return column(self.find(each, at))
            return each

        return node.transform(replace)

    def plain_call(self, call: exp.Expr, made: dict[str, exp.Expr]) -> exp.Expr:
        """An aggregate of a column: what it is given is computed before, into `made`, FILTER as NULLs."""
        inner = call.this if isinstance(call, exp.Filter) else call
        if function_name(inner) not in OF_A_COLUMN or len(inner.expressions) != 1:
            return call
        arg = inner.expressions[0]
        if isinstance(arg, exp.Distinct) or (isinstance(call, exp.Filter) and isinstance(inner, exp.WithinGroup)):
            return call
        if isinstance(call, exp.Filter):
            kept = exp.Literal.number(1) if isinstance(arg, exp.Star) else arg.copy()
            arg = exp.Case(ifs=[exp.If(this=call.expression.this.copy(), true=kept)])
        elif isinstance(arg, exp.Column | exp.Star | exp.Literal):
            return call
        name = next((name for name, each in made.items() if each == arg), "")
        if not name:
            name = self.fresh("given")
            made[name] = arg
        return exp.Anonymous(this=inner.name, expressions=[column(name)])

    # -- nodes -----------------------------------------------------------------------------------------------

    def store(self, out: Out, why: str) -> Out:
        """Make a node of a query, and scan it."""
        out = self.apart(out)
        node = self.node_of(out, self.node_name(len(self.nodes) + 1), why, is_view=False)
        self.add(node)
        return self.scan_node(node, out)

    def add(self, node: Node) -> None:
        self.nodes.append(node)
        self._on_node(node)

    def scan_node(self, node: Node, out: Out) -> Out:
        names = {inner: self.fresh(inner) for inner in node.columns}
        stored = {node.columns[inner]: name for inner, name in names.items()}
        scan = Scan(node.name, {names[inner]: node.columns[inner] for inner in names}, ())
        scan.keys = tuple(stored[each] for each in node.key)
        return Out(scan, [(shown, names[inner]) for shown, inner in out.columns])

    def node_of(self, out: Out, name: str, why: str, *, is_view: bool, shown: Sequence[str] = ()) -> Node:
        """The node that stores a query. Its columns are the query's, then the rest of its key and its partition."""
        op = out.op
        visible = [inner for _, inner in out.columns]
        if len(set(visible)) != len(visible):
            op, visible = self._shown_once(op, visible)
        block = blocking(op)
        if isinstance(block, Aggregate | SetOperation):
            op = self._plain_keys(op)
        hidden = [each for each in (*op.keys, *stored_for(block)) if each not in visible]
        hidden = list(dict.fromkeys(hidden))
        need = [*visible, *hidden]
        if [*op.cols] != need:
            op = with_columns(op, need)
        stored = dict(zip(visible, shown)) if is_view else {each: each for each in visible}
        for number, each in enumerate(hidden):
            stored[each] = f"_k{number}" if is_view else each
        key = tuple(stored[each] for each in op.keys)
        return Node(name, op, stored, key, len(visible), "linear", "", apart=why)

    def _shown_once(self, op: Op, visible: Sequence[str]) -> tuple[Op, list[str]]:
        """With another name for each column that is shown twice; the names that are shown then."""
        need = list(dict.fromkeys((*visible, *op.keys, *stored_for(blocking(op)))))
        op = with_columns(op, need)
        exprs = {name: column(name) for name in need}
        shown: list[str] = []
        for each in visible:
            name = each
            if name in shown:
                name = self.fresh(each)
                exprs[name] = column(each)
            shown.append(name)
        return Project(op, exprs, op.keys), shown

    def _plain_keys(self, op: Op) -> Op:
        """With texts for the parts of its key that are nested."""
        types = self.typer(op)
        texts = {each: self.fresh("key") for each in op.keys if is_nested(types[each])}
        if not texts:
            return op
        exprs = {name: column(name) for name in op.cols}
        exprs |= {text: as_text(each, types[each]) for each, text in texts.items()}
        return Project(op, exprs, tuple(texts.get(each, each) for each in op.keys))

    def row_level(self, out: Out, why: str) -> Out:
        out = self.apart(out)
        return self.store(out, why) if blocking(out.op) is not None else out

    def apart(self, out: Out) -> Out:
        """A linear aggregate needs all of its groups, also those that HAVING leaves out: it is stored by itself."""
        block = blocking(out.op)
        if not isinstance(block, Aggregate) or not has_filter(out.op) or linear_reason(block, self.typer):
            return out
        stored = self.store(Out(block, [(each, each) for each in block.cols]), "HAVING leaves groups out of it")
        names = dict(zip(block.cols, [inner for _, inner in stored.columns]))
        known = {inner: each for each, inner in names.items()}
        # The key of what is stored may be texts of the groups.
        keys = tuple(known.get(each, each) for each in stored.op.keys)
        texts = {each: column(each) for each in stored.op.keys if each not in known}
        base = Project(stored.op, {**{each: column(names[each]) for each in block.cols}, **texts}, keys)

        def above(op: Op) -> Op:
            if op is block:
                return base
            if isinstance(op, Filter):
                return Filter(above(op.child), op.cond)
            if isinstance(op, Project):
                return Project(above(op.child), {**op.exprs, **texts}, keys if texts else op.keys)
            raise NotUnderstood(type(op).__name__)

        return Out(above(out.op), out.columns)


def by_name(out: Out) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, inner in out.columns:
        found.setdefault(name.casefold(), inner)
    return found


def inner_join(group: list[Op], conds: list[exp.Expr]) -> Op:
    """An inner join. Conditions of one side go to that side, also below an outer join that keeps its rows."""
    rest = []
    group = list(group)
    for cond in conds:
        names = names_in(cond)
        for place, each in enumerate(group):
            if names and names <= set(each.cols):
                group[place] = filtered(each, cond)
                break
        else:
            rest.append(cond)
    if len(group) == 1:
        found = group[0]
        for cond in rest:
            found = Filter(found, cond)
        return found
    flat: list[Op] = []
    for each in group:
        if isinstance(each, Inner):
            flat += each.children
            rest += each.conds
        else:
            flat.append(each)
    return Inner(flat, rest)


def filtered(op: Op, cond: exp.Expr) -> Op:
    names = names_in(cond)
    if isinstance(op, Left) and names <= set(op.left.cols):
        return Left(filtered(op.left, cond), op.right, op.on, op.is_unique)
    if isinstance(op, Semi):
        return Semi(filtered(op.left, cond), op.right, op.on, op.is_anti)
    if isinstance(op, Inner):
        return inner_join(op.children, [*op.conds, cond])
    return Filter(op, cond)


def with_columns(op: Op, need: Sequence[str]) -> Op:
    """The columns of an operator in an order."""
    if isinstance(op, Project):
        exprs = {name: op.exprs[name] if name in op.exprs else column(name) for name in need}
        if all(name in op.exprs or name in op.child.cols for name in need):
            return Project(op.child, exprs, op.keys)
    return Project(op, {name: column(name) for name in need}, op.keys)


def is_resolved(node: exp.Expr, at: Select) -> bool:
    known = set(at.op.cols)
    return all(not each.table and each.name in known for each in node.find_all(exp.Column))


def is_cut(node: exp.Expr) -> bool:
    return any(node.args.get(each) for each in ("limit", "offset"))


def number_of(node: exp.Expr, name: str) -> int | None:
    given = node.args.get(name)
    if given is None:
        return None
    number = given.expression
    if isinstance(number, exp.Var) and number.name.upper() == "ALL":
        return None
    if not isinstance(number, exp.Literal) or not number.name.isdigit():
        raise NotUnderstood(f"{name.upper()} {number.sql()}")
    return int(number.name)


def null_of(type: pa.DataType) -> exp.Expr:
    return cast_to(exp.null(), type)


def cast_to(node: exp.Expr, type: pa.DataType) -> exp.Expr:
    return exp.cast(node, to_sql(type), dialect=DIALECT)
