"""Rows of tables out of Debezium's events: what a table is by its events, and `Fold`: the last change of each key.

An update does not send large values that it leaves alone. They are in the row that it changes; where it changes the
key, which Debezium tells as a delete and an insert behind it, in the row that was deleted last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.capture.event_files import Record
from tidegate.capture.source import Change, Column, Patch, Rows, SourceTable
from tidegate.cdc.debezium import Changed
from tidegate.cdc.debezium_types import Field, row_of
from tidegate.errors import SourceUnreadable

_DEFAULTS: Final = ("public.", "dbo.")
"""Schemas that nobody writes."""


@dataclass(slots=True)
class EventTable:
    """A table, as far as events have told."""

    name: str
    fields: list[Field]
    key: tuple[str, ...]
    schema: Sequence[Mapping[str, Any]] | None = None
    """As an event has it, to be compared with the next one's."""

    @property
    def table(self) -> SourceTable:
        columns = tuple(Column(each.name, each.type, each.name not in self.key) for each in self.fields)
        return SourceTable(self.name, columns, self.key)

    def key_of(self, image: Mapping[str, Any]) -> tuple[Any, ...]:
        by_name = {each.name: each for each in self.fields}
        return row_of(self.name, [by_name[each] for each in self.key], image)


@dataclass(slots=True)
class _Pending:
    """What is to be done to one table: first the rows that lack values, all read before any is written."""

    patches: dict[tuple[Any, ...], tuple[tuple[Any, ...], tuple[str, ...]]] = field(default_factory=dict)
    """By the key under which the rest of each is: the row, and what it lacks."""
    patched: set[tuple[Any, ...]] = field(default_factory=set)
    """The keys that they have themselves."""
    rows: dict[tuple[Any, ...], tuple[Any, ...] | None] = field(default_factory=dict)
    """By key the last row, behind the patches; None for what went."""


class Fold:
    """Changes of rows, the last of each key."""

    def __init__(self, found: list[Change]) -> None:
        self.found = found
        self._pending: dict[str, _Pending] = {}
        self._moving: tuple[str, tuple[Any, ...], tuple[Any, ...] | None] | None = None
        """Table and key of what was deleted last, and the row that came in here before that."""

    def came(self, table: EventTable, key: tuple[Any, ...], row: tuple[Any, ...]) -> None:
        self._moving = None
        self._of(table).rows[key] = row

    def gone(self, table: EventTable, key: tuple[Any, ...]) -> None:
        rows = self._of(table).rows
        self._moving = table.name, key, rows.get(key)
        rows[key] = None

    def deleted_last(self, table: EventTable) -> tuple[Any, ...] | None:
        """The key of the row of this table that the last change deleted, if it did."""
        return self._moving[1] if self._moving is not None and self._moving[0] == table.name else None

    def patched(
        self,
        table: EventTable,
        was: tuple[Any, ...],
        key: tuple[Any, ...],
        row: tuple[Any, ...],
        absent: Sequence[str],
    ) -> None:
        """A row comes without values that are in the row with the key `was`, which goes if that is another one."""
        at = self._of(table)
        if self.deleted_last(table) == was and self._moving is not None:  # It must still be there to be read.
            before = self._moving[2]
            if before is None:
                del at.rows[was]
            else:
                at.rows[was] = before
        # It is read with the others unless one of them, or what stands behind them, has to be written first.
        if was in at.rows or was in at.patches or was in at.patched or key in at.patched:
            self.flush()
            at = self._of(table)
        at.rows.pop(key, None)  # Whatever was there is replaced, and would otherwise be written behind it.
        at.patches[was] = row, tuple(absent)
        at.patched.add(key)
        if was != key:
            at.rows[was] = None
        self._moving = None

    def flush_all_but_moving(self) -> None:
        """Give what is there, but for the last delete: the next change may need the row."""
        moving = self._moving
        if moving is not None:
            name, key, before = moving
            rows = self._pending[name].rows
            if before is None:
                del rows[key]
            else:
                rows[key] = before
        self.flush()
        if moving is not None:
            self._pending[name] = _Pending()
            self._pending[name].rows[key] = None
            self._moving = name, key, None

    def flush(self) -> None:
        for name, at in self._pending.items():
            gone = [key for key, row in at.rows.items() if row is None]
            came = [row for row in at.rows.values() if row is not None]
            if at.patches:
                rows, absent = zip(*at.patches.values(), strict=True)
                self.found.append(Patch(name, list(at.patches), list(rows), list(absent)))
            if gone:
                self.found.append(Rows(name, gone, is_delete=True))
            if came:
                self.found.append(Rows(name, came))
        self._pending.clear()
        self._moving = None

    def _of(self, table: EventTable) -> _Pending:
        return self._pending.setdefault(table.name, _Pending())


def name_of(table: str) -> str:
    """A table as users write it."""
    for each in _DEFAULTS:
        if table.startswith(each):
            return table.removeprefix(each)
    return table


@dataclass(slots=True)
class Names:
    """What tables are called: with their database in front when there are several, and one alone needs none."""

    database: str = ""
    """The only one so far."""
    is_with: bool = False
    """Whether all names are with their databases."""

    def of(self, event: Changed, is_captured: Callable[[str], bool]) -> str:
        """Raises: `SourceUnreadable` for a captured table of another database than the only one so far."""
        name, database = name_of(event.table), database_of(event)
        if not database or database == self.database:
            return name
        if self.is_with:
            return f"{database}.{name}"
        if not is_captured(name):
            return name
        if self.database:
            raise SourceUnreadable(
                f"table {name!r} of database {database!r}: all events so far were of database {self.database!r}, whose"
                f" tables are here without its name; name those to capture with their databases and take a new"
                f' snapshot: tables=["{self.database}...", "{database}.{name}"], restart=True'
            )
        self.database = database
        return name


def database_of(event: Changed) -> str:
    """The database of an event whose connector may have several, else nothing."""
    source = event.source
    return "" if source.get("connector") == "postgresql" else str(source.get("db") or "")


def schema_of(record: Record, event: Changed) -> Sequence[Mapping[str, Any]] | None:
    """What an event's own schema says of its rows, if it has one."""
    schema = (record.value or {}).get("schema")
    if not isinstance(schema, Mapping):
        return None
    wanted = "before" if event.op == "delete" else "after"
    for each in schema.get("fields") or ():
        if each.get("field") == wanted and each.get("fields"):
            fields: Sequence[Mapping[str, Any]] = each["fields"]
            return fields
    return None
