"""`Origin`: the database that is captured, and the application that writes to it; `SimSource` reads what it keeps.

It keeps its transactions until somebody has confirmed them, as a slot does, and not a moment longer: what was confirmed
too early is gone. Whoever reads may lose it at any point, also in the midst of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from tidegate.capture.source import (
    Altered,
    Change,
    Column,
    Dropped,
    Patch,
    Reshaped,
    Rows,
    Snapshot,
    Source,
    SourceTable,
    SourceTransaction,
    Truncated,
)
from tidegate.errors import SourceGone, Unavailable
from tidegate.sim.actors import Process

IDENTITY: Final = "simulated:shop"
_KEYS: Final = 8
_TABLES_MOST: Final = 4
_COLUMNS_MOST: Final = 6
_MANY: Final = 30
"""Rows of a transaction that is larger than memory."""

Table = dict[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class State:
    """What is there."""

    shapes: dict[str, SourceTable]
    rows: dict[str, Table]


@dataclass(frozen=True, slots=True)
class Done:
    """A transaction that was committed, and what was there behind it."""

    changes: tuple[Change, ...]
    after: State


class Origin:
    """The database and its application."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        shape = SourceTable("orders", (Column("id", "BIGINT"), Column("c0", "STRING")), ("id",))
        items = SourceTable("items", (Column("a", "BIGINT"), Column("b", "STRING"), Column("c0", "BIGINT")), ("a", "b"))
        self.now = State({"orders": shape, "items": items}, {"orders": {}, "items": {}})
        self.history: list[Done] = []
        self.confirmed = 0
        self.gone = 0
        """How many transactions it does not keep any more."""
        self._named = 0
        self.faults = 0.0
        self.changes_shapes = rng.random() < 0.6
        self.is_captured = False
        """Whether a first snapshot is in: tables that an interrupted one has made fit the source as it was."""
        self.makes_again = True
        """Whether tables that were dropped may be made again. One that everything anew has left out has its rows."""
        self._values = 0
        for name in self.now.shapes:
            self._do(self._insert(name, 3)[0])
        self.begun = State(dict(self.now.shapes), _copied(self.now.rows))

    def after(self, position: int) -> State:
        """What was there at a position."""
        return self.history[position - 1].after if position else self.begun

    def forget(self) -> None:
        """Let go of what was confirmed."""
        self.gone = self.confirmed

    # -- the application -----------------------------------------------------------------------------------------

    def step(self) -> str:
        """One transaction."""
        rng = self._rng
        draw = rng.random()
        changes: list[Change]
        if draw < 0.05:
            changes = []
        elif draw < 0.12:
            name = self._pick()
            changes = [*self._few(rng.randrange(3)), Truncated(name), *self._few(rng.randrange(3))]
        elif draw < 0.2:
            changes = [*self._few(1), *self._insert(self._pick(), _MANY), *self._few(3)]
        elif draw < 0.3 and self.changes_shapes and self.is_captured:
            changes = [*self._few(rng.randrange(2)), self._reshape(), *self._few(rng.randrange(3))]
        else:
            changes = self._few(rng.randrange(1, 5))
        # What is drawn for later changes goes by what is there now, so it is looked at as it is done.
        done = tuple(each for each in changes if self._do(each))
        self.history.append(Done(done, State(dict(self.now.shapes), _copied(self.now.rows))))
        return f"the application commits {len(done)}"

    def _pick(self) -> str:
        return self._rng.choice(sorted(self.now.shapes))

    def _few(self, count: int) -> list[Change]:
        found: list[Change] = []
        for _ in range(count):
            name = self._pick()
            draw = self._rng.random()
            if draw < 0.25:
                found.append(Rows(name, [self._key(name) for _ in range(self._rng.randrange(1, 3))], is_delete=True))
            elif draw < 0.45:
                found.append(self._patch(name))
            else:
                found += self._insert(name, self._rng.randrange(1, 4))
        return found

    def _insert(self, name: str, count: int) -> list[Change]:
        shape = self.now.shapes[name]
        rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for _ in range(count):
            key = self._key(name, wide=count > _KEYS)
            rows[key] = (*key, *(self._value(each) for each in shape.columns[len(key) :]))
        return [Rows(name, list(rows.values()))]

    def _patch(self, name: str) -> Change:
        """An update of rows that are there, with values that it leaves alone."""
        shape = self.now.shapes[name]
        width = len(shape.key)
        there = sorted(self.now.rows[name])
        keys = self._rng.sample(there, min(len(there), self._rng.randrange(1, 3)))
        rows, absent = [], []
        for key in keys:
            left = tuple(each.name for each in shape.columns[width:] if self._rng.random() < 0.5)
            values = (None if each.name in left else self._value(each) for each in shape.columns[width:])
            rows.append((*key, *values))
            absent.append(left)
        return Patch(name, keys, rows, absent)

    def _reshape(self) -> Change:
        draw = self._rng.random()
        shapes = self.now.shapes
        self._named += 1
        name = self._pick()
        shape = shapes[name]
        width = len(shape.key)
        if draw < 0.25 and len(shapes) < _TABLES_MOST:
            gone = sorted(self.begun.shapes.keys() - shapes.keys())
            if gone and self.makes_again and self._rng.random() < 0.5:
                return Reshaped(self.begun.shapes[gone[0]])  # Made once more, under its name.
            fresh = (Column("id", "BIGINT"), Column("c0", "STRING"))
            return Reshaped(SourceTable(f"t{self._named}", fresh, ("id",)))
        if draw < 0.35 and len(shapes) > 1:
            return Dropped(name)
        if draw < 0.55 and len(shape.columns) > width:
            at = self._rng.randrange(width, len(shape.columns))
            return Reshaped(replace(shape, columns=(*shape.columns[:at], *shape.columns[at + 1 :])))
        if draw < 0.75 and len(shape.columns) > width:
            at = self._rng.randrange(width, len(shape.columns))
            new = f"n{self._named}"
            columns = tuple(replace(each, name=new) if at == n else each for n, each in enumerate(shape.columns))
            return Reshaped(replace(shape, columns=columns), {shape.columns[at].name: new})
        if len(shape.columns) >= _COLUMNS_MOST:
            return Reshaped(shape)
        column = Column(f"c{self._named}", self._rng.choice(("BIGINT", "STRING")))
        filled = {column.name: self._value(column)} if self._rng.random() < 0.5 else {}
        return Reshaped(replace(shape, columns=(*shape.columns, column)), {}, filled)

    def _key(self, name: str, *, wide: bool = False) -> tuple[Any, ...]:
        many = _MANY if wide else _KEYS
        shape = self.now.shapes[name]
        types = [each.type for each in shape.columns if each.name in shape.key]
        drawn = self._rng.randrange(many)
        return tuple(drawn if each == "BIGINT" else f"k{drawn % 3}" for each in types)

    def _value(self, column: Column) -> Any:
        self._values += 1
        if self._rng.random() < 0.1:
            return None
        return self._values if column.type == "BIGINT" else f"v{self._values}"

    def _do(self, change: Change) -> bool:
        """Whether it was possible: tables and columns may have gone since it was drawn."""
        shapes, rows = self.now.shapes, self.now.rows
        match change:
            case Rows(table, values, is_delete):
                if table not in shapes:
                    return False
                names = [each.name for each in shapes[table].columns]
                width = len(shapes[table].key)
                if not is_delete and any(len(each) != len(names) for each in values):
                    return False
                for each in values:
                    if is_delete:
                        rows[table].pop(tuple(each), None)
                    else:
                        rows[table][tuple(each[:width])] = dict(zip(names, each))
            case Patch(table, keys, values, absent):
                if table not in shapes or not keys or any(key not in rows[table] for key in keys):
                    return False
                names = [each.name for each in shapes[table].columns]
                if any(len(each) != len(names) for each in values):
                    return False
                if any(name not in names for each in absent for name in each):
                    return False
                for key, row, left in zip(keys, values, absent):
                    was = rows[table][tuple(key)]
                    rows[table][tuple(key)] = {
                        name: was[name] if name in left else value for name, value in zip(names, row)
                    }
            case Truncated(table):
                if table not in shapes:
                    return False
                rows[table] = {}
            case Dropped(table):
                if table not in shapes:
                    return False
                del shapes[table], rows[table]
            case Reshaped(shape, renamed, filled):
                now = rows.setdefault(shape.name, {})
                shapes[shape.name] = shape
                names = [each.name for each in shape.columns]
                for at, was in now.items():
                    moved = {renamed.get(name, name): value for name, value in was.items()}
                    now[at] = {name: moved.get(name, filled.get(name)) for name in names}
        return True


