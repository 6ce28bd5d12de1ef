"""`ChannelTxn`: a transaction in one channel whose messages are written as they come, ahead of its commit (seed 000).

Nobody waits for it: readers pass its messages by until the commit says that they count. It lives as long as its lease,
which every message renews; an exclusive append in one of its virtual channels ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Backpressure,
    Fenced,
    InvalidTransactionState,
    OutcomeUnknown,
    Retryable,
    TidegateError,
    TransactionAborted,
)
from tidegate.log.message import MessageType
from tidegate.runtime.pending import Appended, PendingAppend
from tidegate.runtime.pieces import Piece
from tidegate.runtime.reservation import Reservation
from tidegate.runtime.steps import Steps, Under, run
from tidegate.runtime.system_items import rollback_item
from tidegate.txn.session import Session

if TYPE_CHECKING:
    from tidegate.runtime.channel_writer import ChannelWriter


class ChannelTxn:
    """One transaction in one channel. Its calls may come from any thread, its end from one."""

    def __init__(self, writer: ChannelWriter, session: Session) -> None:
        self._writer = writer
        self.session: Final = session
        self._is_ending = False
        self._pending: dict[int, PendingAppend] = {}
        """What is on its way, and what has failed without its sender having been told. The mutex covers it."""

    @property
    def id(self) -> bytes:
        return self.session.id

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Where its messages lie, as (first position, count)."""
        return self.session.runs

    def append_async(
        self,
        vchannel: str,
        payload: bytes | list[bytes] | pa.RecordBatch,
        *,
        kind: MessageType = MessageType.INSERT,
        timeout_s: float | None = None,
    ) -> PendingAppend:
        """Write a message, or many, ahead of the commit.

        Raises: `TransactionExpired`, `TransactionAborted`, `InvalidTransactionState`, and what an append raises.
        """
        return self.append_piece(Piece(vchannel, payload, kind), timeout_s)

    def append_piece(self, piece: Piece, timeout_s: float | None = None) -> PendingAppend:
        """As `append_async`."""
        writer, session = self._writer, self.session
        item = writer.transaction_body(session, piece)
        item.on_settled = self._landed
        with writer.mutex:
            if self._is_ending and session.is_open:
                raise InvalidTransactionState(f"{session} is being committed and takes no more", state="ON_COMMIT")
            session.add(int(writer.allocate(1)), piece.vchannel)
            self._pending[id(item)] = item
        try:
            writer.submit(item, timeout_s)
        except BaseException as error:
            with writer.mutex:
                session.fail_body()
                del self._pending[id(item)]
                item.error, item.is_done = error, True  # Whoever ends the transaction may wait for it already.
            item.wake()
            raise
        return item

    def append(
        self,
        vchannel: str,
        payload: bytes | list[bytes] | pa.RecordBatch,
        *,
        kind: MessageType = MessageType.INSERT,
        timeout_s: float | None = None,
    ) -> Appended:
        """`append_async`, and wait until it is durable. If the error is `Retryable` it may be repeated."""
        item = self.append_async(vchannel, payload, kind=kind, timeout_s=timeout_s)
        try:
            return item.result(timeout_s)
        except Retryable:
            if item.is_done:
                with self._writer.mutex:
                    self._pending.pop(id(item), None)
            raise

    def _landed(self, item: PendingAppend) -> None:
        """Called under the mutex, before anybody learns that the append is done."""
        session = self.session
        if item.error is not None:
            session.fail_body()
            return
        del self._pending[id(item)]
        if session.first_position is None:
            session.fail_body()  # It was written, but the BEGIN before it was not: the transaction has failed.
        else:
            session.done(item.first_tick + item.count - 1, item.position, item.count, item.size)

    @property
    def pending(self) -> list[PendingAppend]:
        """Messages that are on their way."""
        with self._writer.mutex:
            return [each for each in self._pending.values() if not each.is_done]

    def settle(self) -> None:
        """Wait for every message on its way.

        Raises: what the first one that failed failed with. The transaction can then only be rolled back.
        """
        while True:
            with self._writer.mutex:
                each = next(iter(self._pending.values()), None)
            if each is None:
                return
            each.result()  # What failed stays, so that no later commit goes without it.

    def hold(
        self, vchannels: Sequence[str] = (), count: int = 0, timeout_s: float | None = None, *, size: int = 0
    ) -> Reservation:
        """Take the place in time of the commit and of `count` more messages, of `size` bytes, that come with it.

        From here on the transaction neither expires nor is failed by others, and takes no more messages.
        """
        # What other threads send from now on would have its TimeTick above the commit's.
        self._is_ending = True
        try:
            self.settle()
            return self._hold(vchannels, count, timeout_s, size)
        except BaseException:
            self._is_ending = False
            raise

    def _hold(self, vchannels: Sequence[str], count: int, timeout_s: float | None, size: int) -> Reservation:
        writer, session = self._writer, self.session
        places = tuple(dict.fromkeys([*sorted(session.vchannels), *vchannels]))
        # The place first: with it nobody can have one of its virtual channels alone, so that none straddles a DDL.
        held = writer.reserve(places, count=count + 1, session=session, size=size, timeout_s=timeout_s)
        try:
            with writer.mutex:
                if session.in_flight:
                    raise Backpressure(f"{session}: messages sent through another handle are on their way; try again")
                session.request_commit(int(held.time_tick) + count)
        except TidegateError:
            held.release()
            raise
        return held

    def commit(self, pieces: Sequence[Piece] = (), *, timeout_s: float | None = None) -> Appended:
        """Make it visible, all of it at once, at the TimeTick that is returned. `pieces` are written with the commit.

        Raises: `OutcomeUnknown`, `Fenced`: it may be committed. Anything else: it is not; it may be tried again if the
        error is `Retryable` and the transaction still lives.
        """
        held = self.hold([each.vchannel for each in pieces], sum([each.count for each in pieces]), timeout_s)
        return self.commit_at(held, pieces, None)

    def commit_at(self, held: Reservation, pieces: Sequence[Piece], at: Timestamp | None) -> Appended:
        """Write the commit at the place that `hold` took, or at a later one."""
        session = self.session
        try:
            done = held.commit_async(session.id, pieces, at=at, runs=session.runs).result()
        except Fenced:
            raise  # It may be part of the log.
        except OutcomeUnknown:
            # Before the next write the log is cut where it was last good, so no tick can pass the commit unnoticed.
            # The place is given back: it would hold up all others for good.
            held.release()
            self.committed(session.end_tick or 0)
            raise
        except TidegateError:
            held.release()
            self.commit_failed()
            raise
        self.committed(int(done.time_tick))
        return done

    def committed(self, tick: int) -> None:
        """Its commit is durable at `tick`."""
        with self._writer.mutex:
            self.session.commit_done(tick)

    def commit_failed(self) -> None:
        """Its commit is known not to be part of the log; it is open as before."""
        with self._writer.mutex:
            self.session.commit_failed()
            self._is_ending = False

    def rollback(self) -> None:
        """End it; nothing of it was or will be visible."""
        with self._writer.mutex:
            self.session.request_rollback(int(self._writer.allocate(1)))
        run(self._roll_back())

    def rollback_steps(self) -> Steps[None]:
        """As `rollback`, for one that may have expired, failed or ended already."""
        try:
            with self._writer.mutex:
                self.session.request_rollback(int(self._writer.allocate(1)))
        except (TransactionAborted, InvalidTransactionState):
            return
        yield from self._roll_back()

    def _roll_back(self) -> Steps[None]:
        yield [Under(each) for each in self.pending]
        writer = self._writer
        with writer.mutex:
            self.session.rollback_done()
        with suppress(TidegateError):  # Without the message nothing of it becomes visible either.
            writer.submit(rollback_item(writer.mutex, self.session.id))
