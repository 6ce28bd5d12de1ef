"""`CaptureStore`: what a capture sees of a database: tables, transactions, runs, and how they fail. No log, no disk.

It stands for `tidegate.Database`, whose transactions and runs other worlds play: commits are versions of all tables,
one behind the other, and a version is what others call a Timestamp. The catalog and what rows are made of are real.
Owners die, and what only they knew of transactions with them; answers are lost before and after the deed, and of a
run only the first few may have come to pass.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from random import Random
from typing import Any, Final

import pyarrow as pa

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.statements import parse
from tidegate.clock.timestamp import Timestamp
from tidegate.database.row_taker import RowTaker
from tidegate.errors import (
    Conflict,
    DiskFull,
    InvalidArgument,
    InvalidTransactionState,
    NotFound,
    OutcomeUnknown,
    SchemaMismatch,
    TransactionAborted,
    Unavailable,
)
from tidegate.sim.actors import Process
from tidegate.tables.rows_in import RowsIn
from tidegate.tables.schema import BESIDE, Table
from tidegate.tables.statements import AlterTable, CreateTable

Row = dict[int, Any]
"""A row's values by the ids of its columns, so that these may be renamed."""
Key = tuple[Any, ...]
State = dict[int, dict[Key, Row]]
"""The rows of every table, by its id."""
BUFFER_ROWS: Final = 12
"""What a transaction keeps in memory; more is written ahead."""
_ROW_BYTES: Final = 100_000
"""As if every row were so large."""
_NAME: Final = re.compile(r"\w+")


class Writes:
    """Rows and deletes for one table, as one call has given them."""

    def __init__(self, taker: RowTaker, rows: Any, *, delete: bool) -> None:
        schema = taker.table.schema
        self.taker = taker
        self.table = taker.table
        self.delete = delete
        found = RowsIn(schema, key_only=delete).batch(rows).to_pylist()
        ids = {each.name: each.id for each in schema.columns}
        self.keys: list[Key] = [tuple(row[each.name] for each in schema.key_columns) for row in found]
        self.rows: list[Row | None] = [
            None if delete else {ids[name]: value for name, value in row.items()} for row in found
        ]


class CaptureStore:
    """What all processes share."""

    def __init__(self, rng: Random, seen: Callable[[CaptureStore, list[Writes]], None]) -> None:
        """`seen` is told of every commit, when it is visible."""
        self.rng = rng
        self.catalog = Catalog()
        self.versions: list[State] = [{}]
        self.written: list[frozenset[int]] = [frozenset()]
        """What was written in each version: hashes of keys."""
        self.life = 1
        """Which owner it has."""
        self.faults = 0.0
        self._seen = seen

    @property
    def version(self) -> int:
        return len(self.versions) - 1

    def change(self, sql: str) -> None:
        """A statement about tables."""
        statement = parse(sql)
        match statement:
            case CreateTable():
                options = {} if statement.beside is None else {BESIDE: statement.beside}
                record = self.catalog.plan_create_table(
                    statement.name,
                    statement.columns,
                    statement.key,
                    shards=statement.shards or 1,
                    options=options,
                    if_not_exists=statement.if_not_exists,
                    channels=2,
                )
            case AlterTable():
                record = self.catalog.plan_alter_table(statement.name, *statement.changes)
            case _:
                raise InvalidArgument(f"simulated: nobody carries this out: {sql}")
        if record is not None:
            self.versions.append(self.versions[-1])
            self.written.append(frozenset())
            self.catalog.apply(record, Timestamp.compose(1_750_000_000_000 + self.version))

    def check(self, writes: Sequence[Writes], reads: frozenset[int], read_at: int | None) -> None:
        """Raises: `Conflict`, `SchemaMismatch`."""
        if read_at is not None and any(reads & each for each in self.written[read_at + 1 :]):
            raise Conflict("simulated: what was read has been written since")
        for each in writes:
            now = self.catalog.table(each.table.name)
            if now.schema.version != each.table.schema.version:
                raise SchemaMismatch(f"simulated: table {now.name} has changed", table=now.name, timestamp=self.version)

    def commit(self, writes: list[Writes]) -> int:
        """Make them visible. Returns: the version."""
        state = dict(self.versions[-1])
        hashes: set[int] = set()
        for each in writes:
            table = state[each.table.id] = dict(state.get(each.table.id, {}))
            hashes.update(each.taker.hashes_of([tuple(key) for key in each.keys]))
            for key, row in zip(each.keys, each.rows):
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
        self.versions.append(state)
        self.written.append(frozenset(hashes))
        self._seen(self, writes)
        return self.version

    def rows(self, name: str, at: int | None = None, own: Sequence[Writes] = ()) -> list[dict[str, Any]]:
        """The rows of a table, by names as they are now."""
        table = self.catalog.table(name)
        found = dict(self.versions[-1 if at is None else at].get(table.id, {}))
        for each in own:
            if each.table.id == table.id:
                for key, row in zip(each.keys, each.rows):
                    if row is None:
                        found.pop(key, None)
                    else:
                        found[key] = row
        columns = table.schema.columns
        return [{each.name: row.get(each.id) for each in columns} for row in found.values()]


