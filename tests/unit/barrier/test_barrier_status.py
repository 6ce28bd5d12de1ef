"""Who holds the pipeline up. Promise 8; checkpoints-and-views section 9."""

from barrier_rig import cut, finish, make

from tidegate.barrier.alignment import Alignment
from tidegate.barrier.clock import BarrierClock, BarrierSettings
from tidegate.barrier.status import Health, status
from tidegate.clock.timestamp import Timestamp


def look(epochs, now_ms, *, alignment=None, clock=None):
    return status(clock or BarrierClock(BarrierSettings(), 0), alignment or Alignment(), epochs, now_ms)


def test_an_idle_pipeline_is_held_up_by_nobody():
    seen = look(make("a"), 5000)
    assert (seen.health, seen.held_by, seen.slowest, seen.uncommitted) == (Health.GOOD, "", None, 0)


def test_a_channel_that_does_not_tick_is_named():
    alignment = Alignment()
    alignment.begin(Timestamp(100), ["d0", "d1"], is_checkpoint=True, now_ms=1000)
    alignment.ticked("d0", Timestamp(100), 1)
    seen = look(make("a"), 3500, alignment=alignment)
    assert seen.held_by == "epoch 1 has waited 2,500 ms for ticks of d1"
    assert (seen.align_lag_ms, seen.aligning, seen.health) == (2500, 1, Health.SLOW)


def test_the_slowest_worker_is_named_with_what_it_does():
    epochs = make("a", "b", cuts=1)
    finish(epochs, "a", 100)
    seen = look(epochs, 510)
    assert seen.slowest == "b"
    assert seen.held_by == "worker 'b' has been at epoch 1 for 500 ms"
    assert seen.work_lag_ms == 500
    assert [(each.name, each.behind, each.working_ms) for each in seen.workers] == [("a", 0, None), ("b", 1, 500)]


def test_a_dead_worker_is_named_before_a_busy_one():
    epochs = make("a", "b", cuts=1)
    epochs.lost("b", 12, 400)
    seen = look(epochs, 1400)
    assert seen.held_by == "worker 'b' was lost 1,000 ms ago, and 1 epochs wait for it"


def test_a_commit_that_takes_long_is_named():
    epochs = make("a", cuts=1)
    finish(epochs, "a", 50)
    seen = look(epochs, 850)
    assert seen.held_by == "checkpoint 1 has been committing for 800 ms"
    assert (seen.commit_lag_ms, seen.work_lag_ms) == (800, 0)


def test_epochs_without_any_worker_are_told():
    assert look(make(cuts=2), 100).held_by == "2 epochs wait, and there is no worker"


def test_health_is_told_by_the_interval():
    """Section 9: below the interval healthy, up to ten times back-pressure, beyond stuck."""
    epochs = make("a")
    epochs.record(cut(1), 0)
    assert [look(epochs, now).health for now in (900, 1100, 9_900, 10_000)] == [
        Health.GOOD, Health.SLOW, Health.SLOW, Health.STUCK,
    ]  # fmt: skip


def test_a_paused_pipeline_says_so():
    clock = BarrierClock(BarrierSettings(), 0)
    clock.pause(100)
    seen = look(make("a"), 600, clock=clock)
    assert (seen.health, seen.paused_ms) == (Health.PAUSED, 500)
    assert "resume" in seen.held_by


def test_ages_of_asks_barriers_and_commits_are_told():
    clock = BarrierClock(BarrierSettings(), 0)
    clock.poll(100, in_flight=0, is_dirty=True)
    clock.ask(300, "flush")
    epochs = make("a", cuts=1)
    finish(epochs, "a")
    epochs.committed(1, 200)
    seen = look(epochs, 1000, clock=clock)
    assert (seen.barrier_ms, seen.asked_ms, seen.committed_ms, seen.last.checkpoint) == (900, 700, 800, 1)
