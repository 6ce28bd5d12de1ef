"""In which order the triggers of a table run: SQLite keeps TEMP triggers by the hashes of their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidegate.capture.sqlite_triggers import PREFIX, Table, quoted, text
from tidegate.capture.statements import moment

Query = Callable[[str], Sequence[Sequence[Any]]]

_BEGINS: Final = "-- TRIGGER "
"""How SQLite says in a program of its own that a trigger begins."""


def temporary_in_front(query: Query, table: Table, slot: int) -> bool:
    """Whether a TEMP trigger of the user runs before the one that records what it runs for."""
    rows = query(
        "SELECT CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_temp_schema"
        f" WHERE type = 'trigger' AND tbl_name = {text(table.name)} COLLATE NOCASE"
    )
    moments = {name.decode().lower(): moment(sql.decode()) for name, sql in rows}
    name = f"{quoted(table.schema)}.{quoted(table.name)}"
    columns = [column for at, column in enumerate(table.columns) if at not in table.computed]
    every = ", ".join(f"{quoted(column)} = {quoted(column)}" for column in columns)
    for event, statement in (
        ("INSERT", f"INSERT INTO {name} DEFAULT VALUES"),
        ("DELETE", f"DELETE FROM {name}"),
        ("UPDATE", f"UPDATE {name} SET {every}"),
    ):
        order = [each for each in _order(query, statement) if moments.get(each) == ("AFTER", event)]
        own = [each.startswith(f"{PREFIX}{slot}_") for each in order]
        if own != sorted(own, reverse=True):
            return True
    return False


def _order(query: Query, statement: str) -> list[str]:
    """The triggers that a statement runs, in order, and behind them those that they run: each once."""
    notes = [str(row[5]) for row in query(f"EXPLAIN {statement}") if row[1] == "Init" and row[5] is not None]
    return list(dict.fromkeys(note.removeprefix(_BEGINS).lower() for note in notes if note.startswith(_BEGINS)))
