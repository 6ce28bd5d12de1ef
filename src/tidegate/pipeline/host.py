"""`Pipeline`: the owner's side of the pipeline: takes barriers, keeps a worker, commits what it reports.

    clock ──▶ barrier ──▶ every channel ticks ──▶ cut, recorded ──▶ worker folds the span ──▶ report ──▶ checkpoint

The machines in `barrier/` decide; this gives them time, ticks, the log and a process. Whatever fails here without a
known outcome is settled by reading again what is durable: the recorded cuts and the pointer to the last checkpoint.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread
from typing import Any, Final

from tidegate.barrier.cut import Cut, Epoch, Span, decode_cut, encode_cut
from tidegate.barrier.work import (
    Begin,
    Commit,
    CommitOutcome,
    Discard,
    Effect,
    HandOut,
    ReadPointer,
    Report,
    StepDown,
    Verdict,
)
from tidegate.catalog.entries import (
    Change,
    TableAltered,
    TableCreated,
    TableDropped,
    ViewCreated,
    ViewDropped,
    ViewResumed,
)
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Closed,
    Conflict,
    InvariantBroken,
    NotLeader,
    OutcomeUnknown,
    Retryable,
    TidegateError,
    Unavailable,
    WaitTimeout,
)
from tidegate.log.message import Term
from tidegate.pipeline.catalog_file import remove_catalogs, write_catalog
from tidegate.pipeline.child import Worker
from tidegate.pipeline.machines import Machines, now_ms, take_barrier, was_written_since
from tidegate.pipeline.owner import Owner, PipelineSettings
from tidegate.pipeline.state import PipelineState
from tidegate.pipeline.view_outcome import Outcome
from tidegate.runtime.journal import Journal
from tidegate.runtime.pending import PendingAppend
from tidegate.snapshots.manifest import Pointer

_logger = logging.getLogger("tidegate.pipeline")
VCHANNEL: Final = "epochs"
WORKER: Final = "spark"
_TABLE: Final = "table/"
_AGAIN_S: Final = 0.5
_BACK_OFF_S: Final = (0.5, 30.0)
_TERM_BITS: Final = 20
"""Terms of workers lie between those of two owners."""
_FIRST_S: Final = 1.5
"""So long after the opening the first worker is not started unless somebody waits for it: it takes a whole core for
seconds, and whoever opened the database most likely asks something first."""
_STORED: Final = (TableCreated, TableAltered, TableDropped, ViewCreated, ViewDropped, ViewResumed)
"""Changes of what is stored."""
_FAILURES_MAX: Final = 3
"""So often in a row a worker may fail before those who wait are told instead of waiting on."""


class Pipeline(PipelineState):
    """The pipeline of one database, in the process that owns it. Thread-safe.

    Invariant: `service_time` never goes back, and everything at or below it is in the tables' files.
    """

    def __init__(self, engine: Owner, start_worker: StartWorker | None) -> None:
        """`start_worker` starts the process that folds; without one no checkpoint is ever made here."""
        super().__init__(engine)
        self._start_worker = start_worker

    # -- for others ------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The directory of the database."""
        return self._engine.path.absolute()

    @property
    def channels(self) -> list[str]:
        return self._engine.channels

    @property
    def settings(self) -> PipelineSettings:
        return self._engine.settings

    @property
    def has_worker(self) -> bool:
        return self._start_worker is not None

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Begin to take barriers. May be repeated."""
        with self._lock:
            if self._thread is not None or self._stop.is_set() or self._start_worker is None:
                return
            self._first_at = time.monotonic() + _FIRST_S
            self._thread = Thread(target=self._run, name="tidegate-barriers", daemon=True)
            self._thread.start()

    def use(self, start_worker: StartWorker) -> None:
        """Go on with other workers. One that runs is ended; its span is done again."""
        with self._changed:
            self._start_worker = start_worker
            child = self._child
            if self._engine.catalog.tables():
                self.start()
            self._spawn_at = 0.0
            self._hurry()
            self._changed.notify_all()
        if child is not None:
            child.kill()

    def catalog_changed(self, change: Change) -> None:
        """A change of tables takes effect at exactly one epoch, and gets a barrier of its own."""
        if not isinstance(change, _STORED):
            return
        self.start()
        with self._changed:
            self._hurry()
            self._is_dirty = True
            if self._machines is not None:
                self._tell_catalog(self._machines)
                self._machines.clock.ask(now_ms(), "a change of the catalog", waits=False)
            self._changed.notify_all()

    def flush(self, timeout_s: float = 60.0) -> Timestamp:
        """A checkpoint that holds everything written before; its Timestamp.

        Raises: `WaitTimeout`, `Unavailable` saying what holds it up.
        """
        wanted = Timestamp(self._engine.log.allocate(1))
        self.start()
        deadline = time.monotonic() + timeout_s
        asked = False
        with self._changed:
            self._hurry()
            failures = self._failures
            while self._pointer.timestamp < wanted:
                if self._start_worker is None:
                    raise Unavailable("flush: this database was opened without a pipeline; open it with one")
                if self._stop.is_set():
                    raise Closed("flush: the database was closed")
                if not asked and self._machines is not None:
                    self._machines.clock.ask(now_ms(), "flush")
                    asked = True
                    self._changed.notify_all()
                if self._failures - failures >= _FAILURES_MAX:
                    raise Unavailable(f"flush: the pipeline fails again and again: {self.failure}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(f"flush: no checkpoint at {wanted} within {timeout_s:g} s: {self._why()}")
                self._changed.wait(min(left, _AGAIN_S))
            return self._pointer.timestamp

    def ask_barrier(self, why: str) -> bool:
        """Have a barrier taken now; False while the pipeline is not there to take one."""
        self.start()
        with self._changed:
            self._hurry()
            if self._machines is None:
                return False
            self._machines.clock.ask(now_ms(), why)
            self._changed.notify_all()
            return True

    def resume(self) -> None:
        with self._changed:
            self._is_paused = False
            if self._machines is not None:
                self._machines.clock.resume(now_ms())
                self._perform(self._machines.epochs.resume(now_ms()))
            self._changed.notify_all()

    def close(self, timeout_s: float = 20.0) -> None:
        """Stop. What the worker has not reported is done again by the next owner."""
        with self._changed:
            self._stop.set()
            child, self._child = self._child, None
            self._changed.notify_all()
            was_heard = self._was_heard
        if child is not None:
            # One that is still starting has nothing to finish, and would hear of its end only once it has started.
            child.stop(timeout_s) if was_heard else child.kill()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)

    # -- the thread that takes barriers ----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._begin()
                while not self._stop.is_set():
                    self._turn()
            except Unavailable as error:
                self._fail(f"the pipeline stops: {error}")
                return
            except Exception as error:
                if self._stop.is_set():
                    return
                if not isinstance(error, TidegateError):
                    _logger.exception("%s: the pipeline met a defect", self._engine.path)
                self._fail(str(error))
                self._stop.wait(_AGAIN_S)

    def _begin(self) -> None:
        """Take up where the last owner, or this one before a failure, left off: from what is durable."""
        self._end_worker()
        engine = self._engine
        term = int(engine.log.channel("system", create=False).term) << _TERM_BITS
        with self._lock:
            self._pointer = self._claim(term)
            journal = Journal(engine.log, "system", VCHANNEL, snapshot_every=2000)
            known: dict[int, Cut] = {}
            journal.recover(
                lambda snapshot: known.update((each.epoch, each) for each in map(decode_cut, snapshot.splitlines())),
                lambda record, _: known.update({(found := decode_cut(record)).epoch: found}),
            )
            self._machines = Machines(engine, journal, known.values(), self._pointer, term, self._barriers)
            if self._is_paused:
                self._machines.pause()
            self._watch()
            self._tell_catalog(self._machines)
            self._is_dirty = was_written_since(self._engine, self._machines.epochs.newest)
            self._go_on_filling()

    def _claim(self, term: int) -> Pointer:
        """Put this owner's term into the pointer: from here on no older owner can commit."""
        while True:
            found = self.store.pointer()
            if found.term > term:
                raise NotLeader(f"{self._engine.path}: term {found.term >> _TERM_BITS} owns the pipeline")
            claimed = Pointer(found.checkpoint, found.epoch, found.timestamp, term, found.manifest, found.version)
            if found.term == term or self.store.touch_pointer(claimed):
                return self.store.pointer()

    def _watch(self) -> None:
        for name in self._engine.channels:
            writer = self._engine.log.channel(name, create=False)
            if self._written not in writer.watchers:
                writer.watchers = (*writer.watchers, self._written)

    def _written(self, items: Iterable[PendingAppend]) -> None:
        """Rows are durable. Ordering: said after they have their Timestamps, so the next barrier is above them."""
        if self._is_dirty:
            return
        for item in items:
            if item.vchannel.startswith(_TABLE) or any(name.startswith(_TABLE) for name in item.names):
                self._is_dirty = True
                return

    def _tell_catalog(self, machines: Machines) -> None:
        catalog = self._engine.catalog
        write_catalog(self._engine.path, catalog)
        machines.alignment.catalog_changed(catalog.version, catalog.changed)

    def _turn(self) -> None:
        with self._changed:
            machines = self._the_machines()
            now = now_ms()
            barrier = machines.clock.poll(now, in_flight=machines.epochs.uncommitted, is_dirty=self._is_dirty)
            if barrier is None:
                self._keep_worker()
                self._changed.wait(min(max(machines.clock.next_ms - now, 1), 200) / 1000)
                return
            self._is_dirty = False
        take_barrier(self._engine.log, machines, barrier, lambda cut: self._record(machines, cut), self._stop)
        with self._changed:
            self._keep_worker()
            if machines.journal.wants_snapshot():
                kept = machines.kept(self._pointer.epoch)
                machines.journal.snapshot(lambda: b"\n".join(encode_cut(each) for each in kept))

    def _record(self, machines: Machines, cut: Cut) -> None:
        """A cut lies through all channels: make it durable and hand it on."""
        machines.journal.enter()
        try:
            request = machines.journal.request(encode_cut(cut))
            request.wait()
            if request.error is not None:
                raise request.error
        finally:
            machines.journal.leave()
        with self._lock:
            machines.cuts[cut.epoch] = cut
            self._perform(machines.epochs.record(cut, now_ms()))

    # -- the worker ------------------------------------------------------------------------------------------

    def _keep_worker(self) -> None:
        """Start the worker when there is work and none is there; after failures not at once."""
        machines = self._the_machines()
        if self._start_worker is None or self._child is not None or not machines.epochs.uncommitted:
            return
        if time.monotonic() < max(self._spawn_at, self._first_at) or self._stop.is_set():
            return
        self._worker_term += 1
        term = Term(machines.epochs.term + self._worker_term)
        work = self._engine.path / "pipeline" / f"worker-{term}"
        for old in work.parent.glob("worker-*"):
            shutil.rmtree(old, ignore_errors=True)
        work.mkdir(parents=True)
        self._work = work
        at = machines.cuts.get(self._pointer.epoch)
        self._handed = [] if at is None else [at]
        self._entries.clear()
        self._views.clear()
        self._perform(machines.epochs.register(WORKER, term, now_ms()))
        self._was_heard = False
        self._child = self._start_worker(self, work, at)
        for cut in self._handed:
            self._child.send(_said(cut))

    def heard(self, term: int, message: dict[str, Any]) -> None:
        """The worker has said something."""
        self._take_note(message)
        batch = message.get("batch")
        if batch is None:
            return
        found = Outcome.of(batch["reports"])
        entries = found.files
        with self._changed:
            machines = self._machines
            if machines is None or self._stop.is_set():
                return
            self.batch_s, self.view_s = float(batch.get("seconds", 0.0)), found.seconds
            span = Span(Epoch(batch["first"]), Epoch(batch["last"]))
            report = Report(WORKER, Term(term), machines.epochs.generation, span, tuple(each.path for each in entries))
            answer = machines.epochs.report(report, now_ms())
            if answer.verdict is Verdict.TAKEN:
                self._entries.update((each.path, each) for each in entries)
                self._views[batch["last"]] = found
            if answer.discard:
                self._discard(answer.discard)
            self._perform(answer.effects)
            child = self._child
        if child is not None:
            child.send({"committed": int(self._pointer.epoch)})
            if answer.verdict not in (Verdict.TAKEN, Verdict.COMMITTED):
                _logger.warning("%s: a report was not taken: %s (%s)", self._engine.path, answer.verdict, answer.why)

    def ended(self, term: int, why: str) -> None:
        """The worker's process has ended."""
        with self._changed:
            machines = self._machines
            if machines is None or self._stop.is_set() or term != machines.epochs.term + self._worker_term:
                return
            self._child = None
            self._perform(machines.epochs.lost(WORKER, Term(term), now_ms()))
            least, most = _BACK_OFF_S
            self._spawn_at = time.monotonic() + min(least * 2**self._failures, most)
            said, self._said, self.ui, self.fills = self._said, "", None, []
            self._go_on_filling()
            self._fail(f"the worker: {said or why}")

    @property
    def current_term(self) -> int:
        """Of the worker that is, or is about to be, there."""
        return int(self._the_machines().epochs.term) + self._worker_term

    def _end_worker(self) -> None:
        with self._lock:
            child, self._child = self._child, None
            self._machines = None
        if child is not None:
            child.kill()

    def _fail(self, why: str) -> None:
        with self._changed:
            self._failures += 1
            self.failure = why
            self._changed.notify_all()
        _logger.warning("%s: %s", self._engine.path, why)

    # -- effects ---------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Carry out what the machine asks for. Holding the lock."""
        todo = list(effects)
        while todo:
            effect = todo.pop(0)
            match effect:
                case Begin():
                    if effect.after != self._pointer.epoch:
                        raise InvariantBroken(f"a worker would begin behind epoch {effect.after}, not the pointer's")
                case HandOut():
                    self._handed.append(effect.upto)
                    if self._child is not None:
                        self._child.send(_said(effect.upto))
                case Commit():
                    todo = [*self._commit(effect), *todo]
                case ReadPointer():
                    todo = [*self._read_pointer(effect), *todo]
                case Discard():
                    self._discard(effect.files)
                case StepDown():
                    raise NotLeader(f"{self._engine.path}: term {effect.term} owns the pipeline")

    def _commit(self, commit: Commit) -> tuple[Effect, ...]:
        machines = self._the_machines()
        if commit.cut is None:
            raise InvariantBroken("a checkpoint without a cut was asked for")
        timestamp = commit.cut.timestamp
        number = commit.pointer.checkpoint
        added = [self._entries.pop(path) for path in commit.files]
        alive = {each.id for each in self._engine.catalog.stored_at(timestamp)}
        views = [self._views.pop(last) for last in sorted(self._views) if last <= commit.pointer.epoch]
        emptied = {table for each in views for table in each.emptied}
        states = {view: state for each in views for view, state in each.states.items() if view in alive}
        while True:
            try:
                manifest = self.store.manifest(self._pointer)
                named = {*manifest.tables, *manifest.views}
                self._pointer = self.store.commit(
                    self._pointer,
                    added=[each for each in added if each.table in alive],
                    dropped=[table for table in named if table not in alive or table in emptied],
                    views=states,
                    epoch=commit.pointer.epoch,
                    timestamp=timestamp,
                    term=machines.epochs.term,
                )
                break
            except OutcomeUnknown:
                return machines.epochs.commit_failed(number, CommitOutcome.UNKNOWN)
            except (Conflict, NotLeader):
                return machines.epochs.commit_failed(number, CommitOutcome.REFUSED)
            except Retryable as error:
                self._fail(f"checkpoint {number}: {error}")
                if self._stop.is_set():
                    raise Closed("the database was closed") from error
                self._changed.wait(_AGAIN_S)
        took_s = (now_ms() - machines.epochs.recorded_ms(commit.cut.epoch)) / 1000
        self.checkpoint_s += (took_s - self.checkpoint_s) / 4
        self._is_committed()
        remove_catalogs(self.path, commit.cut.catalog_version)
        return machines.epochs.committed(number, now_ms())

    def _read_pointer(self, effect: ReadPointer) -> tuple[Effect, ...]:
        """Find out what became of a commit."""
        machines = self._the_machines()
        found = self.store.pointer()
        if found.term > machines.epochs.term:
            raise NotLeader(f"{self._engine.path}: term {found.term >> _TERM_BITS} owns the pipeline")
        committing = machines.epochs.committing
        if committing is not None and found.epoch == committing.pointer.epoch:
            self._pointer = found
            self._is_committed()
            return machines.epochs.committed(effect.checkpoint, now_ms())
        raise Conflict("the outcome of a checkpoint was not known; everything since the last one is done again")

    def _is_committed(self) -> None:
        machines = self._the_machines()
        for epoch in [each for each in machines.cuts if each < self._pointer.epoch]:
            del machines.cuts[epoch]
        self._failures, self.failure = 0, None
        self._changed.notify_all()


StartWorker = Callable[[Pipeline, Path, Cut | None], Worker]
"""Starts a worker that begins behind a cut, with a directory to itself."""


def _said(cut: Cut) -> dict[str, Any]:
    """A cut as the worker is told of it."""
    return {"cut": json.loads(encode_cut(cut))}
