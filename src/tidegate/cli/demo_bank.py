"""The demo's bank: 1,000 accounts in an embedded database, transfers from another process, Spark, and four readers.

Each transfer writes two accounts and a row of `transfers` in one transaction. The readers add up all balances at every
level of consistency, and each sum must be the one of the beginning. After a third of the time the writer's process is
killed with SIGKILL and started again. At the end the database is held against what the writers were told: every
acknowledged transfer is there once, strongly and in the last checkpoint.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

from tidegate.cli import demo_tables
from tidegate.cli.demo_bank_ledger import ACCOUNTS, EACH, Ledger, Read, Transfer, wrong_sum
from tidegate.cli.demo_bank_reader import LEVELS, Asker, Reader
from tidegate.clock.timestamp import Timestamp
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import TidegateError
from tidegate.reads.consistency import Consistency

_BARRIER_MS = 1_000
_LOOK_S: Final = 0.05
_SAMPLE_S: Final = 0.25
_SAMPLES_MAX: Final = 120
_RATE_OVER: Final = 4
"""Samples that the rate is over: two seconds."""
_ASK_S: Final = {"slow": 0.5, "fast": 0.1}
_ASK_PART: Final = {"slow": 6, "fast": 2}
"""A reader rests so many times as long as its question took, and leaves the machine to Spark and the writer."""
_KILL_AT: Final = 1 / 3
"""Of the time it runs."""
_COMMIT_MAX_S: Final = 60.0
"""Until a writer that was started has committed something."""
_CHECKPOINT_MAX_S: Final = 120.0
_END_MAX_S: Final = 30.0
_TICKS_MAX: Final = 200
_OWNERS: Final = ("Ann", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ida", "Jo")


class Bank:
    """Everything that runs while the bank is shown. Once started it comes to its end by itself, and sets `done`."""

    def __init__(self, path: Path, seconds: float, *, kill: bool = True) -> None:
        self.path: Final = path
        self.seconds: Final = seconds
        # The death of a writer is part of the show and is told there; without this it would be printed, too.
        self._quiet = logging.NullHandler()
        logging.getLogger("tidegate").addHandler(self._quiet)
        self.db: Database | None = None
        self.phase = "opening"
        self.began = monotonic()
        self.started: float | None = None
        """When the accounts were there."""
        self.ran_s = 0.0
        self.without_spark: str | None = None
        """Why there are no checkpoints."""
        self.ledger: Final = Ledger()
        self.readers: Final = [Reader(level) for level in LEVELS]
        self.cuts: Final[set[int]] = set()
        """Timestamps at which the sum was checked."""
        self.ticks: Final[deque[bool]] = deque(maxlen=_TICKS_MAX)
        """Whether the sum was right, of the last cuts."""
        self.samples: Final[deque[tuple[float, int]]] = deque([(self.began, 0)], maxlen=_SAMPLES_MAX)
        """Times and transfers acknowledged by then."""
        self.status: dict[str, Any] = {}
        """Of the pipeline, as the database reports it."""
        self.checkpoint_at_start = 0
        self.first_checkpoint_s: float | None = None
        """From the start to the first checkpoint: how long Spark took."""
        self.visible_s: Final[list[float]] = []
        """From a transfer's acknowledgement to the checkpoint that has it, as sampled."""
        self._probe: tuple[float, int] | None = None
        self.story: Final[list[tuple[float, str]]] = []
        self.will_kill: Final = kill
        self.lives: Final[list[int]] = []
        """The writer's processes."""
        self.killed_at: float | None = None
        self._at_kill = 0
        """Transfers acknowledged by then."""
        self.back_s: float | None = None
        """From the kill to the next acknowledged transfer."""
        self.lost: Final[list[str]] = []
        """Transfers under way when the writer was killed."""
        self._cut_off: Final[list[str]] = []
        """The same, when the whole demo was interrupted."""
        self.survived = 0
        """Of these, how many had been committed and only not acknowledged."""
        self.audited: Final[dict[str, Timestamp]] = {}
        """The cuts at which accounts and transfers were held against what the writers said."""
        self.error: str | None = None
        self.done: Final = Event()
        self.interrupted: Final = Event()
        """Somebody wants the end now."""
        self._end = Event()
        """Of everything."""
        self._writer: subprocess.Popen[str] | None = None
        self._told_pace = "slow"
        self._listener: Thread | None = None
        self._conductor = Thread(target=self._conduct, name="bank", daemon=True)
        self._threads: list[Thread] = []

    @property
    def committed(self) -> int:
        """Transfers acknowledged by now."""
        return len(self.ledger.acknowledged)

    @property
    def rate(self) -> float:
        """Commits a second over the last two seconds."""
        recent = list(self.samples)[-_RATE_OVER - 1 :]
        (began, first), (ended, last) = recent[0], recent[-1]
        return (last - first) / (ended - began) if ended > began else 0.0

    @property
    def checkpoints(self) -> int:
        newest: int = self.status.get("checkpoint", 0)
        return max(newest - self.checkpoint_at_start, 0)

    @property
    def fate(self) -> str:
        """What became of the transfers that were under way at the kill."""
        return f"{self.survived} whole, {len(self.lost) - self.survived} without a trace"

    @property
    def is_writing(self) -> bool:
        """Whether the writer of now has committed something."""
        return (
            self.phase == "running"
            and self.committed > self._at_kill
            and (self.killed_at is None) == (self.back_s is None)
        )

    @property
    def pace(self) -> str:
        """Spark takes the whole machine when it starts; until then everybody else takes less of it."""
        return "slow" if self.is_spark_starting else "fast"

    @property
    def is_spark_starting(self) -> bool:
        return self.without_spark is None and self.first_checkpoint_s is None

    @property
    def stage(self) -> str:
        """What Spark is at before the first checkpoint."""
        return demo_tables.stage_of(self.path)

    @property
    def errors(self) -> list[str]:
        wrong = [each.wrong for each in self.readers if each.wrong is not None]
        return [*wrong, *self.ledger.errors, *([self.error] if self.error else [])]

    @property
    def is_right(self) -> bool:
        """Whether everything came out as it must."""
        return self.phase == "done" and not self.errors and "strong" in self.audited and all(self.ticks)

    # -- its course --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let everything take its course."""
        self._conductor.start()

    def close(self) -> None:
        """End whatever still runs. Ordering: the writer before the database, or it would become its owner."""
        self._end.set()
        if self._conductor.ident is not None:
            self._conductor.join(_COMMIT_MAX_S)
        self._kill_writer()
        for thread in self._threads:
            thread.join(_END_MAX_S)
        if self.db is not None:
            self.db.close()
        logging.getLogger("tidegate").removeHandler(self._quiet)

    def _conduct(self) -> None:
        try:
            self._play()
        except Exception as error:
            self.error = _told(error)
        finally:
            self._end.set()
            self.done.set()

    def _play(self) -> None:
        database = self._open()
        self.started = monotonic()
        self.samples.append((self.started, 0))
        self.phase = "running"
        self._start_writer()
        self._spawn(self._sample, database)
        for reader in self.readers:
            self._spawn(self._keep_asking, database, reader)
        self._run()
        self.ran_s = monotonic() - self.started
        self.phase = "finishing"
        if self.interrupted.is_set():
            # Whoever has pressed Ctrl-C does not want to wait; and the socket is closed by the same signal.
            self._kill_writer()
            self._cut_off.extend(self.ledger.lose())
        else:
            self._stop_writer()
        self._settle(database)
        self.status = database.status()["pipeline"]
        if not self._end.is_set():
            self.phase = "done"

    def _open(self) -> Database:
        with tempfile.TemporaryDirectory(prefix="tidegate-demo-java-") as work:
            self.without_spark = demo_tables.what_is_missing(Path(work))
        settings = DatabaseSettings(barrier_interval_ms=_BARRIER_MS, pipeline=self.without_spark is None)
        database = self.db = Database(self.path, name="demo", settings=settings)
        for name in ("accounts", "transfers"):
            database.sql(f"DROP TABLE IF EXISTS {name}")
        # Without a key a transfer that came twice would be there twice.
        database.sql("CREATE TABLE transfers (id STRING, sender BIGINT, receiver BIGINT, amount BIGINT) SHARDS 4")
        database.sql("CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner STRING, balance BIGINT) SHARDS 4")
        owners = [f"{_OWNERS[id % len(_OWNERS)]} {id // len(_OWNERS) + 1}" for id in range(ACCOUNTS)]
        rows = [{"id": id, "owner": owner, "balance": EACH} for id, owner in enumerate(owners)]
        self._probe = monotonic(), int(database.insert("accounts", rows).timestamp)
        self.checkpoint_at_start = database.engine.pipeline.pointer.checkpoint
        return database

    def _run(self) -> None:
        """Until the time is up, and the writer that was killed is back."""
        began = self.started or self.began
        while not self._end.wait(_LOOK_S) and not self.interrupted.is_set():
            gone = monotonic() - began
            if self._told_pace != self.pace:
                self._told_pace = self.pace
                self._tell_writer(self.pace)
            if not self.committed:
                self._expect_commit(gone)
                continue
            if self.will_kill and self.killed_at is None and gone >= _KILL_AT * self.seconds:
                self._kill()
            if self.killed_at is not None and self.back_s is None:
                self._look_for_writer()
            elif gone >= self.seconds:
                return
            if self._listener is not None and not self._listener.is_alive():
                self._writer_ended()

    def _expect_commit(self, waited_s: float) -> None:
        if self._listener is not None and not self._listener.is_alive():
            self._writer_ended()
        elif waited_s > _COMMIT_MAX_S:
            self._fail(f"the writer, process {self.lives[-1]}, has committed nothing for {waited_s:.0f} s")

    def _fail(self, why: str) -> None:
        self.error = self.error or why
        self._end.set()

    def _tell(self, text: str) -> None:
        self.story.append((monotonic() - (self.started or self.began), text))

    # -- the writer --------------------------------------------------------------------------------------------------

    def _start_writer(self) -> None:
        life = "abcdefghij"[len(self.lives) % 10]
        command = [sys.executable, "-m", "tidegate.cli.demo_bank_writer", str(self.path), life, str(ACCOUNTS)]
        # In a session of its own: a Ctrl-C is for the demo, which ends it in good order.
        process = self._writer = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.lives.append(process.pid)
        self._listener = self._spawn(self._listen, process)
        self._told_pace = "slow"

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            if not line.strip():
                continue
            read = self.ledger.hear(line)
            if read is not None:
                wrong = self._count(read)
                if wrong is not None:
                    self._fail(f"a strong read in the writer's process: {wrong}")
            if self.ledger.errors:
                self._end.set()

    def _writer_ended(self) -> None:
        if self._writer is not None and not self.ledger.errors:
            words = "; ".join(self.ledger.words) or "it does not say why"
            self._fail(f"the writer, process {self._writer.pid}, ended with {self._writer.wait(_END_MAX_S)}: {words}")

    def _kill(self) -> None:
        """Kill the writer without a warning, and start another one."""
        pid = self.lives[-1]
        self._kill_writer()
        self.killed_at = monotonic()
        self.lost.extend(self.ledger.lose())
        self._tell(f"SIGKILL for the writer, process {pid}, with {len(self.lost)} transfers under way")
        self._at_kill = self.committed
        self._start_writer()
        self._tell(f"another writer is started, process {self.lives[-1]}; reads go on")

    def _look_for_writer(self) -> None:
        waited_s = monotonic() - (self.killed_at or 0.0)
        if self.committed > self._at_kill and self.db is not None:
            self.back_s = waited_s
            self.survived = len(self._found(self.db, self.lost))
            self._tell(f"it commits {waited_s:.1f} s later; of the {len(self.lost)}: {self.fate}")
        elif waited_s > _COMMIT_MAX_S:
            self._fail(f"the writer's next process, {self.lives[-1]}, has committed nothing for {waited_s:.0f} s")

    def _kill_writer(self) -> None:
        """Ordering: when it returns, everything that the process said was heard."""
        process, self._writer = self._writer, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._close_writer(process)

    def _stop_writer(self) -> None:
        """Let it finish what is under way, so that it says of everything what became of it."""
        process = self._writer
        if process is None:
            return
        self._tell_writer("stop")
        try:
            code = process.wait(_END_MAX_S)
        except subprocess.TimeoutExpired as error:
            self._fail(f"the writer, process {process.pid}, did not end when it was told to: {error}")
            return
        self._writer = None
        self._close_writer(process)
        if code and not self.ledger.errors:
            self._fail(f"the writer, process {process.pid}, ended with {code}: {'; '.join(self.ledger.words)}")

    def _tell_writer(self, word: str) -> None:
        if self._writer is not None and self._writer.stdin is not None:
            with suppress(OSError):  # It is dead, which is found out elsewhere.
                self._writer.stdin.write(f"{word}\n")
                self._writer.stdin.flush()

    def _close_writer(self, process: subprocess.Popen[str]) -> None:
        if self._listener is not None:
            self._listener.join(_END_MAX_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):  # What was not written is for nobody.
                    stream.close()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _settle(self, database: Database) -> None:
        """Hold the database against what the writers were told, strongly and at a checkpoint."""
        if self._end.is_set():
            return
        self._audit(database, "strong")
        if self.without_spark is None and not self.interrupted.is_set() and not self._end.is_set():
            wanted = self.audited["strong"]
            database.engine.pipeline.ask_barrier("the end of the demo")
            deadline = monotonic() + _CHECKPOINT_MAX_S
            while not database.engine.pipeline.wait_for(wanted, _LOOK_S):
                if self._end.is_set() or self.interrupted.is_set():
                    return
                if monotonic() > deadline:
                    found = database.engine.pipeline.status()
                    why = found["failure"] or found["waits_for"] or "it does not say why"
                    self._fail(f"the pipeline made no checkpoint at {wanted}: {why}")
                    return
            self._audit(database, "eventual")

    def _audit(self, database: Database, consistency: Consistency) -> None:
        with database.session().snapshot(consistency) as snapshot:
            balances = snapshot.query("SELECT id, balance FROM accounts").rows()
            transfers = snapshot.query("SELECT id, sender, receiver, amount FROM transfers").rows()
        total = sum(each["balance"] for each in balances)
        wrong = self._count(Read(int(snapshot.timestamp), total, len(balances)))
        self.survived = len({each["id"] for each in transfers}.intersection(self.lost))
        errors = self.ledger.audit(
            {each["id"]: each["balance"] for each in balances},
            [Transfer(**each) for each in transfers],
            [*self.lost, *self._cut_off],
        )
        where = "at the last checkpoint" if consistency == "eventual" else "at the end"
        for each in (*([wrong] if wrong else []), *errors):
            self._fail(f"{where}, {snapshot.timestamp}: {each}")
        self.audited[str(consistency)] = snapshot.timestamp

    def _found(self, database: Database, ids: list[str]) -> list[str]:
        """Which of these transfers are there."""
        if not ids:
            return []
        named = ", ".join(f"'{each}'" for each in ids)
        rows = database.session().query(f"SELECT id FROM transfers WHERE id IN ({named})", "strong").rows()
        return [each["id"] for each in rows]

    # -- threads -----------------------------------------------------------------------------------------------------

    def _spawn(self, work: Any, *arguments: Any) -> Thread:
        thread = Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _count(self, read: Read) -> str | None:
        """Note the sum of a cut; what is wrong with it, if anything is."""
        wrong = wrong_sum(read)
        if read.at not in self.cuts:
            self.cuts.add(read.at)
            self.ticks.append(wrong is None)
        elif wrong is not None:
            self.ticks.append(False)
        return wrong

    def _keep_asking(self, database: Database, reader: Reader) -> None:
        try:
            asker = Asker(database, self.ledger, reader)
            while not self._end.wait(max(_ASK_S[self.pace], _ASK_PART[self.pace] * reader.took_s)):
                read = asker.ask()
                if read is not None:
                    self._count(read)
                if reader.wrong is not None:
                    self._end.set()
        except Exception as error:
            if not self._end.is_set():
                self._fail(f"the {reader.name} reader stopped: {_told(error)}")

    def _sample(self, database: Database) -> None:
        """What the display shows and nobody else counts."""
        try:
            while not self._end.wait(_SAMPLE_S):
                now = monotonic()
                if self.phase == "running" and now - self.samples[-1][0] >= 2 * _SAMPLE_S:
                    self.samples.append((now, self.committed))
                self.status = database.status()["pipeline"]
                self._look_at_checkpoint(now)
        except Exception as error:
            if not self._end.is_set():
                self._fail(f"the status cannot be told: {_told(error)}")

    def _look_at_checkpoint(self, now: float) -> None:
        """See whether the transfer that is watched is in a checkpoint, and then watch the newest one."""
        service = self.status.get("service_time") or 0
        if self._probe is not None and service >= self._probe[1]:
            if self.first_checkpoint_s is None:
                self.first_checkpoint_s = now - (self.started or self.began)
            else:
                self.visible_s.append(now - self._probe[0])
            self._probe = None
        if self._probe is None and self.ledger.newest > service:
            self._probe = now, self.ledger.newest


def _told(error: Exception) -> str:
    """What is said of it; a defect is named as such, so that no thread ends in silence."""
    return str(error) if isinstance(error, TidegateError) else f"a defect: {error!r}"
