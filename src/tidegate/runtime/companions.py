"""`Companions`: whether a writer should wait a moment for others before it writes.

Threads that append and wait come back together after every commit. The first of them finds the channel
idle; writing at once would leave the others to the next sync. So a leader waits, for less than half a sync, until as
many have come as were in the last commit. A lone writer never waits.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import Final

_WAIT_MAX_S: Final = 0.002
_PATIENCE: Final = 0.5
"""Part of a sync that is worth waiting."""
_SKIP_MAX: Final = 64


class Companions:
    """Remembers how many write together. Not thread-safe by itself; the writer's mutex covers `arrived`."""

    def __init__(self) -> None:
        self.expected = 0
        """How many appends to wait for; 0 when waiting is not worth it."""
        self.waiting = False
        self._lock = allocate_lock()
        self._lock.acquire()
        self._sync_s = 0.0
        self._skip = 0
        self._skip_next = 1

    def wait(self) -> None:
        """Wait until the others are there, or for part of a sync."""
        self.waiting = True
        came = self._lock.acquire(timeout=min(self._sync_s * _PATIENCE, _WAIT_MAX_S))
        self.waiting = False
        if came:
            self._skip_next = 1
        else:
            # They did not come: wait less and less often, so that odd rhythms cost little.
            self._skip = self._skip_next
            self._skip_next = min(self._skip_next * 2, _SKIP_MAX)

    def arrived(self) -> None:
        """Enough are there."""
        self.waiting = False
        try:  # noqa: SIM105 - suppress() costs more than all of it.
            self._lock.release()
        except RuntimeError:
            pass  # Somebody said so already.

    def wrote(self, appends: int, seconds: float) -> None:
        """Note the size and duration of a commit."""
        self._sync_s = seconds if not self._sync_s else 0.8 * self._sync_s + 0.2 * seconds
        if self._skip:
            self._skip -= 1
            self.expected = 0
        else:
            self.expected = appends if appends > 1 else 0
