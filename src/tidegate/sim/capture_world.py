"""`CaptureWorld`: processes capture a source under one name, die at any point, hang and wake up, and are replaced.

The captures are real, with their threads: `Capture`, `Taker`, `Relay`, `Places` and what follows shapes. The source and
the database are not: they fail, lose answers, change their owner, and keep only what they have to.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from tidegate.capture.capturing import Capture
from tidegate.errors import Closed, InUse, SourceGone, TidegateError, Unavailable, WaitTimeout
from tidegate.sim.actors import Actors, Process
from tidegate.sim.auditor import Violation
from tidegate.sim.capture_auditor import CAPTURE, CaptureAuditor
from tidegate.sim.capture_origin import Origin, SimSource
from tidegate.sim.capture_store import CaptureStore, SimDatabase
from tidegate.sim.stage import Outcome, Stage

STEPS_MAX: Final = 30_000


class Capturing:
    """One process, as the scheduler sees it."""

    def __init__(self, world: CaptureWorld, number: int) -> None:
        self.name = f"p{number}"
        self.process = Process(world.actors, self.name)
        self.has_ended = False
        self.hung = False
        self.is_calm = False
        self._world = world
        self._rng = Random(world.rng.getrandbits(64))
        self._anew = False
        self._db = SimDatabase(world.store, self.process, world.note)
        self.process.start(self._live, "user")

    @property
    def is_at_statement(self) -> bool:
        return self._db.is_at_statement

    def _live(self) -> None:
        """The user's thread."""
        world, rng = self._world, self._rng
        self._anew = world.faulty and rng.random() < 0.1 and world.auditor.position >= 0
        capture = self._begin(restart=self._anew)
        try:
            capture.wait_ready(rng.choice((5.0, 60.0, 600.0)) if world.faulty else 600.0)
            world.note(f"{self.name} follows")
            while not self.is_calm and rng.random() < 0.9:
                self._catch_up(capture)
            if self.is_calm:
                self._catch_up(capture)
            world.note(f"{self.name} stops")
            capture.stop()
        except (WaitTimeout, Closed):
            world.note(f"{self.name} gives up waiting")
            capture.stop()
        except TidegateError as error:
            self._look_at(error)
        self.has_ended = True

    def _begin(self, *, restart: bool) -> Capture:
        world = self._world
        if restart:
            world.auditor.begins_anew = True
            world.origin.makes_again = False
            world.note(f"{self.name} reads everything anew")
        db: Any = self._db
        opens = lambda *_, **__: SimSource(world.origin, self.process, world.note, world.auditor.confirmed)  # noqa: E731
        return Capture(db, "simulated://", name=CAPTURE, restart=restart, threads=self.process, opens=opens)

    def _catch_up(self, capture: Capture) -> None:
        world, rng = self._world, self._rng
        until = len(world.origin.history)
        try:
            capture.catch_up(600.0 if self.is_calm else rng.choice((1.0, 20.0, 60.0)))
        except WaitTimeout:
            world.note(f"{self.name} waits in vain")
            return
        world.note(f"{self.name} has caught up")
        world.auditor.has_caught_up(until)
        if rng.random() < 0.5:
            self.process.event().wait(rng.uniform(0.1, 10.0))

    def _look_at(self, error: TidegateError) -> None:
        """What has ended a capture: some of it may."""
        world = self._world
        world.note(f"{self.name} is told {type(error).__name__}")
        if isinstance(error, SourceGone):
            if world.auditor.position >= world.origin.gone:
                return  # Another one has gone on meanwhile.
            raise Violation(f"survival: {error}")
        if isinstance(error, InUse):
            if world.faulty:
                return
            raise Violation(f"liveness: nobody else captures, and yet: {error}")
        if not world.faulty or (not isinstance(error, Unavailable) and "simulated" not in str(error)):
            raise Violation(f"defect: a capture ends with {type(error).__name__}: {error}")


