"""The reorder buffer (seed 000): restores TimeTick order whatever the physical order was.

Batches go in as they are read; when a tick T arrives, everything at or below T comes out, in order. In a
log where order was kept, which is nearly every log, batches pass through untouched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegate.errors import InvariantBroken
from tidegate.log.batch import U64, Batch


class Held(NamedTuple):
    """A batch with its smallest and largest TimeTick and roughly the bytes it takes."""

    first: int
    last: int
    batch: Batch
    nbytes: int


class ReorderBuffer:
    """Holds what no tick has covered yet.

    Invariant: what `pop_until` returns ascends strictly, also from one call to the next.
    """

    def __init__(self, after: int = 0) -> None:
        """Messages at or below `after` were delivered before and must not come again."""
        self._after = after
        self._held: list[Held] = []
        self.nbytes = 0
        """Roughly what it holds in memory."""

    def __len__(self) -> int:
        return sum(len(each.batch) for each in self._held)

    @property
    def first_time_tick(self) -> int:
        """The smallest it holds; above any other when it holds none."""
        return min((each.first for each in self._held), default=1 << 64)

    @property
    def last_time_tick(self) -> int:
        """The largest it holds, or the tick that was delivered."""
        return max((each.last for each in self._held), default=self._after)

    def push(self, batch: Batch, nbytes: int | None = None) -> None:
        """Take in messages as they were read. `nbytes` saves asking Arrow how large they are.

        Raises: `InvariantBroken` when one is at or below a tick that was already delivered: the tick's promise
        was false.
        """
        first, last = batch.first_time_tick, batch.last_time_tick
        if first <= self._after:
            position = int(batch.positions[np.argmin(batch.time_ticks)])
            raise InvariantBroken(
                f"message at position {position} has TimeTick {first}, at or below the tick {self._after}"
                f" that promised there was none"
            )
        self._held.append(Held(first, last, batch, batch.nbytes if nbytes is None else nbytes))
        self.nbytes += self._held[-1].nbytes

    def pop_until(self, tick: int) -> list[Batch]:
        """Everything at or below `tick`, in TimeTick order."""
        if tick < self._after:
            raise InvariantBroken(f"tick {tick} came after tick {self._after}")
        self._after = tick
        ready: list[Held] = []
        rest: list[Held] = []
        for each in self._held:
            if each.last <= tick:
                ready.append(each)
            elif each.first > tick:
                rest.append(each)
            else:
                mask = each.batch.time_ticks <= tick
                for part, target in ((each.batch.where(mask), ready), (each.batch.where(~mask), rest)):
                    target.append(Held(part.first_time_tick, part.last_time_tick, part, part.nbytes))
        self._held = rest
        self.nbytes = sum([each.nbytes for each in rest])
        ready.sort(key=lambda each: each.first)
        return _in_order(ready)


def _in_order(ready: list[Held]) -> list[Batch]:
    """Batches sorted by their first TimeTick, cut so that their concatenation ascends."""
    out: list[Batch] = []
    at = 0
    while at < len(ready):
        # Batches whose spans touch each other are merged; most of the time that is one batch.
        end, reach = at + 1, ready[at].last
        while end < len(ready) and ready[end].first <= reach:
            reach = max(reach, ready[end].last)
            end += 1
        group = [_sorted(each.batch) for each in ready[at:end]]
        out.extend(group if len(group) == 1 else _merge(group))
        at = end
    return out


def _sorted(batch: Batch) -> Batch:
    if batch.is_sorted:
        return batch
    batch = batch.take(np.argsort(batch.time_ticks, kind="stable"))
    _check_distinct(batch.time_ticks)
    return batch


def _check_distinct(ascending: U64) -> None:
    if (ascending[1:] == ascending[:-1]).any():
        raise InvariantBroken("two messages of one channel carry the same TimeTick")


def _merge(group: list[Batch]) -> list[Batch]:
    ticks = np.concatenate([batch.time_ticks for batch in group])
    owner = np.repeat(np.arange(len(group)), [len(batch) for batch in group])
    order = np.argsort(ticks, kind="stable")
    ticks, owner = ticks[order], owner[order]
    _check_distinct(ticks)
    cuts = np.flatnonzero(np.diff(owner)) + 1
    starts = np.concatenate(([0], cuts))
    stops = np.concatenate((cuts, [len(owner)]))
    taken = [0] * len(group)
    out = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        who = int(owner[start])
        out.append(group[who].slice(taken[who], taken[who] + stop - start))
        taken[who] += stop - start
    return out
