"""The change of a view's node, written as SQL and computed step by step.

Of every operator there are three texts: `same`, the rows that did not change; `delta`, those that did, with the weight
-1 as they were and 1 as they are; `after`, the rows as they are. Row-level operators make theirs of their children's;
every step that joins is computed at once, so that an empty one ends the work that hangs on it.

For a blocking operator the change of its input says which groups, partitions or rows are *affected*: those are taken
from what is stored and computed anew. A *linear* aggregate adds the change to what is stored. Extremes and first rows
are merged with the change, and computed anew where one of them was taken away.
"""

from __future__ import annotations

from typing import Protocol

from sqlglot import exp

from tidegate.views import accumulate, first_rows, write
from tidegate.views.operators import (
    Aggregate,
    Blocking,
    Constant,
    Explode,
    Filter,
    Given,
    Inner,
    Left,
    Node,
    Only,
    Op,
    Project,
    Scan,
    Semi,
    SetOperation,
    Top,
    Union,
    Window,
    affected_by,
    blocking,
    column,
)
from tidegate.views.write import NO_WEIGHT, W, beside_weight, listed, quoted, same


class Computer(Protocol):
    """Computes SQL over relations: of each relation `t` there are `t@s`, `t@d`, `t@a`, of a node also `t@b`, before."""

    def compute(self, name: str, sql: str) -> int:
        """Keep what a query gives under a name; how many rows that is."""
        ...

    def changed(self, relation: str) -> int:
        """How many rows `t@d` has."""
        ...


