"""The tail: memory shared by a channel's writer and the processes that read it on the same machine.

It is a hint about files, never the truth: after a power loss it is rebuilt from them. Laws:

1.  Once `fence(t)` has returned, `current_term()` is at least t in every process.
2.  Each term publishes in a slot of its own, so that a fenced writer that wakes up late overwrites nothing.
3.  A value stored in a slot is read whole.

How fencing works: a writer reads `current_term` *after* its write is durable and *before* it acknowledges or publishes.
A new writer fences *before* it looks for the end of the log. So either the old one sees the fence and acknowledges
nothing, or the new one sees what the old one wrote and keeps it.
"""

from __future__ import annotations

from typing import Final, Protocol

SEGMENT_SHIFT: Final = 40
"""An address is `segment << 40 | offset`: one number, so that it can be published in one step."""


def address(segment: int, offset: int) -> int:
    return segment << SEGMENT_SHIFT | offset


def split_address(value: int) -> tuple[int, int]:
    return value >> SEGMENT_SHIFT, value & ((1 << SEGMENT_SHIFT) - 1)


class TailSlot(Protocol):
    """What the writer of one term tells readers.

    Ordering: the writer publishes the address of durable blocks before the tick that covers them; a reader
    reads the tick before the address. So the blocks a tick covers are always within the address.
    """

    def publish_address(self, value: int) -> None: ...

    def publish_tick(self, value: int) -> None: ...

    def address(self) -> int:
        """Everything before it is whole and, with durability `sync`, durable. 0 before the first."""

    def tick(self) -> int:
        """The newest tick, persisted or not. 0 before the first."""

    def close(self) -> None: ...


class Tail(Protocol):
    """One channel's tail."""

    def current_term(self) -> int:
        """The newest term that fenced the channel; 0 for none."""

    def fence(self, term: int) -> TailSlot:
        """Become the writer. Every smaller term is fenced from here on."""

    def slot(self, term: int) -> TailSlot | None:
        """A reader's view of a term's slot, or None when this machine has not seen it since it started."""

    def close(self) -> None: ...
