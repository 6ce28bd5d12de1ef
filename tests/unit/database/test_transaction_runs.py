"""Runs of commits: one write, and to everybody each a transaction of its own. Promises 2 and 6, seed 003's stream.

A capture's small transactions would else wait for a sync each. What must hold is that the log has the first few of a
run, or all, or none, and never one without those before it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import FailingFiles, eventually

from tidegate.clock.timestamp import Timestamp
from tidegate.database.engine import Engine
from tidegate.database.settings import DatabaseSettings
from tidegate.database.transaction import Transaction
from tidegate.database.transaction_runs import Member
from tidegate.errors import (
    Conflict,
    InvalidArgument,
    InvalidTransactionState,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    StorageFailed,
    TransactionAborted,
)
from tidegate.runtime import log as log_module
from tidegate.runtime.pieces import Piece
from tidegate.runtime.settings import LogSettings
from tidegate.runtime.steps import run
from tidegate.stores.local_files import LocalFiles
from tidegate.txn.coordinator_records import TxnState
from tidegate.txn.txn_id import TxnId

ALL = ("write", "sync", "create", "sync_dir", "remove")
WATCHED, WRITTEN = 77, 78
BIG = 4_000
"""Two of these are more than a write may hold."""


class Running:
    """An engine on a disk that fails when told to, and a guard that watches a key."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made: dict[str, FailingFiles] = {}

        def files(where: Path) -> FailingFiles:
            return made.setdefault(where.name, FailingFiles(LocalFiles(where)))

        monkeypatch.setattr(log_module, "LocalFiles", files)
        log = LogSettings(commit_bytes_max=6_000)
        self.engine = Engine(path, DatabaseSettings(channels=2, coordinators=2, log=log))
        self.disk = made["log"]
        self.guard = self.engine.begin()
        self.read_at = self.engine.transactions.note_read(self.guard, [WATCHED])

    def members(self, *bodies: bytes, channel: str = "data-0") -> list[Member]:
        return [Member(self.engine.begin(), {channel: [Piece("v/0", body)]}, [WRITTEN]) for body in bodies]

    def commit(self, members: Sequence[Member], read_at: Timestamp | None = None) -> list[Timestamp]:
        return run(self.engine.transactions.commit_run(self.guard, members, read_at=read_at))

    def state(self, id: TxnId) -> TxnState:
        return next(txn.state for txn, _ in self.engine.transactions.look() if txn.id == id)

    def bodies(self, name: str = "data-0") -> list[tuple[Timestamp, bytes]]:
        """What readers see: the commit Timestamp and body of each message."""
        engine = self.engine
        now = Timestamp(engine.log.allocate(1))
        engine.wait_until_visible(now)
        seen: list[tuple[Timestamp, bytes]] = []
        with engine.log.transaction_reader(name) as reader:
            while reader.after < now:
                delivery = reader.read(5.0)
                assert delivery is not None
                seen.extend((message.time_tick, message.body or b"") for message in delivery.messages())
        return seen


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    made = Running(tmp_path / "db", monkeypatch)
    yield made
    made.engine.close()


def test_each_of_a_run_has_its_own_place_in_time_in_their_order(running: Running) -> None:
    members = running.members(b"1", b"2", b"3")
    times = running.commit(members)
    assert times == sorted(set(times))
    assert running.bodies() == list(zip(times, [b"1", b"2", b"3"], strict=True))
    assert [running.engine.commit(each.id, {}) for each in members] == times, "a repeated commit says the same"


def test_a_run_is_one_write_and_one_sync(running: Running) -> None:
    before = len(running.disk.calls)
    running.commit(running.members(*[b"x"] * 50))
    calls = [call for call, path in running.disk.calls[before:] if "data-0" in path]
    # The first may be on its way before the others are handed over.
    assert calls.count("sync") <= 2 and calls.count("write") <= 2


