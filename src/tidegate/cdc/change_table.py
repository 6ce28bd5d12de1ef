"""The rows of a change table, and `Groups`: which of them are one transaction (seed 003).

Rows belong together by `change_txn_id`. A COMMIT row says little: a transaction has none, one or several, some in its
midst, and one may stand alone. What can be read is committed, so a transaction ends where another's rows begin or where
the snapshot that is read ends. To take two transactions for one is harmless; to cut one is what must never happen.

Where writers run side by side their rows interleave, and lower ids may become visible later than higher ones: below the
*watermark* nothing new appears. There `settled` says which transactions are complete, and in which order to take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby, pairwise
from operator import itemgetter, lt
from typing import Final, NamedTuple

from tidegate.errors import SourceUnreadable

NO_TXN: Final = -1
"""The transaction of a COMMIT row behind a statement that changed nothing."""


class Kind(IntEnum):
    """`change_type`."""

    DELETE = -1
    UPDATE = 0
    INSERT = 1
    COMMIT = 2


KNOWN_KINDS: Final = frozenset(map(int, Kind))


class ChangeRow(NamedTuple):
    """A row of a change table. In tables of version 1 no row has a transaction."""

    id: int
    kind: int
    """A `Kind`, or its number: where many rows are read, they come as they are stored."""
    txn: int | None = None
    table: str | None = None
    row: int | None = None
    """The rowid."""
    before: bytes | None = None
    after: bytes | None = None
    updates: bytes | None = None
    time: int | None = None
    """Seconds since 1970; it says nothing about order."""


_id_of: Final = itemgetter(0)
_txn_of: Final = itemgetter(2)


class Part(NamedTuple):
    """Changes of one transaction, in order: all of them, or as many as one page had."""

    rows: Sequence[ChangeRow]
    """Without COMMIT rows."""
    upto: int
    """The id of the last row that was read. A position once the transaction is complete."""
    is_last: bool


def kind_of(value: object, id: int) -> Kind:
    """Raises: `SourceUnreadable` for a change that is none of those known."""
    if value is None:  # Some writers leave it out of COMMIT rows.
        return Kind.COMMIT
    try:
        return Kind(value)  # type: ignore[arg-type]
    except ValueError:
        raise SourceUnreadable(
            f"change {id} has the type {value!r}, and 1, 0, -1 and 2 are known: another version has written it"
        ) from None


class Groups:
    """Transactions of a change table whose writers take turns, page by page, in the order of ids.

    Memory: a page and no more; a transaction of many pages comes in many parts.
    """

    def __init__(self, after: int = 0) -> None:
        """`after` is the position so far: the id of the last row that was taken."""
        self._last = after
        self._txn: int | None = NO_TXN
        """Of the rows before, while more of it may come; NO_TXN when nothing is open."""

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun whose last part has not been given."""
        return self._txn != NO_TXN

    def page(self, rows: Iterable[ChangeRow], *, is_end: bool) -> Iterator[Part]:
        """The parts of a page; `is_end` says that the snapshot it was read from has no rows behind it.

        Raises: `SourceUnreadable` when ids do not rise.
        """
        found: list[ChangeRow] = []
        for txn, run in groupby(rows, _txn_of):
            group = list(run)
            self._check_rising(group)
            if txn != NO_TXN and txn != self._txn:
                if self.is_open:
                    yield Part(found, self._last, True)
                    found = []
                self._txn = txn
            found += [each for each in group if each[1] != 2]  # Kind.COMMIT, which would take longer.
            self._last = group[-1].id
        if self.is_open and (found or is_end):
            yield Part(found, self._last, is_end)
        if is_end:
            self._txn = NO_TXN

    def _check_rising(self, rows: list[ChangeRow]) -> None:
        ids = [self._last, *map(_id_of, rows)]
        if not all(map(lt, ids, ids[1:])):
            before, id = next((one, other) for one, other in pairwise(ids) if one >= other)
            raise SourceUnreadable(f"change {id} follows change {before}: the change table was rewritten")


class Extent(NamedTuple):
    """Of one transaction, all of its rows that can be seen, COMMIT rows among them."""

    txn: int
    first: int
    last: int


def settled(extents: Iterable[Extent], *, after: int, watermark: int) -> list[Extent]:
    """The transactions that are complete and were not taken before, in the order to take them.

    `after` is the position: the `last` of the transaction that was taken last. Below `watermark` no row appears any
    more. Taken in the order of their last rows, a number is enough to go on from: one that ends at or below it has been
    taken, whatever it has interleaved with.
    """
    found = [each for each in extents if each.txn != NO_TXN and after < each.last < watermark]
    return sorted(found, key=lambda each: each.last)
