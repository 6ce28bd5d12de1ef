"""`Committer`: the group commit of one channel in one term, around the pure `Channel` machine.

A group takes its TimeTicks together, is encoded once, written once and synced once, and then every append in
it is acknowledged. It goes through four steps: `next_commit`, `write`, `sync`, `finish`. Threads run them in one go
(`ChannelWriter`); the simulator runs them one at a time, with anything in between.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from threading import Condition, Lock, Thread, get_ident
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Fenced, InvariantBroken, OutcomeUnknown, Retryable, StorageFailed, TidegateError
from tidegate.log.channel import Channel, TickPlan, Visible
from tidegate.log.message import ALL_VCHANNELS, MessageType, Position, Term, Tick
from tidegate.log.write_ahead_buffer import Evicted, Ticked
from tidegate.ports.files import Files
from tidegate.ports.tail import Tail, address
from tidegate.runtime.append_queue import AppendQueue, behind_failed
from tidegate.runtime.commit import Commit, Requests, session_of
from tidegate.runtime.companions import Companions
from tidegate.runtime.opening import Opening, Redo
from tidegate.runtime.pending import PendingAppend
from tidegate.runtime.recent_blocks import RecentBlocks
from tidegate.runtime.segments import Recovered, SegmentWriter
from tidegate.runtime.settings import Durability, LogSettings
from tidegate.runtime.system_items import rollback_item, tick_item
from tidegate.runtime.writer_status import WriterStatus, storage_error

_logger = logging.getLogger("tidegate.log")
_TICK_BYTES: Final = 4 << 20
"""Bytes after which a tick is due, whatever the time."""


class Committer:
    """Turns what waits in the queue into blocks, acknowledgements and ticks.

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
        redo: Callable[[], Sequence[Redo]] = tuple,
        schedule: Callable[[], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`allocate(n)` returns the first of n consecutive timestamps from the oracle.

        `redo` returns the commits that were decided and may be missing here; it is called once the fence is up.

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
        self._waking = 0
        """The thread that is running callbacks, if one is."""
        self.on_exclusive: Callable[[str, Timestamp], None] | None = None
        """Called after an exclusive append, while its virtual channel is still held: transactions open there fail."""
        self.watchers: tuple[Callable[[Sequence[PendingAppend]], None], ...] = ()
        """Called with the appends of every commit, and with none after a tick, on the writing thread: be short."""
        with ExitStack() as undo:  # A term that does not open keeps no file open and no memory mapped.
            undo.callback(self._segments.close)
            try:
                # Fence before looking for the end: see ports/tail.py.
                self._slot = tail.fence(term)
                undo.callback(self._slot.close)
                self.recovered: Final[Recovered] = self._segments.recover(term)
            except OSError as error:
                raise self._storage_error(error, "the channel could not be opened") from error
            try:
                opening = Opening(
                    name, files=files, segments=self._segments, tail=tail, slot=self._slot, allocate=allocate, redo=redo
                )
            except TidegateError as error:
                if not isinstance(error, Fenced):
                    self._segments.discard()
                raise
            undo.pop_all()
        first = opening.tick
        self._machine = Channel(name, term, first.time_tick, first.position, Position(self._segments.open_from))
        self._recent = RecentBlocks(first, settings)
        self.sessions: Final = opening.sessions
        """The transactions whose messages are written ahead of their commit. The mutex covers them."""
        for expired in opening.expired:
            self._queue.push(rollback_item(self._mutex, expired.id))
        for session in self.sessions:
            self._machine.last_confirmed.hold(session.first_position or 0, session)

    @property
    def is_open(self) -> bool:
        return self._closed is None

    def check_open(self) -> None:
        """Raises: why the channel takes no more appends, if it does not."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)

    def _push(self, item: PendingAppend) -> bool:
        self._queue.push(item)
        if self._writing:
            if self._companions.waiting and len(self._queue) >= self._companions.expected:
                self._companions.arrived()
            return False
        self._writing = True
        return True

    def next_commit(self) -> Commit | None:
        """What to write next; None when nothing can be written now, and then the channel is idle."""
        with self._mutex:
            commit = self.collect()
            if commit is None:
                self._go_idle()
        for each in commit.rejected if commit is not None else ():
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
        except BaseException as error:  # Ctrl-C in the middle: the others of the commit are told what is known.
            self.finish(commit, self.abandon(commit, OSError(errno.EINTR, f"interrupted by {type(error).__name__}")))
            raise
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
        for each, why in behind_failed(items):
            self._settle([each], why)
            commit.rejected.append(each)
            commit.items = items = [other for other in items if other is not each]
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
            commit.rejected += plain
            commit.items = [each for each in items if each.held is not None or each.plan is not None]
            self._release_exclusive(plain)
            return commit
        names = tuple({name: None for each in plain for name in each.names})
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
            unknown = OutcomeUnknown(
                f"channel {self.name!r}: {error.strerror or error} in {path}; whether the append is part of the log"
                f" is not known: read before you repeat it"
            )
            unknown.segment = segments.id
            return unknown
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
                # What was written may belong to the new owner's log: nothing of this segment may be touched any more.
                self._segments.broken = True
                done = [*done, *self._drop_queue(error)]
            self._room.notify_all()
        self._waking = get_ident()
        for each in done:
            if each.has_listeners:
                each.wake()
        self._waking = 0
        if commit.tick is not None:
            self._announce_tick()
        elif self._recent.waiting_bytes > self._tick_bytes and error is None:
            # Readers hold back what no tick covers; a fast writer ticks more often, so that they hold little.
            # If there is no timestamp for it now, the next tick in turn will do: the commit is done in any case.
            with suppress(TidegateError):
                self.tick()
        if error is None:
            for watch in self.watchers:
                watch(commit.items)

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
            first, last = commit.plain[0].first_position, commit.plain[-1].last_position
            machine.acknowledge(commit.append, last, first_position=first)
            segments.open_from = machine.last_confirmed.position
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
                if not failed:
                    self._machine.acknowledge(each.held, each.last_position)
                elif self._keep_place(each):
                    continue
                else:
                    self._machine.fail(each.held)
                for name in each.names:
                    self._locks.release_shared(name)
            elif each.exclusive:
                self._tell_exclusive(each)
                self._locks.release_exclusive(each.vchannel)

    def _keep_place(self, item: PendingAppend) -> bool:
        """Whether the failed append of a reservation leaves its place taken, because it will be tried again."""
        if item.reservation is None or item.held is None:
            return False
        item.reservation.take_back(item.held)
        return True

    def _tell_exclusive(self, item: PendingAppend) -> None:
        """Transactions open where an exclusive append was written straddle it, and fail (seed 000)."""
        name = MessageType(item.type).name
        where = f"in {item.vchannel!r}" if item.vchannel else "in every virtual channel"
        for each in self.sessions.fail_at(item.vchannel, item.first_tick, f"{name} {where}"):
            self._push(rollback_item(self._mutex, each.id))
        if self.on_exclusive is None:
            return
        try:
            self.on_exclusive(item.vchannel, Timestamp(item.first_tick))
        except Exception:
            _logger.exception("channel %r: the listener for exclusive appends raised", self.name)

    def _settle(self, items: list[PendingAppend], error: BaseException | None) -> None:
        for each in items:
            if error is not None:
                each.error = error
            if each.on_settled is not None:
                each.on_settled(each)
            each.is_done = True
        self._queue.settled(items)

    def _drop_queue(self, error: TidegateError) -> list[PendingAppend]:
        """Fail everything that waits; the caller wakes it."""
        dropped = self._queue.drop()
        for each in dropped:
            if each.held is not None:
                if not self._keep_place(each):
                    self._machine.fail(each.held)
                    for name in each.names:
                        self._locks.release_shared(name)
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
            for each in self.sessions.cleanup_until(int(plan.time_tick)):
                lead = self._push(rollback_item(self._mutex, each.id)) or lead
            if plan.persist:
                lead = self._push(tick_item(plan)) or lead
            else:
                self._tick_done(plan, plan.resume)
        if lead:
            self._schedule()
        if not plan.persist:
            self._announce_tick()

    def _tick_done(self, plan: TickPlan, position: Position) -> None:
        self._machine.tick_appended(plan)
        tick = Tick(plan.time_tick, position, plan.resume, plan.persist)
        self._recent.ticked(tick, self._monotonic())
        self._slot.publish_tick(int(plan.time_tick))

    def _announce_tick(self) -> None:
        with self._ticked:
            self._ticked.notify_all()
        for watch in self.watchers:
            watch(())

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
        power, until it was written once more and synced.
        """
        try:
            self._segments.sync_committed()
        except OSError as error:
            what = "what was acknowledged since the last sync may not survive a loss of power"
            raise self._storage_error(error, what) from error
