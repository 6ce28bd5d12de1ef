"""Reading a log back: written in batches, row by row, and row by row but sealed."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.bench.report import Report, alternate
from tidegate.bench.work import CHANNEL, ROW, VCHANNEL, Work, large_batch
from tidegate.errors import InvariantBroken
from tidegate.runtime.log import LogFiles
from tidegate.runtime.settings import Durability

_UNSEALED_GOAL: Final = 200_000
_SEALED_GOAL: Final = 2_000_000


def batches(report: Report, work: Work) -> None:
    """A log of batches of 10,000 rows, against the same batches in one Arrow IPC file."""
    rounds, count = work.pick(9, 1), work.pick(100, 3)
    rows = large_batch()
    work.warm_up(2 * count * rows.nbytes)
    with work.log(durability=Durability.NONE) as log:
        channel = log.channel(CHANNEL)
        for _ in range(count):
            channel.append_batch(VCHANNEL, rows)
    arrow = work.directory / "rows.arrow"
    with pa.OSFile(str(arrow), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        for _ in range(count):
            writer.write_batch(rows)
    path, expected = work.directory / "log", count * rows.num_rows
    ours_s, theirs_s = alternate(lambda: _read_log(path, expected), lambda: _read_arrow(arrow, expected), rounds)
    report.add(
        "log.read.batches",
        expected / ours_s,
        "rows/s",
        against=f"pyarrow, one IPC file: {expected / theirs_s:,.0f} rows/s",
        ratio=theirs_s / ours_s,
        goal=">= 0.5",
    )


def rows(report: Report, work: Work) -> None:
    """A log written row by row, one row a block; then the same log sealed."""
    rounds, count = work.pick(7, 1), work.pick(200_000, 2_000)
    work.warm_up(2 * count * 320)
    with work.log(durability=Durability.NONE, segment_bytes=256 << 20) as log:
        channel = log.channel(CHANNEL)
        for _ in range(count):
            channel.append(VCHANNEL, ROW)
        segments = channel.segments
        if segments.blocks < count:
            raise InvariantBroken(f"{count:,} rows lie in {segments.blocks:,} blocks; this measures one row a block")
    path = work.directory / "log"
    _add(report, "log.read.rows_unsealed", _rate(path, count, rounds), _UNSEALED_GOAL)
    with work.log() as log:
        log.channel(CHANNEL)  # A new term goes on in a new segment; the old one can be sealed then.
        log.seal()
    if not all(each.sealed for each in LogFiles(path).segments(CHANNEL)[:-1]):
        raise InvariantBroken("the rows were not sealed")
    _add(report, "log.read.rows_sealed", _rate(path, count, rounds), _SEALED_GOAL)


def _add(report: Report, name: str, value: float, goal: int) -> None:
    report.add(name, value, "rows/s", against=f"{goal:,} rows/s", ratio=value / goal, goal=">= 1.0")


def _rate(path: Path, count: int, rounds: int) -> float:
    rates = []
    for round_number in range(rounds + 1):
        began = time.perf_counter()
        _read_log(path, count)
        if round_number:
            rates.append(count / (time.perf_counter() - began))
    return statistics.median(rates)


def _read_log(path: Path, expected: int) -> None:
    count = 0
    with LogFiles(path).reader(CHANNEL) as reader:
        for batch in reader.batches(timeout_s=0):
            count += _touch(batch.rows)
    _check(count, expected)


def _read_arrow(path: Path, expected: int) -> None:
    count = 0
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            count += _touch(reader.get_batch(number))
    _check(count, expected)


def _touch(batch: pa.RecordBatch) -> int:
    """Look at the data, the same way on both sides: the lengths of all rows, from their offsets."""
    column = batch.column(0)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    if int(np.diff(offsets).sum()) <= 0:
        raise InvariantBroken("the rows are empty")
    return len(column)


def _check(count: int, expected: int) -> None:
    if count != expected:
        raise InvariantBroken(f"{count:,} rows were read, {expected:,} were written")
