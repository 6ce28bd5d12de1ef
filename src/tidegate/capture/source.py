"""`Source`: a database whose committed transactions can be read whole, in order, from a position on.

What a capture asks of SQLite, Turso, PostgreSQL and Debezium alike. A *position* is a text that only its source
understands; it is kept in the same Tidegate transaction as the rows, so `resume` with it loses nothing and repeats
nothing. A source never gives a part of a transaction: what it cannot give whole it keeps to itself.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.errors import Unavailable

_logger = logging.getLogger("tidegate.capture")


@dataclass(frozen=True, slots=True)
class Column:
    """A column as Tidegate is to have it."""

    name: str
    type: str
    """In Spark SQL: `BIGINT`, `DECIMAL(12,2)`, `ARRAY<STRING>`."""
    is_nullable: bool = True


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as it is at the source; its rows come with exactly these columns, in this order."""

    name: str
    """As users write it: `orders`, or with its schema where that is not the default one."""
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """What identifies a row; empty when nothing does, and then rows only come."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table that come or replace those with their keys, or keys of rows that go."""

    table: str
    rows: Any
    """What `Transaction.insert`, or `delete`, takes: Arrow for many; for a few, tuples in the order of the columns,
    or of the key."""
    is_delete: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """Rows that come or replace others, without values that the source has left out because they did not change.

    For each number: what `absent[n]` names is to be taken over into `rows[n]` from the row that has the key `keys[n]`
    in the captured table as this transaction has left it so far, its own changes before this one included; then
    `rows[n]` is written like any other. Its own key may be another one than `keys[n]`: the row was moved, and where the
    old key goes a `Rows` with `is_delete` follows.

    Ordering: all are read before any is written: rows may have exchanged their keys.
    Invariant: `keys`, `rows` and `absent` are of one length; no two keys, and no two rows' keys, are the same.
    """

    table: str
    keys: Sequence[tuple[Any, ...]]
    """In the order of the table's key."""
    rows: Sequence[tuple[Any, ...]]
    """In the order of its columns; None where a value is absent."""
    absent: Sequence[tuple[str, ...]]
    """The names of the columns that were left out, for each row; none of them is of the key."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """All rows of a table went."""

    table: str


@dataclass(frozen=True, slots=True)
class Reshaped:
    """From here on a table looks like this. It may be a new one."""

    table: SourceTable
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Columns that have another name now, old to new, as far as the source tells."""
    filled: Mapping[str, Any] = field(default_factory=dict)
    """What the rows that were there have in new columns, where that is not NULL: the source says nothing more."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The source has no such table any more."""

    table: str


Change = Rows | Patch | Truncated | Reshaped | Dropped


@dataclass(frozen=True, slots=True)
class SourceTransaction:
    """One committed transaction of the source."""

    id: str
    """As the source names it."""
    position: str
    """Behind it: where to go on once it is in the log."""
    changes: Iterable[Change]
    """In order. To be gone through once, before the next transaction is asked for: a large one is read as it is
    gone through. It may be empty, and is then only a position."""
    committed_at_us: int | None = None
    """Microseconds since 1970, by the source's clock."""
    origin: str | None = None
    """Who wrote it, when it was applied from elsewhere: what keeps a change from going round in a circle."""


class Altered(Unavailable):
    """A table was altered between `tables` and `snapshot`: begin again."""


class Snapshot(Protocol):
    """All rows as of one position. Ordering: `batches` once; `close` always."""

    position: str
    rows: Mapping[str, int]
    """About how many there are, by table."""

    def batches(self) -> Iterator[Rows]: ...

    def close(self) -> None: ...


class Source(ABC):
    """An open source. Ordering: `tables`; then `snapshot` or `resume`; then `transactions` again and again."""

    kind: str
    """`sqlite`, `turso`, `postgresql`, `debezium`."""
    identity: str
    """What tells this database from others of its kind, without a password: what a capture is called by default."""

    refuses: Callable[[SourceTable], str | None] | None = None
    """Why a table that is new at the source cannot be taken here, as far as its name tells. Set by whoever takes."""
    unnamed: Callable[[str], str | None] | None = None
    """Why a table of the source can have no name here. When all are taken it is left out. Set by whoever takes."""
    _refused: Mapping[str, str] = {}

    @property
    def left_out(self) -> Mapping[str, str]:
        """Tables that are not taken though all are, and why. More may come to it while the source is read."""
        return self._refused

    def _takes(self, name: str) -> bool:
        """Whether a table is taken when all are. One that is not is noted in `left_out`, and said once."""
        why = None if self.unnamed is None else self.unnamed(name)
        if why is not None and name not in self._refused:
            _logger.warning("table %r at %s is not captured: %s", name, self.identity, why)
            self._refused = {**self._refused, name: why}
        return why is None

    @abstractmethod
    def tables(self, wanted: Sequence[str] | None) -> list[SourceTable]:
        """Those to be captured: the named ones, or all that can be. From now on the source speaks of these alone.

        Raises: `NotFound` for a name that is none, `InvalidArgument` for a table that cannot be captured.
        """

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """All rows of the tables, as of a position from which `transactions` goes on.

        Whatever an interrupted snapshot left at the source is cleared away first.
        Raises: `Altered`.
        """

    @abstractmethod
    def resume(self, position: str, known: Sequence[SourceTable]) -> None:
        """Go on behind a position; `known` is what the tables looked like there.

        Raises: `SourceGone` when what follows the position is not there any more.
        """

    @abstractmethod
    def transactions(self, wait_s: float) -> Iterator[SourceTransaction]:
        """What has been committed and not been given yet, in order; ends when there is no more.

        When there is nothing at all, waits up to `wait_s` for something.
        Raises: `SourceGone`, `SourceUnreadable`, `Unavailable` when it cannot be reached: call `resume` on a new one.
        """

    @abstractmethod
    def confirm(self, position: str) -> None:
        """Everything up to a position is safe: the source need not keep it for this capture."""

    def mark(self) -> Any:
        """Where the source is now: what was committed before this call lies at or before it."""
        return None

    def has_passed(self, mark: Any) -> bool:  # noqa: ARG002
        """Whether everything up to a mark was given. Asked when `transactions` has ended.

        By default one call of `transactions` gives all that was committed before it.
        """
        return True

    def behind(self) -> dict[str, Any]:
        """How far the source is ahead of what was given, in its own measure, for people to read."""
        return {}

    def drop(self) -> None:
        """Remove what this capture has created at the source (a slot, a publication). Nothing by default."""
        return

    @abstractmethod
    def close(self) -> None: ...
