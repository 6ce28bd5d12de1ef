"""`copy_table`: the rows of a table as of one cut, into a target, within its transaction.

Into an empty table they are inserted. Where rows are there already, one that is equal stays, and one that is not is a
conflict, or is overwritten; rows with other keys stay as they are. A row that the target does not take is a conflict,
also when it says nothing and only has not counted it.

Rows that refer to each other, in circles or to others that come later, are turned away by a foreign key that the target
does not put off: `InCircles`. Then they are copied `loosely`, without what they refer to, and `complete_table` fills it
in when all of them are there: in those that the copy has written, whatever a trigger has made of them. Where the target
does not take them like that, as with a unique name among those that refer to nothing, they are held in memory and
arranged (`rows_to_copy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from tidegate.capture.conflict_text import STAYS, UNTAKEN, explain, forbidden
from tidegate.capture.references import References
from tidegate.capture.target import ApplyConflict, Conflict, Target, UndoPart, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Row, Work
from tidegate.clock.timestamp import Timestamp

_Look = Callable[[str, Sequence[Any]], list[Row]]
_THERE: Final = "a row with this key is there already, with other values"


class InCircles(UndoPart):
    """A row refers to one that is not there yet: copy the table loosely."""


class Tangled(UndoPart):
    """That does not go either, as a constraint forbids what the rows are for a moment: arrange them."""


def copy_table(
    target: Target,
    writer: TableWriter,
    batches: Iterable[pa.RecordBatch],
    policy: str,
    at: Timestamp,
    unwritten: set[Row],
    *,
    loosely: bool = False,
) -> Iterator[tuple[int, list[Conflict]]]:
    """Batch by batch: how many rows were written, and what was left out.

    To `unwritten` the keys of rows are added that were there before, or were left out. Raises: `ApplyConflict` unless
    the policy says otherwise; `InCircles`, unless it goes `loosely`; `Tangled`.
    """
    copy = _Copy(target, writer, policy, at, loosely=loosely)
    for rows, skipped, is_upsert in _new_rows(copy, target, writer, batches, policy, unwritten):
        left = copy.write([*map(writer.loosened, rows)] if loosely else rows, is_upsert=is_upsert)
        unwritten.update(tuple(each.key.values()) for each in left)
        yield len(rows) - len(left), [*skipped, *left]


def rows_to_copy(
    target: Target,
    writer: TableWriter,
    batches: Iterable[pa.RecordBatch],
    policy: str,
    at: Timestamp,
    unwritten: set[Row],
) -> Iterator[tuple[Work, list[Conflict]]]:
    """Batch by batch: what is to be written, and what is left out because of what is there. As `copy_table`."""
    copy = _Copy(target, writer, policy, at)
    for rows, skipped, is_upsert in _new_rows(copy, target, writer, batches, policy, unwritten):
        yield Work(upserts=rows) if is_upsert else Work(inserts=rows), skipped


def _new_rows(
    copy: _Copy,
    target: Target,
    writer: TableWriter,
    batches: Iterable[pa.RecordBatch],
    policy: str,
    unwritten: set[Row],
) -> Iterator[tuple[list[Row], list[Conflict], bool]]:
    is_empty = not target.run(writer.sql.any)
    for batch in batches:
        rows = writer.rows(pa.Table.from_batches([batch]))
        if not rows:
            continue
        skipped: list[Conflict] = []
        if not is_empty and writer.key and policy != "overwrite":
            keys = {*map(writer.sql.key_of, rows)}
            rows, skipped = copy.missing(rows)
            unwritten |= keys.difference(map(writer.sql.key_of, rows))
        yield rows, skipped, not is_empty and bool(writer.key) and policy == "overwrite"


def complete_table(
    target: Target,
    writer: TableWriter,
    batches: Iterable[pa.RecordBatch],
    policy: str,
    at: Timestamp,
    unwritten: set[Row],
    references: References,
) -> Iterator[tuple[int, list[Conflict]]]:
    """What rows refer to that were copied loosely, batch by batch: how many do not stay after all, and why.

    Raises: `ApplyConflict` unless the policy says otherwise.
    """
    copy = _Copy(target, writer, policy, at)
    for batch in batches:
        rows = writer.rows(pa.Table.from_batches([batch]))
        if rows := [each for each in rows if writer.sql.key_of(each) not in unwritten]:
            yield copy.complete(rows, references)


class _Copy:
    """Of one table."""

    def __init__(
        self, target: Target, writer: TableWriter, policy: str, at: Timestamp, *, loosely: bool | None = None
    ) -> None:
        self._target = target
        self._writer = writer
        self._policy = policy
        self._at = at
        self._loosely = loosely

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
            if self._loosely is not None and isinstance(error, Violation):
                self._is_in_the_way(error)
            return [found for row in rows if (found := self._write_one(statement, row)) is not None]

    def _is_in_the_way(self, violation: Violation) -> None:
        """Raises: `InCircles`, `Tangled` when rows may only have come too early, or not as they are in the end."""
        if self._loosely:
            if not violation.is_value:
                raise Tangled from violation
        elif violation.is_reference and self._writer.is_in_circles:
            raise InCircles if self._writer.loose and self._writer.key else Tangled

    def _write_one(self, statement: str, row: Row) -> Conflict | None:
        try:
            with self._target.savepoint("tidegate_row"):
                if self._target.many(statement, [row]) == 1:
                    return None
        except Violation as violation:
            return self._conflict(row, forbidden(violation, self._writer, self._target, row), None)
        return None if self._is_there(row) else self._conflict(row, UNTAKEN, None)

    def complete(self, rows: list[Row], references: References) -> tuple[int, list[Conflict]]:
        """Give rows what they refer to; how many had to go, and why."""
        sql, loose = self._writer.sql.some(self._writer.loose), self._writer.loose
        values = [(*[row[at] for at in loose], *self._writer.sql.key_of(row)) for row in rows]
        try:
            with self._target.savepoint():
                if self._target.many(sql, values) != len(rows):
                    raise UndoPart
            return 0, []
        except (UndoPart, Violation):
            pass
        gone = 0
        conflicts = []
        for row, given in zip(rows, values, strict=True):
            what = UNTAKEN
            try:
                with self._target.savepoint("tidegate_row"):
                    if self._target.many(sql, [given]) == 1:
                        continue
            except Violation as violation:
                what = forbidden(violation, self._writer, self._target, row)
            is_gone = self._remove(row, references)
            gone += is_gone
            conflicts.append(
                self._conflict(row, what, None)
                if is_gone
                else self._conflict(row, what + STAYS, self._writer.loosened(row))
            )
        return gone, conflicts

    def _remove(self, row: Row, references: References) -> bool:
        """Take a row out again. One that others refer to stays: it would take them with it, or they would forbid it."""
        sql = self._writer.sql
        if references.children(self._writer, sql.key_of(row)):
            return False
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
