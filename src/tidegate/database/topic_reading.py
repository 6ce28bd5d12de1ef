"""Reading a topic without a subscription: its messages in time order, transactions whole, nothing acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from time import sleep
from typing import Final

from tidegate.catalog.entries import Topic
from tidegate.clock.timestamp import Timestamp
from tidegate.log.message import Message
from tidegate.runtime.log_files import LogFiles
from tidegate.topics.routing import place

_IDLE_S: Final = 0.02
_ORDER: Final = attrgetter("time_tick", "vchannel", "position")


class TopicReader:
    """Reads the shards of a topic from the log's files. Use it as a context manager.

    Invariant: messages come in the order in which they became visible, over all shards: what one channel is ahead of
    the others waits here.
    """

    def __init__(self, path: Path, topic: Topic, channels: int, after: Timestamp) -> None:
        by_channel: dict[str, list[str]] = {}
        for shard, vchannel in enumerate(topic.vchannels):
            by_channel.setdefault(f"data-{place(topic.id, shard, channels)}", []).append(vchannel)
        self._shards: Final = {vchannel: shard for shard, vchannel in enumerate(topic.vchannels)}
        files = LogFiles(path)
        start = max(after, topic.created)
        with ExitStack() as ends:
            self._readers = [
                ends.enter_context(files.transaction_reader(name, after=start, vchannels=frozenset(vchannels)))
                for name, vchannels in sorted(by_channel.items())
            ]
            self._ends = ends.pop_all()
        self._waiting: list[deque[Message]] = [deque() for _ in self._readers]
        self.cut = Timestamp.ZERO
        """Everything at or below it has been read."""

    def shard(self, message: Message) -> int | None:
        """The shard a message lies in; None for what is meant for all virtual channels."""
        return self._shards.get(message.vchannel)

    def read(self, until: Timestamp | None, idle_s: float = _IDLE_S) -> Iterator[list[Message]]:
        """Messages as they become visible; with `until` only those that are by then. A list may be empty."""
        while True:
            idle = True
            for reader, waiting in zip(self._readers, self._waiting):
                delivery = reader.poll()
                if delivery is not None:
                    idle = False
                    waiting.extend(each for each in delivery.messages() if each.vchannel in self._shards)
            cut = min(reader.after for reader in self._readers)
            if until is not None:
                cut = min(cut, int(until))
            found: list[Message] = []
            for waiting in self._waiting:
                while waiting and waiting[0].time_tick <= cut:
                    found.append(waiting.popleft())
            self.cut = Timestamp(cut)
            yield sorted(found, key=_ORDER)
            if until is not None and cut >= until:
                return
            if idle:
                sleep(idle_s)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()
