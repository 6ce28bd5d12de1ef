"""What a view's SQL consists of once it is understood: operators over relations, and the nodes they are cut into.

Every column has a name of its own within a view, whichever table it comes from, so expressions name columns and
nothing else. `keys` identify a row: each operator says which of its columns do.

*Row-level* operators pass changes through (`Scan` to `Explode`). *Blocking* ones need all rows of a group, a partition
or a whole input (`Aggregate`, `Window`, `SetOperation`, `Top`). A node has at most one blocking operator, on top of
row-level ones, and only filters and projections above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
from sqlglot import exp

Rule = Literal["linear", "affected keys", "full"]


@dataclass(frozen=True, slots=True)
class Source:
    """A table or a view that can be read."""

    name: str
    names: tuple[str, ...]
    """The columns that a query may use."""
    key: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    """Of the columns, and of those of the key that no query sees."""


@dataclass(eq=False, slots=True)
class Scan:
    """A table, a view or another node. `columns` by the names used here."""

    relation: str
    columns: dict[str, str]
    keys: tuple[str, ...]

    @property
    def cols(self) -> list[str]:
        return list(self.columns)


@dataclass(eq=False, slots=True)
class Constant:
    """One row that reads no relation."""

    exprs: dict[str, exp.Expr]
    keys: tuple[str, ...]

    @property
    def cols(self) -> list[str]:
        return list(self.exprs)


@dataclass(eq=False, slots=True)
class Given:
    """A relation that is there already and does not change, as the keys that are affected."""

    name: str
    cols: list[str]
    keys: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class Filter:
    child: Op
    cond: exp.Expr

    @property
    def cols(self) -> list[str]:
        return self.child.cols

    @property
    def keys(self) -> tuple[str, ...]:
        return self.child.keys


@dataclass(eq=False, slots=True)
class Project:
    """`exprs` contain the keys, if anybody above needs them."""

    child: Op
    exprs: dict[str, exp.Expr]
    keys: tuple[str, ...]

    @property
    def cols(self) -> list[str]:
        return list(self.exprs)


@dataclass(eq=False, slots=True)
class Inner:
    """An inner join of any number, or the cross product."""

    children: list[Op]
    conds: list[exp.Expr]
    cols: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cols = self.cols or [name for each in self.children for name in each.cols]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(name for each in self.children for name in each.keys)


@dataclass(eq=False, slots=True)
class Left:
    """A left outer join."""

    left: Op
    right: Op
    on: exp.Expr
    is_unique: bool = False
    """Whether a row of the left side has at most one partner, so that its key is the row's."""
    cols: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cols = self.cols or [*self.left.cols, *self.right.cols]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.left.keys if self.is_unique else (*self.left.keys, *self.right.keys)


@dataclass(eq=False, slots=True)
class Semi:
    """The rows of the left side with a partner on the right, or without one."""

    left: Op
    right: Op
    on: exp.Expr
    is_anti: bool = False

    @property
    def cols(self) -> list[str]:
        return self.left.cols

    @property
    def keys(self) -> tuple[str, ...]:
        return self.left.keys


@dataclass(eq=False, slots=True)
class Only:
    """The rows whose columns `by` are among those of `given`; NULL is like NULL."""

    child: Op
    given: Given
    by: dict[str, str]

    @property
    def cols(self) -> list[str]:
        return self.child.cols

    @property
    def keys(self) -> tuple[str, ...]:
        return self.child.keys


@dataclass(eq=False, slots=True)
class Union:
    """UNION ALL of children with the same columns; `tag` says of which child a row is."""

    children: list[Op]
    tag: str
    columns: list[str]
    key_types: dict[str, pa.DataType]
    """The children's keys; a child that does not have one has NULL there."""

    @property
    def cols(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, *self.keys]))

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.tag, *self.key_types)


@dataclass(eq=False, slots=True)
class Explode:
    """A row for every element of an array or a map. `generator` gives the columns `names`; `at` counts them."""

    child: Op
    generator: exp.Expr
    at: str
    names: list[str]
    is_outer: bool

    @property
    def cols(self) -> list[str]:
        return [*self.child.cols, self.at, *self.names]

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.child.keys, self.at)


@dataclass(eq=False, slots=True)
class Aggregate:
    """Groups by columns of the child. Without `groups` there is always one row."""

    child: Op
    groups: tuple[str, ...]
    aggregates: dict[str, exp.Expr]
    one: str = ""
    """The name of the key of the one row."""

    @property
    def cols(self) -> list[str]:
        return [*(self.groups or (self.one,)), *self.aggregates]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.groups or (self.one,)


@dataclass(eq=False, slots=True)
class Window:
    """Adds columns that are computed from a row's partition."""

    child: Op
    partition: tuple[str, ...]
    exprs: dict[str, exp.Expr]

    @property
    def cols(self) -> list[str]:
        return [*self.child.cols, *self.exprs]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.child.keys


