"""Blocks: the unit that is written, checksummed and read back. Layout in docs/log-format.md.

A block holds messages in one of two encodings. `ROWS` is compact and cheap for a few messages; `ARROW`
carries an Arrow IPC record batch and costs nothing per row. Both decode to the same `Batch`.

Invariant: each block names the checksum of the block before it, so that what an abandoned write left behind a
newer, shorter block can never be taken for a continuation of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from struct import Struct, pack
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from tidegate.errors import InvariantBroken
from tidegate.log.batch import BODY_SCHEMA, Batch, RunBatch
from tidegate.log.message import MessageType, Term

MAGIC: Final = b"TGB1"
VERSION: Final = 1
HEADER: Final = Struct("<Q4sBBHIIIIQQQQQQQQ")
HEADER_SIZE: Final = HEADER.size
CHECKED_FROM: Final = 8
"""The checksum stands first and covers everything after it."""

ROWS: Final = 1
ARROW: Final = 2

MIXED_TYPES: Final = 1 << 0
MIXED_VCHANNELS: Final = 1 << 1
HAS_TXNS: Final = 1 << 2
SPARSE: Final = 1 << 3
"""Merged from several blocks: positions, TimeTicks and LastConfirmed are columns of their own."""
HAS_TICK: Final = 1 << 4
"""Holds a time tick, alone."""

_META: Final = Struct("<BBHI")
_CHECKSUM: Final = Struct("<Q")
_JOIN_BELOW: Final = 1 << 16
"""Payloads below this are copied into one buffer; above, the copy would cost more than a second buffer."""
_FEW: Final = 16
"""Up to this many messages, packing them one by one is faster than an array."""
_ENDS: Final = tuple(Struct(f"<{count}I") for count in range(_FEW + 1))
_IDS: Final = tuple(Struct(f"<{count}H") for count in range(_FEW + 1))
_ALIGN: Final = 8
_NO_TXN: Final = bytes(16)
_ARROW_ALIGN: Final = 64
SPARSE_FIELDS: Final = ("_position", "_time_tick", "_last_confirmed")


class Header(NamedTuple):
    """The fixed part of a block."""

    checksum: int
    magic: bytes
    version: int
    kind: int
    flags: int
    meta_size: int
    payload_size: int
    messages: int
    padding: int
    """Zero bytes between meta and payload, so that Arrow buffers lie aligned in the file."""
    first_position: int
    last_position: int
    first_time_tick: int
    last_time_tick: int
    last_confirmed: int
    term: int
    synced: int
    """Everything in this segment before this offset was durable when the block was written."""
    previous: int
    """Checksum of the block before this one."""

    @property
    def size(self) -> int:
        """The whole block, padded to eight bytes."""
        return aligned(HEADER_SIZE + self.meta_size + self.padding + self.payload_size)


class Encoded(NamedTuple):
    """A block ready to be written."""

    buffers: tuple[bytes | memoryview, ...]
    size: int
    checksum: int
    first_time_tick: int
    last_time_tick: int

    def view(self) -> memoryview:
        """Its bytes as they lie on disk."""
        return memoryview(self.buffers[0] if len(self.buffers) == 1 else b"".join(self.buffers))


class Stamp(NamedTuple):
    """What the writer decides about a block when it is written."""

    first_position: int
    first_time_tick: int
    last_confirmed: int
    term: int
    offset: int
    """Where in the segment the block starts."""
    synced: int
    previous: int


def aligned(size: int, to: int = _ALIGN) -> int:
    return (size + to - 1) // to * to


def encode_rows(
    stamp: Stamp,
    types: Sequence[int],
    vchannels: Sequence[str],
    bodies: Sequence[bytes],
    txns: Sequence[bytes | None] | None = None,
) -> Encoded:
    """Encode messages compactly; the lists are parallel."""
    count = len(bodies)
    flags = 0
    parts: list[bytes] = []
    if count == 1:
        parts.append(pack("<I", len(bodies[0])))
        names: tuple[str, ...] = (vchannels[0],)
        if types[0] == MessageType.TIME_TICK:
            flags |= HAS_TICK
    else:
        few = count <= _FEW
        if few:
            parts.append(_ENDS[count].pack(*accumulate(map(len, bodies))))
        else:
            parts.append(np.cumsum(np.fromiter(map(len, bodies), np.uint32, count), dtype=np.uint32).tobytes())
        names = tuple(dict.fromkeys(vchannels))
        if len(names) > 1:
            flags |= MIXED_VCHANNELS
            ids = {name: index for index, name in enumerate(names)}
            places = list(map(ids.__getitem__, vchannels))
            parts.append(_IDS[count].pack(*places) if few else np.array(places, np.uint16).tobytes())
        if types.count(types[0]) != count:
            flags |= MIXED_TYPES
            parts.append(bytes(types))
    if txns is not None:
        flags |= HAS_TXNS
        parts.extend([txn or _NO_TXN for txn in txns])
    parts.extend(bodies)
    payload = b"".join(parts)
    return _seal(stamp, ROWS, flags, count, _meta(types[0], names, b""), payload, padding=0)


_TXN_FIELD: Final = pa.field("_txn", pa.binary(16))


def encode_arrow(stamp: Stamp, rows: pa.RecordBatch, kind: int, vchannel: str, *, txn: bytes | None = None) -> Encoded:
    """Encode one record batch whose rows are messages of one type in one virtual channel."""
    flags = 0
    if txn is not None:
        flags |= HAS_TXNS
        count = rows.num_rows
        ids = pa.FixedSizeBinaryArray.from_buffers(_TXN_FIELD.type, count, [None, pa.py_buffer(txn * count)])
        rows = rows.append_column(_TXN_FIELD, ids)
    return _encode_arrow(stamp, rows, flags, kind, (vchannel,), None)


def encode_merged(stamp: Stamp, batch: Batch) -> Encoded:
    """Encode messages gathered from several blocks, keeping every message's own position and TimeTick."""
    flags = SPARSE
    columns = {
        "_position": pa.array(batch.positions),
        "_time_tick": pa.array(batch.time_ticks),
        "_last_confirmed": pa.array(batch.last_confirmed),
    }
    first_type = int(batch.types[0])
    if not (batch.types == first_type).all():
        flags |= MIXED_TYPES
        columns["_type"] = pa.array(batch.types)
    if len(batch.vchannels) > 1:
        flags |= MIXED_VCHANNELS
        columns["_vchannel"] = pa.array(batch.vchannel_ids)
    if batch.txns is not None:
        flags |= HAS_TXNS
        columns["_txn"] = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(batch), [None, pa.py_buffer(batch.txns.tobytes())]
        )
    rows = pa.RecordBatch.from_arrays(
        [*batch.rows.columns, *columns.values()],
        schema=pa.schema(
            [*batch.rows.schema, *(pa.field(name, c.type) for name, c in columns.items())],
            metadata=batch.rows.schema.metadata,
        ),
    )
    return _encode_arrow(stamp, rows, flags, first_type, batch.vchannels, batch)


