"""`arrange`: in which order the rows of a chunk go, change and come, so that none stands in another's way.

A row that comes needs what it refers to; one that goes needs that nobody refers to it any more; one that gets a unique
value needs that the row that had it has given it up. Where rows need each other in a circle, a column of one of them is
put aside, NULL for a moment: before all others (`Step.aside`), or until all others are there (`Step.late`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tidegate.cdc.apply_plan import Row

Places = tuple[int, ...]
"""Of columns in a row."""


class Reference(NamedTuple):
    """Columns of a table, and what they refer to."""

    own: Places
    parent: str
    theirs: Places


class Links(NamedTuple):
    """What a table's rows need of others."""

    uniques: Sequence[Places]
    """Of its unique constraints, without the key by which its rows are told apart."""
    references: Sequence[Reference]
    """To tables whose rows are arranged with its."""
    free: Places
    """Columns that may be NULL for a moment, those first that nobody refers to."""


@dataclass(slots=True, eq=False)
class Step:
    """What one row becomes."""

    table: str
    key: Row
    before: Row | None
    """What it was; None for no row, or when nobody has looked."""
    after: Row | None
    """None when it goes."""
    is_known: bool = True
    """Whether the row must be what `before` says."""
    aside: dict[int, Any] = field(default_factory=dict)
    """What columns are set to before all others, to make room."""
    late: Places = ()
    """Columns that get their values when all others are there."""
    is_removed: bool = False
    """Whether it is taken out before all others, and put back."""
    why: str = ""
    """Why it cannot make room for others."""


_Kind = Literal["unique", "parent", "child"]


class _Need(NamedTuple):
    """What a step needs: of another one, by these columns, in the table of the one that has them."""

    kind: _Kind
    step: int
    places: Places


@dataclass(slots=True)
class _Visit:
    step: int
    needs: list[_Need]
    at: int = 0
    """Of the need that is looked at next; the one before it is what is being done."""


def arrange(steps: Sequence[Step], links: Mapping[str, Links], force: Callable[[Step, Places], bool]) -> list[Step]:
    """The steps, each behind those that it needs, as given where none is needed; what must be put aside is noted.

    `force` frees unique columns that cannot be NULL, and says whether it could. It takes time and room in proportion
    to the steps. A circle that nothing opens stays: the target has the last word.
    """
    return _Arranging(steps, links, force).done()


