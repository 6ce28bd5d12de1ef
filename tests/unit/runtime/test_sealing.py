"""Sealing: a closed segment is written again for fast opening and seeking, and says exactly the same. Promise 6."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest

from helpers import BROKEN, FULL, MemoryTail, Rig, commit_all, drain, eventually, tick
from tidegate.errors import Corruption
from tidegate.log import segment
from tidegate.log.message import MessageType
from tidegate.runtime import log as log_module
from tidegate.runtime import sealer
from tidegate.runtime.channel_reader import ChannelReader, TailSource
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.log import Log
from tidegate.runtime.retention import facts
from tidegate.runtime.sealer import seal
from tidegate.runtime.verify import verify

TXN = b"T" * 16


def mixed(writer: ChannelWriter, rig: Rig, seed: int = 1, appends: int = 150) -> None:
    """Small blocks, large ones, several schemas, virtual channels, types and transactions, out of order."""
    rng = random.Random(seed)
    held = None
    for n in range(appends):
        txn = TXN if rng.random() < 0.3 else None
        match rng.randrange(8):
            case 0:
                writer.append_batch_async(
                    "r", pa.RecordBatch.from_pydict({"id": [n, n + 1], "s": ["x", None]}), txn=txn
                )
            case 1:
                writer.append_batch_async("q", pa.RecordBatch.from_pydict({"price": [float(n)]}))
            case 2:
                writer.append_batch_async("a", [b"%d-%d" % (n, k) for k in range(rng.choice([2, 100, 600]))], txn=txn)
            case 3 if held is None:
                held = writer.reserve("h")
            case 4 if held is not None:
                held.append_async(b"held %d" % n)
                held = None
            case 5:
                tick(writer)
            case _:
                kind = rng.choice([MessageType.INSERT, MessageType.DELETE])
                writer.append_async(rng.choice("abc"), b"%d" % n, kind=kind, txn=txn)
        if rng.random() < 0.4:
            commit_all(writer)
    if held is not None:
        held.release()
    commit_all(writer)
    tick(writer)


def unsealed(rig: Rig) -> int:
    return sum(not each.sealed for each in facts(rig.channel))


@pytest.mark.parametrize("seed", range(4))
def test_a_merged_segment_holds_exactly_what_its_blocks_held(rig: Rig, seed: int) -> None:
    """Every message keeps TimeTick, position, LastConfirmed, type, virtual channel, transaction, term and payload."""
    writer = rig.writer(segment_bytes=4 << 20)
    mixed(writer, rig, seed)
    before = rig.messages()
    size = rig.segment_paths()[0].stat().st_size
    writer.segments.roll()
    writer.append("a", b"in the next segment")
    tick(writer)
    expected = rig.messages()
    assert expected[:-1] == before
    assert rig.seal(writer) == 1
    assert rig.messages() == expected
    assert rig.segment_paths()[0].stat().st_size < size, "unused room is given back"
    assert verify(rig.channel, "c").problems == []
    for message in random.Random(1).sample(expected, 15):
        at = expected.index(message)
        assert rig.messages(position=message.last_confirmed, after=message.time_tick) == expected[at + 1 :]


def test_merging_in_several_windows_keeps_everything(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealer, "WINDOW_ROWS", 50)
    monkeypatch.setattr(segment, "INDEX_EVERY", 1024)
    writer = rig.writer(segment_bytes=4 << 20)
    mixed(writer, rig, 7)
    expected = rig.messages()
    writer.segments.roll()
    rig.seal(writer)
    assert rig.messages() == expected
    opened = rig.channel.open(rig.channel.segments()[0])
    assert opened.trailer is not None
    assert opened.trailer.index_count > 3
    opened.file.close()
    for message in random.Random(1).sample(expected, 15):
        at = expected.index(message)
        assert rig.messages(after=message.time_tick) == expected[at + 1 :]
        assert rig.messages(position=message.position) == [e for e in expected if e.position >= message.position]


def test_a_merged_segment_keeps_its_last_tick_so_that_it_can_be_read_by_itself(rig: Rig) -> None:
    """A reader that knows nothing but the files delivers what ticks in them cover."""
    writer = rig.writer()
    for n in range(20):
        writer.append("a", b"%d" % n)
        tick(writer)
    writer.segments.roll()
    rig.seal(writer)
    rig.tail = MemoryTail()  # as after a restart of the machine: nobody has published anything
    reader = ChannelReader(rig.channel, TailSource(rig.channel, rig.tail))
    assert [each.body for each in drain(reader)] == [b"%d" % n for n in range(20)]
    reader.close()


def test_a_segment_of_large_blocks_is_sealed_in_place(rig: Rig) -> None:
    writer = rig.writer(segment_bytes=1 << 20, durability="sync")
    big = bytes(300 << 10)
    for _ in range(3):
        writer.append("a", big)
    inode = rig.segment_paths()[0].stat().st_ino
    end = writer.segments.offset
    expected = None
    writer.segments.roll()
    tick(writer)
    expected = rig.messages()
    assert len(expected) == 3
    rig.seal(writer)
    path = rig.segment_paths()[0]
    assert path.stat().st_ino == inode
    assert end < path.stat().st_size < 1 << 20, "unused room is given back"
    assert rig.messages() == expected
    trailer = segment.decode_trailer(memoryview(path.read_bytes()))
    assert trailer is not None
    assert (trailer.end, trailer.messages) == (end, 4)
    assert not path.with_suffix(".idx").exists(), "its index now is inside"


def test_sealing_twice_does_nothing_the_second_time(rig: Rig) -> None:
    writer = rig.writer()
    writer.append("a", b"x")
    tick(writer)
    writer.segments.roll()
    closed = writer.segments.closed[0]
    assert seal(rig.files, "c", closed) is not None
    content = rig.segment_paths()[0].read_bytes()
    assert seal(rig.files, "c", closed) is None
    assert rig.segment_paths()[0].read_bytes() == content


def test_a_segment_without_messages_is_sealed_too(rig: Rig) -> None:
    writer = rig.writer()
    writer.segments.roll()
    writer.segments.roll()
    assert rig.seal(writer) == 2
    writer.append("a", b"x")
    tick(writer)
    assert rig.bodies() == [b"x"]
    assert unsealed(rig) == 1


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("number", [FULL, BROKEN])
def test_sealing_that_fails_leaves_the_old_segment_and_succeeds_later(rig: Rig, call: str, number: int) -> None:
    """A crash or error anywhere leaves either the old segment or the sealed one."""
    writer = rig.writer()
    for n in range(30):
        writer.append("a", b"%d" % n)
    tick(writer)
    expected = rig.messages()
    writer.segments.roll()
    closed = writer.segments.closed[0]
    with rig.files.failing(number, call), pytest.raises(OSError):
        seal(rig.files, "c", closed)
    assert rig.messages() == expected
    seal(rig.files, "c", closed)
    assert rig.messages() == expected
    assert unsealed(rig) == 1
    assert not [name for name in rig.files.names("c") if name.endswith(".tmp")]


def test_leftovers_of_a_crash_while_sealing_are_removed_by_the_next_writer(rig: Rig) -> None:
    writer = rig.writer()
    writer.append("a", b"x")
    tick(writer)
    writer.segments.roll()
    writer.close()
    leftover = rig.path(rig.channel.segments()[0].name + ".1.tmp")
    leftover.write_bytes(b"half")
    rig.writer()
    assert not leftover.exists()
    assert rig.bodies() == [b"x"]


def test_index_files_that_a_crash_left_are_removed_when_the_channel_is_next_opened(
    open_log: Callable[..., Log], tmp_path: Path
) -> None:
    """The writer died after sealing a segment and before removing its index file; retention then took another one."""
    log = open_log()
    log.channel("c").append("a", b"x")
    log.close()
    log = open_log()
    log.channel("c")
    log.seal()
    (sealed,) = [each for each in log.segments("c") if each.sealed]
    log.close()
    directory = tmp_path / "log" / "log" / "c"
    beside = directory / sealed.name.replace(".seg", ".idx")
    orphan = directory / segment.SegmentId(0, 1).index_name
    other = directory / "notes.idx"
    for path in (beside, orphan, other):
        path.write_bytes(b"")
    log = open_log()
    writer = log.channel("c")
    log.seal()
    assert not beside.exists()
    assert not orphan.exists()
    assert other.exists(), "what is not ours is left alone"
    assert (directory / writer.segments.id.index_name).exists(), "the open segment needs its own"


def test_a_channel_that_cannot_be_listed_is_examined_again_later(
    open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(BROKEN, "broken")

    with monkeypatch.context() as first_life:
        first_life.setattr(log_module, "seal", refuse)
        log = open_log()
        for _ in range(4):
            log.channel("c").append("a", bytes(40 << 10))
        log.close()
    with monkeypatch.context() as broken:
        broken.setattr(log_module, "facts", refuse)
        log = open_log()
        log.channel("c")
        eventually(lambda: "broken" in str(log.status().troubles))
    log.seal()
    assert [each.sealed for each in log.segments("c")] == [True] * 4 + [False]
    assert log.status().troubles == {}


def test_a_damaged_segment_is_left_as_it_is(rig: Rig) -> None:
    """Sealing never turns damage into loss: nothing is written from what cannot be read whole."""
    writer = rig.writer()
    for n in range(30):
        writer.append("a", b"%d" % n)
    tick(writer)
    writer.segments.roll()
    path = rig.segment_paths()[0]
    raw = bytearray(path.read_bytes())
    raw[2000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Corruption, match="offset"):
        seal(rig.files, "c", writer.segments.closed[0])
    assert path.read_bytes() == raw
    assert not [name for name in rig.files.names("c") if name.endswith(".tmp")]


def test_an_unreadable_segment_never_decides_where_its_neighbour_ends(rig: Rig) -> None:
    """Promise 6. The header that says where segment 1 ends stands in segment 2; in segment 3 stands another's end."""
    writer = rig.writer()
    for n in range(20):
        writer.append("a", b"%d" % n)
    tick(writer)
    writer.segments.roll()
    writer.segments.roll()
    writer.append("a", b"last")
    tick(writer)
    second = rig.segment_paths()[1]
    raw = bytearray(second.read_bytes())
    raw[20] ^= 1
    second.write_bytes(raw)
    content = rig.segment_paths()[0].read_bytes()
    for fact in facts(rig.channel):
        assert fact.closed is None or fact.number != 1
        if fact.closed is not None:
            seal(rig.files, "c", fact.closed)
    assert rig.segment_paths()[0].read_bytes() == content


def test_two_processes_that_seal_the_same_segment_do_not_disturb_each_other(rig: Rig) -> None:
    """After a takeover both may: each writes its own file, and whichever comes last has the same content."""
    writer = rig.writer()
    for n in range(30):
        writer.append("a", b"%d" % n)
    tick(writer)
    expected = rig.messages()
    writer.segments.roll()
    closed = writer.segments.closed[0]
    made: list[str] = []
    create = rig.files.create

    def interrupted(path: str, size: int):  # type: ignore[no-untyped-def]
        file = create(path, size)
        made.append(path)
        if len(made) == 1:
            rig.files.create = create  # type: ignore[method-assign]
            assert seal(rig.files, "c", closed, by=2) is not None
            assert rig.messages() == expected
        return file

    rig.files.create = interrupted  # type: ignore[method-assign]
    seal(rig.files, "c", closed, by=1)
    assert rig.messages() == expected
    assert verify(rig.channel, "c").problems == []
