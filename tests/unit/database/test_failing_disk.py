"""A disk that fails while transactions commit. Promise 6: what was not acknowledged is either whole or absent.

The worst case is a write that failed so badly that not even the end of the log could be settled: whether the commit is
part of the log is then not known, until the channel goes on in another segment.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import FailingFiles, eventually

from tidegate.clock.timestamp import Timestamp
from tidegate.database.engine import Engine
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import Conflict, OutcomeUnknown, WaitTimeout
from tidegate.runtime import log as log_module
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import run
from tidegate.stores.local_files import LocalFiles
from tidegate.txn.coordinator_records import TxnState

ALL = ("write", "sync", "create", "sync_dir", "remove")
KEY = 77


class Failing:
    """An engine on a disk that fails when told to."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made: dict[str, FailingFiles] = {}

        def files(where: Path) -> FailingFiles:
            return made.setdefault(where.name, FailingFiles(LocalFiles(where)))

        monkeypatch.setattr(log_module, "LocalFiles", files)
        self.engine = Engine(path, DatabaseSettings(channels=2, coordinators=1))
        self.disk = made["log"]

    def bodies(self) -> dict[str, list[bytes]]:
        """What readers see in each channel."""
        engine = self.engine
        now = Timestamp(engine.log.allocate(1))
        engine.wait_until_visible(now)
        found: dict[str, list[bytes]] = {}
        for name in engine.channels:
            seen = found[name] = []
            with engine.log.transaction_reader(name) as reader:
                while reader.after < now:
                    delivery = reader.read(5.0)
                    assert delivery is not None
                    seen.extend(message.body or b"" for message in delivery.messages())
        return found


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failing]:
    made = Failing(tmp_path / "db", monkeypatch)
    yield made
    made.engine.close()


def one() -> dict[str, list[Piece]]:
    return {"data-0": [Piece("v/0", b"once")]}


def two() -> dict[str, list[Piece]]:
    return {"data-0": [Piece("v/0", b"left")], "data-1": [Piece("v/1", b"right")]}


@pytest.mark.parametrize(("writes", "where"), [(one(), "data-0"), (two(), "system")], ids=["at once", "in two steps"])
def test_a_commit_in_doubt_is_settled_when_the_disk_works_again_and_can_be_repeated(
    failing: Failing, writes: dict[str, list[Piece]], where: str
) -> None:
    """Seed 002: the caller learns the outcome, never a guess."""
    engine = failing.engine
    id = engine.begin()
    with failing.disk.failing(errno.EIO, *ALL, only=where):
        with pytest.raises(OutcomeUnknown):
            engine.commit(id, writes)
        with pytest.raises(OutcomeUnknown, match="ask again"):
            engine.commit(id, writes)
        with pytest.raises(OutcomeUnknown):
            engine.abort(id)
    eventually(lambda: engine.transactions.settle_doubts() == 0, what="the doubt settled")
    timestamp = engine.commit(id, writes)
    assert engine.commit(id, {}) == timestamp, "a repeated commit says the same"
    seen = failing.bodies()
    assert {name: sorted(set(bodies)) for name, bodies in seen.items() if bodies} == {
        name: [piece.body for piece in pieces] for name, pieces in writes.items()
    }
    assert all(len(bodies) <= 1 for bodies in seen.values()), "once"


def test_keys_of_a_commit_in_doubt_are_free_again_once_it_is_settled(failing: Failing) -> None:
    """Nobody waits for ever behind a commit whose outcome the disk will not tell."""
    engine = failing.engine
    id = engine.begin()
    with failing.disk.failing(errno.EIO, *ALL, only="data-0"), pytest.raises(OutcomeUnknown):
        engine.commit(id, one(), [KEY])
    with failing.disk.failing(errno.EIO, *ALL, only="data-1"), pytest.raises(OutcomeUnknown):
        run(engine.transactions.append_plain("data-1", Piece("v/1", b"plain"), [KEY]))
    eventually(lambda: engine.transactions.settle_doubts() == 0, what="the doubts settled")
    reader = engine.begin()
    engine.transactions.note_read(reader, [KEY])
    engine.commit(reader, one(), [KEY])
    late = engine.begin()
    engine.transactions.note_read(late, [KEY])
    engine.commit(id, {"data-0": [Piece("v/0", b"again")]}, [KEY])
    with pytest.raises(Conflict):
        engine.commit(late, one(), [KEY])
    assert failing.bodies() == {"data-0": [b"once", b"again"], "data-1": []}


def test_places_of_an_undecided_commit_in_doubt_hold_ticks_back_until_it_is_settled(failing: Failing) -> None:
    """Design, cross-channel commit: no tick passes a commit that may have been decided."""
    engine = failing.engine
    writer = engine.log.channel("data-0")
    id = engine.begin()
    with failing.disk.failing(errno.EIO, *ALL, only="system"):
        with pytest.raises(OutcomeUnknown):
            engine.commit(id, two())
        held = writer.status().channel.oldest_in_flight
        assert held is not None
        writer.append("v/0", b"beside")
        writer.tick(force=True)
        assert writer.latest_tick.time_tick < held
    eventually(lambda: engine.transactions.settle_doubts() == 0, what="the doubt settled")
    eventually(lambda: (writer.tick(), writer.latest_tick.time_tick > held)[1], what="a tick above the place")
    engine.abort(id)
    assert failing.bodies() == {"data-0": [b"beside"], "data-1": []}


def test_a_decided_commit_that_cannot_be_written_is_committed_and_written_when_there_is_room(failing: Failing) -> None:
    """Promise 2 under a full disk: all of it or none, whichever channel is full."""
    engine = failing.engine
    id = engine.begin()
    with failing.disk.failing(errno.ENOSPC, *ALL, only="data-1"):
        timestamp = engine.commit(id, two())
        right = engine.log.channel("data-1")
        right.tick(force=True)
        assert right.latest_tick.time_tick < timestamp, "no tick passes it"
        assert engine.status()["transactions"]["committed_and_unwritten"] == 1
    eventually(
        lambda: engine.status()["transactions"]["committed_and_unwritten"] == 0, what="the rest of the commit written"
    )
    assert failing.bodies() == {"data-0": [b"left"], "data-1": [b"right"]}
    eventually(lambda: engine.transactions.look()[0][0].state is TxnState.COMMITTED, what="the end logged")


def test_a_commit_returns_when_it_is_decided_and_is_seen_when_every_channel_has_written_it(failing: Failing) -> None:
    """Design, cross-channel commit: COMMITTING is the point of no return. A slow disk under one channel delays what
    is seen, of all channels alike (promise 2), and not the caller."""
    engine, go_on = failing.engine, threading.Event()
    failing.disk.rule = lambda call, path: go_on.wait(30) and None if call == "sync" and "data-1" in path else None
    try:
        timestamp = engine.commit(engine.begin(), two())
        assert not go_on.is_set()
        assert engine.log.channel("data-1").latest_tick.time_tick < timestamp
        with pytest.raises(WaitTimeout, match="data-1"):
            engine.wait_until_visible(timestamp, 0.2)
    finally:
        go_on.set()
    assert failing.bodies() == {"data-0": [b"left"], "data-1": [b"right"]}
