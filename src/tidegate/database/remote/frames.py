"""What travels between a client and the owner: a small JSON head and any number of byte strings.

Layout, little endian: u32 size of the head, u32 number of byte strings, u64 size of each, head, byte strings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate import errors
from tidegate.database.received import Received
from tidegate.errors import InvalidArgument, InvariantBroken, TidegateError
from tidegate.runtime.piece_codec import decode_pieces, encode_pieces
from tidegate.runtime.pieces import Piece
from tidegate.topics.message_id import MessageId
from tidegate.txn.conflicts import Hashes

VERSION: Final = 2
"""Of the calls and of what travels with them; an owner and its clients have the same."""
_HEAD: Final = Struct("<II")
_SIZE: Final = Struct("<Q")
Head = dict[str, Any]
Bytes = bytes | memoryview


def pack(head: Head, blobs: Sequence[Bytes] = ()) -> bytes:
    """A frame."""
    raw = json.dumps(head, separators=(",", ":")).encode()
    sizes = [_SIZE.pack(len(blob)) for blob in blobs]
    return b"".join([_HEAD.pack(len(raw), len(blobs)), *sizes, raw, *blobs])


def unpack(frame: Bytes) -> tuple[Head, list[memoryview]]:
    """What `pack` made.

    Raises: `InvalidArgument` for anything else.
    """
    view = memoryview(frame)
    try:
        head_size, count = _HEAD.unpack_from(view)
        at = _HEAD.size
        sizes = [_SIZE.unpack_from(view, at + index * _SIZE.size)[0] for index in range(count)]
        at += count * _SIZE.size
        head = json.loads(bytes(view[at : at + head_size]))
        at += head_size
        if at + sum(sizes) != len(view) or not isinstance(head, dict):
            raise ValueError(f"{len(view)} bytes do not hold what they announce")
    except Exception as error:
        raise InvalidArgument(f"not a request of this version of Tidegate: {error}") from error
    blobs = []
    for size in sizes:
        blobs.append(view[at : at + size])
        at += size
    return head, blobs


# -- errors ------------------------------------------------------------------------------------------------------


def pack_error(error: TidegateError) -> Head:
    """An error as data."""
    facts = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    return {"type": type(error).__name__, "message": str(error), "facts": facts}


def raise_error(found: Head) -> None:
    """Raise the error that the owner raised."""
    kind = getattr(errors, str(found.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, TidegateError)):
        raise InvariantBroken(f"the owner failed: {found.get('type')}: {found.get('message')}")
    error = kind.__new__(kind)
    Exception.__init__(error, str(found.get("message")))
    for name, value in dict(found.get("facts") or {}).items():
        setattr(error, name, value)
    raise error


# -- messages going in -------------------------------------------------------------------------------------------


def pack_writes(writes: dict[str, list[Piece]], blobs: list[Bytes]) -> list[str]:
    """Put messages into `blobs`; the channels they are for."""
    for pieces in writes.values():
        blobs.append(encode_pieces(pieces))
    return list(writes)


def unpack_writes(channels: Sequence[str], blobs: Sequence[memoryview]) -> dict[str, list[Piece]]:
    return {name: decode_pieces(blob) for name, blob in zip(channels, blobs, strict=True)}


def pack_hashes(hashes: Hashes) -> bytes:
    return np.array(hashes, np.uint64).tobytes()


def unpack_hashes(blob: Bytes) -> list[int]:
    found: list[int] = np.frombuffer(blob, np.uint64).tolist()
    return found


# -- messages coming out -----------------------------------------------------------------------------------------


def pack_received(messages: Sequence[Received], blobs: list[Bytes]) -> Head:
    """Put received messages into `blobs`."""
    numbers = np.array([[*each.id, each.redelivery_count] for each in messages], np.uint64).reshape(-1, 4)
    bodies = [each.body if each.row is None else _row(each.row) for each in messages]
    lengths = np.fromiter((len(body or b"") for body in bodies), np.uint64, len(bodies))
    rows = [index for index, each in enumerate(messages) if each.row is not None]
    blobs.extend((numbers.tobytes(), lengths.tobytes(), b"".join([body or b"" for body in bodies])))
    return {"topic": messages[0].topic if messages else "", "rows": rows}


def unpack_received(head: Head, blobs: Sequence[memoryview]) -> list[Received]:
    numbers = np.frombuffer(blobs[0], np.uint64).reshape(-1, 4).tolist()
    ends = np.cumsum(np.frombuffer(blobs[1], np.uint64)).tolist()
    rows = set(head["rows"])
    found = []
    start = 0
    for index, (shard, timestamp, position, count) in enumerate(numbers):
        body = bytes(blobs[2][start : ends[index]])
        start = ends[index]
        id = MessageId(shard, timestamp, position)
        row = index in rows
        found.append(Received(id, head["topic"], count, None if row else body, _read_row(body) if row else None))
    return found


def _row(row: dict[str, Any]) -> bytes:
    batch = pa.RecordBatch.from_pylist([row])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _read_row(raw: bytes) -> dict[str, Any]:
    with pa.ipc.open_stream(raw) as reader:
        found: dict[str, Any] = reader.read_next_batch().to_pylist()[0]
        return found
