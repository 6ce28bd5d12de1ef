"""The TEMP triggers that record a table's changes: private to their connection, undone with what they recorded.

A trigger writes the log's row in the statement that changes the table's, so savepoints, conflict clauses and failing
statements need no care. Which columns an UPDATE sets is told by triggers for single columns (`UPDATE OF`): SQLite
leaves out of a statement those that it does not set. An UPDATE that sets the key is a delete and an insert.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.capture.images import Flags, flags_of, image, update_images
from tidegate.cdc.record import Value

PREFIX: Final = "tidegate_capture_"
"""What the names of all temporary objects of a recording connection begin with."""
LOG_VIEW: Final = f"{PREFIX}log"
"""Rows inserted into this view go to the log, and neither `changes()` nor `last_insert_rowid()` are any the wiser."""
COMMIT_VIEW: Final = f"{PREFIX}commit"
"""The same, for the COMMIT of a transaction."""
MOST_ARGUMENTS: Final = 100
"""SQLite calls no function with more than 127."""
MOST_KEPT: Final = 256
"""SET lists of a table whose flags are kept."""
MOST_COLUMNS: Final = 1 << 16
"""More than a table can have."""
ROWIDS: Final = ("rowid", "_rowid_", "oid")
COLUMNS: Final = ("change_id", "change_time", "change_type", "table_name", "id", "before", "after", "updates")
"""Columns of a log of version v1. In v2 `change_txn_id` is the third."""


@dataclass(frozen=True, slots=True)
class Log:
    """A change table, and what is recorded there."""

    name: str
    mode: str
    version: str
    autoincrement: bool = False
    """Whether SQLite would number its rows by itself so that no number is used again, as Turso does not."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns, in their order."""
        return (*COLUMNS[:2], "change_txn_id", *COLUMNS[2:]) if self.version == "v2" else COLUMNS


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose changes are recorded."""

    schema: str
    name: str
    columns: tuple[str, ...]
    """Those that are stored, in their order."""
    alias: int | None
    """The column that is the rowid."""
    key: tuple[int, ...]
    """The columns of the key, where the table has no rowid."""
    guarded: bool = False
    """Whether triggers of the user run before its deletes, and may forbid them."""
    nested: bool = False
    """Whether a change may run within an update of this table: there are triggers of the user, or cascades."""
    uniques: tuple[str, ...] = ()
    """What no two rows have in common, as conditions on `t` and `new`, where rows replaced have to be looked up."""
    followed: bool = False
    """Whether TEMP triggers of the user run after its changes: in front of those that record them, or behind."""
    interrupted: bool = False
    """Whether triggers of the user run before its inserts or updates."""
    computed: frozenset[int] = frozenset()
    """The columns that are computed from others."""

    @property
    def rowid(self) -> str | None:
        """A name for its rowid, if there is one."""
        if self.key:
            return None
        if self.alias is not None:
            return self.columns[self.alias]
        return next(iter(self.rowids), None)

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell its rows apart; none where SQL has no word for them."""
        return tuple(self.columns[at] for at in self.key) or (() if self.rowid is None else (self.rowid,))

    @property
    def rowids(self) -> tuple[str, ...]:
        """The words for the rowid that are not columns of their own."""
        taken = {column.lower() for column in self.columns}
        return tuple(word for word in ROWIDS if word not in taken)


