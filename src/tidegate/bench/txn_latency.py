"""How long a commit takes, against a plain durable append through the same calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import tidegate
from tidegate.bench.report import Report
from tidegate.bench.work import ROW, Work


def commits(report: Report, work: Work) -> None:
    """One row in a transaction in one channel, and one row each in two channels."""
    rounds, count = work.pick(15, 2), work.pick(100, 5)
    work.warm_up(work.pick(64 << 20, 1 << 20))
    with tidegate.open(work.directory / "latency.tide") as db:
        db.sql("CREATE TOPIC one")
        db.sql("CREATE TOPIC two")

        def plain() -> None:
            db.send("one", ROW)

        def in_one() -> None:
            with db.transaction() as txn:
                txn.send("one", ROW)

        def in_two() -> None:
            with db.transaction() as txn:
                txn.send("one", ROW)
                txn.send("two", ROW)

        bare, single, double = medians([plain, in_one, in_two], rounds, count)
    against = f"db.send of the same row: {bare * 1e6:.0f} us"
    for name, found, goal in (("one_channel", single, "<= 1.3"), ("two_channels", double, "<= 4.0")):
        figure = f"transactions.latency.{name}"
        report.add(figure, found * 1e6, "us", against=against, ratio=found / bare, goal=goal)


def medians(calls: list[Callable[[], None]], rounds: int, count: int) -> list[float]:
    """The median seconds of each call, in turn, after one round that does not count."""
    found: list[list[float]] = [[] for _ in calls]
    for round_number in range(rounds + 1):
        for call, seconds in zip(calls, found, strict=True):
            for _ in range(count):
                began = time.perf_counter()
                call()
                if round_number:
                    seconds.append(time.perf_counter() - began)
    return [statistics.median(each) for each in found]
