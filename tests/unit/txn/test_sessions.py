"""All transactions open in one channel, and what a restart finds of them. Seed 000; time-log reference 6 and 8."""

from __future__ import annotations

import numpy as np
import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Backpressure,
    Closed,
    InvalidArgument,
    InvalidTransactionState,
    InvariantBroken,
    TransactionAborted,
    TransactionExpired,
)
from tidegate.log.batch import Batch, body_rows
from tidegate.log.last_confirmed import LastConfirmed
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType, Position, Term
from tidegate.txn.session import Session, SessionState, encode_begin
from tidegate.txn.sessions import RecoveredSessions, Sessions

T0 = int(Timestamp.compose(1_700_000_000_000))


def at(ms: int) -> int:
    return T0 + (ms << 18)


def txn(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Ends:
    """Counts how often each session was said to be over."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def __call__(self, session: Session) -> None:
        self.seen.append(session.id)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def sessions(ends: Ends) -> Sessions:
    return Sessions("c", on_end=ends)


def begin(
    sessions: Sessions, number: int, keepalive_ms: int | None = 10, vchannel: str = "v1", position: int | None = None
) -> Session:
    session = sessions.begin(txn(number), T0, keepalive_ms, vchannel)
    session.begun(1000 + number if position is None else position)
    return session


def commit(session: Session, tick: int) -> None:
    session.request_commit(tick)
    session.commit_done(tick)


# -- beginning and finding -----------------------------------------------------------------------------------------


def test_a_session_is_found_by_its_id_and_an_unknown_id_has_expired(sessions: Sessions) -> None:
    """Time-log fact 27."""
    session = begin(sessions, 1)
    assert sessions.get(txn(1)) is session
    with pytest.raises(TransactionExpired, match=f"{txn(2).hex()} is not known here.*'c'"):
        sessions.get(txn(2))


def test_keepalive_zero_is_the_channels_default() -> None:
    """Time-log fact 27."""
    sessions = Sessions("c", keepalive_ms_default=77)
    assert begin(sessions, 1, 0).keepalive_ms == 77
    assert begin(sessions, 2, None).keepalive_ms is None
    with pytest.raises(InvalidArgument):
        begin(sessions, 3, -1)
    assert len(sessions) == 2


def test_an_id_is_begun_once(sessions: Sessions) -> None:
    begin(sessions, 1)
    with pytest.raises(InvalidTransactionState, match="begun already"):
        begin(sessions, 1)


def test_the_number_of_sessions_is_bounded() -> None:
    sessions = Sessions("c", sessions_max=2)
    first = begin(sessions, 1)
    begin(sessions, 2)
    with pytest.raises(Backpressure, match="sessions_max"):
        begin(sessions, 3)
    commit(first, at(1))
    sessions.cleanup_until(at(1))
    begin(sessions, 3)


def test_a_session_whose_begin_was_not_written_is_forgotten(sessions: Sessions, ends: Ends) -> None:
    session = sessions.begin(txn(1), T0, None, "v1")
    sessions.begin_failed(session)
    sessions.begin_failed(session)
    assert sessions.is_idle
    assert ends.seen == [txn(1)]
    with pytest.raises(TransactionAborted, match="BEGIN could not be written"):
        session.add(at(1), "v1")
    with pytest.raises(InvariantBroken):
        sessions.begin_failed(begin(sessions, 2))


# -- ticks ---------------------------------------------------------------------------------------------------------


def test_closing_waits_for_twenty_sessions_and_each_is_said_to_be_over_once(sessions: Sessions, ends: Ends) -> None:
    """Time-log fact 23: keepalives of 1 to 20 ms; a third commits, a third rolls back, a third is left alone."""
    for number in range(1, 21):
        session = begin(sessions, number, number)
        if number % 3 == 0:
            commit(session, T0 + 1)
        elif number % 3 == 1:
            session.request_rollback(T0 + 1)
            session.rollback_done()
    sessions.close()
    with pytest.raises(Closed, match="'c'"):
        begin(sessions, 99)
    assert not sessions.is_idle
    expired = sessions.cleanup_until(at(10))
    assert [each.id for each in expired] == [txn(number) for number in (2, 5, 8)]
    assert not sessions.is_idle
    assert [each.id for each in sessions.cleanup_until(at(20))] == [txn(number) for number in (11, 14, 17, 20)]
    assert sessions.is_idle
    assert sorted(ends.seen) == [txn(number) for number in range(1, 21)]
    assert sessions.cleanup_until(at(99)) == []
    assert len(ends.seen) == 20


def test_closing_with_nothing_open_is_idle_at_once_and_with_one_open_is_not(sessions: Sessions) -> None:
    """Time-log fact 28."""
    sessions.close()
    assert sessions.is_idle
    other = Sessions("c")
    session = begin(other, 1, None)
    other.close()
    assert not other.is_idle
    commit(session, at(1))
    other.cleanup_until(at(1))
    assert other.is_idle


def test_a_renewed_lease_is_honoured(sessions: Sessions) -> None:
    session = begin(sessions, 1, 10)
    session.add(at(9), "v1")
    session.done(at(9), 2000)
    assert sessions.cleanup_until(at(19) - 1) == []
    assert sessions.cleanup_until(at(19)) == [session]
    assert session.expired
    with pytest.raises(TransactionExpired):
        sessions.get(txn(1))


def test_a_session_with_a_body_or_its_commit_on_the_way_is_not_cleaned_up(sessions: Sessions) -> None:
    busy, commits = begin(sessions, 1), begin(sessions, 2)
    busy.add(at(9), "v1")
    commits.request_commit(at(9))
    assert sessions.cleanup_until(at(10)) == []
    busy.fail_body()
    commits.commit_failed()
    assert sessions.cleanup_until(at(10)) == [busy, commits]


def test_a_session_that_was_presented_a_late_tick_goes_with_the_next_cleanup(sessions: Sessions, ends: Ends) -> None:
    """Also when a body that was on its way has renewed the lease since: expired is for ever."""
    session = begin(sessions, 1)
    session.add(at(9), "v1")
    with pytest.raises(TransactionExpired):
        session.add(at(10), "v1")
    assert sessions.cleanup_until(at(10)) == []
    session.done(at(9), 2000)
    assert sessions.cleanup_until(at(10)) == [session]
    assert ends.seen == [txn(1)]


def test_an_ended_session_is_kept_until_a_tick_covers_its_end(sessions: Sessions, ends: Ends) -> None:
    """It is not resolved before, so it still says where reading has to begin."""
    session = begin(sessions, 1, None, position=7)
    commit(session, at(5))
    sessions.cleanup_until(at(5) - 1)
    assert sessions.first_position == 7
    assert ends.seen == []
    sessions.cleanup_until(at(5))
    assert sessions.first_position is None
    assert ends.seen == [txn(1)]


def test_a_rejected_commit_is_cleaned_up_once(sessions: Sessions, ends: Ends) -> None:
    """Time-log fact 25."""
    session = begin(sessions, 1)
    session.request_commit(at(1))
    session.reject_commit()
    for _ in range(3):
        sessions.cleanup_until(at(1))
    assert ends.seen == [txn(1)]
    assert sessions.is_idle


def test_ten_thousand_open_sessions_cost_nothing_per_tick(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 10_001):
        begin(sessions, number, 10_000 + number)
    looked: list[int] = []
    was = Session.expire
    monkeypatch.setattr(Session, "expire", lambda self, tick: looked.append(tick) or was(self, tick))
    for tick in range(200, 10_001, 200):
        assert sessions.cleanup_until(at(tick)) == []
        assert sessions.first_position == 1001
    assert looked == []
    assert len(sessions.cleanup_until(at(10_003))) == len(looked) == 3


def test_one_old_session_does_not_keep_the_traces_of_all_that_followed(sessions: Sessions) -> None:
    """Bounds on everything: the heaps are skipped through lazily, but not for ever."""
    begin(sessions, 1, None, position=1)
    for number in range(2, 5000):
        commit(begin(sessions, number, 60_000), T0 + number)
        sessions.cleanup_until(T0 + number)
    assert len(sessions) == 1
    assert sessions.first_position == 1
    assert len(sessions._by_position) < 100
    assert len(sessions._by_expiry) < 100


# -- exclusive appends ---------------------------------------------------------------------------------------------


def test_an_exclusive_append_fails_what_is_open_in_its_virtual_channel_and_nothing_else(
    sessions: Sessions, ends: Ends
) -> None:
    """Seed 000, Force-fail; time-log facts 29 and 31. A session may have written to several virtual channels."""
    here, there, both = begin(sessions, 1), begin(sessions, 2, vchannel="v2"), begin(sessions, 3, vchannel="v2")
    both.add(at(1), "v1")
    both.done(at(1), 2000)
    assert sessions.fail_at("v1", at(2), "DDL on 'v1'") == [here, both]
    for number in (1, 3):
        with pytest.raises(TransactionAborted, match="DDL on 'v1'"):
            sessions.get(txn(number))
    with pytest.raises(TransactionAborted, match="DDL on 'v1'"):
        here.request_commit(at(3))
    commit(sessions.get(txn(2)), at(3))
    assert there.state is SessionState.COMMITTED
    assert ends.seen == [txn(1), txn(3)]


def test_an_exclusive_append_for_all_virtual_channels_fails_everything_open(sessions: Sessions) -> None:
    """Time-log 4.2."""
    opened = [begin(sessions, 1), begin(sessions, 2, vchannel="v2"), begin(sessions, 3, vchannel=ALL_VCHANNELS)]
    assert sessions.fail_at(ALL_VCHANNELS, at(2), "DDL") == opened
    assert sessions.is_idle


def test_an_accepted_commit_is_not_failed(sessions: Sessions) -> None:
    """Its COMMIT may be part of the log already, and nobody may be told that nothing of it remains."""
    session = begin(sessions, 1)
    session.request_commit(at(1))
    assert sessions.fail_at("v1", at(2), "DDL") == []
    session.commit_done(at(1))
    assert sessions.get(txn(1)).state is SessionState.COMMITTED


def test_a_failed_session_no_longer_says_where_reading_begins(sessions: Sessions) -> None:
    """Improves on time-log 5.1, where it stays pinned for as long as its keepalive."""
    begin(sessions, 1, None, "v1", position=5)
    begin(sessions, 2, None, "v2", position=9)
    sessions.fail_at("v1", at(1), "DDL")
    assert sessions.first_position == 9


def test_what_is_remembered_of_failed_sessions_is_bounded(sessions: Sessions) -> None:
    for number in range(1, 2001):
        begin(sessions, number)
        sessions.fail_at("v1", at(1), "DDL")
    with pytest.raises(TransactionExpired, match="not known here"):
        sessions.get(txn(1))
    with pytest.raises(TransactionAborted, match="DDL"):
        sessions.get(txn(2000))


def test_rolling_back_all_leaves_nothing_and_tells_of_each_once(sessions: Sessions, ends: Ends) -> None:
    """Time-log fact 26: three sessions, one of them committed."""
    commit(begin(sessions, 1), at(1))
    opened = [begin(sessions, 2), begin(sessions, 3, vchannel="v2")]
    assert sessions.rollback_all(at(2), "promoted") == opened
    assert len(sessions) == 0
    assert sorted(ends.seen) == [txn(1), txn(2), txn(3)]
    with pytest.raises(TransactionAborted, match="promoted"):
        sessions.get(txn(3))


def test_rolling_back_all_takes_the_expired_and_leaves_an_accepted_commit(sessions: Sessions) -> None:
    expired, commits = begin(sessions, 1), begin(sessions, 2)
    commits.request_commit(at(1))
    assert expired.is_resolved(at(10))
    assert sessions.rollback_all(at(10), "promoted") == [expired]
    assert list(sessions) == [commits]


# -- where the oldest begins ---------------------------------------------------------------------------------------


def test_the_first_position_is_that_of_the_unresolved_session_which_begins_first(sessions: Sessions) -> None:
    assert sessions.first_position is None
    unwritten = sessions.begin(txn(1), T0, 10, "v1")
    assert sessions.first_position is None
    begin(sessions, 2, position=50)
    third = begin(sessions, 3, 20, position=40)
    assert sessions.first_session is third
    commit(third, at(2))
    sessions.cleanup_until(at(2))
    assert sessions.first_position == 50
    unwritten.begun(45)
    assert sessions.first_position == 45
    assert unwritten.is_resolved(at(10))
    assert sessions.first_position == 50, "LastConfirmedMessageID has passed the other already"


# -- recovery ------------------------------------------------------------------------------------------------------


class Raw:
    """A log's messages in physical order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(
        self, kind: MessageType, tick: int, number: int = 0, vchannel: str = "v1", body: bytes = b"row"
    ) -> Raw:
        position = Position(len(self.messages) + 1)
        self.messages.append(
            Message(
                Timestamp(tick),
                position,
                Position(0),
                kind,
                vchannel,
                Term(1),
                body,
                None,
                txn(number) if number else None,
            )
        )
        return self

    def begin(self, tick: int, number: int, vchannel: str = "v1", keepalive_ms: int | None = 10) -> Raw:
        return self(MessageType.BEGIN, tick, number, vchannel, encode_begin(keepalive_ms))

    def batch(self) -> Batch:
        names = tuple(dict.fromkeys(each.vchannel for each in self.messages))
        return Batch(
            np.array([each.time_tick for each in self.messages], np.uint64),
            np.array([each.position for each in self.messages], np.uint64),
            np.zeros(len(self.messages), np.uint64),
            np.array([each.type for each in self.messages], np.uint8),
            np.array([names.index(each.vchannel) for each in self.messages], np.uint16),
            names,
            body_rows([each.body or b"" for each in self.messages]),
            Term(1),
            np.frombuffer(b"".join(each.txn or bytes(16) for each in self.messages), "V16"),
        )

    def folded(self) -> RecoveredSessions:
        found = RecoveredSessions()
        for message in self.messages:
            found.fold(message)
        whole = RecoveredSessions()
        whole.fold_batch(self.batch())
        assert described(found) == described(whole)
        return found


