"""Laws of the coordinator, over arbitrary histories of requests, failed writes, crashes and time.

The machine is compared with a dumb twin that keeps every transaction in one dictionary and searches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidTransactionState, TransactionAborted, TransactionExpired, TransactionNotFound
from tidegate.txn.coordinator import Coordinator
from tidegate.txn.coordinator_records import TxnState
from tidegate.txn.coordinator_table import LEASE, TIMEOUT, CoordinatorSettings
from tidegate.txn.txn_id import COORDINATOR_MAX, COUNTER_MAX, TxnId

SETTINGS = CoordinatorSettings(timeout_default_ms=50, timeout_max_ms=200, remember_ms=100, remembered_max=10_000)
REASONS = ("", TIMEOUT, LEASE, "conflict")
CLIENTS = ("", "ann", "bo")
REFUSALS = (InvalidTransactionState, TransactionAborted, TransactionNotFound)

which = st.integers(0, 7)
written = st.sampled_from([True, True, True, False])  # a write that fails leaves no record behind
participants = st.lists(st.sampled_from(["channel/a", "channel/b", "subscription/t/s"]), max_size=3)
events = st.one_of(
    st.tuples(st.just("begin"), st.integers(1, 3), st.integers(1, 200), st.sampled_from(CLIENTS)),
    st.tuples(st.just("register"), which, participants, written),
    st.tuples(st.just("commit"), which, participants, st.binary(max_size=5), written),
    st.tuples(st.just("abort"), which, st.sampled_from(REASONS), written),
    st.tuples(st.just("finish"), which, written),
    st.tuples(st.just("at_once"), which, written),
    st.tuples(st.just("sweep"), written),
    st.tuples(st.just("wait"), st.integers(1, 60)),
    st.tuples(st.just("crash"), st.booleans()),
)
histories = st.lists(events, min_size=10, max_size=60)


@dataclass
class Twin:
    """What a transaction should be."""

    id: TxnId
    client: str
    deadline_ms: int
    state: str = "open"
    logged: bool = False
    participants: set[str] = field(default_factory=set)
    timestamp: int | None = None
    reason: str = ""
    ended_ms: int = 0
    plan: bytes = b""


class History:
    """A coordinator, its log, and its twin, through the same events."""

    def __init__(self) -> None:
        self.tc = Coordinator(1, SETTINGS)
        self.log: list[bytes] = []
        self.snapshots: list[tuple[int, bytes]] = [(0, self.tc.snapshot())]
        self.twins: dict[TxnId, Twin] = {}
        self.ids: list[TxnId] = []
        self.clock = 1000
        self.now_ms = 0
        self.low = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def pick(self, back: int) -> TxnId:
        """One of the newest ids, or one that nobody began."""
        return self.ids[-1 - back] if back < len(self.ids) else TxnId.make(1, 1 + back)

    def write(self, record: bytes, written: bool) -> bool:
        if written:
            self.log.append(record)
            assert self.tc.apply(record) is not None
        return written

    def step(self, event: tuple[Any, ...]) -> None:
        match event:
            case ("begin", skip, timeout_ms, client):
                self.clock += skip
                id = self.tc.begin(self.clock, self.now_ms, timeout_ms, client).id
                self.ids.append(id)
                self.twins[id] = Twin(id, client, self.now_ms + timeout_ms)
            case ("register", back, names, written):
                self.register(self.pick(back), names, written)
            case ("commit", back, names, plan, written):
                self.commit(self.pick(back), names, plan, written)
            case ("abort", back, reason, written):
                self.abort(self.pick(back), reason, written)
            case ("finish", back, written):
                self.finish(self.pick(back), written)
            case ("at_once", back, written):
                self.at_once(self.pick(back), written)
            case ("sweep", written):
                for id in self.tc.expired(self.now_ms):
                    self.abort(id, TIMEOUT, written)
                for id in self.tc.fail_client("bo"):
                    self.abort(id, LEASE, written)
            case ("wait", ms):
                self.now_ms += ms
                self.tc.forget(self.now_ms)
                for id, twin in list(self.twins.items()):
                    if twin.state in ("committed", "aborted") and twin.ended_ms + SETTINGS.remember_ms <= self.now_ms:
                        del self.twins[id]
            case ("crash", from_snapshot):
                self.crash(from_snapshot)

    def register(self, id: TxnId, names: list[str], written: bool) -> None:
        twin = self.twins.get(id)
        try:
            record = self.tc.plan_register(id, names)
        except REFUSALS as error:
            check_refusal(twin, error, "register")
            return
        assert twin is not None and twin.state == "open"
        assert (record is None) == (set(names) <= twin.participants)
        if record is not None and self.write(record, written):
            twin.participants |= set(names)
            twin.logged = True

    def commit(self, id: TxnId, names: list[str], plan: bytes, written: bool) -> None:
        twin, at = self.twins.get(id), self.tick()
        try:
            record = self.tc.plan_commit(id, Timestamp(at), names, plan)
        except REFUSALS as error:
            check_refusal(twin, error, "commit")
            return
        assert twin is not None
        assert (record is None) == (twin.state in ("committing", "committed"))
        if record is not None and self.write(record, written):
            twin.participants |= set(names)
            twin.state, twin.logged, twin.timestamp, twin.plan = "committing", True, at, plan

    def abort(self, id: TxnId, reason: str, written: bool) -> None:
        twin = self.twins.get(id)
        try:
            record = self.tc.plan_abort(id, reason)
        except REFUSALS as error:
            check_refusal(twin, error, "abort")
            return
        assert twin is not None
        if record is None:
            assert twin.state in ("aborting", "aborted") or not twin.logged
            self.tc.abort_unlogged(id, reason, self.now_ms)
            if twin.state == "open":
                twin.state, twin.reason, twin.ended_ms = "aborted", reason, self.now_ms
        elif self.write(record, written):
            twin.state, twin.reason = "aborting", reason

    def finish(self, id: TxnId, written: bool) -> None:
        twin = self.twins.get(id)
        try:
            record = self.tc.plan_finish(id, self.now_ms)
        except REFUSALS as error:
            assert twin is None or twin.state == "open"
            assert (twin is None) == isinstance(error, TransactionNotFound)
            return
        assert twin is not None
        assert (record is None) == (twin.state in ("committed", "aborted"))
        if record is not None and self.write(record, written):
            twin.state = "committed" if twin.state == "committing" else "aborted"
            twin.ended_ms, twin.plan = self.now_ms, b""

    def at_once(self, id: TxnId, written: bool) -> None:
        twin = self.twins.get(id)
        if twin is not None and twin.logged and twin.state in ("open", "committing"):
            return
        try:
            to_write = self.tc.commit_at_once(id)
        except REFUSALS as error:
            check_refusal(twin, error, "commit")
            return
        assert twin is not None
        assert to_write == (twin.state == "open")
        if to_write and written:
            twin.state, twin.timestamp, twin.ended_ms = "committed", self.tick(), self.now_ms
            self.tc.finish_at_once(id, Timestamp(twin.timestamp), self.now_ms)
        elif to_write:
            self.tc.reopen_at_once(id)

    def crash(self, from_snapshot: bool) -> None:
        """Only what was logged is left; a snapshot also keeps outcomes that never had a record."""
        self.tc = Coordinator(1, SETTINGS)
        if not from_snapshot:
            del self.snapshots[1:]  # they are lost as well
        start, snapshot = self.snapshots[-1]
        self.tc.restore(snapshot)
        for record in self.log[start:]:
            self.tc.apply(record)
        self.tc.forget(self.now_ms)
        known = {txn.id for txn in self.tc.transactions()}
        for id in [id for id, twin in self.twins.items() if not twin.logged and id not in known]:
            del self.twins[id]
        self.low = min(self.low, self.tc.low_watermark)  # of what had no record, it knows no more

    def take_snapshot(self) -> None:
        self.snapshots.append((len(self.log), self.tc.snapshot()))

    def check(self) -> None:
        """The machine is its twin, and the low watermark is true and has not fallen."""
        shown = {
            txn.id: Twin(
                txn.id,
                txn.client,
                txn.deadline_ms,
                txn.state.value,
                txn.logged,
                set(txn.participants),
                txn.commit_timestamp,
                txn.reason,
                txn.ended_ms,
                txn.plan,
            )
            for txn in self.tc.transactions()
        }
        assert shown == self.twins
        live = [twin for twin in self.twins.values() if twin.state not in ("committed", "aborted")]
        assert self.low <= self.tc.low_watermark
        self.low = self.tc.low_watermark
        assert all(twin.id.counter > self.low for twin in live)
        if live:
            assert self.low == min(twin.id.counter for twin in live) - 1
        open_ = sorted((twin.deadline_ms, twin.id) for twin in live if twin.state == "open")
        assert self.tc.expired(self.now_ms) == [id for deadline, id in open_ if deadline <= self.now_ms]
        assert self.tc.next_deadline_ms() == (open_[0][0] if open_ else None)
        ending = [twin for twin in live if twin.state != "open"]
        commits = sorted((twin.timestamp, twin.id) for twin in ending if twin.timestamp is not None)
        aborts = sorted(twin.id for twin in ending if twin.timestamp is None)
        assert [txn.id for txn in self.tc.to_drive()] == [id for _, id in commits] + aborts


def check_refusal(twin: Twin | None, error: Exception, what: str) -> None:
    """The error says what stands in the way, by its type."""
    if twin is None:
        assert isinstance(error, TransactionNotFound)
    elif twin.state in ("aborting", "aborted") and twin.reason:
        assert what != "abort"
        assert isinstance(error, TransactionAborted)
        assert isinstance(error, TransactionExpired) == (twin.reason in (TIMEOUT, LEASE))
    else:
        assert isinstance(error, InvalidTransactionState)
        assert error.state == twin.state != "open"
        assert (what == "abort") <= (twin.state in ("committing", "committed"))
        assert (what == "commit") <= (twin.state in ("aborting", "aborted"))


@given(histories)
@settings(max_examples=300, deadline=None)
def test_the_coordinator_is_its_dumb_twin_over_any_history(history: list[tuple[Any, ...]]) -> None:
    """Promise 6; transactions.md sections 1.1, 1.6 to 1.9, 2.9."""
    life = History()
    for count, event in enumerate(history):
        life.step(event)
        life.check()
        if count % 7 == 3:
            life.take_snapshot()


def records_of(history: list[tuple[Any, ...]]) -> list[bytes]:
    life = History()
    for event in history:
        life.step(event)
    return life.log


def fold(records: list[bytes], snapshot: bytes | None = None) -> Coordinator:
    tc = Coordinator(1, SETTINGS)
    if snapshot is not None:
        tc.restore(snapshot)
    for record in records:
        tc.apply(record)
    return tc


@given(histories)
@settings(max_examples=200, deadline=None)
def test_a_snapshot_anywhere_and_the_later_records_give_what_all_the_records_give(
    history: list[tuple[Any, ...]],
) -> None:
    """design: one log, many folds; start-up costs the tail and not the history."""
    log = records_of(history)
    whole = fold(log)
    for cut in range(len(log) + 1):
        again = fold(log[cut:], fold(log[:cut]).snapshot())
        assert again.snapshot() == whole.snapshot()
        assert again.to_drive() == whole.to_drive()
        assert again.status() == whole.status()


@given(histories, st.data())
@settings(max_examples=150, deadline=None)
def test_records_that_come_twice_change_nothing(history: list[tuple[Any, ...]], data: st.DataObject) -> None:
    """A reader that starts again before its snapshot, and a writer that repeats a record, are both harmless."""
    log = records_of(history)
    whole = fold(log).snapshot()
    start = data.draw(st.integers(0, len(log)))
    assert fold(log[start:], whole).snapshot() == whole
    assert fold([record for record in log for _ in range(2)]).snapshot() == whole


@given(histories)
@settings(max_examples=150, deadline=None)
def test_no_committed_transaction_is_ever_anything_else_again(history: list[tuple[Any, ...]]) -> None:
    """Promise 2: states only move along transactions.md 1.1, in every prefix of every log."""
    tc = Coordinator(1, SETTINGS)
    states: dict[TxnId, TxnState] = {}
    for record in records_of(history):
        txn = tc.apply(record)
        assert txn is not None
        assert states.get(txn.id, TxnState.OPEN).may_become(txn.state)
        states[txn.id] = txn.state


@given(st.integers(0, COORDINATOR_MAX), st.integers(1, COUNTER_MAX))
def test_an_id_is_the_same_through_its_parts_its_bytes_and_its_text(coordinator: int, counter: int) -> None:
    """Seed 002, "Transaction ID"."""
    id = TxnId.make(coordinator, counter)
    assert (id.coordinator, id.counter) == (coordinator, counter)
    assert TxnId.from_bytes16(id.to_bytes16()) == TxnId.parse(str(id)) == id
    assert any(id.to_bytes16())
