"""Barriers, workers and checkpoint commits under the simulator, which repeats itself and can fail. Seed 001."""

import pytest
from lives import finds, keeps_its_promises, meets, repeats_itself

from tidegate.sim.pipe_bugs import PIPE_BUGS
from tidegate.sim.pipe_world import simulate

SEEDS = 200
CHUNK = 25
BUG_SEEDS = 60
"""Each planted bug is found in so many runs."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_checkpoint_equals_the_model_of_the_log_under_faults(first):
    """Promises 4 to 7, and section 11: at every checkpoint each write at or below its Timestamp is there exactly once,
    and none above; checkpoints never go back; what the pointer or a pin names exists; once the faults have stopped, all
    that was acknowledged becomes visible and orphans are removed. Over crashes between any two effects of owners and
    workers, takeovers, late, repeated and lost messages, unknown outcomes, failing disks and losses of power."""
    keeps_its_promises(simulate, "pipeline", range(first, first + CHUNK))


def test_the_same_seed_gives_the_same_trace_twice():
    repeats_itself(simulate, 5, steps=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PIPE_BUGS))
def test_a_planted_bug_is_found(name):
    """A simulator that cannot fail proves nothing."""
    finds(simulate, PIPE_BUGS[name](), range(BUG_SEEDS))


@pytest.mark.slow
def test_the_runs_meet_what_they_are_meant_to_meet():
    """Each mark is something that must have happened for the runs to mean anything."""
    meets(simulate, MUST_HAPPEN, range(500, 560))


MUST_HAPPEN = [
    "commits checkpoint #",
    "commits a compaction alone",
    "removes a file",
    "cannot commit: unknown",
    "cannot commit: absent",
    "cannot commit: refused",
    "reads the pointer again",
    "performs StepDown",
    "ends: Fenced",
    "does not know whether it has claimed",
    "registers to do a batch again",
    "an offset log is thrown away",
    "plans epochs # to #",
    "runs epoch # again",
    "hears that shares have changed",
    "gives up w#, which is alive",
    "removes w#",
    "has lost its owner",
    "a report arrives once more, late",
    "report: repeated",
    "report: already committed",
    "report: of an old term",
    "report: of shares that were given out anew",
    "a flush is told that the pipeline is paused",
    "the pipeline goes on",
    "takes a barrier that was asked for",
    "network loses a request",
    "network repeats a request",
    "power is lost",
    "is killed inside a step",
    "hangs",
    "reader # reads a file",
]
