"""`Filling`: what a target gets before anything is applied to it: the tables' rows as of one cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.capture.applied import Applied
from tidegate.capture.apply_chunk import ChunkWriter
from tidegate.capture.apply_rows import name_sql
from tidegate.capture.initial_copy import InCircles, Tangled, complete_table, copy_table, rows_to_copy
from tidegate.capture.references import References
from tidegate.capture.taking_out import TakingOut
from tidegate.capture.target import Target, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Row, Work
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument

if TYPE_CHECKING:
    from tidegate.database.replication_calls import ReplicationCalls


class Filling:
    """Within a transaction of the target. `order` are the tables, parents first; `watch` is called now and then."""

    def __init__(
        self,
        db: ReplicationCalls,
        target: Target,
        order: Sequence[str],
        writers: Mapping[str, TableWriter],
        policy: str,
        done: Applied,
        watch: Callable[[], None],
    ) -> None:
        self._db = db
        self._target = target
        self._order = order
        self._writers = writers
        self._policy = policy
        self._done = done
        self._watch = watch
        self._unwritten: dict[str, set[Row]] = {}
        """By table, the keys of rows that the copy has not written: they were there, or are left out."""

    def clear(self) -> None:
        """Empty the tables. Raises: `InvalidArgument` when rows of others would go with theirs."""
        ours = {self._writers[name].shape.folded for name in self._order}
        for name in self._order:
            for other in sorted(self._writers[name].shape.dependents):
                any_row = f"SELECT 1 FROM {self._target.dialect.table(other)} LIMIT 1"
                if other.casefold() not in ours and self._target.run(any_row):
                    raise InvalidArgument(
                        f"{self._target.shown}: table {name!r} cannot be emptied for a restart: the foreign key of"
                        f" {other!r}, which has rows and is not applied, acts on what is deleted; take it away for the"
                        f" while, or change the rows in place: policy='overwrite' under another name=..."
                    )
        try:
            with self._target.savepoint():
                self._delete_all()
        except Violation:
            for name in self._order:  # Rows may refer to each other in circles.
                writer = self._writers[name]
                if writer.loose:
                    self._target.run(writer.sql.loosen_all(writer.loose))
            self._delete_all()

    def _delete_all(self) -> None:
        for name in reversed(self._order):
            self._target.run(self._writers[name].sql.clear)

    def copy(self, names: Iterable[str], at: Timestamp, *, is_checked: bool = False) -> None:
        """The rows of tables, in an order in which parents come first.

        `is_checked` leaves out what refers to nothing, where foreign keys are put off and would say so at the end.
        """
        names = list(names)
        references = References(self._target, self._writers)
        keyed = [name for name in names if is_checked and self._writers[name].key]
        broken = {name: set(references.all_broken(self._writers[name])) for name in keyed}
        self._unwritten = {name: set() for name in names}
        kept = self._done.kept()
        try:
            with self._target.savepoint("tidegate_copy"):
                self._stream(names, at, references)
        except Tangled:
            self._done.undo(kept)
            self._arrange(names, at)
        if is_checked:
            out = TakingOut(self._target, self._writers, references, at)
            for name in keyed:
                self._unwritten[name] |= broken[name]
            for gone, skipped in out.broken(keyed, self._unwritten):
                self._done.copied -= gone
                self._done.note([skipped])

    def _stream(self, names: Sequence[str], at: Timestamp, references: References) -> None:
        """Batch by batch, as it is read. Raises: `Tangled`."""
        loosely = [name for name in names if not self._copy_table(name, at)]
        for name in loosely:
            writer = self._writers[name]
            given = " OR ".join(f"{name_sql(writer.names[each])} IS NOT NULL" for each in writer.loose)
            with self._db.stream(f"SELECT * FROM {name_sql(name)} WHERE {given}", at) as rows:
                for gone, skipped in complete_table(
                    self._target, writer, rows, self._policy, at, self._unwritten[name], references
                ):
                    self._done.copied -= gone
                    self._done.note(skipped)
                    self._watch()

    def _arrange(self, names: Sequence[str], at: Timestamp) -> None:
        """All rows at once, each when what it refers to is there; they are held in memory."""
        works: dict[str, list[Work]] = {}
        for name in names:
            self._unwritten[name].clear()
            with self._db.stream(f"SELECT * FROM {name_sql(name)}", at) as rows:
                for work, skipped in rows_to_copy(
                    self._target, self._writers[name], rows, self._policy, at, self._unwritten[name]
                ):
                    works.setdefault(name, []).append(work)
                    self._done.copied += len(work)
                    self._done.note(skipped)
                    self._watch()
        writer = ChunkWriter(self._target, self._policy, self._order, self._writers)
        left_out = writer.write(lambda name: works.get(name, ()), at, in_turn=True)
        for each in left_out:
            self._unwritten[each.table].add(tuple(each.key.values()))
        self._done.copied -= len(left_out)
        self._done.note(left_out)

    def _copy_table(self, name: str, at: Timestamp) -> bool:
        """Whether it has come whole; else it lacks what its rows refer to in circles."""
        kept = self._done.kept()
        try:
            with self._target.savepoint("tidegate_table"):
                self._copy_all(name, at)
            return True
        except InCircles:
            self._done.undo(kept)
            self._unwritten[name].clear()
        self._copy_all(name, at, loosely=True)
        return False

    def _copy_all(self, name: str, at: Timestamp, *, loosely: bool = False) -> None:
        with self._db.stream(f"SELECT * FROM {name_sql(name)}", at) as rows:
            for count, skipped in copy_table(
                self._target, self._writers[name], rows, self._policy, at, self._unwritten[name], loosely=loosely
            ):
                self._done.copied += count
                self._done.note(skipped)
                self._watch()
