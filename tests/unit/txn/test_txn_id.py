"""Transaction ids: seed 002 ("Transaction ID"), transactions.md section 0."""

from __future__ import annotations

import pickle

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.txn.txn_id import COORDINATOR_MAX, COUNTER_MAX, TxnId


def test_an_id_is_16_bits_of_coordinator_above_112_bits_of_counter() -> None:
    """Seed 002: the highest 16 bits name the coordinator."""
    id = TxnId.make(3, 0x18C2F)
    assert int(id) == 3 << 112 | 0x18C2F
    assert (id.coordinator, id.counter) == (3, 0x18C2F)


def test_the_bytes_of_an_id_are_16_big_endian_ones_and_read_back() -> None:
    id = TxnId.make(0x0102, 0x03)
    assert id.to_bytes16() == b"\x01\x02" + b"\x00" * 13 + b"\x03"
    assert TxnId.from_bytes16(id.to_bytes16()) == id
    assert type(TxnId.from_bytes16(id.to_bytes16())) is TxnId


@pytest.mark.parametrize(
    ("coordinator", "counter", "text"),
    [(0, 1, "0-1"), (7, 0xABC, "7-abc"), (COORDINATOR_MAX, COUNTER_MAX, f"65535-{'f' * 28}")],
)
def test_an_id_prints_short_and_is_read_back(coordinator: int, counter: int, text: str) -> None:
    id = TxnId.make(coordinator, counter)
    assert str(id) == text
    assert TxnId.parse(f" {text.upper()} ") == id


def test_ids_of_one_coordinator_sort_by_age_as_numbers_and_as_bytes() -> None:
    ids = [TxnId.make(c, n) for c in (0, 1, 2) for n in (1, 255, 256, int(Timestamp.MAX))]
    assert sorted(ids) == ids
    assert sorted(ids, key=TxnId.to_bytes16) == ids


@pytest.mark.parametrize(
    ("coordinator", "counter"), [(0, 0), (5, 0), (-1, 1), (COORDINATOR_MAX + 1, 1), (0, -1), (0, COUNTER_MAX + 1)]
)
def test_an_id_without_a_counter_or_out_of_range_is_refused(coordinator: int, counter: int) -> None:
    """Sixteen zero bytes stand for "no transaction" in the log, so counter 0 is nobody's."""
    with pytest.raises(InvalidArgument):
        TxnId.make(coordinator, counter)


@pytest.mark.parametrize("value", [0, -1, 1 << 112, 1 << 128])
def test_a_number_that_is_no_id_is_refused(value: int) -> None:
    with pytest.raises(InvalidArgument, match="128 bits"):
        TxnId(value)


@pytest.mark.parametrize("raw", [b"", b"\x00" * 16, b"\x01" * 15, b"\x01" * 17])
def test_bytes_that_are_no_id_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        TxnId.from_bytes16(raw)


@pytest.mark.parametrize("text", ["", "0", "0-", "-1", "0-xyz", "0-0", "65536-1", "1-1-1", "0-" + "f" * 29, "٣-1"])
def test_text_that_is_no_id_is_refused_and_says_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidArgument):
        TxnId.parse(text)
    with pytest.raises(InvalidArgument, match="0-18c2f"):
        TxnId.parse("txn")


def test_an_id_survives_pickling_as_an_id() -> None:
    again = pickle.loads(pickle.dumps(TxnId.make(2, 9)))
    assert type(again) is TxnId
    assert repr(again) == "TxnId('2-9')"
