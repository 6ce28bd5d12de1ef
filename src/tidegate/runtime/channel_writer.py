"""`ChannelWriter`: one channel open for writing: the appends that callers hand over, and who writes them.

Whoever finds the channel idle writes for all who wait: a lone writer pays for no hand-over, and while one
write is being synced the next group gathers. How a group is written is `Committer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Thread, get_ident
from typing import Final

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Backpressure,
    Closed,
    Fenced,
    InvalidArgument,
    TidegateError,
    WaitTimeout,
)
from tidegate.log.channel import Append
from tidegate.log.last_confirmed import Session as Held
from tidegate.log.message import ALL_VCHANNELS, MessageType
from tidegate.runtime.channel_txn import ChannelTxn
from tidegate.runtime.commit import ROW_OVERHEAD
from tidegate.runtime.committer import Committer
from tidegate.runtime.pending import Appended, PendingAppend
from tidegate.runtime.pieces import Piece, commit_piece
from tidegate.runtime.reservation import Reservation
from tidegate.runtime.steps import Request
from tidegate.runtime.system_items import tick_item
from tidegate.txn.session import Session, encode_begin

_logger = logging.getLogger("tidegate.log")
_UNUSUAL: Final = (MessageType.TIME_TICK, MessageType.DDL)


class ChannelWriter(Committer):
    """Appends to one channel, from any number of threads and event loops."""

    def start(self) -> None:
        """Start the thread that writes for appends nobody waits for."""
        thread = Thread(target=self._run, name=f"tidegate-{self.name}", daemon=True)
        thread.start()
        self._thread = thread

    def close(self, timeout_s: float = 10.0) -> None:
        """Refuse new appends, finish those under way, and stop."""
        with self._mutex:
            closing = self._closed is None
            if closing:
                self._closed = Closed(f"channel {self.name!r} was closed; open the log again")
            if self._thread is not None:
                self._room.wait_for(lambda: not (self._queue or self._writing), timeout_s)
            left = self._drop_queue(self._closed or Closed(self.name))
            self._room.notify_all()
        for each in left:
            each.wake()
        if self._thread is not None:
            self._work.put(False)
            self._thread.join(timeout_s)
            self._thread = None
        if self._writing:
            # The disk does not answer. Whoever writes needs the files, and truncating would cut off what it wrote.
            _logger.warning("channel %r: closing did not wait for a commit that is still under way", self.name)
            return
        if closing and not isinstance(self._closed, Fenced):
            self._append_last_tick()
            try:
                self._segments.sync()
                self._segments.give_back()
            except OSError as error:
                _logger.warning("channel %r: closing: %s", self.name, self._storage_error(error, "nothing is lost"))
        self._segments.close()
        self._slot.close()
        self._tail.close()
        with self._ticked:
            self._ticked.notify_all()

    def _append_last_tick(self) -> None:
        """Cover what was acknowledged last. If that fails, readers wait for the next opening; nothing is lost."""
        with suppress(TidegateError), self._mutex:
            if self._writing or self._tail.current_term() != self.term:
                return
            plan = self._machine.plan_tick(int(self._allocate(1)), force=True)
            if plan is not None:
                self._push(tick_item(plan))
        self._lead(None)

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

    def submit(self, item: PendingAppend, timeout_s: float | None = None, *, here: bool = False) -> None:
        """Hand over what was made elsewhere; `here` waits for it, and writes for everybody meanwhile if nobody does."""
        if here:
            self._wait_here(item, timeout_s, self._enqueue)
        elif self._enqueue(item, timeout_s):
            self._schedule()

    def record(self, vchannel: str, body: bytes, *, kind: MessageType = MessageType.RECORD) -> Request:
        """An append to be handed over by whoever waits for it; see `steps`."""
        return Request(self._message(vchannel, body, kind, False, None, None), self._submit_request)

    def transaction(self, txn: bytes, pieces: Sequence[Piece]) -> Request:
        """`append_transaction_async`, to be handed over by whoever waits for it."""
        return Request(self._transaction(txn, pieces, ()), self._submit_request)

    def _submit_request(self, item: PendingAppend, here: bool) -> None:
        self.submit(item, here=here)

    @property
    def mutex(self) -> Lock:
        """Covers the channel's machine and its transactions."""
        return self._mutex

    @property
    def allocate(self) -> Callable[[int], int]:
        """The oracle, as this channel uses it."""
        return self._allocate

    def _transaction(self, txn: bytes, pieces: Sequence[Piece], runs: Sequence[tuple[int, int]]) -> PendingAppend:
        self._requests.check_pieces(pieces, txn)
        parts = [*pieces, commit_piece(txn, pieces, runs)]
        item = PendingAppend(self._mutex, ALL_VCHANNELS, MessageType.COMMIT, sum([each.size for each in parts]))
        item.parts = parts
        item.places = tuple({each.vchannel: None for each in parts})
        item.count = sum([each.count for each in parts])
        item.txn = txn
        return item

    def reserve(
        self,
        vchannel: str | Sequence[str],
        *,
        count: int = 1,
        session: Held | None = None,
        timeout_s: float | None = None,
    ) -> Reservation:
        """Take a TimeTick, or `count` of them, for messages to come in one or several virtual channels.

        Waits while somebody has, or waits for, one of them alone.
        """
        deadline = None if timeout_s is None else self._monotonic() + timeout_s
        names = (vchannel,) if isinstance(vchannel, str) else tuple(dict.fromkeys(vchannel))
        for name in names:
            self._requests.check_place(name)
        with self._mutex:
            while True:
                self.check_open()
                busy = next((each for each in names if self._queue.wanted_alone(each)), None)
                busy = busy or next((each for each in names if not self._locks.may_share(each)), None)
                if busy is None:
                    break
                self._wait_for_room(deadline, f"virtual channel {busy!r} is wanted by an exclusive append")
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

    def _append_and_wait(self, item: PendingAppend, timeout_s: float | None) -> Appended:
        self._wait_here(item, timeout_s, self._enqueue)
        return item.result()

    def _wait_here(
        self, item: PendingAppend, timeout_s: float | None, enqueue: Callable[[PendingAppend, float | None], bool]
    ) -> None:
        """Hand it over and wait until it is done, writing for everybody if nobody else does."""
        if self._waking == get_ident():
            raise InvalidArgument("a callback of an append cannot wait for another one; use append_async there")
        item.prepare_wait()
        lead = enqueue(item, timeout_s)
        deadline = None if timeout_s is None else self._monotonic() + timeout_s
        while True:
            if lead:
                self._lead(item)
            if item.is_done:
                return
            # It may have to wait for somebody else's place; meanwhile it may be asked to write, more than once.
            try:
                woken = item.wait_for_turn(None if deadline is None else max(deadline - self._monotonic(), 0))
            except BaseException:  # Ctrl-C: nobody must wait for this thread to write.
                self._stop_waiting(item)
                raise
            if item.is_done:
                return
            with self._mutex:
                lead, item.leads = item.leads, False
                if not (woken or lead or item.is_done):
                    item.waits = False
                    raise WaitTimeout(f"the append was not acknowledged within {timeout_s} s; it is still under way")

    def _resign(self) -> None:
        """Stop writing for others though they wait."""
        with self._mutex:
            self._go_idle()
            self._writing = bool(self._queue)
            again = self._writing
        if again:
            self._schedule()

    def _stop_waiting(self, item: PendingAppend) -> None:
        with self._mutex:
            item.waits = False
            lead, item.leads = item.leads, False
        if lead:
            self._schedule()

    def _enqueue(self, item: PendingAppend, timeout_s: float | None) -> bool:
        """Put it into the queue. True when the channel was idle: the caller has to see to the writing."""
        with self._mutex:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            limit = self._in_flight_max
            if self._queue.in_flight_bytes + item.size > limit:
                deadline = None if timeout_s is None else self._monotonic() + timeout_s
                while (used := self._queue.in_flight_bytes) and used + item.size > limit:
                    why = f"channel {self.name!r} has {used:,} bytes in flight"
                    self._wait_for_room(deadline, f"{why}, and `in_flight_bytes_max` is {limit:,}")
                    self.check_open()
            return self._push(item)

    def _wait_for_room(self, deadline: float | None, why: str) -> None:
        """Wait, holding the mutex, until something changes.

        Raises: `Backpressure` when the time is up.
        """
        left = None if deadline is None else deadline - self._monotonic()
        if (left is not None and left <= 0) or not self._room.wait(left):
            raise Backpressure(f"{why}; wait for acknowledgements, then try again")

    # Who writes

    def _run(self) -> None:
        while self._work.get():
            try:
                self._lead(None)
            except Exception:
                _logger.exception("channel %r: the writing thread met a defect", self.name)

    def _lead(self, own: PendingAppend | None) -> None:
        """Write for everybody until `own` is acknowledged, or until nothing waits; then hand over."""
        while True:
            try:
                if own is not None and self._companions.expected > len(self._queue):
                    self._companions.wait()
                commit = self.next_commit()
                if commit is None:
                    return
                if commit.items:
                    self.run(commit)
            except BaseException:  # Ctrl-C, or a defect of ours: somebody else goes on.
                self._resign()
                raise
            if own is None or not own.is_done:
                continue
            with self._mutex:
                if not self._queue:
                    self._go_idle()
                    return
                successor = self._queue.first_waiting()
                if successor is not None:
                    successor.leads = True
            if successor is not None:
                successor.wake()
            else:
                self._schedule()
            return
