"""What capture costs and carries: recording on SQLite, shipping from SQLite and PostgreSQL, snapshots, freshness.

Recording is compared with the same statements without it, and with what Turso's own recording costs Turso. Shipping and
snapshots end in the synced log; freshness in a view's checkpoint.
"""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import tidegate
from tidegate.bench.report import Report
from tidegate.bench.work import Measure, Work, measure_all
from tidegate.capture.sqlite import connect
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import InvariantBroken, Unavailable

_SCHEMA: Final = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, state TEXT, total REAL)",
    "CREATE TABLE items (id INTEGER PRIMARY KEY, order_id INTEGER, article TEXT, quantity INTEGER, price REAL)",
    "CREATE INDEX items_of ON items (order_id)",
    "CREATE TABLE payments (order_id INTEGER PRIMARY KEY, amount REAL, method TEXT)",
)
_ROUNDS: Final = 5
_PER_TRANSACTION: Final = 100
_SIDES: Final = ("sqlite", "sqlite, recording", "turso", "turso, recording")


# -- recording ---------------------------------------------------------------------------------------------------------


def overhead(report: Report, work: Work) -> None:
    """Orders of seven changed rows, a transaction each, synced; and a few statements that change many rows each."""
    orders = work.pick(600, 10)
    for name, run, count, goal in (
        ("orders", _orders, orders, "<= 2.5"),
        ("bulk", _bulk, work.pick(20_000, 100), ">= 0"),
    ):
        times = _times(work, partial(run, count=count))
        ours = times["sqlite, recording"] / times["sqlite"]
        report.add(
            f"capture.overhead.{name}",
            times["sqlite, recording"] * 1000,
            "ms",
            against=f"the same without recording, {times['sqlite'] * 1000:,.0f} ms",
            ratio=ours,
            goal=goal,
        )
        turso = times["turso, recording"] / times["turso"]
        report.add(
            f"capture.overhead.{name}.turso",
            ours,
            "times the time",
            against=f"Turso's own recording takes {turso:.2f} times the time ({times['turso'] * 1000:,.0f} ms without)",
            ratio=ours / turso,
            goal="<= 1.5" if name == "orders" else ">= 0",
        )


def _times(work: Work, run: Callable[[Any], None]) -> dict[str, float]:
    """The median of each side, in turn."""
    found: dict[str, list[float]] = {side: [] for side in _SIDES}
    for number in range(work.pick(_ROUNDS, 1)):
        for side in _SIDES:
            folder = work.directory / f"{side}-{number}"
            folder.mkdir()
            db = _open(side, str(folder / "app.db"))
            for statement in _SCHEMA:
                db.execute(statement)
            db.commit()
            began = time.perf_counter()
            run(db)
            found[side].append(time.perf_counter() - began)
            db.close()
            shutil.rmtree(folder)
    return {side: statistics.median(times) for side, times in found.items()}


def _open(side: str, path: str) -> Any:
    """All in WAL mode, synced at every commit."""
    if side.startswith("turso"):
        import turso

        db = turso.connect(path, isolation_level="DEFERRED")
        db.execute("PRAGMA synchronous = FULL")
        if side != "turso":
            db.execute("PRAGMA capture_data_changes_conn('full')")
        return db
    plain = sqlite3.connect(path)
    plain.execute("PRAGMA journal_mode = WAL")
    if side == "sqlite":
        plain.execute("PRAGMA synchronous = FULL")
        return plain
    plain.close()
    db = connect(path, mode="full")
    db.execute("PRAGMA synchronous = FULL")
    return db


def _orders(db: Any, count: int) -> None:
    for order in range(count):
        db.execute("INSERT INTO orders VALUES (?, ?, 'open', 0.0)", (order, f"customer {order % 997}"))
        for item in range(3):
            db.execute("INSERT INTO items VALUES (NULL, ?, ?, ?, 9.99)", (order, f"article {item}", item + 1))
        db.execute("INSERT INTO payments VALUES (?, 29.97, 'card')", (order,))
        db.execute("UPDATE orders SET state = 'paid', total = 29.97 WHERE id = ?", (order,))
        if order % 10 == 0:
            db.execute("DELETE FROM items WHERE order_id = ?", (order - 5,))
        db.commit()


def _bulk(db: Any, count: int) -> None:
    db.executemany("INSERT INTO items VALUES (NULL, ?, ?, 3, 9.99)", [(n, f"article {n}") for n in range(count)])
    db.execute("UPDATE items SET quantity = quantity + 1")
    db.execute("DELETE FROM items WHERE id % 3 = 0")
    db.commit()


