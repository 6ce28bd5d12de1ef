"""The commit plan of a transaction over several channels: all that is needed to complete it after a crash.

It is part of the coordinator's COMMITTING record. For each channel: the first TimeTick it holds, where messages were
written ahead, and the messages that come with the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from tidegate.runtime.opening import Redo
from tidegate.runtime.piece_codec import decode_pieces, encode_pieces
from tidegate.runtime.pieces import Piece

_HEAD: Final = Struct("<HQIQ")
_RUN: Final = Struct("<QI")


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """What a commit writes to one channel."""

    first_tick: int
    pieces: Sequence[Piece]
    runs: Sequence[tuple[int, int]]


def encode_plan(channels: Mapping[str, ChannelPlan]) -> bytes:
    """The plan as bytes."""
    out = []
    for name, plan in channels.items():
        raw, pieces = name.encode(), encode_pieces(plan.pieces)
        out.append(_HEAD.pack(len(raw), plan.first_tick, len(plan.runs), len(pieces)))
        out.extend((raw, *[_RUN.pack(*run) for run in plan.runs], pieces))
    return b"".join(out)


def decode_plan(raw: bytes) -> dict[str, ChannelPlan]:
    """What `encode_plan` made."""
    found: dict[str, ChannelPlan] = {}
    at = 0
    while at < len(raw):
        name_size, first_tick, run_count, size = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        name = raw[at : at + name_size].decode()
        at += name_size
        runs = [_RUN.unpack_from(raw, at + index * _RUN.size) for index in range(run_count)]
        at += run_count * _RUN.size
        found[name] = ChannelPlan(first_tick, decode_pieces(raw[at : at + size]), runs)
        at += size
    return found


def redo_of(txn: bytes, commit_timestamp: int, plan: ChannelPlan) -> Redo:
    """What completes the commit in one channel."""
    return Redo(txn, commit_timestamp, plan.first_tick, plan.pieces, plan.runs)
