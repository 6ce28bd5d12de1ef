"""Walking a segment: where it ends, torn or damaged, and reading it. Proves docs/log-format.md, "Torn, or damaged?"."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest
from log_builders import BASE_CHAIN, PATH, START, TXN, Segment, flat, memory_file

from tidegate.errors import Corruption
from tidegate.log import block
from tidegate.log import scan as scanning
from tidegate.log.batch import Batch
from tidegate.log.message import Message, MessageType, Tick
from tidegate.log.scan import COALESCE_ROWS, ScanEnd, Window, as_item, read_batches, scan
from tidegate.ports.files import File

INSERT, UPSERT, DELETE = MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE
ORDERS = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "name": ["a", None, "ccc"]})


def scan_all(file: File, *, chain: int = BASE_CHAIN, offset: int = START) -> ScanEnd:
    return scan(file, PATH, offset=offset, chain=chain, position=0, time_tick=100)


def read_all(file: File, end: int, *, chain: int | None = BASE_CHAIN) -> list[Message | Tick]:
    return flat([item for _, _, item in read_batches(file, PATH, offset=START, end=end, chain=chain)])


def three_commits() -> Segment:
    """Each commit is synced before the next is written, as with durability `sync`."""
    return Segment().rows(b"first").all_durable().rows(b"second", b"2b").all_durable().tick().all_durable()


def damaged(data: bytes | bytearray, *places: int) -> bytearray:
    out = bytearray(data)
    for at in places:
        out[at] ^= 0xFF
    return out


# -- finding the end -----------------------------------------------------------------------------------------


def test_a_scan_follows_the_chain_to_its_end_and_counts_what_it_saw() -> None:
    segment = three_commits().rows(b"after the tick")
    found = scan_all(segment.file())
    assert found == ScanEnd(
        start=START, offset=segment.end, chain=segment.chain, position=5, time_tick=105, last_tick=104,
        open_from=0, blocks=4, messages=5, garbage=0,
    )  # fmt: skip


def test_an_empty_segment_ends_where_it_starts() -> None:
    found = scan_all(Segment().file())
    assert (found.offset, found.chain, found.blocks, found.position, found.time_tick) == (START, BASE_CHAIN, 0, 0, 100)


def test_a_scan_may_start_at_any_block_whose_predecessor_is_known() -> None:
    segment = Segment().rows(b"1")
    middle, chain = segment.end, segment.chain
    segment.rows(b"2")
    found = scan_all(segment.file(), offset=middle, chain=chain)
    assert (found.start, found.offset, found.blocks) == (middle, segment.end, 1)


def test_a_block_that_does_not_follow_the_one_before_is_not_part_of_the_log() -> None:
    """What an abandoned write left behind a newer, shorter block is intact, but belongs to another chain."""
    segment = Segment().rows(b"kept")
    stray = Segment(chain=0xDEAD).rows(b"left over from an abandoned write")
    found = scan_all(memory_file(bytes(segment.data) + bytes(stray.data[START:]) + bytes(1024)))
    assert (found.offset, found.blocks) == (segment.end, 1)
    assert found.garbage > 0


def test_a_segment_that_does_not_begin_with_its_own_chain_is_empty() -> None:
    assert scan_all(three_commits_unsynced().file(), chain=BASE_CHAIN + 1).blocks == 0


def three_commits_unsynced() -> Segment:
    """Durability `interval` or `none`: blocks say honestly that nothing was synced."""
    return Segment().rows(b"first").rows(b"second", b"2b").tick()


# -- torn or damaged -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 8, 50, 95, 96, 100])
def test_a_torn_last_block_is_cut_off_and_its_bytes_are_reported(keep: int) -> None:
    """A writer syncs each commit before the next, so only the end can be torn; that is not damage."""
    segment = three_commits()
    end = segment.end
    torn = segment.rows(b"never acknowledged" * 3).data[: end + keep]
    found = scan_all(memory_file(bytes(torn) + bytes(4096)))
    assert (found.offset, found.blocks) == (end, 3)
    assert 0 < found.garbage <= keep


@pytest.mark.parametrize("at", [0, 8, 20, 60, 90, 100])
@pytest.mark.parametrize("which", [0, 1])
def test_damage_that_was_durable_when_a_later_block_was_written_is_corruption(which: int, at: int) -> None:
    segment = three_commits()
    place = segment.offsets[which]
    file = memory_file(bytes(damaged(segment.data, place + at)) + bytes(4096))
    with pytest.raises(Corruption, match="damaged, though an intact block at") as raised:
        scan_all(file)
    assert raised.value.path == PATH
    assert raised.value.offset == place


def test_damage_is_told_from_a_tear_by_what_later_blocks_say_was_synced() -> None:
    """One commit may be several blocks, written at once: any of them may be missing after a loss of power."""
    segment = Segment().rows(b"acknowledged").all_durable()
    end = segment.end
    segment.rows(b"lost").rows(b"written with it").tick()
    found = scan_all(memory_file(bytes(damaged(segment.data, end + 100)) + bytes(4096)))
    assert found.offset == end
    assert segment.offsets[-1] - end < found.garbage <= segment.end - end, "all three blocks are cut"


def test_without_syncs_everything_behind_the_damage_is_cut() -> None:
    segment = three_commits_unsynced()
    found = scan_all(memory_file(bytes(damaged(segment.data, segment.offsets[1] + 40)) + bytes(4096)))
    assert (found.offset, found.blocks) == (segment.offsets[1], 1)


def test_a_synced_that_ends_exactly_at_the_bad_place_proves_nothing() -> None:
    """Everything BEFORE `synced` was durable; the block that starts there was not yet."""
    segment = Segment().rows(b"good").all_durable()
    bad = segment.end
    segment.rows(b"torn").rows(b"same commit")
    assert scan_all(memory_file(damaged(segment.data, bad + 30))).offset == bad
    segment.synced = bad + 1
    segment.rows(b"later")
    with pytest.raises(Corruption):
        scan_all(memory_file(damaged(segment.data, bad + 30)))


def test_damage_to_the_very_last_block_cannot_be_told_from_a_torn_write() -> None:
    """docs/log-format.md admits it: nothing was written after it that could prove more."""
    segment = three_commits()
    assert scan_all(memory_file(damaged(segment.data, segment.offsets[-1] + 50))).offset == segment.offsets[-1]


def test_a_whole_lost_block_is_corruption_however_large_the_hole_is() -> None:
    """Proof of damage may lie far behind it: zeros are what a lost extent, or a body of zeros, looks like."""
    segment = Segment().rows(b"good").all_durable()
    hole = segment.end
    segment.rows(bytes(16 << 20)).all_durable().tick()
    with pytest.raises(Corruption) as raised:
        scan_all(memory_file(damaged(segment.data, hole + 30)))
    assert raised.value.offset == hole


def test_proof_of_damage_is_found_across_the_borders_of_what_is_read_at_a_time() -> None:
    """The block that proves it starts just before, at, or just behind the end of a piece."""
    for piece in (scanning.CHUNK, scanning._REST_CHUNK):
        for gap in (-104, -96, -16, -8, 0, 8):
            segment = Segment()
            segment.rows(b"\xaa" * (piece + gap - 96 - 11 - 4)).all_durable().tick()
            with pytest.raises(Corruption):
                scan_all(memory_file(damaged(segment.data, START + 200)))


@pytest.mark.parametrize("extra", range(1, 8))
def test_a_file_cut_at_an_odd_length_ends_like_any_other(extra: int) -> None:
    """Whoever copied or truncated it did not know about multiples of eight; opening must not hang over it."""
    segment = three_commits()
    for tail in (bytes(extra), b"\x11" * extra):
        found = scan_all(memory_file(bytes(segment.data) + tail))
        assert (found.offset, found.garbage) == (segment.end, len(tail.rstrip(b"\0")))


def test_a_body_that_mentions_the_magic_is_not_taken_for_a_block() -> None:
    segment = Segment().rows(b"good").all_durable()
    end = segment.end
    segment.rows(b"TGB1" * 64)
    assert scan_all(memory_file(damaged(segment.data, end))).offset == end


def test_a_header_that_claims_gigabytes_ends_the_scan_without_reading_them() -> None:
    segment = Segment().rows(b"good")
    end = segment.end
    segment.rows(b"bad")
    segment.data[end + 16 : end + 24] = b"\xff\xff\xff\x7f" * 2
    assert scan_all(segment.file()).offset == end


class Counting:
    """A file that remembers the largest read it was asked for."""

    def __init__(self, inner: File) -> None:
        self.inner = inner
        self.largest = 0

    def read(self, offset: int, size: int) -> memoryview:
        self.largest = max(self.largest, size)
        return self.inner.read(offset, size)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def test_no_damaged_header_makes_a_window_ask_for_more_than_the_file_has() -> None:
    """Every read is a buffer of that size: one flipped bit must not cost gigabytes, then or for the next block."""
    segment = Segment().rows(b"claims too much").rows(b"good")
    segment.data[START + 16 : START + 24] = b"\xff\xff\xff\x7f" * 2
    file = Counting(memory_file(segment.data))
    window = Window(file)
    assert window.block(START) is None
    window.start, window.view = 0, memoryview(b"")
    assert window.block(segment.offsets[1]) is not None
    assert file.largest <= scanning.CHUNK


# -- reading -------------------------------------------------------------------------------------------------


def everything() -> Segment:
    """Every kind of block a writer makes, small ones next to each other."""
    segment = Segment()
    segment.rows(b"a").rows(b"").rows(b"c", types=[DELETE]).rows(b"d", vchannels=["w"], last_confirmed=1).tick(2)
    segment.rows(b"e", b"", b"g").rows(b"", b"").rows(b"h", b"i", vchannels=["x", "v"], types=[UPSERT, DELETE])
    segment.rows(b"j", txns=[TXN]).rows(b"k").rows(b"l", b"m", txns=[None, TXN], vchannels=["w", "v"])
    segment.arrow(ORDERS).rows(b"n").arrow(ORDERS, txn=TXN).tick(3).tick(4).rows(b"o").rows(b"p", vchannels=["ü"])
    segment.rows(*[b"%d" % each for each in range(100)]).rows(b"q").rows(b"r", b"s", vchannels=["x", "y"])
    segment.rows(b"DDL", types=[MessageType.DDL], vchannels=[""]).tick(9)
    return segment


def one_by_one(file: File, end: int) -> Iterator[Batch | Tick]:
    """The dumb way to read: block after block, each decoded on its own."""
    window, offset = Window(file), START
    while offset < end:
        found = window.block(offset)
        assert found is not None
        yield as_item(window.view, *found)
        offset += found[1].size


def test_gathering_small_blocks_changes_nothing_that_is_read() -> None:
    segment = everything()
    file = segment.file()
    read = read_all(file, segment.end)
    assert read == segment.expected
    assert read == flat(list(one_by_one(file, segment.end)))


def test_small_blocks_are_in_fact_gathered() -> None:
    """Reading row by row must not cost an Arrow array for each row."""
    segment = Segment()
    for each in range(200):
        segment.rows(b"%d" % each)
    items = [item for _, _, item in read_batches(segment.file(), PATH, offset=START, end=segment.end, chain=BASE_CHAIN)]
    assert len(items) == 1
    assert flat(items) == segment.expected


def test_gathering_stops_at_its_bound_and_loses_nothing() -> None:
    segment = Segment()
    for each in range(COALESCE_ROWS + 3):
        segment.rows(b"%d" % each)
    segment.rows(b"x", b"y")
    items = [item for _, _, item in read_batches(segment.file(), PATH, offset=START, end=segment.end, chain=BASE_CHAIN)]
    assert [len(each) for each in items if isinstance(each, Batch)] == [COALESCE_ROWS, 5]
    assert flat(items) == segment.expected


def test_gathering_stops_at_its_bound_in_bytes_too() -> None:
    """Many messages of some size each would else become one batch of gigabytes."""
    segment = Segment()
    for _ in range(40):
        segment.rows(b"x" * (1 << 19))
    batches = [item for _, _, item in read_batches(segment.file(), PATH, offset=START, end=segment.end)]
    assert sum(len(each) for each in batches if isinstance(each, Batch)) == 40
    assert max(each.nbytes for each in batches if isinstance(each, Batch)) < 3 * scanning.CHUNK


def test_messages_of_different_terms_are_never_gathered_into_one_batch() -> None:
    segment = Segment(term=1).rows(b"old").rows(b"old too")
    segment.term = 2
    segment.rows(b"new").rows(b"new", b"pair")
    items = [item for _, _, item in read_batches(segment.file(), PATH, offset=START, end=segment.end, chain=BASE_CHAIN)]
    assert [each.term for each in items if isinstance(each, Batch)] == [1, 2]
    assert flat(items) == segment.expected


def test_every_item_says_where_reading_goes_on_behind_it() -> None:
    """A cursor keeps that offset and chain; starting again from any of them yields exactly the rest."""
    segment = everything()
    file = segment.file()
    items = list(read_batches(file, PATH, offset=START, end=segment.end, chain=BASE_CHAIN))
    for index, (offset, chain, _) in enumerate(items):
        rest = [item for _, _, item in read_batches(file, PATH, offset=offset, end=segment.end, chain=chain)]
        assert flat(rest) == flat([item for _, _, item in items[index + 1 :]])
    assert items[-1][0] == segment.end and items[-1][1] == segment.chain


def test_reading_stops_at_the_end_it_is_given_though_more_is_there() -> None:
    """Promise: a reader never reads behind where the log ends for it."""
    segment = Segment().rows(b"1").rows(b"2")
    end = segment.end
    segment.rows(b"3").rows(b"4", b"5").tick()
    assert [each.body for each in read_all(segment.file(), end) if isinstance(each, Message)] == [b"1", b"2"]


def test_nothing_is_read_where_there_is_nothing() -> None:
    assert read_all(Segment().file(), START) == []


@pytest.mark.parametrize("which", range(19))
def test_damage_ends_reading_with_its_place_after_all_that_came_before(which: int) -> None:
    """Damage is never skipped, and what is good before it is not lost."""
    segment = everything()
    place = segment.offsets[which]
    file = memory_file(damaged(segment.data, place + 97))
    before = len(flat(list(one_by_one(segment.file(), place))))
    read: list[Message | Tick] = []
    with pytest.raises(Corruption, match="not an intact block") as raised:
        for _, _, item in read_batches(file, PATH, offset=START, end=segment.end, chain=BASE_CHAIN):
            read.extend(flat([item]))
    assert (raised.value.path, raised.value.offset) == (PATH, place)
    assert read == segment.expected[:before]


def test_every_damaged_byte_of_a_segment_stops_the_reader() -> None:
    segment = Segment().rows(b"1").rows(b"2").rows(b"3", b"4").tick().arrow(ORDERS.slice(0, 1)).rows(b"5")
    for at in range(START, segment.end):
        with pytest.raises(Corruption):
            read_all(memory_file(damaged(segment.data, at)), segment.end)


def test_an_intact_block_of_another_chain_stops_the_reader() -> None:
    segment = Segment().rows(b"1").rows(b"2")
    place = segment.end
    segment.chain += 1
    segment.rows(b"does not follow").rows(b"but this follows it")
    read: list[Message | Tick] = []
    with pytest.raises(Corruption, match="does not follow the block before it") as raised:
        for _, _, item in read_batches(segment.file(), PATH, offset=START, end=segment.end, chain=BASE_CHAIN):
            read.extend(flat([item]))
    assert raised.value.offset == place
    assert read == segment.expected[:2]


def test_the_first_block_must_follow_what_the_reader_read_last() -> None:
    segment = Segment().rows(b"1")
    with pytest.raises(Corruption, match="does not follow"):
        read_all(segment.file(), segment.end, chain=BASE_CHAIN + 1)
    assert len(read_all(segment.file(), segment.end, chain=None)) == 1, "unless it does not know"


def test_an_end_inside_a_block_is_damage() -> None:
    segment = Segment().rows(b"1").rows(b"22222222")
    with pytest.raises(Corruption) as raised:
        read_all(segment.file(), segment.end - 8)
    assert raised.value.offset == segment.offsets[1]


def test_a_zero_filled_hole_in_the_middle_stops_the_reader() -> None:
    segment = Segment().rows(b"1").rows(b"2").rows(b"3")
    hole = segment.offsets[1]
    segment.data[hole : segment.offsets[2]] = bytes(segment.offsets[2] - hole)
    with pytest.raises(Corruption) as raised:
        read_all(segment.file(), segment.end)
    assert raised.value.offset == hole


@pytest.mark.parametrize("chunk", [96, 104, 128, 1000])
def test_a_window_of_any_size_finds_every_block(chunk: int) -> None:
    segment = everything()
    window, offset, found = Window(segment.file(), chunk=chunk), START, []
    while (here := window.block(offset)) is not None:
        index, header = here
        found.append(as_item(window.view, index, header))
        offset += header.size
    assert offset == segment.end
    assert flat(found) == segment.expected


def test_blocks_that_straddle_what_is_read_at_a_time_are_read_whole() -> None:
    """Singles, gathered in a loop of their own, end exactly at, before and behind 4 MiB."""
    segment = Segment()
    body = b"\x55" * 1000
    while segment.end < (9 << 20):
        segment.rows(body)
    read = read_all(segment.file(), segment.end)
    assert len(read) == len(segment.expected)
    assert read == segment.expected
    assert block.HEADER_SIZE == 96


@pytest.mark.parametrize("seed", range(25))
def test_any_segment_reads_back_exactly_as_it_was_written(seed: int) -> None:
    """Whatever is gathered on the way: every message, in order, with all it carries; and the scan counts the same."""
    random = Random(seed)
    segment = Segment()
    for _ in range(random.randrange(60)):
        count = random.choice([1, 1, 1, 2, 5, 64, 65])
        match random.randrange(8):
            case 0:
                segment.tick(random.randrange(9))
            case 1:
                segment.arrow(ORDERS, vchannel=random.choice("vwx"), txn=random.choice([None, TXN]))
            case 2:
                segment.term += random.randrange(2)
            case _:
                segment.rows(
                    *[random.randbytes(random.choice([0, 1, 3, 40])) for _ in range(count)],
                    types=random.choices([INSERT, UPSERT, DELETE], [8, 1, 1], k=count),
                    vchannels=random.choices(["v", "w", "é/☃"], [8, 1, 1], k=count),
                    txns=random.choice([None, None, None, random.choices([None, TXN], k=count)]),
                    last_confirmed=random.randrange(9),
                )
    assert read_all(segment.file(), segment.end) == segment.expected
    found = scan_all(segment.file())
    assert (found.offset, found.chain, found.garbage) == (segment.end, segment.chain, 0)
    assert (found.blocks, found.messages) == (len(segment.offsets), len(segment.expected))
