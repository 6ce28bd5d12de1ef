"""`WriteGate`: writers go through side by side; a change of the catalog has the gate to itself.

So no row is acknowledged at a Timestamp at which its table was dropped already, or has another schema: whoever has
looked up the place of his rows is through before the catalog changes, or looks again after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock

from tidegate.errors import WaitTimeout


class WriteGate:
    """Thread-safe. Whoever changes the catalog waits for those inside; who comes meanwhile waits for the change."""

    __slots__ = ("_changed", "_closed", "_inside", "_lock", "_timeout_s")

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._inside = 0
        self._closed = False
        self._timeout_s = timeout_s

    def try_enter(self) -> bool:
        """Go in if the gate is open. `leave` follows."""
        with self._lock:
            if self._closed:
                return False
            self._inside += 1
            return True

    def enter(self) -> None:
        """Go in, as soon as the gate is open. `leave` follows.

        Raises: `WaitTimeout`.
        """
        if self.try_enter():
            return
        with self._changed:
            if not self._changed.wait_for(lambda: not self._closed, self._timeout_s):
                raise WaitTimeout(f"a change of the catalog has not ended within {self._timeout_s:g} s; try again")
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed and not self._inside:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have it to oneself.

        Ordering: one at a time.
        Raises: `WaitTimeout` when somebody inside does not end.
        """
        with self._changed:
            self._closed = True
            began = time.monotonic()
            if not self._changed.wait_for(lambda: not self._inside, self._timeout_s):
                self._open()
                raise WaitTimeout(
                    f"{self._inside} writes are still under way after {time.monotonic() - began:.0f} s, and the catalog"
                    f" cannot change before they end; `tidegate status` shows what they wait for"
                )
        try:
            yield
        finally:
            with self._changed:
                self._open()

    def _open(self) -> None:
        self._closed = False
        self._changed.notify_all()
