"""The coordinator from begin to end: seed 002, transactions.md sections 1, 2.9, 5, 7 and the facts named below."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Backpressure,
    InvalidArgument,
    InvalidTransactionState,
    InvariantBroken,
    LimitExceeded,
    Retryable,
    TransactionAborted,
    TransactionExpired,
    TransactionNotFound,
)
from tidegate.txn.coordinator import Coordinator
from tidegate.txn.coordinator_records import Transaction, TxnState
from tidegate.txn.coordinator_table import LEASE, TIMEOUT, CoordinatorSettings
from tidegate.txn.txn_id import TxnId

NOW = 1_000_000
AT = Timestamp(500)


def said(state: TxnState) -> str:
    """How a state is called to users: a decided commit is as good as done."""
    return "committed" if state is TxnState.COMMITTING else state.value


def coordinator(**settings: int) -> Coordinator:
    return Coordinator(3, CoordinatorSettings(**settings))


def apply(tc: Coordinator, record: bytes | None) -> Transaction:
    assert record is not None
    txn = tc.apply(record)
    assert txn is not None
    return txn


def registered(tc: Coordinator, counter: int, *participants: str, client: str = "") -> Transaction:
    id = tc.begin(counter, NOW, client=client).id
    return apply(tc, tc.plan_register(id, participants or ("channel/c0",)))


def committing(tc: Coordinator, counter: int, at: int = 500) -> Transaction:
    id = registered(tc, counter).id
    return apply(tc, tc.plan_commit(id, Timestamp(at), (), b"plan"))


def aborting(tc: Coordinator, counter: int, reason: str = "") -> Transaction:
    return apply(tc, tc.plan_abort(registered(tc, counter).id, reason))


def committed(tc: Coordinator, counter: int, now_ms: int = NOW) -> Transaction:
    return apply(tc, tc.plan_finish(committing(tc, counter).id, now_ms))


def aborted(tc: Coordinator, counter: int, reason: str = "", now_ms: int = NOW) -> Transaction:
    return apply(tc, tc.plan_finish(aborting(tc, counter, reason).id, now_ms))


IN_STATE = {
    TxnState.OPEN: registered,
    TxnState.COMMITTING: committing,
    TxnState.ABORTING: aborting,
    TxnState.COMMITTED: committed,
    TxnState.ABORTED: aborted,
}

# -- begin ---------------------------------------------------------------------------------------------------


def test_a_transaction_begins_open_with_an_absolute_deadline_and_without_a_record() -> None:
    """Seed 002, step 1; the default timeout is 60 s (transactions.md section 5)."""
    txn = coordinator().begin(7, NOW, client="ann")
    assert (txn.id, txn.state, txn.client) == (TxnId.make(3, 7), TxnState.OPEN, "ann")
    assert (txn.opened_ms, txn.deadline_ms) == (NOW, NOW + 60_000)
    assert not txn.logged
    assert txn.participants == ()


def test_fact_55_ids_of_one_coordinator_increase_and_a_counter_is_never_used_twice() -> None:
    """transactions.md facts 7 and 55: ids are never reused."""
    tc = coordinator()
    tc.begin(7, NOW)
    for counter in (7, 6):
        with pytest.raises(InvariantBroken, match="is not above 7"):
            tc.begin(counter, NOW)
    assert tc.begin(8, NOW).id == TxnId.make(3, 8)


def test_fact_7_a_restart_over_records_or_a_snapshot_never_reuses_an_id() -> None:
    """transactions.md fact 7, also when every transaction has ended and the log was trimmed."""
    tc = coordinator()
    record = tc.plan_register(tc.begin(7, NOW).id, ["channel/c0"])
    assert record is not None
    folded, restored = coordinator(), coordinator()
    folded.apply(record)
    committed(tc, 9)
    tc.begin(12, NOW)
    restored.restore(tc.snapshot())
    for again, seen in ((folded, 7), (restored, 12)):
        with pytest.raises(InvariantBroken, match="seen before"):
            again.begin(seen, NOW)
        assert again.begin(seen + 1, NOW).id.counter == seen + 1


def test_a_timeout_is_at_least_a_millisecond_and_at_most_the_configured_maximum() -> None:
    """transactions.md 1.8 and section 5: Kafka's cap of 15 minutes."""
    tc = coordinator()
    assert tc.begin(1, NOW, timeout_ms=1).deadline_ms == NOW + 1
    assert tc.begin(2, NOW, timeout_ms=900_000).deadline_ms == NOW + 900_000
    with pytest.raises(LimitExceeded, match="timeout_max_ms") as caught:
        tc.begin(3, NOW, timeout_ms=900_001)
    found = caught.value
    assert (found.value, found.limit, found.setting) == (900_001, 900_000, "transaction_timeout_max_ms")
    with pytest.raises(InvalidArgument, match="at least 1 ms"):
        tc.begin(3, NOW, timeout_ms=0)
    assert tc.begin(3, NOW).id.counter == 3, "a refused begin uses no counter up"


