"""Where a stream on Spark may end a batch: at recorded cuts, or, where there are none, at a tick of all its channels.

Spark's offset is a `Point`: an epoch's number and Timestamp. The places in the channels to read on from are looked up
by the epoch; where they are not known any more, the Timestamp alone finds the same messages, more slowly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, Protocol

from tidegate.barrier.cut import Cut, decode_cut, encode_cut
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption
from tidegate.log.message import NO_POSITION, Position
from tidegate.runtime.log_files import LogFiles
from tidegate.runtime.retention import SegmentFacts
from tidegate.spark.reading import latest_tick

_LOOK_S: Final = 0.004
"""How often a waiting reader looks whether the file has grown: one `stat`."""
KEPT_MAX: Final = 100_000
"""Cuts held in memory by a reader that nobody tells what is done; the oldest go first."""


class Point(NamedTuple):
    """The end of an epoch, as Spark keeps it. Epoch 0 at Timestamp 0 is before everything."""

    epoch: int = 0
    timestamp: Timestamp = Timestamp.ZERO

    @property
    def offset(self) -> dict[str, int]:
        return {"epoch": self.epoch, "timestamp": int(self.timestamp)}

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Point:
        return cls(int(offset["epoch"]), Timestamp(int(offset["timestamp"])))


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one batch takes; it always takes at least one epoch. None is no limit."""

    epochs: int | None = None
    messages: int | None = None
    bytes: int | None = None

    @property
    def is_none(self) -> bool:
        return self.epochs is None and self.messages is None and self.bytes is None


class Points(Protocol):
    """Where batches may end."""

    def latest(self, start: Point, limits: Limits) -> Point:
        """The furthest point a batch from `start` may end at; `start` itself when there is none yet."""

    def wait(self, start: Point, timeout_s: float, until: Callable[[], bool]) -> None:
        """Wait until there may be a point behind `start`, the time is up, or `until` says so."""

    def position(self, point: Point, channel: str) -> Position:
        """A place in a channel from which nothing above the point is missed."""

    def catalog_version(self, point: Point) -> int | None:
        """The version of the catalog at a point; None where that is not known."""

    def release(self, point: Point) -> None:
        """Nobody asks for what is before `point` again."""


class CutFile:
    """Cuts in a file, one line each, read while another process appends.

    Invariant: epochs rise. A line that was cut off is not read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Final = Path(path)
        self._cuts: dict[int, Cut] = {}
        self._newest = 0
        self._file: tuple[int, int] | None = None
        self._end = 0

    def append(self, *cuts: Cut) -> None:
        """Add cuts. One process does so; they need not survive it, as their records in the log do."""
        with self.path.open("ab") as file:
            file.write(b"".join(encode_cut(cut) + b"\n" for cut in cuts))

    def latest(self, start: Point, limits: Limits = Limits()) -> Point:  # noqa: B008
        self._look()
        if self._newest <= start.epoch:
            return start
        if limits.is_none:
            return _point(self._cuts[self._newest])
        begin = self._cuts.get(start.epoch)
        found: Cut | None = None
        nbytes = 0
        for number, epoch in enumerate(sorted(each for each in self._cuts if each > start.epoch), 1):
            cut = self._cuts[epoch]
            if found is not None and limits.epochs is not None and number > limits.epochs:
                break
            if found is not None and limits.messages is not None and _messages(begin, cut) > limits.messages:
                break
            nbytes += cut.nbytes
            if found is not None and limits.bytes is not None and nbytes > limits.bytes:
                break
            found = cut
        return start if found is None else _point(found)

    def wait(self, start: Point, timeout_s: float, until: Callable[[], bool] = lambda: False) -> None:
        deadline = monotonic() + timeout_s
        while True:
            self._look()
            left = deadline - monotonic()
            if self._newest > start.epoch or left <= 0 or until():
                return
            sleep(min(_LOOK_S, left))

    def read(self, epoch: int) -> Cut | None:
        """The cut that ends an epoch; None when it is not kept any more."""
        if epoch not in self._cuts:
            self._look()
        return self._cuts.get(epoch)

    def position(self, point: Point, channel: str) -> Position:
        cut = self.read(point.epoch)
        if cut is None or cut.timestamp != point.timestamp or channel not in cut.places:
            return NO_POSITION
        return cut.places[channel].position

    def catalog_version(self, point: Point) -> int | None:
        cut = self.read(point.epoch)
        return None if cut is None or cut.timestamp != point.timestamp else cut.catalog_version or None

    def release(self, point: Point) -> None:
        for each in [known for known in self._cuts if known < point.epoch]:
            del self._cuts[each]

    def _look(self) -> None:
        """Read the whole lines that were added; from the beginning when the file is another one or shorter."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return
        file = (found.st_dev, found.st_ino)
        if file != self._file or found.st_size < self._end:
            self._file, self._end, self._newest = file, 0, 0
            self._cuts.clear()
        if found.st_size == self._end:
            return
        with self.path.open("rb") as opened:
            opened.seek(self._end)
            read = opened.read()
        for line in read[: read.rfind(b"\n") + 1].splitlines(keepends=True):
            self._take(line)
            self._end += len(line)
        if len(self._cuts) > KEPT_MAX:
            self.release(Point(sorted(self._cuts)[-KEPT_MAX]))

    def _take(self, line: bytes) -> None:
        try:
            cut = decode_cut(line)
        except Corruption as error:
            raise Corruption(str(self.path), self._end, f"a line that is not a cut: {error.why}") from error
        if cut.epoch > self._newest:  # Said again after a restart, it is the same.
            self._cuts[cut.epoch] = cut
            self._newest = cut.epoch


