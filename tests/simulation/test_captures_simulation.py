"""Captures of one source under one name in several processes under the simulator, which can fail. Seed 003."""

from __future__ import annotations

from collections import Counter

import pytest
from lives import keeps_its_promises, meets, repeats_itself, sooner

from tidegate.sim.capture_bugs import CAPTURE_BUGS
from tidegate.sim.capture_world import simulate

SEEDS = 80
CHUNK = 20
BUG_SEEDS = 300
"""Each planted bug is found in so many runs."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_captured_tables_are_the_source_as_of_a_transaction_under_faults(first):
    """Promises 2 and 7: at every commit the tables are the source as of the position that stands in the same commit,
    and every transaction of the source is listed once; the source is told only what the log has; nobody hears that it
    has caught up before it has; once the faults have stopped, everything is there. Over processes that die, hang and
    wake up, rivals of one name, owners that change, answers that are lost, runs that are written in part, sources that
    go away, changes of tables, and captures that begin anew."""
    keeps_its_promises(simulate, "captures", range(first, first + CHUNK))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [6, 16, 48, 242, 277])
def test_what_was_found_stays_mended(seed):
    """As the runs were drawn then: 6 and 48 went on behind a restart that was interrupted, in 16 one that was overtaken
    blamed the user for the rows of the other, in 242 and 277 it dropped columns under it."""
    keeps_its_promises(simulate, "captures", [seed])


def test_the_same_seed_gives_the_same_trace_twice():
    repeats_itself(simulate, 5, steps=300)


BREAKS = {
    "source-is-told-before-the-log-has-it": ("survival", 0),
    "position-in-a-transaction-of-its-own": ("once", 0),
    "failure-of-a-run-is-passed-over": ("once", 0),
    "commits-are-not-waited-for": ("catching up", 10),
    "captures-do-not-look-for-each-other": ("once", 0),
    "owner-is-asked-once-who-captures": ("once", 2),
    "one-that-was-overtaken-changes-tables": ("whole", 242),
    "error-that-another-capture-has-caused-is-the-users": ("defect", 105),
    "unknown-outcome-is-taken-for-a-success": ("once", 10),
    "interrupted-restart-is-forgotten": ("defect", 6),
    "restart-keeps-rows": ("whole", 2),
    "value-left-alone-is-null": ("whole", 0),
    "what-was-looked-up-is-not-kept-up": ("whole", 0),
    "what-is-under-way-is-not-waited-for-before-looking-up": ("whole", 45),
    "truncate-spares-the-transactions-own-rows": ("whole", 0),
    "rename-is-a-drop-and-an-add": ("whole", 45),
    "new-column-is-null-in-old-rows": ("whole", 28),
    "deletes-are-passed-over": ("whole", 0),
    "table-made-anew-has-the-rows-of-the-old-one": ("whole", 45),
}
"""What each planted bug must be found by, and a seed that has found it: it is tried first, and any other will do."""


def test_every_planted_bug_has_a_promise_that_it_breaks():
    assert set(BREAKS) == set(CAPTURE_BUGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_planted_bug_is_found(name):
    """A simulator that cannot fail proves nothing."""
    promise, known = BREAKS[name]
    found = Counter()
    with CAPTURE_BUGS[name]():
        for seed in sooner([known], range(BUG_SEEDS)):
            violation = simulate(seed).violation
            found[None if violation is None else violation.partition(":")[0]] += 1
            if promise in found:
                return
    pytest.fail(f"{name} breaks no promise {promise!r} in {BUG_SEEDS} runs, but {dict(found)}")


@pytest.mark.slow
def test_the_runs_meet_what_they_are_meant_to_meet():
    """Each mark is something that must have happened for the runs to mean anything."""
    meets(simulate, MUST_HAPPEN, range(500, 600), rich=(548, 570, 565, 556, 590))


MUST_HAPPEN = [
    "has caught up",
    "commits a run of #",
    "reads everything anew",
    "is killed",
    "hangs",
    "wakes up",
    "stops",
    "waits in vain",
    "gives up waiting",
    "is told InUse",
    "is told Unavailable",
    "is told OutcomeUnknown",
    "the database has another owner",
    "loses the source as it opens",
    "loses the source before its snapshot",
    "loses the source in its snapshot",
    "loses the source as it goes on",
    "loses the source between transactions",
    "loses the source in the midst of a transaction",
    "loses the source as it is told a position",
    "does not reach the owner: begin",
    "does not reach the owner: commit",
    "does not reach the owner: note what is read",
    "does not reach the owner: query",
    "does not reach the owner: read",
    "does not reach the owner: run",
    "does not reach the owner: snapshot",
    "does not reach the owner: sql",
    "does not reach the owner: write ahead",
    "is not told: commit",
    "is not told: run",
    "is not told: sql",
    "is not told that # of a run are committed",
]
