"""Sealing: turning a closed segment into one that opens and is searched without a scan.

A segment of large blocks gets its index and a trailer behind them, in place. One of small blocks is merged: its
messages are written again as large Arrow blocks, into a new file that replaces the old one in a single step.
A crash anywhere leaves either the old segment or the sealed one.

Only segments whose end is settled come here (see `SegmentWriter`), so it does no harm if two processes do it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import xxhash

from tidegate.log import block, segment
from tidegate.log.batch import Batch, concat
from tidegate.log.block import Encoded, Stamp
from tidegate.log.message import ALL_VCHANNELS, MessageType, Tick
from tidegate.log.scan import read_batches
from tidegate.log.segment import SegmentHeader, Trailer
from tidegate.ports.files import File, Files
from tidegate.runtime.segments import Closed

MERGE_BELOW: Final = 64 << 10
"""Segments whose blocks are smaller than this on average are merged."""
WINDOW_ROWS: Final = 1 << 16
WINDOW_BYTES: Final = 4 << 20
SLACK_MAX: Final = 1 << 20
"""More unused room than this at the end of a segment is given back by writing it again."""


def seal(files: Files, directory: str, closed: Closed, *, by: int = 0) -> Trailer | None:
    """Seal one segment; None when that had been done before.

    `by` is the term of whoever does it. After a takeover two processes may do it at once, each in a file of its own.

    Raises: `Corruption` when a block is damaged, which leaves the segment as it was; `OSError`.
    """
    path = f"{directory}/{closed.id.name}"
    file = files.open(path, write=True)
    try:
        size = file.size()
        tail = file.read(max(size - segment.TRAILER_SIZE, 0), segment.TRAILER_SIZE)
        done = segment.decode_trailer(tail) is not None
        trailer = None
        if not done:
            raw = file.read(0, segment.HEADER_SIZE)
            header = segment.decode_header(raw)
            if header is None:
                return None
            used = closed.end - segment.HEADER_SIZE
            if closed.index is not None and used >= closed.blocks * MERGE_BELOW and size - closed.end <= SLACK_MAX:
                trailer = _seal_in_place(file, closed)
            else:
                trailer = _merge(files, directory, file, header, closed, by)
    finally:
        file.close()
    with suppress(FileNotFoundError):
        files.remove(f"{directory}/{closed.id.index_name}")
    return trailer


def remove_leftovers(files: Files, directory: str, sealed: Iterable[str]) -> None:
    """Remove index files that a crash left beside `sealed` segments, or of segments that are gone."""
    indexes = [name for name in files.names(directory) if name.endswith(".idx")]
    # Listed after the indexes: a segment is created before its index, so none that is being created looks gone.
    needed = set(files.names(directory)).difference(sealed)
    for name in indexes:
        of = name.removesuffix(".idx") + ".seg"
        if of not in needed and segment.parse_name(of) is not None:
            with suppress(FileNotFoundError):
                files.remove(f"{directory}/{name}")


def _seal_in_place(file: File, closed: Closed) -> Trailer:
    index = b"".join(closed.index or ())
    trailer = Trailer(
        index_offset=closed.end,
        index_count=len(index) // segment.INDEX_ENTRY_SIZE,
        index_checksum=xxhash.xxh3_64_intdigest(index),
        end=closed.end,
        last_position=closed.position,
        last_time_tick=closed.time_tick,
        last_tick=closed.last_tick,
        chain_end=closed.chain,
        messages=closed.messages,
        written_end=closed.end,
    )
    raw = index + trailer.encode()
    file.write(closed.end, [raw])
    file.truncate(closed.end + len(raw))
    file.sync()
    return trailer


def _merge(files: Files, directory: str, old: File, header: SegmentHeader, closed: Closed, by: int) -> Trailer:
    path = f"{directory}/{closed.id.name}"
    temporary = f"{path}.{by}.tmp"
    with suppress(FileNotFoundError):
        files.remove(temporary)
    new = files.create(temporary, 0)
    try:
        writer = MergedWriter(new, header)
        items = read_batches(
            old, files.describe(path), offset=segment.HEADER_SIZE, end=closed.end, chain=header.base_chain
        )
        for blocks in _windows(item for _, _, item in items):
            writer.write(blocks)
        trailer = writer.finish(closed)
    except BaseException:
        new.close()
        with suppress(OSError):
            files.remove(temporary)
        raise
    new.close()
    if closed.id.name not in files.names(directory):
        # Retention was faster; renaming would bring it back.
        files.remove(temporary)
        raise FileNotFoundError(path)
    files.rename(temporary, path)
    files.sync_dir(directory)
    return trailer


def _windows(items: Iterable[Batch | Tick]) -> Iterable[list[Batch | Tick]]:
    """Gather messages into large batches, one per schema, each window followed by the last tick inside it.

    Earlier ticks of a window say nothing that its last one does not say, once the whole window is durable.
    """
    held: dict[tuple[object, int], list[Batch]] = {}
    tick: Tick | None = None
    rows = size = 0

    def window() -> list[Batch | Tick]:
        merged: list[Batch | Tick] = [concat(group) for group in held.values()]
        merged.sort(key=lambda each: int(each.positions[0]) if isinstance(each, Batch) else 0)
        return [*merged, tick] if tick is not None else merged

    for item in items:
        if isinstance(item, Tick):
            tick = item
            if rows >= WINDOW_ROWS or size >= WINDOW_BYTES:
                yield window()
                held, tick, rows, size = {}, None, 0, 0
            continue
        held.setdefault((item.rows.schema, item.term), []).append(item)
        rows += len(item)
        size += item.nbytes
        if rows >= 2 * WINDOW_ROWS or size >= 2 * WINDOW_BYTES:
            yield window()
            held, tick, rows, size = {}, None, 0, 0
    if held or tick is not None:
        yield window()


class MergedWriter:
    """Writes merged blocks one after the other and keeps their index."""

    def __init__(self, file: File, header: SegmentHeader) -> None:
        self._file = file
        self._term = header.term
        self._chain = header.base_chain
        self._offset = segment.HEADER_SIZE
        self._position = header.base_position - 1
        self.time_tick = header.base_time_tick
        self.last_tick = 0
        self.messages = 0
        self._index: list[bytes] = []
        self._indexed_to = segment.HEADER_SIZE
        file.write(0, [header.encode()])

    def write(self, window: list[Batch | Tick]) -> None:
        # Blocks of one window may overlap in position and time, so an entry stands only before a window.
        if self._offset - self._indexed_to >= segment.INDEX_EVERY:
            self._index.append(segment.encode_entry(self._offset, self._position, self.time_tick, self._chain))
            self._indexed_to = self._offset
        for item in window:
            encoded = self._encode(item)
            self._file.write(self._offset, encoded.buffers)
            self._offset += encoded.size
            self._chain = encoded.checksum

    def _encode(self, item: Batch | Tick) -> Encoded:
        if isinstance(item, Tick):
            stamp = self._stamp(item.position, item.time_tick, item.last_confirmed)
            self._position = max(self._position, item.position)
            self.time_tick = max(self.time_tick, int(item.time_tick))
            self.last_tick = max(self.last_tick, int(item.time_tick))
            self.messages += 1
            return block.encode_rows(stamp, [MessageType.TIME_TICK], [ALL_VCHANNELS], [b""])
        stamp = self._stamp(int(item.positions[0]), int(item.time_ticks[0]), int(item.last_confirmed.min()))
        self._position = max(self._position, int(item.positions.max()))
        self.time_tick = max(self.time_tick, int(item.time_ticks.max()))
        self.messages += len(item)
        return block.encode_merged(stamp, item)

    def _stamp(self, position: int, time_tick: int, last_confirmed: int) -> Stamp:
        return Stamp(position, time_tick, last_confirmed, self._term, self._offset, self._offset, self._chain)

    def finish(self, closed: Closed) -> Trailer:
        index = b"".join(self._index)
        trailer = Trailer(
            index_offset=self._offset,
            index_count=len(self._index),
            index_checksum=xxhash.xxh3_64_intdigest(index),
            end=self._offset,
            last_position=closed.position,
            last_time_tick=closed.time_tick,
            last_tick=self.last_tick,
            chain_end=closed.chain,
            messages=self.messages,
            written_end=closed.end,
        )
        self._file.write(self._offset, [index + trailer.encode()])
        self._file.sync()
        return trailer

    def close(self) -> None:
        self._file.close()
