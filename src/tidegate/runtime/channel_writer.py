"""`ChannelWriter`: one channel open for writing in one term. Group commit around the pure `Channel` machine.

Whoever finds the channel idle writes for all who wait: a lone writer pays for no hand-over, and while one
write is being synced the next group gathers. A group takes its TimeTicks together, is encoded once, written once
and synced once, and then every append in it is acknowledged.

A commit goes through four steps: `next_commit`, `write`, `sync`, `finish`. Threads run them in one go; the
simulator runs them one at a time, with anything in between.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import Final

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Backpressure,
    Closed,
    Fenced,
    InvalidArgument,
    InvariantBroken,
    OutcomeUnknown,
    Retryable,
    StorageFailed,
    TidegateError,
    WaitTimeout,
)
from tidegate.log.channel import Append, Channel, TickPlan, Visible
from tidegate.log.last_confirmed import Session
from tidegate.log.message import ALL_VCHANNELS, MessageType, Position, Term, Tick
from tidegate.log.write_ahead_buffer import Evicted, Ticked
from tidegate.ports.files import Files
from tidegate.ports.tail import Tail, address
from tidegate.runtime.append_queue import AppendQueue
from tidegate.runtime.commit import ROW_OVERHEAD, Commit, Requests, session_of
from tidegate.runtime.companions import Companions
from tidegate.runtime.pending import Appended, PendingAppend
from tidegate.runtime.recent_blocks import RecentBlocks
from tidegate.runtime.reservation import Reservation
from tidegate.runtime.segments import Recovered, SegmentWriter
from tidegate.runtime.settings import Durability, LogSettings
from tidegate.runtime.writer_status import WriterStatus, storage_error

_logger = logging.getLogger("tidegate.log")
_TICK_BYTES: Final = 16 << 20
"""Bytes after which a tick is due, whatever the time."""
_UNUSUAL: Final = (MessageType.TIME_TICK, MessageType.DDL)


class ChannelWriter:
    """Appends to one channel.

    Invariant: at most one commit is between `next_commit` and `finish`.
    Ordering: durable, then checked against the fence, then acknowledged and published; ticks last.
    """

    def __init__(
        self,
        name: str,
        term: Term,
        *,
        files: Files,
        directory: str,
        tail: Tail,
        allocate: Callable[[int], int],
        wall_ms: Callable[[], int],
        settings: LogSettings,
        schedule: Callable[[], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`allocate(n)` returns the first of n consecutive timestamps from the oracle.

        `schedule` is called when somebody has to run a commit; by default that is this writer's own thread.
        """
        self.name: Final = name
        self.term: Final = term
        self._files = files
        self._settings = settings
        self._requests = Requests(name, settings)
        self._known = self._requests.known
        self._message_max = settings.message_bytes_max
        self._in_flight_max = settings.in_flight_bytes_max
        self._tick_bytes = min(_TICK_BYTES, settings.buffer_bytes_max // 2)
        self._allocate = allocate
        self._monotonic = monotonic
        self._tail = tail
        self._work: SimpleQueue[bool] = SimpleQueue()
        self._schedule = schedule or (lambda: self._work.put(True))
        self._segments = SegmentWriter(
            files,
            directory,
            channel=name,
            segment_bytes=settings.segment_bytes,
            wall_ms=wall_ms,
            current_term=tail.current_term,
        )
        try:
            # Fence before looking for the end: see ports/tail.py.
            self._slot = tail.fence(term)
            self.recovered: Final[Recovered] = self._segments.recover(term)
        except OSError as error:
            raise self._storage_error(error, "the channel could not be opened") from error
        self._mutex = Lock()
        self._room = Condition(self._mutex)
        self._ticked = Condition(Lock())
        self._queue = AppendQueue(settings)
        self._locks = self._queue.locks
        self._companions = Companions()
        self._writing = False
        self._closed: TidegateError | None = None
        self._last_error: str | None = None
        self._thread: Thread | None = None
        self.on_exclusive: Callable[[str, Timestamp], None] | None = None
        """Called after an exclusive append, while its virtual channel is still held: transactions open there fail."""
        try:
            first = self._append_first_tick()
        except TidegateError as error:
            if not isinstance(error, Fenced):
                self._segments.discard()
            self._segments.close()
            raise
        self._machine = Channel(name, term, first.time_tick, first.position)
        self._recent = RecentBlocks(first, settings)

    # Opening and closing

    def _append_first_tick(self) -> Tick:
        """Write the tick that opens the term: it marks the end of what older terms left, and makes it readable.

        Raises: whatever the write failed with; a term whose first tick cannot be written does not open.
        """
        segments = self._segments
        tick = Timestamp(self._allocate(1))
        if tick <= segments.time_tick:
            raise StorageFailed(
                f"channel {self.name!r} holds TimeTick {segments.time_tick}, above the oracle's {tick}: the"
                f" metadata store is older than the log; restore the one that belongs to it"
            )
        position = segments.position + 1
        commit = Commit([self._tick_item(tick, Position(position))])
        commit.encode(segments)
        try:
            segments.write(commit.blocks)
            segments.sync()
        except OSError as error:
            raise self._storage_error(error, "its first time tick could not be written") from error
        current = self._tail.current_term()
        if current != self.term:
            raise Fenced(self.name, self.term, current)
        segments.commit(commit.blocks, position=position, time_tick=int(tick), messages=1, tick=int(tick), durable=True)
        self._slot.publish_address(address(segments.id.number, segments.offset))
        self._slot.publish_tick(int(tick))
        return Tick(tick, Position(position), Position(position), persisted=True)

    def start(self) -> None:
        """Start the thread that writes for appends nobody waits for."""
        self._thread = Thread(target=self._run, name=f"tidegate-{self.name}", daemon=True)
        self._thread.start()

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
        if closing:
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
                self._push(self._tick_item(plan.time_tick, plan.last_confirmed, plan))
        self._lead(None)

    @property
    def is_open(self) -> bool:
        return self._closed is None

    # Handing over appends

    def append(
        self,
        vchannel: str,
        body: bytes,
        *,
        kind: MessageType = MessageType.INSERT,
        exclusive: bool = False,
        txn: bytes | None = None,
        session: Session | None = None,
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
        session: Session | None = None,
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
        session: Session | None = None,
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
        session: Session | None = None,
        timeout_s: float | None = None,
    ) -> PendingAppend:
        """`append_batch` without waiting for the acknowledgement."""
        item = self._batch(vchannel, rows, kind, txn, session)
        if self._enqueue(item, timeout_s):
            self._schedule()
        return item

    def reserve(self, vchannel: str, *, session: Session | None = None, timeout_s: float | None = None) -> Reservation:
        """Take a TimeTick now for a message to come. Waits while somebody has, or waits for, the place alone."""
        deadline = None if timeout_s is None else self._monotonic() + timeout_s
        self._requests.check_place(vchannel)
        with self._mutex:
            while True:
                self.check_open()
                if not self._queue.wanted_alone(vchannel) and self._locks.try_shared(vchannel):
                    break
                self._wait_for_room(deadline, f"virtual channel {vchannel!r} is wanted by an exclusive append")
            try:
                held = self._machine.allocate(self._allocate(1), 1, (vchannel,), session)
            except TidegateError:
                self._locks.release_shared(vchannel)
                raise
        return Reservation(self, vchannel, held)

    def _check_held(
        self, held: Append, vchannel: str, body: bytes, *, kind: MessageType, at: Timestamp | None, txn: bytes | None
    ) -> None:
        """Refuse what cannot be written at `held` while it can still be used otherwise."""
        self._requests.check_message(vchannel, body, kind, exclusive=False, txn=txn)
        if at is not None and at < held.first:
            raise InvalidArgument(f"{at} is below the reserved TimeTick {Timestamp(held.first)}; take a later one")
        if at is not None and self._allocate(1) <= at:
            # Written there it would let nothing be appended until the oracle had come so far.
            raise InvalidArgument(f"{at} lies ahead of the oracle; take the timestamp from it")

    def _append_held(
        self, held: Append, vchannel: str, body: bytes, *, kind: MessageType, at: Timestamp | None, txn: bytes | None
    ) -> PendingAppend:
        item = PendingAppend(self._mutex, vchannel, kind, len(body) + ROW_OVERHEAD, body)
        item.held, item.txn = held, txn
        with self._mutex:
            if self._closed is not None:
                self._machine.fail(held)
                self._locks.release_shared(vchannel)
                raise self._closed
            if at is not None:
                self._machine.move(held, int(at))
            item.first_tick = held.first
            item.last_confirmed = held.last_confirmed
            lead = self._push(item)
        if lead:
            self._schedule()
        return item

    def _release_held(self, held: Append, vchannel: str) -> None:
        with self._mutex:
            self._machine.fail(held)
            self._locks.release_shared(vchannel)
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
        session: Session | None,
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
        session: Session | None,
    ) -> PendingAppend:
        bodies, arrow, count, size = self._requests.check_batch(vchannel, rows, kind, txn)
        item = PendingAppend(self._mutex, vchannel, kind, size)
        item.bodies, item.rows, item.count = bodies, arrow, count
        if txn is not None:
            item.txn, item.session = txn, session
        return item

    def _tick_item(self, time_tick: Timestamp, last_confirmed: Position, plan: TickPlan | None = None) -> PendingAppend:
        item = PendingAppend(Lock(), ALL_VCHANNELS, MessageType.TIME_TICK, ROW_OVERHEAD)
        item.plan = plan or TickPlan(time_tick, last_confirmed, persist=True)
        item.first_tick = int(time_tick)
        item.last_confirmed = last_confirmed
        return item

    def _append_and_wait(self, item: PendingAppend, timeout_s: float | None) -> Appended:
        item.prepare_wait()
        lead = self._enqueue(item, timeout_s)
        deadline = None if timeout_s is None else self._monotonic() + timeout_s
        while True:
            if lead:
                self._lead(item)
            if item.is_done:
                return item.result()
            # It may have to wait for somebody else's place; meanwhile it may be asked to write, more than once.
            woken = item.wait_for_turn(None if deadline is None else max(deadline - self._monotonic(), 0))
            if item.is_done:
                return item.result()
            with self._mutex:
                lead, item.leads = item.leads, False
                if not (woken or lead or item.is_done):
                    item.waits = False
                    raise WaitTimeout(f"the append was not acknowledged within {timeout_s} s; it is still under way")

    def _enqueue(self, item: PendingAppend, timeout_s: float | None) -> bool:
        """Put it into the queue. True when the channel was idle: the caller has to see to the writing."""
        with self._mutex:
            if self._closed is not None:
                raise self._closed
            limit = self._in_flight_max
            if self._queue.in_flight_bytes + item.size > limit:
                deadline = None if timeout_s is None else self._monotonic() + timeout_s
                while (used := self._queue.in_flight_bytes) and used + item.size > limit:
                    why = f"channel {self.name!r} has {used:,} bytes in flight"
                    self._wait_for_room(deadline, f"{why}, and `in_flight_bytes_max` is {limit:,}")
                    self.check_open()
            return self._push(item)

    def _push(self, item: PendingAppend) -> bool:
        self._queue.push(item)
        if self._writing:
            if self._companions.waiting and len(self._queue) >= self._companions.expected:
                self._companions.arrived()
            return False
        self._writing = True
        return True

    def _wait_for_room(self, deadline: float | None, why: str) -> None:
        """Wait, holding the mutex, until something changes.

        Raises: `Backpressure` when the time is up.
        """
        left = None if deadline is None else deadline - self._monotonic()
        if (left is not None and left <= 0) or not self._room.wait(left):
            raise Backpressure(f"{why}; wait for acknowledgements, then try again")

    def check_open(self) -> None:
        """Raises: why the channel takes no more appends, if it does not."""
        if self._closed is not None:
            raise self._closed

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
            if own is not None and self._companions.expected > len(self._queue):
                self._companions.wait()
            commit = self.next_commit()
            if commit is None:
                return
            if commit.items:
                self.run(commit)
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

    def next_commit(self) -> Commit | None:
        """What to write next; None when nothing can be written now, and then the channel is idle."""
        with self._mutex:
            commit = self.collect()
            if commit is None:
                self._go_idle()
        if commit is not None and commit.append is None:
            for each in commit.rejected:
                each.wake()
        return commit

    def _go_idle(self) -> None:
        self._writing = False
        self._room.notify_all()

    def run(self, commit: Commit) -> None:
        """All steps of a commit that was taken."""
        started = self._monotonic()
        try:
            self.write(commit)
            self.sync(commit)
            self._companions.wrote(len(commit.items), self._monotonic() - started)
        except OSError as error:
            self.finish(commit, self.abandon(commit, error))
        except TidegateError as error:
            self.finish(commit, error)
        except Exception as error:
            # A defect of ours. Whoever waits is told, the log is cut where it was last good, and the channel goes on.
            _logger.exception("channel %r: a commit met a defect", self.name)
            cut = self.abandon(commit, OSError(errno.EIO, str(error)))
            known = not isinstance(cut, StorageFailed)
            self.finish(
                commit, cut if known else InvariantBroken(f"channel {self.name!r}: {error!r}; nothing was written")
            )
        else:
            self.finish(commit)

    # The commit, in four steps

    def collect(self) -> Commit | None:
        """Take what waits and give it TimeTicks; None when nothing can be written now. The mutex is held.

        Allocating and entering the machine are one step under the mutex, so that no tick can slip between.
        """
        items = self._queue.admit()
        if not items:
            return None
        commit = Commit(items)
        plain = [each for each in items if each.held is None and each.plan is None]
        if len(plain) != len(items):
            commit.tick = next((each for each in items if each.plan is not None), None)
        if not plain:
            return commit
        count = sum([each.count for each in plain])
        try:
            first = int(self._allocate(count))
        except Exception as error:
            # Whatever it is, whoever waits must be told, and the next group must find somebody to write it.
            known = isinstance(error, TidegateError)
            told = error if known else InvariantBroken(f"channel {self.name!r}: no timestamps: {error!r}")
            self._settle(plain, told)
            commit.rejected = plain
            commit.items = [each for each in items if each.held is not None or each.plan is not None]
            self._release_exclusive(plain)
            return commit
        names = tuple({each.vchannel: None for each in plain})
        append = self._machine.allocate(first, count, names, session_of(plain))
        commit.append, commit.plain = append, plain
        for each in plain:
            each.first_tick = first
            each.last_confirmed = append.last_confirmed
            first += each.count
        return commit

    def _release_exclusive(self, items: Sequence[PendingAppend]) -> None:
        for each in items:
            if each.exclusive:
                self._locks.release_exclusive(each.vchannel)

    def write(self, commit: Commit) -> None:
        """Encode the commit and write it, in a new segment when the open one is full or broken.

        Raises: `OSError` from the disk, `Fenced`.
        """
        segments = self._segments
        if segments.broken:
            segments.roll()
        commit.encode(segments)
        if not segments.room(commit.size):
            segments.roll()
            commit.encode(segments)
        commit.touched = True
        segments.write(commit.blocks)

    def sync(self, commit: Commit) -> None:
        """Make the commit durable, as far as the setting asks for it."""
        if commit.touched and self._settings.durability is Durability.SYNC:
            self._segments.sync()

    def abandon(self, commit: Commit, error: OSError) -> TidegateError:
        """After a failed write or sync: cut the log where it was last good, so that the outcome is certain."""
        segments = self._segments
        if not commit.touched:
            return self._storage_error(error, "nothing of the append was written")
        segments.broken = True
        try:
            segments.roll()
        except OSError:
            path = self._files.describe(segments.path(segments.id.name))
            return OutcomeUnknown(
                f"channel {self.name!r}: {error.strerror or error} in {path}; whether the append is part of the log"
                f" is not known: read before you repeat it"
            )
        except Fenced as fenced:
            return fenced
        return self._storage_error(error, "the append was cut off and is not part of the log")

    def _storage_error(self, error: OSError, what: str) -> Retryable:
        return storage_error(self.name, self._files.describe(self._segments.directory), error, what)

    def finish(self, commit: Commit, error: TidegateError | None = None) -> None:
        """Acknowledge the commit, or fail it."""
        done: list[PendingAppend] = commit.items
        with self._mutex:
            if error is None:
                current = self._tail.current_term()
                if current != self.term:
                    error = Fenced(self.name, self.term, current)
            if error is None:
                self._accept(commit)
            else:
                self._reject(commit, error)
            self._settle(commit.items, error)
            if isinstance(error, Fenced):
                self._closed = error
                done = [*done, *self._drop_queue(error)]
            self._room.notify_all()
        for each in done:
            if each.has_listeners:
                each.wake()
        if commit.tick is not None:
            self._announce_tick()
        elif self._recent.waiting_bytes > self._tick_bytes and error is None:
            # Readers hold back what no tick covers; a fast writer ticks more often, so that they hold little.
            # If there is no timestamp for it now, the next tick in turn will do: the commit is done in any case.
            with suppress(TidegateError):
                self.tick()

    def _accept(self, commit: Commit) -> None:
        segments, machine = self._segments, self._machine
        tick = commit.tick
        segments.commit(
            commit.blocks,
            position=commit.last_position,
            time_tick=max([each.last_time_tick for each in commit.blocks]),
            messages=commit.messages,
            tick=0 if tick is None else tick.first_tick,
            durable=self._settings.durability is Durability.SYNC,
        )
        self._last_error = None
        self._slot.publish_address(address(segments.id.number, segments.offset))
        if commit.append is not None:
            last = commit.plain[-1]
            first = commit.plain[0].position
            machine.acknowledge(commit.append, last.position + last.count - 1, first_position=first)
        self._recent.keep(each for each in commit.blocks if each is not commit.tick_block)
        self._release_special(commit, failed=False)
        if tick is not None and tick.plan is not None:
            self._tick_done(tick.plan, Position(tick.position))

    def _reject(self, commit: Commit, error: TidegateError) -> None:
        self._last_error = str(error)
        if commit.append is not None:
            self._machine.fail(commit.append)
        self._release_special(commit, failed=True)
        if commit.tick is not None and commit.tick.plan is not None:
            self._machine.tick_failed(commit.tick.plan)

    def _release_special(self, commit: Commit, *, failed: bool) -> None:
        """Let go of what held and exclusive items hold."""
        for each in commit.items:
            if each.held is not None:
                if failed:
                    self._machine.fail(each.held)
                else:
                    self._machine.acknowledge(each.held, each.position)
                self._locks.release_shared(each.vchannel)
            elif each.exclusive:
                self._tell_exclusive(each)
                self._locks.release_exclusive(each.vchannel)

    def _tell_exclusive(self, item: PendingAppend) -> None:
        if self.on_exclusive is None:
            return
        try:
            self.on_exclusive(item.vchannel, Timestamp(item.first_tick))
        except Exception:
            _logger.exception("channel %r: the listener for exclusive appends raised", self.name)

    def _settle(self, items: list[PendingAppend], error: Exception | None) -> None:
        for each in items:
            if error is not None:
                each.error = error
            each.is_done = True
        self._queue.settled(items)

    def _drop_queue(self, error: TidegateError) -> list[PendingAppend]:
        """Fail everything that waits; the caller wakes it."""
        dropped = self._queue.drop()
        for each in dropped:
            if each.held is not None:
                self._machine.fail(each.held)
                self._locks.release_shared(each.vchannel)
            elif each.plan is not None:
                self._machine.tick_failed(each.plan)
        self._settle(dropped, error)
        return dropped

    # Ticks

    def tick(self, *, force: bool = False) -> None:
        """Append a time tick that covers all that is confirmed. `force` persists it though nothing happened."""
        with self._mutex:
            if self._closed is not None or not self._locks.may_share(ALL_VCHANNELS):
                return
            current = self._tail.current_term()
            if current != self.term:
                return  # The next commit finds out and says so.
            plan = self._machine.plan_tick(int(self._allocate(1)), force=force)
            if plan is None:
                return
            lead = False
            if plan.persist:
                lead = self._push(self._tick_item(plan.time_tick, plan.last_confirmed, plan))
            else:
                self._tick_done(plan, plan.last_confirmed)
        if not plan.persist:
            self._announce_tick()
        elif lead:
            self._schedule()

    def _tick_done(self, plan: TickPlan, position: Position) -> None:
        self._machine.tick_appended(plan)
        tick = Tick(plan.time_tick, position, plan.last_confirmed, plan.persist)
        self._recent.ticked(tick, self._monotonic())
        self._slot.publish_tick(int(plan.time_tick))

    def _announce_tick(self) -> None:
        with self._ticked:
            self._ticked.notify_all()

    def wait_for_tick(self, after: int, timeout_s: float | None = None) -> Tick | None:
        """The newest tick, once there is one above `after`; None when the time is up or the channel closed."""
        with self._ticked:
            self._ticked.wait_for(
                lambda: int(self._recent.latest.time_tick) > after or self._closed is not None, timeout_s
            )
        latest = self._recent.latest
        return latest if int(latest.time_tick) > after else None

    @property
    def latest_tick(self) -> Tick:
        """The newest tick, persisted or not."""
        return self._recent.latest

    def read_buffer(self, after: int) -> tuple[list[Ticked] | Evicted, Tick]:
        """What the write-ahead buffer has above tick `after`, and the newest tick."""
        with self._mutex:
            return self._recent.read_after(after), self._recent.latest

    def visible(self, vchannel: str) -> Visible:
        """How far a virtual channel has come. Asking for what no tick covers yet makes one come soon."""
        with self._mutex:
            seen = self._machine.visible(vchannel)
        if not seen.confirmed:
            self.tick()
        return seen

    @property
    def segments(self) -> SegmentWriter:
        return self._segments

    def status(self) -> WriterStatus:
        with self._mutex:
            segments = self._segments
            return WriterStatus(
                channel=self._machine.status(),
                queued=len(self._queue),
                in_flight_bytes=self._queue.in_flight_bytes,
                buffered_bytes=self._recent.nbytes,
                segment=segments.id.name,
                offset=segments.offset,
                durable_to=segments.synced,
                position=Position(segments.position),
                holders=self._locks.holders(),
                recovered=self.recovered,
                last_error=self._last_error,
            )

    def sync_now(self) -> None:
        """Make everything acknowledged so far durable; for durability `interval`.

        Raises: `DiskFull` or `StorageFailed`. What was acknowledged since the last good sync may then be lost with the
        power; the open segment is left behind, because a later sync of it proves nothing.
        """
        with self._mutex:
            segments = self._segments
            each, offset = segments.id, segments.offset
        try:
            segments.sync()
        except OSError as error:
            with self._mutex:
                segments.broken = segments.broken or segments.id == each
            what = "what was acknowledged since the last sync may not survive a loss of power"
            raise self._storage_error(error, what) from error
        with self._mutex:
            if segments.id == each:
                segments.mark_synced(offset)
