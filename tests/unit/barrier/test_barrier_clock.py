"""The barrier clock: when a barrier is due, and which are checkpoints. Seed 001; checkpoints-and-views section 2."""

import pytest

from tidegate.barrier.clock import BarrierClock, BarrierSettings
from tidegate.errors import InvalidArgument, Retryable


def make(interval_ms=1000, every=1, in_flight_max=1000, now_ms=0, **more):
    return BarrierClock(BarrierSettings(interval_ms, every, in_flight_max), now_ms, **more)


def poll(clock, now_ms, *, in_flight=0, dirty=True):
    return clock.poll(now_ms, in_flight=in_flight, is_dirty=dirty)


def taken(clock, upto_ms, step_ms=10, **how):
    """When barriers come, and whether they are checkpoints, up to a time."""
    return [
        (now, barrier.is_checkpoint)
        for now in range(0, upto_ms + 1, step_ms)
        if (barrier := poll(clock, now, **how)) is not None
    ]


def test_barriers_come_every_interval_and_the_first_at_once():
    """Section 2.2: the first tick of an interval fires immediately."""
    assert taken(make(), 3500) == [(0, True), (1000, True), (2000, True), (3000, True)]


def test_every_nth_barrier_is_a_checkpoint():
    """Section 2.2: with frequency N the N-th barrier is the checkpoint."""
    assert [checkpoint for _, checkpoint in taken(make(50, 3), 400)] == [False, False, True] * 3


@pytest.mark.parametrize(("interval_ms", "every"), [(50, 2), (100, 3), (200, 5)])
def test_clocks_of_different_settings_share_nothing(interval_ms, every):
    """Section 2.2, tests: (50 ms, 2), (100 ms, 3) and (200 ms, 5) interleave independently."""
    found = taken(make(interval_ms, every), 2000)
    assert [at for at, _ in found] == list(range(0, 2001, interval_ms))
    assert [at for at, checkpoint in found if checkpoint] == list(
        range((every - 1) * interval_ms, 2001, every * interval_ms)
    )


def test_a_barrier_on_demand_does_not_wait_for_the_timer_and_is_a_checkpoint():
    """Section 2.2: force-checkpoint fires without waiting."""
    clock = make(every=5)
    poll(clock, 0)
    clock.ask(10, "flush")
    assert clock.next_ms == 10
    barrier = poll(clock, 10)
    assert (barrier.is_checkpoint, barrier.reasons) == (True, ("flush",))


def test_a_barrier_on_demand_resets_the_timer():
    """Section 2.2: a command resets the timer, so command storms do not add periodic barriers."""
    clock = make()
    poll(clock, 0)
    clock.ask(900, "flush")
    assert poll(clock, 900) is not None
    assert poll(clock, 1899) is None
    assert poll(clock, 1900) is not None


def test_a_checkpoint_on_demand_begins_the_count_anew():
    clock = make(100, 3)
    poll(clock, 0)
    clock.ask(10, "flush")
    poll(clock, 10)
    assert [poll(clock, now).is_checkpoint for now in (110, 210, 310)] == [False, False, True]


def test_asks_before_the_barrier_is_taken_share_it_and_later_ones_do_not():
    clock = make()
    first, second = clock.ask(0, "flush"), clock.ask(1, "a read waits")
    barrier = poll(clock, 2)
    assert barrier.answers == second > first
    assert barrier.reasons == ("flush", "a read waits")
    third = clock.ask(3, "flush")
    assert third > barrier.answers
    assert poll(clock, 3).answers == third


def test_reasons_are_bounded_and_asks_are_not_lost():
    """A bound on everything: a storm of different reasons keeps a few of them, and answers all."""
    clock = make()
    last = [clock.ask(0, f"read {number}") for number in range(100)][-1]
    barrier = poll(clock, 0)
    assert len(barrier.reasons) == 8
    assert barrier.answers == last


def test_an_ask_without_a_checkpoint_leaves_the_count_to_decide():
    clock = make(every=2)
    clock.ask(0, "probe", checkpoint=False)
    assert not poll(clock, 0).is_checkpoint
    clock.ask(1, "probe", checkpoint=False)
    assert poll(clock, 1).is_checkpoint


def test_after_a_pause_of_the_process_there_is_no_burst():
    """Section 2.2: the policy for missed ticks is delay."""
    clock = make()
    poll(clock, 0)
    found = [now for now in range(60_000, 63_001, 100) if poll(clock, now)]
    assert found == [60_000, 61_000, 62_000, 63_000]


def test_time_that_goes_back_stands_still():
    """Section 1: a clock that goes backwards never makes epochs regress; here it makes no barriers either."""
    clock = make()
    assert poll(clock, 5000) is not None
    assert poll(clock, 100) is None
    assert poll(clock, 5999) is None
    assert poll(clock, 6000) is not None


