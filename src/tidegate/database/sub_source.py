"""Where a subscription's messages come from: the shards of its topic that lie in one channel, in delivery order.

A `Bell` wakes those who wait for messages. While somebody waits, an append to one of the shards makes the channel tick
at once, so that a message is there a few milliseconds after its append and not with the next regular tick.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from threading import Condition, Lock
from typing import Any, Final, NamedTuple

import numpy as np

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import TidegateError, Truncated
from tidegate.log.batch import BODY_SCHEMA, Batch, bodies_of
from tidegate.log.message import NO_POSITION, MessageType, Position
from tidegate.runtime.log import Log
from tidegate.runtime.pending import PendingAppend
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.topics.message_id import MessageId, make_id

_logger = logging.getLogger("tidegate.subscriptions")
_DATA: Final = frozenset({MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE})
Items = list[tuple[MessageId, Any]]


class Place(NamedTuple):
    """How far somebody has read, and what was the newest tick then."""

    position: Position
    after: Timestamp
    newest: Timestamp


class Bell:
    """Rung whenever there may be something new. Nobody who rings it waits for anybody."""

    def __init__(self) -> None:
        self._changed = Condition(Lock())
        self.rings = 0
        self.listeners = 0

    def ring(self) -> None:
        with self._changed:
            self.rings += 1
            if self.listeners:
                self._changed.notify_all()

    def wait(self, heard: int, timeout_s: float) -> None:
        """Wait until it has been rung since `rings` was `heard`, or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self.rings != heard, timeout_s)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Somebody waits for messages."""
        with self._changed:
            self.listeners += 1
        try:
            yield
        finally:
            with self._changed:
                self.listeners -= 1


class ArrowRows:
    """Messages that were sent as Arrow rows; they become dicts when one of them is delivered."""

    __slots__ = ("_dicts", "_rows")

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._dicts: list[dict[str, Any]] | None = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._dicts is None:
            self._dicts = self._rows.to_pylist()
        return self._dicts[index]


class Source:
    """Reads the shards of a topic that lie in one channel. The subscription's lock covers it."""

    def __init__(
        self, log: Log, channel: str, shards: Mapping[str, int], bell: Bell, *, position: Position, after: Timestamp
    ) -> None:
        """`shards` are the numbers of the shards by virtual channel; read what became visible above `after`."""
        self.channel: Final = channel
        self.shards: Final = dict(shards)
        self._log = log
        self._bell = bell
        self._reader = self._open(position, after)
        self._left: deque[tuple[int, Items]] = deque()
        """Read and not yet fed, by shard."""
        self._writer = log.channel(channel, create=False)
        with self._writer.mutex:
            self._writer.watchers = (*self._writer.watchers, self._watch)

    def _open(self, position: Position, after: Timestamp) -> TransactionReader:
        return self._log.transaction_reader(
            self.channel, position=position, after=after, vchannels=frozenset(self.shards), types=_DATA
        )

    # -- reading -------------------------------------------------------------------------------------------------

    def next(self, room: int) -> tuple[int, Items] | None:
        """At most `room` messages of one shard, that go on where the last ones ended; None when there are none now."""
        if not self._left and not self._read():
            return None
        if not self._left:
            return -1, []
        shard, items = self._left[0]
        if len(items) <= room:
            self._left.popleft()
            return shard, items
        self._left[0] = (shard, items[room:])
        return shard, items[:room]

    def _read(self) -> bool:
        try:
            delivery = self._reader.poll()
        except Truncated as error:
            # It is kept for us from the moment we asked for it. What was removed before, nobody can deliver.
            _logger.warning("channel %r: %s; going on with the earliest that is left", self.channel, error)
            self._reader.close()
            self._reader = self._open(NO_POSITION, Timestamp.ZERO)
            delivery = self._reader.poll()
        if delivery is None:
            return False
        for batch in delivery.batches:
            self._left.extend(self._split(batch))
        return True

    def _split(self, batch: Batch) -> Iterator[tuple[int, Items]]:
        for shard, part in self._parts(batch):
            ids = map(make_id, zip(repeat(shard), part.time_ticks.tolist(), part.positions.tolist()))
            payloads: Any
            if part.rows.schema.equals(BODY_SCHEMA):
                payloads = bodies_of(part.rows)
            else:
                payloads = zip(repeat(ArrowRows(part.rows)), range(len(part)))
            yield shard, list(zip(ids, payloads))

    def _parts(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        for index, name in enumerate(batch.vchannels):
            shard = self.shards.get(name)
            if shard is None:
                continue
            if len(batch.vchannels) == 1:
                yield shard, batch
            elif len(rows := np.flatnonzero(batch.vchannel_ids == index)):
                yield shard, batch.take(rows)

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def after(self) -> Timestamp:
        """Everything at or below it was read."""
        return Timestamp(self._reader.after)

    @property
    def newest(self) -> Timestamp:
        """The channel's newest tick."""
        return self._writer.latest_tick.time_tick

    @property
    def segment(self) -> int:
        """The number of the channel's newest segment."""
        return self._writer.segments.id.number

    def left(self) -> Iterator[MessageId]:
        """What was read and not yet fed."""
        return (id for _, items in self._left for id, _ in items)

    def place(self) -> Place:
        """Up to where it has read."""
        tick = self._reader.tick
        return Place(NO_POSITION if tick is None else tick.last_confirmed, self.after, self.newest)

    def between(self, place: Place) -> Iterator[tuple[int, Batch]]:
        """What lay behind a place and was visible when it was taken, by shard. Needs no lock, and keeps nothing."""
        if place.after < place.newest:
            with self._open(place.position, place.after) as reader:
                while reader.after < place.newest and (delivery := reader.read(1.0)) is not None:
                    for batch in delivery.batches:
                        for shard, part in self._parts(batch):
                            if (mask := part.time_ticks <= place.newest).any():
                                yield shard, part.where(mask)

    def position_before(self, timestamp: Timestamp) -> Position:
        """Whatever became visible at or above `timestamp` was written at or behind this position."""
        before = [each for each in self._log.segments(self.channel) if each.after_time_tick <= timestamp]
        return before[-1].first_position if before else Position(1)

    # -- ticks -------------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask for a tick when something was appended that none covers yet."""
        for name in self.shards:
            with suppress(TidegateError):
                if not self._writer.visible(name).confirmed:
                    return

    def _watch(self, items: Sequence[PendingAppend]) -> None:
        """Called by the channel after each commit and each tick."""
        if not items:
            self._bell.ring()
        elif self._bell.listeners and any(name in self.shards for each in items for name in each.names):
            with suppress(TidegateError):  # The next regular one will do.
                self._writer.tick()

    def close(self) -> None:
        with self._writer.mutex:
            self._writer.watchers = tuple(each for each in self._writer.watchers if each != self._watch)
        self._reader.close()
