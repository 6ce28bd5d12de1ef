"""Random transactions by concurrent sessions: what comes, folded, is the tables, and every prefix is a state of them.

Accounts and what was moved between them: the sum of all balances never changes, and every account's balance is what its
moves come to. A transaction that came in parts, twice, out of order or not at all would break one of them.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import psycopg
import pytest

from pg_mirror import Mirror, begin, catch_up, opened
from pg_server import Server
from tidegate.capture.source import Change, SourceTransaction

ACCOUNTS = 30
START = 1000


def work(server: Server, database: str, number: int, seed: int, transactions: int, failed: list[BaseException]) -> None:
    """A session: moves money, in small and in large transactions, with savepoints, rollbacks and key changes."""
    chance = random.Random(f"{seed} {number}")
    try:
        with server.connect(database) as db:
            db.execute("SET deadlock_timeout = '10ms'")
            for step in range(transactions):
                try:
                    with db.transaction():
                        move(db, chance, number * 1_000_000 + step * 1000)
                        if chance.random() < 0.15:
                            raise psycopg.Rollback
                except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    pass
    except BaseException as error:
        failed.append(error)


def move(db: psycopg.Connection[Any], chance: random.Random, first: int) -> None:
    moves = chance.choice([1, 1, 2, 5, 200])
    for number in range(first, first + moves):
        one, two = chance.sample(range(ACCOUNTS), 2)
        amount = chance.randrange(-50, 50)
        undone = chance.random() < 0.2
        db.execute("SAVEPOINT s")
        db.execute("UPDATE account SET balance = balance - %s WHERE owner = %s", [amount, one])
        db.execute("UPDATE account SET balance = balance + %s WHERE owner = %s", [amount, two])
        db.execute("INSERT INTO moved VALUES (%s, %s, %s, %s, repeat('x', %s))", [number, one, two, amount, amount])
        db.execute("ROLLBACK TO s" if undone else "RELEASE s")
    what = chance.random()
    if what < 0.2:
        # Another id, and the large note stays as it is.
        db.execute("UPDATE account SET id = id + 1000 WHERE owner = %s", [chance.randrange(ACCOUNTS)])
    elif what < 0.3:
        db.execute(
            "UPDATE account SET note = repeat(%s, 3000) WHERE owner = %s", [str(first), chance.randrange(ACCOUNTS)]
        )
    elif what < 0.4:
        db.execute("DELETE FROM moved WHERE id IN (SELECT id FROM moved WHERE amount = 0 LIMIT 5)")


def check(mirror: Mirror) -> None:
    """What is true of every committed state."""
    accounts = mirror.rows["account"].values()
    assert sum(row["balance"] for row in accounts) == ACCOUNTS * START
    assert sorted(row["owner"] for row in accounts) == list(range(ACCOUNTS))
    come = dict.fromkeys(range(ACCOUNTS), START)
    for row in mirror.rows["moved"].values():
        come[row["one"]] -= row["amount"]
        come[row["two"]] += row["amount"]
    assert {row["owner"]: row["balance"] for row in accounts} == come


def tables(db: psycopg.Connection[Any]) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    found = {}
    for name in ("account", "moved"):
        cursor = db.execute(f"SELECT * FROM {name}")  # type: ignore[call-overload]
        names = [each.name for each in cursor.description or ()]
        found[name] = {(row[0],): dict(zip(names, row, strict=True)) for row in cursor}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", ["streaming", "polling"])
def test_every_prefix_of_what_a_source_gives_is_a_committed_state(postgres, pg_database, mode, seed):
    """Issue 7, proof: random application histories. The reader stops, starts again and goes back to old positions."""
    chance = random.Random(f"{seed} {mode}")
    failed: list[BaseException] = []
    url = postgres.url(pg_database, mode=mode, options="-c logical_decoding_work_mem=64kB")
    with postgres.connect(pg_database) as db:
        db.execute("CREATE TABLE account (id int PRIMARY KEY, owner int, balance int, note text)")
        db.execute("CREATE TABLE moved (id int PRIMARY KEY, one int, two int, amount int, pad text)")
        db.execute("ALTER TABLE account ALTER note SET STORAGE EXTERNAL")
        db.execute(
            "INSERT INTO account SELECT i, i, %s, repeat('n', 3000) FROM generate_series(0, %s) i",
            [START, ACCOUNTS - 1],
        )
        sessions = [
            threading.Thread(target=work, args=[postgres, pg_database, number, seed, 60, failed]) for number in range(3)
        ]
        for each in sessions:
            each.start()
        with opened(url) as first:
            mirror = begin(first)
            check(mirror)
        seen: list[tuple[str, list[Change]]] = []

        def note(transaction: SourceTransaction, changes: list[Change]) -> None:
            if changes:
                seen.append((transaction.position, changes))
            check(mirror)

        while True:
            is_last = not any(each.is_alive() for each in sessions)
            with opened(url) as reader:
                known = list(mirror.tables.values())
                reader.resume(mirror.position, known)
                catch_up(reader, mirror, confirm=chance.random() < 0.7, each=note)
            if is_last:
                break
        for each in sessions:
            each.join()
        assert not failed
        assert len(seen) > 50 and len({position for position, _ in seen}) == len(seen)
        assert mirror.rows == tables(db)