class Ticks:
    """Points of a database without recorded cuts: the Timestamp that all of some channels have ticked past.

    Their epoch is the Timestamp's milliseconds: it rises with it, and says when.
    """

    def __init__(self, path: str | Path, channels: Iterable[str]) -> None:
        self._path = path
        self._channels: Final = tuple(channels)

    def latest(self, start: Point, limits: Limits = Limits()) -> Point:  # noqa: B008
        """Limits apply where something is known of what lies between: at the ends of segments."""
        found = min((latest_tick(self._path, name) for name in self._channels), default=Timestamp.ZERO)
        if found <= start.timestamp:
            return start
        if limits.messages is not None or limits.bytes is not None:
            found = self._within(start.timestamp, found, limits)
        return Point(found.physical_ms, found)

    def _within(self, start: Timestamp, end: Timestamp, limits: Limits) -> Timestamp:
        """The last end of a segment before which not too much lies, and at least one segment; `end` if all fits."""
        files = LogFiles(self._path)
        behind = [each for name in self._channels for each in files.segments(name) if _ends_after(each, start)]
        ends = sorted({each.last_time_tick for each in behind if each.last_time_tick and each.last_time_tick < end})
        found: Timestamp | None = None
        for at in (*ends, end):
            taken = [each for each in behind if each.after_time_tick < at]
            messages = sum(each.last_position - each.first_position + 1 for each in taken if each.last_position)
            if found is not None and (
                (limits.messages is not None and messages > limits.messages)
                or (limits.bytes is not None and sum(each.size for each in taken) > limits.bytes)
            ):
                break
            found = at
        return end if found is None else found

    def wait(self, start: Point, timeout_s: float, until: Callable[[], bool] = lambda: False) -> None:  # noqa: ARG002
        if not until():
            sleep(timeout_s)

    def position(self, point: Point, channel: str) -> Position:  # noqa: ARG002
        return NO_POSITION

    def catalog_version(self, point: Point) -> int | None:  # noqa: ARG002
        return None

    def release(self, point: Point) -> None:
        pass


def points_of(database: str | Path, channels: Iterable[str], cuts: str | Path | None = None) -> Points:
    """The points of a database: its recorded cuts if it has any, or those in `cuts`; else its ticks."""
    path = Path(cuts) if cuts is not None else Path(database) / "pipeline" / "cuts"
    if cuts is not None or os.path.exists(path):  # noqa: PTH110
        return CutFile(path)
    return Ticks(database, channels)


def _ends_after(segment: SegmentFacts, start: Timestamp) -> bool:
    return segment.last_time_tick is None or segment.last_time_tick > start


def _point(cut: Cut) -> Point:
    return Point(cut.epoch, cut.timestamp)


def _messages(begin: Cut | None, end: Cut) -> int:
    """About how many messages lie between two cuts: positions may have gaps."""
    before = {} if begin is None else begin.places
    return sum(place.position - (before[name].position if name in before else 0) for name, place in end.places.items())
