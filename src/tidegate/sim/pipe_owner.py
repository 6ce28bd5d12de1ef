"""`PipeOwner`: the owner of the pipeline under the scheduler: the real clock, alignment and epochs, and a shell that
performs one effect at a time, so that it can die between any two."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.barrier.alignment import Alignment, AlignmentEffect, AskTicks, RecordCut
from tidegate.barrier.clock import BarrierClock
from tidegate.barrier.collection import Epochs
from tidegate.barrier.cut import Cut, decode_cut, encode_cut, encode_pointer
from tidegate.barrier.status import status
from tidegate.barrier.work import (
    Begin,
    Commit,
    CommitOutcome,
    Discard,
    Effect,
    HandOut,
    ReadPointer,
    Refuse,
    StepDown,
)
from tidegate.errors import Fenced, NotLeader, OutcomeUnknown, Retryable, StoreUnavailable
from tidegate.log.message import Term
from tidegate.sim.disk import SimFiles
from tidegate.sim.network import Ask
from tidegate.sim.pipe_files import (
    DATA_DIR,
    MANIFESTS,
    NO_MANIFEST,
    POINTER,
    Manifest,
    read_manifest,
    read_pointer,
    write_whole,
)
from tidegate.sim.pipe_keeping import Layout, collect_garbage, compact, next_manifest
from tidegate.sim.pipe_log import DATA, SYSTEM

if TYPE_CHECKING:
    from tidegate.sim.pipe_world import PipeWorld


class PipeOwner:
    """One life of one owner."""

    def __init__(self, world: PipeWorld, number: int) -> None:
        self.name = f"owner#{number}"
        self.paused_until = 0
        self.zombie = False
        self.has_ended = False
        self.is_serving = False
        self.term = Term(0)
        self.world = world
        self.store = world.open_store()
        self.files = SimFiles(world.disk, lambda what, path, *, done: world._disk_hook(self, what, path, done))
        self.manifest: Manifest = NO_MANIFEST
        """Of the last checkpoint."""
        self.layout: Layout | None = None
        """A compaction that waits for a checkpoint to ride along with."""
        self.background: Iterator[str] | None = None
        self._version = 0
        """Of the pointer, as last read or written in this term."""
        self._next_manifest: Manifest | None = None
        """Written and durable, for the commit under way."""
        self._opening: Iterator[str] = self._open()
        self._todo: deque[Effect | AlignmentEffect] = deque()
        self._asked: dict[str, int] = {}
        self._flushes: list[tuple[int, int]] = []
        """Ask, and what was acknowledged before."""
        self._waiting: list[tuple[int, int]] = []
        """Epoch, and what was acknowledged before."""

    @property
    def now_ms(self) -> int:
        return int(self.world.clock.monotonic() * 1000)

    # Opening

    def _open(self) -> Iterator[str]:
        world = self.world
        self.term = Term(world.fresh_term(self.store))
        yield "takes a term"
        while True:
            pointer, version = read_pointer(self.store)
            yield "reads the pointer"
            claimed = pointer.claimed_by(self.term)
            try:
                written = self.store.compare_and_set(POINTER, encode_pointer(claimed), expected=version)
            except OutcomeUnknown:
                yield "does not know whether it has claimed"
                continue
            if written is not None:
                break
            yield "is too late to claim"
        self._version = written
        yield "claims"
        world.log.fence(self.term)
        yield "fences"
        cuts = [cut for cut in map(decode_cut, world.log.cuts) if cut.epoch >= claimed.epoch]
        self.manifest = read_manifest(self.files, claimed.manifest)
        self.epochs = Epochs(
            self.term, claimed, cuts, channels=DATA, now_ms=self.now_ms,
            ahead_max=world.ahead_max, span_epochs_max=world.span_epochs_max,
        )  # fmt: skip
        self.alignment = Alignment(self.epochs.newest)
        since = 0
        for cut in cuts:
            since = 0 if cut.is_checkpoint else since + 1
        self.clock = BarrierClock(world.barrier_settings, self.now_ms, uncheckpointed=since)
        self.is_serving = True

    # What it hears

    def take(self, ask: Ask) -> None:
        if not self.is_serving or self.has_ended:
            return
        term = ask.arguments["term"]
        if ask.what == "register":
            self._add(self.epochs.register(ask.client, term, self.now_ms, redo=ask.arguments["redo"]))
        elif ask.what == "next":
            self._add(self.epochs.work_of(ask.client, term, ask.arguments["generation"]))
        elif ask.what == "report":
            report = ask.arguments["report"]
            answer = self.epochs.report(report, self.now_ms)
            self.world.note(f"report: {answer.verdict}")
            self._send(ask.client, term, "answer", answer=answer, files=report.files)
            self._add(answer.effects)

    def _add(self, effects: Iterable[Effect | AlignmentEffect]) -> None:
        self._todo.extend(effects)

    def _send(self, worker: str, term: Term, what: str, **arguments: Any) -> None:
        to = self.world.worker_name(worker, term)
        if to is not None:
            self.world.network.send(self.name, to, Ask(self.name, 0, what, {"term": term, **arguments}))

    # What it does

    def step(self) -> str:
        try:
            return self._step()
        except OSError as error:
            return f"fails: {type(error).__name__}"
        except (StoreUnavailable, OutcomeUnknown) as error:
            if not self.is_serving:
                self._opening = self._open()
            return f"fails: {type(error).__name__}"
        except (NotLeader, Fenced) as error:
            self.has_ended = True
            return f"ends: {type(error).__name__}"

    def _step(self) -> str:
        rng = self.world.rng
        if not self.is_serving:
            return next(self._opening, "serves")
        draw = rng.random()
        if self._todo and draw < 0.6:
            return self._perform(self._todo[0])
        if draw < 0.75:
            return self._tick()
        if draw < 0.85:
            return self._look_after_workers()
        if draw < 0.9 or not self._has_work_in_background():
            return self._poll()
        return self._work_in_background()

    def _poll(self) -> str:
        world = self.world
        epoch, timestamp = self.alignment.newest
        barrier = self.clock.poll(
            self.now_ms,
            in_flight=len(self.alignment.pending) + self.epochs.uncommitted,
            is_dirty=world.log.newest_write > timestamp,
        )
        if barrier is None:
            status(self.clock, self.alignment, self.epochs, self.now_ms)
            return "has no barrier to take"
        at = world.log.next_timestamp(world.clock.wall_ms())
        self._add(
            self.alignment.begin(at, (*DATA, SYSTEM), is_checkpoint=barrier.is_checkpoint, now_ms=self.now_ms)
        )  # fmt: skip
        epoch, _ = self.alignment.newest
        self._waiting += [(epoch, needed) for ask, needed in self._flushes if ask <= barrier.answers]
        self._flushes = [each for each in self._flushes if each[0] > barrier.answers]
        return "takes a barrier that was asked for" if barrier.reasons else "takes a barrier"

    def flush(self, needed: int) -> None:
        """Somebody asks for a checkpoint, and waits for it."""
        try:
            self._flushes.append((self.clock.ask(self.now_ms, "flush"), needed))
        except Retryable:
            self.world.note("a flush is told that the pipeline is paused")

    def catalog_changed(self) -> None:
        self.clock.ask(self.now_ms, "DDL", waits=False)

    def pause_or_resume(self) -> None:
        if self.clock.pause(self.now_ms):
            self.epochs.pause()
            self.world.note("the pipeline is paused")
        else:
            self.resume()

    def resume(self) -> None:
        if self.clock.resume(self.now_ms):
            self._add(self.epochs.resume(self.now_ms))
            self.world.note("the pipeline goes on")

    def _tick(self) -> str:
        """One channel ticks, asked or not."""
        log = self.world.log
        name = self.world.rng.choice(sorted(self._asked) or (*DATA, SYSTEM))
        place = log.channels[name].tick(log.last)
        if name == SYSTEM:
            for at, version in log.catalog:
                if at <= place.tick:
                    self.alignment.catalog_changed(version, at)
        if place.tick >= self._asked.get(name, 0):
            self._asked.pop(name, None)
        self._add(self.alignment.ticked(name, place.tick, place.position))
        return f"ticks {name}"

    def _look_after_workers(self) -> str:
        world, rng = self.world, self.world.rng
        for name, worker in sorted(self.epochs.workers.items()):
            if not worker.is_alive:
                if world.faulty and rng.random() < 0.02:
                    self._add(self.epochs.remove(name, self.now_ms))
                    return f"removes {name}"
                continue
            is_there = world.worker_name(name, worker.term) is not None
            if (not is_there and rng.random() < 0.5) or (world.faulty and rng.random() < 0.01):
                self._add(self.epochs.lost(name, worker.term, self.now_ms))
                return f"loses {name}" if not is_there else f"gives up {name}, which is alive"
        return "looks after its workers"

    def _has_work_in_background(self) -> bool:
        return self.background is not None or self.world.rng.random() < 0.5

    def _work_in_background(self) -> str:
        if self.background is None:
            if self.layout is not None:
                commit = self.epochs.rewrite(self.now_ms)
                if commit is None:
                    return "lets a compaction wait"
                self._add((commit,))
                return "commits a compaction alone"
            kinds: tuple[Callable[[PipeOwner], Iterator[str]], ...] = (compact, collect_garbage)
            self.background = self.world.rng.choice(kinds)(self)
        try:
            return next(self.background)
        except StopIteration:
            self.background = None
            return "has finished in the background"
        except (OSError, StoreUnavailable, OutcomeUnknown):
            self.background = None
            raise

    # Effects

    def _perform(self, effect: Effect | AlignmentEffect) -> str:
        match effect:
            case AskTicks():
                for name in effect.channels:
                    self._asked[name] = max(self._asked.get(name, 0), effect.timestamp)
            case RecordCut():
                self._record(effect.cut)
            case Begin():
                self._send(effect.worker, effect.term, "begin", begin=effect)
            case HandOut():
                self._send(effect.worker, effect.term, "hand out", out=effect)
            case Refuse():
                self._send(effect.worker, effect.term, "refuse", verdict=effect.verdict)
            case Discard():
                for name in effect.files:
                    if f"{DATA_DIR}/{name}" in self.world.disk.names:
                        self.files.remove(f"{DATA_DIR}/{name}")
            case Commit():
                return self._commit(effect)
            case ReadPointer():
                pointer, self._version = read_pointer(self.store)
                self._todo.popleft()
                self._after_commit(lambda: self.epochs.pointer_is(pointer, self.now_ms))
                return "reads the pointer again"
            case StepDown():
                self.has_ended = True
        self._todo.popleft()
        return f"performs {type(effect).__name__}"

    def _record(self, cut: Cut) -> None:
        data = encode_cut(cut)
        if data not in self.world.log.cuts[-4:]:
            # An append of unknown outcome is looked for before it is repeated.
            self.world.append_cut(self.term, data)
        self._add(self.epochs.record(cut, self.now_ms))

    def _commit(self, commit: Commit) -> str:
        checkpoint = commit.pointer.checkpoint
        if self._next_manifest is None:
            manifest = next_manifest(self.manifest, commit, self.layout)
            path = f"{MANIFESTS}/{manifest.name}"
            if path in self.world.disk.names:
                self.files.remove(path)  # Written in part; no pointer has ever named it.
            write_whole(self.files, MANIFESTS, manifest.name, manifest.as_dict())
            self._next_manifest = manifest
            return "writes a manifest"
        self._todo.popleft()
        outcome = CommitOutcome.REFUSED
        try:
            written = self.swap_pointer(commit)
            if written is not None:
                self._version = written
                self._after_commit(lambda: self.epochs.committed(checkpoint, self.now_ms))
                return f"commits checkpoint {checkpoint}"
        except StoreUnavailable:
            outcome = CommitOutcome.ABSENT
        except OutcomeUnknown:
            outcome = CommitOutcome.UNKNOWN
        self._add(self.epochs.commit_failed(checkpoint, outcome))
        return f"cannot commit: {outcome}"

    def swap_pointer(self, commit: Commit) -> int | None:
        return self.store.compare_and_set(POINTER, encode_pointer(commit.pointer), expected=self._version)

    def _after_commit(self, tell: Callable[[], tuple[Effect, ...]]) -> None:
        """Tell the machine, and if its pointer has moved, go on from the new manifest."""
        before = self.epochs.pointer
        effects = tell()
        pointer = self.epochs.pointer
        if pointer != before and self._next_manifest is not None:
            self.manifest = self._next_manifest
            if self.layout is not None and self.layout.name in self.manifest.all_files:
                self.layout = None
            self._next_manifest = None
            for epoch, needed in self._waiting:
                if epoch <= pointer.epoch:
                    self.world.auditor.flushed(needed, pointer)
            self._waiting = [each for each in self._waiting if each[0] > pointer.epoch]
        self._add(effects)
