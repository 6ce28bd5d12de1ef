"""`Target`: a database that transactions are applied to. What SQLite, Turso and PostgreSQL do differently is below it.

A target has one connection and one transaction at a time. `tidegate_applied` in it says, by the name of an
application, how far it is: it is written in the transaction that brings the rows, so both are there or neither.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.cdc.apply_plan import STATE_TABLE, Dialect, Row, TargetTable
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InUse, InvalidArgument, Retryable, TidegateError


class ApplyConflict(TidegateError):
    """A row of the target is not what it should be before a change, or a constraint of the target forbids the change.

    Nothing of the transaction was applied, and all before it was.
    """

    def __init__(self, message: str, *, conflict: Conflict, target: str) -> None:
        super().__init__(message)
        self.conflict = conflict
        self.target = target


class TargetBusy(Retryable):
    """Somebody else holds the target's lock for too long."""


class TargetRefused(TidegateError):
    """The target refused a statement for a reason that is not known here."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """What was not as it should be."""

    table: str
    key: dict[str, Any]
    what: str
    there: dict[str, Any] | None
    """The target's row; None when there is none."""
    expected: dict[str, Any] | None
    """What it should be before the change; None for no row."""
    coming: dict[str, Any] | None
    """What was to come; None for no row."""
    timestamp: Timestamp

    def __str__(self) -> str:
        key = ", ".join(f"{name} = {value!r}" for name, value in self.key.items()) or "(no key)"
        return (
            f"table {self.table!r}, {key}: {self.what}; the target has {_row(self.there)}, before was"
            f" {_row(self.expected)}, to come was {_row(self.coming)}, of the transaction at {self.timestamp}"
        )


def _row(row: dict[str, Any] | None) -> str:
    text = "no row" if row is None else repr(row)
    return text if len(text) <= 300 else text[:297] + "..."


class Violation(Exception):
    """A constraint of the target forbids what was asked for. For the code that applies, which finds out the row."""

    def __init__(
        self, text: str, *, is_unique: bool = False, is_reference: bool = False, is_value: bool = False
    ) -> None:
        super().__init__(text)
        self.is_unique = is_unique
        self.is_reference = is_reference
        """Whether a foreign key forbids it."""
        self.is_value = is_value
        """Whether a value is none that the column can have, and no constraint forbids it."""


@dataclass(slots=True)
class TableState:
    """What a target knows of a table of ours."""

    id: int
    columns: dict[int, str] = field(default_factory=dict)
    """The names at the target, by the ids of the columns; also of those that were dropped here and are there still."""


class Written(NamedTuple):
    """What a target says of itself, to know whether somebody else has written it since."""

    position: Timestamp
    tables: str


@dataclass(slots=True)
class State:
    """How far a target is."""

    position: Timestamp
    origin: str
    tables: dict[str, TableState] = field(default_factory=dict)

    @property
    def written(self) -> Written:
        return Written(self.position, self.encode())

    def encode(self) -> str:
        return json.dumps(
            {
                name: {"id": each.id, "columns": {str(id): column for id, column in each.columns.items()}}
                for name, each in self.tables.items()
            }
        )

    @classmethod
    def decode(cls, position: int, origin: str, tables: str) -> State:
        found = {
            name: TableState(each["id"], {int(id): column for id, column in each["columns"].items()})
            for name, each in json.loads(tables).items()
        }
        return cls(Timestamp(position), origin, found)


