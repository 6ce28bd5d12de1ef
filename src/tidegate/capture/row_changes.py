"""`Follower`: the rows of a change table as changes of captured tables, each read as its table looked at that moment.

Within a transaction only the last change of each key is given: keys that went, then rows that came. What changed a
table's schema stands in the change table too, as changes of `sqlite_schema`, and is followed (capture.md rule 9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from tidegate.capture.key_storage import twins
from tidegate.capture.source import Change, Dropped, Reshaped, Rows
from tidegate.capture.sqlite_shape import Shape, shape_by_sql
from tidegate.cdc.change_table import ChangeRow, Kind
from tidegate.cdc.record import Value, decode
from tidegate.cdc.row_layout import TooLong
from tidegate.cdc.sqlite_types import ARROW, convert
from tidegate.errors import SourceGone, SourceUnreadable

APPLIED: Final = "tidegate_applied"
"""Where what was applied from elsewhere is noted, in the transaction that applied it; never captured."""
SCHEMA: Final = ("sqlite_schema", "sqlite_master")
_BRING: Final = {Kind.INSERT, Kind.UPDATE}
_kind_of, _table_of, _row_of, _after_of = map(itemgetter, (1, 3, 4, 6))
MANY: Final = 1000
"""Rows that are given as Arrow rather than as tuples."""


class Tracked:
    """A captured table, and what a transaction has done to it so far."""

    __slots__ = ("key_fix", "pending", "shape", "stored")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.pending: dict[Any, Any] = {}
        """By rowid the last image, or by key the last row; None for what went."""
        self.stored: dict[Any, tuple[Value, ...]] = {}
        """By key as what it is stored, where that is not said by the key's types."""
        type = shape.types[shape.key[0]] if shape.is_by_row and shape.key else "BIGINT"
        self.key_fix: Callable[[int], Any] | None = None if type == "BIGINT" else lambda row: convert(row, type)

    def take_in(self, rows: Sequence[ChangeRow]) -> bool:
        """Take in changes if all of them bring a row that is known by its rowid; whether they do."""
        if not set(map(_kind_of, rows)) <= _BRING:
            return False
        keys, images = list(map(_row_of, rows)), list(map(_after_of, rows))
        if None in keys or not all(images):
            return False
        self.pending.update(zip(keys, images))
        return True

    def take(self) -> list[Change]:
        """What the transaction did, if anything."""
        shape, pending = self.shape, self.pending
        gone: list[tuple[Any, ...]]
        if shape.is_by_row:
            gone, images = [], list(pending.items())
            if None in pending.values():
                fix = self.key_fix
                gone = [(key if fix is None else fix(key),) for key, image in images if image is None]
                images = [each for each in images if each[1] is not None]
            came = shape.layout.read_all(images)
            if shape.has_own_rowid:
                came = [(key, *row) for (key, _), row in zip(images, came)]
        else:
            gone = [key for key, row in pending.items() if row is None]
            came = [row for row in pending.values() if row is not None]
        pending.clear()
        table = shape.table
        found: list[Change] = []
        if gone:
            types = {each.name: each.type for each in table.columns}
            found.append(Rows(table.name, _arrow(gone, table.key, [types[each] for each in table.key]), is_delete=True))
        if came:
            columns = table.columns
            found.append(
                Rows(table.name, _arrow(came, [each.name for each in columns], [each.type for each in columns]))
            )
        return found


def _arrow(rows: list[tuple[Any, ...]], names: Sequence[str], types: Sequence[str]) -> Any:
    """Rows as they are if they are few, else as Arrow."""
    if len(rows) < MANY:
        return rows
    arrays = [pa.array(values, ARROW[type]) for values, type in zip(zip(*rows), types)]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


