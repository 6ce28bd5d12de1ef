"""Coordinators in a database that restarts and crashes: transactions.md section 6, facts 4 to 15, 29 to 31 and 63.

What a coordinator decides is proven on the machine alone (tests/unit/txn); here the same holds through the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine_rig import House
from helpers import FULL, Calls, FailingFiles, eventually
from tidegate.errors import (
    DiskFull,
    InvalidTransactionState,
    TransactionExpired,
    TransactionNotFound,
)
from tidegate.log.message import Position
from tidegate.runtime import log as log_module
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import Steps, run
from tidegate.stores.local_files import LocalFiles
from tidegate.txn.coordinator_records import Transaction, TxnState
from tidegate.txn.txn_id import TxnId

AGAIN = pytest.mark.parametrize("again", ["restart", "crash"])


@pytest.fixture
def topics(house: House) -> House:
    """A database with a topic over all its channels."""
    house.topic("t", shards=3)
    return house


def everything(house: House, topic: str = "t") -> list[Any]:
    """All messages of a topic that are visible now."""
    house.engine.wait_until_visible(house.engine.log.allocate(1))
    sub = house.subscribe(topic, f"look{int(house.engine.log.allocate(1))}")
    count = sub.stats()["backlog"]
    return sorted(sub.values(count)) if count else []


def known(house: House) -> dict[TxnId, Transaction]:
    return {txn.id: txn for txn, _ in house.engine.transactions.look()}


def states(house: House) -> dict[TxnId, TxnState]:
    return {id: txn.state for id, txn in known(house).items()}


def left_in(state: TxnState, house: House, id: TxnId, steps: Steps[Any]) -> None:
    """Carry a procedure on until the log says so of its transaction, and not a step further."""
    waits = next(steps)
    while states(house)[id] is not state:
        for each in waits:
            each.wait()
        waits = next(steps)
    STOPPED.append(steps)


def left_committing(house: House, id: TxnId, writes: dict[str, list[Piece]]) -> None:
    """Commit, and let no channel write its part."""
    transactions = house.engine.transactions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "_drive", lambda *_: [])
        house.engine.commit(id, writes)
    assert states(house)[id] is TxnState.COMMITTING


STOPPED: list[Steps[Any]] = []
"""Kept: a procedure that is collected would finish what it can."""


# -- ids ---------------------------------------------------------------------------------------------------------


def test_an_id_that_was_never_given_is_not_found(topics: House) -> None:
    """Fact 4, for whatever is asked of it."""
    engine = topics.engine
    for id in (TxnId.make(0, 12345), TxnId.make(1, (1 << 64) - 1), TxnId.make(99, 12345)):
        for ask in (
            lambda id=id: engine.commit(id, {}),
            lambda id=id: engine.abort(id),
            lambda id=id: engine.write_ahead(id, topics.writes("t", [1])),
            lambda id=id: engine.transactions.note_read(id, [1]),
        ):
            with pytest.raises(TransactionNotFound, match=str(id)):
                ask()
    assert everything(topics) == []


@AGAIN
def test_no_id_is_given_twice_though_the_log_was_trimmed(open_house: Callable[..., House], again: str) -> None:
    """Facts 7, 8 and 55: every transaction has ended, the log of its coordinator is gone, and ids go on rising."""
    house = open_house(snapshot_records=10, log={"segment_bytes": 4 << 10})
    house.topic("t", shards=3)
    given = []
    for number in range(120):
        id = house.engine.begin()
        given.append(id)
        if number % 2:
            house.engine.commit(id, house.writes("t", [number] * 3))
        else:
            house.write_ahead(id, "t", number)
            house.engine.abort(id)
    eventually(lambda: not house.engine.transactions.look(finished=0))
    for coordinator, journal in house.engine._coordinators:
        assert journal.snapshot(lambda each=coordinator: house.engine.transactions.snapshot_of(each))
    house.engine._catalog_journal.snapshot(house.engine.catalog.snapshot)
    house.engine.log.seal()
    assert len(house.engine.log.truncate("system", Position(1 << 40))) > 3, "what has ended needs no log"
    getattr(house, again)()
    later = [house.engine.begin() for _ in range(4)]
    for number in (0, 1):
        ids = [each for each in (*given, *later) if each.coordinator == number]
        assert ids == sorted(set(ids)) and len(ids) == 62
    assert house.engine.commit(given[-1], {}) > 0, "and what became of them is known"
    assert sorted(set(everything(house))) == list(range(1, 120, 2))


# -- recovery ----------------------------------------------------------------------------------------------------


@AGAIN
def test_what_was_decided_when_the_owner_ended_is_carried_out_by_the_next(topics: House, again: str) -> None:
    """Facts 6 and 15: committing and aborting ones are driven on, the ended stay as they are, the open ones are left
    to their owners and to their deadlines."""
    engine = topics.engine
    engine.clients.add("user1", "user1", 60_000)
    engine.clients.add("user2", "user2", 60_000)
    ended = {TxnState.COMMITTED: engine.begin(), TxnState.ABORTED: engine.begin()}
    topics.write_ahead(ended[TxnState.ABORTED], "t", "never")
    engine.abort(ended[TxnState.ABORTED])
    done = engine.commit(ended[TxnState.COMMITTED], topics.writes("t", [0, 1, 2]))
    committing = [engine.begin("user1"), engine.begin("user2")]
    open_ = engine.begin("user1", timeout_ms=600_000)
    aborting = engine.begin("user2")
    for id in (open_, aborting):
        topics.write_ahead(id, "t", "never", "never")
        topics.write_ahead(id, "t", "never", "never", "never")
    if again == "crash":  # Otherwise they are carried on before the database is closed.
        for at, id in enumerate(committing):
            writes = topics.writes("t", [10 * at + each for each in (11, 12, 13)])
            left_committing(topics, id, writes)
        left_in(TxnState.ABORTING, topics, aborting, engine.transactions.abort(aborting))
        places = [txn.commit_timestamp for id, txn in known(topics).items() if id in committing]
    else:
        places = [
            engine.commit(id, topics.writes("t", [10 * at + each for each in (11, 12, 13)]))
            for at, id in enumerate(committing)
        ]
        engine.abort(aborting)
    before = known(topics)
    getattr(topics, again)()
    engine = topics.engine
    eventually(lambda: [txn.id for txn, _ in engine.transactions.look(finished=0)] == [open_])
    after = known(topics)
    for id in (*committing, open_, aborting):
        assert (after[id].client, after[id].participants) == (before[id].client, before[id].participants)
        assert (after[id].opened_ms, after[id].deadline_ms) == (before[id].opened_ms, before[id].deadline_ms)
    assert after[open_].participants == ("channel/data-0", "channel/data-1", "channel/data-2")
    assert {after[id].state for id in (*committing, ended[TxnState.COMMITTED])} == {TxnState.COMMITTED}
    assert {after[id].state for id in (aborting, ended[TxnState.ABORTED])} == {TxnState.ABORTED}
    assert after[open_].state is TxnState.OPEN
    assert [engine.commit(id, {}) for id in committing] == places, "a repeated commit says when"
    assert engine.commit(ended[TxnState.COMMITTED], {}) == done
    assert everything(topics) == [0, 1, 2, 11, 12, 13, 21, 22, 23]
    assert engine.begin().counter > max(id.counter for id in before)
    engine.abort(open_)
    assert "never" not in everything(topics)


@AGAIN
def test_after_one_was_aborted_only_the_open_one_is_under_way(topics: House, again: str) -> None:
    """Fact 9."""
    open_, aborted = topics.engine.begin(), topics.engine.begin()
    for id in (open_, aborted):
        topics.write_ahead(id, "t", str(id))
    topics.engine.abort(aborted)
    getattr(topics, again)()
    eventually(lambda: [txn.id for txn, _ in topics.engine.transactions.look(finished=0)] == [open_])
    topics.engine.commit(open_, {})
    assert everything(topics) == [str(open_)]


def test_a_database_that_was_opened_often_drives_nothing_twice(topics: House) -> None:
    """Fact 6: a commit that was carried out by one owner is not written again by the next ones."""
    id = topics.engine.begin()
    left_committing(topics, id, topics.writes("t", [1, 2, 3]))
    for _ in range(3):
        topics.crash()
    assert everything(topics) == [1, 2, 3]


# -- when the disk refuses ---------------------------------------------------------------------------------------


def test_a_record_that_cannot_be_written_fails_its_caller_and_nobody_else(
    open_house: Callable[..., House], monkeypatch: Any
) -> None:
    """Fact 10: the coordinator's log fails once; the transaction is open as before, and the next ones succeed."""
    disks: dict[str, FailingFiles] = {}
    monkeypatch.setattr(log_module, "LocalFiles", lambda at: disks.setdefault(str(at), FailingFiles(LocalFiles(at))))
    house = open_house()
    house.topic("t", shards=3)
    first, second = house.engine.begin(), house.engine.begin()
    disk = disks[str(house.engine.path / "log")]
    for attempt in (
        lambda: house.engine.commit(first, house.writes("t", [1, 2, 3])),
        lambda: house.write_ahead(second, "t", "never"),
    ):
        left = [FULL]
        disk.rule = lambda call, path, left=left: left.pop() if left and call == "write" and "system" in path else None
        with pytest.raises(DiskFull):
            attempt()
        assert not left and {states(house)[each] for each in (first, second)} == {TxnState.OPEN}
    third = house.engine.begin()
    house.engine.commit(third, house.writes("t", [4, 5, 6]))
    house.engine.commit(first, house.writes("t", [1, 2, 3]))
    house.engine.abort(second)
    assert everything(house) == [1, 2, 3, 4, 5, 6]


