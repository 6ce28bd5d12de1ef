"""What a chunk does to the rows of a target: `Parts`; and what they were before: `Before`.

Rows are asked for and made Python's in parts that are bounded, however large a transaction is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidegate.capture.apply_feed import Window
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Row, Work, plan
from tidegate.clock.timestamp import Timestamp
from tidegate.database.cut_reader import TableAt
from tidegate.errors import Truncated
from tidegate.tables.changes import net
from tidegate.tables.schema import OP, Table

if TYPE_CHECKING:
    from tidegate.database.replication_calls import ReplicationCalls

PART_ROWS: Final = 10_000
"""How many rows of a large transaction are Python's at a time."""
_TABLE: Final = "asked table"
_KEYS: Final = "asked keys"
"""What the query calls them: no table has a blank in its name, so none of the database is taken for one of them."""


def rows_before(
    db: ReplicationCalls, table: Table, at: Timestamp, writer: TableWriter, keys: pa.Table
) -> dict[Row, Row]:
    """The rows with these keys as they were at a time, as the target has them, by their keys.

    Raises: `Truncated` when that is not known any more.
    """
    if not table.existed(at):
        return {}
    then = table.at(at)
    now = {each.id: each.name for each in writer.schema.columns}
    given = keys.rename_columns([f"k{number}" for number in range(keys.num_columns)])
    same = " AND ".join(f"t.{name_sql(each.name)} = g.k{number}" for number, each in enumerate(then.key_columns))
    try:
        found = db.cut_reader.query(
            f"SELECT t.* FROM {name_sql(_TABLE)} AS t JOIN {name_sql(_KEYS)} AS g ON {same}",
            {_TABLE: TableAt(table, at)},
            given={_KEYS: given},
        )
    except Truncated as error:
        raise Truncated(
            f"table {table.name!r}: what its rows were at {at}, where the target is, is not known any more"
            f" ({error}); go on with policy='overwrite', which does not ask, or start anew with restart=True"
        ) from error
    kept = [each for each in then.columns if each.id in now]
    found = found.select([each.name for each in kept]).rename_columns([now[each.id] for each in kept])
    rows = writer.rows(found)
    return dict(zip(map(writer.sql.key_of, rows), rows, strict=True))


def name_sql(name: str) -> str:
    """A name in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


Pairs = list[tuple[Row, Row | None]]
"""Keys, and the rows that they have then; None when they have none."""


class Before:
    """What the rows of a window were at the target's position, which moves on with each chunk."""

    def __init__(
        self,
        db: ReplicationCalls,
        writers: Callable[[str], TableWriter],
        tables: Mapping[str, Table],
        window: Window,
        kept_rows: int,
    ) -> None:
        """`kept_rows` is how many rows are asked for at once and kept."""
        self._db = db
        self._writer = writers
        self._tables = tables
        self._window = window
        self._at = window.after
        self._is_kept = int(window.rows.sum()) <= kept_rows
        """Else there is a large transaction in it, and what it needs is asked for part by part."""
        self._kept: dict[str, dict[Row, Row]] = {}

    def of(self, table: str, changes: pa.Table) -> Mapping[Row, Row]:
        """The rows with the keys of these changes, and maybe others."""
        writer = self._writer(table)
        key = [each.name for each in writer.schema.key_columns]
        if not self._is_kept:
            return rows_before(self._db, self._tables[table], self._at, writer, changes.select(key))
        if table not in self._kept:
            every = net(self._window.changes[table], key).select(key)
            self._kept[table] = rows_before(self._db, self._tables[table], self._window.after, writer, every)
            if self._at > self._window.after:
                self._move(table, int(self._window.after) + 1, int(self._at))
        return self._kept[table]

    def moved(self, last: int) -> None:
        """Everything up to a Timestamp is at the target now."""
        first, self._at = int(self._at) + 1, Timestamp(last)
        for table in self._kept:
            self._move(table, first, last)

    def _move(self, table: str, first: int, last: int) -> None:
        kept = self._kept[table]
        for pairs in _pairs(self._writer(table), self._window.between(table, first, last)):
            for key, after in pairs[1]:
                if after is None:
                    kept.pop(key, None)
                else:
                    kept[key] = after


class Parts:
    """What a chunk does to each table, in parts that are no larger than memory likes."""

    def __init__(
        self,
        writers: Callable[[str], TableWriter],
        window: Window,
        first: int,
        last: int,
        before: Before | None,
    ) -> None:
        self._writer = writers
        self._window = window
        self._span = first, last
        self._before = before
        self._known: dict[str, list[Work]] = {}

    def of(self, table: str) -> Iterable[Work]:
        if table not in self._window.changes:
            return ()
        found = self._known.get(table)
        if found is None:
            changes = self._window.between(table, *self._span)
            if changes.num_rows > PART_ROWS:
                return self._works(table, changes)  # Not kept: made anew whenever it is asked for.
            found = self._known[table] = list(self._works(table, changes))
        return found

    def _works(self, table: str, changes: pa.Table) -> Iterator[Work]:
        writer = self._writer(table)
        for part, pairs in _pairs(writer, changes):
            if not writer.key:
                yield Work(inserts=[after for _, after in pairs if after is not None])
            else:
                yield plan(pairs, None if self._before is None else self._before.of(table, part))


def _pairs(writer: TableWriter, changes: pa.Table) -> Iterator[tuple[pa.Table, Pairs]]:
    """Changes, of each key the last, in parts, as Arrow and as the target has them."""
    changes = net(changes, [each.name for each in writer.schema.key_columns])
    for start in range(0, changes.num_rows, PART_ROWS):
        part = changes.slice(start, PART_ROWS)
        rows = writer.rows(part)
        is_there = part.column(OP).to_pylist()
        keys = map(writer.sql.key_of, rows)
        yield part, [(key, row if op > 0 else None) for key, row, op in zip(keys, rows, is_there, strict=True)]