def test_the_guard_goes_on_from_run_to_run(running: Running) -> None:
    for number in range(3):
        running.commit(running.members(b"%d" % number, b"x"), running.read_at)
    assert running.state(running.guard) is TxnState.OPEN
    assert len(running.bodies()) == 6
    status = running.engine.transactions.status()["conflict_window"]
    assert status["commits"] <= 2, "it reads as of the last run: nothing before it is kept for it"


@pytest.mark.parametrize("before", ["the first run", "the second run"])
def test_none_of_a_run_is_committed_when_what_the_guard_read_was_written_since(running: Running, before: str) -> None:
    """There is no moment between two runs in which somebody could write it unnoticed."""
    if before == "the second run":
        running.commit(running.members(b"1"))
    other = running.engine.begin()
    running.engine.commit(other, {"data-1": [Piece("v/1", b"other")]}, [WATCHED])
    members = running.members(b"2", b"3")
    with pytest.raises(Conflict):
        running.commit(members)
    assert {running.state(each.id) for each in members} == {TxnState.ABORTED}
    assert running.state(running.guard) is TxnState.ABORTED
    assert [body for _, body in running.bodies()] == ([b"1"] if before == "the second run" else [])
    with pytest.raises(InvalidTransactionState, match="aborted"):
        running.commit(running.members(b"4"))


def test_what_is_written_beside_a_run_is_no_conflict(running: Running) -> None:
    other = running.engine.begin()
    running.engine.commit(other, {"data-0": [Piece("v/0", b"other")]}, [WRITTEN])
    running.commit(running.members(b"1"))
    assert [body for _, body in running.bodies()] == [b"other", b"1"]


def test_who_has_read_what_a_run_wrote_meets_a_conflict(running: Running) -> None:
    """Promise: a run is as good as commits one by one to those who read."""
    reader = running.engine.begin()
    running.engine.transactions.note_read(reader, [WRITTEN])
    running.commit(running.members(b"1", b"2"))
    with pytest.raises(Conflict):
        running.engine.commit(reader, {"data-1": [Piece("v/1", b"late")]})


def test_an_owner_that_knows_nothing_of_the_guards_reading_refuses(running: Running) -> None:
    guard = running.engine.begin()
    with pytest.raises(Conflict, match="another owner"):
        run(running.engine.transactions.commit_run(guard, running.members(b"1"), read_at=running.read_at))
    assert running.bodies() == []


def test_what_is_behind_a_write_that_failed_is_not_written(running: Running) -> None:
    """It is more than one write, and the disk works again at once: a hole would be a lost transaction for ever."""
    members = running.members(b"1" * BIG, b"2" * BIG, b"3" * BIG, b"4" * BIG)
    writes = 0

    def second(call: str, path: str) -> int | None:
        nonlocal writes
        writes += call == "write" and "data-0" in path
        return errno.EIO if call == "write" and "data-0" in path and writes == 2 else None

    running.disk.rule = second
    with pytest.raises(StorageFailed):
        running.commit(members)
    running.disk.rule = lambda call, path: None
    assert [body[:1] for _, body in running.bodies()] == [b"1"]
    states = [running.state(each.id) for each in members]
    assert states == [TxnState.COMMITTED, TxnState.ABORTED, TxnState.ABORTED, TxnState.ABORTED]
    running.commit(running.members(b"2", b"3"))
    assert [body[:1] for _, body in running.bodies()] == [b"1", b"2", b"3"], "the guard is as before"