# -- shipping ----------------------------------------------------------------------------------------------------------


def shipping(report: Report, work: Work) -> None:
    """Changed rows a second from a change table into the log, in transactions of 100 and of 10."""
    for each, goal in ((_PER_TRANSACTION, 50_000), (10, 0)):
        source = work.directory / f"app-{each}.db"
        count = work.pick(1_000 * each, 2 * each)
        with _recorded(source) as app, _database(work, f"ship-{each}.tide") as db:
            with db.capture(f"sqlite:///{source}"):
                pass
            for start in range(0, count, each):
                _write_orders(app, start, each)
            seconds = _caught_up(db, f"sqlite:///{source}", count)
        report.add(
            f"capture.shipping.sqlite.{each}_rows",
            count / seconds,
            "rows/s",
            against=f"{goal:,} rows/s, in transactions of {each} rows" if goal else f"transactions of {each} rows",
            ratio=count / seconds / (goal or count / seconds),
            goal=">= 1" if goal else ">= 0",
        )


def shipping_postgres(report: Report, work: Work) -> None:
    """The same from a PostgreSQL server of its own, streamed."""
    each, count = _PER_TRANSACTION, work.pick(100_000, 200)
    goal = f"30,000 rows/s, in transactions of {each} rows"
    try:
        seconds = _from_postgres(work, each, count)
    except (Unavailable, ModuleNotFoundError) as error:
        against = f"NOT MEASURED, {goal}: {error}"
        report.add("capture.shipping.postgres", 0.0, "rows/s", against=against, ratio=0.0, goal=">= 1")
        return
    rate = count / seconds
    report.add("capture.shipping.postgres", rate, "rows/s", against=goal, ratio=rate / 30_000, goal=">= 1")


def _from_postgres(work: Work, each: int, count: int) -> float:
    from tidegate.bench.pg_server import Server

    server = Server()
    try:
        with server.database() as name, server.connect(name) as app, _database(work, "pg.tide") as db:
            app.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer text, state text, total float8)")
            url = server.url(name)
            with db.capture(url):
                pass
            for start in range(0, count, each):
                app.execute(
                    "INSERT INTO orders SELECT n, 'customer ' || n %% 997, 'open', n * 1.5"
                    " FROM generate_series(%s::bigint, %s) n",
                    [start, start + each - 1],
                )
            return _caught_up(db, url, count)
    finally:
        server.stop()


def left_alone(report: Report, work: Work) -> None:
    """Transactions a second that update a row and leave a large value of it alone, which PostgreSQL does not send."""
    against = "the same of rows without large values"
    try:
        small, large = (_updates(work, size, work.pick(4_000, 20)) for size in (10, 8_000))
    except (Unavailable, ModuleNotFoundError) as error:
        report.add(
            "capture.left_alone", 0.0, "/s", against=f"NOT MEASURED, {against}: {error}", ratio=0.0, goal=">= 0.1"
        )
        return
    report.add(
        "capture.left_alone", large, "/s", against=f"{against}, {small:,.0f}/s", ratio=large / small, goal=">= 0.1"
    )


def _updates(work: Work, size: int, count: int) -> float:
    from tidegate.bench.pg_server import Server

    rows = min(count, 1_000)
    server = Server()
    try:
        with (
            server.database() as name,
            server.connect(name) as app,
            _database(work, f"updates-{size}.tide") as db,
        ):
            app.execute("CREATE TABLE orders (id bigint PRIMARY KEY, state bigint, note text)")
            app.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")  # As compressed it would be small.
            app.execute("INSERT INTO orders SELECT n, 0, repeat('x', %s) FROM generate_series(1, %s) n", [size, rows])
            url = server.url(name)
            with db.capture(url):
                pass
            for number in range(count):
                app.execute("UPDATE orders SET state = state + 1 WHERE id = %s", [1 + number * 7 % rows])
            seconds = _caught_up(db, url, rows)
            asked = "SELECT CAST(sum(state) AS BIGINT) AS n, min(length(note)) AS size FROM orders"
            found = db.query(asked, "strong").rows()
            if found != [{"n": count, "size": size}]:
                raise InvariantBroken(f"{found} is here, and not {count:,} updates of values of {size:,}")
            return count / seconds
    finally:
        server.stop()


