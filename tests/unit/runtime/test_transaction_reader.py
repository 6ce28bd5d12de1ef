"""`TransactionReader`: transactions whole, at their commit, from memory and from files, from any place on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import BROKEN, Rig, drain_whole, eventually, tick, txn_id
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Closed, InvalidArgument, Truncated
from tidegate.log.message import MessageType, Position
from tidegate.runtime import transaction_reader as module
from tidegate.runtime.log import Log, LogFiles
from tidegate.runtime.pieces import Piece
from tidegate.runtime.retention import remove_old

EVERYTHING = {"needed_from": None, "before": Position(1 << 60), "age_max_s": None, "bytes_max": None, "now_ms": 0}


def bodies(found: list) -> list[bytes | None]:
    return [each.body for each in found]


def test_a_transaction_comes_whole_at_its_commits_time_tick_and_nobody_waits_for_it(rig: Rig) -> None:
    """Promises 2 and 3; time-log fact 35."""
    writer = rig.writer(start=True)
    open_txn = writer.begin(txn_id(1), "a")
    open_txn.append("a", b"t1")
    writer.append("a", b"plain")
    open_txn.append("b", b"t2")
    tick(writer)
    for reader in (rig.transactions(writer), rig.transactions()):
        assert bodies(drain_whole(reader)) == [b"plain"]
    followers = [rig.transactions(writer), rig.transactions()]
    for reader in followers:
        drain_whole(reader)
    done = open_txn.commit()
    tick(writer)
    for reader in [*followers, rig.transactions(writer), rig.transactions()]:
        found = [each for each in drain_whole(reader) if each.txn is not None]
        assert bodies(found) == [b"t1", b"t2"]
        assert {each.time_tick for each in found} == {done.time_tick}
        assert {each.last_confirmed for each in found} == {done.last_confirmed}


def test_messages_that_were_written_ahead_and_never_committed_do_not_come(rig: Rig) -> None:
    writer = rig.writer(start=True)
    for number, end in enumerate(("commit", "rollback", "leave"), 1):
        txn = writer.begin(txn_id(number), "a")
        txn.append("a", end.encode())
        if end != "leave":
            getattr(txn, end)()
    writer.append_transaction(txn_id(4), [Piece("a", b"at once")])
    tick(writer)
    for reader in (rig.transactions(writer), rig.transactions()):
        assert bodies(drain_whole(reader)) == [b"commit", b"at once"]
        assert reader.status.committed == 2
        assert reader.status.rolled_back == 1


def test_filters_come_behind_assembly(rig: Rig) -> None:
    """Virtual channels and types leave out messages; the COMMIT, which names no virtual channel, still counts."""
    writer = rig.writer(start=True)
    txn = writer.begin(txn_id(1), "a")
    txn.append("a", b"a1")
    txn.append("b", b"b1", kind=MessageType.DELETE)
    txn.append("c", [b"c1", b"c2"])
    txn.commit()
    writer.append("b", b"plain b", kind=MessageType.DELETE)
    writer.append("", b"for all", kind=MessageType.DDL)
    tick(writer)

    def found(**options: object) -> list[bytes | None]:
        from_files, from_memory = (bodies(drain_whole(rig.transactions(each, **options))) for each in (None, writer))
        assert from_files == from_memory
        return from_files

    assert found(vchannels=frozenset({"b"})) == [b"b1", b"plain b", b"for all"]
    assert found(vchannels=frozenset({"a", "c"})) == [b"a1", b"c1", b"c2", b"for all"]
    assert found(vchannels=frozenset()) == [b"for all"]
    assert found(types=frozenset({MessageType.DELETE})) == [b"b1", b"plain b"]
    assert found(vchannels=frozenset({"a"}), types=frozenset({MessageType.INSERT})) == [b"a1"]
    with pytest.raises(InvalidArgument, match="COMMIT"):
        rig.transactions(types=frozenset({MessageType.COMMIT}))
    with pytest.raises(InvalidArgument, match="set of names"):
        rig.transactions(vchannels="a")


def test_after_counts_by_the_commit_and_not_by_the_message(rig: Rig) -> None:
    """Time-log fact 36: above TimeTick 1 an insert at 1 comes if its commit is above, and not if its commit is at 1."""
    writer = rig.writer(start=True)
    txn = writer.begin(txn_id(1), "a")
    body = txn.append("a", b"in txn")
    plain = writer.append("a", b"plain")
    done = txn.commit()
    tick(writer)
    for source in (None, writer):
        assert bodies(drain_whole(rig.transactions(source, after=Timestamp(body.time_tick)))) == [b"plain", b"in txn"]
        assert bodies(drain_whole(rig.transactions(source, after=Timestamp(plain.time_tick)))) == [b"in txn"]
        assert bodies(drain_whole(rig.transactions(source, after=Timestamp(done.time_tick)))) == []


def test_reading_on_from_any_tick_loses_nothing_of_what_was_open_then(rig: Rig) -> None:
    """Promise 3 and LastConfirmedMessageID: a tick's place passes open transactions by, and their messages are
    fetched by what the commit names."""
    writer = rig.writer(start=True)
    expected = []
    txns = {number: writer.begin(txn_id(number), "a") for number in range(4)}
    for step in range(12):
        txns[step % 4].append("a", b"t%d.%d" % (step % 4, step))
        expected.append((int(writer.append("a", b"p%d" % step).time_tick), b"p%d" % step))
        tick(writer)
        if step >= 8:
            at = int(txns[step % 4].commit().time_tick)
            expected.extend((at, b"t%d.%d" % (step % 4, each)) for each in range(step % 4, step + 1, 4))
            tick(writer)
    reader = rig.transactions()
    ticks = []
    seen = []
    while (delivery := reader.poll()) is not None:
        seen.extend((int(each.time_tick), each.body) for each in delivery.messages())
        ticks.append(delivery.tick)
    assert seen == expected
    places = [(each.last_confirmed, each.time_tick) for each in ticks]
    places += [(each.last_confirmed, each.time_tick) for each in drain_whole(rig.transactions())]
    for source in (None, writer):
        for position, after in places:
            rest = drain_whole(rig.transactions(source, position=position, after=Timestamp(after)))
            assert [(int(each.time_tick), each.body) for each in rest] == [e for e in expected if e[0] > after]
    middle = ticks[len(ticks) // 2]
    reader = rig.transactions(position=middle.last_confirmed, after=middle.time_tick)
    drain_whole(reader)
    assert reader.status.fetched_transactions > 0, "the test is about what lies before the place"


def test_a_reader_with_little_memory_fetches_and_gives_the_same(rig: Rig) -> None:
    """Memory is bounded with any number of transactions open: what is beyond it is read again when it counts."""
    writer = rig.writer(start=True, segment_bytes=1 << 20)
    txns = [writer.begin(txn_id(number), "a") for number in range(8)]
    for step in range(10):
        for number, txn in enumerate(txns):
            txn.append("a", [b"%d.%d.%d" % (number, step, each) + bytes(200) for each in range(10)])
        tick(writer)
    for txn in txns:
        txn.commit()
    tick(writer)
    small = rig.transactions(assembly_bytes_max=20_000)
    most = 0
    found = []
    while (delivery := small.poll()) is not None:
        most = max(most, small.status.held_bytes)
        found.extend(each.body for each in delivery.messages())
    assert most <= 20_000
    assert small.status.forgotten > 0
    assert small.status.fetched_messages > 0
    assert found == bodies(drain_whole(rig.transactions()))
    assert len(found) == 800


def test_messages_of_several_schemas_are_fetched_from_sealed_segments_too(rig: Rig) -> None:
    """Sealing gathers batches by schema, so they overlap in position: a fetch must not stop at the first that passes
    the end of its run."""
    writer = rig.writer(start=True)
    txn = writer.begin(txn_id(1), "a")
    for step in range(6):
        txn.append("a", b"b%d" % step)
        txn.append("a", pa.RecordBatch.from_pydict({"x": [step]}))
        writer.append("a", b"plain")
        writer.append_batch("a", pa.RecordBatch.from_pydict({"x": [-1, -2]}))
    tick(writer)
    middle = writer.latest_tick
    writer.segments.roll()
    rig.seal(writer)
    txn.commit()
    tick(writer)
    found = drain_whole(rig.transactions(position=middle.last_confirmed, after=middle.time_tick))
    assert [each.body or each.row for each in found] == [
        what for step in range(6) for what in (b"b%d" % step, {"x": step})
    ]


def test_runs_far_from_each_other_are_read_in_passes_of_their_own(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEAR", 20)
    writer = rig.writer(start=True)
    txn = writer.begin(txn_id(1), "a")
    for step in range(5):
        txn.append("a", b"%d" % step)
        writer.append_batch("a", [b"plain"] * (5 if step % 2 else 50))
        tick(writer)
    middle = writer.latest_tick
    txn.commit()
    tick(writer)
    made = []
    real = module.FileCursor
    monkeypatch.setattr(module, "FileCursor", lambda *each: made.append(each) or real(*each))
    found = drain_whole(rig.transactions(position=middle.last_confirmed, after=middle.time_tick))
    assert bodies(found) == [b"0", b"1", b"2", b"3", b"4"]
    assert len(made) == 3, "1 and 2, and 3 and 4, are near each other"


@pytest.mark.parametrize("taken_over", [False, True])
def test_what_cannot_be_fetched_now_comes_with_the_next_call(rig: Rig, taken_over: bool) -> None:
    """Also while a new writer is opening and has published nothing: a tick has covered the commit, so it is there."""
    writer = rig.writer(start=True)
    txn = writer.begin(txn_id(1), "a")
    txn.append("a", b"one")
    tick(writer)
    middle = writer.latest_tick
    txn.commit()
    tick(writer)
    reader = rig.transactions(writer, position=middle.last_confirmed, after=middle.time_tick)
    rig.files.rule = lambda call, path: BROKEN if call == "read" and reader._unfinished is not None else None
    for _ in range(2):
        with pytest.raises(OSError):
            drain_whole(reader)
    rig.files.rule = lambda call, path: None
    if taken_over:
        rig.tail.fence(2)
        assert reader._source.limit()[0] is None
    found = reader.poll()
    assert found is not None
    assert bodies([*found.messages()]) == [b"one"]


def test_what_retention_removed_is_truncated_and_never_delivered_in_part(rig: Rig) -> None:
    writer = rig.writer(start=True)
    txn = writer.begin(txn_id(1), "a")
    txn.append("a", b"one")
    tick(writer)
    writer.segments.roll()
    txn.append("a", b"two")
    tick(writer)
    middle = writer.latest_tick
    txn.commit()
    tick(writer)
    rig.seal(writer)
    assert len(remove_old(rig.channel, **EVERYTHING)) == 1
    reader = rig.transactions(position=middle.last_confirmed, after=middle.time_tick)
    for _ in range(2):
        with pytest.raises(Truncated):
            drain_whole(reader)


def test_a_closed_reader_says_so(rig: Rig) -> None:
    rig.writer()
    with rig.transactions() as reader:
        assert reader.poll() is not None
        assert reader.after == reader.tick.time_tick
    with pytest.raises(Closed):
        reader.poll()


# -- through the log ---------------------------------------------------------------------------------------------


def test_both_ways_to_open_a_log_have_it(open_log: Callable[..., Log], tmp_path: Path) -> None:
    log = open_log()
    writer = log.channel("c")
    txn = writer.begin(txn_id(1), "a")
    with log.transaction_reader("c") as here, LogFiles(tmp_path / "log").transaction_reader("c") as there:
        eventually(lambda: here.read(1) and here.tailing)
        txn.append("a", b"one")
        txn.append("b", b"two")
        done = txn.commit()
        for reader in (here, there):
            found = []
            while reader.after < done.time_tick:
                delivery = reader.read(5)
                assert delivery is not None
                found.extend(delivery.messages())
            assert bodies(found) == [b"one", b"two"]


def test_retention_leaves_what_an_open_transaction_needs(open_log: Callable[..., Log]) -> None:
    """Like a pin, until it ends: by truncation and by size."""
    log = open_log(retention_bytes=1)
    writer = log.channel("c")
    txn = writer.begin(txn_id(1), "a", keepalive_ms=None)
    txn.append("a", b"first")
    for _ in range(3):
        writer.append("a", bytes(40 << 10))
        writer.segments.roll()
    log.seal()
    assert log.truncate("c", Position(1 << 60)) == []
    with pytest.raises(AssertionError):
        eventually(lambda: log.segments("c")[0].number > 1, timeout_s=0.6)
    reader = log.transaction_reader("c", types=frozenset({MessageType.UPSERT}))
    txn.append("a", b"second", kind=MessageType.UPSERT)
    done = txn.commit()
    with reader:
        while reader.after < done.time_tick:
            delivery = reader.read(5)
            found = [] if delivery is None else [*delivery.messages()]
    assert bodies(found) == [b"second"], "and the first was found, or it would have raised"
    eventually(lambda: log.segments("c")[0].number > 1)
