"""States, records and snapshots of the coordinator: transactions.md 1.1 and 1.3. The bytes are fixed here."""

from __future__ import annotations

import json

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.txn.coordinator_records import (
    VERSION,
    Aborting,
    Committing,
    Ended,
    Opening,
    Record,
    Registered,
    Snapshot,
    Totals,
    Transaction,
    TxnState,
    decode,
    decode_snapshot,
    encode,
    encode_snapshot,
)
from tidegate.txn.txn_id import TxnId

ID = TxnId.make(1, 0xAB)
OPENING = Opening("ann", 1000, 61_000)

ALLOWED = {
    "open": {"open", "committing", "aborting"},
    "committing": {"committing", "committed"},
    "aborting": {"aborting", "aborted"},
    "committed": {"committed"},
    "aborted": {"aborted"},
}


@pytest.mark.parametrize("old", TxnState)
@pytest.mark.parametrize("new", TxnState)
def test_fact_1_of_all_25_pairs_of_states_only_the_allowed_ones_are_steps(old: TxnState, new: TxnState) -> None:
    """transactions.md fact 1 and section 1.1."""
    assert old.may_become(new) == (new.value in ALLOWED[old.value])


def test_there_are_five_states_and_two_of_them_are_final() -> None:
    assert sorted(TxnState) == sorted(ALLOWED)
    assert {state for state in TxnState if state.has_ended} == {TxnState.COMMITTED, TxnState.ABORTED}


GOLDEN: list[tuple[Record, str, bytes]] = [
    (
        Registered(ID, ("channel/c0", "channel/c1"), OPENING),
        '{"do":"register","id":"1-ab","in":["channel/c0","channel/c1"],"open":["ann",1000,61000]}',
        b"",
    ),
    (Registered(ID, ("channel/c2",)), '{"do":"register","id":"1-ab","in":["channel/c2"]}', b""),
    (
        Committing(ID, Timestamp(77), ("channel/c0",), OPENING, b"\x00\xff plan"),
        '{"do":"commit","id":"1-ab","in":["channel/c0"],"open":["ann",1000,61000],"at":77}',
        b"\x00\xff plan",
    ),
    (Aborting(ID, "über"), '{"do":"abort","id":"1-ab","why":"über"}', b""),
    (Ended(ID, TxnState.COMMITTED, 5000), '{"do":"end","id":"1-ab","as":"committed","ms":5000}', b""),
    (Ended(ID, TxnState.ABORTED, 5000), '{"do":"end","id":"1-ab","as":"aborted","ms":5000}', b""),
]


@pytest.mark.parametrize(("record", "head", "blob"), GOLDEN, ids=lambda each: type(each).__name__)
def test_a_record_is_a_version_a_length_a_head_and_the_raw_plan(record: Record, head: str, blob: bytes) -> None:
    raw = head.encode()
    assert encode(record) == b"\x01" + len(raw).to_bytes(4, "big") + raw + blob
    assert decode(encode(record)) == record


def test_a_plan_of_a_mebibyte_is_stored_as_it_is() -> None:
    plan = bytes(range(256)) * 4096
    raw = encode(Committing(ID, Timestamp(77), ("channel/c0",), OPENING, plan))
    assert len(raw) < len(plan) + 200
    again = decode(raw)
    assert isinstance(again, Committing)
    assert again.plan == plan


def test_any_text_survives_a_record() -> None:
    record = Registered(ID, ('subscription/a b/"c"', "\ud800"), Opening("\n\x00☃", 1, 2))
    assert decode(encode(record)) == record


def test_a_record_of_a_newer_version_says_so() -> None:
    raw = encode(Aborting(ID))
    with pytest.raises(InvalidArgument, match=f"version {VERSION + 1}; open it with the newer Tidegate"):
        decode(bytes((VERSION + 1,)) + raw[1:])


def _framed(head: bytes) -> bytes:
    return b"\x01" + len(head).to_bytes(4, "big") + head


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01",
        b"\x00\x00\x00\x00\x02{}",
        encode(Aborting(ID))[:-1],
        _framed(b"{}"),
        _framed(b"[]"),
        _framed(b"not json"),
        _framed(b"\xff\xfe"),
        _framed(json.dumps({"do": "dance", "id": "1-ab"}).encode()),
        _framed(json.dumps({"do": "abort", "id": "1-0", "why": ""}).encode()),
        _framed(json.dumps({"do": "end", "id": "1-ab", "as": "open", "ms": 1}).encode()),
        _framed(json.dumps({"do": "end", "id": "1-ab", "as": "gone", "ms": 1}).encode()),
        _framed(json.dumps({"do": "register", "id": "1-ab", "in": [], "open": ["ann"]}).encode()),
        _framed(json.dumps({"do": "commit", "id": "1-ab", "in": [], "open": ["a", 1, 2], "at": -1}).encode()),
    ],
)
def test_bytes_that_are_no_record_break_an_invariant_and_never_pass(raw: bytes) -> None:
    with pytest.raises(InvariantBroken, match="record cannot be read"):
        decode(raw)


def test_a_snapshot_reads_back_with_every_field_and_each_plan_with_its_transaction() -> None:
    live = (
        Transaction(TxnId.make(1, 5), "ann", 1, 2, TxnState.OPEN, ("channel/a",), True),
        Transaction(TxnId.make(1, 6), "", 3, 4, TxnState.COMMITTING, ("b", "c"), True, Timestamp(9), plan=b"six\x00"),
        Transaction(TxnId.make(1, 7), "", 3, 4, TxnState.COMMITTING, (), True, Timestamp(0), plan=b"seven"),
        Transaction(TxnId.make(1, 8), "", 3, 4, TxnState.ABORTING, ("d",), True, None, "timeout"),
    )
    ended = (
        Transaction(TxnId.make(1, 4), "bo", 1, 2, TxnState.ABORTED, (), False, None, "lease", 50),
        Transaction(TxnId.make(1, 3), "bo", 1, 2, TxnState.COMMITTED, ("a",), True, Timestamp(8), "", 60),
    )
    snapshot = Snapshot(1, 99, Totals(9, 3, 2, 1), live, ended)
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_a_damaged_snapshot_is_not_read_as_something_else() -> None:
    raw = encode_snapshot(Snapshot(1, 99, Totals(), (), ()))
    assert decode_snapshot(raw).largest == 99
    for broken in (b"", raw[:-1], raw + b"x", raw[:8] + b"\x00\x00" + raw[10:], _framed(b"{}")):
        with pytest.raises(InvariantBroken, match="snapshot cannot be read"):
            decode_snapshot(broken)
    with pytest.raises(InvalidArgument, match="newer Tidegate"):
        decode_snapshot(b"\x02" + raw[1:])
