"""`OwnerTime`: which Timestamps had been handed out a while ago, whatever the owner's wall clock did since.

Timestamps follow the wall clock, but for times when they are ahead of it and stand: for up to 3 s after an owner was
killed, and after the clock was set back for as long as that takes to make up. Counted back from there, a bound would
leave out what was written in all that time. Whoever looks here is told more than he asked for then, never less.
"""

from __future__ import annotations

from typing import Final

from tidegate.clock.timestamp import Timestamp

_JUMP_MS: Final = 10
"""The wall clock was set back if it is so much further behind the monotonic one than at the last look."""
_SLOWER: Final = 1000
"""Beyond what it may run slower while it is set right gently: one part of so many."""


class OwnerTime:
    """Of one life of an owner. Times are milliseconds of its two clocks, read together; after `now` was handed out, but
    for the first time.

    Invariant: nothing handed out up to `_until_ms` of the monotonic clock is above `_upto`.
    Limit: a clock that is set ahead and back again without a look between leaves no trace.
    """

    __slots__ = ("_offset_ms", "_seen_ms", "_until_ms", "_upto")

    def __init__(self, now: Timestamp, wall_ms: int, monotonic_ms: int) -> None:
        """Ordering: `now` is above all that earlier owners handed out; it was handed out after the clocks were read."""
        self._offset_ms = wall_ms - monotonic_ms
        self._seen_ms = self._until_ms = monotonic_ms
        self._upto = now
        if now.physical_ms > wall_ms:
            self._note(now, wall_ms, monotonic_ms)

    def handed_out(self, ago_ms: int, *, now: Timestamp, wall_ms: int, monotonic_ms: int) -> Timestamp:
        """A Timestamp, at most `now`, that nothing handed out `ago_ms` before or earlier is above."""
        offset_ms = wall_ms - monotonic_ms
        allowed_ms = _JUMP_MS + max(monotonic_ms - self._seen_ms, 0) // _SLOWER
        if now.physical_ms > wall_ms or offset_ms < self._offset_ms - allowed_ms:
            self._note(now, wall_ms, monotonic_ms)
        self._offset_ms, self._seen_ms = offset_ms, monotonic_ms
        found = _end_of(max(wall_ms - ago_ms, 0))
        if monotonic_ms - ago_ms <= self._until_ms:
            found = max(found, self._upto)
        return min(now, found)

    def _note(self, now: Timestamp, wall_ms: int, monotonic_ms: int) -> None:
        """Up to now, and until the wall clock has caught up, Timestamps were not the wall clock's."""
        ahead_ms = max(now.physical_ms - wall_ms, 0)
        self._until_ms = max(self._until_ms, monotonic_ms + ahead_ms)
        self._upto = max(self._upto, _end_of(now.physical_ms))


def _end_of(physical_ms: int) -> Timestamp:
    """The last Timestamp of a millisecond."""
    return Timestamp(int(Timestamp.compose(physical_ms + 1)) - 1)
