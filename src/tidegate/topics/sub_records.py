"""The records of a subscription's acknowledgement log, as bytes.

    version u8 | kind u8 | transaction, 16 bytes (PENDING, PENDING_CUMULATIVE, RELEASE) | ids (all but RELEASE)

    ids:    groups u32, then per shard: shard u32 | count u32 | timestamps | positions
    column: smallest u64 | width u8 (0, 1, 2, 4 or 8) | count differences from the smallest, of that width

Ids acknowledged together lie close to each other, so one costs a few bytes. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import repeat
from typing import Final

from tidegate.errors import Corruption
from tidegate.topics.message_id import MessageId, make_id
from tidegate.txn.txn_id import TxnId

VERSION: Final = 1
TXN_BYTES: Final = 16


class Kind(IntEnum):
    """What a record says. The numbers are part of the format."""

    ACK = 1
    """These messages are acknowledged; by a transaction if the record came with one."""
    ACK_CUMULATIVE = 2
    """Everything at or below each of these, in its shard, is acknowledged."""
    ACK_RANGES = 3
    """Pairs of ids: everything from the first to the second is acknowledged. Only in snapshots."""
    PENDING = 4
    """These messages will be acknowledged if the transaction commits."""
    PENDING_CUMULATIVE = 5
    """Everything at or below each of these will be acknowledged if the transaction commits."""
    RELEASE = 6
    """The transaction was aborted: nothing is pending for it."""


_WITH_TXN: Final = frozenset({Kind.PENDING, Kind.PENDING_CUMULATIVE, Kind.RELEASE})
_HEAD: Final = struct.Struct("<BB")
_COUNT: Final = struct.Struct("<I")
_GROUP: Final = struct.Struct("<II")
_COLUMN: Final = struct.Struct("<QB")
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read back."""

    kind: Kind
    ids: tuple[MessageId, ...] = ()
    txn: bytes = b""
    """Of those kinds that carry one."""


def check_txn(txn: bytes) -> bytes:
    """The id itself, when it is one.

    Raises: `InvalidArgument` when it is not the 16 bytes of a `TxnId`.
    """
    TxnId.from_bytes16(txn)
    return txn


def ack(ids: Sequence[MessageId]) -> bytes:
    return _HEAD.pack(VERSION, Kind.ACK) + _pack_ids(ids)


def ack_cumulative(ids: Sequence[MessageId]) -> bytes:
    return _HEAD.pack(VERSION, Kind.ACK_CUMULATIVE) + _pack_ids(ids)


def ack_ranges(ends: Sequence[MessageId]) -> bytes:
    return _HEAD.pack(VERSION, Kind.ACK_RANGES) + _pack_ids(ends)


def pending(txn: bytes, ids: Sequence[MessageId]) -> bytes:
    return _HEAD.pack(VERSION, Kind.PENDING) + check_txn(txn) + _pack_ids(ids)


def pending_and_ack(txn: bytes, ids: Sequence[MessageId]) -> tuple[bytes, bytes]:
    """`pending` and `ack` of the same ids."""
    packed = _pack_ids(ids)
    return _HEAD.pack(VERSION, Kind.PENDING) + check_txn(txn) + packed, _HEAD.pack(VERSION, Kind.ACK) + packed


def pending_cumulative(txn: bytes, ids: Sequence[MessageId]) -> bytes:
    return _HEAD.pack(VERSION, Kind.PENDING_CUMULATIVE) + check_txn(txn) + _pack_ids(ids)


def release(txn: bytes) -> bytes:
    return _HEAD.pack(VERSION, Kind.RELEASE) + check_txn(txn)


def decode(data: bytes) -> Record:
    """Read a record back.

    Raises: `Corruption` when the bytes are not exactly one record of a known version and kind.
    """
    try:
        version, number = _HEAD.unpack_from(data, 0)
        if version != VERSION:
            raise _broken(0, f"version {version} is not known; it was written by a newer Tidegate")
        if number not in Kind.__members__.values():
            raise _broken(1, f"kind {number} is not known")
        kind = Kind(number)
        at = _HEAD.size
        txn = b""
        if kind in _WITH_TXN:
            txn = data[at : at + TXN_BYTES]
            at += TXN_BYTES
            if len(txn) != TXN_BYTES:
                raise _broken(at, "it ends within the transaction id")
        ids: list[MessageId] = []
        if kind is not Kind.RELEASE:
            at = _unpack_ids(data, at, ids)
    except struct.error as error:
        raise _broken(len(data), "it ends too early") from error
    if at != len(data):
        raise _broken(at, f"{len(data) - at:,} bytes too many")
    if kind is Kind.ACK_RANGES and len(ids) % 2:
        raise _broken(at, "a range without an end")
    return Record(kind, tuple(ids), txn)


def _pack_ids(ids: Sequence[MessageId]) -> bytes:
    if not ids:
        return _COUNT.pack(0)
    shards, timestamps, positions = zip(*ids)
    shard = shards[0]
    if shards.count(shard) == len(shards):
        return b"".join((_COUNT.pack(1), _GROUP.pack(shard, len(ids)), _pack(timestamps), _pack(positions)))
    groups: dict[int, list[MessageId]] = {}
    for each in ids:
        groups.setdefault(each.shard, []).append(each)
    parts = [_COUNT.pack(len(groups))]
    for shard, group in sorted(groups.items()):
        _, timestamps, positions = zip(*group)
        parts += (_GROUP.pack(shard, len(group)), _pack(timestamps), _pack(positions))
    return b"".join(parts)


def _pack(values: tuple[int, ...]) -> bytes:
    base = min(values)
    span = max(values) - base
    if span == 0:
        return _COLUMN.pack(base, 0)
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 4 if span < 1 << 32 else 8
    return _COLUMN.pack(base, width) + struct.pack(f"<{len(values)}{_CODES[width]}", *[each - base for each in values])


def _unpack_ids(data: bytes, at: int, into: list[MessageId]) -> int:
    (groups,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    for _ in range(groups):
        shard, count = _GROUP.unpack_from(data, at)
        at += _GROUP.size
        timestamps, at = _unpack(data, at, count)
        positions, at = _unpack(data, at, count)
        # Two, for a range of one message. More cost no bytes, and a damaged count could ask for any number.
        if count > 2 and isinstance(timestamps, repeat) and isinstance(positions, repeat):
            raise _broken(at, f"{count:,} times the same message")
        into.extend(map(make_id, zip(repeat(shard, count), timestamps, positions)))
    return at


def _unpack(data: bytes, at: int, count: int) -> tuple[Iterable[int], int]:
    base, width = _COLUMN.unpack_from(data, at)
    at += _COLUMN.size
    if width == 0:
        return repeat(base), at
    if width not in _CODES:
        raise _broken(at - 1, f"{width} is not the width of a number")
    values = struct.unpack_from(f"<{count}{_CODES[width]}", data, at)
    return [base + each for each in values], at + width * count


def _broken(at: int, why: str) -> Corruption:
    return Corruption("a record of acknowledgements", at, why)
