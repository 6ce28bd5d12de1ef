"""Rows of tables out of Debezium's events: what a table is by its events, and `Fold`: the last change of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.capture.event_files import Record
from tidegate.capture.source import Change, Column, Rows, SourceTable
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

    def came(self, table: EventTable, key: tuple[Any, ...], row: tuple[Any, ...]) -> None:
        self._rows.setdefault(table.name, (table, {}))[1][key] = row

    def gone(self, table: EventTable, key: tuple[Any, ...]) -> None:
        self._rows.setdefault(table.name, (table, {}))[1][key] = None

    def flush(self) -> None:
        for name, (_, rows) in self._rows.items():
            gone = [key for key, row in rows.items() if row is None]
            came = [row for row in rows.values() if row is not None]
            if gone:
                self.found.append(Rows(name, gone, is_delete=True))
            if came:
                self.found.append(Rows(name, came))
        self._rows.clear()


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
