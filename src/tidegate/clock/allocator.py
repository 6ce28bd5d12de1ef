"""`LocalAllocator`: timestamps served from a range that was fetched in one go.

Cheap, and a little behind: a range fetched earlier is below what others fetched since. Where that matters
(a read that must see a write, a barrier), drop the range with `sync` or wait with `barrier_until`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tidegate.clock.oracle import check_count
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken, WaitTimeout

BATCH: Final = 1000
REFRESH_S: Final = 0.05
"""How long a waiting barrier leaves it to others to fetch before it fetches itself."""


class LocalAllocator:
    """A node's own supply of timestamps, safe to use from many threads.

    `fetch(count)` returns the first of `count` consecutive timestamps; what it raises, `allocate` raises.
    Invariant: values come out strictly increasing, and the range only moves forward.
    """

    def __init__(self, fetch: Callable[[int], Timestamp], batch: int = BATCH) -> None:
        check_count(batch)
        self._fetch = fetch
        self._batch = batch
        self._changed = threading.Condition()
        self._next = 0
        self._end = 0  # stays when the range is dropped: nothing below it is ever accepted again
        self._last = 0
        self._time_seen: float | None = None
        self._fetched_after: float | None = None

    def allocate(self, count: int = 1) -> Timestamp:
        """The first of `count` consecutive timestamps; what is left of a range too short for it is given up.

        Raises: `InvalidArgument`, `LimitExceeded` for a wrong count; whatever the fetch raises.
        """
        check_count(count)
        with self._changed:
            return self._allocate(count)

    def offer(self, start: int, count: int) -> bool:
        """Replace the range by `count` values from `start` on; ignored (False) if that would go back."""
        if count < 1:
            raise InvalidArgument(f"a range has at least one timestamp, not {count}")
        with self._changed:
            return self._offer(start, count)

    def sync(self) -> None:
        """Drop the range: the next allocation is fetched, hence above all fetched before it anywhere."""
        with self._changed:
            self._next = self._end

    def sync_if_older(self, seconds: float, now: float) -> bool:
        """Drop the range if it was fetched more than `seconds` before `now`; says whether it was dropped.

        A fetch is dated by the last `now` given before it. A range may be taken for older than it is, which
        costs a fetch, and never for younger.
        """
        with self._changed:
            self._time_seen = now
            if self._next == self._end:
                return False
            if self._fetched_after is not None and now - self._fetched_after <= seconds:
                return False
            self._next = self._end
            return True

    def barrier_until(self, ts: Timestamp, timeout_s: float = 10.0) -> None:
        """Return once every later allocation is strictly above `ts`.

        Burns one timestamp if the range has reached `ts`, fetches a new range if not, and else waits until
        an allocation, this one's or another thread's, gets there.
        Raises: `WaitTimeout` when none did within `timeout_s`.
        """
        with self._changed:
            if self._allocate(1) >= ts:
                return
            waited_s = 0.0
            while True:
                self._next = self._end
                if self._allocate(1) >= ts:
                    return
                if waited_s >= timeout_s:
                    raise WaitTimeout(
                        f"the oracle is at {Timestamp(self._last)}, not at {ts}, after {timeout_s} s;"
                        f" wait longer, or check the clock of whoever chose it"
                    )
                pause_s = min(REFRESH_S, timeout_s - waited_s)
                if self._changed.wait_for(lambda: self._last >= ts, pause_s):
                    return
                waited_s += pause_s

    def _allocate(self, count: int) -> Timestamp:
        if self._end - self._next < count:
            size = max(self._batch, count)
            start = self._fetch(size)
            if not self._offer(start, size):
                raise InvariantBroken(f"fetched {start!r}, below {self._end} which was fetched before")
        first = self._next
        self._next += count
        self._last = self._next - 1
        self._changed.notify_all()
        return Timestamp(first)

    def _offer(self, start: int, count: int) -> bool:
        if start < self._end:
            return False
        self._next = start
        self._end = start + count
        self._fetched_after = self._time_seen
        return True
