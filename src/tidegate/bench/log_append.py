"""Appending: one writer, several, many, and large batches."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from typing import Final

from tidegate.bench.bare_group import BareGroupCommit
from tidegate.bench.report import Report, alternate
from tidegate.bench.work import CHANNEL, ROW, VCHANNEL, Work, alternate_rates, large_batch, rate
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.pending import PendingAppend

_WRITERS: Final = 64
_IN_FLIGHT: Final = 16
_RATE_GOAL: Final = 100_000


def single(report: Report, work: Work) -> None:
    """One writer, one row at a time, each synced, against a bare write and sync of as many bytes."""
    rounds, count = work.pick(15, 2), work.pick(200, 10)
    work.warm_up(work.pick(64 << 20, 1 << 20))
    with work.log() as log:
        channel = log.channel(CHANNEL)
        block = bytes(_block_size(channel))
        descriptor = os.open(work.directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        times_s: tuple[list[float], list[float]] = ([], [])
        try:
            for round_number in range(rounds + 1):
                for side, found in enumerate(times_s):
                    for _ in range(count):
                        began = time.perf_counter()
                        if side == 0:
                            channel.append(VCHANNEL, ROW)
                        else:
                            os.write(descriptor, block)
                            os.fdatasync(descriptor)
                        if round_number:
                            found.append(time.perf_counter() - began)
        finally:
            os.close(descriptor)
    ours, bare = (statistics.median(found) for found in times_s)
    report.add(
        "log.append.single",
        ours * 1e6,
        "us",
        against=f"write+fdatasync of {len(block)} bytes: {bare * 1e6:.0f} us",
        ratio=ours / bare,
        goal="<= 1.6",
    )


def _block_size(channel: ChannelWriter) -> int:
    """Bytes one row takes in the log; the least of several, as a tick may come between."""
    sizes = []
    for _ in range(5):
        before = channel.status().offset
        channel.append(VCHANNEL, ROW)
        sizes.append(channel.status().offset - before)
    return min(sizes)


def eight_writers(report: Report, work: Work) -> None:
    """Eight writers, each waiting for every acknowledgement, by futures against one writer; and as threads.

    Threads are measured against a group commit that does nothing else: how much faster than one thread eight can
    be is decided by how fast the interpreter wakes them.
    """
    rounds, seconds = work.pick(7, 1), work.pick(0.7, 0.05)
    work.warm_up(work.pick(64 << 20, 1 << 20))
    with work.log() as log, BareGroupCommit(work.directory / "bare", ROW) as bare:
        channel = log.channel(CHANNEL)
        write = row_writer(channel)
        eight, one = alternate_rates(
            lambda: multiplexed(channel, seconds, writers=8, in_flight=1), lambda: rate([write], seconds), rounds
        )
        report.add(
            "log.append.8_writers",
            eight,
            "rows/s",
            against=f"1 writer: {one:,.0f} rows/s",
            ratio=eight / one,
            goal=">= 4.0",
        )
        threads, limit = alternate_rates(lambda: rate([write] * 8, seconds), lambda: rate([bare] * 8, seconds), rounds)
        report.add(
            "log.append.8_threads",
            threads,
            "rows/s",
            against=f"a bare group commit by 8 threads: {limit:,.0f} rows/s ({threads / one:.1f} times 1 writer)",
            ratio=threads / limit,
            goal=">= 0.6",
        )


class row_writer:
    """Appends a row and waits for it; returns how many rows that is."""

    def __init__(self, channel: ChannelWriter) -> None:
        self._append = channel.append

    def __call__(self) -> int:
        self._append(VCHANNEL, ROW)
        return 1


def many_async(report: Report, work: Work) -> None:
    """Many writers on one thread, each with several appends in flight."""
    rounds, seconds = work.pick(7, 1), work.pick(1.0, 0.05)
    work.warm_up(work.pick(256 << 20, 1 << 20))
    rates = []
    with work.log() as log:
        channel = log.channel(CHANNEL)
        for round_number in range(rounds + 1):
            found = multiplexed(channel, seconds, writers=_WRITERS, in_flight=_IN_FLIGHT)
            if round_number:
                rates.append(found)
    value = statistics.median(rates)
    report.add(
        "log.append.64_writers_async",
        value,
        "rows/s",
        against=f"100,000 rows/s ({_WRITERS} writers on one thread, {_IN_FLIGHT} in flight each)",
        ratio=value / _RATE_GOAL,
        goal=">= 1.0",
    )


def multiplexed(channel: ChannelWriter, seconds: float, *, writers: int, in_flight: int) -> float:
    """Acknowledged rows a second of several writers on one thread, each with up to `in_flight` appends on their way."""
    append = channel.append_async
    each_writer: list[tuple[str, deque[PendingAppend]]] = [(f"bench/{each % 8}", deque()) for each in range(writers)]
    began = time.perf_counter()
    end = began + seconds
    acknowledged = 0
    while time.perf_counter() < end:
        before = acknowledged
        for vchannel, pending in each_writer:
            while pending and pending[0].is_done:
                pending.popleft().result()
                acknowledged += 1
            for _ in range(in_flight - len(pending)):
                pending.append(append(vchannel, ROW))
        if acknowledged == before:
            each_writer[0][1][0].result()
    for _, pending in each_writer:
        for each in pending:
            each.result()
            acknowledged += 1
    return acknowledged / (time.perf_counter() - began)


def large_batches(report: Report, work: Work) -> None:
    """Batches of 10,000 rows of 100 bytes, against a bare file written with the same sizes and syncs."""
    rounds, count = work.pick(9, 1), work.pick(20, 2)
    rows = large_batch()
    user_bytes = rows.num_rows * 100 * count
    with work.log() as log:
        channel = log.channel(CHANNEL)
        before = channel.status().offset
        channel.append_batch(VCHANNEL, rows)
        block = bytes(channel.status().offset - before)
        work.warm_up(2 * len(block) * count * (rounds + 1))
        descriptor = os.open(work.directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def bare() -> None:
            for _ in range(count):
                os.write(descriptor, block)
                os.fdatasync(descriptor)

        def ours() -> None:
            for _ in range(count):
                channel.append_batch(VCHANNEL, rows)

        try:
            ours_s, bare_s = alternate(ours, bare, rounds)
        finally:
            os.close(descriptor)
    report.add(
        "log.append.batch_10k",
        user_bytes / ours_s / 1e6,
        "MB/s",
        against=f"a bare file, same sizes and syncs: {user_bytes / bare_s / 1e6:,.0f} MB/s",
        ratio=bare_s / ours_s,
        goal=">= 0.5",
    )
