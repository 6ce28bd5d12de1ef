"""`CutReader`: answers SQL over tables at one Timestamp: the last checkpoint before it, and the log from there on.

Works in every process: snapshots and log are files. Whoever asks has seen to it that every channel has ticked past
the Timestamp; if one has not, reading waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Lock, Timer
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot.errors import SqlglotError

from tidegate.clock.timestamp import Timestamp
from tidegate.database.cancel import INSIST_S, Cancel, Cancelled
from tidegate.database.keeping import Keeper
from tidegate.database.macros import Macros
from tidegate.database.tails import LogSource, Tails, shard_of_key
from tidegate.errors import Closed, InvalidArgument, StorageFailed, TidegateError, WaitTimeout
from tidegate.log.batch import Batch
from tidegate.reads.shapes import shape_of
from tidegate.reads.translate import SETUP, UNANSWERED, NeedsSpark, Translated, as_spark, translate
from tidegate.snapshots.layer_cache import LayerCache
from tidegate.snapshots.manifest import Manifest
from tidegate.snapshots.merge_sql import quoted
from tidegate.snapshots.one_key import OneKey, only_key
from tidegate.snapshots.reader import BATCH_ROWS, Duck, SnapshotReader
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.changes import changes_of, changes_schema, net
from tidegate.tables.schema import OP, Table, TableSchema
from tidegate.tables.spark_sql import DIALECT

_IDLE_MAX: Final = 8
_MEMORY: Final = "1GB"
_TRANSLATED_MAX: Final = 512
_CLOSE_S: Final = 10.0
_UNTYPED: Final = ("the function array of ()", "the function map of ()", "a struct with such fields")
"""Constants that get their types from where they go."""
_Versions = tuple[tuple[str, int, int], ...]
"""The tables of a query with their ids and the versions of their schemas."""


class TableAt(NamedTuple):
    """A table as a query sees it."""

    table: Table
    at: Timestamp
    manifest: Manifest | None = None
    """The checkpoint to read it by, where that is decided; else the newest at or before `at`."""
    columns: tuple[str, ...] | None = None
    """Those that the query may name, where they are not all."""

    @property
    def schema(self) -> TableSchema:
        return self.table.at(self.at)

    @property
    def names(self) -> list[str]:
        """The columns that the query may name."""
        return self.table.visible(self.schema) if self.columns is None else list(self.columns)


class _Session:
    """A connection of DuckDB and the views it has. Used by one query at a time."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self.cursor: Final = cursor
        self._views: dict[str, str] = {}
        self._registered: list[str] = []
        for each in SETUP:
            if each.startswith("SET "):
                cursor.execute(each)

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
        self._layers = LayerCache(self._snapshots.layers)
        self._duck = Duck(Path(store.root) / "spill", threads=2, memory_limit=_MEMORY)
        self._macros = Macros(self._duck.cursor)
        self._idle: list[_Session] = []
        self._translated: dict[tuple[str, _Versions], Translated] = {}
        self._lock = Lock()
        self._ended = Condition(self._lock)
        self._running: set[_Session] = set()
        self._streams: set[_Session] = set()
        """Those that may wait for their reader."""
        self._is_closed = False

    def close(self) -> None:
        """End what runs, and let go of everything."""
        deadline = time.monotonic() + _CLOSE_S
        with self._ended:
            self._is_closed = True
            while self._running and time.monotonic() < deadline:
                for each in self._running:
                    each.cursor.interrupt()
                self._ended.wait(INSIST_S)
            idle, self._idle = self._idle, []
            streams = list(self._streams)
        for each in streams:
            each.cursor.interrupt()
        for each in (*idle, *streams):
            with suppress(duckdb.Error):
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
        timeout_s: float | None = None,
        cancel: Cancel | None = None,
    ) -> pa.Table:
        """The answer to a query in Spark SQL over `tables`, and `given` ones.

        `own` are rows by table that are not in the log, and lie on top.
        Raises: `NeedsSpark` when DuckDB cannot answer it as Spark would; `InvalidArgument` when it is not understood;
        `Truncated`, `WaitTimeout`, `SnapshotDamaged`; `TailTooLong`.
        """
        with self._answering(sql, tables, own, given, timeout_s, cancel) as (found, translated):
            return as_spark(found.to_arrow_table(), translated)

    def constants(self, sql: str) -> pa.Table:
        """The rows of VALUES, which read no table. What has no type by itself, as `array()`, gets that of its column.

        Raises: `InvalidArgument`.
        """
        try:
            return self.query(sql, {})
        except NeedsSpark as needs:
            if not needs.reason.startswith(_UNTYPED):
                raise InvalidArgument(f"{shown(sql)} cannot be computed as Spark would: {needs.reason}") from needs
        try:
            (translated,) = sqlglot.transpile(sql, read=DIALECT, write="duckdb")
            with self._session(False) as session:
                return session.cursor.sql(translated).to_arrow_table()
        except (SqlglotError, duckdb.Error) as error:
            raise InvalidArgument(f"{shown(sql)}: {str(error).strip().splitlines()[0]}") from error

    @contextmanager
    def stream(
        self,
        sql: str,
        tables: Mapping[str, TableAt],
        *,
        batch_rows: int = BATCH_ROWS,
        cancel: Cancel | None = None,
    ) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """As `query`, batch by batch: no more of it is in memory than that."""
        cancel = cancel or Cancel()
        manifests: dict[str, Manifest] = {}
        with self._answering(sql, tables, None, None, None, cancel, manifests, is_stream=True) as (found, translated):
            reader = found.to_arrow_reader(batch_rows)
            empty = as_spark(reader.schema.empty_table(), translated)

            def batches() -> Generator[pa.RecordBatch, None, None]:
                try:
                    for batch in reader:
                        yield from as_spark(pa.Table.from_batches([batch]), translated).to_batches()
                except (duckdb.Error, OSError, pa.ArrowException) as error:
                    raise self._explained(error, sql, tables, manifests, cancel) from error
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
        timeout_s: float | None,
        cancel: Cancel | None,
        manifests: dict[str, Manifest] | None = None,
        *,
        is_stream: bool = False,
    ) -> Iterator[tuple[duckdb.DuckDBPyRelation, Translated]]:
        _check_cases(sql, tables)
        translated = self._translate(sql, tables, given or {})
        manifests = {} if manifests is None else manifests
        cancel = cancel or Cancel()
        timer = None if timeout_s is None else Timer(timeout_s, cancel.set)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._kept(tables, manifests), self._session(is_stream) as session:
            try:
                if timer is not None:
                    timer.start()
                with cancel.guarding(session.cursor.interrupt):
                    for name, rows in (given or {}).items():
                        session.register(name, rows)
                    wanted = _one_key(translated, tables)
                    text = translated.sql
                    for number, (name, each) in enumerate(sorted(tables.items())):
                        mine = (own or {}).get(each.table.id, ())
                        # No table has a blank in its name.
                        tail = f"tail {number}"
                        if wanted is None:
                            self._add(session, tail, name, each, manifests[name], mine, deadline_s)
                        else:
                            rows = self._only(session, tail, name, each, manifests[name], mine, deadline_s, wanted)
                            text = f"WITH {quoted(name)} AS NOT MATERIALIZED ({rows}) {text}"
                        if cancel.is_set:
                            raise Cancelled
                    self._macros.make(text)
                    yield session.cursor.sql(text), translated
            except (duckdb.Error, Cancelled) as error:
                raise self._explained(error, sql, tables, manifests, cancel, timeout_s) from error
            finally:
                if timer is not None:
                    timer.cancel()

    def _translate(self, sql: str, tables: Mapping[str, TableAt], given: Mapping[str, pa.Table]) -> Translated:
        arrow = {name: pa.schema([each.schema.arrow.field(one) for one in each.names]) for name, each in tables.items()}
        if given:
            return translate(sql, arrow | {name: each.schema for name, each in given.items()})
        versions = tuple(sorted((name, each.table.id, each.schema.version) for name, each in tables.items()))
        shape = shape_of(sql)
        if shape is not None:
            # What is wrong with a query is said of the query itself.
            with suppress(TidegateError, NeedsSpark):
                filled = shape.fill(self._translated_once(shape.sql, versions, arrow))
                if filled is not None:
                    return filled
        return self._translated_once(sql, versions, arrow)

    def _translated_once(self, sql: str, versions: _Versions, schemas: Mapping[str, pa.Schema]) -> Translated:
        found = self._translated.get((sql, versions))
        if found is None:
            found = translate(sql, schemas)
            if len(self._translated) >= _TRANSLATED_MAX:
                self._translated.clear()
            self._translated[sql, versions] = found
        return found

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
    def kept(self, tables: Mapping[str, TableAt]) -> Iterator[dict[str, TableAt]]:
        """The tables with the checkpoints to read them by, which are kept while this lasts."""
        manifests: dict[str, Manifest] = {}
        with self._kept(tables, manifests):
            yield {name: each._replace(manifest=manifests[name]) for name, each in tables.items()}

    @contextmanager
    def _session(self, is_stream: bool) -> Iterator[_Session]:
        with self._lock:
            if self._is_closed:
                raise Closed("the database was closed; open it again")
            session = self._idle.pop() if self._idle else _Session(self._duck.cursor())
            (self._streams if is_stream else self._running).add(session)
        is_clean = False
        try:
            yield session
            with suppress(duckdb.Error):  # A result that was not read to its end: nobody else gets it.
                session.clean()
                is_clean = True
        finally:
            with self._ended:
                self._running.discard(session)
                self._streams.discard(session)
                self._ended.notify_all()
                is_clean = is_clean and len(self._idle) < _IDLE_MAX and not self._is_closed
                if is_clean:
                    self._idle.append(session)
            if not is_clean:
                with suppress(duckdb.Error):
                    session.cursor.close()

    def _add(
        self,
        session: _Session,
        tail_name: str,
        name: str,
        asked: TableAt,
        manifest: Manifest,
        own: Sequence[Batch],
        deadline_s: float | None,
    ) -> None:
        """Make a table known to DuckDB under its name."""
        table, at = asked.table, asked.at
        schema = table.at(at)
        key = [each.name for each in schema.key_columns]
        tail = (
            changes_schema(schema).empty_table()
            if table.is_view
            else self.tails.changes(table, schema, manifest.timestamp, at, deadline_s=deadline_s)
        )
        if own:
            tail = pa.concat_tables([tail, changes_of(table, own, schema)])
        files = manifest.files(table.id)
        recent = [each for each in files if not each.is_base] if key else []
        kept = self._layers.changes(table, schema, recent) if len(recent) > 1 else None
        if kept is not None:
            files = tuple(each for each in files if each.is_base)
            tail = net(pa.concat_tables([kept, tail]), key) if tail.num_rows else kept
        elif tail.num_rows:
            tail = net(tail, key)
        columns = ", ".join(quoted(each) for each in asked.names)
        sql = f"SELECT {columns} FROM ({self._snapshots.sql(table, schema, files)}) AS below"
        if tail.num_rows:
            session.register(tail_name, tail)
            if key:
                same = " AND ".join(
                    f"above.{quoted(each.name)} {'IS NOT DISTINCT FROM' if each.nullable else '='}"
                    f" below.{quoted(each.name)}"
                    for each in schema.key_columns
                )
                sql += f" WHERE NOT EXISTS (SELECT 1 FROM {quoted(tail_name)} AS above WHERE {same})"
            sql += f" UNION ALL SELECT {columns} FROM {quoted(tail_name)} WHERE {quoted(OP)} = 1"
        session.view(name, sql)

    def _only(
        self,
        session: _Session,
        tail_name: str,
        name: str,
        asked: TableAt,
        manifest: Manifest,
        own: Sequence[Batch],
        deadline_s: float | None,
        wanted: OneKey,
    ) -> str:
        """A query that stands for a table of which one key is wanted. Only the rows of that key are right in it.

        A key that has changed since the files that DuckDB reads is not looked for there, and nothing is merged.
        """
        table, at = asked.table, asked.at
        schema = table.at(at)
        changes = self.tails.changes(table, schema, manifest.timestamp, at, deadline_s=deadline_s, key=wanted)
        if own:
            changes = pa.concat_tables([changes, only_key(changes_of(table, own, schema), wanted)])
        shard = shard_of_key(table, schema, wanted)
        files = [each for each in manifest.files(table.id) if each.shard == shard]
        recent = [each for each in files if not each.is_base]
        kept = self._layers.lookup(table, schema, recent, wanted) if recent else None
        if kept is not None:
            files = [each for each in files if each.is_base]
            changes = pa.concat_tables([kept, changes])
        columns = ", ".join(quoted(each) for each in schema.names)
        if not changes.num_rows:
            below = f"{name} {shard}"
            session.view(below, f"SELECT {columns} FROM ({self._snapshots.sql(table, schema, files)}) AS below")
            return f"SELECT * FROM {quoted(below)}"
        session.register(tail_name, net(changes, list(wanted)))
        return f"SELECT {columns} FROM {quoted(tail_name)} WHERE {quoted(OP)} = 1"

    def _explained(
        self,
        error: Exception,
        sql: str,
        tables: Mapping[str, TableAt],
        manifests: Mapping[str, Manifest],
        cancel: Cancel | None,
        timeout_s: float | None = None,
    ) -> Exception:
        stopped = self._is_closed or (cancel is not None and cancel.is_set)
        if stopped or isinstance(error, duckdb.InterruptException | Cancelled):
            if self._is_closed:
                return Closed(f"{shown(sql)} was ended: the database was closed")
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
        if UNANSWERED in str(error):
            return NeedsSpark(f"a value in {shown(sql)}")
        return InvalidArgument(f"{shown(sql)}: {str(error).strip().splitlines()[0]}")


@contextmanager
def _all(holds: Sequence[Any]) -> Iterator[None]:
    if not holds:
        yield
        return
    with holds[0], _all(holds[1:]):
        yield


def _one_key(translated: Translated, tables: Mapping[str, TableAt]) -> OneKey | None:
    """The only key that a query can have rows of, by its columns; None when there may be several."""
    pinned = translated.pinned
    if pinned is None or list(tables) != [pinned.table]:
        return None
    only = tables[pinned.table]
    if only.table.is_view:
        return None
    key = [each.name for each in only.schema.key_columns]
    return {name: pinned.values[name] for name in key} if key and pinned.values.keys() >= set(key) else None


def _check_cases(sql: str, tables: Iterable[str]) -> None:
    """DuckDB does not tell names by their case; the catalog does."""
    seen: dict[str, str] = {}
    for name in tables:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise InvalidArgument(f"{shown(sql)}: {other!r} and {name!r} cannot be read in one query")


def shown(sql: str) -> str:
    """A statement as messages name it."""
    text = " ".join(sql.split())
    return repr(text if len(text) <= 80 else text[:77] + "...")
