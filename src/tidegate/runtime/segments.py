"""`SegmentWriter`: one channel's segment files, as the writer of one term sees them.

Recovery finds the end of what an earlier term left and starts a new segment behind it; it never writes into an
old one. Writing appends encoded blocks, rolls to a new segment when one is full, and after a failed write cuts
the log where it was last known good.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np

from tidegate.errors import Corruption, Fenced
from tidegate.log import segment
from tidegate.log.block import HEADER_SIZE as BLOCK_HEADER_SIZE
from tidegate.log.block import Encoded
from tidegate.log.scan import CHUNK, ScanEnd, Window, scan
from tidegate.log.segment import SegmentHeader, SegmentId
from tidegate.ports.files import File, Files

DEFAULT_SEGMENT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening found: said in the log and in `status`, so that nothing is dropped silently."""

    segment: str | None
    """The last segment of the earlier term, if there was one."""
    end: int
    cut_bytes: int
    """Bytes behind the last whole block that were not zero: a torn write."""
    scanned_blocks: int
    discarded: tuple[str, ...] = ()
    """Segment files that were being created when their writer died, or that a fenced writer left."""


@dataclass(slots=True)
class Closed:
    """A segment that will not be written any more, with what sealing it needs."""

    id: SegmentId
    end: int
    chain: int
    position: int
    time_tick: int
    last_tick: int
    messages: int
    blocks: int
    index: list[bytes] | None
    """Its index entries, if this process wrote all of it."""


