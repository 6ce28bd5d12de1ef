"""The live transactions of a database: what the owner knows of each, and one procedure at a time for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

from tidegate.clock.timestamp import Timestamp
from tidegate.database.commit_plan import ChannelPlan
from tidegate.database.doubt import Doubt
from tidegate.errors import (
    Conflict,
    InvalidTransactionState,
    OutcomeUnknown,
    TidegateError,
    TransactionAborted,
    TransactionNotFound,
    Unavailable,
)
from tidegate.runtime.channel_txn import ChannelTxn
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.pieces import Piece
from tidegate.runtime.reservation import Reservation
from tidegate.runtime.steps import Gate, Request, Steps, Under
from tidegate.txn.conflicts import Claim, ConflictWindow, Hashes, ReadSet
from tidegate.txn.coordinator import Coordinator
from tidegate.txn.coordinator_records import Transaction, TxnState
from tidegate.txn.txn_id import TxnId

T = TypeVar("T")
Writes = Mapping[str, Sequence[Piece]]
"""What a transaction writes, by channel."""
Keys = Callable[[], Hashes] | Sequence[int]
"""Hashes of the keys it writes; a function is called only when they are needed."""


class RecordLog(Protocol):
    """Where a coordinator's records go; see `Journal`."""

    def request(self, record: bytes) -> Request: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    @property
    def writer(self) -> ChannelWriter: ...


class Enlisted(Protocol):
    """Somebody who takes part in a transaction beside channels: a subscription whose messages it acknowledges."""

    def log_held(self, txn: TxnId) -> Steps[None]:
        """Log what it holds for the transaction and has not logged yet. Ordering: its taking part is logged."""

    def prepare(self, txn: TxnId) -> Iterable[tuple[str, Piece]]:
        """What has to be written with the commit, by channel. `ended` or `unprepare` follows."""

    def unprepare(self, txn: TxnId) -> None:
        """The commit failed, and the transaction is open as before."""

    def ended(self, txn: TxnId, committed: bool) -> None:
        """The outcome is certain."""


class Entry:
    """What the owner knows of a live transaction beside its state."""

    __slots__ = (
        "busy",
        "doubt",
        "driving",
        "ending_ms",
        "enlisted",
        "holds",
        "id",
        "places",
        "plan",
        "reads",
        "sessions",
    )

    def __init__(self, id: TxnId) -> None:
        self.id: Final = id
        self.busy: Gate | None = None
        self.doubt: Doubt | None = None
        """Its commit was written to a disk that failed; see `Doubt`."""
        self.reads: ReadSet | None = None
        self.sessions: dict[str, ChannelTxn] = _NONE
        """By channel, where messages were written ahead."""
        self.enlisted: dict[str, Enlisted] = _NOBODY
        self.holds: dict[str, Reservation] = _HOLDS
        """Places where a decided commit is still to be written."""
        self.driving = 0
        """How many of those are being written."""
        self.plan: Mapping[str, ChannelPlan] = _HOLDS_PLAN
        self.places: dict[str, Reservation] = _HOLDS
        """Places taken for its commit, decided or not. For reports: some may have been given back."""
        self.ending_ms = 0
        """When its commit or abort was last begun."""


_NONE: Final[dict[str, ChannelTxn]] = {}
_NOBODY: Final[dict[str, Enlisted]] = {}
_HOLDS: Final[dict[str, Reservation]] = {}
_HOLDS_PLAN: Final[dict[str, ChannelPlan]] = {}


