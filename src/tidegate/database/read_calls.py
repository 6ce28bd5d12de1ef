"""`ReadCalls`: the part of a `Database` that answers queries: one cut each, as fresh as asked for."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple
from weakref import WeakSet

import pyarrow as pa
import sqlglot

from tidegate.clock.timestamp import Timestamp
from tidegate.database.cancel import Cancel
from tidegate.database.cut_reader import CutReader, TableAt, shown
from tidegate.database.local import LocalBackend
from tidegate.database.read_gate import ReadAsk, ReadPlace
from tidegate.database.read_settings import ReadSettings
from tidegate.database.result import Result, ResultStream
from tidegate.database.session import Memory, Session
from tidegate.database.snapshot import Snapshot
from tidegate.database.table_calls import TableCalls
from tidegate.database.tails import TailTooLong
from tidegate.database.view_reads import Views, inline, is_sooner_stored, may_differ, naming, resolve
from tidegate.errors import InvalidArgument, Unavailable
from tidegate.reads.consistency import Asked, Consistency, Seen
from tidegate.reads.params import Params, bind
from tidegate.reads.shapes import shape_of
from tidegate.reads.time_travel import AsOf, take_times
from tidegate.reads.translate import NeedsSpark, tables_in
from tidegate.runtime.log_files import LogFiles
from tidegate.snapshots.manifest import Manifest
from tidegate.snapshots.store import SnapshotStore
from tidegate.stores.sqlite_metadata import SqliteMetadataStore
from tidegate.tables.spark_sql import DIALECT

_AS_OF: Final = re.compile(r"\bAS\s+OF\b", re.IGNORECASE)


class Prepared(NamedTuple):
    """A query, read once."""

    sql: str
    """Without the times that it names."""
    tables: Sequence[str]
    """What it reads at the cut that it gets."""
    times: dict[str, AsOf]
    """What it reads at times of its own, by the names that stand for it in `sql`."""


class ReadCalls(TableCalls):
    """Reading; `Database` has the rest."""

    memory: Memory
    """Of the calls made on the database itself."""
    snapshots: WeakSet[Snapshot]
    """Those that may still be open."""
    _cut_reader: CutReader | None = None
    _metadata: SqliteMetadataStore | None = None

    @property
    def id(self) -> bytes:
        """By which tokens of sessions tell databases apart."""
        return self.backend.database_id

    def query(
        self,
        sql: str,
        consistency: Consistency | str | None = None,
        *,
        params: Params = None,
        staleness: float | None = None,
        timeout: float | None = None,
        max_lag: float | None = None,
        engine: str | None = None,
    ) -> Result:
        """The answer to a query in Spark SQL, of one cut.

        `consistency` is `strong` (all that was acknowledged before the call), `session` (all that was written or seen
        through this object; the default), `bounded` (all that was acknowledged `staleness` seconds before the call, 5
        by default), `eventual` (the last checkpoint), or a Timestamp. `params` are the values of `?`, or of `:name`.
        `timeout` bounds waiting and computing, in seconds. `engine` is `duckdb`, `spark`, or `auto`: DuckDB unless it
        cannot answer as Spark would.

        Raises: `NotFound`, `InvalidArgument`; `Truncated` for a time that is not kept any more; `Stalled` when its cut
        is more than `max_lag` seconds off, or nothing has moved towards it for 3 s; `WaitTimeout`.
        """
        wanted = self.memory.settings.with_(
            consistency=consistency, staleness=staleness, timeout=timeout, max_lag=max_lag, engine=engine
        )
        return self.read(sql, wanted, self.memory, params)

    async def query_async(
        self,
        sql: str,
        consistency: Consistency | str | None = None,
        *,
        params: Params = None,
        staleness: float | None = None,
        timeout: float | None = None,
        max_lag: float | None = None,
        engine: str | None = None,
    ) -> Result:
        """`query` for asyncio. Cancelled, the query is ended."""
        wanted = self.memory.settings.with_(
            consistency=consistency, staleness=staleness, timeout=timeout, max_lag=max_lag, engine=engine
        )
        cancel = Cancel()
        try:
            return await asyncio.to_thread(self.read, sql, wanted, self.memory, params, None, cancel)
        except asyncio.CancelledError:
            cancel.set()
            raise

    def stream(
        self,
        sql: str,
        consistency: Consistency | str | None = None,
        *,
        params: Params = None,
        staleness: float | None = None,
        max_lag: float | None = None,
    ) -> ResultStream:
        """As `query`, for an answer that need not fit into memory: Arrow batches, computed as they are taken."""
        wanted = self.memory.settings.with_(consistency=consistency, staleness=staleness, max_lag=max_lag)
        return self.read_stream(sql, wanted, self.memory, params)

    def snapshot(
        self, consistency: Consistency | str | None = None, *, staleness: float | None = None, timeout: float = 600.0
    ) -> Snapshot:
        """One cut for any number of queries. It is let go when it is closed, or after `timeout` seconds."""
        wanted = self.memory.settings.with_(consistency=consistency, staleness=staleness)
        return self.take_snapshot(wanted, self.memory, timeout)

    def session(
        self,
        *,
        token: str | None = None,
        consistency: Consistency | str | None = None,
        staleness: float | None = None,
        timeout: float | None = None,
        max_lag: float | None = None,
        engine: str | None = None,
    ) -> Session:
        """A session: its reads never go back, and see what was written through it.

        With a `token` it goes on where that session was. What is not given is as for the database.
        """
        settings = self.memory.settings.with_(
            consistency=consistency, staleness=staleness, timeout=timeout, max_lag=max_lag, engine=engine
        )
        return Session(self, settings, token)  # type: ignore[arg-type]

    # -- for sessions and snapshots ------------------------------------------------------------------------------------

    def read(
        self,
        sql: str,
        wanted: ReadSettings,
        memory: Memory | None,
        params: Params = None,
        snapshot: Snapshot | None = None,
        cancel: Cancel | None = None,
    ) -> Result:
        """The answer to a query for whoever remembers with `memory`."""
        until = None if wanted.timeout_s is None else time.monotonic() + wanted.timeout_s
        prepared = self._prepare(bind(sql, params), wanted)
        may_wait = wanted.asked.level != "timestamp" and snapshot is None
        place, views = self._place(prepared, wanted, memory, snapshot, until, cancel)
        try:
            text = inline(prepared.sql, views)
            with naming(prepared.sql, text):
                engine, rows = self._compute(
                    text, views.tables, wanted, until, cancel, by_spark=not (views.inlined and may_wait)
                )
        except (TailTooLong, NeedsSpark):
            if not may_wait:
                raise
            # The log behind the last checkpoint is too long to be read each time, or only Spark can compute a view: a
            # newer checkpoint has to come.
            place, views = self._place(prepared, wanted, memory, snapshot, until, cancel, checkpoint=True)
            try:
                text = inline(prepared.sql, views)
            except NeedsSpark as error:
                raise Unavailable(f"{error.reason} is being filled; see SHOW MATERIALIZED VIEWS") from error
            with naming(prepared.sql, text):
                engine, rows = self._compute(text, views.tables, wanted, until, cancel)
        if memory is not None:
            memory.read(place.at)
        return Result(rows, place.at, engine=engine, waited_ms=place.waited_ms, views=views.how)

    def _prepare(self, sql: str, wanted: ReadSettings) -> Prepared:
        """Read a query; one for Spark that only Spark can read, by Spark."""
        try:
            return prepare(sql)
        except InvalidArgument as error:
            if wanted.engine == "duckdb" or not isinstance(sql, str):
                raise
            if wanted.engine != "spark":
                raise InvalidArgument(f"{error}. Should it be right, Spark reads it: engine='spark'") from error
        from tidegate.spark.query_names import tables_named

        found = [self.again(lambda: self.backend.execute("SHOW TABLES"))]
        found.append(self.again(lambda: self.backend.execute("SHOW MATERIALIZED VIEWS")))
        known = {each["name"] for rows in found for each in rows}
        return Prepared(sql, tables_named(self.path, sql, known), {})

    def _compute(
        self,
        sql: str,
        tables: dict[str, TableAt],
        wanted: ReadSettings,
        until: float | None,
        cancel: Cancel | None,
        *,
        by_spark: bool = True,
    ) -> tuple[str, pa.Table]:
        """Who computed the answer, and the answer. Raises: `NeedsSpark` only where Spark may not, `by_spark`."""
        if wanted.engine != "spark":
            try:
                return "duckdb", self.cut_reader.query(sql, tables, timeout_s=_left_s(until), cancel=cancel)
            except NeedsSpark as error:
                if wanted.engine == "duckdb":
                    raise InvalidArgument(
                        f"DuckDB cannot answer {shown(sql)} as Spark would: {error.reason}; use engine='spark'"
                    ) from error
                if not by_spark:
                    raise
        from tidegate.spark.query import answer

        with self.cut_reader.kept(tables) as pinned:
            return "spark", answer(self.path, sql, pinned, timeout_s=_left_s(until), cancel=cancel)

    def read_stream(
        self,
        sql: str,
        wanted: ReadSettings,
        memory: Memory | None,
        params: Params = None,
        snapshot: Snapshot | None = None,
    ) -> ResultStream:
        """As `read`, batch by batch."""
        until = None if wanted.timeout_s is None else time.monotonic() + wanted.timeout_s
        prepared = prepare(bind(sql, params))
        place, views = self._place(prepared, wanted, memory, snapshot, until)
        try:
            text = inline(prepared.sql, views)
            with naming(prepared.sql, text):
                found = ResultStream(self.cut_reader.stream(text, views.tables), place.at, place.waited_ms)
        except TailTooLong:
            if wanted.asked.level == "timestamp" or snapshot is not None:
                raise
            place, views = self._place(prepared, wanted, memory, snapshot, until, checkpoint=True)
            text = inline(prepared.sql, views)
            with naming(prepared.sql, text):
                found = ResultStream(self.cut_reader.stream(text, views.tables), place.at, place.waited_ms)
        except NeedsSpark as error:
            raise InvalidArgument(
                f"{shown(sql)} cannot be streamed: only Spark can answer it ({error.reason}); use query, or a Spark job"
            ) from error
        if memory is not None:
            memory.read(place.at)
        return found

    def take_snapshot(self, wanted: ReadSettings, memory: Memory, timeout_s: float) -> Snapshot:
        until = None if wanted.timeout_s is None else time.monotonic() + wanted.timeout_s
        place = self._begin_read(wanted, memory.seen, (), until)
        memory.read(place.at)
        return Snapshot(self, place.at, wanted, timeout_s)  # type: ignore[arg-type]

    def wait_visible(self, timestamp: Timestamp) -> None:
        """Wait until everything at or below a Timestamp can be read."""
        self._begin_read(ReadSettings(Asked("timestamp", at=timestamp)), Seen(), (), None)

    def _place(
        self,
        prepared: Prepared,
        wanted: ReadSettings,
        memory: Memory | None,
        snapshot: Snapshot | None,
        until: float | None,
        cancel: Cancel | None = None,
        *,
        checkpoint: bool = False,
    ) -> tuple[ReadPlace, Views]:
        """The cut that a query gets, and all that it reads. `until` is the time by which it has to have it."""
        seen = Seen() if memory is None else memory.seen
        if prepared.tables or not prepared.times:
            place = self._begin_read(wanted, seen, prepared.tables, until, cancel, checkpoint=checkpoint)
            manifest = None if snapshot is None else snapshot.manifest
            found = self._resolved({name: name for name in prepared.tables}, place, manifest)
            may_wait = found.inlined and not checkpoint and wanted.asked.level != "timestamp" and snapshot is None
            if may_wait and place.checkpoint_ms is not None:
                may_wait = may_differ(found) or is_sooner_stored(place, self.cut_reader.store.at(place.at))
            if may_wait and place.checkpoint_ms is not None:
                place = self._begin_read(wanted, seen, prepared.tables, until, cancel, checkpoint=True)
                found = self._resolved({name: name for name in prepared.tables}, place, None)
            if manifest is not None:
                found.tables = {name: each._replace(manifest=manifest) for name, each in found.tables.items()}
        else:
            place, found = ReadPlace(Timestamp.ZERO, {}), Views({})
        times = []
        for name, as_of in prepared.times.items():
            other, more = self._as_of(name, as_of, wanted, until, cancel)
            times.append(other.at)
            found.tables |= more.tables
            found.inlined |= more.inlined
            found.how |= more.how
        if not prepared.tables and times:
            place = ReadPlace(max(times), {})
        return place, found

    def place_at(self, names: Sequence[str], at: Timestamp) -> ReadPlace:
        """Tables and views as they are at a Timestamp, once it can be read."""
        return self._begin_read(ReadSettings(Asked("timestamp", at=at)), Seen(), names, None)

    def _resolved(self, names: Mapping[str, str], place: ReadPlace, manifest: Manifest | None) -> Views:
        if place.views and manifest is None:
            manifest = self.cut_reader.store.at(place.at)
        return resolve(names, place, manifest)

    def _begin_read(
        self,
        wanted: ReadSettings,
        seen: Seen,
        names: Sequence[str],
        until: float | None,
        cancel: Cancel | None = None,
        *,
        checkpoint: bool = False,
    ) -> ReadPlace:
        left_s = _left_s(until)
        ask = ReadAsk(
            wanted.asked,
            seen,
            names,
            None if left_s is None else max(round(left_s * 1000), 1),
            round(wanted.max_lag_s * 1000),
            checkpoint,
            None if cancel is None else lambda: cancel.is_set,
        )
        return self.again(lambda: self.backend.begin_read(ask))

    def _as_of(
        self, name: str, as_of: AsOf, wanted: ReadSettings, until: float | None, cancel: Cancel | None
    ) -> tuple[ReadPlace, Views]:
        """What a name stands for at a time of its own."""
        manifest = None
        if as_of.checkpoint is not None:
            manifest = self.cut_reader.store.checkpoint(as_of.checkpoint)
        at = manifest.timestamp if manifest is not None else as_of.timestamp or Timestamp.ZERO
        settings = ReadSettings(Asked("timestamp", at=at), wanted.timeout_s, wanted.max_lag_s)
        place = self._begin_read(settings, Seen(), [as_of.table], until, cancel)
        found = self._resolved({name: as_of.table}, place, manifest)
        if manifest is not None:
            found.tables = {each: one._replace(manifest=manifest) for each, one in found.tables.items()}
        return place, found

    @property
    def cut_reader(self) -> CutReader:
        """Reads tables in this process: from memory and files in the one that owns them, from files in others."""
        with self._lock:
            backend = self.backend
            if self._cut_reader is None:
                if isinstance(backend, LocalBackend):
                    self._cut_reader = CutReader(backend.engine.pipeline.store, backend.engine.log, backend.channels)
                else:
                    self._metadata = SqliteMetadataStore(self.path / "meta.sqlite")
                    store = SnapshotStore(self.path / "snapshots", self._metadata)
                    self._cut_reader = CutReader(store, LogFiles(self.path), backend.channels)
            return self._cut_reader

    def _close_reading(self) -> None:
        for snapshot in list(self.snapshots):
            snapshot.close()
        reader, self._cut_reader = self._cut_reader, None
        metadata, self._metadata = self._metadata, None
        if reader is not None:
            reader.close()
        if metadata is not None:
            metadata.close()


def _left_s(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 0.001)


def prepare(sql: str) -> Prepared:
    """Read a query. Raises: `InvalidArgument`."""
    if not isinstance(sql, str):
        raise InvalidArgument(f"a query is a text, not {sql!r}")
    shape = shape_of(sql)
    if shape is not None and not _AS_OF.search(sql):
        # Whatever the number, it reads the same tables. What is wrong with a query is said of the query itself.
        with suppress(InvalidArgument):
            return _prepared(shape.sql)._replace(sql=sql)
    return _prepared(sql)


@lru_cache(maxsize=512)
def _prepared(sql: str) -> Prepared:
    times: dict[str, AsOf] = {}
    text = sql
    if _AS_OF.search(sql):
        try:
            tree = sqlglot.parse_one(sql, read=DIALECT)
        except sqlglot.errors.SqlglotError as error:
            raise InvalidArgument(f"{shown(sql)} is not understood: {error}") from error
        times = take_times(tree)
        text = tree.sql(DIALECT) if times else sql
    return Prepared(text, sorted(tables_in(text).difference(times)), times)
