"""`ChunkWriter`: writes what a chunk does into the target's open transaction, and finds out what conflicts.

First all rows go in a few statements, each of which says what the rows must have been before, and changes as many rows
as it should when there is no conflict. If it does not, or a constraint is violated, that is undone and the rows go one
by one: then it shows which row conflicts, and rows that only stood in each other's way, as two that exchange the values
of a unique column, wait until there is room for them.

Foreign keys of the target may do something themselves, as ON DELETE CASCADE does. Rows that they would act on go last:
by then those that refer to them do not any more. What they have done within the chunk all the same is no conflict.

Rows that refer to each other in circles, where foreign keys are not put off, come and go without what they refer to
(`TableWriter.loose`), which is NULL for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tidegate.capture.target import ApplyConflict, Conflict, Target, UndoPart, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Row, Work
from tidegate.clock.timestamp import Timestamp

Parts = Callable[[str], Iterable[Work]]
"""What is to be done to a table, in pieces that fit into memory. Asked for more than once."""

_OTHER: Final = "the row has other values than it had here before the change"
_MISSING: Final = "the row to be changed is not there"
_THERE: Final = "a row with this key is there already"
_TAKEN: Final = "a foreign key of the target deletes the row, and what its own columns hold, before it can be changed"
UNTAKEN: Final = "the target has not taken the row, and said nothing: a trigger of it may have turned it away"


@dataclass(slots=True)
class _Step:
    """What one row becomes."""

    writer: TableWriter
    key: Row
    before: Row | None
    """What it was; None for no row, or when nobody has looked."""
    after: Row | None
    """None when it goes."""
    is_known: bool = True
    """Whether somebody has looked."""
    violation: Violation | None = None
    """Why it has to wait."""
    aside: Literal["", "parked", "removed", "loosened"] = ""
    """What was done to make room for others: its unique columns are NULL, or it is gone for now; or it is there without
    what it refers to."""
    was_right: bool = False
    """Whether it was what it should be when the chunk began: since then only the target's own actions change it."""
    why: str = ""
    """Why it cannot make room for others."""


class ChunkWriter:
    """Of one target. `order` are the tables, parents first."""

    def __init__(self, target: Target, policy: str, order: Sequence[str], writers: Mapping[str, TableWriter]) -> None:
        self._target = target
        self._policy = policy
        self._order = order
        self._writers = writers

    def write(self, parts: Parts, at: Timestamp, *, one_by_one: bool = False) -> list[Conflict]:
        """Write a chunk whose last transaction is at `at`; the changes that were left out.

        Raises: `ApplyConflict` unless the policy is to skip; what the target raises.
        """
        for deletes_last in () if one_by_one else (False, True):
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
        return _OneByOne(self._target, self._policy, at).write(parts, self._order, self._writers)

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


