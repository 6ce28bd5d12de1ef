"""`PipeWorker`: a pipeline worker under the scheduler: folds spans of its channels into files, and reports them.

Like a Structured Streaming query it writes down which span comes next before it begins (the offset log), and after a
restart is bound to that span. Each row gets its rank within the channel, which needs the result of the span before,
committed or only staged (the shared buffer of seed 001).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.barrier.cut import Epoch, Span
from tidegate.barrier.work import Answer, Begin, HandOut, Report, Verdict
from tidegate.errors import OutcomeUnknown, StoreUnavailable
from tidegate.log.message import Term
from tidegate.sim.auditor import Violation
from tidegate.sim.disk import SimFiles
from tidegate.sim.network import Ask
from tidegate.sim.pipe_files import DATA_DIR, DataName, read_manifest, read_pointer, write_whole

if TYPE_CHECKING:
    from tidegate.sim.pipe_world import PipeWorld


class PipeWorker:
    """One life of one worker."""

    def __init__(self, world: PipeWorld, worker: str, number: int) -> None:
        self.name = f"{worker}#{number}"
        self.worker = worker
        self.paused_until = 0
        self.zombie = False
        self.has_ended = False
        self.term = Term(0)
        self._world = world
        self._store = world.open_store()
        self._files = SimFiles(world.disk, lambda what, path, *, done: world._disk_hook(self, what, path, done))
        self._attempts = 0
        self._begin: Begin | None = None
        self._has_state = False
        self._counts: dict[str, int] = {}
        """Rows per channel up to `_end`, staged ones included."""
        self._end = Epoch(0)
        self._work: HandOut | None = None
        self._written: dict[str, tuple[str, int]] = {}
        """Per channel the file, and the rows up to its end."""
        self._verdict: Answer | None = None
        self._owner: str | None = None
        self._offsets: list[Span | None] = [None]
        """The span that its offset log binds it to."""
        self._silence = 0

    def is_of(self, worker: str, term: Term) -> bool:
        return self.worker == worker and self.term == term

    # What it hears

    def take(self, ask: Ask) -> None:
        if self.has_ended or ask.arguments.get("term", self.term) != self.term:
            return
        match ask.what:
            case "begin" if self._is_news(begin := ask.arguments["begin"]):
                self._begin_at(begin, ask.client)
            case "hand out" if self._is_next(out := ask.arguments["out"]):
                self._work, self._written, self._verdict = out, {}, None
            case "answer" if self._work is not None and ask.arguments["files"] == self._names():
                self._verdict = ask.arguments["answer"]
            case "refuse" if ask.arguments["verdict"].must_stop:
                self.has_ended = True
            case "refuse" if self._begin is None or ask.client == self._owner:
                self._start_over("is not known to its owner")

    def _is_news(self, begin: Begin) -> bool:
        return self._begin is None or begin.generation > self._begin.generation

    def _is_next(self, out: HandOut) -> bool:
        begin = self._begin
        if begin is None or self._work is not None or not self._has_state:
            return False
        return out.generation == begin.generation and out.span.first == self._end + 1

    def _begin_at(self, begin: Begin, owner: str) -> None:
        self._begin, self._owner = begin, owner
        self._end = Epoch(begin.after)
        self._work, self._written, self._verdict = None, {}, None
        self._counts, self._has_state = {}, False
        if not begin.redo and self._plan(None):
            self._world.note("an offset log is thrown away")

    def _start_over(self, why: str) -> None:
        self._silence = 0
        self._world.note(f"{self.worker} {why}")
        self.term = Term(0)
        self._begin = self._work = self._verdict = None

    def _planned(self) -> Span | None:
        return self._offsets[0]

    def _plan(self, span: Span | None) -> bool:
        """Note durably which span comes next; whether that changes anything."""
        before, self._offsets[0] = self._offsets[0], span
        return before != span

    # What it does

    def step(self) -> str:
        try:
            return self._step()
        except OSError as error:
            return f"fails: {type(error).__name__}"
        except (StoreUnavailable, OutcomeUnknown) as error:
            return f"fails: {type(error).__name__}"

    def _step(self) -> str:
        if not self.term:
            # Only one life of a worker has its offset log, like a query its checkpoint directory.
            self._offsets = self._world.offsets.take(self.worker)
            self.term = Term(self._world.fresh_term(self._store))
            return "takes a term"
        if self._begin is not None and self._world.is_deserted(self._owner):
            self._start_over("has lost its owner")
        if self._begin is None:
            redo = self._planned()
            if not self._is_time():
                return "waits to begin"
            self._ask("register", redo=redo)
            return "registers" if redo is None else "registers to do a batch again"
        if not self._has_state:
            return self._load()
        if self._work is None:
            if self._is_time():
                self._ask("next", generation=self._begin.generation)
            return "waits"
        if self._verdict is not None:
            return self._finish(self._work, self._verdict)
        planned = self._planned()
        if planned is not None and planned != self._work.span:
            raise Violation(f"redo: {self.worker} is bound to {planned}, and is to do {self._work.span}")
        if planned is None:
            self._plan(self._work.span)
            return f"plans {self._work.span}"
        missing = [name for name in self._work.channels if name not in self._written]
        if missing:
            return self._fold(self._work, missing[0])
        if not self._is_time():
            return "waits for an answer"
        self._report(self._work)
        return f"reports {self._work.span}"

    def _is_time(self) -> bool:
        """Whether to ask, and to ask again, because a message may be lost."""
        self._silence += 1
        return self._silence % 8 == 1

    def _load(self) -> str:
        """The state to go on from: that of the checkpoint it begins behind, once it is there."""
        begin = self._begin
        pointer, _ = read_pointer(self._store)
        if begin is None or pointer.epoch < begin.after:
            return "waits for a checkpoint"
        if pointer.epoch > begin.after:
            self._start_over("begins too late")
            return "starts over"
        manifest = read_manifest(self._files, pointer.manifest)
        self._counts = dict(manifest.counts)
        self._has_state = True
        return "begins"

    def _fold(self, work: HandOut, channel: str) -> str:
        place = work.after.places.get(channel) if work.after is not None else None
        after = work.after.timestamp if work.after is not None else 0
        rows = self._world.log.channels[channel].read(place, after, work.upto.timestamp)
        count = self.count_before(channel)
        ranked = [(*row, count + at) for at, row in enumerate(rows, 1)]
        self._attempts += 1
        name = str(DataName(self.worker, self.term, *work.span, channel, self._attempts, count + len(rows)))
        write_whole(self._files, DATA_DIR, name, {"rows": ranked})
        self._written[channel] = (name, count + len(rows))
        self._silence = 0
        return f"writes {channel} of {work.span}"

    def count_before(self, channel: str) -> int:
        """Rows before the span: of what is staged, else of the checkpoint."""
        return self._counts.get(channel, 0)

    def _report(self, work: HandOut) -> None:
        self._ask("report", report=Report(self.worker, self.term, work.generation, work.span, self._names()))

    def _names(self) -> tuple[str, ...]:
        """Of the attempt under way."""
        return tuple(name for _, (name, _) in sorted(self._written.items()))

    def _finish(self, work: HandOut, answer: Answer) -> str:
        self._verdict = None
        verdict = answer.verdict
        for name in answer.discard:
            if f"{DATA_DIR}/{name}" in self._world.disk.names:
                self._files.remove(f"{DATA_DIR}/{name}")
        if verdict.must_stop:
            self.has_ended = True
            return "ends: another is in its place"
        if verdict.must_register or verdict is Verdict.NOT_HANDED_OUT:
            self._start_over("has to register")
            return "starts over"
        if verdict is Verdict.OLD_SHARES:
            self._begin, self._work, self._silence = None, None, 0  # It asks where to begin, in the same term.
            return f"hears that shares have changed under {work.span}"
        if verdict is Verdict.TAKEN and self._world.faulty and self._world.rng.random() < 0.08:
            # The query ends before it has noted that the batch is done, and runs it again.
            self._written = {}
            return f"runs {work.span} again"
        self._counts.update({channel: count for channel, (_, count) in self._written.items()})
        self._plan(None)
        self._end, self._work, self._silence = work.span.last, None, 0
        return f"is done with {work.span}: {verdict}"

    def _ask(self, what: str, **arguments: Any) -> None:
        to = self._world.owner_name() if what == "register" else self._owner or self._world.owner_name()
        if to is not None:
            self._world.network.send(self.name, to, Ask(self.worker, 0, what, {"term": self.term, **arguments}))
