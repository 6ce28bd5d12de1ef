"""Where rows go: by a stable hash of their key, which is promised for ever."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from tidegate.errors import InvalidArgument
from tidegate.tables.schema import Column
from tidegate.tables.shards import key_of, shards_of_rows, split_by_shard
from tidegate.topics.routing import hash_key, shard_of


def column(kind: pa.DataType) -> Column:
    return Column(1, "k", kind, nullable=False)


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (pa.int8(), -1, -1),
        (pa.string(), "ann", "ann"),
        (pa.binary(), b"ann", b"ann"),
        (pa.bool_(), True, 1),
        (pa.date32(), dt.date(1970, 1, 3), 2),
        (pa.timestamp("us", "UTC"), dt.datetime(1970, 1, 1, 0, 0, 1), 1_000_000),
        (pa.timestamp("us"), dt.datetime(1969, 12, 31, 23, 59, 59), -1_000_000),
        (pa.decimal128(10, 2), Decimal("-0.01"), b"\xff" * 16),
        (pa.decimal128(38, 0), Decimal(258), b"\2\1" + bytes(14)),
    ],
)
def test_keys_of_every_type_have_one_form_for_ever(kind, value, key):
    """Rows are routed by a stable hash of the key (issue 4): what this gives may never change."""
    assert key_of([column(kind)], [value]) == key
    assert type(key_of([column(kind)], [value])) is type(key)
    batch = pa.record_batch({"k": pa.array([value, value], kind)})
    for shards in (1, 2, 7, 1000):
        assert shards_of_rows(batch, ["k"], shards).tolist() == [hash_key(key) % shards] * 2


def test_a_slice_of_decimals_is_routed_by_its_own_values():
    values = [Decimal(each) for each in range(10)]
    batch = pa.record_batch({"k": pa.array(values, pa.decimal128(9, 1))}).slice(3, 4)
    alone = [shard_of(key_of([column(pa.decimal128(9, 1))], [each]), 5) for each in values[3:7]]
    assert shards_of_rows(batch, ["k"], 5).tolist() == alone


def test_rows_keep_their_order_within_a_shard():
    """Order within a batch (seed 004): insert, delete, insert of one key stay in that order."""
    batch = pa.record_batch({"k": [number % 10 for number in range(1000)], "at": list(range(1000))})
    parts = split_by_shard(batch, ["k"], 3)
    assert [shard for shard, _ in parts] == [0, 1, 2]
    for shard, rows in parts:
        assert rows.column("at").to_pylist() == sorted(rows.column("at").to_pylist())
        assert {shard_of(each, 3) for each in rows.column("k").to_pylist()} == {shard}
    assert sum(rows.num_rows for _, rows in parts) == 1000


def test_shards_without_rows_are_left_out_and_one_shard_gets_the_batch_itself():
    batch = pa.record_batch({"k": [5, 5, 5]})
    ((shard, rows),) = split_by_shard(batch, ["k"], 8)
    assert (shard, rows) == (shard_of(5, 8), batch)
    assert split_by_shard(batch.slice(0, 0), ["k"], 8) == []
    assert split_by_shard(batch, ["k"], 1)[0] == (0, batch)


def test_rows_without_a_key_go_round_the_shards_by_turns():
    batch = pa.record_batch({"a": [1, 2]})
    assert [split_by_shard(batch, [], 3, turn=turn)[0][0] for turn in range(4)] == [0, 1, 2, 0]


def test_keys_that_cannot_be_compared_in_every_engine_are_refused():
    with pytest.raises(InvalidArgument, match="column 'k' is DOUBLE and cannot be part of a key"):
        key_of([column(pa.float64())], [1.0])
    with pytest.raises(InvalidArgument, match="column 'k' is DOUBLE and cannot be part of a key"):
        split_by_shard(pa.record_batch({"k": [1.0, 2.0]}), ["k"], 2)
    with pytest.raises(
        InvalidArgument, match=r"row 3, column 'k' \(BIGINT\): it is part of the key and may not be NULL"
    ):
        key_of([column(pa.int64())], [None], 3)
    with pytest.raises(InvalidArgument, match="at least one shard"):
        split_by_shard(pa.record_batch({"k": [1]}), ["k"], 0)
