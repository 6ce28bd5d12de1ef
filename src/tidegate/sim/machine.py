"""The simulated machine: its clock and the memory its processes share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


class SimClock:
    """Virtual time. Monotonic time moves when the scheduler or a wait says so; the wall clock may jump or stand."""

    def __init__(self, wall_ms: int) -> None:
        self._now_us = 1_000_000_000
        self._wall_us = wall_ms * 1000
        self.stands = False

    def wall_ms(self) -> int:
        return self._wall_us // 1000

    def monotonic(self) -> float:
        return self._now_us / 1e6

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.advance(timeout_s)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        step = max(1, round(seconds * 1e6))
        self._now_us += step
        if not self.stands:
            self._wall_us += step

    def jump(self, ms: int) -> None:
        self._wall_us = max(self._wall_us + ms * 1000, 1_600_000_000_000_000)


@dataclass(slots=True)
class SimSlot:
    """What one term's writer published."""

    published: int = 0
    ticked: int = 0

    def publish_address(self, value: int) -> None:
        self.published = value

    def publish_tick(self, value: int) -> None:
        self.ticked = value

    def address(self) -> int:
        return self.published

    def tick(self) -> int:
        return self.ticked

    def close(self) -> None:
        return


@dataclass(slots=True)
class SimTail:
    """A channel's tail. Survives the death of processes, not of the machine."""

    term: int = 0
    slots: dict[int, SimSlot] = field(default_factory=dict)

    def current_term(self) -> int:
        return self.term

    def fence(self, term: int) -> SimSlot:
        self.term = max(self.term, term)
        return self.slots.setdefault(term, SimSlot())

    def slot(self, term: int) -> SimSlot | None:
        return self.slots.get(term)

    def close(self) -> None:
        return
