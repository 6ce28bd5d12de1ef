"""One channel's writer: group commit, futures, limits, exclusive appends, reservations. Seed 000, promises 1, 6, 8."""

from __future__ import annotations

import asyncio
import threading
from _thread import allocate_lock
from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pytest

from helpers import Calls, Rig, commit_all, drain, eventually, tick
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Backpressure,
    ClockStalled,
    Closed,
    InvalidArgument,
    InvariantBroken,
    LimitExceeded,
    TidegateError,
    WaitTimeout,
)
from tidegate.log.message import ALL_VCHANNELS, MessageType
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.companions import Companions

TXN = bytes(range(1, 17))


# -- group commit --------------------------------------------------------------------------------------------


def test_what_waits_together_is_written_once_and_synced_once(rig: Rig) -> None:
    """Design: one writer at a time gathers what waits, encodes it once, writes once, syncs once."""
    writer = rig.writer()
    pending = [writer.append_async("a", b"%d" % n) for n in range(50)]
    rig.files.calls.clear()
    assert commit_all(writer) == 1
    assert [call for call, _ in rig.files.calls] == ["write", "sync"]
    results = [each.result(0) for each in pending]
    assert [b.time_tick - a.time_tick for a, b in pairwise(results)] == [1] * 49
    assert [b.position - a.position for a, b in pairwise(results)] == [1] * 49


def test_an_append_is_acknowledged_only_after_the_sync(rig: Rig) -> None:
    """Promise 6: what was acknowledged survives; so nothing is, before it is durable."""
    writer = rig.writer()
    pending = writer.append_async("a", b"x")
    commit = writer.next_commit()
    assert commit is not None
    writer.write(commit)
    assert not pending.done()
    writer.sync(commit)
    assert not pending.done()
    writer.finish(commit)
    assert pending.done()
    assert pending.result(0).messages == 1


def test_many_threads_appending_lose_and_repeat_nothing(rig: Rig, calls: Calls) -> None:
    """Fact 10 adapted: many writers at once; every append has its own TimeTick, readers see them in order."""
    writer = rig.writer(start=True)

    def work(who: int) -> list[int]:
        return [int(writer.append(f"v{who % 3}", b"%d-%d" % (who, n)).time_tick) for n in range(40)]

    ticks = [future.result(30) for future in [calls(lambda who=who: work(who)) for who in range(8)]]
    assert all(own == sorted(own) for own in ticks), "a thread's appends keep their order"
    assert len({each for own in ticks for each in own}) == 320
    tick(writer)
    eventually(lambda: writer.status().channel.synced >= max(map(max, ticks)))
    expected = {b"%d-%d" % (who, n) for who in range(8) for n in range(40)}
    for found in (rig.bodies(), rig.bodies(writer)):
        assert len(found) == 320
        assert set(found) == expected


def test_a_batch_is_one_append_with_a_time_tick_for_every_row(rig: Rig) -> None:
    """Seed 000: every message receives a unique TimeTick."""
    writer = rig.writer()
    small = writer.append_batch("a", [b"1", b"2", b"3"])
    large = writer.append_batch("a", [b"%d" % n for n in range(2000)])
    rows = writer.append_batch("b", pa.RecordBatch.from_pydict({"id": [7, 8], "name": ["x", None]}))
    assert (small.messages, large.messages, rows.messages) == (3, 2000, 2)
    assert small.last_time_tick < large.time_tick
    tick(writer)
    found = rig.messages()
    assert [each.time_tick for each in found] == [
        *range(small.time_tick, small.last_time_tick + 1),
        *range(large.time_tick, large.last_time_tick + 1),
        *range(rows.time_tick, rows.last_time_tick + 1),
    ]
    assert [each.body for each in found[:3]] == [b"1", b"2", b"3"]
    assert [each.row for each in found[-2:]] == [{"id": 7, "name": "x"}, {"id": 8, "name": None}]


@pytest.mark.parametrize("count", [1, 3, 511, 512, 2000])
def test_a_batch_of_bytes_stays_bytes_whatever_its_size_and_transaction(rig: Rig, count: int) -> None:
    """The two encodings of a block decode to the same messages."""
    writer = rig.writer()
    bodies = [b"%d" % n for n in range(count)]
    writer.append_batch("a", bodies, txn=TXN)
    writer.append_batch("a", bodies)
    tick(writer)
    for found in (rig.messages(), rig.messages(writer)):
        assert [each.body for each in found] == bodies * 2
        assert [each.txn for each in found] == [TXN] * count + [None] * count
        assert all(each.row is None for each in found)


