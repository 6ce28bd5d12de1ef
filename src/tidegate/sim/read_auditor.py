"""`ReadAuditor`: predicts every answer from the commits that were decided, and knows what each reader had been told.

It looks at answers when clients hear them, and at waits whenever an owner has done something.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from tidegate.clock.timestamp import Timestamp
from tidegate.reads.consistency import Asked
from tidegate.sim.auditor import Violation
from tidegate.sim.read_log import Contents, Decided, add


@dataclass(slots=True)
class Told:
    """What a session was told, in whatever process it goes on."""

    read: Timestamp = Timestamp.ZERO
    written: Timestamp = Timestamp.ZERO


@dataclass(frozen=True, slots=True)
class Question:
    """A read, and all that had happened when it was asked."""

    session: str
    wanted: Asked
    tables: tuple[str, ...]
    seen: Timestamp
    written: Timestamp
    changed: Timestamp
    """The last change of its tables that somebody was told of."""
    acknowledged: Timestamp
    """The newest commit that anybody was told of."""
    newest: Timestamp
    """The newest cut that anybody was given an answer of."""
    now: Timestamp
    """The newest Timestamp handed out."""
    pinned: Timestamp | None
    """The cut of the snapshot it belongs to, if it does."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a read was told."""

    at: Timestamp
    tables: dict[str, Contents]


@dataclass(slots=True)
class ReadAuditor:
    """Knows all commits, all sessions and all waits."""

    acknowledged: int = 0
    deliveries: int = 0
    told: dict[str, Told] = field(default_factory=dict)
    _commits: list[tuple[Timestamp, int, Decided]] = field(default_factory=list)
    _changes: list[tuple[Timestamp, str]] = field(default_factory=list)
    _known_changes: dict[str, Timestamp] = field(default_factory=dict)
    _newest_commit: Timestamp = Timestamp.ZERO
    _newest_cut: Timestamp = Timestamp.ZERO
    _now: Timestamp = Timestamp.ZERO
    _waits: dict[tuple[str, int], tuple[Timestamp, bool]] = field(default_factory=dict)

    # What happens

    def handed_out(self, at: Timestamp) -> None:
        """The oracle gave this Timestamp to somebody."""
        if at <= self._now:
            raise Violation(f"timeline: {at} was handed out after {self._now}")
        self._now = at

    def was_decided(self, decided: Decided) -> None:
        self._settled("a commit", decided.timestamp)
        insort(self._commits, (decided.timestamp, len(self._commits), decided), key=lambda each: each[:2])

    def was_changed(self, table: str, at: Timestamp) -> None:
        self._settled(f"a change of {table}", at)
        self._changes.append((at, table))

    def _settled(self, what: str, at: Timestamp) -> None:
        if at <= self._newest_cut:
            raise Violation(f"one cut: {what} comes at {at}, and {self._newest_cut} was answered from already")

    def was_acknowledged(self, session: str, at: Timestamp) -> None:
        """A session's commit was acknowledged to it."""
        self.acknowledged += 1
        self._newest_commit = max(self._newest_commit, at)
        self.told[session].written = max(self.told[session].written, at)

    def change_was_acknowledged(self, session: str, table: str, at: Timestamp) -> None:
        self.was_acknowledged(session, at)
        self._known_changes[table] = max(self._known_changes.get(table, Timestamp.ZERO), at)

    def begins(self, session: str, parent: str | None = None) -> None:
        """A session begins; from a token, it goes on where another one was."""
        before = self.told[parent] if parent is not None else Told()
        self.told[session] = Told(before.read, before.written)

    # Reads

    def asks(self, session: str, wanted: Asked, tables: tuple[str, ...], pinned: Timestamp | None = None) -> Question:
        told = self.told[session]
        changed = max(self._known_changes.get(table, Timestamp.ZERO) for table in tables)
        return Question(
            session, wanted, tables, told.read, told.written, changed,
            self._newest_commit, self._newest_cut, self._now, pinned,
        )  # fmt: skip

    def hears(self, question: Question, answer: Answered) -> None:
        """Raises: `Violation` if the answer is not what was promised."""
        self.deliveries += 1
        at, wanted = answer.at, question.wanted
        if at > self._now:
            raise Violation(f"one cut: an answer of {at}, which nobody has reached yet")
        if wanted.level == "timestamp":
            self._require("one cut", question, at, at == wanted.at, wanted.at)
        else:
            self._require("session order", question, at, at >= question.seen, question.seen)
            self._require("tables", question, at, at >= question.changed, question.changed)
        if wanted.level == "session":
            self._require("own writes", question, at, at >= question.written, question.written)
        if wanted.level == "strong":
            self._require("real time", question, at, at >= question.acknowledged, question.acknowledged)
            self._require("real time", question, at, at >= question.newest, question.newest)
        if wanted.level == "bounded":
            oldest_ms = max(question.now.physical_ms - wanted.staleness_ms, 0)
            self._require("bound", question, at, at.physical_ms >= oldest_ms, Timestamp.compose(oldest_ms))
        if question.pinned not in (None, at):
            raise Violation(f"snapshot: {question.session} has pinned {question.pinned}, and is told of {at}")
        if set(answer.tables) != set(question.tables):
            raise Violation(f"one cut: asked for {question.tables}, and told of {sorted(answer.tables)}")
        for table, found in answer.tables.items():
            expected = self.model(table, at)
            if found != expected:
                raise Violation(f"one cut: {table} at {at} is {expected}, and {question.session} was told {found}")
        self._newest_cut = max(self._newest_cut, at)
        told = self.told[question.session]
        told.read = max(told.read, at)

    def _require(self, promise: str, question: Question, at: Timestamp, is_so: bool, than: Timestamp) -> None:
        if not is_so:
            raise Violation(
                f"{promise}: {question.session} asks for {question.wanted} and is told of {at}, which must be {than}"
                + ("" if question.wanted.level == "timestamp" else " or later")
            )

    def model(self, table: str, at: Timestamp) -> Contents:
        """The table as it is at a Timestamp."""
        values: dict[int, int] = {}
        add(values, table, (commit for when, _, commit in self._commits if when <= at))
        return Contents(sum(1 for when, name in self._changes if name == table and when <= at), values)

    # Waits

    def waits(self, owner: str, number: int, needed: Timestamp, *, from_checkpoint: bool = False) -> None:
        self._waits[owner, number] = (needed, from_checkpoint)

    def waits_no_more(self, owner: str, number: int) -> None:
        self._waits.pop((owner, number), None)

    def look_at_waits(self, owner: str, service: Timestamp, checkpoint: Timestamp = Timestamp.ZERO) -> None:
        """Raises: `Violation` when somebody still waits for what is served."""
        for (name, number), (needed, from_checkpoint) in self._waits.items():
            served = checkpoint if from_checkpoint else service
            if name == owner and needed <= served:
                raise Violation(
                    f"waiting: read {number} waits at {owner} for {needed}, and {served} is served: nobody woke it"
                )

    def owner_is_gone(self, owner: str) -> None:
        self._waits = {key: wait for key, wait in self._waits.items() if key[0] != owner}

    @property
    def is_at_rest(self) -> bool:
        """Nobody waits."""
        return not self._waits

    def check_end(self) -> None:
        """Raises: `Violation` when a read waits for ever."""
        if self._waits:
            raise Violation(f"liveness: after all faults had stopped, reads wait for ever: {self._waits}")
