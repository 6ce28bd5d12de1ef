"""Barriers, workers and checkpoint commits under the simulator, which repeats itself and can fail. Seed 001."""

from collections import Counter

import pytest

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
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        assert outcome.violation is None, (
            f"{outcome.violation}\nreplay: tidegate simulate --world pipeline --seed {seed} --trace\n"
            + "\n".join(outcome.trace[-40:])
        )


def test_the_same_seed_gives_the_same_trace_twice():
    first, second = simulate(5, steps=300), simulate(5, steps=300)
    assert first.digest == second.digest
    assert first.trace == second.trace
    assert first.digest != simulate(6, steps=300).digest


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PIPE_BUGS))
def test_a_planted_bug_is_found(name):
    """A simulator that cannot fail proves nothing."""
    with PIPE_BUGS[name]():
        for seed in range(BUG_SEEDS):
            if simulate(seed).violation is not None:
                return
    pytest.fail(f"{name} went unnoticed in {BUG_SEEDS} runs")


@pytest.mark.slow
def test_the_runs_meet_what_they_are_meant_to_meet():
    """Each mark is something that must have happened for the runs to mean anything."""
    marks = Counter()
    missing = list(MUST_HAPPEN)
    for seed in range(500, 560):
        marks.update(simulate(seed).marks)
        missing = [mark for mark in MUST_HAPPEN if not any(mark in each for each in marks)]
        if not missing:
            return
    pytest.fail(f"never happened in 60 runs: {missing}")


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
