"""`Doubt`: a commit that may be in the log or not, because the disk failed under its write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from tidegate.errors import TidegateError
from tidegate.runtime.channel_writer import ChannelWriter


class Doubt:
    """A write of a commit that failed on the disk so that nobody knows whether it is part of the log.

    It is settled when its channel goes on in another segment: that one's header says where the old one ended, before
    the write. Until then nothing may rely on either outcome.
    """

    __slots__ = ("_segment", "_undo", "_writer")

    def __init__(self, writer: ChannelWriter, segment: object, undo: Sequence[Callable[[], None]]) -> None:
        """`undo` is what to do when the write turns out to be absent.

        Without a `segment` it was refused: by a channel that was fenced, which settles nothing any more, or for want of
        a timestamp, and then it is absent.
        """
        self._writer = writer
        self._segment = segment
        self._undo = list(undo)

    def also(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def settle(self) -> bool:
        """Whether it is settled now; if it is, the write is absent, and all is as before it."""
        writer = self._writer
        if not writer.is_open:
            return False
        if writer.segments.id == self._segment:
            with suppress(TidegateError):
                writer.tick(force=True)
            return False
        for undo in self._undo:
            undo()
        return True
