"""Laws of subscriptions over arbitrary lives, against a twin too simple to be wrong. Seed 002, promises 2, 6 and 7."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.errors import Conflict, InUse, InvalidArgument
from tidegate.topics import sub_records, sub_shard
from tidegate.topics.acknowledgements import Acknowledgements
from tidegate.topics.message_id import MessageId
from tidegate.topics.sub_entry import Change
from tidegate.topics.subscription import Subscription
from tidegate.txn.txn_id import TxnId

SHARDS = (0, 3)
FOREVER = 1 << 60


def txn(number: int) -> bytes:
    return TxnId.make(1, number).to_bytes16()


# -- records and the fold --------------------------------------------------------------------------------------------

wide = st.builds(MessageId, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
near = st.builds(MessageId, st.integers(0, 2), st.integers(0, 9), st.integers(0, 2))
txns = st.integers(1, 3).map(txn)


@given(wide)
def test_a_message_id_reads_back_what_it_prints(id: MessageId) -> None:
    assert MessageId.parse(str(id)) == id


@given(st.lists(st.one_of(wide, near), unique=True, max_size=30), txns)
def test_every_record_reads_back_what_was_written(ids: list[MessageId], by: bytes) -> None:
    for record, kind, holder in (
        (sub_records.ack(ids), sub_records.Kind.ACK, b""),
        (sub_records.ack_cumulative(ids), sub_records.Kind.ACK_CUMULATIVE, b""),
        (sub_records.pending(by, ids), sub_records.Kind.PENDING, by),
        (sub_records.pending_cumulative(by, ids), sub_records.Kind.PENDING_CUMULATIVE, by),
    ):
        read = sub_records.decode(record)
        assert (read.kind, set(read.ids), len(read.ids), read.txn) == (kind, set(ids), len(ids), holder)


few = st.lists(near, min_size=1, max_size=4, unique=True)
history = st.lists(
    st.one_of(
        st.tuples(few.map(sub_records.ack), st.one_of(st.none(), txns)),
        st.tuples(near.map(lambda id: sub_records.ack_cumulative([id])), st.one_of(st.none(), txns)),
        st.tuples(st.builds(sub_records.pending, txns, few), st.none()),
        st.tuples(st.builds(lambda by, id: sub_records.pending_cumulative(by, [id]), txns, near), st.none()),
        st.tuples(txns.map(sub_records.release), st.none()),
    ),
    max_size=20,
)


def folded(start: Acknowledgements, applied: list[tuple[bytes, bytes | None]]) -> Acknowledgements:
    for record, by in applied:
        start.apply(record, by)
    return start


@given(history, st.integers(0, 20))
def test_a_snapshot_and_the_records_after_it_are_all_records(applied: Any, cut: int) -> None:
    whole = folded(Acknowledgements(), applied)
    early = folded(Acknowledgements(), applied[:cut]).snapshot()
    assert folded(Acknowledgements.restore(early), applied[cut:]).snapshot() == whole.snapshot()


@given(history)
def test_applying_each_record_twice_is_applying_it_once(applied: Any) -> None:
    twice = [each for each in applied for _ in range(2)]
    assert folded(Acknowledgements(), twice).snapshot() == folded(Acknowledgements(), applied).snapshot()


@given(history, st.integers(0, 20))
def test_what_is_acknowledged_stays_so_and_is_pending_for_nobody(applied: Any, cut: int) -> None:
    everything = [MessageId(a, b, c) for a in range(3) for b in range(10) for c in range(3)]
    acks = folded(Acknowledgements(), applied[:cut])
    before = {id for id in everything if acks.is_acknowledged(id)}
    marks = acks.marks()
    folded(acks, applied[cut:])
    assert all(acks.is_acknowledged(id) and acks.pending_for(id) is None for id in before)
    assert all(acks.marks()[shard] >= mark for shard, mark in marks.items())


# -- a whole life ----------------------------------------------------------------------------------------------------


@dataclass
class Flight:
    change: Change
    ids: list[MessageId]
    """All it covers."""


@dataclass
class Twin:
    """What must be true, by sets and loops alone."""

    topic: dict[int, list[MessageId]] = field(default_factory=lambda: {shard: [] for shard in SHARDS})
    fed: set[MessageId] = field(default_factory=set)
    given: set[MessageId] = field(default_factory=set)
    """Delivered in this life, or freed by an abort."""
    holder: dict[MessageId, Any] = field(default_factory=dict)
    acked: set[MessageId] = field(default_factory=set)
    acking: Counter[MessageId] = field(default_factory=Counter)
    pending: dict[MessageId, bytes] = field(default_factory=dict)
    cumulative: dict[int, tuple[bytes, list[MessageId]]] = field(default_factory=dict)

    def all(self) -> list[MessageId]:
        return [id for ids in self.topic.values() for id in ids]

    def level(self, shard: int) -> MessageId | None:
        held = self.cumulative.get(shard)
        # One that the mark has passed holds nothing.
        return max(held[1]) if held and self.upto(max(held[1])) else None

    def held_by_txn(self, id: MessageId) -> bytes | None:
        if id in self.acked or self.acking[id]:
            return None
        if id in self.pending:
            return self.pending[id]
        level = self.level(id.shard)
        return self.cumulative[id.shard][0] if level is not None and id <= level else None

    def blocked(self, id: MessageId) -> bool:
        return id in self.acked or self.acking[id] > 0 or self.held_by_txn(id) is not None

    def upto(self, id: MessageId) -> list[MessageId]:
        return [each for each in self.topic[id.shard] if each <= id and each not in self.acked]

    def refuses(self, ids: list[MessageId], by: bytes | None) -> type[Exception] | None:
        for id in ids:
            if id in self.acked or self.acking[id]:
                if by is not None:
                    return Conflict
            elif self.held_by_txn(id) is not None:
                return Conflict
            elif id not in self.given:
                return InvalidArgument
        return None

    def refuses_cumulative(self, id: MessageId, by: bytes | None) -> type[Exception] | None:
        if not self.blocked(id) and id not in self.given:
            return InvalidArgument
        covered = self.upto(id)
        if by is not None:
            level = self.level(id.shard)
            if not covered:
                return Conflict
            if level is not None and (self.cumulative[id.shard][0] != by or id <= level):
                return Conflict
            covered = [each for each in covered if level is None or each > level]
        for each in covered:
            held = self.held_by_txn(each)
            if held is not None and held != by:
                return Conflict
            if held is None and not self.acking[each]:
                if each not in self.given:
                    return InvalidArgument
                if self.holder.get(each) is None:
                    return Conflict  # It was given back, and nobody has processed it.
        return None


class Life:
    """A shell that appends, loses, crashes and comes back, led by one seeded source of chance."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.kind: Any = chance.choice(["exclusive", "failover", "shared", "shared"])
        self.twin = Twin()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.kept = (Acknowledgements().snapshot(), 0)
        self.flights: list[Flight] = []
        self.ended: dict[bytes, bool] = {}
        self.clock = 0
        self.next_txn = 0
        self.open_txns: dict[bytes, list[Change]] = {}
        self.serial = 0
        self.seen: Counter[str] = Counter()
        self.start()

    def step(self) -> None:
        alone = [(self.publish, 6), (self.feed, 8), (self.connect, 4), (self.pass_time, 2), (self.keep_snapshot, 1)]
        alone += [(self.crash, 1)]
        if self.consumers:
            alone += [(self.take, 12), (self.ack, 8), (self.ack_in_txn, 8), (self.nack, 3), (self.redeliver, 1)]
            alone += [(self.disconnect, 1)]
            if self.kind != "shared" and self.twin.fed:
                alone += [(self.ack_cumulative, 8)]
        if self.flights:
            alone += [(self.settle, 14)]
        if self.open_txns:
            alone += [(self.end, 4)]
        actions, weights = zip(*alone)
        self.chance.choices(actions, weights)[0]()

    def start(self) -> None:
        snapshot, at = self.kept
        acks = folded(Acknowledgements.restore(snapshot), self.log[at:])
        self.sub = Subscription("t/s", self.kind, acknowledgements=acks, buffer_max=40, unacked_max=12)
        self.consumers: dict[str, int] = {}
        self.place = dict.fromkeys(SHARDS, 0)
        self.first_seen: dict[int, MessageId] = {}
        self.restored = set(self.twin.pending) | {
            id for shard in self.twin.cumulative for id in self.twin.topic[shard] if self.twin.held_by_txn(id)
        }
        for by in self.sub.pending_txns():
            if by in self.ended:
                assert not self.ended[by], "a committed transaction's records are in the log"
                self.sub.end_txn(by, False)

    def holder(self, name: str) -> tuple[str, int]:
        return (name, self.consumers[name])

    def one_of(self, choices: Any) -> Any:
        return self.chance.choice(sorted(choices))

    def some(self) -> list[MessageId]:
        """Mostly what is in somebody's hands, sometimes anything."""
        held = [id for id, holder in self.twin.holder.items() if holder is not None and not self.twin.blocked(id)]
        ids = held if held and self.chance.random() < 0.8 else self.twin.all()
        return self.chance.choices(ids, k=self.chance.randint(1, 4)) if ids else []

    def publish(self) -> None:
        shard, count, same = self.chance.choice(SHARDS), self.chance.randint(1, 4), self.chance.random() < 0.5
        for at in range(count):
            self.serial += 1
            stamp = self.serial if not same or at == 0 else self.twin.topic[shard][-1].timestamp
            self.twin.topic[shard].append(MessageId(shard, stamp, self.serial))

    def feed(self) -> None:
        self.feed_some(self.chance.choice(SHARDS), self.chance.randint(1, 10))

    def feed_some(self, shard: int, count: int) -> None:
        start = self.place[shard]
        mark = self.sub.marks().get(shard)
        if start == 0 and mark is not None:
            start = self.twin.topic[shard].index(mark)
        items = self.twin.topic[shard][start : start + min(count, self.sub.wants())]
        self.sub.feed(shard, [(id, f"payload {id}") for id in items])
        self.place[shard] = start + len(items)
        self.twin.fed.update(items)

    def connect(self) -> None:
        name = self.chance.choice("ab")
        taken = name in self.consumers or (self.kind == "exclusive" and self.consumers)
        if taken:
            with pytest.raises(InUse):
                self.sub.add_consumer(name)
            return
        self.sub.add_consumer(name)
        self.serial += 1
        self.consumers[name] = self.serial

    def given_back(self, gone: Any) -> None:
        for id, holder in self.twin.holder.items():
            if holder == gone and not self.twin.blocked(id):
                self.twin.holder[id] = None

    def disconnect(self) -> None:
        name = self.one_of(self.consumers)
        gone = self.holder(name)
        self.sub.remove_consumer(name)
        del self.consumers[name]
        self.given_back(gone)
        for id, holder in self.twin.holder.items():
            if holder == gone:
                self.twin.holder[id] = None

    def take(self) -> None:
        count = self.chance.randint(1, 6)
        name = self.one_of(self.consumers)
        got = self.sub.take(name, count, self.clock)
        if self.kind == "failover" and name != next(iter(self.consumers)):
            assert got == []
        for message in got:
            id = message.id
            assert message.payload == f"payload {id}"
            assert not self.twin.blocked(id), "acknowledged, or pending"
            assert self.twin.holder.get(id) is None, "somebody has it"
            if self.kind != "shared" and id not in self.twin.given and id not in self.restored:
                assert id > self.first_seen.get(id.shard, MessageId(id.shard, 0, 0)), "new messages out of order"
                self.first_seen[id.shard] = id
            self.twin.holder[id] = self.holder(name)
            self.twin.given.add(id)

    def attempt(self, refusal: type[Exception] | None, call: Any) -> Change | None:
        self.seen["accepted" if refusal is None else refusal.__name__] += 1
        if refusal is not None:
            with pytest.raises(refusal):
                call()
            return None
        return call()

    def ack(self) -> None:
        ids = self.some()
        name = self.one_of(self.consumers)
        change = self.attempt(self.twin.refuses(ids, None), lambda: self.sub.ack(name, ids))
        if change is not None:
            fresh = [id for id in dict.fromkeys(ids) if id not in self.twin.acked]
            self.twin.acking.update(fresh)
            self.flights.append(Flight(change, fresh))
            assert (change.record is None) == (not fresh)

    def transaction(self) -> bytes:
        if self.open_txns and self.chance.random() < 0.5:
            return self.one_of(self.open_txns)
        self.next_txn += 1
        return txn(self.next_txn)

    def ack_in_txn(self) -> None:
        ids = self.some()
        if not ids:
            return
        by = self.transaction()
        name = self.one_of(self.consumers)
        change = self.attempt(self.twin.refuses(ids, by), lambda: self.sub.ack_in_txn(name, ids, by))
        if change is not None:
            self.twin.pending.update(dict.fromkeys(ids, by))
            self.flights.append(Flight(change, ids))
            self.open_txns.setdefault(by, []).append(change)

    def ack_cumulative(self) -> None:
        id = self.one_of(
            self.twin.given & self.twin.fed if self.twin.given and self.chance.random() < 0.8 else self.twin.fed
        )
        name = self.one_of(self.consumers)
        by = self.transaction() if self.chance.random() < 0.6 else None
        refusal = self.twin.refuses_cumulative(id, by)
        if by is None:
            change = self.attempt(refusal, lambda: self.sub.ack_cumulative(name, id))
            if change is not None:
                covered = self.twin.upto(id)
                self.twin.acking.update(covered)
                self.flights.append(Flight(change, covered))
            return
        change = self.attempt(refusal, lambda: self.sub.ack_cumulative_in_txn(name, id, by))
        if change is not None:
            if self.twin.level(id.shard) is None:
                self.twin.cumulative[id.shard] = (by, [])
            self.twin.cumulative[id.shard][1].append(id)
            self.flights.append(Flight(change, [id]))
            self.open_txns.setdefault(by, []).append(change)

    def settle(self) -> None:
        written = self.chance.random() < 0.7
        flight = self.flights.pop(self.chance.randrange(len(self.flights)))
        change, twin = flight.change, self.twin
        if written:
            if change.record is not None:
                self.log.append((change.record, None))
            self.sub.confirm(change)
            if change.txn is None:
                twin.acking.subtract(flight.ids)
                twin.acked.update(flight.ids)
            return
        self.sub.revert(change)
        self.lose(flight)

    def lose(self, flight: Flight) -> None:
        change, twin = flight.change, self.twin
        if change.txn is None:
            twin.acking.subtract(flight.ids)
            return
        if change.txn not in self.open_txns:
            return
        self.open_txns[change.txn].remove(change)
        if not change.cumulative:
            for id in flight.ids:
                twin.pending.pop(id, None)
            return
        (id,) = flight.ids
        holder, levels = twin.cumulative.get(id.shard, (b"", []))
        if holder == change.txn and id in levels:
            levels.remove(id)
            if not levels:
                del twin.cumulative[id.shard]

    def end(self) -> None:
        committed, recorded = self.chance.random() < 0.5, self.chance.random() < 0.5
        by = self.one_of(self.open_txns)
        twin = self.twin
        held = [id for id in twin.all() if twin.held_by_txn(id) == by]
        shards = [shard for shard, (holder, _) in twin.cumulative.items() if holder == by and twin.level(shard)]
        covered = [id for shard in shards if (level := twin.level(shard)) for id in twin.upto(level)]
        freed = self.sub.end_txn(by, committed)
        assert self.sub.end_txn(by, committed) == []
        if committed:
            self.log += [(change.commit_record, by) for change in self.open_txns[by]]
            assert not set(held) & twin.acked, "acknowledged twice"
            twin.acked.update(held, covered)
        elif recorded:
            self.log.append((sub_records.release(by), None))
        self.forget(by)
        if not committed:
            again = [id for id in held if id in twin.fed]
            again += [
                id
                for shard in shards
                for id in twin.topic[shard]
                if twin.holder.get(id) in [self.holder(name) for name in self.consumers]
                and not twin.blocked(id)
                and id not in held
            ]
            assert freed == sorted(again)
            for id in [*again, *held]:
                twin.holder[id] = None
            twin.given.update(again)

    def forget(self, by: bytes) -> None:
        twin = self.twin
        twin.pending = {id: each for id, each in twin.pending.items() if each != by}
        twin.cumulative = {shard: held for shard, held in twin.cumulative.items() if held[0] != by}
        del self.open_txns[by]
        self.ended[by] = any(each == by for _, each in self.log)

    def nack(self) -> None:
        delay = self.chance.choice([0, 5])
        ids = self.some()
        name = self.one_of(self.consumers)
        mine = {id for id in ids if self.twin.holder.get(id) == self.holder(name) and not self.twin.blocked(id)}
        assert self.sub.nack(name, ids, self.clock, delay) == sorted(mine)
        for id in mine:
            self.twin.holder[id] = None

    def redeliver(self) -> None:
        name = self.one_of(self.consumers)
        self.sub.redeliver(name)
        self.given_back(self.holder(name))

    def pass_time(self) -> None:
        self.clock += self.chance.randint(1, 10)

    def keep_snapshot(self) -> None:
        self.kept = (self.sub.snapshot(), len(self.log))

    def crash(self) -> None:
        for flight in self.flights:
            if self.chance.random() < 0.5:
                if flight.change.record is not None:
                    self.log.append((flight.change.record, None))
                if flight.change.txn is None:
                    self.twin.acking.subtract(flight.ids)
                    self.twin.acked.update(flight.ids)
            else:
                self.lose(flight)
        self.flights = []
        twin = self.twin
        twin.holder, twin.fed, twin.given = {}, set(), set()
        assert not +twin.acking
        self.start()

    def close(self) -> None:
        """Everything ends and everybody leaves: what is not acknowledged must come, once, in order."""
        twin = self.twin
        status = self.sub.status()
        for name, unacked in status.consumers.items():
            mine = [id for id, each in twin.holder.items() if each == self.holder(name) and not twin.blocked(id)]
            assert unacked == len(mine)
        for flight in self.flights:
            self.sub.revert(flight.change)
            self.lose(flight)
        for by in sorted(self.open_txns):
            self.sub.end_txn(by, False)
            self.forget(by)
        for name in list(self.consumers):
            self.sub.remove_consumer(name)
        assert self.sub.pending_txns() == []
        self.sub.add_consumer("last")
        got: list[MessageId] = []
        while True:
            for shard in SHARDS:
                self.feed_some(shard, 40)
            some = [message.id for message in self.sub.take("last", 12, FOREVER)]
            got += some
            if not some:
                break
            self.sub.confirm(self.sub.ack("last", some))
        left = [id for id in twin.all() if id not in twin.acked]
        assert sorted(got) == sorted(left), "lost, or delivered though acknowledged"
        for shard in SHARDS:
            ids = [id for id in got if id.shard == shard]
            assert ids == sorted(ids), "what is given back comes in order, before what is new"
            if twin.topic[shard]:
                assert self.sub.marks()[shard] == twin.topic[shard][-1], "the mark moves on to the end"
        assert (self.sub.backlog_in_memory, self.sub.acknowledgements.acked_above_mark) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("compact_above", [2, 1024])
@given(seed=st.integers(0, 1 << 32), steps=st.integers(0, 400))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_acknowledged_comes_again_and_nothing_else_is_lost(
    monkeypatch: pytest.MonkeyPatch, compact_above: int, seed: int, steps: int
) -> None:
    """Seed 002, section 3.3; transactions.md facts 33 to 42. With 2, acknowledged messages become ranges at once."""
    monkeypatch.setattr(sub_shard, "COMPACT_ABOVE", compact_above)
    life = Life(Random(seed))
    for _ in range(steps):
        life.step()
    life.close()


def test_the_lives_above_meet_every_kind_of_answer() -> None:
    """Or the law would say little."""
    seen: Counter[str] = Counter()
    for seed in range(20):
        life = Life(Random(seed))
        for _ in range(200):
            life.step()
        seen += life.seen
        seen["acknowledged"] += len(life.twin.acked)
        seen["delivered"] += len(life.twin.given)
    assert all(seen[each] > 100 for each in ("accepted", "Conflict", "InvalidArgument", "acknowledged", "delivered")), (
        seen
    )
