"""Where a key lives: a stable 64-bit hash of it, its shard, and the channel a shard is placed on.

Promised for ever, across processes, machines and versions: the same key has the same hash, hence the same shard of a
topic and its messages their order. `1`, `"1"` and `b"1"` are three keys. A whole Arrow column gives the same numbers
as its values one by one; integers are hashed without a Python step per row.

    an int      splitmix64 over its 64 bits (two's complement)
    a str       XXH3 over its UTF-8, seed 1
    bytes       XXH3 over them, seed 2
    a tuple     its parts folded from left to right, beginning with their number
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tidegate.errors import InvalidArgument

U64 = npt.NDArray[np.uint64]
Key = str | bytes | int | tuple[Any, ...]

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_STR_SEED: Final = 1
_BYTES_SEED: Final = 2
_TABLE_SEED: Final = 3
_INTS: Final = range(-(1 << 63), 1 << 64)

_xxh3: Final = xxhash.xxh3_64_intdigest


def hash_key(key: Key) -> int:
    """The 64-bit hash of a key.

    Raises: `InvalidArgument` for anything but str, bytes, an int of 64 bits, or a tuple of these.
    """
    if type(key) is str:
        return _xxh3(_utf8(key), _STR_SEED)
    if type(key) is bytes:
        return _xxh3(key, _BYTES_SEED)
    if type(key) is int:
        if key not in _INTS:
            raise InvalidArgument(f"key {key} does not fit into 64 bits; use it as a string")
        return _mix(key & _MASK)
    if type(key) is tuple:
        folded = len(key)
        for part in key:
            folded = _mix(folded ^ hash_key(part))
        return folded
    raise InvalidArgument(f"a key is a str, bytes or an int, not a {type(key).__name__}: {key!r}")


def hash_keys(column: pa.Array | pa.ChunkedArray) -> U64:
    """`hash_key` of every value of a column of integers, strings or binaries.

    Raises: `InvalidArgument` for a null, naming its row, and for columns of other types.
    """
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidArgument(f"row {row} has no key: a key is never null")
    if isinstance(column, pa.ChunkedArray):
        chunks = [hash_keys(chunk) for chunk in column.chunks]
        return np.concatenate(chunks) if chunks else np.empty(0, np.uint64)
    kind = column.type
    if pa.types.is_dictionary(kind):
        hashes: U64 = hash_keys(column.dictionary)[column.indices.to_numpy()]
        return hashes
    if pa.types.is_integer(kind):
        signed = column.to_numpy()
        if kind.bit_width < 64:
            signed = signed.astype(np.int64)
        return _mix_all(signed.view(np.uint64))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_string_view(kind):
        return _hash_slices(column.cast(pa.large_string()), _STR_SEED)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hash_slices(column.cast(pa.large_binary()), _BYTES_SEED)
    raise InvalidArgument(f"a key column holds integers, strings or binaries, not {kind}")


def shard_of(key: Key | None, shards: int, *, turn: int = 0) -> int:
    """The shard of a key; without a key, that of the `turn`: whoever counts them up spreads evenly."""
    if key is None:
        return turn % shards
    return hash_key(key) % shards


def shards_of(column: pa.Array | pa.ChunkedArray, shards: int) -> npt.NDArray[np.intp]:
    """`shard_of` for every key of a column."""
    return (hash_keys(column) % np.uint64(shards)).astype(np.intp)


def key_hash(table: str, key: Key) -> int:
    """One number for a key of a table, for noticing conflicts. A compound key is a tuple.

    Two keys that share a number are taken for one: that can cause a needless conflict, never a missed one.
    """
    return _mix(_table(table) ^ hash_key(key))


def key_hashes(table: str, columns: Sequence[pa.Array | pa.ChunkedArray]) -> U64:
    """`key_hash` of every row, whose key is spread over `columns`; with one column its value is the key itself."""
    if not columns:
        raise InvalidArgument(f"table {table!r} has no key columns; conflicts are noticed by primary key")
    if len(columns) == 1:
        hashes = hash_keys(columns[0])
    else:
        hashes = np.full(len(columns[0]), len(columns), np.uint64)
        for column in columns:
            hashes = _mix_all(hashes ^ hash_keys(column))
    return _mix_all(hashes ^ np.uint64(_table(table)))


def place(topic_id: int, shard: int, channels: int) -> int:
    """The index of the channel that carries a shard.

    Shards of a topic go round the channels, and topics begin at different ones. Fixed once messages are written:
    with another number of channels it says something else, so whoever changes that keeps what was decided.
    """
    return (topic_id + shard) % channels


def _table(name: str) -> int:
    return _xxh3(_utf8(name), _TABLE_SEED)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"key {text!r} holds half a surrogate pair, which is not text; use bytes") from None


def _mix(bits: int) -> int:
    """The step and finaliser of splitmix64: one to one on 64 bits, so different ints never share a hash."""
    bits = (bits + _STEP) & _MASK
    bits = ((bits ^ (bits >> 30)) * _FIRST) & _MASK
    bits = ((bits ^ (bits >> 27)) * _SECOND) & _MASK
    return bits ^ (bits >> 31)


def _mix_all(bits: U64) -> U64:
    """`_mix` of every element; numpy's unsigned arithmetic wraps by itself."""
    bits = bits + np.uint64(_STEP)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_FIRST)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_SECOND)
    bits ^= bits >> np.uint64(31)
    return bits


def _hash_slices(column: pa.Array, seed: int) -> U64:
    """XXH3 over each value where it lies in the column's buffer: no Python string is made."""
    count = len(column)
    if not count:
        return np.empty(0, np.uint64)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + count + 1].tolist()
    raw = memoryview(data if data is not None else b"")
    hashes = [_xxh3(raw[start:end], seed) for start, end in pairwise(bounds)]
    return np.array(hashes, np.uint64)


def _is_string_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind))
