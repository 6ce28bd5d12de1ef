"""`Piece`: messages of one kind in one place that are part of a larger append, such as a transaction's commit.

All pieces of an append are written by one write and one sync, next to each other, the last one last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tidegate.log.message import ALL_VCHANNELS, MessageType
from tidegate.txn.marker import Marker, at_once

_OVERHEAD: Final = 32


class Piece:
    """One message (`body`), several as bytes (`bodies`), or an Arrow batch (`rows`)."""

    __slots__ = (
        "bodies", "body", "count", "first_tick", "last_confirmed", "position", "rows", "size", "txn", "type",
        "vchannel",
    )  # fmt: skip
    held = None
    plan = None
    parts = None

    def __init__(
        self,
        vchannel: str,
        payload: bytes | list[bytes] | pa.RecordBatch,
        kind: MessageType = MessageType.INSERT,
        txn: bytes | None = None,
        size: int | None = None,
    ) -> None:
        """`size` is that of Arrow rows, for whoever has asked for it before: it takes Arrow a while."""
        self.vchannel = vchannel
        self.type: int = kind
        self.txn = txn
        self.body = b""
        self.bodies: list[bytes] | None = None
        self.rows: pa.RecordBatch | None = None
        self.count = 1
        self.first_tick = self.position = self.last_confirmed = 0
        if isinstance(payload, bytes):
            self.body = payload
            self.size = len(payload) + _OVERHEAD
        elif isinstance(payload, list):
            self.bodies = payload
            self.count = len(payload)
            self.size = sum(map(len, payload)) + _OVERHEAD * self.count
        else:
            self.rows = payload
            self.count = payload.num_rows
            self.size = payload.nbytes if size is None else size


def commit_piece(txn: bytes, bodies: Sequence[Piece], runs: Sequence[tuple[int, int]] = ()) -> Piece:
    """The marker that commits `bodies`, which stand right before it, and those written ahead at `runs`."""
    before = sum([each.count for each in bodies])
    marker = Marker.over(runs, before=before).encode() if runs else at_once(before)
    return Piece(ALL_VCHANNELS, marker, MessageType.COMMIT, txn)


def stamp(parts: Sequence[Piece], first_tick: int, last_confirmed: int, moved: int) -> None:
    """Give every message its TimeTick: one after the other, and the last one `moved` if it is not 0."""
    tick = first_tick
    for each in parts:
        each.first_tick, each.last_confirmed = tick, last_confirmed
        tick += each.count
    if moved:
        parts[-1].first_tick = moved