# -- futures -------------------------------------------------------------------------------------------------


def test_a_pending_append_tells_its_result_its_error_and_calls_back_once(rig: Rig) -> None:
    writer = rig.writer()
    seen: list[object] = []
    pending = writer.append_async("a", b"x")
    pending.add_done_callback(seen.append)
    assert not pending.done()
    assert not seen
    commit_all(writer)
    assert pending.done()
    assert seen == [pending]
    assert pending.exception(0) is None
    assert pending.result(0) == pending.result(0)
    pending.add_done_callback(seen.append)
    assert seen == [pending, pending], "a callback left after the end runs at once"


def test_waiting_for_an_append_ends_with_wait_timeout_and_the_append_goes_on(rig: Rig) -> None:
    writer = rig.writer()
    pending = writer.append_async("a", b"x")
    with pytest.raises(WaitTimeout, match="still under way"):
        pending.result(0.01)
    with pytest.raises(TimeoutError):
        pending.exception(0.01)
    commit_all(writer)
    assert pending.result(0).messages == 1


def test_a_callback_that_raises_harms_nobody(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    writer = rig.writer()
    first, second = writer.append_async("a", b"x"), writer.append_async("a", b"y")
    first.add_done_callback(lambda _: 1 / 0)
    commit_all(writer)
    assert (first.done(), second.done()) == (True, True)
    assert "callback" in caplog.text


def test_appends_can_be_awaited_in_asyncio(rig: Rig) -> None:
    writer = rig.writer(start=True)

    async def work() -> list[int]:
        pending = [writer.append_async("a", b"%d" % n) for n in range(100)]
        first = await pending[0]
        rest = await asyncio.gather(*[wait(each) for each in pending[1:]])
        assert (await pending[0]) == first, "awaiting again gives the same"
        return [int(first.time_tick), *rest]

    async def wait(pending) -> int:  # type: ignore[no-untyped-def]
        return int((await pending).time_tick)

    found = asyncio.run(work())
    assert found == sorted(set(found))


def test_an_awaited_append_that_fails_raises(rig: Rig) -> None:
    writer = rig.writer(start=True)
    rig.oracle.error = ClockStalled("no time")

    async def work() -> None:
        await writer.append_async("a", b"x")

    with pytest.raises(ClockStalled):
        asyncio.run(work())
    rig.oracle.error = None


class Contested:
    """A lock that another waker releases right before or right after we look at it."""

    def __init__(self, *, before: bool) -> None:
        self._lock = allocate_lock()
        if not before:
            self._lock.acquire()

    def locked(self) -> bool:
        try:
            return self._lock.locked()
        finally:
            if self._lock.locked():
                self._lock.release()

    def release(self) -> None:
        self._lock.release()

    def is_free(self) -> bool:
        return not self._lock.locked()


@pytest.mark.parametrize("before", [True, False])
def test_two_who_wake_the_same_append_at_once_do_not_fail_each_other(rig: Rig, before: bool) -> None:
    """The one who hands over the writing and the one who acknowledges may be different threads."""
    writer = rig.writer()
    pending, lock = writer.append_async("a", b"x"), Contested(before=before)
    pending._lock = lock  # type: ignore[assignment]
    pending.wake()
    pending.wake()
    assert lock.is_free()


@pytest.mark.parametrize("before", [True, False])
def test_a_leader_is_told_twice_that_its_companions_are_there(before: bool) -> None:
    companions, lock = Companions(), Contested(before=before)
    companions._lock = lock  # type: ignore[assignment]
    companions.arrived()
    companions.arrived()
    assert lock.is_free()


# -- limits, each with its own error ---------------------------------------------------------------------------


def test_every_limit_has_an_error_that_names_the_setting(rig: Rig) -> None:
    """Promise 8 and the house style: the message names the thing and what to do."""
    writer = rig.writer(message_bytes_max=100, block_bytes_max=1000, batch_rows_max=10, in_flight_bytes_max=5000)
    with pytest.raises(LimitExceeded, match="message_bytes_max") as caught:
        writer.append("a", bytes(101))
    assert (caught.value.value, caught.value.limit) == (101, 100)
    with pytest.raises(LimitExceeded, match="message_bytes_max"):
        writer.append_batch("a", [b"", bytes(101)])
    with pytest.raises(LimitExceeded, match="batch_rows_max"):
        writer.append_batch("a", [b""] * 11)
    with pytest.raises(LimitExceeded, match="block_bytes_max"):
        writer.append_batch("a", [bytes(100)] * 10)
    with pytest.raises(LimitExceeded, match="block_bytes_max"):
        writer.append_batch("a", pa.RecordBatch.from_pydict({"x": ["y" * 2000]}))
    with pytest.raises(InvalidArgument, match="number of rows is 0"):
        writer.append_batch("a", [])
    with pytest.raises(InvalidArgument, match="_time_tick"):
        writer.append_batch("a", pa.RecordBatch.from_pydict({"_time_tick": [1]}))
    assert writer.append("a", bytes(100)).messages == 1, "exactly the limit is allowed, and nothing is stuck"


@pytest.mark.parametrize(
    "call",
    [
        lambda w: w.append("a", "text"),
        lambda w: w.append("a", bytearray(b"x")),
        lambda w: w.append_batch("a", [b"x", "y"]),
        lambda w: w.append_batch("a", b"abc"),
        lambda w: w.append("", b"x"),
        lambda w: w.append_batch("", [b"x"]),
        lambda w: w.append("a", b"x", kind=MessageType.TIME_TICK),
        lambda w: w.append_batch("a", [b"x"], kind=MessageType.TIME_TICK),
        lambda w: w.append_batch("a", [b"x"], kind=MessageType.DDL),
        lambda w: w.append("a", b"x", kind=77),
        lambda w: w.append_batch("a", [b"x"], kind=77),
        lambda w: w.append("a", b"x", txn=b"short"),
        lambda w: w.append("a", b"x", txn=bytes(17)),
        lambda w: w.append("a", b"x", txn=bytes(16)),
        lambda w: w.append_batch("a", [b"x"], txn=b"short"),
        lambda w: w.append("v" * 70_000, b"x"),
        lambda w: w.append_batch("v" * 70_000, [b"x"]),
        lambda w: w.append("\ud800", b"x"),
        lambda w: w.append(b"a", b"x"),
        lambda w: w.append_batch("a", pa.RecordBatch.from_pydict({"x": pa.array(["a", "b"]).dictionary_encode()})),
        lambda w: w.append_batch("a", pa.RecordBatch.from_pydict({"x": [1, 2]}).select([])),
    ],
    ids=lambda call: None,
)
def test_a_wrong_call_is_refused_and_neither_it_nor_anything_after_it_is_harmed(
    rig: Rig, call: Callable[[ChannelWriter], object]
) -> None:
    """Nothing in a commit can fail, or spoil others, for its own fault: it is found out before it is queued."""
    writer = rig.writer()
    writer.append("a", b"before")
    with pytest.raises(InvalidArgument):
        call(writer)
    writer.append("a", b"after", timeout_s=5)
    tick(writer)
    assert rig.bodies() == [b"before", b"after"]


def test_an_arrow_batch_keeps_nested_values_nulls_and_metadata_through_reading_and_sealing(rig: Rig) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={b"unit": b"m"}),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("at", pa.timestamp("us", "UTC")),
        ],
        metadata={b"origin": b"test"},
    )
    rows = pa.RecordBatch.from_pylist(
        [{"id": 1, "tags": ["a", None], "at": None}, {"id": 2, "tags": None, "at": 5}, {"id": 3, "tags": [], "at": 6}],
        schema=schema,
    )
    writer = rig.writer()
    writer.append_batch("a", rows.slice(1))
    writer.append_batch("a", rows, txn=TXN)
    tick(writer)

    def read() -> list[pa.RecordBatch]:
        return [batch.rows for batch in rig.reader().batches(0)]

    fresh = read()
    assert [each.to_pylist() for each in fresh] == [rows.slice(1).to_pylist(), rows.to_pylist()]
    for each in fresh:
        assert each.schema.equals(schema, check_metadata=True)
    writer.segments.roll()
    assert rig.seal(writer) == 1
    writer.append("a", b"later")
    tick(writer)
    sealed = read()
    assert pa.Table.from_batches(sealed[:-1]).to_pylist() == rows.slice(1).to_pylist() + rows.to_pylist()
    assert sealed[0].schema.equals(schema, check_metadata=True)


