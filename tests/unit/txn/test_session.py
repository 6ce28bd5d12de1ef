"""One transaction in one channel. Seed 000, "Transaction Lifecycle"; time-log reference, section 6."""

from __future__ import annotations

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    InvalidArgument,
    InvalidTransactionState,
    InvariantBroken,
    LimitExceeded,
    TransactionAborted,
    TransactionExpired,
)
from tidegate.log.channel import Channel
from tidegate.log.last_confirmed import LastConfirmed
from tidegate.log.message import Position, Term
from tidegate.txn.session import (
    KEEPALIVE_MS_DEFAULT,
    NEVER,
    Session,
    SessionState,
    checked_keepalive,
    decode_begin,
    encode_begin,
)

ID = bytes(range(1, 17))
T0 = int(Timestamp.compose(1_700_000_000_000, 5))


def at(ms: int, logical: int = 0) -> int:
    """A TimeTick `ms` after the BEGIN; with the same logical part unless told otherwise."""
    return T0 + (ms << 18) + logical


def opened(keepalive_ms: int | None = 10, position: int = 100) -> Session:
    session = Session(ID, T0, keepalive_ms, "v1")
    session.begun(position)
    return session


def committed(end: int) -> Session:
    session = opened()
    session.request_commit(end)
    session.commit_done(end)
    return session


# -- the lease -----------------------------------------------------------------------------------------------------


def test_a_body_at_exactly_the_expiry_comes_too_late_and_so_does_every_one_after() -> None:
    """Time-log fact 20. The last TimeTick before the expiry is in time."""
    in_time = opened(10)
    in_time.add(at(10) - 1, "v1")
    session = opened(10)
    assert session.expiry_tick == at(10) == Timestamp(T0).add(milliseconds=10)
    with pytest.raises(TransactionExpired, match=f"{ID.hex()} cannot take another message.*10 ms"):
        session.add(at(10), "v1")
    with pytest.raises(TransactionExpired):
        session.add(at(1), "v1")
    with pytest.raises(TransactionExpired):
        session.request_commit(at(1))
    assert session.expired


def test_a_durable_body_renews_the_lease_and_a_failed_one_does_not() -> None:
    """Seed 000: each successful body append refreshes the lease."""
    session = opened(10)
    session.add(at(6), "v1")
    session.add(at(8), "v1")
    session.done(at(6), 101)
    assert session.expiry_tick == at(16)
    session.fail_body()
    assert session.expiry_tick == at(16)
    session.add(at(15), "v1")


def test_a_body_that_comes_back_late_does_not_take_the_lease_back() -> None:
    session = opened(10)
    session.add(at(3), "v1")
    session.add(at(7), "v1")
    session.done(at(7), 102)
    session.done(at(3), 101)
    assert session.last_tick == at(7)


def test_a_session_of_the_coordinator_never_expires() -> None:
    """Time-log fact 27: an infinite keepalive."""
    session = opened(None)
    assert session.expiry_tick == NEVER
    assert not session.is_resolved((1 << 64) - 1)
    session.add((1 << 64) - 2, "v1")
    assert not session.expired


def test_keepalive_zero_is_the_default_and_less_than_a_millisecond_is_refused() -> None:
    """Time-log fact 27."""
    assert Session(ID, T0, 0).keepalive_ms == KEEPALIVE_MS_DEFAULT == 10_000
    assert checked_keepalive(1) == 1
    assert checked_keepalive(0, default=77) == 77
    for wrong in (-1, 1 << 46):
        with pytest.raises(InvalidArgument, match="milliseconds"):
            Session(ID, T0, wrong)
    with pytest.raises(InvalidArgument, match=r"0\.5"):
        checked_keepalive(0.5)  # type: ignore[arg-type]


def test_an_id_is_sixteen_bytes_and_not_the_one_that_means_none() -> None:
    for wrong in (b"", b"short", bytes(16), bytes(17)):
        with pytest.raises(InvalidArgument, match="16 bytes"):
            Session(wrong, T0)


# -- commit and rollback -------------------------------------------------------------------------------------------


def test_a_body_then_a_commit() -> None:
    """Time-log fact 21, first half."""
    session = opened()
    session.add(at(1), "v1")
    session.done(at(1), 101)
    assert session.request_commit(at(2)) is False
    assert session.state is SessionState.ON_COMMIT
    assert session.is_ready
    session.commit_done(at(2))
    assert session.state is SessionState.COMMITTED
    assert session.end_tick == at(2)


