"""Laws of runs of commits, on a disk that fails anywhere: the log has the first few of a run, or all, or none.

Promises 2 and 6. Whoever brings a stream notes how far it has come in each of its transactions, so a hole would lose
what fell into it for ever, and one that comes twice would be there twice.
"""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import FailingFiles, eventually

from tidegate.clock.timestamp import Timestamp
from tidegate.database.engine import Engine
from tidegate.database.settings import DatabaseSettings
from tidegate.database.transaction_runs import Member
from tidegate.errors import Conflict, OutcomeUnknown, TidegateError
from tidegate.runtime import log as log_module
from tidegate.runtime.pieces import Piece
from tidegate.runtime.settings import LogSettings
from tidegate.runtime.steps import run
from tidegate.stores.local_files import LocalFiles
from tidegate.txn.coordinator_records import TxnState

WATCHED = 77
FAULTS = st.tuples(
    st.sampled_from(["write", "sync", "create", "remove"]),
    st.sampled_from([errno.EIO, errno.ENOSPC]),
    st.integers(0, 3),
    st.sampled_from([1, 1, 2, 100]),
)
"""Which call fails, how, from which time on, and how often."""
SIZES = st.lists(st.sampled_from([1, 1, 1, 3_000, 5_000]), min_size=1, max_size=6)
"""Two of the large ones are more than a write may hold."""
STEPS = st.lists(st.tuples(SIZES, st.none() | FAULTS, st.booleans()), min_size=1, max_size=8)
"""The sizes of a run, what fails meanwhile, and whether somebody writes before it what its guard has read."""


def fail(disk: FailingFiles, fault: tuple[str, int, int, int]) -> None:
    call, number, first, times = fault
    seen = 0

    def rule(each: str, path: str) -> int | None:
        nonlocal seen
        if each != call or "data-0" not in path:
            return None
        seen += 1
        return number if first < seen <= first + times else None

    disk.rule = rule


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_a_run_is_there_up_to_a_point_and_its_states_say_which(steps: list) -> None:
    made: dict[str, FailingFiles] = {}
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            log_module, "LocalFiles", lambda where: made.setdefault(where.name, FailingFiles(LocalFiles(where)))
        )
        log = LogSettings(commit_bytes_max=6_000, segment_bytes=64 << 10)
        engine = Engine(Path(directory) / "db", DatabaseSettings(channels=2, coordinators=2, log=log))
        try:
            check(engine, made["log"], steps)
        finally:
            made["log"].rule = lambda call, path: None
            engine.close()


def check(engine: Engine, disk: FailingFiles, steps: list) -> None:
    transactions = engine.transactions
    runs: list[list[Member]] = []
    told: dict[bytes, Timestamp] = {}
    guard = None
    for number, (sizes, fault, is_written) in enumerate(steps):
        if guard is None:
            guard = engine.begin()
            transactions.note_read(guard, [WATCHED])
        if is_written:
            engine.commit(engine.begin(), {"data-1": [Piece("v/1", b"other")]}, [WATCHED])
        bodies = [b"%d/%d/" % (number, each) + b"x" * size for each, size in enumerate(sizes)]
        members = [Member(engine.begin(), {"data-0": [Piece("v/0", body)]}, [1]) for body in bodies]
        runs.append(members)
        if fault is not None:
            fail(disk, fault)
        try:
            times = run(transactions.commit_run(guard, members))
            assert not is_written
            told.update(zip(bodies, times, strict=True))
        except Conflict:
            assert is_written
            guard = None
        except TidegateError as error:
            assert fault is not None
            if isinstance(error, OutcomeUnknown):
                guard = None  # As a capture does, which looks at the log first.
        disk.rule = lambda call, path: None
        eventually(lambda: transactions.settle_doubts() == 0, what="the doubts settled")
    seen = visible(engine)
    states = {txn.id: txn for txn, _ in transactions.look()}
    for members in runs:
        there = [each.writes["data-0"][0].body in seen for each in members]
        assert there == sorted(there, reverse=True), "none is there without those before it"
        for each, is_there in zip(members, there, strict=True):
            body, txn = each.writes["data-0"][0].body, states[each.id]
            assert txn.state is (TxnState.COMMITTED if is_there else TxnState.ABORTED)
            assert not is_there or txn.commit_timestamp == seen[body] == told.get(body, seen[body])
    assert told.keys() <= seen.keys()
    order = [each.writes["data-0"][0].body for members in runs for each in members]
    assert sorted(seen, key=seen.__getitem__) == [body for body in order if body in seen]


def visible(engine: Engine) -> dict[bytes, Timestamp]:
    """What readers see, each once."""
    now = Timestamp(engine.log.allocate(1))
    engine.wait_until_visible(now)
    found: dict[bytes, Timestamp] = {}
    with engine.log.transaction_reader("data-0") as reader:
        while reader.after < now:
            delivery = reader.read(5.0)
            assert delivery is not None
            for message in delivery.messages():
                assert message.body is not None and message.body not in found
                found[message.body] = message.time_tick
    return found
