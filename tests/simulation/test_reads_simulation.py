"""Reads of sessions in several processes under the simulator, which repeats itself and can fail. Seed 004."""

from collections import Counter

import pytest
from lives import keeps_its_promises, meets, repeats_itself

from tidegate.clock.timestamp import Timestamp
from tidegate.reads.consistency import Asked
from tidegate.sim.auditor import Violation
from tidegate.sim.read_auditor import Answered, ReadAuditor
from tidegate.sim.read_bugs import READ_BUGS
from tidegate.sim.read_log import Contents, Decided
from tidegate.sim.read_world import simulate

SEEDS = 120
CHUNK = 20
BUG_SEEDS = 60
"""Each planted bug is found in so many runs."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_answer_is_one_cut_as_fresh_as_asked_for_under_faults(first):
    """Promises 4 and 5, seed 004: answers equal the model at exactly their Timestamp; sessions never go back, also in
    another process; strong, session and bounded reads hold what they say, whatever the clocks of readers show; nobody
    waits for what is served; once the faults have stopped, every read is answered. Over deaths and takeovers of owners,
    lost, late and repeated requests, jumping clocks, and a pipeline that stands."""
    keeps_its_promises(simulate, "reads", range(first, first + CHUNK))


def test_the_same_seed_gives_the_same_trace_twice():
    repeats_itself(simulate, 5, steps=300)


BREAKS = {
    "session-goes-back": "session order",
    "session-takes-the-last-cut-for-the-newest": "session order",
    "guarantee-from-the-clients-clock": "real time",
    "now-from-a-range-fetched-before": "real time",
    "deposed-owner-goes-on-reading": "bound",
    "bounded-from-the-checkpoint": "bound",
    "change-of-a-table-is-not-waited-for": "tables",
    "tables-are-read-at-different-cuts": "one cut",
    "snapshot-moves-on": "snapshot",
    "wait-misses-a-wake-up": "waiting",
    "checkpoint-wakes-nobody": "waiting",
    "read-does-not-wait": "one cut",
    "service-time-of-the-fastest-channel": "one cut",
    "first-tick-before-decided-commits": "one cut",
    "token-forgets-the-writes": "own writes",
    "answer-to-an-earlier-question-is-taken": "one cut",
}
"""What each planted bug must be found by."""


def test_every_planted_bug_has_a_promise_that_it_breaks():
    assert set(BREAKS) == set(READ_BUGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_planted_bug_is_found(name):
    """A simulator that cannot fail proves nothing."""
    found = Counter()
    with READ_BUGS[name]():
        for seed in range(BUG_SEEDS):
            violation = simulate(seed).violation
            found[None if violation is None else violation.partition(":")[0]] += 1
            if BREAKS[name] in found:
                return
    pytest.fail(f"{name} breaks no promise {BREAKS[name]!r} in {BUG_SEEDS} runs, but {dict(found)}")


@pytest.mark.slow
def test_the_runs_meet_what_they_are_meant_to_meet():
    """Each mark is something that must have happened for the runs to mean anything."""
    meets(simulate, MUST_HAPPEN, range(500, 560))


MUST_HAPPEN = [
    *(f"is answered: {level}" for level in ("strong", "session", "bounded", "eventual", "timestamp")),
    *(f"a read waits: {level}" for level in ("strong", "session", "bounded", "eventual", "timestamp")),
    "a read waits for a checkpoint: strong",
    "a read gives up: timeout",
    "a read gives up: stalled",
    "a read gives up: lag",
    "hears nothing: strong",
    "is refused: session, NotLeader",
    "goes on with a token",
    "reads its snapshot again",
    "has changed a table",
    "completes a commit",
    "commits a checkpoint",
    "the pipeline stands",
    "the wall clock jumps by -#",
    "is told NotLeader",
    "is told Fenced",
    "ends: NotLeader",
    "network loses a answer",
    "network repeats a request",
    "is killed",
    "hangs",
    "wakes up",
]


# -- the auditor alone -------------------------------------------------------------------------------------------------


def at(ms):
    return Timestamp.compose(1_750_000_000_000 + ms)


def make():
    """An auditor that has seen one commit at 10 ms and one at 20 ms, and what the owner's time is then."""
    auditor = ReadAuditor()
    auditor.begins("s")
    for ms in (10, 20):
        auditor.handed_out(at(ms))
        auditor.was_decided(Decided(at(ms), {("cash", 1): ms}))
    return auditor


def answer(ms, value):
    return Answered(at(ms), {"cash": Contents(0, {1: value})})


def hear(auditor, level, found, **more):
    auditor.handed_out(max(found.at, auditor._now).next())
    auditor.hears(auditor.asks("s", Asked(level, **more), ("cash",)), found)


def test_the_auditor_takes_what_is_right():
    auditor = make()
    hear(auditor, "eventual", answer(15, 10))
    hear(auditor, "session", answer(20, 30))
    hear(auditor, "timestamp", answer(10, 10), at=at(10))
    assert auditor.deliveries == 3


@pytest.mark.parametrize(
    ("promise", "level", "found", "more"),
    [
        ("one cut", "eventual", answer(15, 30), {}),
        ("one cut", "eventual", answer(20, 10), {}),
        ("one cut", "timestamp", answer(15, 10), {"at": at(14)}),
        ("session order", "eventual", answer(17, 10), {}),
        ("own writes", "session", answer(18, 10), {}),
        ("real time", "strong", answer(18, 10), {}),
        ("tables", "bounded", answer(18, 10), {"staleness_ms": 5_000}),
        ("bound", "bounded", answer(20, 30), {"staleness_ms": 80}),
    ],
)
def test_the_auditor_refuses_what_is_wrong(promise, level, found, more):
    auditor = make()
    if promise == "session order":
        hear(auditor, "eventual", answer(18, 10))
    if promise in ("own writes", "real time"):
        auditor.was_acknowledged("s", at(20))
    if promise == "tables":
        auditor.change_was_acknowledged("s", "cash", at(19))
    if promise == "bound":
        auditor.handed_out(at(101))
    with pytest.raises(Violation, match=f"^{promise}:"):
        hear(auditor, level, found, **more)


def test_the_auditor_refuses_a_commit_below_a_cut_that_was_answered():
    auditor = make()
    hear(auditor, "eventual", answer(20, 30))
    with pytest.raises(Violation, match="one cut: a commit comes at"):
        auditor.was_decided(Decided(at(19), {("cash", 1): 1}))


def test_the_auditor_sees_who_waits_for_what_is_served():
    auditor = make()
    auditor.waits("owner", 1, at(20))
    auditor.look_at_waits("owner", at(19))
    auditor.look_at_waits("another", at(20))
    with pytest.raises(Violation, match="nobody woke it"):
        auditor.look_at_waits("owner", at(20))
    with pytest.raises(Violation, match="liveness: after all faults had stopped"):
        auditor.check_end()
    auditor.waits_no_more("owner", 1)
    auditor.check_end()
