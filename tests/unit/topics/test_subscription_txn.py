"""Acknowledging within a transaction. Seed 002, section 3.3 and 4.2.3; transactions.md section 3 and facts 33 to 46."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.errors import Conflict, InvalidArgument
from tidegate.topics import sub_records as records
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_entry import Change
from tidegate.topics.subscription import Subscription
from tidegate.txn.txn_id import TxnId

T1, T2, T3 = (TxnId.make(0, n).to_bytes16() for n in (1, 2, 3))


def m(n: int) -> MessageId:
    return MessageId(0, 1000 + n, n)


def opened(kind: Any = "shared", count: int = 5, consumers: str = "a", **settings: Any) -> Subscription:
    """With all messages in the hands of the first consumer."""
    sub = Subscription("audit/billing", kind, **settings)
    for name in consumers:
        sub.add_consumer(name)
    sub.feed(0, [(m(n), n) for n in range(1, count + 1)])
    sub.take(consumers[0], count, 0)
    return sub


def got(sub: Subscription, consumer: str = "a") -> list[int]:
    return [each.id.position for each in sub.take(consumer, 10_000, 0)]


def hold(sub: Subscription, txn: bytes, *numbers: int) -> Change:
    change = sub.ack_in_txn("a", [m(n) for n in numbers], txn)
    sub.confirm(change)
    return change


def hold_upto(sub: Subscription, txn: bytes, number: int) -> Change:
    change = sub.ack_cumulative_in_txn("a", m(number), txn)
    sub.confirm(change)
    return change


def restarted(sub: Subscription, count: int, *log: tuple[bytes, bytes | None]) -> Subscription:
    """Another life: the snapshot, records after it, and all messages from the mark on."""
    acks = Acknowledgements.restore(sub.snapshot())
    for record, txn in log:
        acks.apply(record, txn)
    later = Subscription(sub.name, sub.kind, acknowledgements=acks)
    later.add_consumer("a")
    later.feed(0, [(m(n), n) for n in range(1, count + 1)])
    return later


# -- one by one ------------------------------------------------------------------------------------------------------


def test_a_thousand_pending_messages_come_again_after_an_abort_and_never_after_a_commit() -> None:
    """Fact 33."""
    sub = opened(count=1000)
    everything = list(range(1, 1001))
    hold(sub, T1, *everything)
    sub.redeliver("a")
    assert got(sub) == []
    assert sub.end_txn(T1, committed=False) == [m(n) for n in everything]
    assert got(sub) == everything
    hold(sub, T2, *everything)
    assert sub.end_txn(T2, committed=True) == []
    sub.redeliver("a")
    assert (got(sub), sub.marks(), sub.backlog_in_memory) == ([], {0: m(1000)}, 0)


def test_pending_messages_are_not_delivered_whatever_is_asked() -> None:
    """Facts 34 and 40, section 3.6: not by redelivery, nack or another consumer."""
    sub = opened(count=4, consumers="ab")
    hold(sub, T1, 1, 2)
    assert sub.nack("a", [m(1), m(2)], 0) == []
    assert sub.redeliver("a") == [m(3), m(4)]
    assert got(sub, "b") == [3, 4]
    sub.remove_consumer("a")
    assert (got(sub, "b"), sub.status().pending) == ([], 2)
    assert sub.end_txn(T1, committed=False) == [m(1), m(2)]
    assert got(sub, "b") == [1, 2]


def test_half_pending_half_committed_gives_a_new_consumer_nothing() -> None:
    """Fact 40, and filtered messages use up no room."""
    sub = opened(count=10, unacked_max=10)
    hold(sub, T1, 1, 2, 3, 4, 5)
    hold(sub, T2, 6, 7, 8, 9, 10)
    sub.end_txn(T2, committed=True)
    sub.remove_consumer("a")
    sub.add_consumer("a")
    assert (got(sub), sub.status().consumers) == ([], {"a": 0})
    sub.end_txn(T1, committed=False)
    assert got(sub) == [1, 2, 3, 4, 5]


def test_the_second_transaction_on_a_message_is_in_conflict_and_changes_nothing() -> None:
    """Seed 002, 3.3: only one succeeds. Section 3.2: all or nothing, and the same transaction is no exception."""
    sub = opened()
    hold(sub, T1, 2)
    with pytest.raises(Conflict, match="0:1002:2 is being acknowledged by transaction 0-1; abort transaction 0-2"):
        sub.ack_in_txn("a", [m(1), m(2)], T2)
    with pytest.raises(Conflict, match="by this transaction already"):
        sub.ack_in_txn("a", [m(2)], T1)
    sub.redeliver("a")
    assert got(sub) == [1, 3, 4, 5]
    assert sub.pending_txns() == [T1]


def test_what_is_acknowledged_cannot_be_acknowledged_by_a_transaction() -> None:
    """Fact 38, second half; also while the record is on its way."""
    sub = opened()
    sub.confirm(sub.ack("a", [m(1)]))
    change = sub.ack("a", [m(3)])
    for n in (1, 3):
        with pytest.raises(Conflict, match="is acknowledged already"):
            sub.ack_in_txn("a", [m(n)], T1)
    sub.revert(change)
    hold(sub, T1, 3)


def test_three_ways_at_once_and_only_the_aborted_come_again() -> None:
    """Fact 37, with messages for batch indexes."""
    sub = opened(count=9)
    hold(sub, T1, 1, 2, 3)
    hold(sub, T2, 4, 5, 6)
    sub.confirm(sub.ack("a", [m(7), m(8), m(9)]))
    assert sub.end_txn(T2, committed=False) == [m(4), m(5), m(6)]
    assert got(sub) == [4, 5, 6]


def test_what_an_abort_has_freed_another_transaction_may_acknowledge() -> None:
    """Fact 38, first half, without delivering it anew."""
    sub = opened()
    hold(sub, T1, 1)
    sub.end_txn(T1, committed=True)
    hold(sub, T2, 2)
    sub.end_txn(T2, committed=False)
    hold(sub, T3, 2)
    sub.end_txn(T3, committed=True)
    assert sub.marks() == {0: m(2)}


def test_four_of_five() -> None:
    """Fact 42."""
    sub = opened()
    hold(sub, T1, 1, 2, 3, 4)
    sub.end_txn(T1, committed=False)
    assert got(sub) == [1, 2, 3, 4]
    hold(sub, T2, 1, 2, 3, 4)
    sub.end_txn(T2, committed=True)
    sub.redeliver("a")
    assert got(sub) == [5]


def test_a_transaction_that_acknowledges_nothing_is_told_so() -> None:
    """Section 3.2: no positions is a wrong call."""
    with pytest.raises(InvalidArgument, match="nothing to acknowledge in transaction 0-1"):
        opened().ack_in_txn("a", [], T1)


def test_an_abort_raises_the_redelivery_count_up_to_the_dead_letter() -> None:
    """Fact 43: one redelivery allowed; acknowledged and aborted twice, the third delivery goes to the dead letters."""
    sub = opened(count=1, max_redeliveries=1)
    hold(sub, T1, 1)
    assert sub.end_txn(T1, committed=False) == [m(1)]
    assert [each.redelivery_count for each in sub.take("a", 1, 0)] == [1]
    hold(sub, T2, 1)
    assert sub.end_txn(T2, committed=False) == []
    assert got(sub) == []
    (dead,) = sub.dead_letters()
    # The move is a transaction of its own. If it is aborted, the letter is returned again.
    sub.confirm(sub.ack_in_txn(None, [dead.id], T3))
    sub.end_txn(T3, committed=False)
    assert [each.id for each in sub.dead_letters()] == [m(1)]
    sub.confirm(sub.ack_in_txn(None, [dead.id], T1))
    sub.end_txn(T1, committed=True)
    assert (sub.dead_letters(), sub.marks()) == ([], {0: m(1)})


def test_an_abort_with_nobody_connected_succeeds() -> None:
    """Fact 44."""
    sub = opened(count=2)
    hold(sub, T1, 1)
    sub.remove_consumer("a")
    assert sub.end_txn(T1, committed=False) == [m(1)]
    sub.add_consumer("b")
    assert got(sub, "b") == [1, 2]


@pytest.mark.parametrize("committed", [True, False])
def test_ending_a_transaction_that_holds_nothing_or_has_ended_has_no_effect(committed: bool) -> None:
    """Section 3.4 and fact 46."""
    sub = opened()
    assert sub.end_txn(T1, committed) == []
    hold(sub, T1, 1)
    sub.end_txn(T1, committed)
    state = sub.snapshot()
    assert sub.end_txn(T1, committed) == []
    assert sub.snapshot() == state


def test_unacknowledged_counts_return_after_an_abort() -> None:
    """Section 3.9: a known gap elsewhere."""
    sub = opened(count=2)
    hold(sub, T1, 1, 2)
    assert sub.status().consumers == {"a": 0}
    sub.end_txn(T1, committed=False)
    got(sub)
    assert sub.status().consumers == {"a": 2}


# -- cumulative ------------------------------------------------------------------------------------------------------


def test_a_transaction_goes_on_cumulatively_and_conflicts_with_itself_backwards_and_with_others() -> None:
    """Fact 35."""
    sub = opened("exclusive", 9)
    for n in (3, 6):
        hold_upto(sub, T1, n)
    for n, txn in ((6, T1), (4, T1), (8, T2), (2, T2)):
        with pytest.raises(Conflict):
            sub.ack_cumulative_in_txn("a", m(n), txn)
    hold_upto(sub, T1, 9)
    assert sub.end_txn(T1, committed=False) == [m(n) for n in range(1, 10)]
    assert got(sub) == list(range(1, 10))
    hold_upto(sub, T2, 9)
    sub.end_txn(T2, committed=True)
    sub.redeliver("a")
    assert (got(sub), sub.marks()) == ([], {0: m(9)})


def test_after_an_aborted_cumulative_acknowledgement_all_come_again_in_order() -> None:
    """Fact 36; we give back what follows as well, so the consumer need not ask."""
    sub = opened("exclusive", 5)
    hold_upto(sub, T1, 3)
    assert got(sub) == []
    assert sub.end_txn(T1, committed=False) == [m(1), m(2), m(3), m(4), m(5)]
    sub.feed(0, [(m(6), 6)])
    assert got(sub) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("in_txn", [False, True])
def test_a_cumulative_acknowledgement_never_covers_what_was_given_back(in_txn: bool) -> None:
    """Found by simulation: another's transaction is aborted, and nobody has processed what it held."""
    sub = opened("exclusive", 5)
    hold_upto(sub, T1, 3)
    sub.end_txn(T1, committed=False)

    def upto(n: int) -> None:
        sub.confirm(sub.ack_cumulative_in_txn("a", m(n), T2) if in_txn else sub.ack_cumulative("a", m(n)))

    with pytest.raises(Conflict, match="0:1001:1 was given back and waits to be delivered again"):
        upto(5)
    assert got(sub) == [1, 2, 3, 4, 5]
    upto(5)


