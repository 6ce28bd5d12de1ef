"""`define`: whether a query can be a view, and what the catalog must know of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidegate.errors import InvalidArgument
from tidegate.reads.translate import NeedsSpark, translate
from tidegate.tables.definition import ColumnDef, NodeDef
from tidegate.tables.schema import OP, SEQ, TS
from tidegate.views.definition import Relation
from tidegate.views.delta import full
from tidegate.views.operators import Node, Plan, Source
from tidegate.views.plan import Translator, plan

FORMAT: Final = 1
"""Of the plans: raised when what nodes store, or how it follows from a query, changes."""
SHARD: Final = OP
"""How the number of a row's shard is called: no column can have that name, and rows that are only added do not need
it."""
ROW_KEY: Final = {TS: pa.int64(), SEQ: pa.int64(), SHARD: pa.int32()}
"""What tells the rows of a table apart that has no key."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A query that can be a view."""

    columns: list[str]
    nodes: list[NodeDef]
    inputs: dict[str, tuple[int, int]]
    used: dict[str, frozenset[str]]


def define(
    sql: str, names: Sequence[str], relations: Mapping[str, Relation], translator: Translator = translate
) -> Definition:
    """`names` are for its columns; none: as the query calls them. `translator` also knows what only Spark can compute.

    Raises: `InvalidArgument` for what cannot be a view, naming it; `NotFound` for what it names and is not there.
    """
    try:
        found = planned(sql, names, relations, translator=translator)
    except NeedsSpark as error:
        what = str(error).partition(" is answered by Spark alone")[0]
        raise InvalidArgument(f"a view cannot have {what}; write it in another way, or store what it gives") from None
    shown = {
        name: frozenset(each for each in columns if each in relations[name].schema.names)
        for name, columns in found.used.items()
    }
    inputs = {name: (relations[name].id, relations[name].version) for name in sorted(found.inputs)}
    return Definition(found.columns, [node_def(each) for each in found.nodes], inputs, shown)


def planned(
    sql: str,
    names: Sequence[str],
    relations: Mapping[str, Relation],
    name: str = "view",
    translator: Translator = translate,
) -> Plan:
    """The plan of a view; its nodes are called after `name`."""
    sources = {each.name: source(each) for each in relations.values()}
    return plan(sql, sources, name=name, names=names, translator=translator)


def source(relation: Relation) -> Source:
    if relation.key:
        return Source(relation.name, tuple(relation.names), relation.key, relation.types)
    return Source(relation.name, tuple(relation.names), tuple(ROW_KEY), {**relation.types, **ROW_KEY})


def node_def(node: Node) -> NodeDef:
    columns = [ColumnDef(name, node.types[name], True) for name in node.columns.values()]
    hidden = len(columns) - node.visible
    return NodeDef(tuple(columns), node.key, hidden)


def signature(found: Plan) -> str:
    """Of what its nodes store: rows that were made by another plan are made anew."""
    text = "\n".join(f"{each.name} {full(each)} {each.key} {sorted(each.columns.values())}" for each in found.nodes)
    return hashlib.sha256(f"{FORMAT}\n{text}".encode()).hexdigest()[:16]