class Follower:
    """The captured tables, change by change."""

    def __init__(
        self,
        shapes: Iterable[Shape],
        *,
        wanted: frozenset[str] | None,
        excluded: frozenset[str],
        takes: Callable[[str], bool],
        types: Mapping[str, str],
        now: Callable[[str], Shape | None],
        made: Callable[[Shape, int], Iterable[Rows]],
        check_key: Callable[[Shape, tuple[Value, ...], bool], None],
    ) -> None:
        """`wanted` are names in lower case, None for all that `takes` says; `now` is how a table looks at the source by
        now, `made` the rows that it had from the beginning though they are not recorded, for the change that made it;
        `check_key` refuses a key, which may have gone, for what the source has by now."""
        self._tables = {shape.name.lower(): Tracked(shape) for shape in shapes}
        self._wanted = wanted
        self._excluded = excluded
        self._takes = takes
        self._types = types
        self._now = now
        self._made = made
        self._check_key = check_key
        self._names: dict[str | None, Tracked | None] = {}
        """What each name means, as it is spelt. None: it is not captured."""
        self._touched: dict[int, Tracked] = {}
        self.has_applied = False
        """Whether some transaction was applied from elsewhere."""

    @property
    def shapes(self) -> dict[str, Shape]:
        """By names in lower case."""
        return {name: each.shape for name, each in self._tables.items()}

    def is_captured(self, name: str) -> bool:
        """Whether a table of this name would be."""
        low = name.lower()
        if low in self._excluded or low.startswith(("sqlite_", "__turso_internal")):
            return False
        return self._takes(name) if self._wanted is None else low in self._wanted

    def changes(self, rows: Iterable[ChangeRow]) -> list[Change]:
        """What rows of one transaction say: all of them, or as many as are read at once.

        Raises: `SourceUnreadable`.
        """
        found: list[Change] = []
        names, touched = self._names, self._touched
        for name, group in groupby(rows, _table_of):
            try:
                at = names[name]
            except KeyError:
                if name in SCHEMA:
                    for row in group:
                        self._flush(found)
                        self._schema(row, found)
                    continue
                at = self._meet(name, found)
            if at is None:
                continue
            touched[id(at)] = at
            run = list(group)
            if at.shape.is_by_row and at.take_in(run):
                continue
            for row in run:
                at = self._take_in(row, at, found)
        self._flush(found)
        return found

    def _take_in(self, row: ChangeRow, at: Tracked, found: list[Change]) -> Tracked:
        """A change of a table, which may turn out to look otherwise than it was known to; how it looks now."""
        if at.shape.is_by_row and row.row is not None:
            at.pending[row.row] = None if row.kind == -1 else row.after or _image(row)
            return at
        try:
            self._by_key(row, at)
        except TooLong:
            at = self._grown(at, found)
            self._touched[id(at)] = at
            self._by_key(row, at)
        return at

    def _flush(self, found: list[Change]) -> None:
        touched = self._touched
        while touched:
            _, at = touched.popitem()
            try:
                found += self._taken(at)
            except TooLong:
                images = at.pending
                at = self._grown(at, found)
                at.pending = images
                found += at.take()

    def _by_key(self, row: ChangeRow, at: Tracked) -> None:
        shape = at.shape
        if row.kind != Kind.INSERT:
            if row.before is None:
                raise _needs(row, "full", "the row as it was, by whose key it is known")
            gone = _whole(shape.key_in_order(shape.key_layout.read(row.before, row.row)), shape, row)
            if shape.untyped_key:
                self._tell_apart(at, gone, row.before, is_gone=True)
            at.pending[gone] = None
            if row.kind == Kind.DELETE:
                return
        image = row.after or _image(row)
        values = shape.layout.read(image, row.row)
        key = _whole(shape.key_of(values), shape, row)
        if shape.untyped_key:
            self._tell_apart(at, key, image, is_gone=False)
        at.pending[key] = values

    def _tell_apart(self, at: Tracked, key: tuple[Any, ...], image: bytes, *, is_gone: bool) -> None:
        """Raises: `SourceUnreadable` for a key that is the same as another one here and not at the source."""
        values = decode(image)
        stored = tuple(values[each] for each in at.shape.key)
        known = at.stored.get(key, stored)
        if is_gone or at.pending.get(key) is not None:  # Else it takes the place of one that went.
            for column, one, other in zip(at.shape.key, known, stored):
                if type(one) is not type(other):
                    raise twins(at.shape, column, one, other)
        at.stored[key] = stored

    def _taken(self, at: Tracked) -> list[Change]:
        """What the transaction did to a table, whose keys are compared with those that are there by now."""
        for key, stored in at.stored.items():
            self._check_key(at.shape, stored, at.pending[key] is None)
        at.stored.clear()
        return at.take()

    def _meet(self, name: str | None, found: list[Change]) -> Tracked | None:
        """A name that was not met before."""
        if name is not None and name.lower() == APPLIED:
            self.has_applied = True
        at = None if name is None else self._tables.get(name.lower())
        if at is None and name is not None and self.is_captured(name):
            shape = self._now(name)  # Made by a connection that does not record.
            if shape is not None:
                if self._wanted is not None:
                    raise _come_back(shape.name)
                at = self._follow(shape, found, {})
        self._names[name] = at
        return at

    def _follow(self, shape: Shape, found: list[Change], renamed: dict[str, str]) -> Tracked:
        was = self._tables.get(shape.name.lower())
        at = Tracked(shape)
        self._tables[shape.name.lower()] = at
        self._names.clear()
        found.append(Reshaped(shape.table, renamed, {} if was is None else filled(was.shape, shape, renamed)))
        return at

    def _grown(self, at: Tracked, found: list[Change]) -> Tracked:
        """A table that has got columns without a record of it. Raises: `TooLong` if it has not."""
        was, now = at.shape, self._now(at.shape.name)
        if now is None or now.columns[: len(was.columns)] != was.columns or len(now.columns) == len(was.columns):
            raise TooLong(
                f"table {was.name!r}: records have more values than it has columns ({', '.join(was.columns)}): it was"
                f" altered by a connection that does not record; take a new snapshot: restart=True, or --restart"
            )
        self._touched.pop(id(at), None)
        rows = [] if was.is_by_row else self._taken(at)
        found += rows  # Rows that were read already are as it was.
        return self._follow(now, found, {})

    def _schema(self, row: ChangeRow, found: list[Change]) -> None:
        """A change of the schema."""
        image = row.before if row.kind == Kind.DELETE else row.after or row.before
        if image is None:
            raise _needs(row, "full", "what changed in the schema")
        kind, name, _, _, sql = (decode(image) + [None] * 5)[:5]
        if kind != "table" or not isinstance(name, str) or not self.is_captured(name):
            return
        was = self._tables.get(name.lower())
        if row.kind == Kind.DELETE:
            if was is not None:
                del self._tables[name.lower()]
                self._names.clear()
                found.append(Dropped(was.shape.table.name))
            return
        shape = self._shape(name, sql)
        if row.kind == Kind.INSERT or was is None:
            if was is not None:  # It went without a record, by a rename or by others: this one begins without rows.
                del self._tables[name.lower()]
                found.append(Dropped(was.shape.table.name))
            self._follow(shape, found, {})
            found += self._made(shape, row.id)
        elif not shape.same_images(was.shape):
            renamed = {}
            if row.before is not None and row.after is not None:
                # A rename is not recorded: what the table looked like before this one shows it.
                before = self._shape(name, decode(row.before)[4])
                renamed = renames(was.shape, before)
            self._follow(shape, found, renamed)

    def _shape(self, name: str, sql: object) -> Shape:
        if not isinstance(sql, str):
            raise SourceUnreadable(f"table {name!r} was made by no statement: {sql!r}")
        try:
            return shape_by_sql(name, sql, self._types)
        except SourceUnreadable:
            now = self._now(name)  # A function or a module that only the source has.
            if now is None:
                raise
            return now

    def reconciled(self, there: Mapping[str, Shape]) -> list[Change]:
        """What happened to tables without a record of it; `there` are those of the source, by names in lower case.

        Ordering: asked when all that is recorded was followed.
        Raises: `SourceGone` if what the rows look like now cannot be told.
        """
        found: list[Change] = []
        for name, at in list(self._tables.items()):
            was, now = at.shape, there.get(name)
            if now is None:
                raise _unseen(was.name, "is not there any more: it was renamed, or dropped")
            if now.same_images(was):
                continue
            renamed = renames(was, now)
            is_longer = now.columns[: len(was.columns)] == was.columns and now.types[: len(was.types)] == was.types
            if now.key_names != tuple(renamed.get(each, each) for each in was.key_names) or not (renamed or is_longer):
                raise _unseen(was.name, f"had the columns {', '.join(was.columns)}; now {', '.join(now.columns)}")
            self._follow(now, found, renamed)
        for name in sorted(there.keys() - self._tables.keys()) if self._wanted is not None else ():
            raise _come_back(there[name].name)
        return found

    def retype(self) -> list[Change]:
        """Columns for which a user has chosen another type than the one that they were captured with."""
        found: list[Change] = []
        for name, at in list(self._tables.items()):
            was = at.shape
            types = tuple(
                self._types.get(f"{name}.{column.lower()}", type) for column, type in zip(was.columns, was.types)
            )
            if types != was.types:
                self._follow(replace(was, types=types), found, {})
        return found


