"""The durable part of a subscription: records as bytes, and their fold. Seed 002, "Pending acknowledge state"."""

from __future__ import annotations

import pytest

from tidegate.errors import Corruption, InvalidArgument
from tidegate.topics import sub_records as records
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.txn.txn_id import TxnId

T1, T2 = (TxnId.make(0, n).to_bytes16() for n in (1, 2))


def m(n: int, shard: int = 0) -> MessageId:
    return MessageId(shard, 1000 + n, n)


def fold(*applied: bytes | tuple[bytes, bytes]) -> Acknowledgements:
    acks = Acknowledgements()
    for each in applied:
        acks.apply(*each) if isinstance(each, tuple) else acks.apply(each)
    return acks


# -- ids and records -------------------------------------------------------------------------------------------------


def test_ids_of_a_transaction_share_its_timestamp_and_are_ordered_by_position() -> None:
    assert MessageId(0, 50, 9) < MessageId(0, 60, 1) < MessageId(0, 60, 2)


@pytest.mark.parametrize(
    "text", ["", "1:2", "1:2:3:4", "a:1:2", "-1:1:1", "1: 2:3", "٣:1:1", f"{1 << 32}:1:1", f"1:{1 << 64}:1"]
)
def test_what_is_not_an_id_is_refused_and_named(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a message id"):
        MessageId.parse(text)


def test_an_acknowledgement_of_a_hundred_messages_takes_less_than_a_kilobyte() -> None:
    base = 1_700_000_000_000 << 18
    ids = [MessageId(7, base + n * (1 << 18), 5_000_000 + 3 * n) for n in range(100)]
    assert len(records.ack(ids)) < 1000
    assert records.decode(records.ack(ids)).ids == tuple(ids)


def test_the_bytes_of_a_record_are_fixed() -> None:
    """Logs outlive the code that wrote them: a change of these bytes takes a new version."""
    assert records.pending(T1, [MessageId(2, 300, 7), MessageId(2, 301, 9)]).hex() == (
        "0104"
        + "00" * 15
        + "01"
        + "01000000"
        + "0200000002000000"
        + "2c01000000000000"
        + "010001"
        + "0700000000000000"
        + "010002"
    )
    assert records.release(T2).hex() == "0106" + "00" * 15 + "02"


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_record_that_is_cut_short_is_corrupt(cut: int) -> None:
    whole = records.pending(T1, [m(1), m(2), m(9, 4)])
    with pytest.raises(Corruption):
        records.decode(whole[: len(whole) - cut])


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (b"\x02" + records.ack([m(1)])[1:], "version 2 is not known"),
        (b"\x01\x63" + records.ack([m(1)])[2:], "kind 99 is not known"),
        (records.ack([m(1)]) + b"\0", "1 bytes too many"),
        (records.ack_ranges([m(1)]), "range without an end"),
        (b"\x01\x01\x01\0\0\0\0\0\0\0\xff\xff\xff\xff" + b"\0" * 18, "times the same message"),
    ],
)
def test_bytes_that_are_no_record_are_named_as_damaged(damaged: bytes, why: str) -> None:
    with pytest.raises(Corruption, match=why):
        Acknowledgements().apply(damaged)


def test_a_transaction_id_has_sixteen_bytes() -> None:
    with pytest.raises(InvalidArgument, match="16 bytes"):
        records.pending(b"short", [m(1)])


# -- the fold --------------------------------------------------------------------------------------------------------


def test_a_committed_transaction_acknowledges_what_was_pending_for_it() -> None:
    """transactions.md 3.4: its ACK record becomes visible with its commit."""
    acks = fold(records.pending(T1, [m(1), m(2)]), records.pending(T2, [m(3)]), (records.ack([m(1), m(2)]), T1))
    assert [acks.is_acknowledged(m(n)) for n in (1, 2, 3)] == [True, True, False]
    assert acks.pending_txns() == [T2]


def test_an_aborted_transaction_leaves_nothing_behind() -> None:
    """transactions.md 3.5."""
    acks = fold(records.pending(T1, [m(1)]), records.pending_cumulative(T1, [m(5)]), records.release(T1))
    assert acks.pending_txns() == []
    assert acks.snapshot() == Acknowledgements().snapshot()


