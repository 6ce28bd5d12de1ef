"""Laws of assembly against a twin too simple to be wrong: whole transactions, once, at their COMMIT. Promises 1 to 3,
seed 000, time-log facts 33, 35, 38, 58, 59."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken, StorageFailed
from tidegate.log.batch import Batch, body_rows
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType, Term
from tidegate.txn.assembly import Assembler
from tidegate.txn.marker import Marker, Run

ROWS = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])


@dataclass
class Sent:
    """One message of the log, made by hand."""

    time_tick: int
    type: MessageType
    vchannel: str
    txn: bytes | None = None
    body: bytes = b""
    is_row: bool = False
    position: int = 0
    last_confirmed: int = 0
    term: int = 1

    @property
    def payload(self) -> Any:
        return {"n": self.time_tick, "s": f"row {self.time_tick}"} if self.is_row else self.body


def to_batch(messages: Sequence[Sent]) -> Batch:
    names = tuple(dict.fromkeys(each.vchannel for each in messages))
    if messages[0].is_row:
        rows = pa.RecordBatch.from_pylist([each.payload for each in messages], ROWS)
    else:
        rows = body_rows([each.body for each in messages])
    txns = None
    if any(each.txn for each in messages):
        txns = np.frombuffer(b"".join(each.txn or bytes(16) for each in messages), "V16")
    return Batch(
        time_ticks=np.array([each.time_tick for each in messages], np.uint64),
        positions=np.array([each.position for each in messages], np.uint64),
        last_confirmed=np.array([each.last_confirmed for each in messages], np.uint64),
        types=np.array([each.type for each in messages], np.uint8),
        vchannel_ids=np.array([names.index(each.vchannel) for each in messages], np.uint16),
        vchannels=names,
        rows=rows,
        term=Term(messages[0].term),
        txns=txns,
    )


def to_batches(messages: Iterable[Sent], random: Random, size: int) -> list[Batch]:
    """Cut where schema or term changes, and now and then elsewhere."""
    out = []
    for _, group in groupby(messages, key=lambda each: (each.is_row, each.term)):
        same = list(group)
        while same:
            count = random.randint(1, size)
            out.append(to_batch(same[:count]))
            same = same[count:]
    return out


BODIES = (MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE, MessageType.ACK, MessageType.RECORD)


class History:
    """A channel's life: a list in TimeTick order, given positions in another order, as reservations make it."""

    def __init__(self, random: Random, length: int) -> None:
        self.random = random
        self.tick = 100
        self.units: list[list[Sent]] = []
        """What is written together, in TimeTick order."""
        self.open: dict[bytes, list[Sent]] = {}
        self.outcomes: dict[bytes, MessageType] = {}
        self.commits: list[tuple[Sent, list[Sent], int]] = []
        self.made = 0
        for _ in range(length):
            random.choice((self.plain, self.at_once, self.ahead, self.ahead, self.end, self.late))()
        self.place()

    def message(self, kind: MessageType, txn: bytes | None = None, **more: Any) -> Sent:
        self.tick += self.random.choice((1, 1, 1, 5))
        return Sent(self.tick, kind, more.pop("vchannel", ALL_VCHANNELS), txn, **more)

    def bodies(self, txn: bytes | None, most: int) -> list[Sent]:
        out = []
        is_row = self.random.random() < 0.3
        for _ in range(self.random.randint(0 if txn else 1, most)):
            each = self.message(self.random.choice(BODIES), txn, vchannel=self.random.choice("abc"), is_row=is_row)
            each.body = b"%d" % each.time_tick
            out.append(each)
        return out

    def id(self) -> bytes:
        self.made += 1
        return b"\x01" + self.made.to_bytes(15, "big") if self.made % 2 else self.made.to_bytes(16, "little")

    def begin(self, txn: bytes) -> list[Sent]:
        return [self.message(MessageType.BEGIN, txn)] if self.random.random() < 0.5 else []

    def plain(self) -> None:
        self.units.append(self.bodies(None, 4))

    def at_once(self) -> None:
        """Begun, filled and committed with one write; several of them, as group commit makes it."""
        for _ in range(self.random.randint(1, 4)):
            txn = self.id()
            self.units.append([*self.begin(txn), *self.closing(txn)])

    def ahead(self) -> None:
        """A part of a transaction that is committed later, or never."""
        if self.open and self.random.random() < 0.6:
            txn = self.random.choice(list(self.open))
        else:
            txn = self.id()
            self.units.append(self.begin(txn))
            self.open[txn] = []
        found = self.bodies(txn, 5)
        self.open[txn] += found
        # Each on its own or all together: they need not lie next to each other.
        self.units += [found] if self.random.random() < 0.5 else [[each] for each in found]

    def end(self) -> None:
        if not self.open:
            return
        txn = self.random.choice(list(self.open))
        if self.random.random() < 0.3:
            self.outcomes[txn] = MessageType.ROLLBACK
            self.units.append([self.message(MessageType.ROLLBACK, txn)])
            self.open.pop(txn)
        else:
            self.units.append(self.closing(txn))

    def closing(self, txn: bytes) -> list[Sent]:
        before = self.bodies(txn, 3)
        commit = self.message(MessageType.COMMIT, txn)
        self.commits.append((commit, self.open.pop(txn, []), len(before)))
        self.outcomes[txn] = MessageType.COMMIT
        return [*before, commit]

    def late(self) -> None:
        """A message of a transaction that has ended: nobody may ever see it."""
        if self.outcomes:
            self.units.append(self.bodies(self.random.choice(list(self.outcomes)), 2))

    def place(self) -> None:
        """Positions: units move back a little, but no COMMIT before its messages, and each unit stays together."""
        keys: dict[int, float] = {}
        of_txn: dict[bytes, float] = {}
        for at, unit in enumerate(self.units):
            key = at + self.random.choice((0.0, 0.0, 0.0, self.random.random() * 6))
            for each in unit:
                if each.txn is not None and each.type in (MessageType.COMMIT, MessageType.ROLLBACK):
                    key = max(key, of_txn.get(each.txn, 0.0) + 0.001)
            for each in unit:
                if each.txn is not None:
                    of_txn[each.txn] = max(of_txn.get(each.txn, 0.0), key)
            keys[at] = key
        position, term = 10, 1
        self.log: list[Sent] = []
        for at in sorted(keys, key=lambda each: keys[each]):
            if self.random.random() < 0.1:
                position, term = position + self.random.randint(0, 9), term + 1
            for each in self.units[at]:
                position += 1
                each.position, each.term = position, term
                each.last_confirmed = max(0, position - self.random.randint(1, 20))
                self.log.append(each)
        for commit, ahead, before in self.commits:
            marker = Marker.over([(each.position, 1) for each in ahead], before=before)
            commit.body = marker.encode()
        self.by_position = {each.position: each for each in self.log}
        self.in_time = sorted(self.log, key=lambda each: each.time_tick)

    def visible(self, start: int, after: int) -> list[tuple[Any, ...]]:
        """The twin: what a reader from `start` and above `after` must see, message by message."""
        out = []
        for each in self.in_time:
            if each.position < start or each.time_tick <= after:
                continue
            if each.txn is None:
                out.append(seen(each, each))
            elif each.type is MessageType.COMMIT:
                named = Marker.decode(each.body).positions_at(each.position).tolist()
                out += [seen(self.by_position[position], each) for position in named]
        return out

    def fetch(self, runs: list[Run]) -> list[Batch]:
        wanted = [at for first, count in runs for at in range(first, first + count)]
        return to_batches([self.by_position[at] for at in wanted if at in self.by_position], self.random, 4)


