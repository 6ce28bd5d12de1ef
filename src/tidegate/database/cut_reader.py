"""`CutReader`: answers SQL over tables at one Timestamp: the last checkpoint before it, and the log from there on.

Works in every process: snapshots and log are files. Whoever asks has seen to it that every channel has ticked past
the Timestamp; if one has not, reading waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidegate.clock.timestamp import Timestamp
from tidegate.database.keeping import Keeper
from tidegate.database.tails import LogSource, Tails
from tidegate.errors import InvalidArgument, NotFound, StorageFailed, TidegateError, WaitTimeout
from tidegate.log.batch import Batch
from tidegate.snapshots.manifest import Manifest
from tidegate.snapshots.merge_sql import quoted
from tidegate.snapshots.reader import BATCH_ROWS, Duck, SnapshotReader
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.changes import changes_of, net
from tidegate.tables.schema import OP, Table
from tidegate.tables.spark_sql import DIALECT

_IDLE_MAX: Final = 8
_MEMORY: Final = "1GB"
Params = Sequence[Any] | Mapping[str, Any] | None


class TableAt(NamedTuple):
    """A table as a query sees it."""

    table: Table
    at: Timestamp
    manifest: Manifest | None = None
    """The checkpoint to read it by, where that is decided; else the newest at or before `at`."""


class Cancel:
    """Ends a query from outside. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._interrupt: Callable[[], None] | None = None
        self.is_set = False

    def set(self) -> None:
        with self._lock:
            self.is_set = True
            if self._interrupt is not None:
                self._interrupt()

    @contextmanager
    def guarding(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Call `interrupt` if it is set while this lasts."""
        with self._lock:
            self._interrupt = interrupt
            if self.is_set:
                interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._interrupt = None


class _Session:
    """A connection of DuckDB and the views it has. Used by one query at a time."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self.cursor: Final = cursor
        self._views: dict[str, str] = {}
        self._registered: list[str] = []
        cursor.execute("SET TimeZone = 'UTC'")

    def view(self, name: str, sql: str) -> None:
        known = name.casefold()
        if self._views.get(known) != sql:
            self._views.pop(known, None)
            self.cursor.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS {sql}")
            self._views[known] = sql

    def register(self, name: str, rows: pa.Table) -> None:
        self._registered.append(name)
        self.cursor.register(name, rows)

    def clean(self) -> None:
        for name in self._registered:
            self.cursor.unregister(name)
        self._registered.clear()
        if len(self._views) > 200:
            for name in self._views:
                self.cursor.execute(f"DROP VIEW IF EXISTS {quoted(name)}")
            self._views.clear()


class CutReader:
    """Reads one database. Safe to use from several threads."""

    def __init__(self, store: SnapshotStore, log: LogSource, channels: int) -> None:
        self.store: Final = store
        self.tails: Final = Tails(log, channels)
        self.keeper: Final = Keeper(store)
        self._snapshots = SnapshotReader(store)
        self._duck = Duck(Path(store.root) / "spill", threads=2, memory_limit=_MEMORY)
        self._idle: list[_Session] = []
        self._lock = Lock()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.cursor.close()
        self.tails.close()
        self.keeper.close()
        self._snapshots.close()
        self._duck.close()

    def query(
        self,
        sql: str,
        tables: Mapping[str, TableAt],
        own: Mapping[int, Sequence[Batch]] | None = None,
        given: Mapping[str, pa.Table] | None = None,
        *,
        params: Params = None,
        timeout_s: float | None = None,
        cancel: Cancel | None = None,
    ) -> pa.Table:
        """The answer to a query in Spark SQL over `tables`, and `given` ones.

        `own` are rows by table that are not in the log, and lie on top.
        Raises: `InvalidArgument` when the query is not understood; `Truncated`, `WaitTimeout`, `SnapshotDamaged`;
        `TailTooLong`.
        """
        with self._answering(sql, tables, own, given, params, timeout_s, cancel) as found:
            return _as_spark(sql, found.to_arrow_table(), [str(each) for each in found.types])

    @contextmanager
    def stream(
        self,
        sql: str,
        tables: Mapping[str, TableAt],
        *,
        params: Params = None,
        batch_rows: int = BATCH_ROWS,
        cancel: Cancel | None = None,
    ) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """As `query`, batch by batch: no more of it is in memory than that."""
        with self._answering(sql, tables, None, None, params, None, cancel) as found:
            types = [str(each) for each in found.types]
            reader = found.to_arrow_reader(batch_rows)
            empty = _as_spark(sql, reader.schema.empty_table(), types)

            def batches() -> Generator[pa.RecordBatch, None, None]:
                try:
                    for batch in reader:
                        yield from _as_spark(sql, pa.Table.from_batches([batch]), types).to_batches()
                except (duckdb.Error, OSError, pa.ArrowException) as error:
                    raise self._explained(error, sql, tables, {}, cancel) from error
                finally:
                    reader.close()

            rows = batches()
            try:
                yield empty.schema, rows
            finally:
                rows.close()

    @contextmanager
    def _answering(
        self,
        sql: str,
        tables: Mapping[str, TableAt],
        own: Mapping[int, Sequence[Batch]] | None,
        given: Mapping[str, pa.Table] | None,
        params: Params,
        timeout_s: float | None,
        cancel: Cancel | None,
    ) -> Iterator[duckdb.DuckDBPyRelation]:
        translated = translate(sql)
        _check_cases(sql, tables)
        manifests: dict[str, Manifest] = {}
        cancel = cancel or Cancel()
        timer = None if timeout_s is None else Timer(timeout_s, cancel.set)
        with self._kept(tables, manifests), self._session() as session:
            try:
                if timer is not None:
                    timer.start()
                with cancel.guarding(session.cursor.interrupt):
                    for name, rows in (given or {}).items():
                        session.register(name, rows)
                    for number, (name, each) in enumerate(sorted(tables.items())):
                        mine = (own or {}).get(each.table.id, ())
                        # No table has a blank in its name.
                        self._add(session, f"tail {number}", name, each, manifests[name], mine)
                    yield session.cursor.sql(translated, params=params)
            except duckdb.Error as error:
                raise self._explained(error, sql, tables, manifests, cancel, timeout_s) from error
            finally:
                if timer is not None:
                    timer.cancel()

    @contextmanager
    def _kept(self, tables: Mapping[str, TableAt], manifests: dict[str, Manifest]) -> Iterator[None]:
        """Find the checkpoint for each table, and keep it while it is read."""
        by_time: dict[Timestamp, Manifest] = {}
        for name, each in tables.items():
            if each.manifest is not None:
                manifests[name] = each.manifest
            else:
                if each.at not in by_time:
                    by_time[each.at] = self.store.at(each.at)
                manifests[name] = by_time[each.at]
        holds = [self.keeper.reading(number) for number in sorted({each.checkpoint for each in manifests.values()})]
        with _all(holds):
            yield

    @contextmanager
    def _session(self) -> Iterator[_Session]:
        with self._lock:
            session = self._idle.pop() if self._idle else None
        session = session or _Session(self._duck.cursor())
        try:
            yield session
            session.clean()
        except BaseException:
            # An open result, or a view half made: nobody else gets it.
            with suppress(duckdb.Error):
                session.cursor.close()
            raise
        with self._lock:
            if len(self._idle) < _IDLE_MAX:
                self._idle.append(session)
                return
        session.cursor.close()

    def _add(
        self,
        session: _Session,
        tail_name: str,
        name: str,
        asked: TableAt,
        manifest: Manifest,
        own: Sequence[Batch],
    ) -> None:
        """Make a table known to DuckDB under its name."""
        table, at = asked.table, asked.at
        schema = table.at(at)
        key = [each.name for each in schema.key_columns]
        tail = self.tails.changes(table, schema, manifest.timestamp, at)
        if own:
            tail = pa.concat_tables([tail, changes_of(table, own, schema)])
        columns = ", ".join(quoted(each) for each in schema.names)
        sql = f"SELECT {columns} FROM ({self._snapshots.sql(manifest, table, schema)}) AS below"
        if tail.num_rows:
            tail = net(tail, key)
            session.register(tail_name, tail)
            if key:
                same = " AND ".join(f"above.{quoted(each)} = below.{quoted(each)}" for each in key)
                sql += f" WHERE NOT EXISTS (SELECT 1 FROM {quoted(tail_name)} AS above WHERE {same})"
            sql += f" UNION ALL SELECT {columns} FROM {quoted(tail_name)} WHERE {quoted(OP)} = 1"
        session.view(name, sql)

    def _explained(
        self,
        error: Exception,
        sql: str,
        tables: Mapping[str, TableAt],
        manifests: Mapping[str, Manifest],
        cancel: Cancel | None,
        timeout_s: float | None = None,
    ) -> TidegateError:
        if isinstance(error, duckdb.InterruptException) or (cancel is not None and cancel.is_set):
            if timeout_s is not None:
                return WaitTimeout(f"{shown(sql)} took longer than its timeout of {timeout_s:g} s; give it more time")
            return WaitTimeout(f"{shown(sql)} was cancelled")
        if isinstance(error, duckdb.OutOfMemoryException):
            return StorageFailed(
                f"{shown(sql)} needs more than the {_MEMORY} of memory that a query has, or more room on the disk"
                f" beside it; ask for less, or use engine='spark': {error}"
            )
        if isinstance(error, duckdb.IOException | duckdb.InvalidInputException | OSError):
            for name, each in tables.items():
                if name in manifests and (damage := self._snapshots.damage(manifests[name], each.table)) is not None:
                    return damage
        return InvalidArgument(f"{shown(sql)}: {error}")


@contextmanager
def _all(holds: Sequence[Any]) -> Iterator[None]:
    if not holds:
        yield
        return
    with holds[0], _all(holds[1:]):
        yield


def translate(sql: str) -> str:
    """Spark SQL as DuckDB's. Raises: `InvalidArgument`."""
    try:
        (found,) = sqlglot.transpile(sql, read=DIALECT, write="duckdb")
    except (SqlglotError, ValueError) as error:
        raise InvalidArgument(f"{shown(sql)} is not understood: {error}") from error
    return found


def tables_in(sql: str) -> set[str]:
    """The names of tables that a query reads. Raises: `InvalidArgument`."""
    try:
        tree = sqlglot.parse_one(sql, read=DIALECT)
    except SqlglotError as error:
        raise InvalidArgument(f"{shown(sql)} is not understood: {error}") from error
    known = {each.alias for each in tree.find_all(exp.CTE)}
    found = {each.name for each in tree.find_all(exp.Table)}
    if "" in found:
        raise NotFound(f"{shown(sql)} reads something that is no table")
    return found - known


def _check_cases(sql: str, tables: Iterable[str]) -> None:
    """DuckDB does not tell names by their case; the catalog does."""
    seen: dict[str, str] = {}
    for name in tables:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidArgument(f"{shown(sql)}: {other!r} and {name!r} cannot be read in one query")


def _as_spark(sql: str, found: pa.Table, types: Sequence[str]) -> pa.Table:
    """The answer with Spark's types: what DuckDB counts in 128 bits (the sum of integers) has 64 there."""
    for index, kind in enumerate(types):
        if kind in ("HUGEINT", "UHUGEINT"):
            name = found.column_names[index]
            try:
                column = found.column(index).cast(pa.int64())
            except pa.ArrowInvalid as error:
                raise InvalidArgument(
                    f"{shown(sql)}: column {name!r} has a value beyond BIGINT; CAST what is summed to DECIMAL(38, 0)"
                ) from error
            found = found.set_column(index, name, column)
    return found


def shown(sql: str) -> str:
    """A statement as messages name it."""
    text = " ".join(sql.split())
    return repr(text if len(text) <= 80 else text[:77] + "...")
