"""Readers: any starting point, files and memory, other processes, sealing and damage under way. Promise 1, fact 38."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from helpers import BROKEN, Rig, commit_all, drain, eventually, held_open, tick
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption, InvalidArgument, Truncated
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType, Position
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.log import Log, LogFiles
from tidegate.runtime.pieces import Piece
from tidegate.runtime.retention import remove_old
from tidegate.txn.marker import Marker

TXN = b"T" * 16


def history(rig: Rig, writer: ChannelWriter, seed: int, appends: int = 120) -> None:
    """A log whose physical order differs from its TimeTick order in many places."""
    rng = random.Random(seed)
    held = []
    for n in range(appends):
        body = b"%d" % n
        match rng.randrange(10):
            case 0:
                held.append(writer.reserve("h"))
            case 1 if held:
                at = Timestamp(rig.oracle.allocate(1)) if rng.random() < 0.5 else None
                held.pop(rng.randrange(len(held))).append_async(b"held" + body, at=at)
            case 2:
                writer.append_batch_async("b", [body + b"-%d" % k for k in range(rng.choice([2, 70, 600]))])
            case 3:
                tick(writer)
            case _:
                txn = TXN if rng.random() < 0.2 else None
                writer.append_async(
                    rng.choice("ab"), body, txn=txn, kind=rng.choice([MessageType.INSERT, MessageType.ACK])
                )
        if rng.random() < 0.5:
            commit_all(writer)
    for each in held:
        each.append_async(b"late")
    commit_all(writer)
    tick(writer)


@pytest.mark.parametrize("seed", range(3))
def test_from_every_message_a_reader_goes_on_without_loss_or_repetition(rig: Rig, seed: int) -> None:
    """Fact 38: from any message's LastConfirmed with TimeTick above its own nothing is lost, nothing repeated."""
    writer = rig.writer()
    history(rig, writer, seed)
    everything = rig.messages()
    assert rig.messages(writer) == everything
    assert any(a.position > b.position for a, b in pairwise(everything)), "the history is out of order"
    for at in sorted(random.Random(seed).sample(range(len(everything)), 12)):
        message = everything[at]
        for with_memory in (None, writer):
            rest = rig.messages(with_memory, position=message.last_confirmed, after=message.time_tick)
            assert rest == everything[at + 1 :]


