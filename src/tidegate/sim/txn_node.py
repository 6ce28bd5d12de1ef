"""`TxnNode`: one simulated process that owns a database: its channels, coordinators, transactions and readers.

Everything in it is the real code, opened in the order in which `Engine` opens it. Each step is short, so that the
scheduler can stop it, kill it or let somebody else run between any two of them, also while it is opening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tidegate.clock.timestamp import Timestamp
from tidegate.database.transaction_runs import Member, TransactionRuns
from tidegate.errors import (
    Conflict,
    Corruption,
    InvalidTransactionState,
    InvariantBroken,
    NotLeader,
    OutcomeUnknown,
    Retryable,
    TidegateError,
    TransactionAborted,
    TransactionNotFound,
    Unavailable,
)
from tidegate.log.message import Position, Term
from tidegate.ports.files import Files
from tidegate.ports.metadata import MetadataStore
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.oracle import Oracle
from tidegate.runtime.sealer import seal
from tidegate.runtime.settings import LogSettings
from tidegate.runtime.steps import Steps
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.sim.auditor import Violation
from tidegate.sim.machine import SimClock, SimTail
from tidegate.sim.network import Answer, Ask
from tidegate.sim.node import NodeChannel
from tidegate.sim.procedures import Procedure
from tidegate.sim.sim_log import SimJournal, SimLog
from tidegate.sim.txn_auditor import TxnAuditor
from tidegate.sim.txn_work import as_pieces
from tidegate.txn.conflicts import ConflictWindow
from tidegate.txn.coordinator import Coordinator
from tidegate.txn.coordinator_records import TxnState
from tidegate.txn.coordinator_table import CoordinatorSettings
from tidegate.txn.txn_id import TxnId

SYSTEM = "system"
DATA = ("c0", "c1", "c2")
COORDINATORS = 2


@dataclass(frozen=True, slots=True)
class TxnSettings:
    """What a run draws for all of its processes."""

    log: LogSettings
    redo_bytes: int
    conflict_keys_max: int
    remembered_max: int
    assembly_bytes_max: int


@dataclass(slots=True)
class Question:
    """What became of a transaction that nobody here knows: answered once ticks have passed the asking."""

    ask: Ask
    at: int


class TxnNode:
    """One process."""

    def __init__(
        self,
        name: str,
        *,
        rng: Random,
        clock: SimClock,
        files: Files,
        store: MetadataStore,
        tails: dict[str, SimTail],
        auditor: TxnAuditor,
        settings: TxnSettings,
        note: Callable[[str], None],
        send: Callable[[str, str, Answer], None],
    ) -> None:
        self.name = name
        self.paused_until = 0
        self.zombie = False
        self.failed: Exception | None = None
        """Why it could not open."""
        self.is_deposed = False
        """It leads no more: a real one opens the database again."""
        self.is_serving = False
        self.channels: dict[str, NodeChannel] = {}
        self.procedures: list[Procedure] = []
        self._rng = rng
        self._clock = clock
        self._files = files
        self._store = store
        self._tails = tails
        self._auditor = auditor
        self._settings = settings
        self._note = note
        self._send = send
        self._readers: dict[str, TransactionReader] = {}
        self._inbox: list[Ask] = []
        self._written: dict[tuple[str, int], Answer | None] = {}
        """Writes that were asked for, with the answer: asked again, they are not done again."""
        self._questions: list[Question] = []
        self._looks_after = False
        self.oracle = Oracle(store, clock, owner=name)
        self.coordinators: list[tuple[Coordinator, SimJournal]] = []
        self.transactions: TransactionRuns | None = None
        self._log = SimLog(self.channels, files, store, tails)
        self._opening: Iterator[str] | None = self._open()

    # Opening

    def start(self, timeout_s: float) -> None:
        """Become the leader; the rest of opening goes step by step."""
        self.oracle.start(timeout_s)

    def _open(self) -> Iterator[str]:
        self._open_channel(SYSTEM, tuple)
        yield "opens system"
        for number in range(COORDINATORS):
            coordinator = Coordinator(number, CoordinatorSettings(remembered_max=self._settings.remembered_max))
            journal = SimJournal(self._log, self.channels[SYSTEM], f"coordinator/{number}")
            count = journal.recover(coordinator.restore, lambda record, _, to=coordinator: to.apply(record))  # type: ignore[misc]
            self.coordinators.append((coordinator, journal))
            yield f"recovers coordinator {number} from {count} records"
        transactions = self.transactions = TransactionRuns(
            self.coordinators,
            allocate=self._allocate,
            conflicts=ConflictWindow(self._allocate(1), keys_max=self._settings.conflict_keys_max),
            redo_bytes=self._settings.redo_bytes,
            hold_timeout_s=0.0,
        )
        for name in DATA:
            found = transactions.redo_for(name)
            self._open_channel(name, lambda found=found: found)  # type: ignore[misc]
            sessions = len(self.channels[name].writer.sessions)
            if found:
                self._note(f"{self.name} completes {len(found)} decided commits in {name}")
            if sessions:
                self._note(f"{self.name} takes up {sessions} sessions in {name}")
            yield f"opens {name}"
        writers = {name: self.channels[name].writer for name in DATA}
        self.procedures.append(Procedure("resume", transactions.resume(writers), self._resumed))

    def _resumed(self, _: object, error: TidegateError | None) -> None:
        self.failed = error
        self.is_serving = error is None

    def _open_channel(self, name: str, redo: Callable[[], Any]) -> None:
        slot: list[NodeChannel] = []
        writer = ChannelWriter(
            name,
            self._next_term(name),
            files=self._files,
            directory=name,
            tail=self._tails[name],
            allocate=self._allocate,
            wall_ms=self._clock.wall_ms,
            settings=self._settings.log,
            redo=redo,
            schedule=lambda: setattr(slot[0], "has_work", True),
            monotonic=self._clock.monotonic,
        )
        slot.append(NodeChannel(self, name, writer))  # type: ignore[arg-type]
        self.channels[name] = slot[0]

    def _next_term(self, name: str) -> Term:
        while True:
            found = self._store.get(f"channel/{name}")
            term = 1 if found is None else int(found.value) + 1
            expected = 0 if found is None else found.version
            if self._store.compare_and_set(f"channel/{name}", str(term).encode(), expected=expected) is not None:
                return Term(term)

    def _allocate(self, count: int) -> Timestamp:
        first = self.oracle.allocate(count, 0.0)
        self._auditor.allocated(int(first), count)
        return first

    @property
    def is_fenced(self) -> bool:
        """Whether it knows that others have taken over a channel."""
        return any(not each.writer.is_open for each in self.channels.values())

    # Steps

    def step(self) -> str:
        """Do one small thing, chosen at random."""
        rng = self._rng
        if self.failed is not None:
            return "is about to stop"
        if self._opening is not None:
            return self._open_on(self._opening)
        if rng.random() < 0.06:
            return self.advance_oracle()
        ready = [each for each in self.procedures if each.can_go_on]
        if ready and rng.random() < 0.45:
            return self._go_on(rng.choice(ready))
        busy = [each for each in self.channels.values() if each.has_work or each.commit is not None]
        if busy and rng.random() < 0.7:
            channel = rng.choice(busy)
            return f"{channel.name} {channel.step_commit()}"
        if not self.is_serving:
            return "waits for its opening"
        return self._other_work()

    def _other_work(self) -> str:
        rng = self._rng
        draw = rng.random()
        channel = self.channels[rng.choice((SYSTEM, *DATA))]
        if self._inbox and draw < 0.35:
            return self._take(self._inbox.pop(0))
        if draw < 0.55:
            return f"{channel.name} {self._tick(channel)}"
        if draw < 0.70:
            return self.look_after()
        if draw < 0.74:
            return f"{channel.name} {self.seal_one(channel)}"
        if draw < 0.79:
            return self._snapshot()
        if draw < 0.795:
            return self._fail_client()
        if self._questions and draw < 0.90:
            return self._find(self._questions.pop(0))
        return self._read(rng.choice(DATA))

    def _open_on(self, opening: Iterator[str]) -> str:
        try:
            return next(opening)
        except StopIteration:
            self._opening = None
            return "has opened every channel"
        except (TidegateError, OSError) as error:
            if isinstance(error, InvariantBroken | Corruption):
                raise Violation(f"defect: {self.name} cannot open: {error}") from error
            self.failed = error
            return f"cannot open: {type(error).__name__}"

    def _go_on(self, procedure: Procedure) -> str:
        what = procedure.step(self._rng)
        if procedure.has_ended:
            self.procedures.remove(procedure)
        return what

    def advance_oracle(self) -> str:
        """What a real one does in a thread of its own: renew the lease and the window."""
        try:
            self.oracle.advance()
        except TidegateError as error:
            self.is_deposed = self.is_deposed or isinstance(error, NotLeader)
            return f"oracle {type(error).__name__}"
        return "oracle"

    def _tick(self, channel: NodeChannel) -> str:
        try:
            channel.writer.tick(force=self._rng.random() < 0.2)
        except TidegateError as error:
            return f"tick {type(error).__name__}"
        return "tick"

    def seal_one(self, channel: NodeChannel) -> str:
        closed = channel.writer.segments.closed
        if not closed:
            return "nothing to seal"
        try:
            sealed = seal(self._files, channel.name, closed[0])
        except FileNotFoundError:
            sealed = None
        except OSError as error:
            return f"seal failed: {error.strerror}"
        closed.pop(0)
        return "seal" if sealed else "was sealed"

    def _snapshot(self) -> str:
        transactions = self._owner()
        for coordinator, journal in self.coordinators:
            if journal.wants_snapshot():
                try:
                    done = journal.snapshot(lambda each=coordinator: transactions.snapshot_of(each))  # type: ignore[misc]
                except TidegateError as error:
                    return f"snapshot {type(error).__name__}"
                return "snapshot" if done else "snapshot waits"
        return "no snapshot"

    def look_after(self) -> str:
        """What the owner does in the background: expire, drive on, log ends."""
        if self._looks_after:
            return "looks after, still"
        transactions = self._owner()

        def work() -> Steps[tuple[int, int, int]]:
            expired = yield from transactions.expire()
            left = yield from transactions.drive_on()
            ends = yield from transactions.write_ends()
            return expired, left, ends

        self._looks_after = True
        self.procedures.append(Procedure("look after", work(), self._looked_after))
        return "looks after"

    def _looked_after(self, found: tuple[int, int, int] | None, error: TidegateError | None) -> None:
        self._looks_after = False
        self._check_defect(error)
        if found is not None:
            self._note(f"{self.name} expired {found[0]}, left to drive {found[1]}, ends {found[2]}")
            if found[0]:
                self._note("transactions expire")
            if found[1]:
                self._note("a failed marker keeps its place")

    def _fail_client(self) -> str:
        client = f"k{self._rng.randrange(4)}"
        steps = self._owner().fail_client(client)
        self.procedures.append(Procedure("fail client", steps, lambda _, error: self._check_defect(error)))
        return "fails a client"

    def _owner(self) -> TransactionRuns:
        if self.transactions is None:
            raise Violation(f"defect: {self.name} serves before it has opened")
        return self.transactions

    def _check_defect(self, error: TidegateError | None) -> None:
        if isinstance(error, InvariantBroken):
            raise Violation(f"defect: {error}") from error

    # Requests

    def take(self, ask: Ask) -> None:
        """A request arrives."""
        self._inbox.append(ask)

    def _take(self, ask: Ask) -> str:
        transactions, told = self._owner(), ask.arguments
        if ask.what == "begin":
            return self._at_once(ask, lambda: transactions.begin(ask.client, told["timeout_ms"]))
        if ask.what == "read":
            return self._at_once(ask, lambda: transactions.note_read(told["id"], told["keys"], "counters"))
        if ask.what in ("write", "plain"):
            return self._write(ask)
        if ask.what == "commit_run":
            return self._commit_run(ask)
        steps: Steps[Any]
        if ask.what == "commit":
            writes = {name: as_pieces(lines) for name, lines in told["writes"].items()}
            steps = transactions.commit(told["id"], writes, told["keys"], read_at=told["read_at"])
        else:
            steps = transactions.abort(told["id"])

        def done(value: Any, error: TidegateError | None) -> None:
            if isinstance(error, TransactionNotFound):
                self._note(f"{ask.what} of a transaction that is not known")
                self._questions.append(Question(ask, self._auditor.last_timestamp))
            else:
                self._answer(ask, "committed" if ask.what == "commit" else "absent", value, error)

        self.procedures.append(Procedure(ask.what, steps, done))
        return f"takes {ask.what}"

    def _commit_run(self, ask: Ask) -> str:
        """Transactions in order, behind a guard. Asked again it cannot say what became of them before."""
        told = ask.arguments
        run = [Member(id, {name: as_pieces(lines)}, []) for id, name, lines in told["run"]]

        def done(value: Any, error: TidegateError | None) -> None:
            self._check_defect(error)
            how = "committed" if error is None else "absent" if isinstance(error, Conflict) else "unknown"
            self._note(f"a run of commits {how}{'' if error is None else f': {type(error).__name__}'}")
            self._send(self.name, ask.client, Answer(ask.number, how, value, self.name))

        steps = self._owner().commit_run(told["id"], run, read_at=told["read_at"])
        self.procedures.append(Procedure(ask.what, steps, done))
        return f"takes {ask.what}"

    def _at_once(self, ask: Ask, call: Callable[[], Any]) -> str:
        try:
            self._answer(ask, "ok", call(), None)
        except TidegateError as error:
            self._answer(ask, "ok", None, error)
        return f"takes {ask.what}"

    def _write(self, ask: Ask) -> str:
        key = (ask.client, ask.number)
        if key in self._written:
            known = self._written[key]
            if known is not None:
                self._send(self.name, ask.client, known)
            return f"takes {ask.what} again"
        self._written[key] = None
        told = ask.arguments
        steps: Steps[Any]
        if ask.what == "plain":
            steps = self._owner().append_plain(told["channel"], as_pieces([told["line"]])[0])
        else:
            writes = {name: as_pieces(lines) for name, lines in told["writes"].items()}
            steps = self._owner().write_ahead(told["id"], writes)

        def done(value: Any, error: TidegateError | None) -> None:
            self._written[key] = self._answer(ask, "committed" if ask.what == "plain" else "ok", value, error)

        self.procedures.append(Procedure(ask.what, steps, done))
        return f"takes {ask.what}"

    def _answer(self, ask: Ask, good: str, value: Any, error: TidegateError | None) -> Answer:
        how = good
        self._check_defect(error)
        match error:
            case None:
                pass
            case OutcomeUnknown() | Unavailable():
                how = "unknown"
            case Conflict() | TransactionAborted():
                how = "absent"
            case Retryable():
                how = "retry"
            case TransactionNotFound():
                how = "gone"
            case InvalidTransactionState():
                ended = error.state in (TxnState.ABORTED, TxnState.ABORTING)
                how = "absent" if ended else "unknown"
            case _:
                raise Violation(f"defect: {ask.what} was answered with {type(error).__name__}: {error}")
        if error is not None:
            self._note(f"{ask.what} {how}: {type(error).__name__} {getattr(error, 'state', '')}")
        answer = Answer(ask.number, how, value, self.name)
        self._send(self.name, ask.client, answer)
        return answer

    def _find(self, question: Question) -> str:
        """Look into the log: nobody else can write to the channels any more, so what is not there will never be."""
        told = question.ask.arguments
        names = [name for name in DATA if name in told["channels"]]
        if any(int(self.channels[name].writer.latest_tick.time_tick) <= question.at for name in names):
            self._questions.append(question)
            return "waits for ticks before it looks"
        if self.is_fenced or any(
            self._tails[name].current_term() != self.channels[name].writer.term for name in (SYSTEM, *DATA)
        ):
            self._send(self.name, question.ask.client, Answer(question.ask.number, "unknown", None, self.name))
            return "is asked too late"
        id: TxnId = told["id"]
        for name in names:
            tick = int(self.channels[name].writer.latest_tick.time_tick)
            with self._log.transaction_reader(name, after=Timestamp(id.counter - 1)) as reader:
                while reader.after < tick and (delivery := reader.read()) is not None:
                    for batch in delivery.batches:
                        at = batch.index_of_txn(id.to_bytes16())
                        if at is not None:
                            self._note("finds a commit in the log")
                            self._found(question.ask, Timestamp(int(batch.time_ticks[at])))
                            return "finds it committed"
        self._found(question.ask, None)
        return "finds nothing"

    def _found(self, ask: Ask, at: Timestamp | None) -> None:
        how = "absent" if at is None else "committed"
        self._send(self.name, ask.client, Answer(ask.number, how, at, self.name))

    # Readers in memory

    def _read(self, name: str) -> str:
        reader = self._readers.get(name)
        if reader is None:
            after, position = 0, 0
            if self._rng.random() < 0.8:
                after, position = self._auditor.sample(name, self._rng.randrange(1 << 30))
            reader = self._readers[name] = self._log.transaction_reader(
                name,
                after=Timestamp(after),
                position=Position(position),
                assembly_bytes_max=self._settings.assembly_bytes_max,
            )
        before = reader.after
        delivery = reader.poll()
        if delivery is None:
            return "reader waits"
        self._auditor.delivered(name, f"reader in {self.name}", before, delivery)
        self._note(f"{self.name} reader {name} {int(delivery.tick.time_tick)} {len(delivery)}")
        if self._rng.random() < 0.1:
            del self._readers[name]
        return f"reads {len(delivery)}" + (" from memory" if reader.tailing else "")
