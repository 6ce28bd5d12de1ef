"""A process of the histories: sessions that move money and read, and write down what they did before they do more.

Each thread holds one session. It may give it away: another thread, mostly in another process, goes on with its token.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import tidegate
from folding import folding
from tidegate import DatabaseSettings, LogSettings, Timestamp, errors
from tidegate.database import engine

TABLES = {"checking": 6, "savings": 4}
"""How many accounts each has."""
ACCOUNTS = [(table, id) for table, count in TABLES.items() for id in range(count)]
EVERYTHING = (
    "SELECT 'checking' AS kind, id, balance FROM checking UNION ALL SELECT 'savings', id, balance FROM savings"
    " UNION ALL SELECT 'ledger', 0, count(*) FROM ledger"
)
BOUNDS_S = (0.05, 0.3, 1.0, 3.0)
SETTINGS = DatabaseSettings(
    channels=3, barrier_interval_ms=400, log=LogSettings(tick_interval_ms=20, segment_bytes=1 << 20)
)


def open_database(path: Path | str, name: str) -> Any:
    """The pipeline's worker is a thread of the owner."""
    engine.spark_worker = folding()
    return tidegate.open(path, settings=SETTINGS, name=name)


def look(query: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Everybody's balance and how many transfers there are, in one query; and when it was asked for and answered."""
    invoked = time.monotonic_ns()
    found = query(EVERYTHING, *arguments, engine="duckdb", **options)
    responded = time.monotonic_ns()
    rows = {f"{row['kind']}.{row['id']}": row["balance"] for row in found.rows()}
    count = rows.pop("ledger.0")
    return {
        "what": "read", "invoked_ns": invoked, "responded_ns": responded, "at": int(found.timestamp),
        "balances": rows, "count": count,
    }  # fmt: skip


class Records:
    """One line for each thing done, in the file before anything else is done. A line cut by a kill is left out."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()

    def add(self, record: dict[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        with self._lock:
            os.write(self._file, line)


class Worker:
    """One thread and the session that it holds."""

    def __init__(self, db: Any, name: str, rng: random.Random, records: Records, given_away: Path) -> None:
        self._db = db
        self._name = name
        self._rng = rng
        self._records = records
        self._given_away = given_away
        self._turn = 0
        self._session: Any = None
        self._session_name = ""
        self._known: list[int] = []
        """Timestamps to ask for by name."""

    def go_on_with(self, name: str, token: str | None) -> None:
        """Hold a session from now on: a new one, or by its token."""
        self._session, self._session_name = self._db.session(token=token), name
        self._note({"what": "hold"})

    def work(self) -> None:
        draw = self._rng.random()
        self._turn += 1
        if draw < 0.45:
            self._move()
        elif draw < 0.85 or not self._known:
            self._read()
        elif draw < 0.93:
            self._read_snapshot()
        elif draw < 0.96:
            self.go_on_with(self._session_name, self._session.token)
        else:
            self._give_away()

    def _note(self, record: dict[str, Any]) -> None:
        self._records.add({"worker": self._name, "session": self._session_name, "token": self._session.token, **record})

    def _move(self) -> None:
        """Take from one account, and give to one or two, over tables and shards."""
        rng = self._rng
        accounts = rng.sample(
            [(table, id) for table, count in TABLES.items() for id in range(count)], rng.choice([2, 3])
        )
        amounts = [rng.randrange(1, 20) for _ in accounts[1:]]
        deltas = list(zip(accounts, [-sum(amounts), *amounts], strict=True))
        id = f"{self._name}.{self._turn}"
        told = {"what": "move", "id": id, "invoked_ns": time.monotonic_ns()}
        self._note({**told, "what": "try"})
        try:
            with self._session.transaction() as txn:
                for table in TABLES:
                    mine = {account: delta for (each, account), delta in deltas if each == table}
                    if mine:
                        added = " ".join(f"WHEN {account} THEN {delta}" for account, delta in mine.items())
                        where = ", ".join(map(str, mine))
                        txn.sql(f"UPDATE {table} SET balance = balance + CASE id {added} END WHERE id IN ({where})")
                moves = {f"{table}.{account}": delta for (table, account), delta in deltas}
                txn.insert("ledger", [(id, json.dumps(moves))])
        except (errors.Conflict, errors.TransactionAborted):
            self._note({**told, "is_refused": True})
            return
        except errors.OutcomeUnknown:
            return
        told["responded_ns"] = time.monotonic_ns()
        self._note({**told, "at": int(txn.commit_timestamp)})
        self._known.append(int(txn.commit_timestamp))

    def _read(self) -> None:
        level = self._rng.choice(["strong", "strong", "session", "session", "bounded", "bounded", "eventual", "named"])
        if level == "bounded":
            bound_s = self._rng.choice(BOUNDS_S)
            found = look(self._session.query, level, staleness=bound_s)
            self._note({**found, "level": level, "bound_ns": round(bound_s * 1e9)})
        elif level == "named" and self._known:
            named = self._rng.choice(self._known[-20:]) - self._rng.choice([0, 0, 1])
            found = look(self._session.query, Timestamp(named))
            self._note({**found, "level": "timestamp", "named": named})
        else:
            level = "eventual" if level == "named" else level
            found = look(self._session.query, level)
            self._note({**found, "level": level})
        self._known.append(found["at"])

    def _read_snapshot(self) -> None:
        level = self._rng.choice(["strong", "session", "eventual"])
        name = f"{self._name}.{self._turn}"
        invoked = time.monotonic_ns()
        with self._session.snapshot(level) as snapshot:
            found = look(snapshot.query)
            self._note({**found, "invoked_ns": invoked, "level": level, "snapshot": name})
            for _ in range(self._rng.randrange(1, 3)):
                time.sleep(self._rng.uniform(0, 0.3))
                self._note({**look(snapshot.query), "level": "snapshot", "snapshot": name})

    def _give_away(self) -> None:
        """Leave the session to whoever comes next, and take what others have left; a new one if there is nothing."""
        mine = self._given_away / self._session_name
        self._note({"what": "give"})
        unfinished = mine.with_suffix(".new")
        unfinished.write_text(self._session.token)
        unfinished.rename(mine)
        left = [each for each in sorted(self._given_away.iterdir()) if each.suffix != ".new" and each != mine]
        self._rng.shuffle(left)
        for each in left:
            taken = each.with_name(f"{each.name}.{self._name}.new")
            try:
                each.rename(taken)
            except FileNotFoundError:
                continue  # Somebody was faster.
            self.go_on_with(each.name, taken.read_text())
            return
        self.go_on_with(f"{self._name}-{self._turn}", None)


def main() -> None:
    path, slot, seed, records_path, given_away, stop, held = sys.argv[1:8]
    db = open_database(path, slot)
    records = Records(Path(records_path))
    sessions: list[tuple[str, str | None]] = [tuple(each) for each in json.loads(held)]  # type: ignore[misc]

    def run(number: int) -> None:
        name = f"{slot}-{number}"
        worker = Worker(db, name, random.Random(f"{seed} {name}"), records, Path(given_away))
        try:
            worker.go_on_with(*(sessions[number] if number < len(sessions) else (name, None)))
            while not Path(stop).exists() and not Path(f"{stop}-{slot}").exists():
                worker.work()
        except BaseException as error:
            print(f"! {name}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()

    print("ready", flush=True)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    db.close()