def test_a_commit_takes_no_more_bodies_and_is_ready_when_those_on_their_way_have_landed() -> None:
    """Seed 000: the session tracks what is in flight. Requesting never waits."""
    session = opened()
    session.add(at(1), "v1")
    session.add(at(2), "v2")
    assert session.request_commit(at(3)) is True
    assert not session.is_ready
    with pytest.raises(InvalidTransactionState, match="committing") as refused:
        session.add(at(4), "v1")
    assert refused.value.state == "ON_COMMIT"
    session.done(at(1), 101)
    with pytest.raises(InvariantBroken):
        session.commit_done(at(3))
    session.fail_body()
    assert session.is_ready
    session.commit_done(at(3))
    assert session.vchannels == {"v1", "v2"}


def test_whoever_gives_up_waiting_may_ask_again_until_the_expiry() -> None:
    """Time-log fact 21, second half: the wait for a body ends without a commit; then the commit comes too late."""
    session = opened(10)
    session.add(at(1), "v1")
    assert session.request_commit(at(2))
    session.commit_failed()
    assert session.state is SessionState.IN_FLIGHT
    with pytest.raises(TransactionExpired):
        session.request_commit(at(10))


def test_a_commit_known_to_be_absent_may_be_requested_again() -> None:
    session = opened()
    session.request_commit(at(2))
    session.commit_failed()
    assert session.end_tick is None
    session.add(at(3), "v1")
    session.done(at(3), 101)
    session.request_commit(at(4))
    session.commit_done(at(4))
    assert session.state is SessionState.COMMITTED


def test_a_commit_of_another_timestamp_than_the_one_held() -> None:
    """Cross-channel commit: a channel holds a TimeTick, and the commit's is above it. Below it is a defect."""
    session = opened(None)
    session.request_commit(at(2))
    with pytest.raises(InvariantBroken):
        session.commit_done(at(1))
    session.commit_done(at(9))
    assert session.end_tick == at(9)


def test_a_commit_stands_above_every_body() -> None:
    """Promise 2: in TimeTick order all bodies come before their commit, or a reader would leave one out."""
    session = opened()
    with pytest.raises(InvariantBroken):
        session.add(T0, "v1")
    session.add(at(3), "v1")
    with pytest.raises(InvariantBroken):
        session.request_commit(at(3))
    assert session.request_commit(at(3) + 1)
    session.done(at(3) + 9, 101, 10)
    with pytest.raises(InvariantBroken):
        session.commit_done(at(3) + 5)
    session.commit_done(at(3) + 10)


def test_a_rollback_in_time_and_one_at_the_expiry() -> None:
    """Time-log fact 22."""
    late = opened(10)
    with pytest.raises(TransactionExpired, match="cannot be rolled back"):
        late.request_rollback(at(10))
    session = opened(10)
    session.add(at(1), "v1")
    assert session.request_rollback(at(2)) is True
    assert session.state is SessionState.ON_ROLLBACK
    session.done(at(1), 101)
    assert session.is_ready
    session.rollback_done()
    assert session.state is SessionState.ROLLED_BACK


def test_a_commit_that_is_rejected_is_rolled_back() -> None:
    """Time-log fact 25, first half."""
    session = opened()
    session.request_commit(at(2))
    session.reject_commit()
    assert session.state is SessionState.ROLLED_BACK
    with pytest.raises(InvalidTransactionState, match="rolled back"):
        session.request_commit(at(3))


def test_a_commit_of_unknown_outcome_counts_as_committed() -> None:
    """Time-log fact 25, second half: it may be part of the log, so nobody may begin to believe the opposite."""
    session = committed(at(2))
    for call in (session.request_commit, session.request_rollback):
        with pytest.raises(InvalidTransactionState, match="committed"):
            call(at(3))
    assert session.state is SessionState.COMMITTED


