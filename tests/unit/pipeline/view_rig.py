"""A database with views and without Spark, and a twin that says what a view must hold: its SQL over the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate
from folding import Crash, folding
from spark_duck import spark_cursor
from tidegate import Database, DatabaseSettings
from tidegate.catalog.views import View
from tidegate.database import engine as engine_module
from tidegate.pipeline.upkeep import Upkeep
from tidegate.reads.translate import as_spark, translate
from tidegate.runtime.settings import LogSettings
from tidegate.snapshots.manifest import Manifest, ViewState
from tidegate.snapshots.reader import SnapshotReader

Rows = Counter[str]
"""How often there is each row, by what is said of it."""


class Shop:
    """The database of a test, opened again and again if need be."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._monkeypatch = monkeypatch
        self.db: Database = None  # type: ignore[assignment]
        self.open()

    def open(self, crash: Crash = lambda *_: False, **settings: Any) -> Database:
        """`crash` says when its worker dies."""
        self.close()
        self._monkeypatch.setattr(engine_module, "spark_worker", folding(crash))
        given = {"channels": 2, "barrier_interval_ms": 60_000, **settings}
        made = DatabaseSettings(log=LogSettings(tick_interval_ms=20), **given)
        self.db = tidegate.open(self._path, settings=made)
        self._reader = SnapshotReader(self.db.engine.pipeline.store)
        return self.db

    def close(self) -> None:
        if self.db is not None:
            self._reader.close()
            self.db.close()

    # -- what is there ---------------------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        return self.db.engine.pipeline.store.manifest()

    def view(self, name: str) -> View:
        return self.db.engine.catalog.view(name)

    def state(self, name: str) -> ViewState | None:
        return self.manifest.views.get(self.view(name).id)

    def shown(self, name: str) -> dict[str, Any]:
        """What SHOW MATERIALIZED VIEWS says of it."""
        [found] = [each for each in self.db.sql("SHOW MATERIALIZED VIEWS") if each["name"] == name]
        return found

    def stored(self, name: str, manifest: Manifest | None = None) -> Rows:
        """What the files of a view hold at a checkpoint."""
        view = self.view(name)
        return told(self._reader.read_all(manifest or self.manifest, view.table, columns=list(view.columns)))

    def batch(self, name: str, manifest: Manifest | None = None) -> Rows:
        """Its SQL over the tables at a checkpoint."""
        return told(self._computed(self.view(name), manifest or self.manifest))

    def check(self, *names: str) -> None:
        """Promise 4, at the newest checkpoint: every view equals its query over the tables.

        `names` are all the views that are well."""
        manifest = self.manifest
        views = self.db.engine.catalog.views_at(manifest.timestamp)
        live = [each.name for each in views if getattr(manifest.views.get(each.id), "state", "") == "live"]
        if names:
            assert sorted(live) == sorted(names), {each.name: manifest.views.get(each.id) for each in views}
        for name in live:
            stored, batch = self.stored(name, manifest), self.batch(name, manifest)
            assert stored == batch, f"{name}: too many {stored - batch}, missing {batch - stored}"

    def _computed(self, view: View, manifest: Manifest) -> pa.Table:
        catalog = self.db.engine.catalog
        views = {each.id: each for each in catalog.views_at(manifest.timestamp)}
        cursor = spark_cursor()
        try:
            schemas: dict[str, pa.Schema] = {}
            for name, (id, version) in view.inputs.items():
                if id in views:
                    rows = self._computed(views[id], manifest)
                else:
                    table = catalog.table_by_id(id)
                    columns = [each for each in table.version(version).names if each in table.schema.names]
                    rows = self._reader.read_all(manifest, table, columns=columns)
                schemas[name] = rows.schema
                cursor.register(name, rows)
            found = translate(view.sql, schemas)
            rows = as_spark(cursor.sql(found.sql).to_arrow_table(), found)
            return rows.rename_columns(list(view.columns))
        finally:
            cursor.close()

    def upkeep(self) -> Upkeep:
        return Upkeep(self.db.engine.path, self.db.engine.pipeline.store, 1)


def told(rows: pa.Table) -> Rows:
    return Counter(repr(list(each.values())) for each in rows.to_pylist())


def rows_of(**columns: Any) -> Mapping[str, Any]:
    return columns
