"""Simulated clients: they begin, read, write ahead, commit and abort through a network that loses and repeats.

A client that gets no answer asks again, at the same or another process; for a commit until it knows the outcome. It
tells the auditor what it wants before it asks, and what it was told, never what it thinks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from random import Random
from typing import Any
from zlib import crc32

from tidegate.clock.timestamp import Timestamp
from tidegate.sim.network import Answer, Ask, Network
from tidegate.sim.txn_auditor import Deed, TxnAuditor
from tidegate.sim.txn_work import Line
from tidegate.txn.txn_id import TxnId

VCHANNELS = ("a/0", "a/1", "b/0")
COUNTERS = {"k0": "c0", "k1": "c1"}
"""Where each counter lives."""
STREAM_MS = 60_000
"""The timeout of transactions that come in a stream."""
PATIENCE = 60
"""How often a client is asked to go on before it stops waiting for an answer."""

Script = Iterator[None]


class TxnClient:
    """One client, with one transaction at a time."""

    def __init__(
        self,
        name: str,
        *,
        rng: Random,
        network: Network,
        auditor: TxnAuditor,
        owner: Callable[[], str | None],
        channels: tuple[str, ...],
        note: Callable[[str], None],
    ) -> None:
        """`owner` names a process to ask: mostly the right one."""
        self.name = name
        self.is_finishing = False
        """Begin nothing new."""
        self.is_idle = False
        self._rng = rng
        self._network = network
        self._auditor = auditor
        self._owner = owner
        self._channels = channels
        self._note = note
        self._number = 0
        self._answers: dict[int, Answer] = {}
        self._asked_for: dict[int, Deed | list[Deed]] = {}
        """Which deed, or deeds of a run, the answer to a question decides."""
        self._script = self._live()

    def hear(self, answer: Answer) -> None:
        """An answer arrives, perhaps for the second time, perhaps long after anybody waited for it: it counts."""
        self._answers[answer.number] = answer
        deeds = self._asked_for.get(answer.number)
        times = answer.value
        if isinstance(deeds, Deed):
            deeds, times = [deeds], [times]
        if deeds is not None and answer.how == "committed":
            for deed, at in zip(deeds, times, strict=True):
                self._auditor.was_committed(deed, int(at))
        elif deeds is not None and answer.how == "absent":
            for deed in deeds:
                self._auditor.was_refused(deed)

    def step(self) -> None:
        """Go on, if there is something to go on with."""
        next(self._script)

    def _live(self) -> Script:
        while True:
            self.is_idle = True
            while self.is_finishing or self._rng.random() < 0.9:
                yield
            self.is_idle = False
            draw = self._rng.random()
            if draw < 0.25:
                yield from self._write_plain()
            elif draw < 0.33:
                yield from self._bring_stream()
            else:
                yield from self._run_transaction()

    # Asking

    def _ask(
        self,
        what: str,
        *,
        tries: int = 3,
        to: str | None = None,
        deed: Deed | list[Deed] | None = None,
        **arguments: Any,
    ) -> Script:
        """Ask, and ask again when no answer comes. The answer, if one came, is left in `self.answer`."""
        self._number += 1
        ask = Ask(self.name, self._number, what, arguments)
        self.answer: Answer | None = None
        if deed is not None:
            self._asked_for[ask.number] = deed
        asked: list[str] = []
        for _ in range(tries):
            owner = to or self._owner()
            if owner is not None:
                self._network.send(self.name, owner, ask)
                if asked and what == "commit":
                    self._note("a commit is asked for again" + (" at another owner" if owner not in asked else ""))
                asked.append(owner)
            for _ in range(PATIENCE):
                yield
                if ask.number in self._answers:
                    self.answer = self._answers.pop(ask.number)
                    return

    # What clients do

    def _place(self, channel: str) -> str:  # noqa: ARG002
        """A virtual channel of a channel, to write to."""
        return self._rng.choice(VCHANNELS)

    def _write_plain(self) -> Script:
        rng = self._rng
        channel = rng.choice(self._channels)
        deed = self._auditor.wanted({channel: 1})
        exclusive = rng.random() < 0.1
        line = Line(self._place(channel), (_text(channel, deed, 0, rng),), exclusive=exclusive)
        self._auditor.asked(deed)
        # Asked once: a repeated plain append is another message. (Producers of topics have sequence numbers.)
        yield from self._ask("plain", tries=1, deed=deed, channel=channel, line=line)
        if self.answer is not None and self.answer.how == "retry":
            self._auditor.was_refused(deed)

    def _run_transaction(self) -> Script:
        rng = self._rng
        timeout_ms = rng.choice((200, 3_000, 60_000, 60_000))
        yield from self._ask("begin", timeout_ms=timeout_ms)
        if self.answer is None or self.answer.how != "ok":
            return
        id: TxnId = self.answer.value
        counters = rng.sample(sorted(COUNTERS), rng.choice((1, 1, 2))) if rng.random() < 0.5 else []
        places = rng.sample(self._channels, rng.choice((1, 1, 2, 2, 3)))
        for key in counters:
            if COUNTERS[key] not in places:
                places.append(COUNTERS[key])
        deed = self._auditor.wanted({name: rng.choice((1, 1, 2, 5)) for name in places})
        read_at: Timestamp | None = None
        if counters:
            yield from self._read_counters(id, deed, counters)
            if not deed.updates:
                yield from self._give_up(id, deed)
                return
            read_at = self._read_at
        ahead, rest = self._lines(deed, rng.choice((0.0, 0.0, 0.4, 0.9)))
        for name, lines in ahead:
            owner = self._owner()
            if owner is not None:
                # Always the same process: it knows what it was asked already.
                yield from self._ask("write", to=owner, id=id, writes={name: lines})
            if owner is None or self.answer is None or self.answer.how != "ok":
                yield from self._give_up(id, deed)
                return
        ending = rng.random()
        if ending < 0.08:
            self._auditor.was_refused(deed)  # It stays open: nobody will ever ask for its commit.
            self._note("a transaction is left open")
        elif ending < 0.2:
            yield from self._give_up(id, deed)
        else:
            deadline_ms = Timestamp(id.counter).physical_ms + timeout_ms
            yield from self._commit(id, deed, rest, counters, read_at, deadline_ms)

    def _bring_stream(self) -> Script:
        """Runs of small transactions behind a guard, as a capture brings them."""
        rng = self._rng
        guard = yield from self._begin()
        if guard is None:
            return
        yield from self._ask("read", id=guard, keys=[crc32(rng.choice(sorted(COUNTERS)).encode())])
        read_at = self.answer.value if self.answer is not None and self.answer.how == "ok" else None
        name = rng.choice(self._channels)
        for _ in range(rng.choice((1, 2, 6)) if read_at is not None else 0):
            run: list[tuple[TxnId, str, list[Line]]] = []
            deeds: list[Deed] = []
            for _ in range(rng.choice((1, 4, 8))):
                id = yield from self._begin()
                if id is None:
                    break
                deed = self._auditor.wanted({name: rng.choice((1, 1, 2))}, deeds[-1] if deeds else None)
                deeds.append(deed)
                run.append((id, name, self._lines(deed, 0.0)[1][name]))
            if not run:
                break
            for (id, _, _), deed in zip(run, deeds, strict=True):
                self._auditor.asked(deed, Timestamp(id.counter).physical_ms + STREAM_MS)
            # Asked once: what became of it is read from the log, and so do the readers here.
            yield from self._ask("commit_run", tries=1, deed=deeds, id=guard, run=run, read_at=read_at)
            if self.answer is None or self.answer.how != "committed":
                break
        yield from self._ask("abort", id=guard, channels=())

    def _begin(self) -> Generator[None, None, TxnId | None]:
        yield from self._ask("begin", timeout_ms=STREAM_MS)
        found = self.answer
        return found.value if found is not None and found.how == "ok" else None

    def _read_counters(self, id: TxnId, deed: Deed, counters: list[str]) -> Script:
        yield from self._ask("read", id=id, keys=[crc32(key.encode()) for key in counters])
        if self.answer is None or self.answer.how != "ok":
            return
        self._read_at: Timestamp = self.answer.value
        at = int(self._read_at)
        for _ in range(8 * PATIENCE):
            if all(self._auditor.settled(COUNTERS[key]) >= at for key in counters):
                break
            yield
        else:
            return
        for key in counters:
            deed.updates[key] = (COUNTERS[key], self._auditor.value_at(key, at) + 1)

    def _lines(self, deed: Deed, part: float) -> tuple[list[tuple[str, list[Line]]], dict[str, list[Line]]]:
        """What is written ahead, piece by piece, and what comes with the commit."""
        rng = self._rng
        ahead: list[tuple[str, list[Line]]] = []
        rest: dict[str, list[Line]] = {}
        for channel, count in deed.parts.items():
            index = 0
            while index < count:
                size = rng.randrange(1, count - index + 1)
                texts = tuple(_text(channel, deed, at, rng) for at in range(index, index + size))
                line = Line(self._place(channel), texts, as_rows=rng.random() < 0.3)
                if rng.random() < part and not rest.get(channel):
                    ahead.append((channel, [line]))
                else:
                    rest.setdefault(channel, []).append(line)
                index += size
        return ahead, rest

    def _commit(
        self,
        id: TxnId,
        deed: Deed,
        writes: dict[str, list[Line]],
        counters: list[str],
        read_at: Timestamp | None,
        deadline_ms: int,
    ) -> Script:
        self._auditor.asked(deed, deadline_ms)
        keys = [crc32(key.encode()) for key in counters]
        channels = tuple(deed.parts)
        while True:
            yield from self._ask(
                "commit", deed=deed, id=id, writes=writes, keys=keys, channels=channels, read_at=read_at
            )
            how = "unknown" if self.answer is None else self.answer.how
            if how in ("committed", "absent"):
                self._note(f"deed {deed.number} {how} in {len(deed.parts)}: {deed.at}")
                if self._rng.random() < 0.8:
                    return  # The others ask once more: the answer must be the same for ever.
            elif self._rng.random() < (0.4 if how == "retry" else 0.15):
                yield from self._ask("abort", deed=deed, id=id, channels=channels)
                if self.answer is not None and self.answer.how in ("committed", "absent"):
                    return
            else:
                for _ in range(self._rng.choice((0, 20, 60))):
                    yield

    def _give_up(self, id: TxnId, deed: Deed) -> Script:
        """Abort a transaction whose commit nobody ever asked for."""
        self._auditor.was_refused(deed)
        yield from self._ask("abort", deed=deed, id=id, channels=tuple(deed.parts))


def _text(channel: str, deed: Deed, index: int, rng: Random) -> str:
    return f"{channel}|{deed.number}|{index}|" + "x" * rng.choice((0, 5, 200, 1500))
