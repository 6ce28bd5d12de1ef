"""What the owner knows of its pipeline, and what it says of it: how far it is, and what holds it up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Condition, Event, RLock, Thread
from typing import Any, Final

from tidegate.barrier.clock import BarrierSettings
from tidegate.barrier.cut import Cut
from tidegate.barrier.status import status as barrier_status
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Closed, TidegateError
from tidegate.pipeline.child import Worker
from tidegate.pipeline.machines import Machines, now_ms
from tidegate.pipeline.owner import Owner
from tidegate.pipeline.view_outcome import Outcome
from tidegate.snapshots.manifest import FileEntry, Pointer
from tidegate.snapshots.store import SnapshotStore


class PipelineState(ABC):
    """Everything under one lock; `Pipeline` changes it."""

    def __init__(self, engine: Owner) -> None:
        self._engine = engine
        self.store: Final = SnapshotStore(engine.path / "snapshots", engine.log.metadata)
        self._lock = RLock()
        self._changed = Condition(self._lock)
        """Told when the service time has moved, a barrier was asked for, or something has failed."""
        self._stop = Event()
        self._thread: Thread | None = None
        self._is_dirty = False
        self._is_paused = False
        self._barriers = BarrierSettings(
            interval_ms=engine.settings.barrier_interval_ms, checkpoint_every=engine.settings.checkpoint_every
        )
        self._pointer: Pointer = self.store.pointer()
        self._machines: Machines | None = None
        self._child: Worker | None = None
        self._was_heard = False
        """Whether the worker has said anything."""
        self._worker_term = 0
        self._handed: list[Cut] = []
        """Cuts for a worker that is about to start."""
        self._work: Path | None = None
        self._entries: dict[str, FileEntry] = {}
        """Of files that were reported and not committed."""
        self._views: dict[int, Outcome] = {}
        """How views stand by the reports that are not committed, by their last epochs."""
        self._failures = 0
        self.failure: str | None = None
        """Why the worker, or this, failed last; None since the last checkpoint."""
        self._said = ""
        """The error that the worker told of last."""
        self.ui: str | None = None
        """Spark's web page, if it has one."""
        self.upkeep: dict[str, Any] | None = None
        """What compaction and garbage collection have done in the worker, and do now."""
        self.fills: list[dict[str, Any]] = []
        """Views that the worker fills beside the batches: how far they are."""
        self.view_s: dict[str, float] = {}
        """How long each view took in the last batch, by name."""
        self._spawn_at = 0.0
        self._first_at = 0.0
        """Before this the first worker is started only for somebody who waits."""
        self.batch_s = 0.0
        """How long the last batch took in the worker."""
        self.checkpoint_s = 1.0
        """About how long it takes from a cut to its checkpoint: of the last ones, the newest counted most."""

    def _hurry(self) -> None:
        """Somebody waits: start the worker at once. Holding the lock."""
        if self._first_at:
            self._first_at = 0.0
            self._changed.notify_all()

    def _take_note(self, message: dict[str, Any]) -> None:
        """What the worker says beside the batches."""
        self._was_heard = True
        if "error" in message:
            self._said = str(message["error"])
        if "ready" in message:
            self.ui = message["ready"].get("ui")
        if "upkeep" in message:
            self.upkeep = message["upkeep"]
        if "fills" in message:
            self.fills = message["fills"]
        if "barrier" in message:
            self._want_barrier(str(message["barrier"]))

    def _want_barrier(self, why: str) -> None:
        """Have a barrier taken now, though nothing was written; nobody waits for it."""
        with self._changed:
            self._is_dirty = True
            if self._machines is not None and not self._stop.is_set():
                self._machines.clock.ask(now_ms(), why, waits=False)
            self._changed.notify_all()

    def _go_on_filling(self) -> None:
        """A view that was being filled needs a worker and a batch."""
        with suppress(TidegateError):  # Damaged: that is told elsewhere.
            if any(each.state == "filling" for each in self.store.manifest(self._pointer).views.values()):
                self._want_barrier("a view is to be filled")

    def wait_for(self, timestamp: Timestamp, timeout_s: float) -> bool:
        """Wait until the service time has reached a Timestamp, without asking for a barrier."""
        with self._changed:
            self._hurry()
            return self._changed.wait_for(lambda: self._pointer.timestamp >= timestamp, timeout_s)

    def change(self, settings: BarrierSettings) -> None:
        """Go on with other settings."""
        with self._changed:
            self._barriers = settings
            if self._machines is not None:
                self._machines.clock.change(settings, now_ms())
            self._changed.notify_all()

    def pause(self) -> None:
        """Hand out no more epochs and take no periodic barriers; what is under way is finished."""
        with self._changed:
            self._is_paused = True
            if self._machines is not None:
                self._machines.pause()

    def _the_machines(self) -> Machines:
        if self._machines is None:
            raise Closed("the pipeline is starting again")
        return self._machines

    def _discard(self, files: Iterable[str]) -> None:
        for path in files:
            self._entries.pop(path, None)
            with suppress(OSError):
                (self.store.root / path).unlink(missing_ok=True)

    # -- what is known ---------------------------------------------------------------------------------------

    def _why(self) -> str:
        machines = self._machines
        if machines is None:
            return self.failure or "the pipeline is starting"
        if machines.clock.paused_since_ms is not None:
            return "the pipeline is paused"
        for barrier in machines.alignment.pending:
            if barrier.waiting:
                return f"{', '.join(sorted(barrier.waiting))} did not tick past {barrier.timestamp}"
        if self.failure is not None:
            return self.failure
        if self._child is None:
            return "the worker has not started yet"
        return f"the worker, process {self._child.pid}, has not finished epoch {self._pointer.epoch + 1}"

    @property
    def service_time(self) -> Timestamp:
        """The Timestamp of the last checkpoint."""
        return self._pointer.timestamp

    @property
    def pointer(self) -> Pointer:
        return self._pointer

    def reload(self) -> None:
        """Take note of a checkpoint that was committed by somebody else, where no pipeline runs."""
        with self._changed:
            self._pointer = self.store.pointer()
            self._changed.notify_all()

    def what_holds(self) -> str:
        """Why the service time does not go on."""
        if not self.has_worker:
            return "this database was opened without a pipeline"
        with self._lock:
            return self._why()

    @property
    def is_starting(self) -> bool:
        """Whether the worker is on its way, and has not failed."""
        if not self.has_worker or self._is_paused or self.failure is not None:
            return False
        return self._machines is None or self._child is None or not self._was_heard

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def is_busy(self) -> bool:
        """Whether something was written that no checkpoint holds, as far as is known."""
        with self._lock:
            machines = self._machines
            return self._is_dirty or (machines is not None and machines.epochs.uncommitted > 0)

    @property
    @abstractmethod
    def has_worker(self) -> bool:
        """Whether somebody can be started who folds."""

    def status(self) -> dict[str, Any]:
        """The pipeline as data: how far it is, and what holds it up."""
        with self._lock:
            machines, child = self._machines, self._child
            now = Timestamp(self._engine.log.allocate(1))
            found: dict[str, Any] = {
                "running": self._thread is not None,
                "checkpoint": self._pointer.checkpoint,
                "epoch": self._pointer.epoch,
                "service_time": int(self._pointer.timestamp),
                "service_time_text": str(self._pointer.timestamp) if self._pointer.timestamp else None,
                "lag_ms": max(now.ms_since(self._pointer.timestamp), 0) if self._pointer.timestamp else None,
                "worker": None if child is None else child.pid,
                "spark_ui": self.ui,
                "upkeep": self.upkeep,
                "failure": self.failure,
                "last_batch_s": round(self.batch_s, 3),
                "waits_for": None,
            }
            if machines is not None:
                found["uncommitted_epochs"] = machines.epochs.uncommitted
                found["interval_ms"] = machines.clock.settings.interval_ms
                found["paused"] = machines.clock.paused_since_ms is not None
                seen = barrier_status(machines.clock, machines.alignment, machines.epochs, now_ms())
                found["health"] = str(seen.health)
                found["catching_up"] = None if seen.catching_up is None else asdict(seen.catching_up)
                found["lags"] = {
                    "tick_to_barrier_ms": seen.align_lag_ms,
                    "barrier_to_report_ms": seen.work_lag_ms,
                    "report_to_checkpoint_ms": seen.commit_lag_ms,
                }
                if machines.epochs.uncommitted or machines.alignment.pending or self.failure:
                    found["waits_for"] = self._why()
            return found
