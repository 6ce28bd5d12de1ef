"""`Epochs`: hands recorded epochs to the workers, collects their reports, and commits checkpoints (seed 001).

    record ──▶ HandOut to every worker ──▶ report from every worker ──▶ Commit ──▶ committed

Every channel belongs to one worker's share. A checkpoint commits when every worker has reported its share of the span,
strictly in order, one commit at a time; a report that is late, repeated, foreign or of an old term changes nothing.

*Spans.* Workers take the same spans: all up to the newest checkpoint cut, when one of them has nothing left to do, but
no more than a number of epochs and about a number of bytes; one epoch always passes.
At most `ahead_max` spans with a checkpoint wait for their commit, so who is slow gets larger spans, and everybody else
with him. A worker may be bound to a span by its own offset log (`register(redo=)`); then the others stop there too.

*Death.* `lost` ends a term. What that worker had reported and is not being committed is discarded, and done again by
its next term; what others reported stays, because shares have not changed. When shares change (a worker comes or is
removed, channels change), all that is not being committed is discarded and everybody begins behind it.

*Owners.* An owner claims the pointer with its term before anything else, so that no older one can replace it. A commit
that was begun is carried through: it is repeated until the pointer shows it, or a newer owner.

Terms come from one counter: those of workers are above that of their owner. Pure: times come in as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tidegate.barrier.catching_up import CatchingUp
from tidegate.barrier.cut import BEGINNING, Cut, Epoch, Pointer, Span
from tidegate.barrier.work import (
    Answer,
    Begin,
    Commit,
    CommitOutcome,
    Discard,
    Effect,
    HandOut,
    ReadPointer,
    Refuse,
    Report,
    StepDown,
    Verdict,
    share_out,
)
from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.log.message import Term


@dataclass(slots=True)
class Worker:
    """One worker as its coordinator sees it. Others read it; only `Epochs` changes it.

    Invariant: `reports` follow one another without a gap, and end at `end`.
    """

    name: str
    term: Term
    since_ms: int
    """When it registered, or was lost."""
    is_alive: bool = True
    channels: tuple[str, ...] = ()
    end: Epoch = BEGINNING
    """Up to here it has reported, or all was committed."""
    reports: list[Report] = field(default_factory=list)
    """Not committed yet."""
    handed: Span | None = None
    handed_ms: int = 0


class Epochs:
    """The epochs of one owner, from its pointer on.

    Invariants: checkpoints rise by one and cover the epochs without a gap; none is committed before every worker has
    reported every epoch of it; the shares are a partition of the channels.
    """

    def __init__(
        self,
        term: Term,
        pointer: Pointer,
        cuts: Iterable[Cut],
        *,
        channels: Iterable[str],
        now_ms: int = 0,
        ahead_max: int = 2,
        span_epochs_max: int = 600,
        span_bytes_max: int = 512 << 20,
    ) -> None:
        """`pointer` was claimed by `term` already; `cuts` are the recorded ones from the pointer's epoch on.

        Raises: `InvariantBroken` when the pointer is another owner's, or a cut is missing.
        """
        if pointer.term != term:
            raise InvariantBroken(f"checkpoint {pointer.checkpoint} is claimed by term {pointer.term}, not by {term}")
        if min(ahead_max, span_epochs_max, span_bytes_max) < 1:
            raise InvalidArgument(
                f"`ahead_max`, `span_epochs_max` and `span_bytes_max` are at least 1: {ahead_max}, {span_epochs_max},"
                f" {span_bytes_max}"
            )
        self.term = term
        self.pointer = pointer
        """The last checkpoint: all that readers see."""
        self.committing: Commit | None = None
        self.committing_ms = 0
        self.committed_ms: int | None = None
        self.generation = 0
        """Rises whenever shares are given out anew."""
        self.fenced_by: Term | None = None
        self.workers: dict[str, Worker] = {}
        self.catching_up = CatchingUp()
        self._channels = tuple(sorted(set(channels)))
        self._ahead_max = ahead_max
        self._span_epochs_max = span_epochs_max
        self._span_bytes_max = span_bytes_max
        self._cuts: dict[Epoch, Cut] = {}
        self._recorded_ms: dict[Epoch, int] = {}
        self._targets: list[Epoch] = []
        """Where spans end that are not committed: sorted."""
        self._last_files: frozenset[str] = frozenset()
        self._last_span: Span | None = None
        self._must_share_out = False
        self._is_paused = False
        self._recover(cuts, now_ms)

    def _recover(self, cuts: Iterable[Cut], now_ms: int) -> None:
        at = self.pointer.epoch
        for cut in sorted(cuts, key=lambda cut: cut.epoch):
            if cut.epoch == at:
                if cut.timestamp != self.pointer.timestamp:
                    raise InvariantBroken(f"checkpoint {self.pointer.checkpoint} is not at the cut of its epoch {at}")
                self._cuts[at] = cut
            elif cut.epoch > at:
                self.record(cut, now_ms)
        if at and at not in self._cuts:
            raise InvariantBroken(f"the cut of epoch {at}, of checkpoint {self.pointer.checkpoint}, is missing")

    # -- what is seen -----------------------------------------------------------------------------------------

    @property
    def newest(self) -> Cut | None:
        """The newest recorded cut; the pointer's when there is none behind it."""
        return self._cuts[max(self._cuts)] if self._cuts else None

    @property
    def uncommitted(self) -> int:
        """How many recorded epochs no checkpoint covers."""
        return max(self._cuts, default=self.pointer.epoch) - self.pointer.epoch

    @property
    def base(self) -> Epoch:
        """Up to here all is committed or being committed; nothing before it is ever done again by this owner."""
        committing = self.committing
        return committing.pointer.epoch if committing is not None else self.pointer.epoch

    @property
    def waiting(self) -> tuple[Epoch, ...]:
        """Recorded epochs that no checkpoint covers, in order."""
        return tuple(sorted(epoch for epoch in self._cuts if epoch > self.pointer.epoch))

    def recorded_ms(self, epoch: Epoch) -> int:
        """When the cut of a waiting epoch was recorded, or found when this owner began."""
        return self._recorded_ms[epoch]

    def may_become_visible(self, term: Term, last: Epoch) -> bool:
        """Whether a file that no manifest names may still come to be named by one: garbage collection spares it.

        `term`: of the worker that wrote it; `last`: the last epoch it holds. True even where the worker has a newer
        life here: this owner may have been replaced without knowing, and the older life may work for the new one.
        """
        return term > self.term and last > self.pointer.epoch

    # -- epochs -----------------------------------------------------------------------------------------------

    def record(self, cut: Cut, now_ms: int) -> tuple[Effect, ...]:
        """A cut is durable in the log. The same one again changes nothing.

        Raises: `InvariantBroken` when it does not begin where the newest ends.
        """
        known = self._cuts.get(cut.epoch)
        if known == cut or cut.epoch < self.pointer.epoch:
            return ()
        if known is not None:
            raise InvariantBroken(f"epoch {cut.epoch} is cut at {known.timestamp}, and again at {cut.timestamp}")
        newest = self.newest
        if newest is not None or not self.pointer.epoch:
            cut.require_after(newest)
        self._cuts[cut.epoch] = cut
        self._recorded_ms[cut.epoch] = now_ms
        return self._go_on(now_ms)

    def pause(self) -> bool:
        """Hand nothing out; what is under way is finished and committed. False when it was paused already."""
        was, self._is_paused = self._is_paused, True
        return not was

    def resume(self, now_ms: int) -> tuple[Effect, ...]:
        """Hand out again: all that was recorded meanwhile, in few spans."""
        self._is_paused = False
        return self._go_on(now_ms)

    # -- workers ----------------------------------------------------------------------------------------------

    def register(self, name: str, term: Term, now_ms: int, *, redo: Span | None = None) -> tuple[Effect, ...]:
        """A worker is there with a fresh term, and knows nothing of what earlier terms staged.

        `redo`: the batch that its offset log says it must run next. A term that is not fresh is refused.
        """
        known = self.workers.get(name)
        if self.fenced_by is not None or term <= self.term or (known is not None and self._is_old(known, term)):
            return self._refuse(name, term)
        if known is None:
            self.workers[name] = Worker(name, term, now_ms)
            return self._share_out(now_ms, name, redo)
        if term == known.term:
            return self._repeat(known, redo)
        discard = self._forget(known, f"worker {name!r} began anew")
        known.term, known.since_ms, known.is_alive = term, now_ms, True
        if self._must_share_out:
            return discard  # it is told to begin when that is done
        return (*discard, *self._begin(known, redo), *self._go_on(now_ms))

    def lost(self, name: str, term: Term, now_ms: int) -> tuple[Effect, ...]:
        """A worker is dead. Its share waits for its next term, or for `remove`. News of an older term is no news."""
        known = self.workers.get(name)
        if known is None or known.term != term or not known.is_alive or self.fenced_by is not None:
            return ()
        known.is_alive, known.since_ms = False, now_ms
        return self._forget(known, f"worker {name!r} was lost")

    def remove(self, name: str, now_ms: int) -> tuple[Effect, ...]:
        """A worker will not come back: the others take its share over."""
        if self.workers.get(name) is None or self.fenced_by is not None:
            return ()
        known = self.workers[name]
        discard = self._forget(known, f"worker {name!r} was removed")
        del self.workers[name]
        return (*discard, *self._share_out(now_ms))

    def set_channels(self, channels: Iterable[str], now_ms: int) -> tuple[Effect, ...]:
        """Other channels than before are to be folded."""
        names = tuple(sorted(set(channels)))
        if names == self._channels or self.fenced_by is not None:
            return ()
        self._channels = names
        return self._share_out(now_ms)

    def work_of(self, name: str, term: Term, generation: int) -> tuple[Effect, ...]:
        """What a worker is to do now, in case it was not told; empty when it is to wait.

        `generation`: of the shares it knows. If there are newer ones, it is told where to begin with them.
        """
        known = self.workers.get(name)
        if self.fenced_by is not None or known is None or term > known.term or self._is_old(known, term):
            return self._refuse(name, term)
        if generation != self.generation and not self._must_share_out:
            return self._repeat(known, None)
        return (self._hand_out(known, known.handed),) if known.handed is not None else ()

    def report(self, report: Report, now_ms: int) -> Answer:
        """Take a worker's report; see `Verdict`."""
        known = self.workers.get(report.worker)
        span = report.span
        if self.fenced_by is not None or known is None or report.term > known.term or self._is_old(known, report.term):
            return Answer(*self._why_not(report.worker, report.term))
        if span.last <= self.pointer.epoch:
            is_last = self._last_span is not None and self._last_span.first <= span.first
            left = tuple(name for name in report.files if name not in self._last_files) if is_last else ()
            return Answer(Verdict.COMMITTED, f"epoch {self.pointer.epoch} is committed", discard=left)
        if report.generation != self.generation:
            return Answer(Verdict.OLD_SHARES, f"shares are at generation {self.generation}", discard=report.files)
        held = {name for each in known.reports for name in each.files}
        left = tuple(name for name in report.files if name not in held)
        if any(each.span == span for each in known.reports):
            return Answer(Verdict.REPEATED, f"{span} was reported", discard=left)
        if span != known.handed:
            doing = known.handed or "nothing"
            return Answer(Verdict.NOT_HANDED_OUT, f"{report.worker!r} is to do {doing}, not {span}", discard=left)
        known.reports.append(report)
        known.end = span.last
        known.handed = None
        return Answer(Verdict.TAKEN, f"{span} of {report.worker!r}", effects=self._go_on(now_ms))

    def _is_old(self, known: Worker, term: Term) -> bool:
        """Whether a newer life of the worker is there, or this one was given up."""
        return term < known.term or (term == known.term and not known.is_alive)

    def _why_not(self, name: str, term: Term) -> tuple[Verdict, str]:
        """Why a worker has no place here."""
        known = self.workers.get(name)
        if self.fenced_by is not None:
            return Verdict.FENCED, f"term {self.fenced_by} owns the pipeline, not {self.term}"
        if known is not None and self._is_old(known, term):
            how = "is there" if known.is_alive else "was given up"
            return Verdict.OLD_TERM, f"worker {name!r}: term {known.term} {how}, and {term} is not newer"
        return Verdict.UNKNOWN_WORKER, f"worker {name!r} is not registered with term {term} here, in term {self.term}"

    def _refuse(self, name: str, term: Term) -> tuple[Effect, ...]:
        return (Refuse(name, term, *self._why_not(name, term)),)

    # -- commits ----------------------------------------------------------------------------------------------

    def rewrite(self, now_ms: int) -> Commit | None:
        """A checkpoint of the same epoch, to arrange its files anew. None when a commit is under way: join that one."""
        if self.committing is not None or self.fenced_by is not None or not self.pointer.checkpoint:
            return None
        self.committing = Commit(self.pointer.next(self.pointer.epoch, self.pointer.timestamp), None, None)
        self.committing_ms = now_ms
        return self.committing

    def committed(self, checkpoint: int, now_ms: int) -> tuple[Effect, ...]:
        """The pointer names this checkpoint. Told again, it changes nothing.

        Raises: `InvariantBroken` for one that was not being committed.
        """
        commit = self.committing
        if checkpoint <= self.pointer.checkpoint:
            return ()
        if commit is None or commit.pointer.checkpoint != checkpoint:
            raise InvariantBroken(f"checkpoint {checkpoint} is committed, and nobody asked for it")
        self.pointer = commit.pointer
        self.committing = None
        self.committed_ms = now_ms
        if commit.span is not None:
            self._last_files, self._last_span = frozenset(commit.files), commit.span
        last = self.pointer.epoch
        for worker in self.workers.values():
            worker.reports = [report for report in worker.reports if report.span.last > last]
        self._targets = [target for target in self._targets if target > last]
        for epoch in [epoch for epoch in self._cuts if epoch < last]:
            del self._cuts[epoch]
            self._recorded_ms.pop(epoch, None)
        return self._go_on(now_ms)

    def commit_failed(self, checkpoint: int, outcome: CommitOutcome) -> tuple[Effect, ...]:
        """A commit did not succeed for certain. What to do about it is returned; when, is up to the shell."""
        commit = self.committing
        if commit is None or commit.pointer.checkpoint != checkpoint or self.fenced_by is not None:
            return ()
        return (commit,) if outcome is CommitOutcome.ABSENT else (ReadPointer(checkpoint),)

    def pointer_is(self, pointer: Pointer, now_ms: int) -> tuple[Effect, ...]:
        """The pointer, read again after a commit of unknown outcome.

        Raises: `InvariantBroken` when it names something that nobody can have written.
        """
        if pointer.term > self.term:
            self.fenced_by = pointer.term
            return (StepDown(pointer.term),)
        commit = self.committing
        if commit is not None and pointer == commit.pointer:
            return self.committed(pointer.checkpoint, now_ms)
        if pointer != self.pointer:
            raise InvariantBroken(
                f"the pointer names checkpoint {pointer.checkpoint} of term {pointer.term}; term {self.term} committed"
                f" {self.pointer.checkpoint} last"
            )
        return (commit,) if commit is not None else ()

    # -- how it goes on ---------------------------------------------------------------------------------------

    def _go_on(self, now_ms: int) -> tuple[Effect, ...]:
        """All that has become possible."""
        if self.fenced_by is not None:
            return ()
        shared = self._share_out(now_ms) if self._must_share_out and self.committing is None else ()
        return (*shared, *self._try_commit(now_ms), *self._hand_outs(now_ms))

    def _hand_outs(self, now_ms: int) -> tuple[Effect, ...]:
        works = not self._is_paused and any(each.is_alive for each in self.workers.values())
        self.catching_up.see((self._cuts[epoch] for epoch in self.waiting), is_working=works, now_ms=now_ms)
        if self._is_paused or self._must_share_out:
            return ()
        out = []
        for name in sorted(self.workers):
            worker = self.workers[name]
            if not worker.is_alive or worker.handed is not None:
                continue
            target = next((target for target in self._targets if target > worker.end), None) or self._new_target()
            if target is None:
                continue
            worker.handed, worker.handed_ms = Span(Epoch(worker.end + 1), target), now_ms
            out.append(self._hand_out(worker, worker.handed))
        return tuple(out)

    def _new_target(self) -> Epoch | None:
        """The end of a new span: the newest checkpoint cut within reach, or else the newest cut."""
        begin = self._targets[-1] if self._targets else self.base
        waiting = sum(self._has_checkpoint(a, b) for a, b in zip([self.base, *self._targets], self._targets))
        if waiting >= self._ahead_max:
            return None
        reach = self._reach(begin)
        found = [epoch for epoch in reach if self._cuts[epoch].is_checkpoint] or reach
        if not found:
            return None
        self._targets.append(found[-1])
        return found[-1]

    def _reach(self, begin: Epoch) -> list[Epoch]:
        """The epochs behind `begin` that one span may take: at least one, if there is any."""
        found: list[Epoch] = []
        nbytes = 0
        for epoch in range(begin + 1, min(max(self._cuts, default=0), begin + self._span_epochs_max) + 1):
            nbytes += self._cuts[Epoch(epoch)].nbytes
            if found and nbytes > self._span_bytes_max:
                break
            found.append(Epoch(epoch))
        return found

    def _try_commit(self, now_ms: int) -> tuple[Effect, ...]:
        if self.committing is not None or not self.workers or self._must_share_out:
            return ()
        base = self.base
        for target in reversed(self._targets):
            if self._all_have_reported(target) and self._has_checkpoint(base, target):
                break
        else:
            return ()
        reports = tuple(
            report
            for _, worker in sorted(self.workers.items())
            for report in self._gapless(worker, Span(Epoch(base + 1), target))
        )
        cut = self._cuts[target]
        span = Span(Epoch(base + 1), target)
        self.committing = Commit(self.pointer.next(target, cut.timestamp), span, cut, reports)
        self.committing_ms = now_ms
        return (self.committing,)

    def _all_have_reported(self, target: Epoch) -> bool:
        """Whether every worker has finished all up to here, and nothing that reaches beyond is mixed with it."""
        return all(any(report.span.last == target for report in worker.reports) for worker in self.workers.values())

    def _gapless(self, worker: Worker, span: Span) -> list[Report]:
        """What the worker reported of a span."""
        reports = [report for report in worker.reports if report.span.last <= span.last]
        ends = [Epoch(span.first - 1), *(report.span.last for report in reports)]
        if [report.span.first for report in reports] != [end + 1 for end in ends[:-1]] or ends[-1] != span.last:
            told = ", ".join(str(report.span) for report in reports) or "nothing"
            raise InvariantBroken(f"{span} would be committed, and worker {worker.name!r} has reported {told}")
        return reports

    def _has_checkpoint(self, after: Epoch, last: Epoch) -> bool:
        return any(self._cuts[Epoch(epoch)].is_checkpoint for epoch in range(after + 1, last + 1))

    def _share_out(self, now_ms: int, joins: str = "", redo: Span | None = None) -> tuple[Effect, ...]:
        """Give the channels out anew. While a commit is under way it waits, and nothing new is handed out."""
        self._must_share_out = self.committing is not None
        if self._must_share_out or not self.workers:
            return ()
        self.generation += 1
        self._targets.clear()
        shares = share_out(self._channels, list(self.workers))
        effects: list[Effect] = []
        for name, worker in sorted(self.workers.items()):
            effects += self._forget(worker, "shares were given out anew")
            worker.channels = shares[name]
        for name, worker in sorted(self.workers.items()):
            if worker.is_alive:
                effects += self._begin(worker, redo if name == joins else None)
        return (*effects, *self._hand_outs(now_ms))

    def _forget(self, worker: Worker, why: str) -> tuple[Effect, ...]:
        """Drop what it reported and is not being committed; it goes on behind that."""
        base = self.base
        dropped = tuple(name for report in worker.reports if report.span.last > base for name in report.files)
        worker.reports = [report for report in worker.reports if report.span.last <= base]
        worker.end, worker.handed = base, None
        return (Discard(dropped, why),) if dropped else ()

    def _begin(self, worker: Worker, redo: Span | None) -> tuple[Effect, ...]:
        """Tell a worker where to begin; and let it run its own batch again, if that is what comes next for it."""
        begin = Begin(worker.name, worker.term, self.generation, worker.end, worker.channels, False)
        if redo is None or redo.first != worker.end + 1 or not worker.end < redo.last <= max(self._cuts, default=0):
            return (begin,)
        self._targets = sorted({*self._targets, redo.last})
        worker.handed, worker.handed_ms = redo, worker.since_ms
        return (replace(begin, redo=True), self._hand_out(worker, redo))

    def _repeat(self, worker: Worker, redo: Span | None) -> tuple[Effect, ...]:
        """A worker registers once more, because no answer has reached it. If it has reported, one has."""
        if worker.reports or self._must_share_out:
            return ()
        bound = redo is not None and redo == worker.handed
        return (Begin(worker.name, worker.term, self.generation, worker.end, worker.channels, bound),)

    def _hand_out(self, worker: Worker, span: Span) -> HandOut:
        after = self._cuts.get(Epoch(span.first - 1))
        return HandOut(worker.name, worker.term, self.generation, span, worker.channels, after, self._cuts[span.last])
