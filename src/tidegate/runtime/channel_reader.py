"""`ChannelReader`: a channel's messages in TimeTick order, each tick's worth at a time.

It catches up from the files and, in the writer's own process, goes on from memory; when it falls behind what memory
holds it returns to the files. In any other process it follows the files as far as the writer has published them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Closed, InvalidArgument
from tidegate.log.batch import Batch
from tidegate.log.message import NO_POSITION, Message, MessageType, Position, Tick
from tidegate.log.scan import decode_blocks
from tidegate.log.write_ahead_buffer import Evicted, Ticked
from tidegate.ports.tail import Tail, TailSlot, split_address
from tidegate.runtime.file_cursor import ChannelFiles, FileCursor, Limit, Place
from tidegate.runtime.held_back import HELD_BYTES, HeldBack

if TYPE_CHECKING:
    from tidegate.runtime.channel_writer import ChannelWriter

_POLL_MIN_S: Final = 0.001
_POLL_MAX_S: Final = 0.02
_TOGETHER_BYTES: Final = 4 << 20
"""What several ticks cover is delivered with the last of them up to this size."""
_LOOK_AGAIN: Final = 100


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one tick covers: messages in TimeTick order, then the tick.

    Promise: everything at or below the tick has been delivered now; nothing at or below it will come later.
    """

    batches: tuple[Batch, ...]
    tick: Tick

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def __bool__(self) -> bool:
        """Always true: a tick without messages is still a delivery, and None means that there was none."""
        return True

    def messages(self) -> Iterator[Message]:
        for batch in self.batches:
            yield from batch.messages()


class Source(Protocol):
    """Where a reader learns how far it may read."""

    def limit(self) -> tuple[Limit | None, int]:
        """How far the files may be read, and the newest tick that this covers (0 for none known)."""

    def wait(self, after: int, seconds: float) -> None:
        """Wait until there may be something above tick `after`."""


