"""An application whose n-th transaction is the same whenever it runs: what it has done is known from how often.

`step` runs on a recorded connection in the application's process, and on a plain one in the test that knows what must
have come of it.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress

TABLES = ("state", "accounts", "moves", "notes")
SCHEMA = (
    "CREATE TABLE state (id INTEGER PRIMARY KEY, n INTEGER)",
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER, note TEXT)",
    "CREATE TABLE moves (account INTEGER, number INTEGER, amount INTEGER, PRIMARY KEY (account, number))",
    "CREATE TABLE notes (text TEXT, size REAL)",
)
ACCOUNTS = 20
WIDER_AT = 60
"""The transaction that adds a column."""


def prepare(db):
    """The first transaction, number 0."""
    for statement in SCHEMA:
        db.execute(statement)
    db.execute("BEGIN")
    db.execute("INSERT INTO state VALUES (1, 0)")
    db.executemany("INSERT INTO accounts VALUES (?, 100, NULL)", [(n,) for n in range(ACCOUNTS)])
    db.execute("COMMIT")


def done(db):
    """The number of the last transaction."""
    return db.execute("SELECT n FROM state").fetchone()[0]


def step(db):
    """The next transaction; some leave only its number."""
    n = done(db) + 1
    rng = random.Random(n)
    db.execute("BEGIN IMMEDIATE")
    if n == WIDER_AT:
        db.execute("ALTER TABLE accounts ADD COLUMN kind TEXT DEFAULT 'plain'")
    db.execute("UPDATE state SET n = ?", (n,))
    what = rng.randrange(8)
    if what <= 3:  # Money moves: the balances add up.
        a, b = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randrange(1, 20)
        db.execute("UPDATE accounts SET balance = balance - ? WHERE id = ?", (amount, a))
        db.execute("UPDATE accounts SET balance = balance + ?, note = ? WHERE id = ?", (amount, f"from {a}", b))
        db.execute("INSERT INTO moves VALUES (?, ?, ?), (?, ?, ?)", (a, n, -amount, b, n, amount))
    elif what == 4:  # Many rows.
        db.executemany("INSERT INTO notes VALUES (?, ?)", [("x" * rng.randrange(300), n / 7) for _ in range(100)])
        db.execute("DELETE FROM notes WHERE size < ?", (n / 7 - 3,))
    elif what == 5:  # A part of it is undone.
        db.execute("INSERT INTO notes VALUES ('kept', ?)", (n,))
        db.execute("SAVEPOINT s")
        db.execute("UPDATE accounts SET balance = 0")
        db.execute("DELETE FROM moves")
        db.execute("ROLLBACK TO s")
        db.execute("RELEASE s")
    elif what == 6:  # A statement fails, and the transaction goes on.
        with suppress(sqlite3.IntegrityError):
            db.execute("INSERT INTO moves SELECT account, number, 0 FROM moves")
        db.execute("REPLACE INTO moves SELECT account, number, amount FROM moves WHERE account = ?", (n % ACCOUNTS,))
    else:  # Keys change.
        db.execute("UPDATE moves SET number = number + 1000000 WHERE account = ? AND number < 1000000", (n % ACCOUNTS,))
    db.execute("COMMIT")
    return n


def content(query):
    """All tables, in an order that does not depend on who answers; `query` gives rows of SQL."""
    return {name: sorted(repr(tuple(row)) for row in query(f"SELECT * FROM {name}")) for name in TABLES}
