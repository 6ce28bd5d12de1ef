"""Acknowledgements in transactions, and transactions as consumers see them (seed 002; transactions.md 2, 3 and 6).

Where the systems behind the facts hold readers up at an open transaction, Tidegate does not (promise 3): what is
committed is delivered, at its commit, whatever else is open.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from engine_rig import House, Sub
from helpers import BROKEN, Calls, FailingFiles, eventually
from tidegate.database.sub_acks import recover
from tidegate.database.sub_dead_letters import REDELIVERIES
from tidegate.errors import (
    Conflict,
    InvalidTransactionState,
    OutcomeUnknown,
    StorageFailed,
    TransactionExpired,
    TransactionNotFound,
    WaitTimeout,
)
from tidegate.runtime import log as log_module
from tidegate.runtime.steps import run
from tidegate.stores.local_files import LocalFiles
from tidegate.txn.txn_id import TxnId


@pytest.fixture
def sub(house: House) -> Sub:
    house.topic("t")
    return house.subscribe("t")


def filled(house: House, count: int, **options: Any) -> tuple[Sub, list[Any]]:
    """A subscription whose consumer holds `count` messages."""
    house.topic("t")
    sub = house.subscribe("t", **options)
    house.send_together("t", *range(count))
    found = sub.receive(count)
    assert [each.value for each in found] == list(range(count))
    return sub, found


def values(messages: list[Any]) -> list[Any]:
    return [each.value for each in messages]


# -- what transactions send, as a consumer sees it ---------------------------------------------------------------


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_an_open_transaction_blocks_nobody(house: House, sub: Sub, ending: str) -> None:
    """Fact 17, but for promise 3: m3 does not wait for m2."""
    txn = house.engine.begin()
    house.send("t", "m1")
    house.write_ahead(txn, "t", "m2")
    house.send("t", "m3")
    assert sub.values(2) == ["m1", "m3"]
    assert sub.nothing()
    if ending == "commit":
        house.engine.commit(txn, {})
        assert sub.values() == ["m2"]
    else:
        house.engine.abort(txn)
    assert sub.nothing()


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_two_transactions_interleaved_each_come_whole(house: House, sub: Sub, ending: str) -> None:
    """Fact 18, with a restart in between; 59: who commits is seen, whatever the other one does."""
    one, two = house.engine.begin(), house.engine.begin()
    for number in range(10):
        house.write_ahead(two if number % 2 else one, "t", number)
    house.engine.commit(one, {})
    assert sub.values(5) == [0, 2, 4, 6, 8]
    house.restart()
    if ending == "commit":
        house.engine.commit(two, {})
    else:
        house.engine.abort(two)
    sub = house.subscribe("t")
    expected = [0, 2, 4, 6, 8] + ([1, 3, 5, 7, 9] if ending == "commit" else [])
    assert sub.values(10, 0.5 if ending == "abort" else 5.0) == expected
    assert sub.nothing()


def test_nothing_is_seen_before_the_commit_and_everything_after(house: House, sub: Sub) -> None:
    """Fact 19: 1000 messages over two transactions."""
    one, two = house.engine.begin(), house.engine.begin()
    house.write_ahead(one, "t", *range(0, 1000, 2))
    house.write_ahead(two, "t", *range(1, 1000, 2))
    assert sub.nothing()
    house.engine.commit(one, {})
    house.engine.commit(two, {})
    assert sorted(sub.values(1000)) == list(range(1000))
    assert sub.nothing()


def test_what_was_aborted_is_never_delivered_and_holds_nothing_up(house: House, sub: Sub) -> None:
    """Facts 20, 23: also not after a restart, and the backlog is empty."""
    txn = house.engine.begin()
    house.write_ahead(txn, "t", *range(10))
    house.engine.abort(txn)
    house.send("t", "normal")
    assert sub.stats()["backlog"] <= 1
    house.restart()
    sub = house.subscribe("t")
    sub.ack(sub.receive())
    assert sub.nothing()
    assert sub.stats()["backlog"] == 0


def test_the_backlog_counts_what_is_visible(house: House, sub: Sub) -> None:
    """Fact 21: |n0 n1 n2 t1 n4 t2|; open and aborted messages do not count."""
    one, two = house.engine.begin(), house.engine.begin()
    house.send("t", "n0", "n1", "n2")
    house.write_ahead(one, "t", "t1")
    at = house.send("t", "n4")
    house.write_ahead(two, "t", "t2")
    house.engine.wait_until_visible(at)
    assert sub.stats()["backlog"] == 4
    house.engine.wait_until_visible(house.engine.commit(one, {}))
    assert sub.stats()["backlog"] == 5
    house.engine.abort(two)
    house.engine.wait_until_visible(house.send("t", "n5"))
    assert sub.stats()["backlog"] == 6


def test_messages_of_a_transaction_keep_their_order(house: House, sub: Sub) -> None:
    """Facts 24 and 60: in the order in which they were sent, and an aborted one in between leaves no trace."""
    txn, other = house.engine.begin(), house.engine.begin()
    for number in range(50):
        house.write_ahead(txn, "t", number)
        house.write_ahead(other, "t", -number)
    house.engine.abort(other)
    house.engine.commit(txn, house.writes("t", list(range(50, 100))))
    assert sub.values(100) == list(range(100))


def test_a_transaction_over_several_shards_becomes_visible_at_one_timestamp(house: House) -> None:
    """Promise 2."""
    house.topic("t", shards=3)
    sub = house.subscribe("t")
    at = house.send_together("t", *range(30))
    found = sub.receive(30)
    assert {each.timestamp for each in found} == {at}
    assert {each.id.shard for each in found} == {0, 1, 2}


# -- pending acknowledgements ------------------------------------------------------------------------------------


def test_what_is_acknowledged_in_a_transaction_comes_again_when_it_is_aborted(house: House) -> None:
    """Fact 33: 1000 messages; a repeated commit gives the same answer, an unknown one is not found (PIP-254)."""
    sub, found = filled(house, 1000)
    txn = house.engine.begin()
    for start in range(0, 1000, 100):
        sub.ack(found[start : start + 100], txn)
    assert sub.nothing() and sub.stats()["pending"] == 1000
    house.engine.abort(txn)
    again = sub.receive(1000)
    assert values(again) == list(range(1000))
    assert {each.redelivery_count for each in again} == {1}
    txn = house.engine.begin()
    sub.ack(again, txn)
    at = house.engine.commit(txn, {})
    assert sub.nothing() and sub.stats()["backlog"] == 0
    assert house.engine.commit(txn, {}) == at
    with pytest.raises(TransactionNotFound):
        house.engine.commit(TxnId.make(0, 12345), {})


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_asking_for_redelivery_leaves_pending_messages_alone(house: House, ending: str) -> None:
    """Fact 34; 3.6: a negative acknowledgement has no effect on them either."""
    sub, found = filled(house, 10)
    txn = house.engine.begin()
    sub.ack(found, txn)
    sub.redeliver()
    sub.nack(*found)
    assert sub.nothing() and sub.stats()["pending"] == 10
    if ending == "commit":
        house.engine.commit(txn, {})
        assert sub.nothing()
    else:
        house.engine.abort(txn)
        assert sub.values(10) == list(range(10))
    assert sub.stats()["pending"] == 0


def test_cumulative_acknowledgements_go_forward_in_one_transaction(house: House) -> None:
    """Fact 35: every third message; the same, a lower one and another transaction conflict."""
    sub, found = filled(house, 12, kind="exclusive")
    txn, other = house.engine.begin(), house.engine.begin()
    for each in found[2::3]:
        sub.ack_cumulative(each, txn)
    for late, of in ((found[11], txn), (found[4], txn), (found[11], other), (found[2], other)):
        with pytest.raises(Conflict):
            sub.ack_cumulative(late, of)
    house.engine.abort(txn)
    again = sub.receive(12)
    assert values(again) == list(range(12))
    txn = house.engine.begin()
    sub.ack_cumulative(again[-1], txn)
    house.engine.commit(txn, {})
    sub.redeliver()
    assert sub.nothing() and sub.stats()["backlog"] == 0


def test_after_an_aborted_cumulative_acknowledgement_all_come_again_in_order(house: House) -> None:
    """Fact 36, without the consumer's help: what follows is given back as well, so the order holds."""
    sub, found = filled(house, 5, kind="exclusive")
    txn = house.engine.begin()
    sub.ack_cumulative(found[2], txn)
    house.engine.abort(txn)
    assert sub.values(5) == [0, 1, 2, 3, 4]


