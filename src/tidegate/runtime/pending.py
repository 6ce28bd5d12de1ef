"""`PendingAppend`: an append that was handed over and not yet acknowledged. A small future."""

from __future__ import annotations

import asyncio
import logging
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from weakref import WeakKeyDictionary, ref

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken, WaitTimeout
from tidegate.log.channel import Append, TickPlan
from tidegate.log.last_confirmed import Session
from tidegate.log.message import Position
from tidegate.runtime.pieces import Piece

if TYPE_CHECKING:
    from tidegate.runtime.reservation import Reservation

_logger = logging.getLogger("tidegate.log")

_timestamp: Final = int.__new__
"""Makes a Timestamp without checking it again: it came from the oracle."""


class Appended(NamedTuple):
    """What an acknowledged append became."""

    time_tick: Timestamp
    """Of its first message; the others follow without gaps."""
    position: Position
    last_confirmed: Position
    messages: int

    @property
    def last_time_tick(self) -> Timestamp:
        """Of its last message: a read at or above it sees all of the append."""
        return Timestamp(self.time_tick + self.messages - 1)


class PendingAppend:
    """One append on its way.

    `result()` waits for the acknowledgement. It can also be awaited in asyncio. A thread per append is not needed.
    """

    # Defaults live in the class, so that making one of the many plain appends sets only what differs.
    rows: pa.RecordBatch | None = None
    bodies: list[bytes] | None = None
    count = 1
    txn: bytes | None = None
    session: Session | None = None
    exclusive = False
    parts: list[Piece] | None = None
    """What it consists of, when that is not one kind of message in one place; a transaction ends with its commit."""
    places: tuple[str, ...] = ()
    """The virtual channels of `parts`."""
    held: Append | None = None
    reservation: Reservation | None = None
    """Whose place is kept when the append fails."""
    behind: PendingAppend | None = None
    """Written with or after this one, and not at all when it fails."""
    plan: TickPlan | None = None
    waits = False
    """A thread waits for it and can be asked to write for everybody."""
    leads = False
    """The waiting thread was asked to."""
    first_tick = 0
    position = 0
    last_confirmed = 0
    is_done = False
    on_settled: Callable[[PendingAppend], None] | None = None
    """Called under the mutex when its outcome is known, before anybody else learns of it."""
    has_listeners = False
    """Somebody waits for it, or has left a callback."""
    error: BaseException | None = None
    _lock: LockType | None = None
    _callbacks: list[Callable[[PendingAppend], Any]] | None = None

    def __init__(self, mutex: Lock, vchannel: str, kind: int, size: int, body: bytes = b"") -> None:
        self._mutex = mutex
        self.vchannel = vchannel
        self.type = kind
        self.size = size
        self.body = body
        """The one body of a single message; a batch has `bodies` or `rows` instead."""

    @property
    def names(self) -> tuple[str, ...]:
        """The virtual channels it writes to."""
        return self.places or (self.vchannel,)

    @property
    def last_position(self) -> int:
        """Of its last message, once written."""
        return self.position if self.parts is not None else self.position + self.count - 1

    @property
    def first_position(self) -> int:
        return self.position if self.parts is None else self.parts[0].position

    def done(self) -> bool:
        """Whether it was acknowledged or has failed."""
        return self.is_done

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """The error it failed with, or None once it is acknowledged."""
        self._wait(timeout_s)
        return self.error

    def result(self, timeout_s: float | None = None) -> Appended:
        """Wait for the acknowledgement.

        Raises: what the append failed with; `WaitTimeout` when the time is up first. The append then goes on.
        """
        if not self.is_done:
            self._wait(timeout_s)
        if self.error is not None:
            raise self.error
        if self.parts is not None:  # A transaction is one entry, at its commit.
            last = self.parts[-1]
            return Appended(Timestamp(last.first_tick), Position(last.position), Position(self.last_confirmed), 1)
        return Appended(Timestamp(self.first_tick), Position(self.position), Position(self.last_confirmed), self.count)

    def add_done_callback(self, callback: Callable[[PendingAppend], Any]) -> None:
        """Call `callback` once it is done; at once if it is. It runs on the writing thread: keep it short."""
        with self._mutex:
            if not self.is_done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                self.has_listeners = True
                return
        callback(self)

    def __await__(self) -> Generator[Any, None, Appended]:
        if not self.is_done:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            mailbox = _Mailbox.of(loop)
            self.add_done_callback(lambda _: mailbox.put(waiter))
            yield from waiter
        return self.result()

    def prepare_wait(self) -> None:
        """Make a thread's wait cheap: called before the append is handed over, without the mutex."""
        lock = allocate_lock()
        lock.acquire()
        self._lock = lock
        self.waits = self.has_listeners = True

    def wait_for_turn(self, timeout_s: float | None) -> bool:
        """Wait until it is done or this thread is asked to write; False when the time is up."""
        if self._lock is None:
            raise InvariantBroken("waited for an append without preparing to")
        return self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s)

    def _wait(self, timeout_s: float | None) -> None:
        with self._mutex:
            if self.is_done:
                return
            if self._lock is None:
                self._lock = allocate_lock()
                self._lock.acquire()
            self.has_listeners = True
            lock = self._lock
        if not lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise WaitTimeout(f"the append was not acknowledged within {timeout_s} s; it is still under way")
        with suppress(RuntimeError):  # It was woken once more, and others who wait with it.
            lock.release()

    def wake(self) -> None:
        """Release whoever waits and run the callbacks; called without the mutex, after `is_done` was set."""
        if self._lock is not None:
            # Asking first whether it is locked leaves room for another waker; suppress() costs more than all of it.
            try:  # noqa: SIM105
                self._lock.release()
            except RuntimeError:
                pass  # It was woken already.
        if self._callbacks:
            for callback in self._callbacks:
                try:
                    callback(self)
                except Exception:
                    _logger.exception("a callback of an append raised")
            self._callbacks = None


class _Mailbox:
    """Wakes the tasks of one event loop. Waking a loop costs a system call, so all tasks of a commit share one."""

    _all: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._guard = Lock()
        self._is_called = False

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Mailbox:
        found = cls._all.get(loop)
        if found is None:
            found = cls._all[loop] = cls(loop)
        return found

    def put(self, waiter: asyncio.Future[None]) -> None:
        """Have `waiter` resolved by its loop; called from any thread."""
        with self._guard:
            self._waiters.append(waiter)
            called, self._is_called = self._is_called, True
        loop = self._loop()
        if not called and loop is not None:
            with suppress(RuntimeError):  # The loop was closed: nobody waits any more.
                loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        with self._guard:
            waiters, self._waiters = self._waiters, deque()
            self._is_called = False
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


_appended: Final = Appended._make