def test_a_cumulative_acknowledgement_at_or_below_the_mark_is_a_conflict() -> None:
    """Section 3.3."""
    sub = opened("exclusive")
    sub.confirm(sub.ack_cumulative("a", m(3)))
    for n in (2, 3):
        with pytest.raises(Conflict, match="is acknowledged already"):
            sub.ack_cumulative_in_txn("a", m(n), T1)


def test_cumulative_and_single_acknowledgements_of_different_transactions_exclude_each_other() -> None:
    """Section 3.3: Pulsar does not check this, and acknowledges such a message twice."""
    sub = opened("exclusive")
    hold(sub, T1, 2)
    with pytest.raises(Conflict, match="0:1002:2 is being acknowledged by transaction 0-1"):
        sub.ack_cumulative_in_txn("a", m(3), T2)
    hold_upto(sub, T2, 1)
    with pytest.raises(Conflict, match="0:1001:1 is being acknowledged by transaction 0-2"):
        sub.ack_in_txn("a", [m(1)], T3)


def test_a_transaction_may_do_both() -> None:
    sub = opened("exclusive")
    hold(sub, T1, 2, 5)
    hold_upto(sub, T1, 3)
    assert sub.end_txn(T1, committed=True) == []
    sub.redeliver("a")
    assert (got(sub), sub.marks()) == ([4], {0: m(3)})


