"""A shop on SQLite, captured live: every order that Tidegate shows has all of its items and its payment.

python examples/shop.py                  takes about 20 s; it needs Spark: pip install 'tidegate[spark]'
python examples/shop.py --without-spark  takes about 6 s; no checkpoints, the view is computed when it is read
"""

import random
import sys
import tempfile
import threading
import time
from contextlib import closing
from itertools import count

import tidegate
from tidegate.capture.sqlite import connect

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT);
CREATE TABLE items (order_id INTEGER, n INTEGER, cents INTEGER, PRIMARY KEY (order_id, n));
CREATE TABLE payments (order_id INTEGER PRIMARY KEY, cents INTEGER);
"""
RECEIPTS = """
SELECT o.id, o.customer, count(*) AS items, sum(i.cents) AS total, p.cents AS paid
FROM orders o JOIN items i ON i.order_id = o.id JOIN payments p ON p.order_id = o.id
GROUP BY o.id, o.customer, p.cents
"""
# All orders, those with items and payment, and those whose payment is not the sum of the items: from one cut.
QUESTION = """
SELECT (SELECT count(*) FROM orders) AS orders, count(*) AS whole, count_if(total <> paid) AS wrong FROM receipts
"""


class CardDeclined(Exception):
    pass


def sell(path: str, closing_time: threading.Event) -> None:
    """The application: all it has to do with Tidegate is that its connection records what it changes."""
    with closing(connect(path, mode="full")) as shop:
        for id in count(1):
            if closing_time.wait(0.02):
                return
            prices = random.choices([120, 320, 495, 875], k=random.randint(1, 4))
            try:
                with shop:  # One transaction over three tables.
                    shop.execute("INSERT INTO orders VALUES (?, ?)", (id, random.choice(["Ann", "Bo", "Cy"])))
                    shop.executemany("INSERT INTO items VALUES (?, ?, ?)", [(id, *each) for each in enumerate(prices)])
                    if random.random() < 0.1:
                        raise CardDeclined  # All of it is rolled back.
                    shop.execute("INSERT INTO payments VALUES (?, ?)", (id, sum(prices)))
                    if id % 5 == 0:  # And an older order is cancelled.
                        for table, key in (("orders", "id"), ("items", "order_id"), ("payments", "order_id")):
                            shop.execute(f"DELETE FROM {table} WHERE {key} = ?", (id // 2,))
            except CardDeclined:
                continue


def main(directory: str, with_spark: bool) -> bool:
    """Capture the shop and ask; whether no answer was torn and all is here in the end."""
    source, closing_time = f"{directory}/shop.db", threading.Event()
    with closing(connect(source, mode="off")) as shop:
        shop.executescript(SCHEMA)
        shop.set_capture("full")  # From here on there is something to capture.
    seller = threading.Thread(target=sell, args=(source, closing_time))
    seller.start()

    torn = 0
    with tidegate.open(f"{directory}/shop.tide", settings=tidegate.DatabaseSettings(pipeline=with_spark)) as db:
        capture = db.capture(f"sqlite:///{source}")  # What is there, in one transaction; then each as it happens.
        db.sql(f"CREATE MATERIALIZED VIEW receipts AS {RECEIPTS}")
        levels = ["strong", "bounded"]
        if with_spark:
            db.flush()  # The first checkpoint: Spark has to start.
            levels.append("eventual")
        # A session never goes back: each level has one of its own, so that none makes another's answers fresher.
        sessions = {level: db.session(consistency=level) for level in levels}
        for _ in range(5):
            time.sleep(1)
            for level, session in sessions.items():
                answer = session.query(QUESTION)
                row = answer.rows()[0]
                torn += row["orders"] != row["whole"] or row["wrong"] != 0
                print(f"{level:<8}  at {answer.timestamp}  {row}  {answer.views['receipts']}")

        closing_time.set()
        seller.join()
        capture.catch_up()  # Everything that SQLite has committed is in the log.
        here = [tuple(row.values()) for row in db.query("SELECT * FROM receipts ORDER BY id", "strong")]
        print(f"{capture.status()['transactions']} transactions were captured, {torn} answers were torn")
    with closing(connect(source, mode="off")) as shop:
        there = shop.execute(f"{RECEIPTS} ORDER BY o.id").fetchall()
    print(f"{len(here)} receipts here, {len(there)} in SQLite: {'the same' if here == there else 'NOT the same'}")
    return here == there and not torn


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(0 if main(directory, "--without-spark" not in sys.argv) else 1)
