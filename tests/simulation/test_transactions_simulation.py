"""Transactions over several channels hold every promise under the simulator, which repeats itself and can fail."""

import pytest
from lives import finds, keeps_its_promises, meets, repeats_itself

from tidegate.sim.txn_bugs import TXN_BUGS
from tidegate.sim.txn_world import simulate

SEEDS, LONG_SEEDS = 60, 400
CHUNK = 5
FIRSTS = [
    *range(0, SEEDS, CHUNK),
    *(pytest.param(each, marks=pytest.mark.long) for each in range(SEEDS, LONG_SEEDS, CHUNK)),
]
BUG_SEEDS = 100
"""Each planted bug is found in so many runs."""
FOUND_BY = {
    "abort-after-committing": 3,
    "conflict-window-without-claims": 5,
    "coordinator-forgets-committing": 8,
    "expired-transaction-is-committed": 20,
    "failed-marker-releases-its-place": 34,
    "large-commit-is-written-twice": 22,
    "redo-after-the-first-tick": 8,
    "run-is-written-backwards": 4,
    "zombie-answers-after-the-fence": 76,
}
"""Seeds that find a bug sooner than the first ones do."""


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRSTS)
def test_transactions_keep_every_promise_under_faults(first):
    """Promises 2, 3, 6 and 7: atomic over channels, an open one blocks nobody, outcomes are final, over crashes,
    takeovers, zombies, failing disks, and lost, late and repeated requests."""
    keeps_its_promises(simulate, "transactions", range(first, first + CHUNK))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 2024])
def test_the_same_seed_gives_the_same_trace_twice(seed):
    repeats_itself(simulate, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TXN_BUGS))
def test_a_planted_bug_is_found(name):
    """A simulator that cannot fail proves nothing."""
    finds(simulate, TXN_BUGS[name](), range(BUG_SEEDS), FOUND_BY.get(name, 0))


@pytest.mark.slow
def test_the_runs_meet_what_they_are_meant_to_meet():
    """Each mark is something that must have happened for the runs to mean anything."""
    meets(simulate, MUST_HAPPEN, range(500, 560), [501, 502, 514, 500, 507])


MUST_HAPPEN = [
    "completes # decided commits in c#",
    "takes up # sessions in c#",
    "a commit is asked for again",
    "a commit is asked for again at another owner",
    "commit of a transaction that is not known",
    "finds a commit in the log",
    "a failed marker keeps its place",
    "commit absent: Conflict",
    "a run of commits committed",
    "a run of commits absent: Conflict",
    "a run of commits unknown: OutcomeUnknown",
    "a run of commits unknown: DiskFull",
    "commit absent: TransactionExpired",
    "commit absent: TransactionAborted",
    "commit retry: DiskFull",
    "commit retry: StorageFailed",
    "commit unknown: OutcomeUnknown",
    "write unknown: Fenced",
    "transactions expire",
    "a transaction is left open",
    "an open transaction blocked nobody",
    "snapshot",
    "seal",
    "network loses a request",
    "network loses a answer",
    "network repeats a request",
    "power is lost",
    "is killed inside a step",
    "hangs",
    "wakes up",
    "is gone: it was fenced",
    "is gone: it leads no more",
    "reads # from memory",
]