def test_an_end_in_the_wrong_state_is_a_defect() -> None:
    """Time-log section 6."""
    session = opened()
    for call in (
        lambda: session.commit_done(at(1)), session.rollback_done, session.reject_commit, session.commit_failed,
        session.fail_body, lambda: session.done(at(1), 101), lambda: session.begun(7),
    ):  # fmt: skip
        with pytest.raises(InvariantBroken, match=ID.hex()):
            call()
    session.request_rollback(at(1))
    for call in (lambda: session.commit_done(at(1)), session.reject_commit, session.commit_failed):
        with pytest.raises(InvariantBroken):
            call()


def test_a_body_without_a_begin_in_the_log_is_a_defect() -> None:
    session = Session(ID, T0, 10, "v1")
    session.add(at(1), "v1")
    with pytest.raises(InvariantBroken, match="BEGIN"):
        session.done(at(1), 101)


def test_an_accepted_commit_does_not_expire() -> None:
    """Here time-log section 6 is left: TransactionExpired says that nothing remains, which would be untrue of a session
    whose COMMIT may be in the log, and would resolve it too early."""
    session = opened(10)
    session.request_commit(at(2))
    with pytest.raises(InvalidTransactionState):
        session.request_commit(at(10))
    assert not session.is_resolved(at(10))
    assert not session.expired
    session.commit_done(at(2))


# -- force-fail ----------------------------------------------------------------------------------------------------


def test_a_failed_session_says_why_and_when() -> None:
    """Seed 000, Force-fail; time-log fact 31."""
    session = opened(10)
    assert session.fail(at(3), "DDL on 'v1'")
    late = (lambda: session.add(at(4), "v1"), lambda: session.request_commit(at(99)))
    for call in (*late, lambda: session.request_rollback(at(4))):
        with pytest.raises(TransactionAborted, match=r"DDL on 'v1'; .*run it again") as refused:
            call()
        assert refused.value.reason == "DDL on 'v1'"
        assert str(at(3)) in str(refused.value)
        assert not isinstance(refused.value, TransactionExpired)
    assert not session.fail(at(5), "again")
    assert session.failed_tick == at(3)


def test_a_session_that_commits_has_ended_or_has_expired_is_not_failed() -> None:
    commits = opened()
    commits.request_commit(at(1))
    rolls_back = opened()
    rolls_back.request_rollback(at(1))
    expired = opened()
    assert expired.expire(at(10))
    for session in (commits, rolls_back, expired, committed(at(1))):
        assert not session.fail(at(11), "DDL")
        assert not session.failed


# -- what it records -----------------------------------------------------------------------------------------------


def test_bodies_are_recorded_as_runs_in_whatever_order_they_come_back() -> None:
    """Design: a commit marker names the positions and number of its bodies."""
    session = opened(position=100)
    for _ in range(6):
        session.add(at(1), "v1")
    session.done(at(1), 110, 5, 50)
    session.done(at(1), 130)
    session.done(at(1), 101, 2)
    assert session.runs == [(101, 2), (110, 5), (130, 1)]
    session.done(at(1), 115, 15, 7)
    assert session.runs == [(101, 2), (110, 21)]
    session.done(at(1), 103, 7)
    assert session.runs == [(101, 30)]
    session.done(at(1), 131)
    assert session.runs == [(101, 31)]
    assert (session.count, session.nbytes, session.first_position) == (31, 57, 100)


@pytest.mark.parametrize("overlap", [(110, 1), (114, 1), (108, 3), (105, 50), (112, 9)])
def test_two_bodies_at_one_position_are_a_defect(overlap: tuple[int, int]) -> None:
    session = opened()
    session.add(at(1), "v1")
    session.add(at(1), "v1")
    session.done(at(1), 110, 5)
    with pytest.raises(InvariantBroken, match="two bodies"):
        session.done(at(1), *overlap)


def test_the_number_of_runs_is_bounded() -> None:
    session = Session(ID, T0, 10, runs_max=2)
    session.begun(100)
    session.add(at(1), "v1")
    session.add(at(1), "v1")
    with pytest.raises(LimitExceeded, match="session_runs_max"):
        session.add(at(1), "v1")
    session.done(at(1), 101)
    session.done(at(1), 102)
    assert session.runs == [(101, 2)]
    session.add(at(1), "v1")


def test_a_session_has_no_dictionary() -> None:
    """Thousands may live."""
    assert not hasattr(opened(), "__dict__")


# -- LastConfirmedMessageID ----------------------------------------------------------------------------------------


