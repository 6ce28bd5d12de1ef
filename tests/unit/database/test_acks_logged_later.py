"""Acknowledgements in a transaction of the process that owns the database: logged with the commit (seed 002).

Such a transaction ends with its process, so nobody can rely on what is pending in it after a crash: the messages are
delivered again. That saves the two writes before the commit. One that stays open is logged all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine_rig import House, Sub
from helpers import BROKEN, FailingFiles, eventually
from tidegate.database.clients import OWNER
from tidegate.database.local import LocalBackend
from tidegate.errors import Conflict, InvalidArgument, InvalidTransactionState, OutcomeUnknown, TransactionNotFound
from tidegate.runtime import log as log_module
from tidegate.runtime.journal import Journal
from tidegate.runtime.steps import Steps, run
from tidegate.stores.local_files import LocalFiles
from tidegate.txn.txn_id import TxnId


@pytest.fixture
def quick(monkeypatch: Any) -> Iterator[None]:
    """No look at what lingers falls into a test that is about quick transactions."""

    def nothing(_: object) -> Steps[int]:
        yield []
        return 0

    monkeypatch.setattr("tidegate.database.transactions.Transactions.log_lingering", nothing)
    yield


def opened(house: House, count: int = 4, shards: int = 1) -> tuple[Sub, list[Any]]:
    """A subscription whose consumer holds `count` messages, and a topic to send to."""
    house.topic("in", shards=shards)
    house.topic("out")
    sub = house.subscribe("in", "worker")
    house.send_together("in", *range(count))
    return sub, sorted(sub.receive(count), key=lambda each: each.value)


def later(sub: Sub, txn: TxnId, messages: list[Any]) -> Steps[None]:
    return sub.host.ack_in_txn(txn, sub.consumer, [each.id for each in messages], later=True)


def appends(steps: Steps[Any]) -> int:
    """Run a procedure; how many appends it waited for."""
    count = 0
    while True:
        try:
            waits = next(steps)
        except StopIteration:
            return count
        for each in waits:
            count += 1
            each.wait()


@pytest.mark.usefixtures("quick")
def test_all_of_it_in_one_channel_is_one_write(open_house: Callable[..., House], monkeypatch: Any) -> None:
    """design.md, Cross-channel commit: one block, one sync; the coordinator's log has nothing of it."""
    house = open_house(channels=1)
    sub, found = opened(house)
    logged: list[bytes] = []
    request = Journal.request
    monkeypatch.setattr(Journal, "request", lambda log, record: logged.append(record) or request(log, record))
    txn = house.engine.begin()
    assert appends(later(sub, txn, found)) == 0
    assert appends(house.engine.transactions.commit(txn, house.writes("out", [1, 2]))) == 1
    run(house.engine.transactions.write_ends())
    assert logged == []
    house.crash()
    assert house.subscribe("in", "worker").nothing()
    assert house.subscribe("out").values(2) == [1, 2]


@pytest.mark.usefixtures("quick")
def test_over_several_channels_the_caller_waits_for_the_decision_alone(house: House) -> None:
    """transactions.md 3.2: who takes part and what it acknowledges are in the record that decides."""
    sub, found = opened(house)
    engine = house.engine
    assert engine.channel_of(engine.topic("in").id, 0) != engine.channel_of(engine.topic("out").id, 0)
    txn = engine.begin()
    assert appends(later(sub, txn, found[:2])) == 0
    assert appends(later(sub, txn, found[2:])) == 0
    assert appends(engine.transactions.commit(txn, house.writes("out", [1]))) == 1
    (decided,) = [each for each, _ in engine.transactions.look() if each.id == txn]
    assert sub.host.journal.vchannel in decided.participants
    house.crash()
    assert house.subscribe("in", "worker").nothing()
    assert house.subscribe("out").values() == [1]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("cumulative", [False, True])
def test_after_a_crash_the_messages_come_again_and_the_transaction_is_gone(house: House, cumulative: bool) -> None:
    """Promise 7: it was not committed, so nothing of it remains, not even for the length of its timeout."""
    house.topic("in")
    sub = house.subscribe("in", "worker", kind="exclusive")
    house.send_together("in", *range(4))
    found = sub.receive(4)
    txn = house.engine.begin()
    if cumulative:
        run(sub.host.ack_cumulative_in_txn(txn, sub.consumer, found[-1].id, later=True))
    else:
        run(later(sub, txn, found))
    assert sub.stats()["pending"] == 4
    sub.host.journal.snapshot(sub.host.machine.snapshot)  # It holds what no record says.
    house.crash()
    assert house.subscribe("in", "worker").values(4) == [0, 1, 2, 3]
    with pytest.raises(TransactionNotFound):
        house.engine.commit(txn, {})
    house.crash()
    assert house.subscribe("in", "worker").stats()["pending_transactions"] == []


