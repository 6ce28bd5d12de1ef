"""`HeldBack`: what a reader has read and no tick covers yet, in bounded memory.

A reservation may hold the watermark for long while much is appended. Beyond the limit only places in the files
are kept, and what lies there is read again when its tick comes, a piece at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidegate.log.batch import Batch
from tidegate.log.message import Tick
from tidegate.log.reorder import ReorderBuffer
from tidegate.log.scan import read_batches
from tidegate.runtime.file_cursor import Place

HELD_BYTES: Final = 128 << 20
"""Twice the largest block, so that no block is read twice unless something holds the watermark."""


@dataclass(slots=True)
class _Stretch:
    """A part of a segment that will be read again: its messages above TimeTick `above`. The others are in memory."""

    place: Place
    end: int
    above: int
    first: int
    """The smallest TimeTick in it."""
    nbytes: int


class HeldBack:
    """A reorder buffer whose later part lies in the files.

    Invariants: a message is in the buffer or in one stretch. A stretch holds only TimeTicks above all of those before
    it but the last, so whatever comes next in time is in the buffer or in one of the two oldest. The buffer holds at
    most half of the limit when the first stretch begins, and each stretch a quarter, or one batch. Only what lies
    out of order by more than a stretch, as a message appended late on a reservation, stays in memory in any case.

    A segment with a stretch in it stays open, so that neither sealing nor retention takes it away.
    """

    def __init__(self, after: int, bytes_max: int, wanted: Callable[[Batch], Batch | None]) -> None:
        """`wanted` is what the reader filters with."""
        self.bytes_max = bytes_max
        self._buffer = ReorderBuffer(after)
        self._wanted = wanted
        self._stretches: deque[_Stretch] = deque()
        self._last: _Stretch | None = None
        """The one that may be extended."""
        self._above = 0
        """What the next stretch must be above."""
        self._newest = 0
        """The largest TimeTick in any stretch, or in the buffer when the first began."""

    @property
    def nbytes(self) -> int:
        """Roughly what it holds in memory."""
        return self._buffer.nbytes

    @property
    def bytes_in_files(self) -> int:
        """Roughly what it will read again."""
        return sum(each.nbytes for each in self._stretches)

    def push(self, batch: Batch, place: Place, size: int) -> None:
        """Take in messages of about `size` bytes that were read at `place`."""
        if not self._stretches:
            if self._buffer.nbytes + size <= self.bytes_max // 2:
                self._buffer.push(batch, size)
                return
            self._above, self._newest, self._last = 0, self._buffer.last_time_tick, None
        last = self._last
        if last is not None and (last.place.opened is not place.opened or last.nbytes + size > self.bytes_max // 4):
            # From here on it is not extended: what is kept in memory now would be read again with it.
            last = self._last = None
        above = self._above if last is None else last.above
        mask = batch.time_ticks > above
        if not mask.all():
            self._buffer.push(batch.where(~mask))
            if not mask.any():
                return
            batch = batch.where(mask)
        if last is None:
            place.opened.holders += 1
            self._last = _Stretch(place, place.end, above, batch.first_time_tick, size)
            self._stretches.append(self._last)
            self._above = self._newest
        else:
            last.end, last.first = place.end, min(last.first, batch.first_time_tick)
            last.nbytes += size
        self._newest = max(self._newest, batch.last_time_tick)

    def pop_until(self, tick: int) -> tuple[list[Batch], int]:
        """What comes next at or below `tick`, in TimeTick order, and up to where that is all.

        Ordering: when that is not `tick`, the rest comes with the next calls. No append is cut in two: between two
        TimeTicks of one there is none of another, and a stretch holds an append whole or not at all.

        Raises: `Corruption`; nothing is lost by it.
        """
        while self._stretches:
            below = min(each.first for each in islice(self._stretches, 2)) - 1
            if below >= tick:
                break
            if self._buffer.first_time_tick <= below:
                return self._buffer.pop_until(below), below
            self._read_again(self._stretches[0])
            self._stretches.popleft().place.opened.release()
        return self._buffer.pop_until(tick), tick

    def _read_again(self, stretch: _Stretch) -> None:
        found = []
        place = stretch.place
        for _, _, item in read_batches(
            place.opened.file, place.path, offset=place.offset, end=stretch.end, chain=place.chain
        ):
            batch = None if isinstance(item, Tick) else self._wanted(item)
            if batch is not None and (mask := batch.time_ticks > stretch.above).any():
                found.append(batch.where(mask))
        for batch in found:
            self._buffer.push(batch)

    def close(self) -> None:
        """Let go of everything."""
        self._buffer = ReorderBuffer()
        while self._stretches:
            self._stretches.popleft().place.opened.release()