# -- timeouts ----------------------------------------------------------------------------------------------------


def test_every_transaction_that_nobody_ends_is_ended_at_its_timeout(topics: House) -> None:
    """Facts 11 and 12: four threads, four timeouts; the counts pass 300, 200 and 100 and come to nothing."""
    engine = topics.engine
    begun: list[list[TxnId]] = [[] for _ in range(4)]

    def begin(number: int) -> None:
        for turn in range(100):
            id = engine.begin(timeout_ms=1 if number == 0 else 1000 * number)
            begun[number].append(id)
            if turn == 0:
                topics.write_ahead(id, "t", "never")

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    seen = []
    for number in range(4):
        eventually(lambda n=number: all(states(topics)[id] is TxnState.ABORTED for id in begun[n]), 20)
        seen.append(sum(state is TxnState.OPEN for state in states(topics).values()))
    assert seen[-1] == 0 and seen == sorted(seen, reverse=True) and seen[0] >= 100, seen
    assert engine.transactions.status()["expired"] == 400
    for ids in begun:
        with pytest.raises(TransactionExpired):
            engine.commit(ids[0], topics.writes("t", ["never"]))
    assert everything(topics) == []


def test_a_transaction_times_out_although_its_owner_was_replaced_and_not_before(topics: House) -> None:
    """Facts 13 and 57: a restart neither prolongs nor forgets a timeout; what has ended does not time out."""
    late, done = topics.engine.begin(timeout_ms=2_000), topics.engine.begin(timeout_ms=2_000)
    topics.write_ahead(late, "t", "never")
    at = topics.engine.commit(done, topics.writes("t", [1, 2, 3]))
    deadline_ms = known(topics)[late].deadline_ms
    topics.restart()
    txn = known(topics)[late]
    assert (txn.state, txn.deadline_ms) == (TxnState.OPEN, deadline_ms)
    eventually(lambda: states(topics)[late] is TxnState.ABORTED)
    assert known(topics)[late].ended_ms >= deadline_ms
    assert topics.engine.transactions.status()["expired"] == 1
    assert topics.engine.commit(done, {}) == at
    assert everything(topics) == [1, 2, 3]


