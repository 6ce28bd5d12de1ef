"""What the log costs: each figure against a bare file, SQLite, Arrow or a stated rate, measured in the same run.

Files lie in a temporary directory that is removed. `TMPDIR` says where, for measuring another disk.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidegate.bench import log_append, log_open, log_read, log_sqlite
from tidegate.bench.work import Measure, measure_all

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


run: Final = partial(measure_all, MEASURES)
