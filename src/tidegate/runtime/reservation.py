"""`Reservation`: a place in time taken before its message is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.log.channel import Append
from tidegate.log.message import MessageType
from tidegate.runtime.pending import PendingAppend

if TYPE_CHECKING:
    from tidegate.runtime.channel_writer import ChannelWriter


class Reservation:
    """A TimeTick taken before its message is there: the channel's watermark stays below it until it is used.

    For a writer that must know its place in time before it writes, such as the second step of a transaction.
    """

    def __init__(self, writer: ChannelWriter, vchannel: str, held: Append) -> None:
        self._writer = writer
        self._vchannel = vchannel
        self._held: Append | None = held
        self.time_tick: Final = Timestamp(held.first)

    def append_async(
        self,
        body: bytes,
        *,
        kind: MessageType = MessageType.INSERT,
        at: Timestamp | None = None,
        txn: bytes | None = None,
    ) -> PendingAppend:
        """Write the message at the reserved TimeTick, or at a later one taken from the oracle since."""
        if self._held is None:
            raise InvalidArgument(f"the reservation at {self.time_tick} was used already")
        self._writer._check_held(self._held, self._vchannel, body, kind=kind, at=at, txn=txn)
        held, self._held = self._held, None
        return self._writer._append_held(held, self._vchannel, body, kind=kind, at=at, txn=txn)

    def release(self) -> None:
        """Give the TimeTick back unused. It blocks nobody from now on."""
        if self._held is not None:
            held, self._held = self._held, None
            self._writer._release_held(held, self._vchannel)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