class Found:
    """An answer."""

    def __init__(self, rows: list[dict[str, Any]], types: Mapping[str, pa.DataType], names: Sequence[str]) -> None:
        self._rows = rows
        self._types = types
        self._names = names

    def rows(self) -> list[dict[str, Any]]:
        return self._rows

    def to_arrow(self) -> pa.Table:
        schema = pa.schema([(name, self._types.get(name, pa.int64())) for name in self._names])
        return pa.Table.from_pylist(self._rows, schema=schema)


class SimDatabase:
    """A process's handle. Every call is a place where others may run, where it may fail, and where it may die."""

    id = b"simulated"
    is_owner = False

    def __init__(self, store: CaptureStore, process: Process, note: Callable[[str], None]) -> None:
        self.store = store
        self.process = process
        self._note = note
        self.is_at_statement = False
        """Whether it is about to change a table: a bad moment to stand still."""
        self._life = store.life
        self._takers: dict[str, RowTaker] = {}

    # -- as of `tidegate.Database` -----------------------------------------------------------------------------------

    def sql(self, statement: str) -> None:
        self._reach("sql")
        self.store.change(statement)
        self._takers.clear()
        self._answer("sql")

    def change_behind(self, guard: SimTransaction, statement: str) -> None:
        self.is_at_statement = True
        self._reach("sql")
        self.is_at_statement = False
        if guard.life != self.store.life:
            raise Conflict("simulated: another owner knows nothing of what was read")
        self.store.check([], guard.reads, guard.read_at)
        self.store.change(statement)
        self._takers.clear()
        self._answer("sql")

    def table(self, name: str, *, fresh: bool = False) -> RowTaker:
        found = self._takers.get(name)
        if found is None or fresh:
            self._reach("table")
            table = self.store.catalog.table(name)
            if found is None or found.table != table:
                found = self._takers[name] = RowTaker(table)
        return found

    def find_table(self, name: str) -> RowTaker | None:
        try:
            return self.table(name)
        except NotFound:
            return None

    def query(self, sql: str, consistency: int | str, *, params: Sequence[Any] = ()) -> Found:
        self._reach("query")
        return self.answer(sql, self.store.version if isinstance(consistency, str) else consistency, params)

    @contextmanager
    def snapshot(self, level: str) -> Iterator[SimSnapshot]:
        assert level == "strong"
        self._reach("snapshot")
        yield SimSnapshot(self, self.store.version)

    def transaction(self, timeout: float | None = None) -> SimTransaction:  # noqa: ARG002
        self._reach("begin")
        return SimTransaction(self)

    def commit_run(self, guard: SimTransaction, run: Sequence[SimTransaction]) -> list[int]:
        self._reach("run")
        store = self.store
        if any(each.life != store.life for each in (guard, *run)):
            raise Conflict("simulated: another owner knows nothing of them")
        if store.rng.random() < store.faults:
            _abort(run)
            raise DiskFull("simulated: no room for a run")
        for each in run:
            try:
                store.check(each.writes, guard.reads, guard.read_at)
            except (Conflict, SchemaMismatch):
                _abort(run)
                self._takers.clear()
                raise
        found = []
        is_cut = len(run) > 1 and store.rng.random() < min(10 * store.faults, 0.2)
        until = store.rng.randrange(len(run)) if is_cut else len(run)
        for each in run[:until]:
            found.append(each.end(store.commit(each.writes)))
            guard.read_at = store.version
        if until < len(run):
            _abort(run[until:])
            if store.rng.random() < 0.5:
                self._note(f"{self.process.name} is not told that {until} of a run are committed")
                raise OutcomeUnknown("simulated: who knows how many of the run")
            raise DiskFull("simulated: no room for the end of a run")
        if len(run) > 1:
            self._note(f"{self.process.name} commits a run of {len(run)}")
        self._answer("run")
        return found

    # -- inside ------------------------------------------------------------------------------------------------------

    def _reach(self, what: str) -> None:
        """On the way to the owner."""
        self.process.point()
        if self.store.rng.random() < self.store.faults:
            self._note(f"{self.process.name} does not reach the owner: {what}")
            raise Unavailable(f"simulated: {what}")
        if self._life != self.store.life:
            self._life = self.store.life
            self._takers.clear()

    def _answer(self, what: str) -> None:
        """On the way back."""
        self.process.point()
        if self.store.rng.random() < self.store.faults:
            self._note(f"{self.process.name} is not told: {what}")
            raise OutcomeUnknown(f"simulated: {what}")

    def reach(self, what: str) -> None:
        self._reach(what)

    def answer_to(self, what: str) -> None:
        self._answer(what)

    def forget_tables(self) -> None:
        self._takers.clear()

    def answer(self, sql: str, at: int, params: Sequence[Any], own: Sequence[Writes] = ()) -> Found:
        """The answer to a query as of a version, by SQLite."""
        store = self.store
        names = set(_NAME.findall(sql))
        tables = [each for each in store.catalog.tables() if each.name in names]
        types: dict[str, pa.DataType] = {}
        with closing(sqlite3.connect(":memory:")) as db:
            for table in tables:
                types.update(zip(table.schema.arrow.names, table.schema.arrow.types))
                _copy(db, table, store.rows(table.name, at, own))
            try:
                cursor = db.execute(sql, list(params))
            except sqlite3.OperationalError as error:
                raise InvalidArgument(f"{sql}: {error}") from error
            columns = [each[0] for each in cursor.description]
            rows = [dict(zip(columns, row)) for row in cursor.fetchall()]
        return Found(rows, types, columns)


