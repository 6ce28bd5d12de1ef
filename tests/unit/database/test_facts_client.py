"""Transactions as a program uses them, in the process that owns the database and in another one: transactions.md
section 6, facts 24, 41, 45 and 47 to 63."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from helpers import Calls, eventually
from tidegate import Consumer, Database, DatabaseSettings, LogSettings
from tidegate.errors import (
    Conflict,
    InvalidTransactionState,
    LeaseLost,
    LimitExceeded,
    NotFound,
    StorageFailed,
    TransactionAborted,
    TransactionExpired,
)

SETTINGS = DatabaseSettings(
    channels=3,
    coordinators=1,
    transaction_buffer_bytes=2_000,
    log=LogSettings(tick_interval_ms=20, segment_bytes=256 << 10, message_bytes_max=100_000),
)
LARGE = "x" * 3_000
"""More than a transaction keeps: it is written ahead."""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "t.tide", settings=SETTINGS) as found:
        found.sql("CREATE TOPIC t SHARDS 3")
        found.sql("CREATE TOPIC one")
        yield found


@pytest.fixture(params=["owner", "client"])
def db(request: pytest.FixtureRequest, owner: Database) -> Iterator[Database]:
    """The owner of the database, and a client that reaches it through the socket: they behave alike."""
    if request.param == "owner":
        yield owner
        return
    with tidegate.open(owner.path, settings=SETTINGS, name="client") as found:
        assert not found.is_owner
        yield found


def everything(db: Database, topic: str = "t") -> list[Any]:
    """All messages of a topic that are visible now, in order of time."""
    name = f"look{time.monotonic_ns()}"
    with db.transaction() as txn:
        for _ in range(3):  # Without a key: one for each shard, so that all before it in a shard is there with it.
            txn.send(topic, name)
    found: list[Any] = []
    with db.subscribe(topic, name) as sub:
        while sum(each.value == name for each in found) < 3:
            found += sub.receive_many(1000, timeout=5)
    found.sort(key=lambda each: each.timestamp)
    return [each.value for each in found if not str(each.value).startswith("look")]


def filled(db: Database, count: int, **options: Any) -> tuple[Consumer, list[Any]]:
    """A consumer of topic `one` that holds `count` messages."""
    sub = db.subscribe("one", "s", **options)
    with db.transaction() as txn:
        for number in range(count):
            txn.send("one", number)
    found: list[Any] = []
    while len(found) < count:
        found += sub.receive_many(count, timeout=5)
    return sub, found


# -- what a transaction sends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 300])
def test_a_hundred_messages_come_in_the_order_in_which_they_were_sent(db: Database, size: int) -> None:
    """Fact 24: half of them before anything of it is in the log, the rest written ahead again and again, or none."""
    with db.transaction() as txn:
        for number in range(100):
            txn.send("one", [number, "x" * size])
    assert [number for number, _ in everything(db, "one")] == list(range(100))


def test_an_empty_transaction_commits(db: Database) -> None:
    """Fact 47."""
    with db.transaction() as txn:
        pass
    assert txn.state == "COMMITTED" and txn.commit_timestamp is not None
    assert everything(db) == []


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_after_its_end_a_transaction_takes_nothing_more(db: Database, end: str) -> None:
    """Fact 48, but for the second commit or abort, which gives the same answer as the first."""
    sub, found = filled(db, 2)
    txn = db.transaction()
    txn.send("t", "in time")
    first = getattr(txn, end)()
    for late in (lambda: txn.send("t", "late"), lambda: txn.ack(found), lambda: txn.read("t", ["a"])):
        with pytest.raises(InvalidTransactionState, match="begin a new one"):
            late()
    assert getattr(txn, end)() == first
    with pytest.raises(InvalidTransactionState):
        txn.abort() if end == "commit" else txn.commit()
    assert txn.state == ("COMMITTED" if end == "commit" else "ABORTED")
    assert everything(db) == (["in time"] if end == "commit" else [])
    assert sub.stats()["pending"] == 0


# -- timeouts and ends from outside --------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
def test_after_its_timeout_a_transaction_takes_nothing_more_and_leaves_nothing(db: Database, ahead: bool) -> None:
    """Facts 49 and 62: the first message is aborted, the second never written."""
    sub, found = filled(db, 2)
    for late in (lambda txn: txn.send("t", "late"), lambda txn: txn.ack(found), lambda txn: txn.read("t", ["a"])):
        txn = db.transaction(timeout=0.3)
        txn.send("t", LARGE if ahead else "first")
        time.sleep(0.35)
        with pytest.raises(TransactionExpired, match="timeout"):
            late(txn)
        assert txn.state == "ABORTED"
        with pytest.raises(InvalidTransactionState):
            txn.commit()
    assert everything(db) == []
    assert sub.stats()["pending"] == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_commit_that_comes_after_the_timeout_says_so(db: Database, ahead: bool) -> None:
    """Facts 11 and 50: expired, which others call not found."""
    txn = db.transaction(timeout=0.3)
    txn.send("t", LARGE if ahead else "first")
    eventually(lambda: db.status()["transactions"]["expired"] == 1)
    for error in (TransactionExpired, InvalidTransactionState):
        with pytest.raises(error):
            txn.commit()
        assert txn.state == "ABORTED" and txn.commit_timestamp is None
    assert everything(db) == []


def test_what_was_ended_by_hand_says_so_at_its_next_call(owner: Database, db: Database) -> None:
    """Fact 51: by an operator, or another client that knows the id; at a send that asks the owner, and at commit."""
    kept, ahead, acks = (db.transaction() for _ in range(3))
    sub, found = filled(db, 1)
    kept.send("t", "never")
    for txn in (kept, ahead, acks):
        owner.abort(str(txn.id))
    for call in (lambda: ahead.send("t", LARGE), ahead.commit, lambda: acks.ack(found), acks.commit, kept.commit):
        with pytest.raises(TransactionAborted, match="ended by hand"):
            call()
    assert {each.state for each in (kept, ahead, acks)} == {"ABORTED"}
    assert everything(db) == []
    assert sub.stats()["pending"] == 0


def test_whoever_has_the_id_may_end_it(owner: Database, db: Database) -> None:
    """Fact 56: there is no binding to the client that began it."""
    txn = db.transaction()
    txn.send("t", LARGE)
    with tidegate.open(owner.path, settings=SETTINGS, name="third") as third:
        at = third.backend.commit(txn.id, {}, (), None)
        assert txn.commit() == at
        other = db.transaction()
        third.abort(other.id)
        with pytest.raises(TransactionAborted):
            other.commit()
    assert everything(db) == [LARGE]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_what_has_ended_does_not_time_out(db: Database, end: str) -> None:
    """Fact 57."""
    txn = db.transaction(timeout=0.4)
    txn.send("t", LARGE)
    first = getattr(txn, end)()
    time.sleep(0.6)
    assert getattr(txn, end)() == first
    assert txn.state == ("COMMITTED" if end == "commit" else "ABORTED")
    assert db.status()["transactions"]["expired"] == 0


def test_what_a_transaction_held_at_its_timeout_comes_again(db: Database) -> None:
    """Fact 58: with the same id, and the count of redeliveries is higher."""
    sub, (message,) = filled(db, 1)
    txn = db.transaction(timeout=0.3)
    txn.ack(message)
    again = sub.receive(timeout=5)
    assert again is not None
    assert (again.id, again.redelivery_count) == (message.id, 1)
    with pytest.raises(TransactionExpired):
        txn.commit()


# -- when a part fails ---------------------------------------------------------------------------------------------


def test_a_send_that_is_refused_is_no_part_of_the_transaction(db: Database) -> None:
    """Fact 52, where it differs: the call says so, nothing of it was taken, and the transaction goes on without it."""
    with db.transaction() as txn:
        txn.send("t", "before")
        with pytest.raises(LimitExceeded, match="message_bytes_max"):
            txn.send("t", "x" * 100_001)
        with pytest.raises(NotFound, match="no topic 'nowhere'"):
            txn.send("nowhere", 1)
        txn.send("t", "after")
    assert sorted(everything(db)) == ["after", "before"]


def test_a_transaction_of_which_a_part_could_not_be_written_is_aborted_at_its_commit(
    db: Database, monkeypatch: Any
) -> None:
    """Fact 52: messages are missing whose senders believe them sent, so the rest must not count without them."""
    txn = db.transaction()
    txn.send("t", "kept by the client")

    def refuse(*_: Any) -> None:
        raise StorageFailed("planted")

    with monkeypatch.context() as patch:
        patch.setattr(db.backend, "write_ahead", refuse)
        with pytest.raises(StorageFailed, match="planted"):
            txn.send("t", LARGE)
    with pytest.raises(TransactionAborted, match="planted"):
        txn.commit()
    assert txn.state == "ABORTED"
    assert [each["state"] for each in db.transactions() if each["id"] == str(txn.id)] == ["aborted"]
    assert everything(db) == []


def test_after_a_conflict_on_an_acknowledgement_the_transaction_can_only_be_aborted(db: Database) -> None:
    """Seed 002, 3.3; fact 52 for acknowledgements: the call conflicts at once, and the commit does not go without."""
    sub, found = filled(db, 3)
    with db.transaction() as first:
        first.ack(found[0])
        second = db.transaction()
        second.send("t", "never")
        second.ack(found[1])
        with pytest.raises(Conflict, match=str(first.id)):
            second.ack(found[0])
        with pytest.raises(TransactionAborted, match=str(first.id)):
            second.commit()
        assert second.state == "ABORTED"
    assert sub.stats()["pending"] == 0
    again = sub.receive(timeout=5)
    assert again is not None and again.value == 1
    assert everything(db) == []


# -- what is on its way --------------------------------------------------------------------------------------------


class Slow:
    """Lets calls of one kind reach the owner only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, db: Database, name: str) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        call: Callable[..., Any] = getattr(db.backend, name)

        def slow(*args: Any, **options: Any) -> Any:
            self.reached.set()
            self.go.wait(20)
            return call(*args, **options)

        monkeypatch.setattr(db.backend, name, slow)