def test_messages_sent_together_are_acknowledged_one_by_one(house: House) -> None:
    """Facts 37, 38: a batch of 9, three ways; only what was aborted comes again."""
    sub, found = filled(house, 9)
    one, two = house.engine.begin(), house.engine.begin()
    sub.ack(found[:3], one)
    sub.ack(found[3:6], two)
    sub.ack(found[6:])
    house.engine.abort(two)
    again = sub.receive(4, 0.3)
    assert values(again) == [3, 4, 5]
    three = house.engine.begin()
    sub.ack(again, three)
    house.engine.commit(one, {})
    with pytest.raises(Conflict, match="acknowledged already"):
        sub.ack(found[0], three)
    house.engine.commit(three, {})
    assert sub.nothing() and sub.stats()["backlog"] == 0


def test_of_two_transactions_one_acknowledges_and_the_other_conflicts(house: House) -> None:
    """Seed 002, 3.3: on single and on cumulative acknowledgements; all or nothing."""
    sub, found = filled(house, 4, kind="failover")
    one, two = house.engine.begin(), house.engine.begin()
    sub.ack(found[1], one)
    with pytest.raises(Conflict, match=f"acknowledged by transaction {one}"):
        sub.ack([found[0], found[1]], two)
    with pytest.raises(Conflict):
        sub.ack_cumulative(found[2], two)
    sub.ack(found[0], two)
    house.engine.abort(two)
    house.engine.commit(one, {})
    assert sub.values(2, 0.3) == [0]


