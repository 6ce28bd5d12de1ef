"""Waiting for the service time to reach a guarantee, and when to give up (seed 004).

A wait ends at once when the service time is there; with an error when it is too far behind, when it has not moved for
`stall_ms`, or when the caller's time is up. Whoever drives it looks again whenever the service time moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tidegate.clock.timestamp import Timestamp

STALL_MS: Final = 3_000
"""No progress for so long is an error."""
MAX_LAG_MS: Final = 86_400_000
"""So far behind is an error at once."""

Why = Literal["lag", "stalled", "timeout"]


@dataclass(frozen=True, slots=True)
class Ready:
    """The service time is there."""

    service: Timestamp


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Not yet: look when the service time moves, and at the latest at `at_ms`."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It is an error to wait on."""

    why: Why
    service: Timestamp
    waited_ms: int
    lag_ms: int


class Waiting:
    """One read's wait. Times are monotonic milliseconds, lags differences of Timestamps."""

    __slots__ = ("_began_ms", "_deadline_ms", "_max_lag_ms", "_moved_ms", "_needed", "_service", "_stall_ms")

    def __init__(
        self,
        needed: Timestamp,
        now_ms: int,
        *,
        timeout_ms: int | None = None,
        max_lag_ms: int = MAX_LAG_MS,
        stall_ms: int = STALL_MS,
    ) -> None:
        self._needed = needed
        self._began_ms = self._moved_ms = now_ms
        self._deadline_ms = None if timeout_ms is None else now_ms + timeout_ms
        self._max_lag_ms = max_lag_ms
        self._stall_ms = stall_ms
        self._service: Timestamp | None = None

    def touch(self, now_ms: int) -> None:
        """Something else moves on which the service time will."""
        self._moved_ms = max(self._moved_ms, now_ms)

    def look(self, service: Timestamp, now_ms: int) -> Ready | LookAgain | GiveUp:
        """Judge by the service time as of now."""
        if service >= self._needed:
            return Ready(service)
        if self._service is None or self._is_closer(service, self._service):
            self._service, self._moved_ms = service, now_ms
        # Before anything was served there is no lag to speak of.
        lag_ms = self._needed.ms_since(service) if service else 0
        why: Why | None = None
        if lag_ms > self._max_lag_ms:
            why = "lag"
        elif now_ms - self._moved_ms >= self._stall_ms:
            why = "stalled"
        elif self._deadline_ms is not None and now_ms >= self._deadline_ms:
            why = "timeout"
        if why is not None:
            return GiveUp(why, service, now_ms - self._began_ms, lag_ms)
        at_ms = self._moved_ms + self._stall_ms
        return LookAgain(at_ms if self._deadline_ms is None else min(at_ms, self._deadline_ms))

    def _is_closer(self, service: Timestamp, before: Timestamp) -> bool:
        """Whether it has moved towards what is needed.

        Where time itself stands (the wall clock was set back), ticks count up within a millisecond for as long as that
        takes, and a later one is not coming closer.
        """
        if service.physical_ms == self._needed.physical_ms:
            return service > before
        return service.physical_ms > before.physical_ms
