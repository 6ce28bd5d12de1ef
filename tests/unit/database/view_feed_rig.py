"""A database with views whose changes are followed, and `Copy`: what a consumer of the changes has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidegate
from folding import Crash, folding
from tidegate import Database, DatabaseSettings, Timestamp
from tidegate.catalog.views import View
from tidegate.database import engine as engine_module
from tidegate.runtime.settings import LogSettings
from tidegate.snapshots.collector import Collector
from tidegate.snapshots.compaction import Compactor
from tidegate.snapshots.manifest import Manifest
from tidegate.snapshots.plan_compaction import Tiers
from tidegate.snapshots.plan_gc import Retention
from tidegate.snapshots.reader import Duck, SnapshotReader
from tidegate.snapshots.store import SnapshotStore
from tidegate.snapshots.view_feed import CHANGE, EPOCH, ViewFeed
from tidegate.snapshots.view_history import Place, Step, ViewHistory

TABLES = (
    "CREATE TABLE o (id BIGINT PRIMARY KEY, g STRING, n BIGINT) SHARDS 2",
    "CREATE TABLE c (g STRING PRIMARY KEY, label STRING)",
    "CREATE TABLE e (who BIGINT, what STRING)",
)
VIEWS = {
    "kept": "SELECT id, g, n FROM o WHERE n > 3",
    "sums": "SELECT g, sum(n) AS s, count(*) AS k FROM o GROUP BY g",
    "all_of_it": "SELECT count(*) AS k, max(n) AS top FROM o",
    "joined": "SELECT o.g, o.n, c.label FROM o LEFT JOIN c ON o.g = c.g",
    "twice": "SELECT who, what FROM e",
    "distinct_of": "SELECT DISTINCT g, n FROM o",
    "above": "SELECT k, count(*) AS groups FROM sums GROUP BY k",
}
SYSTEM = (CHANGE, EPOCH, "_ts")
EAGER = Tiers(fan=2, base_fraction=0.01)


class Followed:
    """The database of a test. Checkpoints come when they are asked for."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._monkeypatch = monkeypatch
        self.db: Database = None  # type: ignore[assignment]
        self._reader: SnapshotReader | None = None
        self._duck: Duck | None = None
        self.open()
        for each in TABLES:
            self.db.sql(each)

    def open(self, crash: Crash = lambda *_: False) -> Database:
        """Open it, again if it was open; its worker dies when `crash` says so."""
        self.close()
        self._monkeypatch.setattr(engine_module, "spark_worker", folding(crash))
        log = LogSettings(tick_interval_ms=20)
        settings = DatabaseSettings(log=log, channels=2, barrier_interval_ms=3_600_000)
        self.db = tidegate.open(self.path, settings=settings)
        return self.db

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._duck is not None:
            self._duck.close()
            self._duck = None
        if self.db is not None:
            self.db.close()

    def create(self, *names: str) -> None:
        for name in names or VIEWS:
            self.db.sql(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name]}")

    # -- what happens to it ----------------------------------------------------------------------------------

    def change(self, rng: random.Random) -> None:
        """A transaction on some rows of some tables."""
        with self.db.transaction() as txn:
            for _ in range(rng.randrange(1, 5)):
                group = rng.choice(["a", "b", "c", None])
                match rng.randrange(8):
                    case 0 | 1:
                        txn.delete("o", [{"id": rng.randrange(10)}])
                    case 2:
                        txn.insert("e", [{"who": rng.randrange(2), "what": "x"}])
                    case 3:
                        txn.upsert("c", [{"g": rng.choice("abc"), "label": str(rng.randrange(3))}])
                    case _:
                        txn.upsert("o", [{"id": rng.randrange(10), "g": group, "n": rng.randrange(8)}])

    def compact(self) -> int:
        """Compact what is there as far as it goes; how many jobs that were."""
        jobs = 0
        compactor = Compactor(self.store, tiers=EAGER)
        catalog = self.db.engine.catalog
        keyless = {each.id for each in catalog.stored() if not each.schema.key}
        while found := compactor.due(self.store.manifest(), keyless):
            compactor.run(found[0], catalog.table_by_id(found[0].table))
            jobs += 1
        return jobs

    def forget(self) -> None:
        """Collect all that is not part of the newest checkpoint."""
        Collector(self.store, grace_ms=0).collect(Retention(0))

    # -- what is there ---------------------------------------------------------------------------------------

    @property
    def store(self) -> SnapshotStore:
        return self.db.engine.pipeline.store

    def view(self, name: str) -> View:
        return self.db.engine.catalog.view(name)

    def history(self, name: str) -> ViewHistory:
        return ViewHistory(self.store, self.view(name).table)

    @contextmanager
    def feed(self, name: str) -> Iterator[ViewFeed]:
        if self._duck is None:
            self._duck = Duck(self.store.root / "spill", threads=1, memory_limit="256MB")
        yield ViewFeed(self.store, self.view(name).table, self.view(name).columns, self._duck)

    def steps(self, name: str, after: int = 0) -> list[tuple[Place, Step | None]]:
        return list(self.history(name).after(Timestamp(after)))

    def changes(self, name: str, after: int = 0) -> list[dict[str, Any]]:
        """All changes behind a time, in their order."""
        with self.feed(name) as feed:
            steps = [step for _, step in self.steps(name, after) if step is not None]
            return [row for step in steps for batch in feed.changes(step) for row in batch.to_pylist()]

    def manifest_at(self, timestamp: int) -> Manifest:
        committed, _ = self.store.history()
        name = [each for each in committed if each.timestamp <= timestamp][-1]
        return self.store.read_manifest(name.file, name.checkpoint)

    def rows(self, name: str, timestamp: int | None = None) -> Counter[str]:
        """What the files of a view hold at the newest checkpoint at or before a time."""
        view = self.view(name)
        manifest = self.store.manifest() if timestamp is None else self.manifest_at(timestamp)
        if self._reader is None:
            self._reader = SnapshotReader(self.store, threads=1)
        rows = self._reader.read_all(manifest, view.table, view.table.schema, columns=list(view.columns))
        return told(rows.to_pylist())


class Copy:
    """What a consumer has who applies every change, in order, to what he had before."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()

    def apply(self, changes: Iterable[Mapping[str, Any]]) -> None:
        """Takes no row away that is not there: what a change says was there before, was."""
        before: str | None = None
        for each in changes:
            row = said({name: value for name, value in each.items() if name not in SYSTEM})
            match each[CHANGE]:
                case "insert":
                    self.rows[row] += 1
                case "delete":
                    self._take(row)
                case "update_before":
                    self._take(row)
                    before = row
                    continue
                case "update_after":
                    assert before is not None and before != row, "an update is two rows that differ, one by one"
                    self.rows[row] += 1
                case other:
                    raise AssertionError(other)
            assert before is None or each[CHANGE] == "update_after", "what was before is followed by what is after"
            before = None

    def _take(self, row: str) -> None:
        assert self.rows[row] > 0, f"{row} is said to have been there, and was not: {self.rows}"
        self.rows[row] -= 1
        if not self.rows[row]:
            del self.rows[row]


def said(row: Mapping[str, Any]) -> str:
    return repr(list(row.values()))


def told(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    return Counter(map(said, rows))