def test_a_run_in_doubt_is_settled_when_the_disk_works_again(running: Running) -> None:
    """The caller learns that nobody knows; later, what is in the log is all there is, and the keys are free."""
    members = running.members(b"1", b"2")
    with running.disk.failing(errno.EIO, *ALL, only="data-0"):
        with pytest.raises(OutcomeUnknown, match=str(members[0].id)):
            running.commit(members)
        with pytest.raises(OutcomeUnknown, match="ask again"):
            running.commit(running.members(b"3"))
    eventually(lambda: running.engine.transactions.settle_doubts() == 0, what="the doubt settled")
    assert {running.state(each.id) for each in members} == {TxnState.ABORTED}
    assert running.bodies() == []
    running.commit(running.members(b"4"))
    assert [body for _, body in running.bodies()] == [b"4"]
    reader = running.engine.begin()
    running.engine.transactions.note_read(reader, [WRITTEN])
    running.engine.commit(reader, {"data-1": [Piece("v/1", b"free")]}, [WRITTEN])


def test_a_message_over_the_limit_leaves_nothing_of_its_run(running: Running) -> None:
    limit = running.engine.settings.log.message_bytes_max
    members = running.members(b"1", b"2" * (limit + 1))
    with pytest.raises(LimitExceeded):
        running.commit(members)
    assert running.bodies() == []
    assert running.state(running.guard) is TxnState.OPEN
    assert {running.state(each.id) for each in members} == {TxnState.ABORTED}


@pytest.mark.parametrize("what", ["reads", "writes ahead", "has ended"])
def test_a_transaction_that_does_more_than_write_is_not_one_of_a_run(running: Running, what: str) -> None:
    first, odd = running.members(b"1", b"2")
    transactions = running.engine.transactions
    if what == "reads":
        transactions.note_read(odd.id, [1])
    elif what == "writes ahead":
        run(transactions.write_ahead(odd.id, {"data-1": [Piece("v/1", b"ahead")]}))
    else:
        running.engine.abort(odd.id)
    with pytest.raises((InvalidTransactionState, TransactionAborted)):
        running.commit([first, odd])
    assert running.bodies() == []
    running.commit([first])
    assert [body for _, body in running.bodies()] == [b"1"], "nothing has happened to the others"


def test_a_run_is_of_one_channel(running: Running) -> None:
    one, two = running.members(b"1"), running.members(b"2", channel="data-1")
    both = Member(running.engine.begin(), {**one[0].writes, **two[0].writes}, [])
    for members in ([*one, *two], [both], [], [Member(running.engine.begin(), {}, [])]):
        with pytest.raises(InvalidArgument, match="one channel"):
            running.commit(members)


# -- as clients call it ------------------------------------------------------------------------------------------------


def _three(db: Any) -> list[Transaction]:
    found = []
    for number in range(3):
        txn = db.transaction()
        txn.upsert("runs", [(number, f"row {number}")])
        found.append(txn)
    return found


def test_a_client_commits_a_run(db: Any) -> None:
    db.sql("CREATE TABLE runs (id BIGINT PRIMARY KEY, what STRING)")
    with db.transaction() as guard:
        guard.read("runs", [99])
        many = _three(db)
        assert len({each.channel for each in many}) == 1
        times = db.commit_run(guard, many)
        assert [each.commit_timestamp for each in many] == times == sorted(set(times))
        for number, at in enumerate(times):
            assert len(db.query("SELECT * FROM runs", at).rows()) == number + 1
        assert db.last_seen >= times[-1], "a session sees its own"
        db.sql("INSERT INTO runs VALUES (99, 'seen')")
        late = _three(db)
        with pytest.raises(Conflict):
            db.commit_run(guard, late)
        assert {each.state for each in (guard, *late)} == {"ABORTED"}
    assert len(db.query("SELECT * FROM runs", "strong").rows()) == 4


def test_a_clients_run_into_a_table_that_was_dropped_leaves_nothing(db: Any) -> None:
    db.sql("CREATE TABLE runs (id BIGINT PRIMARY KEY, what STRING)")
    guard, many = db.transaction(), _three(db)
    db.sql("DROP TABLE runs")
    with pytest.raises(NotFound):
        db.commit_run(guard, many)
    assert not [each for each in db.transactions() if each["state"] == "OPEN" and each["id"] != str(guard.id)]
    guard.abort()
