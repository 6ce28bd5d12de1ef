"""What transactions cost: each figure against the same work without them, or beside few, in the same run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.bench import txn_latency, txn_open, txn_throughput
from tidegate.bench.report import Report
from tidegate.bench.work import Work

Measure = Callable[[Report, Work], None]

MEASURES: Final[dict[str, Measure]] = {
    "transactions.throughput.8_producers": txn_throughput.producers,
    "transactions.latency": txn_latency.commits,
    "transactions.open.10000": txn_open.many,
    "transactions.open.one_for_ever": txn_open.one,
    "transactions.consume_process_produce": txn_throughput.consume_process_produce,
}


def run(
    report: Report, quick: bool = False, progress: Callable[[str], None] = lambda _: None, only: str | None = None
) -> None:
    """Measure everything, or the measurements whose name contains `only`; see `bench.log`."""
    for name, measure in MEASURES.items():
        if only is not None and only not in name:
            continue
        progress(name)
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
            measure(report, Work(Path(directory), quick))
