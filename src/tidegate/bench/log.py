"""What the log costs: each figure against a bare file, SQLite, Arrow or a stated rate, measured in the same run.

Files lie in a temporary directory that is removed. `TMPDIR` says where, for measuring another disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.bench import log_append, log_open, log_read, log_sqlite
from tidegate.bench.report import Report
from tidegate.bench.work import Work

Measure = Callable[[Report, Work], None]

MEASURES: Final[dict[str, Measure]] = {
    "log.append.single": log_append.single,
    "log.append.8_writers": log_append.eight_writers,
    "log.append.64_writers_async": log_append.many_async,
    "log.append.batch_10k": log_append.large_batches,
    "log.vs_sqlite.single_8": log_sqlite.single_rows,
    "log.vs_sqlite.batch_500": log_sqlite.batches,
    "log.read.batches": log_read.batches,
    "log.read.rows": log_read.rows,
    "log.open.1gb": log_open.open_time,
    "log.memory.1gb": log_open.memory,
}


def run(
    report: Report, quick: bool = False, progress: Callable[[str], None] = lambda _: None, only: str | None = None
) -> None:
    """Measure everything, or the measurements whose name contains `only`.

    `quick` uses sizes that are too small to say anything, to see that all of it works. `progress` is told what is
    being measured.
    """
    for name, measure in MEASURES.items():
        if only is not None and only not in name:
            continue
        progress(name)
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
            measure(report, Work(Path(directory), quick))