# -- back-pressure ---------------------------------------------------------------------------------------------


def test_too_much_in_flight_waits_and_then_says_so(rig: Rig) -> None:
    """Design: a bound on every queue; the error says how much is in flight and which setting bounds it."""
    writer = rig.writer(message_bytes_max=1000, block_bytes_max=1000, in_flight_bytes_max=1000)
    first = writer.append_async("a", bytes(900))
    with pytest.raises(Backpressure, match=r"932 bytes in flight.*`in_flight_bytes_max` is 1,000"):
        writer.append_async("a", bytes(900), timeout_s=0.02)
    commit_all(writer)
    assert first.done()
    second = writer.append_async("a", bytes(900), timeout_s=0.02)
    commit_all(writer)
    assert second.done()
    assert writer.status().in_flight_bytes == 0


def test_whoever_waits_for_room_goes_on_when_there_is_some(rig: Rig, calls: Calls) -> None:
    writer = rig.writer(message_bytes_max=1000, block_bytes_max=1000, in_flight_bytes_max=1000)
    writer.append_async("a", bytes(900))
    late = calls(lambda: writer.append_async("a", bytes(900)))
    with pytest.raises(TimeoutError):
        late.result(0.05)
    commit_all(writer)
    pending = late.result(5)
    commit_all(writer)
    assert pending.result(1).messages == 1


