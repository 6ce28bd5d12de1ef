"""How much goes through with transactions: producers that commit now and then, and consume, process, produce."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Final

import tidegate
from tidegate.bench.report import Report
from tidegate.bench.work import Work, alternate_rates
from tidegate.database.database import Database
from tidegate.database.outgoing import Outgoing
from tidegate.database.settings import DatabaseSettings
from tidegate.runtime.pending import PendingAppend

_PRODUCERS: Final = 8
_RECORD: Final = bytes(1024)
_COMMIT_EVERY_S: Final = 0.1
_IN_FLIGHT: Final = 256
_MESSAGES_GOAL: Final = 20_000
_PER_TRANSACTION: Final = 100


def producers(report: Report, work: Work) -> None:
    """Eight producers of 1 KB records, a channel each, that commit every 100 ms; against plain appends."""
    rounds, seconds = work.pick(5, 1), work.pick(1.5, 0.25)
    work.warm_up(work.pick(512 << 20, 1 << 20))
    settings = DatabaseSettings(channels=_PRODUCERS)
    with tidegate.open(work.directory / "producers.tide", settings=settings) as db:
        for number in range(_PRODUCERS):
            db.sql(f"CREATE TOPIC t{number}")
        ours, plain = alternate_rates(
            lambda: _produce(lambda number, stop: _in_transactions(db, number, stop), seconds),
            lambda: _produce(lambda number, stop: _plainly(db, number, stop), seconds),
            rounds,
        )
    report.add(
        "transactions.throughput.8_producers",
        ours,
        "records/s",
        against=f"the same without transactions: {plain:,.0f} records/s (Kafka's own figure: 3 % less)",
        ratio=ours / plain,
        goal=">= 0.95",
    )


def _produce(work: Callable[[int, threading.Event], int], seconds: float) -> float:
    """Acknowledged records a second of all producers together."""
    stop = threading.Event()
    counts = [0] * _PRODUCERS

    def run(number: int) -> None:
        counts[number] = work(number, stop)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(_PRODUCERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def _in_transactions(db: Database, number: int, stop: threading.Event) -> int:
    topic, count = f"t{number}", 0
    while not stop.is_set():
        end = time.perf_counter() + _COMMIT_EVERY_S
        with db.transaction() as txn:
            while time.perf_counter() < end:
                txn.send(topic, _RECORD)
                count += 1
    return count


def _plainly(db: Database, number: int, stop: threading.Event) -> int:
    """As a producer that does not wait for each record: up to 256 are on their way."""
    topic = db.topic(f"t{number}")
    engine = db.engine
    writer = engine.log.channel(engine.channel_of(topic.id, 0), create=False)
    count = 0
    pending: list[PendingAppend] = []
    while not stop.is_set():
        outgoing = Outgoing(db.channels)
        outgoing.add(topic, _RECORD)
        (pieces,) = outgoing.writes().values()
        pending.append(writer.append_async(pieces[0].vchannel, pieces[0].body))
        count += 1
        if len(pending) >= _IN_FLIGHT:
            for each in pending:
                each.result()
            pending.clear()
    for each in pending:
        each.result()
    return count


def consume_process_produce(report: Report, work: Work) -> None:
    """Receive 100 messages, send 100 others, acknowledge: one transaction. One thread."""
    rounds, transactions = work.pick(5, 1), work.pick(60, 2)
    work.warm_up(work.pick(128 << 20, 1 << 20))
    rates = []
    with tidegate.open(work.directory / "pipeline.tide") as db:
        db.sql("CREATE TOPIC source")
        db.sql("CREATE TOPIC target")
        consumer = db.subscribe("source", "copy")
        for round_number in range(rounds + 1):
            for _ in range(transactions):
                with db.transaction() as txn:
                    for number in range(_PER_TRANSACTION):
                        txn.send("source", {"n": number})
            began = time.perf_counter()
            for _ in range(transactions):
                _copy(db, consumer)
            if round_number:
                rates.append(transactions * _PER_TRANSACTION / (time.perf_counter() - began))
    value = statistics.median(rates)
    report.add(
        "transactions.consume_process_produce",
        value,
        "messages/s",
        against=f"{_MESSAGES_GOAL:,} messages/s (transactions of {_PER_TRANSACTION})",
        ratio=value / _MESSAGES_GOAL,
        goal=">= 1.0",
    )


def _copy(db: Database, consumer: tidegate.Consumer) -> None:
    with db.transaction() as txn:
        wanted = _PER_TRANSACTION
        while wanted:
            messages = consumer.receive_many(wanted, timeout=10)
            for message in messages:
                txn.send("target", {"n": message.value["n"] + 1})
            txn.ack(messages)
            wanted -= len(messages)
