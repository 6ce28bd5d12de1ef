"""Verifying and repairing a channel's files.

Verifying reads every block of every segment and checks that they follow each other, also while a process writes.
Repairing keeps all that can be read, says what cannot, and puts the damaged file aside; nobody may write meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tidegate.errors import Corruption
from tidegate.log import block, segment
from tidegate.log.batch import Batch
from tidegate.log.message import Tick
from tidegate.log.scan import Window, as_item
from tidegate.log.segment import SegmentHeader, SegmentId
from tidegate.runtime.file_cursor import ChannelFiles, Limit, OpenSegment
from tidegate.runtime.sealer import MergedWriter
from tidegate.runtime.segments import Closed, scan_end

_SEARCH: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One damaged place."""

    segment: str
    offset: int
    why: str


@dataclass(slots=True)
class Checked:
    """What verifying a channel found."""

    channel: str
    segments: int = 0
    blocks: int = 0
    messages: int = 0
    bytes: int = 0
    torn_bytes: int = 0
    """Behind the last whole block of the open segment: an unfinished write that nobody was told had succeeded."""
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class Repaired:
    """What repairing a segment gave up."""

    segment: str
    set_aside: str
    kept_messages: int
    lost: list[tuple[int, int]]
    """Ranges of positions that may have held messages, first and last."""


def verify(
    channel: ChannelFiles,
    name: str,
    progress: Callable[[int], None] = lambda _: None,
    *,
    published: Limit | None = None,
    live: bool = False,
) -> Checked:
    """Read all of a channel. Never changes anything; damage is reported, not raised.

    `published` is how far a writer has told readers they may read, taken before this call: up to there everything
    must be intact. When that writer is `live`, what lies behind is not looked at, for it may be half written.
    """
    result = Checked(name)
    segments = channel.segments()
    if live and published is not None:
        segments = [each for each in segments if each.number <= published.number]
    for at, each in enumerate(segments):
        following = segments[at + 1] if at + 1 < len(segments) else None
        try:
            _verify_segment(channel, each, following, result, progress, published, live)
        except Corruption as error:
            result.problems.append(Problem(error.path, error.offset, error.why))
        except FileNotFoundError:
            continue  # Retention was faster.
        result.segments += 1
    return result


def _verify_segment(
    channel: ChannelFiles,
    each: SegmentId,
    following: SegmentId | None,
    result: Checked,
    progress: Callable[[int], None],
    published: Limit | None,
    live: bool,
) -> None:
    opened = channel.open(each)
    path = channel.describe(each)
    try:
        end = _end_of(channel, opened, following, result, published, live)
        window = Window(opened.file, end)
        offset, chain = segment.HEADER_SIZE, opened.header.base_chain
        while offset < end:
            found = window.block(offset)
            if found is None:
                raise Corruption(path, offset, "not an intact block")
            if found[1].previous != chain:
                raise Corruption(path, offset, "does not follow the block before it")
            offset += found[1].size
            chain = found[1].checksum
            result.blocks += 1
            result.messages += found[1].messages
            result.bytes += found[1].size
            progress(found[1].size)
        channel.index(opened)
        last = opened.trailer.chain_end if opened.trailer is not None else chain
        if following is not None and channel.header(following).base_chain != last:
            raise Corruption(path, end, "the next segment does not follow this one")
    finally:
        opened.file.close()


def _end_of(
    channel: ChannelFiles,
    opened: OpenSegment,
    following: SegmentId | None,
    result: Checked,
    published: Limit | None,
    live: bool,
) -> int:
    if opened.trailer is not None:
        return opened.trailer.end
    if following is not None:
        return channel.header(following).previous_end
    known = published.offset if published is not None and published.number == opened.id.number else 0
    if live and known:
        return known
    found = scan_end(channel.files, channel.directory, opened.id, opened.file, opened.header)
    if found.offset < known:
        return known  # Its last blocks were published and cannot be read: that is damage, not an unfinished write.
    result.torn_bytes += found.garbage
    return found.offset


