"""Walking the blocks of one segment: to find where it ends, to verify it, and to read it.

Nothing here trusts a block before its checksum and its link to the block before it have been checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption
from tidegate.log import block
from tidegate.log.batch import Batch, body_rows
from tidegate.log.message import Position, Term, Tick
from tidegate.ports.files import File

CHUNK: Final = 4 << 20
"""Bytes read at a time."""
COALESCE_ROWS: Final = 8192
"""Small blocks are gathered into batches of about this many messages, or of about `CHUNK` bytes."""
_FIT_FROM: Final = 64 << 10
_LARGE: Final = 1 << 20
"""Bytes read at a time where blocks are large: what was just copied is then still in the processor's cache."""
_SLACK: Final = 1 << 10
"""Read beyond them: the tick that often comes before the next one then does not make it be read twice."""
_REST_CHUNK: Final = 256 << 10
_COALESCE_BLOCK: Final = 64
"""Blocks of at most this many messages count as small."""
_ENDS: Final = tuple(Struct(f"<{count}I") for count in range(_COALESCE_BLOCK + 1))


class Window:
    """A moving view of a file: blocks are handed out from one large read after the other."""

    def __init__(self, file: File, end: int | None = None, chunk: int = CHUNK) -> None:
        self._file = file
        self._end = end
        self._chunk = chunk
        self._fit = 0
        """Size of the last large block: reading a multiple of it cuts none of the following in two."""
        self.start = 0
        self.view = memoryview(b"")

    def at(self, offset: int, size: int) -> int:
        """The index in `view` of `offset`, with `size` bytes behind it if the file has them."""
        if offset < self.start or offset + size > self.start + len(self.view):
            if self._fit >= size:
                want = max(_LARGE // self._fit, 1) * self._fit + _SLACK
            else:
                want = max(self._chunk, size)
            if size > self._chunk:
                # The size comes from a header that may be damaged; the file's own does not.
                want = min(want, max(self._file.size() - offset, 0))
            if self._end is not None:
                want = min(want, max(self._end - offset, 0))
            self.start = offset
            self.view = self._file.read(offset, want)
        return offset - self.start

    def block(self, offset: int) -> tuple[int, block.Header] | None:
        """The intact block at `offset`, as its index in `view` and its header."""
        index = self.at(offset, block.HEADER_SIZE)
        header = block.decode_header(self.view, index)
        if header is None:
            return None
        index = self.at(offset, header.size)
        if not block.is_intact(self.view, index, header):
            return None
        if header.size >= _FIT_FROM:
            self._fit = header.size
        elif self._fit > self._chunk:
            self._fit = 0
        return index, header


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Where an open segment ends, and how that was seen."""

    start: int
    """Where the scan began; everything before was known to be durable."""
    offset: int
    chain: int
    """Checksum of the last block."""
    position: int
    """The largest position seen, or what the scan started from."""
    time_tick: int
    last_tick: int
    """The largest time tick seen, or 0."""
    open_from: int
    """Transactions that are open at the end have nothing before this position; 0 when no block was seen."""
    blocks: int
    messages: int
    garbage: int
    """Bytes behind the end that are not zero: a torn write, if they are anything."""


def scan(file: File, path: str, *, offset: int, chain: int, position: int, time_tick: int) -> ScanEnd:
    """Follow the chain of intact blocks from `offset` to its end.

    Raises: `Corruption` when a block behind the end proves that the damaged place had been durable. A torn
    write cannot look like that: a block records how much of the segment was durable when it was written.
    """
    window = Window(file)
    start = offset
    blocks = messages = last_tick = open_from = 0
    while True:
        found = window.block(offset)
        if found is None or found[1].previous != chain:
            break
        header = found[1]
        chain = header.checksum
        position = max(position, header.last_position)
        time_tick = max(time_tick, header.last_time_tick)
        if header.flags & block.HAS_TICK:
            last_tick = header.last_time_tick
            open_from = max(open_from, block.tick_open_from(window.view, found[0], header))
        else:
            open_from = max(open_from, header.last_confirmed)
        offset += header.size
        blocks += 1
        messages += header.messages
    garbage = _check_rest(file, path, offset, position)
    return ScanEnd(start, offset, chain, position, time_tick, last_tick, open_from, blocks, messages, garbage)


def _check_rest(file: File, path: str, end: int, position: int) -> int:
    """Count non-zero bytes behind `end`, and look for a block written after `end` was durable.

    Looks to the end of the file: zeros may be the inside of a large block that was lost.
    """
    window = Window(file)
    size = file.size()
    last_garbage = end
    offset = end
    while (data_at := file.next_data(offset)) < size:
        offset = max(offset, data_at // 8 * 8)
        view = file.read(offset, min(_REST_CHUNK, size - offset))
        if not len(view):
            break
        data = np.frombuffer(view, np.uint8)
        used = np.flatnonzero(data)
        if len(used):
            last_garbage = offset + int(used[-1]) + 1
            for start in _magic_places(bytes(view)):
                at = offset + start
                if at < end or at % 8:
                    continue
                found = window.block(at)
                # A torn message may itself carry blocks of some log; one of this place fits it in every respect.
                if found is not None and end < found[1].synced <= at and found[1].first_position > position:
                    raise Corruption(path, end, f"damaged, though an intact block at {at:,} was written after it")
        # Overlap by one header, so that a magic across two chunks is not missed.
        offset += len(view) if offset + len(view) >= size else max(len(view) - block.HEADER_SIZE, 1)
    return last_garbage - end


def _magic_places(data: bytes) -> Iterator[int]:
    at = data.find(block.MAGIC)
    while at >= 0:
        yield at - 8
        at = data.find(block.MAGIC, at + 1)


def read_batches(
    file: File, path: str, *, offset: int, end: int, chain: int | None = None
) -> Iterator[tuple[int, int, Batch | Tick]]:
    """Everything between `offset` and `end`: `(offset behind it, chain, messages or tick)`.

    `end` is known to be the end of whole blocks, so anything that is not one is damage.

    Raises: `Corruption` naming the place.
    """
    window = Window(file, end)
    small = _Gather()
    while offset < end:
        found = window.block(offset)
        if found is None or (chain is not None and found[1].previous != chain):
            if small.count:
                yield offset, chain or 0, small.take()
            why = "not an intact block" if found is None else "does not follow the block before it"
            raise Corruption(path, offset, why)
        index, header = found
        if small.count and not small.accepts(header):
            yield offset, chain or 0, small.take()
        offset += header.size
        chain = header.checksum
        if header.flags & block.HAS_TICK:
            yield offset, chain, _tick(header)
        elif header.kind == block.ROWS and header.messages <= _COALESCE_BLOCK:
            small.add(window.view, index, header)
            if header.messages == 1:
                index, chain = small.add_singles(window.view, index + header.size, header.term, chain)
                offset = window.start + index
        else:
            yield offset, chain, block.decode(window.view, index, header)
    if small.count:
        yield offset, chain or 0, small.take()


def decode_blocks(views: Iterable[memoryview]) -> Iterator[Batch]:
    """The messages of blocks that are known to be intact, one block a view; small ones together. Ticks are left out."""
    small = _Gather()
    for view in views:
        header = block.decode_header(view, 0)
        if header is None:
            raise Corruption("the write-ahead buffer", 0, "not a block")
        if small.count and not small.accepts(header):
            yield small.take()
        if header.flags & block.HAS_TICK:
            continue
        if header.kind == block.ROWS and header.messages <= _COALESCE_BLOCK:
            small.add(view, 0, header)
        else:
            yield block.decode(view, 0, header)
    if small.count:
        yield small.take()


def as_item(view: memoryview, index: int, header: block.Header) -> Batch | Tick:
    """What an intact block holds."""
    return _tick(header) if header.flags & block.HAS_TICK else block.decode(view, index, header)


def _tick(header: block.Header) -> Tick:
    return Tick(
        Timestamp(header.last_time_tick), Position(header.first_position), Position(header.last_confirmed), True
    )


class _Gather:
    """Gathers small compact blocks into one batch, without an Arrow array for each."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        self._nbytes = 0
        self._term = 0
        self._runs: list[tuple[int, int, int, int]] = []
        self._types: list[bytes] = []
        self._vchannels: list[tuple[int, int]] = []
        self._mixed: list[np.ndarray[tuple[int], np.dtype[np.uint16]]] = []
        self._names: dict[str, int] = {}
        self._bodies: list[memoryview | bytes] = []
        self._txns: list[tuple[int, bytes]] = []
        """Transaction ids, and behind how many messages they begin; the messages between have none."""

    def accepts(self, header: block.Header) -> bool:
        return (
            self.count < COALESCE_ROWS
            and self._nbytes < CHUNK
            and header.term == self._term
            and header.kind == block.ROWS
            and header.messages <= _COALESCE_BLOCK
            and not header.flags & block.HAS_TICK
        )

    def add(self, view: memoryview, index: int, header: block.Header) -> None:
        count = header.messages
        at = index + block.HEADER_SIZE
        first_type, _, names = block.read_meta(bytes(view[at : at + header.meta_size]))
        at += header.meta_size + header.padding
        self._term = header.term
        self.count += count
        self._nbytes += header.size
        self._runs.append((header.first_time_tick, header.first_position, header.last_confirmed, count))
        ends = _ENDS[count].unpack_from(view, at)
        at += 4 * count
        if header.flags & block.MIXED_VCHANNELS:
            local = [self._names.setdefault(name, len(self._names)) for name in names]
            ids = np.array(local, np.uint16)[np.frombuffer(view, np.uint16, count, at)]
            self._mixed.append(ids)
            self._vchannels.append((-1, count))
            at += 2 * count
        else:
            self._vchannels.append((self._names.setdefault(names[0], len(self._names)), count))
        if header.flags & block.MIXED_TYPES:
            self._types.append(bytes(view[at : at + count]))
            at += count
        else:
            self._types.append(_TYPE_BYTES[first_type] * count)
        if header.flags & block.HAS_TXNS:
            self._txns.append((self.count - count, bytes(view[at : at + 16 * count])))
            at += 16 * count
        if count == 1:
            self._bodies.append(view[at : at + ends[0]].tobytes())
            return
        start = 0
        for end in ends:
            self._bodies.append(view[at + start : at + end].tobytes())
            start = end

    def add_singles(self, view: memoryview, index: int, term: int, chain: int) -> tuple[int, int]:
        """Take the plain blocks of one message that follow, as far as the view goes.

        A log written row by row by one writer is nothing else, so this loop is the speed of reading one.
        Whatever is unusual, damage included, ends it and is left to the caller.
        """
        unpack, digest = block.HEADER.unpack_from, xxhash.xxh3_64_intdigest
        add_run, add_body, add_type = self._runs.append, self._bodies.append, self._types.append
        add_vchannel = self._vchannels.append
        meta, kind, vchannel = b"", b"", (0, 1)
        last = len(view) - block.HEADER_SIZE
        room = COALESCE_ROWS - self.count
        before = index
        while index <= last and room > 0:
            (
                checksum, magic, version, encoding, flags, meta_size, payload_size, count, padding,
                position, _, time_tick, _, last_confirmed, block_term, _, previous,
            ) = unpack(view, index)  # fmt: skip
            if magic != block.MAGIC or version != block.VERSION or encoding != block.ROWS:
                break
            if count != 1 or flags or padding or block_term != term or previous != chain:
                break
            start = index + block.HEADER_SIZE
            body = start + meta_size + 4
            stop = start + meta_size + payload_size
            end = (stop + 7) & ~7
            if end > len(view) or digest(view[index + block.CHECKED_FROM : end]) != checksum:
                break
            found = view[start : start + meta_size].tobytes()
            if found != meta:
                meta = found
                first_type, _, names = block.read_meta(meta)
                kind = _TYPE_BYTES[first_type]
                vchannel = (self._names.setdefault(names[0], len(self._names)), 1)
            add_run((time_tick, position, last_confirmed, 1))
            add_type(kind)
            add_vchannel(vchannel)
            add_body(view[body:stop].tobytes())
            chain = checksum
            index = end
            room -= 1
        self.count = COALESCE_ROWS - room
        self._nbytes += index - before
        return index, chain

    def take(self) -> Batch:
        runs = np.array(self._runs, np.uint64)
        counts = runs[:, 3].astype(np.intp)
        within = np.arange(self.count, dtype=np.uint64) - np.repeat(
            (np.cumsum(counts) - counts).astype(np.uint64), counts
        )
        vchannel_ids = np.zeros(self.count, np.uint16)
        if len(self._names) > 1:
            vchannel_ids = np.repeat(np.array([each for each, _ in self._vchannels], np.int32), counts).astype(np.int32)
            if self._mixed:
                vchannel_ids[vchannel_ids < 0] = np.concatenate(self._mixed)
            vchannel_ids = vchannel_ids.astype(np.uint16)
        batch = Batch(
            time_ticks=np.repeat(runs[:, 0], counts) + within,
            positions=np.repeat(runs[:, 1], counts) + within,
            last_confirmed=np.repeat(runs[:, 2], counts),
            types=np.frombuffer(b"".join(self._types), np.uint8),
            vchannel_ids=vchannel_ids,
            vchannels=tuple(self._names),
            rows=body_rows(self._bodies),
            term=Term(self._term),
            txns=self._txn_column(),
        )
        self._reset()
        return batch

    def _txn_column(self) -> npt.NDArray[np.void] | None:
        if not self._txns:
            return None
        column = bytearray(16 * self.count)
        for at, ids in self._txns:
            column[16 * at : 16 * at + len(ids)] = ids
        return np.frombuffer(bytes(column), np.dtype("V16"))


_TYPE_BYTES: Final = tuple(bytes([value]) for value in range(256))