class Delta:
    """Computes the change of one node after the other. Made anew for each batch."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer
        self._deltas: dict[int, str | None] = {}
        self._touched: dict[int, str | None] = {}
        self._kept: list[Op] = []
        """Operators are told apart by their identity, so none may go away meanwhile."""
        self._count = 0

    # -- nodes -----------------------------------------------------------------------------------------------

    def changes(self, node: Node) -> str | None:
        """The name of a relation with the stored columns and the weight; None when nothing changes."""
        if node.root is None:
            if not any(self._computer.changed(each) for each in node.reads):
                return None
            return self.whole(node)
        block = blocking(node.root)
        if block is None:
            found = self.delta(node.root)
            if found is None:
                return None
            return self._keep(f"{_stored(node, found, weighted=True)}")
        inputs = [block.left, block.right] if isinstance(block, SetOperation) else [block.child]
        found_deltas = [each for each in map(self.delta, inputs) if each is not None]
        if not found_deltas:
            return None
        if isinstance(block, Aggregate) and node.accumulators:
            return self._accumulated(node, block, found_deltas[0])
        if isinstance(block, Top):
            return self._first(node, block, found_deltas[0])
        return self._affected(node, block, found_deltas)

    def whole(self, node: Node) -> str | None:
        """All rows as they were and as they are."""
        now = full(node)
        names = listed(node.columns.values())
        old = f"SELECT {names}, -1 AS {W} FROM {quoted(node.name + '@b')}"
        return self._keep(f"{old} UNION ALL SELECT {names}, 1 AS {W} FROM ({now})")

    def anew(self, node: Node) -> str | None:
        """As `changes`, of a node that adds to sums: what it would add to is computed anew instead."""
        block = None if node.root is None else blocking(node.root)
        if not isinstance(block, Aggregate) or not node.accumulators:
            raise TypeError(f"{node.name} has no sums")
        delta = self.delta(block.child)
        if delta is None or not block.groups:
            return None if delta is None else self.whole(node)
        groups = self._keep(f"SELECT DISTINCT {listed(block.groups)} FROM ({delta})")
        if groups is None:
            return None
        return self._replacing(node, block, self._stored_of(node, block, groups), self._sums_of(node, block, groups))

    def _affected(self, node: Node, block: Blocking, deltas: list[str]) -> str | None:
        by = affected_by(block)
        if not by:
            return self.whole(node)
        texts = " UNION ALL ".join(f"SELECT {listed(by)} FROM ({each})" for each in deltas)
        keys = self._keep(f"SELECT DISTINCT {listed(by)} FROM ({texts})")
        if keys is None:
            return None
        given = Given(keys, list(by))
        self._kept.append(given)
        stored_by = [node.columns[each] for each in by]
        names = listed(node.columns.values())
        old = (
            f"SELECT {names}, -1 AS {W} FROM {quoted(node.name + '@b')} AS x"
            f" LEFT SEMI JOIN {quoted(keys)} AS y ON {same(stored_by, by, 'x', 'y')}"
        )
        new = _stored(node, self._replaced(node.root, block, self._block_after(block, given)), weighted=False)
        return self._keep(f"{old} UNION ALL SELECT {names}, 1 AS {W} FROM ({new})")

    def _block_after(self, block: Blocking, only: Given | None) -> str:
        def input_of(child: Op) -> str:
            return self.after(child if only is None else restricted(child, {each: each for each in only.cols}, only))

        if isinstance(block, SetOperation):
            return write.set_operation(block, input_of(block.left), input_of(block.right))
        return write.blocking(block, input_of(block.child))

    def _replaced(self, op: Op | None, block: Blocking, text: str) -> str:
        """The operators above a blocking one, on what that gives."""
        if op is block:
            return text
        if not isinstance(op, Filter | Project):
            raise TypeError(type(op).__name__)
        return write.unary(op, self._replaced(op.child, block, text), weighted=False)

    def _accumulated(self, node: Node, block: Aggregate, delta: str) -> str | None:
        change = self._keep(accumulate.of_change(node, block, delta))
        if change is None:
            return None
        kept = self._stored_of(node, block, change) if block.groups else f"{node.name}@b"
        lost = None
        if kept is not None and (query := accumulate.lost(node, block, change, kept)):
            lost = self._keep(query)
        if lost is not None and not block.groups:
            return self.whole(node)
        now = accumulate.added(node, block, change, kept, lost)
        if lost is not None:
            now = f"{now} UNION ALL {self._sums_of(node, block, lost)}"
        return self._replacing(node, block, kept, now)

    def _stored_of(self, node: Node, block: Aggregate, groups: str) -> str | None:
        """What is stored of groups, a relation."""
        on = same([node.columns[each] for each in block.groups], block.groups, "b", "d")
        names = listed(node.columns.values())
        return self._keep(
            f"SELECT {names} FROM {quoted(node.name + '@b')} AS b LEFT SEMI JOIN {quoted(groups)} AS d ON {on}"
        )

    def _sums_of(self, node: Node, block: Aggregate, groups: str) -> str:
        """The accumulators of groups, a relation, computed anew."""
        given = Given(groups, list(block.groups))
        self._kept.append(given)
        rows = self.after(restricted(block.child, {each: each for each in block.groups}, given))
        return accumulate.of_rows(node, block, rows)

    def _replacing(self, node: Node, block: Aggregate, kept: str | None, now: str) -> str | None:
        """Accumulators as they are `now` take the place of rows that are stored, if there are any."""
        names = listed(node.columns.values())
        new = f"SELECT {names}, 1 AS {W} FROM ({_stored(node, _over_sums(node, block, now), weighted=False)})"
        if kept is not None:
            new = f"SELECT {names}, -1 AS {W} FROM {quoted(kept)} UNION ALL {new}"
        return self._keep(new)

    def _first(self, node: Node, block: Top, delta: str) -> str | None:
        if block.limit is None or block.offset:
            return self.whole(node)
        before, rows = self._name(), self._name()
        count = self._computer.compute(before, first_rows.stored(node, block, f"{node.name}@b"))
        self._computer.compute(rows, first_rows.candidates(block, before, delta))
        if count < block.limit:
            # All rows there were are stored.
            now = first_rows.first(block, rows)
        else:
            found = self._name()
            if self._computer.compute(found, first_rows.sure(block, rows, before)) < block.limit:
                return self.whole(node)
            now = f"SELECT {listed(block.cols)} FROM {quoted(found)}"
        names = listed(node.columns.values())
        old = f"SELECT {names}, -1 AS {W} FROM {quoted(node.name + '@b')}"
        new = _stored(node, self._replaced(node.root, block, now), weighted=False)
        return self._keep(f"{old} UNION ALL SELECT {names}, 1 AS {W} FROM ({new})")

    # -- operators -------------------------------------------------------------------------------------------

    def delta(self, op: Op) -> str | None:
        """The rows that changed, weighted, as a query; None when there are none."""
        if id(op) not in self._deltas:
            self._kept.append(op)
            self._deltas[id(op)] = self._delta(op)
        return self._deltas[id(op)]

    def _delta(self, op: Op) -> str | None:
        match op:
            case Scan():
                return _scan(op, "d", weighted=True) if self._computer.changed(op.relation) else None
            case Constant() | Given():
                return None
            case Filter() | Project() | Explode():
                inner = self.delta(op.child)
                return None if inner is None else write.unary(op, inner, weighted=True)
            case Inner():
                return self._query(self._inner_delta(op))
            case Left() | Semi():
                return self._query(self._join_delta(op))
            case Union():
                parts = [(number, self.delta(each)) for number, each in enumerate(op.children)]
                found = [(number, each) for number, each in parts if each is not None]
                return write.union(op, found, weighted=True) if found else None
        raise TypeError(f"{type(op).__name__} is not computed row by row")

    def _inner_delta(self, op: Inner) -> str | None:
        deltas = [self.delta(each) for each in op.children]
        parts = []
        for at, mine in enumerate(deltas):
            if mine is None:
                continue
            sources, conds = [], [*(f"({write.text(each)})" for each in op.conds)]
            for other, child in enumerate(op.children):
                if other == at:
                    found = mine
                elif deltas[other] is None:
                    found = self.after(child)
                elif other < at:
                    found = self.same(child)
                else:
                    found = self.both(child)
                    conds.append(f"(x{other}.{W} IS NULL OR x{other}.{W} = x{at}.{W})")
                sources.append(f"({found}) AS x{other}")
            where = f" WHERE {' AND '.join(conds)}" if conds else ""
            names = _items(op.cols)
            parts.append(f"SELECT {names}x{at}.{W} AS {W} FROM {' CROSS JOIN '.join(sources)}{where}")
        return " UNION ALL ".join(parts) or None

    def _join_delta(self, op: Left | Semi) -> str | None:
        mine, touched = self.delta(op.left), self._touch(op)
        names = listed(op.left.cols)
        parts = [] if mine is None else [mine]
        if touched is not None:
            parts += [f"SELECT {names}, {weight} AS {W} FROM {quoted(touched)}" for weight in (-1, 1)]
        if not parts:
            return None
        left = " UNION ALL ".join(f"SELECT {names}, {W} FROM ({each})" for each in parts)
        on = f"({write.text(op.on)})"
        if self.delta(op.right) is None:
            right = self.after(op.right)
        else:
            right = self.both(op.right)
            on += f" AND (r.{W} IS NULL OR r.{W} = l.{W})"
        if isinstance(op, Left):
            return f"SELECT {_items(op.cols)}l.{W} AS {W} FROM ({left}) AS l LEFT JOIN ({right}) AS r ON {on}"
        word = "ANTI" if op.is_anti else "SEMI"
        return f"SELECT {_items(op.cols)}l.{W} AS {W} FROM ({left}) AS l LEFT {word} JOIN ({right}) AS r ON {on}"

    def _touch(self, op: Left | Semi) -> str | None:
        """The rows of the left side that did not change, and whose partners may have."""
        if id(op) not in self._touched:
            changed = self.delta(op.right)
            found = None
            if changed is not None:
                left = self.same(op.left)
                on = write.text(op.on)
                found = self._keep(
                    f"SELECT {listed(op.left.cols)} FROM ({left}) AS l LEFT SEMI JOIN ({changed}) AS r ON {on}"
                )
            self._touched[id(op)] = found
        return self._touched[id(op)]

    def same(self, op: Op) -> str:
        """The rows that did not change, as a query."""
        if self.delta(op) is None:
            return self.after(op)
        match op:
            case Scan():
                return _scan(op, "s", weighted=False)
            case Filter() | Project() | Explode():
                return write.unary(op, self.same(op.child), weighted=False)
            case Inner():
                return _inner(op, [self.same(each) for each in op.children])
            case Left() | Semi():
                left, touched = self.same(op.left), self._touch(op)
                if touched is not None:
                    keys = op.left.keys
                    left = (
                        f"SELECT {listed(op.left.cols)} FROM ({left}) AS x"
                        f" LEFT ANTI JOIN {quoted(touched)} AS y ON {same(keys, keys, 'x', 'y')}"
                    )
                return _join(op, left, self.same(op.right))
            case Union():
                return write.union(op, list(enumerate(map(self.same, op.children))), weighted=False)
        raise TypeError(type(op).__name__)

    def both(self, op: Op) -> str:
        """The rows that did not change, without a weight, and those that did, with it."""
        changed = self.delta(op)
        names = listed(op.cols)
        if changed is None:
            return f"SELECT {names}, {NO_WEIGHT} FROM ({self.after(op)})"
        return f"SELECT {names}, {NO_WEIGHT} FROM ({self.same(op)}) UNION ALL SELECT {names}, {W} FROM ({changed})"

    def after(self, op: Op) -> str:
        """The rows as they are, as a query."""
        return after(op)

    # -- steps -----------------------------------------------------------------------------------------------

    def _query(self, sql: str | None) -> str | None:
        """Compute a step; a query of what it gave, or None when that is nothing."""
        name = None if sql is None else self._keep(sql)
        return None if name is None else f"SELECT * FROM {quoted(name)}"

    def _keep(self, sql: str) -> str | None:
        name = self._name()
        return name if self._computer.compute(name, sql) else None

    def _name(self) -> str:
        self._count += 1
        return f"#{self._count}"


def after(op: Op) -> str:
    """An operator over the relations as they are."""
    match op:
        case Scan():
            return _scan(op, "a", weighted=False)
        case Given():
            return f"SELECT {listed(op.cols)} FROM {quoted(op.name)}"
        case Constant():
            return write.constant(op)
        case Filter() | Project() | Explode():
            return write.unary(op, after(op.child), weighted=False)
        case Inner():
            return _inner(op, [after(each) for each in op.children])
        case Left() | Semi():
            return _join(op, after(op.left), after(op.right))
        case Only():
            on = same(list(op.by), list(op.by.values()), "l", "g")
            left, given = after(op.child), after(op.given)
            return f"SELECT {listed(op.cols)} FROM ({left}) AS l LEFT SEMI JOIN ({given}) AS g ON {on}"
        case Union():
            return write.union(op, list(enumerate(map(after, op.children))), weighted=False)
        case SetOperation():
            return write.set_operation(op, after(op.left), after(op.right))
        case Aggregate() | Window() | Top():
            return write.blocking(op, after(op.child))


def full(node: Node) -> str:
    """A node's stored columns, computed in full over the relations as they are."""
    if node.root is None:
        names = listed(list(node.columns)[: node.visible])
        by = f"PARTITION BY {listed(node.key[:-1])} " if len(node.key) > 1 else ""
        number = f"row_number() OVER ({by}ORDER BY 1) AS {quoted(node.key[-1])}"
        return f"SELECT {names}, {number} FROM ({node.sql}) AS q({names})"
    block = blocking(node.root)
    if isinstance(block, Aggregate) and node.accumulators:
        now = accumulate.of_rows(node, block, after(block.child))
        return _stored(node, _over_sums(node, block, now), weighted=False)
    return _stored(node, after(node.root), weighted=False)


