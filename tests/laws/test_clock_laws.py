"""Laws of time, over arbitrary histories: promise 5 begins with timestamps that only ever rise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.clock.allocator import LocalAllocator
from tidegate.clock.oracle import OracleMachine, SaveWindow
from tidegate.clock.timestamp import LOGICAL_BITS, LOGICAL_COUNT, Timestamp
from tidegate.clock.watermark import InFlight, WatermarkCollector
from tidegate.errors import InvariantBroken, NotFound, OutcomeUnknown, StoreUnavailable, TidegateError
from tidegate.runtime.oracle import Oracle
from tidegate.stores.memory_metadata import ManualClock, MemoryMetadataStore, MemoryState

WALL = 1_700_000_000_000
counts = st.one_of(st.integers(1, 5), st.sampled_from([1000, LOGICAL_COUNT // 2, LOGICAL_COUNT - 1, LOGICAL_COUNT]))
jumps_ms = st.one_of(st.integers(-2, 60), st.integers(-5000, 5000), st.integers(-10_000_000, 10_000_000))
saves = st.sampled_from(["saved", "saved", "failed", "unknown"])

# -- the machine ---------------------------------------------------------------------------------------------

machine_events = st.one_of(
    st.tuples(st.just("allocate"), counts),
    st.tuples(st.just("skip"), st.integers(-2 * LOGICAL_COUNT, 2 * LOGICAL_COUNT)),
    st.tuples(st.just("advance"), jumps_ms, st.booleans(), saves),
    st.tuples(st.just("crash"), jumps_ms, saves),
    st.tuples(st.just("retire"), jumps_ms, saves),
)


@dataclass
class Durable:
    """The stored window. A save of unknown outcome is written, and the machine is told that it failed."""

    until_ms: int | None = None
    late: bool = False

    def save(self, machine: OracleMachine, until_ms: int, outcome: str) -> None:
        if self.late:  # the next save meets the late one, as the shell does, and takes it over
            self.late = False
            assert self.until_ms is not None
            machine.window_saved(self.until_ms)
        elif outcome == "saved":
            self.until_ms = until_ms
            machine.window_saved(until_ms)
        else:
            machine.save_failed()
            if outcome == "unknown":
                self.until_ms = until_ms
                self.late = True

    def start(self, wall_ms: int, outcome: str) -> OracleMachine:
        """A new machine over what is stored, started if its save succeeds."""
        machine = OracleMachine()
        self.late = False
        for effect in machine.start(wall_ms, self.until_ms):
            assert isinstance(effect, SaveWindow)
            self.save(machine, effect.until_ms, outcome)
        self.late = False  # a start that failed is repeated from a fresh read
        return machine


@given(st.lists(machine_events, min_size=15, max_size=60))
@settings(max_examples=300, deadline=None)
def test_values_strictly_increase_over_any_history_of_crashes_jumps_and_failing_saves(
    events: list[tuple[Any, ...]],
) -> None:
    durable, wall_ms, last = Durable(), WALL, 0
    machine = durable.start(wall_ms, "saved")
    for event in events:
        match event:
            case ("allocate", count):
                first = machine.allocate(count)
                if first is not None:
                    assert first > last
                    last = first + count - 1
                    assert durable.until_ms is not None
                    assert last < durable.until_ms << LOGICAL_BITS, "never at or above what is durable"
                    assert first >> LOGICAL_BITS == last >> LOGICAL_BITS
            case ("skip", distance):
                target = max(0, machine.next_raw + distance)
                if machine.skip_past(target):
                    assert machine.next_raw > target
            case ("advance", jump_ms, force, outcome):
                wall_ms = max(0, wall_ms + jump_ms)
                before = machine.physical_ms
                for effect in machine.advance(wall_ms, force=force):
                    if isinstance(effect, SaveWindow):
                        assert machine.physical_ms == before, "durable first"
                        durable.save(machine, effect.until_ms, outcome)
                assert machine.physical_ms >= before
            case (("crash" | "retire") as how, jump_ms, outcome):
                rest = machine.retire() if how == "retire" else None
                if rest is not None and outcome != "failed" and not durable.late:
                    durable.until_ms = rest.until_ms
                wall_ms = max(0, wall_ms + jump_ms)
                machine = durable.start(wall_ms, outcome)
        if machine.started:
            assert machine.physical_ms < machine.saved_ms
        assert machine.last_raw <= max(last, machine.next_raw)


# -- the oracle over a store ---------------------------------------------------------------------------------


def history(seed: int) -> Iterator[tuple[str, int, int]]:
    """Eighty events, drawn evenly: Hypothesis favours short and simple ones, and these laws break late."""
    rng = Random(seed)
    for _ in range(80):
        what = rng.choice(["allocate"] * 6 + ["advance"] * 4 + ["start", "start", "close", "pass", "jump", "fail"])
        which = rng.randrange(3)
        match what:
            case "allocate":
                yield what, which, rng.choice([1, 1, 5, LOGICAL_COUNT // 2, LOGICAL_COUNT])
            case "start":
                yield what, which, rng.choice([0, 100, 4000])
            case "pass":
                yield what, which, rng.choice([1, 50, 1100, 2999, 3000])
            case "jump":
                yield what, which, rng.choice([-3_600_000, -5000, -1, 1, 200, 5000, 3_600_000])
            case "fail":
                yield what, rng.randrange(4), rng.randint(1, 8)
            case _:
                yield what, which, 0


@dataclass
class Faults:
    """For the next few calls: the store is away, loses the answer, or loses the request without saying so."""

    kind: int = 0
    left: int = 0

    def __call__(self, operation: str, key: str, done: bool) -> None:
        if not self.left or self.kind == 0:
            return
        if self.kind == 1 and not done:
            self.left -= 1
            raise StoreUnavailable(operation)
        if operation in ("get", "list", "holder"):
            return
        if (self.kind == 2) == done:
            self.left -= 1
            raise OutcomeUnknown(operation)


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_oracles_that_succeed_each_other_never_hand_out_a_value_out_of_order(seed: int) -> None:
    """Those that lost the lease without noticing go on being asked."""
    clock, state, faults = ManualClock(), MemoryState(), Faults()
    names = iter(range(10**6))

    def fresh() -> Oracle:
        return Oracle(MemoryMetadataStore(clock, state, fault=faults), clock, owner=f"o{next(names)}")

    oracles = [fresh() for _ in range(3)]
    oracles[0].start()
    last = 0
    for what, which, number in history(seed):
        try:
            match what:
                case "allocate":
                    first = oracles[which].allocate(number, timeout_s=0.01)
                    assert first > last, f"{oracles[which].status()}"
                    last = first + number - 1
                    assert oracles[which].last() == last
                case "advance":
                    oracles[which].advance()
                case "start":
                    oracles[which] = fresh()  # the one before is dropped where it stands: a crash
                    oracles[which].start(timeout_s=number / 1000)
                case "close":
                    oracles[which].close()
                case "pass":
                    clock.pass_s(number / 1000)
                case "jump":
                    clock.wall = max(0, clock.wall + number)
                case "fail":
                    faults.kind, faults.left = which, number
        except TidegateError as error:
            assert not isinstance(error, InvariantBroken), error


# -- local ranges --------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("allocate"), st.integers(1, 20)),
            st.tuples(st.just("others"), st.integers(1, 50)),
            st.tuples(st.just("offer"), st.integers(-50, 50)),
            st.tuples(st.just("sync"), st.just(0)),
        )
    ),
    st.integers(1, 15),
)
@settings(deadline=None)
def test_a_local_range_only_moves_forward_whatever_it_is_offered(events: list[tuple[str, int]], batch: int) -> None:
    source, last = 1000, 0

    def fetch(count: int) -> Timestamp:
        nonlocal source
        source += count
        return Timestamp(source - count)

    allocator = LocalAllocator(fetch, batch)
    for what, number in events:
        match what:
            case "allocate":
                first = allocator.allocate(number)
                assert first > last
                last = first + number - 1
            case "others":
                source += number
            case "offer":
                start = source + min(number, 0)
                if allocator.offer(start, 10):
                    source = max(source, start + 10)
            case "sync":
                allocator.sync()


# -- watermarks ----------------------------------------------------------------------------------------------

SOURCES, CHANNELS = ["p1", "p2"], ["a", "b"]
small = st.integers(0, 30).map(Timestamp)
collector_events = st.one_of(
    st.tuples(st.just("register"), st.sampled_from(SOURCES), st.just(Timestamp.ZERO), st.just({})),
    st.tuples(st.just("remove"), st.sampled_from(SOURCES), st.just(Timestamp.ZERO), st.just({})),
    *[
        st.tuples(
            st.just("report"),
            st.sampled_from(SOURCES),
            small,
            st.dictionaries(st.sampled_from(CHANNELS), small, max_size=2),
        )
    ]
    * 3,
)


class DumbCollector:
    """Keeps everything it was ever told and starts from the beginning each time. Channel None: all others."""

    def __init__(self) -> None:
        self.slots: dict[str, list[tuple[int, dict[str, Timestamp]]]] = {}  # all reports of a registered source
        self.fresh: dict[str, bool] = {}
        self.rounds: list[dict[str | None, int]] = []

    def finish_round(self) -> dict[str | None, int] | None:
        if not self.slots or not all(self.fresh[source] for source in self.slots):
            return None
        result: dict[str | None, int] = {}
        for channel in (None, *CHANNELS):
            of_each = []
            for reports in self.slots.values():
                default, values = reports[-1]
                of_each.append(int(values[channel]) if channel in values else default)
            result[channel] = max([min(of_each), *(earlier[channel] for earlier in self.rounds)])
        self.rounds.append(result)
        self.fresh = dict.fromkeys(self.slots, False)
        return result


@given(st.lists(collector_events, min_size=10, max_size=60))
@settings(max_examples=300, deadline=None)
def test_the_collector_equals_its_dumb_twin_and_its_watermarks_never_go_back(
    events: list[tuple[str, str, Timestamp, dict[str, Timestamp]]],
) -> None:
    collector, twin = WatermarkCollector(), DumbCollector()
    collector.register("p1")
    twin.slots["p1"], twin.fresh["p1"] = [], False
    before: dict[str | None, int] = {}
    for what, source, default, channels in events:
        known = source in twin.slots
        emitted = None
        expected = None
        try:
            if what == "register" and not known:
                collector.register(source)
                twin.slots[source], twin.fresh[source] = [], False
            elif what == "remove":
                emitted = collector.remove(source)
                del twin.slots[source], twin.fresh[source]
                expected = twin.finish_round()
            elif what == "report":
                emitted = collector.report(source, default, channels)
                if default >= max((d for d, _ in twin.slots[source]), default=0):
                    twin.slots[source].append((default, channels))
                    twin.fresh[source] = True
                    expected = twin.finish_round()
        except NotFound:
            assert not known
            continue
        assert collector.waits_for() == sorted(s for s in twin.slots if not twin.fresh[s])
        if expected is None:
            assert emitted is None
            continue
        assert emitted is not None
        now: dict[str | None, int] = {None: emitted.at, **{name: emitted.of(name) for name in CHANNELS}}
        assert now == expected
        assert all(now[channel] >= before.get(channel, 0) for channel in now)
        assert emitted.least <= min(now.values())
        before = now


@given(st.lists(st.tuples(st.sampled_from(["begin", "finish", "minimum"]), st.integers(0, 20)), max_size=200))
@settings(deadline=None)
def test_the_minimum_in_flight_equals_a_scan_and_never_goes_back(events: list[tuple[str, int]]) -> None:
    flight, clock, last = InFlight(), 0, 0
    open_now: list[Timestamp] = []

    def allocate() -> Timestamp:
        nonlocal clock
        clock += 1
        return Timestamp(clock)

    for what, number in events:
        if what == "begin":
            open_now.append(flight.begin(allocate))
        elif what == "finish" and open_now:
            flight.finish(open_now.pop(number % len(open_now)))
        elif what == "minimum":
            now = allocate()
            minimum = flight.minimum(now)
            assert minimum == (min(open_now) - 1 if open_now else now)
            assert minimum >= last
            last = minimum
        assert len(flight) == len(open_now)
        assert flight.oldest() == min(open_now, default=None)
