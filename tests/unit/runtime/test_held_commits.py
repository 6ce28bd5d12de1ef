"""Places held for a commit: over several virtual channels and messages, kept when the commit fails. Design,
"Cross-channel commit": no channel's tick passes the commit Timestamp before its marker is in."""

from __future__ import annotations

import pyarrow as pa
import pytest

from helpers import BROKEN, FULL, Rig, commit_all, drain, drain_whole, tick, txn_id
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Backpressure, Closed, DiskFull, Fenced, InvalidArgument, OutcomeUnknown, StorageFailed
from tidegate.log.message import MessageType
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.opening import Redo
from tidegate.runtime.pieces import Piece

TXN = txn_id(1)


def pieces() -> list[Piece]:
    return [Piece("a", b"1"), Piece("b", pa.RecordBatch.from_pydict({"x": [2, 3]})), Piece("a", [b"4", b"5"])]


PAYLOAD = [b"1", {"x": 2}, {"x": 3}, b"4", b"5"]
COUNT = 6


def seen(rig: Rig, writer: ChannelWriter | None = None) -> list[object]:
    return [each.body if each.row is None else each.row for each in drain_whole(rig.transactions(writer))]


def test_the_watermark_stays_below_the_place_until_the_commit_is_in(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    writer.append("a", b"before")
    held = writer.reserve(["a", "b"], count=COUNT)
    plain = [writer.append(name, name.encode()) for name in "abz"]
    for _ in range(3):
        tick(writer, force=True)
        assert writer.latest_tick.time_tick < held.time_tick
    assert seen(rig, writer) == [b"before"]
    at = Timestamp(rig.oracle.allocate(1))
    late = writer.append("z", b"late")
    rig.deferred = True
    pending = held.commit_async(TXN, pieces(), at=at)
    assert held.is_held  # Ticks stay below it for as long as the commit is on its way.
    rig.deferred = False
    commit_all(writer)
    done = pending.result()
    assert (done.time_tick, done.messages) == (at, 1)
    assert not held.is_held
    tick(writer)
    tick(writer)
    expected = [b"before", b"a", b"b", b"z", *PAYLOAD, b"late"]
    assert seen(rig, writer) == seen(rig) == expected
    assert plain[-1].time_tick < at < late.time_tick
    assert writer.status().holders == {}
    raw = [each for each in rig.messages() if each.txn == TXN]
    assert [int(each.time_tick) for each in raw] == [*range(held.time_tick, held.time_tick + COUNT - 1), at]


def test_without_a_later_timestamp_the_commit_takes_the_last_of_the_place(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    held = writer.reserve(("a", "b"), count=COUNT)
    done = held.commit_async(TXN, pieces(), at=None).result()
    assert done.time_tick == held.time_tick + COUNT - 1
    tick(writer)
    assert seen(rig, writer) == PAYLOAD


def test_it_is_one_write_and_one_sync(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    held = writer.reserve(("a", "b"), count=COUNT)
    calls = {call: rig.files.count(call) for call in ("write", "sync")}
    held.commit_async(TXN, pieces(), at=Timestamp(rig.oracle.allocate(1))).result()
    assert {call: rig.files.count(call) - before for call, before in calls.items()} == {"write": 1, "sync": 1}


def test_several_places_end_in_any_order_and_come_in_the_order_of_their_commits(rig: Rig) -> None:
    """Promise 1. A tick in between covers exactly what can no longer be preceded."""
    writer = rig.writer(inline=True)
    held = [writer.reserve(["a", "b"], count=2) for _ in range(4)]
    ats = [Timestamp(rig.oracle.allocate(1)) for _ in held]
    for number in (2, 0, 3, 1):
        done = held[number].commit_async(txn_id(number), [Piece("a", b"%d" % number)], at=ats[number]).result()
        assert done.time_tick == ats[number]
        tick(writer)
        assert seen(rig, writer) == seen(rig)
    assert seen(rig, writer) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(("number", "error"), [(FULL, DiskFull), (BROKEN, StorageFailed)])
@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_commit_that_fails_keeps_its_place_and_is_tried_again(rig: Rig, call: str, number: int, error: type) -> None:
    """Past the point of no return: no tick passes meanwhile, whatever else is written."""
    writer = rig.writer(inline=True)
    held = writer.reserve(("a", "b"), count=COUNT)
    at = Timestamp(rig.oracle.allocate(1))
    for _ in range(3):
        left = [number]
        rig.files.rule = lambda each, _, left=left: left.pop() if left and each == call else None
        with pytest.raises(error):
            held.commit_async(TXN, pieces(), at=at).result()
        assert held.is_held
        writer.append("z", b"z")
        tick(writer, force=True)
        assert writer.latest_tick.time_tick < held.time_tick
        assert seen(rig, writer) == seen(rig) == []
        assert writer.status().channel.oldest_in_flight == held.time_tick
        assert writer.status().holders == {"a": "shared by 1", "b": "shared by 1"}
    assert held.commit_async(TXN, pieces(), at=at).result().time_tick == at
    tick(writer)
    assert seen(rig, writer) == seen(rig) == [*PAYLOAD, b"z", b"z", b"z"]
    assert writer.status().holders == {}


def test_a_commit_whose_outcome_is_not_known_keeps_its_place_too(rig: Rig) -> None:
    """The next write cuts it off first, so trying again cannot write it twice."""
    writer = rig.writer(inline=True)
    held = writer.reserve(("a", "b"), count=COUNT)
    at = Timestamp(rig.oracle.allocate(1))
    with rig.files.failing(BROKEN, "sync", "create"), pytest.raises(OutcomeUnknown):
        held.commit_async(TXN, pieces(), at=at).result()
    assert held.is_held
    tick(writer, force=True)
    assert writer.latest_tick.time_tick < held.time_tick
    held.commit_async(TXN, pieces(), at=at).result()
    tick(writer)
    assert seen(rig, writer) == seen(rig) == PAYLOAD
    assert sum(each.type is MessageType.COMMIT for each in rig.messages()) == 1


def test_the_others_of_a_group_that_fails_go_on_while_the_place_is_kept(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    held = writer.reserve("a", count=2)
    rig.deferred = True
    first = writer.append_async("a", b"with it")
    pending = held.commit_async(TXN, [Piece("a", b"1")], at=None)
    left = [FULL]
    rig.files.rule = lambda each, _: left.pop() if left and each == "write" else None
    commit_all(writer)
    rig.deferred = False
    for each in (first, pending):
        with pytest.raises(DiskFull):
            each.result()
    writer.append("a", b"again")
    held.commit_async(TXN, [Piece("a", b"1")], at=None).result()
    tick(writer)
    assert seen(rig, writer) == [b"1", b"again"]


def test_closing_with_a_kept_place_never_ticks_past_it(rig: Rig) -> None:
    """The decision stands: the next term completes it (`Redo`) before it ticks."""
    writer = rig.writer(start=True)
    held = writer.reserve(("a", "b"), count=COUNT)
    at = Timestamp(rig.oracle.allocate(1))
    with rig.files.failing(FULL, "write"), pytest.raises(OutcomeUnknown):
        held.commit_async(TXN, pieces(), at=at).result()
    writer.append("z", b"z")
    writer.close()
    reader = rig.transactions()
    assert drain_whole(reader) == []
    assert reader.after < held.time_tick
    with pytest.raises(Closed):
        held.commit_async(TXN, pieces(), at=at).result()
    redo = Redo(TXN, int(at), int(held.time_tick), pieces(), ())
    tick(rig.writer(inline=True, redo=lambda: [redo]))
    expected = [*PAYLOAD, b"z"]
    assert [each.body if each.row is None else each.row for each in drain_whole(reader)] == expected
    assert seen(rig) == expected


def test_a_place_given_back_blocks_nobody(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    with writer.reserve(["a", "b"], count=3) as held:
        ddl = writer.append_async("a", b"ddl", kind=MessageType.DDL)
        assert not ddl.done()
    assert not held.is_held
    commit_all(writer)
    tick(writer)
    assert ddl.result().time_tick <= writer.latest_tick.time_tick
    assert seen(rig, writer) == [b"ddl"]
    held.release()


def test_wrong_calls_leave_the_place_as_it_is(rig: Rig) -> None:
    writer = rig.writer(inline=True, message_bytes_max=100)
    held = writer.reserve(["a", "b"], count=2)
    ahead = Timestamp(rig.oracle.allocate(1) + (1 << 30))
    for call, match in [
        (lambda: held.commit_async(TXN, pieces(), at=None), "is for 2 messages, not for 6"),
        (lambda: held.commit_async(b"short", [Piece("a", b"1")], at=None), "16 bytes"),
        (lambda: held.commit_async(TXN, [Piece("a", b"1", MessageType.DDL)], at=None), "cannot be part"),
        (lambda: held.commit_async(TXN, [Piece("a", bytes(101))], at=None), "message_bytes_max"),
        (lambda: held.commit_async(TXN, [Piece("a", b"1")], at=Timestamp(held.time_tick)), "below the reserved"),
        (lambda: held.commit_async(TXN, [Piece("a", b"1")], at=ahead), "ahead of the oracle"),
        (lambda: held.append_async(b"1"), "is for 2 messages"),
        (lambda: writer.reserve(["a", ""]), "virtual channel"),
        (lambda: writer.reserve("a", count=0), "at least one"),
        (lambda: writer.reserve([]), "at least one"),
    ]:
        with pytest.raises(InvalidArgument, match=match):
            call()
        assert held.is_held
    assert writer.status().channel.in_flight == 1
    held.commit_async(TXN, [Piece("a", b"1")], at=None).result()
    with pytest.raises(InvalidArgument, match="used already"):
        held.commit_async(TXN, [Piece("a", b"1")], at=None)
    tick(writer)
    assert seen(rig, writer) == [b"1"]


def test_tried_again_it_must_be_at_the_same_timestamp(rig: Rig) -> None:
    """The decision names one Timestamp; other channels may show the transaction there already."""
    writer = rig.writer(inline=True)
    held = writer.reserve("a", count=2)
    at = Timestamp(rig.oracle.allocate(1))
    left = [FULL]
    rig.files.rule = lambda each, _: left.pop() if left and each == "write" else None
    with pytest.raises(DiskFull):
        held.commit_async(TXN, [Piece("a", b"1")], at=at).result()
    for other in (Timestamp(rig.oracle.allocate(1)), None):
        with pytest.raises(InvalidArgument, match="at the same"):
            held.commit_async(TXN, [Piece("a", b"1")], at=other)
    assert held.commit_async(TXN, [Piece("a", b"1")], at=at).result().time_tick == at


def test_reserving_waits_for_an_exclusive_append_in_any_of_its_virtual_channels(rig: Rig) -> None:
    writer = rig.writer(inline=True)
    held = writer.reserve("b")
    ddl = writer.append_async("b", b"ddl", kind=MessageType.DDL)
    with pytest.raises(Backpressure, match="'b'"):
        writer.reserve(["a", "b"], timeout_s=0.01)
    writer.reserve(["a", "c"], timeout_s=0.01).release()
    held.release()
    commit_all(writer)
    assert ddl.done()
    writer.reserve(["a", "b"], timeout_s=0.01).release()


def test_a_fenced_writer_cannot_use_the_place_it_holds(rig: Rig) -> None:
    old = rig.writer(inline=True)
    held = old.reserve("a", count=2)
    new = rig.writer(inline=True)
    with pytest.raises(Fenced):
        held.commit_async(TXN, [Piece("a", b"1")], at=None).result()
    with pytest.raises(Fenced):
        held.commit_async(TXN, [Piece("a", b"1")], at=None).result()
    tick(new)
    assert seen(rig, new) == []
    assert drain(rig.reader()) == []


def test_a_place_is_given_when_there_is_room_for_what_will_be_written_there(rig: Rig) -> None:
    """Limits: a commit over several channels is acknowledged before all of them have written it, so what they still
    have to write is bounded where its places are taken."""
    writer = rig.writer(message_bytes_max=1000, block_bytes_max=1000, in_flight_bytes_max=1000)
    writer.append_async("a", b"x" * 800)
    writer.reserve("a", size=100).release()
    with pytest.raises(Backpressure, match="in_flight_bytes_max"):
        writer.reserve("a", size=500, timeout_s=0.01)
    commit_all(writer)
    writer.reserve("a", size=500, timeout_s=0.01).release()
