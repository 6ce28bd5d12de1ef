"""What a Timestamp costs: against a counter behind a lock, the least that could do the job at all."""

from __future__ import annotations

import threading

from tidegate.bench.report import Report, alternate, times
from tidegate.ports.clock import SystemClock
from tidegate.runtime.oracle import Oracle
from tidegate.stores.memory_metadata import MemoryMetadataStore

CALLS = 5_000
ROUNDS = 41


class _Counter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n = 0

    def increment(self) -> int:
        with self._lock:
            self._n += 1
            return self._n


def run(report: Report) -> None:
    """Measure single and batched allocation from a running oracle, its background thread included."""
    clock = SystemClock()
    oracle = Oracle(MemoryMetadataStore(clock), clock, owner="bench")
    oracle.start()
    oracle.run()
    try:
        single = times(oracle.allocate, CALLS)
        single_s, counter_s = alternate(single, times(_Counter().increment, CALLS), ROUNDS)
        # A thousand at a time empties a millisecond in 262 calls: this includes moving on to the next.
        batch_s, again_s = alternate(times(lambda: oracle.allocate(1000), CALLS), single, ROUNDS)
    finally:
        oracle.close()
    report.add(
        "oracle.single",
        single_s / CALLS * 1e9,
        "ns",
        against="a lock-guarded counter increment",
        ratio=single_s / counter_s,
        goal="<= 3.0",
    )
    report.add(
        "oracle.batch_1000",
        batch_s / CALLS * 1e9,
        "ns",
        against="oracle.single",
        ratio=batch_s / again_s,
        goal="<= 2.0",
    )
