"""Known bugs of transactions, planted one at a time, to prove that the simulator can fail. See `bugs`.

Mistakes around pending acknowledgements belong here too, once the world has subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heapify
from typing import Any

import numpy as np

from tidegate.clock.timestamp import Timestamp
from tidegate.database.live_transactions import LiveTransactions
from tidegate.database.transactions import Transactions
from tidegate.log.batch import Batch
from tidegate.log.channel import Append, Channel
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.commit import Commit
from tidegate.runtime.committer import Committer
from tidegate.runtime.opening import Opening
from tidegate.runtime.steps import InOrder, Steps
from tidegate.sim.bugs import Bug, replaced
from tidegate.sim.machine import SimTail
from tidegate.txn.assembly import Assembler
from tidegate.txn.conflicts import ConflictWindow
from tidegate.txn.coordinator import Coordinator
from tidegate.txn.coordinator_records import TxnState
from tidegate.txn.gather import by_position, choose
from tidegate.txn.sessions import RecoveredSessions
from tidegate.txn.txn_id import TxnId

TXN_BUGS: dict[str, Callable[[], Any]] = {}


def _bug(plant: Bug) -> Bug:
    TXN_BUGS[plant.__name__.replace("_", "-")] = contextmanager(plant)
    return plant


@_bug
def no_hold_during_commit() -> Iterator[None]:
    """The places that channels take for a commit do not hold their ticks back."""
    original = Transactions._hold

    def hold(self: Transactions, entry: Any, name: str, pieces: Any) -> Any:
        held, plan = original(self, entry, name, pieces)
        machine = self._channels[name]._machine
        machine._in_flight = [each for each in machine._in_flight if each[1] is not held._held]
        heapify(machine._in_flight)
        return held, plan

    with replaced(Transactions, "_hold", hold):
        yield


@_bug
def coordinator_forgets_committing() -> Iterator[None]:
    """After a restart, decided commits are not completed where they are missing."""
    with replaced(Transactions, "redo_for", lambda self, channel: []):  # noqa: ARG005
        yield


@_bug
def redo_after_the_first_tick() -> Iterator[None]:
    """A channel ticks first, and completes decided commits then."""
    original = Opening._append

    def append(self: Opening, items: Any, found: Any, *ports: Any) -> Any:
        tick = original(self, [], found, *ports)
        return original(self, items, RecoveredSessions(), *ports) if items else tick

    with replaced(Opening, "_append", append):
        yield


@_bug
def marker_is_not_counted() -> Iterator[None]:
    """What a reader has in memory of a transaction is delivered, whatever the marker names beside it."""

    def complete(_: Assembler, *given: Any) -> list[Batch]:
        wanted, pieces = given[2:4]
        found = np.zeros(len(wanted), np.bool_)
        return by_position(choose(pieces, wanted, found))

    with replaced(Assembler, "_complete", complete):
        yield


@_bug
def expired_transaction_is_committed() -> Iterator[None]:
    """The deadline is not looked at when a commit is asked for."""
    original = Transactions._commit

    def commit(self: Transactions, entry: Any, *arguments: Any) -> Steps[Timestamp]:
        txn = self._coordinator(entry.id).get(entry.id)
        before, txn.deadline_ms = txn.deadline_ms, 1 << 60
        try:
            return (yield from original(self, entry, *arguments))
        finally:
            txn.deadline_ms = before

    with replaced(Transactions, "_commit", commit):
        yield


@_bug
def failed_marker_releases_its_place() -> Iterator[None]:
    """When a decided commit cannot be written to a channel, the channel's ticks go on without it."""

    def keep_place(self: Committer, item: Any) -> bool:
        if item.reservation is None or item.held is None:
            return False
        held: Append = item.held
        self._machine._in_flight = [each for each in self._machine._in_flight if each[1] is not held]
        heapify(self._machine._in_flight)
        item.reservation.take_back(held)
        return True

    with replaced(Committer, "_keep_place", keep_place):
        yield


@_bug
def commit_timestamp_before_the_holds() -> Iterator[None]:
    """The commit Timestamp is taken before channels hold their places, and nobody compares them."""
    in_two, plan = Transactions._commit_in_two, Coordinator.plan_commit
    early: dict[TxnId, Timestamp] = {}

    def commit_in_two(self: Transactions, coordinator: Coordinator, entry: Any, writes: Any) -> Steps[Timestamp]:
        early[entry.id] = Timestamp(self._allocate(1))
        yield from in_two(self, coordinator, entry, writes)
        return early[entry.id]

    def plan_commit(self: Coordinator, id: TxnId, timestamp: Timestamp, *rest: Any) -> Any:
        return plan(self, id, early.get(id, timestamp), *rest)

    def move(self: Channel, append: Append, time_tick: int) -> None:
        append.moved = time_tick
        self.allocated = max(self.allocated, time_tick)

    with (
        replaced(Transactions, "_commit_in_two", commit_in_two),
        replaced(Coordinator, "plan_commit", plan_commit),
        replaced(Channel, "move", move),
        replaced(ChannelWriter, "_check_at", lambda self, held, at: None),  # noqa: ARG005
    ):
        yield


@_bug
def conflict_window_without_claims() -> Iterator[None]:
    """Commits under way are not looked at: only those that have finished."""
    original = ConflictWindow.try_commit

    def try_commit(self: ConflictWindow, reads: Any, writes: Any) -> Any:
        claims, reading = self._claims, self._reading
        self._claims, self._reading = {}, {}
        try:
            return original(self, reads, writes)
        finally:
            self._claims, self._reading = {**claims, **self._claims}, {**reading, **self._reading}

    with replaced(ConflictWindow, "try_commit", try_commit):
        yield


@_bug
def zombie_answers_after_the_fence() -> Iterator[None]:
    """A process that was fenced acknowledges what it has written."""
    original = Committer.finish

    def finish(self: Committer, commit: Commit, error: Any = None) -> None:
        tail = self._tail
        self._tail = SimTail(int(self.term))
        try:
            original(self, commit, error)
        finally:
            self._tail = tail

    with replaced(Committer, "finish", finish):
        yield


@_bug
def abort_after_committing() -> Iterator[None]:
    """A transaction whose commit is decided can still be aborted."""
    original = Coordinator.plan_abort

    def plan_abort(self: Coordinator, id: TxnId, reason: str = "") -> Any:
        txn = self.get(id)
        if txn.state is TxnState.COMMITTING and txn.logged:
            txn.state = TxnState.OPEN
        return original(self, id, reason)

    with replaced(Coordinator, "plan_abort", plan_abort):
        yield


@_bug
def large_commit_is_written_twice() -> Iterator[None]:
    """What a commit wrote ahead of itself is written once more when the commit is repeated."""
    original = LiveTransactions._write_ahead

    def write_ahead(self: LiveTransactions, entry: Any, writes: Any, also: str = "") -> Steps[None]:  # noqa: ARG001
        yield from original(self, entry, writes)

    with replaced(LiveTransactions, "_write_ahead", write_ahead):
        yield


@_bug
def run_is_written_backwards() -> Iterator[None]:
    """The last transaction of a run is handed over first."""

    def begin(self: InOrder) -> None:
        for each in reversed(self.requests):
            each.begin()

    with replaced(InOrder, "begin", begin):
        yield
