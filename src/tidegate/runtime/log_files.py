"""`LogFiles`: a log's files, for reading in any process, also while another writes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import NotFound
from tidegate.log.message import NO_POSITION, MessageType, Position
from tidegate.runtime.channel_reader import ChannelReader, TailSource
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.retention import SegmentFacts, facts
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.runtime.writer_lock import writer_of
from tidegate.stores.local_files import LocalFiles
from tidegate.stores.shared_tail import SharedTail


class LogFiles:
    """A log's files, for reading in any process, also while another writes."""

    def __init__(self, path: str | Path) -> None:
        self.path: Final = Path(path)
        if not (self.path / "log").is_dir():
            raise NotFound(f"{self.path} holds no log; create one with tidegate.open_log({str(path)!r})")
        self._files = LocalFiles(self.path / "log")

    def channels(self) -> list[str]:
        """The names of all channels."""
        return [name for name in self._files.names("") if (self.path / "log" / name).is_dir()]

    def channel(self, name: str) -> ChannelFiles:
        """The files of one channel."""
        if name not in self.channels():
            known = ", ".join(self.channels()) or "none yet"
            raise NotFound(f"{self.path} has no channel {name!r}; there are: {known}")
        return ChannelFiles(self._files, name)

    def segments(self, name: str) -> list[SegmentFacts]:
        """What is known of every segment of a channel, without reading their blocks."""
        return facts(self.channel(name))

    def is_written(self) -> bool:
        """Whether a process has the log open for writing."""
        return writer_of(self.path) is not None

    def reader(
        self,
        name: str,
        *,
        position: Position = NO_POSITION,
        after: Timestamp = Timestamp.ZERO,
        vchannel: str | None = None,
        types: frozenset[MessageType] | None = None,
    ) -> ChannelReader:
        """A reader of one channel; see `ChannelReader`."""
        channel, source = self._followed(name)
        return ChannelReader(channel, source, position=position, after=after, vchannel=vchannel, types=types)

    def transaction_reader(
        self,
        name: str,
        *,
        position: Position = NO_POSITION,
        after: Timestamp = Timestamp.ZERO,
        vchannels: frozenset[str] | None = None,
        types: frozenset[MessageType] | None = None,
    ) -> TransactionReader:
        """A reader of one channel that gives transactions whole; see `TransactionReader`."""
        channel, source = self._followed(name)
        return TransactionReader(channel, source, position=position, after=after, vchannels=vchannels, types=types)

    def _followed(self, name: str) -> tuple[ChannelFiles, TailSource]:
        channel = self.channel(name)
        return channel, TailSource(channel, SharedTail(self.path / "log" / name), is_written=self.is_written)
