"""`InTurn`: writes a chunk whose rows stand in each other's way, and finds out which of them the target does not take.

The rows are arranged (`apply_order`): in order they go in as few statements as there are changes of table and kind.
Where they need each other in a circle, one pass before sets columns aside, and one behind gives them their values: NULL
for a moment, or, of a unique column that cannot be NULL, a value that nobody has; or the row is taken out and put back.

A row that the target does not take all the same is left out: everything is undone and done again without it, so it is
as it was. What is left out is tried once more when all others are in place; it is a conflict if that fails, too. So
each pass is linear, and there are as many as rows that only another one's failure brings down, which is few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.capture.conflict_text import MISSING, OTHER, TAKEN, THERE, UNTAKEN, explain, forbidden
from tidegate.capture.references import References
from tidegate.capture.step_sql import Op, Phase, op_of
from tidegate.capture.target import ApplyConflict, Conflict, Target, UndoPart, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_order import Links, Places, Step, arrange, value_of
from tidegate.cdc.apply_plan import Row, Work
from tidegate.clock.timestamp import Timestamp

Parts = Callable[[str], Iterable[Work]]
"""What is to be done to a table, in pieces that fit into memory. Asked for more than once."""

_AT_ONCE: Final = 10_000
"""How many rows are in one call."""
_LOOKED_AT: Final = 1_000
_FEW: Final = 100
"""So many rows that were left out are tried again for as long as one of them goes."""
_SHARE: Final = 10


@dataclass(slots=True)
class _Failure:
    """Why a row could not get what it was to become."""

    step: Step
    found: int | Violation
    is_final: bool = False
    """Whether leaving it as it is would lose something."""
    is_settled: bool = False
    """Whether it is not to be tried again."""


class InTurn:
    """One chunk. `order` are the tables, parents first."""

    def __init__(
        self,
        target: Target,
        policy: str,
        at: Timestamp,
        order: Sequence[str],
        writers: Mapping[str, TableWriter],
        *,
        is_checked: bool,
    ) -> None:
        self._target = target
        self._policy = policy
        self._at = at
        self._order = order
        self._writers = writers
        self._references = References(target, writers) if is_checked else None
        self._right: set[tuple[str, Row]] = set()
        """Rows, by table and key, that were as they should be: since then only the target's own actions change them."""
        self._is_splitting = True
        """Whether rows that do not go together are tried in halves."""
        self._number = 0
        """Of the values that nobody has."""

    def write(self, parts: Parts) -> list[Conflict]:
        """The changes that were left out. Raises: `ApplyConflict` unless the policy is to skip."""
        for table in self._order:
            if self._writers[table].shape.is_acting:
                self._look(self._writers[table], parts(table))
        steps = list(self._steps(parts))
        self._read_unknown(steps)
        if self._goes_at_once(steps):
            return []
        left_out: dict[Step, _Failure] = {}
        while True:
            try:
                with self._target.savepoint("tidegate_chunk"):
                    failed = self._all(steps, left_out)
                    if failed:
                        raise UndoPart
                    return self._conflicts(self._again(left_out))
            except UndoPart:
                for failure in failed.values():
                    if failure.is_final or (self._policy != "skip" and self._is_other(failure)):
                        raise self._error(failure) from None
                left_out |= failed
                steps = [each for each in steps if each not in failed]

    def _goes_at_once(self, steps: Sequence[Step]) -> bool:
        """Whether all rows could be written, without going back to any point between: targets hold much for that."""
        if self._references is not None:
            return False
        try:
            with self._target.savepoint("tidegate_chunk"):
                self._is_splitting = False
                self._all(steps, {})
            return True
        except (UndoPart, Violation):
            return False
        finally:
            self._is_splitting = True

    # -- what is to be done ----------------------------------------------------------------------------------------

    def _look(self, writer: TableWriter, works: Iterable[Work]) -> None:
        """Note which rows are as they should be, before anything is done."""
        for work in works:
            known = [(key, before) for key, before in work.deletes if before is not None]
            for key, before in (*known, *((key, before) for key, before, _ in work.updates)):
                if self._found(writer.sql.select_same, writer.sql.deletes(key, before)):
                    self._right.add((writer.name, key))

    def _steps(self, parts: Parts) -> Iterator[Step]:
        """In the order in which they go when none needs another."""
        acted_on = [each for each in self._order if self._writers[each].shape.is_acted_on]
        yield from self._deletes(parts, [each for each in self._order if each not in acted_on])
        for table in self._order:
            writer = self._writers[table]
            for work in parts(table):
                for key, before, after in work.updates:
                    yield Step(table, key, before, after)
                for after in work.inserts:
                    yield Step(table, writer.sql.key_of(after), None, after)
                for after in work.upserts:
                    yield Step(table, writer.sql.key_of(after), None, after, is_known=not writer.key)
        yield from self._deletes(parts, acted_on)

    def _deletes(self, parts: Parts, tables: Sequence[str]) -> Iterator[Step]:
        for table in reversed(tables):
            for work in parts(table):
                for key, before in work.deletes:
                    yield Step(table, key, before, None, is_known=before is not None)

    def _read_unknown(self, steps: Sequence[Step]) -> None:
        """What rows are there now, where nobody has looked: to see what they stand in the way of."""
        unknown = [each for each in steps if not each.is_known]
        for start in range(0, len(unknown), _LOOKED_AT):
            some = unknown[start : start + _LOOKED_AT]
            try:
                with self._target.savepoint("tidegate_look"):
                    rows = [self._target.run(self._writer(each).sql.select, each.key) for each in some]
            except Violation:
                rows = [self._found(self._writer(each).sql.select, each.key) for each in some]
            for step, found in zip(some, rows, strict=True):
                step.before = found[0] if found else None

    def _writer(self, step: Step) -> TableWriter:
        return self._writers[step.table]

    def _all(self, steps: Sequence[Step], left_out: Mapping[Step, _Failure]) -> dict[Step, _Failure]:
        """Do everything; what could not be done."""
        for each in steps:
            each.aside, each.late, each.is_removed = {}, (), False
        links = {name: self._writers[name].links(self._writers) for name in self._order}
        order = arrange(steps, links, self._force)
        failed: dict[Step, _Failure] = {}
        self._phase("aside", [each for each in order if each.aside or each.is_removed], failed)
        self._phase("in place", order, failed)
        self._phase("late", [each for each in order if each.late and each not in failed], failed)
        if not failed and self._references is not None:
            self._check(order, self._references, failed)
        if not failed and left_out and self._policy == "skip":
            self._keep(left_out, order, links, failed)
        return failed

    def _keep(
        self,
        left_out: Mapping[Step, _Failure],
        steps: Sequence[Step],
        links: Mapping[str, Links],
        failed: dict[Step, _Failure],
    ) -> None:
        """A row that is left out stays as it was: nor can those change then by which the target would change it."""
        taken = [
            each
            for each in left_out
            if each.before is not None and each.after is not None and self._was_right(each)
            if not self._found(
                self._writer(each).sql.select_same, self._writer(each).sql.deletes(each.key, each.before)
            )
        ]
        for each in taken:
            for reference in links[each.table].references:
                value = value_of(each.before, reference.own)
                for step in steps if value is not None else ():
                    was, now = value_of(step.before, reference.theirs), value_of(step.after, reference.theirs)
                    if step.table == reference.parent and was == value and now != value:
                        why = f"a foreign key of the target would change a row of {each.table!r} that is left as it is"
                        failed[step] = _Failure(step, Violation(why, is_reference=True), is_settled=True)

    def _force(self, step: Step, places: Places) -> bool:
        """Free a unique value of a row that is there and cannot be NULL."""
        writer = self._writer(step)
        has_children = bool(writer.shape.children)
        why = self._stays(writer, step)
        if step.after is not None and not why and not has_children:
            step.is_removed = True
            return True
        self._number += 1
        temporary = writer.temporary(places, self._number)
        if temporary is not None:
            at, value = temporary
            step.aside[at] = value
            return True
        if step.after is not None and not why:
            step.is_removed = True  # Where nobody refers to it, it goes.
            return True
        if why:
            step.why = f"; it cannot be taken out for a moment, because {why}"
        return False

    def _stays(self, writer: TableWriter, step: Step) -> str:
        """Why a row cannot be deleted and put back, as something would be lost by it; and what to do."""
        if writer.shape.is_acted_on:
            others = ", ".join(sorted(writer.shape.dependents))
            return f"foreign keys of {others} act on it: let its unique columns be NULL there"
        if writer.is_passed_on:
            return "foreign keys pass changes of its columns on: change them there by hand"
        own = [each.name for each in writer.own]
        if own and (any(each.has_default for each in writer.own) or self._found(writer.sql.has_any(own), step.key)):
            return f"the target has columns of its own ({', '.join(own)}): let its unique columns be NULL there"
        return ""

    # -- a phase ---------------------------------------------------------------------------------------------------

    def _phase(self, phase: Phase, steps: Sequence[Step], failed: dict[Step, _Failure]) -> None:
        together: list[tuple[Step, Op]] = []
        if phase != "in place":  # Their order says nothing.
            steps = sorted(steps, key=lambda each: (each.table, each.is_removed, sorted(each.aside), each.late))
        for step in steps:
            op = op_of(self._writer(step), phase, step)
            if phase == "in place" and not step.is_known and step.after is not None and self._was_right(step):
                self._together(phase, together, failed)
                together = []
                if self._row(step) is None:
                    if not self._is_splitting:
                        raise UndoPart
                    failed[step] = _Failure(step, 0, is_final=True)
                    continue
            if together and (together[0][1].sql != op.sql or len(together) == _AT_ONCE):
                self._together(phase, together, failed)
                together = []
            together.append((step, op))
        self._together(phase, together, failed)

    def _was_right(self, step: Step) -> bool:
        """Whether only the target's own foreign keys may have changed or deleted a row."""
        writer = self._writer(step)
        if step.is_known:
            return (step.table, step.key) in self._right
        return step.before is not None and bool(writer.own) and writer.shape.is_acting

    def _together(self, phase: Phase, ops: Sequence[tuple[Step, Op]], failed: dict[Step, _Failure]) -> None:
        """At once; in halves, and at last one by one, when the target does not take them all."""
        if not ops:
            return
        if not self._is_splitting:
            if self._target.many(ops[0][1].sql, [op.values for _, op in ops]) != len(ops) and ops[0][1].is_counted:
                raise UndoPart
            return
        try:
            with self._target.savepoint("tidegate_rows"):
                found = self._target.many(ops[0][1].sql, [op.values for _, op in ops])
                if ops[0][1].is_counted and found != len(ops) and not (len(ops) == 1 and self._has_come(ops[0][0])):
                    raise UndoPart
            return
        except UndoPart:
            why: int | Violation = 0
        except Violation as violation:
            why = violation
        if len(ops) > 1:
            middle = len(ops) // 2
            self._together(phase, ops[:middle], failed)
            self._together(phase, ops[middle:], failed)
            return
        step = ops[0][0]
        failure = self._alone(phase, step, why)
        if failure is not None:
            failed[step] = failure

    def _alone(self, phase: Phase, step: Step, why: int | Violation) -> _Failure | None:
        """What else can be done for one row that a statement has not done."""
        if phase == "aside" and isinstance(why, Violation):
            step.aside, step.is_removed = {}, False  # Then it is in the way, and what needs the room says so.
            return None
        if isinstance(why, Violation):
            return _Failure(step, why)
        if (step.table, step.key) in self._right:
            return self._acted_on(phase, step)
        return _Failure(step, 0)

    def _acted_on(self, phase: Phase, step: Step) -> _Failure | None:
        """The target's own foreign keys have changed a row, or taken it, since the chunk began."""
        writer = self._writer(step)
        sql, key, after = writer.sql, step.key, step.after
        is_there = self._row(step) is not None
        if phase == "aside":
            step.aside = step.aside if is_there else {}
            step.is_removed = False
            if not is_there:
                return None
            columns = tuple(sorted(step.aside))
            op = Op(sql.some(columns), (*[step.aside[at] for at in columns], *key)) if columns else None
        elif after is None:
            op = Op(sql.delete, key) if is_there else None
        elif is_there:
            op = Op(sql.update, sql.update_only(key, after))
        elif writer.own:
            return _Failure(step, 0, is_final=True)  # It would come again without what they hold.
        else:
            op = Op(sql.insert, after)
        found = 1 if op is None else self._try(op)
        return None if found == 1 else _Failure(step, found)

    def _try(self, op: Op) -> int | Violation:
        """How many rows were changed, or why none could be."""
        try:
            with self._target.savepoint("tidegate_row"):
                found = self._target.many(op.sql, [op.values])
                return found if op.is_counted else 1
        except Violation as violation:
            return violation

    def _has_come(self, step: Step) -> bool:
        """Whether a row that came is there though the target has not counted it: its trigger may have put it there."""
        if step.after is None or step.before is not None or not step.key:
            return False
        sql = self._writer(step).sql
        return bool(self._found(sql.select_same, sql.deletes(step.key, step.after)))

    # -- what is left out ------------------------------------------------------------------------------------------

    def _check(self, steps: Iterable[Step], references: References, failed: dict[Step, _Failure]) -> None:
        """Which rows lack what they refer to, though that was put off; if none, which ones leave others like that."""
        for step in steps:
            if step.after is not None and step.key and (why := references.broken(self._writer(step), step.key)):
                failed[step] = _Failure(step, Violation(why, is_reference=True))
        for step in steps if not failed else ():
            if step.before is not None and (why := references.left_behind(self._writer(step), step.before)):
                failed[step] = _Failure(step, Violation(why, is_reference=True))

    def _again(self, left_out: Mapping[Step, _Failure]) -> list[_Failure]:
        """Try what was left out once more, as all others are in place: the order may be of a kind that nobody knows."""
        found = list(left_out.values())
        for each in found:
            each.step.aside, each.step.late, each.step.is_removed = {}, (), False
        while True:
            left = []
            for each in found:
                if not each.is_settled and not self._is_other(each):
                    result = self._retried(each)
                    if result is None:
                        continue
                    each.found = result
                left.append(each)
            settled, found = len(found) - len(left), left
            if not settled or (len(found) > _FEW and settled * _SHARE < len(found)):
                return found

    def _retried(self, failure: _Failure) -> int | Violation | None:
        """Why a row cannot become what it should; None when it has."""
        found: int | Violation = 0
        step = failure.step
        is_gone = step.before is not None and step.after is not None and self._was_right(step) and not self._row(step)
        if is_gone and self._writer(step).own:
            failure.is_final = True
            return 0
        try:
            with self._target.savepoint("tidegate_again"):
                found = self._try(op_of(self._writer(step), "in place", step))
                if found == 0 and (step.table, step.key) in self._right:
                    other = self._acted_on("in place", step)
                    found = 1 if other is None else other.found
                if found != 1 and (isinstance(found, Violation) or not self._has_come(step)):
                    raise UndoPart
                failed: dict[Step, _Failure] = {}
                if self._references is not None:
                    self._check([step], self._references, failed)
                if failed:
                    found = failed[step].found
                    raise UndoPart
            return None
        except UndoPart:
            failure.is_final = is_gone  # To leave it like that is to lose it.
            return found

    def _is_other(self, failure: _Failure) -> bool:
        """Whether the row is not what it should be before, and so no repeat helps."""
        step = failure.step
        if not isinstance(failure.found, Violation):
            return step.is_known
        return bool(step.before is None and step.is_known and step.key and self._row(step) is not None)

    def _conflicts(self, failures: Iterable[_Failure]) -> list[Conflict]:
        """Raises: `ApplyConflict`, unless they are skipped."""
        found = []
        for each in failures:
            if self._policy != "skip" or each.is_final:
                raise self._error(each)
            found.append(self._conflict(each))
        return found

    def _error(self, failure: _Failure) -> ApplyConflict:
        conflict = self._conflict(failure)
        return ApplyConflict(
            explain(conflict, self._target, self._policy), conflict=conflict, target=self._target.shown
        )

    def _conflict(self, failure: _Failure) -> Conflict:
        step, found = failure.step, failure.found
        writer = self._writer(step)
        there = self._row(step)
        if failure.is_final:
            what = TAKEN
        elif there is not None and step.before is None and step.after is not None and step.is_known:
            what = THERE
        elif isinstance(found, Violation):
            what = forbidden(found, writer, self._target, step.after) + self._why(step, found)
        elif there is None:
            what = UNTAKEN if step.before is None and step.after is not None else MISSING
        else:
            what = OTHER
        return Conflict(
            table=writer.name,
            key=writer.shown_key(step.key),
            what=what,
            there=writer.shown(there),
            expected=writer.shown(step.before) if step.is_known else None,
            coming=writer.shown(step.after),
            timestamp=self._at,
        )

    def _why(self, step: Step, violation: Violation) -> str:
        """Why no room was made for a row that has a unique value, or wants one; empty where nothing keeps from it."""
        if step.why or not violation.is_unique or step.before is None or step.after is None:
            return step.why
        writer = self._writer(step)
        is_free = any(
            at in writer.free or writer.temporary((at,), 0)
            for places in writer.links(self._writers).uniques
            for at in places
            if step.before[at] != step.after[at]
        )
        children = ", ".join(sorted({each.table for each in writer.shape.children}))
        is_referred = f"rows of {children} refer to it: let its unique columns be NULL there" if children else ""
        why = "" if is_free else self._stays(writer, step) or is_referred
        return why and f"; it cannot be taken out for a moment, because {why}"

    def _row(self, step: Step) -> Row | None:
        rows = self._found(self._writer(step).sql.select, step.key) if step.key else []
        return rows[0] if rows else None

    def _found(self, statement: str, values: Row) -> list[Row]:
        try:
            with self._target.savepoint("tidegate_look"):
                return self._target.run(statement, values)
        except Violation:
            return []  # It cannot even be asked for.
