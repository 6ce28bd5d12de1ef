"""Laws of subscriptions over arbitrary lives, against a twin too simple to be wrong. Seed 002, promises 2, 6 and 7."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

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
        return max(held[1]) if held else None

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
            if held is None and not self.acking[each] and each not in self.given:
                return InvalidArgument
        return None


class Life(RuleBasedStateMachine):
    """A shell that appends, loses, crashes and comes back."""

    @initialize(kind=st.sampled_from(["exclusive", "failover", "shared", "shared"]))
    def open(self, kind: Any) -> None:
        self.kind = kind
        self.twin = Twin()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.kept = (Acknowledgements().snapshot(), 0)
        self.flights: list[Flight] = []
        self.ended: dict[bytes, bool] = {}
        self.clock = 0
        self.next_txn = 0
        self.open_txns: dict[bytes, list[Change]] = {}
        self.serial = 0
        self.start()

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

    def some(self, data: Any, low: int = 1) -> list[MessageId]:
        ids = self.twin.all()
        return data.draw(st.lists(st.sampled_from(ids), min_size=low, max_size=5)) if ids else []

    @rule(shard=st.sampled_from(SHARDS), count=st.integers(1, 4), same=st.booleans())
    def publish(self, shard: int, count: int, same: bool) -> None:
        for at in range(count):
            self.serial += 1
            stamp = self.serial if not same or at == 0 else self.twin.topic[shard][-1].timestamp
            self.twin.topic[shard].append(MessageId(shard, stamp, self.serial))

    @rule(shard=st.sampled_from(SHARDS), count=st.integers(1, 10))
    def feed(self, shard: int, count: int) -> None:
        start = self.place[shard]
        mark = self.sub.marks().get(shard)
        if start == 0 and mark is not None:
            start = self.twin.topic[shard].index(mark)
        items = self.twin.topic[shard][start : start + min(count, self.sub.wants())]
        self.sub.feed(shard, [(id, f"payload {id}") for id in items])
        self.place[shard] = start + len(items)
        self.twin.fed.update(items)

    @rule(name=st.sampled_from("ab"))
    def connect(self, name: str) -> None:
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

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def disconnect(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        gone = self.holder(name)
        self.sub.remove_consumer(name)
        del self.consumers[name]
        self.given_back(gone)
        for id, holder in self.twin.holder.items():
            if holder == gone:
                self.twin.holder[id] = None

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), count=st.integers(1, 6))
    def take(self, data: Any, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.consumers)))
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
        if refusal is not None:
            with pytest.raises(refusal):
                call()
            return None
        return call()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        ids = self.some(data)
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        change = self.attempt(self.twin.refuses(ids, None), lambda: self.sub.ack(name, ids))
        if change is not None:
            fresh = [id for id in dict.fromkeys(ids) if id not in self.twin.acked]
            self.twin.acking.update(fresh)
            self.flights.append(Flight(change, fresh))
            assert (change.record is None) == (not fresh)

    def transaction(self, data: Any) -> bytes:
        old = sorted(self.open_txns)
        if old and data.draw(st.booleans()):
            return data.draw(st.sampled_from(old))
        self.next_txn += 1
        return txn(self.next_txn)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def ack_in_txn(self, data: Any) -> None:
        ids = self.some(data)
        if not ids:
            return
        by = self.transaction(data)
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        change = self.attempt(self.twin.refuses(ids, by), lambda: self.sub.ack_in_txn(name, ids, by))
        if change is not None:
            self.twin.pending.update(dict.fromkeys(ids, by))
            self.flights.append(Flight(change, ids))
            self.open_txns.setdefault(by, []).append(change)

    @precondition(lambda self: self.consumers and self.kind != "shared" and self.twin.fed)
    @rule(data=st.data(), transactional=st.booleans())
    def ack_cumulative(self, data: Any, transactional: bool) -> None:
        id = data.draw(st.sampled_from(sorted(self.twin.fed)))
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        by = self.transaction(data) if transactional else None
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
            held = self.twin.cumulative.setdefault(id.shard, (by, []))
            held[1].append(id)
            self.flights.append(Flight(change, [id]))
            self.open_txns.setdefault(by, []).append(change)

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), written=st.booleans())
    def settle(self, data: Any, written: bool) -> None:
        flight = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
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
        levels = twin.cumulative[id.shard][1]
        levels.remove(id)
        if not levels:
            del twin.cumulative[id.shard]

    @precondition(lambda self: self.open_txns)
    @rule(data=st.data(), committed=st.booleans(), recorded=st.booleans())
    def end(self, data: Any, committed: bool, recorded: bool) -> None:
        by = data.draw(st.sampled_from(sorted(self.open_txns)))
        twin = self.twin
        held = [id for id in twin.all() if twin.held_by_txn(id) == by]
        shards = [shard for shard, (holder, _) in twin.cumulative.items() if holder == by]
        covered = [id for shard in shards for id in twin.upto(twin.level(shard))]
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

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), delay=st.sampled_from([0, 5]))
    def nack(self, data: Any, delay: int) -> None:
        ids = self.some(data)
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        mine = {id for id in ids if self.twin.holder.get(id) == self.holder(name) and not self.twin.blocked(id)}
        assert self.sub.nack(name, ids, self.clock, delay) == sorted(mine)
        for id in mine:
            self.twin.holder[id] = None

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def redeliver(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        self.sub.redeliver(name)
        self.given_back(self.holder(name))

    @rule(ms=st.integers(1, 10))
    def pass_time(self, ms: int) -> None:
        self.clock += ms

    @rule()
    def keep_snapshot(self) -> None:
        self.kept = (self.sub.snapshot(), len(self.log))

    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        for flight in self.flights:
            if data.draw(st.booleans()):
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

    def teardown(self) -> None:
        if not hasattr(self, "twin"):
            return
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
                self.feed(shard, 40)
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
def test_nothing_acknowledged_comes_again_and_nothing_else_is_lost(
    compact_above: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 002, section 3.3; transactions.md facts 33 to 42. With 2, acknowledged messages become ranges at once."""
    monkeypatch.setattr(sub_shard, "COMPACT_ABOVE", compact_above)
    run_state_machine_as_test(Life, settings=settings(max_examples=150, stateful_step_count=50, deadline=None))