def test_an_ordinary_acknowledgement_of_a_pending_message_is_refused(house: House) -> None:
    """Seed 002: it cannot be acknowledged by anybody else until the transaction ends."""
    sub, found = filled(house, 2, kind="exclusive")
    txn = house.engine.begin()
    sub.ack(found[0], txn)
    with pytest.raises(Conflict, match="wait for it to end"):
        sub.ack(found[0])
    with pytest.raises(Conflict):
        sub.ack_cumulative(found[1])
    house.engine.abort(txn)
    again = sub.receive()
    sub.ack(again)
    sub.ack(found[1])
    assert sub.stats()["backlog"] == 0


@pytest.mark.parametrize("again", ["restart", "crash"])
def test_pending_acknowledgements_are_back_after_a_restart(house: House, again: str) -> None:
    """Fact 39: even ones pending in A; B conflicts on each of them and acknowledges the odd ones; A is aborted."""
    sub, found = filled(house, 100)
    a = house.engine.begin()
    sub.ack(found[::2], a)
    getattr(house, again)()
    sub = house.subscribe("t")
    odd = sub.receive(60, 0.3)
    assert values(odd) == list(range(1, 100, 2))
    b = house.engine.begin()
    for each in found[::2]:
        with pytest.raises(Conflict, match=f"by transaction {a}"):
            sub.ack(each, b)
    sub.ack(odd, b)
    house.engine.commit(b, {})
    house.engine.abort(a)
    getattr(house, again)()
    sub = house.subscribe("t")
    even = sub.receive(60, 0.3)
    assert values(even) == list(range(0, 100, 2))
    c = house.engine.begin()
    with pytest.raises(Conflict, match="acknowledged already"):
        sub.ack(odd[0], c)
    sub.ack(even, c)
    house.engine.commit(c, {})
    assert sub.stats()["backlog"] == 0


@pytest.mark.parametrize("again", ["restart", "crash"])
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_a_transaction_that_was_open_over_a_restart_commits_with_its_acknowledgements(
    house: House, again: str, kind: str
) -> None:
    """Seed 002: the state is restored, so that the acknowledgement is not lost; also if nobody has subscribed again."""
    sub, found = filled(house, 5, kind=kind)
    txn = house.engine.begin(timeout_ms=60_000)
    if kind == "shared":
        sub.ack(found[1:4], txn)
    else:
        sub.ack_cumulative(found[3], txn)
    getattr(house, again)()
    house.engine.commit(txn, house.writes("t", ["more"]))
    expected = [0, 4, "more"] if kind == "shared" else [4, "more"]
    assert house.subscribe("t").values(4, 0.5) == expected
    house.crash()
    assert house.subscribe("t").values(4, 0.5) == expected


