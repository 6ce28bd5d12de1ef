"""`TransactionReader`: a channel's messages as they become visible, transactions whole and at their commit (seed 000).

It reads everything and leaves putting together to `txn.assembly`; filters come behind that. Nothing waits for a
transaction that is open. What it has written before the place where reading began, or more than memory holds, is
fetched from the files once its commit is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, Truncated
from tidegate.log.batch import Batch
from tidegate.log.message import ALL_VCHANNELS, NO_POSITION, Message, MessageType, Position, Tick
from tidegate.runtime.channel_reader import ChannelReader, Delivery, Source
from tidegate.runtime.file_cursor import ChannelFiles, FileCursor
from tidegate.txn.assembly import HELD_BYTES, Assembler, AssemblyStatus
from tidegate.txn.gather import Mask, where
from tidegate.txn.marker import Run

if TYPE_CHECKING:
    from tidegate.runtime.channel_writer import ChannelWriter

NEAR: Final = 1 << 14
"""Runs with fewer positions between them are read in one pass: opening a segment costs more than passing them by."""


class TransactionReader:
    """Reads one channel. One reader belongs to one thread.

    Invariants: TimeTicks it delivers ascend, and are equal only within one transaction, which comes whole in one
    delivery. Reading on from a delivery's tick (`tick.last_confirmed`, `tick.time_tick`) misses nothing and repeats
    nothing, whatever was open then; so does reading on from a message.
    """

    def __init__(
        self,
        channel: ChannelFiles,
        source: Source,
        *,
        position: Position = NO_POSITION,
        after: Timestamp = Timestamp.ZERO,
        vchannels: frozenset[str] | None = None,
        types: frozenset[MessageType] | None = None,
        writer: ChannelWriter | None = None,
        assembly_bytes_max: int = HELD_BYTES,
    ) -> None:
        """Deliver what becomes visible above TimeTick `after`, by messages and commits at or behind `position`.

        `vchannels` and `types` leave out messages, also of transactions; what is meant for all virtual channels always
        passes. `assembly_bytes_max` is the memory for messages of open transactions.
        """
        if types is not None and any(kind.is_system for kind in types):
            raise InvalidArgument("BEGIN, COMMIT, ROLLBACK and time ticks are never delivered; name only other types")
        if isinstance(vchannels, str):
            raise InvalidArgument(f"`vchannels` is a set of names; write frozenset({{{vchannels!r}}})")
        self._channel = channel
        self._source = source
        self._vchannels = None if vchannels is None else frozenset([*vchannels, ALL_VCHANNELS])
        self._types = None if types is None else sorted(int(kind) for kind in types)
        self._reader = ChannelReader(channel, source, position=position, after=after, writer=writer)
        self._assembler = Assembler(self._fetch, assembly_bytes_max)
        self._unfinished: Delivery | None = None
        """Read and not yet put together: fetching failed, and is tried again."""
        self.tick: Tick | None = None
        """The last one delivered."""
        self._start_after = int(after)

    @property
    def after(self) -> int:
        """Everything that became visible at or below this TimeTick was delivered, or was not asked for."""
        return max(self._start_after, 0 if self.tick is None else int(self.tick.time_tick))

    @property
    def status(self) -> AssemblyStatus:
        """What it holds of open transactions, and what it has put together."""
        return self._assembler.status

    @property
    def tailing(self) -> bool:
        """Whether it reads from memory."""
        return self._reader.tailing

    @property
    def held_bytes_max(self) -> int:
        """As of `ChannelReader`: memory for what no tick covers yet."""
        return self._reader.held_bytes_max

    @held_bytes_max.setter
    def held_bytes_max(self, value: int) -> None:
        self._reader.held_bytes_max = value

    def read(self, timeout_s: float | None = None) -> Delivery | None:
        """The next tick and what has become visible by it; None when the time is up without one.

        Raises: `Truncated` when retention has removed what comes next or a message of a transaction that does;
        `Corruption` when it is damaged; `InvariantBroken` when a transaction is not whole. Nothing is lost by it: the
        next call tries again.
        """
        if self._unfinished is None:
            self._unfinished = self._reader.read(timeout_s)
        return self._finish()

    def poll(self) -> Delivery | None:
        """As `read`, without waiting."""
        if self._unfinished is None:
            self._unfinished = self._reader.poll()
        return self._finish()

    def batches(self, timeout_s: float | None = None) -> Iterator[Batch]:
        """Batches in the order in which they become visible, until `timeout_s` passes without a tick."""
        while (delivery := self.read(timeout_s)) is not None:
            yield from delivery.batches

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """Messages in the order in which they become visible, until `timeout_s` passes without a tick."""
        for batch in self.batches(timeout_s):
            yield from batch.messages()

    def close(self) -> None:
        self._unfinished = None
        self._reader.close()

    def __enter__(self) -> TransactionReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self) -> Delivery | None:
        delivery = self._unfinished
        if delivery is None:
            return None
        whole = self._assembler.take(delivery.batches)
        self._unfinished = None
        self.tick = delivery.tick
        return Delivery(tuple(self._filtered(whole)), delivery.tick)

    def _filtered(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            mask: Mask | None = None
            if self._vchannels is not None and not self._vchannels.issuperset(batch.vchannels):
                wanted = [at for at, name in enumerate(batch.vchannels) if name in self._vchannels]
                mask = np.isin(batch.vchannel_ids, wanted)
            if self._types is not None:
                fits = np.isin(batch.types, self._types)
                mask = fits if mask is None else mask & fits
            if mask is None or mask.all():
                yield batch
            elif mask.any():
                yield where(batch, mask)

    # What a commit names and is not in memory

    def _fetch(self, runs: list[Run]) -> list[Batch]:
        found: list[Batch] = []
        for together in _passes(runs):
            self._read_runs(together, found)
        return found

    def _read_runs(self, runs: list[Run], found: list[Batch]) -> None:
        """Read from the first position of `runs` to the last and keep what lies in one of them."""
        # A tick covers the commit, so its messages are part of the log whatever the newest writer has published yet.
        limit = self._source.limit()[0] or self._channel.end_of_log()
        if limit is None:
            raise Truncated(f"position {runs[0][0]} was removed by retention; the log is empty")
        left = sum([count for _, count in runs])
        starts = np.array([first for first, _ in runs], np.uint64)
        ends = np.array([first + count for first, count in runs], np.uint64)
        cursor = FileCursor(self._channel, Position(int(starts[0])), 0)
        try:
            for item in cursor.advance(limit):
                if isinstance(item, Tick):
                    if item.position >= ends[-1]:
                        return  # Batches of a sealed segment overlap, but never across a tick.
                    continue
                positions = item.positions
                at = np.searchsorted(starts, positions, side="right") - 1
                mask = positions < ends[at]  # Nothing lies before the first run.
                if mask.any():
                    found.append(item if mask.all() else where(item, mask))
                    left -= len(found[-1])
                if not left:
                    return
        finally:
            cursor.close()


def _passes(runs: list[Run]) -> Iterator[list[Run]]:
    """Runs that lie near each other, together."""
    together: list[Run] = []
    for first, count in runs:
        if together and first - sum(together[-1]) > NEAR:
            yield together
            together = []
        together.append((first, count))
    if together:
        yield together