def test_a_single_acknowledgement_survives_a_reverted_cumulative_one_of_the_same_transaction() -> None:
    sub = opened("exclusive")
    hold(sub, T1, 2)
    sub.revert(sub.ack_cumulative_in_txn("a", m(3), T1))
    sub.redeliver("a")
    assert got(sub) == [1, 3, 4, 5]


@pytest.mark.parametrize("first_settled", [0, 1])
def test_extending_falls_back_to_what_is_written(first_settled: int) -> None:
    sub = opened("exclusive")
    changes = [sub.ack_cumulative_in_txn("a", m(2), T1), sub.ack_cumulative_in_txn("a", m(4), T1)]
    sub.confirm(changes.pop(first_settled))
    sub.revert(changes.pop())
    sub.redeliver("a")
    assert got(sub) == ([3, 4, 5] if first_settled == 0 else [5])


def test_an_ordinary_acknowledgement_on_its_way_is_covered_when_it_fails() -> None:
    sub = opened("exclusive")
    change = sub.ack("a", [m(1)])
    hold_upto(sub, T1, 2)
    sub.revert(change)
    sub.redeliver("a")
    assert got(sub) == [3, 4, 5]
    assert sub.end_txn(T1, committed=False)[:2] == [m(1), m(2)]


# -- the log ---------------------------------------------------------------------------------------------------------


