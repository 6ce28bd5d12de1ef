"""`Leader`: who writes a channel's appends, and how callers wait for them.

Whoever finds the channel idle writes for all who wait: a lone writer pays for no hand-over, and while one
write is being synced the next group gathers. How a group is written is `Committer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread, get_ident
from typing import Final

from tidegate.errors import (
    Backpressure,
    Closed,
    Fenced,
    InvalidArgument,
    TidegateError,
    WaitTimeout,
)
from tidegate.log.message import MessageType
from tidegate.runtime.committer import Committer
from tidegate.runtime.pending import Appended, PendingAppend
from tidegate.runtime.system_items import tick_item

_logger = logging.getLogger("tidegate.log")
_UNUSUAL: Final = (MessageType.TIME_TICK, MessageType.DDL)


class Leader(Committer):
    """Runs commits on the threads of those who wait for them, and on one of its own when nobody does."""

    def start(self) -> None:
        """Start the thread that writes for appends nobody waits for."""
        thread = Thread(target=self._run, name=f"tidegate-{self.name}", daemon=True)
        thread.start()
        self._thread = thread
        with self._mutex:  # The ends of transactions that expired while nobody had the channel open.
            lead = bool(self._queue) and not self._writing
            self._writing = self._writing or lead
        if lead:
            self._schedule()

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

    def submit(self, item: PendingAppend, timeout_s: float | None = None, *, here: bool = False) -> None:
        """Hand over what was made elsewhere; `here` waits for it, and writes for everybody meanwhile if nobody does."""
        if here:
            self._wait_here(item, timeout_s, self._enqueue)
        elif self._enqueue(item, timeout_s):
            self._schedule()

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
            if self._queue.in_flight_bytes + item.size > self._in_flight_max:
                deadline = None if timeout_s is None else self._monotonic() + timeout_s
                while self._wait_for_bytes(item.size, deadline):
                    self.check_open()
            return self._push(item)

    def _wait_for_bytes(self, size: int, deadline: float | None) -> bool:
        """Wait once if there is no room for `size` bytes more on their way; False when there is."""
        used, limit = self._queue.in_flight_bytes, self._in_flight_max
        if not used or used + size <= limit:
            return False
        why = f"channel {self.name!r} has {used:,} bytes in flight"
        self._wait_for_room(deadline, f"{why}, and `in_flight_bytes_max` is {limit:,}")
        return True

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