def test_a_session_is_resolved_when_the_watermark_reaches_its_end() -> None:
    """Seed 000, condition 2; OnCommit and OnRollback are not done (time-log 5.1)."""
    session = opened(None)
    assert not session.is_resolved(at(5))
    session.request_commit(at(2))
    assert not session.is_resolved(at(5))
    session.commit_done(at(4))
    assert not session.is_resolved(at(4) - 1)
    assert session.is_resolved(at(4))
    rolled_back = opened(None)
    rolled_back.request_rollback(at(2))
    assert not rolled_back.is_resolved(at(5))
    rolled_back.rollback_done()
    assert rolled_back.is_resolved(at(2))


def test_a_failed_session_is_resolved_at_once() -> None:
    """Time-log 5.1: upstream leaves it pinned until its keepalive is over, for ever when that is infinite."""
    session = opened(None)
    session.fail(at(3), "DDL")
    assert session.is_resolved(0)


def test_once_said_to_be_resolved_by_expiry_nothing_is_accepted_any_more() -> None:
    """LastConfirmedMessageID has moved behind it, so an older TimeTick presented late must not revive it."""
    session = opened(10)
    assert not session.is_resolved(at(10) - 1)
    session.add(at(9), "v1")
    session.fail_body()
    assert session.is_resolved(at(10))
    with pytest.raises(TransactionExpired):
        session.add(at(9, 1), "v1")
    with pytest.raises(TransactionExpired):
        session.request_commit(at(9, 2))
    assert session.is_resolved(at(1))


def test_a_body_on_its_way_keeps_a_session_from_being_resolved() -> None:
    """Its TimeTick was in time. The channel may confirm it, and much behind it, before the session hears that it is
    durable; that must not cost the transaction its life."""
    session = opened(10)
    session.add(at(9), "v1")
    assert not session.is_resolved(at(12))
    session.done(at(9), 101)
    assert not session.is_resolved(at(12))
    assert session.is_resolved(at(19))


def test_a_plain_message_written_behind_a_begin_does_not_hide_it() -> None:
    """Time-log fact 12: X (TimeTick 9, position 2) is confirmed while BEGIN (TimeTick 10, position 1) is on its way."""
    channel = Channel("c", Term(1), Timestamp(at(-1)), Position(0))
    session = Session(ID, at(2), 10)
    plain = channel.allocate(at(1), 1)
    begin = channel.allocate(at(2), 1, session=session)
    channel.acknowledge(plain, 2)
    assert channel.last_confirmed.position == 0
    channel.acknowledge(begin, 1)
    session.begun(1)
    later = channel.allocate(at(3), 1)
    channel.acknowledge(later, 3)
    assert channel.last_confirmed.position <= 1, "it would hide the transaction"
    session.request_commit(at(4))
    commit = channel.allocate(at(4), 1, session=session)
    channel.acknowledge(commit, 4)
    session.commit_done(at(4))
    channel.plan_tick(at(5))
    assert channel.last_confirmed.position == 4


def test_an_abandoned_session_lets_go_when_the_watermark_reaches_its_expiry() -> None:
    """Time-log 5.1: a long-lived transaction pins LastConfirmedMessageID until it is resolved or expires."""
    session = opened(10, position=7)
    last = LastConfirmed(Position(5))
    last.add(7, end=T0, session=session)
    last.add(9, end=T0)
    assert last.advance(at(10) - 1) <= 7
    assert last.advance(at(10)) == 9
    assert session.expired


# -- the body of BEGIN ---------------------------------------------------------------------------------------------


def test_the_body_of_begin_is_fixed() -> None:
    """It is part of the log's format: version, keepalive."""
    assert encode_begin(10_000).hex() == "01" + "1027000000000000"
    assert encode_begin(None).hex() == "01" + "ff" * 8
    assert decode_begin(encode_begin(0)) == KEEPALIVE_MS_DEFAULT
    assert decode_begin(encode_begin(None)) is None
    assert decode_begin(encode_begin(1) + b"more, one day") == 1


@pytest.mark.parametrize("wrong", [b"", b"\x01" * 8, b"\x02" + b"\x01" * 8, b"\x01" + bytes(8), b"\x01" + b"\x7f" * 8])
def test_what_is_no_body_of_begin_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidArgument):
        decode_begin(wrong)
