"""`RecentBlocks`: the newest blocks of a channel in memory, from their acknowledgement to their eviction.

Until a tick covers a block it waits here; then it goes into the write-ahead buffer that readers tail from.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.log.block import Encoded
from tidegate.log.message import Tick
from tidegate.log.write_ahead_buffer import Evicted, Ticked, WriteAheadBuffer
from tidegate.runtime.settings import LogSettings


class RecentBlocks:
    """Not thread-safe: the writer's mutex covers it.

    Invariant: what the buffer hands out after a tick is all that lies between it and the next; when some of it was too
    much to keep, it says that it is evicted instead.
    """

    def __init__(self, first: Tick, settings: LogSettings) -> None:
        self._buffer = WriteAheadBuffer(first, bytes_max=settings.buffer_bytes_max, age_max_s=settings.buffer_age_max_s)
        self._bytes_max = settings.buffer_bytes_max
        self._waiting: list[Encoded] = []
        self.waiting_bytes = 0
        """Of blocks that no tick has covered yet."""
        self._lost_to = 0
        """Up to this TimeTick they were too many to keep; readers will find them in the files."""

    @property
    def latest(self) -> Tick:
        """The newest tick, persisted or not."""
        return self._buffer.latest

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes + self.waiting_bytes

    def keep(self, blocks: Iterable[Encoded]) -> None:
        """Hold acknowledged blocks until a tick covers them."""
        for each in blocks:
            self._waiting.append(each)
            self.waiting_bytes += each.size
        if self.waiting_bytes > self._bytes_max:
            self._lost_to = max(self._lost_to, *[each.last_time_tick for each in self._waiting])
            self._waiting, self.waiting_bytes = [], 0

    def ticked(self, tick: Tick, now: float) -> None:
        """A tick was appended, or, if it is not persisted, made."""
        if not tick.persisted:
            self._buffer.advance(tick)
            return
        ready = [each for each in self._waiting if each.last_time_tick <= tick.time_tick]
        if ready:
            ready.sort(key=lambda each: each.first_time_tick)
            self._waiting = [each for each in self._waiting if each.last_time_tick > tick.time_tick]
            self.waiting_bytes = sum([each.size for each in self._waiting])
        if not self._lost_to:
            self._buffer.push(tick, ready, now)
            return
        self._buffer.skip(tick)
        if tick.time_tick >= self._lost_to:
            self._lost_to = 0

    def read_after(self, time_tick: int) -> list[Ticked] | Evicted:
        return self._buffer.read_after(time_tick)
