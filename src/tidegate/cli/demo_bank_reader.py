"""The demo's bank, the readers: each asks for the sum of all balances at one level, again and again, and checks it.

An answer is right when the sum is what was there at the beginning, its cut is not older than the level allows, and not
older than the reader's answer before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from tidegate.cli.demo_bank_ledger import Ledger, Read, wrong_sum
from tidegate.clock.timestamp import Timestamp
from tidegate.database.database import Database
from tidegate.database.session import Session
from tidegate.reads.consistency import Consistency

SUM: Final = "SELECT sum(balance) AS total, count(*) AS accounts FROM accounts"
STALENESS_S: Final = 2.0
LEVELS: Final[tuple[Consistency, ...]] = ("strong", "bounded", "session", "eventual")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, and what was known when it was asked for."""

    read: Read
    floor: int
    """The cut must have reached this Timestamp."""
    found: int | None = None
    """How often the transfer is there that the session has written."""


class Reader:
    """One level and what it gave. Written by its own thread, read by the display."""

    def __init__(self, level: Consistency) -> None:
        self.level: Final = level
        self.answers = 0
        self.last: Read | None = None
        self.age_ms = 0
        """Of the last cut, when it was answered."""
        self.took_s = 0.0
        self.wrong: str | None = None
        """Why an answer cannot be. It stays None, or Tidegate is broken."""

    @property
    def name(self) -> str:
        return f"bounded {STALENESS_S:g} s" if self.level == "bounded" else str(self.level)

    def take(self, answer: Answer) -> None:
        """Check an answer, and remember it."""
        read, before = answer.read, self.last
        wrong = wrong_sum(read)
        if wrong is None and read.at < answer.floor:
            wrong = f"the cut {read.at} is older than {answer.floor}, which it must have reached"
        if wrong is None and before is not None and read.at < before.at:
            wrong = f"the cut {read.at} is older than the one before, {before.at}"
        if wrong is None and answer.found not in (None, 1):
            wrong = f"a transfer that the session has written is there {answer.found} times at {read.at}"
        if wrong is not None and self.wrong is None:
            self.wrong = f"a {self.name} read: {wrong}"
        self.last = read
        self.answers += 1


class Asker:
    """Asks for one reader. A session of its own, so that no reader makes another's answers fresher."""

    def __init__(self, database: Database, ledger: Ledger, reader: Reader) -> None:
        self._database = database
        self._ledger = ledger
        self._reader: Final = reader
        self._session = database.session()
        # It has seen the bank open; so no later answer is of a time before that, not even at the level `eventual`.
        self._session.query(SUM, "strong")

    def ask(self) -> Read | None:
        """Ask once; None when there is nothing to ask for yet."""
        began, reader = monotonic(), self._reader
        ask = {"session": self._written, "bounded": self._bounded, "eventual": self._eventual}.get(
            str(reader.level), self._strong
        )
        answer = ask()
        if answer is None:
            return None
        reader.took_s = monotonic() - began
        reader.age_ms = max(self._database.backend.now().ms_since(Timestamp(answer.read.at)), 0)
        reader.take(answer)
        return answer.read

    def _strong(self) -> Answer:
        floor = self._ledger.newest
        return Answer(_read(self._session.query, SUM, "strong")[0], floor)

    def _bounded(self) -> Answer:
        # The bound is in the owner's time; the clock of this process may be some milliseconds ahead of it.
        floor = int(self._database.backend.now().add(milliseconds=-round(STALENESS_S * 1000)))
        return Answer(_read(self._session.query, SUM, "bounded", staleness=STALENESS_S)[0], floor)

    def _eventual(self) -> Answer:
        floor = int(self._database.engine.pipeline.service_time)
        return Answer(_read(self._session.query, SUM, "eventual")[0], floor)

    def _written(self) -> Answer | None:
        """Go on with the session of the writer, in another process, and look for what it has written."""
        token = self._ledger.token
        if token is None:
            return None
        session: Session = self._database.session(token=token[0])
        sql = (
            "SELECT sum(balance) AS total, count(*) AS accounts,"
            f" (SELECT count(*) FROM transfers WHERE id = '{token[1]}') AS found FROM accounts"
        )
        read, row = _read(session.query, sql, "session")
        return Answer(read, self._ledger.acknowledged.get(token[1], 0), int(row["found"]))


def _read(query: Callable[..., Any], sql: str, consistency: str, **more: Any) -> tuple[Read, dict[str, Any]]:
    found = query(sql, consistency, **more)
    row: dict[str, Any] = found.rows()[0]
    return Read(int(found.timestamp), int(row["total"] or 0), int(row["accounts"])), row
