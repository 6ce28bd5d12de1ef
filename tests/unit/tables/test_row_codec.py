"""Compact rows: their bytes are fixed for ever, they hold every type, and nothing else is taken for one."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.tables.row_codec import RowCodec
from tidegate.tables.row_decode import decode_bodies, versions_of
from tidegate.tables.schema import Column, TableSchema

ACCOUNTS = TableSchema(
    3,
    Timestamp(1),
    (
        Column(1, "id", pa.int64(), nullable=False),
        Column(2, "owner", pa.string()),
        Column(3, "open", pa.bool_()),
        Column(4, "note", pa.binary()),
    ),
    (1,),
)
EVERYTHING = TableSchema(
    1,
    Timestamp(1),
    tuple(
        Column(at, f"c{at}", kind)
        for at, kind in enumerate([
            pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
            pa.decimal128(38, 4), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
            pa.list_(pa.decimal128(9, 2)), pa.struct([("when", pa.timestamp("us", "UTC")), ("raw", pa.binary())]),
            pa.map_(pa.string(), pa.list_(pa.date32())),
        ])
    ),
)  # fmt: skip
EVERY_VALUE: tuple[Any, ...] = (
    True, -128, 32767, -(1 << 31), (1 << 63) - 1, 0.5, -0.0,
    Decimal("-9999999999999999999999999999999999.9999"), "Grüße 👋", b"\0\xff", dt.date(1, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    [Decimal("1.50"), None, Decimal("-0.01")], {"when": dt.datetime(2024, 2, 29, tzinfo=dt.UTC), "raw": None},
    [("a", [dt.date(2024, 1, 1), None]), ("b", None), ("", [])],
)  # fmt: skip


def bodies(*each: bytes) -> pa.Array:
    return pa.array(each, pa.binary())


def test_the_bytes_of_a_row_never_change():
    """Golden bytes: format 1, a row, version 3, NULL bits, id, open, two ends, then the parts."""
    assert RowCodec(ACCOUNTS).encode((258, "ann", True, b"\1\2")) == bytes.fromhex(
        "01 00 03 00 0201000000000000 01 03000000 05000000 616e6e 0102"
    )
    assert RowCodec(ACCOUNTS).encode((-1, None, None, b"")) == bytes.fromhex(
        "01 00 03 06 ffffffffffffffff 00 00000000 00000000"
    )
    assert RowCodec(ACCOUNTS, key_only=True).encode((7,)) == bytes.fromhex("01 01 03 00 0700000000000000")


def test_the_bytes_of_nested_values_never_change():
    kind = pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.int16()), ("b", pa.decimal128(5, 1))])))
    schema = TableSchema(300, Timestamp(1), (Column(1, "m", kind),))
    row = ([("k", [{"a": 1, "b": None}, None, {"a": None, "b": Decimal("-0.1")}]), ("", None)],)
    expected = bytes.fromhex(
        "01 00 ac02 00"  # version 300 takes two bytes
        "1d000000"
        "02 00 01 6b 00"  # two keys, none NULL: "k" and ""
        "02 02"  # two values, the second NULL
        "03 02 02 0100 01 ffffffffffffffffffffffffffffffff"
    )
    assert RowCodec(schema).encode(row) == expected
    assert decode_bodies(schema, bodies(expected)).to_pylist() == [{"m": row[0]}]


def test_every_type_comes_back_exactly():
    """Issue 4: the types that Spark, Arrow, Parquet and DuckDB share; promise 6."""
    nothing = (None,) * len(EVERY_VALUE)
    codec = RowCodec(EVERYTHING)
    read = decode_bodies(EVERYTHING, bodies(codec.encode(EVERY_VALUE), codec.encode(nothing)))
    assert [tuple(row.values()) for row in read.to_pylist()] == [EVERY_VALUE, nothing]
    assert str(read.column(6)[0]) == "-0.0"
    assert read.schema.equals(EVERYTHING.arrow, check_metadata=True)


def test_bytes_of_several_versions_are_told_apart():
    """DDL in the timeline: a message is read by the schema of its time."""
    later = [TableSchema(number, Timestamp(1), ACCOUNTS.columns, (1,)) for number in (1, 127, 128, (1 << 32) - 1)]
    found = versions_of(bodies(*(RowCodec(each).encode((1, "a", None, None)) for each in later)))
    assert found.tolist() == [1, 127, 128, (1 << 32) - 1]
    assert versions_of(bodies()).tolist() == []
    assert decode_bodies(ACCOUNTS, bodies()).schema.equals(ACCOUNTS.arrow)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"", "too short"),
        (b"\x01\x00", "too short"),
        (b'{"id": 1, "owner": "ann", "open": true}', "format"),
        (bytes.fromhex("01 02 03"), "neither a row nor a key"),
        (bytes.fromhex("01 00 83"), "ends inside its header"),
        (bytes.fromhex("01 00 ffffffffff 01"), "32 bits"),
        (bytes.fromhex("01 00 04 00 0201000000000000 01 03000000 05000000 616e6e 0102"), "not of schema version 3"),
        (bytes.fromhex("01 01 03 00 0201000000000000 01 03000000 05000000 616e6e 0102"), "not of schema version 3"),
        (bytes.fromhex("01 00 03 00 0201000000000000 01 03000000 05000000 616e6e 01"), "longer or shorter"),
        (bytes.fromhex("01 00 03 00 0201000000000000 01 06000000 05000000 616e6e 0102"), "overlap"),
        (bytes.fromhex("01 00 03 10 0201000000000000 01 03000000 05000000 616e6e 0102"), "behind its last column"),
        (bytes.fromhex("01 00 03 01 0201000000000000 01 03000000 05000000 616e6e 0102"), "NULL in column 'id'"),
        (bytes.fromhex("01 00 03 02 0201000000000000 01 03000000 05000000 616e6e 0102"), "'owner', which is NULL"),
        (bytes.fromhex("01 00 03 00 0201000000000000 02 03000000 05000000 616e6e 0102"), "neither true nor false"),
        (bytes.fromhex("01 00 03 00 0201000000000000 01 03000000 05000000 ff6e6e 0102"), "UTF"),
    ],
)
def test_bytes_that_are_no_row_are_refused_with_the_reason(wrong, why):
    """Never garbage: a reader gets the row that was written or an error."""
    good = RowCodec(ACCOUNTS).encode((1, "a", None, None))
    with pytest.raises(InvariantBroken, match=why):
        versions_of(bodies(good, wrong))
        decode_bodies(ACCOUNTS, bodies(good, wrong))


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("02 00 0100", "bytes are no value"),  # two elements said, one there
        ("01 00 0100 00", "which ends at byte 4"),
        ("01 02 0100", "NULL bits behind the last of 1 parts"),
        ("ff7f 00", "bytes wanted"),
        ("80", "index out of range"),
    ],
)
def test_nested_bytes_that_are_no_value_are_refused(part, why):
    schema = TableSchema(1, Timestamp(1), (Column(1, "a", pa.list_(pa.int16())),))
    head, raw = bytes.fromhex("01 00 01 00"), bytes.fromhex(part)
    assert RowCodec(schema).encode(([1],)) == head + bytes.fromhex("04000000 01 00 0100")
    with pytest.raises(InvariantBroken, match=why):
        decode_bodies(schema, bodies(head + len(raw).to_bytes(4, "little") + raw))


def test_decimals_beyond_their_precision_are_no_rows():
    schema = TableSchema(1, Timestamp(1), (Column(1, "d", pa.decimal128(3, 1)),))
    body = RowCodec(schema).encode((Decimal("99.9"),))
    assert decode_bodies(schema, bodies(body)).to_pylist() == [{"d": Decimal("99.9")}]
    with pytest.raises(InvariantBroken, match="hold what no column holds"):
        decode_bodies(schema, bodies(body[:4] + (1000).to_bytes(16, "little")))


def test_many_long_strings_are_gathered_in_steps():
    """Bounds on everything: the index for gathering is made for 4 MiB at a time, and no value is cut by a step."""
    rows = [(number, chr(97 + number % 26) * (number % 5) * 300_000, None, None) for number in range(20)]
    codec = RowCodec(ACCOUNTS)
    read = decode_bodies(ACCOUNTS, bodies(*(codec.encode(each) for each in rows)))
    assert read.column("owner").to_pylist() == [each[1] for each in rows]


def test_a_row_with_too_few_or_wrong_values_is_refused_by_name():
    codec = RowCodec(ACCOUNTS)
    with pytest.raises(InvalidArgument, match="row 4 has 2 values for 4 columns: id, owner, open, note"):
        codec.encode((1, "a"), 4)
    with pytest.raises(InvalidArgument, match=r"row 4, column 'id' \(BIGINT\): it is NULL and may not be"):
        codec.encode((None, "a", None, None), 4)
    with pytest.raises(InvalidArgument, match=r"row 0, column 'id' \(BIGINT\): 9223372036854775808 is out of range"):
        codec.encode((1 << 63, "a", None, None))
    with pytest.raises(InvalidArgument, match=r"column 'owner' \(STRING\): .* half a surrogate pair"):
        codec.encode((1, "\ud800", None, None))


def test_a_table_without_a_key_has_no_keys_to_encode():
    with pytest.raises(InvalidArgument, match="without a primary key only grows"):
        RowCodec(EVERYTHING, key_only=True)


def test_a_type_that_no_table_has_is_refused():
    with pytest.raises(InvalidArgument, match="uint8 is not one of a column"):
        RowCodec(TableSchema(1, Timestamp(1), (Column(1, "c", pa.uint8()),)))
