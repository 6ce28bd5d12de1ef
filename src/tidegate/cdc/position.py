"""`LogPosition`: how far a change table was read, with what tells whether it is still the same one (capture.md rule 7).

Ids of a change table begin at 1 again when it was emptied, and an older copy of a database has ids that were read
already. So a position knows marks of two rows besides its id: of the last change that was taken, and of the first row
that the table had. Rows at or below a position may be removed at any time; what must not happen unseen is that rows
behind it are missing or that others have taken their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from tidegate.cdc.change_table import ChangeRow
from tidegate.errors import SourceGone, SourceUnreadable

_FIELDS: Final = 7
WHAT_TO_DO: Final = "take a new snapshot: restart=True, or --restart"


@dataclass(frozen=True, slots=True)
class Mark:
    """A row, by what is in it."""

    id: int
    digest: int

    @staticmethod
    def of(row: ChangeRow) -> Mark:
        said = f"{row.id} {row.txn} {int(row.kind)} {row.table} {row.row} {row.time}".encode()
        return Mark(row.id, crc32(row.after or b"", crc32(row.before or b"", crc32(said))))


NOTHING: Final = Mark(0, 0)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Everything up to a change was taken."""

    epoch: int
    """How often the ids of the change table have begun anew."""
    id: int
    last: Mark
    """Of the last change at or before `id`; `NOTHING` if there is none."""
    first: Mark
    """Of the first row that the table had then."""
    time: int
    """When the last change was made, in seconds, by the clock of its writer."""
    ahead: tuple[int, ...] = ()
    """Transactions that end behind `id` and were taken all the same, by a snapshot beside concurrent writers."""

    def __str__(self) -> str:
        marks = f"{self.last.id}:{self.last.digest:x}:{self.first.id}:{self.first.digest:x}"
        ahead = ",".join(map(str, self.ahead))
        return f"{self.epoch}:{self.id}:{marks}:{self.time}{f':{ahead}' if ahead else ''}"

    @staticmethod
    def parse(text: str) -> LogPosition:
        """Raises: `SourceUnreadable`."""
        parts = text.split(":")
        try:
            epoch, id, last, last_digest, first, first_digest, time = parts[:_FIELDS]
            ahead = tuple(map(int, parts[_FIELDS].split(","))) if len(parts) > _FIELDS else ()
            return LogPosition(
                int(epoch),
                int(id),
                Mark(int(last), int(last_digest, 16)),
                Mark(int(first), int(first_digest, 16)),
                int(time),
                ahead,
            )
        except ValueError:
            raise SourceUnreadable(f"no position in a change table: {text!r}; {WHAT_TO_DO}") from None


@dataclass(frozen=True, slots=True)
class LogState:
    """What a change table has, of what a position can be compared with. All of it None in an empty one."""

    first: Mark | None
    """Of its first row."""
    first_time: int | None
    last_id: int | None
    at_last: Mark | None
    """Of the row that has the id of the position's `last`."""
    at_first: Mark | None
    """Of the row that has the id of the position's `first`."""
    next_id: int | None
    """The first id behind the position."""


def follow(position: LogPosition, log: LogState, *, table: str, has_gaps: bool, only_confirmed: bool) -> LogPosition:
    """Where to go on: the position itself, or the beginning of a new epoch.

    `has_gaps`: whether ids may be left out, as they are by concurrent writers that roll back.
    `only_confirmed`: whether the application says that it removes only what was confirmed.
    Raises: `SourceGone` when rows behind the position may be missing.
    """
    if log.first is None or log.last_id is None:
        return position  # Emptied, or nothing was written yet.
    if _is_same(position, log):
        if log.next_id is not None and log.next_id != position.id + 1 and not has_gaps:
            raise _removed(table, position.id + 1, log.next_id - 1)
        return position
    if log.at_first is not None and log.at_first == position.first:
        raise SourceGone(
            f"change table {table!r} went back: change {position.id} was read, and it is not there, or another one, but"
            f" the first change is the same; the database was replaced by an older copy. T{WHAT_TO_DO[1:]}"
        )
    begins_anew = log.first.id == 1 and log.first_time is not None and log.first_time >= position.time
    if only_confirmed and begins_anew:
        return replace(position, epoch=position.epoch + 1, id=0, last=NOTHING, first=log.first)
    raise SourceGone(
        f"change table {table!r} was emptied, and its ids have begun anew: whether changes behind {position.id} were"
        f" removed before they were read cannot be told. T{WHAT_TO_DO[1:]}; and when removing changes keep the"
        f" last one, so that ids go on, or say by pruned=confirmed that only confirmed ones are removed"
    )


def check_dense(ids: Sequence[int], *, after: int, table: str) -> None:
    """Of writers that take turns: that ids follow each other, from the one behind a position on.

    Raises: `SourceGone` when some between them were removed.
    """
    if ids and ids[-1] - after != len(ids):
        for at, id in enumerate(ids, after + 1):
            if id != at:
                raise _removed(table, at, id - 1)


def _removed(table: str, first: int, last: int) -> SourceGone:
    return SourceGone(
        f"change table {table!r}: changes {first} to {last} were removed before they were read; {WHAT_TO_DO}, and"
        f" remove only changes up to a confirmed position"
    )


def _is_same(position: LogPosition, log: LogState) -> bool:
    """Whether the rows that are there are those that were read, or follow them."""
    if log.first is None or log.last_id is None:
        return True
    if position.id == 0:
        return True
    if log.at_last is not None:
        return log.at_last == position.last and log.last_id >= position.id
    # It was removed. Then so was all before it, or the table has another beginning.
    return log.first.id > position.last.id and log.last_id >= position.id
