"""`ChangeLog`: a change table, as queries, and `Reader`: what is asked of the connection that runs them.

Rows of a transaction become visible together, so a page that ends at a transaction's end may be followed by one of a
later read. Columns are selected by their names (capture.md rule 8).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from tidegate.capture.sqlite_triggers import quoted, text
from tidegate.cdc.change_table import KNOWN_KINDS, NO_TXN, ChangeRow, Extent, Kind, kind_of
from tidegate.cdc.position import NOTHING, LogPosition, LogState, Mark

_SEQUENCE: Final = "__turso_internal_autoincrement_"


_row: Final[Callable[[tuple[Any, ...]], ChangeRow]] = partial(tuple.__new__, ChangeRow)
"""`ChangeRow._make`, which takes twice as long."""


class Reader(ABC):
    """A connection that reads. Raises: `Unavailable` when the database cannot be read now, `SourceUnreadable`."""

    @abstractmethod
    def query(self, sql: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        """All rows."""

    @abstractmethod
    def stream(self, sql: str, size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """All rows, so many at a time."""

    @abstractmethod
    def begin(self) -> None:
        """What is read from now on is as of one moment, that of the first query."""

    @abstractmethod
    def end(self) -> None:
        """The end of such a moment; nothing if there is none."""

    @abstractmethod
    def version(self) -> object:
        """Another one if others have committed since; None if that cannot be told."""

    @abstractmethod
    def close(self) -> None: ...


class ChangeLog:
    """The queries to one change table."""

    def __init__(self, reader: Reader, name: str, *, has_watermark: bool) -> None:
        self.name = name
        self.is_concurrent = has_watermark
        """Whether writers may run side by side, so that their rows interleave."""
        self._reader = reader
        self._table = quoted(name)
        columns = {str(row[1]).lower() for row in reader.query(f"PRAGMA table_info({text(name)})")}
        self.has_transactions = "change_txn_id" in columns
        """Not in version 1."""
        txn = "change_txn_id" if self.has_transactions else "NULL"
        kind = f"ifnull(change_type, {int(Kind.COMMIT)})"
        self._columns = f'change_id, {kind}, {txn}, table_name, id, "before", "after", NULL, change_time'

    def _rows(self, rest: str, *values: Any) -> list[ChangeRow]:
        rows = self._reader.query(f"SELECT {self._columns} FROM {self._table} {rest}", *values)
        if {row[1] for row in rows} - KNOWN_KINDS:
            for row in rows:
                kind_of(row[1], row[0])
        return list(map(_row, rows))

    def page(self, after: int, size: int, upto: int | None = None) -> list[ChangeRow]:
        """Rows behind an id, in order."""
        if upto is None:
            return self._rows("WHERE change_id > ? ORDER BY change_id LIMIT ?", after, size)
        return self._rows("WHERE change_id > ? AND change_id <= ? ORDER BY change_id LIMIT ?", after, upto, size)

    def page_of(self, txn: int, after: int, size: int, upto: int) -> list[ChangeRow]:
        """Rows of one transaction behind an id, in order."""
        rest = "WHERE change_id > ? AND change_id <= ? AND change_txn_id = ? ORDER BY change_id LIMIT ?"
        return self._rows(rest, after, upto, txn, size)

    def end_of(self, txn: int | None, after: int) -> int:
        """The last id of the transaction that follows an id."""
        if txn is None:
            return self.last_id()
        upto = self._one(
            f"SELECT min(change_id) FROM {self._table} WHERE change_id > ? AND change_txn_id NOT IN (?, {NO_TXN})",
            after,
            txn,
        )
        if upto is None:
            return self.last_id()
        return int(self._one(f"SELECT max(change_id) FROM {self._table} WHERE change_id < ?", upto))

    def last_change(self, after: int, upto: int) -> ChangeRow | None:
        """The last row between two ids that is no COMMIT."""
        rest = "WHERE change_id > ? AND change_id <= ? AND change_type <> 2 ORDER BY change_id DESC LIMIT 1"
        found = self._rows(rest, after, upto)
        return found[0] if found else None

    def rows_of(self, table: str, after: int, upto: int, size: int = -1) -> list[ChangeRow]:
        """Changes of one table between two ids, in order."""
        rest = "WHERE change_id > ? AND change_id <= ? AND lower(table_name) = ? ORDER BY change_id LIMIT ?"
        return self._rows(rest, after, upto, table.lower(), size)

    def net_rows(self, table: str, after: int) -> int:
        """How many more rows came to a table than went, behind an id."""
        sql = f"SELECT sum(change_type) FROM {self._table} WHERE change_id > ? AND lower(table_name) = ?"
        return int(self._one(sql, after, table.lower()) or 0)

    def last_id(self, before: int | None = None) -> int:
        """The last id there is, or there is before another: ids of what was rolled back may be left out."""
        if before is None:
            return int(self._one(f"SELECT max(change_id) FROM {self._table}") or 0)
        return int(self._one(f"SELECT max(change_id) FROM {self._table} WHERE change_id < ?", before) or 0)

    def has_behind(self, id: int) -> bool:
        return self._one(f"SELECT 1 FROM {self._table} WHERE change_id > ? LIMIT 1", id) is not None

    def count_behind(self, id: int, most: int) -> int:
        """How many rows there are behind an id, COMMITs among them; no more than `most`."""
        sql = f"SELECT count(*) FROM (SELECT 1 FROM {self._table} WHERE change_id > ? LIMIT {most})"
        return int(self._one(sql, id))

    def first(self) -> ChangeRow | None:
        found = self._rows("ORDER BY change_id LIMIT 1")
        return found[0] if found else None

    def mark_at(self, id: int) -> Mark | None:
        found = self._rows("WHERE change_id = ?", id)
        return Mark.of(found[0]) if found else None

    def state(self, position: LogPosition) -> LogState:
        """What a position is compared with."""
        first = self.first()
        if first is None:
            return LogState(None, None, None, None, None, None)
        following = self._one(f"SELECT min(change_id) FROM {self._table} WHERE change_id > ?", position.id)
        mark = Mark.of(first)
        at_first = mark if mark.id == position.first.id else self.mark_at(position.first.id)
        return LogState(mark, first.time, self.last_id(), self.mark_at(position.last.id), at_first, following)

    def position(self, last: int) -> LogPosition:
        """Behind an id, in the first epoch."""
        row = self.last_change(0, last) or next(iter(self.page(last - 1, 1, last)), None)
        first = self.first()
        if row is None or first is None:
            return LogPosition(0, last, NOTHING, NOTHING, 0)
        return LogPosition(0, last, Mark.of(row), Mark.of(first), row.time or 0)

    # Where writers run side by side.

    def watermark(self) -> int:
        """Below this id no row appears any more."""
        found = self._one(f"SELECT sequence_watermark_experimental({text(_SEQUENCE + self.name)})")
        return self.last_id() + 1 if found is None else int(found)

    def extents(self, after: int) -> list[Extent]:
        """The transactions that have rows behind an id. Their first rows may be before it."""
        rows = self._reader.query(
            f"SELECT change_txn_id, min(change_id), max(change_id) FROM {self._table}"
            f" WHERE change_id > ? GROUP BY change_txn_id",
            after,
        )
        return [Extent(*row) for row in rows]

    def _one(self, sql: str, *values: Any) -> Any:
        rows = self._reader.query(sql, *values)
        return rows[0][0] if rows else None