@pytest.mark.parametrize("what", ["write_ahead", "ack"])
def test_a_commit_waits_for_what_is_on_its_way_and_goes_with_it(
    db: Database, calls: Calls, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Fact 53: as long as it does not come to an end, the transaction is COMMITTING; and it takes nothing more."""
    sub, found = filled(db, 1)
    txn = db.transaction()
    slow = Slow(monkeypatch, db, what)
    under_way = calls(lambda: txn.send("t", LARGE) if what == "write_ahead" else txn.ack(found))
    assert slow.reached.wait(10)
    commit = calls(txn.commit)
    with pytest.raises(TimeoutError):
        commit.result(0.2)
    assert txn.state == "COMMITTING"
    with pytest.raises(InvalidTransactionState, match="is COMMITTING and cannot send"):
        txn.send("t", "late")
    slow.go.set()
    under_way.result(10)
    commit.result(10)
    assert txn.state == "COMMITTED"
    assert everything(db) == ([LARGE] if what == "write_ahead" else [])
    assert sub.stats()["backlog"] == (1 if what == "write_ahead" else 0)


def test_many_threads_send_and_acknowledge_in_one_transaction(db: Database, calls: Calls) -> None:
    """Fact 54: 30 threads, 10 messages each; after the commit all of it is done and nothing is under way."""
    sub, found = filled(db, 300, kind="shared")
    txn = db.transaction()

    def work(at: int) -> None:
        for each in found[at : at + 10]:
            txn.send("t", [each.value, "x" * 100], key=each.value)
            txn.ack(each)

    for each in [calls(lambda at=at: work(at)) for at in range(0, 300, 10)]:
        each.result(60)
    txn.commit()
    assert txn._under_way == 0
    assert sorted(number for number, _ in everything(db)) == list(range(300))
    assert sub.stats()["backlog"] == 0


# -- ids, epochs, the owner ----------------------------------------------------------------------------------------


def test_ids_of_one_coordinator_rise(owner: Database, db: Database) -> None:
    """Fact 55: they follow each other in time; they are Timestamps, so between two there are others."""
    ids = [each.transaction().id for each in (owner, db) * 10]
    assert ids == sorted(set(ids))
    assert {each.coordinator for each in ids} == {0}
    assert ids[-1].counter - ids[0].counter >= 19


def test_the_client_that_opens_a_producer_later_fences_the_one_before(owner: Database, db: Database) -> None:
    """Facts 61 and 62, through the API: the older one writes nothing more, and numbers go on where they were."""
    old = owner.producer("one", "p")
    old.send("a", sequence=5)
    new = db.producer("one", "p")
    assert (new.last_sequence, new.next_sequence) == (5, 6)
    with pytest.raises(LeaseLost, match="opened again"):
        old.send("never")
    assert new.send("a", sequence=5).duplicate
    new.send("b")
    assert everything(db, "one") == ["a", "b"]


def test_an_epoch_that_could_not_be_written_fences_nobody(owner: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fact 65: the older producer goes on, and the next opening has the next epoch."""
    old = owner.producer("one", "p")
    journal = owner.engine.producing.host("one").journal

    def refuse(_: bytes) -> Any:
        raise StorageFailed("planted")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "request", refuse)
        with pytest.raises(StorageFailed, match="planted"):
            owner.producer("one", "p")
    old.send("a")
    assert owner.producer("one", "p").epoch == old.epoch + 1
    assert everything(owner, "one") == ["a"]


