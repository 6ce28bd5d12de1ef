"""What transactions cost: each figure against the same work without them, or beside few, in the same run."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidegate.bench import txn_latency, txn_open, txn_throughput
from tidegate.bench.work import Measure, measure_all

MEASURES: Final[dict[str, Measure]] = {
    "transactions.throughput.8_producers": txn_throughput.producers,
    "transactions.latency": txn_latency.commits,
    "transactions.open.10000": txn_open.many,
    "transactions.open.one_for_ever": txn_open.one,
    "transactions.consume_process_produce": txn_throughput.consume_process_produce,
}


run: Final = partial(measure_all, MEASURES)
