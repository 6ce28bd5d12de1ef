"""`TransactionRuns`: transactions that are committed as one write, in order, behind one check of what was read.

For whoever brings a stream of small transactions: each has its own id, commit marker and Timestamp, and is to readers
like any other; only the sync and the check are shared. What was read, the *guard* has read: it stays open, and what it
has read counts as read again at every run, so that between two runs nobody can write it unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tidegate.clock.timestamp import Timestamp
from tidegate.database.doubt import Doubt
from tidegate.database.live_transactions import Entry, Keys, Writes
from tidegate.database.transactions import Transactions
from tidegate.errors import (
    Conflict,
    InvalidArgument,
    InvalidTransactionState,
    OutcomeUnknown,
    TidegateError,
    TransactionExpired,
    Unavailable,
)
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import Gate, Steps
from tidegate.txn.conflicts import Claim, Written
from tidegate.txn.coordinator_records import TxnState
from tidegate.txn.coordinator_table import TIMEOUT
from tidegate.txn.txn_id import TxnId


class Member(NamedTuple):
    """A transaction of a run."""

    id: TxnId
    writes: Writes
    keys: Keys


class TransactionRuns(Transactions):
    """Transactions, and runs of them."""

    def commit_run(
        self, guard: TxnId, run: Sequence[Member], *, read_at: Timestamp | None = None
    ) -> Steps[list[Timestamp]]:
        """Commit transactions that write to one channel, the same one, in their order; their commit Timestamps.

        Invariant: none is committed unless all before it are.
        Raises: `Conflict` when what the guard read was written since: none is committed, and the guard is aborted.
        Whatever a write failed with: those that were not committed are aborted, and the guard is as before.
        `OutcomeUnknown`: so are they, once it turns out that they were not written.
        `InvalidArgument`, `InvalidTransactionState`, `TransactionExpired`: nothing has happened to any member.
        """

        def work(entry: Entry) -> Steps[list[Timestamp]]:
            channel = _channel_of(run)
            gate = Gate()
            now_ms = self._now_ms()
            yield from self._check_in_time(entry, now_ms)
            entries = self._occupy(run, gate, now_ms)
            try:
                return (yield from self._commit_run(entry, channel, run, read_at, now_ms))
            finally:
                with self._lock:
                    for each in entries:
                        each.busy = None
                gate.open()

        return self._alone(guard, work)

    def check_guard(self, guard: TxnId, read_at: Timestamp | None) -> None:
        """What the guard has read is as it was; it counts as read again, and the guard stays open.

        Ordering: nothing commits meanwhile, and nothing else is done with the guard.
        Raises: `Conflict` when it was written since, or nobody here knows; `Unavailable` while it is not known whether.
        """
        with self._lock:
            self._coordinator(guard).require_open(guard)
            entry = self._entries.get(guard)
            if entry is None or entry.reads is None or entry.reads.ended:
                raise Conflict(f"what transaction {guard} read at {read_at} was noted by another owner; run it again")
            found = self._conflicts.try_commit(entry.reads, ())
            if not isinstance(found, Claim):
                raise Unavailable(
                    f"it is not known yet whether what transaction {guard} has read was written since; try again"
                )
            entry.reads = None
        self._release_claim(found, None, entry)

    def _check_in_time(self, entry: Entry, now_ms: int) -> Steps[None]:
        """Raises: `TransactionExpired` when the guard's time is up."""
        with self._lock:
            txn = self._coordinator(entry.id).require_open(entry.id)
        if now_ms >= txn.deadline_ms and entry.doubt is None:
            yield from self._abort(entry, TIMEOUT)
            with self._lock:
                self._coordinator(entry.id).require_open(entry.id)

    def _occupy(self, run: Sequence[Member], gate: Gate, now_ms: int) -> list[Entry]:
        """Keep everybody else from the members. Raises: `InvalidTransactionState`; nothing is kept then."""
        found: list[Entry] = []
        with self._lock:
            for id in [each.id for each in run]:
                coordinator = self._coordinator(id)
                txn = coordinator.require_open(id)
                entry = self._entries.setdefault(id, Entry(id))
                if now_ms >= txn.deadline_ms:
                    raise TransactionExpired(
                        f"transaction {id} was not committed within its timeout; run it again, with a longer timeout"
                        f" if it needs one",
                        reason=TIMEOUT,
                    )
                if entry.busy is not None or entry.sessions or entry.enlisted or entry.reads or txn.logged:
                    raise InvalidTransactionState(
                        f"transaction {id} reads, acknowledges or writes ahead, and is committed by itself",
                        state=str(txn.state),
                    )
                found.append(entry)
            for entry in found:
                entry.busy = gate
        return found

    def _commit_run(
        self, entry: Entry, channel: str, run: Sequence[Member], read_at: Timestamp | None, now_ms: int
    ) -> Steps[list[Timestamp]]:
        try:
            if entry.doubt is not None:
                self._settle_doubt(entry)
            with self._lock:
                self._coordinator(entry.id).require_open(entry.id)
            if read_at and entry.reads is None:
                raise Conflict(
                    f"what transaction {entry.id} read at {read_at} was noted by another owner; run it again"
                )
            claim = yield from self._claim(entry, _keys_of(run))
        except TidegateError as error:
            self._give_up(run, now_ms)
            if isinstance(error, Conflict):
                yield from self._abort(entry, "")
            raise
        return (yield from self._append_run(entry, claim, channel, run, now_ms))

    def _append_run(
        self, entry: Entry, claim: Claim, channel: str, run: Sequence[Member], now_ms: int
    ) -> Steps[list[Timestamp]]:
        writer = self._channels[channel]
        with self._lock:
            for each in run:
                self._coordinator(each.id).commit_at_once(each.id)
        try:
            appended = writer.transactions([(each.id.to_bytes16(), _pieces_of(each)) for each in run])
        except TidegateError:
            self._give_up(run, now_ms)
            self._release_claim(claim, None, entry)
            raise
        yield [appended]
        timestamps: list[Timestamp] = []
        failed: BaseException | None = None
        for each, request in zip(run, appended.requests):
            failed = request.error
            if failed is not None:
                break
            timestamp = request.item.result().time_tick
            with self._lock:
                self._coordinator(each.id).finish_at_once(each.id, timestamp, timestamp.physical_ms)
                self._entries.pop(each.id, None)
            timestamps.append(timestamp)
        last = timestamps[-1] if timestamps else None
        if failed is None:
            self._release_claim(claim, last, entry)
            return timestamps
        left = run[len(timestamps) :]
        if isinstance(failed, OutcomeUnknown | Unavailable):
            segment = failed.segment if isinstance(failed, OutcomeUnknown) else None
            undo = [partial(self._give_up, left, now_ms), partial(self._release_claim, claim, last, entry)]
            entry.doubt = Doubt(writer, segment, undo)
            raise OutcomeUnknown(
                f"whether transaction {left[0].id} and {len(left) - 1} behind it are committed is not known: {failed}"
            ) from failed
        self._give_up(left, now_ms)
        self._release_claim(claim, last, entry)
        raise failed

    def _give_up(self, members: Sequence[Member], now_ms: int) -> None:
        """Abort members of which nothing is in the log. Never raises."""
        with self._lock:
            for each in members:
                coordinator = self._coordinator(each.id)
                if coordinator.get(each.id).state is TxnState.COMMITTING:
                    coordinator.reopen_at_once(each.id)
                coordinator.abort_unlogged(each.id, "", now_ms)
                self._entries.pop(each.id, None)


def _channel_of(run: Sequence[Member]) -> str:
    """Raises: `InvalidArgument` unless all of them write to one channel, the same one."""
    found = [[name for name, pieces in each.writes.items() if pieces] for each in run]
    if not found or len(found[0]) != 1 or any(each != found[0] for each in found):
        raise InvalidArgument("a run is of transactions that all write to one channel, and to the same one")
    return found[0][0]


def _pieces_of(member: Member) -> Sequence[Piece]:
    return next(pieces for pieces in member.writes.values() if pieces)


def _keys_of(run: Sequence[Member]) -> Keys:
    def hashes() -> list[int]:
        return [key for each in run for key in (each.keys() if callable(each.keys) else each.keys)]

    written = [each.keys for each in run if isinstance(each.keys, Written)]
    if len(written) < len(run):
        return hashes
    names = frozenset[str]().union(*[each.names for each in written])
    return Written(hashes, names, sum([each.count for each in written]))