def _over_sums(node: Node, block: Aggregate, sums: str) -> str:
    """What stands above a linear aggregate, over its sums."""

    def above(op: Op) -> str:
        if op is block:
            exprs = {name: column(name) for name in op.keys}
            exprs |= node.finals
            exprs |= {each.name: column(each.name) for each in node.accumulators}
            return f"SELECT {write.selected(exprs)} FROM ({sums})"
        if isinstance(op, Filter):
            text = above(op.child)
            return f"SELECT * FROM ({text}) WHERE {write.text(op.cond)}"
        if isinstance(op, Project):
            text = above(op.child)
            exprs = dict(op.exprs) | {each.name: column(each.name) for each in node.accumulators}
            return f"SELECT {write.selected(exprs)} FROM ({text})"
        raise TypeError(type(op).__name__)

    if node.root is None:
        raise TypeError("a node without operators")
    return above(node.root)


def restricted(op: Op, by: dict[str, str], only: Given) -> Op:
    """An operator with only those rows whose columns `by` are among `only`; done as far down as it can be."""
    names = set(by)
    match op:
        case Filter():
            return Filter(restricted(op.child, by, only), op.cond)
        case Project() if all(isinstance(op.exprs[each], exp.Column) for each in by):
            inner = {op.exprs[each].name: mine for each, mine in by.items()}
            return Project(restricted(op.child, inner, only), op.exprs, op.keys)
        case Inner():
            for place, child in enumerate(op.children):
                if names <= set(child.cols):
                    inside = list(op.children)
                    inside[place] = restricted(child, by, only)
                    return Inner(inside, op.conds, op.cols)
        case Left() if names <= set(op.left.cols):
            return Left(restricted(op.left, by, only), op.right, op.on, op.is_unique, op.cols)
        case Semi():
            return Semi(restricted(op.left, by, only), op.right, op.on, op.is_anti)
        case Explode() if names <= set(op.child.cols):
            return Explode(restricted(op.child, by, only), op.generator, op.at, op.names, op.is_outer)
        case Union() if names <= set(op.columns):
            inside = [restricted(each, by, only) for each in op.children]
            return Union(inside, op.tag, op.columns, op.key_types)
    return Only(op, only, by)


