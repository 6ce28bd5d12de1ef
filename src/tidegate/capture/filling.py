"""`Filling`: what a target gets before anything is applied to it: the tables' rows as of one cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.capture.applied import Applied
from tidegate.capture.apply_rows import name_sql
from tidegate.capture.initial_copy import InCircles, complete_table, copy_table
from tidegate.capture.target import Target, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import quoted
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

    def clear(self) -> None:
        """Empty the tables. Raises: `InvalidArgument` when rows of others would go with theirs."""
        ours = {name.casefold() for name in self._order}
        for name in self._order:
            for other in sorted(self._writers[name].shape.dependents):
                if other.casefold() not in ours and self._target.run(f"SELECT 1 FROM {quoted(other)} LIMIT 1"):
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

    def copy(self, names: Iterable[str], at: Timestamp) -> None:
        """The rows of tables, in an order in which parents come first."""
        loosely = [name for name in names if not self._copy_table(name, at)]
        for name in loosely:
            writer = self._writers[name]
            given = " OR ".join(f"{name_sql(writer.names[each])} IS NOT NULL" for each in writer.loose)
            with self._db.stream(f"SELECT * FROM {name_sql(name)} WHERE {given}", at) as rows:
                for gone, skipped in complete_table(self._target, writer, rows, self._policy, at):
                    self._done.copied -= gone
                    self._done.note(skipped)
                    self._watch()

    def _copy_table(self, name: str, at: Timestamp) -> bool:
        """Whether it has come whole; else it lacks what its rows refer to in circles."""
        kept = self._done.kept()
        try:
            with self._target.savepoint("tidegate_table"):
                self._copy_all(name, at)
            return True
        except InCircles:
            self._done.undo(kept)
        self._copy_all(name, at, loosely=True)
        return False

    def _copy_all(self, name: str, at: Timestamp, *, loosely: bool = False) -> None:
        with self._db.stream(f"SELECT * FROM {name_sql(name)}", at) as rows:
            for count, skipped in copy_table(
                self._target, self._writers[name], rows, self._policy, at, loosely=loosely
            ):
                self._done.copied += count
                self._done.note(skipped)
                self._watch()