class Target(ABC):
    """An open target. One thread at a time. Ordering: `begin`; then statements; then `commit` or `rollback`."""

    kind: str
    """`sqlite`, `turso`, `postgresql`."""
    dialect: Dialect
    shown: str
    """How messages name it: without a password."""
    identity: str
    """What tells this database from all others, whichever way it is reached."""
    name_bytes: int | None = None
    """How long a name can be; None for any length."""
    known_as: frozenset[str]
    """What captures may call it as a source, `identity` among them."""

    unsaid: str = ""
    """Why captures of the database cannot know where what is written comes from, and what to do; empty if they can."""

    def mark_origin(self, origin: str, name: str) -> None:  # noqa: ARG002
        """Let everything that is written from now on say where it comes from.

        Ordering: between transactions.
        """
        return

    # -- statements ------------------------------------------------------------------------------------------------

    @abstractmethod
    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """One statement; its rows. Raises: `Violation`, `TidegateError`."""

    @abstractmethod
    def many(self, sql: str, rows: Sequence[Row]) -> int:
        """One statement for each of many rows; how many rows of the table it has changed."""

    @abstractmethod
    def begin(self, *, deferred: bool = True) -> None:
        """Begin to write; `deferred` puts foreign keys off to the end, as far as the target can."""

    @abstractmethod
    def commit(self) -> None:
        """Raises: `Violation` when a constraint that was put off does not hold. Nothing of it is there then."""

    @abstractmethod
    def rollback(self) -> None:
        """End the transaction, if there is one. Never raises."""

    @abstractmethod
    def close(self) -> None: ...

    @contextmanager
    def savepoint(self, name: str = "tidegate_part") -> Iterator[None]:
        """What is done within is undone when it raises, and the transaction goes on."""
        self.run(f"SAVEPOINT {name}")
        try:
            yield
        except (Violation, UndoPart):
            self.run(f"ROLLBACK TO SAVEPOINT {name}")
            self.run(f"RELEASE SAVEPOINT {name}")
            raise
        self.run(f"RELEASE SAVEPOINT {name}")

    # -- tables ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def shape(self, table: str) -> TargetTable | None:
        """A table as it is there."""

    def taken_for(self, table: str) -> str:
        """What a name is that no table of ours may have there, as it belongs to somebody; empty if one may."""
        last = table.rpartition(".")[2].casefold()
        return "that table says how far the target is" if last == STATE_TABLE else ""

    def is_one(self, table: str, other: str) -> bool:
        """Whether two names are the same table there."""
        return table.casefold() == other.casefold()

    @abstractmethod
    def column_type(self, type: pa.DataType) -> str:
        """What a column of a type of ours is created with."""

    @abstractmethod
    def values(self, column: pa.Array | pa.ChunkedArray) -> list[Any]:
        """Values of a column as `run` and `many` take them."""

    def takes(self, value: Any) -> bool:  # noqa: ARG002
        """Whether there can be such a value at all, of the type that it has."""
        return True

    @abstractmethod
    def broken_references(self, tables: Sequence[str]) -> str:
        """Which rows lack what they refer to, for a message, where the target can tell before it rolls back."""

    # -- how far it is ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create what is needed to know how far the target is."""
        if self.shape(STATE_TABLE) is not None:
            return
        self.begin()
        try:
            self.run(
                f"CREATE TABLE IF NOT EXISTS {STATE_TABLE} (name TEXT NOT NULL PRIMARY KEY, position BIGINT NOT NULL,"
                f" origin TEXT NOT NULL, applied_at TEXT NOT NULL, tables TEXT NOT NULL)"
            )
            self.commit()
        except TargetBusy:
            self.rollback()
            if self.shape(STATE_TABLE) is None:  # Else somebody else has created it meanwhile.
                raise
        except BaseException:
            self.rollback()
            raise

    def state(self, name: str) -> State | None:
        found = self.run(
            f"SELECT position, origin, tables FROM {STATE_TABLE} WHERE name = {self.dialect.mark}", (name,)
        )
        return State.decode(*found[0]) if found else None

    def put_state(self, name: str, state: State, before: Written | None, applied_at: str) -> None:
        """Write how far it is, within the transaction. `before` is what was read; None for nothing.

        Raises: `InUse` when somebody else has moved it, or added a table, since.
        """
        mark = self.dialect.mark
        written = (int(state.position), state.origin, applied_at, state.encode())
        if before is None:
            changed = self.many(
                f"INSERT INTO {STATE_TABLE} (name, position, origin, applied_at, tables)"
                f" VALUES ({mark}, {mark}, {mark}, {mark}, {mark}) ON CONFLICT (name) DO NOTHING",
                [(name, *written)],
            )
        else:
            changed = self.many(
                f"UPDATE {STATE_TABLE} SET position = {mark}, origin = {mark}, applied_at = {mark}, tables = {mark}"
                f" WHERE name = {mark} AND position = {mark} AND tables = {mark}",
                [(*written, name, int(before.position), before.tables)],
            )
        if changed != 1:
            raise InUse(
                f"{self.shown}: somebody else has applied transactions under the name {name!r} meanwhile; end one of"
                f" the two, or give them different names"
            )

    def forget(self, name: str) -> None:
        """Within a transaction: as if nothing had been applied under this name."""
        self.run(f"DELETE FROM {STATE_TABLE} WHERE name = {self.dialect.mark}", (name,))


class UndoPart(Exception):
    """Goes through `Target.savepoint` to undo what was done within it."""


def open_target(url: str) -> Target:
    """The database behind a URL. Raises: `InvalidArgument`; `Unavailable` when it cannot be reached."""
    scheme, found, rest = url.partition("://")
    if found and scheme == "sqlite":
        from tidegate.capture.target_sqlite import SqliteTarget

        return SqliteTarget(rest)
    if found and scheme == "turso":
        from tidegate.capture.target_turso import TursoTarget

        return TursoTarget(rest)
    if found and scheme in ("postgresql", "postgres"):
        from tidegate.capture.target_postgres import PostgresTarget

        return PostgresTarget(url)
    raise InvalidArgument(
        f"{without_password(url)!r} is no database to apply to; write sqlite:///app.db, turso:///app.db or"
        f" postgresql://user@host/name"
    )


def identity_of(url: str) -> str:
    """What tells the database behind a URL from all others, whichever way it is reached."""
    target = open_target(url)
    try:
        return target.identity
    finally:
        target.close()


def without_password(url: str) -> str:
    """A URL as messages may show it; also one that is wrong, as it is with a slash in the password."""
    scheme, found, rest = url.partition("://")
    if rest.startswith("/"):
        return url  # A file.
    rest, question, options = rest.partition("?")
    user, at, where = rest.rpartition("@")
    kept = [each for each in options.split("&") if not each.partition("=")[0].lower().endswith("password")]
    return f"{scheme}{found}{user.partition(':')[0]}{at}{where}{question if any(kept) else ''}{'&'.join(kept)}"
