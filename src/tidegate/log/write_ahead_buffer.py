"""The write-ahead buffer: the newest part of a channel in memory, in TimeTick order, for tailing readers.

Bounded by bytes and age. A reader that falls behind it is told so and goes back to the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvariantBroken
from tidegate.log.block import Encoded
from tidegate.log.message import Tick

DEFAULT_BYTES: Final = 64 << 20
DEFAULT_AGE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Ticked:
    """One persisted tick and the encoded blocks it covers, ordered by TimeTick."""

    tick: Tick
    blocks: tuple[Encoded, ...]
    nbytes: int
    at: float


@dataclass(frozen=True, slots=True)
class Evicted:
    """What was asked for is no longer, or was never, in memory; read it from the files."""

    earliest: int


class WriteAheadBuffer:
    """A ring of ticked batches.

    Invariants: ticks ascend strictly; the newest entry is never evicted; a tick that was not persisted is kept apart.
    """

    def __init__(self, first: Tick, *, bytes_max: int = DEFAULT_BYTES, age_max_s: float = DEFAULT_AGE_S) -> None:
        self._ring: deque[Ticked] = deque([Ticked(first, (), 0, 0.0)])
        self._bytes_max = bytes_max
        self._age_max_s = age_max_s
        self._evicted_to = int(first.time_tick)
        """Everything at or below this is not here."""
        self.nbytes = 0
        self.latest = first
        """The newest tick, persisted or not."""

    def push(self, tick: Tick, blocks: Sequence[Encoded], now: float) -> None:
        """Add what a persisted tick covers."""
        if not tick.persisted or tick.time_tick <= self.latest.time_tick:
            raise InvariantBroken(f"tick {tick} cannot follow {self.latest}")
        nbytes = sum(block.size for block in blocks)
        self._ring.append(Ticked(tick, tuple(blocks), nbytes, now))
        self.nbytes += nbytes
        self.latest = tick
        while len(self._ring) > 1 and (self.nbytes > self._bytes_max or now - self._ring[0].at > self._age_max_s):
            gone = self._ring.popleft()
            self.nbytes -= gone.nbytes
            self._evicted_to = int(gone.tick.time_tick)

    def skip(self, tick: Tick) -> None:
        """Note a persisted tick whose blocks were too many to keep: readers find them in the files."""
        self.push(tick, (), 0.0)
        while len(self._ring) > 1:
            self._ring.popleft()
        self.nbytes = 0
        self._evicted_to = int(tick.time_tick)

    def advance(self, tick: Tick) -> None:
        """Note a tick that was not persisted."""
        if tick.persisted or tick.time_tick <= self.latest.time_tick:
            raise InvariantBroken(f"tick {tick} cannot follow {self.latest}")
        self.latest = tick

    def read_after(self, time_tick: int) -> list[Ticked] | Evicted:
        """Every entry whose tick is above `time_tick`, oldest first; empty when there is none yet.

        `time_tick` must be a tick the reader has been given; blocks never straddle one.
        """
        if time_tick < self._evicted_to:
            return Evicted(self._evicted_to)
        ring = self._ring
        if time_tick >= ring[-1].tick.time_tick:
            return []
        start = bisect_right(ring, time_tick, key=lambda each: int(each.tick.time_tick))
        return [ring[index] for index in range(start, len(ring))]
