"""What a coordinator's journal needs of a log, on the simulated machine. The journal is the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.log.message import NO_POSITION, MessageType, Position
from tidegate.ports.files import Files
from tidegate.ports.metadata import MetadataStore
from tidegate.runtime.channel_reader import Delivery, TailSource
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.journal import Journal
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.sim.machine import SimTail
from tidegate.sim.node import NodeChannel

_SNAPSHOT: Final = b"\1"


class PollingReader(TransactionReader):
    """A reader that does not wait: in the simulator nothing happens meanwhile."""

    def read(self, timeout_s: float | None = None) -> Delivery | None:  # noqa: ARG002
        return self.poll()


class SimLog:
    """The part of `Log` that journals use, over the channels of one simulated process."""

    def __init__(
        self, channels: dict[str, NodeChannel], files: Files, store: MetadataStore, tails: dict[str, SimTail]
    ) -> None:
        self._channels = channels
        self._files = files
        self._store = store
        self._tails = tails

    def channel(self, name: str, *, create: bool = False) -> ChannelWriter:  # noqa: ARG002
        return self._channels[name].writer

    def transaction_reader(self, name: str, **options: Any) -> TransactionReader:
        files = ChannelFiles(self._files, name)
        source = TailSource(files, self._tails[name], is_written=lambda: True)
        options.setdefault("position", NO_POSITION)
        options.setdefault("after", Timestamp.ZERO)
        return PollingReader(files, source, writer=self._channels[name].writer, **options)

    def pins(self, channel: str) -> dict[str, Position]:
        prefix = f"pin/{channel}/"
        return {key[len(prefix) :]: Position(int(v.value)) for key, v in self._store.list(prefix).items()}

    def pin(self, channel: str, name: str, position: Position) -> None:
        key = f"pin/{channel}/{name}"
        while True:
            found = self._store.get(key)
            expected = 0 if found is None else found.version
            if self._store.compare_and_set(key, str(int(position)).encode(), expected=expected) is not None:
                return


class SimJournal(Journal):
    """The real journal; only a snapshot is written step by step by the simulated process itself."""

    def __init__(self, log: SimLog, channel: NodeChannel, vchannel: str) -> None:
        super().__init__(log, channel.name, vchannel, snapshot_every=12)  # type: ignore[arg-type]
        self._node_channel = channel

    def snapshot(self, make: Callable[[], bytes], timeout_s: float = 0.0) -> bool:  # noqa: ARG002
        if self._under_way:
            return False
        pending = self.writer.append_async(self.vchannel, _SNAPSHOT + make(), kind=MessageType.RECORD)
        for _ in range(1000):
            if pending.done():
                break
            self._node_channel.step_commit()
        self._log.pin(self.channel, f"journal {self.vchannel}", pending.result(0).position)
        self._since = 0
        return True
