"""`ReadOwner`: the process that answers reads, under the scheduler.

Real are the oracle with its lease, the channels' machines with their watermarks, the alignment of barriers, the
guarantee, the cut and the wait. What holds them together is small here: commits that hold places in several channels,
a fold into checkpoints, and reads that look at the service time whenever it moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.barrier.alignment import Alignment, AlignmentEffect, RecordCut
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Fenced, NotLeader, OutcomeUnknown, Retryable
from tidegate.log.channel import Append, Channel
from tidegate.log.message import Position, Term
from tidegate.reads.consistency import Asked, Seen, cut, guarantee
from tidegate.reads.waiting import GiveUp, LookAgain, Ready, Waiting
from tidegate.runtime.oracle import Oracle
from tidegate.sim.network import Answer, Ask
from tidegate.sim.read_auditor import Answered
from tidegate.sim.read_log import CHANNELS, SYSTEM, TABLES, Checkpoint, Contents, Decided, parts_of

if TYPE_CHECKING:
    from tidegate.sim.read_world import ReadWorld

ALL = (SYSTEM, *CHANNELS)


@dataclass(eq=False, slots=True)
class Read:
    """One read under way."""

    number: int
    ask: Ask
    wanted: Asked
    tables: tuple[str, ...]
    needed: Timestamp
    waiting: Waiting
    from_checkpoint: bool
    """Whether only a checkpoint will do, as for whoever cannot read the log."""
    look_at_ms: int = 0


class ReadOwner:
    """One life of one owner."""

    def __init__(self, world: ReadWorld, number: int) -> None:
        self.name = f"owner#{number}"
        self.paused_until = 0
        self.zombie = False
        self.has_ended = False
        self.is_serving = False
        self.world = world
        self.log = world.log
        self.term = 0
        self.oracle = Oracle(world.open_store(), world.clock, owner=self.name)
        self.channels: dict[str, Channel] = {}
        self.alignment = Alignment()
        self.service = Timestamp.ZERO
        """Everything at or below it has arrived in every channel."""
        self.checkpoint = Checkpoint()
        """The last, as far as this owner knows."""
        self.waiting: list[Read] = []
        self.under_way: list[Iterator[str]] = []
        """Commits, changes of tables, folds, and reads that are being answered."""
        self._opening = self._open()
        self._changed: dict[str, Timestamp] = {}
        """The last change of each table, as far as this owner knows."""
        self.half_written = 0
        """Commits that are decided, and not in all of their channels."""
        self._writing: set[str] = set()
        self._folding = False
        self._is_asked = False
        """A read waits for a checkpoint."""
        self._barrier_ms = 0
        self._numbers = 0

    @property
    def now_ms(self) -> int:
        return int(self.world.clock.monotonic() * 1000)

    def allocate(self) -> Timestamp:
        """Raises: `NotLeader`, `ClockStalled`."""
        at = self.oracle.allocate(1, 0.0)
        self.world.auditor.handed_out(at)
        return at

    # Opening

    def _open(self) -> Iterator[str]:
        self.oracle.start(0.0)
        yield "leads"
        self.term = self.log.next_term()
        yield "fences"
        yield from self.complete_commits()
        for name in ALL:
            self.channels[name] = Channel(
                name, Term(self.term), self.allocate(), Position(self.log.positions()[name] + 1)
            )
        for at, table in self.log.changed:
            self._was_changed(table, at)
        self.checkpoint = self.log.checkpoints[-1]
        self._barrier_ms = self.now_ms
        self.is_serving = True
        self._look_at_ticks()

    def complete_commits(self) -> Iterator[str]:
        """What was decided is written before anything ticks."""
        for txn, channel, part in self.log.unwritten():
            self.log.append(self.term, channel, txn, part)
            yield "completes a commit"

    # What it hears

    def take(self, ask: Ask) -> None:
        if not self.is_serving or self.has_ended:
            self._reply(ask, "retry", "opening")
            return
        try:
            match ask.what:
                case "read":
                    self._begin_read(ask)
                case "write":
                    self._begin_write(ask)
                case "change":
                    self.under_way.append(self._change(ask))
        except Retryable as error:
            self._reply(ask, "retry", type(error).__name__)
        except (NotLeader, Fenced) as error:
            self._reply(ask, "retry", type(error).__name__)
            self.world.note(self._was_deposed(error))

    def _reply(self, ask: Ask, how: str, value: Any) -> None:
        self.world.network.send(self.name, ask.client, Answer(ask.number, how, value, self.name))

    # Reads

    def now_of(self, ask: Ask) -> Timestamp:  # noqa: ARG002
        """The owner's time, taken after the read was asked for."""
        return self.allocate()

    def needed_by(self, wanted: Asked, now: Timestamp, seen: Seen, changed: Timestamp) -> Timestamp:
        return guarantee(wanted, now=now, seen=seen, changed=changed)

    def changed_last(self, tables: tuple[str, ...]) -> Timestamp:
        return max(self._changed.get(table, Timestamp.ZERO) for table in tables)

    def _begin_read(self, ask: Ask) -> None:
        wanted: Asked = ask.arguments["wanted"]
        tables: tuple[str, ...] = ask.arguments["tables"]
        needed = self.needed_by(wanted, self.now_of(ask), ask.arguments["seen"], self.changed_last(tables))
        self._numbers += 1
        waiting = Waiting(needed, self.now_ms, timeout_ms=ask.arguments["timeout_ms"])
        read = Read(self._numbers, ask, wanted, tables, needed, waiting, ask.arguments["from_checkpoint"])
        self.world.auditor.waits(self.name, read.number, needed, from_checkpoint=read.from_checkpoint)
        if not self.look(read):
            self.wait(read)

    def wait(self, read: Read) -> None:
        """In the step in which it was looked at: nothing moves in between."""
        self.waiting.append(read)
        self._is_asked = self._is_asked or read.from_checkpoint
        self.world.note(f"a read waits{' for a checkpoint' * read.from_checkpoint}: {read.wanted.level}")

    def look(self, read: Read) -> bool:
        """Look at the service time for a read. Says whether its wait is over."""
        service = self.checkpoint.timestamp if read.from_checkpoint else self.service
        match read.waiting.look(service, self.now_ms):
            case LookAgain(at_ms):
                read.look_at_ms = at_ms
                return False
            case Ready():
                self.under_way.append(self._answer(read))
            case GiveUp() as found:
                self.world.note(f"a read gives up: {found.why}")
                self._reply(read.ask, "retry", found.why)
        self.world.auditor.waits_no_more(self.name, read.number)
        return True

    def _wake(self, reads: list[Read]) -> None:
        for read in reads:
            if self.look(read):
                self.waiting.remove(read)

    def _answer(self, read: Read) -> Iterator[str]:
        """Table by table, all at one cut."""
        at = cut(read.wanted, read.needed, checkpoint=self.checkpoint.timestamp)
        base = self.log.checkpoint_at(at)
        found: dict[str, Contents] = {}
        for table in read.tables:
            found[table] = self.read_table(table, base, at)
            yield "reads a table"
        self._reply(read.ask, "ok", Answered(at, found))

    def read_table(self, table: str, base: Checkpoint, at: Timestamp) -> Contents:
        return self.log.read(table, base, at)

    # Writes

    def _begin_write(self, ask: Ask) -> None:
        txn = ask.arguments["txn"]
        known = self.log.decided.get(txn)
        if known is not None:
            self._reply(ask, "committed", known.timestamp)
        elif txn not in self._writing:
            self._writing.add(txn)
            self.under_way.append(self._commit(ask))

    def _commit(self, ask: Ask) -> Iterator[str]:
        """Hold a place in each channel, decide, write each part there."""
        txn, parts = ask.arguments["txn"], parts_of(ask.arguments["changes"])
        held: dict[str, Append] = {}
        try:
            for name in parts:
                held[name] = self.channels[name].allocate(self.allocate(), 1)
                yield "holds a place"
            at = self.allocate()
            yield "has a commit Timestamp"
        except Retryable as error:
            for name, append in held.items():
                self.channels[name].fail(append)
            self._writing.discard(txn)
            self._reply(ask, "retry", type(error).__name__)
            return
        self.log.decide(self.term, txn, Decided(at, ask.arguments["changes"]))
        self._reply(ask, "committed", at)
        self.half_written += 1
        yield "decides a commit"
        for name, append in held.items():
            position = self.log.append(self.term, name, txn, Decided(at, parts[name]))
            self.channels[name].move(append, at)
            self.channels[name].acknowledge(append, position)
            yield "writes a part"
        self.half_written -= 1
        self._writing.discard(txn)

    def _change(self, ask: Ask) -> Iterator[str]:
        """A table is altered: a message in the system channel."""
        system = self.channels[SYSTEM]
        try:
            at = self.allocate()
        except Retryable as error:
            self._reply(ask, "retry", type(error).__name__)
            return
        append = system.allocate(at, 1)
        yield "takes a Timestamp for a change"
        self.log.change(self.term, ask.arguments["table"], at)
        self._was_changed(ask.arguments["table"], at)
        system.acknowledge(append, len(self.log.changed))
        self._reply(ask, "committed", at)
        yield "changes a table"

    def _was_changed(self, table: str, at: Timestamp) -> None:
        # Of two changes at once, the later one may be written first.
        self._changed[table] = max(self._changed.get(table, Timestamp.ZERO), at)

    # What it does

    def step(self) -> str:
        try:
            return self._step()
        except (Retryable, OutcomeUnknown) as error:
            self.has_ended = not self.is_serving  # Whoever cannot open is started again.
            return f"fails: {type(error).__name__}"
        except (NotLeader, Fenced) as error:
            return self._was_deposed(error)

    def _was_deposed(self, error: Exception) -> str:
        """It need not notice at once: each of its threads finds out for itself."""
        if self.is_serving and self.world.rng.random() < 0.985:
            return f"is told {type(error).__name__}"
        self.has_ended = True
        return f"ends: {type(error).__name__}"

    def _step(self) -> str:
        rng = self.world.rng
        if not self.is_serving:
            return next(self._opening, "serves")
        self._wake([read for read in self.waiting if read.look_at_ms <= self.now_ms])
        draw = rng.random()
        if draw < 0.15:
            self.oracle.advance()
            return "oracle"
        if self.under_way and draw < 0.7:
            return self._go_on(rng.randrange(len(self.under_way)))
        if draw < 0.75:
            return self._take_barrier()
        return self.tick(rng.choice(ALL))

    def _go_on(self, which: int) -> str:
        work = self.under_way[which]
        said = next(work, None)
        if said is None:
            self.under_way.remove(work)
            return "has done something"
        return said

    def tick(self, name: str) -> str:
        channel = self.channels[name]
        plan = channel.plan_tick(self.allocate())
        if plan is None:
            return f"has nothing to tick in {name}"
        try:
            self.log.require(self.term)
        except Fenced:
            channel.tick_failed(plan)
            raise
        channel.tick_appended(plan)
        self._add(self.alignment.ticked(name, plan.time_tick, Position(self.log.positions()[name] + 1)))
        self._look_at_ticks()
        return f"ticks {name}"

    def reached(self) -> Timestamp:
        """Up to where all channels have ticked."""
        return Timestamp(min(channel.synced for channel in self.channels.values()))

    def _look_at_ticks(self) -> None:
        service = self.reached()
        if service > self.service:
            self.service = service
            self._wake(list(self.waiting))

    # The pipeline

    def _take_barrier(self) -> str:
        world = self.world
        is_due = self._is_asked or self.now_ms - self._barrier_ms >= world.barrier_ms
        if world.pipeline_stands or self._folding or not is_due:
            return "has no barrier to take"
        self._is_asked = False
        self._barrier_ms = self.now_ms
        self._add(self.alignment.begin(self.allocate(), ALL, is_checkpoint=True, now_ms=self.now_ms))
        return "takes a barrier"

    def _add(self, effects: tuple[AlignmentEffect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, RecordCut) and not self._folding:
                self._folding = True
                self.under_way.append(self._fold(effect.cut.timestamp))

    def _fold(self, at: Timestamp) -> Iterator[str]:
        tables = {}
        for table in TABLES:
            tables[table] = self.log.read(table, self.checkpoint, at)
            yield "folds a table"
        while self.world.pipeline_stands:
            yield "stands before a checkpoint"
        self._folding = False
        self.log.commit(self.term, Checkpoint(at, tables))
        self.checkpoint = self.log.checkpoints[-1]
        self.checkpoint_moved()
        yield "commits a checkpoint"

    def checkpoint_moved(self) -> None:
        """It is a service time too."""
        self._wake(list(self.waiting))