def described(found: RecoveredSessions) -> list[tuple[object, ...]]:
    return [
        (each.id, each.begin_tick, each.last_tick, each.first_position, each.runs, each.count, each.vchannels)
        for each in found
    ]


INSERT, COMMIT, ROLLBACK, DDL = MessageType.INSERT, MessageType.COMMIT, MessageType.ROLLBACK, MessageType.DDL


def test_recovery_finds_what_is_open_at_the_end_of_the_log(sessions: Sessions) -> None:
    """Time-log section 8: the sessions of a restarted channel are its uncommitted transactions."""
    raw = Raw().begin(at(0), 1).begin(at(0) + 1, 2).begin(at(0) + 2, 3)
    raw(INSERT, at(1), 1)(INSERT, at(1) + 1, 1)(INSERT, at(1) + 2, 2)(INSERT, at(1) + 3)(INSERT, at(2), 1, "v2")
    raw(COMMIT, at(3), 2)(ROLLBACK, at(3) + 1, 3)
    assert sessions.recover(raw.folded(), at(4)) == []
    (session,) = sessions
    assert session is sessions.get(txn(1))
    assert (session.runs, session.count, session.vchannels) == ([(4, 2), (8, 1)], 3, {"v1", "v2"})
    assert (session.begin_tick, session.last_tick, session.first_position) == (at(0), at(2), 1)
    assert session.keepalive_ms == 10
    assert sessions.first_position == 1


