"""Appending against SQLite in WAL mode with full synchronisation, which promises the same of every row."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tidegate.bench.log_append import multiplexed, row_writer
from tidegate.bench.report import Report, alternate
from tidegate.bench.sqlite_writer import connect
from tidegate.bench.work import CHANNEL, ROW, VCHANNEL, Work, alternate_rates, rate

_PROCESSES: Final = 8
_BATCH: Final = 500
_START_S: Final = 0.02
"""From the word to go, so that all processes begin together."""


def single_rows(report: Report, work: Work) -> None:
    """Eight writers, by futures and as threads, against eight processes of SQLite with a transaction each row."""
    rounds, seconds = work.pick(7, 1), work.pick(1.0, 0.05)
    work.warm_up(work.pick(64 << 20, 1 << 20))
    with work.log() as log, _sqlite_processes(work.directory / "rows.sqlite") as processes:
        channel = log.channel(CHANNEL)
        write = row_writer(channel)
        for name, several, goal in (
            ("log.vs_sqlite.single_8", lambda: multiplexed(channel, seconds, writers=8, in_flight=1), ">= 3.0"),
            ("log.vs_sqlite.single_8_threads", lambda: rate([write] * 8, seconds), ">= 1.5"),
        ):
            ours, theirs = alternate_rates(several, lambda: _measure_processes(processes, seconds), rounds)
            report.add(
                name,
                ours,
                "rows/s",
                against=f"SQLite WAL FULL, {_PROCESSES} processes: {theirs:,.0f} rows/s",
                ratio=ours / theirs,
                goal=goal,
            )


def batches(report: Report, work: Work) -> None:
    """Batches of 500 records, against transactions of 500 rows with executemany."""
    rounds, count = work.pick(9, 1), work.pick(50, 2)
    rows = [ROW] * _BATCH
    parameters = [(row,) for row in rows]
    work.warm_up(work.pick(128 << 20, 1 << 20))
    with work.log() as log, closing(connect(work.directory / "batches.sqlite")) as database:
        channel = log.channel(CHANNEL)

        def ours() -> None:
            for _ in range(count):
                channel.append_batch(VCHANNEL, rows)

        def theirs() -> None:
            for _ in range(count):
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT INTO rows (body) VALUES (?)", parameters)
                database.execute("COMMIT")

        ours_s, theirs_s = alternate(ours, theirs, rounds)
    written = count * _BATCH
    report.add(
        "log.vs_sqlite.batch_500",
        written / ours_s,
        "rows/s",
        against=f"SQLite WAL FULL, executemany of {_BATCH}: {written / theirs_s:,.0f} rows/s",
        ratio=theirs_s / ours_s,
        goal=">= 2.0",
    )


@contextmanager
def _sqlite_processes(path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    connect(path).close()
    command = [sys.executable, "-m", "tidegate.bench.sqlite_writer", str(path), str(len(ROW))]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(_PROCESSES)
    ]
    try:
        for each in processes:
            _answer(each)
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.communicate()


def _measure_processes(processes: list[subprocess.Popen[str]], seconds: float) -> float:
    start = time.monotonic() + _START_S
    for each in processes:
        if each.stdin is not None:
            each.stdin.write(f"{start} {seconds}\n")
            each.stdin.flush()
    return sum(float(_answer(each)) for each in processes)


def _answer(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise RuntimeError("a process of the SQLite side died")
    return line