def test_whoever_waits_for_room_is_told_when_the_channel_closes(rig: Rig, calls: Calls) -> None:
    writer = rig.writer(message_bytes_max=1000, block_bytes_max=1000, in_flight_bytes_max=1000)
    first = writer.append_async("a", bytes(900))
    late = calls(lambda: writer.append_async("a", bytes(900)))
    with pytest.raises(TimeoutError):
        late.result(0.05)
    writer.close()
    with pytest.raises(Closed):
        late.result(5)
    with pytest.raises(Closed):
        first.result(1)


# -- exclusive appends and reservations --------------------------------------------------------------------------


def test_an_exclusive_append_has_its_virtual_channel_alone_and_in_order(rig: Rig) -> None:
    """Facts 29, 30: no append of that virtual channel overlaps it; the order of handing over is kept."""
    writer = rig.writer()
    for body in (b"1", b"2"):
        writer.append_async("a", body)
    writer.append_async("a", b"ddl", kind=MessageType.DDL)
    for body in (b"3", b"4"):
        writer.append_async("a", body)
    writer.append_async("b", b"other")
    assert commit_all(writer) > 1
    tick(writer)
    assert rig.bodies(vchannel="a") == [b"1", b"2", b"ddl", b"3", b"4"]
    assert rig.bodies(vchannel="b") == [b"other"]


def test_an_exclusive_append_waits_for_a_reservation_and_others_go_on(rig: Rig) -> None:
    """Fact 30: it waits for whoever is in its virtual channel, not for other virtual channels."""
    writer = rig.writer()
    reservation = writer.reserve("a")
    alone = writer.append_async("a", b"alone", exclusive=True)
    behind = writer.append_async("a", b"behind")
    other = writer.append_async("b", b"other")
    commit_all(writer)
    assert (alone.done(), behind.done(), other.done()) == (False, False, True)
    with pytest.raises(Backpressure, match="exclusive append"):
        writer.reserve("a", timeout_s=0.01)
    reservation.append_async(b"held")
    commit_all(writer)
    assert alone.result(0).time_tick > reservation.time_tick
    assert behind.result(0).time_tick > alone.result(0).time_tick


def test_an_exclusive_append_for_all_holds_back_every_virtual_channel_and_ticks(rig: Rig) -> None:
    """Reference 4.2: a global exclusive also blocks TimeTicks."""
    writer = rig.writer()
    reservation = writer.reserve("a")
    everywhere = writer.append_async(ALL_VCHANNELS, b"all", kind=MessageType.DDL)
    other = writer.append_async("b", b"b")
    commit_all(writer)
    assert (everywhere.done(), other.done()) == (False, False)
    reservation.release()
    commit_all(writer)
    assert other.result(0).time_tick > everywhere.result(0).time_tick