@pytest.mark.usefixtures("quick")
def test_one_that_has_written_ahead_is_aborted_by_the_next_owner(open_house: Callable[..., House]) -> None:
    """Promise 7: the log knows the transaction and not its acknowledgements, and nobody is left who could commit it."""
    house = open_house(lease_ms=300)
    sub, found = opened(house)
    txn = house.engine.begin()
    house.write_ahead(txn, "out", 1)
    run(later(sub, txn, found))
    house.crash()
    assert house.subscribe("in", "worker").values(4) == [0, 1, 2, 3]
    eventually(lambda: not house.engine.transactions.look(finished=0))
    assert house.subscribe("out").nothing()


@pytest.mark.usefixtures("quick")
def test_meanwhile_nobody_else_gets_or_acknowledges_them(house: House) -> None:
    """Facts 30, 33: as with an acknowledgement that was logged; an abort gives them back, in order."""
    sub, found = opened(house)
    one, two = house.engine.begin(), house.engine.begin()
    run(later(sub, one, found[:2]))
    with pytest.raises(Conflict):
        run(later(sub, two, found[1:]))
    sub.redeliver()
    assert sub.values(2) == [2, 3]
    (shown,) = [each for each in house.engine.report.transactions() if each["id"] == str(one)]
    assert shown["subscriptions"] == ["in/worker"]
    house.engine.abort(one)
    assert sub.values(2) == [0, 1]
    with pytest.raises(InvalidTransactionState):
        run(later(sub, one, found[:1]))


def test_a_transaction_that_stays_open_is_logged_with_what_it_holds(house: House) -> None:
    """Seed 002: pending acknowledgements are persisted; the next owner holds them until the transaction is ended."""
    sub, found = opened(house)
    txn = house.engine.begin()
    run(later(sub, txn, found[:1]))
    eventually(lambda: house.engine.transactions.look(finished=0)[0][0].logged)
    run(later(sub, txn, found[1:3]))
    eventually(lambda: not sub.host._acks._unlogged)
    house.crash()
    sub = house.subscribe("in", "worker")
    assert sub.values(4, 0.3) == [3]
    assert sub.stats()["pending_transactions"] == [str(txn)]
    house.engine.abort(txn)
    assert sub.values(3) == [0, 1, 2]


def test_what_could_not_be_logged_is_tried_again(open_house: Callable[..., House], monkeypatch: Any) -> None:
    """A failing disk loses no acknowledgement that was confirmed: it is pending all the same, and logged later."""
    disks: dict[str, FailingFiles] = {}
    monkeypatch.setattr(log_module, "LocalFiles", lambda at: disks.setdefault(str(at), FailingFiles(LocalFiles(at))))
    house = open_house(channels=1)
    disk = disks[str(house.engine.path / "log")]
    house.engine._stop.set()
    house.engine._thread.join()
    sub, found = opened(house)
    txn = house.engine.begin()
    transactions = house.engine.transactions
    run(later(sub, txn, found[:2]))
    assert run(transactions.log_lingering()) == 0
    with disk.failing(BROKEN, "sync", only="data-0"), pytest.raises(OutcomeUnknown):
        run(transactions.log_lingering())
    assert sub.stats()["pending"] == 2
    assert run(transactions.log_lingering()) == 0
    assert run(transactions.log_lingering()) == 1
    assert run(transactions.log_lingering()) == 0
    house.crash()
    assert house.subscribe("in", "worker").values(4, 0.3) == [2, 3]


@pytest.mark.usefixtures("quick")
def test_only_the_owner_itself_puts_it_off(house: House) -> None:
    """Seed 002: a client in another process outlives the owner, and what it was told is pending must stay so."""
    sub, found = opened(house)
    house.engine.clients.add("other:1", "other", 60_000)
    backend, own = LocalBackend(house.engine, "other:1"), LocalBackend(house.engine, OWNER)
    theirs, ours = backend.begin(None), own.begin(None)
    backend.ack(sub.consumer, [found[0].id], cumulative=False, txn=theirs)
    own.ack(sub.consumer, [found[1].id], cumulative=False, txn=ours)
    logged = {txn.id: txn.logged for txn, _ in house.engine.transactions.look(finished=0)}
    assert logged == {theirs: True, ours: False}
    house.crash()
    assert sorted(house.subscribe("in", "worker").values(4, 0.3)) == [1, 2, 3]
    house.engine.commit(theirs, {})


@pytest.mark.usefixtures("quick")
def test_a_dropped_subscription_takes_no_acknowledgement(house: House) -> None:
    """Fact 46: it is refused, and a commit that held some goes on without them."""
    sub, found = opened(house)
    host, txn = sub.host, house.engine.begin()
    run(later(sub, txn, found[:1]))
    house.engine.subscriptions.unsubscribe("in", "worker")
    with pytest.raises(InvalidArgument, match="dropped"):
        run(host.ack_in_txn(txn, sub.consumer, [found[1].id], later=True))
    house.engine.commit(txn, house.writes("out", [1]))
    assert house.subscribe("out").values() == [1]
