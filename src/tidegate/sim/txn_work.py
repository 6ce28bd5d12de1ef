"""What simulated clients write, as plain data that can travel: lines, and the pieces that a process makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.log.message import MessageType
from tidegate.runtime.pieces import Piece


@dataclass(frozen=True, slots=True)
class Line:
    """Messages of one kind in one virtual channel."""

    vchannel: str
    texts: tuple[str, ...]
    as_rows: bool = False
    exclusive: bool = False


def as_pieces(lines: Sequence[Line]) -> list[Piece]:
    """Fresh pieces, as a process makes them of every request it takes."""
    return [_piece(line) for line in lines]


def _piece(line: Line) -> Piece:
    kind = MessageType.DDL if line.exclusive else MessageType.INSERT
    if line.as_rows:
        return Piece(line.vchannel, pa.RecordBatch.from_pydict({"text": list(line.texts)}), kind)
    bodies = [text.encode() for text in line.texts]
    return Piece(line.vchannel, bodies[0] if len(bodies) == 1 else bodies, kind)
