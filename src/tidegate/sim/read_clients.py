"""`ReadClient`: a process with a session that writes and reads at all levels, and hands its session on by a token.

Its wall clock is off by up to an hour. It says so with every request, and nobody may listen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.reads.consistency import Asked, Seen
from tidegate.reads.token import decode, encode
from tidegate.sim.auditor import Violation
from tidegate.sim.network import Answer, Ask
from tidegate.sim.read_log import KEYS, TABLES, Changes

if TYPE_CHECKING:
    from tidegate.sim.read_world import ReadWorld

DATABASE: Final = b"a simulated life"
PATIENCE: Final = 60
"""So many steps are waited for an answer before it is asked for again."""
STALENESS_MS: Final = (0, 50, 300, 1_000, 5_000)
TIMEOUTS_MS: Final = (None, None, 100, 1_000)
HOUR_MS: Final = 3_600_000

Script = Iterator[None]


@dataclass(slots=True)
class Session:
    """What a session of a real client is: a name in the auditor's books, and what it remembers."""

    name: str
    seen: Seen


class ReadClient:
    """One process of a user."""

    def __init__(self, world: ReadWorld, number: int) -> None:
        self.name = f"p{number}"
        self.is_idle = True
        self.is_finishing = False
        self.has_finished = False
        self._world = world
        self._rng = Random(world.rng.getrandbits(64))
        self._clock_off_ms = self._rng.choice((0, self._rng.randrange(-HOUR_MS, HOUR_MS), -HOUR_MS, HOUR_MS))
        self._number = 0
        self.asks_for = ""
        self._answer: Answer | None = None
        self._session = self._begin()
        self._script = self._live()

    def hear(self, answer: Answer) -> None:
        """An answer arrives, perhaps for the second time, perhaps long after anybody waited for it."""
        if self._answer is None and self.is_meant(answer):
            self._answer = answer

    def is_meant(self, answer: Answer) -> bool:
        return answer.number == self._number

    def step(self) -> None:
        """Go on, if there is something to go on with."""
        next(self._script)

    def poll(self) -> str:
        self.step()
        return "goes on"

    def _live(self) -> Script:
        while not self.is_finishing:
            self.is_idle = True
            while not self.is_finishing and self._rng.random() < 0.7:
                yield
            self.is_idle = False
            if not self.is_finishing:
                yield from self._do_something()
        yield from self._finish()
        self.has_finished = True
        while True:
            yield

    def _do_something(self) -> Script:
        if self._rng.random() < 0.1:
            self._session = self._begin()
        draw = self._rng.random()
        if self._world.tokens and draw < 0.25:
            yield from self._take_over()
        elif draw < 0.35:
            yield from self._write()
        elif draw < 0.39:
            yield from self._change()
        elif draw < 0.49:
            yield from self._hand_over()
        elif draw < 0.58:
            yield from self._read_snapshot()
        elif draw < 0.65:
            yield from self._look_back()
        else:
            yield from self._read(self._draw_wanted(), self._draw_tables())

    def _finish(self) -> Script:
        """After all faults: whatever is asked for is answered."""
        yield from self._write(must=True)
        for wanted in (
            Asked("session"),
            Asked("eventual"),
            Asked("strong"),
            Asked("bounded", 0),
            Asked("timestamp", at=self._session.seen.written),
        ):
            yield from self._read(wanted, TABLES, must=True)

    # Asking

    def _ask(self, what: str, *, must: bool = False, **arguments: Any) -> Script:
        """Ask, and ask again when no answer comes. The answer, if one came, is in `self._answer`."""
        self.asks_for = what
        tries = 40 if must else self._rng.choice((1, 2, 5))
        for at in range(tries):
            if at == 0 or self._is_refused:
                self._number += 1
            self._answer = None
            owner = self._world.owner_name()
            if owner is not None:
                arguments["clock_ms"] = self._world.clock.wall_ms() + self._clock_off_ms
                self._world.network.send(self.name, owner, Ask(self.name, self._number, what, dict(arguments)))
            for _ in range(PATIENCE):
                yield
                if self._answer is not None:
                    break
            if self._answer is not None and not (must and self._is_refused):
                return
        if must:
            raise Violation(f"liveness: {self.name} asks for a {what}, {arguments}, and never has an answer")

    @property
    def _is_refused(self) -> bool:
        return self._answer is not None and self._answer.how == "retry"

    # Reading

    def _draw_tables(self) -> tuple[str, ...]:
        return tuple(self._rng.sample(TABLES, self._rng.choice((1, 2, 3, 3))))

    def _draw_wanted(self) -> Asked:
        rng, seen = self._rng, self._session.seen
        draw = rng.random()
        if draw < 0.25:
            return Asked("strong")
        if draw < 0.5:
            return Asked("session")
        if draw < 0.7:
            return Asked("bounded", rng.choice(STALENESS_MS))
        newest = max(seen.read, seen.written)
        if draw < 0.85 or not newest:
            return Asked("eventual")
        return Asked(
            "timestamp", at=rng.choice((seen.read or newest, newest.add(milliseconds=rng.randrange(-500, 300))))
        )

    def _read(
        self, wanted: Asked, tables: tuple[str, ...], *, pinned: Timestamp | None = None, must: bool = False
    ) -> Script:
        """Ask, and have the answer looked at. Where it was answered from, if it was, is in `self._read_at`."""
        self._read_at: Timestamp | None = None
        question = self._world.auditor.asks(self._session.name, wanted, tables, pinned)
        timeout_ms = None if must else self._rng.choice(TIMEOUTS_MS)
        yield from self._ask(
            "read", must=must, wanted=wanted, tables=tables, seen=self._session.seen, timeout_ms=timeout_ms,
            from_checkpoint=wanted.level != "timestamp" and self._rng.random() < 0.2,
        )  # fmt: skip
        if self._answer is None:
            self._world.note(f"{self.name} hears nothing: {wanted.level}")
        elif self._answer.how == "retry":
            self._world.note(f"{self.name} is refused: {wanted.level}, {self._answer.value}")
        else:
            found = self._answer.value
            self._world.auditor.hears(question, found)
            self._session.seen = self._session.seen.after_read(found.at)
            self._read_at = found.at
            self._world.note(f"{self.name} is answered: {wanted.level}")

    def _read_snapshot(self) -> Script:
        """One cut for several queries, whatever happens in between."""
        yield from self._read(self._draw_wanted(), self._draw_tables())
        at = self._read_at
        if at is None:
            return
        for _ in range(self._rng.choice((1, 2, 3))):
            for _ in range(self._rng.randrange(20)):
                yield
            yield from self._read(self.again(at), self._draw_tables(), pinned=at)
            self._world.note(f"{self.name} reads its snapshot again")

    def _look_back(self) -> Script:
        """An old cut, and then on from where the session was."""
        yield from self._read(Asked(self._rng.choice(("strong", "session"))), self._draw_tables())
        if self._read_at:
            yield from self._read(Asked("timestamp", at=self._read_at.add(milliseconds=-2_000)), self._draw_tables())
            yield from self._read(Asked(self._rng.choice(("eventual", "bounded"))), self._draw_tables())

    def again(self, at: Timestamp) -> Asked:
        """What a snapshot asks for after its first query."""
        return Asked("timestamp", at=at)

    # Writing

    def _write(self, *, must: bool = False) -> Script:
        """Move amounts between keys of any tables: the sum of all stays what it is."""
        rng = self._rng
        places = rng.sample([(table, key) for table in TABLES for key in range(KEYS)], rng.choice((2, 3, 4)))
        changes: Changes = {place: rng.randrange(1, 9) for place in places[1:]}
        changes[places[0]] = -sum(changes.values())
        txn = f"{self.name}-{self._number}"
        yield from self._ask("write", must=must, txn=txn, changes=changes)
        if self._answer is not None and self._answer.how == "committed":
            at = self._answer.value
            self._world.auditor.was_acknowledged(self._session.name, at)
            self._session.seen = self._session.seen.after_write(at)
            self._world.note(f"{self.name} has committed")

    def _change(self) -> Script:
        table = self._rng.choice(TABLES)
        yield from self._ask("change", table=table)
        if self._answer is not None and self._answer.how == "committed":
            at = self._answer.value
            self._world.auditor.change_was_acknowledged(self._session.name, table, at)
            self._session.seen = self._session.seen.after_write(at)
            self._world.note(f"{self.name} has changed a table")

    # Sessions

    def _begin(self) -> Session:
        name = self._world.next_session()
        self._world.auditor.begins(name)
        return Session(name, Seen())

    def _hand_over(self) -> Script:
        """Give a token away, and go on beside it or begin anew."""
        if self._rng.random() < 0.5:
            yield from self._write()
        name = self._world.next_session()
        self._world.auditor.begins(name, self._session.name)
        self._world.tokens.append((name, encode(DATABASE, self._session.seen)))
        self._world.note(f"{self.name} gives a token away")
        if self._rng.random() < 0.5:
            self._session = self._begin()

    def _take_over(self) -> Script:
        """Go on with somebody's session."""
        name, token = self._world.tokens.pop()
        self._session = Session(name, decode(token, DATABASE))
        self._world.note(f"{self.name} goes on with a token")
        yield from self._read(Asked(self._rng.choice(("session", "eventual"))), self._draw_tables())
