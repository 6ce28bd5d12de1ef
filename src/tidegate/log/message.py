"""Messages: what a channel holds, one at a time.

The numbers below are part of the on-disk format (docs/log-format.md) and never change meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NewType

from tidegate.clock.timestamp import Timestamp

Position = NewType("Position", int)
"""A message's id: its place in the channel's physical order. Strictly increasing, never reused, may have gaps."""

Term = NewType("Term", int)
"""Which life of a channel's writer wrote a message. A larger term fences every smaller one."""

NO_POSITION: Final = Position(0)
"""Below every position; reading from it reads from the beginning."""

ALL_VCHANNELS: Final = ""
"""The virtual channel of messages meant for every virtual channel: time ticks."""


class MessageType(IntEnum):
    """What a message says."""

    TIME_TICK = 1
    INSERT = 2
    UPSERT = 3
    DELETE = 4
    DDL = 5
    BEGIN = 6
    COMMIT = 7
    ROLLBACK = 8
    ACK = 9
    RECORD = 10
    """An entry of a state machine that lives in the log, such as the transaction coordinator."""

    @property
    def is_system(self) -> bool:
        """Made by the log itself: clients cannot send it and filters cannot drop it."""
        return self in _SYSTEM

    @property
    def is_exclusive(self) -> bool:
        """Appended alone in its virtual channel: no other append overlaps it."""
        return self is MessageType.DDL


_SYSTEM: Final = frozenset({MessageType.TIME_TICK, MessageType.BEGIN, MessageType.COMMIT, MessageType.ROLLBACK})


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a reader gets it.

    `body` is the payload of a message appended as bytes; `row` holds the columns of one appended as Arrow.
    Invariant: reading from `last_confirmed` yields every message whose TimeTick is above `time_tick`.
    """

    time_tick: Timestamp
    position: Position
    last_confirmed: Position
    type: MessageType
    vchannel: str
    term: Term
    body: bytes | None = None
    row: dict[str, Any] | None = None
    txn: bytes | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """A time tick as a reader gets it: every message at or below `time_tick` has been delivered.

    Invariant: ticks of one channel strictly increase.
    """

    time_tick: Timestamp
    position: Position
    """Where it stands in the log; for a tick that was not persisted, the last confirmed position."""
    last_confirmed: Position
    """Reading from here yields everything above `time_tick`."""
    persisted: bool
