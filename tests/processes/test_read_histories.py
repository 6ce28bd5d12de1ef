"""What several processes did and saw, while owners were killed, is a history that Tidegate may give (promises 2 to 6).

Sessions in three processes move money between accounts in two tables, over all shards and channels, and read at every
consistency level. Meanwhile the owner is killed with SIGKILL, or another one, or one ends and comes back; sessions go
on in other processes with their tokens. The clocks of some are an hour off. Each writes down what it asked for and was
told, and when. `history_checker` judges; it has tests of its own.
"""

import json
import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from history_checker import History, Read, Transfer, check
from history_client import SETTINGS, TABLES, look, open_database

import tidegate
from children import Child, owner_pid
from helpers import eventually
from tidegate.database import engine
from tidegate.tables.changes import changes_of
from tidegate.tables.schema import TS

SECONDS = float(os.environ.get("TIDEGATE_HISTORY_SECONDS", "16"))
SEED = int(os.environ.get("TIDEGATE_HISTORY_SEED", "0")) or random.randrange(1, 1 << 32)
CODE = """
import sys
sys.path[:0] = {places}
import seed_client
seed_client.set_clocks(int(sys.argv.pop()))
import history_client
history_client.main()
"""
CLOCKS_S = (0, 0, 0, -3600, 3600)
"""How far the clocks of a process are off."""
AT_FIRST = 1000
START = {f"{table}.{id}": AT_FIRST for table, count in TABLES.items() for id in range(count)}


class Bank:
    """The processes, and what they wrote down."""

    def __init__(self, path, tmp_path, rng):
        self.path = path
        self.rng = rng
        self.root = tmp_path
        self.given_away = tmp_path / "given-away"
        self.given_away.mkdir()
        self.stop = tmp_path / "stop"
        here = Path(__file__).resolve().parent
        self.code = CODE.format(places=[str(here), str(here.parent)])
        self.running = {}
        self.ended = []
        self.met = Counter()
        self._number = 0

    def start(self, held=()):
        slot = f"p{self._number}"
        self._number += 1
        self.running[slot] = Child(
            self.code, self.path, slot, SEED, self.records_of(slot), self.given_away, self.stop,
            json.dumps(list(held)), self.rng.choice(CLOCKS_S), errors=self.root / "errors",
        )  # fmt: skip

    def records_of(self, slot):
        return self.root / f"{slot}.jsonl"

    def held_by(self, slot):
        """The sessions that a process held last, with their tokens."""
        held = {}
        for each in read_records(self.records_of(slot)):
            held[each["worker"]] = None if each["what"] == "give" else (each["session"], each["token"])
        return [each for each in held.values() if each is not None]

    def disturb(self):
        """End a process, the owner more often than others, and let a new one go on with its sessions."""
        rng, owner = self.rng, owner_pid(self.path)
        # One that has done something, so that there is something to go wrong.
        ready = [slot for slot in sorted(self.running) if len(read_records(self.records_of(slot))) > 10]
        if len(ready) < 2:
            return
        owning = [slot for slot in ready if self.running[slot].pid == owner]
        slot = owning[0] if owning and rng.random() < 0.65 else rng.choice(ready)
        child = self.running.pop(slot)
        how = "killed" if rng.random() < 0.8 else "ended"
        if how == "ended":
            Path(f"{self.stop}-{slot}").touch()
            assert child.wait(60) == 0
        else:
            child.kill()
        self.ended.append(child)
        self.met[f"owner {how}" if slot in owning else f"client {how}"] += 1
        self.start(self.held_by(slot))

    def has_lived(self):
        """Whether enough has happened; a busy machine needs longer."""
        return self.met["owner killed"] + self.met["owner ended"] >= 2 and len(self.records()) > 200

    def finish(self):
        self.stop.touch()
        assert [each.wait(60) for each in self.running.values()] == [0] * len(self.running), self.complaints()

    def complaints(self):
        return [each for child in (*self.ended, *self.running.values()) for each in child.complaints]

    def kill_all(self):
        for each in self.running.values():
            each.kill()

    def records(self):
        return [each for path in sorted(self.root.glob("*.jsonl")) for each in read_records(path)]