def test_too_many_in_flight_skip_periodic_barriers_only():
    """Section 2.3: at the limit only plain periodic barriers are skipped; commands always go through."""
    clock = make(in_flight_max=3)
    poll(clock, 0)
    assert poll(clock, 1000, in_flight=3) is None
    assert clock.skipped == 1
    clock.ask(1001, "flush")
    assert poll(clock, 1001, in_flight=3) is not None
    assert poll(clock, 2001, in_flight=2) is not None


def test_the_limit_never_keeps_back_the_checkpoint_that_those_in_flight_wait_for():
    """Found by simulation: five barriers to a checkpoint, and two may be in flight: nothing was ever committed."""
    clock = make(every=5, in_flight_max=2)
    assert not poll(clock, 0).is_checkpoint
    assert not poll(clock, 1000, in_flight=1).is_checkpoint
    assert poll(clock, 2000, in_flight=2).is_checkpoint
    assert poll(clock, 3000, in_flight=3) is None


def test_where_nothing_is_written_no_periodic_barrier_comes():
    """Section 13.2 (#17646, #14149): barriers pile up with no data; here an idle database costs nothing."""
    clock = make()
    assert taken(clock, 10_000, dirty=False) == []
    clock.ask(10_000, "flush")
    assert poll(clock, 10_000, dirty=False) is not None


def test_cuts_that_wait_for_a_checkpoint_get_it_when_writing_stops():
    clock = make(100, 10)
    poll(clock, 0)
    assert poll(clock, 100, dirty=False).is_checkpoint
    assert poll(clock, 200, dirty=False) is None


def test_cuts_found_at_a_restart_get_their_checkpoint_too():
    assert poll(make(every=10, uncheckpointed=2), 0, dirty=False).is_checkpoint
    assert poll(make(every=10), 0, dirty=False) is None


def test_changing_the_settings_resets_timer_and_counter():
    """Section 2.1: both are mutable online, and changing either resets counter and timer."""
    clock = make(1000, 3)
    poll(clock, 0)
    poll(clock, 1000)
    clock.change(BarrierSettings(200, 3), 1100)
    assert [poll(clock, now).is_checkpoint for now in (1100, 1300, 1500)] == [False, False, True]


def test_changing_the_settings_does_not_forget_cuts_without_a_checkpoint():
    clock = make(1000, 3)
    poll(clock, 0)
    clock.change(BarrierSettings(1000, 3), 100)
    assert poll(clock, 100, dirty=False).is_checkpoint


def test_a_paused_clock_takes_no_periodic_barriers_and_says_so_to_who_would_wait():
    """Section 2.6, decided otherwise: while paused nothing reaches the pipeline, so nobody waits for a checkpoint."""
    clock = make()
    assert clock.pause(100)
    assert poll(clock, 5000) is None
    with pytest.raises(Retryable, match=r"flush: the pipeline has been paused for 4,900 ms.*resume"):
        clock.ask(5000, "flush")
    assert poll(clock, 5000) is None


def test_a_change_of_the_catalog_gets_its_cut_while_paused():
    """Section 2.6: barriers keep flowing for DDL."""
    clock = make()
    clock.pause(0)
    clock.ask(10, "CREATE TABLE a", waits=False)
    assert poll(clock, 10).is_checkpoint


def test_pausing_twice_is_pausing_once():
    """Section 2.6: pause when paused and resume when running change nothing, and do not nest."""
    clock = make()
    assert clock.pause(0)
    assert not clock.pause(50)
    assert clock.paused_since_ms == 0
    assert clock.resume(100)
    assert not clock.resume(100)
    assert clock.paused_since_ms is None


def test_resuming_takes_one_barrier_at_once_and_no_more():
    clock = make()
    poll(clock, 0)
    clock.pause(100)
    clock.resume(90_000)
    assert poll(clock, 90_000) is not None
    assert poll(clock, 90_500) is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"interval_ms": 49}, "barrier_interval"), ({"checkpoint_every": 0}, "checkpoint_every"),
     ({"in_flight_max": 0}, "barriers_in_flight_max")],
)  # fmt: skip
def test_settings_out_of_bounds_are_refused_by_name(wrong, named):
    """Section 2.1: interval at least 50 ms, frequency at least 1."""
    with pytest.raises(InvalidArgument, match=named):
        BarrierSettings(**wrong)


def test_unusual_settings_come_with_a_notice():
    """Section 2.1: notice above 300,000 ms, and above a frequency of 60."""
    assert BarrierSettings().notices == ()
    assert BarrierSettings(300_000, 60).notices == ()
    assert len(BarrierSettings(300_001, 61).notices) == 2


def test_the_defaults_are_one_second_and_every_barrier_a_checkpoint():
    """Section 2.1."""
    assert (BarrierSettings().interval_ms, BarrierSettings().checkpoint_every) == (1000, 1)
