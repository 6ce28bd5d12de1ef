"""Watermarks: below which Timestamp has everything arrived?

`InFlight` answers it for one source: the smallest timestamp it still works on, minus one.
`WatermarkCollector` answers it for all: the minimum over the sources, channel by channel. (One minimum for
all channels, `Watermark.least`, lets one slow channel hold back every other.)
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken, NotFound

_NO_CHANNELS: Mapping[str, Timestamp] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Watermark:
    """The result of a round: every source has finished everything at or below it.

    Invariant: neither `at` nor `of(channel)`, for any channel, ever falls from one round to the next.
    """

    at: Timestamp
    channels: Mapping[str, Timestamp] = field(default_factory=dict)
    """Channels that some source has named in any round so far; `at` holds for all others."""

    def of(self, channel: str) -> Timestamp:
        """The watermark of one channel."""
        return self.channels.get(channel, self.at)

    @property
    def least(self) -> Timestamp:
        """One watermark that holds for every channel."""
        return min(self.at, *self.channels.values()) if self.channels else self.at


@dataclass(frozen=True, slots=True)
class _Report:
    default: Timestamp
    channels: Mapping[str, Timestamp]

    def of(self, channel: str) -> Timestamp:
        return self.channels.get(channel, self.default)


class WatermarkCollector:
    """Collects one report from every source, then emits their minimum and starts the next round.

    Invariant: a round completes when, and only when, every registered source has reported in it.
    """

    def __init__(self) -> None:
        self._last_default: dict[str, Timestamp] = {}  # per registered source, over all rounds
        self._round: dict[str, _Report] = {}
        self._emitted: Watermark | None = None

    @property
    def current(self) -> Watermark | None:
        """What the last complete round gave, None before the first."""
        return self._emitted

    def register(self, source: str) -> None:
        """Add a source; no round completes without it from here on."""
        if source in self._last_default:
            raise InvalidArgument(f"source {source!r} is registered already; remove it first")
        self._last_default[source] = Timestamp.ZERO

    def report(
        self, source: str, default: Timestamp, channels: Mapping[str, Timestamp] = _NO_CHANNELS
    ) -> Watermark | None:
        """Take a source's report: `default` for every channel it does not name in `channels`.

        Replaces its earlier report of the same round. A default below the source's last one is a report that
        was overtaken, and is ignored. Returns the new watermark if this completed the round.
        Raises: `NotFound` for a source that is not registered.
        """
        self._require(source)
        if default < self._last_default[source]:
            return None
        self._last_default[source] = default
        self._round[source] = _Report(default, dict(channels))
        return self._complete()

    def remove(self, source: str) -> Watermark | None:
        """Forget a dead source. Returns the new watermark if it was the last one waited for.

        Raises: `NotFound` for a source that is not registered.
        """
        self._require(source)
        del self._last_default[source]
        self._round.pop(source, None)
        return self._complete()

    def waits_for(self) -> list[str]:
        """The sources that hold the round up, sorted."""
        return sorted(self._last_default.keys() - self._round.keys())

    def _require(self, source: str) -> None:
        if source not in self._last_default:
            raise NotFound(f"source {source!r} is not registered; register it before it reports")

    def _complete(self) -> Watermark | None:
        reports = self._round.values()
        if not reports or len(reports) < len(self._last_default):
            return None
        before = self._emitted or Watermark(Timestamp.ZERO)
        names = set(before.channels).union(*(report.channels for report in reports))
        self._emitted = Watermark(
            at=max(before.at, min(report.default for report in reports)),
            channels={
                # A channel named for the first time had the watermark `before.at` until now.
                name: max(before.of(name), min(report.of(name) for report in reports))
                for name in sorted(names)
            },
        )
        self._round = {}
        return self._emitted


class InFlight:
    """The timestamps one source has taken and not finished, with their minimum at hand.

    A heap whose finished entries are removed only when they reach the top, so that begin and finish cost
    O(log n) and never a scan.

    Invariant: `minimum` never falls, and no timestamp at or below a minimum given out is begun later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[Timestamp] = []
        self._open: set[Timestamp] = set()
        self._floor = Timestamp.ZERO

    def begin(self, allocate: Callable[[], Timestamp]) -> Timestamp:
        """Take a timestamp and record it.

        Ordering: allocating and recording are one step under the lock. Otherwise a `minimum` between the two
        could pass a timestamp that is already taken, and would have to be taken back.
        """
        with self._lock:
            ts = allocate()
            if ts <= self._floor or ts in self._open:
                raise InvariantBroken(f"{ts!r} was allocated twice, or below the watermark {self._floor!r}")
            self._open.add(ts)
            heapq.heappush(self._heap, ts)
            return ts

    def finish(self, ts: Timestamp) -> None:
        """The work at `ts` has arrived.

        Raises: `NotFound` when it is not in flight.
        """
        with self._lock:
            if ts not in self._open:
                raise NotFound(f"{ts!r} is not in flight: it was never begun, or finished before")
            self._open.remove(ts)
            if len(self._heap) > 2 * len(self._open) + 64:  # one straggler must not keep all others in memory
                self._heap = list(self._open)
                heapq.heapify(self._heap)

    def minimum(self, now: Timestamp) -> Timestamp:
        """Everything at or below the result has arrived: the smallest in flight minus one, `now` if none is.

        `now` was allocated before this call by the oracle that the timestamps in flight come from.
        """
        with self._lock:
            oldest = self._oldest()
            reached = now if oldest is None else Timestamp(oldest - 1)
            self._floor = max(self._floor, reached)
            return self._floor

    def oldest(self) -> Timestamp | None:
        """What holds the minimum back, if anything."""
        with self._lock:
            return self._oldest()

    def __len__(self) -> int:
        return len(self._open)

    def _oldest(self) -> Timestamp | None:
        while self._heap and self._heap[0] not in self._open:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None
