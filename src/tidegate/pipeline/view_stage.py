"""`ViewStage`: what a batch changes in views, computed in the worker after the tables' fold and committed with it.

Views are taken in the order of their ids, so each after those that it reads. What a view cannot compute stops that view
alone: its rows stay as they were at the last checkpoint at which it was well, and it says why. What the disk or the
memory cannot do fails the batch, which is done again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

import duckdb
import pyarrow as pa

from tidegate.barrier.cut import Cut
from tidegate.catalog.catalog import Catalog
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken, TidegateError
from tidegate.pipeline.catalog_file import read_catalog
from tidegate.pipeline.fold import entry_of
from tidegate.pipeline.view_relations import relations
from tidegate.pipeline.view_tables import Spark, Stored, ViewTables
from tidegate.reads.translate import SETUP, NeedsSpark, Translated
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import FileEntry, Manifest, ViewState
from tidegate.snapshots.reader import Duck
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.schema import OP, SEQ, TS, Table, TableSchema
from tidegate.views.define import planned, signature
from tidegate.views.delta import Delta, full
from tidegate.views.operators import Node, Plan

_logger = logging.getLogger("tidegate.pipeline")
MEMORY: Final = "2GB"
BATCH_ROWS: Final = 131_072
RECOMPUTE_ABOVE: Final = 0.5
"""A node is computed in full when so large a part of what it reads has changed: that costs less than finding out."""
RECOMPUTE_ROWS: Final = 10_000
"""And at least so many rows have."""
_OF_THE_MACHINE: Final = (
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.InternalException,
    duckdb.FatalException,
    duckdb.InterruptException,
)


@dataclass(slots=True)
class Outcome:
    """What a batch comes to for views."""

    files: list[FileEntry] = field(default_factory=list)
    states: dict[int, ViewState] = field(default_factory=dict)
    emptied: list[int] = field(default_factory=list)
    """Tables whose files before do not count any more."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each view took, by name."""

    def reports(self) -> list[dict[str, Any]]:
        """As the worker tells it."""
        found: list[dict[str, Any]] = [{"file": list(astuple(each))} for each in self.files]
        found += [{"view": {"id": view, **asdict(state)}} for view, state in self.states.items()]
        found += [{"emptied": each} for each in self.emptied]
        return found

    @classmethod
    def of(cls, reports: Iterable[Mapping[str, Any]]) -> Outcome:
        """What reports tell; those of tables are files too."""
        found = cls()
        for each in reports:
            if "file" in each:
                found.files.append(entry_of(dict(each)))
            elif "view" in each:
                facts = dict(each["view"])
                view = facts.pop("id")
                found.states[view] = ViewState(**{**facts, "timestamp": Timestamp(facts["timestamp"])})
            elif "emptied" in each:
                found.emptied.append(each["emptied"])
        return found


@dataclass(frozen=True, slots=True)
class Batch:
    """The epochs that are folded: what the tables' fold has made of them, up to where."""

    first: int
    last: int
    upto: Timestamp
    catalog_version: int
    files: Sequence[FileEntry]


