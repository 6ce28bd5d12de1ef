"""The demo's shop: an application on SQLite, captured live into tables and views, while everybody is killed in turn.

Three processes: the application, the capture that owns the Tidegate database, and the pipeline's worker with Spark in
it. Each is killed with SIGKILL and started again, and goes on where it was. Readers ask all the time: every order in
every answer has all of its items and its payment. At the end tables and views are what SQLite has, row by row.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
import tempfile
from collections import deque
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

from tidegate.cli import demo_tables
from tidegate.cli.demo_shop_actor import DEAD, LIVES, STARTS, Actor, Kill, Lane
from tidegate.cli.demo_shop_app import open_shop
from tidegate.cli.demo_shop_books import RECEIPTS, TABLES, Books, Rows, differences
from tidegate.cli.demo_shop_reader import Asker, Guest, Reader, make_readers
from tidegate.clock.timestamp import Timestamp
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import Retryable, TidegateError, Unavailable

_BARRIER_MS = 1_000
_APPLICATION: Final = [sys.executable, "-m", "tidegate.cli.demo_shop_app"]
_CAPTURE: Final = [sys.executable, "-m", "tidegate.cli.demo_shop_capture"]
_LOOK_S: Final = 0.05
_RATE_OVER: Final = 2.0
_ASK_S: Final = {"slow": 1.0, "fast": 0.2}
_ASK_PART: Final = {"slow": 6, "fast": 3}
"""A reader rests so many times as long as its question took, and leaves the machine to Spark and the shop."""
_SILENT_S: Final = 2.0
"""Without an answer for so long, the readers wait."""
_KILLS: Final = (("application", 0.2), ("capture", 0.4), ("pipeline", 0.7))
"""Who is killed, and after which part of the time; not before everybody has lived for a while."""
_WHILE: Final = 0.08
"""Of the time."""
_BACK_MAX_S: Final = 120.0
"""Until somebody who was started does something."""
_END_MAX_S: Final = 120.0
_LAST_S: Final = 5.0
_OWNER_MS: Final = 60_000
_SAMPLES_MAX: Final = 1_000


class Shop:
    """Everything that runs while the shop is shown. Once started it comes to its end by itself, and sets `done`."""

    def __init__(self, path: Path, seconds: float, *, kill: bool = True) -> None:
        self.source: Final = path / "shop.db"
        self.path: Final = path / "shop.tide"
        self.seconds: Final = seconds
        # The death of an owner is part of the show and is told there; without this it would be printed, too.
        self._quiet = logging.NullHandler()
        logging.getLogger("tidegate").addHandler(self._quiet)
        self.phase = "opening"
        self.began = monotonic()
        self.started: float | None = None
        """When the capture followed the application."""
        self.ran_s = 0.0
        self.without_spark: str | None = None
        """Why there are no checkpoints."""
        self.will_kill: Final = kill
        self.kills: list[Kill] = []
        self.books: Final = Books()
        self.readers: Final[list[Reader]] = make_readers()
        self.lanes: Final = {name: Lane(name) for name in ("application", "capture", "pipeline", "answers")}
        self.samples: Final[deque[tuple[float, int]]] = deque([(self.began, 0)], maxlen=_SAMPLES_MAX)
        """Times and transactions committed by then."""
        self.status: dict[str, Any] = {}
        """What the capture said last."""
        self.receipts: list[dict[str, Any]] = []
        """The newest orders in the view, at the last checkpoint."""
        self.visible_s: Final[list[float]] = []
        """From the commit of an order in SQLite to an answer of the view that has it, as sampled."""
        self._probe: tuple[float, int] | None = None
        self.lost: tuple[str, int] | None = None
        """What the application was in the midst of when it was killed."""
        self.story: Final[list[tuple[float, str]]] = []
        self.equal: Final[dict[str, Timestamp]] = {}
        """The cuts at which tables and views were what SQLite has."""
        self.rows = 0
        """How many were compared."""
        self.error: str | None = None
        self.done: Final = Event()
        self.interrupted: Final = Event()
        """Somebody wants the end now."""
        self._end = Event()
        """Of everything."""
        self._ready = Event()
        self._settled: deque[int] = deque(maxlen=1)
        self._checkpoint_at_birth = 0
        """The newest one when the pipeline's worker was first heard of."""
        self._checkpoint_at_start = 0
        self._guest: Guest | None = None
        self.actors: Final[dict[str, Actor]] = {}
        self._conductor = Thread(target=self._conduct, name="shop", daemon=True)
        self._threads: list[Thread] = []

    @property
    def gone_s(self) -> float:
        return monotonic() - (self.started or self.began)

    @property
    def rate(self) -> float:
        """The application's commits a second over the last two seconds."""
        now, last = self.samples[-1]
        then, first = next((each for each in self.samples if now - each[0] <= _RATE_OVER), self.samples[0])
        return (last - first) / (now - then) if now > then else 0.0

    @property
    def checkpoints(self) -> int:
        """Made while this runs."""
        return max((self.status.get("checkpoint") or 0) - self._checkpoint_at_start, 0)

    @property
    def _pipeline_lives(self) -> bool:
        """Whether the worker of now has made a checkpoint."""
        killed = [each.pid for each in self.kills if each.who == "pipeline"]
        worker = self.status.get("worker")
        return worker is not None and worker not in killed and self.status["checkpoint"] > self._checkpoint_at_birth

    @property
    def pace(self) -> str:
        """Spark takes the whole machine when it starts; until then everybody else takes less of it."""
        return "slow" if self.without_spark is None and self.lanes["pipeline"].state != LIVES else "fast"

    @property
    def stage(self) -> str:
        """What Spark is at before its first checkpoint."""
        return demo_tables.stage_of(self.path)

    @property
    def answers(self) -> int:
        return sum(each.answers for each in self.readers)

    @property
    def torn(self) -> int:
        return sum(each.torn for each in self.readers)

    @property
    def errors(self) -> list[str]:
        wrong = [each.wrong for each in self.readers if each.wrong is not None]
        return [*wrong, *self.books.errors, *([self.error] if self.error else [])]

    @property
    def is_right(self) -> bool:
        """Whether everything came out as it must."""
        return (
            self.phase == "done"
            and not self.errors
            and not self.torn
            and "strong" in self.equal
            and (self.interrupted.is_set() or self._saw_everything)
        )

    @property
    def _saw_everything(self) -> bool:
        return (
            all(each.answers for each in self.readers)
            and all(each.is_over for each in self.kills)
            and (self.without_spark is not None or "eventual" in self.equal)
        )

    # -- its course --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let everything take its course."""
        self._conductor.start()

    def close(self) -> None:
        """End whatever still runs. Ordering: the readers before the owner, or they would wait for the next one."""
        self._end.set()
        if self._conductor.ident is not None:
            self._conductor.join(_END_MAX_S)
        for thread in self._threads:
            thread.join(_LOOK_S if self._is_ownerless else _END_MAX_S)
        if self._guest is not None and not self._is_ownerless:
            self._guest.close()
        if "application" in self.actors:
            self.actors["application"].kill()
        capture = self.actors.get("capture")
        if capture is not None and (self.started is None or capture.stop() is not None):
            capture.kill()
        logging.getLogger("tidegate").removeHandler(self._quiet)

    @property
    def _is_ownerless(self) -> bool:
        return "capture" not in self.actors or self.actors["capture"].pid is None

    def _conduct(self) -> None:
        try:
            self._play()
        except Exception as error:
            self.error = self.error or told(error)
        finally:
            self._end.set()
            self.done.set()

    def _play(self) -> None:
        self._open()
        if not self._wait_for_both():
            return
        self.started = monotonic()
        self.samples.clear()
        self.samples.append((self.started, self.books.committed))
        for each in self.lanes.values():
            each.turn(0.0, LIVES if each.name in ("application", "capture") else STARTS)
        self.phase = "running"
        self._guest = Guest(self.path, name="readers", settings=DatabaseSettings(connect_ms=_OWNER_MS))
        for reader in self.readers:
            thread = Thread(target=self._keep_asking, args=(self._guest, reader), daemon=True)
            self._threads.append(thread)
            thread.start()
        self._run()
        self.ran_s = self.gone_s
        self.phase = "finishing"
        self._settle()
        if not self._end.is_set():
            self.phase = "done"

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tidegate-demo-java-") as work:
            self.without_spark = demo_tables.what_is_missing(Path(work))
        if self.will_kill:
            self.kills = [
                Kill(who, part * self.seconds)
                for who, part in _KILLS
                if who != "pipeline" or self.without_spark is None
            ]
        spark = "spark" if self.without_spark is None else "no-spark"
        arguments = [str(self.path), str(self.source), str(_BARRIER_MS), spark]
        self.actors["application"] = Actor("application", [*_APPLICATION, str(self.source)], self.books.hear)
        self.actors["capture"] = Actor("capture", [*_CAPTURE, *arguments], self._hear_capture)
        open_shop(self.source).close()  # Its tables are there for both, whoever comes first.
        for each in self.actors.values():
            each.start()

    def _wait_for_both(self) -> bool:
        """Wait until the application sells and the capture follows it; False when that will not be."""
        deadline = monotonic() + _BACK_MAX_S
        while not (self._ready.is_set() and self.books.committed):
            if monotonic() > deadline:
                who = "the application has sold nothing" if self._ready.is_set() else "the capture does not follow it"
                self._fail(f"{who} after {_BACK_MAX_S:.0f} s")
            if self._end.wait(_LOOK_S) or self._somebody_ended():
                return False
        return True

    def _run(self) -> None:
        """Until the time is up, and everybody who was killed is back."""
        while not self._end.wait(_LOOK_S) and not self.interrupted.is_set() and not self._somebody_ended():
            gone = self.gone_s
            self._look(gone)
            due = next((each for each in self.kills if not each.is_over), None)
            if due is None and gone >= self.seconds and self._all_live(with_pipeline=True):
                return
            if due is None:
                if gone > self.seconds + _BACK_MAX_S:
                    self._fail(f"the pipeline has made no checkpoint for {gone:.0f} s: {self.status.get('failure')}")
            elif due.killed_at is None:
                if gone >= due.at_s and self._all_live(with_pipeline=due.who != "application"):
                    self._kill(due, gone)
                elif gone > due.at_s + _BACK_MAX_S:
                    self._fail(f"the {due.who} could not be killed: it has not lived for {_BACK_MAX_S:.0f} s")
            else:
                self._look_for(due, gone)

    def _all_live(self, *, with_pipeline: bool) -> bool:
        """Whether everybody has been at work for a while; the pipeline, slow to start, only if it is asked for."""
        left_out = None if with_pipeline and self.without_spark is None else "pipeline"
        lanes = [each for each in self.lanes.values() if each.name != left_out]
        return all(each.state == LIVES and self.gone_s - each.since >= _WHILE * self.seconds for each in lanes)

    def _somebody_ended(self) -> bool:
        """Whether a process has ended by itself, which is the end of it."""
        ended = [text for each in self.actors.values() if (text := each.look()) is not None]
        if ended and not self.books.errors:
            self._fail(ended[0])
        return bool(ended or self.books.errors)

    def _fail(self, why: str) -> None:
        self.error = self.error or why
        self._end.set()

    def _tell(self, at: float, text: str) -> None:
        self.story.append((at, text))

    # -- who lives ---------------------------------------------------------------------------------------------------

    def _hear_capture(self, line: str) -> bool:
        word, _, rest = line.strip().partition(" ")
        match word:
            case "ready":
                self._ready.set()
            case "status":
                found = json.loads(rest)
                if not self.status:
                    self._checkpoint_at_start = found["checkpoint"]
                if found["worker"] != self.status.get("worker"):
                    self._checkpoint_at_birth = found["checkpoint"]
                self.status = found
            case "settled":
                self._settled.append(int(rest))
            case "error":
                self._fail(f"the capture stopped: {rest}")
            case _:
                return False
        return True

    def _look(self, gone: float) -> None:
        """See who lives, and what the display shows and nobody else counts."""
        now = monotonic()
        if now - self.samples[-1][0] >= 0.5:
            self.samples.append((now, self.books.committed))
        if self._pipeline_lives and self.lanes["capture"].state == LIVES:
            self.lanes["pipeline"].turn(gone, LIVES)
        newest_answer = max(each.answered_at for each in self.readers)
        if newest_answer and now - newest_answer < _SILENT_S:
            self.lanes["answers"].turn(gone, LIVES)
        elif newest_answer:
            self.lanes["answers"].turn(gone, STARTS)
        last = self.readers[-1].last
        if self._probe is not None and last is not None and last.newest >= self._probe[1]:
            self.visible_s.append(self.readers[-1].answered_at - self._probe[0])
            self._probe = None
        if self._probe is None and self.pace == "fast" and last is not None and self.books.newest > last.newest:
            self._probe = now, self.books.newest

    def _kill(self, kill: Kill, gone: float) -> None:
        """End a process without a warning, and start it again."""
        self._probe = None
        kill.mark = self.books.committed if kill.who == "application" else self.status.get("transactions") or 0
        kill.pid = self.status["worker"] if kill.who == "pipeline" else self.actors[kill.who].pid
        kill.killed_at = monotonic()
        self.lanes[kill.who].turn(gone, DEAD)
        match kill.who:
            case "application":
                self.actors["application"].kill()
                self.lost = self.books.lose()
                what = self._fate()
            case "capture":
                self._ready.clear()
                self.actors["capture"].kill()
                self.lanes["pipeline"].turn(gone, STARTS)  # Its worker does not outlive it.
                what = "; its pipeline goes with it" if self.without_spark is None else ""
            case _:
                demo_tables.kill_worker(self.status["worker"])
                what = f", behind checkpoint {self.checkpoints:,}"
        self._tell(gone, f"SIGKILL for the {kill.who}, process {kill.pid}{what}")
        if kill.who in self.actors:
            self.actors[kill.who].start()
        self.lanes[kill.who].turn(self.gone_s, STARTS)

    def _look_for(self, kill: Kill, gone: float) -> None:
        """See whether somebody who was killed is back."""
        waited_s = monotonic() - (kill.killed_at or 0.0)
        match kill.who:
            case "application":
                is_back = self.books.committed > kill.mark
                does = f"process {self.actors['application'].pid} sells on"
            case "capture":
                is_back = self._ready.is_set() and self.status["transactions"] > kill.mark
                does = f"process {self.actors['capture'].pid} captures on, from exactly there"
            case _:
                is_back = self._pipeline_lives
                does = f"process {self.status.get('worker')} makes checkpoint {self.checkpoints:,}"
        if is_back:
            kill.back_s = waited_s
            self.lanes[kill.who].turn(gone, LIVES)
            self._tell(gone, f"{does}, {waited_s:.1f} s later")
        elif waited_s > _BACK_MAX_S:
            self._fail(f"the {kill.who} was killed and has not gone on for {waited_s:.0f} s")

    def _fate(self) -> str:
        """What SQLite has of the transaction that the application was in the midst of."""
        if self.lost is None:
            return ""
        what, id = self.lost
        if what not in ("placed", "declined"):
            return f", in the midst of order {id:,}"
        with closing(self._shop()) as shop:
            (found,) = shop.execute("SELECT count(*) FROM orders WHERE id = ?", (id,)).fetchone()
        return f", as it commits order {id:,}" if found else f", in the midst of order {id:,}: no trace of it"

    def _shop(self) -> sqlite3.Connection:
        """The application's database, to look at."""
        return sqlite3.connect(f"file:{self.source}?mode=ro", uri=True)

    # -- the readers -------------------------------------------------------------------------------------------------

    def _keep_asking(self, guest: Guest, reader: Reader) -> None:
        try:
            asker = Asker(guest, reader)
            while not self._end.wait(max(_ASK_S[self.pace], min(_ASK_PART[self.pace] * reader.took_s, 2.0))):
                try:
                    asker.ask()
                except (Retryable, Unavailable):
                    if monotonic() - max(reader.answered_at, self.started or 0.0) > _BACK_MAX_S:
                        raise
                    reader.refused += 1
                    continue
                if reader.level == "eventual":
                    self.receipts = asker.newest
                if reader.wrong is not None:
                    self._end.set()
        except Exception as error:
            if not self._end.is_set():
                self._fail(f"the reader of {reader.name} stopped: {told(error)}")

    # -- the end -----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Hold tables and views against SQLite's own, strongly and at a checkpoint."""
        if self._end.is_set() or self._guest is None:
            return
        wrong = None
        if self.interrupted.is_set():
            self.actors["application"].kill()
            self.books.lose()
        else:
            wrong = self.actors["application"].stop()
        if wrong is not None:
            self._fail(wrong)
            return
        wants_checkpoint = self.without_spark is None and not self.interrupted.is_set()
        self.actors["capture"].tell("settle checkpoint" if wants_checkpoint else "settle")
        deadline = monotonic() + _END_MAX_S
        while not self._settled:
            if self._end.wait(_LOOK_S) or self._somebody_ended():
                return
            self._look(self.gone_s)
            if monotonic() > deadline:
                self._fail(f"not everything that was sold was visible within {_END_MAX_S:.0f} s: {self.status}")
                return
        self._wait_for_last_answers()
        self._compare("strong")
        if wants_checkpoint:
            self._compare("eventual")

    def _wait_for_last_answers(self) -> None:
        """Let every reader see the end, for the picture; what it must be is compared elsewhere."""
        deadline = monotonic() + _LAST_S
        readers = [each for each in self.readers if each.level != "eventual" or self.without_spark is None]
        while any(each.last is None or each.last.newest < self.books.newest for each in readers):
            if self._end.wait(_LOOK_S) or self.interrupted.is_set() or monotonic() > deadline:
                return

    def _compare(self, level: Any) -> None:
        if self._guest is None:
            return
        wrong, rows = [], 0
        asked = {**{each: f"SELECT * FROM {each}" for each in TABLES}, "receipts": RECEIPTS}
        with closing(self._shop()) as shop, self._guest.session().snapshot(level) as cut:
            for name, sql in asked.items():
                source: Rows = shop.execute(sql).fetchall()
                found = [tuple(row.values()) for row in cut.query(f"SELECT * FROM {name}").rows()]
                rows += len(source)
                wrong += differences(name, source, found)
        for each in wrong:
            self._fail(f"at the end, {level}, {cut.timestamp}: {each}")
        if not wrong:
            self.rows = rows
            self.equal[str(level)] = cut.timestamp


def told(error: Exception) -> str:
    """What is said of it; a defect is named as such, so that no thread ends in silence."""
    return str(error) if isinstance(error, TidegateError) else f"a defect: {error!r}"
