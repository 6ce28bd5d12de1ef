"""What updates have left out is looked up for many transactions at once: `groups` finds them, `LookedUp` has the rows.

A source does not send large values that an update leaves alone (`Patch`). Looked up transaction by transaction, each
would wait for the commit before it and cost a query of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture.kept_rows import Key, written
from tidegate.capture.source import Patch, Rows, SourceTransaction

if TYPE_CHECKING:
    from tidegate.database.result import Result

SMALL: Final = 64
"""Changes of a transaction that are looked through before any of them is written."""
TRANSACTIONS_MOST: Final = 256
ROWS_MOST: Final = 4_096
"""Of a group. What is left out is what makes rows large, so there is room for them."""

READ_AT_ONCE: Final = 500
Keys = dict[str, dict[bytes, Key]]
"""Keys of rows by table."""


class LookedUp:
    """Rows that a group of transactions asks for, as those that were taken so far have left them."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[bytes, Mapping[str, Any] | None]] = {}

    def learn(self, table: str, keys: Iterable[bytes], rows: Iterable[tuple[Key, Mapping[str, Any]]]) -> None:
        """Rows as they are before the group; of keys that have none, that there is none."""
        known = self._rows.setdefault(table, {})
        known.update(dict.fromkeys(keys))
        known.update((written(key), row) for key, row in rows)

    def has(self, change: Patch) -> bool:
        """Whether all is known that it left out."""
        known = self._rows.get(change.table)
        return known is not None and all(written(key) in known for key in change.keys)

    def find(self, change: Patch) -> dict[Key, Mapping[str, Any]]:
        """The rows that it takes values over from, as far as they are there. Ordering: behind `has`."""
        known = self._rows[change.table]
        found = ((tuple(key), known[written(key)]) for key in change.keys)
        return {key: row for key, row in found if row is not None}

    def asks_for(self, table: str) -> bool:
        """Whether `put` has to hear of its rows."""
        return table in self._rows

    def put(self, table: str, rows: Iterable[tuple[Key, Mapping[str, Any] | None]]) -> None:
        """Rows that came, and None for those that went."""
        known = self._rows[table]
        for key, row in rows:
            if (at := written(key)) in known:
                known[at] = row

    def clear(self) -> None:
        """Nothing is known from here on."""
        self._rows.clear()


def groups(transactions: Iterable[SourceTransaction]) -> Iterator[list[SourceTransaction]]:
    """Transactions one by one; but one that leaves values out together with those behind it that are at hand, are small
    and change rows alone. Raises: what `transactions` raises, behind all that it has given."""
    gathered: list[SourceTransaction] = []
    rows = 0
    try:
        for each in transactions:
            changes = iter(each.changes)
            first = list(islice(changes, SMALL))
            more = list(islice(changes, 1))
            whole = replace(each, changes=first if not more else chain(first, more, changes))
            is_simple = not more and all(isinstance(change, Rows | Patch) for change in first)
            joins = is_simple and (bool(gathered) or any(isinstance(change, Patch) for change in first))
            if joins:
                gathered.append(whole)
                rows += sum([len(change.rows) for change in first if isinstance(change, Rows | Patch)])
            if gathered and not (joins and len(gathered) < TRANSACTIONS_MOST and rows < ROWS_MOST):
                yield gathered
                gathered, rows = [], 0
            if not joins:
                yield [whole]
    except Exception:
        if gathered:
            yield gathered
        raise
    if gathered:
        yield gathered


def rows_by_key(
    ask: Callable[..., Result], table: str, key: Sequence[str], columns: Mapping[str, str], keys: Sequence[Key]
) -> dict[Key, Mapping[str, Any]]:
    """Rows of a table by their keys; `columns` are those to be had, with what they are called there."""
    selected = ", ".join(f"`{there}` AS `{name}`" for name, there in columns.items())
    names = [columns[each] for each in key]
    found: dict[Key, Mapping[str, Any]] = {}
    for start in range(0, len(keys), READ_AT_ONCE):
        some = keys[start : start + READ_AT_ONCE]
        where = f"`{names[0]}` IN ({', '.join('?' * len(some))})"
        if len(names) > 1:
            where = " OR ".join(["(" + " AND ".join(f"`{each}` = ?" for each in names) + ")"] * len(some))
        query = f"SELECT {selected} FROM `{table}` WHERE {where}"
        rows = ask(query, params=[value for each in some for value in each]).rows()
        found.update((tuple(row[each] for each in key), row) for row in rows)
    return found


def asked_for(group: Sequence[SourceTransaction]) -> tuple[Keys, dict[str, set[str]]]:
    """The keys of the rows that a group takes values over from, and the columns that it has left out, by table."""
    keys: Keys = {}
    columns: dict[str, set[str]] = {}
    for each in group:
        for change in each.changes:
            if isinstance(change, Patch):
                keys.setdefault(change.table, {}).update((written(key), key) for key in change.keys)
                columns.setdefault(change.table, set()).update(chain.from_iterable(change.absent))
    return keys, columns
