"""`Feed`: a topic's messages on their way into a subscription, from all channels, and the log that is kept for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np

from tidegate.catalog.entries import Subscription, Topic
from tidegate.clock.timestamp import LOGICAL_BITS, Timestamp
from tidegate.database.sub_source import Bell, Place, Source
from tidegate.log.message import NO_POSITION
from tidegate.runtime.log import Log
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.subscription import Subscription as Machine

_MARGIN_MS: Final = 60_000


def pin_name(subscription: Subscription) -> str:
    """Under which name the log is kept for a subscription."""
    return f"unread {subscription.vchannel}"


@dataclass(frozen=True, slots=True)
class Unread:
    """Where the messages lie that were not fed to the machine when it was made."""

    left: list[MessageId]
    places: list[tuple[Source, Place]]

    @property
    def newest(self) -> Timestamp:
        """The newest tick of the topic's channels."""
        return max(place.newest for _, place in self.places)

    def count(self, acks: Acknowledgements) -> tuple[int, int | None]:
        """How many are not acknowledged, and the oldest one's timestamp. Reads them, column by column."""
        left = [id.timestamp for id in self.left if not acks.is_acknowledged(id)]
        count, oldest = len(left), left
        for source, place in self.places:
            for shard, part in source.between(place):
                ticks = part.time_ticks
                if acks.has_exceptions(shard):  # Acknowledged before a restart, and not yet read again.
                    ids = map(MessageId, repeat(shard), ticks.tolist(), part.positions.tolist())
                    ticks = ticks[np.array([not acks.is_acknowledged(id) for id in ids], np.bool_)]
                if len(ticks):
                    count += len(ticks)
                    oldest.append(int(ticks.min()))
        return count, min(oldest, default=None)


class Feed:
    """All sources of a subscription. The subscription's lock covers it."""

    wait_s: Final = 1.0
    """How long somebody waits for the bell before he looks by himself."""

    def __init__(
        self,
        log: Log,
        topic: Topic,
        subscription: Subscription,
        machine: Machine,
        bell: Bell,
        *,
        channel_of: Callable[[int], str],
        transaction_ms_max: int,
    ) -> None:
        """`channel_of` says where a shard lies; `transaction_ms_max` how long before its commit one may have begun."""
        self._log = log
        self._topic = topic
        self._subscription = subscription
        self._machine = machine
        self._back = (transaction_ms_max + _MARGIN_MS) << LOGICAL_BITS
        by_channel: dict[str, dict[str, int]] = {}
        for shard, vchannel in enumerate(topic.vchannels):
            by_channel.setdefault(channel_of(shard), {})[vchannel] = shard
        self._sources = [self._open(name, shards, bell) for name, shards in sorted(by_channel.items())]
        self._pinned = {each.channel: each.segment for each in self._sources}

    def _open(self, channel: str, shards: dict[str, int], bell: Bell) -> Source:
        marks, start = self._machine.marks(), int(self.start)
        # A transaction may have been acknowledged in part: its messages are read again, and those left out.
        after = min(marks[each].timestamp - 1 if each in marks else start for each in shards.values())
        position = self._log.pins(channel).get(pin_name(self._subscription), NO_POSITION)
        return Source(self._log, channel, shards, bell, position=position, after=Timestamp(max(after, 0)))

    @property
    def start(self) -> Timestamp:
        """Nothing at or below it is delivered."""
        start = self._subscription.start
        if start == "earliest":
            return self._topic.created
        return self._subscription.created if start == "latest" else Timestamp(max(int(start) - 1, 0))

    def read(self) -> int | None:
        """Read on once in every channel; how many messages that were, None when there is nothing to read now."""
        count, read = 0, False
        for source in self._sources:
            room = self._machine.wants()
            if not room:
                break
            part = source.next(room)
            if part is not None:
                read = True
                if part[1]:
                    self._machine.feed(*part)
                    count += len(part[1])
        return count if read else None

    def ask(self) -> None:
        """Ask for a tick wherever something was appended that none covers yet. Needs no lock."""
        for source in self._sources:
            source.ask()

    def unread(self) -> Unread:
        """What is not in the machine."""
        left = [id for source in self._sources for id in source.left()]
        return Unread(left, [(source, source.place()) for source in self._sources])

    # -- the log that is kept ----------------------------------------------------------------------------------------

    @property
    def may_let_go(self) -> bool:
        """Whether a channel has begun a new segment since the log was last pinned."""
        return any(self._pinned[each.channel] != each.segment for each in self._sources)

    def needed(self) -> dict[str, Timestamp]:
        """By channel: everything below it is acknowledged."""
        unacked = self._machine.status().oldest_unacked
        found = {}
        for source in self._sources:
            oldest = [unacked[shard].timestamp for shard in source.shards.values() if shard in unacked]
            oldest.append(next((id.timestamp for id in source.left()), int(source.after)))
            found[source.channel] = Timestamp(min(oldest))
        return found

    def pin(self, needed: dict[str, Timestamp] | None = None) -> None:
        """Keep what is needed, and what transactions that were committed there may have written before.

        Ordering: a snapshot that says what is acknowledged is in the log before, except for the first pin.
        """
        for source in self._sources:
            since = self.start if needed is None else needed[source.channel]
            earliest = Timestamp(max(int(since) - self._back, int(self._topic.created)))
            self._log.pin(source.channel, pin_name(self._subscription), source.position_before(earliest))
            self._pinned[source.channel] = source.segment

    def close(self) -> None:
        for source in self._sources:
            source.close()
