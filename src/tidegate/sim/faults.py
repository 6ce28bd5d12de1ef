"""What can go wrong in a simulated run, and how likely. One seed draws the whole plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tidegate.runtime.settings import Durability


class Crash(BaseException):
    """The process whose step this is dies here. `power` takes the whole machine with it.

    Not an `Exception`: no code under test may catch it.
    """

    def __init__(self, *, power: bool) -> None:
        super().__init__("power lost" if power else "process killed")
        self.power = power


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Chances per step or per operation; 0 turns a fault off."""

    kill: float
    power_loss: float
    crash_inside: float
    """Dying in the middle of a step, at a disk operation."""
    pause: float
    """Losing a process for a while: another takes over, and then it wakes up."""
    interleave: float
    """At a disk operation of one process, letting another one run."""
    write_error: float
    sync_error: float
    disk_full: float
    store_error: float
    clock_jump: float
    clock_stands: float
    torn: float
    """Part of the unsynced sectors that a loss of power keeps."""
    durability: Durability
    """What the log promises to survive a loss of power."""

    @classmethod
    def draw(cls, rng: Random) -> FaultPlan:
        def maybe(chance: float, low: float, high: float) -> float:
            return rng.uniform(low, high) if rng.random() < chance else 0.0

        return cls(
            kill=maybe(0.5, 0.001, 0.01),
            power_loss=maybe(0.6, 0.002, 0.015),
            crash_inside=maybe(0.6, 0.001, 0.01),
            pause=maybe(0.6, 0.004, 0.02),
            interleave=maybe(0.8, 0.05, 0.4),
            write_error=maybe(0.35, 0.005, 0.08),
            sync_error=maybe(0.35, 0.005, 0.08),
            disk_full=maybe(0.3, 0.002, 0.01),
            store_error=maybe(0.4, 0.01, 0.2),
            clock_jump=maybe(0.5, 0.005, 0.03),
            clock_stands=maybe(0.3, 0.005, 0.02),
            torn=rng.choice((0.0, 0.3, 0.5, 0.9, 1.0)),
            durability=rng.choices(tuple(Durability), (60, 30, 10))[0],
        )

    def milder(self, factor: float) -> FaultPlan:
        """The same faults, as many times rarer."""
        return replace(
            self,
            kill=self.kill * factor,
            power_loss=self.power_loss * factor,
            crash_inside=self.crash_inside * factor,
            pause=self.pause * factor,
            clock_jump=self.clock_jump * factor * 0.2,
        )
