"""`Journal`: the records of one state machine in its virtual channel, and how they are read back.

Every so often the machine's snapshot is appended and pinned; reading begins there, so opening costs the tail and not
the history. Ordering: a snapshot holds the effect of every record before it: none is on its way while it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Truncated, WaitTimeout
from tidegate.log.message import NO_POSITION, Message, MessageType, Position
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.log import Log
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import Request

_SNAPSHOT: Final = b"\1"
_RECORD: Final = b"\0"
_READ_S: Final = 10.0
_PIN: Final = "journal "


class Journal:
    """Appends to, and reads back, one virtual channel."""

    def __init__(self, log: Log, channel: str, vchannel: str, *, snapshot_every: int) -> None:
        self._log = log
        self.channel: Final = channel
        self.vchannel: Final = vchannel
        self._snapshot_every = snapshot_every
        self._since = 0
        self._changed = Condition()
        self._under_way = 0
        self._is_closed = False

    def recover(
        self,
        restore: Callable[[bytes], None],
        apply: Callable[[bytes, Message], None],
        since: Timestamp = Timestamp.ZERO,
    ) -> int:
        """Read back the newest snapshot and what came after it; how many records that were.

        Nothing at or below `since` counts: it belongs to an older one of the same name.
        """
        start = self._pinned()
        if start is not None or not since:
            self._since = self._read(restore, apply, start or NO_POSITION, since)
            return self._since
        try:
            self._since = self._read(restore, apply, NO_POSITION, since)
        except Truncated:  # Nothing was ever kept for it, so nothing was written either, but what is there still.
            self._since = self._read(restore, apply, NO_POSITION, Timestamp.ZERO)
        return self._since

    def _read(
        self,
        restore: Callable[[bytes], None],
        apply: Callable[[bytes, Message], None],
        start: Position,
        since: Timestamp,
    ) -> int:
        last = self._log.channel(self.channel, create=False).latest_tick.time_tick
        count = 0
        with self._log.transaction_reader(
            self.channel, position=start, after=since, vchannels=frozenset({self.vchannel})
        ) as reader:
            while reader.after < last:
                delivery = reader.read(_READ_S)
                if delivery is None:
                    raise WaitTimeout(
                        f"the records of {self.vchannel!r} could not be read back up to {last} within {_READ_S} s;"
                        f" try again"
                    )
                for message in delivery.messages():
                    if message.vchannel != self.vchannel:
                        continue
                    body = message.body or b""
                    if message.type is not MessageType.RECORD:
                        apply(body, message)
                    elif body[:1] == _SNAPSHOT:
                        if message.position == start:
                            restore(body[1:])
                    else:
                        apply(body[1:], message)
                    count += 1
        return count

    def _pinned(self) -> Position | None:
        return self._log.pins(self.channel).get(_PIN + self.vchannel)

    @property
    def has_snapshot(self) -> bool:
        """Whether reading begins at a snapshot, and the log is kept from there on."""
        return self._pinned() is not None

    def forget(self) -> None:
        """What was written is not needed any more."""
        self._log.unpin(self.channel, _PIN + self.vchannel)

    @property
    def writer(self) -> ChannelWriter:
        return self._log.channel(self.channel, create=False)

    def piece(self, record: bytes) -> Piece:
        """A record that is written as part of a transaction. Ordering: as `request`."""
        self._since += 1
        return Piece(self.vchannel, _RECORD + record, MessageType.RECORD)

    def request(self, record: bytes) -> Request:
        """The append of a record, to be handed over by whoever waits for it.

        Ordering: between `enter` and `leave`, with the record applied before `leave`.
        """
        self._since += 1
        return self.writer.record(self.vchannel, _RECORD + record)

    def enter(self) -> None:
        """A record is about to be planned. Waits while a snapshot is made."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._under_way += 1

    def leave(self) -> None:
        """The record is durable and applied, or known to be absent."""
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def wants_snapshot(self, entries: int = 0) -> bool:
        """Whether enough has been appended since the last one; a machine of many entries has one less often."""
        return self._since >= max(self._snapshot_every, entries)

    def snapshot(self, make: Callable[[], bytes], timeout_s: float = 0.5) -> bool:
        """Append the machine's snapshot and begin reading there from now on; False when records kept coming."""
        with self._changed:
            if self._is_closed:
                return False
            self._is_closed = True
            try:
                if not self._changed.wait_for(lambda: self._under_way == 0, timeout_s):
                    return False
                done = self.writer.append(self.vchannel, _SNAPSHOT + make(), kind=MessageType.RECORD)
            finally:
                self._is_closed = False
                self._changed.notify_all()
        self._log.pin(self.channel, _PIN + self.vchannel, done.position)
        self._since = 0
        return True
