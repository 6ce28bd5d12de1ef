"""What a channel's writer says about itself: its state, and why the disk refused."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final

from tidegate.errors import DiskFull, Retryable, StorageFailed
from tidegate.log.channel import ChannelStatus
from tidegate.log.message import Position
from tidegate.runtime.segments import Recovered

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """A channel's writer at one moment."""

    channel: ChannelStatus
    queued: int
    in_flight_bytes: int
    buffered_bytes: int
    segment: str
    offset: int
    durable_to: int
    """Everything before this offset of the open segment survives a loss of power, and so do all earlier segments."""
    position: Position
    holders: dict[str, str]
    recovered: Recovered
    last_error: str | None
    """Why the last commit failed, until one succeeds."""


def storage_error(channel: str, path: str, error: OSError, what: str) -> Retryable:
    """The error for a write that is known not to be part of the log; `what` says how that is known."""
    if error.errno in _FULL:
        return DiskFull(
            f"channel {channel!r}: no room on the disk of {path}; {what}. Reads go on; free some space or lower"
            f" the retention, and appends work again by themselves"
        )
    return StorageFailed(f"channel {channel!r}: {error.strerror or error} in {path}; {what}; check the disk")
