"""Routing: a key's hash and shard never change, by value or by column (topics: sharded by key, order per key)."""

from __future__ import annotations

import subprocess
import sys
from timeit import default_timer
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import InvalidArgument
from tidegate.topics.routing import hash_key, hash_keys, key_hash, key_hashes, place, shard_of, shards_of

GOLDEN: list[tuple[Any, int]] = [
    (0, 0xE220A8397B1DCDAF),  # the first number of splitmix64 from seed 0, as published
    (1, 0x910A2DEC89025CC1),
    (-1, 0xE4D971771B652C20),
    (9223372036854775807, 0x2A67D7552E039EA7),
    (-9223372036854775808, 0x481EC0A212A9F3DB),
    ("", 0x4DC5B0CC826F6703),
    ("1", 0x8B3B92F140BC40A5),
    ("ann", 0x48A15FB59BC5E5DC),
    ("größe", 0x8F1FFB5ACD549E45),
    (b"", 0xF36CF7ECD1FCFDA0),
    (b"1", 0x26EB36F3BCEA4819),
    (b"\x00\xff", 0x58A355C5F7315BA1),
    (("ann", 1), 0x4715CC6A20D9BEDE),
    ((1, "ann"), 0x09CF964BF0B80DF7),
    (("1",), 0xFD1BC2A50BAA39E7),
]


@pytest.mark.parametrize(("key", "expected"), GOLDEN, ids=[repr(key) for key, _ in GOLDEN])
def test_a_key_has_the_same_hash_for_ever(key: Any, expected: int) -> None:
    """Messages on disk lie in the shard their key had; another number would split a key's order in two."""
    assert hash_key(key) == expected


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = "from tidegate.topics.routing import hash_key, key_hash; print(hash_key('ann'), key_hash('t', ('a', 1)))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert seen == {f"{hash_key('ann')} {key_hash('t', ('a', 1))}\n"}


def test_the_same_characters_as_int_str_and_bytes_are_three_keys() -> None:
    assert len({hash_key(1), hash_key("1"), hash_key(b"1"), hash_key(("1",)), hash_key((1,))}) == 5
    assert hash_key(("a", "bc")) != hash_key(("ab", "c"))


def test_tables_do_not_share_key_hashes() -> None:
    assert key_hash("accounts", 1) == 0x2F1284056FD08B65
    assert key_hash("accounts", "1") == 0xDED2755319D1EB34
    assert key_hash("orders", 1) == 0x6262470FCBFD9A0B
    assert key_hash("accounts", (1, "a")) == 0x306A8669B48AD80E


@pytest.mark.parametrize("key", [1.5, True, None, ["a"], (1, None), 1 << 64, -(1 << 63) - 1, "\ud800"], ids=repr)
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidArgument, match="key"):
        hash_key(key)


COLUMNS = {
    "int8": pa.array([-128, 0, 127], pa.int8()),
    "int32": pa.array([-5, 0, 7], pa.int32()),
    "int64": pa.array([-(1 << 63), 0, (1 << 63) - 1], pa.int64()),
    "uint8": pa.array([0, 255], pa.uint8()),
    "uint64": pa.array([0, (1 << 64) - 1], pa.uint64()),
    "string": pa.array(["", "ann", "größe", "x" * 300], pa.string()),
    "large_string": pa.array(["a", "b"], pa.large_string()),
    "string_view": pa.array(["a", "more than twelve bytes"], pa.string_view()),
    "binary": pa.array([b"", b"\x00", b"\xff" * 20], pa.binary()),
    "large_binary": pa.array([b"x"], pa.large_binary()),
    "fixed_binary": pa.array([b"ab", b"cd"], pa.binary(2)),
    "dictionary": pa.array(["b", "a", "b"]).dictionary_encode(),
    "sliced": pa.array(["skip", "ann", "bo", "skip"]).slice(1, 2),
    "sliced ints": pa.array([9, 1, 2, 9]).slice(1, 2),
    "chunked": pa.chunked_array([["a", "b"], ["c"]]),
    "empty": pa.array([], pa.string()),
    "empty strings": pa.array(["", ""], pa.string()),
    "no chunks": pa.chunked_array([], pa.int64()),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())
def test_a_column_hashes_as_its_values_do(column: Any) -> None:
    values = column.to_pylist()
    assert hash_keys(column).tolist() == [hash_key(each) for each in values]
    assert shards_of(column, 7).tolist() == [shard_of(each, 7) for each in values]
    assert key_hashes("t", [column]).tolist() == [key_hash("t", each) for each in values]
    assert key_hashes("t", [column, column]).tolist() == [key_hash("t", (each, each)) for each in values]


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.text(), st.binary()), max_size=20))
@settings(max_examples=100, deadline=None)
def test_compound_keys_hash_the_same_by_row_and_by_column(rows: list[tuple[int, str, bytes]]) -> None:
    columns = [
        pa.array([row[index] for row in rows], kind)
        for index, kind in enumerate([pa.int64(), pa.string(), pa.binary()])
    ]
    assert key_hashes("t", columns).tolist() == [key_hash("t", row) for row in rows]


def test_a_null_key_is_refused_with_its_row() -> None:
    with pytest.raises(InvalidArgument, match="row 2 has no key"):
        hash_keys(pa.array([1, 2, None]))
    with pytest.raises(InvalidArgument, match="row 1 has no key"):
        hash_keys(pa.chunked_array([["a"], [None]]))


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not double"):
        hash_keys(pa.array([1.5]))
    with pytest.raises(InvalidArgument, match="'t' has no key columns"):
        key_hashes("t", [])


def test_keys_spread_evenly_over_shards() -> None:
    """Also keys that count up in steps of the number of shards, which a plain remainder would put into one."""
    for column in (pa.array(np.arange(0, 80_000, 8)), pa.array([f"user-{n}" for n in range(10_000)])):
        counts = np.bincount(shards_of(column, 8), minlength=8)
        assert 1100 < counts.min() <= counts.max() < 1400


def test_without_a_key_the_turn_decides() -> None:
    assert [shard_of(None, 3, turn=turn) for turn in range(5)] == [0, 1, 2, 0, 1]


def test_shards_of_a_topic_spread_over_channels_and_topics_begin_at_different_ones() -> None:
    assert [place(1, shard, 4) for shard in range(8)] == [1, 2, 3, 0, 1, 2, 3, 0]
    assert [place(topic, 0, 4) for topic in range(1, 6)] == [1, 2, 3, 0, 1]


def test_a_million_integers_are_hashed_without_a_step_per_row() -> None:
    column = pa.array(np.arange(1_000_000))
    start = default_timer()
    hash_keys(column)
    assert default_timer() - start < 0.5  # a Python step per row takes longer than that