class _Arranging:
    def __init__(
        self, steps: Sequence[Step], links: Mapping[str, Links], force: Callable[[Step, Places], bool]
    ) -> None:
        self._steps = steps
        self._links = links
        self._force = force
        self._left: dict[tuple[str, Places], dict[Any, int]] = {}
        """Unique values that rows give up, by table and columns: whose they are."""
        self._come: dict[tuple[str, Places], dict[Any, int]] = {}
        """Values that are referred to and were not there: in which rows they come."""
        self._loosed: dict[tuple[str, Places, str, Places], dict[Any, list[int]]] = {}
        """Values that rows refer to no longer: which rows."""
        self._referred: Final = {(each.parent, each.theirs) for one in links.values() for each in one.references}
        self._children: Final[dict[str, list[tuple[str, Reference]]]] = {}
        for table, one in links.items():
            for each in one.references:
                self._children.setdefault(each.parent, []).append((table, each))

    def done(self) -> list[Step]:
        for number, step in enumerate(self._steps):
            self._note(number, step)
        found: list[Step] = []
        is_done = bytearray(len(self._steps))  # 1 while it is on the way, 2 when it is in its place.
        for root in range(len(self._steps)):
            if not is_done[root]:
                self._visit(root, is_done, found)
        return found

    # -- what there is ---------------------------------------------------------------------------------------------

    def _note(self, number: int, step: Step) -> None:
        links = self._links[step.table]
        for places in links.uniques:
            was, now = value_of(step.before, places), value_of(step.after, places)
            if was is not None and was != now:
                self._left.setdefault((step.table, places), {})[was] = number
        for reference in links.references:
            was, now = value_of(step.before, reference.own), value_of(step.after, reference.own)
            if was is not None and was != now:
                loosed = self._loosed.setdefault((step.table, *reference), {})
                loosed.setdefault(was, []).append(number)
        for places in {each.theirs for _, each in self._children.get(step.table, ())}:
            was, now = value_of(step.before, places), value_of(step.after, places)
            if now is not None and was != now:
                self._come.setdefault((step.table, places), {})[now] = number

    def _needs(self, number: int) -> list[_Need]:
        step = self._steps[number]
        return [each for each in self._all_needs(step) if each.step != number]

    def _all_needs(self, step: Step) -> Iterator[_Need]:
        links = self._links[step.table]
        for table, reference in self._children.get(step.table, ()):
            was, now = value_of(step.before, reference.theirs), value_of(step.after, reference.theirs)
            if was is not None and was != now:
                for each in self._loosed.get((table, *reference), {}).get(was, ()):
                    yield _Need("child", each, reference.own)
        if step.after is None:
            return
        for places in links.uniques:
            was, now = value_of(step.before, places), value_of(step.after, places)
            if now is not None and was != now:
                holder = self._left.get((step.table, places), {}).get(now)
                if holder is not None:
                    yield _Need("unique", holder, places)
        for reference in links.references:
            was, now = value_of(step.before, reference.own), value_of(step.after, reference.own)
            if now is not None and was != now:
                parent = self._come.get((reference.parent, reference.theirs), {}).get(now)
                if parent is not None:
                    yield _Need("parent", parent, reference.own)

    # -- the order -------------------------------------------------------------------------------------------------

    def _visit(self, root: int, is_done: bytearray, found: list[Step]) -> None:
        is_done[root] = 1
        way = [_Visit(root, self._needs(root))]
        on_way = {root: 0}
        while way:
            top = way[-1]
            if top.at == len(top.needs):
                way.pop()
                del on_way[top.step]
                is_done[top.step] = 2
                found.append(self._steps[top.step])
                continue
            need = top.needs[top.at]
            top.at += 1
            if self._is_met(self._steps[top.step], need):
                continue
            if is_done[need.step] == 0:
                is_done[need.step] = 1
                on_way[need.step] = len(way)
                way.append(_Visit(need.step, self._needs(need.step)))
            elif is_done[need.step] == 1:
                back_to = self._open(way, on_way[need.step])
                for each in way[back_to + 1 :]:  # What is behind the opening is looked at again when it is needed.
                    is_done[each.step] = 0
                    del on_way[each.step]
                del way[back_to + 1 :]

    def _open(self, way: Sequence[_Visit], first: int) -> int:
        """Open the circle from `first` to the end of the way; where it was opened."""
        last = len(way) - 1
        for frees in (self._frees, self._forces):
            # Where it closes, nothing must be looked at again; else as near to that as it can be.
            for at in range(last, first - 1, -1):
                visit = way[at]
                if frees(self._steps[visit.step], visit.needs[visit.at - 1]):
                    return at
        return last

    def _is_met(self, step: Step, need: _Need) -> bool:
        """Whether what is put aside already does for it."""
        if need.kind == "parent":
            return any(at in step.late for at in need.places)
        other = self._steps[need.step]
        return other.is_removed or any(at in other.aside for at in need.places)

    def _frees(self, step: Step, need: _Need) -> bool:
        """Do without what a step needs, by a column that can be NULL for a moment."""
        one = step if need.kind == "parent" else self._steps[need.step]
        free = [at for at in self._links[one.table].free if at in need.places]
        if not free:
            return False
        before, after = one.before, one.after
        if before is not None and after is not None:
            free.sort(key=lambda at: before[at] == after[at])  # Rather one that changes anyway.
        if need.kind == "parent":
            one.late += (free[0],)
        else:
            one.aside[free[0]] = None
        return True

    def _forces(self, step: Step, need: _Need) -> bool:
        """Free a unique value that is NOT NULL."""
        other = self._steps[need.step]
        if need.kind != "unique":
            return False
        if self._force(other, need.places):
            return True
        step.why = step.why or other.why
        return False


def value_of(row: Row | None, places: Places) -> Any:
    """What a row has in some columns; None when one of them is NULL, or it cannot be looked up."""
    if row is None:
        return None
    if len(places) == 1:
        found = row[places[0]]
    else:
        found = tuple([row[at] for at in places])
        if None in found:
            return None
    try:
        hash(found)
    except TypeError:
        return None
    return found
