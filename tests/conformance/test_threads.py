"""What `Threads` promises, of the machine's own and of the simulator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate.ports.threads import SYSTEM_THREADS, Threads
from tidegate.sim.actors import Actors, Dead, Process
from tidegate.sim.machine import SimClock

Play = Callable[[Callable[[Threads], Any]], Any]
"""Runs a piece of work with threads, in one of them; what it returns."""


def on_the_machine(work: Callable[[Threads], Any]) -> Any:
    return work(SYSTEM_THREADS)


def in_the_simulator(work: Callable[[Threads], Any]) -> Any:
    actors = Actors(SimClock(1_750_000_000_000))
    process = Process(actors, "p1")
    found: list[Any] = []
    actors.start(process, lambda: found.append(work(process)), "main")
    for _ in range(1_000):
        if found:
            break
        ready = actors.ready()
        if ready:
            actors.run(ready[-1])  # The newest first: nobody may count on being next.
        else:
            deadline = actors.next_deadline()
            assert deadline is not None, "nobody can go on"
            actors.clock.advance(deadline - actors.clock.monotonic() + 0.001)
    actors.kill(process)
    return found[0]


@pytest.fixture(params=[on_the_machine, in_the_simulator])
def play(request: pytest.FixtureRequest) -> Play:
    return request.param


def test_a_thread_runs_and_is_waited_for(play: Play) -> None:
    def work(threads: Threads) -> tuple[list[str], bool, bool, bool]:
        done: list[str] = []
        goes_on = threads.event()
        thread = threads.start(lambda: goes_on.wait(60) and done.append("done"), "other")
        was_alive = thread.is_alive()
        goes_on.set()
        thread.join()
        return done, was_alive, thread.is_alive(), thread.is_current

    assert play(work) == (["done"], True, False, False)


def test_a_thread_knows_itself(play: Play) -> None:
    def work(threads: Threads) -> list[bool]:
        told: list[bool] = []
        begins = threads.event()
        thread = threads.start(lambda: begins.wait(60) and told.append(thread.is_current), "other")
        begins.set()
        thread.join()
        return told

    assert play(work) == [True]


def test_a_join_an_event_and_a_condition_end_at_their_time(play: Play) -> None:
    def work(threads: Threads) -> tuple[bool, object, bool, bool]:
        never, condition = threads.event(), threads.condition()
        thread = threads.start(lambda: never.wait(60), "other")
        began = threads.monotonic()
        was_set = never.wait(0.02)
        with condition:
            found = condition.wait_for(lambda: False, 0.02)
        thread.join(0.02)
        took = threads.monotonic() - began
        alive = thread.is_alive()
        never.set()
        thread.join()
        return was_set, found, alive, took >= 0.05

    assert play(work) == (False, False, True, True)


def test_who_waits_for_a_condition_goes_on_when_it_is_so(play: Play) -> None:
    def work(threads: Threads) -> list[int]:
        condition, box, taken = threads.condition(), [], []

        def take() -> None:
            for _ in range(3):
                with condition:
                    condition.wait_for(lambda: box, 60)
                    taken.append(box.pop())
                    condition.notify_all()

        thread = threads.start(take, "taker")
        for number in range(3):
            with condition:
                condition.wait_for(lambda: not box, 60)
                box.append(number)
                condition.notify_all()
        thread.join()
        return taken

    assert play(work) == [0, 1, 2]


def test_an_event_that_is_set_keeps_nobody_waiting(play: Play) -> None:
    def work(threads: Threads) -> tuple[bool, bool, bool]:
        event = threads.event()
        before = event.is_set()
        event.set()
        return before, event.is_set(), event.wait()

    assert play(work) == (False, True, True)


# -- what only the simulator does --------------------------------------------------------------------------------------


def test_a_process_that_is_killed_does_nothing_more() -> None:
    """Wherever its threads are: at a point, waiting, or not begun."""
    actors = Actors(SimClock(1_750_000_000_000))
    process, done = Process(actors, "p1"), []

    def work() -> None:
        try:
            process.point()
            done.append("went on")
        except Dead:
            done.append("died")
            raise

    begun = actors.start(process, work, "begun")
    actors.start(process, lambda: done.append("began"), "not begun")
    waiting = actors.start(process, lambda: process.event().wait() and done.append("woke"), "waiting")
    actors.run(begun)
    actors.run(waiting)
    actors.kill(process)
    assert done == ["died"] and actors.ready() == []


def test_a_defect_in_a_thread_is_told_and_a_stranger_has_no_turn() -> None:
    actors = Actors(SimClock(1_750_000_000_000))
    process = Process(actors, "p1")
    broken = actors.start(process, lambda: 1 // 0, "broken")
    with pytest.raises(ZeroDivisionError):
        actors.run(broken)
    with pytest.raises(RuntimeError, match="only an actor"):
        process.point()