def test_a_failed_append_frees_the_message_for_another_transaction() -> None:
    sub = opened()
    sub.revert(sub.ack_in_txn("a", [m(1)], T1))
    assert sub.pending_txns() == []
    hold(sub, T2, 1)


@pytest.mark.parametrize("settle", ["confirm", "revert"])
@pytest.mark.parametrize("committed", [True, False])
def test_an_append_that_ends_after_its_transaction_decides_nothing(settle: str, committed: bool) -> None:
    sub = opened("exclusive")
    single, cumulative = sub.ack_in_txn("a", [m(5)], T1), sub.ack_cumulative_in_txn("a", m(2), T1)
    sub.end_txn(T1, committed)
    for change in (single, cumulative):
        getattr(sub, settle)(change)
    assert sub.pending_txns() == []
    sub.redeliver("a")
    assert got(sub) == ([3, 4] if committed else [1, 2, 3, 4, 5])


def test_even_pending_odd_committed_across_two_restarts() -> None:
    """Fact 39."""
    sub = opened(count=10)
    even, odd = range(2, 11, 2), range(1, 11, 2)
    hold(sub, T1, *even)
    sub = restarted(sub, 10)
    assert got(sub) == list(odd)
    for n in even:
        with pytest.raises(Conflict, match="transaction 0-1"):
            sub.ack_in_txn("a", [m(n)], T2)
    change = hold(sub, T2, *odd)
    log = [(change.record, None), (change.commit_record, T2), (records.release(T1), None)]
    sub = restarted(opened(count=10), 10, *log)
    for n in odd:
        with pytest.raises(Conflict, match="is acknowledged already"):
            sub.ack_in_txn("a", [m(n)], T3)
    assert got(sub) == list(even)
    hold(sub, T3, *even)


def test_after_a_restart_pending_is_found_and_ended_by_the_coordinators_word() -> None:
    """Facts 32 and 58: what a transaction left behind does not hold its messages for ever."""
    sub = opened("exclusive")
    hold(sub, T1, 4)
    hold_upto(sub, T2, 2)
    for committed, left in ((False, [1, 2, 3, 4, 5]), (True, [3, 5])):
        later = restarted(sub, 5)
        assert later.pending_txns() == [T1, T2]
        later.end_txn(T1, committed)
        later.end_txn(T2, committed)
        assert got(later) == left


def test_a_transaction_ended_before_its_messages_are_read_again_is_ended_all_the_same() -> None:
    sub = opened("exclusive")
    hold(sub, T1, 4)
    hold_upto(sub, T1, 2)
    acks = Acknowledgements.restore(sub.snapshot())
    later = Subscription("audit/billing", "exclusive", acknowledgements=acks)
    later.add_consumer("a")
    later.end_txn(T1, committed=True)
    later.feed(0, [(m(n), n) for n in range(1, 6)])
    assert got(later) == [3, 5]


def test_subscriptions_of_one_topic_are_independent() -> None:
    """Fact 41."""
    one, two = opened(), opened()
    hold(one, T1, 1)
    hold(two, T1, 1)
    one.end_txn(T1, committed=True)
    assert two.pending_txns() == [T1]
    assert two.end_txn(T1, committed=False) == [m(1)]
    assert (one.marks(), two.marks()) == ({0: m(1)}, {})


def test_a_record_of_an_aborted_transaction_that_was_written_late_does_not_free_anothers_message() -> None:
    """Promise 2: after a restart the message stays with the transaction that holds it."""
    sub = opened("exclusive")
    log = [
        (records.pending(T2, [m(4)]), None),
        (records.pending(T1, [m(4)]), None),
        (records.pending_cumulative(T2, [m(2)]), None),
        (records.pending_cumulative(T1, [m(3)]), None),
    ]
    later = restarted(sub, 5, *log)
    assert later.end_txn(T1, committed=False) == [m(3)]
    assert got(later) == [3, 5]
    assert later.end_txn(T2, committed=True) == []
    assert later.marks() == {0: m(2)}