def test_a_blocked_exclusive_append_is_never_taken_for_written(rig: Rig, calls: Calls) -> None:
    """Promise 6. One thread waits to be alone; another writes meanwhile and hands the writing over to it."""
    writer = rig.writer(start=True)
    reservation = writer.reserve("a")
    alone = calls(lambda: writer.append("a", b"alone", exclusive=True))
    eventually(lambda: writer.status().queued == 1)
    with pytest.raises(TimeoutError):
        alone.result(0.02)
    for n in range(3):
        writer.append("b", b"%d" % n, timeout_s=5)
        with pytest.raises(TimeoutError):
            alone.result(0.02)
    reservation.release()
    result = alone.result(5)
    assert result.time_tick > reservation.time_tick
    writer.append("b", b"last", timeout_s=5)
    tick(writer)
    eventually(lambda: len(rig.messages()) == 5)
    assert [each.time_tick for each in rig.messages() if each.body == b"alone"] == [result.time_tick]


def test_a_blocked_append_that_gave_up_waiting_leaves_the_channel_working(rig: Rig) -> None:
    writer = rig.writer(start=True)
    reservation = writer.reserve("a")
    with pytest.raises(WaitTimeout):
        writer.append("a", b"alone", exclusive=True, timeout_s=0.02)
    for n in range(3):
        writer.append("b", b"%d" % n, timeout_s=5)
    reservation.release()
    eventually(lambda: writer.status().queued == 0)
    assert writer.append("a", b"after", timeout_s=5).messages == 1


def test_threads_that_wait_for_exclusive_places_all_get_their_turn(rig: Rig, calls: Calls) -> None:
    writer = rig.writer(start=True)

    def work(who: int) -> list[int]:
        found = []
        for n in range(25):
            if n % 5 == who % 5:
                with writer.reserve("v") as reservation:
                    found.append(int(reservation.append_async(b"held").result(20).time_tick))
            else:
                exclusive = n % 3 == 0
                found.append(int(writer.append("v", b"x", exclusive=exclusive, timeout_s=20).time_tick))
        return found

    found = [future.result(60) for future in [calls(lambda who=who: work(who)) for who in range(6)]]
    flat = [each for own in found for each in own]
    assert 0 not in flat
    assert len(set(flat)) == 150
    assert writer.status().holders == {}


def test_a_reservation_holds_the_watermark_below_it_until_used(rig: Rig) -> None:
    """Design, cross-channel commit: a held TimeTick keeps the channel's watermark below it."""
    writer = rig.writer()
    writer.append("a", b"before")
    reservation = writer.reserve("a")
    after = writer.append("a", b"after")
    tick(writer)
    status = writer.status().channel
    assert status.confirmed < reservation.time_tick
    assert status.oldest_in_flight == reservation.time_tick, "it says what holds the watermark back"
    assert rig.bodies() == [b"before"]
    pending = reservation.append_async(b"held")
    commit_all(writer)
    assert pending.result(0).time_tick == reservation.time_tick
    tick(writer)
    assert rig.bodies() == rig.bodies(writer) == [b"before", b"held", b"after"]
    assert writer.status().channel.confirmed >= after.time_tick


def test_a_released_reservation_frees_the_watermark(rig: Rig) -> None:
    writer = rig.writer()
    with writer.reserve("a"):
        writer.append("a", b"x")
        tick(writer)
        assert rig.bodies() == []
    tick(writer)
    assert rig.bodies() == [b"x"]
    assert writer.status().holders == {}


def test_a_held_append_takes_its_place_at_a_later_timestamp(rig: Rig) -> None:
    """Design, step 3: each channel appends its commit marker at the commit Timestamp and lets go."""
    writer = rig.writer()
    reservation = writer.reserve("a")
    early = writer.append("a", b"early")
    commit_at = Timestamp(rig.oracle.allocate(1))
    late = writer.append("a", b"late")
    assert early.time_tick < commit_at < late.time_tick
    tick(writer)
    assert rig.bodies() == []
    pending = reservation.append_async(b"marker", at=commit_at)
    commit_all(writer)
    assert pending.result(0).time_tick == commit_at
    tick(writer)
    assert rig.bodies() == rig.bodies(writer) == [b"early", b"marker", b"late"]