def seen(body: Sent, at: Sent) -> tuple[Any, ...]:
    """A message as it comes out when it becomes visible with `at`."""
    return (
        at.time_tick, body.position, at.last_confirmed, body.type, body.vchannel, body.term, body.payload, body.txn,
    )  # fmt: skip


def flat(batches: Sequence[Batch]) -> list[tuple[Any, ...]]:
    def one(each: Message) -> tuple[Any, ...]:
        payload = each.body if each.row is None else each.row
        return (
            int(each.time_tick), each.position, each.last_confirmed, each.type, each.vchannel, each.term, payload,
            each.txn,
        )  # fmt: skip

    return [one(message) for batch in batches for message in batch.messages()]


@settings(max_examples=300, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(0, 40),
    st.sampled_from([0, 2_000, 10_000, 64 << 20]),
    st.sampled_from([1, 3, 50]),
    st.sampled_from([1, 3, 50]),
    st.booleans(),
)
def test_every_transaction_comes_out_whole_and_once_however_the_log_is_cut(
    random: Random, length: int, bytes_max: int, tick_size: int, batch_size: int, from_start: bool
) -> None:
    """Promises 1 to 3, facts 38 and 59: from any place, with any memory, through any cuts and failing reads."""
    history = History(random, length)
    start = 0 if from_start or not history.log else random.choice(history.log).position
    after = 0 if from_start or not history.log else random.choice(history.log).time_tick
    failing = random.random() < 0.3

    def fetch(runs: list[Run]) -> list[Batch]:
        assert runs, "nothing is fetched for nothing"
        if failing and random.random() < 0.5:
            raise StorageFailed("the disk is tired")
        return history.fetch(runs)

    assembler = Assembler(fetch, bytes_max)
    expected = history.visible(start, after)
    raw = [each for each in history.in_time if each.position >= start and each.time_tick > after]
    tick = 0
    while raw:
        count = random.randint(1, tick_size)
        now, raw = raw[:count], raw[count:]
        above, tick = tick, now[-1].time_tick
        batches = to_batches(now, random, batch_size)
        while True:
            try:
                found = assembler.take(batches)
                break
            except StorageFailed:
                continue
        # Whatever the tick covers is out now, whole: the twin knows nothing of ticks.
        assert flat(found) == [each for each in expected if above < each[0] <= tick]
        assert all(len(each) for each in found)
        status = assembler.status
        assert status.held_bytes <= bytes_max
        assert (status.held_bytes == 0) == (status.open_transactions == 0)
    committed = [each for each in history.commits if each[0].position >= start and each[0].time_tick > after]
    assert assembler.status.committed == len(committed)
    if from_start and bytes_max > 1 << 20:
        unended = {txn for txn, bodies in history.open.items() if bodies}
        assert assembler.status.open_transactions == len(unended), "nothing of an ended transaction is kept"
        assert assembler.status.forgotten == 0
        rolled_back = [each for each in history.outcomes.values() if each is MessageType.ROLLBACK]
        assert assembler.status.rolled_back == len(rolled_back)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 30), st.sampled_from([0, 64 << 20]), st.booleans())
def test_a_transaction_that_has_lost_a_message_is_never_delivered(
    random: Random, length: int, bytes_max: int, foreign: bool
) -> None:
    """Fact 58: one body gone, or another's in its place, and the COMMIT is refused, with nothing of it shown."""
    history = History(random, length)
    named = {
        position: commit
        for commit, _, _ in history.commits
        for position in Marker.decode(commit.body).positions_at(commit.position).tolist()
    }
    if not named:
        return
    lost = random.choice(sorted(named))
    commit = named[lost]
    if foreign:
        history.by_position[lost].txn = b"\xee" * 16
    else:
        del history.by_position[lost]
    raw = [each for each in history.in_time if each.position in history.by_position]
    assembler = Assembler(history.fetch, bytes_max)
    while raw:
        now, raw = raw[:7], raw[7:]
        batches = to_batches(now, random, 5)
        if commit in now:
            with pytest.raises(InvariantBroken) as raised:
                assembler.take(batches)
            assert commit.txn is not None
            count = Marker.decode(commit.body).count
            for fact in (commit.txn.hex(), f"position {commit.position}", f"names {count}", f"{count - 1} were found"):
                assert fact in str(raised.value)
            return
        assembler.take(batches)
    raise AssertionError("the COMMIT was not met")