class LiveTransactions:
    """Entries, coordinators and the conflict window, under one lock.

    Invariant: at most one procedure is under way for a transaction; others wait for it.
    """

    def __init__(
        self,
        coordinators: Sequence[tuple[Coordinator, RecordLog]],
        *,
        allocate: Callable[[int], int],
        conflicts: ConflictWindow,
        redo_bytes: int,
        hold_timeout_s: float | None = 10.0,
    ) -> None:
        self._coordinators = list(coordinators)
        self._allocate = allocate
        self._conflicts = conflicts
        self._redo_bytes = redo_bytes
        self._hold_timeout_s = hold_timeout_s
        self._channels: dict[str, ChannelWriter] = {}
        self._lock = Lock()
        """Covers the coordinators, the conflict window and the entries; held between two waits only."""
        self._entries: dict[TxnId, Entry] = {}
        self._claims: dict[int, Gate] = {}
        self._turn = 0
        self._doubts: list[Doubt] = []
        """Of plain appends."""
        self._ends: list[TxnId] = []
        """Carried out everywhere, and not yet logged to be."""
        self._unlogged: set[TxnId] = set()
        """Somebody took part in them since the last `log_lingering`, and that is not logged."""
        self._lingering: set[TxnId] = set()
        """The same, of the time before."""
        self._aborting: list[TxnId] = []
        """Aborts that are logged and could not be carried out."""

    # -- one procedure at a time -----------------------------------------------------------------------------

    def _alone(
        self,
        id: TxnId,
        work: Callable[[Entry], Steps[T]],
        finished: Callable[[Transaction], T] | None = None,
    ) -> Steps[T]:
        """Run `work` when nothing else happens to the transaction; `finished` answers for one that has ended."""
        coordinator = self._coordinator(id)
        gate = Gate()
        while True:
            with self._lock:
                txn = coordinator.get(id)
                known = self._entries.get(id)
                if txn.state.has_ended and (known is None or known.busy is None):
                    self._entries.pop(id, None)  # Left by whoever asked between its end and the record of it.
                    if finished is None:
                        coordinator.require_open(id)
                    else:
                        return finished(txn)
                entry = self._entries.setdefault(id, Entry(id))
                under_way = entry.busy
                if under_way is None:
                    entry.busy = gate
                    break
            yield [under_way]
        try:
            return (yield from work(entry))
        finally:
            with self._lock:
                entry.busy = None
            gate.open()

    def take_part(
        self, id: TxnId, name: str, who: Enlisted, work: Callable[[], Steps[T]], *, later: bool = False
    ) -> Steps[T]:
        """Let somebody take part, logged before `work` does something for the transaction there.

        Nothing else happens to the transaction meanwhile: it does not end before `work` has.
        With `later`, `work` writes nothing, and that somebody takes part is logged with the commit, or by
        `log_lingering` if that does not come soon. Only for a transaction that ends with this process.
        """

        def both(entry: Entry) -> Steps[T]:
            if later:
                with self._lock:
                    self._coordinator(id).require_open(id)
                    self._unlogged.add(id)
            else:
                yield from self._register(entry, [name])
            entry.enlisted = {**entry.enlisted, name: who}
            return (yield from work())

        return self._alone(id, both)

    def take_part_again(self, id: TxnId, name: str, who: Enlisted) -> bool:
        """Let somebody go on taking part after a restart; False when the transaction is not open any more."""
        with self._lock:
            try:
                txn = self._coordinator(id).get(id)
            except TransactionNotFound:
                return False
            if txn.state is not TxnState.OPEN or name not in txn.participants:
                return False
            entry = self._entries.setdefault(id, Entry(id))
            entry.enlisted = {**entry.enlisted, name: who}
            return True

    def taking_part(self, prefix: str) -> list[str]:
        """Who takes part in transactions that are open: the names that begin with `prefix`."""
        with self._lock:
            found = {
                name
                for coordinator, _ in self._coordinators
                for txn in coordinator.transactions()
                if txn.state is TxnState.OPEN
                for name in txn.participants
                if name.startswith(prefix)
            }
        return sorted(found)

    def look(self, *, finished: int | None = None) -> list[tuple[Transaction, Entry | None]]:
        """Copies of what is known, for reports: live ones oldest first, then those that ended last, newest first.

        `finished` bounds how many of the latter.
        """
        with self._lock:  # Only for as long as it takes to name them: there may be very many.
            live = [txn for coordinator, _ in self._coordinators for txn in coordinator.live()]
            ended = [txn for coordinator, _ in self._coordinators for txn in coordinator.ended(finished)]
            entries = dict(self._entries)
        live.sort(key=lambda txn: (txn.opened_ms, txn.id))
        ended.sort(key=lambda txn: (txn.ended_ms, txn.id), reverse=True)
        return [(copy(txn), entries.get(txn.id)) for txn in live] + [(copy(txn), None) for txn in ended[:finished]]

    def status(self) -> dict[str, Any]:
        """Counts and the oldest open one, as data."""
        with self._lock:
            found = [coordinator.status() for coordinator, _ in self._coordinators]
            undriven = sum(1 for each in self._entries.values() if each.holds)
            conflicts = self._conflicts.status()
        opened = [each for each in found if each.oldest_opened_ms is not None]
        oldest = min(opened, key=lambda each: each.oldest_opened_ms or 0, default=None)
        return {
            "states": {str(state): sum(each.counts[state] for each in found) for state in TxnState},
            "begun": sum(each.begun for each in found),
            "committed": sum(each.committed for each in found),
            "aborted": sum(each.aborted for each in found),
            "expired": sum(each.expired for each in found),
            "oldest_open": None if oldest is None else str(oldest.oldest_open),
            "oldest_open_ms": None if oldest is None else oldest.oldest_opened_ms,
            "committed_and_unwritten": undriven,
            "conflict_window": asdict(conflicts),
        }

    def totals(self) -> tuple[int, int]:
        """How many were committed and aborted, ever. Cheap."""
        found = [coordinator.totals for coordinator, _ in self._coordinators]
        return sum(each.committed for each in found), sum(each.aborted for each in found)

    def committed_at(self, id: TxnId) -> Timestamp | None:
        """When a transaction was committed, as far as its coordinator remembers."""
        try:
            with self._lock:
                txn = self._coordinator(id).get(id)
        except TransactionNotFound:
            return None
        return txn.commit_timestamp

    def snapshot_of(self, coordinator: Coordinator) -> bytes:
        """A coordinator's state."""
        with self._lock:
            coordinator.forget(self._now_ms())
            return coordinator.snapshot()

    def _ended_in(self, entry: Entry) -> set[str]:
        """Channels without messages of the transaction: what it wrote there was ended by DDL, or never came there."""
        return {f"channel/{name}" for name in self._channels if name not in entry.sessions}

    def _drop(self, entry: Entry) -> None:
        with self._lock:
            self._entries.pop(entry.id, None)

    def _open_entry(self, id: TxnId) -> Entry:
        self._coordinator(id).require_open(id)
        return self._entries.setdefault(id, Entry(id))

    def _coordinator(self, id: TxnId) -> Coordinator:
        if id.coordinator >= len(self._coordinators):
            raise TransactionNotFound(f"transaction {id} names coordinator {id.coordinator}, which does not exist here")
        return self._coordinators[id.coordinator][0]

    def _now_ms(self) -> int:
        return Timestamp(self._allocate(1)).physical_ms

    # -- records ---------------------------------------------------------------------------------------------

    def _register(self, entry: Entry, names: Sequence[str]) -> Steps[None]:
        """Log who takes part, before anything is written there."""
        coordinator, journal = self._coordinators[entry.id.coordinator]
        journal.enter()
        try:
            with self._lock:
                record = coordinator.plan_register(entry.id, names)
            if record is None:
                return
            request = journal.request(record)
            yield [request]
            if request.error is not None:
                raise request.error
            with self._lock:
                coordinator.apply(record)
        finally:
            journal.leave()

    def log_lingering(self) -> Steps[int]:
        """Log who takes part in transactions that were open the last time already, and what they hold; how many."""
        with self._lock:
            due = [id for id in self._lingering if id in self._entries]
            self._lingering, self._unlogged = self._unlogged, set()
        for id in due:
            try:
                yield from self._alone(id, self._log_parts)
            except (InvalidTransactionState, TransactionAborted, TransactionNotFound):
                continue  # It ended meanwhile.
            except TidegateError:
                with self._lock:
                    self._unlogged.update(due)
                raise
        return len(due)

    def _log_parts(self, entry: Entry) -> Steps[None]:
        yield from self._register(entry, list(entry.enlisted))
        for who in entry.enlisted.values():
            yield from who.log_held(entry.id)

    def _finish(self, id: TxnId) -> None:
        """The end was carried out everywhere. Logged with the next `write_ends`; the next owner looks once more."""
        with self._lock:
            self._ends.append(id)

    def write_ends(self) -> Steps[int]:
        """Log which transactions have ended everywhere since the last time; how many."""
        with self._lock:
            ids, self._ends = self._ends, []
        under_way: list[tuple[Coordinator, RecordLog, bytes, Request]] = []
        for id in ids:
            coordinator, journal = self._coordinators[id.coordinator]
            journal.enter()
            with self._lock:
                record = coordinator.plan_finish(id, self._now_ms())
            if record is None:
                journal.leave()
                continue
            request = journal.request(record)
            request.begin()
            under_way.append((coordinator, journal, record, request))
        yield [request for _, _, _, request in under_way]
        for coordinator, journal, record, _ in under_way:
            # Whether it was logged or not: this owner has carried it out.
            with self._lock:
                coordinator.apply(record)
            journal.leave()
        return len(under_way)

    def _settle_doubt(self, entry: Entry) -> None:
        """Go on only when it is known what became of an earlier attempt to commit.

        Raises: `OutcomeUnknown` while it is not.
        """
        if entry.doubt is not None:
            if not entry.doubt.settle():
                raise OutcomeUnknown(
                    f"whether transaction {entry.id} is committed is not known as long as the disk fails, or before the"
                    f" database is opened again; ask again"
                )
            entry.doubt = None

    def settle_doubts(self) -> int:
        """Find out what became of commits whose write failed on the disk; how many are still in doubt."""
        with self._lock:
            doubtful = [each for each in self._entries.values() if each.doubt is not None and each.busy is None]
        for entry in doubtful:
            with suppress(OutcomeUnknown):
                self._settle_doubt(entry)
        self._doubts = [each for each in self._doubts if not each.settle()]
        return len(self._doubts) + sum(1 for each in doubtful if each.doubt is not None)

    # -- writing ahead ---------------------------------------------------------------------------------------

    def _write_ahead(self, entry: Entry, writes: Writes, also: str = "") -> Steps[None]:
        names = [f"channel/{name}" for name, pieces in writes.items() if pieces]
        yield from self._register(entry, [*names, also] if also else names)
        waits = []
        for name, pieces in writes.items():
            for piece in pieces:
                session = entry.sessions.get(name)
                if session is None:
                    session = self._channels[name].begin(entry.id.to_bytes16(), piece.vchannel, keepalive_ms=None)
                    entry.sessions = {**entry.sessions, name: session}
                waits.append(Under(session.append_piece(piece)))
        yield waits
        failed = next((each.error for each in waits if each.error is not None), None)
        if failed is not None:
            raise failed

    def append_plain(self, channel: str, piece: Piece, keys: Keys = ()) -> Steps[Timestamp]:
        """Append messages of one kind in one place, in no transaction; their Timestamp, the last one's if several."""
        claim = yield from self._claim(None, keys)
        try:
            request = self._channels[channel].plain(piece)
            yield [request]
            if request.error is not None:
                raise request.error
        except (OutcomeUnknown, Unavailable) as error:
            # Its keys stay claimed until it is settled whether they were written, if need be by the next owner.
            if isinstance(error, OutcomeUnknown):
                undo = partial(self._release_claim, claim, None)
                self._doubts.append(Doubt(self._channels[channel], error.segment, [undo]))
            raise
        except BaseException:
            self._release_claim(claim, None)
            raise
        timestamp = request.item.result().last_time_tick
        self._release_claim(claim, timestamp)
        return timestamp

    # -- conflicts -------------------------------------------------------------------------------------------

    def _begin_read(self) -> ReadSet:
        while True:
            try:
                return self._conflicts.begin_read(Timestamp(self._allocate(1)))
            except Conflict:
                continue  # A commit took a later timestamp meanwhile.

    def _claim(self, entry: Entry | None, keys: Keys) -> Steps[Claim]:
        """Claim the keys that are written, once nothing that was read can change any more.

        Raises: `Conflict`.
        """
        while True:
            with self._lock:
                if entry is not None and entry.reads is not None and entry.reads.ended:
                    # It could not be aborted the last time, and is as hopeless as it was then.
                    raise Conflict(f"a key that transaction {entry.id} had read was written since; run it again")
                found = self._conflicts.try_commit(None if entry is None else entry.reads, keys)
                if isinstance(found, Claim):
                    if entry is not None:
                        entry.reads = None
                    return found
                gate = self._claims.setdefault(found.claim.number, Gate())
            yield [gate]

    def _release_claim(self, claim: Claim, timestamp: Timestamp | None, entry: Entry | None = None) -> None:
        """The commit has ended. With an `entry` what was read is checked again at the next: a further try, or run."""
        with self._lock:
            self._conflicts.finish(claim, timestamp)
            if entry is not None and claim.reads and claim.read_timestamp is not None:
                # Until now nobody could write what was read, so it is as good as read at the floor, or at the commit.
                since = max(claim.read_timestamp, timestamp or claim.read_timestamp)
                entry.reads = self._conflicts.begin_read(max(self._conflicts.floor, since))
                for table, keys in claim.reads:
                    self._conflicts.note(entry.reads, keys.sorted(), table)
            gate = self._claims.pop(claim.number, None)
        if gate is not None:
            gate.open()
