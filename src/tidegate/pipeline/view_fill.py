"""Views that read much are filled beside the batches: from a pinned checkpoint, by a thread with a DuckDB of its own.

Meanwhile each batch notes the keys that it changes in what the view reads. Once the thread is done, the next batch
makes its files part of a checkpoint, and the one after that adds what changed since: `Run` does both.

What is being filled lies in `fills/`, which a new worker empties: after a crash a view is filled from the start.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Semaphore, Thread
from time import monotonic
from typing import Any, Final

import duckdb
import pyarrow as pa

from tidegate.catalog.views import View
from tidegate.errors import LeaseLost, TidegateError
from tidegate.pipeline.view_tables import Spark, Stored, ViewTables, changed_keys, cursor_of, prepared
from tidegate.reads.translate import UNANSWERED
from tidegate.snapshots.durable import make_directory, storage_errors, sync_directory
from tidegate.snapshots.layer_writer import LayerWriter, new_token
from tidegate.snapshots.manifest import BASE, FileEntry, Manifest, data_path
from tidegate.snapshots.merge_sql import quoted
from tidegate.snapshots.pins import Pins
from tidegate.snapshots.reader import Duck
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.schema import OP, SEQ, TS, Table, TableSchema
from tidegate.views.delta import full
from tidegate.views.operators import Node, Plan

_logger = logging.getLogger("tidegate.pipeline")
FILL_ABOVE = 500_000
"""A view that reads more rows than this is filled beside the batches."""
BEHIND_ABOVE: Final = 0.5
"""When so large a part of what a view reads has changed while it was filled, it is filled again, from a newer
checkpoint,"""
ROUNDS_MAX: Final = 2
"""but no more often than this: then the batch does what is left, whatever that is."""
MEMORY: Final = "1GB"
AT_ONCE_MAX: Final = 2
"""Of fills, each with so much memory; others wait for their turn."""
BATCH_ROWS: Final = 131_072
DIRECTORY: Final = "fills"
_LOOK_S: Final = 0.5
_RENEW_S: Final = 15.0
Say = Callable[[dict[str, Any]], None]


class Fill:
    """The filling of one view. The thread is its own; all else is called by the thread that runs batches."""

    def __init__(
        self,
        view: View,
        plan: Plan,
        inputs: Mapping[str, Stored],
        manifest: Manifest,
        root: Path,
        spark: Spark | None,
        round: int,
        on_end: Callable[[Fill], None],
        turns: Semaphore,
    ) -> None:
        self.view = view
        self.inputs = inputs
        """As they are at the checkpoint it is filled from."""
        self.manifest = manifest
        self.round = round
        self.is_lost = False
        """Whether the checkpoint may be gone: then it is begun again."""
        self.is_to_begin_again = False
        self.is_linked = False
        """Whether what it made is part of a checkpoint."""
        self.changed = 0
        """Keys of its inputs that changed since; one that changes twice counts twice."""
        self._plan = plan
        self._root = root
        self._spark = spark
        self._on_end = on_end
        self._turns = turns
        self._token = new_token()
        self._directory = root / DIRECTORY / self._token
        self._recorded: set[str] = set()
        self._made: list[FileEntry] = []
        self._error: Exception | None = None
        self._cancelled = Event()
        self._is_done = Event()
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._nodes_done = 0
        self.rows = 0
        """Written so far, of all nodes."""
        self._began = monotonic()
        self._thread = Thread(target=self._run, name=f"tidegate-fill-{view.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """End it; nothing of it remains but what is part of a checkpoint."""
        self._cancelled.set()
        cursor = self._cursor
        if cursor is not None:
            with suppress(duckdb.Error):
                cursor.interrupt()
        if self._is_done.is_set():
            shutil.rmtree(self._directory, ignore_errors=True)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of one that was cancelled."""
        deadline = monotonic() + timeout_s
        while self._thread.is_alive() and monotonic() < deadline:
            self.cancel()  # A statement may have begun only after it was interrupted.
            self._thread.join(0.1)

    @property
    def is_done(self) -> bool:
        return self._is_done.is_set()

    @property
    def error(self) -> Exception | None:
        """What its thread has ended with, if not well."""
        return self._error if self._is_done.is_set() else None

    @property
    def has_fallen_behind(self) -> bool:
        """Whether so much has changed that to begin again is better than to catch up."""
        if self.round >= ROUNDS_MAX or self.changed <= FILL_ABOVE:
            return False
        files = [each for stored in self.inputs.values() for each in stored.before]
        return self.changed > BEHIND_ABOVE * sum(each.rows - each.deletes for each in files)

    def progress(self) -> dict[str, Any]:
        """For people: how far it is, and about how long it takes yet."""
        part = 0.0
        cursor = self._cursor
        if cursor is not None:
            with suppress(duckdb.Error):
                part = min(max(cursor.query_progress(), 0.0) / 100, 1.0)
        done = 1.0 if self.is_done else min((self._nodes_done + part) / len(self._plan.nodes), 0.99)
        took_s = monotonic() - self._began
        return {
            "view": self.view.name,
            "id": self.view.id,
            "percent": round(done * 100),
            "rows": self.rows,
            "seconds": round(took_s, 1),
            "left_s": round(took_s * (1 - done) / done, 1) if done >= 0.01 else None,
        }

    # -- its thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        duck = None
        while not (has_turn := self._turns.acquire(timeout=0.2)) and not self._cancelled.is_set():
            pass
        try:
            if self._cancelled.is_set():
                return
            self._began = monotonic()
            # One thread: the batches go first.
            duck = Duck(self._root / "spill", threads=1, memory_limit=MEMORY)
            prepared(duck)
            self._cursor = cursor_of(duck)
            for each in ("enable_progress_bar = true", "enable_progress_bar_print = false", "progress_bar_time = 0"):
                self._cursor.execute(f"SET {each}")
            tables = ViewTables(self._cursor, str(self._root), {}, self._spark)
            for name, stored in self.inputs.items():
                tables.add(name, replace(stored, made=set()))
            for node, table in zip(self._plan.nodes, self.view.nodes, strict=True):
                if self._cancelled.is_set():
                    return
                self._fill(tables, node, table)
                self._nodes_done += 1
        except Exception as error:
            self._error = error
        finally:
            self._cursor = None
            if duck is not None:
                duck.close()
            if has_turn:
                self._turns.release()
            self._is_done.set()
            if self._cancelled.is_set() or self._error is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._on_end(self)

    def _fill(self, tables: ViewTables, node: Node, table: Table) -> None:
        show(tables, node, self.view)
        epoch = self.manifest.epoch
        at = int(self.manifest.timestamp)
        entry = write_full(tables, node, table, self._directory, at, first=epoch, last=epoch, on_rows=self._wrote)
        files = [] if entry is None else [entry]
        self._made += files
        names = list(node.columns.values())
        tables.add(node.name, Stored(table, table.schema, files, (), names, root=str(self._directory)))
        tables.forget()

    def _wrote(self, rows: int) -> None:
        self.rows += rows
        if self._cancelled.is_set():
            raise duckdb.InterruptException("cancelled")

    # -- for batches -----------------------------------------------------------------------------------------

    def record(
        self,
        cursor: duckdb.DuckDBPyConnection,
        name: str,
        table: Table,
        schema: TableSchema,
        layers: Sequence[FileEntry],
    ) -> None:
        """Note which keys of an input layers change."""
        self.changed += sum(each.rows for each in layers)
        first = name not in self._recorded
        self._recorded.add(name)
        if not schema.key:
            return  # Rows are only added, and their Timestamps say which are new.
        keys = changed_keys(table, schema, layers, str(self._root))
        relation = quoted(self._keys(name))
        cursor.execute(f"CREATE TABLE {relation} AS {keys}" if first else f"INSERT INTO {relation} {keys}")

    def since(self, name: str, table: Table, schema: TableSchema, now: Sequence[FileEntry]) -> Stored:
        """An input as it was when the view was filled, and as it is now."""
        then = self.inputs[name]
        if name not in self._recorded:
            return Stored(table, schema, now, (), then.names)
        since = int(self.manifest.timestamp)
        return Stored(table, schema, then.before, (), then.names, now=now, keys=self._keys(name), since=since)

    def forget(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Drop what was recorded."""
        for name in self._recorded:
            cursor.execute(f"DROP TABLE IF EXISTS {quoted(self._keys(name))}")

    def _keys(self, name: str) -> str:
        return f"changed in {self.inputs[name].table.id} since fill {self._token}"

    def link(self, first: int, last: int) -> list[FileEntry]:
        """Give its files the names that a checkpoint of these epochs names.

        Ordering: durable when this returns.
        """
        linked = []
        for each in self._made:
            path = data_path(each.table, "e", first, last, each.shard, new_token())
            with storage_errors(self._root / path):
                make_directory((self._root / path).parent)
                os.link(self._directory / each.path, self._root / path)
                sync_directory((self._root / path).parent)
            linked.append(replace(each, first=first, last=last, path=path))
        self.is_linked = True
        return linked


class Fills:
    """The fills of one worker."""

    def __init__(self, store: SnapshotStore, spark: Spark | None, say: Say) -> None:
        self._store = store
        self._spark = spark
        self._say = say
        self._by_view: dict[int, Fill] = {}
        self._pinned: dict[int, tuple[int, int]] = {}
        """Checkpoints, and which generation of pins they are in, by the view."""
        self._gone: list[Fill] = []
        self._lock = Lock()
        self._turns = Semaphore(AT_ONCE_MAX)
        self._pins: Pins | None = None
        self._stop = Event()
        self._thread: Thread | None = None
        shutil.rmtree(store.root / DIRECTORY, ignore_errors=True)

    def __contains__(self, view: int) -> bool:
        return view in self._by_view

    def get(self, view: int) -> Fill | None:
        return self._by_view.get(view)

    def start(self, view: View, plan: Plan, inputs: Mapping[str, Stored], manifest: Manifest, round: int = 1) -> Fill:
        """Begin to fill a view from a checkpoint, which is pinned."""
        if self._pins is None:
            self._pins = Pins(self._store, f"fills-{os.getpid()}-{new_token()}")
        self._pins.pin(manifest.checkpoint)
        fill = Fill(view, plan, inputs, manifest, self._store.root, self._spark, round, self._ended, self._turns)
        with self._lock:
            self._pinned[view.id] = manifest.checkpoint, self._pins.generation
            self._by_view[view.id] = fill
            if self._thread is None:
                self._thread = Thread(target=self._watch, name="tidegate-fills", daemon=True)
                self._thread.start()
        _logger.info("view %r is being filled from checkpoint %d", view.name, manifest.checkpoint)
        fill.start()
        return fill

    def end(self, view: int) -> None:
        """It is filled, or not wanted any more."""
        with self._lock:
            fill = self._by_view.pop(view, None)
            pinned = self._pinned.pop(view, None)
            pins, is_last = self._pins, not self._by_view
        if fill is None or pinned is None or pins is None:
            return
        fill.cancel()
        self._gone.append(fill)
        pins.unpin(*pinned)
        if is_last:
            self._pins = None  # Nobody renews them from here on.
            pins.close()
        self._tell()

    def keep(self, views: Collection[int]) -> None:
        """Views that are not among these were dropped."""
        for each in [each for each in self._by_view if each not in views]:
            self.end(each)

    def clear(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Drop what was recorded for fills that have ended. Between batches."""
        while self._gone:
            self._gone.pop().forget(cursor)

    def ask(self, why: str) -> None:
        """Have another batch come soon, whether anything is written or not."""
        self._say({"barrier": why})

    def close(self, timeout_s: float = 10.0) -> None:
        self._stop.set()
        fills = list(self._by_view.values())
        for each in list(self._by_view):
            self.end(each)
        for fill in fills:
            fill.join(timeout_s)
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _ended(self, fill: Fill) -> None:
        if self._by_view.get(fill.view.id) is fill and not self._stop.is_set():
            self.ask(f"view {fill.view.name!r} is filled")

    def _tell(self) -> None:
        if not self._stop.is_set():
            self._say({"fills": self.progress()})

    def progress(self) -> list[dict[str, Any]]:
        with self._lock:
            fills = list(self._by_view.values())
        return [each.progress() for each in fills]

    def _watch(self) -> None:
        """Keep the pins, and say how it goes."""
        renew_at = monotonic() + _RENEW_S
        told: list[dict[str, Any]] = []
        while not self._stop.wait(_LOOK_S):
            with self._lock:
                pins = self._pins
                if not self._by_view:
                    self._thread = None
                    return
            if monotonic() >= renew_at and pins is not None:
                renew_at = monotonic() + _RENEW_S
                try:
                    pins.renew()
                except LeaseLost as error:
                    self._lost(error)
                except TidegateError as error:
                    _logger.warning("the pins of views that are filled are not renewed, it is tried again: %s", error)
            now = self.progress()
            if now != told:
                told = now
                self._tell()

    def _lost(self, error: LeaseLost) -> None:
        """Files that are read may be gone: begin again."""
        _logger.warning("views are filled from the start again: %s", error)
        with self._lock:
            fills = list(self._by_view.values())
        for each in fills:
            each.is_lost = True


def write_full(
    tables: ViewTables,
    node: Node,
    table: Table,
    root: Path,
    timestamp: int,
    *,
    first: int,
    last: int,
    on_rows: Callable[[int], None] = lambda _: None,
) -> FileEntry | None:
    """All rows of a node in one file, a base; None when there are none."""
    sql = full(node)

    def write(batches: Iterable[pa.RecordBatch]) -> FileEntry | None:
        with LayerWriter(
            root, table.id, table.schema, shard=0, first=first, last=last, level=BASE, distinct=True
        ) as writer:
            for batch in batches:
                writer.write(_stamped(batch, timestamp))
                on_rows(batch.num_rows)
            return writer.close()

    try:
        return write(tables.stream(sql, BATCH_ROWS))
    except duckdb.Error as error:
        if UNANSWERED not in str(error) or not tables.has_spark:
            raise
        return write(tables.on_spark(sql).to_batches())


def _stamped(batch: pa.RecordBatch, timestamp: int) -> pa.RecordBatch:
    count = batch.num_rows
    batch = batch.append_column(TS, pa.repeat(pa.scalar(timestamp, pa.int64()), count))
    batch = batch.append_column(SEQ, pa.repeat(pa.scalar(0, pa.int64()), count))
    return batch.append_column(OP, pa.repeat(pa.scalar(1, pa.int8()), count))


def show(tables: ViewTables, node: Node, view: View) -> None:
    """Let a node that is not understood read what it names, with the columns of when the view was created."""
    for each in sorted(node.inputs):
        table = tables.stored[each].table
        tables.show(each, table.visible(table.version(view.inputs[each][1])))
