"""What a reader holds back until a tick comes is bounded, and all of it is delivered in order. Promise 1."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import Rig, commit_all, drain, tick
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption, InvalidArgument
from tidegate.log.message import Message, MessageType, Position
from tidegate.runtime.channel_reader import ChannelReader
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.held_back import HELD_BYTES
from tidegate.runtime.retention import remove_old

BODY = 1_000
LIMIT = 40_000


def append(writer: ChannelWriter, number: int) -> None:
    writer.append_async("v", b"%06d" % number + b"x" * BODY)
    commit_all(writer)


def numbers(messages: list[Message]) -> list[bytes]:
    return [(each.body or b"")[:6] for each in messages]


def read_ahead(reader: ChannelReader) -> None:
    """Let it read all there is; nothing of it is covered."""
    assert drain(reader) == []


def test_a_reservation_held_for_long_does_not_fill_the_memory_of_a_reader(rig: Rig) -> None:
    """Twenty times the limit is appended under it; then everything comes, in order and in pieces."""
    writer = rig.writer()
    reader = rig.reader(held_bytes_max=LIMIT)
    hold = writer.reserve("v")
    for number in range(800):
        append(writer, number)
        if number % 5 == 0:
            read_ahead(reader)
            assert reader._held.nbytes <= LIMIT
    read_ahead(reader)
    assert reader._held.nbytes <= LIMIT
    assert reader._held.bytes_in_files > 20 * LIMIT
    assert len(reader._held._stretches) < 200, "places take little"
    hold.append_async(b"first in time" + b"x" * BODY)
    commit_all(writer)
    tick(writer)
    found, ticks = [], 0
    while (delivery := reader.poll()) is not None:
        ticks += 1
        size = sum(each.nbytes for each in delivery.batches)
        assert size <= LIMIT, "a piece is bounded too"
        assert reader._held.nbytes <= LIMIT
        found += list(delivery.messages())
    assert numbers(found) == [b"first ", *(b"%06d" % number for number in range(800))]
    assert ticks > 20
    assert (reader._held.nbytes, reader._held.bytes_in_files) == (0, 0)


def test_every_piece_ends_with_a_tick_from_which_a_reader_may_go_on(rig: Rig) -> None:
    writer = rig.writer()
    append(writer, 0)
    tick(writer)
    hold = writer.reserve("v")
    for number in range(1, 200):
        append(writer, number)
    hold.append_async(b"held")
    commit_all(writer)
    tick(writer)
    everything = rig.messages()
    reader = rig.reader(held_bytes_max=LIMIT)
    seen = 0
    while (delivery := reader.poll()) is not None:
        seen += len(delivery)
        rest = rig.messages(position=delivery.tick.last_confirmed, after=delivery.tick.time_tick)
        assert rest == everything[seen:]


def write_out_of_order(rig: Rig, writer: ChannelWriter, seed: int) -> None:
    rng = random.Random(seed)
    held = [writer.reserve("v") for _ in range(3)]
    for number in range(rng.choice((150, 400))):
        draw = rng.random()
        if draw < 0.1:
            held.append(writer.reserve("v"))
        elif draw < 0.2 and len(held) > 1:
            at = Timestamp(rig.oracle.allocate(1)) if rng.random() < 0.5 else None
            held.pop(rng.randrange(len(held))).append_async(b"held %d" % number + b"y" * rng.choice((0, 3000)), at=at)
        elif draw < 0.3:
            texts = [f"{number}-{row}" for row in range(rng.choice((2, 70, 300)))]
            writer.append_batch_async("w", pa.RecordBatch.from_pydict({"text": texts}))
        elif draw < 0.35:
            tick(writer)
        else:
            kind = rng.choice((MessageType.INSERT, MessageType.ACK))
            writer.append_async(rng.choice("vw"), b"%d" % number + b"x" * rng.choice((0, 500, 5000)), kind=kind)
        if rng.random() < 0.7:
            commit_all(writer)
    rng.shuffle(held)
    for each in held:
        each.append_async(b"late")
    commit_all(writer)
    tick(writer)


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(each, marks=pytest.mark.long) for each in range(5, 40))])
@pytest.mark.parametrize("limit", [1, 3_000, 40_000])
def test_a_reader_with_little_memory_gets_what_one_with_much_gets(rig: Rig, seed: int, limit: int) -> None:
    """Whatever the order in the files, filters and starting points, before and after sealing."""
    writer = rig.writer()
    write_out_of_order(rig, writer, seed)
    for sealed in (False, True):
        if sealed:
            assert rig.seal(writer)
        everything = rig.messages()
        assert rig.messages(held_bytes_max=limit) == everything
        for options in (
            {"vchannel": "w"},
            {"types": frozenset({MessageType.ACK})},
            {"position": Position(int(everything[60].position))},
            {"position": everything[90].last_confirmed, "after": everything[90].time_tick},
        ):
            assert rig.messages(held_bytes_max=limit, **options) == rig.messages(**options)


@pytest.mark.parametrize("limit", [1, 3_000, 40_000])
def test_no_piece_cuts_a_batch_in_two(rig: Rig, limit: int) -> None:
    """A batch is delivered whole or not at all."""
    writer = rig.writer()
    write_out_of_order(rig, writer, 4)
    rows = 0
    reader = rig.reader(held_bytes_max=limit)
    sizes = {each.row["text"].split("-")[0]: 0 for each in rig.messages() if each.row is not None}
    for each in rig.messages():
        if each.row is not None:
            sizes[each.row["text"].split("-")[0]] += 1
    while (delivery := reader.poll()) is not None:
        got: dict[str, int] = {}
        for each in delivery.messages():
            if each.row is not None:
                name = each.row["text"].split("-")[0]
                got[name] = got.get(name, 0) + 1
        assert got == {name: sizes[name] for name in got}
        rows += sum(got.values())
    assert rows == sum(sizes.values())


def test_sealing_and_retention_do_not_take_away_what_is_held_back(rig: Rig) -> None:
    """The segments stay open until their part was read again; then they are let go."""
    writer = rig.writer()
    reader = rig.reader(held_bytes_max=LIMIT)
    hold = writer.reserve("v")
    for number in range(400):
        append(writer, number)
    read_ahead(reader)
    before = open_files(rig.root)
    assert rig.seal(writer)
    removed = remove_old(rig.channel, before=Position(300), needed_from=None, age_max_s=None, bytes_max=None, now_ms=0)
    assert removed
    hold.release()
    tick(writer)
    assert numbers(drain(reader)) == [b"%06d" % number for number in range(400)]
    assert open_files(rig.root) < before
    reader.close()


def test_a_reader_that_is_closed_lets_go_of_the_files(rig: Rig) -> None:
    writer = rig.writer()
    hold = writer.reserve("v")
    for number in range(400):
        append(writer, number)
    before = open_files(rig.root)
    reader = rig.reader(held_bytes_max=LIMIT)
    read_ahead(reader)
    assert open_files(rig.root) > before + 1
    reader.close()
    assert open_files(rig.root) == before
    hold.release()


def test_damage_in_what_is_read_again_is_an_error_and_loses_nothing(rig: Rig) -> None:
    writer = rig.writer()
    reader = rig.reader(held_bytes_max=LIMIT)
    hold = writer.reserve("v")
    for number in range(100):
        append(writer, number)
    read_ahead(reader)
    hold.release()
    tick(writer)
    path = rig.segment_paths()[0]
    good = path.read_bytes()
    place = good.index(b"%06d" % 50)
    path.write_bytes(good[:place] + b"?" + good[place + 1 :])
    found: list[Message] = []
    with pytest.raises(Corruption, match=path.name):
        while (delivery := reader.poll()) is not None:
            found += delivery.messages()
    path.write_bytes(good)
    found += drain(reader)
    assert numbers(found) == [b"%06d" % number for number in range(100)]


def test_a_reader_goes_on_from_memory_after_the_last_piece_and_holds_nothing_then(rig: Rig) -> None:
    """Memory could not keep what was held back; the reader takes it from the files, and then follows memory again."""
    writer = rig.writer(buffer_bytes_max=10_000, in_flight_bytes_max=64 << 20)
    reader = rig.reader(writer, held_bytes_max=LIMIT)
    assert drain(reader) == []
    assert reader.tailing
    hold = writer.reserve("v")
    for number in range(300):
        append(writer, number)
    hold.release()
    tick(writer)
    pieces, found = 0, []
    while (delivery := reader.poll()) is not None:
        pieces += bool(len(delivery))
        found += list(delivery.messages())
    assert numbers(found) == [b"%06d" % number for number in range(300)]
    assert pieces > 1
    assert reader.tailing
    assert reader._held.nbytes == 0
    append(writer, 300)
    tick(writer)
    assert numbers(drain(reader)) == [b"000300"]


def test_the_limit_has_a_default_and_may_be_changed(rig: Rig) -> None:
    rig.writer()
    reader = rig.reader()
    assert reader.held_bytes_max == HELD_BYTES
    reader.held_bytes_max = LIMIT
    assert reader.held_bytes_max == LIMIT
    with pytest.raises(InvalidArgument, match="held_bytes_max"):
        reader.held_bytes_max = 0
    with pytest.raises(InvalidArgument, match="held_bytes_max"):
        rig.reader(held_bytes_max=0)


def open_files(root: Path) -> int:
    """How many files below `root` this process has open."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            count += str(each.readlink()).startswith(str(root))
        except FileNotFoundError:
            continue
    return count
