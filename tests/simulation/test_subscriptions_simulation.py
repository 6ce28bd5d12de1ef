"""Consume, process and produce is exactly once under the simulator, which repeats itself and can fail."""

import pytest
from lives import finds, keeps_its_promises, meets, repeats_itself

from tidegate.sim.sub_bugs import SUB_BUGS
from tidegate.sim.sub_world import simulate

SEEDS = 12
CHUNK = 3
BUG_SEEDS = 25
"""Each planted bug is found in so many runs."""
BUG_FIRST = 6
"""Most are found soon after this one. Any other will do."""
FOUND_BY = {
    "pending-acknowledgements-are-not-restored": 8,
    "snapshot-while-an-acknowledgement-is-on-its-way": 10,
    "two-transactions-hold-one-message": 16,
}
"""Seeds that find a bug sooner than the first ones do."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_input_is_consumed_once_under_faults(first):
    """Seed 002 and promise 6: no acknowledgement lost, none twice, nothing delivered after it was consumed, and in the
    end everything consumed, over crashes, takeovers, failing disks, and lost, late and repeated requests."""
    keeps_its_promises(simulate, "subscriptions", range(first, first + CHUNK))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace_twice():
    repeats_itself(simulate, 5, steps=800)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SUB_BUGS))
def test_a_planted_bug_is_found(name):
    """A simulator that cannot fail proves nothing."""
    finds(simulate, SUB_BUGS[name](), range(BUG_FIRST, BUG_FIRST + BUG_SEEDS), FOUND_BY.get(name, BUG_FIRST))


@pytest.mark.slow
def test_the_runs_meet_what_they_are_meant_to_meet():
    """Each mark is something that must have happened for the runs to mean anything."""
    meets(simulate, MUST_HAPPEN, range(502, 530), [508, 503, 505])


MUST_HAPPEN = [
    "the subscription is shared",
    "the subscription is exclusive, acknowledged cumulatively",
    "the subscription is failover",
    "a consuming transaction is committed",
    "a consuming transaction is left open",
    "a consumer dies",
    "a consumer connects anew",
    "gives up silent consumers",
    "a message is delivered again",
    "finds # pending acknowledgements",
    "ack_txn absent: Conflict",
    "ack_txn absent: TransactionExpired",
    "a consumer tries once more with what it has",
    "ack ends",
    "takes nack",
    "takes redeliver",
    "takes receive again",
    "subscription: snapshot",
    "subscription: something is on its way",
    "network loses a answer",
    "network repeats a request",
    "power is lost",
    "is killed inside a step",
    "hangs",
    "is gone: it was fenced",
]
