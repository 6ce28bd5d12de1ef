"""`Sent`: what became of a write."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.clock.timestamp import Timestamp


class Sent(NamedTuple):
    """What became of a send, or of rows."""

    timestamp: Timestamp
    """When they became visible."""
    messages: int