def decode_header(view: memoryview, offset: int) -> Header | None:
    """The header at `offset`, or None when there is none."""
    if len(view) - offset < HEADER_SIZE:
        return None
    header = Header._make(HEADER.unpack_from(view, offset))
    return header if header.magic == MAGIC and header.version == VERSION else None


def is_intact(view: memoryview, offset: int, header: Header) -> bool:
    """Whether all of the block is there and its checksum is right."""
    end = offset + header.size
    if end > len(view):
        return False
    return xxhash.xxh3_64_intdigest(view[offset + CHECKED_FROM : end]) == header.checksum


def tick_body(resume: int, last_confirmed: int) -> bytes:
    """The body of a time tick. Its header says where to read on from; the body, where open transactions begin."""
    return b"" if last_confirmed == resume else pack("<Q", last_confirmed)


def tick_open_from(view: memoryview, offset: int, header: Header) -> int:
    """Where transactions that are open at a time tick begin, at the earliest."""
    start = offset + HEADER_SIZE + header.meta_size + header.padding + 4
    if header.payload_size < 12:
        return header.last_confirmed
    return int.from_bytes(view[start : start + 8], "little")


def decode(view: memoryview, offset: int, header: Header) -> Batch:
    """The messages of an intact block, without copying their payload."""
    start = offset + HEADER_SIZE
    first_type, schema_bytes, names = read_meta(bytes(view[start : start + header.meta_size]))
    start += header.meta_size + header.padding
    payload = view[start : start + header.payload_size]
    if header.kind == ROWS:
        return _decode_rows(header, first_type, names, payload)
    if header.kind == ARROW:
        return _decode_arrow(header, first_type, names, schema_bytes, payload)
    raise InvariantBroken(f"a block of unknown kind {header.kind} passed its checksum")