@pytest.mark.parametrize(
    "use",
    [
        lambda r: r.append_async("text"),
        lambda r: r.append_async(bytes(2000)),
        lambda r: r.append_async(b"x", kind=MessageType.TIME_TICK),
        lambda r: r.append_async(b"x", txn=b"short"),
        lambda r: r.append_async(b"x", at=Timestamp(1)),
        lambda r: r.append_async(b"x", at=Timestamp(1 << 40)),
    ],
    ids=["not bytes", "too large", "a tick", "bad txn", "before the reserved one", "not from the oracle"],
)
def test_a_reservation_wrongly_used_can_still_be_used_or_released(rig: Rig, use: Callable[..., object]) -> None:
    """A refused call does nothing: in particular it does not hold the watermark for ever."""
    writer = rig.writer(message_bytes_max=1000)
    reservation = writer.reserve("a")
    with pytest.raises(InvalidArgument):
        use(reservation)
    pending = reservation.append_async(b"right")
    commit_all(writer)
    assert pending.result(0).time_tick == reservation.time_tick
    with pytest.raises(InvalidArgument, match="used already"):
        reservation.append_async(b"again")
    reservation.release()
    writer.append("a", b"after")
    tick(writer)
    assert rig.bodies() == [b"right", b"after"]
    assert writer.status().holders == {}


def test_the_exclusive_hook_runs_while_the_place_is_still_held(rig: Rig) -> None:
    """Fact 31 builds on it: transactions open in that virtual channel are failed before anybody else enters."""
    writer = rig.writer()
    seen: list[tuple[str, int, dict[str, str]]] = []
    writer.on_exclusive = lambda name, at: seen.append((name, int(at), dict(writer._locks.holders())))
    result = writer.append("a", b"x", exclusive=True)
    writer.append("a", b"y")
    assert seen == [("a", int(result.time_tick), {"a": "exclusive"})]


# -- the oracle fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [False, True])
def test_appends_without_a_timestamp_fail_and_later_ones_succeed(rig: Rig, exclusive: bool) -> None:
    writer = rig.writer()
    rig.oracle.error = ClockStalled("no time")
    for _ in range(2):
        with pytest.raises(ClockStalled):
            writer.append("a", b"x", exclusive=exclusive, timeout_s=5)
    with pytest.raises(ClockStalled):
        writer.reserve("a")
    rig.oracle.error = None
    writer.append("a", b"y", exclusive=exclusive, timeout_s=5)
    tick(writer)
    assert rig.bodies() == [b"y"]
    assert (writer.status().in_flight_bytes, writer.status().holders) == (0, {})


def test_an_oracle_with_a_defect_leaves_nobody_waiting(rig: Rig) -> None:
    """An error of any kind is told to whoever waits, and the channel goes on."""
    writer = rig.writer()
    rig.oracle.error = TypeError("not a timestamp")
    with pytest.raises(InvariantBroken, match="not a timestamp"):
        writer.append("a", b"x", timeout_s=5)
    rig.oracle.error = None
    assert writer.append("a", b"y", timeout_s=5).messages == 1


def test_a_tick_that_gets_no_timestamp_does_not_fail_the_append_that_asked_for_it(rig: Rig) -> None:
    """A fast writer ticks by itself after so many bytes; that must never turn an acknowledged append into an error."""
    writer = rig.writer(buffer_bytes_max=2000)
    given = rig.oracle.allocate
    left = 1

    def allocate(count: int = 1) -> int:
        nonlocal left
        if not left:
            raise ClockStalled("no time")
        left -= 1
        return given(count)

    writer._allocate = allocate
    assert writer.append("a", bytes(1500), timeout_s=5).messages == 1
    writer._allocate = given
    writer.append("a", b"y", timeout_s=5)
    tick(writer)
    assert [len(each or b"") for each in rig.bodies()] == [1500, 1]


# -- ticks ----------------------------------------------------------------------------------------------------


def test_an_idle_channel_ticks_in_memory_and_a_forced_tick_is_written(rig: Rig) -> None:
    """Fact 14: idle sync is not persisted, and a reader still gets a larger tick; forced is persisted."""
    writer = rig.writer()
    reader = rig.reader(writer)
    drain(reader)
    rig.files.calls.clear()
    before = reader.after
    writer.tick()
    assert not [call for call, _ in rig.files.calls if call == "write"]
    delivery = reader.poll()
    assert delivery is not None
    assert (delivery.tick.time_tick > before, delivery.tick.persisted, len(delivery)) == (True, False, 0)
    tick(writer, force=True)
    delivery = reader.poll()
    assert delivery is not None
    assert delivery.tick.persisted
    assert [call for call, _ in rig.files.calls if call == "write"]