def test_every_message_keeps_the_last_confirmed_promise(rig: Rig) -> None:
    """Seed 000: when a message carries LastConfirmed L, every message with a larger TimeTick lies at or behind L."""
    writer = rig.writer()
    history(rig, writer, 11, appends=300)
    everything = rig.messages()
    lowest = 1 << 62
    for message in reversed(everything):
        assert message.last_confirmed <= lowest
        lowest = min(lowest, message.position)
    assert max(each.last_confirmed for each in everything) > everything[len(everything) // 2].position, "it advances"


@pytest.mark.parametrize("memory", [False, True])
def test_a_reader_from_a_position_gets_nothing_before_it(rig: Rig, memory: bool) -> None:
    """Whether the messages still are in memory makes no difference."""
    writer = rig.writer()
    results = []
    for n in range(10):
        results.append(writer.append("a", b"%d" % n))
        if n % 3 == 0:
            tick(writer)
    tick(writer)
    found = rig.messages(writer if memory else None, position=results[5].position)
    assert [each.body for each in found] == [b"5", b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("memory", [False, True])
def test_a_reader_from_a_timestamp_gets_exactly_what_is_above_it(rig: Rig, memory: bool) -> None:
    writer = rig.writer()
    results = [writer.append("a", b"%d" % n) for n in range(6)]
    tick(writer)
    with_writer = writer if memory else None
    assert rig.bodies(with_writer, after=results[2].time_tick) == [b"3", b"4", b"5"]
    assert rig.bodies(with_writer, after=Timestamp(rig.oracle.allocate(1) + 100)) == []
    ahead = rig.reader(with_writer, after=Timestamp(rig.oracle.allocate(1) + 2))
    assert drain(ahead) == []
    for n in range(6, 12):
        writer.append("a", b"%d" % n)
        tick(writer)
    bodies = [each.body for each in drain(ahead)]
    assert bodies == [b"%d" % n for n in range(12 - len(bodies), 12)]
    assert bodies


def test_filters_keep_virtual_channels_types_and_what_is_meant_for_all(rig: Rig) -> None:
    """Fact 36 and reference 7.1: a message for all virtual channels, and system messages, always pass."""
    writer = rig.writer()
    writer.append("a", b"a1")
    writer.append("b", b"b1")
    writer.append("a", b"ack", kind=MessageType.ACK)
    writer.append_transaction(TXN, [Piece("b", b"inside")])
    commit = Marker.at_once(1).encode()
    writer.append(ALL_VCHANNELS, b"all", kind=MessageType.DDL)
    tick(writer)
    for memory in (None, writer):
        assert rig.bodies(memory, vchannel="a") == [b"a1", b"ack", commit, b"all"]
        assert rig.bodies(memory, vchannel="b") == [b"b1", b"inside", commit, b"all"]
        assert rig.bodies(memory, vchannel="c") == [commit, b"all"]
        assert rig.bodies(memory, types=frozenset({MessageType.ACK})) == [b"ack", commit]
        some = frozenset({MessageType.ACK, MessageType.DDL})
        assert rig.bodies(memory, types=some, vchannel="a") == [b"ack", commit, b"all"]
        assert rig.bodies(memory, types=frozenset()) == [commit]
    with pytest.raises(InvalidArgument, match="system messages"):
        rig.reader(types=frozenset({MessageType.COMMIT}))


def test_a_filtered_reader_still_gets_every_tick(rig: Rig) -> None:
    writer = rig.writer()
    reader = rig.reader(vchannel="nobody")
    drain(reader)
    result = writer.append("a", b"x")
    tick(writer)
    assert drain(reader) == []
    assert reader.after >= result.time_tick


def test_catching_up_tailing_falling_behind_and_catching_up_again_loses_nothing(rig: Rig) -> None:
    """Reference 7.5: a tailing reader that is evicted goes back to the files, and returns to memory."""
    writer = rig.writer(start=True, buffer_bytes_max=3000)
    reader = rig.reader(writer)
    rng = random.Random(5)
    written: list[bytes] = []
    read: list[bytes | None] = []
    modes = set()
    for round_ in range(120):
        for _ in range(rng.randrange(1, 6)):
            body = b"%d" % len(written) + bytes(rng.choice([0, 10, 400, 3500]))
            writer.append("a", body)
            written.append(body)
            if rng.random() < 0.3:
                tick(writer)
        tick(writer)
        for _ in range(rng.choice([0, 0, 1, 2, 50])):
            delivery = reader.poll()
            if delivery is None:
                break
            read.extend(each.body for each in delivery.messages())
            modes.add(reader.tailing)
        assert read == written[: len(read)], f"in round {round_}"
    read.extend(each.body for each in drain(reader))
    assert read == written
    assert modes == {True, False}


def test_a_block_too_large_for_memory_is_read_from_the_files_once(rig: Rig) -> None:
    writer = rig.writer(start=True, buffer_bytes_max=1000)
    reader = rig.reader(writer)
    drain(reader)
    reservation = writer.reserve("a")  # holds the tick, so that what follows gathers
    writer.append("a", b"big" + bytes(2000))
    writer.append("a", b"small")
    reservation.append_async(b"held").result(5)
    tick(writer)
    writer.append("a", b"next")
    tick(writer)
    assert [(each.body or b"")[:5] for each in drain(reader)] == [b"held", b"big\0\0", b"small", b"next"]


def test_a_reader_crosses_rolls_and_segments_being_sealed(rig: Rig) -> None:
    """Readers of old files, new files and memory see the same log while it is rolled and sealed under them."""
    writer = rig.writer()
    slow = rig.reader()
    first = slow.poll()
    assert first is not None
    expected: list[bytes] = []
    readers = [rig.reader(), rig.reader(writer)]
    seen: list[list[bytes | None]] = [[], []]
    for n in range(60):
        body = b"%d" % n + bytes(4000)
        writer.append("a", body)
        expected.append(body)
        tick(writer)
        if n % 10 == 5:
            assert rig.seal(writer) >= 0
        for found, reader in zip(seen, readers):
            found.extend(each.body for each in drain(reader))
            assert found == expected
    assert len(rig.segment_paths()) > 3
    rig.seal(writer)
    assert [each.body for each in drain(slow)] == expected
    assert rig.bodies() == expected


def test_a_segment_sealed_between_two_polls_of_one_reader_changes_nothing(rig: Rig) -> None:
    writer = rig.writer()
    for n in range(50):
        writer.append("a", b"%d" % n)
        tick(writer)
    reader = rig.reader()
    found: list[Message] = []
    for _ in range(10):
        delivery = reader.poll()
        assert delivery is not None
        found.extend(delivery.messages())
    writer.segments.roll()
    assert rig.seal(writer) == 1
    writer.append("a", b"50")
    tick(writer)
    found.extend(drain(reader))
    assert [each.body for each in found] == [b"%d" % n for n in range(51)]


def test_damage_is_raised_every_time_and_never_skipped(rig: Rig) -> None:
    """Promise 6: a reader that goes on after the error must not be told that all was delivered."""
    writer = rig.writer()
    writer.append("a", b"one")
    tick(writer)
    start = writer.segments.offset
    two = writer.append("a", b"two")
    writer.append("a", b"three")
    tick(writer)
    writer.tick()
    flip(rig.segment_paths()[0], start + 60)
    reader = rig.reader()
    found: list[bytes | None] = []
    for _ in range(3):
        with pytest.raises(Corruption) as caught:
            while (delivery := reader.poll()) is not None:
                found.extend(each.body for each in delivery.messages())
        assert caught.value.offset == start
        assert caught.value.path == str(rig.segment_paths()[0])
        assert reader.after < two.time_tick, "no tick claims that it was delivered"
    assert found == [b"one"]


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0xFF
    path.write_bytes(raw)


def test_what_retention_removed_is_told_and_not_skipped(rig: Rig) -> None:
    writer = rig.writer()
    results = []
    for _ in range(3):
        for _ in range(5):
            results.append(writer.append("a", b"x"))
            tick(writer)
        writer.segments.roll()
    rig.seal(writer)
    slow = rig.reader()
    assert slow.poll() is not None
    removed = remove_old(
        rig.channel, needed_from=None, before=results[11].position, age_max_s=None, bytes_max=None, now_ms=0
    )
    assert len(removed) == 2
    kept = [each.time_tick for each in results[10:]]
    assert [each.time_tick for each in rig.messages()] == kept, "from the beginning is from the earliest there is"
    with pytest.raises(Truncated, match="retention"):
        rig.messages(position=results[0].position)
    with pytest.raises(Truncated, match="retention"):
        rig.messages(after=results[0].time_tick)
    with pytest.raises(Truncated):
        drain(slow)
    assert [each.time_tick for each in rig.messages(position=results[10].position)] == kept
    done = results[-1]
    assert rig.messages(position=Position(1), after=done.time_tick) == [], "nothing that was asked for is gone"


def test_a_reader_that_meets_retention_while_opening_a_segment_looks_again(rig: Rig) -> None:
    """The names were listed, then the oldest segment went: that is no error of the reader's."""
    writer = rig.writer()
    for n in range(3):
        writer.append("a", b"%d" % n)
        tick(writer)
        writer.segments.roll()
    rig.seal(writer)
    names = rig.files.names
    listed = names("c")
    oldest = rig.segment_paths()[0]
    answers = [listed]
    rig.files.names = lambda path: answers.pop() if answers else names(path)  # type: ignore[method-assign]
    oldest.unlink()
    assert rig.bodies() == [b"1", b"2"]


def test_a_reader_whose_next_segment_is_removed_while_it_looks_is_told_so(rig: Rig) -> None:
    """It knows the end of the segment it reads from the header of the next one, which has just been listed."""
    writer = rig.writer()
    reader = rig.reader()
    assert reader.poll() is not None
    for _ in range(2):
        writer.append("a", b"x")
        tick(writer)
        writer.segments.roll()
    rig.seal(writer)
    first, second, _ = rig.segment_paths()
    names = rig.files.names
    answers = [names("c")]
    rig.files.names = lambda path: answers.pop() if answers else names(path)  # type: ignore[method-assign]
    first.unlink()
    second.unlink()
    with pytest.raises(Truncated, match="is gone"):
        drain(reader)
    assert answers == []


@pytest.mark.parametrize("reads", [0, 1])
def test_a_segment_whose_ends_cannot_be_read_is_not_left_open(rig: Rig, reads: int) -> None:
    rig.writer().close()
    (only,) = rig.channel.segments()
    with rig.files.failing(BROKEN, "read", after=reads), pytest.raises(OSError):
        rig.channel.open(only)
    assert held_open(rig.root) == []


def test_reading_waits_no_longer_than_asked(rig: Rig) -> None:
    rig.writer()
    reader = rig.reader()
    drain(reader)
    started = time.monotonic()
    assert reader.read(0.05) is None
    assert 0.04 < time.monotonic() - started < 5
    assert reader.read(0) is None


def test_a_waiting_reader_gets_a_tick_as_soon_as_it_comes(rig: Rig, calls: Callable[..., object]) -> None:
    writer = rig.writer(start=True)
    for memory in (None, writer):
        reader = rig.reader(memory)
        drain(reader)
        future = calls(lambda reader=reader: next(iter(reader.messages(20))))  # type: ignore[attr-defined]
        result = writer.append("a", b"x")
        writer.tick()
        assert future.result(10).time_tick == result.time_tick  # type: ignore[attr-defined]


# -- a whole log, closed and in other processes ------------------------------------------------------------------


def test_a_closed_log_can_be_read_to_its_last_acknowledged_message(
    open_log: Callable[..., Log], tmp_path: Path
) -> None:
    """Closing ticks after all that was under way, so that nobody has to open the log to see it."""
    log = open_log(tick_interval_ms=60_000)
    writer = log.channel("c")
    pending = [writer.append_async("a", b"%d" % n) for n in range(500)]
    log.close()
    assert all(each.result(0) for each in pending)
    with LogFiles(tmp_path / "log").reader("c") as reader:
        assert [each.body for each in drain(reader)] == [b"%d" % n for n in range(500)]


def test_a_tailing_reader_of_a_log_that_closes_gets_all_of_it_and_follows_the_next_writer(
    open_log: Callable[..., Log],
) -> None:
    log = open_log(tick_interval_ms=60_000)
    writer = log.channel("c")
    reader = log.reader("c")
    assert drain(reader) == []
    assert reader.tailing
    writer.append("a", b"1")
    log.close()
    assert [each.body for each in drain(reader)] == [b"1"]
    spent = time.process_time()
    assert reader.read(0.3) is None
    assert time.process_time() - spent < 0.2, "waiting for a closed log does not spin"
    log = open_log()
    log.channel("c").append("a", b"2")
    found = eventually(lambda: drain(reader))
    assert [each.body for each in found] == [b"2"]
    reader.close()


FOLLOW = """
import sys
from tidegate import read_log
with read_log(sys.argv[1]).reader("c") as reader:
    print("ready", flush=True)
    for message in reader.messages(60):
        print(int(message.time_tick), message.body.decode(), flush=True)
        if message.body == b"end":
            break
"""


def test_a_reader_in_another_process_follows_while_we_write_roll_and_seal(
    open_log: Callable[..., Log], tmp_path: Path
) -> None:
    log = open_log(tick_interval_ms=2)
    writer = log.channel("c")
    child = subprocess.Popen([sys.executable, "-c", FOLLOW, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        expected = []
        for n in range(300):
            result = writer.append("a", b"%d:" % n + b"x" * (n * 7 % 3000))
            expected.append(f"{int(result.time_tick)} {n}:" + "x" * (n * 7 % 3000))
        expected.append(f"{int(writer.append('a', b'end').time_tick)} end")
        found = [line.rstrip("\n") for line in child.stdout]
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    assert found == expected
    assert len(log.segments("c")) > 3