class ViewStage:
    """Computes views for one database. Used by one thread at a time."""

    def __init__(self, database: Path, store: SnapshotStore, *, threads: int = 2, spark: Spark | None = None) -> None:
        self._database = database
        self._store = store
        self._spark = spark
        self._duck = Duck(store.root / "spill", threads=threads, memory_limit=MEMORY)
        setup = self._duck.cursor()
        for each in SETUP:
            if not each.startswith("SET "):
                setup.execute(each.replace(" TEMP ", " ", 1))
        setup.close()
        self._plans: dict[int, tuple[Plan, str] | Exception] = {}
        """With their signatures; or why there is none."""
        self._translated: dict[int, dict[str, Translated]] = {}
        self._version = -1

    def close(self) -> None:
        self._duck.close()

    def run(self, batch: Batch) -> Outcome:
        """What the batch changes in views.

        Raises: what reading and writing files raises; the batch is to be done again then.
        """
        outcome = Outcome()
        catalog = read_catalog(self._database, batch.catalog_version)
        views = catalog.views_at(batch.upto)
        if not views:
            return outcome
        self._know(batch.catalog_version, views, catalog)
        manifest = self._store.manifest()
        run = _Run(
            self._store.root, self._spark, batch, catalog, manifest, outcome, self._cursor(), self._needed(views)
        )
        try:
            for view in sorted(views, key=lambda each: each.id):
                began = monotonic()
                run.view(view, self._plans[view.id], self._translated.setdefault(view.id, {}))
                outcome.seconds[view.name] = monotonic() - began
        finally:
            run.cursor.close()
        return outcome

    def _needed(self, views: Sequence[View]) -> dict[str, set[str]]:
        """The columns that views use, by what they read."""
        found: dict[str, set[str]] = {}
        for view in views:
            plan = self._plans[view.id]
            if not isinstance(plan, Exception):
                for name, used in plan[0].used.items():
                    found.setdefault(name, set()).update(used)
        return found

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor = self._duck.cursor()
        for each in SETUP:
            if each.startswith("SET "):
                cursor.execute(each)
        return cursor

    def _know(self, version: int, views: Sequence[View], catalog: Catalog) -> None:
        """Plan the views that are new."""
        if version != self._version:
            self._version = version
            there = {each.id for each in views}
            for known in (self._plans, self._translated):
                for gone in [each for each in known if each not in there]:
                    del known[gone]
        for view in views:
            if view.id not in self._plans:
                try:
                    plan = planned(view.sql, view.columns, relations(catalog, view), view.name)
                    self._plans[view.id] = plan, signature(plan)
                except (TidegateError, NeedsSpark) as error:
                    self._plans[view.id] = error