def _seal(
    stamp: Stamp,
    kind: int,
    flags: int,
    count: int,
    meta: bytes,
    payload: bytes | memoryview,
    *,
    padding: int,
    span: Batch | None = None,
) -> Encoded:
    if span is None:
        last_position = stamp.first_position + count - 1
        first_tick, last_tick = stamp.first_time_tick, stamp.first_time_tick + count - 1
    else:
        last_position = int(span.positions.max())
        first_tick, last_tick = int(span.time_ticks.min()), int(span.time_ticks.max())
    header = HEADER.pack(
        0, MAGIC, VERSION, kind, flags, len(meta), len(payload), count, padding,
        stamp.first_position, last_position, first_tick, last_tick,
        stamp.last_confirmed, stamp.term, stamp.synced, stamp.previous,
    )  # fmt: skip
    size = HEADER_SIZE + len(meta) + padding + len(payload)
    filler = bytes(aligned(size) - size)
    head = b"".join((header[CHECKED_FROM:], meta, bytes(padding)))
    if len(payload) < _JOIN_BELOW:
        body = b"".join((head, payload, filler))
        checksum = xxhash.xxh3_64_intdigest(body)
        return Encoded((_CHECKSUM.pack(checksum) + body,), aligned(size), checksum, first_tick, last_tick)
    hasher = xxhash.xxh3_64(head)
    hasher.update(payload)
    hasher.update(filler)
    checksum = hasher.intdigest()
    buffers = (_CHECKSUM.pack(checksum) + head, payload, filler)
    return Encoded(buffers, aligned(size), checksum, first_tick, last_tick)


def _encode_arrow(
    stamp: Stamp, rows: pa.RecordBatch, flags: int, kind: int, vchannels: tuple[str, ...], span: Batch | None
) -> Encoded:
    meta = _meta(kind, vchannels, _schema_bytes(rows.schema))
    start = stamp.offset + HEADER_SIZE + len(meta)
    padding = aligned(start, _ARROW_ALIGN) - start
    payload = memoryview(rows.serialize())
    return _seal(stamp, ARROW, flags, rows.num_rows, meta, payload, padding=padding, span=span)


@lru_cache(maxsize=1024)
def _meta(first_type: int, names: tuple[str, ...], schema: bytes) -> bytes:
    encoded = [name.encode() for name in names]
    head = _META.pack(first_type, 0, len(encoded), len(schema))
    return head + schema + b"".join(pack("<H", len(name)) + name for name in encoded)


