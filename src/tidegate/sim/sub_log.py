"""What a subscription needs of an engine and its log, on the simulated machine. The subscription is the real one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tidegate.clock.timestamp import Timestamp
from tidegate.database.transactions import Transactions
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.retention import SegmentFacts, facts
from tidegate.sim.node import NodeChannel
from tidegate.sim.sim_log import SimLog


class SteppedWriter:
    """A channel's writer; whoever waits for an append of his steps the channel himself, for nobody else does."""

    def __init__(self, channel: NodeChannel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel.writer, name)

    def append(self, *message: Any, **options: Any) -> Any:
        pending = self._channel.writer.append_async(*message, **options)
        for _ in range(1000):
            if pending.done():
                break
            self._channel.step_commit()
        return pending.result(0)


class SubLog(SimLog):
    """The part of `Log` that subscriptions use."""

    def allocate(self, count: int) -> Timestamp:
        return self.allocating(count)

    allocating: Callable[[int], Timestamp]

    def channel(self, name: str, *, create: bool = False) -> ChannelWriter:  # noqa: ARG002
        return SteppedWriter(self._channels[name])  # type: ignore[return-value]

    def segments(self, name: str) -> list[SegmentFacts]:
        return facts(ChannelFiles(self._files, name))


class SubEngine:
    """The part of `Engine` that a subscription uses."""

    def __init__(self, log: SubLog, transactions: Transactions, channels: tuple[str, ...], buffer: int) -> None:
        self.log = log
        self.transactions = transactions
        self._channels = channels
        self.settings = SimpleNamespace(snapshot_records=8, receive_buffer=buffer, transaction_timeout_max_ms=3_600_000)

    def channel_of(self, topic_id: int, shard: int) -> str:  # noqa: ARG002
        return self._channels[shard % len(self._channels)]
