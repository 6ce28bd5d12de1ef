"""`Batch`: columns that stay together, whatever is cut out, reordered, filtered, joined or handed to Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from log_builders import TXN, batch

from tidegate.log.batch import BODY_SCHEMA, Batch, body_rows, concat
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType, Position, Term

INSERT, UPSERT, DELETE = MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE


def five() -> Batch:
    """No two messages alike, so that a column that lags behind the others shows."""
    made = batch(
        [50, 10, 40, 20, 30],
        positions=[1, 2, 4, 8, 16],
        vchannels=["a", "b", "a", "c", "b"],
        types=[INSERT, UPSERT, DELETE, INSERT, DELETE],
        txns=[None, TXN, None, None, TXN[::-1]],
    )
    made.last_confirmed[:] = [0, 1, 2, 3, 4]
    return made


def test_messages_carry_everything_their_columns_say() -> None:
    second = list(five().messages())[1]
    assert second == Message(10, Position(2), Position(1), UPSERT, "b", Term(1), body=b"10", txn=TXN)
    assert type(second.type) is MessageType


def test_a_message_has_a_body_or_a_row_never_both() -> None:
    rows = pa.RecordBatch.from_pydict({"n": [7]})
    (message,) = batch([1], rows=rows).messages()
    assert (message.body, message.row) == (None, {"n": 7})
    (message,) = batch([1]).messages()
    assert (message.body, message.row) == (b"1", None)


def test_a_column_named_body_of_another_type_is_a_row() -> None:
    """Only what was appended as bytes comes back as bytes."""
    (message,) = batch([1], rows=pa.RecordBatch.from_pydict({"body": ["text"]})).messages()
    assert (message.body, message.row) == (None, {"body": "text"})


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 4), (2, 2), (4, 5), (0, 0)])
def test_a_slice_is_the_messages_between(start: int, stop: int) -> None:
    assert list(five().slice(start, stop).messages()) == list(five().messages())[start:stop]


def test_a_slice_of_a_slice_counts_from_the_slice() -> None:
    assert list(five().slice(1, 5).slice(1, 3).messages()) == list(five().messages())[2:4]


def test_a_slice_copies_nothing() -> None:
    whole = five()
    part = whole.slice(1, 3)
    assert np.shares_memory(part.time_ticks, whole.time_ticks)
    assert part.rows.column(0).buffers()[2].address == whole.rows.column(0).buffers()[2].address


def test_take_gives_the_messages_asked_for_in_that_order() -> None:
    all_ = list(five().messages())
    assert list(five().take(np.array([4, 0, 2])).messages()) == [all_[4], all_[0], all_[2]]
    assert len(five().take(np.array([], np.intp))) == 0


def test_take_works_on_a_slice() -> None:
    all_ = list(five().messages())
    assert list(five().slice(2, 5).take(np.array([2, 0])).messages()) == [all_[4], all_[2]]


def test_where_keeps_order_and_returns_itself_when_nothing_is_dropped() -> None:
    whole = five()
    assert whole.where(np.ones(5, bool)) is whole
    kept = whole.where(whole.time_ticks >= 30)
    assert [int(each.time_tick) for each in kept.messages()] == [50, 40, 30]
    assert [each.body for each in kept.messages()] == [b"50", b"40", b"30"]


def test_one_virtual_channel_is_its_messages_and_those_meant_for_all() -> None:
    mixed = batch([1, 2, 3, 4], vchannels=["a", ALL_VCHANNELS, "b", "a"])
    found = mixed.only_vchannel("b")
    assert found is not None
    assert [each.vchannel for each in found.messages()] == [ALL_VCHANNELS, "b"]
    other = mixed.only_vchannel("unknown")
    assert other is not None and [int(each) for each in other.time_ticks] == [2]


def test_a_virtual_channel_without_messages_is_none_not_an_empty_batch() -> None:
    """Nobody downstream has to ask whether there is a first message."""
    assert five().only_vchannel("unknown") is None
    assert five().slice(0, 1).only_vchannel("b") is None, "the name is still in the table, but no message is left"


def test_a_batch_of_one_virtual_channel_passes_untouched() -> None:
    whole = batch([1, 2])
    assert whole.only_vchannel("v") is whole


def test_sorted_means_strictly_ascending() -> None:
    """No two messages of a channel share a TimeTick, so equal neighbours are no order to rely on."""
    assert batch([1, 2, 9]).is_sorted and batch([7]).is_sorted
    assert not batch([2, 1]).is_sorted
    assert not batch([1, 1]).is_sorted


def test_sorting_is_exact_for_the_largest_time_ticks() -> None:
    assert batch([(1 << 64) - 2, (1 << 64) - 1]).is_sorted
    assert not batch([(1 << 64) - 1, (1 << 64) - 2]).is_sorted


def test_joining_keeps_every_message_and_renumbers_virtual_channels() -> None:
    parts = [five(), batch([60, 70], vchannels=["z", "b"]), batch([80], vchannels=["a"])]
    joined = concat(parts)
    assert list(joined.messages()) == [message for part in parts for message in part.messages()]
    assert sorted(joined.vchannels) == ["a", "b", "c", "z"]


def test_joining_with_and_without_transactions_leaves_the_others_without() -> None:
    joined = concat([batch([1]), batch([2], txns=[TXN]), batch([3])])
    assert [each.txn for each in joined.messages()] == [None, TXN, None]
    assert concat([batch([1]), batch([2])]).txns is None


def test_joining_slices_takes_only_what_is_in_them() -> None:
    joined = concat([five().slice(1, 2), five().slice(3, 5)])
    all_ = list(five().messages())
    assert list(joined.messages()) == [all_[1], all_[3], all_[4]]


def test_joining_one_batch_costs_nothing() -> None:
    whole = five()
    assert concat([whole]) is whole


def test_arrow_gets_the_system_columns_first_and_then_the_payload() -> None:
    rows = pa.RecordBatch.from_pydict({"id": [1, 2], "name": ["x", None]})
    made = batch([5, 6], rows=rows, vchannels=["a", "b"], txns=[None, TXN], types=[INSERT, DELETE])
    arrow = made.to_arrow()
    assert arrow.schema.names == [
        "_time_tick",
        "_position",
        "_last_confirmed",
        "_type",
        "_vchannel",
        "_txn",
        "id",
        "name",
    ]
    assert arrow.to_pylist() == [
        {"_time_tick": 5, "_position": 1, "_last_confirmed": 0, "_type": 2, "_vchannel": "a", "_txn": None,
         "id": 1, "name": "x"},
        {"_time_tick": 6, "_position": 2, "_last_confirmed": 0, "_type": 4, "_vchannel": "b", "_txn": TXN,
         "id": 2, "name": None},
    ]  # fmt: skip


def test_arrow_has_the_same_schema_whether_or_not_there_are_transactions() -> None:
    """So that batches of one stream can be put into one table."""
    without, with_ = batch([1]).to_arrow(), batch([2], txns=[TXN]).to_arrow()
    assert without.schema.equals(with_.schema)
    assert pa.Table.from_batches([without, with_]).num_rows == 2
    assert without.column("_txn").to_pylist() == [None]


def test_a_slice_hands_only_its_own_rows_to_arrow() -> None:
    arrow = five().slice(1, 3).to_arrow()
    assert arrow.column("body").to_pylist() == [b"10", b"40"]
    assert arrow.column("_vchannel").to_pylist() == ["b", "a"]


def test_bodies_are_one_column_of_bytes_that_may_be_empty_but_not_missing() -> None:
    rows = body_rows([b"", b"x"])
    assert rows.schema.equals(BODY_SCHEMA) and not BODY_SCHEMA.field(0).nullable
    assert rows.column(0).to_pylist() == [b"", b"x"]


def test_a_larger_batch_is_reckoned_to_cost_more() -> None:
    """Buffers are bounded by it, so a slice must not count what it leaves out."""
    whole = batch([1, 2, 3], rows=body_rows([b"x" * 1000, b"y", b"z"]))
    assert whole.nbytes > 1000
    assert whole.slice(1, 3).nbytes < 200
