"""`KeptRows`: what a transaction larger than memory has written to tables so far, for updates that leave values out and
columns that are added with a value.

Such a transaction cannot be asked for its own changes: they are in the log, and do not count yet. They lie in a
temporary database of SQLite's, which is in memory as long as it is small, and goes when it is closed.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from tidegate.capture.source import SourceTable

Key = tuple[Any, ...]
_TABLE: Final = "CREATE TABLE kept (name TEXT, key BLOB, row BLOB, PRIMARY KEY (name, key)) WITHOUT ROWID"
_AT_ONCE: Final = 500
_MANY: Final = 50_000


class KeptRows:
    """Rows by table and key, as they are at this point; for one that went, that it did."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(_TABLE)
        self._db.execute("BEGIN")
        self._emptied: set[str] = set()

    def put(self, table: str, rows: Iterable[tuple[Key, Mapping[str, Any] | None]]) -> None:
        """Rows that came, and None for those that went."""
        found = ((table, written(key), None if row is None else pickle.dumps(row)) for key, row in rows)
        self._db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", found)

    def empty(self, table: str) -> None:
        """All rows of a table went, also those that were there before."""
        self._db.execute("DELETE FROM kept WHERE name = ?", [table])
        self._emptied.add(table)

    def find(self, table: str, keys: Sequence[Key]) -> tuple[dict[Key, Mapping[str, Any]], list[Key]]:
        """The rows that are here, and the keys of those that are as they were before the transaction."""
        found: dict[Key, Mapping[str, Any]] = {}
        before: list[Key] = []
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            asked = f"SELECT key, row FROM kept WHERE name = ? AND key IN ({_marks(some)})"
            here = dict(self._db.execute(asked, [table, *map(written, some)]))
            for key in some:
                at = written(key)
                if at not in here:
                    before.append(key)
                elif here[at] is not None:
                    found[tuple(key)] = pickle.loads(here[at])
        return found, [] if table in self._emptied else before

    def put_all(self, table: str, rows: pa.Table, key: Sequence[str]) -> None:
        """Rows by the names that columns have in the end."""
        for some in rows.to_batches(max_chunksize=_AT_ONCE):
            self.put(table, ((tuple(row[each] for each in key), row) for row in some.to_pylist()))

    def over(self, table: str, before: pa.Table, key: Sequence[str]) -> Iterator[pa.Table]:
        """All rows of a table at this point, part by part; `before` are those that it had before the transaction.

        Rows may be put meanwhile, as long as they are of keys that were given.
        """
        here = [each for (each,) in self._db.execute("SELECT key FROM kept WHERE name = ?", [table])]
        known = set(here)
        for some in before.to_batches(max_chunksize=_MANY) if table not in self._emptied else ():
            keys = zip(*(some.column(each).to_pylist() for each in key)) if key else [()] * some.num_rows
            yield pa.Table.from_batches([some.filter(pa.array([written(each) not in known for each in keys]))])
        for start in range(0, len(here), _AT_ONCE):
            some_keys = here[start : start + _AT_ONCE]
            asked = f"SELECT row FROM kept WHERE name = ? AND row NOT NULL AND key IN ({_marks(some_keys)})"
            rows = [pickle.loads(row) for (row,) in self._db.execute(asked, [table, *some_keys])]
            yield pa.Table.from_pylist(rows, before.schema)

    def close(self) -> None:
        self._db.close()


def by_key(
    rows: Any, shape: SourceTable, names: Mapping[str, str | None], *, is_delete: bool
) -> Iterator[tuple[Key, Mapping[str, Any] | None]]:
    """Rows, or keys, as `KeptRows` takes them; `names` is what columns are called in the end, None for none."""
    columns = list(shape.key) if is_delete else [each.name for each in shape.columns]
    if isinstance(rows, pa.RecordBatch | pa.Table):
        rows = zip(*(rows.column(each).to_pylist() for each in columns))
    at = [columns.index(each) for each in shape.key]
    goals = [names.get(each, each) for each in columns]
    for row in rows:
        key = tuple(row[each] for each in at)
        yield key, None if is_delete else {goal: value for goal, value in zip(goals, row) if goal is not None}


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def written(key: Key) -> bytes:
    """The same for equal keys."""
    return pickle.dumps([_plain(value) for value in key])


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Decimal):
        return str(value.normalize())
    return value
