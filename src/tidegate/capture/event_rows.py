"""Rows of tables out of Debezium's events: what a table is by its events, and `Fold`: the last change of each key.

An update does not send large values that it leaves alone. They are in the row that it changes; where it changes the
key, which Debezium tells as a delete and an insert behind it, in the row that was deleted last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.capture.event_files import Record
from tidegate.capture.source import Change, Column, Patch, Rows, SourceTable
from tidegate.cdc.debezium import Changed
from tidegate.cdc.debezium_types import Field, row_of

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


class Fold:
    """Changes of rows, the last of each key."""

    def __init__(self, found: list[Change]) -> None:
        self.found = found
        self._rows: dict[str, tuple[EventTable, dict[tuple[Any, ...], tuple[Any, ...] | None]]] = {}
        self._moving: tuple[str, tuple[Any, ...], tuple[Any, ...] | None] | None = None
        """Table and key of what was deleted last, and the row that came in here before that."""

    @property
    def is_moving(self) -> bool:
        """Whether the next change may need the row that the last one deleted."""
        return self._moving is not None

    def came(self, table: EventTable, key: tuple[Any, ...], row: tuple[Any, ...]) -> None:
        self._moving = None
        self._of(table)[key] = row

    def gone(self, table: EventTable, key: tuple[Any, ...]) -> None:
        rows = self._of(table)
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
        if self.deleted_last(table) == was and self._moving is not None:  # It must still be there to be read.
            rows, before = self._of(table), self._moving[2]
            if before is None:
                del rows[was]
            else:
                rows[was] = before
        self.flush()
        self.found.append(Patch(table.name, [was], [row], [tuple(absent)]))
        if was != key:
            self.gone(table, was)
        self._moving = None

    def flush(self) -> None:
        for name, (_, rows) in self._rows.items():
            gone = [key for key, row in rows.items() if row is None]
            came = [row for row in rows.values() if row is not None]
            if gone:
                self.found.append(Rows(name, gone, is_delete=True))
            if came:
                self.found.append(Rows(name, came))
        self._rows.clear()
        self._moving = None

    def _of(self, table: EventTable) -> dict[tuple[Any, ...], tuple[Any, ...] | None]:
        return self._rows.setdefault(table.name, (table, {}))[1]


def name_of(table: str) -> str:
    """A table as users write it."""
    for each in _DEFAULTS:
        if table.startswith(each):
            return table.removeprefix(each)
    return table


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
