"""`copy_table`: the rows of a table as of one cut, into a target, within its transaction.

Into an empty table they are inserted. Where rows are there already, one that is equal stays, and one that is not is a
conflict, or is overwritten; rows with other keys stay as they are. A row that the target does not take is a conflict,
also when it says nothing and only has not counted it.

Rows that refer to each other, in circles or to others that come later, are turned away by a foreign key that the target
does not put off: `InCircles`. Then they are copied `loosely`, without what they refer to, and `complete_table` fills it
in when all of them are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from tidegate.capture.apply_in_turn import UNTAKEN, explain, forbidden
from tidegate.capture.target import ApplyConflict, Conflict, Target, UndoPart, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Row
from tidegate.clock.timestamp import Timestamp

_Look = Callable[[str, Sequence[Any]], list[Row]]
_THERE: Final = "a row with this key is there already, with other values"


class InCircles(UndoPart):
    """A row refers to one that is not there yet: copy the table loosely."""


def copy_table(
    target: Target,
    writer: TableWriter,
    batches: Iterable[pa.RecordBatch],
    policy: str,
    at: Timestamp,
    *,
    loosely: bool = False,
) -> Iterator[tuple[int, list[Conflict]]]:
    """Batch by batch: how many rows were written, and what was left out.

    Raises: `ApplyConflict` unless the policy says otherwise; `InCircles`, unless it goes `loosely`.
    """
    copy = _Copy(target, writer, policy, at, may_loosen=bool(writer.loose and writer.key) and not loosely)
    is_empty = not target.run(writer.sql.any)
    for batch in batches:
        rows = writer.rows(pa.Table.from_batches([batch]))
        if not rows:
            continue
        skipped: list[Conflict] = []
        if not is_empty and writer.key and policy != "overwrite":
            rows, skipped = copy.missing(rows)
        is_upsert = not is_empty and bool(writer.key) and policy == "overwrite"
        left = copy.write([*map(writer.loosened, rows)] if loosely else rows, is_upsert=is_upsert)
        yield len(rows) - len(left), [*skipped, *left]


def complete_table(
    target: Target, writer: TableWriter, batches: Iterable[pa.RecordBatch], policy: str, at: Timestamp
) -> Iterator[tuple[int, list[Conflict]]]:
    """What rows refer to that were copied loosely, batch by batch: how many do not stay after all, and why.

    Raises: `ApplyConflict` unless the policy says otherwise.
    """
    copy = _Copy(target, writer, policy, at)
    for batch in batches:
        if rows := writer.rows(pa.Table.from_batches([batch])):
            yield copy.complete(rows)


class _Copy:
    """Of one table."""

    def __init__(
        self, target: Target, writer: TableWriter, policy: str, at: Timestamp, *, may_loosen: bool = False
    ) -> None:
        self._target = target
        self._writer = writer
        self._policy = policy
        self._at = at
        self._may_loosen = may_loosen

    def missing(self, rows: Sequence[Row]) -> tuple[list[Row], list[Conflict]]:
        """Those that are not there, and what is there with other values."""
        try:
            with self._target.savepoint():
                return self._missing(rows, self._target.run)
        except Violation:
            return self._missing(rows, self._look)

    def _missing(self, rows: Sequence[Row], look: _Look) -> tuple[list[Row], list[Conflict]]:
        sql = self._writer.sql
        missing: list[Row] = []
        skipped: list[Conflict] = []
        for row in rows:
            key = sql.key_of(row)
            if not (found := look(sql.select, key)):
                missing.append(row)
            elif not look(sql.select_same, sql.deletes(key, row)):
                skipped.append(self._conflict(row, _THERE, found[0]))
        return missing, skipped

    def write(self, rows: list[Row], *, is_upsert: bool) -> list[Conflict]:
        """Write rows at once; one by one if the target does not take them all, and then those that it does not."""
        writer = self._writer
        statement = writer.sql.upsert if is_upsert else writer.sql.insert
        # Where there is nothing but the key, a row that is there stays and is not counted.
        is_counted = not is_upsert or len(writer.names) > len(writer.key)
        try:
            with self._target.savepoint():
                if rows and self._target.many(statement, rows) != len(rows) and is_counted:
                    raise UndoPart
            return []
        except (UndoPart, Violation) as error:
            if self._may_loosen and isinstance(error, Violation) and error.is_reference:
                raise InCircles from error
            return [found for row in rows if (found := self._write_one(statement, row)) is not None]

    def _write_one(self, statement: str, row: Row) -> Conflict | None:
        try:
            with self._target.savepoint("tidegate_row"):
                if self._target.many(statement, [row]) == 1:
                    return None
        except Violation as violation:
            return self._conflict(row, forbidden(violation, self._writer, self._target, row), None)
        return None if self._is_there(row) else self._conflict(row, UNTAKEN, None)

    def complete(self, rows: list[Row]) -> tuple[int, list[Conflict]]:
        """Give rows what they refer to; how many had to go, and why."""
        try:
            with self._target.savepoint():
                if self._target.many(self._writer.sql.update_same, [self._completion(row) for row in rows]) != len(
                    rows
                ):
                    raise UndoPart
            return 0, []
        except (UndoPart, Violation):
            pass
        gone = 0
        conflicts = []
        for row in rows:
            found, is_gone = self._complete_one(row)
            gone += is_gone
            if found is not None:
                conflicts.append(found)
        return gone, conflicts

    def _completion(self, row: Row) -> Row:
        sql = self._writer.sql
        return sql.updates(sql.key_of(row), self._writer.loosened(row), row)

    def _complete_one(self, row: Row) -> tuple[Conflict | None, bool]:
        """What there is against it, and whether the row had to go for that."""
        sql = self._writer.sql
        what = UNTAKEN
        try:
            with self._target.savepoint("tidegate_row"):
                if self._target.many(sql.update_same, [self._completion(row)]) == 1:
                    return None, False
            if not self._is_there(self._writer.loosened(row)):
                return None, False  # It was there before, as it should be or as a conflict that is known.
        except Violation as violation:
            what = forbidden(violation, self._writer, self._target, row)
        if self._remove(row):
            return self._conflict(row, what, None), True
        what += "; it is there without what it refers to, as others refer to it"
        return self._conflict(row, what, self._writer.loosened(row)), False

    def _remove(self, row: Row) -> bool:
        sql = self._writer.sql
        try:
            with self._target.savepoint("tidegate_row"):
                return self._target.many(sql.delete, [sql.key_of(row)]) == 1
        except Violation:
            return False

    def _look(self, statement: str, values: Sequence[Any]) -> list[Row]:
        try:
            with self._target.savepoint("tidegate_look"):
                return self._target.run(statement, values)
        except Violation:
            return []  # It cannot even be asked for.

    def _is_there(self, row: Row) -> bool:
        sql = self._writer.sql
        key = sql.key_of(row)
        return bool(key) and bool(self._look(sql.select_same, sql.deletes(key, row)))

    def _conflict(self, row: Row, what: str, there: Row | None) -> Conflict:
        """Raises: `ApplyConflict`, unless conflicts are skipped."""
        writer = self._writer
        key = writer.shown_key(writer.sql.key_of(row))
        conflict = Conflict(writer.name, key, what, writer.shown(there), None, writer.shown(row), self._at)
        if self._policy != "skip":
            text = explain(conflict, self._target, self._policy)
            raise ApplyConflict(text, conflict=conflict, target=self._target.shown)
        return conflict
