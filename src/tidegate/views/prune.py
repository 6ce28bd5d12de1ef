"""Leaves out the columns that nobody needs, from the last node of a view to its tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tidegate.views.operators import (
    Aggregate,
    Constant,
    Explode,
    Filter,
    Inner,
    Left,
    Node,
    Op,
    Project,
    Scan,
    Semi,
    SetOperation,
    Top,
    Union,
    Window,
    blocking,
    names_in,
    stored_for,
    walk,
)

T = TypeVar("T")


def prune(nodes: list[Node]) -> None:
    """Change the nodes of a view in place."""
    by_name = {each.name: each for each in nodes}
    wanted: dict[str, set[str]] = {each.name: set() for each in nodes}
    for place, node in enumerate(reversed(nodes)):
        if node.root is None:
            continue
        if place:  # The last is the view: it keeps what it shows.
            key = set(node.key)
            kept = {inner: stored for inner, stored in node.columns.items() if stored in wanted[node.name] | key}
            block = _partition(node)
            kept |= {inner: stored for inner, stored in node.columns.items() if inner in block}
            node.visible = sum(inner in kept for inner in list(node.columns)[: node.visible])
            node.columns = kept
        need: dict[int, set[str]] = {}
        _need(node.root, set(node.columns), need)
        _apply(node.root, need, set())
        for each in walk(node.root):
            if isinstance(each, Scan) and each.relation in by_name:
                wanted[each.relation] |= set(each.columns.values())


def _partition(node: Node) -> set[str]:
    return set() if node.root is None else set(stored_for(blocking(node.root)))


def _need(op: Op, wanted: set[str], need: dict[int, set[str]]) -> None:
    """Note what is wanted of an operator, and what it wants of its children."""
    mine = need.setdefault(id(op), set())
    before = len(mine)
    mine |= wanted & set(op.cols)
    if before and len(mine) == before:
        return
    match op:
        case Filter():
            _need(op.child, mine | names_in(op.cond), need)
        case Project():
            _need(op.child, {name for each in mine for name in names_in(op.exprs[each])}, need)
        case Inner():
            inside = mine | {name for each in op.conds for name in names_in(each)}
            for each in op.children:
                _need(each, inside, need)
        case Left() | Semi():
            inside = mine | names_in(op.on)
            # Rows of the left side are told apart by their keys.
            _need(op.left, inside | set(op.left.keys), need)
            _need(op.right, inside, need)
        case Union():
            for each in op.children:
                _need(each, mine | (set(op.key_types) & set(op.keys) & mine), need)
        case Explode():
            _need(op.child, mine | names_in(op.generator), need)
        case Aggregate():
            _need(
                op.child,
                {*op.groups, *(n for k in op.aggregates if k in mine for n in names_in(op.aggregates[k]))},
                need,
            )
        case Window():
            inside = {name for each in op.exprs.values() for name in names_in(each)}
            _need(op.child, mine | inside | set(op.partition), need)
        case SetOperation():
            _need(op.left, set(op.columns), need)
            _need(op.right, set(op.columns), need)
        case Top():
            _need(op.child, mine | {name for each in op.order for name in names_in(each)} | set(op.keys), need)


def _apply(op: Op, need: dict[int, set[str]], done: set[int]) -> None:
    if id(op) in done:
        return
    done.add(id(op))
    wanted = need.get(id(op), set())
    match op:
        case Scan():
            op.columns = _only(op.columns, wanted)
            op.keys = tuple(each for each in op.keys if each in op.columns)
        case Constant() | Project():
            op.exprs = _only(op.exprs, wanted)
            op.keys = tuple(each for each in op.keys if each in op.exprs)
        case Inner() | Left():
            op.cols = [each for each in op.cols if each in wanted]
        case Union():
            op.columns = [each for each in op.columns if each in wanted]
            op.key_types = {name: type for name, type in op.key_types.items() if name in wanted}
        case Aggregate():
            op.aggregates = _only(op.aggregates, wanted)
        case Window():
            op.exprs = _only(op.exprs, wanted)
    match op:
        case Filter() | Project() | Explode() | Aggregate() | Window() | Top():
            inside: Iterable[Op] = [op.child]
        case Left() | Semi() | SetOperation():
            inside = [op.left, op.right]
        case Inner() | Union():
            inside = op.children
        case _:
            inside = []
    for each in inside:
        _apply(each, need, done)


def _only(named: dict[str, T], wanted: set[str]) -> dict[str, T]:
    return {name: each for name, each in named.items() if name in wanted}
