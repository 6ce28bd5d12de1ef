"""What the commands tell of a channel: from its files and its shared tail, also while another process writes."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption, InUse
from tidegate.log import block, segment
from tidegate.log.scan import Window
from tidegate.log.segment import SegmentId
from tidegate.runtime.channel_reader import TailSource
from tidegate.runtime.file_cursor import ChannelFiles, Limit
from tidegate.runtime.log import LogFiles
from tidegate.runtime.retention import SegmentFacts
from tidegate.stores.shared_tail import SharedTail

_OPENING_MAX_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class End:
    """Where a channel ends."""

    limit: Limit | None
    """None for a channel without segments."""
    published_tick: int
    """The newest tick its writer has told readers of; 0 when no writer did since the machine started."""
    is_live: bool
    """Whether a process has the log open for writing."""


def end_of(files: LogFiles, name: str) -> End:
    """How far a channel may be read now.

    Raises: `Corruption` when its last segment is damaged or none can be read; `InUse` when a process takes too long to
    open it.
    """
    channel = files.channel(name)
    deadline = time.monotonic() + _OPENING_MAX_S
    tail = SharedTail(files.path / "log" / name)
    with closing(TailSource(channel, tail, is_written=files.is_written)) as source:
        while True:
            is_live = files.is_written()
            limit, tick = source.limit()
            segments = channel.segments()
            if limit is not None or not segments:
                return End(limit, tick, is_live)
            if not _is_opening(files, tail) and channel.end_of_log() is None:
                raise Corruption(
                    channel.describe(segments[-1]),
                    0,
                    "the segment's header cannot be read, and the channel has no segment whose header can",
                )
            if time.monotonic() > deadline:
                raise InUse(f"channel {name!r} of {files.path} is being opened by a process; try again in a moment")
            time.sleep(0.01)


def _is_opening(files: LogFiles, tail: SharedTail) -> bool:
    """Whether a live process may be opening the channel: it announces itself before it touches any segment."""
    slot = tail.slot(tail.current_term())
    if slot is None:
        return False
    slot.close()
    return files.is_written()


@dataclass(frozen=True, slots=True)
class Last:
    """The last entries of a segment that is not sealed."""

    position: int
    last_tick: int
    """The newest persisted tick; 0 when none was found."""
    tick_position: int
    is_whole: bool
    """Whether every block up to the end could be read."""


def last_of(channel: ChannelFiles, each: SegmentId, end: int) -> Last:
    """Walk the blocks behind the last place the segment's index knows."""
    opened = channel.open(each)
    try:
        index = channel.index(opened)
        offset, position = segment.HEADER_SIZE, opened.header.base_position - 1
        for entry in index[::-1]:
            if int(entry["offset"]) < end:
                offset, position = int(entry["offset"]), int(entry["position_before"])
                break
        window = Window(opened.file, end)
        last_tick = tick_position = 0
        while offset < end and (found := window.block(offset)) is not None:
            header = found[1]
            position = max(position, header.last_position)
            if header.flags & block.HAS_TICK:
                last_tick, tick_position = header.last_time_tick, header.last_position
            offset += header.size
    finally:
        opened.file.close()
    return Last(position, last_tick, tick_position, offset >= end)


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment with its end filled in, where that is known."""

    facts: SegmentFacts
    used: int
    """Bytes up to the end of its last block, or all of it once it is sealed."""
    last_position: int
    state: str
    """`sealed`, `closed` (to be sealed), `open` (being written) or `last` (nobody writes)."""

    @property
    def messages(self) -> int:
        """Time ticks included. Exact once sealed; before that, how many positions it spans."""
        if self.facts.messages is not None:
            return self.facts.messages
        return max(self.last_position - int(self.facts.first_position) + 1, 0)


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel at one moment."""

    name: str
    term: int
    segments: tuple[Segment, ...]
    position: int
    """Of the last entry."""
    tick: Timestamp | None
    """Readers get everything at or below it."""
    waiting: int
    """Entries behind the last tick of a writer that died: readable once the log is opened for writing again."""
    unreadable: int
    """Segments whose header or end is damaged."""
    is_live: bool

    @property
    def sealed(self) -> int:
        return sum(each.facts.sealed for each in self.segments)

    @property
    def messages(self) -> int:
        return sum(each.messages for each in self.segments)

    @property
    def bytes(self) -> int:
        return sum(each.used for each in self.segments)


def view(files: LogFiles, name: str) -> ChannelView:
    """Look at a channel without reading more than its last blocks."""
    channel = files.channel(name)
    unreadable = 0
    try:
        end = end_of(files, name)
    except Corruption:
        end, unreadable = End(None, 0, files.is_written()), 1
    facts = [each for each in files.segments(name) if end.limit is None or each.number <= end.limit.number]
    if not end.is_live:
        unreadable += len(channel.segments()) - len(facts)
    segments: list[Segment] = []
    position = tick_position = 0
    tick = end.published_tick
    for fact in facts:
        used, last, state = fact.size, int(fact.last_position or 0), "sealed"
        if fact.closed is not None:
            used, state = fact.closed.end, "closed"
        elif not fact.sealed:
            state = "open" if end.is_live else "last"
            used = end.limit.offset if end.limit is not None else fact.size
            found = last_of(channel, SegmentId(fact.number, fact.term), used)
            last, tick_position = found.position, found.tick_position
            tick = max(tick, found.last_tick)
            unreadable = unreadable or int(not found.is_whole)
        segments.append(Segment(fact, used, last, state))
        position = max(position, last)
    waits = position - tick_position if segments and segments[-1].state == "last" and tick_position else 0
    return ChannelView(
        name=name,
        term=segments[-1].facts.term if segments else 0,
        segments=tuple(segments),
        position=position,
        tick=Timestamp(tick) if tick else None,
        waiting=waits,
        unreadable=unreadable,
        is_live=end.is_live,
    )
