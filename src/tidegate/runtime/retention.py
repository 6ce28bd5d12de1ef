"""What is known of a channel's segments, and which of them may be removed.

Segments go oldest first, whole, and never at or behind a position that somebody still needs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption
from tidegate.log.message import Position
from tidegate.log.segment import SegmentHeader
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.segments import Closed


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment, from its header, its trailer and the header after it."""

    name: str
    number: int
    term: int
    first_position: Position
    last_position: Position | None
    """None for the segment that is being written."""
    after_time_tick: Timestamp
    """Every message in earlier segments is at or below this."""
    last_time_tick: Timestamp | None
    messages: int | None
    size: int
    sealed: bool
    created_ms: int
    closed: Closed | None = None
    """What sealing needs, for a segment that waits for it."""


def facts(channel: ChannelFiles) -> list[SegmentFacts]:
    """Every segment that can be read, oldest first."""
    found: list[SegmentFacts] = []
    following: SegmentHeader | None = None
    for each in reversed(channel.segments()):
        try:
            opened = channel.open(each)
        except (FileNotFoundError, Corruption):
            continue
        try:
            size = opened.file.size()
        finally:
            opened.file.close()
        header, trailer = opened.header, opened.trailer
        if following is not None and following.number != each.number + 1:
            following = None  # The segment between cannot be read, and only its header says where this one ends.
        last = None if following is None else Position(following.base_position - 1)
        last_tick = None if following is None else Timestamp(following.base_time_tick)
        closed = None
        if following is not None and trailer is None:
            closed = Closed(
                each, following.previous_end, following.base_chain, following.base_position - 1,
                following.base_time_tick, 0, 0, 0, None,
            )  # fmt: skip
        found.append(
            SegmentFacts(
                name=each.name,
                number=each.number,
                term=each.term,
                first_position=Position(header.base_position),
                last_position=last if trailer is None else Position(trailer.last_position),
                after_time_tick=Timestamp(header.base_time_tick),
                last_time_tick=last_tick if trailer is None else Timestamp(trailer.last_time_tick),
                messages=None if trailer is None else trailer.messages,
                size=size,
                sealed=trailer is not None,
                created_ms=header.created_ms,
                closed=closed,
            )
        )
        following = header
    found.reverse()
    return found


def remove_old(
    channel: ChannelFiles,
    *,
    needed_from: Position | None,
    before: Position | None,
    age_max_s: float | None,
    bytes_max: int | None,
    now_ms: int,
) -> list[str]:
    """Remove the oldest sealed segments that may go; their paths."""
    segments = facts(channel)
    total = sum(each.size for each in segments)
    removed: list[str] = []
    for each, following in pairwise(segments):
        if not each.sealed or each.last_position is None:
            break
        if needed_from is not None and each.last_position >= needed_from:
            break
        # A segment is as old as the moment the next one was begun: until then it was being written.
        too_old = age_max_s is not None and now_ms - following.created_ms > age_max_s * 1000
        too_much = bytes_max is not None and total > bytes_max
        if not (too_old or too_much or (before is not None and each.last_position < before)):
            break
        path = f"{channel.directory}/{each.name}"
        with suppress(FileNotFoundError):
            channel.files.remove(path)
        total -= each.size
        removed.append(channel.files.describe(path))
    if removed:
        channel.files.sync_dir(channel.directory)
    return removed
