"""Which columns a query holds to one value each: `WHERE id = 7 AND ...` over one table.

Rows with other values never reach such a query, whatever else it says, so whoever reads the table for it may leave
them out. Found only where that is plain: one table, read once, and comparisons of its columns with literals of whole
numbers and texts, joined by AND.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
from sqlglot import exp

from tidegate.reads import literals
from tidegate.reads.sources import Schemas, is_generator
from tidegate.reads.spark_types import STRING, NeedsSpark, Typed, is_integer

Value = int | str


class Pinned(NamedTuple):
    """The columns of a table that can have one value only."""

    table: str
    values: Mapping[str, Value]


def pinned(tree: exp.Expr, schemas: Schemas) -> Pinned | None:
    """What a query that was translated pins; None: nothing that is plain."""
    where = tree.args.get("where")
    if not isinstance(tree, exp.Select) or where is None or tree.args.get("with_"):
        return None
    if tree.args.get("joins") or tree.args.get("laterals") or tree.args.get("from_") is None:
        return None
    table = tree.args["from_"].this
    if not isinstance(table, exp.Table) or sum(1 for _ in tree.find_all(exp.Table)) != 1:
        return None
    # What a generator makes has names of its own.
    if any(is_generator(each) for each in tree.find_all(exp.Anonymous)):
        return None
    name = ".".join(each.name for each in table.parts)
    alias = table.args.get("alias")
    schema = schemas.get(name)
    if schema is None or (alias is not None and alias.args.get("columns")):
        return None
    called = ((alias.name if alias is not None else "") or name.rsplit(".", 1)[-1]).casefold()
    values: dict[str, Value] = {}
    for each in _conjuncts(where.this):
        found = _equality(each, called, schema)
        if found is not None:
            values.setdefault(*found)
    return Pinned(name, values) if values else None


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    match node:
        case exp.And():
            yield from _conjuncts(node.this)
            yield from _conjuncts(node.expression)
        case exp.Paren():
            yield from _conjuncts(node.this)
        case _:
            yield node


def _equality(node: exp.Expr, called: str, schema: pa.Schema) -> tuple[str, Value] | None:
    """The column and the value of `column = literal`, in either order."""
    if type(node) is not exp.EQ:
        return None
    for one, other in ((node.this, node.expression), (node.expression, node.this)):
        if not isinstance(one, exp.Column) or isinstance(one.this, exp.Star):
            continue
        parts = [each.name.casefold() for each in one.parts]
        if len(parts) > 2 or (len(parts) == 2 and parts[0] != called):
            return None  # A field of a struct, perhaps.
        columns = [each for each in schema if each.name.casefold() == parts[-1]]
        literal = _literal(other)
        if len(columns) != 1 or literal is None:
            return None
        return (columns[0].name, literal.value) if _fits(literal, columns[0].type) else None
    return None


def _literal(node: exp.Expr) -> Typed | None:
    while isinstance(node, exp.Paren):
        node = node.this
    sign = ""
    if isinstance(node, exp.Neg):
        sign, node = "-", node.this
    try:
        if isinstance(node, exp.Literal) and not (sign and node.is_string):
            return literals.literal(sign + node.name, bool(node.is_string))
        if isinstance(node, exp.Cast) and not node.meta.get("explicit") and isinstance(node.this, exp.Literal):
            return literals.typed_literal(node.this, literals.type_of(node.args["to"]), sign)
    except NeedsSpark:
        pass
    return None


def _fits(literal: Typed, type: pa.DataType) -> bool:
    """Whether a column has the value exactly where it equals the literal, with no conversion that loses anything."""
    if type == pa.string():
        return isinstance(literal.value, str) and bool(literal.type == STRING)
    if not is_integer(type) or not is_integer(literal.type) or not isinstance(literal.value, int):
        return False
    half = 1 << (type.bit_width - 1)
    return bool(-half <= literal.value < half)