def read_records(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def create(path):
    with open_database(path, "first") as db:
        db.sql("CREATE TABLE checking (id BIGINT PRIMARY KEY, balance BIGINT) SHARDS 3")
        db.sql("CREATE TABLE savings (id BIGINT PRIMARY KEY, balance BIGINT) SHARDS 2")
        db.sql("CREATE TABLE ledger (id STRING PRIMARY KEY, moves STRING) SHARDS 2")
        with db.transaction() as txn:
            for table, count in TABLES.items():
                txn.insert(table, [(id, AT_FIRST) for id in range(count)])
        db.flush()  # Eventual reads have the accounts, too.


def committed(db):
    """What the log holds: by transfer, when it was committed and what it moved."""
    table = db.table("ledger").table
    db.wait_visible(db.query("SELECT * FROM ledger", "strong").timestamp)
    log = tidegate.read_log(db.path)
    found = {}
    for number in range(SETTINGS.channels):
        with log.transaction_reader(f"data-{number}") as reader:
            while (delivery := reader.poll()) is not None:
                for row in changes_of(table, delivery.batches).to_pylist():
                    assert row["id"] not in found, f"{row['id']} is in the log twice"
                    found[row["id"]] = (row[TS], json.loads(row["moves"]))
    return found


def history_of(records, in_log):
    moves, reads = {}, []
    for each in records:
        what = each["what"]
        if what in ("try", "move"):
            names = ("id", "session", "invoked_ns", "at", "responded_ns", "is_refused")
            moves[each["id"]] = Transfer(**{name: each[name] for name in names if name in each})
        elif what == "read":
            reads.append(Read(**{name: each[name] for name in Read.__dataclass_fields__ if name in each}))
    return History(START, in_log, list(moves.values()), reads)


@pytest.mark.slow
@pytest.mark.timeout(6 * SECONDS + 200)
def test_whoever_is_killed_every_answer_keeps_its_promise(tmp_path, monkeypatch):
    print(f"seed {SEED}; repeat with TIDEGATE_HISTORY_SEED={SEED}, longer with TIDEGATE_HISTORY_SECONDS")
    monkeypatch.setattr(engine, "spark_worker", engine.spark_worker)  # `open_database` sets another; put it back.
    path = tmp_path / "bank.tide"
    create(path)
    rng = random.Random(SEED)
    bank = Bank(path, tmp_path, rng)
    try:
        for _ in range(3):
            bank.start()
        for each in bank.running.values():
            each.wait_ready()
        began = time.monotonic()
        while (passed := time.monotonic() - began) < SECONDS or (passed < 6 * SECONDS and not bank.has_lived()):
            time.sleep(rng.uniform(0.8, 2.0))
            assert not bank.complaints(), bank.complaints()
            bank.disturb()
        for each in bank.running.values():
            each.wait_ready()
        before = len(bank.records())
        eventually(lambda: len(bank.records()) > before + 10, 60, "reads of what goes on with the last sessions")
        bank.finish()
    finally:
        bank.kill_all()
    assert not bank.complaints(), bank.complaints()
    with open_database(path, "last") as db:
        in_log = committed(db)
        last = look(db.query, "strong")
    records = [*bank.records(), {**last, "session": "last", "level": "strong"}]
    history = history_of(records, in_log)
    done = check(history)

    used = defaultdict(set)
    for each in records:
        if each["what"] in ("read", "move"):
            used[each["session"]].add(each.get("worker", "").split("-")[0])
    moved = sum(len(each) > 1 for each in used.values())
    levels = Counter(each.level for each in history.reads)
    print(f"{len(in_log):,} transfers, reads {dict(levels)}; {dict(bank.met)}; {moved} sessions in several processes")
    print(f"checked {dict(done)}; {sum(each.is_refused for each in history.transfers)} refused")
    # It was a history worth checking.
    assert all(done.values()) and set(levels) >= {"strong", "session", "bounded", "eventual", "timestamp", "snapshot"}
    assert bank.has_lived() and moved >= 1
    assert len(in_log) > 20 and last["count"] == len(in_log)
