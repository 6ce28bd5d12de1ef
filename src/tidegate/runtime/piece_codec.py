"""Pieces as bytes: how a transaction's messages travel to another process, and lie in the coordinator's log.

Layout, little endian: u32 number of pieces; for each u8 message type, u8 form (1 body, 2 bodies, 3 Arrow), u16 size of
the virtual channel's name, u32 count, u64 size of the payload, name, payload. Bodies are u32 lengths, then the bytes;
Arrow is an IPC stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.errors import InvariantBroken
from tidegate.log.message import MessageType
from tidegate.runtime.pieces import Piece

_COUNT: Final = Struct("<I")
_HEAD: Final = Struct("<BBHIQ")
_BODY: Final = 1
_BODIES: Final = 2
_ARROW: Final = 3


def encode_pieces(pieces: Sequence[Piece]) -> bytes:
    """The pieces as bytes."""
    out: list[bytes | memoryview] = [_COUNT.pack(len(pieces))]
    for each in pieces:
        name = each.vchannel.encode()
        payload: bytes | memoryview
        if each.rows is not None:
            form, payload = _ARROW, _arrow(each.rows)
        elif each.bodies is not None:
            lengths = np.fromiter(map(len, each.bodies), np.uint32, len(each.bodies)).tobytes()
            form, payload = _BODIES, b"".join([lengths, *each.bodies])
        else:
            form, payload = _BODY, each.body
        out.extend((_HEAD.pack(each.type, form, len(name), each.count, len(payload)), name, payload))
    return b"".join(out)


def decode_pieces(raw: bytes | memoryview) -> list[Piece]:
    """What `encode_pieces` made.

    Raises: `InvariantBroken` when it made nothing like it.
    """
    view = memoryview(raw)
    try:
        (count,) = _COUNT.unpack_from(view)
        at = _COUNT.size
        pieces = []
        for _ in range(count):
            kind, form, name_size, rows, size = _HEAD.unpack_from(view, at)
            at += _HEAD.size
            name = bytes(view[at : at + name_size]).decode()
            at += name_size
            payload = view[at : at + size]
            if len(payload) != size:
                raise InvariantBroken(f"a piece of {size} bytes has only {len(payload)}")
            at += size
            pieces.append(Piece(name, _payload(form, payload, rows), MessageType(kind)))
    except (ValueError, IndexError, OSError, pa.ArrowInvalid) as error:
        raise InvariantBroken(f"{len(view)} bytes are no messages of a transaction: {error}") from error
    if at != len(view):
        raise InvariantBroken(f"{len(view) - at} bytes are left behind {count} pieces of a transaction")
    return pieces


def _payload(form: int, payload: memoryview, count: int) -> bytes | list[bytes] | pa.RecordBatch:
    if form == _BODY:
        return bytes(payload)
    if form == _ARROW:
        with pa.ipc.open_stream(pa.py_buffer(bytes(payload))) as reader:
            return reader.read_next_batch()
    lengths = np.frombuffer(payload, np.uint32, count)
    ends = np.cumsum(lengths, dtype=np.int64) + 4 * count
    starts = ends - lengths
    return [bytes(payload[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _arrow(rows: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return memoryview(sink.getvalue())