def test_when_the_owner_ends_an_acknowledgement_is_made_at_the_next_one_or_says_that_it_was_not(
    tmp_path: Path,
) -> None:
    """Fact 45: a broken connection. What one holds in a transaction stays held; what one only holds is given again."""
    owner = tidegate.open(tmp_path / "t.tide", settings=SETTINGS)
    owner.sql("CREATE TOPIC one")
    owner.sql("CREATE TOPIC t SHARDS 3")
    with tidegate.open(owner.path, settings=SETTINGS, name="client") as db:
        sub, found = filled(db, 3)
        txn = db.transaction()
        txn.send("t", "with it")
        txn.ack(found[0])
        owner.close()
        with pytest.raises(Conflict, match="receive it again"):
            sub.ack(found[1])
        assert db.is_owner
        again = sub.receive_many(10, timeout=5)
        assert [each.value for each in again] == [1, 2]
        sub.ack(again[0])
        assert txn.commit() == txn.commit_timestamp
        assert sub.stats()["backlog"] == 1
        assert everything(db) == ["with it"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_is_repeated_at_the_next_owner_with_the_same_answer(tmp_path: Path, end: str) -> None:
    """Fact 63 and PIP-254: over one channel, where no coordinator logged it, and over several."""
    owner = tidegate.open(tmp_path / "t.tide", settings=SETTINGS)
    owner.sql("CREATE TOPIC one")
    owner.sql("CREATE TOPIC t SHARDS 3")
    with tidegate.open(owner.path, settings=SETTINGS, name="client") as db:
        txns = {topic: db.transaction() for topic in ("one", "t")}
        for topic, txn in txns.items():
            for number in range(3):
                txn.send(topic, number)
        sent = {topic: txn._outgoing for topic, txn in txns.items()}
        first = {topic: getattr(txn, end)() for topic, txn in txns.items()}
        for topic, txn in txns.items():  # As if the answer had been lost.
            txn.commit_timestamp, txn.state = None, "COMMITTING" if end == "commit" else "OPEN"
            txn._outgoing = sent[topic]
        owner.close()
        assert {topic: getattr(txn, end)() for topic, txn in txns.items()} == first
        assert db.is_owner
        if end == "commit":
            for txn in txns.values():
                txn.commit_timestamp, txn.state = None, "COMMITTING"
                with pytest.raises(InvalidTransactionState, match="is committed"):
                    txn.abort()
        for topic in txns:
            assert sorted(everything(db, topic)) == ([0, 1, 2] if end == "commit" else [])