def test_too_many_transactions_under_way_are_refused_until_one_ends() -> None:
    """transactions.md 1.5: the cap on active transactions."""
    tc = coordinator(active_max=2)
    first = tc.begin(1, NOW)
    committing(tc, 2)
    with pytest.raises(Backpressure, match="`transactions_max`"):
        tc.begin(3, NOW)
    tc.abort_unlogged(first.id, "", NOW)
    tc.begin(3, NOW)


def test_an_open_transaction_costs_well_under_a_kilobyte() -> None:
    """Bounded memory: 10,000 open transactions are nothing special."""
    tc = coordinator()
    tracemalloc.start()
    try:
        for counter in range(1, 10_001):
            tc.begin(counter << 40, NOW + counter, client="ann")
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / 10_000 < 700
    assert not hasattr(next(tc.transactions()), "__dict__")


def test_settings_are_checked_when_made() -> None:
    with pytest.raises(InvalidArgument, match="`remember_ms` is a number above zero"):
        CoordinatorSettings(remember_ms=0)
    with pytest.raises(InvalidArgument, match="`timeout_default_ms` is at most `timeout_max_ms`"):
        CoordinatorSettings(timeout_max_ms=10)
    with pytest.raises(InvalidArgument, match="a coordinator is a number"):
        Coordinator(1 << 16)
    with pytest.raises(InvalidArgument, match="client's name"):
        coordinator().begin(1, NOW, client="x" * 257)


# -- participants --------------------------------------------------------------------------------------------


def test_planning_changes_nothing_and_applying_does() -> None:
    """Write-ahead (transactions.md 1.3): fact 10, a storage write that fails leaves the transaction as it was."""
    tc = coordinator()
    id = tc.begin(1, NOW).id
    steps = (
        lambda: tc.plan_register(id, ["channel/c0"]),
        lambda: tc.plan_commit(id, AT, ["channel/c0"], b"plan"),
        lambda: tc.plan_finish(id, NOW + 5),
    )
    for step in steps:
        before = list(map(repr, tc.transactions()))
        assert step() == step()
        assert list(map(repr, tc.transactions())) == before
        apply(tc, step())
        assert list(map(repr, tc.transactions())) != before
    assert tc.get(id).state is TxnState.COMMITTED


def test_fact_5_participants_are_sorted_and_each_is_there_once() -> None:
    """transactions.md fact 5, for channels and for subscriptions; seed 002, steps 2.1.2 and 3.1.2."""
    tc = coordinator()
    id = tc.begin(1, NOW).id
    apply(tc, tc.plan_register(id, ["channel/c2", "channel/c0", "channel/c1", "channel/c0"]))
    apply(tc, tc.plan_register(id, ["channel/c2", "subscription/audit/billing", "channel/c3"]))
    assert tc.get(id).participants == (
        "channel/c0",
        "channel/c1",
        "channel/c2",
        "channel/c3",
        "subscription/audit/billing",
    )
    assert tc.get(id).logged


