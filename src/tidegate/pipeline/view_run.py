"""`Run`: the views of one batch, one after the other: maintained, filled, or left as they are because they cannot be.

new, or resumed, or made by another plan ──▶ filled in the batch, when it reads little ──▶ live
                                         └─▶ `filling`: a thread computes it from a checkpoint
                                             ──▶ what it made is part of a checkpoint, still `filling`
                                             ──▶ what changed since is added in the next ──▶ live
live ──▶ its query fails ──▶ failed, until it is resumed
live ──▶ a view that it reads is not well ──▶ waits, until that one is
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.views import View
from tidegate.pipeline import view_fill
from tidegate.pipeline.view_errors import TooLarge, is_of_the_machine, plain
from tidegate.pipeline.view_fill import Fill, Fills, show, write_full
from tidegate.pipeline.view_outcome import Batch, Outcome
from tidegate.pipeline.view_tables import Spark, Stored, ViewTables, cursor_of, used_columns
from tidegate.reads.translate import Translated
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import FileEntry, Manifest, ViewStanding, ViewState
from tidegate.snapshots.reader import Duck
from tidegate.tables.schema import Table
from tidegate.views.delta import Delta
from tidegate.views.operators import Node, Plan

_logger = logging.getLogger("tidegate.pipeline")
BATCH_ROWS: Final = 131_072
RECOMPUTE_ABOVE: Final = 0.5
"""A node is computed in full when so large a part of what it reads has changed: that costs less than finding out."""
RECOMPUTE_ROWS = 10_000
"""And at least so many rows have."""
WAITS: Final = "it waits for the view "
"""So the error of a view begins that has none itself."""
UNPLANNED: Final = "it cannot be planned any more: "
"""So the error of a view begins that no plan was found for."""


class Run:
    """One batch."""

    def __init__(
        self,
        root: Path,
        spark: Spark | None,
        batch: Batch,
        catalog: Catalog,
        manifest: Manifest,
        outcome: Outcome,
        duck: Duck,
        needed: Mapping[str, set[str]],
        fills: Fills,
    ) -> None:
        """`manifest` is what the last batch was committed as; `needed` are the columns that views use."""
        self._root = root
        self._spark = spark
        self._batch = batch
        self._catalog = catalog
        self._manifest = manifest
        self._outcome = outcome
        self._duck = duck
        self._cursor = cursor_of(duck)
        self._tables = ViewTables(self._cursor, str(root), {}, spark)
        self._needed = needed
        self._fills = fills
        self._added: dict[int, list[FileEntry]] = {}
        for each in batch.files:
            self._added.setdefault(each.table, []).append(each)
        self._unwell: dict[int, tuple[str, ViewStanding]] = {}
        """Views that have no rows of this batch: their names, and how they stand."""
        self._filled: set[int] = set()
        """Views whose rows were made anew: what changed in them is not known."""

    def close(self) -> None:
        """Let go of everything that was computed."""
        try:
            self._fills.clear(self._cursor)
        finally:
            self._cursor.close()

    def view(self, view: View, found: tuple[Plan, str] | Exception, translated: dict[str, Translated]) -> None:
        """Maintain one view, or fill it, or leave it as it is because it failed.

        Raises: what is not the view's fault.
        """
        state = self._manifest.views.get(view.id)
        if isinstance(found, Exception):
            again = f"ALTER MATERIALIZED VIEW {view.name} RESUME tries again; or drop it and create it anew"
            self._fail(view, f"{UNPLANNED}{plain(found)}; {again}", state)
            return
        plan, mark = found
        inputs = [id for id, _ in view.inputs.values()]
        upstream = next((self._unwell[id] for id in inputs if id in self._unwell), None)
        if upstream is not None:
            self._wait(view, state, *upstream)
            return
        if state is not None and state.state == "failed" and not _may_try_again(view, state):
            self._unwell[view.id] = view.name, "failed"
            return
        is_well = state is not None and state.state == "live" and state.signature == mark
        was_made_anew = any(id in self._filled for id in inputs)
        try:
            self._tables.translated = translated
            if is_well and not was_made_anew:
                self._maintain_all(self._tables, view, plan)
                return
            if was_made_anew:
                self._fills.end(view.id)
            if self._is_large(view) or view.id in self._fills:
                is_live = self._fill_beside(view, plan, translated)
            else:
                self._fill_all(view, plan)
                is_live = True
        except Exception as error:
            if is_of_the_machine(error):
                raise
            self._fails(view, error)
            return
        finally:
            self._tables.forget()
        if is_live:
            self._filled.add(view.id)
            self._stands(view, state, "live", "", mark)
        else:
            self._unwell[view.id] = view.name, "filling"
            self._stands(view, state, "filling", "", "")

    # -- how views stand -------------------------------------------------------------------------------------

    def _fails(self, view: View, error: Exception) -> None:
        self._outcome.forget([each.id for each in view.nodes])
        if not isinstance(error, duckdb.Error):
            _logger.warning("view %r: %s", view.name, error, exc_info=error)
        what = "correct the rows that it reads"
        if isinstance(error, TooLarge):
            what = f"reduce what view {view.name!r} reads or collects"
        self._fail(view, f"{plain(error)}; {what} and then: ALTER MATERIALIZED VIEW {view.name} RESUME", None)

    def _fail(self, view: View, why: str, state: ViewState | None) -> None:
        """`state` is how it stood, when it was not tried again since."""
        self._fills.end(view.id)
        self._unwell[view.id] = view.name, "failed"
        if state is None or (state.state, state.error) != ("failed", why):
            _logger.warning("view %r is stopped: %s", view.name, why)
            self._outcome.states[view.id] = ViewState("failed", self._batch.last, self._batch.upto, why)

    def _wait(self, view: View, state: ViewState | None, upstream: str, standing: ViewStanding) -> None:
        """One that it reads has no rows of this batch, so neither has it; it comes back with that one."""
        self._fills.end(view.id)
        self._unwell[view.id] = view.name, standing
        if state is not None and state.state == "failed" and not _may_try_again(view, state):
            return  # It has a failure of its own.
        why = "which is being filled" if standing == "filling" else "which has failed or waits itself"
        self._stands(view, state, standing, f"{WAITS}{upstream!r}, {why}", "")

    def _stands(self, view: View, state: ViewState | None, standing: ViewStanding, error: str, mark: str) -> None:
        if state is None or (state.state, state.error, state.signature) != (standing, error, mark):
            self._outcome.states[view.id] = ViewState(standing, self._batch.last, self._batch.upto, error, mark)

    # -- relations -------------------------------------------------------------------------------------------

    def _declare_inputs(self, view: View) -> None:
        """Make what a view reads known: as it was at the last checkpoint, and what changed since."""
        for name, (id, _) in view.inputs.items():
            if name not in self._tables.stored:
                table = self._catalog.table_by_id(id)
                schema = table.at(self._batch.upto)
                names = used_columns(schema, self._needed.get(name, ()))
                added = self._added.get(id, [])
                self._tables.add(name, Stored(table, schema, self._manifest.files(id), added, names))

    def _changes(self, id: int) -> list[FileEntry]:
        """The layers of this batch, of a table or a view."""
        return [*self._added.get(id, []), *self._outcome.layers(id)]

    def _is_large(self, view: View) -> bool:
        files = [each for id, _ in view.inputs.values() for each in self._manifest.files(id)]
        return sum(each.rows - each.deletes for each in files) > view_fill.FILL_ABOVE

    # -- maintaining -----------------------------------------------------------------------------------------

    def _maintain_all(self, tables: ViewTables, view: View, plan: Plan) -> None:
        if tables is self._tables:
            self._declare_inputs(view)
        for node, table in zip(plan.nodes, view.nodes, strict=True):
            before = self._manifest.files(table.id)
            tables.add(node.name, Stored(table, table.schema, before, (), list(node.columns.values())))
        for node, table in zip(plan.nodes, view.nodes, strict=True):
            show(tables, node, view)
            found = Delta(tables).whole(node) if _is_cheaper_in_full(tables, node) else _changes(tables, node)
            if tables.take(node.name, found):
                self._write(table, tables.layer(node.name, int(self._batch.upto), BATCH_ROWS))
            tables.forget()

    def _write(self, table: Table, batches: Iterable[pa.RecordBatch]) -> None:
        first, last = self._batch.first, self._batch.last
        with LayerWriter(self._root, table.id, table.schema, shard=0, first=first, last=last, distinct=True) as writer:
            for batch in batches:
                writer.write(batch)
            entry = writer.close()
        if entry is not None:
            self._outcome.files.append(entry)

    # -- filling ---------------------------------------------------------------------------------------------

    def _fill_all(self, view: View, plan: Plan) -> None:
        self._declare_inputs(view)
        for node, table in zip(plan.nodes, view.nodes, strict=True):
            show(self._tables, node, view)
            self._empty(table)
            first, last = self._batch.first, self._batch.last
            entry = write_full(self._tables, node, table, self._root, int(self._batch.upto), first=first, last=last)
            files = [] if entry is None else [entry]
            self._outcome.files += files
            self._tables.add(node.name, Stored(table, table.schema, files, (), list(node.columns.values())))

    def _empty(self, table: Table) -> None:
        if self._manifest.files(table.id):
            self._outcome.emptied.append(table.id)

    def _fill_beside(self, view: View, plan: Plan, translated: dict[str, Translated]) -> bool:
        """Whether the view is live now."""
        fill = self._fills.get(view.id)
        if fill is not None and fill.is_lost:
            self._fills.end(view.id)
            fill = None
        if fill is None:
            self._start(view, plan)
            return False
        if fill.is_to_begin_again:
            self._begin_again(fill, plan)
            return False
        self._record(fill)
        if fill.error is not None:
            if is_of_the_machine(fill.error) or not fill.changed or fill.round >= view_fill.ROUNDS_MAX:
                raise fill.error
            # The rows that it failed for may be others by now: they are in the checkpoint after this batch.
            fill.is_to_begin_again = True
            self._fills.ask(f"view {view.name!r} is to be filled from a newer checkpoint")
        elif fill.is_linked:
            self._catch_up(fill, plan, translated)
            self._fills.end(view.id)
            return True
        elif fill.is_done and fill.has_fallen_behind:
            self._begin_again(fill, plan)
        elif fill.is_done:
            self._link(fill)
        return False

    def _begin_again(self, fill: Fill, plan: Plan) -> None:
        self._fills.end(fill.view.id)
        self._start(fill.view, plan, fill.round + 1)

    def _start(self, view: View, plan: Plan, round: int = 1) -> None:
        """From the last checkpoint on, if all that it reads is there."""
        if any(id in self._filled for id, _ in view.inputs.values()):
            self._fills.ask(f"view {view.name!r} is to be filled")
            return
        tables = {name: self._catalog.table_by_id(id) for name, (id, _) in view.inputs.items()}
        inputs = {
            name: Stored(
                table,
                schema := table.at(self._batch.upto),
                self._manifest.files(table.id),
                (),
                used_columns(schema, plan.used.get(name, ())),
            )
            for name, table in tables.items()
        }
        self._record(self._fills.start(view, plan, inputs, self._manifest, round))

    def _record(self, fill: Fill) -> None:
        """Remember which keys of what it reads this batch changes."""
        for name, (id, _) in fill.view.inputs.items():
            layers = self._changes(id)
            if layers:
                table = self._catalog.table_by_id(id)
                fill.record(self._cursor, name, table, table.at(self._batch.upto), layers)

    def _link(self, fill: Fill) -> None:
        """What was filled becomes part of this checkpoint, as of the one it was made from."""
        for table in fill.view.nodes:
            self._empty(table)
        self._outcome.files += fill.link(self._batch.first, self._batch.last)
        self._fills.ask(f"view {fill.view.name!r} is filled, and what changed since is to be added")

    def _catch_up(self, fill: Fill, plan: Plan, translated: dict[str, Translated]) -> None:
        """Add what changed in what it reads since the checkpoint it was filled from."""
        view = fill.view
        cursor = cursor_of(self._duck)
        tables = ViewTables(cursor, str(self._root), translated, self._spark)
        try:
            for name, (id, _) in view.inputs.items():
                table = self._catalog.table_by_id(id)
                now = [*self._manifest.files(id), *self._changes(id)]
                tables.add(name, fill.since(name, table, table.at(self._batch.upto), now))
            self._maintain_all(tables, view, plan)
        finally:
            cursor.close()
        for node, table in zip(plan.nodes, view.nodes, strict=True):
            files = [*self._manifest.files(table.id), *self._outcome.layers(table.id)]
            self._tables.add(node.name, Stored(table, table.schema, files, (), list(node.columns.values())))


def _may_try_again(view: View, state: ViewState) -> bool:
    """Whether somebody has asked for it since it failed, or what it waited for is well again: a view, or a plan."""
    return view.resumed > state.timestamp or state.error.startswith((WAITS, UNPLANNED))


def _changes(tables: ViewTables, node: Node) -> str | None:
    """What changes in a node. What is added to a sum may be too much for its type, though the sum is not: then the
    groups that it would be added to are computed anew."""
    try:
        return Delta(tables).changes(node)
    except duckdb.Error as error:
        if is_of_the_machine(error) or not node.accumulators:
            raise
    tables.forget()
    return Delta(tables).anew(node)


def _is_cheaper_in_full(tables: ViewTables, node: Node) -> bool:
    changed = sum(tables.changed(each) for each in node.reads)
    if changed < RECOMPUTE_ROWS or node.accumulators:
        return False
    return changed > RECOMPUTE_ABOVE * sum(tables.rows(each) for each in node.reads)
