"""A bound is kept by the time that passed, whatever the wall clock did and whoever was killed (seed 004)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.clock.oracle import STEP_MS, OracleMachine, SaveWindow
from tidegate.clock.timestamp import Timestamp
from tidegate.reads.owner_time import OwnerTime

HOUR_MS = 3_600_000
spans = st.one_of(st.integers(0, 120), st.integers(0, 9_000))
events = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), spans),
        st.tuples(
            st.just("set the clock"), st.one_of(st.integers(-9_000, 9_000), st.sampled_from((-HOUR_MS, HOUR_MS)))
        ),
        st.tuples(st.just("write"), st.just(0)),
        st.tuples(st.just("read"), spans),
        st.tuples(st.just("kill"), spans),
    ),
    max_size=40,
)


class Owners:
    """The real oracle, its clocks turned by hand, and all that was written with when."""

    def __init__(self) -> None:
        self.wall_ms, self.monotonic_ms = 1_750_000_000_000, 5_000
        self.written: list[tuple[int, Timestamp]] = []
        self.saved_ms: int | None = None
        self.begin()

    def begin(self) -> None:
        self.oracle = OracleMachine()
        self._save(self.oracle.start(self.wall_ms, self.saved_ms))
        self.time = OwnerTime(self.allocate(), self.wall_ms, self.monotonic_ms)

    def _save(self, effects) -> None:
        for each in effects:
            if isinstance(each, SaveWindow):
                self.saved_ms = each.until_ms
                self.oracle.window_saved(each.until_ms)

    def allocate(self) -> Timestamp:
        first = self.oracle.allocate(1)
        assert first is not None
        return Timestamp(first)

    def let_pass(self, ms: int) -> None:
        while ms > 0:
            step = min(ms, STEP_MS)
            self.wall_ms += step
            self.monotonic_ms += step
            ms -= step
            self._save(self.oracle.advance(self.wall_ms, elapsed_ms=step))

    def look(self, ago_ms: int) -> tuple[Timestamp, Timestamp]:
        now = self.allocate()
        return now, self.time.handed_out(ago_ms, now=now, wall_ms=self.wall_ms, monotonic_ms=self.monotonic_ms)


@given(events)
@example([("kill", 0), ("write", 0), ("pass", 1000), ("read", 500)])
@example([("set the clock", -HOUR_MS), ("write", 0), ("pass", 9000), ("read", 5000)])
@example(
    [("set the clock", HOUR_MS), ("set the clock", -HOUR_MS), ("write", 0), ("kill", 0), ("pass", 90), ("read", 9)]
)
def test_nothing_older_than_the_bound_is_left_out(life):
    owners = Owners()
    for what, ms in life:
        match what:
            case "pass":
                owners.let_pass(ms)
            case "set the clock":
                owners.wall_ms = max(owners.wall_ms + ms, 1_600_000_000_000)
                owners.look(0)  # A look between any two: the limit that the class states.
            case "write":
                owners.written.append((owners.monotonic_ms, owners.allocate()))
            case "kill":
                owners.begin()
            case "read":
                now, found = owners.look(ms)
                assert found <= now
                old = [at for when, at in owners.written if when <= owners.monotonic_ms - ms]
                assert found >= max(old, default=Timestamp.ZERO)


@given(st.integers(0, 9_000), st.integers(0, 9_000))
def test_a_clock_that_runs_well_gives_no_more_than_was_asked_for(uptime_ms, ago_ms):
    """Else `bounded` would be `strong` by another name: only what is older than this owner's life costs more."""
    owners = Owners()
    owners.let_pass(uptime_ms)
    now, found = owners.look(ago_ms)
    assert found <= now
    assert owners.wall_ms - found.physical_ms >= min(ago_ms, uptime_ms)