class CaptureWorld(Stage[Any, Any]):
    """One run."""

    def __init__(self, seed: int, *, steps: int = 1_500, keep_trace: bool = False) -> None:
        super().__init__(seed, steps=steps, keep_trace=keep_trace)
        rng = self.rng
        self.plan = self.plan.milder(rng.choice((0.2, 0.5, 1.0)))
        self.actors = Actors(self.clock)
        self.origin = Origin(Random(rng.getrandbits(64)))
        self.auditor = CaptureAuditor(self.origin)
        self.store = CaptureStore(Random(rng.getrandbits(64)), self.auditor.committed)
        self.store.faults = rng.choice((0.0, 0.002, 0.01, 0.04))
        self.origin.faults = rng.choice((0.0, 0.002, 0.01))
        self._writes = rng.choice((0.02, 0.1, 0.3))
        self._slow = rng.choice((0.0, 0.5, 0.9))
        """How often the thread that commits has to wait."""
        self._owner_dies = rng.choice((0.0, 0.002, 0.01))
        self._forgets = rng.choice((0.01, 0.1))
        self._rival = rng.choice((0.0, 0.003, 0.02))
        self._rest = 0

    def counts(self) -> tuple[int, int]:
        return self.auditor.commits, self.auditor.caught_up

    # The scheduler

    def _step(self) -> None:
        rng = self.rng
        if self.faulty:
            self._meanwhile()
        self._staff()
        ready = self.actors.ready()
        if self._slow and len(ready) > 1 and rng.random() < self._slow:
            ready = [each for each in ready if "commit" not in each.name] or ready
        if not ready:
            deadline = self.actors.next_deadline()
            self.clock.advance(0.01 if deadline is None else max(deadline - self.clock.monotonic(), 0.0) + 0.001)
            return
        self.clock.advance(rng.uniform(0.0001, 0.01))
        actor = rng.choice(ready)
        self.note(f"{actor.process.name} {actor.name} goes on")
        self.actors.run(actor)
        if self.auditor.violation is not None:
            raise self.auditor.violation

    def _meanwhile(self) -> None:
        rng, plan = self.rng, self.plan
        if rng.random() < self._writes:
            self.note(self.origin.step())
        if rng.random() < self._forgets:
            self.origin.forget()
        if rng.random() < self._owner_dies:
            self.store.life += 1
            self.note("the database has another owner")
        living = [each for each in self.nodes if not each.process.stands_for]
        if not living:
            return
        node = rng.choice(living)
        if rng.random() < plan.kill:
            self._kill(node, "killed")
        elif rng.random() < plan.pause * (10 if node.is_at_statement else 1) and not node.hung:
            node.hung = True
            node.process.stands_for = rng.randrange(5, 200)
            self.note(f"{node.name} hangs")
        elif rng.random() < self._rival and len(self.nodes) < 3:
            self._start_node()

    def _staff(self) -> None:
        for node in list(self.nodes):
            if node.process.stands_for:
                node.process.stands_for -= 1
                if not node.process.stands_for:
                    self.note(f"{node.name} wakes up")
            if node.has_ended:
                self._forget(node)
                self._die(node)
                self.note(f"{node.name} is gone")
        self._rest = max(self._rest - 1, 0)
        if not self._rest and not any(not node.hung for node in self.nodes):
            self._rest = self.rng.randrange(1, 20)
            self._start_node()

    def _start_node(self) -> None:
        self._born += 1
        self.nodes.append(Capturing(self, self._born))
        self.note(f"p{self._born} is started")

    def _die(self, node: Capturing) -> None:
        self.actors.kill(node.process)

    # When the faults have stopped

    def _recover(self) -> None:
        self.faulty = False
        self.store.faults = self.origin.faults = 0.0
        for node in list(self.nodes):
            self._kill(node, "taken away")
        self._start_node()
        last: Capturing = self.nodes[-1]
        last.is_calm = True
        for _ in range(STEPS_MAX):
            if last.has_ended:
                break
            self._step()
        else:
            raise Violation("liveness: after all faults had stopped, a capture does not come to an end")

    def _check_end(self) -> None:
        for node in list(self.nodes):
            self._forget(node)
            self._die(node)
        self.auditor.check_end()

    def run(self) -> Outcome:
        try:
            return super().run()
        finally:
            for node in self.nodes:
                self.actors.kill(node.process)


def simulate(seed: int, *, steps: int = 1_500) -> Outcome:
    """One run of the simulator."""
    return CaptureWorld(seed, steps=steps).run()
