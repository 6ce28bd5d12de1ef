"""PostgreSQL's pgoutput, versions 1 and 2 (capture.md section 4): messages as a server sends them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cdc.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Decoder,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    Said,
    StreamAbort,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from tidegate.errors import SourceUnreadable


def cells(*values: str | bytes | None) -> bytes:
    """A row, as a server writes it; "?" stands for a large value that was not sent."""
    found = struct.pack(">H", len(values))
    for each in values:
        if each is None:
            found += b"n"
        elif each == "?":
            found += b"u"
        else:
            data = each.encode() if isinstance(each, str) else each
            found += (b"t" if isinstance(each, str) else b"b") + struct.pack(">I", len(data)) + data
    return found


ORDERS = (
    struct.pack(">I", 16_385)
    + b"public\0orders\0d\0\2"
    + b"\1id\0" + struct.pack(">Ii", 20, -1)
    + b"\0note\0" + struct.pack(">Ii", 1043, 24)
)  # fmt: skip
RELATION = Relation(16_385, "public", "orders", "d", (Column("id", 20, -1, True), Column("note", 1043, 24, False)))
ORDER = struct.pack(">I", 16_385)
XID = struct.pack(">I", 731)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"B" + struct.pack(">QqI", 0x16B3748, 846_000_000_000_000, 730), Begin(0x16B3748, 846_000_000_000_000, 730)),
        (b"C\0" + struct.pack(">QQq", 10, 20, 30), Commit(10, 20, 30)),
        (b"R" + ORDERS, RELATION),
        (b"I" + ORDER + b"N" + cells("1", "tea"), Insert(16_385, ("1", "tea"))),
        (b"I" + ORDER + b"N" + cells("1", None), Insert(16_385, ("1", None))),
        (b"I" + ORDER + b"N" + cells("1", ""), Insert(16_385, ("1", ""))),
        (b"I" + ORDER + b"N" + cells("1", b"\0\xff"), Insert(16_385, ("1", b"\0\xff"))),
        (b"I" + ORDER + b"N" + cells("1", "Tür \u4e2d"), Insert(16_385, ("1", "Tür \u4e2d"))),
        # The key did not change: nothing of the row before; a large value that was not touched is not sent.
        (b"U" + ORDER + b"N" + cells("1", "?"), Update(16_385, None, False, ("1", UNCHANGED))),
        (
            b"U" + ORDER + b"K" + cells("1", None) + b"N" + cells("2", "tea"),
            Update(16_385, ("1", None), False, ("2", "tea")),
        ),
        (
            b"U" + ORDER + b"O" + cells("1", "tea") + b"N" + cells("1", "cup"),
            Update(16_385, ("1", "tea"), True, ("1", "cup")),
        ),
        (b"D" + ORDER + b"K" + cells("1", None), Delete(16_385, ("1", None), False)),
        (b"D" + ORDER + b"O" + cells("1", "tea"), Delete(16_385, ("1", "tea"), True)),
        (b"T" + struct.pack(">IBII", 2, 1, 16_385, 16_390), Truncate((16_385, 16_390))),
        (b"O" + struct.pack(">Q", 77) + b"upstream\0", Origin(77, "upstream")),
        (b"M\1" + struct.pack(">Q", 9) + b"app\0" + struct.pack(">I", 3) + b"a\0b", Said("app", b"a\0b", 9, True)),
        (b"Y" + struct.pack(">I", 90_000) + b"public\0mood\0", None),
    ],
)
def test_messages_of_version_1(data: bytes, expected: Message | None) -> None:
    assert Decoder().decode(data) == expected


def test_in_a_streamed_part_every_message_names_the_transaction_that_made_it() -> None:
    """Version 2: a subtransaction has a number of its own; outside of parts messages have none."""
    decoder = Decoder()
    sub = struct.pack(">I", 732)
    row = ORDER + b"N" + cells("1", "tea")
    sent = [
        b"S" + XID + b"\1", b"R" + XID + ORDERS, b"I" + XID + row, b"I" + sub + row,
        b"D" + sub + ORDER + b"K" + cells("1", None),
        b"T" + XID + struct.pack(">IBI", 1, 0, 16_385), b"E", b"A" + XID + sub, b"S" + XID + b"\0",
        b"M" + XID + b"\1" + struct.pack(">Q", 9) + b"p\0" + struct.pack(">I", 0), b"E",
        b"c" + XID + b"\0" + struct.pack(">QQq", 10, 20, 30), b"I" + row,
    ]  # fmt: skip
    assert [decoder.decode(each) for each in sent] == [
        StreamStart(731, True),
        Relation(RELATION.id, RELATION.schema, RELATION.name, "d", RELATION.columns, 731),
        Insert(16_385, ("1", "tea"), 731),
        Insert(16_385, ("1", "tea"), 732),
        Delete(16_385, ("1", None), False, 732),
        Truncate((16_385,), 731),
        StreamStop(),
        StreamAbort(731, 732),
        StreamStart(731, False),
        Said("p", b"", 9, True, 731),
        StreamStop(),
        Commit(10, 20, 30, 731),
        Insert(16_385, ("1", "tea")),
    ]


def test_a_table_of_the_system_has_its_schema_named() -> None:
    """A server sends no name for pg_catalog."""
    found = Decoder().decode(b"R" + struct.pack(">I", 1) + b"\0pg_class\0n\0\0")
    assert found == Relation(1, "pg_catalog", "pg_class", "n", ())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Z",
        b"B\0\0",
        b"I" + ORDER + b"X" + cells("1"),
        b"I" + ORDER + b"N" + cells("1")[:-1],
        b"I" + ORDER + b"N" + cells("1") + b"\0",
        b"U" + ORDER + b"Q" + cells("1"),
        b"R" + ORDERS[:-1],
        b"O" + struct.pack(">Q", 77) + b"unended",
        b"I" + ORDER + b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", 1) + b"\xff",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(SourceUnreadable, match="no message of pgoutput"):
        Decoder().decode(data)


@given(st.binary(max_size=60))
def test_junk_is_refused_or_is_a_message(junk: bytes) -> None:
    """Never another error."""
    try:
        Decoder().decode(junk)
    except SourceUnreadable as error:
        assert "pgoutput" in str(error)
