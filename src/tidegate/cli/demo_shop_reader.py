"""The demo's shop, its readers: each asks for all orders at one level, again and again, and checks the answer.

An answer is right when every order in it has all of its items and a payment of their sum, and when it is not older
than the reader's answer before. Readers never own the database: while its owner is dead, they wait for the next one.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Final, NoReturn

from tidegate.cli.demo_shop_books import ASK_TABLES, ASK_VIEW, NEWEST, Read, read_of, torn
from tidegate.database.database import Database
from tidegate.errors import InUse
from tidegate.reads.consistency import Consistency


class Guest(Database):
    """A database that another process owns, whatever happens to that one."""

    def _own(self) -> NoReturn:
        raise InUse(f"{self.path} is for the capture to own")


class Reader:
    """One way to ask, and what it gave. Written by its own thread, read by the display."""

    def __init__(self, level: Consistency, of: str) -> None:
        self.level: Final = level
        self.of: Final = of
        """`tables`, or `view`."""
        self.answers = 0
        self.torn = 0
        """It stays 0, or Tidegate is broken."""
        self.last: Read | None = None
        self.answered_at = 0.0
        self.age_ms = 0
        """Of the last cut, when it was answered."""
        self.took_s = 0.0
        self.waited_max_s = 0.0
        """The longest time for an answer: how long nobody owned the database."""
        self.refused = 0
        """Questions that nobody answered, because the owner died over them; each was asked again."""
        self.wrong: str | None = None
        """Why an answer cannot be."""

    @property
    def name(self) -> str:
        return f"{self.level}, {self.of}"

    def take(self, read: Read) -> None:
        """Check an answer, and remember it."""
        before, wrong = self.last, torn(read)
        if wrong is not None:
            self.torn += 1
        elif before is not None and (read.at < before.at or read.newest < before.newest):
            wrong = f"order {read.newest} is the newest at {read.at}, after {before.newest} at {before.at}"
        if wrong is not None and self.wrong is None:
            self.wrong = f"{self.level} of the {self.of}: {wrong}"
        self.last = read
        self.answers += 1


class Asker:
    """Asks for one reader, in a session of its own, so that no reader makes another's answers fresher."""

    def __init__(self, database: Database, reader: Reader) -> None:
        self._database = database
        self._session = database.session()
        self._reader: Final = reader
        self.newest: list[dict[str, Any]] = []
        """The view's rows of the newest orders, at the last cut."""

    def ask(self) -> Read:
        """Ask once."""
        began, reader = monotonic(), self._reader
        found = self._session.query(ASK_TABLES if reader.of == "tables" else ASK_VIEW, reader.level)
        read = read_of(int(found.timestamp), found.rows()[0])
        reader.take(read)
        reader.answered_at = monotonic()
        reader.took_s = reader.answered_at - began
        reader.waited_max_s = max(reader.waited_max_s, reader.took_s)
        now = self._database.again(lambda: self._database.backend.now())
        reader.age_ms = max(now.ms_since(found.timestamp), 0)
        if reader.level == "eventual":
            self.newest = self._session.query(NEWEST, found.timestamp).rows()
        return read


def make_readers() -> list[Reader]:
    return [Reader("strong", "tables"), Reader("strong", "view"), Reader("eventual", "view")]
