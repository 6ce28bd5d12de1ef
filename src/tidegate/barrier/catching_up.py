"""`CatchingUp`: how far the pipeline is with the epochs that waited when it fell behind, and how long the rest takes.

It begins when several epochs wait, and ends when all that waited then are in checkpoints; those that were cut
meanwhile are the next round's. Pure: it is told what there is, and when.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.barrier.cut import Cut

WAITING_MIN: Final = 4
"""So many epochs wait before it counts as catching up: one that is done and one that comes are always there."""


@dataclass(frozen=True, slots=True)
class CatchUpStatus:
    """At one moment."""

    done: int
    """Epochs in checkpoints, of `epochs`."""
    epochs: int
    """That waited when it began."""
    percent: float
    """By the bytes of the log, where cuts know them."""
    left_ms: int | None
    """About how much longer it takes, going on as until now; None before there is anything to tell by."""


class CatchingUp:
    """One round after the other.

    Invariant: within a round `done` never falls.
    """

    __slots__ = ("_began_ms", "_done", "_moved_ms", "_waited")

    def __init__(self) -> None:
        self._waited: list[Cut] = []
        """Of the round; empty when there is none."""
        self._done = 0
        self._began_ms = 0
        self._moved_ms = 0

    def see(self, waiting: Iterable[Cut], *, is_working: bool, now_ms: int) -> None:
        """These cuts wait for a checkpoint, in order. Time in which nobody works on them does not count."""
        cuts = list(waiting)
        first = cuts[0].epoch if cuts else None
        if self._waited:
            done = sum(first is None or cut.epoch < first for cut in self._waited)
            if done > self._done:
                self._done, self._moved_ms = done, now_ms
        has_round = self._done < len(self._waited)
        if has_round and (self._done or is_working):
            return
        if has_round or len(cuts) >= WAITING_MIN:
            self._waited = cuts
            self._began_ms = self._moved_ms = now_ms
        else:
            self._waited = []
        self._done = 0

    def status(self, now_ms: int) -> CatchUpStatus | None:
        """None when it does not catch up."""
        if not self._waited:
            return None
        sizes = [cut.nbytes for cut in self._waited]
        if not all(sizes):
            sizes = [1] * len(sizes)  # Of some it is not known.
        whole, done = sum(sizes), sum(sizes[: self._done])
        left_ms = None
        if done:
            left_ms = (self._moved_ms - self._began_ms) * (whole - done) // done - (now_ms - self._moved_ms)
        return CatchUpStatus(
            self._done, len(sizes), round(100 * done / whole, 1), None if left_ms is None else max(left_ms, 0)
        )
