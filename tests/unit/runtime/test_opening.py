"""Opening a term: decided commits that are missing are completed (`Redo`) below its first tick, at every crash point.

Design, "Cross-channel commit": after a crash, COMMITTING transactions are driven on before their channels tick again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import BROKEN, Rig, drain, drain_whole, tick, txn_id
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import StorageFailed, TidegateError
from tidegate.log.message import MessageType
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.opening import Redo
from tidegate.runtime.pieces import Piece
from tidegate.txn.marker import Marker
from tidegate.txn.sessions import RecoveredSessions

TXN = txn_id(1)
AHEAD = [b"a1", b"a2", b"a3"]
WITH = [b"1", {"x": 2}, {"x": 3}, b"4"]


def pieces() -> list[Piece]:
    return [Piece("a", b"1"), Piece("b", pa.RecordBatch.from_pydict({"x": [2, 3]})), Piece("a", b"4")]


def seen(rig: Rig, writer: ChannelWriter | None = None) -> list[object]:
    return [each.body if each.row is None else each.row for each in drain_whole(rig.transactions(writer))]


@dataclass
class Decided:
    """A channel whose writer holds a place; the coordinator has decided, and the commit is not written yet."""

    rig: Rig
    writer: ChannelWriter
    commit: Callable[[], None]
    redo: Redo


def decided(rig: Rig, *, ahead: bool) -> Decided:
    writer = rig.writer(inline=True)
    runs: tuple[tuple[int, int], ...] = ()
    if ahead:
        txn = writer.begin(TXN, "a", keepalive_ms=None)
        txn.append("a", [b"a1", b"a2"])
        writer.append("z", b"z1")
        txn.append("b", b"a3")
        held = txn.hold(["a", "b"], 4)
        runs = tuple(txn.runs)
    else:
        held = writer.reserve(["a", "b"], count=5)
    at = Timestamp(rig.oracle.allocate(1))
    writer.append("z", b"z2")
    tick(writer)
    redo = Redo(TXN, int(at), int(held.time_tick), pieces(), runs)
    return Decided(rig, writer, lambda: held.commit_async(TXN, pieces(), at=at, runs=runs).result(), redo)


def expected(ahead: bool) -> list[object]:
    return [*([b"z1"] if ahead else []), *(AHEAD if ahead else []), *WITH, b"z2"]


def check(rig: Rig, redo: Redo, ahead: bool) -> None:
    """All of it is there once, at its commit Timestamp, below the first tick of the newest term."""
    found = drain_whole(rig.transactions())
    assert [each.body if each.row is None else each.row for each in found] == expected(ahead)
    assert {int(each.time_tick) for each in found if each.txn} == {redo.commit_tick}
    commits = [each for each in rig.messages() if each.type is MessageType.COMMIT]
    assert [int(each.time_tick) for each in commits] == [redo.commit_tick]
    assert Marker.decode(commits[0].body or b"").count == len(WITH) + (len(AHEAD) if ahead else 0)


@pytest.mark.parametrize("ahead", [False, True], ids=["at the place", "written ahead"])
def test_a_commit_that_is_missing_entirely_is_written_below_the_first_tick(rig: Rig, ahead: bool) -> None:
    found = decided(rig, ahead=ahead)
    reader = rig.transactions()
    before = drain_whole(reader)
    assert all(each.txn is None for each in before)
    rig.crash()
    writer = rig.writer(inline=True, redo=lambda: [found.redo])
    assert found.redo.commit_tick < writer.latest_tick.time_tick
    check(rig, found.redo, ahead)
    rest = [each.body if each.row is None else each.row for each in drain_whole(reader)]
    assert [*(each.body for each in before), *rest] == expected(ahead), "also for whoever was reading all the time"
    assert writer.sessions.is_idle
    assert seen(rig, writer) == expected(ahead)


@pytest.mark.parametrize("ahead", [False, True], ids=["at the place", "written ahead"])
def test_a_commit_that_is_there_is_not_written_again(rig: Rig, ahead: bool) -> None:
    found = decided(rig, ahead=ahead)
    found.commit()
    rig.crash()
    position = rig.writer(inline=True, redo=lambda: [found.redo]).latest_tick.position
    check(rig, found.redo, ahead)
    commit = next(each for each in rig.messages() if each.type is MessageType.COMMIT)
    assert position == commit.position + 1, "nothing but the tick was written"


@pytest.mark.parametrize("ahead", [False, True], ids=["at the place", "written ahead"])
def test_wherever_the_write_of_the_commit_was_torn_the_rest_is_completed(tmp_path: Path, ahead: bool) -> None:
    """Bodies there and the commit missing; some bodies there; nothing there; all of it."""
    written = set()
    for cut_at in count():
        rig = Rig(tmp_path / str(cut_at))
        found = decided(rig, ahead=ahead)
        start = found.writer.segments.offset
        found.commit()
        end, path = found.writer.segments.offset, rig.segment_paths()[-1]
        places = [start + step * (end - start) // 24 for step in range(24)] + [end]
        if cut_at == len(places):
            rig.close()
            break
        rig.crash()
        raw = path.read_bytes()
        path.write_bytes(raw[: places[cut_at]].ljust(len(raw), b"\0"))
        writer = rig.writer(inline=True, redo=lambda found=found: [found.redo])
        check(rig, found.redo, ahead)
        base = rig.channel.header(rig.channel.segments()[-1]).base_position
        written.add(writer.latest_tick.position - base)
        rig.crash()
        tick(rig.writer(inline=True, redo=lambda found=found: [found.redo]))
        check(rig, found.redo, ahead)
        rig.close()
    assert written == {0, 1, 2, 4, 5}, "nothing, the commit, and one body after the other"


@pytest.mark.parametrize("ahead", [False, True], ids=["at the place", "written ahead"])
@pytest.mark.parametrize("call", ["write", "sync", "create", "sync_dir", "rename"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_every_write_and_sync_of_the_opening_may_fail_and_the_next_one_completes_it(
    tmp_path: Path, ahead: bool, call: str, lasting: bool
) -> None:
    """Fails each call of the opening in turn, then opens again. No tick ever passes the commit."""
    for failed_at in count():
        rig = Rig(tmp_path / str(failed_at))
        found = decided(rig, ahead=ahead)
        watcher = rig.transactions()
        drain_whole(watcher)
        rig.crash()
        seen_calls = 0

        def rule(each: str, _: str, at: int = failed_at) -> int | None:
            nonlocal seen_calls
            if each != call:
                return None
            seen_calls += 1
            return BROKEN if seen_calls == at + 1 or (lasting and seen_calls > at) else None

        rig.files.rule = rule
        try:
            rig.writer(inline=True, redo=lambda found=found: [found.redo])
        except (TidegateError, OSError):
            opened = False
        else:
            opened = True
        rig.files.rule = lambda *_: None
        for _ in range(2):
            assert all(each.txn is None or each.time_tick == found.redo.commit_tick for each in drain_whole(watcher))
            rig.crash()
            writer = rig.writer(inline=True, redo=lambda found=found: [found.redo])
            assert found.redo.commit_tick < writer.latest_tick.time_tick
        tick(writer)
        check(rig, found.redo, ahead)
        drain_whole(watcher)
        assert watcher.status.committed == 1
        rig.close()
        if opened:
            break
    assert failed_at > 0 or call == "rename"


def test_several_decided_commits_are_completed_together_in_any_order(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    redos = []
    for number in range(5):
        held = writer.reserve(["a"], count=3)
        at = Timestamp(rig.oracle.allocate(1))
        body = [Piece("a", [b"%d.0" % number, b"%d.1" % number])]
        redos.append(Redo(txn_id(number), int(at), int(held.time_tick), body, ()))
        if number in (1, 3):
            held.commit_async(txn_id(number), body, at=at).result()
    rig.crash()
    tick(rig.writer(inline=True, redo=lambda: redos[::-1]))
    assert seen(rig) == [b"%d.%d" % (number, at) for number in range(5) for at in range(2)]


def test_a_redo_that_does_not_fit_the_segment_goes_into_one_of_its_own(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    held = writer.reserve("a", count=2)
    at = Timestamp(rig.oracle.allocate(1))
    rig.crash()
    redo = Redo(TXN, int(at), int(held.time_tick), [Piece("a", bytes(200 << 10))], ())
    writer = rig.writer(inline=True, redo=lambda: [redo])
    writer.append("a", b"later")
    tick(writer)
    assert [len(each) for each in seen(rig, writer)] == [200 << 10, 5]


def test_other_open_transactions_stay_open_beside_a_redo(rig: Rig) -> None:
    found = decided(rig, ahead=True)
    other = found.writer.begin(txn_id(2), "a", keepalive_ms=None)
    other.append("a", b"other")
    rig.crash()
    writer = rig.writer(inline=True, redo=lambda: [found.redo])
    assert [each.id for each in writer.sessions] == [txn_id(2)]
    writer.resume(txn_id(2)).commit()
    tick(writer)
    assert seen(rig, writer) == [*expected(True), b"other"]


def test_redo_is_asked_for_only_once_the_older_writer_is_fenced(rig: Rig) -> None:
    """What it decides later cannot be part of the answer; so it must not be able to write any more."""
    rig.writer(inline=True)
    terms: list[int] = []

    def redo() -> list[Redo]:
        terms.append(rig.tail.current_term())
        return []

    rig.writer(inline=True, redo=redo)
    assert terms == [2]


def test_an_opening_whose_decisions_are_not_known_does_not_open(rig: Rig) -> None:
    found = decided(rig, ahead=True)
    rig.crash()

    def fail() -> list[Redo]:
        raise StorageFailed("the coordinator's log cannot be read")

    names = [each.name for each in rig.segment_paths()]
    with pytest.raises(StorageFailed, match="coordinator"):
        rig.writer(inline=True, redo=fail)
    assert [each.name for each in rig.segment_paths()] == names, "and leaves nothing behind"
    tick(rig.writer(inline=True, redo=lambda: [found.redo]))
    check(rig, found.redo, True)


def test_a_store_older_than_the_log_is_noticed(rig: Rig) -> None:
    """Promise 1: the first tick of a term is above everything in the log, redone commits included."""
    found = decided(rig, ahead=False)
    rig.crash()
    late = Redo(TXN, 1 << 60, found.redo.first_tick, pieces(), ())
    with pytest.raises(StorageFailed, match="older than the log"):
        rig.writer(inline=True, redo=lambda: [late])


def test_where_open_transactions_begin_is_known_without_reading_the_whole_log(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening reads from there, so that start-up costs the tail and not the history."""
    read: list[int] = []
    fold = RecoveredSessions.fold_batch
    monkeypatch.setattr(
        RecoveredSessions, "fold_batch", lambda self, batch: read.append(len(batch)) or fold(self, batch)
    )
    writer = rig.writer(inline=True)
    for _ in range(50):
        writer.append("a", bytes(10_000))
        tick(writer)
    rig.crash()
    writer = rig.writer(inline=True)
    assert sum(read) <= 2
    read.clear()
    writer.begin(TXN, "a", keepalive_ms=None).append("a", b"1")
    for _ in range(10):
        writer.append("a", bytes(10_000))
        tick(writer)
    rig.crash()
    writer = rig.writer(inline=True)
    assert [each.id for each in writer.sessions] == [TXN]
    assert 12 <= sum(read) <= 14
    read.clear()
    writer.resume(TXN).commit()
    tick(writer)
    tick(writer, force=True)
    rig.crash()
    assert rig.writer(inline=True).sessions.is_idle
    assert sum(read) <= 2


def test_what_readers_get_does_not_depend_on_where_the_redone_commit_lies(rig: Rig) -> None:
    """Its bodies lie in the old term and its commit in the new one, behind messages with larger TimeTicks."""
    found = decided(rig, ahead=True)
    for number in range(5):
        found.writer.append("z", b"%d" % number)
    rig.crash()
    writer = rig.writer(inline=True, redo=lambda: [found.redo])
    writer.append("z", b"new")
    tick(writer)
    everything = [*expected(True), b"0", b"1", b"2", b"3", b"4", b"new"]
    assert seen(rig, writer) == everything
    whole = drain_whole(rig.transactions())
    for message in [*drain(rig.reader()), *whole]:
        rest = drain_whole(rig.transactions(position=message.last_confirmed, after=message.time_tick))
        assert rest == [each for each in whole if each.time_tick > message.time_tick]