class SimSnapshot(Snapshot):
    """All rows as of when it was made."""

    def __init__(self, source: SimSource, state: State, position: int) -> None:
        self.position = str(position)
        self._source = source
        self._state = State(dict(state.shapes), _copied(state.rows))
        self.rows = {name: len(rows) for name, rows in self._state.rows.items()}

    def batches(self) -> Iterator[Rows]:
        for name, rows in self._state.rows.items():
            found = [tuple(row.values()) for row in rows.values()]
            for start in range(0, len(found), 5):
                self._source.point("in its snapshot")
                yield Rows(name, found[start : start + 5])

    def close(self) -> None:
        return


class SimSource(Source):
    """What one process reads of it."""

    kind = "simulated"
    identity = IDENTITY

    def __init__(
        self, origin: Origin, process: Process, note: Callable[[str], None], confirms: Callable[[int], None]
    ) -> None:
        self._origin = origin
        self._process = process
        self._note = note
        self._confirms = confirms
        self._at = 0
        self._told: dict[str, SourceTable] = {}

    def point(self, where: str) -> None:
        """Others may run here, and here the source may be lost."""
        self._process.point()
        if self._origin.faults and self._origin._rng.random() < self._origin.faults:
            self._note(f"{self._process.name} loses the source {where}")
            raise Unavailable(f"simulated: the source {where}")

    def tables(self, wanted: Sequence[str] | None) -> list[SourceTable]:  # noqa: ARG002
        self.point("as it opens")
        self._told = dict(self._origin.now.shapes)
        return list(self._told.values())

    def snapshot(self) -> Snapshot:
        self.point("before its snapshot")
        if self._told != self._origin.now.shapes:
            raise Altered("simulated: a table was altered meanwhile")
        self._at = len(self._origin.history)
        return SimSnapshot(self, self._origin.now, self._at)

    def resume(self, position: str, known: Sequence[SourceTable]) -> None:  # noqa: ARG002
        self.point("as it goes on")
        if int(position) < self._origin.gone:
            raise SourceGone(f"nothing is kept behind {position}: {self._origin.gone} were confirmed")
        self._at = int(position)

    def transactions(self, wait_s: float) -> Iterator[SourceTransaction]:
        origin = self._origin
        if self._at >= len(origin.history):
            self._process.condition().wait_for(lambda: self._at < len(origin.history), wait_s)
        while self._at < len(origin.history):
            self.point("between transactions")
            if self._at < origin.gone:
                raise SourceGone(f"nothing is kept behind {self._at}: {origin.gone} were confirmed")
            self._at += 1
            number = str(self._at)
            yield SourceTransaction(number, number, self._changes(origin.history[self._at - 1].changes))

    def _changes(self, changes: Sequence[Change]) -> Iterator[Change]:
        for at, each in enumerate(changes):
            if at:
                self.point("in the midst of a transaction")
            yield each

    def confirm(self, position: str) -> None:
        self.point("as it is told a position")
        self._confirms(int(position))
        self._origin.confirmed = max(self._origin.confirmed, int(position))

    def mark(self) -> int:
        return len(self._origin.history)

    def has_passed(self, mark: int) -> bool:
        return self._at >= mark

    def behind(self) -> dict[str, Any]:
        return {"transactions": len(self._origin.history) - self._at}

    def close(self) -> None:
        return


def _copied(tables: dict[str, Table]) -> dict[str, Table]:
    """Rows are never changed in place."""
    return {name: dict(rows) for name, rows in tables.items()}
