"""`TakingOut`: what a first copy has written, and refers to nothing, goes again, where conflicts are skipped.

Foreign keys that are put off let such rows in, and say at the end only that there are some.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tidegate.capture.conflict_text import STAYS
from tidegate.capture.references import References
from tidegate.capture.target import Conflict, Target, Violation
from tidegate.capture.target_tables import TableWriter
from tidegate.cdc.apply_plan import Row
from tidegate.clock.timestamp import Timestamp

_NEEDED: Final = "it refers to a row that is left out"


class TakingOut:
    """Within the transaction of the copy."""

    def __init__(
        self, target: Target, writers: Mapping[str, TableWriter], references: References, at: Timestamp
    ) -> None:
        self._target = target
        self._writers = writers
        self._references = references
        self._at = at

    def broken(self, names: Sequence[str], others: Mapping[str, set[Row]]) -> Iterator[tuple[bool, Conflict]]:
        """Take out, or loosen, what refers to nothing: whether it has gone, and the conflict.

        `others` are, by table, the keys of rows that are not ours to take out. Raises: `Violation` when one of them
        refers to a row that must go.
        """
        while True:
            found = [
                (writer, key)
                for writer in map(self._writers.__getitem__, names)
                for key in self._references.all_broken(writer)
                if key not in others[writer.name]
            ]
            if not found:
                return
            for writer, key in found:
                if why := self._references.broken(writer, key):
                    yield from self._take_out(writer, key, why, others)

    def _take_out(
        self, writer: TableWriter, key: Row, why: str, others: Mapping[str, set[Row]]
    ) -> Iterator[tuple[bool, Conflict]]:
        """A row, behind those that refer to it; one of them that can, does without what is not there instead."""
        way = [(writer, key, why)]
        while way:
            writer, key, why = way[-1]
            rows = self._target.run(writer.sql.select, key)
            if not rows:
                way.pop()
                continue
            children = self._references.children(writer, key)
            if children and len(way) == 1 and (columns := self._references.loosening(writer, key)):
                self._target.many(writer.sql.some(columns), [(*[None] * len(columns), *key)])
                there = tuple([None if at in columns else value for at, value in enumerate(rows[0])])
                yield False, self._conflict(writer, key, why + STAYS, there, rows[0])
                return
            if children:
                _, child, child_key = children[0]
                is_ours = child is not None and child.name in others and child_key not in others[child.name]
                if child is None or not is_ours or any(each[:2] == (child, child_key) for each in way):
                    raise Violation(f"{why}, and others refer to it: {writer.name!r}, {writer.shown_key(key)}")
                way.append((child, child_key, _NEEDED))
                continue
            self._target.many(writer.sql.delete, [key])
            yield True, self._conflict(writer, key, why, None, rows[0])
            way.pop()

    def _conflict(self, writer: TableWriter, key: Row, what: str, there: Row | None, coming: Row) -> Conflict:
        return Conflict(
            writer.name, writer.shown_key(key), what, writer.shown(there), None, writer.shown(coming), self._at
        )
