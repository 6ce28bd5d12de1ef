"""The coordinator over time: timeouts, leases, low watermark, forgetting, recovery, status.

transactions.md 1.4, 1.7 to 1.9, 2.4, 2.6, and the facts named below.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken, TransactionExpired, TransactionNotFound
from tidegate.txn.coordinator import Coordinator
from tidegate.txn.coordinator_records import (
    Aborting,
    Committing,
    Ended,
    Opening,
    Record,
    Registered,
    Transaction,
    TxnState,
    encode,
)
from tidegate.txn.coordinator_table import LEASE, TIMEOUT, CoordinatorSettings
from tidegate.txn.txn_id import TxnId

NOW = 1_000_000
AT = Timestamp(500)


class Life:
    """A coordinator with its log: every record that was applied, in order."""

    def __init__(self, **settings: int) -> None:
        self.settings = CoordinatorSettings(**settings)
        self.tc = Coordinator(0, self.settings)
        self.log: list[bytes] = []

    def do(self, record: bytes | None) -> Transaction:
        assert record is not None
        self.log.append(record)
        txn = self.tc.apply(record)
        assert txn is not None
        return txn

    def open(self, counter: int, *participants: str, timeout_ms: int = 60_000, client: str = "") -> TxnId:
        id = self.tc.begin(counter, NOW, timeout_ms, client).id
        return self.do(self.tc.plan_register(id, participants or ("channel/c0",))).id

    def committing(self, counter: int, at: int = 500, client: str = "") -> TxnId:
        return self.do(self.tc.plan_commit(self.open(counter, client=client), Timestamp(at), [], b"plan")).id

    def aborting(self, counter: int, reason: str = "") -> TxnId:
        return self.do(self.tc.plan_abort(self.open(counter), reason)).id

    def finish(self, id: TxnId, now_ms: int = NOW) -> TxnId:
        return self.do(self.tc.plan_finish(id, now_ms)).id

    def crash(self) -> None:
        self.tc = Coordinator(0, self.settings)
        for record in self.log:
            self.tc.apply(record)


# -- timeouts ------------------------------------------------------------------------------------------------


def test_fact_11_a_transaction_expires_when_its_deadline_comes_and_not_before() -> None:
    """transactions.md fact 11 and 1.8; seed 002: the coordinator sees to it that it is aborted after its timeout."""
    life = Life()
    id = life.open(1, timeout_ms=1)
    assert life.tc.next_deadline_ms() == NOW + 1
    assert life.tc.expired(NOW) == []
    assert life.tc.expired(NOW + 1) == [id]
    life.do(life.tc.plan_abort(id, TIMEOUT))
    life.finish(id)
    assert life.tc.expired(NOW + 1) == []
    assert life.tc.next_deadline_ms() is None
    with pytest.raises(TransactionExpired):
        life.tc.plan_commit(id, AT, [], b"")
    assert life.tc.status().expired == 1


def test_an_expired_transaction_is_named_until_it_is_aborted() -> None:
    """An abort that could not be written must not leave a transaction open for ever (transactions.md section 8)."""
    life = Life()
    late = [life.open(1, timeout_ms=20), life.open(2, timeout_ms=10)]
    life.open(3, timeout_ms=30)
    for _ in range(2):
        assert life.tc.expired(NOW + 20) == [late[1], late[0]]
    life.do(life.tc.plan_abort(late[1], TIMEOUT))
    assert life.tc.expired(NOW + 20) == [late[0]]
    assert life.tc.next_deadline_ms() == NOW + 20


def test_fact_57_what_is_being_ended_does_not_expire() -> None:
    """transactions.md 1.8 and fact 57: commit and abort take the timeout away."""
    life = Life()
    life.committing(1)
    life.aborting(2)
    life.finish(life.committing(3))
    assert life.tc.expired(NOW + 10**9) == []
    assert life.tc.next_deadline_ms() is None


def test_fact_12_four_groups_of_transactions_expire_one_after_the_other() -> None:
    """transactions.md fact 12: 100 each of 1, 2, 3 and 4 s."""
    life = Life()
    for counter in range(1, 401):
        life.tc.begin(counter, NOW, timeout_ms=1000 * (1 + counter % 4))
    for second, left in ((1, 300), (2, 200), (3, 100), (4, 0)):
        for id in life.tc.expired(NOW + 1000 * second):
            life.tc.abort_unlogged(id, TIMEOUT, NOW)
        assert life.tc.status().counts[TxnState.OPEN] == left
    assert life.tc.status().expired == 400


def test_fact_13_a_restart_does_not_prolong_a_timeout() -> None:
    """transactions.md fact 13 and 1.9: the original, absolute deadline."""
    life = Life()
    id = life.open(1, timeout_ms=2000)
    life.crash()
    assert life.tc.next_deadline_ms() == NOW + 2000
    assert life.tc.expired(NOW + 1999) == []
    assert life.tc.expired(NOW + 2000) == [id]


def test_the_queues_do_not_grow_behind_one_old_transaction() -> None:
    """Bounds on everything: a transaction that cannot end must not keep a trace of every later one."""
    life = Life(remembered_max=10)
    stuck = life.open(1, timeout_ms=900_000)
    for counter in range(2, 3000):
        life.tc.abort_unlogged(life.tc.begin(counter, NOW, 900_000).id, "", NOW)
    assert len(life.tc._ages) < 200
    assert len(life.tc._deadlines) < 200
    assert life.tc.expired(NOW + 900_000) == [stuck]
    assert life.tc.low_watermark == 0


def test_fact_61_a_client_whose_lease_is_gone_loses_its_open_transactions_only() -> None:
    """transactions.md facts 61 and 62: its open ones are aborted, what was decided is carried out."""
    life = Life()
    committing = life.committing(1, client="ann")
    unlogged = life.tc.begin(2, NOW, client="ann").id
    life.open(3, client="bo")
    logged = life.open(4, client="ann")
    life.tc.begin(5, NOW)
    assert life.tc.fail_client("ann") == [unlogged, logged]
    assert life.tc.fail_client("") == [], "no client is nobody's lease"
    life.tc.abort_unlogged(unlogged, LEASE, NOW)
    life.do(life.tc.plan_abort(logged, LEASE))
    assert life.tc.fail_client("ann") == []
    assert life.tc.get(committing).state is TxnState.COMMITTING


# -- low watermark -------------------------------------------------------------------------------------------


def test_the_low_watermark_is_just_below_the_oldest_transaction_under_way() -> None:
    """transactions.md 1.7, without its quirk: with none live it is the largest id, at first below everything."""
    life = Life()
    assert life.tc.low_watermark == 0
    first = life.open(5)
    assert life.tc.low_watermark == 4
    second = life.committing(9)
    life.finish(second)
    assert life.tc.low_watermark == 4, "an older one is under way"
    life.do(life.tc.plan_abort(first))
    assert life.tc.low_watermark == 4, "aborting is not aborted"
    life.finish(first)
    assert life.tc.low_watermark == 9


def test_facts_29_and_30_the_end_of_a_transaction_covers_it_only_for_those_after_it() -> None:
    """transactions.md facts 29, 30 and 2.6: while it ends it is live, so its own end never covers itself."""
    life = Life()
    first = life.committing(1)
    assert life.tc.low_watermark < first.counter
    life.finish(first)
    life.committing(2)
    assert life.tc.low_watermark >= first.counter


def test_fact_31_each_coordinator_has_its_own_low_watermark() -> None:
    """transactions.md fact 31."""
    a, b = Coordinator(0), Coordinator(1)
    a.begin(1, NOW)
    b.abort_unlogged(b.begin(1, NOW).id, "", NOW)
    assert (a.low_watermark, b.low_watermark) == (0, 1)


def test_what_was_open_without_a_record_at_a_crash_is_covered_as_ended() -> None:
    """Presumed abort: a stray message of it is refused by whoever knows the low watermark (transactions.md 2.4)."""
    life = Life()
    stray = life.tc.begin(1, NOW).id
    life.finish(life.committing(2))
    assert life.tc.low_watermark < stray.counter
    life.crash()
    assert life.tc.low_watermark >= stray.counter
    with pytest.raises(TransactionNotFound, match="open with nothing registered when coordinator 0 restarted"):
        life.tc.plan_commit(stray, AT, [], b"")


# -- forgetting ----------------------------------------------------------------------------------------------


def test_an_outcome_is_remembered_for_a_time_and_then_not_found() -> None:
    """transactions.md 2.9: 900 s; a repeated commit succeeds until then (section 8, the most common complaint)."""
    life = Life()
    first = life.finish(life.committing(1), NOW)
    second = life.finish(life.aborting(2), NOW + 5)
    assert life.tc.forget(NOW + 899_999) == 0
    assert life.tc.plan_commit(first, AT, [], b"") is None
    assert life.tc.forget(NOW + 900_000) == 1
    with pytest.raises(TransactionNotFound, match="not known any more"):
        life.tc.plan_commit(first, AT, [], b"")
    assert life.tc.outcome(second) is life.tc.get(second)
    assert life.tc.forget(NOW + 900_005) == 1
    assert list(life.tc.transactions()) == []


def test_the_number_of_remembered_outcomes_is_bounded_and_the_oldest_go_first() -> None:
    life = Life(remembered_max=3)
    for counter in range(1, 6):
        life.finish(life.committing(counter))
    assert [txn.id.counter for txn in life.tc.transactions()] == [3, 4, 5]
    smaller = Coordinator(0, CoordinatorSettings(remembered_max=1))
    smaller.restore(life.tc.snapshot())
    assert [txn.id.counter for txn in smaller.transactions()] == [5]


# -- recovery ------------------------------------------------------------------------------------------------


def test_fact_6_what_was_committing_at_a_crash_is_found_as_it_was_and_ends() -> None:
    """transactions.md fact 6: participants, clients, state; then the commit can be finished and repeated."""
    life = Life()
    for counter, client in ((1, "user1"), (2, "user2")):
        id = life.open(counter, "channel/c1", "channel/c0", client=client)
        life.do(life.tc.plan_register(id, ["channel/c1", "subscription/s/x"]))
        life.do(life.tc.plan_commit(id, Timestamp(100 + counter), [], b"plan"))
    before = list(life.tc.transactions())
    life.crash()
    assert list(life.tc.transactions()) == before
    assert [txn.client for txn in before] == ["user1", "user2"]
    assert before[0].participants == ("channel/c0", "channel/c1", "subscription/s/x")
    for txn in life.tc.to_drive():
        life.finish(txn.id)
        assert life.tc.plan_commit(txn.id, AT, [], b"") is None
    assert life.tc.begin(3, NOW).id.counter == 3


def test_fact_9_after_one_was_aborted_only_the_open_one_is_under_way() -> None:
    """transactions.md fact 9."""
    life = Life()
    open_ = life.open(1)
    life.finish(life.aborting(2))
    life.crash()
    assert [txn.id for txn in life.tc.transactions() if not txn.state.has_ended] == [open_]
    assert life.tc.to_drive() == []


def test_fact_15_recovery_drives_on_what_was_decided_and_leaves_the_open_ones_to_their_deadlines() -> None:
    """transactions.md fact 15; commits come in the order of their commit Timestamps."""
    life = Life()
    life.open(1, timeout_ms=200)
    life.open(2, timeout_ms=300)
    late, early = life.committing(3, at=900), life.committing(4, at=800)
    life.finish(life.committing(5))
    aborting = life.aborting(6)
    life.finish(life.aborting(7))
    life.crash()
    assert [txn.id for txn in life.tc.to_drive()] == [early, late, aborting]
    assert [txn.plan for txn in life.tc.to_drive()] == [b"plan", b"plan", b""]
    assert [id.counter for id in life.tc.expired(NOW + 300)] == [1, 2]


def test_a_commit_at_once_is_not_driven_by_the_coordinator() -> None:
    life = Life()
    life.tc.commit_at_once(life.tc.begin(1, NOW).id)
    assert life.tc.to_drive() == []


def test_records_of_a_transaction_whose_first_record_was_trimmed_are_passed_over() -> None:
    """transactions.md 1.9: it has ended, or a snapshot would know it. Its id is still never given again."""
    tc = Coordinator(0)
    id = TxnId.make(0, 7)
    for record in (Registered(id, ("c",)), Aborting(id, "x"), Ended(id, TxnState.COMMITTED, 5)):
        assert tc.apply(encode(record)) is None
    assert list(tc.transactions()) == []
    with pytest.raises(InvariantBroken, match="seen before"):
        tc.begin(7, NOW)


def test_a_commit_decision_is_never_passed_over() -> None:
    """Promise 2: whoever reads COMMITTING can carry it out, even if the records before it are gone."""
    life = Life()
    id = life.committing(1)
    tc = Coordinator(0)
    tc.apply(life.log[-1])
    assert tc.to_drive() == [life.tc.get(id)]


def test_a_record_applied_twice_changes_nothing() -> None:
    """Also when it is an old one, as after a snapshot that was taken later than where reading starts again."""
    life = Life()
    id = life.open(1)
    life.do(life.tc.plan_register(id, ["channel/c9"]))
    life.do(life.tc.plan_commit(id, AT, [], b"plan"))
    life.finish(id)
    life.finish(life.aborting(2, "conflict"))
    state = life.tc.snapshot()
    for record in life.log:
        life.tc.apply(record)
        assert life.tc.snapshot() == state


OPENING = Opening("", 1, 2)
ONE = TxnId.make(0, 1)
ILLEGAL: list[tuple[Callable[[Life], TxnId], Record, str]] = [
    (lambda life: life.open(1), Ended(ONE, TxnState.COMMITTED, 5), "0-1 is open and cannot become committed"),
    (lambda life: life.open(1), Ended(ONE, TxnState.ABORTED, 5), "0-1 is open and cannot become aborted"),
    (lambda life: life.committing(1), Aborting(ONE), "0-1 is committing and cannot become aborting"),
    (lambda life: life.committing(1), Ended(ONE, TxnState.ABORTED, 5), "0-1 is committing and cannot become aborted"),
    (
        lambda life: life.committing(1),
        Committing(ONE, Timestamp(501), (), OPENING),
        "0-1 is committing and cannot become committing",
    ),
    (lambda life: life.committing(1), Registered(ONE, ("channel/x",)), "0-1 is committing, and the log adds channel/x"),
    (
        lambda life: life.aborting(1),
        Committing(ONE, AT, (), OPENING),
        "0-1 is aborting and cannot become committing",
    ),
    (lambda life: life.aborting(1), Ended(ONE, TxnState.COMMITTED, 5), "0-1 is aborting and cannot become committed"),
    (lambda life: life.finish(life.committing(1)), Aborting(ONE), "0-1 is committed and cannot become aborting"),
    (
        lambda life: life.finish(life.committing(1)),
        Ended(ONE, TxnState.ABORTED, 5),
        "0-1 is committed and cannot become aborted",
    ),
    (
        lambda life: life.finish(life.aborting(1)),
        Committing(ONE, AT, (), OPENING),
        "0-1 is aborted and cannot become committing",
    ),
    (lambda life: life.finish(life.aborting(1)), Registered(ONE, ("channel/x",)), "0-1 is aborted, and the log adds"),
]


@pytest.mark.parametrize(("into", "record", "says"), ILLEGAL, ids=[says for _, _, says in ILLEGAL])
def test_a_log_that_asks_for_an_impossible_step_breaks_an_invariant(
    into: Callable[[Life], TxnId], record: Record, says: str
) -> None:
    """transactions.md 1.1: everything else is refused, and the state is unchanged."""
    life = Life()
    into(life)
    before = life.tc.snapshot()
    with pytest.raises(InvariantBroken, match=says):
        life.tc.apply(encode(record))
    assert life.tc.snapshot() == before


def test_a_record_cannot_end_what_is_committed_at_once() -> None:
    life = Life()
    id = life.tc.begin(1, NOW).id
    life.tc.commit_at_once(id)
    with pytest.raises(InvariantBroken, match="0-1 is committing: it has no record"):
        life.tc.apply(encode(Ended(id, TxnState.COMMITTED, 5)))


# -- snapshots -----------------------------------------------------------------------------------------------


def test_a_snapshot_keeps_all_but_what_was_never_logged() -> None:
    """design: start-up costs the tail and not the history."""
    life = Life()
    life.tc.begin(1, NOW)
    life.tc.commit_at_once(life.tc.begin(2, NOW).id)
    kept = [life.open(3), life.committing(4), life.aborting(5, TIMEOUT), life.finish(life.committing(6))]
    at_once = life.tc.begin(7, NOW).id
    life.tc.commit_at_once(at_once)
    life.tc.finish_at_once(at_once, AT, NOW)
    again = Coordinator(0)
    again.restore(life.tc.snapshot())
    assert list(again.transactions()) == [life.tc.get(id) for id in (*kept, at_once)]
    assert again.next_deadline_ms() == NOW + 60_000
    assert [txn.id for txn in again.to_drive()] == kept[1:3]
    assert again.snapshot() == life.tc.snapshot()


def test_a_snapshot_with_a_mebibyte_of_plan_is_about_as_large_as_the_plan() -> None:
    life = Life()
    plan = bytes(range(256)) * 4096
    life.do(life.tc.plan_commit(life.tc.begin(1, NOW).id, AT, ["channel/c0"], plan))
    snapshot = life.tc.snapshot()
    assert len(snapshot) < len(plan) + 500
    again = Coordinator(0)
    again.restore(snapshot)
    assert again.to_drive()[0].plan == plan


def test_a_snapshot_is_restored_before_anything_else() -> None:
    life = Life()
    life.open(1)
    with pytest.raises(InvariantBroken, match="after it has begun to work"):
        life.tc.restore(life.tc.snapshot())


# -- status --------------------------------------------------------------------------------------------------


def test_the_status_counts_by_state_and_names_the_oldest_open_transaction() -> None:
    """Promise 8: it says what holds the low watermark back, and since when."""
    life = Life()
    stuck = life.committing(1)
    oldest = life.tc.begin(2, NOW + 7, timeout_ms=50).id
    life.open(3)
    life.aborting(4)
    life.finish(life.committing(5))
    life.finish(life.aborting(6))
    life.finish(life.aborting(7, TIMEOUT))
    status = life.tc.status()
    assert status.counts == {
        TxnState.OPEN: 2,
        TxnState.COMMITTING: 1,
        TxnState.ABORTING: 1,
        TxnState.COMMITTED: 1,
        TxnState.ABORTED: 2,
    }
    assert (status.oldest_open, status.oldest_opened_ms, status.next_deadline_ms) == (oldest, NOW + 7, NOW + 57)
    assert (status.begun, status.committed, status.aborted, status.expired) == (7, 1, 2, 1)
    assert (status.coordinator, status.largest, status.low_watermark) == (0, 7, stuck.counter - 1)


def test_totals_survive_a_restart_and_outlive_what_is_remembered() -> None:
    life = Life()
    life.finish(life.committing(1))
    life.finish(life.aborting(2, LEASE))
    life.open(3)
    life.tc.begin(4, NOW)
    life.tc.forget(NOW + 900_000)
    again = Coordinator(0)
    again.restore(life.tc.snapshot())
    status = again.status()
    assert (status.begun, status.committed, status.aborted, status.expired) == (3, 1, 1, 1)
    assert status.oldest_open == TxnId.make(0, 3)


def test_an_idle_coordinator_has_a_status() -> None:
    status = Coordinator(0).status()
    assert set(status.counts.values()) == {0}
    assert (status.oldest_open, status.oldest_opened_ms, status.next_deadline_ms) == (None, None, None)


def test_transactions_are_listed_oldest_first_and_then_in_the_order_they_ended() -> None:
    life = Life()
    a, b, c, d = (life.committing(counter) for counter in (1, 2, 3, 4))
    life.finish(c)
    life.finish(a)
    listing = life.tc.transactions()
    assert [txn.id for txn in listing] == [b, d, c, a]
