"""Blocks: what is written comes back, what was changed on the way is noticed, and the layout never changes unseen.

Proves docs/log-format.md, "Block".
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from struct import calcsize

import numpy as np
import pyarrow as pa
import pytest
from log_builders import BASE_CHAIN, TXN, batch, decode, stamp

from tidegate.errors import InvariantBroken
from tidegate.log import block
from tidegate.log.block import ARROW, HAS_TICK, HAS_TXNS, HEADER, MIXED_TYPES, MIXED_VCHANNELS, ROWS, SPARSE, Encoded
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType, Position, Term

FORMAT = Path(__file__).parents[3] / "docs" / "log-format.md"
INSERT, UPSERT, DELETE = MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE
ORDERS = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "name": ["a", None, "ccc"], "price": [1.5, 2.5, None]})


def header_of(encoded: Encoded) -> block.Header:
    header = block.decode_header(encoded.view(), 0)
    assert header is not None
    return header


# -- round trips ---------------------------------------------------------------------------------------------


def test_one_message_comes_back_with_everything_it_was_given() -> None:
    (message,) = decode(block.encode_rows(stamp(), [UPSERT], ["orders/0"], [b"hello"])).messages()
    assert message == Message(101, Position(11), Position(9), UPSERT, "orders/0", Term(3), body=b"hello")


def test_messages_of_a_block_have_consecutive_positions_and_time_ticks() -> None:
    """docs/choices.md: a batch takes a run of consecutive TimeTicks, so nothing can fall between them."""
    read = list(decode(block.encode_rows(stamp(), [INSERT] * 4, ["v"] * 4, [b"a", b"", b"ccc", b""])).messages())
    assert [each.body for each in read] == [b"a", b"", b"ccc", b""]
    assert [each.time_tick for each in read] == [101, 102, 103, 104]
    assert [each.position for each in read] == [11, 12, 13, 14]
    assert {each.last_confirmed for each in read} == {9}


def test_mixed_types_virtual_channels_and_transactions_stay_with_their_messages() -> None:
    encoded = block.encode_rows(
        stamp(), [INSERT, DELETE, INSERT], ["b", "ä/1", "b"], [b"1", b"2", b"3"], [None, TXN, None]
    )
    assert header_of(encoded).flags == MIXED_TYPES | MIXED_VCHANNELS | HAS_TXNS
    read = [(each.type, each.vchannel, each.body, each.txn) for each in decode(encoded).messages()]
    assert read == [(INSERT, "b", b"1", None), (DELETE, "ä/1", b"2", TXN), (INSERT, "b", b"3", None)]


def test_a_block_whose_messages_are_alike_says_so_once() -> None:
    """Columns that would hold one value only are left out; that is what the flags are for."""
    assert header_of(block.encode_rows(stamp(), [DELETE] * 3, ["v"] * 3, [b"x"] * 3)).flags == 0
    assert {
        each.type for each in decode(block.encode_rows(stamp(), [DELETE] * 3, ["v"] * 3, [b"x"] * 3)).messages()
    } == {DELETE}


def test_a_time_tick_is_alone_and_flagged() -> None:
    header = header_of(block.encode_rows(stamp(), [MessageType.TIME_TICK], [ALL_VCHANNELS], [b""]))
    assert header.flags == HAS_TICK
    assert (header.first_time_tick, header.last_time_tick, header.messages) == (101, 101, 1)
    assert not header_of(block.encode_rows(stamp(), [INSERT], ["v"], [b""])).flags & HAS_TICK


def test_arrow_rows_come_back_as_they_were() -> None:
    encoded = block.encode_arrow(stamp(), ORDERS, INSERT, "orders/0")
    read = decode(encoded)
    assert read.rows.equals(ORDERS)
    assert read.rows.schema.equals(ORDERS.schema)
    assert read.time_ticks.tolist() == [101, 102, 103]
    assert {each.vchannel for each in read.messages()} == {"orders/0"}
    assert [each.row for each in read.messages()] == ORDERS.to_pylist()


def test_a_transaction_id_rides_along_with_arrow_rows_and_is_not_a_column_of_theirs() -> None:
    read = decode(block.encode_arrow(stamp(), ORDERS, INSERT, "v", txn=TXN))
    assert read.rows.schema.names == ORDERS.schema.names
    assert [each.txn for each in read.messages()] == [TXN] * 3


def test_schema_metadata_survives_with_and_without_a_transaction() -> None:
    rows = ORDERS.replace_schema_metadata({b"owner": b"billing"})
    for txn in (None, TXN):
        read = decode(block.encode_arrow(stamp(), rows, INSERT, "v", txn=txn))
        assert read.rows.schema.metadata == {b"owner": b"billing"}


@pytest.mark.parametrize(
    "rows",
    [
        pa.RecordBatch.from_pydict({"a": pa.array([], pa.int64())}),
        pa.RecordBatch.from_pydict({"a": [[1, 2], None, []], "b": [{"x": 1}, {"x": None}, None]}),
        ORDERS.slice(1, 1),
        pa.RecordBatch.from_pydict({"b": pa.array([True, False, None] * 7).slice(3, 10)}),
    ],
    ids=["no rows", "nested", "slice", "bits at an odd offset"],
)
def test_any_shape_of_arrow_rows_round_trips(rows: pa.RecordBatch) -> None:
    read = decode(block.encode_arrow(stamp(), rows, INSERT, "v"))
    assert read.rows.equals(rows)
    assert len(read) == rows.num_rows


def test_a_merged_block_keeps_each_messages_own_position_time_tick_and_last_confirmed() -> None:
    merged = batch(
        [7, 3, 900],
        positions=[10, 12, 40],
        vchannels=["a", "b", "a"],
        types=[INSERT, UPSERT, DELETE],
        txns=[None, TXN, None],
    )
    merged.last_confirmed[:] = [5, 2, 8]
    encoded = block.encode_merged(stamp(first_position=10, first_time_tick=7, last_confirmed=2), merged)
    header = header_of(encoded)
    assert header.flags == SPARSE | MIXED_TYPES | MIXED_VCHANNELS | HAS_TXNS
    assert (header.first_position, header.last_position) == (10, 40)
    assert (header.first_time_tick, header.last_time_tick) == (3, 900), "the smallest and largest, not first and last"
    assert list(decode(encoded).messages()) == [replace(each, term=Term(3)) for each in merged.messages()]


def test_merging_messages_that_are_alike_needs_no_columns_for_it() -> None:
    merged = batch([5, 9], positions=[1, 8])
    encoded = block.encode_merged(stamp(), merged)
    assert header_of(encoded).flags == SPARSE
    assert decode(encoded).positions.tolist() == [1, 8]
    assert decode(encoded).types.tolist() == [INSERT, INSERT]


def test_large_payloads_are_not_copied_and_read_the_same() -> None:
    """Above 64 KiB the payload is a buffer of its own; the bytes on disk are the same as if it were not."""
    body = bytes(range(256)) * 400
    large = block.encode_rows(stamp(), [INSERT], ["v"], [body])
    assert len(large.buffers) == 3
    assert next(decode(large).messages()).body == body


# -- damage --------------------------------------------------------------------------------------------------


def noticed(raw: bytes) -> bool:
    view = memoryview(raw)
    header = block.decode_header(view, 0)
    return header is None or not block.is_intact(view, 0, header)


@pytest.mark.parametrize(
    "encoded",
    [
        block.encode_rows(stamp(), [INSERT, DELETE], ["a", "b"], [b"x", b"yz"], [None, TXN]),
        block.encode_arrow(stamp(), pa.RecordBatch.from_pydict({"a": [1]}), INSERT, "v"),
    ],
    ids=["rows", "arrow"],
)
def test_every_changed_byte_of_a_block_is_noticed(encoded: Encoded) -> None:
    """Promise: nothing is read that was not written. Padding counts too."""
    raw = bytes(encoded.view())
    assert not noticed(raw)
    for at in range(len(raw)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[at] ^= change
            assert noticed(damaged), f"byte {at} changed by {change:#x}"


def test_every_shortened_block_is_noticed() -> None:
    raw = bytes(block.encode_rows(stamp(), [INSERT], ["v"], [b"hello"]).view())
    assert all(noticed(raw[:size]) for size in range(len(raw)))


def test_zeros_are_not_a_block() -> None:
    assert block.decode_header(memoryview(bytes(4096)), 0) is None


def test_a_header_that_claims_more_than_there_is_is_not_intact() -> None:
    raw = bytearray(block.encode_rows(stamp(), [INSERT], ["v"], [b"hello"]).view())
    raw[16:24] = b"\xff" * 8
    assert noticed(raw)


def test_an_unknown_encoding_behind_a_right_checksum_is_our_defect() -> None:
    encoded = block.encode_rows(stamp(), [INSERT], ["v"], [b"x"])
    with pytest.raises(InvariantBroken, match="unknown kind 9"):
        block.decode(encoded.view(), 0, header_of(encoded)._replace(kind=9))


# -- layout --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [512, 520, 528, 568, 4096 + 24])
@pytest.mark.parametrize("vchannel", ["v", "a longer name/17"])
@pytest.mark.parametrize("txn", [None, TXN])
def test_an_arrow_payload_lies_at_a_multiple_of_64_in_the_file(offset: int, vchannel: str, txn: bytes | None) -> None:
    """docs/log-format.md: so that a mapped file is read without copying."""
    encoded = block.encode_arrow(stamp(offset=offset), ORDERS, INSERT, vchannel, txn=txn)
    header = header_of(encoded)
    assert (offset + block.HEADER_SIZE + header.meta_size + header.padding) % 64 == 0
    merged = header_of(block.encode_merged(stamp(offset=offset), batch([1, 5], vchannels=["a", vchannel])))
    assert (offset + block.HEADER_SIZE + merged.meta_size + merged.padding) % 64 == 0


@pytest.mark.parametrize("size", range(17))
def test_a_block_ends_at_a_multiple_of_8(size: int) -> None:
    encoded = block.encode_rows(stamp(), [INSERT], ["v"], [b"x" * size])
    assert encoded.size % 8 == 0 and len(encoded.view()) == encoded.size
    assert next(decode(encoded).messages()).body == b"x" * size


GOLDEN_ROWS = (
    "3e60a3bf4c75182f 5447423101010700 1000000035000000 0200000000000000"  # checksum; TGB1, rows, flags 7; sizes; 2
    " 0b00000000000000 0c00000000000000 6500000000000000 6600000000000000"  # positions 11 to 12, TimeTicks 101 to 102
    " 0900000000000000 0300000000000000 0002000000000000 5eba000000000000"  # LastConfirmed, term, synced, previous
    " 0200020000000000 0100610300622f31"  # meta: an insert first, two names, no schema; "a", "b/1"
    " 0300000007000000 0000010002040000 0000000000000000 0000000000000102"  # ends; names; types; ids
    " 030405060708090a 0b0c0d0e0f106f6e 6574776f21000000"  # ... and "one", "two!", three bytes to the multiple of 8
)


def test_the_bytes_of_a_block_of_rows_never_change() -> None:
    """Whoever changes this text changes what every log on disk means: raise VERSION and read both."""
    encoded = block.encode_rows(stamp(), [INSERT, DELETE], ["a", "b/1"], [b"one", b"two!"], [None, TXN])
    assert encoded.view().hex(" ", 8) == GOLDEN_ROWS


def test_the_schema_and_columns_of_an_arrow_block_stand_where_the_page_says() -> None:
    """Arrow's own bytes are Arrow's to keep stable; what surrounds them is ours."""
    encoded = block.encode_arrow(stamp(), ORDERS, UPSERT, "é", txn=TXN)
    view = encoded.view()
    header = header_of(encoded)
    meta = bytes(view[96 : 96 + header.meta_size])
    assert meta[0] == UPSERT and meta[1] == 0
    assert int.from_bytes(meta[2:4], "little") == 1
    schema_size = int.from_bytes(meta[4:8], "little")
    schema = pa.ipc.read_schema(pa.py_buffer(meta[8 : 8 + schema_size]))
    assert schema.names == ["id", "name", "price", "_txn"]
    assert meta[8 + schema_size :] == b"\x02\x00" + "é".encode()
    start = 96 + header.meta_size + header.padding
    rows = pa.ipc.read_record_batch(pa.py_buffer(view[start : start + header.payload_size]), schema)
    assert rows.column("_txn").to_pylist() == [TXN] * 3


def test_a_block_names_the_checksum_of_the_one_before() -> None:
    first = block.encode_rows(stamp(), [INSERT], ["v"], [b"1"])
    second = block.encode_rows(stamp(previous=first.checksum, offset=512 + first.size), [INSERT], ["v"], [b"2"])
    assert header_of(first).previous == BASE_CHAIN
    assert header_of(second).previous == first.checksum == header_of(first).checksum


def table(heading: str) -> list[tuple[int, int, str]]:
    """The first table under a heading of the page, as (offset, bytes, what)."""
    section = FORMAT.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (.+) \|$", section, re.MULTILINE)
    return [(int(offset), int(size), what) for offset, size, what in rows]


def test_the_page_gives_the_offset_and_size_of_every_field_of_the_header() -> None:
    documented = table("Block")
    codes = re.findall(r"\d*[a-zA-Z]", HEADER.format)
    sizes = [calcsize(f"<{code}") for code in codes]
    offsets = np.cumsum([0, *sizes])[:-1].tolist()
    assert [(offset, size) for offset, size, _ in documented] == list(zip(offsets, sizes, strict=True))
    assert len(documented) == len(block.Header._fields)
    assert f"| {block.HEADER_SIZE} | | meta, padding, payload" in FORMAT.read_text()
    words = [what for _, _, what in documented]
    assert "`TGB1`" in words[1] and block.MAGIC == b"TGB1"
    assert words[2] == f"version, {block.VERSION}"
    assert f"{ROWS} rows, {ARROW} Arrow" in words[3]


def test_the_page_gives_the_number_of_every_flag_and_type() -> None:
    text = " ".join(FORMAT.read_text().split())
    assert (
        f"Flags: {MIXED_TYPES} mixed types, {MIXED_VCHANNELS} mixed virtual channels, {HAS_TXNS} transaction ids,"
        f" {SPARSE} sparse" in text
    )
    assert f", {HAS_TICK} a time tick, alone." in text
    listed = re.search(r"\*\*Types\*\*: ([^.]+)\.", text)
    assert listed is not None
    words = {"acknowledgement": "ACK", "time tick": "TIME_TICK"}
    found = {}
    for each in listed[1].split(", "):
        number, _, word = each.partition(" ")
        found[words.get(word, word.upper())] = int(number)
    assert found == {kind.name: int(kind) for kind in MessageType}
