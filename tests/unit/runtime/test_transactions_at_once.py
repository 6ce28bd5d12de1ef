"""A transaction of one channel written at once: its bodies and its commit are one write, one sync, whole or absent."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from helpers import BROKEN, FULL, Rig, commit_all, drain_whole, tick, txn_id
from tidegate.errors import (
    DiskFull,
    InvalidArgument,
    LimitExceeded,
    OutcomeUnknown,
    StorageFailed,
)
from tidegate.log.message import ALL_VCHANNELS, MessageType
from tidegate.runtime.pieces import Piece
from tidegate.txn.marker import Marker

TXN = txn_id(1)


def rows(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": pa.array(values, pa.int64())})


def payloads(rig: Rig) -> list[object]:
    """All that becomes visible, by a reader of the files."""
    return [each.body if each.row is None else each.row for each in drain_whole(rig.transactions())]


def test_it_is_one_write_one_sync_and_one_block(rig: Rig) -> None:
    """Design, "Cross-channel commit": a transaction that touches one channel is one block, one sync."""
    writer = rig.writer()
    blocks = writer.segments.blocks
    calls = {call: rig.files.count(call) for call in ("write", "sync")}
    writer.append_transaction(TXN, [Piece("a", b"1"), Piece("b", [b"2", b"3"]), Piece("a", b"4", MessageType.DELETE)])
    assert {call: rig.files.count(call) - before for call, before in calls.items()} == {"write": 1, "sync": 1}
    assert writer.segments.blocks - blocks == 1


def test_many_that_wait_share_the_write_the_sync_and_the_block(rig: Rig) -> None:
    """Group commit holds for transactions too, together with plain appends, in the order in which they came."""
    writer = rig.writer()
    pending = [writer.append_transaction_async(txn_id(each), [Piece("a", b"t%d" % each)] * 1) for each in range(20)]
    plain = writer.append_async("a", b"plain")
    pending += [writer.append_transaction_async(txn_id(each), [Piece("b", b"t%d" % each)]) for each in range(20, 30)]
    syncs, blocks = rig.files.count("sync"), writer.segments.blocks
    assert commit_all(writer) == 1
    assert rig.files.count("sync") - syncs == 1
    assert writer.segments.blocks - blocks == 1
    tick(writer)
    assert payloads(rig) == [*(b"t%d" % each for each in range(20)), b"plain", *(b"t%d" % e for e in range(20, 30))]
    found = {each.body: each.time_tick for each in drain_whole(rig.transactions(writer))}
    assert [found[b"t%d" % each] for each in range(30)] == [each.result().time_tick for each in pending]
    assert found[b"plain"] == plain.result().time_tick


def test_its_place_is_the_commits_and_everything_of_it_comes_there(rig: Rig) -> None:
    """Time-log fact 35: TimeTick, id and LastConfirmedMessageID of the transaction are those of its COMMIT."""
    writer = rig.writer()
    before = writer.append("a", b"before")
    tick(writer)
    confirmed = writer.status().channel.last_confirmed
    done = writer.append_transaction(TXN, [Piece("a", b"1"), Piece("b", rows(7, 8)), Piece("a", b"2")])
    assert done.messages == 1
    assert done.time_tick == done.last_time_tick
    assert done.last_confirmed == confirmed > 0
    tick(writer)
    raw = {int(each.position): each for each in rig.messages(after=before.time_tick)}
    commit = raw[done.position]
    assert commit.type is MessageType.COMMIT
    assert (commit.time_tick, commit.vchannel, commit.txn) == (done.time_tick, ALL_VCHANNELS, TXN)
    assert Marker.decode(commit.body) == Marker.at_once(4)
    assert [each.time_tick for each in raw.values()] == list(range(done.time_tick - 4, done.time_tick + 1))
    assert list(raw) == list(range(done.position - 4, done.position + 1)), "next to each other"
    for reader in (rig.transactions(), rig.transactions(writer)):
        whole = [each for each in drain_whole(reader) if each.txn == TXN]
        assert [each.body or each.row for each in whole] == [b"1", {"x": 7}, {"x": 8}, b"2"]
        assert {(each.time_tick, each.last_confirmed) for each in whole} == {(done.time_tick, done.last_confirmed)}
        assert [each.vchannel for each in whole] == ["a", "b", "b", "a"]


def test_large_bodies_as_bytes_and_arrow_come_back_the_same(rig: Rig) -> None:
    writer = rig.writer(segment_bytes=1 << 20)
    many = [b"%d" % each for each in range(3000)]
    table = rows(*range(5000))
    text = pa.RecordBatch.from_pydict({"s": ["a", None, "c"], "n": [[1], [], None]})
    writer.append_transaction(TXN, [Piece("a", many), Piece("b", table), Piece("c", text), Piece("a", b"end")])
    tick(writer)
    expected = [*many, *table.to_pylist(), *text.to_pylist(), b"end"]
    assert payloads(rig) == expected
    writer.segments.roll()
    rig.seal(writer)
    assert payloads(rig) == expected, "and after sealing"


def test_the_same_pieces_may_be_written_again_by_another_transaction(rig: Rig) -> None:
    writer = rig.writer()
    pieces = [Piece("a", b"1"), Piece("b", b"2")]
    writer.append_transaction(txn_id(1), pieces)
    writer.append_transaction(txn_id(2), pieces)
    tick(writer)
    assert [(each.txn, each.body) for each in drain_whole(rig.transactions())] == [
        (txn_id(number), body) for number in (1, 2) for body in (b"1", b"2")
    ]


def test_a_transaction_without_messages_is_a_commit_alone(rig: Rig) -> None:
    writer = rig.writer()
    done = writer.append_transaction(TXN, [])
    tick(writer)
    assert payloads(rig) == []
    assert [each.position for each in rig.messages()] == [done.position]


@pytest.mark.parametrize(("number", "error"), [(FULL, DiskFull), (BROKEN, StorageFailed)])
@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("times", [1, 100])
def test_when_the_disk_refuses_nothing_of_it_is_there(
    rig: Rig, call: str, number: int, error: type, times: int
) -> None:
    """Promise 6: what was not acknowledged is either whole or absent. Where the disk refuses the cut as well, that is
    known only after the next write."""
    writer = rig.writer()
    left = [number] * times
    rig.files.rule = lambda each, _: left.pop() if left and each == call else None
    with pytest.raises(error if times == 1 else OutcomeUnknown):
        writer.append_transaction(TXN, [Piece("a", b"1"), Piece("b", rows(1, 2)), Piece("a", b"2")])
    left.clear()
    writer.append_transaction(txn_id(2), [Piece("a", b"later")])
    tick(writer)
    assert payloads(rig) == [b"later"]
    rig.crash()
    tick(rig.writer())
    assert payloads(rig) == [b"later"]


def test_a_crash_leaves_it_whole_or_absent_wherever_the_write_was_torn(rig: Rig) -> None:
    """Promise 6. Every block of it, cut at any place: half a transaction is never visible."""
    writer = rig.writer()
    start = writer.segments.offset
    writer.append_transaction(TXN, [Piece("a", [b"1", b"2"]), Piece("b", rows(3, 4)), Piece("c", b"5")])
    end, path = writer.segments.offset, rig.segment_paths()[-1]
    raw = path.read_bytes()
    rng = random.Random(5)
    outcomes = set()
    for cut in sorted({start, start + 1, end - 8, end, *(rng.randrange(start, end) for _ in range(25))}):
        for each in rig.segment_paths():
            if each != path:
                each.unlink()
        path.write_bytes(raw[:cut].ljust(len(raw), b"\0"))
        tick(rig.writer())
        found = payloads(rig)
        assert found in ([], [b"1", b"2", {"x": 3}, {"x": 4}, b"5"])
        outcomes.add(len(found))
        assert len(found) == (5 if cut >= end - 7 else 0) or raw[cut:end].strip(b"\0") == b""
    assert outcomes == {0, 5}


def test_bad_input_is_refused_before_anything_is_written(rig: Rig) -> None:
    writer = rig.writer(message_bytes_max=1000, block_bytes_max=3000, batch_rows_max=50)
    offset = writer.segments.offset
    good = Piece("a", b"1")
    for pieces, txn, error, match in [
        ([good], b"short", InvalidArgument, "16 bytes"),
        ([good], bytes(16), InvalidArgument, "not all of them zero"),
        ([good], None, InvalidArgument, "carry its id"),
        ([good, Piece("a", b"", MessageType.DDL)], TXN, InvalidArgument, "DDL cannot be part of a transaction"),
        ([Piece("a", b"", MessageType.BEGIN)], TXN, InvalidArgument, "BEGIN cannot be part"),
        ([Piece("a", b"", MessageType.COMMIT)], TXN, InvalidArgument, "COMMIT cannot be part"),
        ([Piece("a", b"", MessageType.TIME_TICK)], TXN, InvalidArgument, "TIME_TICK cannot be part"),
        ([Piece("a", [b""], MessageType.ROLLBACK)], TXN, InvalidArgument, "ROLLBACK cannot be part"),
        ([Piece("", b"x")], TXN, InvalidArgument, "virtual channel"),
        ([Piece("a", [])], TXN, InvalidArgument, "number of rows is 0"),
        ([Piece("a", [b"x"] * 51)], TXN, LimitExceeded, "batch_rows_max"),
        ([good, Piece("a", bytes(1001))], TXN, LimitExceeded, "message_bytes_max"),
        ([Piece("a", bytes(900))] * 4, TXN, LimitExceeded, "block_bytes_max"),
        ([Piece("a", pa.RecordBatch.from_pydict({"_txn": [1]}))], TXN, InvalidArgument, "_txn"),
    ]:
        with pytest.raises(error, match=match):
            writer.append_transaction(txn, pieces)
    for kind in (MessageType.BEGIN, MessageType.COMMIT, MessageType.ROLLBACK):
        with pytest.raises(InvalidArgument, match="made by transactions"):
            writer.append("a", b"", kind=kind, txn=TXN)
    assert writer.segments.offset == offset
    assert writer.status().in_flight_bytes == 0


def test_one_that_waits_behind_an_exclusive_append_holds_up_only_its_own_virtual_channels(rig: Rig) -> None:
    """Time-log fact 29: an exclusive append in one virtual channel leaves the others free."""
    writer = rig.writer()
    held = writer.reserve("a")
    ddl = writer.append_async("a", b"ddl", kind=MessageType.DDL)
    waiting = writer.append_transaction_async(TXN, [Piece("a", b"1"), Piece("b", b"2")])
    other = writer.append_async("z", b"other")
    whole = writer.append_transaction_async(txn_id(2), [Piece("y", b"3"), Piece("z", b"4")])
    behind = writer.append_async("b", b"behind")
    commit_all(writer)
    assert [each.done() for each in (ddl, waiting, other, whole, behind)] == [False, False, True, True, False]
    held.release()
    commit_all(writer)
    tick(writer)
    assert payloads(rig) == [b"other", b"3", b"4", b"ddl", b"1", b"2", b"behind"]
    assert ddl.result().time_tick < waiting.result().time_tick - 2


def test_an_exclusive_append_waits_for_one_that_came_before_and_does_not_fail_it(rig: Rig) -> None:
    """What is written at once cannot straddle a DDL."""
    writer = rig.writer()
    whole = writer.append_transaction_async(TXN, [Piece("a", b"1"), Piece("b", b"2")])
    ddl = writer.append_async("b", b"ddl", kind=MessageType.DDL)
    for_all = writer.append_async(ALL_VCHANNELS, b"all", kind=MessageType.DDL)
    commit_all(writer)
    tick(writer)
    assert whole.result().time_tick < ddl.result().time_tick < for_all.result().time_tick
    assert payloads(rig) == [b"1", b"2", b"ddl", b"all"]
