"""The oracle at work, on a clock that moves only when told: seed 004, reference section 2, facts 1 to 5."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tidegate.clock.oracle import AHEAD_MS, STEP_MS, WINDOW_MS
from tidegate.clock.timestamp import LOGICAL_COUNT, Timestamp
from tidegate.errors import (
    ClockStalled,
    Closed,
    Corruption,
    InvalidArgument,
    LimitExceeded,
    NotLeader,
    OutcomeUnknown,
    StoreUnavailable,
    TidegateError,
    WaitTimeout,
)
from tidegate.ports.clock import SystemClock
from tidegate.runtime.oracle import WARN_EVERY_S, Oracle
from tidegate.stores.memory_metadata import ManualClock, MemoryMetadataStore, MemoryState
from tidegate.stores.sqlite_metadata import SqliteMetadataStore

KEY = "oracle/window"
TTL_S = 3.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryMetadataStore:
    return MemoryMetadataStore(clock)


@pytest.fixture
def oracle(store: MemoryMetadataStore, clock: ManualClock) -> Iterator[Oracle]:
    oracle = Oracle(store, clock, owner="ann")
    oracle.start()
    yield oracle
    store.fault = None
    oracle.close()


def window_end_ms(store: MemoryMetadataStore) -> int:
    found = store.get(KEY)
    assert found is not None
    end = json.loads(found.value)["until_ms"]
    assert isinstance(end, int)
    return end


def step(oracle: Oracle, clock: ManualClock, seconds: float = STEP_MS / 1000) -> None:
    clock.pass_s(seconds)
    oracle.advance()


class Failing:
    """A fault that hits one operation `times` times, before or after it took effect."""

    def __init__(
        self, operation: str, error: Callable[[str], TidegateError], *, times: int = 10**9, after: bool = False
    ) -> None:
        self.operation, self.error, self.times, self.after = operation, error, times, after
        self.hits = 0

    def __call__(self, operation: str, key: str, done: bool) -> None:
        if operation == self.operation and done == self.after and self.hits < self.times:
            self.hits += 1
            raise self.error(f"the store is away ({operation} {key})")


# -- starting ------------------------------------------------------------------------------------------------


def test_seed_004_the_window_is_durable_before_the_first_timestamp(
    store: MemoryMetadataStore, clock: ManualClock, oracle: Oracle
) -> None:
    assert window_end_ms(store) == clock.wall + WINDOW_MS
    assert oracle.allocate() == Timestamp.compose(clock.wall, 0)


def test_an_oracle_that_was_not_started_says_so(store: MemoryMetadataStore, clock: ManualClock) -> None:
    oracle = Oracle(store, clock, owner="ann")
    for call in (oracle.allocate, oracle.advance, oracle.run):
        with pytest.raises(ClockStalled, match=r"call start\(\) first"):
            call()
    assert oracle.last() == Timestamp.ZERO
    assert oracle.status()["state"] == "NotLeading"
    oracle.close()


def test_starting_twice_is_refused(oracle: Oracle) -> None:
    with pytest.raises(InvalidArgument, match="started before"):
        oracle.start()
    oracle.allocate()


def test_fact_5_two_failed_reads_of_the_window_are_survived(store: MemoryMetadataStore, clock: ManualClock) -> None:
    store.fault = fault = Failing("get", StoreUnavailable, times=2)
    oracle = Oracle(store, clock, owner="ann")
    oracle.start()
    oracle.allocate()
    assert fault.hits == 2


def test_fact_5_a_window_that_cannot_be_read_is_never_taken_for_absent(
    store: MemoryMetadataStore, clock: ManualClock
) -> None:
    store.fault = fault = Failing("get", StoreUnavailable)
    oracle = Oracle(store, clock, owner="ann")
    began_s = clock.monotonic()
    with pytest.raises(StoreUnavailable):
        oracle.start()
    assert fault.hits == 5
    assert clock.monotonic() - began_s == pytest.approx(4 * 0.05)
    with pytest.raises(ClockStalled):
        oracle.allocate(timeout_s=0)
    store.fault = None
    assert store.get(KEY) is None
    assert store.holder("oracle") is None, "somebody else may try"
    oracle.start()
    oracle.allocate()


@pytest.mark.parametrize("value", [b"", b"\x00\x01", b"[]", b'{"until_ms": "soon"}', b'{"until_ms": -1}', b"{}"])
def test_a_window_that_makes_no_sense_is_never_taken_for_absent(
    store: MemoryMetadataStore, clock: ManualClock, value: bytes
) -> None:
    store.compare_and_set(KEY, value, expected=0)
    with pytest.raises(Corruption, match=KEY):
        Oracle(store, clock, owner="ann").start()


@pytest.mark.parametrize("after", [False, True])
def test_a_first_save_with_an_unknown_outcome_is_read_back_before_it_is_repeated(
    store: MemoryMetadataStore, clock: ManualClock, after: bool
) -> None:
    store.fault = Failing("compare_and_set", OutcomeUnknown, times=1, after=after)
    oracle = Oracle(store, clock, owner="ann")
    oracle.start()
    assert oracle.allocate() < Timestamp.compose(window_end_ms(store))
    step(oracle, clock, 2 * WINDOW_MS / 1000 / 3)


def test_a_predecessors_save_between_our_read_and_our_write_is_started_above(
    store: MemoryMetadataStore, clock: ManualClock
) -> None:
    late_end = clock.wall + 50_000

    def sneak(operation: str, key: str, done: bool) -> None:
        if operation == "get" and done:
            store.fault = None
            store.compare_and_set(KEY, json.dumps({"until_ms": late_end}).encode(), expected=0)

    store.fault = sneak
    oracle = Oracle(store, clock, owner="ann")
    oracle.start()
    assert oracle.allocate() > Timestamp.compose(late_end)


@pytest.mark.parametrize("error", [StoreUnavailable, OutcomeUnknown])
@pytest.mark.parametrize("after", [False, True])
def test_a_lease_that_may_have_been_granted_is_asked_for_again(
    store: MemoryMetadataStore, clock: ManualClock, error: type[TidegateError], after: bool
) -> None:
    store.fault = Failing("acquire", error, times=4, after=after)
    oracle = Oracle(store, clock, owner="ann")
    oracle.start()
    oracle.allocate()


# -- handing out ---------------------------------------------------------------------------------------------


def test_fact_1_runs_follow_each_other_without_a_gap(oracle: Oracle) -> None:
    firsts = [oracle.allocate(100) for _ in range(4)]
    assert [b - a for a, b in pairwise(firsts)] == [100] * 3
    assert oracle.last() == firsts[-1] + 99
    assert type(firsts[0]) is Timestamp


@pytest.mark.parametrize(
    ("count", "error"), [(0, InvalidArgument), (-3, InvalidArgument), (LOGICAL_COUNT + 1, LimitExceeded)]
)
def test_fact_2_a_wrong_count_is_refused(oracle: Oracle, count: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        oracle.allocate(count)
    assert oracle.last() == Timestamp.ZERO


def test_timestamps_follow_the_wall_clock_step_by_step(oracle: Oracle, clock: ManualClock) -> None:
    oracle.allocate()
    step(oracle, clock)
    assert oracle.allocate() == Timestamp.compose(clock.wall, 0)


def test_an_exhausted_millisecond_moves_to_the_wall_clock_at_once(oracle: Oracle, clock: ManualClock) -> None:
    oracle.allocate(LOGICAL_COUNT)
    clock.pass_s(0.02)
    assert oracle.allocate(timeout_s=0) == Timestamp.compose(clock.wall, 0)


def test_an_exhausted_millisecond_runs_ahead_of_a_standing_clock_only_so_far(
    oracle: Oracle, clock: ManualClock
) -> None:
    began_s = clock.monotonic()
    for _ in range(AHEAD_MS + 1):
        oracle.allocate(LOGICAL_COUNT, timeout_s=0)
    assert clock.monotonic() == began_s, "nobody slept"
    assert oracle.status()["ahead_of_wall_ms"] == AHEAD_MS
    with pytest.raises(ClockStalled, match="the wall clock is behind"):
        oracle.allocate(timeout_s=0)


def test_beyond_that_time_moves_on_by_waiting_even_if_the_wall_clock_stands_or_went_back(
    oracle: Oracle, clock: ManualClock
) -> None:
    last = oracle.allocate(LOGICAL_COUNT) + LOGICAL_COUNT - 1
    clock.wall -= 3_600_000
    clock.wall_stands = True
    for _ in range(20):
        began_s = clock.monotonic()
        first = oracle.allocate(LOGICAL_COUNT, timeout_s=1.0)
        assert first > last
        assert 0 < clock.monotonic() - began_s < 0.01
        last = first + LOGICAL_COUNT - 1


def test_a_wall_clock_that_goes_back_never_takes_timestamps_back(oracle: Oracle, clock: ManualClock) -> None:
    before = oracle.allocate()
    clock.wall -= 3_600_000
    step(oracle, clock)
    after = oracle.allocate()
    assert after > before
    assert after.physical_ms == before.physical_ms


def test_a_wall_clock_that_jumps_ahead_is_followed_behind_a_durable_window(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    clock.wall += 3_600_000
    step(oracle, clock)
    assert oracle.allocate().physical_ms == clock.wall
    assert window_end_ms(store) == clock.wall + WINDOW_MS


def test_jumps_are_warned_of_once_a_minute(
    oracle: Oracle, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidegate.clock"):
        for _ in range(3):
            clock.wall += 1000
            step(oracle, clock)
        assert [r.message.split(":")[0] for r in caplog.records] == ["the wall clock jumped by +1,000 ms"]
        for _ in range(int(WARN_EVERY_S)):
            step(oracle, clock, 1.0)
        clock.wall -= 5000
        step(oracle, clock)
    assert "jumped by -5,000 ms" in caplog.records[-1].message
    assert len(caplog.records) == 2


def test_the_window_is_saved_once_in_three_seconds_and_not_per_timestamp(oracle: Oracle, clock: ManualClock) -> None:
    for _ in range(10 * 1000 // STEP_MS):
        step(oracle, clock)
        oracle.allocate()
    assert oracle.status()["saves"] in (4, 5)


def test_a_window_that_cannot_be_saved_stops_time_and_then_says_why(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    store.fault = Failing("compare_and_set", StoreUnavailable)
    for _ in range(2 * WINDOW_MS // STEP_MS):
        clock.pass_s(STEP_MS / 1000)
        try:
            oracle.advance()
        except StoreUnavailable as error:
            assert "the store is away" in str(error)
    stuck_at = oracle.allocate()
    assert stuck_at < Timestamp.compose(window_end_ms(store))
    assert "the store is away" in str(oracle.status()["stalled_by"])
    oracle.allocate(LOGICAL_COUNT // 2, timeout_s=0)
    with pytest.raises(ClockStalled, match="window could not be saved: the store is away"):
        oracle.allocate(LOGICAL_COUNT, timeout_s=0.1)
    store.fault = None
    assert oracle.allocate(LOGICAL_COUNT).physical_ms == clock.wall
    assert oracle.status()["stalled_by"] == ""


def test_with_a_timeout_of_zero_nobody_ever_sleeps(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    store.fault = Failing("compare_and_set", StoreUnavailable)
    clock.wall += 60_000
    oracle.allocate(LOGICAL_COUNT)
    began_s = clock.monotonic()
    with pytest.raises(ClockStalled):
        oracle.allocate(timeout_s=0)
    assert clock.monotonic() == began_s


@pytest.mark.parametrize("after", [False, True])
def test_a_save_with_an_unknown_outcome_neither_deposes_nor_loses_the_window(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore, after: bool
) -> None:
    """Law 9: the save may have arrived. The next one then meets a version it did not expect, and finds itself."""
    before = oracle.allocate()
    attempts = 1 if after else 2
    store.fault = Failing("compare_and_set", OutcomeUnknown, times=attempts, after=after)
    clock.wall += 60_000
    for _ in range(attempts):
        clock.pass_s(STEP_MS / 1000)
        with pytest.raises(OutcomeUnknown):
            oracle.advance()
        assert oracle.allocate().physical_ms == before.physical_ms
    store.fault = None
    for _ in range(3):
        step(oracle, clock)
    now = oracle.allocate()
    assert now > before
    assert now.physical_ms == clock.wall
    assert now < Timestamp.compose(window_end_ms(store))


# -- barriers ------------------------------------------------------------------------------------------------


def test_fact_7_after_a_barrier_every_allocation_is_strictly_above_it(oracle: Oracle, clock: ManualClock) -> None:
    here = oracle.allocate()
    oracle.barrier_until(here, timeout_s=0)
    inside = Timestamp.compose(clock.wall, 5000)
    oracle.barrier_until(inside, timeout_s=0)
    assert oracle.allocate() == inside + 1
    end_of_ms = Timestamp.compose(clock.wall, LOGICAL_COUNT - 1)
    oracle.barrier_until(end_of_ms, timeout_s=0)
    assert oracle.allocate() > end_of_ms


def test_fact_7_a_barrier_ahead_waits_for_the_clock_and_no_longer(oracle: Oracle, clock: ManualClock) -> None:
    ahead = Timestamp.compose(clock.wall + 700, 3)
    began_s = clock.monotonic()
    oracle.barrier_until(ahead, timeout_s=5)
    assert clock.monotonic() - began_s == pytest.approx(0.7, abs=0.01)
    assert oracle.allocate() > ahead


def test_a_barrier_the_clock_does_not_reach_times_out(oracle: Oracle, clock: ManualClock) -> None:
    with pytest.raises(WaitTimeout, match=r"did not pass .* within 1 s"):
        oracle.barrier_until(Timestamp.compose(clock.wall + 60_000), timeout_s=1)


# -- leases --------------------------------------------------------------------------------------------------


def test_a_second_oracle_waits_for_the_lease_and_names_who_holds_it(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    waiting = Oracle(MemoryMetadataStore(clock, store.state), clock, owner="bo")
    began_s = clock.monotonic()
    with pytest.raises(NotLeader, match=r"held by 'ann' \(epoch 1\)"):
        waiting.start(timeout_s=1.0)
    assert clock.monotonic() - began_s == pytest.approx(1.0)
    with pytest.raises(NotLeader):
        waiting.start(timeout_s=0)
    waiting.start(timeout_s=5.0)  # the first one is not renewed meanwhile
    assert waiting.status()["lease_epoch"] == 2
    with pytest.raises(NotLeader, match=r"its lease of 3\.0 s ran out"):
        oracle.allocate()


def test_waiting_for_the_lease_ends_in_time_even_if_the_store_failed_meanwhile(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    failing = MemoryMetadataStore(clock, store.state, fault=Failing("acquire", StoreUnavailable, times=2))
    with pytest.raises(NotLeader, match="held by 'ann'"):
        Oracle(failing, clock, owner="bo").start(timeout_s=1.0)
    failing.fault = fault = Failing("acquire", StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        Oracle(failing, clock, owner="bo").start(timeout_s=0)
    assert fault.hits == 5


def test_a_successor_is_above_everything_its_predecessor_could_hand_out(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    oracle.allocate()
    clock.wall_stands = True
    successor = Oracle(MemoryMetadataStore(clock, store.state), clock, owner="bo")
    end_ms = window_end_ms(store)
    successor.start(timeout_s=2 * TTL_S)
    assert successor.allocate() == Timestamp.compose(end_ms + 1, 0)


def test_past_its_deadline_it_stops_at_once_and_for_good(oracle: Oracle, clock: ManualClock) -> None:
    clock.pass_s(TTL_S - 0.001)
    oracle.allocate()
    clock.pass_s(0.001)
    last = oracle.last()
    calls: list[Callable[[], object]] = [
        oracle.allocate,
        lambda: oracle.allocate(5, timeout_s=0),
        oracle.advance,
        oracle.run,
        lambda: oracle.barrier_until(Timestamp.ZERO),
        oracle.start,
    ]
    for call in calls:
        with pytest.raises(NotLeader, match="is deposed"):
            call()
    clock._monotonic_us -= 2_000_000
    with pytest.raises(NotLeader, match="is deposed"):
        oracle.allocate()
    assert oracle.last() == last
    assert oracle.status()["state"] == "NotLeader"


def test_the_deadline_counts_from_the_start_of_the_call_that_took_the_lease(
    store: MemoryMetadataStore, clock: ManualClock
) -> None:
    def slow(operation: str, key: str, done: bool) -> None:
        if operation == "acquire" and done:
            clock.pass_s(2.5)

    store.fault = slow
    oracle = Oracle(store, clock, owner="ann")
    oracle.start()
    oracle.allocate()
    clock.pass_s(0.5)
    assert store.holder("oracle") is None
    with pytest.raises(NotLeader):
        oracle.allocate()


def test_the_lease_is_renewed_after_a_third_of_its_time(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    renewed_at: list[float] = []

    def note(operation: str, key: str, done: bool) -> None:
        if operation == "renew" and done:
            renewed_at.append(clock.monotonic())

    store.fault = note
    began_s = clock.monotonic()
    for _ in range(200):
        step(oracle, clock)
        oracle.allocate()
    assert renewed_at[0] - began_s == pytest.approx(1.0, abs=0.051)
    assert len(renewed_at) in (9, 10)


def test_a_store_that_is_away_costs_the_lease_only_when_its_time_is_up(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.fault = Failing("renew", StoreUnavailable)
    while clock.monotonic() < 100 + TTL_S - STEP_MS / 1000:
        step(oracle, clock)
        oracle.allocate()
    assert len([r for r in caplog.records if "was not renewed" in r.message]) == 1
    clock.pass_s(STEP_MS / 1000 + 0.001)
    with pytest.raises(NotLeader, match="without being renewed"):
        oracle.allocate()


def test_a_refused_renewal_deposes_at_once(oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore) -> None:
    store.state.owner_died("ann")
    clock.pass_s(1.0)
    with pytest.raises(NotLeader, match="has ended"):
        oracle.advance()
    with pytest.raises(NotLeader, match="has ended"):
        oracle.allocate()


def test_a_deposed_leader_cannot_move_the_window_of_its_successor(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    """Even one whose own clock tells it that it still leads: the compare-and-set stops it."""
    store.state.owner_died("ann")
    other = MemoryMetadataStore(clock, store.state)
    successor = Oracle(other, clock, owner="bo")
    successor.start()
    end_ms = window_end_ms(store)
    clock.wall += 60_000
    with pytest.raises(NotLeader, match="somebody else wrote key 'oracle/window'"):
        oracle.advance()
    assert window_end_ms(store) == end_ms
    with pytest.raises(NotLeader):
        oracle.allocate()
    successor.allocate()


def test_closing_gives_the_lease_and_the_rest_of_the_window_back(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    last = Timestamp.ZERO
    for n in range(20):
        owner = f"owner {n}"
        oracle.close()
        oracle.close()
        with pytest.raises(Closed):
            oracle.allocate()
        oracle = Oracle(MemoryMetadataStore(clock, store.state), clock, owner=owner)
        oracle.start(timeout_s=0)
        now = oracle.allocate()
        assert now > last
        last = now
    assert last.physical_ms - clock.wall <= 20, "twenty restarts are no twenty windows ahead of the clock"


def test_fact_4_after_a_crash_the_next_start_is_above_the_saved_window(
    oracle: Oracle, clock: ManualClock, store: MemoryMetadataStore
) -> None:
    oracle.allocate()
    store.state.owner_died("ann")
    again = Oracle(MemoryMetadataStore(clock, store.state), clock, owner="ann")
    end_ms = window_end_ms(store)
    again.start(timeout_s=0)
    assert again.allocate() == Timestamp.compose(end_ms + 1, 0)


def test_closing_with_the_store_away_still_closes(
    oracle: Oracle, store: MemoryMetadataStore, clock: ManualClock
) -> None:
    store.fault = Failing("release", StoreUnavailable)
    oracle.close()
    with pytest.raises(Closed):
        oracle.advance()


def test_status_tells_the_whole_state(oracle: Oracle, clock: ManualClock) -> None:
    oracle.allocate(10)
    assert oracle.status() == {
        "state": "Leading",
        "why": "",
        "physical_ms": clock.wall,
        "logical_used": 10,
        "window_end_ms": clock.wall + WINDOW_MS,
        "ahead_of_wall_ms": 0,
        "last": Timestamp.compose(clock.wall, 9),
        "lease_epoch": 1,
        "owner": "ann",
        "saves": 1,
        "stalled_by": "",
    }


# -- with real time and threads ------------------------------------------------------------------------------


def test_its_thread_keeps_the_lease_and_follows_the_clock_until_closed(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "meta.db")
    oracle = Oracle(store, owner="ann", lease_ttl_ms=400)
    oracle.start()
    oracle.run()
    oracle.run()
    first = oracle.allocate()
    oracle.barrier_until(first.add(milliseconds=900), timeout_s=30)
    assert oracle.allocate().ms_since(first) >= 900, "more than two leases later"
    oracle.close()
    assert store.holder("oracle") is None
    assert not [t for t in threading.enumerate() if t.name == "tidegate-oracle"]
    store.close()


def test_its_thread_ends_when_it_is_deposed() -> None:
    clock, state = SystemClock(), MemoryState()
    oracle = Oracle(MemoryMetadataStore(clock, state), clock, owner="ann", lease_ttl_ms=150)
    oracle.start()
    oracle.run()
    thread = oracle._thread
    assert thread is not None
    state.owner_died("ann")
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(NotLeader):
        oracle.allocate()
    oracle.close()


def test_fact_10_many_writers_and_barrier_writers_get_distinct_rising_timestamps() -> None:
    clock = SystemClock()
    oracle = Oracle(MemoryMetadataStore(clock), clock, owner="ann")
    oracle.start()
    oracle.run()
    taken: list[list[Timestamp]] = [[] for _ in range(8)]
    begin = oracle.allocate()

    def write(number: int, mine: list[Timestamp]) -> None:
        for n in range(300):
            if n % 30 == number:
                barrier = Timestamp(begin + 10_000 * n)
                oracle.barrier_until(barrier, timeout_s=30)
                mine.append(oracle.allocate())
                assert mine[-1] > barrier
            else:
                mine.append(oracle.allocate(count=1 + n % 3))

    threads = [threading.Thread(target=write, args=(n, mine)) for n, mine in enumerate(taken)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    oracle.close()
    assert all(len(mine) == 300 and mine == sorted(mine) for mine in taken)
    assert len({ts for mine in taken for ts in mine}) == 8 * 300


def test_a_run_of_a_whole_millisecond_is_not_starved_by_others() -> None:
    clock = SystemClock()
    oracle = Oracle(MemoryMetadataStore(clock), clock, owner="ann")
    oracle.start()
    oracle.run()
    enough = threading.Event()

    def nibble() -> None:
        while not enough.is_set():
            oracle.allocate()

    threads = [threading.Thread(target=nibble) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert oracle.allocate(LOGICAL_COUNT, timeout_s=30).logical == 0
    finally:
        enough.set()
        for thread in threads:
            thread.join()
        oracle.close()
