"""Tidegate's side of `bench-peers`: the files' rows through its API, until the view is in a checkpoint.

The database is open and its worker warm before the clock starts. A file is one transaction, in the bank a transfer is;
the pipeline runs all the while.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import tidegate
from tidegate.bench.peer_inputs import Answer, Input, answer, files, read, transfers
from tidegate.bench.views import wait_live
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import InvariantBroken

_FLUSH_S: Final = 600.0
_SMALL: Final = 1_000
_LOOK_S: Final = 0.05

_KEYED: Final = "SELECT key, sum(amount) AS total, count(*) AS n FROM events GROUP BY key"
_JOINED: Final = (
    "SELECT c.region, sum(o.amount) AS total, count(*) AS n FROM orders o JOIN customers c ON o.customer = c.number"
    " GROUP BY c.region"
)


@dataclass(frozen=True, slots=True)
class Ours:
    """What one workload took: `small_s` is an epoch of 1,000 changed rows afterwards."""

    seconds: float
    found: Answer
    epochs: int
    small_s: float


@dataclass(frozen=True, slots=True)
class OurBank:
    """The totals that were shown: by the view's changes, and by reads of it at two levels while it was written to."""

    seconds: float
    totals: tuple[int, ...]
    read: tuple[int, ...]


def keyed(given: Input, directory: Path) -> Ours:
    """Sums by key."""
    with _open(directory) as db:
        db.sql("CREATE TABLE events (number BIGINT PRIMARY KEY, key BIGINT, amount BIGINT) SHARDS 4")
        db.sql(f"CREATE MATERIALIZED VIEW found AS {_KEYED}")
        _warm_up(db, "events", {"number": -1, "key": -1, "amount": 0})

        def feed() -> None:
            for path in files(given.directory, "events"):
                with db.transaction(_FLUSH_S) as txn:
                    _take(txn, "events", read(path))

        return _measure(db, feed, "events", lambda at: {"number": -at - 1, "key": at, "amount": 1})


def joined(given: Input, directory: Path) -> Ours:
    """Orders and customers by region."""
    with _open(directory) as db:
        db.sql("CREATE TABLE orders (number BIGINT PRIMARY KEY, customer BIGINT, amount BIGINT) SHARDS 2")
        db.sql("CREATE TABLE customers (number BIGINT PRIMARY KEY, region BIGINT) SHARDS 2")
        db.sql(f"CREATE MATERIALIZED VIEW found AS {_JOINED}")
        _warm_up(db, "orders", {"number": -1, "customer": -1, "amount": 0})

        def feed() -> None:
            customers, orders = files(given.directory, "customers"), files(given.directory, "orders")
            for number, path in enumerate(customers):
                with db.transaction(_FLUSH_S) as txn:
                    _take(txn, "customers", read(path))
                    if number < len(orders):
                        _take(txn, "orders", read(orders[number]))

        return _measure(db, feed, "orders", lambda at: {"number": -at - 1, "customer": at, "amount": 1})


def bank(given: Input, directory: Path) -> OurBank:
    """Transfers, a transaction each, while the total is read and its changes are subscribed to."""
    with _open(directory, barrier_interval_ms=100) as db:
        db.sql("CREATE TABLE accounts (account BIGINT PRIMARY KEY, tx BIGINT, balance BIGINT) SHARDS 4")
        moved = transfers(files(given.directory, "bank")[0])
        db.insert("accounts", _accounts(next(moved)))
        db.flush(_FLUSH_S)
        db.sql("CREATE MATERIALIZED VIEW bank AS SELECT sum(balance) AS total, max(tx) AS tx FROM accounts")
        wait_live(db)
        changes = db.subscribe("bank", "totals", start="earliest")
        done = threading.Event()
        read_totals: list[int] = []

        def look() -> None:
            while not done.is_set():
                for level in ("eventual", "strong"):
                    found = db.query("SELECT total FROM bank", level)
                    read_totals.extend(int(row["total"]) for row in found.rows())
                done.wait(_LOOK_S)

        reader = threading.Thread(target=look)
        reader.start()
        try:
            began = time.perf_counter()
            for rows in moved:
                with db.transaction() as txn:
                    txn.upsert("accounts", _accounts(rows))
            db.flush(_FLUSH_S)
            seconds = time.perf_counter() - began
        finally:
            done.set()
            reader.join()
        totals = []
        while got := changes.receive_many(10_000, 2.0):
            totals += [int(each.value["total"]) for each in got if each.value["_change"] in ("insert", "update_after")]
            changes.ack(got)
        changes.close()
    return OurBank(seconds, tuple(totals), tuple(read_totals))


def _open(directory: Path, barrier_interval_ms: int = 1_000) -> AbstractContextManager[Database]:
    return tidegate.open(directory / "ours.tide", settings=DatabaseSettings(barrier_interval_ms=barrier_interval_ms))


def _warm_up(db: Database, table: str, row: dict[str, Any]) -> None:
    """Start the worker, and let it meet rows; none of them stays."""
    wait_live(db)
    for _ in range(3):
        db.upsert(table, [row])
        db.flush(_FLUSH_S)
    db.delete(table, [row["number"]])
    db.flush(_FLUSH_S)


def _take(txn: Any, table: str, rows: pa.Table) -> None:
    """Signed rows as upserts, and deletes of what goes and does not come again."""
    come = rows.filter(pc.equal(rows["w"], 1)).drop_columns(["w"])
    gone = rows.filter(pc.equal(rows["w"], -1)).select(["number"])
    gone = gone.filter(pc.invert(pc.is_in(gone["number"], come["number"])))
    if len(come):
        txn.upsert(table, come)
    if len(gone):
        txn.delete(table, gone)


def _accounts(rows: list[tuple[int, int, int]]) -> list[dict[str, int]]:
    return [{"account": account, "tx": tx, "balance": balance} for tx, account, balance in rows]


def _measure(db: Database, feed: Callable[[], None], table: str, row: Callable[[int], dict[str, int]]) -> Ours:
    before = _epoch(db)
    began = time.perf_counter()
    feed()
    db.flush(_FLUSH_S)
    seconds = time.perf_counter() - began
    epochs = _epoch(db) - before
    stored = db.query("SELECT * FROM found", "eventual")
    if stored.views["found"] != "stored":
        raise InvariantBroken(f"the view was {stored.views['found']}, and the stored one was to be checked")
    found = answer([tuple(each.values()) for each in stored.rows()])
    times = []
    for turn in range(5):
        db.upsert(table, [row(turn * _SMALL + at) for at in range(_SMALL)])
        began = time.perf_counter()
        db.flush(_FLUSH_S)
        times.append(time.perf_counter() - began)
    return Ours(seconds, found, epochs, statistics.median(times))


def _epoch(db: Database) -> int:
    return int(db.status()["pipeline"]["epoch"])
