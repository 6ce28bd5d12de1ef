"""Laws of the log, over arbitrary histories, each against a twin too simple to be wrong. Promises 1 and 6, seed 000."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken
from tidegate.log import block, segment
from tidegate.log.batch import Batch, body_rows, concat
from tidegate.log.block import Stamp
from tidegate.log.channel import Append, Channel, TickPlan
from tidegate.log.message import MessageType, Position, Term
from tidegate.log.reorder import ReorderBuffer
from tidegate.log.segment import SegmentId, live

# -- blocks --------------------------------------------------------------------------------------------------------

numbers = st.integers(0, (1 << 63) - 1000)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
kinds = st.sampled_from([kind for kind in MessageType if kind is not MessageType.TIME_TICK])
txns = st.one_of(st.none(), st.binary(min_size=16, max_size=16).filter(any))
stamps = st.builds(
    Stamp,
    numbers,
    numbers,
    numbers,
    st.integers(1, 1 << 40),
    st.integers(0, 1000).map(lambda n: 8 * n),
    numbers,
    numbers,
)
messages = st.lists(st.tuples(kinds, names, st.binary(max_size=40), txns), min_size=1, max_size=80)


def decoded(encoded: block.Encoded) -> Batch:
    view = encoded.view()
    assert len(view) == encoded.size
    header = block.decode_header(view, 0)
    assert header is not None
    assert block.is_intact(view, 0, header)
    assert (header.first_time_tick, header.last_time_tick) == (encoded.first_time_tick, encoded.last_time_tick)
    return block.decode(view, 0, header)


@given(stamps, messages)
def test_whatever_is_encoded_comes_back(
    stamp: Stamp, given_: list[tuple[MessageType, str, bytes, bytes | None]]
) -> None:
    types, vchannels, bodies, ids = map(list, zip(*given_))
    found = list(decoded(block.encode_rows(stamp, types, vchannels, bodies, ids)).messages())
    assert [(each.type, each.vchannel, each.body, each.txn) for each in found] == given_
    for at, each in enumerate(found):
        assert each.time_tick == stamp.first_time_tick + at
        assert each.position == stamp.first_position + at
        assert (each.last_confirmed, each.term) == (stamp.last_confirmed, stamp.term)


@given(st.lists(st.tuples(stamps, messages), min_size=1, max_size=5))
def test_merging_blocks_changes_no_message(parts: list[tuple[Stamp, list[Any]]]) -> None:
    """Sealing merges blocks of one term; every message keeps all it has."""
    batches = []
    for stamp, given_ in parts:
        types, vchannels, bodies, ids = map(list, zip(*given_))
        batches.append(decoded(block.encode_rows(stamp._replace(term=3), types, vchannels, bodies, ids)))
    expected = [message for each in batches for message in each.messages()]
    merged = decoded(block.encode_merged(Stamp(0, 0, 0, 3, 64, 0, 0), concat(batches)))
    assert list(merged.messages()) == expected


values = st.fixed_dictionaries({"n": st.one_of(st.none(), st.integers(-(1 << 62), 1 << 62)), "s": st.text(max_size=9)})


@given(stamps, st.lists(values, min_size=1, max_size=50), names, kinds, txns)
def test_arrow_rows_come_back_aligned(
    stamp: Stamp, rows: list[dict[str, Any]], name: str, kind: MessageType, txn: bytes | None
) -> None:
    arrow = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("n", pa.int64()), ("s", pa.string())]))
    encoded = block.encode_arrow(stamp, arrow, kind, name, txn=txn)
    found = decoded(encoded)
    assert found.rows.equals(arrow)
    assert [(each.type, each.vchannel, each.row, each.txn) for each in found.messages()] == [
        (kind, name, row, txn) for row in rows
    ]
    header = block.decode_header(encoded.view(), 0)
    assert header is not None
    assert (stamp.offset + block.HEADER_SIZE + header.meta_size + header.padding) % 64 == 0


@given(stamps, messages, st.data())
def test_any_changed_byte_is_noticed(stamp: Stamp, given_: list[Any], data: st.DataObject) -> None:
    types, vchannels, bodies, ids = map(list, zip(*given_))
    raw = bytearray(block.encode_rows(stamp, types, vchannels, bodies, ids).view())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    header = block.decode_header(memoryview(raw), 0)
    assert header is None or not block.is_intact(memoryview(raw), 0, header)


# -- reordering ----------------------------------------------------------------------------------------------------


def batch_of(ticks: list[int]) -> Batch:
    count = len(ticks)
    return Batch(
        np.array(ticks, np.uint64), np.arange(1, count + 1, dtype=np.uint64), np.ones(count, np.uint64),
        np.full(count, 2, np.uint8), np.zeros(count, np.uint16), ("v",), body_rows([b"%d" % t for t in ticks]), Term(1),
    )  # fmt: skip


@given(st.permutations(range(1, 60)), st.data())
def test_the_reorder_buffer_is_sorting(order: list[int], data: st.DataObject) -> None:
    """Cut a permutation into batches and ticks anywhere a writer could have: what comes out is the sorted list."""
    buffer = ReorderBuffer()
    waiting = set(range(1, 60))
    given_: list[int] = []
    out: list[int] = []
    last = 0
    at = 0
    while at < len(order):
        size = data.draw(st.integers(1, 12))
        part = order[at : at + size]
        at += size
        buffer.push(batch_of(part))
        given_ += part
        waiting -= set(part)
        possible = min(waiting, default=60) - 1
        if data.draw(st.booleans()) and possible > last:
            tick = data.draw(st.integers(last + 1, possible))
            found = [message for each in buffer.pop_until(tick) for message in each.messages()]
            assert [each.body for each in found] == [b"%d" % each.time_tick for each in found]
            expected = sorted(each for each in given_ if last < each <= tick)
            assert [int(each.time_tick) for each in found] == expected
            out += expected
            last = tick
            assert len(buffer) == len(given_) - len(out)
    out += [int(m.time_tick) for each in buffer.pop_until(60) for m in each.messages()]
    assert out == list(range(1, 60))


# -- the channel machine against brute force --------------------------------------------------------------------------


@dataclass
class Entry:
    """One append as the twin sees it."""

    append: Append
    held: int
    count: int
    time_ticks: list[int]
    last_confirmed: int
    positions: list[int] = field(default_factory=list)
    state: str = "open"


class Twin:
    """Remembers everything and computes every answer from scratch."""

    def __init__(self) -> None:
        self.channel = Channel("c", Term(1), Timestamp(100), Position(1))
        self.entries: list[Entry] = []
        self.oracle = 100
        self.position = 1
        self.spare: list[int] = []
        self.ticks = [100]
        self.plan: TickPlan | None = None
        self.syncs = [100]

    def now(self, count: int = 1) -> int:
        first = self.oracle + 1
        self.oracle += count
        return first

    def open(self) -> list[Entry]:
        return [each for each in self.entries if each.state == "open"]

    def allocate(self, count: int) -> None:
        first = self.now(count)
        append = self.channel.allocate(first, count, ("v",))
        self.entries.append(Entry(append, first, count, list(range(first, first + count)), append.last_confirmed))

    def acknowledge(self, entry: Entry) -> None:
        """Whoever finishes first has written first: positions follow the order of acknowledging."""
        entry.positions = list(range(self.position + 1, self.position + 1 + entry.count))
        self.position += entry.count
        self.channel.acknowledge(entry.append, entry.positions[-1])
        entry.state = "done"

    def write(self, entry: Entry) -> None:
        """Take positions now and acknowledge later, so that positions and acknowledgements are in different orders."""
        if not entry.positions:
            entry.positions = list(range(self.position + 1, self.position + 1 + entry.count))
            self.position += entry.count
        else:
            self.channel.acknowledge(entry.append, entry.positions[-1])
            entry.state = "done"

    def fail(self, entry: Entry) -> None:
        self.channel.fail(entry.append)
        entry.state = "failed"

    def move(self, entry: Entry) -> None:
        if not entry.positions:
            at = self.now()
            self.channel.move(entry.append, at)
            entry.time_ticks = [*entry.time_ticks[:-1], at]

    def check(self) -> None:
        channel = self.channel
        holders = [entry.held for entry in self.open()]
        assert channel.synced <= channel.confirmed <= channel.allocated
        assert all(channel.confirmed < held for held in holders), "nothing at or below the watermark is in flight"
        if not holders:
            done = [e.held + e.count - 1 for e in self.entries]
            assert channel.confirmed >= max(done, default=100), "with nothing in flight it reaches everything"
        else:
            below = [e.held + e.count - 1 for e in self.entries if e.state != "open" and e.held < min(holders)]
            assert channel.confirmed >= max(below, default=100), "it is the largest it may be"
        for tick in self.ticks:
            for entry in self.entries:
                if entry.state == "open":
                    assert entry.held > tick, "a tick promised that nothing below it would come"

    def check_last_confirmed(self) -> None:
        """For each message: every message with a larger TimeTick lies at or behind its LastConfirmed."""
        found = [
            (t, p, e.last_confirmed)
            for e in self.entries
            if e.state == "done"
            for t, p in zip(e.time_ticks, e.positions)
        ]
        found.sort(reverse=True)
        lowest = 1 << 62
        for _, position, last_confirmed in found:
            assert last_confirmed <= lowest
            lowest = min(lowest, position)


actions = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "ack", "write", "fail", "move", "tick", "tick", "tick fails"]), st.integers(0, 99)
    ),
    max_size=120,
)


@settings(max_examples=250, deadline=None)
@given(actions)
def test_the_channel_machine_keeps_its_promises_over_any_history(history: list[tuple[str, int]]) -> None:
    """Watermark, ticks and LastConfirmed by brute force: out of order, failed, held and moved appends."""
    twin = Twin()
    channel = twin.channel
    marks = (100, 100, 100, 1)
    for action, number in history:
        open_ = twin.open()
        entry = open_[number % len(open_)] if open_ else None
        match action:
            case "allocate":
                twin.allocate(1 + number % 5)
            case "ack" if entry is not None and not entry.positions:
                twin.acknowledge(entry)
            case "write" if entry is not None:
                twin.write(entry)
            case "fail" if entry is not None:
                twin.fail(entry)
            case "move" if entry is not None:
                twin.move(entry)
            case "tick" | "tick fails":
                plan = channel.plan_tick(twin.now(), force=number % 7 == 0)
                if plan is None:
                    assert not channel.confirmed > channel.synced
                elif action == "tick fails":
                    channel.tick_failed(plan)
                else:
                    assert plan.time_tick > twin.ticks[-1]
                    assert plan.time_tick == channel.confirmed
                    for each in twin.entries:
                        if each.state == "done" and each.time_ticks[0] > plan.time_tick:
                            assert each.positions[0] >= plan.last_confirmed, "reading on from a tick misses nothing"
                    channel.tick_appended(plan)
                    twin.ticks.append(int(plan.time_tick))
        twin.check()
        now = (channel.allocated, channel.confirmed, channel.synced, int(channel.last_confirmed.position))
        assert all(a <= b for a, b in zip(marks, now)), "nothing ever goes back"
        marks = now
    for each in twin.open():
        twin.write(each)
        if each.state == "open":
            twin.write(each)
    plan = channel.plan_tick(twin.now())
    if plan is not None:
        channel.tick_appended(plan)
    twin.check()
    twin.check_last_confirmed()
    done = [each for each in twin.entries if each.state == "done"]
    assert list(channel.in_flight()) == []
    if done and plan is not None:
        assert channel.last_confirmed.position == max(each.positions[-1] for each in done), "it arrives in the end"
        with pytest.raises(InvariantBroken):
            channel.acknowledge(done[0].append, 1)


# -- segments ----------------------------------------------------------------------------------------------------------


def dumb_live(found: set[SegmentId]) -> list[SegmentId]:
    """A segment counts unless a newer term has one of the same or a smaller number that counts itself."""
    counts: set[SegmentId] = set()
    for each in sorted(found, key=lambda s: -s.term):
        if not any(other.term > each.term and other.number <= each.number for other in counts):
            counts.add(each)
    return sorted(counts)


@given(
    st.sets(st.builds(SegmentId, st.integers(1, 12), st.integers(1, 6))),
    st.lists(st.sampled_from(["x", "fence", "1.seg"])),
)
def test_which_segments_make_up_the_log(found: set[SegmentId], others: list[str]) -> None:
    kept, superseded = live([*(each.name for each in found), *(each.index_name for each in found), *others])
    assert kept == dumb_live(found)
    assert sorted(kept + superseded) == sorted(found)
    assert [each.term for each in kept] == sorted(each.term for each in kept), "terms only ever grow along the log"


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(-20, 40)), min_size=1, max_size=60), st.data())
def test_seeking_never_skips_a_wanted_message(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Messages in physical order with TimeTicks out of order; an index entry wherever one may be."""
    log: list[tuple[int, int, int]] = []
    entries: list[bytes] = []
    offset, position, tick, highest = 512, 0, 1000, 1000
    for size, step in steps:
        if data.draw(st.booleans()):
            entries.append(segment.encode_entry(offset, position, highest, 1))
        position += 1
        tick = max(highest + step, 1)
        highest = max(highest, tick)
        log.append((offset, position, tick))
        offset += 8 * size
    index = segment.decode_index(memoryview(b"".join(entries)))
    wanted_position = data.draw(st.integers(0, position + 3))
    after = data.draw(st.integers(0, highest + 30))
    best = max(segment.seek_position(index, wanted_position), segment.seek_time(index, after))
    start = 512 if best < 0 else int(index[best]["offset"])
    for at, message_position, message_tick in log:
        if message_position >= wanted_position and message_tick > after:
            assert at >= start
