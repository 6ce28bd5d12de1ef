"""`Alignment`: from a barrier's Timestamp to a cut: every channel ticks past it, then the places are known.

    begin ──▶ AskTicks ──▶ ticked* ──▶ RecordCut

Cuts come out in the order of their barriers, each beginning where the one before ends. A barrier that was not recorded
when its owner died leaves nothing behind: the next one takes its number, at a later Timestamp.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.barrier.cut import Cut, Epoch, Place
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken
from tidegate.log.message import Position

_PLACES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class AskTicks:
    """These channels are asked to tick at or past `timestamp`; what they answer goes to `ticked`."""

    epoch: Epoch
    timestamp: Timestamp
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordCut:
    """Every channel has passed the barrier.

    Ordering: the cut's record is durable in the system channel before `Epochs.record` hears of it, and cuts are
    recorded one after the other. Whether an append of unknown outcome is there is found out before anything else is.
    """

    cut: Cut


AlignmentEffect = AskTicks | RecordCut


@dataclass(slots=True)
class Aligning:
    """A barrier under way."""

    epoch: Epoch
    since: Timestamp
    timestamp: Timestamp
    is_checkpoint: bool
    begun_ms: int
    channels: tuple[str, ...]
    waiting: set[str]
    """Channels that have not passed it."""


class Alignment:
    """The barriers of one owner that are not cuts yet.

    Invariant: epochs rise by one, Timestamps strictly; a cut's places never lie behind its Timestamp.
    """

    def __init__(self, last: Cut | None = None) -> None:
        """`last`: the newest recorded cut."""
        self._epoch = last.epoch if last else Epoch(0)
        self._timestamp = last.timestamp if last else Timestamp.ZERO
        self._catalog: deque[tuple[Timestamp, int]] = deque()
        if last is not None:
            self._catalog.append((last.timestamp, last.catalog_version))
        self._places: dict[str, deque[Place]] = (
            {name: deque((place,)) for name, place in last.places.items()} if last else {}
        )
        self._pending: deque[Aligning] = deque()

    @property
    def pending(self) -> tuple[Aligning, ...]:
        return tuple(self._pending)

    @property
    def newest(self) -> tuple[Epoch, Timestamp]:
        """Of the last barrier begun: who asked for it waits for this epoch."""
        return self._epoch, self._timestamp

    def begin(
        self, timestamp: Timestamp, channels: Iterable[str], *, is_checkpoint: bool, now_ms: int
    ) -> tuple[AlignmentEffect, ...]:
        """A barrier at `timestamp`, fresh from the oracle, through these channels, the system channel among them.

        Raises: `InvariantBroken` when the Timestamp does not rise.
        """
        if timestamp <= self._timestamp:
            raise InvariantBroken(f"a barrier at {timestamp} would lie at or below the one at {self._timestamp}")
        names = tuple(sorted(set(channels)))
        waiting = {name for name in names if self._newest(name) < timestamp}
        self._epoch = Epoch(self._epoch + 1)
        self._pending.append(
            Aligning(self._epoch, self._timestamp, timestamp, is_checkpoint, now_ms, names, waiting)
        )  # fmt: skip
        self._timestamp = timestamp
        asked = (AskTicks(self._epoch, timestamp, tuple(sorted(waiting))),) if waiting else ()
        return (*asked, *self._complete())

    def ticked(self, channel: str, tick: Timestamp, position: Position) -> tuple[AlignmentEffect, ...]:
        """A channel has ticked: everything at or below `tick` is in, and from `position` on lies all above it.

        Ordering: changes of the catalog at or below the tick of the system channel were told before it.
        """
        if tick <= self._newest(channel):
            return ()  # it was overtaken
        places = self._places.setdefault(channel, deque())
        places.append(Place(position, tick))
        if len(places) > _PLACES_MAX:
            del places[1]  # The oldest is the one that is safe for every barrier; any other only saves reading.
        for barrier in self._pending:
            if tick >= barrier.timestamp:
                barrier.waiting.discard(channel)
        return self._complete()

    def removed(self, channel: str) -> tuple[AlignmentEffect, ...]:
        """A channel is no more; no barrier waits for it."""
        self._places.pop(channel, None)
        for barrier in self._pending:
            barrier.waiting.discard(channel)
        return self._complete()

    def catalog_changed(self, version: int, timestamp: Timestamp) -> None:
        """The catalog has a new version from `timestamp` on: it takes effect at the one epoch that holds it."""
        if self._catalog and timestamp <= self._catalog[-1][0]:
            return  # told again, or known from the last cut
        self._catalog.append((timestamp, version))

    def _complete(self) -> tuple[RecordCut, ...]:
        done = []
        while self._pending and not self._pending[0].waiting:
            barrier = self._pending.popleft()
            done.append(
                RecordCut(
                    Cut(
                        barrier.epoch,
                        barrier.since,
                        barrier.timestamp,
                        self._places_at(barrier),
                        barrier.is_checkpoint,
                        self._catalog_at(barrier.timestamp),
                    )
                )
            )
        return tuple(done)

    def _places_at(self, barrier: Aligning) -> dict[str, Place]:
        """Per channel the newest place that skips nothing above the barrier; older ones are not needed again."""
        found = {}
        for name in barrier.channels:
            places = self._places.get(name)
            while places and len(places) > 1 and places[1].tick <= barrier.timestamp:
                places.popleft()
            if places and places[0].tick <= barrier.timestamp:
                found[name] = places[0]
        return found

    def _catalog_at(self, timestamp: Timestamp) -> int:
        while len(self._catalog) > 1 and self._catalog[1][0] <= timestamp:
            self._catalog.popleft()
        return self._catalog[0][1] if self._catalog and self._catalog[0][0] <= timestamp else 0

    def _newest(self, channel: str) -> Timestamp:
        places = self._places.get(channel)
        return places[-1].tick if places else Timestamp.ZERO
