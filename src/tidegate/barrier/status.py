"""Who holds the pipeline up, and since when: `status` reads the machines and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.barrier.alignment import Alignment
from tidegate.barrier.catching_up import CatchUpStatus
from tidegate.barrier.clock import BarrierClock
from tidegate.barrier.collection import Epochs, Worker
from tidegate.barrier.cut import Pointer, Span

_SLOW: float = 1.0
_STUCK: float = 10.0
"""In intervals: from here on a barrier counts as slow, and as stuck."""


class Health(StrEnum):
    """How long the oldest barrier has been under way, against the interval."""

    GOOD = "good"
    SLOW = "slow"
    STUCK = "stuck"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. Ages in ms."""

    name: str
    term: int
    is_alive: bool
    since_ms: int
    """Since it registered, or was lost."""
    channels: tuple[str, ...]
    working_on: Span | None
    working_ms: int | None
    behind: int
    """Recorded epochs it has not reported."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The pipeline at one moment. Ages in ms, None where there is nothing to be old."""

    health: Health
    paused_ms: int | None
    asked_ms: int | None
    """Age of the oldest ask that waits for its barrier."""
    barrier_ms: int | None
    """Since the last barrier was taken."""
    aligning: int
    """Barriers that wait for ticks."""
    uncommitted: int
    """Recorded epochs without a checkpoint."""
    catching_up: CatchUpStatus | None
    """How far it is with those that waited when it fell behind; None when it does not catch up."""
    align_lag_ms: int
    """Tick to barrier: how long the oldest barrier has waited for a channel."""
    work_lag_ms: int
    """Barrier to report: how long the oldest recorded epoch has waited for workers."""
    commit_lag_ms: int
    """Report to checkpoint: how long the commit under way has taken."""
    last: Pointer
    """The last checkpoint."""
    committed_ms: int | None
    """Since it was committed, by this owner."""
    workers: tuple[WorkerStatus, ...]
    slowest: str | None
    """The worker who holds up the next checkpoint; None when nobody does."""
    held_by: str
    """In one sentence; empty when nothing is held up."""


def status(clock: BarrierClock, alignment: Alignment, epochs: Epochs, now_ms: int) -> PipelineStatus:
    """What `tidegate status` shows of the pipeline."""
    pending = alignment.pending
    newest = epochs.newest
    last_epoch = newest.epoch if newest else epochs.pointer.epoch
    workers = tuple(_worker(each, last_epoch, now_ms) for _, each in sorted(epochs.workers.items()))
    align_lag_ms = now_ms - pending[0].begun_ms if pending else 0
    commit_lag_ms = now_ms - epochs.committing_ms if epochs.committing is not None else 0
    waiting = [epoch for epoch in epochs.waiting if epoch > epochs.base]
    recorded_ms = epochs.recorded_ms(waiting[0]) if waiting else None
    work_lag_ms = now_ms - recorded_ms if recorded_ms is not None else 0
    behind = [each for each in workers if each.behind and waiting]
    # The dead before the living, then who has been at it for longest.
    slowest = min(behind, key=lambda each: (each.is_alive, -each.behind, -(each.working_ms or 0)), default=None)
    paused_ms = _age(clock.paused_since_ms, now_ms)
    oldest_ms = max(align_lag_ms, work_lag_ms, commit_lag_ms)
    interval_ms = clock.settings.interval_ms
    if paused_ms is not None:
        health = Health.PAUSED
    elif oldest_ms >= _STUCK * interval_ms:
        health = Health.STUCK
    else:
        health = Health.SLOW if oldest_ms > _SLOW * interval_ms else Health.GOOD
    held_by = ""
    if paused_ms is not None:
        held_by = f"the pipeline has been paused for {paused_ms:,} ms; resume it"
    elif epochs.fenced_by is not None:
        held_by = f"term {epochs.fenced_by} owns the pipeline now"
    elif pending and align_lag_ms >= max(work_lag_ms, commit_lag_ms):
        names = ", ".join(sorted(pending[0].waiting))
        held_by = f"epoch {pending[0].epoch} has waited {align_lag_ms:,} ms for ticks of {names}"
    elif epochs.committing is not None and commit_lag_ms >= work_lag_ms:
        held_by = f"checkpoint {epochs.committing.pointer.checkpoint} has been committing for {commit_lag_ms:,} ms"
    elif slowest is not None:
        held_by = _holding(slowest)
    elif waiting:
        held_by = f"{len(waiting):,} epochs wait, and there is no worker"
    return PipelineStatus(
        health=health,
        paused_ms=paused_ms,
        asked_ms=_age(clock.asked_ms, now_ms),
        barrier_ms=_age(clock.taken_ms, now_ms),
        aligning=len(pending),
        uncommitted=epochs.uncommitted,
        catching_up=epochs.catching_up.status(now_ms),
        align_lag_ms=align_lag_ms,
        work_lag_ms=work_lag_ms,
        commit_lag_ms=commit_lag_ms,
        last=epochs.pointer,
        committed_ms=_age(epochs.committed_ms, now_ms),
        workers=workers,
        slowest=slowest.name if slowest else None,
        held_by=held_by,
    )


def _worker(worker: Worker, last: int, now_ms: int) -> WorkerStatus:
    return WorkerStatus(
        worker.name,
        worker.term,
        worker.is_alive,
        now_ms - worker.since_ms,
        worker.channels,
        worker.handed,
        now_ms - worker.handed_ms if worker.handed is not None else None,
        max(last - worker.end, 0),
    )


def _holding(worker: WorkerStatus) -> str:
    if not worker.is_alive:
        return f"worker {worker.name!r} was lost {worker.since_ms:,} ms ago, and {worker.behind:,} epochs wait for it"
    if worker.working_on is None:
        return f"worker {worker.name!r} has {worker.behind:,} epochs to do, and waits for the last checkpoint"
    return f"worker {worker.name!r} has been at {worker.working_on} for {worker.working_ms or 0:,} ms"


def _age(since_ms: int | None, now_ms: int) -> int | None:
    return None if since_ms is None else now_ms - since_ms