def test_a_reader_of_files_follows_ticks_that_were_never_written(rig: Rig) -> None:
    writer = rig.writer()
    reader = rig.reader()
    drain(reader)
    writer.tick()
    delivery = reader.poll()
    assert delivery is not None
    assert not delivery.tick.persisted


def test_log_order_10_12_11_is_delivered_10_then_11_12(rig: Rig) -> None:
    """Fact 18: with 11 open the tick is 10; once it is in, the tick covers all and order is restored."""
    writer = rig.writer()
    ten = writer.append("a", b"10")
    eleven = writer.reserve("a")
    twelve = writer.append("a", b"12")
    tick(writer)
    reader = rig.reader()
    assert [each.body for each in drain(reader)] == [b"10"]
    assert ten.time_tick <= reader.after < eleven.time_tick
    eleven.append_async(b"11")
    commit_all(writer)
    tick(writer)
    assert [each.body for each in drain(reader)] == [b"11", b"12"]
    assert reader.after >= twelve.time_tick


def test_visible_says_how_far_a_virtual_channel_has_come_and_asks_for_a_tick(rig: Rig) -> None:
    """Fact 19, and reference 5.3: asking for what no tick covers yet makes one come soon."""
    writer = rig.writer()
    first = writer.visible("a")
    assert first.confirmed
    result = writer.append("a", b"x")
    assert writer.visible("b").confirmed
    seen = writer.visible("a")
    assert (seen.time_tick, seen.confirmed) == (result.time_tick, False)
    commit_all(writer)
    seen = writer.visible("a")
    assert seen.confirmed
    assert seen.time_tick >= result.time_tick


# -- closing ---------------------------------------------------------------------------------------------------


def test_closing_finishes_what_is_under_way_and_refuses_the_rest(rig: Rig) -> None:
    writer = rig.writer(start=True)
    pending = [writer.append_async("a", b"%d" % n) for n in range(200)]
    writer.close()
    assert all(each.result(0).messages == 1 for each in pending)
    for call in (
        lambda: writer.append("a", b"x"),
        lambda: writer.append_async("a", b"x"),
        lambda: writer.append_batch("a", [b"x"]),
        lambda: writer.reserve("a"),
    ):
        with pytest.raises(Closed, match="open the log again"):
            call()
    writer.close()
    writer.tick()
    assert not writer.is_open


def test_using_a_reservation_after_closing_is_refused(rig: Rig) -> None:
    writer = rig.writer(start=True)
    reservation = writer.reserve("a")
    writer.close()
    with pytest.raises(Closed):
        reservation.append_async(b"x")
    reservation.release()


def test_status_says_what_waits_and_on_what(rig: Rig) -> None:
    """Promise 8."""
    writer = rig.writer()
    reservation = writer.reserve("a")
    writer.append_async("a", b"x", exclusive=True)
    commit_all(writer)
    status = writer.status()
    assert status.queued == 1
    assert status.holders == {"a": "shared by 1"}
    assert status.channel.in_flight == 1
    assert status.channel.oldest_in_flight == reservation.time_tick
    assert status.last_error is None


def test_a_defect_met_while_writing_fails_that_commit_and_not_the_channel(rig: Rig) -> None:
    """Whoever waits is told; nobody hangs. (Here: encoding meets something no check foresaw.)"""
    writer = rig.writer()
    pending = writer.append_async("a", b"x")
    pending.body = None  # type: ignore[assignment]
    commit_all(writer)
    assert isinstance(pending.exception(0), TidegateError)
    writer.append("a", b"y", timeout_s=5)
    tick(writer)
    assert rig.bodies() == [b"y"]


def test_threads_block_only_as_long_as_they_asked_to(rig: Rig) -> None:
    writer = rig.writer()  # nobody writes for asynchronous appends here
    writer.append_async("a", b"first")
    done = threading.Event()

    def wait() -> None:
        with pytest.raises(WaitTimeout):
            writer.append("a", b"second", timeout_s=0.05)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert done.wait(5)
    thread.join()
    assert commit_all(writer) == 1
