"""Known bugs of barriers and checkpoints, planted one at a time, to prove that the simulator can fail. See `bugs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tidegate.barrier.alignment import Aligning, Alignment
from tidegate.barrier.collection import Epochs, Worker
from tidegate.barrier.cut import Epoch, Place, Pointer, Span, encode_pointer
from tidegate.barrier.work import Answer, Commit, Effect, Report, Verdict
from tidegate.log.message import Term
from tidegate.sim import pipe_files, pipe_keeping, pipe_world
from tidegate.sim.bugs import Bug, replaced
from tidegate.sim.disk import SimFiles
from tidegate.sim.pipe_files import DATA_DIR, POINTER, DataName, Manifest, read_manifest, read_pointer
from tidegate.sim.pipe_owner import PipeOwner
from tidegate.sim.pipe_worker import PipeWorker

PIPE_BUGS: dict[str, Callable[[], Any]] = {}


def _bug(plant: Bug) -> Bug:
    PIPE_BUGS[plant.__name__.replace("_", "-")] = contextmanager(plant)
    return plant


def _any_reports(self: Epochs, worker: Worker, span: Span) -> list[Report]:  # noqa: ARG001
    """What `Epochs._gapless` returns, without its check."""
    return [report for report in worker.reports if report.span.last <= span.last]


@_bug
def commit_before_all_have_reported() -> Iterator[None]:
    """A checkpoint is committed when the first worker has reported it."""

    def some(self: Epochs, target: Epoch) -> bool:
        return any(report.span.last == target for worker in self.workers.values() for report in worker.reports)

    with replaced(Epochs, "_all_have_reported", some), replaced(Epochs, "_gapless", _any_reports):
        yield


@_bug
def report_of_an_old_term_is_accepted() -> Iterator[None]:
    """Nobody looks which life of a worker reports."""
    original = Epochs.report

    def report(self: Epochs, report: Report, now_ms: int) -> Answer:
        known = self.workers.get(report.worker)
        if known is not None:
            report = replace(report, term=known.term)
        return original(self, report, now_ms)

    with replaced(Epochs, "report", report):
        yield


@_bug
def files_visible_before_the_manifest() -> Iterator[None]:
    """A reader lists the directory instead of asking the manifest."""

    def listed(files: SimFiles, manifest: Manifest) -> dict[str, list[str]]:
        base = {name for names in manifest.files.values() for name in names}
        found = {channel: list(names) for channel, names in manifest.files.items()}
        for name in files.names(DATA_DIR):
            read = DataName.parse(name)
            if name not in base and read.last > manifest.epoch:
                found.setdefault(read.channel, []).append(name)
        return found

    with replaced(pipe_world, "visible_files", listed):
        yield


@_bug
def batch_is_applied_twice() -> Iterator[None]:
    """A batch that is run again after its report was taken is taken once more."""
    original = Epochs.report

    def report(self: Epochs, report: Report, now_ms: int) -> Answer:
        answer = original(self, report, now_ms)
        known = self.workers.get(report.worker)
        if answer.verdict is Verdict.REPEATED and answer.discard and known is not None:
            known.reports.append(report)
            return replace(answer, discard=())
        return answer

    with replaced(Epochs, "report", report), replaced(Epochs, "_gapless", _any_reports):
        yield


@_bug
def commit_of_unknown_outcome_is_made_again() -> Iterator[None]:
    """When nobody knows whether a commit was made, it is made under the next number."""
    original = Epochs.pointer_is

    def pointer_is(self: Epochs, pointer: Pointer, now_ms: int) -> tuple[Effect, ...]:
        commit = self.committing
        if commit is None or commit.span is None or pointer != commit.pointer:
            return original(self, pointer, now_ms)
        effects = self.committed(pointer.checkpoint, now_ms)
        if self.committing is not None:
            return effects
        self.committing = Commit(replace(pointer.next(pointer.epoch, pointer.timestamp)), None, None, commit.reports)
        return (*effects, self.committing)

    with replaced(Epochs, "pointer_is", pointer_is):
        yield


@_bug
def garbage_collection_of_a_pinned_file() -> Iterator[None]:
    """Nobody asks for pins."""

    def nothing(store: Any) -> set[str]:  # noqa: ARG001
        return set()

    with replaced(pipe_keeping, "pinned", nothing):
        yield


@_bug
def garbage_collection_of_staged_files() -> Iterator[None]:
    """What no manifest names is removed, though it may be committed next."""

    def never(self: Epochs, term: Term, last: Epoch) -> bool:  # noqa: ARG001
        return False

    with replaced(Epochs, "may_become_visible", never):
        yield


@_bug
def cut_reads_on_from_the_tick_that_passed_it() -> Iterator[None]:
    """A cut takes the place of the tick that let it pass: what lies between the two is skipped."""

    def newest(self: Alignment, barrier: Aligning) -> dict[str, Place]:
        return {
            name: Place(self._places[name][-1].position, min(self._places[name][-1].tick, barrier.timestamp))
            for name in barrier.channels
            if name in self._places
        }

    with replaced(Alignment, "_places_at", newest):
        yield


@_bug
def pointer_is_replaced_without_comparing() -> Iterator[None]:
    """An owner that was replaced writes the pointer all the same."""

    def swap(self: PipeOwner, commit: Commit) -> int | None:
        _, version = read_pointer(self.store)
        return self.store.compare_and_set(POINTER, encode_pointer(commit.pointer), expected=version)

    with replaced(PipeOwner, "swap_pointer", swap):
        yield


@_bug
def report_before_files_are_durable() -> Iterator[None]:
    """Files are written, and not synced."""

    def nothing(files: SimFiles, directory: str, file: Any) -> None:
        """Forgotten."""

    with replaced(pipe_files, "make_durable", nothing):
        yield


@_bug
def next_epoch_does_not_see_what_is_staged() -> Iterator[None]:
    """A worker goes on from the last checkpoint, not from what it has staged itself."""

    def committed(self: PipeWorker, channel: str) -> int:
        pointer, _ = read_pointer(self._store)
        return read_manifest(self._files, pointer.manifest).counts.get(channel, 0)

    with replaced(PipeWorker, "count_before", committed):
        yield


@_bug
def barrier_takes_the_catalog_as_it_is() -> Iterator[None]:
    """A cut names the newest catalog, not that of its Timestamp."""

    def newest(self: Alignment, timestamp: Any) -> int:  # noqa: ARG001
        return self._catalog[-1][1] if self._catalog else 0

    with replaced(Alignment, "_catalog_at", newest):
        yield
