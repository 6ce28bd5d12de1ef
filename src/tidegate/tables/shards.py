"""Which shard a row belongs to: by a stable hash of its key, the same for one row and for a column of them.

A key is made of what `topics.routing` hashes: integers, strings and bytes are themselves, BOOLEAN is 0 or 1, DATE its
days and TIMESTAMP its microseconds since 1970, DECIMAL its digits in 16 bytes, little endian. A compound key is a
tuple. This is promised for ever: rows are where it puts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import InvalidArgument
from tidegate.tables.column_type import KEY_TYPES, may_be_key, to_sql
from tidegate.tables.column_value import Refused, converter, is_missing, unscaled
from tidegate.tables.nested_value import DECIMAL_BYTES
from tidegate.tables.row_codec import refusal
from tidegate.tables.schema import Column
from tidegate.topics.routing import Key, hash_keys

U64 = npt.NDArray[np.uint64]


def key_of(columns: Sequence[Column], values: Sequence[Any], row: int = 0) -> Key:
    """The key of one row as routing hashes it; `values` are those of the key's columns, in its order.

    Raises: `InvalidArgument`, naming column and row.
    """
    parts: list[Any] = []
    for column, value in zip(columns, values, strict=True):
        try:
            parts.append(_part(column)(value))
        except Refused as refused:
            raise refusal(column, row, refused) from None
    return parts[0] if len(parts) == 1 else tuple(parts)


def key_columns_of(batch: pa.RecordBatch, key: Sequence[str]) -> list[pa.Array]:
    """The keys of all rows in the same form, column by column: for `hash_keys` and `key_hashes`."""
    return [_parts(batch.column(name), name) for name in key]


def shards_of_rows(batch: pa.RecordBatch, key: Sequence[str], shards: int) -> npt.NDArray[np.intp]:
    """The shard of every row: `shard_of(key_of(...), shards)`."""
    columns = key_columns_of(batch, key)
    if len(columns) == 1:
        hashes = hash_keys(columns[0])
    else:
        # A tuple is hashed by folding its parts; hashing a number is the folding step.
        hashes = np.full(batch.num_rows, len(columns), np.uint64)
        for column in columns:
            hashes = hash_keys(pa.array(hashes ^ hash_keys(column)))
    return (hashes % np.uint64(shards)).astype(np.intp)


def split_by_shard(
    batch: pa.RecordBatch, key: Sequence[str], shards: int, *, turn: int = 0
) -> list[tuple[int, pa.RecordBatch]]:
    """The rows of each shard that gets any, by ascending shard.

    A batch without key columns goes whole to the shard of the `turn`, which the caller counts up.
    Ordering: within a shard rows keep their order.
    """
    if shards < 1:
        raise InvalidArgument(f"a table has at least one shard, not {shards}")
    if not batch.num_rows:
        return []
    if shards == 1 or not key:
        return [(0 if shards == 1 else turn % shards, batch)]
    owners = shards_of_rows(batch, key, shards)
    small = owners.astype(np.uint16) if shards <= 1 << 16 else owners
    counts = np.bincount(owners, minlength=shards)
    used = np.flatnonzero(counts)
    if len(used) == 1:
        return [(int(used[0]), batch)]
    order = np.argsort(small, kind="stable")
    sorted_rows = batch.take(pa.array(order, pa.int64()))
    ends = np.cumsum(counts)
    return [(shard, sorted_rows.slice(int(ends[shard] - counts[shard]), int(counts[shard]))) for shard in used.tolist()]


def _part(column: Column) -> Callable[[Any], Any]:
    convert, kind = converter(column.type), column.type
    _check_type(kind, column.name)
    is_decimal, is_bool = pa.types.is_decimal(kind), pa.types.is_boolean(kind)

    def part(value: Any) -> Any:
        if is_missing(value):
            raise Refused("it is part of the key and may not be NULL")
        taken = convert(value)
        if is_decimal:
            return unscaled(taken, kind.scale).to_bytes(DECIMAL_BYTES, "little", signed=True)
        return int(taken) if is_bool else taken

    return part


def key_maker(columns: Sequence[Column], at: Sequence[int]) -> Callable[[Sequence[Any]], Key]:
    """`key_of` for many rows: takes whole rows, whose key stands at the indexes `at`. Raises `Refused` there."""
    parts = [(index, _part(column)) for index, column in zip(at, columns, strict=True)]
    if len(parts) == 1:
        ((index, part),) = parts
        return lambda values: part(values[index])
    return lambda values: tuple([part(values[index]) for index, part in parts])


def _parts(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    _check_type(kind, name)
    is_ = pa.types
    if is_.is_boolean(kind):
        return column.cast(pa.int8())
    if is_.is_date32(kind):
        return column.cast(pa.int32())
    if is_.is_timestamp(kind):
        return column.cast(pa.int64())
    if is_.is_decimal128(kind):
        return pa.Array.from_buffers(pa.binary(DECIMAL_BYTES), len(column), column.buffers(), offset=column.offset)
    return column


def _check_type(kind: pa.DataType, name: str) -> None:
    if not may_be_key(kind):
        raise InvalidArgument(f"column {name!r} is {to_sql(kind)} and cannot be part of a key; those are {KEY_TYPES}")
