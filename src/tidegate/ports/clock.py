"""What the shell asks of a clock. The core never holds one: it is handed times."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time that may stand still or jump, and monotonic time that may not."""

    def wall_ms(self) -> int:
        """Unix milliseconds as the machine believes them. May go backwards."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, from an arbitrary start."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or the time is up; says whether it is set."""


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    """Not a method of its own: the oracle reads it on every allocation."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
