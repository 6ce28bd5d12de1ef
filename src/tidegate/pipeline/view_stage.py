"""`ViewStage`: what a batch changes in views, computed in the worker after the tables' fold and committed with it.

Views are taken in the order of their ids, so each after those that it reads. What a view cannot compute stops that view
alone: its rows stay as they were at the last checkpoint at which it was well, and it says why; so does one that needs
more memory than it may use. What the disk or the machine's memory cannot do fails the batch, which is done again.

A new view is filled inside the batch when it reads little; otherwise beside it, by `Fills`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final

import pyarrow as pa

from tidegate.barrier.cut import Cut
from tidegate.catalog.catalog import Catalog
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken, TidegateError
from tidegate.pipeline.catalog_file import read_catalog
from tidegate.pipeline.view_fill import Fills, Say
from tidegate.pipeline.view_outcome import Batch, Outcome
from tidegate.pipeline.view_relations import relations, with_types
from tidegate.pipeline.view_run import Run
from tidegate.pipeline.view_tables import Spark, prepared
from tidegate.reads.translate import NeedsSpark, Translated, translate
from tidegate.snapshots.reader import Duck
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.column_type import to_sql
from tidegate.views.define import planned, signature
from tidegate.views.operators import Plan

MEMORY: Final = "2GB"


class ViewStage:
    """Computes views for one database. Used by one thread at a time.

    `say` tells the owner something between batches: how fills go, and that a barrier is wanted.
    """

    def __init__(
        self,
        database: Path,
        store: SnapshotStore,
        *,
        threads: int = 2,
        spark: Spark | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self._database = database
        self._store = store
        self._spark = None if spark is None else _one_at_a_time(spark)
        self._duck = Duck(store.root / "spill", threads=threads, memory_limit=MEMORY)
        self._is_prepared = False
        self._translator = translate if spark is None else with_types(spark.types)
        self._fills = Fills(store, self._spark, say)
        self._plans: dict[int, tuple[Plan, str] | Exception] = {}
        """With their signatures; or why there is none."""
        self._asked: dict[int, Timestamp] = {}
        """When somebody had asked last for a view that there is no plan for."""
        self._translated: dict[int, dict[str, Translated]] = {}
        self._version = -1

    def close(self) -> None:
        """End fills that run, and leave nothing behind. May be repeated."""
        self._fills.close()
        self._duck.close()

    def run(self, batch: Batch) -> Outcome:
        """What the batch changes in views.

        Raises: what reading and writing files raises; the batch is to be done again then.
        """
        outcome = Outcome()
        catalog = read_catalog(self._database, batch.catalog_version)
        views = catalog.views_at(batch.upto)
        self._fills.keep({each.id for each in views})
        if not views:
            return outcome
        if not self._is_prepared:
            prepared(self._duck)
            self._is_prepared = True
        self._know(batch.catalog_version, views, catalog)
        manifest = self._store.manifest()
        run = Run(
            self._store.root,
            self._spark,
            batch,
            catalog,
            manifest,
            outcome,
            self._duck,
            self._needed(views),
            self._fills,
        )
        try:
            for view in sorted(views, key=lambda each: each.id):
                began = monotonic()
                run.view(view, self._plans[view.id], self._translated.setdefault(view.id, {}))
                outcome.seconds[view.name] = monotonic() - began
        finally:
            run.close()
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

    def _know(self, version: int, views: Sequence[View], catalog: Catalog) -> None:
        """Plan the views that are new, and those again that somebody has asked for since there was no plan."""
        if version != self._version:
            self._version = version
            there = {each.id for each in views}
            known: dict[int, Any]
            for known in (self._plans, self._translated, self._asked):
                for gone in [each for each in known if each not in there]:
                    del known[gone]
        for view in views:
            if view.id not in self._plans or self._asked.get(view.id, view.resumed) != view.resumed:
                self._asked.pop(view.id, None)
                try:
                    plan = planned(view.sql, view.columns, relations(catalog, view), view.name, self._translator)
                    _check_form(view, plan)
                    self._plans[view.id] = plan, signature(plan)
                except (TidegateError, NeedsSpark) as error:
                    self._plans[view.id] = error
                    self._asked[view.id] = view.resumed


def _check_form(view: View, plan: Plan) -> None:
    """Raises: `InvalidArgument` when a plan would store something else than the catalog says."""
    wanted = [[(name, to_sql(node.types[name])) for name in node.columns.values()] for node in plan.nodes]
    if wanted != [[(each.name, to_sql(each.type)) for each in table.schema.columns] for table in view.nodes]:
        raise InvalidArgument("it was created by another version of Tidegate, which stored its rows in another form")


def with_views(
    stage: ViewStage, first: int, last: int, cut: Cut | None, reports: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The reports of a batch's fold, and those of views."""
    if cut is None:
        raise InvariantBroken(f"the cut of epoch {last} is not known, and views are computed up to it")
    if not cut.catalog_version:
        return [*map(dict, reports)]  # Before its first change the catalog is no file, and has no views.
    files = Outcome.of(reports).files
    outcome = stage.run(Batch(first, last, cut.timestamp, cut.catalog_version, files))
    return [*map(dict, reports), *outcome.reports()]


def _one_at_a_time(spark: Spark) -> Spark:
    """Statements name relations that all of a session share."""
    return _Serial(spark)


class _Serial:
    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._lock = Lock()

    def __call__(self, sql: str, schemas: Mapping[str, pa.Schema], rows_of: Any) -> pa.Table:
        with self._lock:
            return self._spark(sql, schemas, rows_of)

    def types(self, sql: str, schemas: Mapping[str, pa.Schema]) -> Translated:
        with self._lock:
            return self._spark.types(sql, schemas)
