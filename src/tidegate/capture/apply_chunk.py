"""`ChunkWriter`: writes what a chunk does into the target's open transaction, and finds out what conflicts.

First all rows go in a few statements, each of which says what the rows must have been before, and changes as many rows
as it should when there is no conflict. If it does not, or a constraint is violated, that is undone, and they go in an
order in which none stands in another's way (`apply_in_turn`).

Foreign keys of the target may do something themselves, as ON DELETE CASCADE does. Rows that they would act on go last:
by then those that refer to them do not any more. What they have done within the chunk all the same is no conflict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.capture.apply_in_turn import InTurn, Parts
from tidegate.capture.target import Conflict, Target, UndoPart, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Row
from tidegate.clock.timestamp import Timestamp


class ChunkWriter:
    """Of one target. `order` are the tables, parents first."""

    def __init__(self, target: Target, policy: str, order: Sequence[str], writers: Mapping[str, TableWriter]) -> None:
        self._target = target
        self._policy = policy
        self._order = order
        self._writers = writers

    def write(self, parts: Parts, at: Timestamp, *, is_checked: bool = False, in_turn: bool = False) -> list[Conflict]:
        """Write a chunk whose last transaction is at `at`; the changes that were left out.

        `is_checked` looks for rows whose foreign keys do not hold, where they are put off; `in_turn` does not try to
        write all rows at once. Raises: `ApplyConflict` unless the policy is to skip; what the target raises.
        """
        for deletes_last in () if is_checked or in_turn else (False, True):
            try:
                with self._target.savepoint():
                    self._at_once(parts, deletes_last=deletes_last)
                return []
            except UndoPart:
                break
            except Violation as violation:
                if violation.is_unique:
                    break
                # Maybe a row went to which others refer until they change: where foreign keys are not put off, it must
                # go after that.
        return InTurn(self._target, self._policy, at, self._order, self._writers, is_checked=is_checked).write(parts)

    def _at_once(self, parts: Parts, *, deletes_last: bool) -> None:
        last = {each for each in self._order if deletes_last or self._writers[each].shape.is_acted_on}
        self._delete_all(parts, [each for each in self._order if each not in last])
        many = self._target.many
        for table in self._order:
            writer = self._writers[table]
            sql = writer.sql
            for work in parts(table):
                if work.updates:
                    self._all(sql.update_same, [sql.updates(*each) for each in work.updates])
                if work.inserts:
                    self._all(sql.insert, work.inserts)
                if work.upserts and len(writer.names) > len(writer.key):
                    self._all(sql.upsert, work.upserts)
                elif work.upserts:
                    many(sql.upsert, work.upserts)  # A row that is there stays, and is not counted.
        self._delete_all(parts, [each for each in self._order if each in last])

    def _delete_all(self, parts: Parts, tables: Sequence[str]) -> None:
        for table in reversed(tables):
            sql = self._writers[table].sql
            for work in parts(table):
                if not work.deletes:
                    continue
                if self._policy == "overwrite":
                    self._target.many(sql.delete, [key for key, _ in work.deletes])
                    continue
                rows = [sql.deletes(key, before) for key, before in work.deletes if before is not None]
                self._all(sql.delete_same, rows)

    def _all(self, statement: str, rows: list[Row]) -> None:
        """Raises: `UndoPart` when a row was not as it should be."""
        if self._target.many(statement, rows) != len(rows):
            raise UndoPart