def test_pending_state_is_part_of_a_snapshot(open_house: Callable[..., House]) -> None:
    house = open_house(snapshot_records=3)
    sub, found = filled(house, 8)
    txn = house.engine.begin()
    for each in found[:4]:
        sub.ack(each, txn)
    eventually(lambda: not sub.host.journal.wants_snapshot())
    house.crash()
    sub = house.subscribe("t")
    assert sub.values(8, 0.3) == [4, 5, 6, 7]
    house.engine.commit(txn, {})
    assert sub.stats()["backlog"] == 4


def test_what_was_never_logged_to_take_part_is_given_back_after_a_crash(house: House) -> None:
    """3.7: a pending record of a transaction that its coordinator does not know means nothing."""
    sub, found = filled(house, 2)
    txn = house.engine.begin()
    change = sub.host.machine.ack_in_txn(sub.consumer, [found[0].id], txn.to_bytes16())
    request = sub.host.journal.request(change.record or b"")
    request.wait()
    house.crash()
    assert house.subscribe("t").values(2) == [0, 1]
    house.crash()
    assert house.subscribe("t").stats()["pending_transactions"] == []


def test_a_consumer_that_comes_back_gets_neither_pending_nor_acknowledged_messages(house: House) -> None:
    """Fact 40: half pending, half committed: nothing; abort: exactly its half, in order."""
    sub, found = filled(house, 10)
    one, two = house.engine.begin(), house.engine.begin()
    sub.ack(found[::2], one)
    sub.ack(found[1::2], two)
    house.engine.commit(two, {})
    sub.close()
    sub = house.subscribe("t")
    assert sub.nothing()
    house.engine.abort(one)
    assert sub.values(5) == [0, 2, 4, 6, 8]
    assert sub.nothing()


def test_one_transaction_takes_part_in_several_subscriptions(house: House) -> None:
    """Fact 41."""
    house.topic("t")
    one, two = house.subscribe("t", "one"), house.subscribe("t", "two")
    house.send("t", *range(3))
    txn = house.engine.begin()
    one.ack(one.receive(3), txn)
    two.ack(two.receive(3)[:2], txn)
    names = house.engine.transactions.taking_part("subscription/")
    assert names == ["subscription/1.t/one", "subscription/1.t/two"]
    house.engine.commit(txn, {})
    assert (one.stats()["backlog"], two.stats()["backlog"]) == (0, 1)


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_four_of_five(house: House, ending: str) -> None:
    """Fact 42."""
    sub, found = filled(house, 5)
    txn = house.engine.begin()
    sub.ack(found[:4], txn)
    getattr(house.engine, ending)(*([txn, {}] if ending == "commit" else [txn]))
    if ending == "abort":
        assert sub.values(4) == [0, 1, 2, 3]
    sub.close()
    expected = [4] if ending == "commit" else [0, 1, 2, 3, 4]
    assert house.subscribe("t").values(5, 0.3) == expected


def test_aborted_acknowledgements_count_as_redeliveries(house: House) -> None:
    """Fact 43: max_redeliveries 1; acknowledged and aborted twice, it goes to the dead-letter topic."""
    house.topic("dead")
    sub, found = filled(house, 1, max_redeliveries=1, dead_letter_topic="dead")
    for count in range(2):
        txn = house.engine.begin()
        sub.ack(found, txn)
        house.engine.abort(txn)
        if count == 0:
            found = sub.receive()
            assert found[0].redelivery_count == 1
    (letter,) = house.subscribe("dead").receive()
    assert (letter.value, letter.headers[REDELIVERIES]) == (0, "2")
    assert sub.nothing()


def test_a_transaction_ends_where_nobody_is_connected(house: House) -> None:
    """Fact 44."""
    sub, found = filled(house, 2)
    one, two = house.engine.begin(), house.engine.begin()
    sub.ack(found[0], one)
    sub.ack(found[1], two)
    sub.close()
    house.engine.abort(one)
    house.engine.commit(two, {})
    assert house.subscribe("t").values(2, 0.3) == [0]


