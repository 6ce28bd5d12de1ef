"""Waiting for the service time, and giving up. Seed 004; time-log section 10 (wait), facts 51 and 52; promise 8."""

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.reads.waiting import MAX_LAG_MS, STALL_MS, GiveUp, LookAgain, Ready, Waiting

MS = 1_750_000_000_000


def at(ms):
    return Timestamp.compose(MS + ms)


def test_what_is_served_already_is_not_waited_for():
    """Seed 004: a guarantee at or below the service time is answered at once, also with no time to wait."""
    assert Waiting(at(100), 0, timeout_ms=0).look(at(100), 0) == Ready(at(100))
    assert Waiting(at(100), 0).look(at(101), 0) == Ready(at(101))


def test_it_is_ready_when_the_service_time_arrives_and_not_one_timestamp_earlier():
    waiting = Waiting(at(100), 0)
    before = Timestamp(at(100) - 1)
    assert waiting.look(before, 10) == LookAgain(10 + STALL_MS)
    assert waiting.look(at(100), 20) == Ready(at(100))


def test_ready_wins_over_every_reason_to_give_up():
    """Whoever looks late and finds it there has his answer."""
    waiting = Waiting(at(100), 0, timeout_ms=50)
    assert isinstance(waiting.look(at(0), 0), LookAgain)
    assert waiting.look(at(100), 10 * STALL_MS) == Ready(at(100))


def test_a_service_time_that_does_not_move_for_three_seconds_is_an_error():
    """time-log section 10: no advance for 3 s; section 16.5: seed 004's loop would wait for ever."""
    assert STALL_MS == 3_000
    waiting = Waiting(at(9_000), 0)
    assert waiting.look(at(0), 0) == LookAgain(3_000)
    assert waiting.look(at(0), 2_999) == LookAgain(3_000)
    assert waiting.look(at(0), 3_000) == GiveUp("stalled", at(0), 3_000, 9_000)


def test_every_move_gives_it_three_more_seconds():
    waiting = Waiting(at(90_000), 0)
    for step in range(10):
        assert waiting.look(at(step), step * 2_000) == LookAgain(step * 2_000 + 3_000)
    assert waiting.look(at(9), 18_000 + 3_000).why == "stalled"


def test_a_service_time_that_goes_back_has_not_moved():
    """Of another owner, say, that does not serve what this one did."""
    waiting = Waiting(at(90_000), 0)
    waiting.look(at(50), 0)
    waiting.look(at(10), 1_000)
    assert waiting.look(at(40), 2_000) == LookAgain(3_000)
    assert waiting.look(at(50), 3_000).why == "stalled"


def test_a_service_time_a_day_behind_is_an_error_at_once():
    """time-log fact 51: lag above the maximum; issue texts "lag too large". Exactly a day is still waited for."""
    assert MAX_LAG_MS == 86_400_000
    assert Waiting(at(0), 0).look(at(-MAX_LAG_MS), 0) == LookAgain(3_000)
    found = Waiting(at(0), 0).look(at(-MAX_LAG_MS - 1), 0)
    assert found == GiveUp("lag", at(-MAX_LAG_MS - 1), 0, MAX_LAG_MS + 1)


def test_before_anything_was_served_there_is_no_lag():
    """time-log section 15a: a service time of 0 at the start was taken for a lag of decades."""
    assert Waiting(at(0), 0).look(Timestamp.ZERO, 0) == LookAgain(3_000)


def test_the_callers_time_is_up():
    """time-log fact 51: a deadline is an error of its own, and it says how long was waited."""
    waiting = Waiting(at(500), 7, timeout_ms=100)
    assert waiting.look(at(0), 7) == LookAgain(107)
    assert waiting.look(at(0), 106) == LookAgain(107)
    assert waiting.look(at(200), 107) == GiveUp("timeout", at(200), 100, 300)


def test_no_time_to_wait_is_an_error_at_the_first_look():
    assert Waiting(at(500), 7, timeout_ms=0).look(at(0), 7).why == "timeout"


def test_a_first_look_that_comes_late_does_not_make_it_stalled():
    """It was not looked at, so nobody knows whether it moved."""
    assert Waiting(at(500), 0).look(at(0), 60_000) == LookAgain(63_000)


@pytest.mark.parametrize("limit", [0, 1, 500])
def test_limits_may_be_set(limit):
    assert Waiting(at(501), 0, max_lag_ms=limit).look(at(0), 0).why == "lag"
    assert Waiting(at(501), 0, stall_ms=limit).look(at(0), 0) == (
        LookAgain(limit) if limit else GiveUp("stalled", at(0), 0, 501)
    )


def test_something_else_that_moves_gives_it_three_more_seconds_too():
    """A pipeline that is starting will move the service time, though it has not yet."""
    waiting = Waiting(at(90_000), 0)
    waiting.look(at(0), 0)
    waiting.touch(2_500)
    assert waiting.look(at(0), 5_499) == LookAgain(5_500)
    assert waiting.look(at(0), 5_500).why == "stalled"


def test_nothing_that_moves_puts_off_the_callers_deadline():
    waiting = Waiting(at(90_000), 0, timeout_ms=100)
    waiting.touch(99)
    assert waiting.look(at(0), 100).why == "timeout"


def test_ticks_while_time_stands_do_not_keep_alive_a_wait_for_a_later_time():
    """Found by the simulator (`--world reads`, seeds 99, 152 and 179): the wall clock was set back, Timestamps counted
    up within their millisecond, and a read of a Timestamp 300 ms ahead waited for an hour, without an error."""
    waiting = Waiting(at(300), 0)
    for now in range(0, 3_000, 100):
        assert waiting.look(Timestamp.compose(MS, now), now) == LookAgain(3_000)
    assert waiting.look(Timestamp.compose(MS, 3_000), 3_000) == GiveUp(
        "stalled", Timestamp.compose(MS, 3_000), 3_000, 300
    )


def test_in_the_millisecond_that_is_needed_every_tick_counts():
    """Time stands, and what is needed was handed out: it is coming."""
    waiting = Waiting(Timestamp.compose(MS, 9_000), 0)
    for now in range(0, 9_000, 1_000):
        assert waiting.look(Timestamp.compose(MS, now), now) == LookAgain(now + 3_000)
    assert waiting.look(Timestamp.compose(MS, 9_000), 60_000) == Ready(Timestamp.compose(MS, 9_000))


def test_a_service_time_that_stands_in_the_millisecond_that_is_needed_is_stalled():
    """One Timestamp short for ever is as bad as an hour."""
    waiting = Waiting(Timestamp.compose(MS, 9), 0)
    assert waiting.look(Timestamp.compose(MS, 8), 0) == LookAgain(3_000)
    assert waiting.look(Timestamp.compose(MS, 8), 1_500) == LookAgain(3_000)
    assert waiting.look(Timestamp.compose(MS, 8), 3_000).why == "stalled"
