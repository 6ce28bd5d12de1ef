"""How far back a bound reaches on the timeline when Timestamps are not where the wall clock is (seed 004, bounded)."""

from tidegate.clock.timestamp import Timestamp
from tidegate.reads.owner_time import OwnerTime

WALL_MS = 1_750_000_000_000


def at(ms, logical=0):
    return Timestamp.compose(WALL_MS + ms, logical)


def ask(time, ago_ms, *, now, wall, monotonic):
    """`wall` and `monotonic` count from the owner's beginning."""
    return time.handed_out(ago_ms, now=now, wall_ms=WALL_MS + wall, monotonic_ms=monotonic)


def test_with_a_clock_that_runs_well_it_is_so_long_ago_by_the_clock():
    time = OwnerTime(at(0), WALL_MS, 0)
    found = ask(time, 5_000, now=at(60_000, 7), wall=60_010, monotonic=60_010)
    assert found.physical_ms == WALL_MS + 55_010


def test_what_is_older_than_the_owner_is_all_that_came_before_it():
    """What an owner before handed out, and when, is not known."""
    time = OwnerTime(at(0), WALL_MS, 0)
    found = ask(time, 5_000, now=at(1_000), wall=1_000, monotonic=1_000)
    assert at(0) <= found < at(1)


def test_while_timestamps_stand_ahead_of_the_clock_nothing_is_left_out():
    """After an owner was killed its successor begins up to 3 s ahead."""
    time = OwnerTime(at(3_000), WALL_MS, 0)
    now = at(3_000, 99)
    assert ask(time, 500, now=now, wall=1_000, monotonic=1_000) == now
    # The clock has caught up, and the bound still reaches back to when it had not.
    found = ask(time, 500, now=at(3_200), wall=3_200, monotonic=3_200)
    assert at(3_000, 99) < found < at(3_001)
    assert ask(time, 500, now=at(3_600), wall=3_600, monotonic=3_600).physical_ms == WALL_MS + 3_100


def test_a_clock_that_was_set_back_between_two_looks_is_noticed():
    """By the monotonic clock, though the wall clock has come back to where Timestamps stood by then."""
    time = OwnerTime(at(0), WALL_MS, 0)
    ask(time, 0, now=at(10_000), wall=10_000, monotonic=10_000)
    # Set back by 2 s at once; Timestamps stood at 10,000 for 2 s.
    now = at(10_100)
    assert ask(time, 1_000, now=now, wall=10_100, monotonic=12_100) == now


def test_a_clock_that_is_set_right_gently_did_not_jump():
    time = OwnerTime(at(0), WALL_MS, 0)
    found = ask(time, 5_000, now=at(59_970), wall=59_970, monotonic=60_000)
    assert found.physical_ms == WALL_MS + 54_970


def test_a_bound_of_nothing_is_now():
    time = OwnerTime(at(0), WALL_MS, 0)
    assert ask(time, 0, now=at(960, 5), wall=1_000, monotonic=1_000) == at(960, 5)