# -- strays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["", "restart", "crash"])
def test_nothing_is_added_to_what_has_ended_at_whichever_coordinator(topics: House, again: str) -> None:
    """Facts 29 to 31: where others accept a stray message and clear it away later, here it is refused at once, so no
    low watermark has to come by, of this coordinator or of another."""
    ids = [topics.engine.begin() for _ in range(4)]
    assert {id.coordinator for id in ids} == {0, 1}
    for at, id in enumerate(ids[:2]):
        topics.engine.commit(id, topics.writes("t", [3 * at, 3 * at + 1, 3 * at + 2]))
    for id in ids[2:]:
        topics.write_ahead(id, "t", "aborted")
        topics.engine.abort(id)
    if again:
        getattr(topics, again)()
    for id in ids:
        with pytest.raises(InvalidTransactionState):
            topics.write_ahead(id, "t", "stray")
    for id in ids[:2]:
        topics.engine.commit(id, topics.writes("t", ["stray"]))
    assert everything(topics) == [0, 1, 2, 3, 4, 5]
    assert all(topics.engine.log.channel(each).sessions.is_idle for each in topics.engine.channels)


def test_nothing_is_added_to_what_ended_so_long_ago_that_it_was_forgotten(open_house: Callable[..., House]) -> None:
    """Facts 29 and 30: not found, which is a refusal too."""
    house = open_house(remembered_max=1)
    house.topic("t", shards=3)
    ids = [house.engine.begin() for _ in range(8)]
    for id in ids:
        house.engine.commit(id, house.writes("t", [1, 2, 3]))
    eventually(lambda: ids[0] not in states(house))
    for stray in (
        lambda: house.write_ahead(ids[0], "t", "stray"),
        lambda: house.engine.commit(ids[0], house.writes("t", ["stray"])),
    ):
        with pytest.raises(TransactionNotFound, match="not known any more"):
            stray()
    assert "stray" not in {str(each) for each in everything(house)}