class TailSource:
    """Follows the tail that a writer in another process publishes."""

    def __init__(
        self,
        channel: ChannelFiles,
        tail: Tail,
        *,
        sleep: Callable[[float], None] = time.sleep,
        is_written: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_written` says whether a process has the log open for writing: then only what it published is read."""
        self._channel = channel
        self._tail = tail
        self._sleep = sleep
        self._is_written = is_written
        self._slot: TailSlot | None = None
        self._term = 0
        self._pause_s = _POLL_MIN_S
        self._found: Limit | None = None

    def limit(self) -> tuple[Limit | None, int]:
        for _ in range(_LOOK_AGAIN):
            term = self._tail.current_term()
            self._follow(term)
            if self._slot is not None:
                tick = self._slot.tick()
                number, offset = split_address(self._slot.address())
                if number:
                    return Limit(number, offset), tick
                if self._is_written():
                    return None, 0  # A writer is just opening; what it finds to be the end is the end.
            found = self._found or self._channel.end_of_log()
            if self._tail.current_term() == term:
                self._found = found
                return found, 0
            # A writer took over meanwhile: the slot is gone because it removed it, and the files hold what it has not
            # published. What it publishes counts.
        return None, 0

    def _follow(self, term: int) -> None:
        """Look at the slot of `term` from now on."""
        if term == self._term and self._slot is not None:
            return
        if self._slot is not None:
            self._slot.close()
        if term != self._term:
            self._found = None
        self._term, self._slot = term, self._tail.slot(term)

    def wait(self, after: int, seconds: float) -> None:
        if self._slot is not None and self._slot.tick() > after:
            self._pause_s = _POLL_MIN_S
            return
        self._sleep(min(self._pause_s, seconds))
        self._pause_s = min(self._pause_s * 2, _POLL_MAX_S)

    def close(self) -> None:
        if self._slot is not None:
            self._slot.close()
        self._tail.close()


class ChannelReader:
    """Reads one channel. One reader belongs to one thread.

    Invariant: TimeTicks it delivers strictly increase, and so do ticks.
    """

    def __init__(
        self,
        channel: ChannelFiles,
        source: Source,
        *,
        position: Position = NO_POSITION,
        after: Timestamp = Timestamp.ZERO,
        vchannel: str | None = None,
        types: frozenset[MessageType] | None = None,
        writer: ChannelWriter | None = None,
        held_bytes_max: int = HELD_BYTES,
    ) -> None:
        """Deliver messages at or behind `position` and above TimeTick `after`.

        To go on where a message left off: its `last_confirmed` as `position`, its `time_tick` as `after`.
        """
        if types is not None and any(kind.is_system for kind in types):
            raise InvalidArgument("system messages always pass; a filter names only the others")
        self._channel = channel
        self._source = source
        self._writer = writer
        self._vchannel = vchannel
        self._types = None if types is None else [*(int(kind) for kind in sorted(types)), *_SYSTEM]
        self._cursor: FileCursor | None = FileCursor(channel, position, int(after))
        self._items: Iterator[Batch | Tick] = iter(())
        self._held = self._hold_back(self._cursor, int(after), held_bytes_max)
        self.held_bytes_max = held_bytes_max
        self._under_way: Tick | None = None
        """A tick of which only a part has been delivered."""
        self._covered = 0
        """A tick that the source says covers all that `_items` will yield."""
        self.tick: Tick | None = None
        """The last one delivered."""
        self._start_after = int(after)
        self._start_position = position
        self.tailing = False
        """Whether it reads from memory."""
        self._is_closed = False

    @property
    def after(self) -> int:
        """Everything at or below this TimeTick was delivered, or was not asked for."""
        return max(self._start_after, 0 if self.tick is None else int(self.tick.time_tick))

    @property
    def held_bytes_max(self) -> int:
        """Memory for what was read and no tick covers yet. What is beyond it is read again when its tick comes, and
        delivered in pieces, each with a tick of its own. May be changed at any time."""
        return self._held.bytes_max

    @held_bytes_max.setter
    def held_bytes_max(self, value: int) -> None:
        if value < 1:
            raise InvalidArgument(f"`held_bytes_max` is above zero, not {value}")
        self._held.bytes_max = value

    def read(self, timeout_s: float | None = None) -> Delivery | None:
        """The next tick and what it covers; None when the time is up without one.

        Raises: `Truncated` when retention has removed what comes next, `Corruption` when it is damaged.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            delivery = self.poll()
            if delivery is not None:
                return delivery
            left = _POLL_MAX_S if deadline is None else deadline - monotonic()
            if left <= 0:
                return None
            self._wait(min(left, 0.2))

    def poll(self) -> Delivery | None:
        """As `read`, without waiting."""
        if self._is_closed:
            raise Closed("this reader was closed; make another one from the last tick it delivered")
        if self.tailing:
            delivery = self._poll_memory()
            if self.tailing:
                return delivery
        return self._poll_files()

    def batches(self, timeout_s: float | None = None) -> Iterator[Batch]:
        """Batches in TimeTick order until `timeout_s` passes without a tick."""
        while (delivery := self.read(timeout_s)) is not None:
            yield from delivery.batches

    def messages(self, timeout_s: float | None = None) -> Iterator[Message]:
        """Messages in TimeTick order until `timeout_s` passes without a tick."""
        for batch in self.batches(timeout_s):
            yield from batch.messages()

    def close(self) -> None:
        self._is_closed = True
        self._held.close()
        if self._cursor is not None:
            self._cursor.close()
        close = getattr(self._source, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> ChannelReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Files

    def _poll_files(self) -> Delivery | None:
        if self._cursor is None:
            position = NO_POSITION if self.tick is None else self.tick.last_confirmed
            self._cursor = FileCursor(self._channel, max(position, self._start_position), self.after)
            self._held = self._hold_back(self._cursor, self.after, self.held_bytes_max)
        if self._under_way is not None:
            return self._deliver(self._under_way)
        for round_ in range(2):
            try:
                for item in self._items:
                    if not isinstance(item, Tick):
                        self._hold(item, self._cursor.place)
                    elif int(item.time_tick) > self.after:
                        return self._deliver(item)
            except BaseException:
                self._covered = 0  # It covers what could not be read.
                raise
            if self._covered > self.after:
                return self._deliver(self._memory_tick(self._covered))
            if round_ == 0:
                limit, self._covered = self._source.limit()
                if limit is None:
                    return None
                self._items = self._cursor.advance(limit)
        return None

    def _memory_tick(self, time_tick: int) -> Tick:
        """A tick that was published and not persisted."""
        place = NO_POSITION if self.tick is None else self.tick.last_confirmed
        return Tick(Timestamp(time_tick), place, place, persisted=False)

    def _deliver(self, tick: Tick) -> Delivery:
        self._under_way = tick
        batches, reached = self._held.pop_until(int(tick.time_tick))
        if reached < int(tick.time_tick):
            # Whatever a tick promises, every smaller one does too.
            self.tick = self._memory_tick(reached)
            return Delivery(tuple(batches), self.tick)
        self._under_way = None
        self.tick = tick
        self._try_memory()
        return Delivery(tuple(batches), tick)

    def _hold(self, batch: Batch, place: Place | None) -> None:
        wanted = self._filter(batch)
        if wanted is not None and place is not None:
            # What was not filtered is as large in memory as on disk; asking Arrow takes longer than decoding.
            self._held.push(wanted, place, place.end - place.offset if wanted is batch else wanted.nbytes)

    def _hold_back(self, cursor: FileCursor, after: int, bytes_max: int) -> HeldBack:
        def wanted(batch: Batch) -> Batch | None:
            found = cursor.wanted(batch)
            return None if found is None else self._filter(found)

        return HeldBack(after, bytes_max, wanted)

    def _filter(self, batch: Batch) -> Batch | None:
        wanted: Batch | None = batch
        if self._vchannel is not None:
            wanted = batch.only_vchannel(self._vchannel)
        if wanted is not None and self._types is not None:
            mask = np.isin(wanted.types, self._types)
            wanted = wanted.where(mask) if mask.any() else None
        return wanted

    # Memory

    def _try_memory(self) -> None:
        """Go on from memory if it reaches back far enough.

        What was read from the files above the tick is dropped: memory has it, or will say that it has not.
        """
        if self._writer is None or self.tick is None:
            return
        entries, _ = self._writer.read_buffer(int(self.tick.time_tick))
        if isinstance(entries, Evicted):
            return
        self.tailing = True
        self._items = iter(())
        self._covered = 0
        self._held.close()
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _poll_memory(self) -> Delivery | None:
        if self._writer is None:
            return None
        is_open = self._writer.is_open
        entries, latest = self._writer.read_buffer(self.after)
        if isinstance(entries, Evicted):
            self.tailing = False
            return None
        if not is_open and not entries and int(latest.time_tick) <= self.after:
            # That was all of its memory; whoever writes next will be found in the files.
            self._writer, self.tailing = None, False
            return None
        if entries:
            # Ticks that came since the last time are as good as one: many small batches become few.
            together, nbytes = 1, entries[0].nbytes
            while together < len(entries) and nbytes + entries[together].nbytes <= _TOGETHER_BYTES:
                nbytes += entries[together].nbytes
                together += 1
            batches = tuple(self._decode(entries[:together]))
            self.tick = entries[together - 1].tick
            return Delivery(batches, self.tick)
        if int(latest.time_tick) > self.after:
            self.tick = latest
            return Delivery((), latest)
        return None

    def _decode(self, entries: Sequence[Ticked]) -> Iterator[Batch]:
        for batch in decode_blocks(encoded.view() for entry in entries for encoded in entry.blocks):
            wanted = self._filter(batch)
            if wanted is not None and self._start_position > NO_POSITION:
                mask = wanted.positions >= self._start_position
                if not mask.all():
                    wanted = wanted.where(mask) if mask.any() else None
            if wanted is not None:
                yield wanted

    def _wait(self, seconds: float) -> None:
        if self.tailing and self._writer is not None:
            self._writer.wait_for_tick(self.after, seconds)
        else:
            self._source.wait(self.after, seconds)


_SYSTEM: Final = tuple(int(kind) for kind in MessageType if kind.is_system)
