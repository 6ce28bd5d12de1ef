"""`Stage`: what every simulated run has: one seed, a clock, a disk, a metadata store, processes, and faults.

What the processes do, and what is checked, is up to the worlds that are played on it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import re
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar

from tidegate.errors import OutcomeUnknown, StoreUnavailable
from tidegate.sim.auditor import Violation
from tidegate.sim.disk import SimDisk
from tidegate.sim.faults import Crash, FaultPlan
from tidegate.sim.machine import SimClock
from tidegate.stores.memory_metadata import MemoryState

_TROUBLE = 25
"""Disk operations after an error during which a crash is more likely."""
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    seed: int
    digest: str
    """Of everything that happened: the same seed gives the same digest."""
    steps: int
    acknowledged: int
    deliveries: int
    crashes: int
    violation: str | None
    trace: tuple[str, ...]
    marks: Counter[str]


class Process(Protocol):
    """What the scheduler knows of a process."""

    name: str
    paused_until: int
    zombie: bool

    def step(self) -> str:
        """Do one small thing."""


class Follower(Protocol):
    """Somebody who reads, in a process of his own."""

    def poll(self) -> str: ...


P = TypeVar("P", bound=Process)
R = TypeVar("R", bound=Follower)


class Stage(Generic[P, R]):
    """One run, without its plot."""

    def __init__(self, seed: int, *, steps: int, keep_trace: bool) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.plan = FaultPlan.draw(self.rng)
        self._steps = steps
        self.clock = SimClock(1_750_000_000_000)
        self.disk = SimDisk(Random(self.rng.getrandbits(64)))
        self.state = MemoryState()
        self.nodes: list[P] = []
        self.readers: Sequence[R] = ()
        self.faulty = True
        self.crashes = 0
        self._born = 0
        self._nested = False
        self._trouble = 0
        self._running: P | None = None
        self._digest = hashlib.blake2b(digest_size=16)
        self._trace: list[str] = []
        self._keep_trace = keep_trace
        self.marks: Counter[str] = Counter()
        """What happened how often, so that a test can tell that it happened at all."""

    # The plot

    def _step(self) -> None:
        raise NotImplementedError

    def _recover(self) -> None:
        """Stop all faults, and let everything that was promised come about."""
        raise NotImplementedError

    def _check_end(self) -> None:
        raise NotImplementedError

    def _start_node(self) -> None:
        raise NotImplementedError

    def _lose_power(self) -> None:
        raise NotImplementedError

    def counts(self) -> tuple[int, int]:
        """What was acknowledged, and what was delivered."""
        raise NotImplementedError

    # The run

    def note(self, text: str) -> None:
        self._digest.update(text.encode())
        self.marks[_mark(text)] += 1
        self._trace.append(text)
        if len(self._trace) > 400 and not self._keep_trace:
            del self._trace[:200]

    def is_written(self) -> bool:
        return bool(self.nodes)

    def run(self) -> Outcome:
        """Run to the end, or to the first broken promise."""
        violation = None
        logging.getLogger("tidegate").setLevel(logging.CRITICAL)
        try:
            for _ in range(self._steps):
                self._step()
            self._recover()
            self._check_end()
        except Violation as found:
            violation = str(found)
        except Exception as error:
            violation = f"defect: {type(error).__name__}: {error}"
            self.note(traceback.format_exc())
        return Outcome(
            self.seed, self._digest.hexdigest(), self._steps, *self.counts(),
            self.crashes, violation, tuple(self._trace), self.marks,
        )  # fmt: skip

    def _weather(self) -> None:
        rng, plan = self.rng, self.plan
        if rng.random() < plan.clock_jump:
            jump = rng.choice((-3_600_000, -5_000, -200, 500, 60_000, 86_400_000))
            self.clock.jump(jump)
            self.note(f"the wall clock jumps by {jump}")
        if rng.random() < plan.clock_stands:
            self.clock.stands = not self.clock.stands
        if rng.random() < plan.disk_full:
            self.disk.full = not self.disk.full
            self.note("the disk is full" if self.disk.full else "the disk has room")

    def _run(self, node: P) -> None:
        before, self._running = self._running, node
        try:
            self.note(f"{node.name} {node.step()}")
        except Crash as crash:
            self._crashed(node, crash)
        finally:
            self._running = before

    def _crashed(self, node: P, crash: Crash) -> None:
        if crash.power:
            self._lose_power()
        else:
            self._kill(node, "killed inside a step")

    def _forget(self, node: P) -> None:
        if node in self.nodes:
            self.nodes.remove(node)

    def _kill(self, node: P, how: str) -> None:
        self.crashes += 1
        self.note(f"{node.name} is {how}")
        self._forget(node)
        self._die(node)

    def _die(self, node: P) -> None:
        """The kernel takes a dead process's locks away, and the store notices."""
        self.state.owner_died(node.name)

    # Faults inside a step

    def _disk_hook(self, node: P, operation: str, path: str, done: bool) -> None:
        rng, plan = self.rng, self.plan
        if not self.faulty:
            return
        self._interleave(node)
        if node not in self.nodes and self._running is not node:
            return
        chance = plan.crash_inside
        if chance and self._trouble:
            # Where one thing has gone wrong, the next soon does.
            self._trouble -= 1
            chance = max(chance, 0.04)
        if rng.random() < chance:
            raise Crash(power=bool(plan.power_loss) and rng.random() < 0.5)
        if done:
            return
        if operation in ("write", "create", "rename", "truncate") and rng.random() < plan.write_error:
            self._trouble = _TROUBLE
            raise OSError(rng.choice((errno.EIO, errno.ENOSPC)), "simulated", path)
        if operation in ("sync", "sync_dir") and rng.random() < plan.sync_error:
            self._trouble = _TROUBLE
            raise OSError(errno.EIO, "simulated", path)

    def _interleave(self, node: P) -> None:
        """Let another process run in the middle of this one's step."""
        if self._nested or self.rng.random() >= self.plan.interleave:
            return
        self._nested = True
        try:
            others = [other for other in self.nodes if other is not node and not other.paused_until]
            if others:
                self._run_nested(self.rng.choice(others))
            elif node.zombie and self.rng.random() < 0.3:
                self._start_node()
            else:
                self.rng.choice(self.readers).poll()
        finally:
            self._nested = False

    def _run_nested(self, node: P) -> None:
        before, self._running = self._running, node
        try:
            self.note(f"{node.name} meanwhile {node.step()}")
        except Crash as crash:
            if crash.power:
                raise
            self._kill(node, "killed meanwhile")
        finally:
            self._running = before

    def _store_fault(self, operation: str, key: str, done: bool) -> None:
        if not self.faulty or self.rng.random() >= self.plan.store_error:
            return
        writes = operation in ("compare_and_set", "acquire", "renew")
        if done and writes:
            raise OutcomeUnknown(f"simulated: {operation} of {key}")
        if not done:
            raise StoreUnavailable(f"simulated: {operation} of {key}")


def _mark(text: str) -> str:
    """What a note says, without names and numbers."""
    return _NUMBERS.sub("#", text.partition(": simulated")[0])


def never(operation: str, path: str, *, done: bool) -> None:
    """No faults."""