def repair(channel: ChannelFiles, each: SegmentId) -> Repaired:
    """Write a damaged segment again with everything in it that can be read, and keep the old file beside it.

    Raises: `Corruption` when nothing can be read at all.
    """
    segments = channel.segments()
    following = next((other for other in segments if other.number == each.number + 1), None)
    path = f"{channel.directory}/{each.name}"
    file = channel.files.open(path)
    try:
        size = file.size()
        header = segment.decode_header(file.read(0, segment.HEADER_SIZE))
        trailer = segment.decode_trailer(file.read(max(size - segment.TRAILER_SIZE, 0), segment.TRAILER_SIZE))
        window = Window(file)
        found = list(_intact(window, size))
        if header is None:
            if not found:
                raise Corruption(channel.describe(each), 0, "neither its header nor any block can be read")
            first = found[0][1]
            header = SegmentHeader(
                each.number, each.term, first.first_position, first.first_time_tick - 1, first.previous, 0, 0, 0
            )
        after = None if following is None else channel.header(following)
        if trailer is not None:
            found = [(offset, head) for offset, head in found if offset < trailer.end]
        elif after is not None:
            found = [(offset, head) for offset, head in found if offset < after.previous_end]
        lost: list[tuple[int, int]] = []
        temporary = f"{path}.repair.tmp"
        writer = MergedWriter(channel.files.create(temporary, 0), header)
        position, chain = header.base_position - 1, header.base_chain
        broken = False
        kept: list[Batch | Tick] = []
        for offset, head in found:
            broken = broken or head.previous != chain
            index = window.at(offset, head.size)
            item: Batch | Tick = as_item(window.view, index, head)
            writer.write([item])
            kept.append(item)
            position, chain = max(position, head.last_position), head.checksum
        last = position
        if after is not None:
            last = after.base_position - 1
        elif trailer is not None:
            last = trailer.last_position
        if broken or last > position:
            lost = _missing(kept, header.base_position, last)
        closed = Closed(
            each,
            after.previous_end if after is not None else (trailer.written_end if trailer else size),
            after.base_chain if after is not None else chain,
            after.base_position - 1 if after is not None else position,
            max(writer.time_tick, after.base_time_tick if after is not None else 0),
            writer.last_tick, writer.messages, len(found), None,
        )  # fmt: skip
        writer.finish(closed)
        writer.close()
    finally:
        file.close()
    aside = f"{path}.damaged"
    channel.files.rename(path, aside)
    channel.files.rename(temporary, path)
    channel.files.sync_dir(channel.directory)
    return Repaired(channel.describe(each), channel.files.describe(aside), writer.messages, lost)


def _missing(kept: list[Batch | Tick], first: int, last: int) -> list[tuple[int, int]]:
    """Positions from `first` to `last` that nothing kept has, as ranges."""
    own = [item.positions if isinstance(item, Batch) else np.array([item.position], np.uint64) for item in kept]
    edges = np.array([first - 1, last + 1], np.uint64)
    present = np.unique(np.concatenate([edges, *own])).astype(np.int64)
    present = present[(present >= first - 1) & (present <= last + 1)]
    gaps = np.flatnonzero(np.diff(present) > 1)
    return [(int(present[at]) + 1, int(present[at + 1]) - 1) for at in gaps]


def _intact(window: Window, size: int) -> Iterator[tuple[int, block.Header]]:
    """Every intact block, also behind damage; in ascending position, unless they were merged and overlap."""
    offset = segment.HEADER_SIZE
    position = 0
    merged = False
    while offset + block.HEADER_SIZE <= size:
        found = window.block(offset)
        merged = merged or (found is not None and bool(found[1].flags & block.SPARSE))
        if found is not None and (merged or found[1].last_position > position):
            yield offset, found[1]
            position = found[1].last_position
            offset += found[1].size
            continue
        offset = _next_magic(window, offset + 8, size)


def _next_magic(window: Window, offset: int, size: int) -> int:
    while offset < size:
        index = window.at(offset, min(_SEARCH, size - offset))
        at = bytes(window.view[index:]).find(block.MAGIC)
        while at >= 0:
            start = offset + at - 8
            if start % 8 == 0 and start >= offset:
                return start
            at = bytes(window.view[index:]).find(block.MAGIC, at + 1)
        step = len(window.view) - index - 16
        if step <= 0:
            return size
        offset += step
    return size
