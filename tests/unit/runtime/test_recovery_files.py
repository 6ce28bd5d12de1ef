"""What opening finds after every kind of accident, and what verify and repair say about it. Promise 6."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from helpers import Rig, commit_all, tick
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import ClockStalled, Corruption, StorageFailed
from tidegate.log import block, segment
from tidegate.runtime.verify import repair, verify


def fill(rig: Rig, count: int = 20, **settings: object) -> tuple[Path, int]:
    """A log of single appends without a last tick; its open segment and where its blocks end."""
    writer = rig.writer(**settings)
    for n in range(count):
        writer.append("a", b"%d" % n)
    path, end = rig.segment_paths()[-1], writer.segments.offset
    writer.segments.close()  # as if killed: no tick, no farewell
    rig.opened.remove(writer)
    return path, end


def damage(path: Path, offset: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(raw)


def flip(path: Path, offset: int) -> None:
    damage(path, offset, bytes([path.read_bytes()[offset] ^ 0xFF]))


def block_starts(path: Path) -> list[int]:
    view = memoryview(path.read_bytes())
    starts, offset = [], segment.HEADER_SIZE
    while (header := block.decode_header(view, offset)) is not None:
        starts.append(offset)
        offset += header.size
    return starts


def reopened(rig: Rig) -> list[bytes | None]:
    """What the log holds once a new writer has opened it."""
    rig.writer()
    return rig.bodies()


EVERYTHING = [b"%d" % n for n in range(20)]


def test_a_killed_writers_messages_are_all_there_and_readable_at_once(rig: Rig) -> None:
    """Fact 42: the first tick of a term makes readable what no tick had covered."""
    fill(rig)
    assert reopened(rig) == EVERYTHING


def test_a_torn_last_write_is_cut_and_reported(rig: Rig) -> None:
    path, end = fill(rig)
    start = block_starts(path)[-1]
    damage(path, start + 40, bytes(end - start - 40))
    writer = rig.writer()
    assert rig.bodies() == EVERYTHING[:-1]
    assert writer.recovered.segment == str(path)
    assert writer.recovered.end == start
    assert 0 < writer.recovered.cut_bytes <= 40
    assert writer.status().recovered is writer.recovered


@pytest.mark.parametrize("seed", range(3))
def test_garbage_behind_the_end_is_cut_and_reported(rig: Rig, seed: int) -> None:
    path, end = fill(rig)
    damage(path, end, random.Random(seed).randbytes(5000))
    writer = rig.writer()
    assert rig.bodies() == EVERYTHING
    assert writer.recovered.cut_bytes == 5000


def test_a_whole_block_that_does_not_follow_is_garbage(rig: Rig) -> None:
    """Invariant of blocks: what an abandoned write left behind can never be taken for a continuation."""
    path, end = fill(rig)
    starts = block_starts(path)
    old = path.read_bytes()[starts[3] : starts[4]]
    damage(path, end, old)
    assert reopened(rig) == EVERYTHING


def test_writing_goes_on_behind_what_was_cut(rig: Rig) -> None:
    path, end = fill(rig)
    damage(path, end - 10, b"\xff" * 10)
    writer = rig.writer()
    result = writer.append("a", b"new")
    tick(writer)
    found = rig.messages()
    assert [each.body for each in found] == [*EVERYTHING[:-1], b"new"]
    assert result.position > found[-2].position
    assert [each.term for each in found[-2:]] == [1, 2]


def test_a_next_segment_of_no_bytes_was_never_begun(rig: Rig) -> None:
    path, _ = fill(rig)
    new = path.with_name(segment.SegmentId(2, 1).name)
    new.write_bytes(b"")
    writer = rig.writer()
    assert writer.recovered.discarded == (str(new),)
    assert rig.bodies() == EVERYTHING


@pytest.mark.parametrize("keep", [0, 1, 40, 71, 79])
def test_a_half_written_header_was_never_begun(rig: Rig, keep: int) -> None:
    path, end = fill(rig)
    new = path.with_name(segment.SegmentId(2, 1).name)
    header = segment.SegmentHeader(2, 1, 100, 100, 5, end, 0, 0).encode()
    new.write_bytes(header[:keep].ljust(64 << 10, b"\0"))
    writer = rig.writer()
    assert writer.recovered.discarded == (str(new),)
    assert rig.bodies() == EVERYTHING


def test_a_damaged_header_before_blocks_is_damage_and_not_a_beginning(rig: Rig) -> None:
    path, _ = fill(rig)
    flip(path, 30)
    with pytest.raises(Corruption, match="header is damaged") as caught:
        rig.writer()
    assert caught.value.path == str(path)
    assert path.exists()


@pytest.mark.parametrize("where", ["magic", "size", "body", "checksum", "previous"])
def test_damage_in_the_middle_is_named_and_never_cut(rig: Rig, where: str) -> None:
    """A later block says that the damaged place had been durable: so it is no torn write."""
    path, _ = fill(rig)
    start = block_starts(path)[8]
    offset = {"magic": 8, "size": 23, "body": block.HEADER_SIZE + 13, "checksum": 0, "previous": 90}[where]
    flip(path, start + offset)
    with pytest.raises(Corruption, match="repair") as caught:
        rig.writer()
    assert (caught.value.path, caught.value.offset) == (str(path), start)
    found = verify(rig.channel, "c").problems
    assert [(each.segment, each.offset) for each in found] == [(str(path), start)]


def test_every_flipped_byte_of_a_log_is_found_or_harmless(rig: Rig) -> None:
    """Whatever byte goes bad, nobody ever reads anything but a prefix of what was written, or is told."""
    path, end = fill(rig, 4)
    pristine = path.read_bytes()
    last = block_starts(path)[-1]
    for offset in range(segment.HEADER_SIZE, end, 5):
        path.write_bytes(pristine)
        flip(path, offset)
        checked = verify(rig.channel, "c")
        if offset < last:
            assert checked.problems, f"byte {offset}"
        else:
            assert checked.torn_bytes, f"byte {offset}"


def test_a_damaged_size_does_not_make_a_reader_ask_for_gigabytes(rig: Rig) -> None:
    path, _ = fill(rig)
    starts = block_starts(path)
    damage(path, starts[8] + 16, b"\xff" * 12)
    largest = 0
    size = path.stat().st_size
    opened = rig.files.open

    def watch(name: str, *, write: bool = False):  # type: ignore[no-untyped-def]
        file = opened(name, write=write)
        read = file.read

        def measured(offset: int, wanted: int) -> memoryview:
            nonlocal largest
            largest = max(largest, wanted)
            return read(offset, wanted)

        file.read = measured  # type: ignore[method-assign]
        return file

    rig.files.open = watch  # type: ignore[method-assign]
    assert verify(rig.channel, "c").problems
    assert largest <= max(size, 4 << 20)


def test_repair_keeps_what_can_be_read_and_says_what_was_lost(rig: Rig) -> None:
    path, _ = fill(rig)
    start = block_starts(path)[8]  # the ninth block; the first is the tick that opened the term
    flip(path, start + 100)
    lost_position = 9
    done = repair(rig.channel, rig.channel.segments()[0])
    assert done.lost == [(lost_position, lost_position)]
    assert Path(done.set_aside).exists()
    assert done.kept_messages == 20
    assert reopened(rig) == EVERYTHING[:7] + EVERYTHING[8:]
    assert verify(rig.channel, "c").problems == []


def test_repair_of_an_older_segment_keeps_its_neighbours_in_place(rig: Rig) -> None:
    writer = rig.writer()
    for n in range(30):
        writer.append("a", b"%d" % n)
        if n % 10 == 9:
            tick(writer)
            writer.segments.roll()
    writer.append("a", b"30")
    tick(writer)
    middle = rig.segment_paths()[1]
    starts = block_starts(middle)
    flip(middle, starts[-2] + 100)  # the last message of that segment, before its tick
    assert len(verify(rig.channel, "c").problems) == 1
    done = repair(rig.channel, rig.channel.segments()[1])
    assert len(done.lost) == 1
    assert verify(rig.channel, "c").problems == []
    assert rig.bodies() == [b"%d" % n for n in range(31) if n != 19]


def test_repair_of_a_merged_segment_of_several_schemas_loses_only_what_is_damaged(rig: Rig) -> None:
    """Blocks of a merged segment overlap in position; repair must not take the later ones for leftovers."""
    writer = rig.writer()
    for n in range(30):
        match n % 3:
            case 0:
                writer.append("a", b"%d" % n)
            case 1:
                writer.append_batch("b", pa.RecordBatch.from_pydict({"x": [n]}))
            case 2:
                writer.append_batch("c", pa.RecordBatch.from_pydict({"y": [str(n)]}))
    writer.append("a", b"30")
    tick(writer)
    writer.segments.roll()
    rig.seal(writer)
    writer.append("a", b"next")
    tick(writer)
    expected = rig.messages()
    path = rig.segment_paths()[0]
    starts = block_starts(path)
    assert len(starts) == 4, "three schemas and a tick"
    flip(path, starts[1] + 150)
    done = repair(rig.channel, rig.channel.segments()[0])
    kept = [each for each in expected if each.vchannel != "b"]
    gone = [each for each in expected if each.vchannel == "b"]
    assert rig.messages() == kept
    assert verify(rig.channel, "c").problems == []
    for each in gone:
        assert any(first <= each.position <= last for first, last in done.lost), "and it says so"


def test_repair_without_a_header_still_saves_the_blocks(rig: Rig) -> None:
    path, _ = fill(rig)
    flip(path, 30)
    repair(rig.channel, rig.channel.segments()[0])
    assert reopened(rig) == EVERYTHING


def test_repair_of_a_segment_of_which_nothing_is_left_refuses(rig: Rig) -> None:
    path, _ = fill(rig)
    path.write_bytes(bytes(5000))
    with pytest.raises(Corruption, match="neither its header nor any block"):
        repair(rig.channel, rig.channel.segments()[0])
    assert path.exists()
    assert not [name for name in rig.files.names("c") if name.endswith(".tmp")]


@pytest.mark.parametrize("what", ["lost", "garbage", "half", "flipped"])
def test_an_index_file_is_only_a_short_cut(rig: Rig, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "INDEX_EVERY", 500)
    path, _ = fill(rig)
    index = path.with_suffix(".idx")
    raw = index.read_bytes()
    assert len(raw) > 3 * segment.INDEX_ENTRY_SIZE
    match what:
        case "lost":
            index.unlink()
        case "garbage":
            index.write_bytes(random.Random(1).randbytes(len(raw) + 3))
        case "half":
            index.write_bytes(raw[: len(raw) // 2])
        case "flipped":
            flip(index, len(raw) // 2)
    assert reopened(rig) == EVERYTHING


def test_a_good_index_spares_the_scan(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "INDEX_EVERY", 500)
    fill(rig, 200)
    writer = rig.writer()
    assert writer.recovered.scanned_blocks < 20
    assert rig.bodies() == [b"%d" % n for n in range(200)]


def test_reopening_many_times_changes_nothing(rig: Rig) -> None:
    """Fact 38: terms follow each other; readers see strictly increasing TimeTicks and exactly what was written."""
    expected = []
    for term in range(1, 16):
        writer = rig.writer()
        body = b"term %d" % term
        writer.append("a", body)
        expected.append(body)
        if term % 3 == 0:
            tick(writer)
        if term % 4 == 0:
            writer.segments.roll()
            rig.seal(writer)
        if term % 2:
            writer.close()
            rig.opened.remove(writer)
    tick(writer)
    assert rig.bodies() == expected
    assert [each.term for each in rig.messages()] == list(range(1, 16))


def test_a_metadata_store_older_than_the_log_is_told_and_nothing_is_written(rig: Rig) -> None:
    fill(rig)
    size = [path.stat().st_size for path in rig.segment_paths()]
    rig.oracle._next = 3
    with pytest.raises(StorageFailed, match="older than the log"):
        rig.writer()
    rig.oracle._next = 10_000
    assert reopened(rig) == EVERYTHING
    assert size


def test_a_term_that_gets_no_timestamp_does_not_open_and_leaves_no_files(rig: Rig) -> None:
    """Fact 42: an oracle that fails means zero appends; and a retry loop must not fill the disk."""
    fill(rig)
    before = sorted(rig.files.names("c"))
    rig.oracle.error = ClockStalled("no time")
    for _ in range(3):
        with pytest.raises(ClockStalled):
            rig.writer()
    assert [name for name in sorted(rig.files.names("c")) if name.endswith(".seg")] == [
        name for name in before if name.endswith(".seg")
    ]
    rig.oracle.error = None
    assert reopened(rig) == EVERYTHING


def test_verify_counts_and_changes_nothing(rig: Rig) -> None:
    path, end = fill(rig)
    damage(path, end, b"torn")
    content = path.read_bytes()
    checked = verify(rig.channel, "c")
    assert (checked.segments, checked.blocks, checked.messages, checked.torn_bytes) == (1, 21, 21, 4)
    assert checked.problems == []
    assert path.read_bytes() == content


def test_verify_finds_segments_that_do_not_follow_each_other(rig: Rig) -> None:
    writer = rig.writer()
    writer.append("a", b"1")
    writer.segments.roll()
    writer.append("a", b"2")
    commit_all(writer)
    second = rig.segment_paths()[1]
    header = segment.decode_header(memoryview(second.read_bytes()))
    assert header is not None
    other = segment.SegmentHeader(2, 1, header.base_position, header.base_time_tick, 12345, header.previous_end, 0, 0)
    damage(second, 0, other.encode())
    problems = verify(rig.channel, "c").problems
    assert any("does not follow" in each.why for each in problems)


def test_time_ticks_of_a_new_term_are_above_everything_recovered(rig: Rig) -> None:
    fill(rig)
    writer = rig.writer()
    highest = max(each.time_tick for each in rig.messages())
    assert writer.status().channel.synced > highest
    assert writer.append("a", b"x").time_tick > Timestamp(highest)
