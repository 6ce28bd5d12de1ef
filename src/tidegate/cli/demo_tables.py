"""The demo's third scene: transactions over two tables, Spark folding them, sums that are the same at every time.

Each transfer writes two accounts and a row of `transfers`, over several channels, in one transaction. Whoever adds up
all balances, at the last checkpoint, strongly, or at any time before, gets what was there at the beginning. In the
middle the pipeline's worker is killed; another one goes on from the last checkpoint.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

from tidegate.cli.demo_money import ChangeOfMind, Mover
from tidegate.clock.timestamp import Timestamp
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import InvariantBroken, TidegateError
from tidegate.reads.consistency import Consistency
from tidegate.spark.java import JavaMissing, find_java

ACCOUNTS: Final = 100
EACH: Final = 100
TOTAL: Final = ACCOUNTS * EACH
SQL: Final = (
    "SELECT sum(balance) AS total, sum(moves) AS moves, (SELECT count(*) FROM transfers) AS transfers FROM accounts"
)
_MOVERS: Final = ("ann", "bo", "cy", "di")
_PAUSE_S: Final = 0.03
"""Between transfers of one mover: Spark and the readers share the machine."""
_CHANGE_OF_MIND: Final = 0.05
_BARRIER_MS = 1_000
_LOOK_S: Final = 0.05
_ASK_S: Final = 0.3
_ASK_PART: Final = 3
"""A reader rests so many times as long as its question took, and leaves the machine to Spark."""
_KILL_AT: Final = 0.4
"""Of the time it runs."""
_CHECKPOINT_MAX_S: Final = 300.0
_END_MAX_S: Final = 30.0
_WORKERS_MAX: Final = 4
"""So many may end without a checkpoint before that is the end of the scene."""
_REMEMBERED: Final = 1_000


def what_is_missing(work: Path) -> str | None:
    """What has to be installed before this scene can be played; None when nothing has to be."""
    if find_spec("pyspark") is None:
        return "it needs Spark, and the package pyspark is not installed; run `pip install 'tidegate[spark]'`"
    try:
        find_java(work)
    except JavaMissing as error:
        return str(error)
    return None


def stage_of(path: Path) -> str:
    """What the worker of a database is at before its first checkpoint, by the files it has made."""
    for work in (path / "pipeline").glob("worker-*"):
        if (work / "query" / "query").exists():
            return "Spark runs and takes the first epochs"
        if (work / "spark" / "tmp").exists():
            return "Java starts, and Spark in it"
    return "Python starts"


class Sums:
    """One way to ask for the sum, and what it gave. Written by its own thread, read by the display."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.asked = 0
        self.torn = 0
        """Answers that no state between transactions can give. It stays 0, or Tidegate is broken."""
        self.total: int | None = None
        self.transfers = 0
        self.at: Timestamp | None = None
        self.took_s = 0.0
        self.error: str | None = None

    def ask(self, db: Database, consistency: Consistency, expected: int | None = None) -> None:
        """Ask once. `expected` is how many transfers an earlier answer of the same time had."""
        began = monotonic()
        found = db.query(SQL, consistency)
        row: dict[str, Any] = found.rows()[0]
        self.took_s = monotonic() - began
        self.at, self.total, self.transfers = found.timestamp, int(row["total"] or 0), int(row["transfers"])
        is_right = self.total == TOTAL and int(row["moves"] or 0) == 2 * self.transfers
        self.torn += not is_right or (expected is not None and self.transfers != expected)
        self.asked += 1


