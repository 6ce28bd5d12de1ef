"""Shared and exclusive appends (seed 000's lock): who may be under way at the same time in which virtual channel.

Ordinary appends share a virtual channel; an exclusive one has it alone, and one on `ALL_VCHANNELS` has the whole
channel alone, ticks included. Whoever waits is passed by nobody of the same virtual channel.
"""

from __future__ import annotations

from collections import Counter

from tidegate.errors import InvariantBroken
from tidegate.log.message import ALL_VCHANNELS


class AppendLocks:
    """Counts who holds what. Pure: it never waits, it says yes or no."""

    def __init__(self) -> None:
        self._shared: Counter[str] = Counter()
        self._exclusive: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds anything."""
        return not self._shared and not self._exclusive

    def may_share(self, vchannel: str) -> bool:
        """Whether nobody is alone there."""
        return ALL_VCHANNELS not in self._exclusive and vchannel not in self._exclusive

    def try_shared(self, vchannel: str) -> bool:
        """Enter beside others; False while somebody is alone there."""
        if not self.may_share(vchannel):
            return False
        self._shared[vchannel] += 1
        return True

    def try_exclusive(self, vchannel: str) -> bool:
        """Enter alone; False while anybody is there."""
        if ALL_VCHANNELS in self._exclusive:
            return False
        if vchannel == ALL_VCHANNELS:
            if self._shared or self._exclusive:
                return False
        elif vchannel in self._shared or vchannel in self._exclusive:
            return False
        self._exclusive.add(vchannel)
        return True

    def release_shared(self, vchannel: str) -> None:
        if vchannel not in self._shared:
            raise InvariantBroken(f"virtual channel {vchannel!r} is not held")
        self._shared[vchannel] -= 1
        if not self._shared[vchannel]:
            del self._shared[vchannel]

    def release_exclusive(self, vchannel: str) -> None:
        if vchannel not in self._exclusive:
            raise InvariantBroken(f"virtual channel {vchannel!r} is not held alone")
        self._exclusive.remove(vchannel)

    def holders(self) -> dict[str, str]:
        """What is held, for people."""
        return {
            **{name: f"shared by {count}" for name, count in sorted(self._shared.items())},
            **dict.fromkeys(sorted(self._exclusive), "exclusive"),
        }