@lru_cache(maxsize=1024)
def read_meta(meta: bytes) -> tuple[int, bytes, tuple[str, ...]]:
    """The type of the first message, the Arrow schema, and the names of the virtual channels."""
    first_type, _, count, schema_size = _META.unpack_from(meta)
    at = _META.size + schema_size
    names = []
    for _ in range(count):
        size = meta[at] | meta[at + 1] << 8
        names.append(meta[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return first_type, meta[_META.size : _META.size + schema_size], tuple(names)


_schema_cache: dict[bytes, pa.Schema] = {}
_bytes_cache: dict[pa.Schema, bytes] = {}


def _schema_bytes(schema: pa.Schema) -> bytes:
    found = _bytes_cache.get(schema)
    if found is None:
        if len(_bytes_cache) > 1024:
            _bytes_cache.clear()
        found = _bytes_cache[schema] = schema.serialize().to_pybytes()
    return found


def _schema(raw: bytes) -> pa.Schema:
    found = _schema_cache.get(raw)
    if found is None:
        if len(_schema_cache) > 1024:
            _schema_cache.clear()
        found = _schema_cache[raw] = pa.ipc.read_schema(pa.py_buffer(raw))
    return found


def _decode_rows(header: Header, first_type: int, names: tuple[str, ...], payload: memoryview) -> Batch:
    count = header.messages
    buffer = pa.py_buffer(payload)
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = np.frombuffer(payload, np.uint32, count)
    at = 4 * count
    if header.flags & MIXED_VCHANNELS:
        vchannel_ids = np.frombuffer(payload, np.uint16, count, at)
        at += 2 * count
    else:
        vchannel_ids = np.zeros(count, np.uint16)
    if header.flags & MIXED_TYPES:
        types = np.frombuffer(payload, np.uint8, count, at)
        at += count
    else:
        types = np.full(count, first_type, np.uint8)
    txns = None
    if header.flags & HAS_TXNS:
        txns = np.frombuffer(payload, np.dtype("V16"), count, at)
        at += 16 * count
    bodies = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), buffer.slice(at)])
    if not header.flags:
        rows = pa.RecordBatch.from_arrays([bodies], schema=BODY_SCHEMA)
        return _as_run(header, first_type, names[0], rows)
    return Batch(
        time_ticks=_run(header.first_time_tick, count),
        positions=_run(header.first_position, count),
        last_confirmed=np.full(count, header.last_confirmed, np.uint64),
        types=types,
        vchannel_ids=vchannel_ids,
        vchannels=names,
        rows=pa.RecordBatch.from_arrays([bodies], schema=BODY_SCHEMA),
        term=Term(header.term),
        txns=txns,
    )


def _as_run(header: Header, kind: int, vchannel: str, rows: pa.RecordBatch) -> RunBatch:
    return RunBatch(
        first_tick=header.first_time_tick,
        first_position=header.first_position,
        last_confirmed=header.last_confirmed,
        kind=kind,
        vchannel=vchannel,
        rows=rows,
        term=Term(header.term),
    )


def _decode_arrow(
    header: Header, first_type: int, names: tuple[str, ...], schema_bytes: bytes, payload: memoryview
) -> Batch:
    count = header.messages
    rows = pa.ipc.read_record_batch(pa.py_buffer(payload), _schema(schema_bytes))
    system: dict[str, pa.Array] = {}
    width = rows.num_columns
    flags = header.flags
    if not flags:
        return _as_run(header, first_type, names[0], rows)
    extra = [name for flag, name in _OPTIONAL if flags & flag]
    if flags & SPARSE:
        extra = [*SPARSE_FIELDS, *extra]
    width -= len(extra)
    for index, name in enumerate(extra):
        system[name] = rows.column(width + index)
    schema = pa.schema(list(rows.schema)[:width], metadata=rows.schema.metadata)
    rows = pa.RecordBatch.from_arrays(rows.columns[:width], schema=schema)
    txns = None
    if flags & HAS_TXNS:
        column = system["_txn"]
        txns = np.frombuffer(column.buffers()[1], np.dtype("V16"), count, column.offset * 16)
    sparse = flags & SPARSE
    return Batch(
        time_ticks=_u64(system["_time_tick"]) if sparse else _run(header.first_time_tick, count),
        positions=_u64(system["_position"]) if sparse else _run(header.first_position, count),
        last_confirmed=(
            _u64(system["_last_confirmed"]) if sparse else np.full(count, header.last_confirmed, np.uint64)
        ),
        types=(system["_type"].to_numpy() if flags & MIXED_TYPES else np.full(count, first_type, np.uint8)),
        vchannel_ids=(system["_vchannel"].to_numpy() if flags & MIXED_VCHANNELS else np.zeros(count, np.uint16)),
        vchannels=names,
        rows=rows,
        term=Term(header.term),
        txns=txns,
    )


_OPTIONAL: Final = ((MIXED_TYPES, "_type"), (MIXED_VCHANNELS, "_vchannel"), (HAS_TXNS, "_txn"))


def _u64(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return column.to_numpy()  # type: ignore[no-any-return]


def _run(first: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.arange(first, first + count, dtype=np.uint64)
