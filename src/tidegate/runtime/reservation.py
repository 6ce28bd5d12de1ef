"""`Reservation`: a place in time taken before its message is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.log.channel import Append
from tidegate.log.message import MessageType
from tidegate.runtime.commit import ROW_OVERHEAD
from tidegate.runtime.pending import PendingAppend
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import Request

if TYPE_CHECKING:
    from tidegate.runtime.channel_writer import ChannelWriter


class Reservation:
    """TimeTicks taken before their messages are there: the channel's watermark stays below them until they are used.

    For a writer that must know its place in time before it writes, such as the commit of a transaction over several
    channels: each holds a place, then the commit Timestamp is taken, above all of them.
    """

    def __init__(self, writer: ChannelWriter, vchannels: tuple[str, ...], held: Append) -> None:
        self._writer = writer
        self._vchannels = vchannels
        self._held: Append | None = held
        self._trying: PendingAppend | None = None
        self.time_tick: Final = Timestamp(held.first)
        self.count: Final = held.count

    @property
    def is_held(self) -> bool:
        """Whether ticks still stay below it: it is unused, or what uses it is on its way."""
        trying = self._trying
        return self._held is not None or (trying is not None and not trying.is_done)

    def append_async(
        self,
        body: bytes,
        *,
        kind: MessageType = MessageType.INSERT,
        at: Timestamp | None = None,
        txn: bytes | None = None,
    ) -> PendingAppend:
        """Write the message at the reserved TimeTick, or at a later one taken from the oracle since.

        If that fails the place is given back.
        """
        writer, vchannel = self._writer, self._vchannels[0]
        held = self._check()
        if held.count != 1 or len(self._vchannels) != 1:
            raise InvalidArgument(
                f"the reservation at {self.time_tick} is for {held.count} messages; append them together"
            )
        writer._requests.check_message(vchannel, body, kind, exclusive=False, txn=txn)
        if at is not None:
            writer._check_at(held, at)
        item = PendingAppend(writer._mutex, vchannel, kind, len(body) + ROW_OVERHEAD, body)
        item.txn = txn
        self._held, self._trying = None, item
        writer._submit_held(item, held, at)
        return item

    def commit_async(
        self, txn: bytes, pieces: Sequence[Piece], *, at: Timestamp | None, runs: Sequence[tuple[int, int]] = ()
    ) -> PendingAppend:
        """Write a transaction's bodies at the reserved TimeTicks and its commit at `at`, one write, one sync.

        Without `at` the commit takes the last of the reserved TimeTicks.

        If that fails the place is kept: nothing at or above the reserved TimeTicks becomes visible before the
        commit is in, so it has to be tried again. `at` must be the same then.
        """
        request = self.commit(txn, pieces, at=at, runs=runs)
        request.begin()
        if request.error is not None and not request.item.is_done:
            raise request.error  # It was refused, and nobody will ever say that it is done.
        return request.item

    def commit(
        self, txn: bytes, pieces: Sequence[Piece], *, at: Timestamp | None, runs: Sequence[tuple[int, int]] = ()
    ) -> Request:
        """As `commit_async`, handed over by whoever waits for it; see `steps`."""
        held = self._check()
        item = self._writer._transaction(txn, pieces, runs)
        if item.count != held.count:
            raise InvalidArgument(
                f"the reservation at {self.time_tick} is for {held.count} messages, not for {item.count}"
            )
        if held.moved and at != held.moved:
            raise InvalidArgument(
                f"the commit at the reservation of {self.time_tick} was tried at {Timestamp(held.moved)};"
                f" try it again at the same"
            )
        if at is not None and not held.moved:
            self._writer._check_at(held, at)
        item.places = self._vchannels
        item.reservation = self

        def submit(item: PendingAppend, here: bool) -> None:
            self._held, self._trying = None, item
            self._writer._submit_held(item, held, at, here=here)

        return Request(item, submit)

    def _check(self) -> Append:
        if self._held is None:
            raise InvalidArgument(f"the reservation at {self.time_tick} was used already")
        return self._held

    def take_back(self, held: Append) -> None:
        """The append failed and the place is still taken. Called by the writer."""
        self._held = held

    def release(self) -> None:
        """Give the TimeTicks back unused. They block nobody from now on."""
        if self._held is not None:
            held, self._held = self._held, None
            self._writer._release_held(held, self._vchannels)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