class SegmentWriter:
    """Owns the open segment.

    Invariant: `chain`, `position` and `time_tick` describe the last block that `commit` declared good.
    Ordering: a segment's header and name are durable before its first block is written; and the term is checked
    after that and before the segment before it may be sealed. Whoever fences later finds the new
    segment, so where the old one ends is settled for good. Before that the old one is made durable up to there,
    whatever the durability: else a loss of power could leave a hole between the two.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        channel: str,
        segment_bytes: int,
        wall_ms: Callable[[], int],
        current_term: Callable[[], int],
    ) -> None:
        self._files = files
        self.directory: Final = directory
        self._channel = channel
        self._segment_bytes = segment_bytes
        self._wall_ms = wall_ms
        self._current_term = current_term
        self._file: File | None = None
        self._index_file: File | None = None
        self._index: list[bytes] = []
        self._indexed_to = 0
        self.id = SegmentId(0, 0)
        self.term = 0
        self.offset = 0
        """Behind the last block of the open segment."""
        self.synced = 0
        """Everything before this offset of the open segment is durable."""
        self.size = 0
        self.chain = 0
        self.position = 0
        self.time_tick = 0
        self.last_tick = 0
        self.messages = 0
        self.blocks = 0
        self.before: SegmentId | None = None
        """The last segment of the term before, if there is one; it ends at `previous_end`."""
        self.previous_end = 0
        self.open_from = 0
        """Transactions that are open now have nothing before this position."""
        self.broken = False
        """Nothing more may be written to the open segment: the next write has to roll first."""
        self._syncing = Lock()
        """Of two syncs at once only one is told of a failure; and a sync must not count for another segment."""
        self._doubtful = False
        """A sync of the open segment has failed."""
        self.closed: list[Closed] = []
        """Segments to be sealed."""

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def recover(self, term: int) -> Recovered:
        """Find the end of the log and open a new segment behind it for `term`.

        Raises: `Corruption` when what is damaged had been durable; `Fenced`; `OSError` from the disk.
        """
        self.term = term
        names = self._files.names(self.directory)
        newest = segment.newest_term(names)
        if newest >= term:
            # Its segments would count as superseded by those that are there.
            raise Fenced(self._channel, term, newest)
        for name in names:
            if name.endswith(".tmp"):
                self._files.remove(self.path(name))
        segments, superseded = segment.live(names)
        discarded = [self._discard(each) for each in superseded]
        while segments and self._is_unborn(segments[-1]):
            discarded.append(self._discard(segments.pop()))
        report = Recovered(None, 0, 0, 0, tuple(discarded))
        before = list[Closed]()
        number = 0
        if segments:
            report = self._recover_last(segments[-1], before, tuple(discarded))
            self.before, self.previous_end = segments[-1], report.end
            number = segments[-1].number
        self._create(SegmentId(number + 1, term), report.end)
        self.closed.extend(before)
        return report

    def _is_unborn(self, each: SegmentId) -> bool:
        """Whether the segment's header never became durable: then nothing was ever written to it."""
        file = self._files.open(self.path(each.name))
        try:
            if segment.decode_header(file.read(0, segment.HEADER_SIZE)) is not None:
                return False
            if Window(file).block(segment.HEADER_SIZE) is not None:
                raise Corruption(self._files.describe(self.path(each.name)), 0, "the segment's header is damaged")
        finally:
            file.close()
        return True

    def _discard(self, each: SegmentId) -> str:
        for name in (each.name, each.index_name):
            with suppress(FileNotFoundError):
                self._files.remove(self.path(name))
        self._files.sync_dir(self.directory)
        return self._files.describe(self.path(each.name))

    def _recover_last(self, each: SegmentId, closed: list[Closed], discarded: tuple[str, ...]) -> Recovered:
        name = self.path(each.name)
        path = self._files.describe(name)
        file = self._files.open(name, write=True)
        try:
            header = segment.decode_header(file.read(0, segment.HEADER_SIZE))
            if header is None:
                raise Corruption(path, 0, "the segment's header is damaged")
            size = file.size()
            trailer = segment.decode_trailer(file.read(max(size - segment.TRAILER_SIZE, 0), segment.TRAILER_SIZE))
            if trailer is not None:
                self.chain, self.position = trailer.chain_end, trailer.last_position
                self.time_tick = trailer.last_time_tick
                self.open_from = header.open_from
                return Recovered(path, trailer.written_end, 0, 0, discarded)
            found = scan_end(self._files, self.directory, each, file, header)
            # A writer that was killed, or whose sync failed, may have left blocks that are whole in memory but not
            # on disk. After a failed sync the system may take them for written, so they are written once more.
            file.write(found.start, [file.read(found.start, found.offset - found.start)])
            file.sync()
        finally:
            file.close()
        self.chain, self.position, self.time_tick = found.chain, found.position, found.time_tick
        self.open_from = max(header.open_from, found.open_from)
        closed.append(Closed(each, found.offset, found.chain, found.position, found.time_tick, 0, 0, 0, None))
        return Recovered(path, found.offset, found.garbage, found.blocks, discarded)

    def _create(self, new: SegmentId, previous_end: int) -> None:
        """Start a segment; durable, name and header, before this returns.

        Raises: `Fenced` when a newer term has taken over; then nothing this writer does counts any more.
        """
        header = SegmentHeader(
            number=new.number,
            term=new.term,
            base_position=self.position + 1,
            base_time_tick=self.time_tick,
            base_chain=self.chain,
            previous_end=previous_end,
            created_ms=self._wall_ms(),
            open_from=self.open_from,
        )
        was_broken = self.broken
        present = self._files.names(self.directory)
        for name in (new.name, new.index_name):
            if name in present:
                # Left by an attempt of this very term that failed half way; no block was written to it.
                self._files.remove(self.path(name))
        file = self._files.create(self.path(new.name), self._segment_bytes)
        index_file = None
        try:
            file.write(0, [header.encode()])
            file.sync()
            index_file = self._files.create(self.path(new.index_name), 0)
            self._files.sync_dir(self.directory)
        except OSError:
            file.close()
            if index_file is not None:
                index_file.close()
            # Its header says where the open segment ends, and a loss of power may bring its name back. So either
            # it is gone for good, or nothing more is written to the open segment.
            self.broken = True
            with suppress(OSError):
                self._files.remove(self.path(new.name))
                self._files.sync_dir(self.directory)
                self.broken = was_broken
            raise
        current = self._current_term()
        if current != self.term:
            file.close()
            index_file.close()
            raise Fenced(self._channel, self.term, current)
        with self._syncing:
            self._close_files()
            self._file, self._index_file = file, index_file
            self._index = []
            self.id = new
            self.offset = self.synced = self._indexed_to = segment.HEADER_SIZE
            self.size = self._segment_bytes
            self.messages = self.blocks = self.last_tick = 0
            self.broken = self._doubtful = False

    def room(self, size: int) -> bool:
        """Whether a commit of `size` bytes fits into the open segment, or the segment is still empty."""
        return self.offset + size <= self.size or self.offset == segment.HEADER_SIZE

    def roll(self) -> None:
        """Go on in a new segment. The old one ends at its last good block, and is durable up to there."""
        self.sync_committed()
        finished = Closed(
            self.id, self.offset, self.chain, self.position, self.time_tick, self.last_tick,
            self.messages, self.blocks, self._index,
        )  # fmt: skip
        self._create(SegmentId(self.id.number + 1, self.term), self.offset)
        self.closed.append(finished)

    def write(self, blocks: Sequence[Encoded]) -> None:
        """Write blocks behind the last good one; they count only once `commit` says so."""
        if self._file is None:
            raise OSError(errno.EBADF, "the segment is closed")
        self._file.write(self.offset, [buffer for block in blocks for buffer in block.buffers])

    def sync(self) -> None:
        """Make everything written to the open segment durable."""
        with self._syncing:
            self._sync()

    def sync_committed(self) -> None:
        """Make everything that `commit` declared good durable, and note that it is.

        Raises: `OSError`; then nothing more may be written to the open segment.
        """
        with self._syncing:
            end = self.offset
            if self.synced >= end:
                return
            try:
                self._sync()
            except OSError:
                self.broken = True
                raise
            self.synced = max(self.synced, end)

    def _sync(self) -> None:
        if self._file is None:
            return
        try:
            if self._doubtful:
                self._write_again(self._file)
            self._file.sync()
        except OSError:
            self._doubtful = True
            raise

    def _write_again(self, file: File) -> None:
        """After a failed sync the system may take for written what it has lost: a later sync alone proves nothing."""
        start, end = self.synced, self.offset
        window, at, chain = Window(file, end), start, None
        while at < end:
            found = window.block(at)
            if found is None or (chain is not None and found[1].previous != chain):
                raise OSError(errno.EIO, f"what was written at {at:,} cannot be read back")
            at, chain = at + found[1].size, found[1].checksum
        for at in range(start, end, CHUNK):
            file.write(at, [file.read(at, min(CHUNK, end - at))])

    def commit(
        self,
        blocks: Sequence[Encoded],
        *,
        position: int,
        time_tick: int,
        messages: int,
        tick: int,
        durable: bool,
    ) -> None:
        """Declare what was just written good."""
        if self.offset - self._indexed_to >= segment.INDEX_EVERY and self.synced >= self.offset:
            self._add_index_entry()
        for block in blocks:
            self.offset += block.size
        self.chain = blocks[-1].checksum
        self.blocks += len(blocks)
        self.messages += messages
        self.position = position
        self.time_tick = max(self.time_tick, time_tick)
        self.last_tick = max(self.last_tick, tick)
        if durable:
            self.synced = self.offset

    def _add_index_entry(self) -> None:
        """Note a place to start scanning from. Never fails an append: it is only a short cut."""
        entry = segment.encode_entry(self.offset, self.position, self.time_tick, self.chain)
        self._indexed_to = self.offset
        try:
            if self._index_file is not None:
                self._index_file.write(len(self._index) * segment.INDEX_ENTRY_SIZE, [entry])
        except OSError:
            self._index_file = None
        self._index.append(entry)

    def give_back(self) -> None:
        """Return the unused room of the open segment to the disk.

        Safe also for a writer that was fenced without knowing, as long as it has written nothing behind its last good
        block; one that has is `broken`.
        """
        if self._file is not None and not self.broken:
            self._file.truncate(self.offset)

    def discard(self) -> None:
        """Remove the open segment, to which nothing was committed: its term does not open."""
        with suppress(OSError):
            self._discard(self.id)

    def close(self) -> None:
        self._close_files()

    def _close_files(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._index_file is not None:
            self._index_file.close()
        self._file = self._index_file = None


def scan_end(files: Files, directory: str, each: SegmentId, file: File, header: SegmentHeader) -> ScanEnd:
    """Find where an open segment ends, starting from the newest place its index file knows."""
    path = files.describe(f"{directory}/{each.name}")
    offset, chain = segment.HEADER_SIZE, header.base_chain
    position, time_tick = header.base_position - 1, header.base_time_tick
    window = Window(file, chunk=BLOCK_HEADER_SIZE)
    for entry in read_index(files, f"{directory}/{each.index_name}")[::-1]:
        found = window.block(int(entry["offset"]))
        if found is not None and found[1].previous == int(entry["chain_before"]):
            offset, chain = int(entry["offset"]), int(entry["chain_before"])
            position, time_tick = int(entry["position_before"]), int(entry["time_tick_before"])
            break
    return scan(file, path, offset=offset, chain=chain, position=position, time_tick=time_tick)


def read_index(files: Files, path: str) -> segment.Index:
    """The index file of an open segment; empty when there is none."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return np.empty(0, segment.INDEX_DTYPE)
    try:
        return segment.decode_index(file.read(0, file.size()))
    finally:
        file.close()
