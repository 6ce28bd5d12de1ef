"""Opening a large log against a small one, after a clean close and after a kill; and memory while writing much."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.bench.report import Report
from tidegate.bench.work import CHANNEL, ROW, VCHANNEL, Work, large_batch
from tidegate.runtime.log import Log
from tidegate.runtime.settings import Durability, LogSettings

_MEMORY_GOAL_MB: Final = 200
_BATCH_BYTES: Final = 1_000_000
_SEGMENT_BYTES: Final = LogSettings().segment_bytes


def open_time(report: Report, work: Work) -> None:
    """Log and channel open in a time that does not grow with the log."""
    rounds = work.pick(12, 1)
    large_mb, small_mb = work.pick(1000, 64), work.pick(10, 2)
    work.warm_up(work.pick(1 << 30, 1 << 20))
    large, small = work.directory / "large", work.directory / "small"
    _fill(large, large_mb)
    _fill(small, small_mb)
    os.sync()  # What filling left to be written back would be waited for by the first that are opened.

    def nothing(path: Path) -> None:
        """The last round closed it cleanly."""

    for name, prepare in (("log.open.1gb", nothing), ("log.open.1gb_killed", _write_and_kill)):
        large_s, small_s = _alternate_opens(work, large, small, prepare, rounds)
        report.add(
            name,
            large_s * 1e3,
            "ms",
            against=f"a log of {small_mb} MB: {small_s * 1e3:.1f} ms; this one has {large_mb:,} MB",
            ratio=large_s / small_s,
            goal="<= 1.5",
        )


def _alternate_opens(
    work: Work, large: Path, small: Path, prepare: Callable[[Path], None], rounds: int
) -> tuple[float, float]:
    """The median seconds to open each, in turn, after two unmeasured rounds.

    Opening after a kill reads all of the segment's reserved room, and so touches as much memory as that. Each is warmed
    up for, and which one is first changes every round, so that neither lives on what the other has given back.
    """
    found: tuple[list[float], list[float]] = ([], [])
    for round_number in range(rounds + 2):
        sides = list(zip((large, small), found, strict=True))
        for path, seconds in sides if round_number % 2 else reversed(sides):
            prepare(path)
            work.warm_up(work.pick(_SEGMENT_BYTES * 2, 1 << 20))
            began = time.perf_counter()
            log = Log(path)
            log.channel(CHANNEL)
            took = time.perf_counter() - began
            log.close()
            if round_number > 1:
                seconds.append(took)
    return statistics.median(found[0]), statistics.median(found[1])


def _fill(path: Path, megabytes: int) -> None:
    rows = large_batch()
    with Log(path, settings=LogSettings(durability=Durability.NONE)) as log:
        channel = log.channel(CHANNEL)
        for _ in range(megabytes * 1_000_000 // _BATCH_BYTES):
            channel.append_batch(VCHANNEL, rows)
        log.seal()


def _write_and_kill(path: Path) -> None:
    """A process writes to the log and is killed while it does."""
    process = subprocess.Popen([sys.executable, "-m", "tidegate.bench.log_open", "write", path], stdout=subprocess.PIPE)
    if process.stdout is None or not process.stdout.readline():
        raise RuntimeError("the writing process died by itself")
    process.send_signal(signal.SIGKILL)
    process.communicate()


def memory(report: Report, work: Work) -> None:
    """Resident memory of a process that writes much: what its peak is above where it stood when it began."""
    megabytes = work.pick(1000, 32)
    path = str(work.directory / "log")
    command = [sys.executable, "-m", "tidegate.bench.log_open", "memory", path, str(megabytes)]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    report.add(
        "log.memory.1gb",
        grown,
        "MB",
        against=f"{_MEMORY_GOAL_MB} MB, writing {megabytes:,} MB",
        ratio=grown / _MEMORY_GOAL_MB,
        goal="<= 1.0",
    )


def _write_until_killed(path: Path) -> None:
    rows = large_batch()
    with Log(path) as log:
        channel = log.channel(CHANNEL)
        for _ in range(4):
            channel.append_batch(VCHANNEL, rows)
        for count in range(1_000_000):
            channel.append(VCHANNEL, ROW)
            if count == 100:
                print("writing", flush=True)


def _measure_memory(path: Path, megabytes: int) -> None:
    rows = large_batch()
    with Log(path) as log:
        channel = log.channel(CHANNEL)
        channel.append_batch(VCHANNEL, rows)
        before = _status_kb("VmRSS")
        for _ in range(megabytes * 1_000_000 // _BATCH_BYTES):
            channel.append_batch(VCHANNEL, rows)
        print(max(_status_kb("VmHWM") - before, 0) * 1024 / 1e6)


def _status_kb(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path]:
            _write_until_killed(Path(path))
        case ["memory", path, megabytes]:
            _measure_memory(Path(path), int(megabytes))
