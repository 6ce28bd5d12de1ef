"""An applying process that is killed with SIGKILL, again and again: nothing is lost, repeated or torn at the target."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

import pytest

import tidegate
from children import Child
from helpers import eventually
from tidegate import DatabaseSettings

APPLIER = r"""
import sys, time
import tidegate
from tidegate import DatabaseSettings

path, url, chunk_rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = tidegate.open(path, settings=DatabaseSettings(pipeline=False))
assert not db.is_owner
following = db.apply(["orders", "items", "events"], url, chunk_rows=chunk_rows, follow=True)
while following.is_running and not following.transactions:
    time.sleep(0.005)
sys.stdout.write("ready\n")
sys.stdout.flush()
while following.is_running:
    time.sleep(0.1)
sys.stdout.write(f"!ended by {following.error}\n")
sys.stdout.flush()
"""
ITEMS = 3
"""How many every order has, in one transaction with it."""


class Shop(Thread):
    """Writes orders with their items, changes them and takes them away, each in one transaction."""

    def __init__(self, db: tidegate.Database) -> None:
        super().__init__(daemon=True)
        self._db = db
        self.stopped = Event()
        self.count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.order(self.count)
                self.count += 1
                time.sleep(0.005)
        except BaseException as error:
            self.error = error

    def order(self, number: int) -> None:
        id = number % 50
        with self._db.transaction() as txn:
            if number % 7 == 6:
                txn.delete("items", [(id, n) for n in range(ITEMS)])
                txn.delete("orders", [id])
            else:
                txn.upsert("orders", [(id, number)])
                txn.upsert("items", [(id, n, number) for n in range(ITEMS)])
            txn.insert("events", [(number,)])


def look(file: Path) -> int:
    """Promise 2, at the target: every order has all of its items, of one transaction; events are there once and
    without a gap. How many there are."""
    connection = sqlite3.connect(file, timeout=30)
    try:
        connection.execute("BEGIN")
        try:
            orders = dict(connection.execute("SELECT id, mark FROM orders").fetchall())
        except sqlite3.OperationalError:
            return 0  # Nothing was applied yet.
        items: dict[int, list[int]] = {}
        for id, mark in connection.execute("SELECT order_id, mark FROM items"):
            items.setdefault(id, []).append(mark)
        events = [each for (each,) in connection.execute("SELECT n FROM events ORDER BY n")]
    finally:
        connection.close()
    assert items == {id: [mark] * ITEMS for id, mark in orders.items()}
    assert events == list(range(len(events)))
    return len(events)


@pytest.mark.slow
def test_whenever_the_applying_process_is_killed_every_transaction_is_there_once(tmp_path: Path) -> None:
    """The way back: kill -9 anywhere neither loses nor repeats, and never leaves a part of a transaction."""
    pick = random.Random(7)
    file = tmp_path / "target.db"
    with tidegate.open(tmp_path / "here.tide", settings=DatabaseSettings(pipeline=False)) as db:
        db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, mark BIGINT)")
        db.sql("CREATE TABLE items (order_id BIGINT, n BIGINT, mark BIGINT, PRIMARY KEY (order_id, n))")
        db.sql("CREATE TABLE events (n BIGINT)")
        shop = Shop(db)
        shop.start()
        seen = [0]
        for number in range(4):
            child = Child(APPLIER, db.path, f"sqlite:///{file}", pick.choice([1, 7, 100]), errors=tmp_path / "errors")
            try:
                if number:  # The first may be killed while it copies what is there at the start.
                    child.wait_ready()
                until = time.monotonic() + pick.uniform(0.1, 1.0)
                while time.monotonic() < until:
                    seen.append(look(file))
                    time.sleep(0.01)
            finally:
                child.kill()
            seen.append(look(file))
            assert not child.complaints, child.complaints
        shop.stopped.set()
        shop.join()
        assert shop.error is None
        assert seen == sorted(seen)  # It never goes back.
        assert len(set(seen)) > 10
        db.apply(["orders", "items", "events"], f"sqlite:///{file}")
        assert look(file) == shop.count
        connection = sqlite3.connect(file)
        for table in ("orders", "items"):
            here = sorted(tuple(each.values()) for each in db.query(f"SELECT * FROM {table}", "strong").rows())
            assert sorted(connection.execute(f"SELECT * FROM {table}").fetchall()) == here
        connection.close()


@pytest.mark.slow
def test_the_command_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C: what was applied is said, and the exit code is that of an interrupt."""
    file = tmp_path / "target.db"
    with tidegate.open(tmp_path / "here.tide", settings=DatabaseSettings(pipeline=False)) as db:
        db.sql("CREATE TABLE events (n BIGINT)")
        db.insert("events", [(0,)])
        command = [sys.executable, "-m", "tidegate.cli.main", "apply", "events", "--from", str(db.path)]
        process = subprocess.Popen(
            [*command, "--to", f"sqlite:///{file}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            eventually(lambda: count(file) == 1, 60)
            db.insert("events", [(1,)])
            eventually(lambda: count(file) == 2, 60)
        finally:
            process.send_signal(signal.SIGINT)
            said, complaints = process.communicate(timeout=60)
        assert process.returncode == 130, complaints
        assert "1 transactions with 1 rows, 1 rows copied at the start" in said


def count(file: Path) -> int:
    connection = sqlite3.connect(file)
    try:
        return int(connection.execute("SELECT count(*) FROM events").fetchone()[0])
    except sqlite3.OperationalError:
        return 0  # Not yet.
    finally:
        connection.close()