@pytest.mark.parametrize("ending", ["commit", "abort"])
@pytest.mark.parametrize("gone", ["subscription", "topic"])
@pytest.mark.parametrize("again", [True, False])
def test_a_transaction_ends_where_there_is_nothing_left(house: House, ending: str, gone: str, again: bool) -> None:
    """Fact 46: missing topic or subscription; also after a restart."""
    house.topic("other")
    sub, found = filled(house, 2)
    txn = house.engine.begin()
    sub.ack(found, txn)
    if gone == "topic":
        house.engine.change_catalog(lambda catalog: catalog.plan_drop_topic("t"))
    else:
        house.engine.subscriptions.unsubscribe("t", "s")
    if again:
        house.restart()
    if ending == "commit":
        house.engine.commit(txn, house.writes("other", [1]))
    else:
        house.engine.abort(txn)
    if gone == "subscription":
        assert house.subscribe("t").values(2) == [0, 1]
    other = house.subscribe("other")
    assert other.values() == [1] if ending == "commit" else other.nothing()


def test_a_transaction_acknowledges_nothing_in_a_later_subscription_of_the_same_name(house: House) -> None:
    """Fact 46, and then a new one: what was pending in the old one means nothing there."""
    sub, found = filled(house, 2)
    txn = house.engine.begin()
    sub.ack(found, txn)
    house.engine.subscriptions.unsubscribe("t", "s")
    sub = house.subscribe("t")
    house.engine.commit(txn, {})
    assert sub.values(2) == [0, 1]
    house.crash()
    assert house.subscribe("t").values(2) == [0, 1]


def test_an_abort_is_in_the_log_of_the_subscription_too(house: House) -> None:
    """Nobody has to ask the coordinator, which may have forgotten the transaction, what became of it."""
    sub, found = filled(house, 2)
    txn = house.engine.begin()
    sub.ack(found, txn)
    house.engine.abort(txn)
    journal, since = sub.host.journal, sub.host.subscription.created
    eventually(lambda: recover(journal, since).pending_txns() == [])


# -- transactions that end by themselves -------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["", "restart", "crash"])
def test_what_a_transaction_held_at_its_timeout_comes_again(house: House, again: str) -> None:
    """Fact 58: the same id; 13: a restart does not prolong it."""
    sub, found = filled(house, 1)
    txn = house.engine.begin(timeout_ms=300)
    sub.ack(found, txn)
    if again:
        getattr(house, again)()
        sub = house.subscribe("t")
    assert sub.receive()[0].id == found[0].id
    with pytest.raises(TransactionExpired):
        house.engine.commit(txn, {})


def test_an_ended_transaction_acknowledges_nothing(house: House) -> None:
    """Facts 32, 48: no stray acknowledgement is left behind by one that has ended."""
    sub, found = filled(house, 2)
    txn, late = house.engine.begin(), house.engine.begin(timeout_ms=1)
    house.engine.commit(txn, {})
    with pytest.raises(InvalidTransactionState):
        sub.ack(found[0], txn)
    eventually(lambda: house.engine.transactions.status()["expired"] == 1)
    with pytest.raises(TransactionExpired):
        sub.ack(found[1], late)
    assert sub.stats()["pending"] == 0
    sub.ack(found)


def test_what_a_lost_client_held_in_a_transaction_goes_to_others(house: House) -> None:
    """2.6, 3.9: nothing stays pending for somebody who is gone."""
    house.topic("t")
    house.engine.clients.add("c1", "c1", 10_000)
    lost, other = house.subscribe("t", client="c1"), house.subscribe("t", consumer="other")
    house.send("t", 1, 2)
    txn = house.engine.begin("c1")
    lost.ack(lost.receive(2)[:1], txn)
    house.engine.client_gone("c1", lost=True)
    assert sorted(other.values(2)) == [1, 2]


# -- at the same time --------------------------------------------------------------------------------------------


def test_many_threads_acknowledge_in_one_transaction(house: House, calls: Calls) -> None:
    """Fact 54: 30 threads; the commit waits for what is on its way, and everything is done."""
    sub, found = filled(house, 300)
    txn = house.engine.begin()
    done = [calls(lambda at=at: sub.ack(found[at : at + 10], txn)) for at in range(0, 300, 10)]
    for each in done:
        each.result(30)
    house.engine.commit(txn, {})
    assert sub.stats()["backlog"] == 0


