"""What a table of SQLite looks like: from a database's own schema, or from a statement that a change table has of it.

A statement is not parsed: it is run in an empty database, and that is asked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

from tidegate.capture.source import Column, SourceTable
from tidegate.capture.sqlite_triggers import ROWIDS, quoted, text
from tidegate.cdc.record import Value
from tidegate.cdc.row_layout import Layout
from tidegate.cdc.sqlite_types import TYPES, type_of
from tidegate.errors import InvalidArgument, SourceUnreadable

Query = Callable[[str], Sequence[Sequence[Any]]]
ROWID: Final = "_rowid"
"""The column that is the key of a table without one."""
_AS_THEY_COME: Final = ("", "ANY", "BLOB")
"""Declarations by which SQLite stores a text that looks like a number as a text."""
_STORED: Final = (0, 3)
"""Of `hidden`: columns that images have. Others are computed when read."""


@dataclass(frozen=True)
class Shape:
    """A table as it is at one moment."""

    name: str
    columns: tuple[str, ...]
    """Those that are stored, in their order: what images have."""
    types: tuple[str, ...]
    is_required: tuple[bool, ...]
    defaults: tuple[Value, ...]
    key: tuple[int, ...]
    """Columns of the primary key, in its order; none if the rowid is."""
    is_by_row: bool
    """Whether rows are identified by the rowid, which may be a column."""
    rowid: str | None
    """What a query can call the rowid; None if there is none or nothing to call it by."""
    untyped_key: tuple[int, ...] = ()
    """Columns of the key that keep numbers and texts as they come, and are STRING here."""

    @cached_property
    def has_own_rowid(self) -> bool:
        """Whether rows have the rowid in front, because they have no key."""
        return not self.key

    @cached_property
    def table(self) -> SourceTable:
        """As a capture speaks of it."""
        columns = [
            Column(name, type, not required and at not in self.key)
            for at, (name, type, required) in enumerate(zip(self.columns, self.types, self.is_required))
        ]
        if self.has_own_rowid:
            columns.insert(0, Column(self.row_column, "BIGINT", False))
        return SourceTable(self.name, tuple(columns), self.key_names)

    @cached_property
    def row_column(self) -> str:
        """What the rowid in front is called."""
        name = ROWID
        while name in {each.lower() for each in self.columns}:
            name += "_"
        return name

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        return tuple(self.columns[at] for at in self.key) or (self.row_column,)

    @cached_property
    def layout(self) -> Layout:
        """Reads its images."""
        return Layout(self.name, self.columns, self.types, self.defaults)

    @cached_property
    def key_layout(self) -> Layout:
        """Reads the key out of its images, columns in the order of the table."""
        return Layout(self.name, self.columns, self.types, self.defaults, sorted(self.key))

    @cached_property
    def key_of(self) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """The key of a row."""
        return _getter(self.key)

    @cached_property
    def key_in_order(self) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """What `key_layout` reads as a key."""
        order = sorted(self.key)
        return _getter(tuple(order.index(at) for at in self.key))

    def same_images(self, other: Shape) -> bool:
        """Whether images of the two say the same."""
        return (self.columns, self.types, self.key, self.is_by_row) == (
            other.columns,
            other.types,
            other.key,
            other.is_by_row,
        )


def _getter(of: tuple[int, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    if len(of) == 1:
        (at,) = of
        return lambda row: (row[at],)
    return itemgetter(*of) if of else tuple


def shape_of(query: Query, name: str, chosen: Mapping[str, str]) -> Shape:
    """A table of a database; `chosen` are types by `table.column`, in lower case.

    Raises: `SourceUnreadable` if there is no such table.
    """
    rows = query(f"PRAGMA table_xinfo({text(name)})")
    if not rows:
        raise SourceUnreadable(f"there is no table {name!r} at the source any more")
    columns: list[str] = []
    types: list[str] = []
    declared: list[str] = []
    required: list[bool] = []
    defaults: list[Value] = []
    keys: dict[int, int] = {}
    for _, column, type, not_null, default, place, hidden in rows:
        if hidden not in _STORED:
            continue
        if place:
            keys[int(place)] = len(columns)
        columns.append(column)
        types.append(chosen.get(f"{name}.{column}".lower()) or type_of(type or ""))
        declared.append((type or "").upper())
        required.append(bool(not_null))
        defaults.append(None if default is None else _value(default, type or ""))
    key = tuple(keys[place] for place in sorted(keys))
    without_rowid = any(
        str(each[1]).lower() == name.lower() and each[4] for each in query("PRAGMA table_list") if each[0] == "main"
    )
    is_alias = len(key) == 1 and declared[key[0]] == "INTEGER" and not without_rowid and not _has_key_index(query, name)
    taken = {each.lower() for each in columns}
    rowid = None if without_rowid else next((word for word in ROWIDS if word not in taken), None)
    if is_alias:
        rowid = columns[key[0]]
    return Shape(
        name,
        tuple(columns),
        tuple(types),
        tuple(required),
        tuple(defaults),
        key,
        is_alias or not key,
        rowid,
        tuple(at for at in key if types[at] == "STRING" and declared[at] in _AS_THEY_COME),
    )


def _has_key_index(query: Query, name: str) -> bool:
    """INTEGER PRIMARY KEY DESC has one, and is not the rowid."""
    return any(each[3] == "pk" for each in query(f"PRAGMA index_list({text(name)})"))


def _value(default: str, type: str) -> Value:
    """What a default is, which a schema has as SQL."""
    with _empty() as database:
        try:
            made = f"CREATE TABLE t(a, b {type} DEFAULT {default})"
            database.execute(made)
            database.execute("INSERT INTO t(a) VALUES(1)")
            value: Value = database.execute("SELECT b FROM t").fetchone()[0]
        except sqlite3.Error:
            return None
    return value


def shape_by_sql(name: str, sql: str, chosen: Mapping[str, str]) -> Shape:
    """A table by the statement that creates it. Raises: `SourceUnreadable` if SQLite here does not understand it."""
    with _empty() as database:
        try:
            database.execute(sql)
            return shape_of(lambda each: database.execute(each).fetchall(), name, chosen)
        except sqlite3.Error as error:
            raise SourceUnreadable(f"table {name!r}: what creates it is not understood: {error}: {sql}") from error


class _empty:
    def __enter__(self) -> sqlite3.Connection:
        self._database = sqlite3.connect(":memory:")
        return self._database

    def __exit__(self, *_: object) -> None:
        self._database.close()


def shape_as_known(known: SourceTable, now: Shape | None) -> Shape:
    """A table as it was at a position; what a capture does not know of it is taken from what it is now, if it is.

    Invariant: images have the columns in this order, but for a rowid in front.
    """
    columns = known.columns
    own = known.key == (columns[0].name,) and columns[0].name.startswith(ROWID)
    own = own and (now is None or columns[0].name == now.row_column)
    if own:
        columns = columns[1:]
    names = tuple(each.name for each in columns)
    later = {} if now is None else dict(zip(now.columns, now.defaults))
    return Shape(
        known.name if now is None else now.name,
        names,
        tuple(each.type for each in columns),
        tuple(not each.is_nullable for each in columns),
        tuple(later.get(name) for name in names),
        () if own else tuple(names.index(each) for each in known.key),
        own or (now is not None and now.is_by_row),
        None if now is None else now.rowid,
        () if now is None else _untyped(known, names, now),
    )


def _untyped(known: SourceTable, names: tuple[str, ...], now: Shape) -> tuple[int, ...]:
    """Which columns of a key have no type, by what they are now."""
    untyped = [now.columns[at] for at in now.untyped_key]
    return tuple(names.index(each) for each in known.key if each in names and each in untyped)


def checked_types(types: Mapping[str, str]) -> dict[str, str]:
    """Types that a user has chosen. Raises: `InvalidArgument`."""
    found = {}
    for place, type in types.items():
        if "." not in place or type.upper() not in TYPES:
            raise InvalidArgument(
                f"types: {place!r}: {type!r} is not of the form {{'table.column': type}} with one of {', '.join(TYPES)}"
            )
        found[place.lower()] = type.upper()
    return found


def columns_of(shape: Shape) -> str:
    """What a query selects for rows of a table."""
    names = [quoted(each) for each in shape.columns]
    if shape.has_own_rowid:
        names.insert(0, shape.rowid or "rowid")
    return ", ".join(names)
