"""`ChannelWriter`: one channel open for writing: all that callers may append, and in what forms."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    InvalidArgument,
)
from tidegate.log.channel import Append
from tidegate.log.last_confirmed import Session as Held
from tidegate.log.message import ALL_VCHANNELS, MessageType
from tidegate.runtime.channel_txn import ChannelTxn
from tidegate.runtime.commit import ROW_OVERHEAD
from tidegate.runtime.leader import Leader
from tidegate.runtime.pending import Appended, PendingAppend
from tidegate.runtime.pieces import Piece, commit_piece
from tidegate.runtime.reservation import Reservation
from tidegate.runtime.steps import InOrder, Request
from tidegate.txn.session import Session, encode_begin

_logger = logging.getLogger("tidegate.log")
_UNUSUAL: Final = (MessageType.TIME_TICK, MessageType.DDL)


class ChannelWriter(Leader):
    """Appends to one channel, from any number of threads and event loops."""

    # Handing over appends

    def append(
        self,
        vchannel: str,
        body: bytes,
        *,
        kind: MessageType = MessageType.INSERT,
        exclusive: bool = False,
        txn: bytes | None = None,
        session: Held | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """Append one message and wait until it is durable. `session` is the transaction it belongs to.

        Raises: `LimitExceeded`, `Backpressure`, `DiskFull`, `StorageFailed`: it is not part of the log.
        `OutcomeUnknown`, `WaitTimeout`: it may become part of it. `Fenced`, `Closed`: open the log again.
        """
        return self._append_and_wait(self._message(vchannel, body, kind, exclusive, txn, session), timeout_s)

    def append_async(
        self,
        vchannel: str,
        body: bytes,
        *,
        kind: MessageType = MessageType.INSERT,
        exclusive: bool = False,
        txn: bytes | None = None,
        session: Held | None = None,
        timeout_s: float | None = None,
    ) -> PendingAppend:
        """Append one message and go on; waits only when too much is in flight."""
        item = self._message(vchannel, body, kind, exclusive, txn, session)
        # What `_enqueue` does, without the calls: this is the path of many small appends.
        with self._mutex:
            queue = self._queue
            in_flight = queue.in_flight_bytes + item.size
            if self._writing and self._closed is None and in_flight <= self._in_flight_max and not item.exclusive:
                queue.in_flight_bytes = in_flight
                queue.items.append(item)
                if self._companions.waiting and len(queue.items) >= self._companions.expected:
                    self._companions.arrived()
                return item
        if self._enqueue(item, timeout_s):
            self._schedule()
        return item

    def append_batch(
        self,
        vchannel: str,
        rows: pa.RecordBatch | Sequence[bytes],
        *,
        kind: MessageType = MessageType.INSERT,
        txn: bytes | None = None,
        session: Held | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """Append many messages as one: all of them become part of the log, or none. Each has its own TimeTick."""
        return self._append_and_wait(self._batch(vchannel, rows, kind, txn, session), timeout_s)

    def append_batch_async(
        self,
        vchannel: str,
        rows: pa.RecordBatch | Sequence[bytes],
        *,
        kind: MessageType = MessageType.INSERT,
        txn: bytes | None = None,
        session: Held | None = None,
        timeout_s: float | None = None,
    ) -> PendingAppend:
        """`append_batch` without waiting for the acknowledgement."""
        item = self._batch(vchannel, rows, kind, txn, session)
        if self._enqueue(item, timeout_s):
            self._schedule()
        return item

    def append_transaction_async(
        self,
        txn: bytes,
        pieces: Sequence[Piece],
        *,
        runs: Sequence[tuple[int, int]] = (),
        session: Held | None = None,
        timeout_s: float | None = None,
    ) -> PendingAppend:
        """Append a whole transaction at once: its bodies and its commit, one write, one sync.

        `runs` are the positions of bodies that were written ahead. Its result is the commit's place in time.
        """
        item = self._transaction(txn, pieces, runs)
        item.session = session
        if self._enqueue(item, timeout_s):
            self._schedule()
        return item

    def append_transaction(self, txn: bytes, pieces: Sequence[Piece], *, timeout_s: float | None = None) -> Appended:
        """`append_transaction_async`, and wait until it is durable."""
        return self._append_and_wait(self._transaction(txn, pieces, ()), timeout_s)

    def begin(
        self, txn: bytes, vchannel: str, *, keepalive_ms: int | None = 0, timeout_s: float | None = None
    ) -> ChannelTxn:
        """Begin a transaction whose messages are written ahead of its commit; see `ChannelTxn`.

        It lives for `keepalive_ms` after its last message: 0 means 10 s, None that somebody else sees to its end.
        Does not wait: what is appended to it stands behind its beginning.
        """
        self._requests.check_place(vchannel)
        with self._mutex:
            self.check_open()
            session = self.sessions.begin(txn, int(self._allocate(1)), keepalive_ms, vchannel)
        item = PendingAppend(self._mutex, vchannel, MessageType.BEGIN, ROW_OVERHEAD, encode_begin(session.keepalive_ms))
        item.txn, item.session = txn, session

        def begun(item: PendingAppend) -> None:
            if item.error is None:
                session.begun(item.position)
            else:
                self.sessions.begin_failed(session)

        item.on_settled = begun
        try:
            self.submit(item, timeout_s)
        except BaseException:
            with self._mutex:
                self.sessions.begin_failed(session)
            raise
        return ChannelTxn(self, session)

    def resume(self, txn: bytes) -> ChannelTxn:
        """A transaction that is open here, begun by whoever it was, also before a restart.

        Raises: `TransactionExpired`, `TransactionAborted` when it is not.
        """
        with self._mutex:
            return ChannelTxn(self, self.sessions.get(txn))

    def transaction_body(self, session: Session, piece: Piece) -> PendingAppend:
        """A message, or several, of a transaction that is written ahead of its commit."""
        self._requests.check_pieces([piece], session.id)
        item = PendingAppend(self._mutex, piece.vchannel, piece.type, piece.size, piece.body)
        item.bodies, item.rows, item.count = piece.bodies, piece.rows, piece.count
        item.txn, item.session = session.id, session
        return item

    def record(self, vchannel: str, body: bytes, *, kind: MessageType = MessageType.RECORD) -> Request:
        """An append to be handed over by whoever waits for it; see `steps`."""
        return Request(self._message(vchannel, body, kind, False, None, None), self._submit_request)

    def plain(self, piece: Piece) -> Request:
        """Messages in no transaction, to be handed over by whoever waits for it."""
        kind = MessageType(piece.type)
        payload = piece.rows if piece.rows is not None else piece.bodies
        if payload is None:
            item = self._message(piece.vchannel, piece.body, kind, False, None, None)
        else:
            item = self._batch(piece.vchannel, payload, kind, None, None)
        return Request(item, self._submit_request)

    def transaction(self, txn: bytes, pieces: Sequence[Piece]) -> Request:
        """`append_transaction_async`, to be handed over by whoever waits for it."""
        return Request(self._transaction(txn, pieces, ()), self._submit_request)

    def transactions(self, run: Sequence[tuple[bytes, Sequence[Piece]]]) -> InOrder:
        """Transactions, each with a place in time of its own: in this order, and none without all those before it."""
        items = [self._transaction(txn, pieces, ()) for txn, pieces in run]
        for ahead, item in pairwise(items):
            item.behind = ahead
        return InOrder([Request(item, self._submit_request) for item in items])

    def _transaction(self, txn: bytes, pieces: Sequence[Piece], runs: Sequence[tuple[int, int]]) -> PendingAppend:
        self._requests.check_pieces(pieces, txn)
        parts = [*pieces, commit_piece(txn, pieces, runs)]
        item = PendingAppend(self._mutex, ALL_VCHANNELS, MessageType.COMMIT, sum([each.size for each in parts]))
        item.parts = parts
        # Not the commit's own: while it waits, it would keep everybody out of every virtual channel.
        item.places = tuple({each.vchannel: None for each in pieces})
        item.count = sum([each.count for each in parts])
        item.txn = txn
        return item

    def reserve(
        self,
        vchannel: str | Sequence[str],
        *,
        count: int = 1,
        session: Held | None = None,
        size: int = 0,
        timeout_s: float | None = None,
    ) -> Reservation:
        """Take a TimeTick, or `count` of them, for messages to come in one or several virtual channels.

        Waits while somebody has, or waits for, one of them alone, and while there is no room for `size` bytes more on
        their way: what is held does not wait for room once it is handed over.
        """
        deadline = None if timeout_s is None else self._monotonic() + timeout_s
        names = (vchannel,) if isinstance(vchannel, str) else tuple(dict.fromkeys(vchannel))
        if count < 1 or not names:
            raise InvalidArgument("a reservation is for at least one message in at least one virtual channel")
        for name in names:
            self._requests.check_place(name)
        with self._mutex:
            while True:
                self.check_open()
                busy = next((each for each in names if self._queue.wanted_alone(each)), None)
                busy = busy or next((each for each in names if not self._locks.may_share(each)), None)
                if busy is not None:
                    self._wait_for_room(deadline, f"virtual channel {busy!r} is wanted by an exclusive append")
                elif not self._wait_for_bytes(size, deadline):
                    break
            held = self._machine.allocate(self._allocate(count), count, names, session)
            for name in names:
                self._locks.try_shared(name)
        return Reservation(self, names, held)

    def _check_at(self, held: Append, at: Timestamp) -> None:
        if at < held.last:
            raise InvalidArgument(f"{at} is below the reserved TimeTick {Timestamp(held.last)}; take a later one")
        if self._allocate(1) <= at:
            # Written there it would let nothing be appended until the oracle had come so far.
            raise InvalidArgument(f"{at} lies ahead of the oracle; take the timestamp from it")

    def _submit_held(self, item: PendingAppend, held: Append, at: Timestamp | None, *, here: bool = False) -> None:
        def push(item: PendingAppend, _: float | None) -> bool:
            return self._push_held(item, held, at)

        if here:
            self._wait_here(item, None, push)
        elif push(item, None):
            self._schedule()

    def _push_held(self, item: PendingAppend, held: Append, at: Timestamp | None) -> bool:
        item.held = held
        with self._mutex:
            if self._closed is not None:
                if not self._keep_place(item):
                    self._machine.fail(held)
                    for name in item.names:
                        self._locks.release_shared(name)
                raise self._closed.with_traceback(None)
            if at is not None:
                self._machine.move(held, int(at))
            item.first_tick = held.last if item.parts is None else held.first
            item.last_confirmed = held.last_confirmed
            return self._push(item)

    def _release_held(self, held: Append, names: tuple[str, ...]) -> None:
        with self._mutex:
            self._machine.fail(held)
            for name in names:
                self._locks.release_shared(name)
            self._room.notify_all()
            lead = bool(self._queue) and not self._writing
            self._writing = self._writing or lead
        if lead:
            self._schedule()

    def _message(
        self,
        vchannel: str,
        body: bytes,
        kind: MessageType,
        exclusive: bool,
        txn: bytes | None,
        session: Held | None,
    ) -> PendingAppend:
        if (
            vchannel not in self._known
            or kind in _UNUSUAL
            or type(kind) is not MessageType
            or type(body) is not bytes
            or len(body) > self._message_max
            or txn is not None
        ):
            exclusive = exclusive or kind is MessageType.DDL
            self._requests.check_message(vchannel, body, kind, exclusive=exclusive, txn=txn)
        item = PendingAppend(self._mutex, vchannel, kind, len(body) + ROW_OVERHEAD, body)
        if exclusive:
            item.exclusive = True
        if txn is not None:
            item.txn, item.session = txn, session
        return item

    def _batch(
        self,
        vchannel: str,
        rows: pa.RecordBatch | Sequence[bytes],
        kind: MessageType,
        txn: bytes | None,
        session: Held | None,
    ) -> PendingAppend:
        bodies, arrow, count, size = self._requests.check_batch(vchannel, rows, kind, txn)
        item = PendingAppend(self._mutex, vchannel, kind, size)
        item.bodies, item.rows, item.count = bodies, arrow, count
        if txn is not None:
            item.txn, item.session = txn, session
        return item
