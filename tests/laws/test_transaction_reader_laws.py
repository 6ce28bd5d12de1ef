"""A channel over several terms, with transactions of every kind, a disk that fails and crashes in between: every reader
sees exactly the committed set, in order, and from any message or tick on exactly what comes after it.

Time-log fact 38; promises 1, 2, 3 and 6.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers import BROKEN, FULL, Rig, commit_all, drain, drain_whole, tick, txn_id
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Backpressure,
    Closed,
    Fenced,
    InvalidTransactionState,
    OutcomeUnknown,
    Retryable,
    TidegateError,
    TransactionAborted,
)
from tidegate.log.message import Message, MessageType, Position
from tidegate.runtime.channel_txn import ChannelTxn
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.pending import Appended
from tidegate.runtime.pieces import Piece
from tidegate.runtime.retention import facts, remove_old
from tidegate.runtime.sealer import seal
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.txn.marker import Marker

PLACES = ("a", "b", "c")
TERMS = 4


@dataclass
class Unit:
    """What becomes visible together or not at all."""

    bodies: list[bytes] = field(default_factory=list)
    outcome: str = "no"
    ticks: list[int] = field(default_factory=list)

    def happened(self, done: Appended, *, whole: bool) -> None:
        self.outcome = "yes"
        first = int(done.time_tick)
        self.ticks = [first] * len(self.bodies) if whole else list(range(first, first + len(self.bodies)))


class History:
    """Does random things to a channel, and knows what must, may and must not be visible."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rig = Rig(root)
        self.rng = random.Random(seed)
        self.fails = self.rng.choice([0.0, 0.003, 0.02, 0.08])
        self.units: list[Unit] = []
        self.open: dict[int, tuple[ChannelTxn, Unit]] = {}
        self.held: list[tuple[Any, Unit, list[Piece], Timestamp | None]] = []
        self.txns = 0
        self.visible: dict[str, int] = {}
        self.writer = self.open_term()
        self.raw_files = self.rig.reader()
        self.raw_files_seen: list[Message] = []
        self.files = self.rig.transactions()
        self.files_seen: list[Message] = []
        self.memory: TransactionReader = self.rig.transactions(self.writer)
        self.memory_seen: list[Message] = []
        self.places: list[tuple[int, int]] = []

    # Faults

    def rule(self, call: str, _: str) -> int | None:
        if call in ("write", "sync", "create", "sync_dir") and self.rng.random() < self.fails:
            return self.rng.choice([FULL, BROKEN])
        return None

    def open_term(self) -> ChannelWriter:
        settings = {"segment_bytes": self.rng.choice([8, 64]) << 10, "buffer_bytes_max": self.rng.choice([4, 64]) << 10}
        for attempt in range(20):
            self.rig.files.rule = self.rule if attempt < 5 else lambda *_: None
            try:
                return self.rig.writer(inline=True, **settings)
            except Retryable:
                continue
            finally:
                self.rig.files.rule = self.rule
        raise AssertionError("the channel does not open")

    def crash(self) -> None:
        self.held = []
        self.rig.deferred = False
        if self.rng.random() < 0.2:
            self.writer.close()
        else:
            self.rig.crash()
        self.follow()
        self.writer = self.open_term()
        self.visible = {}
        last = self.memory.tick
        if last is not None:
            self.memory = self.rig.transactions(self.writer, position=last.last_confirmed, after=last.time_tick)
        else:
            self.memory = self.rig.transactions(self.writer)
        survivors = {}
        for number, (_, unit) in self.open.items():
            # A transaction whose client never comes back is abandoned.
            if self.rng.random() < 0.6:
                try:
                    survivors[number] = (self.writer.resume(txn_id(number)), unit)
                except TransactionAborted:
                    continue  # Its BEGIN was never acknowledged, or an exclusive append has ended it.
        self.open = survivors

    # What is done

    def unit(self, count: int = 1) -> Unit:
        unit = Unit()
        self.units.append(unit)
        for _ in range(count):
            self.extend(unit)
        return unit

    def extend(self, unit: Unit) -> bytes:
        number = next(at for at in range(len(self.units) - 1, -1, -1) if self.units[at] is unit)
        body = b"%d.%d." % (number, len(unit.bodies)) + bytes(self.rng.choice([0, 10, 300]))
        unit.bodies.append(body)
        return body

    def attempt(self, unit: Unit, call: Callable[[], Appended], *, whole: bool) -> bool:
        """Whether it is known not to be in the log."""
        try:
            unit.happened(call(), whole=whole)
        except (OutcomeUnknown, Fenced):
            unit.outcome = "maybe"
        except (Retryable, Closed):
            return True
        return False

    def place(self) -> str:
        return self.rng.choice(PLACES)

    def plain(self) -> None:
        unit = self.unit()
        self.attempt(unit, lambda: self.writer.append(self.place(), unit.bodies[0], timeout_s=5), whole=False)

    def batch(self) -> None:
        unit = self.unit(self.rng.randrange(1, 6))
        self.attempt(unit, lambda: self.writer.append_batch(self.place(), unit.bodies, timeout_s=5), whole=False)

    def pieces(self, unit: Unit) -> list[Piece]:
        found: list[Piece] = []
        left = list(unit.bodies)
        while left:
            size = self.rng.randrange(1, len(left) + 1)
            found.append(Piece(self.place(), left[0] if size == 1 else left[:size]))
            left = left[size:]
        return found

    def at_once(self) -> None:
        unit = self.unit(self.rng.randrange(0, 6))
        self.txns += 1
        txn, pieces = txn_id(self.txns), self.pieces(unit)
        self.attempt(unit, lambda: self.writer.append_transaction(txn, pieces, timeout_s=5), whole=True)

    def begin(self) -> None:
        self.txns += 1
        keepalive = self.rng.choice([None, 0, 50])
        txn = self.writer.begin(txn_id(self.txns), self.place(), keepalive_ms=keepalive, timeout_s=5)
        self.open[self.txns] = (txn, self.unit())
        self.open[self.txns][1].bodies.clear()

    def body(self) -> None:
        if not self.open:
            return self.begin()
        number = self.rng.choice(list(self.open))
        txn, unit = self.open[number]
        before = len(unit.bodies)
        bodies = [self.extend(unit) for _ in range(self.rng.choice([1, 1, 3]))]
        try:
            txn.append(self.place(), bodies[0] if len(bodies) == 1 else bodies, timeout_s=5)
        except (TransactionAborted, OutcomeUnknown, Fenced):
            del self.open[number]
        except Retryable:
            del unit.bodies[before:]
        return None

    def commit(self) -> None:
        if not self.open:
            return
        number = self.rng.choice(list(self.open))
        txn, unit = self.open[number]
        extra = [self.extend(unit) for _ in range(self.rng.choice([0, 0, 2]))]
        pieces = [Piece(self.place(), each) for each in extra]
        try:
            unit.happened(txn.commit(pieces, timeout_s=0.01), whole=True)
        except (OutcomeUnknown, Fenced):
            unit.outcome = "maybe"
        except TransactionAborted:
            pass
        except Retryable:
            del unit.bodies[len(unit.bodies) - len(extra) :]
            return
        del self.open[number]

    def rollback(self) -> None:
        if self.open:
            txn, _ = self.open.pop(self.rng.choice(list(self.open)))
            with contextlib.suppress(TransactionAborted, InvalidTransactionState):
                txn.rollback()

    def ddl(self) -> None:
        if self.held:
            return  # It would wait for them.
        unit = self.unit()
        name = self.rng.choice([*PLACES, ""])
        self.attempt(
            unit, lambda: self.writer.append(name, unit.bodies[0], kind=MessageType.DDL, timeout_s=5), whole=False
        )

    def hold(self) -> None:
        if len(self.held) > 3:
            return
        self.txns += 1
        unit = self.unit(self.rng.randrange(1, 4))
        pieces = self.pieces(unit)
        held = self.writer.reserve(PLACES, count=sum(each.count for each in pieces) + 1, timeout_s=5)
        self.held.append((held, unit, pieces, None))

    def commit_held(self) -> None:
        if not self.held:
            return
        at = self.rng.randrange(len(self.held))
        held, unit, pieces, when = self.held.pop(at)
        if when is None and self.rng.random() < 0.2:
            held.release()
            return
        when = when or Timestamp(self.rig.oracle.allocate(1))
        txn = txn_id(1_000_000 + self.units.index(unit))
        try:
            unit.happened(held.commit_async(txn, pieces, at=when).result(5), whole=True)
        except TidegateError as error:
            unit.outcome = "maybe" if isinstance(error, OutcomeUnknown | Fenced) else "no"
            self.held.append((held, unit, pieces, when))

    def group(self) -> None:
        """Several that are written together."""
        self.rig.deferred = True
        waiting: list[tuple[Unit, Any, bool]] = []
        bodies: list[tuple[int, Unit, Any]] = []
        for _ in range(self.rng.randrange(2, 8)):
            kind = self.rng.randrange(3)
            if kind == 0:
                unit = self.unit()
                waiting.append((unit, self.writer.append_async(self.place(), unit.bodies[0]), False))
            elif kind == 1:
                unit = self.unit(self.rng.randrange(1, 4))
                self.txns += 1
                pending = self.writer.append_transaction_async(txn_id(self.txns), self.pieces(unit))
                waiting.append((unit, pending, True))
            elif self.open:
                number = self.rng.choice(list(self.open))
                txn, unit = self.open[number]
                try:
                    bodies.append((number, unit, txn.append_async(self.place(), self.extend(unit))))
                except TransactionAborted:
                    del self.open[number]
        self.rig.deferred = False
        if self.rng.random() < 0.1:
            return self.crash_in_the_middle(waiting, bodies)
        commit_all(self.writer)
        for unit, pending, whole in waiting:
            self.attempt(unit, pending.result, whole=whole)
        for number, _, pending in bodies:
            if pending.exception() is not None:
                # Its sender did not look: it can only be rolled back.
                self.open.pop(number, None)
        return None

    def crash_in_the_middle(self, waiting: list[Any], bodies: list[Any]) -> None:
        """After the write, before anybody is told."""
        commit = self.writer.next_commit()
        if commit is not None and commit.items:
            with contextlib.suppress(OSError, TidegateError):
                self.writer.write(commit)
        for unit, _, _ in waiting:
            unit.outcome = "maybe"
        for number, _, _ in bodies:
            self.open.pop(number, None)
        self.crash()

    def tick(self) -> None:
        tick(self.writer, force=self.rng.random() < 0.2)
        for name in PLACES:
            seen = int(self.writer.visible(name).time_tick)
            assert seen >= self.visible.get(name, 0)
            self.visible[name] = seen

    def later(self) -> None:
        self.rig.oracle.pass_ms(self.rng.choice([1, 40, 60]))

    def seal(self) -> None:
        try:
            self.writer.segments.roll()
        except OSError:
            return
        self.rig.files.rule = lambda *_: None
        self.rig.seal(self.writer)
        self.rig.files.rule = self.rule

    def follow(self) -> None:
        for reader, seen in ((self.files, self.files_seen), (self.memory, self.memory_seen)):
            seen.extend(drain_whole(reader))
            if reader.tick is not None:
                self.places.append((int(reader.tick.last_confirmed), int(reader.tick.time_tick)))
        self.raw_files_seen.extend(drain(self.raw_files))

    def step(self) -> None:
        steps = {
            self.plain: 6, self.batch: 3, self.at_once: 6, self.begin: 2, self.body: 10, self.commit: 3,
            self.rollback: 1, self.ddl: 1, self.hold: 1, self.commit_held: 3, self.group: 4, self.tick: 8,
            self.later: 1, self.seal: 1, self.follow: 2,
        }  # fmt: skip
        call = self.rng.choices(list(steps), list(steps.values()))[0]
        try:
            call()
        except Backpressure:
            pass
        finally:
            self.rig.deferred = False

    # The end

    def check(self) -> None:
        self.rig.files.rule = lambda *_: None
        self.fails = 0.0
        self.crash()
        tick(self.writer, force=True)
        self.follow()
        found = drain_whole(self.rig.transactions())
        assert self.files_seen == self.memory_seen == found
        assert drain_whole(self.rig.transactions(self.writer)) == found
        raw = drain(self.rig.reader())
        assert self.raw_files_seen == raw == drain(self.rig.reader(self.writer))
        assert [(each.position, int(each.time_tick)) for each in found] == assembled(raw)
        self.check_units(found)
        places = [*self.places, *((int(each.last_confirmed), int(each.time_tick)) for each in [*raw, *found])]
        for position, after in self.rng.sample(places, min(len(places), 12)):
            for source in (None, self.writer):
                rest = drain_whole(self.rig.transactions(source, position=position, after=Timestamp(after)))
                assert rest == [each for each in found if each.time_tick > after]
        self.check_retention(found)
        self.rig.close()

    def check_retention(self, found: list[Message]) -> None:
        """What a pin at a message's LastConfirmedMessageID keeps is all that reading on from there needs."""
        for each in facts(self.rig.channel):
            if each.closed is not None:
                seal(self.rig.files, self.rig.directory, each.closed)
        for message in sorted(self.rng.sample(found, min(len(found), 3)), key=lambda each: each.time_tick):
            remove_old(
                self.rig.channel,
                needed_from=message.last_confirmed,
                before=Position(1 << 60),
                age_max_s=None,
                bytes_max=None,
                now_ms=0,
            )
            reader = self.rig.transactions(position=message.last_confirmed, after=message.time_tick)
            assert drain_whole(reader) == [each for each in found if each.time_tick > message.time_tick]

    def check_units(self, found: list[Message]) -> None:
        by_unit: dict[int, list[tuple[bytes, int]]] = {}
        for each in found:
            body = each.body or b""
            by_unit.setdefault(int(body.split(b".")[0]), []).append((body, int(each.time_tick)))
        for number, unit in enumerate(self.units):
            got = by_unit.get(number, [])
            if unit.outcome == "yes":
                assert got == list(zip(unit.bodies, unit.ticks, strict=True)), f"unit {number}"
            elif unit.outcome == "maybe":
                assert [body for body, _ in got] in ([], unit.bodies), f"unit {number}"
            else:
                assert got == [], f"unit {number}"


def assembled(raw: list[Message]) -> list[tuple[int, int]]:
    """The twin: what becomes visible and when, message by message, from all that is in the log."""
    at = {int(each.position): each for each in raw}
    found: list[tuple[int, int]] = []
    ended = set()
    for each in raw:
        if each.txn is None:
            found.append((each.position, int(each.time_tick)))
        elif each.type is MessageType.COMMIT and each.txn not in ended:
            ended.add(each.txn)
            for position in Marker.decode(each.body or b"").positions_at(int(each.position)).tolist():
                assert at[position].txn == each.txn
                found.append((position, int(each.time_tick)))
    return found


def run(root: Path, seed: int, steps: int) -> None:
    history = History(root, seed)
    for _ in range(TERMS):
        for _ in range(history.rng.randrange(steps)):
            history.step()
        history.crash()
    history.check()


@pytest.mark.parametrize("seed", range(16))
def test_every_reader_sees_exactly_the_committed_set_and_loses_nothing_from_any_place(
    tmp_path: Path, seed: int
) -> None:
    """Replay one: `pytest tests/laws/test_transaction_reader_laws.py -k "[SEED]"`."""
    run(tmp_path, seed, 80)
