"""Laws of transaction sessions, over arbitrary histories. Seed 000; time-log reference 5.1 and 6; promises 2 and 3."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidTransactionState, TransactionAborted
from tidegate.log.batch import Batch, body_rows
from tidegate.log.channel import Append, Channel
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType, Position, Term
from tidegate.txn.session import Session, SessionState, decode_begin, encode_begin
from tidegate.txn.sessions import RecoveredSessions, Sessions

MS = 1 << 18
T0 = int(Timestamp.compose(1_700_000_000_000))
VCHANNELS = ("v1", "v2", "v3")


seeds = st.integers(0, 1 << 32)


def txn(number: int) -> bytes:
    return number.to_bytes(16, "big")


@given(st.one_of(st.none(), st.integers(1, (1 << 46) - 1)), st.binary(max_size=20))
def test_the_body_of_begin_comes_back_whatever_stands_behind_it(keepalive_ms: int | None, later: bytes) -> None:
    assert decode_begin(encode_begin(keepalive_ms) + later) == keepalive_ms


@given(st.permutations(range(40)), st.data())
def test_runs_are_the_set_of_positions(order: list[int], data: st.DataObject) -> None:
    """Twin: a set. Pieces of the log come back in any order; some belong to somebody else."""
    session = Session(txn(1), T0)
    session.begun(1)
    cuts = sorted(data.draw(st.sets(st.integers(1, 39))))
    pieces = [(start + 100, stop - start) for start, stop in zip([0, *cuts], [*cuts, 40])]
    mine: set[int] = set()
    for index in order:
        if index < len(pieces) and data.draw(st.booleans()):
            first, count = pieces[index]
            session.add(T0 + 1, "v1")
            session.done(T0 + 1, first, count)
            mine.update(range(first, first + count))
    assert session.count == len(mine)
    assert [at for first, count in session.runs for at in range(first, first + count)] == sorted(mine)
    assert all(first + count < after for (first, count), (after, _) in zip(session.runs, session.runs[1:]))


ways = ["add", "add", "done", "fail", "commit", "commit", "committed", "absent", "rejected", "rollback", "rolled back"]
calls = st.sampled_from(ways)


@settings(max_examples=400)
@given(st.sampled_from([None, 3, 8]), st.lists(st.tuples(calls, st.integers(1, 12), st.integers(0, 3)), max_size=25))
def test_what_was_said_to_be_resolved_takes_neither_body_nor_commit(
    keepalive_ms: int | None, history: list[tuple[str, int, int]]
) -> None:
    """Whatever TimeTicks are presented, in whatever order: LastConfirmedMessageID has passed it by then."""
    session = Session(txn(1), T0, keepalive_ms, "v1")
    session.begun(1)
    confirmed, resolved, position = T0, False, 1
    for call, ms, step in history:
        tick = T0 + ms * MS
        position += 2
        ready = session.state if session.is_ready else None
        match call:
            case "add" | "commit" if session.state is SessionState.IN_FLIGHT and (call == "add" or tick > top(session)):
                with suppress(TransactionAborted):
                    session.add(tick, "v1") if call == "add" else session.request_commit(tick)
                    assert not resolved
            case "done" if session.in_flight:
                session.done(tick if session.state is SessionState.IN_FLIGHT else T0 + 1, position)
            case "fail" if session.in_flight:
                session.fail_body()
            case "committed" if ready is SessionState.ON_COMMIT:
                session.commit_done(max(session.end_tick or 0, tick))
            case "absent" if session.state is SessionState.ON_COMMIT:
                session.commit_failed()
            case "rejected" if ready is SessionState.ON_COMMIT:
                session.reject_commit()
            case "rollback":
                with suppress(TransactionAborted, InvalidTransactionState):
                    session.request_rollback(tick)
            case "rolled back" if ready is SessionState.ON_ROLLBACK:
                session.rollback_done()
        confirmed += step * MS
        said = session.is_resolved(confirmed)
        assert said or not resolved
        resolved = said


def top(session: Session) -> int:
    return session._highest_tick


# -- a channel's whole life ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Write:
    """An append under way, and what it says."""

    append: Append
    kind: MessageType
    vchannel: str
    session: Session | None
    position: int = 0


@dataclass
class Life:
    """A channel whose writes overlap and land in any order, driven by chance; and everything it has said.

    The log as it lies on disk is `log`, in physical order. `promised` holds, for each tick, TimeTick and
    LastConfirmedMessageID at that moment. Ends of sessions are checked against a twin that keeps a plain list.
    """

    random: Random
    log: list[Message] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    promised: list[tuple[int, int]] = field(default_factory=list)
    all: list[Session] = field(default_factory=list)
    resolved: dict[bytes, int] = field(default_factory=dict)
    ends: Counter[bytes] = field(default_factory=Counter)
    body_lost: set[bytes] = field(default_factory=set)
    now: int = T0
    positions: int = 10

    def __post_init__(self) -> None:
        self.channel = Channel("c", Term(1), Timestamp(T0), Position(self.positions))
        self.sessions = Sessions("c", on_end=lambda session: self.ends.update([session.id]))

    def tick(self) -> int:
        self.now += self.random.choice((1, 1, 1, 2, MS // 2, MS))
        return self.now

    def start(self, kind: MessageType, vchannel: str, session: Session | None, tick: int) -> None:
        self.writes.append(Write(self.channel.allocate(tick, 1, (vchannel,), session), kind, vchannel, session))

    def begin(self) -> None:
        tick = self.tick()
        keepalive = self.random.choice((None, 2, 5, 20, 60))
        session = self.sessions.begin(txn(len(self.all) + 1), tick, keepalive, self.random.choice(VCHANNELS))
        self.all.append(session)
        self.start(MessageType.BEGIN, next(iter(session.vchannels)), session, tick)

    def body(self) -> None:
        if self.all:
            session, vchannel, tick = self.random.choice(self.all[-5:]), self.random.choice(VCHANNELS), self.tick()
            if session.first_position is not None:
                with suppress(TransactionAborted, InvalidTransactionState):
                    session.add(tick, vchannel)
                    assert session.id not in self.resolved, "a body was accepted after it was said that none can come"
                    self.start(MessageType.INSERT, vchannel, session, tick)

    def end(self) -> None:
        if self.all:
            session, tick = self.random.choice(self.all[-5:]), self.tick()
            if session.first_position is not None:
                commits = self.random.random() < 0.7
                with suppress(TransactionAborted, InvalidTransactionState):
                    (session.request_commit if commits else session.request_rollback)(tick)
                    assert not (commits and session.id in self.resolved), "committed after it was said to be resolved"
                    kind = MessageType.COMMIT if commits else MessageType.ROLLBACK
                    self.start(kind, next(iter(sorted(session.vchannels))), session, tick)

    def plain(self) -> None:
        self.start(MessageType.INSERT, self.random.choice(VCHANNELS), None, self.tick())

    def place(self) -> None:
        """One of the writes gets its place; others may overtake it before it is acknowledged."""
        waiting = [each for each in self.writes if not each.position and self._may_be_written(each)]
        if waiting:
            self._place(self.random.choice(waiting))

    def _may_be_written(self, write: Write) -> bool:
        ends = write.kind in (MessageType.COMMIT, MessageType.ROLLBACK)
        return not ends or write.session is None or write.session.is_ready

    def _place(self, write: Write) -> None:
        self.positions += 1
        write.position = self.positions
        body = encode_begin(write.session.keepalive_ms) if write.kind is MessageType.BEGIN and write.session else b"row"
        self.log.append(
            Message(
                Timestamp(write.append.first),
                Position(write.position),
                write.append.last_confirmed,
                write.kind,
                write.vchannel,
                Term(1),
                body,
                None,
                None if write.session is None else write.session.id,
            )
        )

    def land(self) -> None:
        written = [each for each in self.writes if each.position]
        if written:
            write = self.random.choice(written)
            self.writes.remove(write)
            self.channel.acknowledge(write.append, write.position)
            self._tell(write)

    def lose(self) -> None:
        """A write is known to be absent."""
        waiting = [each for each in self.writes if not each.position and self._may_be_written(each)]
        if waiting:
            write = self.random.choice(waiting)
            self.writes.remove(write)
            self.channel.fail(write.append)
            session = write.session
            match write.kind:
                case MessageType.BEGIN if session:
                    self.sessions.begin_failed(session)
                case MessageType.COMMIT if session:
                    self.random.choice((session.commit_failed, session.reject_commit))()
                case MessageType.ROLLBACK if session:
                    session.rollback_done()
                case _ if session:
                    session.fail_body()
                    self.body_lost.add(session.id)

    def _tell(self, write: Write) -> None:
        session = write.session
        match write.kind:
            case MessageType.BEGIN if session:
                session.begun(write.position)
            case MessageType.COMMIT if session:
                session.commit_done(write.append.first)
            case MessageType.ROLLBACK if session:
                session.rollback_done()
            case _ if session:
                session.done(write.append.first, write.position, 1, 3)

    def drain(self) -> None:
        while self.writes:
            self.place()
            self.land()

    def exclusive(self) -> None:
        """Seldom, a DDL. It has its virtual channel to itself; here it waits for everything, which is stricter."""
        if self.random.random() < 0.95:
            return
        self.drain()
        vchannel, tick = self.random.choice((*VCHANNELS, ALL_VCHANNELS)), self.tick()
        self.start(MessageType.DDL, vchannel, None, tick)
        self.drain()
        expected = [
            each for each in self.sessions if each.is_open and (vchannel == ALL_VCHANNELS or vchannel in each.vchannels)
        ]
        assert self.sessions.fail_at(vchannel, tick, "DDL") == expected

    def time_tick(self) -> None:
        plan = self.channel.plan_tick(self.tick())
        if plan is None:
            return
        tick = int(plan.time_tick)
        known = list(self.sessions)
        idle = [each for each in known if each.state is SessionState.IN_FLIGHT and not each.in_flight]
        late = {each.id for each in idle if tick >= each.expiry_tick}
        # A call with a later TimeTick may have found them expired before the watermark gets there.
        early = {each.id for each in idle if each.expired}
        gone = {each.id for each in self.sessions.cleanup_until(tick)}
        assert late <= gone <= late | early
        over = {each.id for each in known if each.has_ended and each.end_tick is not None and each.end_tick <= tick}
        assert {each.id for each in self.sessions} == {each.id for each in known} - gone - over
        self.channel.tick_appended(plan)
        self.promised.append((tick, int(self.channel.last_confirmed.position)))

    def check(self) -> None:
        confirmed = self.channel.confirmed
        for session in self.all:
            if session.is_resolved(confirmed):
                self.resolved.setdefault(session.id, confirmed)
            else:
                assert session.id not in self.resolved, "what was resolved is not any more"
        unresolved = [each for each in self.sessions if each.id not in self.resolved and each.first_position]
        first = self.sessions.first_position
        oldest = min((each.first_position or 0 for each in unresolved), default=None)
        if oldest is not None:
            assert first is not None
            assert first <= oldest
        if first is not None:
            assert first in {each.first_position for each in self.sessions}

    def live(self, steps: int, *, calm: bool = False) -> Life:
        doing = [self.begin, self.body, self.body, self.end, self.plain, self.place, self.place, self.land, self.land]
        doing += [self.lose, self.time_tick] + ([] if calm else [self.exclusive])
        for _ in range(steps):
            self.random.choice(doing)()
            self.check()
        return self


@given(seeds, st.integers(10, 250))
def test_reading_from_last_confirmed_misses_nothing_that_is_later(seed: int, steps: int) -> None:
    """Seed 000, the guarantee of LastConfirmedMessageID, with time-log facts 12 and 38: whatever message or tick one
    starts from, plain messages above its TimeTick and transactions committed above it lie at or behind its place,
    their BEGIN included. The history also checks, at every step, that a session said to be resolved stays so."""
    life = Life(Random(seed)).live(steps)
    life.drain()
    life.time_tick()
    begins = {each.txn: int(each.position) for each in life.log if each.type is MessageType.BEGIN}
    later = [(int(each.time_tick), int(each.position)) for each in life.log if each.txn is None]
    later += [(int(each.time_tick), begins[each.txn]) for each in life.log if each.type is MessageType.COMMIT]
    starts = [*life.promised, *((int(each.time_tick), int(each.last_confirmed)) for each in life.log)]
    for tick, place in starts:
        for its_tick, first in later:
            assert its_tick <= tick or first >= place


@given(seeds, st.integers(10, 250))
def test_every_session_is_over_exactly_once(seed: int, steps: int) -> None:
    """Time-log fact 23, over arbitrary histories; at each tick, what goes is what a scan of all sessions would find."""
    life = Life(Random(seed)).live(steps)
    assert max(life.ends.values(), default=1) == 1
    life.drain()
    life.sessions.close()
    life.sessions.rollback_all(life.tick(), "closing")
    assert life.sessions.is_idle
    assert life.sessions.first_position is None
    assert life.ends == Counter({each.id: 1 for each in life.all})


def as_batch(messages: list[Message]) -> Batch:
    names = (*VCHANNELS, ALL_VCHANNELS)
    return Batch(
        np.array([each.time_tick for each in messages], np.uint64),
        np.array([each.position for each in messages], np.uint64),
        np.zeros(len(messages), np.uint64),
        np.array([each.type for each in messages], np.uint8),
        np.array([names.index(each.vchannel) for each in messages], np.uint16),
        names,
        body_rows([each.body or b"" for each in messages]),
        Term(1),
        np.frombuffer(b"".join(each.txn or bytes(16) for each in messages), "V16"),
    )


def described(sessions: Sessions, without: set[bytes]) -> dict[bytes, tuple[object, ...]]:
    return {
        each.id: (each.keepalive_ms, each.begin_tick, each.last_tick, each.first_position, each.runs, each.vchannels)
        for each in sessions
        if each.id not in without
    }


@given(seeds, st.integers(10, 250), st.booleans(), st.data())
def test_a_restart_finds_what_was_open(seed: int, steps: int, calm: bool, data: st.DataObject) -> None:
    """Promise 6; time-log 8, fact 60: the fold over the raw log gives back the sessions that lived, however the
    messages are handed over. Apart from those which had a rejected commit, a lost ROLLBACK or a lost body: the log
    does not know of these, and they expire in their own time."""
    life = Life(Random(seed)).live(steps, calm=calm)
    life.drain()
    life.time_tick()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(life.log)), max_size=6)))
    found = RecoveredSessions()
    for start, stop in zip([0, *cuts], [*cuts, len(life.log)]):
        part = life.log[start:stop]
        if part and data.draw(st.booleans()):
            found.fold_batch(as_batch(part))
        else:
            for message in part:
                found.fold(message)
    recovered = Sessions("c")
    expired = recovered.recover(found, life.channel.synced)
    assert all(each.expiry_tick <= life.channel.synced for each in expired)

    written = {each.txn for each in life.log if each.type in (MessageType.COMMIT, MessageType.ROLLBACK)}
    unknown = {each.id for each in life.all if each.has_ended and each.id not in written}
    # Expired by a late call while a body was on its way, which then renewed the lease in the log.
    unknown |= {each.id for each in life.all if each.expired and each.expiry_tick > life.channel.synced}
    unknown |= life.body_lost
    assert described(recovered, unknown) == described(life.sessions, unknown)