def _caught_up(db: Database, url: str, count: int) -> float:
    """How long it takes to take what waits at a source."""
    began = time.perf_counter()
    with db.capture(url) as capture:
        capture.catch_up(600)
        seconds = time.perf_counter() - began
    found = db.query("SELECT count(*) AS n FROM orders", "strong").rows()[0]["n"]
    if found != count:
        raise InvariantBroken(f"{found:,} rows are here, not {count:,}")
    return seconds


# -- the snapshot ------------------------------------------------------------------------------------------------------


def snapshot(report: Report, work: Work) -> None:
    """Rows a second of an initial snapshot, from SQLite."""
    count = work.pick(1_000_000, 1_000)
    source = work.directory / "app.db"
    with _recorded(source) as app:
        app.set_capture("off")
        app.executemany(
            "INSERT INTO orders VALUES (?, ?, 'open', ?)", ((n, f"customer {n}", n * 1.5) for n in range(count))
        )
        app.commit()
    with _database(work, "snapshot.tide") as db:
        began = time.perf_counter()
        with db.capture(f"sqlite:///{source}"):
            seconds = time.perf_counter() - began
        found = db.query("SELECT count(*) AS n FROM orders", "strong").rows()[0]["n"]
    if found != count:
        raise InvariantBroken(f"{found:,} rows are here, not {count:,}")
    report.add(
        "capture.snapshot",
        count / seconds,
        "rows/s",
        against=f"150,000 rows/s, {count:,} rows of 4 columns",
        ratio=count / seconds / 150_000,
        goal=">= 1",
    )


# -- freshness ---------------------------------------------------------------------------------------------------------


def freshness(report: Report, work: Work) -> None:
    """From a commit at the source to a checkpoint of a view that shows it, at a barrier interval of 1 s."""
    seconds = work.pick(30.0, 3.0)
    source = work.directory / "app.db"
    with (
        _recorded(source) as app,
        tidegate.open(work.directory / "fresh.tide", settings=DatabaseSettings(barrier_interval_ms=1_000)) as db,
    ):
        _write_orders(app, 0, 10)
        db.capture(f"sqlite:///{source}")
        db.sql(
            "CREATE MATERIALIZED VIEW newest AS SELECT state, count(*) AS n, max(id) AS id FROM orders GROUP BY state"
        )
        for turn in range(3):  # Warm.
            _write_orders(app, 10 + turn, 1)
            db.flush(120)
        committed: dict[int, float] = {}
        delays: list[float] = []
        began, order = time.perf_counter(), 13
        while time.perf_counter() - began < seconds or committed:
            if time.perf_counter() - began < seconds:
                _write_orders(app, order, 1)
                committed[order] = time.perf_counter()
                order += 1
            shown = db.query("SELECT max(id) AS id FROM newest", "eventual").rows()[0]["id"]
            now = time.perf_counter()
            for each in [each for each in committed if each <= shown]:
                delays.append(now - committed.pop(each))
            time.sleep(0.02)
            if now - began > seconds + 60:
                raise InvariantBroken(f"{len(committed)} orders are not in the view after a minute")
    median = statistics.median(delays)
    report.add(
        "capture.freshness",
        median * 1000,
        "ms",
        against=f"2,000 ms, median of {len(delays):,} commits; the slowest {max(delays) * 1000:,.0f} ms",
        ratio=median / 2.0,
        goal="<= 1",
    )


# -- what they share ---------------------------------------------------------------------------------------------------


@contextmanager
def _recorded(path: Path) -> Iterator[Any]:
    """An application's connection that records, on a database in WAL mode."""
    plain = sqlite3.connect(path)
    plain.execute("PRAGMA journal_mode = WAL")
    plain.close()
    app = connect(str(path), mode="full")
    app.execute("PRAGMA synchronous = NORMAL")
    for statement in _SCHEMA:
        app.execute(statement)
    app.commit()
    try:
        yield app
    finally:
        app.close()


def _write_orders(app: Any, start: int, count: int) -> None:
    rows = [(n, f"customer {n % 997}", "open", n * 1.5) for n in range(start, start + count)]
    app.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
    app.commit()


@contextmanager
def _database(work: Work, name: str) -> Iterator[Database]:
    """Without the pipeline: what is measured ends in the log."""
    with tidegate.open(work.directory / name, settings=DatabaseSettings(pipeline=False)) as db:
        yield db


_MEASURES: Final[dict[str, Measure]] = {
    "capture.overhead": overhead,
    "capture.shipping.sqlite": shipping,
    "capture.shipping.postgres": shipping_postgres,
    "capture.left_alone": left_alone,
    "capture.snapshot": snapshot,
    "capture.freshness": freshness,
}
run = partial(measure_all, _MEASURES)
