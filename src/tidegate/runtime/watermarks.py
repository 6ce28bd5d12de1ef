"""`Watermarks`: how far the whole log has come, collected round by round from everything that takes timestamps.

Sources are the open channels, each with its last tick, and DDL, with the smallest it still has in flight. Captures
will be others. The result is what a cut through all channels may not pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.clock.watermark import InFlight, Watermark, WatermarkCollector

DDL: Final = "ddl"


class Watermarks:
    """One log's collector and its sources. Thread-safe."""

    def __init__(self) -> None:
        self.ddl: Final = InFlight()
        """DDL takes its timestamps here: allocate, enqueue and record the minimum are one step."""
        self._collector = WatermarkCollector()
        self._collector.register(DDL)
        self._reports: dict[str, Timestamp] = {}
        self._guard = Lock()

    def collect(self, ticks: Mapping[str, Timestamp], now: Timestamp) -> Watermark | None:
        """One round: every open channel's last tick, and a fresh timestamp for sources with nothing in flight.

        A channel that is no longer open is removed, and the round does not wait for it.
        """
        with self._guard:
            reports = {**ticks, DDL: self.ddl.minimum(now)}
            for gone in self._reports.keys() - reports.keys():
                self._collector.remove(gone)
            for new in sorted(reports.keys() - self._reports.keys() - {DDL}):
                self._collector.register(new)
            for source, at in reports.items():
                self._collector.report(source, at)
            self._reports = reports
            return self._collector.current

    @property
    def current(self) -> Watermark | None:
        with self._guard:
            return self._collector.current

    def status(self) -> dict[str, Any]:
        """The watermark and who holds it back."""
        with self._guard:
            current = self._collector.current
            held_by = min(self._reports, key=lambda source: self._reports[source], default=None)
            return {
                "at": None if current is None else current.least,
                "held_by": held_by,
                "sources": dict(self._reports),
            }
