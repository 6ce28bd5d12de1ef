"""Where a measurement works, and how large it is."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from tidegate.bench.report import Report
from tidegate.runtime.log import Log
from tidegate.runtime.settings import Durability, LogSettings

CHANNEL: Final = "bench"
VCHANNEL: Final = "bench/0"
ROW: Final = bytes(range(200))
"""One row of 200 bytes."""

T = TypeVar("T", int, float)
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """One measurement's directory, and whether it only has to show that it works."""

    directory: Path
    quick: bool

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full

    def log(self, name: str = "log", *, durability: Durability = Durability.SYNC, segment_bytes: int = 64 << 20) -> Log:
        settings = LogSettings(durability=durability, segment_bytes=segment_bytes)
        return Log(self.directory / name, settings=settings)

    def warm_up(self, size: int) -> None:
        """Write and delete a file of that size.

        A virtual machine gets memory from its host page by page when it is first touched. Whatever is measured first
        would pay for that, and the other side would not.
        """
        path = self.directory / "warm-up"
        chunk = bytes(_CHUNK)
        with path.open("wb") as file:
            for _ in range(size // _CHUNK + 1):
                file.write(chunk)
        path.unlink()


def large_batch(rows: int = 10_000, width: int = 100) -> pa.RecordBatch:
    """Rows of one column of bytes, no two alike."""
    return pa.RecordBatch.from_pydict({"body": [number.to_bytes(width, "big") for number in range(rows)]})


def rate(writers: Sequence[Callable[[], int]], seconds: float) -> float:
    """Calls a second of all `writers` together, a thread each. A call returns how many rows it wrote."""
    counts = [0] * len(writers)
    gate = threading.Barrier(len(writers) + 1)
    stop = threading.Event()

    def work(number: int) -> None:
        write, count = writers[number], 0
        gate.wait()
        while not stop.is_set():
            count += write()
        counts[number] = count

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(writers))]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def alternate_rates(a: Callable[[], float], b: Callable[[], float], rounds: int) -> tuple[float, float]:
    """The medians of what `a` and `b` return, called in turn, after one unmeasured call of each."""
    found: tuple[list[float], list[float]] = ([], [])
    for round_number in range(rounds + 1):
        for call, values in zip((a, b), found, strict=True):
            value = call()
            if round_number:
                values.append(value)
    return statistics.median(found[0]), statistics.median(found[1])


Measure = Callable[[Report, Work], None]


def measure_all(
    measures: Mapping[str, Measure],
    report: Report,
    quick: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    only: str | None = None,
) -> None:
    """Measure everything, or the measurements whose name contains `only`, each in a directory of its own.

    `quick` uses sizes that are too small to say anything, to see that all of it works. `progress` is told what is
    being measured.
    """
    for name, measure in measures.items():
        if only is None or only in name:
            progress(name)
            with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
                measure(report, Work(Path(directory), quick))