@dataclass(slots=True)
class Slot:
    """What the functions that a table's triggers call share. A slot outlives its table, and serves another then."""

    number: int
    mode: str = "off"
    columns: int = 0
    key: frozenset[int] = frozenset()
    """Marks of the columns that are the key, or of a rowid that is none of them."""
    marks: set[int] = field(default_factory=set)
    """Marks of the columns that UPDATEs at work set. The same set for all slots of a connection."""
    held: list[Value] = field(default_factory=list)
    """Values of a row that is too wide for one call."""
    images: list[int | bytes | None] = field(default_factory=list)
    """What the trigger takes next, from the end. The same list for all slots of a connection."""
    _flags: dict[frozenset[int], Flags] = field(default_factory=dict)

    def serve(self, table: Table, mode: str) -> None:
        """Serves this table from now on."""
        self.mode = mode
        self.columns = len(table.columns)
        self.key = frozenset(mark(self.number, at) for at in key_columns(table))
        self.held.clear()
        self._flags.clear()

    def hold(self, first: int, *values: Value) -> int:
        """Keeps values of a row for the next call; `first` are its first."""
        if first:
            self.held.clear()  # Of a row that failed.
        self.held += values
        return 1

    def image(self) -> bytes:
        """A record of the values kept."""
        values = tuple(self.held)
        self.held.clear()
        return image(*values)

    def update(self, *values: Value) -> int:
        """Makes an update's images for the trigger to take. Returns: 0 if it is a delete and an insert instead."""
        if self.held:
            values = tuple(self.held)
            self.held.clear()
        marks = frozenset(self.marks)
        self.marks.clear()
        flags = self._flags.get(marks)
        if flags is None:
            flags = self._look_at(marks, values)
            if flags is None:
                return 0
        if self.mode == "full":
            self.images[:] = update_images(values[: self.columns], values[self.columns :], flags)
        elif self.mode != "id":
            self.images[:] = (image(*values),)
        return 1

    def _look_at(self, marks: frozenset[int], values: Sequence[Value]) -> Flags | None:
        """The flags of an update with marks not met before; None if it sets the key."""
        own = frozenset(at for at in marks if at // MOST_COLUMNS == self.number)
        self.marks.update(marks - own)  # Those of an update around this one.
        if self.key & own:
            return None
        columns = {at % MOST_COLUMNS for at in own}
        if not own and self.mode == "full":
            # Taken by an update of the same table that ran within this one, before it.
            columns = {at for at in range(self.columns) if values[at] != values[self.columns + at]}
        flags = flags_of(self.columns, frozenset(columns))
        if own == marks and (own or self.mode != "full"):
            if len(self._flags) >= MOST_KEPT:
                self._flags.clear()
            self._flags[marks] = flags
        return flags


def mark(slot: int, column: int) -> int:
    """The number that says that an UPDATE sets a column."""
    return slot * MOST_COLUMNS + column


def triggers(table: Table, slot: int, log: Log) -> Iterator[str]:
    """The triggers of a table, as SQL. They call the functions of a slot."""
    make = f"CREATE TEMP TRIGGER {PREFIX}{slot}"
    on = f"ON {quoted(table.schema)}.{quoted(table.name)}"
    of_key = ", ".join(map(quoted, key_names(table)))
    old, new = values_of(table, "old"), values_of(table, "new")
    insert = ImageRow(table, slot, log, "new", 1, after=new)
    delete = ImageRow(table, slot, log, "old", -1, before=old)
    yield f"{make}_insert AFTER INSERT {on} {insert.when} BEGIN {insert.sql}; END"
    # Before it, unless it may be forbidden, so that what it causes stands behind it.
    moment = "AFTER" if table.guarded else "BEFORE"
    yield f"{make}_delete {moment} DELETE {on} {delete.when} BEGIN {delete.sql}; END"

    wanted = {"id": (), "before": old, "after": new, "full": (*old, *new)}[log.mode]
    taken = tuple("tidegate_pop()" if log.mode in (column, "full") else "NULL" for column in _IMAGES)
    row = row_of(log, 0, table, "new", taken)
    yield f"{make}_update AFTER UPDATE {on} WHEN {call_of(f'tidegate_update_{slot}', slot, wanted)} BEGIN {row}; END"
    if of_key:
        yield f"{make}_rekey AFTER UPDATE OF {of_key} {on} BEGIN {delete.whole}; {insert.whole}; END"
    names: dict[int, tuple[str, ...]] = {}
    for at in key_columns(table):
        names[at] = (table.columns[at],) if table.key else key_names(table)
    if log.mode == "full":
        names |= {at: (name,) for at, name in enumerate(table.columns) if at not in names}
    for at, of in sorted(names.items()):
        columns = ", ".join(map(quoted, of))
        yield f"{make}_mark_{at} BEFORE UPDATE OF {columns} {on} BEGIN SELECT tidegate_mark({mark(slot, at)}); END"


def log_views(log: Log) -> Iterator[str]:
    """Views that write what is inserted into them to the log, as SQL: rows about the schema, and COMMITs."""
    into = f"INSERT INTO {quoted(log.name)}({', '.join(map(quoted, log.columns))}) VALUES({_own_id(log)}, unixepoch(), "
    columns = COLUMNS[2:]
    values = [f"new.{quoted(name)}" for name in columns]
    if log.version == "v2":
        values.insert(0, f"conn_txn_id({_next_id(log)})")
    yield f"CREATE TEMP VIEW {LOG_VIEW} AS SELECT {', '.join(f'NULL AS {quoted(name)}' for name in columns)}"
    yield _instead(LOG_VIEW, f"{into}{', '.join(values)})")
    if log.version == "v2":
        yield f"CREATE TEMP VIEW {COMMIT_VIEW} AS SELECT NULL AS change_txn_id"
        yield _instead(COMMIT_VIEW, f"{into}new.change_txn_id, 2, NULL, NULL, NULL, NULL, NULL)")


def _instead(view: str, row: str) -> str:
    return (
        f"CREATE TEMP TRIGGER {view}_write INSTEAD OF INSERT ON {view}"
        f" BEGIN SELECT tidegate_keep(changes()); {row}; END"
    )


_IMAGES: Final = ("before", "after", "updates")


class ImageRow:
    """A row of the log with one image, from values that may be too many for one call."""

    def __init__(
        self,
        table: Table,
        slot: int,
        log: Log,
        row: str,
        type: int,
        *,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> None:
        column, values = ("before", before) if before else ("after", after)
        if log.mode not in (column, "full"):
            values = ()
        wide = len(values) > MOST_ARGUMENTS
        call = f"tidegate_image_{slot}()" if wide else f"tidegate_image({', '.join(values)})"
        images = tuple(call if name == column and values else "NULL" for name in _IMAGES)
        self.sql = row_of(log, type, table, row, images)
        holds = holds_of(slot, values) if wide else ()
        self.when = f"WHEN {' AND '.join(holds)}" if holds else ""
        self.whole = "; ".join([*(f"SELECT {hold}" for hold in holds), self.sql])


def row_of(log: Log, type: int, table: Table, row: str, images: tuple[str, ...]) -> str:
    rowid = table.rowid
    into, values = entry(log, table, str(type), "NULL" if rowid is None else f"{row}.{quoted(rowid)}", images)
    return f"{into} VALUES({values})"


def entry(log: Log, table: Table, type: str, id: str, images: tuple[str, ...]) -> tuple[str, str]:
    """INSERT INTO a log, and what a row of it consists of, as SQL."""
    values = [_own_id(log), "unixepoch()"]
    if log.version == "v2":
        # The next id is looked up only for the first of a transaction.
        values.append(f"ifnull(tidegate_txn_id(), conn_txn_id({_next_id(log)}))")
    values += [type, text(table.name), id, *images]
    return f"INSERT INTO {quoted(log.name)}({', '.join(map(quoted, log.columns))})", ", ".join(values)


def _next_id(log: Log) -> str:
    """One more than the highest, whatever was removed: as Turso numbers, and not as AUTOINCREMENT does."""
    return f"ifnull((SELECT max(change_id) FROM {quoted(log.name)}), 0) + 1"


def _own_id(log: Log) -> str:
    """The next id for the row itself, which SQLite gives fastest when it is not asked."""
    return _next_id(log) if log.autoincrement else "NULL"


def key_names(table: Table) -> tuple[str, ...]:
    """What an UPDATE may call the key."""
    if table.key:
        return tuple(table.columns[at] for at in table.key)
    return (*(() if table.alias is None else (table.columns[table.alias],)), *table.rowids)


def key_columns(table: Table) -> tuple[int, ...]:
    """The columns of the key; one behind the last stands for a rowid that is no column."""
    if table.key or table.alias is not None or not table.rowids:
        return table.key if table.alias is None else (table.alias,)
    return (len(table.columns),)


def values_of(table: Table, row: str) -> tuple[str, ...]:
    return tuple(f"{row}.{quoted(column)}" for column in table.columns)


def call_of(function: str, slot: int, values: Sequence[str]) -> str:
    if len(values) <= MOST_ARGUMENTS:
        return f"{function}({', '.join(values)})"
    return " AND ".join([*holds_of(slot, values), f"{function}()"])


def holds_of(slot: int, values: Sequence[str]) -> tuple[str, ...]:
    parts = (values[at : at + MOST_ARGUMENTS] for at in range(0, len(values), MOST_ARGUMENTS))
    return tuple(f"tidegate_hold_{slot}({int(at == 0)}, {', '.join(part)})" for at, part in enumerate(parts))


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string in SQL."""
    return "'" + value.replace("'", "''") + "'"