def with_views(
    stage: ViewStage, first: int, last: int, cut: Cut | None, reports: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The reports of a batch's fold, and those of views."""
    if cut is None:
        raise InvariantBroken(f"the cut of epoch {last} is not known, and views are computed up to it")
    files = Outcome.of(reports).files
    outcome = stage.run(Batch(first, last, cut.timestamp, cut.catalog_version, files))
    return [*map(dict, reports), *outcome.reports()]


class _Run:
    """One batch."""

    def __init__(
        self,
        root: Path,
        spark: Spark | None,
        batch: Batch,
        catalog: Catalog,
        manifest: Manifest,
        outcome: Outcome,
        cursor: duckdb.DuckDBPyConnection,
        needed: Mapping[str, set[str]],
    ) -> None:
        self._root = root
        self._batch = batch
        self._catalog = catalog
        self._manifest = manifest
        self._outcome = outcome
        self.cursor = cursor
        self._tables = ViewTables(cursor, str(root), {}, spark)
        self._needed = needed
        self._added: dict[int, list[FileEntry]] = {}
        for each in batch.files:
            self._added.setdefault(each.table, []).append(each)
        self._failed: dict[int, str] = {}
        """Views that are not well, and their names."""

    def view(self, view: View, found: tuple[Plan, str] | Exception, translated: dict[str, Translated]) -> None:
        """Maintain one view, or fill it, or leave it as it is because it failed."""
        state = self._manifest.views.get(view.id)
        upstream = next((self._failed[id] for id, _ in view.inputs.values() if id in self._failed), None)
        if isinstance(found, Exception):
            self._fail(view, state, f"it cannot be planned any more: {found}")
            return
        plan, mark = found
        if upstream is not None:
            self._fail(view, state, f"it reads the view {upstream!r}, which has failed; that one is to be resumed")
            return
        is_well = state is not None and state.state == "live" and state.signature == mark
        if state is not None and state.state == "failed" and not self._may_try_again(view, state):
            self._failed[view.id] = view.name
            return
        self._tables.translated = translated
        try:
            self._declare(view, plan, is_well)
            for node, table in zip(plan.nodes, view.nodes, strict=True):
                if is_well:
                    self._maintain(node, table)
                else:
                    self._fill(node, table)
                self._tables.forget()
        except _OF_THE_MACHINE:
            raise
        except (duckdb.Error, NeedsSpark, InvalidArgument) as error:
            self._undo(view)
            self._fail(view, state, str(error).strip().splitlines()[0])
            return
        if not is_well:
            self._outcome.states[view.id] = ViewState("live", self._batch.last, self._batch.upto, "", mark)

    def _may_try_again(self, view: View, state: ViewState) -> bool:
        """Whether somebody has asked for it since it failed, or what it waits for is well again."""
        return view.resumed > state.timestamp or "which has failed" in state.error

    def _fail(self, view: View, state: ViewState | None, why: str) -> None:
        self._failed[view.id] = view.name
        if state is None or state.state != "failed" or state.error != why:
            _logger.warning("view %r is stopped: %s", view.name, why)
            self._outcome.states[view.id] = ViewState("failed", self._batch.last, self._batch.upto, why)

    def _undo(self, view: View) -> None:
        """What was staged for it does not count; garbage collection removes it."""
        mine = {each.id for each in view.nodes}
        self._outcome.files = [each for each in self._outcome.files if each.table not in mine]
        self._outcome.emptied = [each for each in self._outcome.emptied if each not in mine]

    # -- relations -------------------------------------------------------------------------------------------

    def _declare(self, view: View, plan: Plan, is_well: bool) -> None:
        """Make what a view reads, and its own nodes, known."""
        for name, (id, version) in view.inputs.items():
            table = self._catalog.table_by_id(id)
            if name not in self._tables.stored:
                names = self._used(name, table.version(version))
                added = self._added.get(id, [])
                self._tables.add(
                    name, Stored(table, table.at(self._batch.upto), self._manifest.files(id), added, names)
                )
        for node, table in zip(plan.nodes, view.nodes, strict=True):
            before = self._manifest.files(table.id) if is_well else ()
            self._tables.add(node.name, Stored(table, table.schema, before, (), list(node.columns.values())))
            if not is_well and self._manifest.files(table.id):
                self._outcome.emptied.append(table.id)

    def _layers(self, table: int) -> list[FileEntry]:
        return [each for each in self._outcome.files if each.table == table]

    def _used(self, name: str, schema: TableSchema) -> list[str]:
        key = [each.name for each in schema.key_columns]
        used = self._needed.get(name, set())
        return [each for each in schema.names if each in used or each in key] or schema.names[:1]

    # -- nodes -----------------------------------------------------------------------------------------------

    def _maintain(self, node: Node, table: Table) -> None:
        tables = self._tables
        for each in sorted(node.inputs):
            tables.show(each, self._visible(each))
        delta = Delta(tables)
        found = delta.whole(node) if self._is_cheaper_in_full(node) else delta.changes(node)
        if not tables.take(node.name, found):
            return
        self._write(table, tables.layer(node.name, int(self._batch.upto), BATCH_ROWS))

    def _is_cheaper_in_full(self, node: Node) -> bool:
        changed = sum(self._tables.changed(each) for each in node.reads)
        if changed < RECOMPUTE_ROWS or node.accumulators:
            return False
        return changed > RECOMPUTE_ABOVE * sum(self._tables.rows(each) for each in node.reads)

    def _fill(self, node: Node, table: Table) -> None:
        tables = self._tables
        for each in sorted(node.inputs):
            tables.show(each, self._visible(each))
        self._write(table, self._stamped(tables.stream(full(node), BATCH_ROWS)))
        files = self._layers(table.id)
        tables.add(node.name, Stored(table, table.schema, files, (), list(node.columns.values())))

    def _visible(self, name: str) -> Sequence[str]:
        schema = self._tables.schemas[f"{name}@a"]
        return [each for each in schema.names if not each.startswith("_")]

    def _stamped(self, rows: pa.RecordBatchReader | pa.Table) -> Iterable[pa.RecordBatch]:
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        for batch in batches:
            count = batch.num_rows
            batch = batch.append_column(TS, pa.repeat(pa.scalar(int(self._batch.upto), pa.int64()), count))
            batch = batch.append_column(SEQ, pa.repeat(pa.scalar(0, pa.int64()), count))
            yield batch.append_column(OP, pa.repeat(pa.scalar(1, pa.int8()), count))

    def _write(self, table: Table, batches: Iterable[pa.RecordBatch]) -> None:
        with LayerWriter(
            self._root,
            table.id,
            table.schema,
            shard=0,
            first=self._batch.first,
            last=self._batch.last,
            distinct=True,
        ) as writer:
            for batch in batches:
                writer.write(batch)
            entry = writer.close()
        if entry is not None:
            self._outcome.files.append(entry)
