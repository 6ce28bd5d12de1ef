"""The pure oracle: seed 004 (preallocated window, physical step) and reference section 2."""

from __future__ import annotations

import pytest

from tidegate.clock.oracle import (
    AHEAD_MS,
    JUMP_WARNING_MS,
    STEP_MS,
    WINDOW_MS,
    OracleMachine,
    SaveWindow,
    WarnClockJump,
)
from tidegate.clock.timestamp import LOGICAL_COUNT, PHYSICAL_MS_MAX, Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken, LimitExceeded

WALL = 1_700_000_000_000


def started(wall_ms: int = WALL, saved_ms: int | None = None) -> OracleMachine:
    machine = OracleMachine()
    (save,) = machine.start(wall_ms, saved_ms)
    assert isinstance(save, SaveWindow)
    machine.window_saved(save.until_ms)
    return machine


def take(machine: OracleMachine, count: int = 1) -> Timestamp:
    first = machine.allocate(count)
    assert first is not None
    return Timestamp(first)


def test_nothing_is_handed_out_before_the_first_window_is_durable() -> None:
    machine = OracleMachine()
    assert machine.allocate(1) is None
    assert machine.advance(WALL) == ()
    assert machine.start(WALL, None) == (SaveWindow(WALL + WINDOW_MS),)
    assert machine.allocate(1) is None
    machine.window_saved(WALL + WINDOW_MS)
    assert take(machine) == Timestamp.compose(WALL, 0)


@pytest.mark.parametrize(
    ("saved_ms", "first_ms"),
    [(None, WALL), (WALL - 9, WALL), (WALL - 1, WALL), (WALL, WALL + 1), (WALL + 5000, WALL + 5001)],
)
def test_seed_004_it_starts_at_the_wall_clock_or_above_the_saved_window(saved_ms: int | None, first_ms: int) -> None:
    machine = started(saved_ms=saved_ms)
    assert take(machine).physical_ms == first_ms
    assert machine.saved_ms == first_ms + WINDOW_MS


def test_a_wall_clock_at_zero_never_gives_the_timestamp_zero() -> None:
    assert take(started(wall_ms=0)) > 0


def test_a_start_whose_save_failed_can_be_repeated() -> None:
    machine = OracleMachine()
    machine.start(WALL, None)
    machine.save_failed()
    assert machine.allocate(1) is None
    machine.start(WALL + 1, None)
    machine.window_saved(WALL + 1 + WINDOW_MS)
    assert take(machine).physical_ms == WALL + 1
    with pytest.raises(InvariantBroken):
        machine.start(WALL, None)


def test_fact_1_batches_in_one_millisecond_follow_each_other_without_a_gap() -> None:
    machine = started()
    firsts = [take(machine, 100) for _ in range(5)]
    assert [ts.logical for ts in firsts] == [0, 100, 200, 300, 400]
    assert take(machine) == firsts[-1] + 100


@pytest.mark.parametrize("count", [0, -1])
def test_fact_2_a_count_below_one_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgument):
        started().allocate(count)


@pytest.mark.parametrize("count", [LOGICAL_COUNT + 1, 2**32 - 1])
def test_fact_2_a_count_above_one_millisecond_is_refused(count: int) -> None:
    with pytest.raises(LimitExceeded):
        started().allocate(count)


def test_a_whole_millisecond_can_be_had_at_once_and_then_it_is_empty() -> None:
    machine = started()
    assert take(machine, LOGICAL_COUNT).logical == 0
    assert machine.allocate(1) is None
    assert machine.logical_used == LOGICAL_COUNT


def test_a_run_never_spans_two_milliseconds() -> None:
    machine = started()
    take(machine, LOGICAL_COUNT - 10)
    assert machine.allocate(11) is None
    assert take(machine, 10).logical == LOGICAL_COUNT - 10


def test_physical_time_follows_a_wall_clock_more_than_the_guard_ahead() -> None:
    machine = started()
    take(machine)
    assert machine.advance(WALL + 1) == ()
    assert machine.physical_ms == WALL
    machine.advance(WALL + STEP_MS)
    assert take(machine) == Timestamp.compose(WALL + STEP_MS, 0)


