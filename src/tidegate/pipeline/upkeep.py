"""`Upkeep`: compaction and garbage collection of snapshots, beside the pipeline and never in its way.

Runs wherever there is time for it, in the worker's process by default: what it does is committed by compare-and-set
like everything else, so nobody has to know of it, and several may run at once.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from tidegate.catalog.catalog import Catalog
from tidegate.errors import Conflict, NotFound, TidegateError
from tidegate.pipeline.catalog_file import newest_catalog
from tidegate.snapshots.collector import Collector
from tidegate.snapshots.compaction import Compactor
from tidegate.snapshots.plan_gc import Retention
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.schema import RETENTION_S

_logger = logging.getLogger("tidegate.pipeline")
_LOOK_S: Final = 0.5
_COLLECT_S: Final = 20.0


class Upkeep:
    """Looks after the snapshots of one database until it is stopped."""

    def __init__(self, database: Path, store: SnapshotStore, retention_s: int) -> None:
        self._database = database
        self._store = store
        self._retention_s = retention_s
        self._compactor = Compactor(store)
        self._collector = Collector(store)
        self._stop = Event()
        self._thread = Thread(target=self._run, name="tidegate-upkeep", daemon=True)
        self.compactions = 0
        self.collected = 0
        """Files removed."""
        self._names: dict[int, str] = {}
        """Of the table that is being compacted."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it. A compaction that runs is given up; nothing of it remains."""
        self._stop.set()
        self._thread.join(timeout_s)

    @property
    def progress(self) -> list[dict[str, Any]]:
        """Compactions that run, for people: how many rows of how many, by the table's name."""
        return [
            {
                "table": self._names.get(each.job.table, str(each.job.table)),
                "shard": each.job.shard,
                "rows": each.rows,
                "of": each.job.rows,
            }
            for each in self._compactor.progress
        ]

    def _run(self) -> None:
        collect_at = time.monotonic() + _COLLECT_S
        while not self._stop.wait(_LOOK_S):
            try:
                while self.compact_once() and not self._stop.is_set():
                    pass
                if time.monotonic() >= collect_at:
                    collect_at = time.monotonic() + _COLLECT_S
                    self.collect()
            except TidegateError as error:
                _logger.warning("%s: looking after snapshots: %s", self._database, error)
            except Exception:
                _logger.exception("%s: looking after snapshots met a defect", self._database)

    def compact_once(self) -> bool:
        """Do one compaction that is due; whether there was one."""
        manifest = self._store.manifest()
        if not manifest.checkpoint:
            return False
        catalog = newest_catalog(self._database)
        if catalog is None:
            return False
        for job in self._compactor.due(manifest, _keyless(catalog)):
            try:
                table = catalog.table_by_id(job.table)
            except NotFound:
                continue  # It was dropped; its files go with the next epoch.
            self._names = {table.id: table.name}
            try:
                self._compactor.run(job, table, self._stop.is_set)
            except Conflict:
                continue  # Somebody else was faster, or it was given up.
            self.compactions += 1
            return True
        return False

    def collect(self) -> None:
        """Remove what nobody needs any more."""
        catalog = newest_catalog(self._database)
        tables = () if catalog is None else catalog.stored()
        own = {each.id: each.options[RETENTION_S] * 1000 for each in tables if RETENTION_S in each.options}
        found = self._collector.collect(Retention(self._retention_s * 1000, own))
        self.collected += found.files + found.manifests


def _keyless(catalog: Catalog) -> set[int]:
    return {each.id for each in catalog.stored() if not each.schema.key}