def test_pending_survives_a_restart() -> None:
    """Seed 002: a new broker restores the state from the log. Fact 39."""
    acks = Acknowledgements.restore(
        fold(records.pending(T1, [m(2)]), records.pending_cumulative(T2, [m(9, 1)])).snapshot()
    )
    assert (acks.pending_for(m(2)), acks.pending_for(m(3))) == (T1, None)
    assert (acks.pending_for(m(4, 1)), acks.pending_for(m(10, 1))) == (T2, None)
    assert acks.single_pending_for(m(4, 1)) is None


def test_pending_of_what_is_acknowledged_has_no_effect() -> None:
    """A record that is read again must not bring back what a commit has decided."""
    acks = fold(records.pending(T1, [m(1)]), (records.ack([m(1)]), T1), records.pending(T1, [m(1)]))
    assert acks.pending_txns() == []


def test_the_order_in_which_an_abort_and_the_next_holder_are_recorded_does_not_matter() -> None:
    """An abort takes effect in memory first, and appends of two threads may pass each other."""
    first, second, released = records.pending(T1, [m(1)]), records.pending(T2, [m(1)]), records.release(T1)
    for order in ((first, released, second), (first, second, released), (second, first, released)):
        assert fold(*order).pending_for(m(1)) == T2
    # Here the coordinator says at recovery that T1 is over.
    acks = fold(second, released, first)
    assert acks.pending_txns() == [T1, T2]
    acks.release(T1)
    assert acks.pending_for(m(1)) == T2


def test_the_same_holds_for_cumulative_acknowledgements() -> None:
    acks = fold(records.pending_cumulative(T2, [m(5)]), records.pending_cumulative(T1, [m(7)]))
    assert Acknowledgements.restore(acks.snapshot()).pending_txns() == [T1, T2]
    acks.release(T1)
    assert (acks.pending_for(m(5)), acks.pending_for(m(6))) == (T2, None)


def test_the_same_transaction_extends_its_cumulative_acknowledgement_and_never_shortens_it() -> None:
    """Fact 35."""
    acks = fold(records.pending_cumulative(T1, [m(6)]), records.pending_cumulative(T1, [m(3)]))
    assert acks.cumulative() == {0: (T1, m(6))}
    acks.apply(records.ack_cumulative([m(6)]), T1)
    assert (acks.cumulative(), acks.marks()) == ({}, {0: m(6)})


def test_a_mark_swallows_what_lies_at_or_below_it() -> None:
    acks = fold(records.ack([m(2), m(5)]), records.pending(T1, [m(3)]), records.ack_cumulative([m(4)]))
    assert acks.acked_above_mark == 1
    assert acks.pending_txns() == []
    assert all(acks.is_acknowledged(m(n)) for n in (1, 2, 3, 4, 5))
    assert not acks.is_acknowledged(m(6))


def test_shards_have_nothing_to_do_with_each_other() -> None:
    acks = fold(records.ack_cumulative([m(4, 1)]), records.ack([m(2, 2)]))
    assert acks.marks() == {1: m(4, 1)}
    assert not acks.is_acknowledged(m(2, 0))
    assert not acks.is_acknowledged(m(1, 2))


def test_ranges_say_what_single_ids_said_and_survive_a_snapshot() -> None:
    acks = fold(records.ack([m(n) for n in (2, 3, 4, 7, 8)]))
    acks.merge(0, [(m(2), m(4)), (m(7), m(8))], [m(n) for n in (2, 3, 4, 7, 8)], m(8))
    again = Acknowledgements.restore(acks.snapshot())
    for each in (acks, again):
        assert [n for n in range(10) if each.is_acknowledged(m(n))] == [2, 3, 4, 7, 8]
        assert each.acked_above_mark == 2
    acks.acknowledge_cumulative(m(3))
    assert acks.marks() == {0: m(4)}, "the mark takes the whole range it falls into"


@pytest.mark.parametrize("damage", [lambda s: b"\x09" + s[1:], lambda s: s[:-3], lambda s: s + b"\1\0", lambda s: b""])
def test_a_damaged_snapshot_is_refused(damage) -> None:
    with pytest.raises(Corruption):
        Acknowledgements.restore(damage(fold(records.ack([m(1)])).snapshot()))
