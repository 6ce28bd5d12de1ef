"""Laws of conflicts: whatever the schedule, the transactions that succeed could have run one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict
from tidegate.txn import conflicts
from tidegate.txn.conflicts import Claim, ConflictWindow, MustWait, ReadSet, Written

KEYS = range(3)
UNBOUNDED = 1000


def hash_of(key: int) -> int:
    return key * 0x9E3779B97F4A7C15 % (1 << 64)


def table_of(key: int) -> str:
    """Two of them share one."""
    return "odd" if key % 2 else "even"


@dataclass
class Txn:
    """Reads some keys, one by one, then writes some; `commits` says whether its commit succeeds in the end."""

    reads: tuple[int, ...]
    writes: frozenset[int]
    commits: bool
    names_reads: bool = False
    """It says of which tables it reads keys."""
    names_writes: bool = False
    """It says to which tables it writes."""
    state: str = "new"
    token: ReadSet | None = None
    seen: dict[int, int] = field(default_factory=dict)
    claim: Claim | None = None
    waits_for: Claim | None = None
    commit: Timestamp | None = None


@dataclass
class World:
    """A store of versions with one window, an oracle, and transactions that take single steps in any order."""

    txns: list[Txn]
    keys_max: int
    clock: int = 10
    versions: dict[int, list[tuple[Timestamp, int]]] = field(default_factory=lambda: {key: [] for key in KEYS})
    committed: list[tuple[Timestamp, int]] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.window = ConflictWindow(self.now(), keys_max=self.keys_max)

    def now(self) -> Timestamp:
        self.clock += 1
        return Timestamp(self.clock)

    def as_of(self, key: int, when: Timestamp) -> int:
        return max(((ts, value) for ts, value in self.versions[key] if ts <= when), default=(0, 0))[1]

    def step(self, index: int) -> bool:
        """Move one transaction on; False when it is done or must wait."""
        txn = self.txns[index]
        floor = self.window.floor
        moved = self._step(index, txn)
        assert self.window.floor >= floor, "the floor never goes back"
        assert self.window.status().keys <= self.keys_max
        return moved

    def _step(self, index: int, txn: Txn) -> bool:
        match txn.state:
            case "new":
                if txn.reads:
                    txn.token = self.window.begin_read(self.now())
                txn.state = "reading"
            case "reading":
                missing = [key for key in txn.reads if key not in txn.seen]
                if not missing:
                    return self.try_commit(txn)
                assert txn.token is not None
                when = txn.token.timestamp
                # As the log does: a reading at a timestamp waits for the commits at or below it.
                if any(each.state == "stamped" and each.commit and each.commit <= when for each in self.txns):
                    return False
                table = table_of(missing[0]) if txn.names_reads else ""
                self.window.note(txn.token, [hash_of(missing[0])], table)
                txn.seen[missing[0]] = self.as_of(missing[0], when)
            case "claimed":
                txn.commit = self.now()
                txn.state = "stamped"
            case "stamped":
                self.finish(index, txn)
            case _:
                return False
        return True

    def try_commit(self, txn: Txn) -> bool:
        if txn.waits_for is not None and not txn.waits_for.finished:
            return False
        txn.waits_for = None
        try:
            found = self.window.try_commit(txn.token, self.writes_of(txn))
        except Conflict as error:
            assert txn.token is not None
            newer = any(ts > txn.token.timestamp for key in txn.reads for ts, _ in self.versions[key])
            assert newer or "older than the window" in str(error), "no conflict without a reason"
            if "older than the window" in str(error):
                assert txn.token.timestamp < self.window.floor
                assert self.keys_max < UNBOUNDED, "a window with room refuses nobody for his age"
            txn.state = "refused"
            self.refused += 1
            return True
        if isinstance(found, MustWait):
            txn.waits_for = found.claim
            assert not found.claim.finished
            return True
        txn.claim = found
        txn.state = "claimed"
        return True

    @staticmethod
    def writes_of(txn: Txn) -> Callable[[], list[int]] | Written:
        def hashes() -> list[int]:
            return [hash_of(key) for key in txn.writes]

        if not txn.names_writes:
            return hashes
        return Written(hashes, frozenset(map(table_of, txn.writes)), len(txn.writes))

    def finish(self, index: int, txn: Txn) -> None:
        assert txn.claim is not None and txn.commit is not None
        txn.state = "done"
        if not txn.commits:
            self.window.finish(txn.claim, None)
            txn.state = "aborted"
            return
        for key in txn.writes:
            # A key that was read is counted up; one that was not is overwritten with the same value.
            self.versions[key].append((txn.commit, txn.seen[key] + 1 if key in txn.seen else self.value(index)))
        self.window.finish(txn.claim, txn.commit)
        self.committed.append((txn.commit, index))

    @staticmethod
    def value(index: int) -> int:
        return 1000 * (index + 1)

    def run(self, schedule: list[int]) -> None:
        for choice in schedule:
            self.step(choice % len(self.txns))
        while any([self.step(index) for index in range(len(self.txns))]):
            pass
        ends = {txn.state for txn in self.txns}
        assert ends <= {"done", "aborted", "refused"}, "nobody waits for ever"
        status = self.window.status()
        assert (status.claims, status.readers, status.keys) == (0, 0, 0)


keys = st.sampled_from(KEYS)
transactions = st.builds(
    Txn,
    reads=st.lists(keys, unique=True, max_size=2).map(tuple),
    writes=st.frozensets(keys, max_size=2),
    commits=st.sampled_from([True, True, True, False]),
    names_reads=st.booleans(),
    names_writes=st.booleans(),
)
increments = st.builds(
    lambda key, reads, writes: Txn((key,), frozenset({key}), True, reads, writes), keys, st.booleans(), st.booleans()
)
schedules = st.lists(st.integers(0, 5), min_size=20, max_size=80)
bounds = st.sampled_from([1, 3, UNBOUNDED, UNBOUNDED])
small_max = st.sampled_from([0, 1, 4096])
unmade_max = st.sampled_from([0, 1, 64])


@given(st.lists(increments, min_size=2, max_size=6), schedules, bounds, small_max, unmade_max)
@settings(max_examples=300, deadline=None)
def test_a_counter_equals_the_number_of_increments_that_succeeded(
    txns: list[Txn], schedule: list[int], keys_max: int, small: int, unmade: int
) -> None:
    with patch.object(conflicts, "SMALL_MAX", small), patch.object(conflicts, "UNMADE_MAX", unmade):
        world = World(txns, keys_max)
        world.run(schedule)
    for key in KEYS:
        succeeded = sum(1 for txn in txns if txn.state == "done" and key in txn.writes)
        assert world.as_of(key, Timestamp.MAX) == succeeded
    assert any(txn.state == "done" for txn in txns), "somebody always gets through"


@given(st.lists(transactions, min_size=2, max_size=6), schedules, bounds, small_max, unmade_max)
@settings(max_examples=500, deadline=None)
def test_what_succeeds_is_as_if_run_one_after_the_other_in_the_order_of_commit_timestamps(
    txns: list[Txn], schedule: list[int], keys_max: int, small: int, unmade: int
) -> None:
    with patch.object(conflicts, "SMALL_MAX", small), patch.object(conflicts, "UNMADE_MAX", unmade):
        world = World(txns, keys_max)
        world.run(schedule)
    serial = dict.fromkeys(KEYS, 0)
    for _, index in sorted(world.committed):
        txn = txns[index]
        assert txn.seen == {key: serial[key] for key in txn.reads}
        for key in txn.writes:
            serial[key] = txn.seen[key] + 1 if key in txn.seen else world.value(index)
    assert serial == {key: world.as_of(key, Timestamp.MAX) for key in KEYS}


@given(st.lists(transactions, min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_one_after_the_other_nobody_is_refused(txns: list[Txn]) -> None:
    world = World(txns, UNBOUNDED)
    for index in range(len(txns)):
        while world.step(index):
            pass
    assert world.refused == 0
