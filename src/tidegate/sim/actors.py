"""`Actors`: code that blocks and has threads of its own, run by the scheduler: of all actors one runs at a time.

An actor is a real thread that waits for its turn. It gives the turn back wherever it asks the simulated world for
something, and where it waits; so whatever others do comes in between there, and nowhere else. When its process is
killed, each of these places raises `Dead`, and none has an effect any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from tidegate.sim.machine import SimClock

_STUCK_S = 60.0
"""Real seconds after which an actor that does not give its turn back is a defect of the simulator."""


class Dead(BaseException):
    """The process of this actor was killed."""


class Process:
    """What is killed as a whole. As `Threads`, it gives whatever runs in it threads and time of the simulator."""

    def __init__(self, actors: Actors, name: str) -> None:
        self._actors = actors
        self.name = name
        self.is_dead = False
        self.stands_for = 0
        """So many steps it hangs."""

    def start(self, work: Callable[[], None], name: str) -> Actor:
        return self._actors.start(self, work, name)

    def condition(self) -> SimCondition:
        return SimCondition(self._actors)

    def event(self) -> SimEvent:
        return SimEvent(self._actors)

    def monotonic(self) -> float:
        return self._actors.clock.monotonic()

    def point(self) -> None:
        """Others may run here, and here it may die."""
        self._actors.give_up_turn(lambda: True, None)


class Actor:
    """A thread of a process."""

    def __init__(self, actors: Actors, process: Process, work: Callable[[], None], name: str) -> None:
        self._actors = actors
        self.process = process
        self.name = name
        self.has_ended = False
        self.defect: BaseException | None = None
        self.turn = _closed()
        self.may_go_on: Callable[[], object] = lambda: True
        self.deadline: float | None = None
        self._work = work
        self.thread = threading.Thread(target=self._run, name=f"{process.name} {name}", daemon=True)
        self.thread.start()

    def join(self, timeout: float | None = None) -> None:
        self._actors.give_up_turn(lambda: self.has_ended, timeout)

    def is_alive(self) -> bool:
        return not self.has_ended

    @property
    def is_current(self) -> bool:
        return self._actors.current is self

    @property
    def is_ready(self) -> bool:
        if self.process.is_dead:
            return True
        late = self.deadline is not None and self._actors.clock.monotonic() >= self.deadline
        return late or bool(self.may_go_on())

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.process.is_dead:
                self._work()
        except Dead:
            pass
        except BaseException as error:
            self.defect = error
        finally:
            self.has_ended = True
            self._actors.turn_is_back.release()


class Actors:
    """All of a run."""

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.turn_is_back = _closed()
        self.current: Actor | None = None
        self._all: list[Actor] = []

    def start(self, process: Process, work: Callable[[], None], name: str) -> Actor:
        actor = Actor(self, process, work, name)
        self._all.append(actor)
        return actor

    def ready(self) -> list[Actor]:
        """Those that could go on now, in the order in which they began."""
        self._all = [each for each in self._all if not each.has_ended]
        return [each for each in self._all if not each.process.stands_for and each.is_ready]

    def next_deadline(self) -> float | None:
        """When the first of those that wait will go on in any case."""
        return min((each.deadline for each in self._all if each.deadline is not None), default=None)

    def run(self, actor: Actor) -> None:
        """Let one go on until it gives its turn back. Raises: what it has failed with, if that is a defect."""
        before, self.current = self.current, actor
        actor.turn.release()
        if not self.turn_is_back.acquire(timeout=_STUCK_S):
            raise RuntimeError(f"{actor.process.name} {actor.name} does not give its turn back")
        self.current = before
        if actor.defect is not None:
            raise actor.defect

    def kill(self, process: Process) -> None:
        """End a process and all of its threads, wherever they are."""
        process.is_dead = True
        for actor in [each for each in self._all if each.process is process]:
            while not actor.has_ended:
                self.run(actor)

    def give_up_turn(self, may_go_on: Callable[[], object], timeout: float | None) -> None:
        """Called by the actor that runs: others go on until it may.

        Raises: `Dead`.
        """
        actor = self.current
        if actor is None or threading.current_thread() is not actor.thread:
            raise RuntimeError("only an actor has a turn to give back")
        if actor.process.is_dead:
            raise Dead
        actor.may_go_on = may_go_on
        actor.deadline = None if timeout is None else self.clock.monotonic() + timeout
        self.turn_is_back.release()
        actor.turn.acquire()
        actor.may_go_on, actor.deadline = (lambda: True), None
        if actor.process.is_dead:
            raise Dead


class SimCondition:
    """Nobody else runs between two points, so there is nothing to lock."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors

    def __enter__(self) -> SimCondition:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        if not (found := predicate()):
            self._actors.give_up_turn(predicate, timeout)
            found = predicate()
        return found

    def notify_all(self) -> None:
        return


class SimEvent:
    """As of `threading`."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._actors.give_up_turn(lambda: self._is_set, timeout)
        return self._is_set


def _closed() -> threading.Lock:
    """A lock that one thread opens and another one waits for."""
    lock = threading.Lock()
    lock.acquire()
    return lock
