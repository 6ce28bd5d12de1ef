"""What open transactions cost the others: 10,000 of them, and one that never ends."""

from __future__ import annotations

import statistics
import threading
import time
import tracemalloc
from contextlib import ExitStack
from functools import partial

import tidegate
from tidegate.bench.report import Report
from tidegate.bench.txn_latency import medians
from tidegate.bench.work import ROW, Work, alternate_rates
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.database.transaction import Transaction


def many(report: Report, work: Work) -> None:
    """Appending, committing and ticking beside 10,000 open transactions, against 10; and what one holds in memory."""
    many_open, rounds, count = work.pick(10_000, 100), work.pick(9, 1), work.pick(60, 5)
    work.warm_up(work.pick(64 << 20, 1 << 20))
    settings = DatabaseSettings(transactions_max=2 * many_open)
    with ExitStack() as stack:
        few = stack.enter_context(tidegate.open(work.directory / "few.tide", settings=settings))
        lots = stack.enter_context(tidegate.open(work.directory / "many.tide", settings=settings))
        for db in (few, lots):
            db.sql("CREATE TOPIC one")
        kept = [_open(few) for _ in range(10)]
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(many_open):
            kept.append(_open(lots))
        each = (tracemalloc.get_traced_memory()[0] - before) / many_open
        tracemalloc.stop()
        for name, call in (("append", _append), ("commit", _commit), ("tick", _tick)):
            with_few, with_many = medians([lambda: call(few), lambda: call(lots)], rounds, count)  # noqa: B023
            report.add(
                f"transactions.open.{name}",
                with_many * 1e6,
                "us",
                against=f"beside 10 open: {with_few * 1e6:.0f} us",
                ratio=with_many / with_few,
                goal="<= 1.5",
            )
        report.add(
            "transactions.open.memory", each, "bytes", against="2,048 bytes each", ratio=each / 2048, goal="<= 1.0"
        )
        for txn in kept:
            txn.abort()


def _open(db: Database) -> Transaction:
    txn = db.transaction(timeout=600)
    txn.send("one", b"x")
    return txn


def _append(db: Database) -> None:
    db.send("one", ROW)


def _commit(db: Database) -> None:
    with db.transaction() as txn:
        txn.send("one", ROW)


def _tick(db: Database) -> None:
    db.engine.log.channel("data-0", create=False).tick(force=True)


def one(report: Report, work: Work) -> None:
    """Writers and a reader beside a transaction that stays open and has written, against the same without it."""
    rounds, seconds = work.pick(16, 1), work.pick(0.5, 0.1)
    work.warm_up(work.pick(256 << 20, 1 << 20))
    rates = []
    with ExitStack() as stack:
        one, other = (stack.enter_context(tidegate.open(work.directory / f"{name}.tide")) for name in "ab")
        for db in (one, other):
            db.sql("CREATE TOPIC one")
        # Two databases without such a transaction differ by 4 % here, so each has its turn of having it.
        for beside, free in ((one, other), (other, one)):
            txn = beside.transaction(timeout=600)
            txn.send("one", b"x" * (beside.settings.transaction_buffer_bytes + 1))
            rates.append(alternate_rates(partial(_both, beside, seconds), partial(_both, free, seconds), rounds))
            txn.abort()
    with_it, without = (statistics.geometric_mean(each) for each in zip(*rates))
    report.add(
        "transactions.open.one_for_ever",
        with_it,
        "messages/s",
        against=f"without it: {without:,.0f} messages/s (readers of Kafka and Pulsar would stop behind it)",
        ratio=with_it / without,
        goal=">= 0.95",
    )


def _both(db: Database, seconds: float) -> float:
    """Messages written by one thread and read by another, a second."""
    engine = db.engine
    channel = engine.channel_of(db.topic("one").id, 0)
    vchannel = db.topic("one").vchannel(0)
    writer = engine.log.channel(channel, create=False)
    stop = threading.Event()
    written = [0]

    def write() -> None:
        rows = [ROW] * 50
        while not stop.is_set():
            writer.append_batch(vchannel, rows)
            written[0] += len(rows)

    after = writer.latest_tick.time_tick
    thread = threading.Thread(target=write)
    seen = 0
    began = time.perf_counter()
    with engine.log.transaction_reader(channel, after=after, vchannels=frozenset({vchannel})) as reader:
        thread.start()
        while time.perf_counter() - began < seconds:
            delivery = reader.read(0.05)
            seen += 0 if delivery is None else len(delivery)
        stop.set()
        thread.join()
        writer.tick()
        while seen < written[0] and (delivery := reader.read(1.0)) is not None:
            seen += len(delivery)
    return seen / (time.perf_counter() - began)
