"""Segments: the files a channel's blocks lie in. Layout in docs/log-format.md.

An *open* segment is preallocated and ends in zeros; an index file beside it says every 256 KiB where a scan
may start. A *sealed* one ends in its index and a trailer, so that opening it and finding a place in it
cost two small reads.

Invariant: a segment's header names the segment before it and where that one ends. What an older writer
puts behind that end is not part of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

SEGMENT_MAGIC: Final = b"TGSEG001"
TRAILER_MAGIC: Final = b"TGEND001"
HEADER_SIZE: Final = 512
"""Blocks start here."""
_HEADER: Final = Struct("<8sIIQQQQQQQQ")
_TRAILER: Final = Struct("<8sQQQQQQQQQQ")
TRAILER_SIZE: Final = _TRAILER.size + 8
_CHECKSUM: Final = Struct("<Q")

INDEX_EVERY: Final = 256 * 1024
"""Bytes of blocks between two index entries."""
INDEX_DTYPE: Final = np.dtype(
    [
        ("offset", "<u8"),
        ("position_before", "<u8"),
        ("time_tick_before", "<u8"),
        ("chain_before", "<u8"),
        ("checksum", "<u8"),
    ]
)
INDEX_ENTRY_SIZE: Final = INDEX_DTYPE.itemsize
_ENTRY: Final = Struct("<QQQQ")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says about itself before its first block."""

    number: int
    term: int
    base_position: int
    """The first position it may hold."""
    base_time_tick: int
    """Every TimeTick in earlier segments is at or below this, unless a block there says otherwise."""
    base_chain: int
    """Checksum of the last block of the segment before."""
    previous_end: int
    """Offset at which the segment before ends; 0 for the first segment."""
    created_ms: int
    open_from: int
    """Transactions that were open when the segment began have nothing before this position."""

    def encode(self) -> bytes:
        raw = _HEADER.pack(
            SEGMENT_MAGIC, 1, 0, self.number, self.term, self.base_position, self.base_time_tick,
            self.base_chain, self.previous_end, self.created_ms, self.open_from,
        )  # fmt: skip
        return (raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))).ljust(HEADER_SIZE, b"\0")


def decode_header(raw: memoryview) -> SegmentHeader | None:
    """The header, or None when it is torn or missing."""
    if len(raw) < _HEADER.size + 8:
        return None
    magic, version, _, *fields = _HEADER.unpack_from(raw)
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEADER.size)
    if magic != SEGMENT_MAGIC or version != 1 or xxhash.xxh3_64_intdigest(raw[: _HEADER.size]) != checksum:
        return None
    return SegmentHeader(*fields)


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last bytes of a sealed segment."""

    index_offset: int
    index_count: int
    index_checksum: int
    end: int
    """Where the blocks end."""
    last_position: int
    last_time_tick: int
    last_tick: int
    """TimeTick of the last time tick in the segment, or 0."""
    chain_end: int
    """Checksum of the last block as it was first written, which the next segment's header names."""
    messages: int
    written_end: int
    """Where the blocks ended as they were first written; larger than `end` after merging."""

    def encode(self) -> bytes:
        raw = _TRAILER.pack(
            TRAILER_MAGIC, self.index_offset, self.index_count, self.index_checksum, self.end,
            self.last_position, self.last_time_tick, self.last_tick, self.chain_end, self.messages,
            self.written_end,
        )  # fmt: skip
        return raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))


def decode_trailer(raw: memoryview) -> Trailer | None:
    """The trailer in the last bytes of a file, or None when the segment was not sealed."""
    if len(raw) < TRAILER_SIZE:
        return None
    raw = raw[-TRAILER_SIZE:]
    magic, *fields = _TRAILER.unpack_from(raw)
    (checksum,) = _CHECKSUM.unpack_from(raw, _TRAILER.size)
    if magic != TRAILER_MAGIC or xxhash.xxh3_64_intdigest(raw[: _TRAILER.size]) != checksum:
        return None
    return Trailer(*fields)


def encode_entry(offset: int, position_before: int, time_tick_before: int, chain_before: int) -> bytes:
    """One index entry: every message before `offset` is at or below the two `before` values."""
    raw = _ENTRY.pack(offset, position_before, time_tick_before, chain_before)
    return raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))


Index = npt.NDArray[np.void]


def decode_index(raw: memoryview) -> Index:
    """The last run of intact entries. Each stands for itself, so seeking with fewer only starts earlier."""
    count = len(raw) // INDEX_ENTRY_SIZE
    entries = np.frombuffer(raw, INDEX_DTYPE, count)
    for at in range(count - 1, -1, -1):
        # Entries are appended in order, so what lies before an intact one is taken to be intact only
        # after its own check; walking back from the end finds the longest intact run cheaply.
        if _entry_intact(raw, at):
            good = at + 1
            while at >= 0 and _entry_intact(raw, at):
                at -= 1
            return entries[at + 1 : good]
    return entries[:0]


def _entry_intact(raw: memoryview, at: int) -> bool:
    start = at * INDEX_ENTRY_SIZE
    (checksum,) = _CHECKSUM.unpack_from(raw, start + _ENTRY.size)
    return bool(xxhash.xxh3_64_intdigest(raw[start : start + _ENTRY.size]) == checksum and checksum)


def seek_position(index: Index, position: int) -> int:
    """The entry to start at so that no message at or above `position` is missed; -1 for the very start."""
    return int(np.searchsorted(index["position_before"], np.uint64(position), side="left")) - 1


def seek_time(index: Index, time_tick: int) -> int:
    """The entry to start at so that no message above `time_tick` is missed; -1 for the very start."""
    return int(np.searchsorted(index["time_tick_before"], np.uint64(time_tick), side="right")) - 1


class SegmentId(NamedTuple):
    """A segment's number in the channel and the term that created it."""

    number: int
    term: int

    @property
    def name(self) -> str:
        return f"{self.number:010d}-{self.term:06d}.seg"

    @property
    def index_name(self) -> str:
        return f"{self.number:010d}-{self.term:06d}.idx"


def parse_name(name: str) -> SegmentId | None:
    """Which segment a file name stands for, or None for any other file."""
    stem, dot, ending = name.partition(".")
    number, dash, term = stem.partition("-")
    if not (dot and dash and ending == "seg" and number.isdecimal() and term.isdecimal()):
        return None
    found = SegmentId(int(number), int(term))
    return found if found.name == name else None


def live(names: Iterable[str]) -> tuple[list[SegmentId], list[SegmentId]]:
    """The segments that make up the log, in order, and those that a newer term has superseded.

    A writer that was fenced may still create segments; a newer term's segment of the same or a smaller
    number shows that they are not part of the log.
    """
    found = sorted((each for name in names if (each := parse_name(name))), key=lambda s: (-s.term, s.number))
    kept: list[SegmentId] = []
    superseded: list[SegmentId] = []
    floor = None
    term = None
    for each in found:
        if each.term != term:
            term = each.term
            floor = min((s.number for s in kept), default=None)
        (kept if floor is None or each.number < floor else superseded).append(each)
    return sorted(kept), sorted(superseded)


def newest_term(names: Iterable[str]) -> int:
    """The largest term that any segment was created by; 0 for none."""
    return max((each.term for name in names if (each := parse_name(name))), default=0)