def test_a_recovered_session_goes_on_and_is_committed_whole(sessions: Sessions) -> None:
    """Time-log fact 59: begun in term 1, two crashes, committed in term 3."""
    raw = Raw().begin(at(0), 1, keepalive_ms=None)(INSERT, at(1), 1)
    Sessions("c").recover(raw.folded(), at(1000))
    raw(MessageType.TIME_TICK, at(2000), 0, ALL_VCHANNELS)
    sessions.recover(raw.folded(), at(3000))
    session = sessions.get(txn(1))
    last = LastConfirmed(Position(min(3, session.first_position or 3)))
    last.add(session.first_position or 0, end=at(3000), session=session)
    last.add(4, end=at(3000))
    assert last.advance(at(4000)) <= 1, "whoever starts from here sees its BEGIN"
    session.add(at(4000), "v1")
    session.done(at(4000), 4)
    commit(session, at(5000))
    assert session.runs == [(2, 1), (4, 1)]
    assert last.advance(at(5000)) == 4
    sessions.cleanup_until(at(5000))
    assert sessions.recover_done


def test_where_reading_begins_after_a_restart() -> None:
    """Time-log fact 41: at the first tick, or before it at the first message of what is open."""
    first_tick = 5
    found = []
    for opened in ([], [2], [2, 1]):
        sessions = Sessions("c")
        recovered = RecoveredSessions()
        for position in opened:
            recovered.fold(
                Message(Timestamp(T0 + position), Position(position), Position(0), MessageType.BEGIN, "v1", Term(1),
                        encode_begin(None), None, txn(position))
            )  # fmt: skip
        sessions.recover(recovered, at(1))
        found.append(min(first_tick, sessions.first_position or first_tick))
    assert found == [5, 2, 1]