class SimSnapshot:
    """One cut."""

    def __init__(self, db: SimDatabase, at: int) -> None:
        self._db = db
        self._at = at

    def query(self, sql: str, *, params: Sequence[Any] = ()) -> Found:
        self._db.reach("query")
        return self._db.answer(sql, self._at, params)


class SimTransaction:
    """A transaction of a process."""

    def __init__(self, db: SimDatabase) -> None:
        self._db = db
        self.life = db.store.life
        self.writes: list[Writes] = []
        self.reads: frozenset[int] = frozenset()
        self.read_at: int | None = None
        self.state = "OPEN"
        self._used_owner = False
        self._wrote_ahead = False

    @property
    def channel(self) -> str | None:
        return None if self._used_owner or not self.writes else "channel"

    @property
    def nbytes(self) -> int:
        return _ROW_BYTES * sum([len(each.rows) for each in self.writes])

    def upsert(self, table: str, rows: Any) -> int:
        return self._write(table, rows, delete=False)

    def delete(self, table: str, keys: Any) -> int:
        return self._write(table, keys, delete=True)

    def _write(self, table: str, rows: Any, *, delete: bool) -> int:
        self._check_open()
        found = Writes(self._db.table(table), rows, delete=delete)
        self.writes.append(found)
        if sum([len(each.rows) for each in self.writes]) > BUFFER_ROWS:
            self._ask("write ahead")
            self._wrote_ahead = True
        return len(found.rows)

    def query(self, sql: str, *, params: Sequence[Any] = ()) -> Found:
        self._ask("read")
        if self._wrote_ahead:
            raise InvalidTransactionState("simulated: it was written ahead", state=self.state)
        if self.read_at is None:
            self.read_at = self._db.store.version
        return self._db.answer(sql, self.read_at, params, self.writes)

    def read_hashes(self, name: str, hashes: Sequence[int]) -> int:  # noqa: ARG002
        self._ask("note what is read")
        self.reads |= frozenset(hashes)
        if self.read_at is None:
            self.read_at = self._db.store.version
        return self.read_at

    def commit(self) -> int:
        self._check_open()
        db, store = self._db, self._db.store
        db.reach("commit")
        if self.life != store.life:
            if self._used_owner:
                self.state = "ABORTED"
                raise TransactionAborted("simulated: the owner died", reason="the owner died")
            self.life = store.life
        try:
            store.check(self.writes, self.reads, self.read_at)
        except Conflict:
            self.state = "ABORTED"
            raise
        except SchemaMismatch:
            db.forget_tables()
            self.state = "ABORTED"
            raise
        version = self.end(store.commit(self.writes))
        db.answer_to("commit")
        return version

    def end(self, version: int) -> int:
        self.state = "COMMITTED"
        return version

    def abort(self) -> None:
        if self.state == "OPEN":
            self._db.reach("abort")
            self.state = "ABORTED"

    def __enter__(self) -> SimTransaction:
        return self

    def __exit__(self, type: type[BaseException] | None, *_: object) -> None:
        if self.state == "OPEN":
            self.abort() if type is not None else self.commit()

    def _ask(self, what: str) -> None:
        self._check_open()
        self._db.reach(what)
        if self.life != self._db.store.life:
            if self._used_owner:
                self.state = "ABORTED"
                raise TransactionAborted("simulated: the owner died", reason="the owner died")
            self.life = self._db.store.life
        self._used_owner = True

    def _check_open(self) -> None:
        if self.state != "OPEN":
            raise InvalidTransactionState(f"simulated: it is {self.state}", state=self.state)


def _abort(run: Sequence[SimTransaction]) -> None:
    for each in run:
        each.state = "ABORTED"


def _copy(db: sqlite3.Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    names = [each.name for each in table.schema.columns]
    db.execute(f"CREATE TABLE `{table.name}` ({', '.join(f'`{name}`' for name in names)})")
    marks = ", ".join("?" * len(names))
    db.executemany(f"INSERT INTO `{table.name}` VALUES ({marks})", [tuple(row.values()) for row in rows])