@dataclass(eq=False, slots=True)
class SetOperation:
    """EXCEPT or INTERSECT. `columns` are the result's; the children have them under the same names."""

    left: Op
    right: Op
    word: Literal["EXCEPT", "INTERSECT"]
    columns: list[str]
    number: str = ""
    """With ALL: the name of the column that counts equal rows."""

    @property
    def cols(self) -> list[str]:
        return [*self.columns, self.number] if self.number else self.columns

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.cols)


@dataclass(eq=False, slots=True)
class Top:
    """The first rows by an order."""

    child: Op
    order: list[exp.Expr]
    limit: int | None
    offset: int

    @property
    def cols(self) -> list[str]:
        return self.child.cols

    @property
    def keys(self) -> tuple[str, ...]:
        return self.child.keys


RowOp = Scan | Constant | Given | Filter | Project | Inner | Left | Semi | Only | Union | Explode
Blocking = Aggregate | Window | SetOperation | Top
Op = RowOp | Blocking
BLOCKING = (Aggregate, Window, SetOperation, Top)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """What an aggregate keeps: the sum of an expression's values, those that left counted as negative; or an extreme.

    `type` is that of the sum, or of the extreme.
    """

    name: str
    expr: exp.Expr
    type: pa.DataType
    how: Literal["sum", "min", "max"] = "sum"


@dataclass(eq=False, slots=True)
class Node:
    """A part of a view whose rows are stored. `name` is how others scan it."""

    name: str
    root: Op | None
    """None: the SQL is not understood, and computed in full."""
    columns: dict[str, str]
    """What is stored, by the names used in the node; the visible columns of a view first."""
    key: tuple[str, ...]
    """Of the stored names."""
    visible: int
    """So many of the columns, the first ones, are the view's."""
    rule: Rule
    why: str
    """Why the rule is this one."""
    sql: str = ""
    """Of a node that is not understood."""
    accumulators: list[Accumulator] = field(default_factory=list)
    count: str = ""
    """The accumulator that counts rows."""
    finals: dict[str, exp.Expr] = field(default_factory=dict)
    """What an aggregate gives, over its accumulators."""
    types: dict[str, pa.DataType] = field(default_factory=dict)
    """Of the stored columns."""
    inputs: frozenset[str] = frozenset()
    """What a node that is not understood reads."""
    apart: str = ""
    """Why it is stored by itself; empty for the view."""

    @property
    def reads(self) -> set[str]:
        if self.root is None:
            return set(self.inputs)
        return {each.relation for each in walk(self.root) if isinstance(each, Scan)}


@dataclass(frozen=True, slots=True)
class Plan:
    """A view: its nodes, each after those that it reads; the last one is the view."""

    nodes: list[Node]
    columns: list[str]
    inputs: set[str]
    """The tables and views it reads."""
    used: Mapping[str, frozenset[str]]
    """The columns it uses of each."""


def children(op: Op) -> list[Op]:
    match op:
        case Filter() | Project() | Explode() | Only() | Aggregate() | Window() | Top():
            return [op.child]
        case Left() | Semi() | SetOperation():
            return [op.left, op.right]
        case Inner() | Union():
            return list(op.children)
        case _:
            return []


def walk(op: Op) -> Iterator[Op]:
    yield op
    for each in children(op):
        yield from walk(each)


def expressions(op: Op) -> list[exp.Expr]:
    """What an operator computes, by itself."""
    match op:
        case Filter():
            return [op.cond]
        case Constant() | Project() | Window():
            return list(op.exprs.values())
        case Inner():
            return list(op.conds)
        case Left() | Semi():
            return [op.on]
        case Explode():
            return [op.generator]
        case Aggregate():
            return list(op.aggregates.values())
        case Top():
            return list(op.order)
        case _:
            return []


def blocking(op: Op) -> Blocking | None:
    """The blocking operator of a tree: below nothing but filters and projections."""
    while isinstance(op, Filter | Project):
        op = op.child
    return op if isinstance(op, BLOCKING) else None


def affected_by(block: Blocking | None) -> tuple[str, ...]:
    """The columns by which rows of a blocking operator hang together: those with the same values change together."""
    match block:
        case Aggregate():
            return block.groups
        case Window():
            return block.partition
        case SetOperation():
            return tuple(block.columns)
        case _:
            return ()


def stored_for(block: Blocking | None) -> tuple[str, ...]:
    """The columns that are stored because the next change needs them."""
    if isinstance(block, Top):
        return tuple(dict.fromkeys(name for each in block.order for name in sorted(names_in(each))))
    return affected_by(block)


def is_one_read(op: Op) -> bool:
    """Whether all rows of an operator are found by reading one relation."""
    while isinstance(op, Filter | Project):
        op = op.child
    return isinstance(op, Scan)


def column(name: str) -> exp.Expr:
    return exp.Column(this=exp.Identifier(this=name, quoted=True))


def names_in(node: exp.Expr) -> set[str]:
    """The columns that an expression uses."""
    return {each.name for each in node.find_all(exp.Column)}