def test_registering_what_is_known_writes_nothing() -> None:
    tc = coordinator()
    id = registered(tc, 1, "channel/c0").id
    assert tc.plan_register(id, ["channel/c0"]) is None
    assert tc.plan_register(id, []) is None
    assert tc.plan_register(tc.begin(2, NOW).id, []) is None


def test_only_the_first_record_of_a_transaction_carries_its_opening() -> None:
    tc = coordinator()
    id = tc.begin(1, NOW, client="ann").id
    first = tc.plan_register(id, ["channel/c0"])
    assert first is not None and b'"open":["ann"' in first
    tc.apply(first)
    second = tc.plan_register(id, ["channel/c1"])
    assert second is not None and b'"open"' not in second


@pytest.mark.parametrize("state", [each for each in TxnState if each is not TxnState.OPEN])
def test_fact_5_and_48_a_transaction_that_is_not_open_takes_no_participants(state: TxnState) -> None:
    """transactions.md facts 5, 48: sending and acknowledging after the end are refused, and nothing changes."""
    tc = coordinator()
    txn = IN_STATE[state](tc, 1)
    before = txn.participants
    with pytest.raises(InvalidTransactionState, match=f"is {said(state)} and cannot be written to") as caught:
        tc.plan_register(txn.id, ["channel/c5"])
    assert caught.value.state == state.value
    assert txn.participants == before


def test_participants_and_plans_are_bounded() -> None:
    tc = coordinator(participants_max=2, plan_bytes_max=10)
    id = registered(tc, 1, "a", "b").id
    with pytest.raises(LimitExceeded, match="participants_max"):
        tc.plan_register(id, ["c"])
    with pytest.raises(LimitExceeded, match="participants_max"):
        tc.plan_commit(id, AT, ["c"], b"")
    with pytest.raises(LimitExceeded, match="plan_bytes_max"):
        tc.plan_commit(id, AT, [], b"x" * 11)
    assert tc.plan_commit(id, AT, ["a", "b"], b"x" * 10) is not None


# -- ending --------------------------------------------------------------------------------------------------


def test_a_commit_passes_the_point_of_no_return_then_ends() -> None:
    """Seed 002, steps 4.1 to 4.3."""
    tc = coordinator()
    id = registered(tc, 1, "channel/c1").id
    txn = apply(tc, tc.plan_commit(id, AT, ["channel/c0"], b"plan"))
    assert (txn.state, txn.commit_timestamp, txn.plan) == (TxnState.COMMITTING, AT, b"plan")
    assert txn.participants == ("channel/c0", "channel/c1")
    assert tc.outcome(id) is None
    apply(tc, tc.plan_finish(id, NOW + 9))
    assert (txn.state, txn.commit_timestamp, txn.ended_ms) == (TxnState.COMMITTED, AT, NOW + 9)
    assert txn.plan == b"", "a plan that was carried out is not kept"
    assert tc.outcome(id) is txn


def test_a_commit_may_be_the_first_record_of_its_transaction() -> None:
    tc, follower = coordinator(), coordinator()
    id = tc.begin(1, NOW, timeout_ms=5000, client="ann").id
    record = tc.plan_commit(id, AT, ["channel/c1", "channel/c0"], b"plan")
    assert apply(follower, record) == apply(tc, record)
    txn = follower.get(id)
    assert (txn.client, txn.opened_ms, txn.deadline_ms, txn.logged) == ("ann", NOW, NOW + 5000, True)
    assert txn.participants == ("channel/c0", "channel/c1")


def test_an_abort_of_a_logged_transaction_is_logged_and_then_ends() -> None:
    tc = coordinator()
    txn = aborting(tc, 1, "conflict")
    assert (txn.state, txn.reason) == (TxnState.ABORTING, "conflict")
    apply(tc, tc.plan_finish(txn.id, NOW + 9))
    assert (txn.state, txn.reason, txn.ended_ms, txn.commit_timestamp) == (TxnState.ABORTED, "conflict", NOW + 9, None)