def test_bodies_without_a_begin_are_passed_over(sessions: Sessions) -> None:
    """A transaction written at once has none; nor has one that was resolved before the place where reading began."""
    raw = Raw()(INSERT, at(1), 1)(INSERT, at(1) + 1, 1)(COMMIT, at(1) + 2, 1)(INSERT, at(2), 2)(ROLLBACK, at(3), 3)
    sessions.recover(raw.folded(), at(4))
    assert sessions.is_idle
    assert sessions.recover_done


def test_time_went_on_while_the_channel_was_down(sessions: Sessions, ends: Ends) -> None:
    """Expiry is judged by the current TimeTick and by the last body."""
    raw = Raw().begin(at(0), 1).begin(at(0) + 1, 2)(INSERT, at(9), 2)
    expired = sessions.recover(raw.folded(), at(10))
    assert [each.id for each in expired] == [txn(1)] == ends.seen
    assert [each.id for each in sessions] == [txn(2)]
    assert not sessions.recover_done
    assert [each.id for each in sessions.cleanup_until(at(19))] == [txn(2)]
    assert sessions.recover_done


@pytest.mark.parametrize(("vchannel", "left"), [("v1", [2]), ("v2", [1, 2]), ("v3", [1, 3]), (ALL_VCHANNELS, [])])
def test_an_exclusive_message_in_the_log_ends_what_was_open_there(
    sessions: Sessions, vchannel: str, left: list[int]
) -> None:
    """Time-log fact 60: no ROLLBACK of a failed transaction is in the log, and recovery must not revive it."""
    raw = Raw().begin(at(0), 1).begin(at(0) + 1, 2, "v3").begin(at(0) + 2, 3)(INSERT, at(1), 3, "v2")
    raw(DDL, at(2), 0, vchannel)(INSERT, at(3), 3)
    sessions.recover(raw.folded(), at(4))
    assert [each.id for each in sessions] == [txn(number) for number in left]


