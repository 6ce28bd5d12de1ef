"""`FileCursor`: reads a channel's segments in physical order, from any position or time, in any process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import xxhash

from tidegate.errors import Corruption, Truncated
from tidegate.log import segment
from tidegate.log.batch import Batch
from tidegate.log.message import Position, Tick
from tidegate.log.scan import read_batches
from tidegate.log.segment import SegmentHeader, SegmentId, Trailer
from tidegate.ports.files import File, Files
from tidegate.runtime.segments import read_index, scan_end

_LOOK_AGAIN: Final = 100


@dataclass(frozen=True, slots=True)
class Limit:
    """How far the log may be read: whole blocks up to `offset` in segment `number`, all of those before it."""

    number: int
    offset: int


@dataclass(slots=True)
class OpenSegment:
    """A segment with what its ends say about it."""

    id: SegmentId
    file: File
    header: SegmentHeader
    trailer: Trailer | None
    holders: int = 1
    """Who will call `release`."""

    def release(self) -> None:
        self.holders -= 1
        if not self.holders:
            self.file.close()


class Place(NamedTuple):
    """Where an item lies: whole blocks from `offset` up to `end`, the first of which follows `chain`."""

    opened: OpenSegment
    path: str
    offset: int
    chain: int | None
    end: int


class ChannelFiles:
    """Finds and opens the segments of one channel."""

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        self.directory = directory

    def segments(self) -> list[SegmentId]:
        """The segments that make up the log, in order."""
        return segment.live(self.files.names(self.directory))[0]

    def describe(self, each: SegmentId) -> str:
        return self.files.describe(f"{self.directory}/{each.name}")

    def open(self, each: SegmentId) -> OpenSegment:
        """Open a segment for reading.

        Raises: `Corruption` when its header is damaged, `FileNotFoundError` when it is gone.
        """
        file = self.files.open(f"{self.directory}/{each.name}")
        try:
            header = segment.decode_header(file.read(0, segment.HEADER_SIZE))
            if header is None:
                raise Corruption(self.describe(each), 0, "the segment's header is damaged")
            tail = file.read(max(file.size() - segment.TRAILER_SIZE, 0), segment.TRAILER_SIZE)
        except BaseException:
            file.close()
            raise
        return OpenSegment(each, file, header, segment.decode_trailer(tail))

    def header(self, each: SegmentId) -> SegmentHeader:
        opened = self.open(each)
        opened.file.close()
        return opened.header

    def index(self, opened: OpenSegment) -> segment.Index:
        """Where reading may start inside the segment.

        Raises: `Corruption` when a sealed segment's index is damaged.
        """
        trailer = opened.trailer
        if trailer is None:
            return read_index(self.files, f"{self.directory}/{opened.id.index_name}")
        size = trailer.index_count * segment.INDEX_ENTRY_SIZE
        raw = opened.file.read(trailer.index_offset, size)
        if xxhash.xxh3_64_intdigest(raw) != trailer.index_checksum:
            raise Corruption(self.describe(opened.id), trailer.index_offset, "the segment's index is damaged")
        return np.frombuffer(raw, segment.INDEX_DTYPE, trailer.index_count)

    def end_of_log(self) -> Limit | None:
        """Where the log ends, found from the files alone: for when no writer has said so since the machine started.

        None when there is no segment yet.
        """
        for each in reversed(self.segments()):
            try:
                opened = self.open(each)
            except Corruption:
                continue  # It was being created when its writer died; a writer that opens the log removes it.
            try:
                if opened.trailer is not None:
                    return Limit(each.number, opened.trailer.end)
                found = scan_end(self.files, self.directory, each, opened.file, opened.header)
                return Limit(each.number, found.offset)
            finally:
                opened.file.close()
        return None


class FileCursor:
    """A place in the log. `advance` reads on from it.

    Invariant: never reads behind the limit it is given, nor behind where a newer segment says an older one ends.
    """

    def __init__(self, channel: ChannelFiles, position: Position, after: int) -> None:
        """Deliver messages at or behind `position` that are above TimeTick `after`."""
        self._channel = channel
        self._position = position
        self._after = after
        self._open: OpenSegment | None = None
        self._offset = 0
        self._chain: int | None = None
        self._done = 0
        """The segment that was read to its end."""
        self.place: Place | None = None
        """Of what `advance` yielded last."""

    def close(self) -> None:
        if self._open is not None:
            self._open.release()
            self._open = None

    def advance(self, limit: Limit) -> Iterator[Batch | Tick]:
        """Everything from here up to `limit`, in physical order.

        Raises: `Truncated` when retention has removed what comes next; `Corruption` naming the place.
        """
        while True:
            if self._open is None and not self._enter(limit):
                return
            opened = self._open
            if opened is None:
                return
            end = self._end(opened, limit)
            path = self._channel.describe(opened.id)
            for offset, chain, item in read_batches(opened.file, path, offset=self._offset, end=end, chain=self._chain):
                self.place = Place(opened, path, self._offset, self._chain, offset)
                self._offset, self._chain = offset, chain
                if isinstance(item, Tick):
                    yield item
                elif (wanted := self.wanted(item)) is not None:
                    yield wanted
            if opened.id.number >= limit.number:
                return
            self._done = opened.id.number
            self.close()

    def wanted(self, batch: Batch) -> Batch | None:
        """What of a batch was asked for."""
        if batch.first_position >= self._position and batch.first_time_tick > self._after:
            return batch
        mask = (batch.positions >= self._position) & (batch.time_ticks > self._after)
        return batch.where(mask) if mask.any() else None

    def _end(self, opened: OpenSegment, limit: Limit) -> int:
        if opened.trailer is not None:
            return opened.trailer.end
        if opened.id.number >= limit.number:
            return limit.offset
        for each in self._channel.segments():
            if each.number == opened.id.number + 1:
                with suppress(FileNotFoundError):  # Retention removed it after it was listed.
                    return self._channel.header(each).previous_end
        raise Truncated(
            f"the segment after {self._channel.describe(opened.id)} is gone; start from the earliest message"
        )

    def _enter(self, limit: Limit) -> bool:
        """Open the segment to go on in; False when it does not exist yet."""
        for _ in range(_LOOK_AGAIN):
            try:
                return self._enter_once(limit)
            except FileNotFoundError:
                continue  # Retention removed it between listing and opening; see what is there now.
        raise Truncated("segments are removed faster than they can be opened; start from the earliest message")

    def _enter_once(self, limit: Limit) -> bool:
        segments = [each for each in self._channel.segments() if each.number <= limit.number]
        if self._done:
            nxt = next((each for each in segments if each.number == self._done + 1), None)
            if nxt is None:
                if any(each.number > self._done for each in segments):
                    raise Truncated(
                        f"segment {self._done + 1} was removed by retention; start from the earliest message"
                    )
                return False
            self._start(self._channel.open(nxt), seek=False)
            return True
        if not segments:
            return False
        self._start(self._find(segments), seek=True)
        return True

    def _find(self, segments: list[SegmentId]) -> OpenSegment:
        """The last segment before which nothing wanted lies."""
        first = self._channel.header(segments[0])
        if first.number > 1 or first.base_position > 1:
            if 0 < self._position < first.base_position and self._after < first.base_time_tick:
                raise Truncated(
                    f"position {self._position} was removed by retention; the earliest is {first.base_position}"
                )
            if not self._position and 0 < self._after < first.base_time_tick:
                raise Truncated(f"messages after TimeTick {self._after} were removed by retention; start later")
        low, high = 0, len(segments) - 1
        while low < high:
            middle = (low + high + 1) // 2
            header = self._channel.header(segments[middle])
            if header.base_position <= self._position or header.base_time_tick <= self._after:
                low = middle
            else:
                high = middle - 1
        return self._channel.open(segments[low])

    def _start(self, opened: OpenSegment, *, seek: bool) -> None:
        self._open = opened
        self._offset, self._chain = segment.HEADER_SIZE, opened.header.base_chain
        if not seek:
            return
        index = self._channel.index(opened)
        best = max(segment.seek_position(index, self._position), segment.seek_time(index, self._after))
        if best >= 0:
            self._offset = int(index[best]["offset"])
            self._chain = int(index[best]["chain_before"])