class _OneByOne:
    """One chunk, row by row."""

    def __init__(self, target: Target, policy: str, at: Timestamp) -> None:
        self._target = target
        self._policy = policy
        self._at = at
        self._skipped: list[Conflict] = []
        self._waiting: list[_Step] = []
        self._right: set[tuple[str, Row]] = set()
        """Rows, by table and key, that were as they should be."""

    def write(self, parts: Parts, order: Sequence[str], writers: Mapping[str, TableWriter]) -> list[Conflict]:
        acted_on = [each for each in order if writers[each].shape.is_acted_on]
        for table in order:
            if writers[table].shape.is_acting:
                self._look(writers[table], parts(table))
        self._delete(parts, [each for each in order if each not in acted_on], writers)
        for table in order:
            writer = writers[table]
            for work in parts(table):
                for key, there, after in work.updates:
                    self._first(_Step(writer, key, there, after, was_right=(table, key) in self._right))
                for after in work.inserts:
                    self._first(_Step(writer, writer.sql.key_of(after), None, after))
                for after in work.upserts:
                    self._first(_Step(writer, writer.sql.key_of(after), None, after, is_known=not writer.key))
        for step in self._waiting:
            if not step.is_known and step.writer.own and step.writer.shape.is_acting:
                step.was_right = self._row(step) is not None
        self._delete(parts, acted_on, writers)
        self._wait()
        for step in self._waiting:
            self._give_up(step)
        return self._skipped

    def _look(self, writer: TableWriter, works: Iterable[Work]) -> None:
        """Note which rows are as they should be, before anything is done."""
        for work in works:
            known = [(key, before) for key, before in work.deletes if before is not None]
            for key, before in (*known, *((key, before) for key, before, _ in work.updates)):
                if self._found(writer.sql.select_same, writer.sql.deletes(key, before)):
                    self._right.add((writer.name, key))

    def _delete(self, parts: Parts, tables: Sequence[str], writers: Mapping[str, TableWriter]) -> None:
        for table in reversed(tables):
            for work in parts(table):
                for key, before in work.deletes:
                    was_right = (table, key) in self._right
                    is_known = before is not None
                    self._first(_Step(writers[table], key, before, None, is_known=is_known, was_right=was_right))

    # -- one row ---------------------------------------------------------------------------------------------------

    def _try(self, statement: str, row: Row) -> int | Violation:
        """How many rows were changed, or why none could be."""
        try:
            with self._target.savepoint("tidegate_row"):
                return self._target.many(statement, [row])
        except Violation as violation:
            return violation

    def _attempt(self, step: _Step) -> int | Violation:
        if step.was_right and not step.is_known and self._row(step) is None:
            return 0  # It would come again without what the target's own columns had.
        found = self._as_planned(step)
        if found != 0 or not step.was_right or step.aside:
            return found
        # The target's own foreign keys have changed the row, or taken it, since the chunk began.
        sql, after = step.writer.sql, step.after
        is_there = self._row(step) is not None
        if after is None:
            return self._try(sql.delete, step.key) if is_there else 1
        if is_there:
            return self._try(sql.update, sql.update_only(step.key, after))
        return 0 if step.writer.own else self._try(sql.insert, after)

    def _as_planned(self, step: _Step) -> int | Violation:
        sql, key, before, after = step.writer.sql, step.key, step.before, step.after
        if after is None:
            if not step.is_known or step.aside:
                return self._try(sql.delete, key)
            return self._try(sql.delete_same, sql.deletes(key, before or ()))
        if step.aside in ("parked", "loosened"):
            return self._try(sql.update, sql.update_only(key, after))
        if not step.is_known:
            return self._try(sql.upsert, after)
        if before is None or step.aside == "removed":
            return self._try(sql.insert, after)
        return self._try(sql.update_same, sql.updates(key, before, after))

    def _first(self, step: _Step) -> None:
        found = self._attempt(step)
        if isinstance(found, Violation):
            step.violation = found
            is_there = step.before is None and step.is_known and step.key and self._row(step) is not None
            if is_there:
                self._conflict(step, found)
            else:
                self._waiting.append(step)  # Maybe for a row that changes later.
        else:
            self._judge(step, found)

    def _judge(self, step: _Step, found: int) -> None:
        """Find out whether it is a conflict that the target has counted so many changed rows."""
        if found != 1 and (step.is_known or step.after is not None) and not self._has_come(step):
            self._conflict(step, found, is_final=step.aside == "removed")

    def _has_come(self, step: _Step) -> bool:
        """Whether a row that came is there though the target has not counted it: its trigger may have put it there."""
        if step.after is None or step.before is not None or not step.key:
            return False
        sql = step.writer.sql
        return bool(self._target.run(sql.select_same, sql.deletes(step.key, step.after)))

    def _wait(self) -> None:
        """Try those that wait again, for as long as one makes room for another."""
        while self._waiting:
            left = []
            for step in self._waiting:
                found = self._attempt(step)
                if isinstance(found, Violation):
                    step.violation = found
                    left.append(step)
                else:
                    self._judge(step, found)
            is_stuck = len(left) == len(self._waiting)
            self._waiting = left
            if is_stuck and not any([self._make_room(step) for step in left]):
                return

    def _make_room(self, step: _Step) -> bool:
        """Free the unique values that a row has now, though it cannot have its new ones yet."""
        if step.violation is not None and step.violation.is_reference:
            return self._loosen(step)
        if step.aside or step.after is None or step.violation is None or not step.violation.is_unique:
            return False
        if step.before is None:
            if step.is_known or (step_row := self._row(step)) is None:
                return False
            step.before = step_row
        sql, writer = step.writer.sql, step.writer
        if writer.parking:
            if self._try(sql.park(writer.parking), step.key) != 1:
                return False
            step.aside = "parked"
        elif why := self._stays(step):
            step.why = f"; it cannot be taken out for a moment, because {why}"
            return False
        elif self._try(sql.delete, step.key) != 1:
            return False
        else:
            step.aside = "removed"
        step.is_known = True
        return True

    def _loosen(self, step: _Step) -> bool:
        """Let a row come, or go on, without what it refers to, so that others may refer to it or need not any more."""
        sql, writer, after = step.writer.sql, step.writer, step.after
        if step.aside or not writer.loose or not writer.key:
            return False
        if after is None:
            found = self._try(sql.park(writer.loose), step.key)
        elif not step.is_known:
            found = self._try(sql.upsert, writer.loosened(after))
        elif step.before is None:
            found = self._try(sql.insert, writer.loosened(after))
        else:
            found = self._try(sql.update_same, sql.updates(step.key, step.before, writer.loosened(after)))
        if found != 1:
            return False
        step.aside = "loosened"
        return True

    def _stays(self, step: _Step) -> str:
        """Why a row cannot be deleted and put back, as something would be lost by it; and what to do."""
        writer = step.writer
        if writer.shape.is_acted_on:
            others = ", ".join(sorted(writer.shape.dependents))
            return f"foreign keys of {others} act on it: let its unique columns be NULL there"
        if writer.is_passed_on:
            return "foreign keys pass changes of its columns on: change them there by hand"
        own = [each.name for each in writer.own]
        if own and (any(each.has_default for each in writer.own) or self._found(writer.sql.has_any(own), step.key)):
            return f"the target has columns of its own ({', '.join(own)}): let its unique columns be NULL there"
        return ""

    def _give_up(self, step: _Step) -> None:
        """There is no room for it: it gets its old values back, and is a conflict."""
        sql, before = step.writer.sql, step.before
        found: int | Violation = 1
        if step.aside == "parked" and before is not None:
            found = self._try(sql.update, sql.update_only(step.key, before))
        elif step.aside == "removed" and before is not None:
            found = self._try(sql.insert, before)
        elif step.aside == "loosened":
            found = self._tightened(step)
        is_back = found == 1
        self._conflict(step, step.violation or 0, is_final=not is_back)

    def _tightened(self, step: _Step) -> int | Violation:
        """Take back what was done without what the row refers to."""
        sql, before = step.writer.sql, step.before
        if before is not None:
            return self._try(sql.update, sql.update_only(step.key, before))
        if isinstance(self._try(sql.delete, step.key), Violation):
            step.why = "; it is there without what it refers to, as others refer to it"
        return 1

    def _row(self, step: _Step) -> Row | None:
        if not step.key:
            return None
        rows = self._found(step.writer.sql.select, step.key)
        return rows[0] if rows else None

    def _found(self, statement: str, values: Row) -> list[Row]:
        try:
            with self._target.savepoint("tidegate_look"):
                return self._target.run(statement, values)
        except Violation:
            return []  # It cannot even be asked for.

    def _conflict(self, step: _Step, found: int | Violation, *, is_final: bool = False) -> None:
        """Raises: `ApplyConflict`, unless it is skipped; `is_final` says that it cannot be."""
        there = self._row(step)
        if step.was_right and step.after is not None and there is None:
            what, is_final = _TAKEN, True  # To leave it like that is to lose it.
        elif there is not None and step.before is None and step.after is not None and step.is_known and not step.aside:
            what = _THERE
        elif isinstance(found, Violation):
            what = forbidden(found, step.writer, self._target, step.after) + step.why
        elif there is None:
            what = UNTAKEN if step.before is None and step.after is not None else _MISSING
        else:
            what = _OTHER
        writer = step.writer
        conflict = Conflict(
            table=writer.name,
            key=writer.shown_key(step.key),
            what=what,
            there=writer.shown(there),
            expected=writer.shown(step.before),
            coming=writer.shown(step.after),
            timestamp=self._at,
        )
        if self._policy == "skip" and not is_final:
            self._skipped.append(conflict)
            return
        raise ApplyConflict(explain(conflict, self._target, self._policy), conflict=conflict, target=self._target.shown)


def forbidden(violation: Violation, writer: TableWriter, target: Target, row: Row | None) -> str:
    """What a target has against a row."""
    if not violation.is_value:
        return f"a constraint of the target forbids it ({violation})"
    names = [name for name, value in zip(writer.names, row or (), strict=bool(row)) if not target.takes(value)]
    which = f" of column {', '.join(map(repr, names))}" if names else ""
    return f"the target does not take a value{which} ({violation})"


def explain(conflict: Conflict, target: Target, policy: str) -> str:
    """What a conflict says to people."""
    other = "policy 'skip'" if policy == "overwrite" else "policy 'overwrite' or 'skip'"
    return (
        f"{target.shown}: {conflict}. Nothing of that transaction was applied, and all before it was: mend the row and"
        f" repeat, or go on with {other}"
    )