def test_an_abort_of_what_was_never_logged_needs_no_record() -> None:
    """Presumed abort: nobody but this process knows of it."""
    tc = coordinator()
    id = tc.begin(1, NOW).id
    assert tc.plan_abort(id, "conflict") is None
    assert tc.get(id).state is TxnState.OPEN
    txn = tc.abort_unlogged(id, "conflict", NOW + 1)
    assert (txn.state, txn.reason, txn.ended_ms) == (TxnState.ABORTED, "conflict", NOW + 1)
    assert tc.abort_unlogged(id, "again", NOW + 2) is txn
    assert (txn.reason, txn.ended_ms) == ("conflict", NOW + 1)


def test_a_logged_transaction_cannot_be_aborted_behind_the_logs_back() -> None:
    tc = coordinator()
    txn = registered(tc, 1)
    with pytest.raises(InvariantBroken, match="3-1 is open: it has records"):
        tc.abort_unlogged(txn.id, "", NOW)
    assert txn.state is TxnState.OPEN
    assert tc.abort_unlogged(aborting(tc, 2).id, "", NOW).state is TxnState.ABORTING
    with pytest.raises(InvalidTransactionState):
        tc.abort_unlogged(committing(tc, 3).id, "", NOW)


def test_fact_47_an_empty_transaction_commits() -> None:
    """transactions.md fact 47: with a record, and without one."""
    tc = coordinator()
    logged, unlogged = tc.begin(1, NOW).id, tc.begin(2, NOW).id
    apply(tc, tc.plan_commit(logged, AT, [], b""))
    apply(tc, tc.plan_finish(logged, NOW))
    tc.commit_at_once(unlogged)
    tc.finish_at_once(unlogged, AT, NOW)
    assert tc.get(logged).state is tc.get(unlogged).state is TxnState.COMMITTED


def test_facts_2_and_3_no_state_is_skipped() -> None:
    """transactions.md facts 2 and 3: COMMITTED straight from OPEN is refused, and the transaction stays open."""
    tc = coordinator()
    txn = registered(tc, 1)
    with pytest.raises(InvalidTransactionState, match="is open; commit or abort it") as caught:
        tc.plan_finish(txn.id, NOW)
    assert caught.value.state == "open"
    assert txn.state is TxnState.OPEN


@pytest.mark.parametrize("state", [TxnState.COMMITTING, TxnState.COMMITTED])
def test_fact_63_a_repeated_commit_succeeds_and_an_abort_is_refused(state: TxnState) -> None:
    """transactions.md 1.6, 2.9 and fact 63: ending twice the same way is a success, the other way is not."""
    tc = coordinator()
    txn = IN_STATE[state](tc, 1)
    assert tc.plan_commit(txn.id, Timestamp(999), ["channel/c9"], b"other") is None
    assert (txn.state, txn.commit_timestamp, txn.participants) == (state, AT, ("channel/c0",))
    with pytest.raises(InvalidTransactionState, match=f"is {said(state)} and cannot be aborted") as caught:
        tc.plan_abort(txn.id, TIMEOUT)
    assert caught.value.state == state.value


@pytest.mark.parametrize("state", [TxnState.ABORTING, TxnState.ABORTED])
def test_fact_63_a_repeated_abort_succeeds_and_a_commit_is_refused(state: TxnState) -> None:
    """transactions.md facts 14 and 63; its owner aborted it, so there is nothing to run again."""
    tc = coordinator()
    txn = IN_STATE[state](tc, 1)
    assert tc.plan_abort(txn.id, "another reason") is None
    assert (txn.state, txn.reason) == (state, "")
    with pytest.raises(InvalidTransactionState, match=f"is {state.value} and cannot be committed") as caught:
        tc.plan_commit(txn.id, AT, [], b"")
    assert caught.value.state == state.value