@AGAIN
def test_messages_in_a_channel_of_a_transaction_nobody_knows_are_ended_when_the_database_is_opened(
    topics: House, again: str
) -> None:
    """Facts 29 and 31: a hanging transaction, forged past the coordinators, at each of them; the log is not kept for
    it and no reader ever sees it. Another's, which is known, is left alone."""
    mine = topics.engine.begin()
    topics.write_ahead(mine, "t", 1, 2, 3)
    topic = topics.engine.topic("t")
    channel = topics.engine.channel_of(topic.id, 0)
    writer = topics.engine.log.channel(channel)
    for coordinator in (0, 1):
        forged = TxnId.make(coordinator, int(topics.engine.log.allocate(1)))
        session = writer.begin(forged.to_bytes16(), topic.vchannel(0), keepalive_ms=None)
        session.append_piece(Piece(topic.vchannel(0), b"stray")).result(10)
    getattr(topics, again)()
    writer = topics.engine.log.channel(channel)
    eventually(lambda: [TxnId.from_bytes16(each.id) for each in writer.sessions] == [mine])
    topics.engine.commit(mine, {})
    assert everything(topics) == [1, 2, 3]


# -- ends that are repeated --------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["", "restart", "crash"])
def test_an_end_may_be_repeated_and_the_other_end_is_refused(topics: House, again: str) -> None:
    """Facts 14 and 63, for what the log knows; also at the next owner."""
    one, two = topics.engine.begin(), topics.engine.begin()
    at = topics.engine.commit(one, topics.writes("t", [1, 2, 3]))
    topics.write_ahead(two, "t", "never")
    topics.engine.abort(two)
    if again:
        getattr(topics, again)()
    for _ in range(2):
        assert topics.engine.commit(one, topics.writes("t", ["never"])) == at
        topics.engine.abort(two)
    with pytest.raises(InvalidTransactionState, match=r"is committ(ed|ing) and cannot be aborted"):
        topics.engine.abort(one)
    with pytest.raises(InvalidTransactionState, match=r"is abort(ed|ing) and cannot be"):
        topics.engine.commit(two, {})
    assert everything(topics) == [1, 2, 3]


def test_whoever_asks_while_a_commit_is_under_way_waits_for_its_end(topics: House, calls: Calls) -> None:
    """Fact 63: where Kafka says "try again", the call waits and then says what the first one says."""
    id = topics.engine.begin()
    steps = topics.engine.transactions.commit(id, topics.writes("t", [1, 2, 3]))
    waits = next(steps)
    repeat, abort = calls(lambda: topics.engine.commit(id, {})), calls(lambda: topics.engine.abort(id))
    for each in (repeat, abort):
        with pytest.raises(TimeoutError):
            each.result(0.1)
    for each in waits:
        each.wait()
    at = run(steps)
    assert repeat.result(10) == at
    with pytest.raises(InvalidTransactionState, match="cannot be aborted"):
        abort.result(10)
    assert everything(topics) == [1, 2, 3]