@pytest.mark.parametrize("wall_ms", [WALL, WALL - 100, WALL - 3_600_000])
def test_a_wall_clock_that_stands_or_goes_back_moves_nothing_until_values_run_short(wall_ms: int) -> None:
    machine = started()
    last = take(machine, LOGICAL_COUNT // 2)
    machine.advance(wall_ms)
    assert machine.physical_ms == WALL, "half of the millisecond is still there"
    take(machine)
    machine.advance(wall_ms)
    assert take(machine) == Timestamp.compose(WALL + 1, 0)
    assert take(machine) > last


def test_somebody_who_waits_moves_time_on_by_one_millisecond() -> None:
    machine = started()
    take(machine, 5)
    machine.advance(WALL, force=True)
    assert take(machine) == Timestamp.compose(WALL + 1, 0)


def test_seed_004_a_step_beyond_the_window_waits_until_the_new_window_is_durable() -> None:
    machine = started()
    end = machine.saved_ms
    assert machine.advance(end - 2, elapsed_ms=WINDOW_MS - 2) == ()
    assert machine.physical_ms == end - 2
    machine.advance(end - 2, elapsed_ms=0, force=True)
    assert machine._pending_ms == end - 1, "within the guard of the end"
    assert take(machine).physical_ms == end - 2, "the published millisecond stays usable meanwhile"
    assert machine.advance(end + 50) == (), "one save at a time"
    machine.window_saved(end - 1 + WINDOW_MS)
    assert take(machine).physical_ms == end - 1


def test_a_failed_save_advances_nothing_and_the_next_step_asks_again() -> None:
    machine = started()
    far = WALL + WINDOW_MS
    assert SaveWindow(far + WINDOW_MS) in machine.advance(far)
    machine.save_failed()
    assert take(machine).physical_ms == WALL
    assert machine.saved_ms == WALL + WINDOW_MS
    assert machine.advance(far, elapsed_ms=0) == (SaveWindow(far + WINDOW_MS),)
    machine.window_saved(far + WINDOW_MS)
    assert take(machine).physical_ms == far


def test_a_late_and_shorter_window_is_kept_without_publishing_beyond_it() -> None:
    machine = started()
    far = WALL + 10 * WINDOW_MS
    machine.advance(far)
    machine.window_saved(WALL + 2 * WINDOW_MS)
    assert take(machine).physical_ms == WALL
    assert machine.advance(far, elapsed_ms=0) == (SaveWindow(far + WINDOW_MS),)


def test_a_window_that_nobody_asked_for_or_that_shrinks_is_a_defect() -> None:
    machine = started()
    with pytest.raises(InvariantBroken):
        machine.window_saved(WALL + 2 * WINDOW_MS)
    machine.advance(WALL + WINDOW_MS)
    with pytest.raises(InvariantBroken):
        machine.window_saved(WALL)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_wall_clock_that_jumped_is_reported_and_one_that_only_ran_on_is_not(sign: int) -> None:
    machine = started()
    assert machine.advance(WALL + 1000, elapsed_ms=1000) == (), "late, and exactly where it should be"
    jump = sign * (JUMP_WARNING_MS + 1)
    (warning,) = machine.advance(WALL + 1050 + jump)
    assert warning == WarnClockJump(jump, WALL + 1050 + jump, WALL + 1000)
    assert machine.advance(WALL + 1100 + jump) == (), "said once"
    assert machine.advance(WALL + 1150 + jump + sign * JUMP_WARNING_MS) == (), "150 ms are no jump"


def test_skipping_gives_up_values_only_inside_the_present_millisecond() -> None:
    machine = started()
    assert machine.skip_past(Timestamp.compose(WALL, 41))
    assert take(machine).logical == 42
    assert machine.skip_past(Timestamp.compose(WALL, 5)), "that is behind already"
    assert take(machine).logical == 43
    assert not machine.skip_past(Timestamp.compose(WALL + 1, 0))
    assert machine.skip_past(Timestamp.compose(WALL, LOGICAL_COUNT - 1))
    assert machine.allocate(1) is None


def test_it_may_run_ahead_of_the_wall_clock_only_as_far_as_a_restart_could() -> None:
    machine = started()
    assert machine.may_run_ahead(WALL)
    assert machine.may_run_ahead(WALL + 1 - AHEAD_MS)
    assert not machine.may_run_ahead(WALL - AHEAD_MS)


def test_the_last_value_is_remembered_over_steps_and_after_the_end() -> None:
    machine = OracleMachine()
    assert machine.last_raw == 0
    machine = started()
    assert machine.last_raw == 0
    last = take(machine, 10) + 9
    assert machine.last_raw == last
    machine.advance(WALL + 50)
    assert machine.last_raw == last
    machine.stop()
    assert machine.last_raw == last
    assert machine.allocate(1) is None
    assert machine.advance(WALL + 100) == ()


def test_a_clean_end_gives_the_rest_of_the_window_back_and_the_next_start_is_above_all() -> None:
    machine = started()
    last = take(machine, LOGICAL_COUNT) + LOGICAL_COUNT - 1
    assert machine.retire() == SaveWindow(WALL)
    assert machine.allocate(1) is None
    assert take(started(WALL - 1000, saved_ms=WALL)) > last
    assert OracleMachine().retire() is None


def test_a_clock_beyond_the_timeline_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="set the machine's clock"):
        OracleMachine().start(PHYSICAL_MS_MAX, None)
    with pytest.raises(InvalidArgument, match="set the machine's clock"):
        started().advance(PHYSICAL_MS_MAX + 1)