def test_a_session_begun_after_an_exclusive_message_is_not_ended_by_it(sessions: Sessions) -> None:
    sessions.recover(Raw()(DDL, at(0)).begin(at(1), 1).folded(), at(2))
    assert len(sessions) == 1


def test_recovery_is_done_when_every_recovered_session_is_gone(sessions: Sessions) -> None:
    """Time-log fact 24: sessions on v1, v2, v1."""
    assert sessions.recover_done
    sessions.recover(Raw().begin(at(0), 1).begin(at(0) + 1, 2, "v2").begin(at(0) + 2, 3).folded(), at(1))
    begin(sessions, 4, None, "v4")
    assert not sessions.recover_done
    sessions.fail_at("v1", at(2), "DDL")
    assert not sessions.recover_done
    sessions.fail_at("v2", at(3), "DDL")
    assert sessions.recover_done
    assert len(sessions) == 1


def test_recovery_is_done_when_all_were_rolled_back(sessions: Sessions) -> None:
    """Time-log fact 26."""
    sessions.recover(Raw().begin(at(0), 1).begin(at(0) + 1, 2, "v2").folded(), at(1))
    assert len(sessions.rollback_all(at(2), "promoted")) == 2
    assert sessions.recover_done


def test_a_repeated_begin_changes_nothing(sessions: Sessions) -> None:
    sessions.recover(Raw().begin(at(0), 1)(INSERT, at(1), 1).begin(at(2), 1).folded(), at(3))
    assert (sessions.get(txn(1)).first_position, sessions.get(txn(1)).count) == (1, 1)


def test_a_begin_that_cannot_be_read_is_named() -> None:
    raw = Raw()(MessageType.BEGIN, at(0), 1, body=b"\x09" + bytes(8))
    with pytest.raises(InvalidArgument, match=f"{txn(1).hex()} at 1: .*version 9"):
        raw.folded()


def test_a_batch_without_transactions_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecoveredSessions, "_step", lambda *_: pytest.fail("looked at a plain message"))
    raw = Raw()
    for number in range(50):
        raw(INSERT, at(number))
    RecoveredSessions().fold_batch(raw.batch())


def test_bodies_side_by_side_are_taken_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work per row on hot paths."""
    raw = Raw().begin(at(0), 1)
    for number in range(1000):
        raw(INSERT, at(1) + number, 1)
    steps = []
    was = RecoveredSessions._step
    monkeypatch.setattr(RecoveredSessions, "_step", lambda self, *rest: steps.append(rest) or was(self, *rest))
    found = RecoveredSessions()
    found.fold_batch(raw.batch())
    (session,) = found
    assert len(steps) == 2
    assert (session.runs, session.last_tick) == ([(2, 1000)], at(1) + 999)
    assert session.nbytes >= 3000