def _scan(op: Scan, version: str, *, weighted: bool) -> str:
    columns = ", ".join(f"{quoted(beside_weight(source))} AS {quoted(name)}" for name, source in op.columns.items())
    parts = [columns] if columns else []
    if weighted:
        parts.append(W)
    return f"SELECT {', '.join(parts) or '1 AS `_none`'} FROM {quoted(f'{op.relation}@{version}')}"


def _items(names: list[str]) -> str:
    return "".join(f"{quoted(each)}, " for each in names)


def _inner(op: Inner, texts: list[str]) -> str:
    sources = " CROSS JOIN ".join(f"({each}) AS x{number}" for number, each in enumerate(texts))
    where = f" WHERE {write.conjunction(op.conds)}" if op.conds else ""
    return f"SELECT {listed(op.cols)} FROM {sources}{where}"


def _join(op: Left | Semi, left: str, right: str) -> str:
    on = write.text(op.on)
    if isinstance(op, Left):
        return f"SELECT {listed(op.cols)} FROM ({left}) AS l LEFT JOIN ({right}) AS r ON {on}"
    word = "ANTI" if op.is_anti else "SEMI"
    return f"SELECT {listed(op.cols)} FROM ({left}) AS l LEFT {word} JOIN ({right}) AS r ON {on}"


def _stored(node: Node, text: str, *, weighted: bool) -> str:
    """With the names of what is stored."""
    tail = f", {W}" if weighted else ""
    names = ", ".join(f"{quoted(inner)} AS {quoted(stored)}" for inner, stored in node.columns.items())
    return f"SELECT {names}{tail} FROM ({text})"