def is_drop(row: ChangeRow, table: str) -> bool:
    """Whether a change of the schema may be the drop of a table."""
    if row.kind != Kind.DELETE or row.before is None:
        return row.kind == Kind.DELETE
    name = decode(row.before)[1]
    return isinstance(name, str) and name.lower() == table.lower()


def renames(was: Shape, now: Shape) -> dict[str, str]:
    """Columns that have another name, if that is all there is to it."""
    if len(was.columns) != len(now.columns) or was.types != now.types:
        return {}
    return {old: new for old, new in zip(was.columns, now.columns) if old != new}


def _unseen(table: str, what: str) -> SourceGone:
    return SourceGone(
        f"table {table!r} {what}, and nothing of that is recorded (renames are not, nor is what connections do that"
        f" do not record); take a new snapshot: restart=True, or --restart"
    )


def _come_back(table: str) -> SourceGone:
    """A table that was asked for was there when the capture began: its drop is recorded, and this one is another."""
    return _unseen(
        table,
        "was dropped, and is there again: another one was renamed to it with the rows that it had, as migrations do,"
        " or it was made anew",
    )


def filled(was: Shape, now: Shape, renamed: Mapping[str, str]) -> dict[str, Any]:
    """What rows that were there have in new columns: their defaults."""
    old = {renamed.get(name, name) for name in was.columns}
    return {
        name: convert(default, type)
        for name, type, default in zip(now.columns, now.types, now.defaults)
        if name not in old and default is not None
    }


def _whole(key: tuple[Any, ...], shape: Shape, row: ChangeRow) -> tuple[Any, ...]:
    if None in key:
        raise SourceUnreadable(
            f"table {shape.name!r}, row {row.row}: its key {', '.join(shape.key_names)} has a NULL, which identifies"
            f" nothing: declare it NOT NULL, and give the row a key"
        )
    return key


def _image(row: ChangeRow) -> bytes:
    """A row as it is, of a change that has not said it in `after` (capture.md rule 10)."""
    if row.kind == Kind.INSERT and row.before is not None:
        return row.before
    raise _needs(row, "full", "the row as it is")


def _needs(row: ChangeRow, mode: str, what: str) -> SourceUnreadable:
    kind = Kind(row.kind).name
    return SourceUnreadable(
        f"change {row.id}, {kind} of table {row.table!r}: it was recorded without {what}; record with mode={mode!r},"
        f" and take a new snapshot: restart=True, or --restart"
    )