def test_a_commit_waits_for_an_acknowledgement_on_its_way(house: House, calls: Calls) -> None:
    """4: commit waits for all outstanding acknowledgements; none is acknowledged here and forgotten in the log."""
    sub, found = filled(house, 2)
    txn = house.engine.begin()
    sub.ack(found[0], txn)
    steps = sub.host.ack_in_txn(txn, sub.consumer, [found[1].id])
    waits = next(steps)
    commit = calls(lambda: house.engine.commit(txn, {}))
    with pytest.raises(TimeoutError):
        commit.result(0.1)
    for each in waits:
        each.wait()
    with pytest.raises(StopIteration):
        next(steps)
    commit.result(10)
    house.crash()
    assert house.subscribe("t").stats()["backlog"] == 0


def test_two_consumers_race_for_the_same_messages_and_each_is_acknowledged_once(house: House, calls: Calls) -> None:
    """Seed 002: only one of them succeeds, whatever the order."""
    sub, found = filled(house, 40)

    def take(messages: list[Any]) -> list[Any]:
        won = []
        for each in messages:
            txn = house.engine.begin()
            try:
                sub.ack(each, txn)
                house.engine.commit(txn, {})
                won.append(each.value)
            except Conflict:
                house.engine.abort(txn)
        return won

    racing = [calls(lambda: take(found)), calls(lambda: take(found[::-1]))]
    won = [value for each in racing for value in each.result(60)]
    assert sorted(won) == list(range(40))
    assert sub.stats()["backlog"] == 0


def test_a_commit_that_fails_leaves_everything_pending(house: House, monkeypatch: Any) -> None:
    """6: a commit that could not be written may be tried again, with its acknowledgements."""
    sub, found = filled(house, 2)
    txn = house.engine.begin()
    sub.ack(found[0], txn)
    transactions = house.engine.transactions

    def refuse(*_: Any) -> Any:
        raise WaitTimeout("planted")

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "_hold", refuse)
        with pytest.raises(WaitTimeout, match="planted"):
            house.engine.commit(txn, {})
    assert sub.stats()["pending"] == 1
    house.engine.commit(txn, {})
    assert sub.stats()["backlog"] == 1
    assert sub.host.journal.snapshot(sub.host.machine.snapshot, timeout_s=0.2), "it has left the journal"


@pytest.mark.parametrize("in_txn", [False, True])
def test_an_acknowledgement_in_doubt_is_not_confirmed_and_can_be_repeated(
    open_house: Callable[..., House], monkeypatch: Any, in_txn: bool
) -> None:
    """3.7: the outcome is unknown and the caller is told so; before anything else is written the log is cut there."""
    disks: dict[str, FailingFiles] = {}
    monkeypatch.setattr(log_module, "LocalFiles", lambda at: disks.setdefault(str(at), FailingFiles(LocalFiles(at))))
    house = open_house(channels=1)
    disk = disks[str(house.engine.path / "log")]
    sub, found = filled(house, 3)
    txn = house.engine.begin()
    sub.ack(found[0], txn)
    with disk.failing(BROKEN, "write", "sync", "create", "sync_dir", "remove", only="data-0"):
        with pytest.raises(OutcomeUnknown):
            sub.ack(found[1], txn if in_txn else None)
        assert sub.stats()["pending"] == 1 and sub.stats()["in_memory"] == 3

    def repeated() -> bool:
        with suppress(OutcomeUnknown, StorageFailed):
            sub.ack(found[1], txn if in_txn else None)
            return True
        return False

    eventually(repeated)
    house.engine.commit(txn, {})
    house.crash()
    assert house.subscribe("t").values(3, 0.3) == [2]


def test_procedures_wait_only_where_they_say_so(house: House) -> None:
    """They are steps: whoever runs them sees every append, and can stop between any two."""
    sub, found = filled(house, 1)
    txn = house.engine.begin()
    steps = sub.host.ack_in_txn(txn, sub.consumer, [found[0].id])
    assert len(next(steps)) == 1  # who takes part
    steps.close()
    house.engine.abort(txn)
    sub.redeliver()
    run(sub.host.ack(sub.consumer, [sub.receive()[0].id]))