class Tables:
    """Everything that runs while the scene is shown. Once started it comes to its end by itself, and sets `done`."""

    def __init__(self, path: Path, rng: random.Random, seconds: float, *, kill: bool = True) -> None:
        self._rng = rng
        self.seconds: Final = seconds
        # The death of a worker is part of the show and is told there; without this it would be printed, too.
        self._quiet = logging.NullHandler()
        logging.getLogger("tidegate").addHandler(self._quiet)
        settings = DatabaseSettings(barrier_interval_ms=_BARRIER_MS)
        self.db: Final = Database(path, name="demo", settings=settings)
        self.pipeline: Final = self.db.engine.pipeline
        self.phase = "starting"
        self.began = monotonic()
        self.started: float | None = None
        """When the first checkpoint was there and the movers began."""
        self.ran_s = 0.0
        self.movers: Final = [Mover(name) for name in _MOVERS]
        self.checkpoint, self.strong, self.past = Sums("checkpoint"), Sums("strong"), Sums("past")
        self.first_checkpoint = 0
        self.story: Final[list[tuple[float, str]]] = []
        """What happened to the worker, and when."""
        self.will_kill: Final = kill
        self.killed: int | None = None
        """The process that was."""
        self.killed_at = 0.0
        self._at_kill = 0
        """The last checkpoint before."""
        self.back_s: float | None = None
        """From the kill to the next checkpoint."""
        self.error: str | None = None
        self.done: Final = Event()
        self._opened = Timestamp.ZERO
        self._known: deque[tuple[Timestamp, int]] = deque(maxlen=_REMEMBERED)
        """Times and how many transfers there were, as the strong reads said."""
        self._stop = Event()
        """Of the movers."""
        self._end = Event()
        """Of everything."""
        self._conductor = Thread(target=self._conduct, daemon=True)
        self._threads = [Thread(target=self._move, args=(each, n), daemon=True) for n, each in enumerate(self.movers)]
        self._askers = [
            Thread(target=self._keep_asking, args=(each,), daemon=True)
            for each in (self.checkpoint, self.strong, self.past)
        ]

    @property
    def sums(self) -> tuple[Sums, Sums, Sums]:
        return self.checkpoint, self.strong, self.past

    @property
    def committed(self) -> int:
        return sum(each.committed for each in self.movers)

    @property
    def rolled_back(self) -> int:
        return sum(each.rolled_back for each in self.movers)

    @property
    def asked(self) -> int:
        return sum(each.asked for each in self.sums)

    @property
    def torn(self) -> int:
        return sum(each.torn for each in self.sums)

    @property
    def checkpoints(self) -> int:
        """Made while the movers ran, and the one that has all they did."""
        return self.pipeline.pointer.checkpoint - self.first_checkpoint if self.started is not None else 0

    @property
    def files(self) -> int:
        return len(self.pipeline.store.manifest().paths)

    @property
    def stage(self) -> str:
        """What a worker that has made no checkpoint yet is at."""
        return stage_of(self.pipeline.path)

    @property
    def errors(self) -> list[str]:
        who = [*[(each.name, each.error) for each in self.movers]]
        who += [(f"the reader of `{each.name}`", each.error) for each in self.sums]
        return [*[f"{name} stopped: {error}" for name, error in who if error], *([self.error] if self.error else [])]

    @property
    def is_right(self) -> bool:
        """Whether everything came out as it must."""
        return (
            self.phase == "done"
            and not self.torn
            and not self.errors
            and all(each.asked for each in self.sums)
            and self.checkpoint.transfers == self.strong.transfers == self.committed
            and (self.killed is None or self.back_s is not None)
        )

    # -- its course --------------------------------------------------------------------------------------------------

    def make_tables(self) -> None:
        """As they are at the beginning, also where this was played before."""
        for name in ("accounts", "transfers"):
            self.db.sql(f"DROP TABLE IF EXISTS {name}")
        self.db.sql("CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT, moves BIGINT) SHARDS 4")
        self.db.sql("CREATE TABLE transfers (mover STRING, sender BIGINT, receiver BIGINT, amount BIGINT)")
        rows = [{"id": account, "balance": EACH, "moves": 0} for account in range(ACCOUNTS)]
        self._opened = self.db.insert("accounts", rows).timestamp

    def start(self) -> None:
        """Make the tables, and let everything take its course."""
        self.make_tables()
        self._conductor.start()

    def close(self) -> None:
        """End whatever still runs."""
        self._stop.set()
        self._end.set()
        for thread in (self._conductor, *self._threads, *self._askers):
            if thread.ident is not None:
                thread.join(_END_MAX_S)
        self.db.close()
        logging.getLogger("tidegate").removeHandler(self._quiet)

    def _conduct(self) -> None:
        try:
            self._play()
        except Exception as error:
            self.error = _told(error)
        finally:
            self._stop.set()
            self._end.set()
            self.done.set()

    def _play(self) -> None:
        if not self._wait_for_checkpoint(self._opened):
            return
        self.first_checkpoint = self.pipeline.pointer.checkpoint
        self.phase, self.started = "running", monotonic()
        for mover in self.movers:
            mover.update_rate(self.started)
        for thread in (*self._threads, *self._askers):
            thread.start()
        while (gone := monotonic() - self.started) < self.seconds and not self._end.wait(_LOOK_S):
            if self.will_kill and self.killed is None and gone >= _KILL_AT * self.seconds:
                self._kill()
            self._look()
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_MAX_S)
        self.ran_s = monotonic() - self.started
        self.phase = "finishing"
        for mover in self.movers:
            mover.rate = 0.0
        if not self._wait_for_checkpoint(self.db.last_seen):
            return
        self._end.set()
        for thread in self._askers:
            thread.join(_END_MAX_S)
        self.checkpoint.ask(self.db, "eventual")
        self.strong.ask(self.db, "strong")
        # However short it was, each was asked once.
        known = [*self._known, (self.strong.at or self._opened, self.strong.transfers)]
        self._ask_past(self.past, known, self._rng)
        for mover in self.movers:
            mover.rate = mover.committed / self.ran_s
        self.phase = "done"

    def _wait_for_checkpoint(self, timestamp: Timestamp) -> bool:
        """Wait for a checkpoint that has everything up to a Timestamp; False when there will be none."""
        deadline, workers = monotonic() + _CHECKPOINT_MAX_S, set[int]()
        while self.pipeline.service_time < timestamp or (self.killed is not None and self.back_s is None):
            found = self.pipeline.status()
            workers |= {found["worker"]} - {None}
            if self._end.is_set():
                return False
            if monotonic() > deadline or (len(workers) > _WORKERS_MAX and found["failure"]):
                why = found["failure"] or found["waits_for"] or "it does not say why"
                self.error = f"the pipeline made no checkpoint at {timestamp}: {why}"
                return False
            self.pipeline.wait_for(timestamp, _LOOK_S)
            self._look()
        return True

    def _kill(self) -> None:
        pid = self.pipeline.status()["worker"]
        if pid is None:
            return
        self._at_kill = self.pipeline.pointer.checkpoint
        kill_worker(pid)
        self.killed, self.killed_at = pid, monotonic()
        self._tell(f"SIGKILL for the worker, process {pid}, behind checkpoint {self._at_kill:,}")

    def _look(self) -> None:
        """See whether the next worker has come, and how far it is."""
        if self.killed is None or self.back_s is not None:
            return
        found = self.pipeline.status()
        pid = found["worker"]
        if len(self.story) == 1 and pid is not None and found["failure"] is not None:
            self._tell(f"another one is started, process {pid}")
        if found["checkpoint"] > self._at_kill and pid is not None and found["failure"] is None:
            self.back_s = monotonic() - self.killed_at
            self._tell(f"checkpoint {found['checkpoint']:,} is there, {self.back_s:.1f} s after the kill")

    def _tell(self, text: str) -> None:
        self.story.append((monotonic() - (self.started or self.began), text))

    # -- threads -----------------------------------------------------------------------------------------------------

    def _move(self, mover: Mover, number: int) -> None:
        """Move money between accounts that no other mover touches, so that none waits for another."""
        rng = random.Random(self._rng.random())
        rows = {id: {"id": id, "balance": EACH, "moves": 0} for id in range(number, ACCOUNTS, len(self.movers))}
        try:
            while not self._stop.wait(_PAUSE_S):
                began = monotonic()
                sender, receiver = rng.sample(sorted(rows), 2)
                amount = rng.randrange(1, 10)
                changed = [
                    {"id": id, "balance": rows[id]["balance"] + change, "moves": rows[id]["moves"] + 1}
                    for id, change in ((sender, -amount), (receiver, amount))
                ]
                transfer = {"mover": mover.name, "sender": sender, "receiver": receiver, "amount": amount}
                try:
                    self._write(changed, transfer, is_kept=rng.random() >= _CHANGE_OF_MIND)
                except ChangeOfMind:
                    mover.rolled_back += 1
                    continue
                rows.update((each["id"], each) for each in changed)
                mover.latency_s = monotonic() - began
                mover.committed += 1
        except Exception as error:
            mover.error = _told(error)

    def _write(self, accounts: list[dict[str, int]], transfer: dict[str, Any], *, is_kept: bool) -> None:
        with self.db.transaction() as txn:
            txn.upsert("accounts", accounts)
            txn.insert("transfers", transfer)
            if not is_kept:
                raise ChangeOfMind

    def _keep_asking(self, sums: Sums) -> None:
        rng = random.Random(self._rng.random())
        try:
            while not self._end.wait(max(_ASK_S, _ASK_PART * sums.took_s)):
                if sums is self.checkpoint:
                    sums.ask(self.db, "eventual")
                elif sums is self.strong:
                    sums.ask(self.db, "strong")
                    if sums.at is not None:
                        self._known.append((sums.at, sums.transfers))
                elif known := list(self._known):
                    self._ask_past(sums, known, rng)
        except Exception as error:
            sums.error = _told(error)

    def _ask_past(self, sums: Sums, known: list[tuple[Timestamp, int]], rng: random.Random) -> None:
        """At a time for which the answer is known, and must be the same for ever; or at any time whatever."""
        if rng.random() < 0.5:
            at, transfers = rng.choice(known)
            sums.ask(self.db, at, transfers)
        else:
            sums.ask(self.db, Timestamp(rng.randint(int(self._opened), int(known[-1][0]))))


def _told(error: Exception) -> str:
    """What is said of it; a defect is named as such, so that no thread ends in silence."""
    return str(error) if isinstance(error, TidegateError) else f"a defect: {error!r}"


def kill_worker(pid: int) -> None:
    """End the worker's process without a chance to do anything about it."""
    if pid == os.getpid():
        raise InvariantBroken("the pipeline's worker is not a process of its own, so it is not killed")
    os.kill(pid, signal.SIGKILL)
