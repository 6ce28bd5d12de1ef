"""The demo's shop, the application: a process that sells, on SQLite, and knows nothing of Tidegate but its connection.

Every order is one transaction over three tables: the order, one to four items, and a payment of their sum. Later an
order may be changed (one more item, the payment raised) or cancelled (all of it deleted), each in one transaction, too.
Some cards are declined when everything is written: the application rolls back. What it prints, a line each:

    try WHAT ORDER          a transaction is under way: placed, changed, cancelled or declined is how it will end
    WHAT ORDER              it has ended so
    error TEXT              it gives up

`stop` on its standard input ends it in good order; the end of that input means that the demo is gone, and ends it at
once.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Final

from tidegate.capture.sqlite import Connection, connect
from tidegate.cli.demo_shop_books import SCHEMA
from tidegate.errors import TidegateError

CUSTOMERS: Final = ("Ann", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ida", "Jo")
PRODUCTS: Final = (("pears", 320), ("figs", 495), ("bread", 410), ("honey", 875), ("tea", 650), ("salt", 120))
ENDS: Final = {"placed": 70, "changed": 15, "cancelled": 10, "declined": 5}
"""How transactions end, and how often in a hundred."""
_REST_S: Final = 0.02
_THINK_S: Final = 0.004
"""Between two statements of a transaction, so that a kill mostly meets one half done."""
_UNTOUCHED: Final = 10
"""The newest orders are left alone."""
_BUSY_S: Final = 30.0
"""How long it waits for whoever else writes to the database."""


class Declined(Exception):
    """The customer's card is not good, which is known last."""


class Till:
    """Where orders are made, changed and cancelled."""

    def __init__(self, db: Connection, rng: random.Random, say: Callable[..., None]) -> None:
        self._db = db
        self._rng = rng
        self._say = say
        self._orders: list[int] = [id for (id,) in db.execute("SELECT id FROM orders ORDER BY id")]
        self._next = (self._orders[-1] if self._orders else 0) + 1

    def serve(self) -> None:
        """One transaction."""
        (what,) = self._rng.choices(list(ENDS), list(ENDS.values()))
        if what in ("changed", "cancelled") and len(self._orders) <= _UNTOUCHED:
            what = "placed"
        getattr(self, f"_{what}")()

    def _placed(self) -> None:
        id, self._next = self._next, self._next + 1
        self._say("try", "placed", id)
        with self._db:
            self._write_order(id)
        self._orders.append(id)
        self._say("placed", id)

    def _declined(self) -> None:
        self._say("try", "declined", self._next)
        with suppress(Declined), self._db:
            self._write_order(self._next)
            raise Declined
        self._say("declined", self._next)  # The next customer's order gets its number.

    def _write_order(self, id: int) -> None:
        self._db.execute("INSERT INTO orders VALUES (?, ?)", (id, self._rng.choice(CUSTOMERS)))
        bought = self._rng.choices(PRODUCTS, k=self._rng.randint(1, 4))
        for n, (product, cents) in enumerate(bought, 1):
            sleep(_THINK_S)
            self._db.execute("INSERT INTO items VALUES (?, ?, ?, ?)", (id, n, product, cents))
        sleep(_THINK_S)
        self._db.execute("INSERT INTO payments VALUES (?, ?)", (id, sum(cents for _, cents in bought)))

    def _changed(self) -> None:
        id = self._rng.choice(self._orders[:-_UNTOUCHED])
        product, cents = self._rng.choice(PRODUCTS)
        self._say("try", "changed", id)
        with self._db:
            self._db.execute(
                "INSERT INTO items SELECT ?, max(n) + 1, ?, ? FROM items WHERE order_id = ?", (id, product, cents, id)
            )
            sleep(_THINK_S)
            self._db.execute("UPDATE payments SET cents = cents + ? WHERE order_id = ?", (cents, id))
        self._say("changed", id)

    def _cancelled(self) -> None:
        id = self._orders.pop(self._rng.randrange(len(self._orders) - _UNTOUCHED))
        self._say("try", "cancelled", id)
        with self._db:
            for table, key in (("payments", "order_id"), ("items", "order_id"), ("orders", "id")):
                self._db.execute(f"DELETE FROM {table} WHERE {key} = ?", (id,))
                sleep(_THINK_S)
        self._say("cancelled", id)


def open_shop(path: Path) -> Connection:
    """The application's database, with its tables; what is written through it is recorded, in the database itself."""
    db = connect(str(path), mode="off", timeout=_BUSY_S)
    db.execute("PRAGMA journal_mode = WAL")  # Whoever reads does not wait for the shop, nor the shop for them.
    db.executescript(SCHEMA)
    db.set_capture("full")
    return db


def say(*words: object) -> None:
    """One line, in one write, so that nothing is left in a buffer."""
    with suppress(BrokenPipeError):  # Whoever listened is gone, and soon this process is.
        os.write(1, (" ".join(map(str, words)) + "\n").encode())


def run(path: Path) -> None:
    """Sell until `stop` is heard."""
    stop = Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                stop.set()
        os._exit(1)

    Thread(target=listen, daemon=True).start()
    db = open_shop(path)
    till = Till(db, random.Random(), say)
    while not stop.wait(_REST_S):
        till.serve()
    db.close()


def main(arguments: Sequence[str]) -> int:
    """Path of the shop's database."""
    (path,) = arguments
    try:
        run(Path(path))
    except (TidegateError, sqlite3.Error) as error:
        say("error", " ".join(str(error).split()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
