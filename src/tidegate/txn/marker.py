"""Commit markers: the body of a COMMIT says which messages of its channel it commits.

So a reader fetches exactly those, however long before the COMMIT they were written, and notices when one is missing.
Layout, little endian: u32 count, u32 before, then for each run u64 first position, u32 count. The marker of a
transaction that was written at once is its first eight bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import InvariantBroken
from tidegate.log.batch import U64

_HEAD: Final = Struct("<II")
_RUN: Final = Struct("<QI")
_COUNT_MAX: Final = (1 << 32) - 1
_POSITION_MAX: Final = (1 << 64) - 1

AT_ONCE_SIZE: Final = _HEAD.size
"""Bytes of a marker whose messages all stand directly before it."""

Run = tuple[int, int]
"""The first of several consecutive positions, and how many they are."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Where the messages of a transaction stand in the channel of its COMMIT.

    Invariants: `count` is `before` and all runs together; runs ascend and do not overlap.
    Raises: `InvariantBroken` when made otherwise.
    """

    count: int
    """All of its messages in this channel, without BEGIN and COMMIT."""
    before: int
    """How many of them stand at the positions directly before the COMMIT's."""
    runs: tuple[Run, ...] = ()
    """The others."""

    def __post_init__(self) -> None:
        if not (0 <= self.before <= self.count <= _COUNT_MAX):
            raise InvariantBroken(f"a commit marker counts {self.count} messages, {self.before} of them before it")
        reach, total = 1, self.before
        for first, count in self.runs:
            if not 1 <= count <= _COUNT_MAX or not reach <= first <= _POSITION_MAX - count:
                raise InvariantBroken(f"a commit marker has a run of {count} at position {first}, before {reach}")
            reach = first + count
            total += count
        if total != self.count:
            raise InvariantBroken(f"a commit marker counts {self.count} messages and names {total}")

    @classmethod
    def at_once(cls, count: int) -> Marker:
        """Of a transaction whose messages all stand directly before its COMMIT."""
        return cls(count, count)

    @classmethod
    def over(cls, runs: Iterable[Run], *, before: int = 0) -> Marker:
        """Of messages written ahead in these runs, in any order, and `before` directly before the COMMIT."""
        joined: list[Run] = []
        for first, count in sorted(runs):
            if joined and sum(joined[-1]) == first:
                joined[-1] = (joined[-1][0], joined[-1][1] + count)
            else:
                joined.append((first, count))
        return cls(before + sum(count for _, count in joined), before, tuple(joined))

    def encode(self) -> bytes:
        """Its bytes."""
        return _HEAD.pack(self.count, self.before) + b"".join([_RUN.pack(*run) for run in self.runs])

    @classmethod
    def decode(cls, raw: bytes) -> Marker:
        """The marker that was encoded as `raw`.

        Raises: `InvariantBroken` when no marker was.
        """
        size = len(raw) - _HEAD.size
        if size < 0 or size % _RUN.size:
            raise InvariantBroken(f"a commit marker of {len(raw)} bytes is neither 8 long nor 8 and a multiple of 12")
        count, before = _HEAD.unpack_from(raw)
        return cls(count, before, tuple(_RUN.iter_unpack(raw[_HEAD.size :])))

    def runs_at(self, position: int) -> tuple[Run, ...]:
        """Where all of its messages stand, when the COMMIT stands at `position`.

        Raises: `InvariantBroken` when one would stand at or behind it.
        """
        first = position - self.before
        reach = sum(self.runs[-1]) if self.runs else 1
        if first < reach:
            raise InvariantBroken(
                f"the commit marker at position {position} names {self.before} messages directly before itself"
                f" and others up to position {reach - 1}"
            )
        return (*self.runs, (first, self.before)) if self.before else self.runs

    def positions_at(self, position: int) -> U64:
        """The position of each of its messages, ascending, when the COMMIT stands at `position`."""
        runs = [np.arange(first, first + count, dtype=np.uint64) for first, count in self.runs_at(position)]
        return runs[0] if len(runs) == 1 else np.concatenate(runs) if runs else np.zeros(0, np.uint64)


def at_once(count: int) -> bytes:
    """The encoded marker of a transaction whose `count` messages all stand directly before its COMMIT."""
    return _HEAD.pack(count, count)


def at_once_counts(markers: pa.Array, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """How many messages the markers at `rows` of a binary array count; -1 for those not written at once.

    A damaged marker has -1 too: `Marker.decode` says what is wrong with it.
    """
    if markers.type != pa.binary():
        raise InvariantBroken(f"commit markers are bytes, and these are {markers.type}")
    counts = np.full(len(rows), -1, np.int64)
    _, offsets_buffer, data = markers.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, markers.offset + len(markers) + 1)
    starts = offsets[rows + markers.offset].astype(np.int64)
    short = offsets[rows + (markers.offset + 1)] - starts == AT_ONCE_SIZE
    if short.any():
        places = starts[short][:, None] + np.arange(AT_ONCE_SIZE)
        heads = np.frombuffer(data, np.uint8)[places].view("<u4")
        counts[short] = np.where(heads[:, 0] == heads[:, 1], heads[:, 0].astype(np.int64), -1)
    return counts


def as_runs(positions: U64) -> list[Run]:
    """Ascending positions as runs."""
    if not len(positions):
        return []
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    starts = np.concatenate(([0], cuts))
    counts = np.diff(np.concatenate((starts, [len(positions)])))
    return list(zip(positions[starts].tolist(), counts.tolist(), strict=True))
