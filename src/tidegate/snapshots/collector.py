"""Garbage collection: deletes the files and manifests that `plan_gc` finds nobody needs."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock

from tidegate.snapshots.durable import remove, sync_directory
from tidegate.snapshots.manifest import ManifestName, Pointer
from tidegate.snapshots.pins import live_pins
from tidegate.snapshots.plan_gc import DAY_MS, GRACE_MS, Listed, NamedFiles, Plan, Retention, plan_gc
from tidegate.snapshots.store import SnapshotStore


@dataclass(frozen=True, slots=True)
class Collected:
    """What a round of garbage collection deleted."""

    manifests: int = 0
    files: int = 0


class Collector:
    """Collects garbage of one store. What it has read of the history it remembers for the next round."""

    def __init__(self, store: SnapshotStore, *, grace_ms: int = GRACE_MS) -> None:
        self._store = store
        self._grace_ms = grace_ms
        self._named = NamedFiles()
        self._lock = Lock()

    def collect(self, retention: Retention) -> Collected:
        """One round.

        Ordering: files are listed first; the pointer, the history and the pins are read after. What is committed later
        names none of the files that were found dead.

        Raises: `StoreUnavailable`, `SnapshotDamaged`: in doubt nothing is deleted.
        """
        with self._lock:
            self._clear_spill()
            listing = self._list()
            pointer = self._store.pointer()
            history, strays = self._store.history(pointer)
            self._see(history)
            plan = self._plan(listing, pointer, history, strays, retention)
            if plan.fence and not self._store.touch_pointer(pointer):
                plan = replace(plan, unfinished=())  # somebody committed meanwhile; the next round looks again
            self._store.raise_floor(plan.floor)
            if plan.empty:
                return Collected()
            again = self._plan(listing, pointer, history, strays, retention)
            if not plan.fence:
                again = replace(again, unfinished=())
            return self._delete(again)

    def _plan(
        self,
        listing: list[Listed],
        pointer: Pointer,
        history: list[ManifestName],
        strays: list[ManifestName],
        retention: Retention,
    ) -> Plan:
        return plan_gc(
            listing=listing,
            history=history,
            strays=strays,
            named=self._named,
            pointer=pointer,
            pins=live_pins(self._store),
            retention=retention,
            floor=self._store.floor(),
            grace_ms=self._grace_ms,
        )

    def _list(self) -> list[Listed]:
        now_s = time.time()
        found = []
        for directory in sorted((self._store.root / "tables").iterdir()):
            if not directory.is_dir():
                continue
            for path in directory.iterdir():
                with suppress(FileNotFoundError):
                    age_ms = int((now_s - path.stat().st_mtime) * 1000)
                    found.append(Listed(f"tables/{directory.name}/{path.name}", age_ms))
        return found

    def _clear_spill(self) -> None:
        """Remove what queries that died have left behind."""
        for directory in (self._store.root / "spill").glob("*"):
            with suppress(OSError):
                newest_s = max(path.stat().st_mtime for path in (directory, *directory.iterdir()))
                if time.time() - newest_s > DAY_MS / 1000:
                    shutil.rmtree(directory, ignore_errors=True)

    def _see(self, history: list[ManifestName]) -> None:
        for each in [each for each in history if each.checkpoint > self._named.seen]:
            self._named.see(self._store.read_manifest(each.file, each.checkpoint))

    def _delete(self, plan: Plan) -> Collected:
        for each in plan.manifests:
            remove(self._store.root / "manifests" / each.file)
        if plan.manifests:
            # After a loss of power a manifest that is still there must not name files that are gone.
            sync_directory(self._store.root / "manifests")
        files = (*plan.files, *plan.unfinished)
        for path in files:
            remove(self._store.root / path)
        self._named.forget(files)
        for table in sorted({path.split("/")[1] for path in files}):
            with suppress(OSError):
                (self._store.root / "tables" / table).rmdir()  # refused while anything is in it
        return Collected(len(plan.manifests), len(files))