def test_a_repeated_finish_writes_nothing() -> None:
    tc = coordinator()
    assert tc.plan_finish(committed(tc, 1).id, NOW) is None
    assert tc.plan_finish(aborted(tc, 2).id, NOW) is None


@pytest.mark.parametrize(
    ("reason", "error", "says"),
    [
        (TIMEOUT, TransactionExpired, "timeout of 60,000 ms; run it again"),
        (LEASE, TransactionExpired, "its client 'ann' was silent"),
        ("conflict at channel/c0", TransactionAborted, "was aborted: conflict at channel/c0"),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_facts_49_to_51_who_was_aborted_from_outside_is_told_why_and_to_run_it_again(
    reason: str, error: type[TransactionAborted], says: str, ended: bool
) -> None:
    """transactions.md facts 49, 50, 51, 62, where the systems of old only say "not found" or "fenced"."""
    tc = coordinator()
    txn = registered(tc, 1, client="ann")
    apply(tc, tc.plan_abort(txn.id, reason))
    if ended:
        apply(tc, tc.plan_finish(txn.id, NOW))
    for attempt in (
        lambda: tc.plan_commit(txn.id, AT, [], b""),
        lambda: tc.commit_at_once(txn.id),
        lambda: tc.plan_register(txn.id, ["channel/c7"]),
        lambda: tc.require_open(txn.id),
    ):
        with pytest.raises(error, match=says) as caught:
            attempt()
        assert type(caught.value) is error
        assert caught.value.reason == reason
        assert isinstance(caught.value, Retryable)
    assert tc.plan_abort(txn.id, "") is None, "aborting what is aborted is a success"


def test_a_reason_without_end_is_cut() -> None:
    tc = coordinator()
    assert len(aborting(tc, 1, "x" * 10_000).reason) == 256


def test_fact_56_whoever_has_the_id_can_end_it() -> None:
    """transactions.md fact 56: an id is enough, there is no binding to the one who began it."""
    tc = coordinator()
    registered(tc, 1, client="ann")
    apply(tc, tc.plan_commit(TxnId.parse("3-1"), AT, [], b""))


def test_require_open_gives_the_transaction_while_it_is_open() -> None:
    tc = coordinator()
    txn = tc.begin(1, NOW)
    assert tc.require_open(txn.id) is txn


# -- one channel, one write ----------------------------------------------------------------------------------


def test_a_transaction_in_one_channel_commits_without_a_record() -> None:
    """design: begin, bodies and commit are one block in one channel; the coordinator writes nothing."""
    tc = coordinator()
    txn = tc.begin(1, NOW)
    assert tc.commit_at_once(txn.id)
    assert txn.state is TxnState.COMMITTING
    assert tc.finish_at_once(txn.id, AT, NOW + 3) is txn
    assert (txn.state, txn.commit_timestamp, txn.ended_ms) == (TxnState.COMMITTED, AT, NOW + 3)
    assert not tc.commit_at_once(txn.id), "a repeated commit has nothing to write"
    assert tc.plan_commit(txn.id, AT, [], b"") is None
    assert not txn.logged


def test_a_commit_at_once_whose_write_failed_may_be_tried_again_or_aborted() -> None:
    tc = coordinator()
    txn = tc.begin(1, NOW, timeout_ms=10)
    tc.commit_at_once(txn.id)
    assert tc.expired(NOW + 10) == [], "a timeout does not cut into a write that is under way"
    assert tc.next_deadline_ms() is None
    assert tc.reopen_at_once(txn.id).state is TxnState.OPEN
    assert tc.expired(NOW + 10) == [txn.id]
    assert tc.commit_at_once(txn.id)
    tc.reopen_at_once(txn.id)
    tc.abort_unlogged(txn.id, "the write failed", NOW)
    with pytest.raises(TransactionAborted, match="the write failed"):
        tc.commit_at_once(txn.id)


def test_while_a_commit_at_once_is_under_way_nothing_else_ends_it() -> None:
    tc = coordinator()
    id = tc.begin(1, NOW).id
    tc.commit_at_once(id)
    for attempt in (
        lambda: tc.commit_at_once(id),
        lambda: tc.plan_commit(id, AT, [], b""),
        lambda: tc.plan_abort(id, TIMEOUT),
        lambda: tc.abort_unlogged(id, TIMEOUT, NOW),
    ):
        with pytest.raises(InvalidTransactionState, match="is committing") as caught:
            attempt()
        assert "wait for its end" in str(caught.value)
    with pytest.raises(InvariantBroken, match="has no record"):
        tc.plan_finish(id, NOW)


def test_a_transaction_with_records_cannot_be_committed_at_once() -> None:
    tc = coordinator()
    with pytest.raises(InvariantBroken, match="3-1 is open: it has records"):
        tc.commit_at_once(registered(tc, 1).id)
    id = committing(tc, 2).id
    for attempt in (lambda: tc.finish_at_once(id, AT, NOW), lambda: tc.reopen_at_once(id)):
        with pytest.raises(InvariantBroken, match="not being committed at once"):
            attempt()
    open_ = tc.begin(3, NOW).id
    for attempt in (lambda: tc.finish_at_once(open_, AT, NOW), lambda: tc.reopen_at_once(open_)):
        with pytest.raises(InvariantBroken, match="3-3 is open and is not being committed at once"):
            attempt()


def test_many_failed_commits_at_once_leave_nothing_behind() -> None:
    """Bounds on everything: a disk that stays full must not make the queue of deadlines grow."""
    tc = coordinator()
    id = tc.begin(1, NOW).id
    for _ in range(1000):
        tc.commit_at_once(id)
        tc.reopen_at_once(id)
    assert len(tc._deadlines) < 100
    assert tc.expired(NOW + 60_000) == [id]


# -- what is not known ---------------------------------------------------------------------------------------


def test_fact_4_an_unknown_id_is_not_found_and_says_on_which_side_it_lies() -> None:
    """transactions.md fact 4."""
    tc = coordinator()
    registered(tc, 5)
    for id, says in (
        (TxnId.make(3, 12345), "never begun: it is above every transaction of coordinator 3"),
        (TxnId.make(3, 4), "not known any more: it ended over 900 s ago"),
        (TxnId.make(2, 5), "belongs to coordinator 2, and this is coordinator 3"),
    ):
        for attempt in (
            lambda: tc.get(id),  # noqa: B023
            lambda: tc.outcome(id),  # noqa: B023
            lambda: tc.require_open(id),  # noqa: B023
            lambda: tc.plan_register(id, ["c"]),  # noqa: B023
            lambda: tc.plan_commit(id, AT, [], b""),  # noqa: B023
            lambda: tc.plan_abort(id, ""),  # noqa: B023
            lambda: tc.plan_finish(id, NOW),  # noqa: B023
            lambda: tc.abort_unlogged(id, "", NOW),  # noqa: B023
            lambda: tc.commit_at_once(id),  # noqa: B023
        ):
            with pytest.raises(TransactionNotFound, match=says):
                attempt()


def test_coordinators_live_side_by_side_and_share_nothing() -> None:
    """transactions.md 1.10; the same counter at two coordinators is two transactions."""
    here, there = Coordinator(0), Coordinator(1)
    a, b = here.begin(1, NOW), there.begin(1, NOW)
    assert a.id != b.id
    record = here.plan_register(a.id, ["channel/c0"])
    assert record is not None
    with pytest.raises(InvariantBroken, match="coordinator 1 met a record of transaction 0-1"):
        there.apply(record)
    with pytest.raises(InvariantBroken, match="coordinator 1 met a snapshot of 0"):
        Coordinator(1).restore(here.snapshot())


def test_a_transaction_object_is_small() -> None:
    assert sys.getsizeof(coordinator().begin(1, NOW)) < 200
