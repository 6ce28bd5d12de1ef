"""The simulator holds every promise over many lives, repeats itself, and finds the bugs people make."""

import pytest
from click.testing import CliRunner
from lives import finds, keeps_its_promises, meets, repeats_itself

from tidegate.cli.simulate import simulate as command
from tidegate.sim.bugs import BUGS
from tidegate.sim.world import simulate

CHUNK = 50
FIRSTS = [*range(0, 100, CHUNK), *(pytest.param(each, marks=pytest.mark.long) for each in range(100, 2000, CHUNK))]
FOUND_BY = {
    "acknowledge-before-sync": 8,
    "durable-to-runs-ahead": 4,
    "end-of-a-segment-is-not-settled": 1,
    "failed-sync-is-believed": 56,
    "failed-write-is-not-cut-off": 18,
    "group-takes-last-confirmed-of-its-end": 3,
    "held-back-part-is-forgotten": 2,
    "last-confirmed-ignores-concurrent-writes": 35,
    "old-term-may-append": 1,
    "reader-reads-what-is-not-published": 7,
    "recovery-trusts-the-page-cache": 9,
    "segment-is-left-before-it-is-durable": 28,
}
"""Seeds that find a bug sooner than the first ones do."""


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRSTS)
def test_every_promise_holds_under_faults(first):
    """Promises 1 and 6: order and survival, over crashes, torn disks, jumping clocks and late wakers."""
    keeps_its_promises(simulate, "log", range(first, first + CHUNK))


@pytest.mark.parametrize("seed", [3, 77, 2024])
def test_the_same_seed_gives_the_same_trace_twice(seed):
    repeats_itself(simulate, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_found(name):
    """A simulator that cannot fail proves nothing."""
    finds(simulate, BUGS[name](), range(100), FOUND_BY.get(name, 0))


def test_a_planted_bug_is_gone_afterwards():
    with BUGS["acknowledge-before-sync"]():
        pass
    assert simulate(1).violation is None


@pytest.mark.slow
def test_the_runs_meet_what_they_are_meant_to_meet():
    """Each mark is something that must have happened for the runs to mean anything."""
    meets(simulate, MUST_HAPPEN, range(120), [28, 1, 29])


MUST_HAPPEN = [
    "ack # # #",
    "refused # DiskFull",
    "refused # StorageFailed",
    "unknown # OutcomeUnknown",
    "unknown # Fenced",
    "unknown # NotLeader",
    "append batch of #",
    "append exclusive",
    "append reserved, later",
    "release",
    "transaction ends",
    "reads # from memory",
    "meanwhile c# write",
    "meanwhile c# finish",
    "seal failed",
    "seal",
    "sync failed: StorageFailed",
    "write failed: DiskFull",
    "cut #, discarded #",
    "dies while opening",
    "is killed inside a step",
    "hangs",
    "wakes up",
    "power is lost",
    "c# has lost # messages",
    "c# interval sync",
    "c# interval sync StorageFailed",
    "the wall clock jumps by -#",
    "the disk is full",
    "oracle StoreUnavailable",
]


def test_the_command_says_that_all_held():
    result = CliRunner().invoke(command, ["--seeds", "4", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "every promise held" in result.output


def test_a_failing_run_prints_the_command_that_replays_it():
    arguments = ["--seeds", "3", "--jobs", "1", "--bug", "reorder-buffer-keeps-physical-order"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1
    assert "replay: tidegate simulate --seed 0 --bug reorder-buffer-keeps-physical-order --trace" in result.output
    again = CliRunner().invoke(command, ["--seed", "0", "--bug", "reorder-buffer-keeps-physical-order"])
    assert again.exit_code == 1
    assert "BROKEN" in again.output
    assert "the same twice" in again.output


def test_a_seed_alone_names_its_world_and_a_bug_belongs_to_one():
    """Seeds play log, transactions, log, subscriptions, pipeline, reads and captures in turn, so that the command needs
    no world."""
    worlds = ("log", "transactions", "log", "subscriptions", "pipeline", "reads", "captures", "log")
    for seed, world in ((str(seed), world) for seed, world in enumerate(worlds) if seed):
        command_line = ["--seed", seed, "--steps", "60"]
        assert CliRunner().invoke(command, command_line).output == (
            CliRunner().invoke(command, [*command_line, "--world", world]).output
        )
    wrong = ["--seed", "1", "--world", "log", "--bug", "no-hold-during-commit"]
    assert CliRunner().invoke(command, wrong).exit_code == 2


def test_a_bug_of_the_pipeline_is_planted_in_its_world_and_found():
    arguments = ["--seeds", "20", "--jobs", "1", "--bug", "files-visible-before-the-manifest"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1
    assert "--bug files-visible-before-the-manifest --trace" in result.output


def test_seed_and_seeds_together_are_wrong_usage():
    result = CliRunner().invoke(command, ["--seed", "1", "--seeds", "2"])
    assert result.exit_code == 2
