"""`Transactions`: begins, commits and aborts transactions over any number of channels, in the process that owns them.

A transaction whose messages all go to one channel and were kept until its commit is one write there. Any other is
committed in two steps: every channel holds a place in time, the coordinator takes the commit Timestamp above all
of them and logs it with all that is needed to complete the commit, and then each channel writes its part at that
Timestamp and lets go. No channel's tick passes the commit Timestamp before its part is in, so no cut shows a part.

Procedures are `Steps`: threads, event loops and the simulator run the same ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.database.commit_plan import ChannelPlan, decode_plan, encode_plan, redo_of
from tidegate.database.doubt import Doubt
from tidegate.database.live_transactions import Enlisted, Entry, Keys, LiveTransactions, Writes
from tidegate.errors import (
    Conflict,
    InvalidTransactionState,
    OutcomeUnknown,
    Retryable,
    TidegateError,
    TransactionAborted,
    TransactionNotFound,
    Unavailable,
)
from tidegate.runtime.channel_txn import ChannelTxn
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.opening import Redo
from tidegate.runtime.pieces import Piece
from tidegate.runtime.reservation import Reservation
from tidegate.runtime.steps import Request, Steps, Under
from tidegate.txn.coordinator import Coordinator
from tidegate.txn.coordinator_records import Transaction, TxnState
from tidegate.txn.coordinator_table import LEASE, TIMEOUT
from tidegate.txn.txn_id import TxnId

_logger = logging.getLogger("tidegate.transactions")
_UNWRITTEN: Final = "transaction %s is committed, and %r has still to write it: %s"
_AHEAD: Final = "commit/ahead"
"""Takes part in a transaction whose commit began to write its messages ahead: more than a record carries."""


class Transactions(LiveTransactions):
    """All transactions of one database.

    Ordering: what a transaction wrote is durable before its commit returns; a decided commit is carried out whatever
    happens, by this process or the next one.
    """

    # -- opening ---------------------------------------------------------------------------------------------

    def redo_for(self, channel: str) -> list[Redo]:
        """The decided commits that may be missing in a channel. Ordering: asked when coordinators were recovered."""
        found = []
        for coordinator, _ in self._coordinators:
            for txn in coordinator.to_drive():
                if txn.state is TxnState.COMMITTING and txn.commit_timestamp is not None:
                    plan = decode_plan(txn.plan).get(channel)
                    if plan is not None:
                        found.append(redo_of(txn.id.to_bytes16(), int(txn.commit_timestamp), plan))
        return sorted(found, key=lambda each: each.commit_tick)

    def resume(self, channels: Mapping[str, ChannelWriter]) -> Steps[None]:
        """Take up what was under way when the last owner stopped. All channels are open: their redo is written."""
        self._channels = dict(channels)
        for coordinator, _ in self._coordinators:
            for txn in coordinator.to_drive():
                entry = self._entries[txn.id] = Entry(txn.id)
                if txn.state is TxnState.COMMITTING:
                    self._finish(txn.id)
                    self._drop(entry)
        for name, writer in sorted(self._channels.items()):
            for session in list(writer.sessions):
                yield from self._take_up(name, writer.resume(session.id))
        for coordinator, _ in self._coordinators:
            for txn in coordinator.to_drive():
                if txn.state is TxnState.ABORTING:
                    yield from self._carry_out_abort(self._entries[txn.id])
            for txn in [each for each in coordinator.transactions() if each.state is TxnState.OPEN]:
                entry = self._entries.setdefault(txn.id, Entry(txn.id))
                if lost := sorted(self._ended_in(entry).intersection(txn.participants)):
                    yield from self._abort(entry, f"it had ended in {', '.join(lost)} when the owner changed")

    def _take_up(self, name: str, session: ChannelTxn) -> Steps[None]:
        id = TxnId.from_bytes16(session.id)
        if id.coordinator >= len(self._coordinators):
            return  # It belongs to whoever began it in the channel itself, and lives by its own lease.
        coordinator = self._coordinators[id.coordinator][0]
        try:
            state = coordinator.get(id).state
        except TransactionNotFound:
            state = TxnState.ABORTED  # It was never logged, or finished long ago: nothing of it counts.
        if state in (TxnState.OPEN, TxnState.ABORTING):
            entry = self._entries.setdefault(id, Entry(id))
            entry.sessions = {**entry.sessions, name: session}
        else:
            yield from session.rollback_steps()

    # -- beginning -------------------------------------------------------------------------------------------

    def begin(self, client: str = "", timeout_ms: int | None = None) -> TxnId:
        """A new transaction. Costs no write."""
        with self._lock:
            coordinator = self._coordinators[self._turn % len(self._coordinators)][0]
            self._turn += 1
            now = Timestamp(self._allocate(1))
            txn = coordinator.begin(int(now), now.physical_ms, timeout_ms, client)
            self._entries[txn.id] = Entry(txn.id)
        return txn.id

    def enlist(self, id: TxnId, name: str, who: Enlisted) -> Steps[None]:
        """Let somebody take part: logged before anything of the transaction is written there."""

        def work(entry: Entry) -> Steps[None]:
            yield from self._register(entry, [name])
            entry.enlisted = {**entry.enlisted, name: who}

        return self._alone(id, work)

    def write_ahead(self, id: TxnId, writes: Writes) -> Steps[None]:
        """Write messages of a transaction now, ahead of its commit: for those that are too many to keep.

        Raises: whatever a write failed with; the transaction can then only be aborted.
        """

        def work(entry: Entry) -> Steps[None]:
            yield from self._write_ahead(entry, writes)

        return self._alone(id, work)

    def note_read(self, id: TxnId, hashes: Sequence[int], table: str = "") -> Timestamp:
        """The transaction has read these keys, as of the Timestamp that is returned, the same for all its reads.

        Its commit fails when another transaction wrote one of them in between.
        """
        with self._lock:
            entry = self._open_entry(id)
            if entry.reads is None:
                entry.reads = self._begin_read()
            self._conflicts.note(entry.reads, hashes, table)
            return entry.reads.timestamp

    # -- commit ----------------------------------------------------------------------------------------------

    def commit(
        self, id: TxnId, writes: Writes, keys: Keys = (), *, read_at: Timestamp | None = None
    ) -> Steps[Timestamp]:
        """Commit the transaction together with `writes`; its commit Timestamp. May be repeated: the answer is the same.

        `read_at` is what `note_read` returned: an owner that knows nothing of the reading cannot check it, and refuses.

        Raises: `Conflict`, `TransactionAborted`, `TransactionExpired`: nothing of it remains. `Retryable`: nothing was
        written; try again or abort. `OutcomeUnknown`: ask again once the database is open again.
        """

        def work(entry: Entry) -> Steps[Timestamp]:
            return (yield from self._commit(entry, writes, keys, read_at))

        return self._alone(id, work, finished=self._finished_commit)

    def _commit(self, entry: Entry, writes: Writes, keys: Keys, read_at: Timestamp | None) -> Steps[Timestamp]:
        coordinator = self._coordinators[entry.id.coordinator][0]
        if entry.doubt is not None:
            self._settle_doubt(entry)
        with self._lock:
            txn = coordinator.get(entry.id)
            if txn.state is TxnState.COMMITTING and txn.commit_timestamp is not None:
                return txn.commit_timestamp  # Decided; what is missing is being written.
            entry.ending_ms = self._now_ms()
            usable = txn.state is TxnState.OPEN and entry.ending_ms < txn.deadline_ms
        if not usable:
            if txn.state is TxnState.OPEN:
                yield from self._abort(entry, TIMEOUT)
            with self._lock:
                coordinator.require_open(entry.id)
        if _AHEAD in txn.participants:  # Its messages are in the log: written again they would be there twice.
            why = "its commit was interrupted when a part of it had been written ahead"
            yield from self._abort(entry, why)
            raise TransactionAborted(f"transaction {entry.id} was aborted: {why}; run it again", reason=why)
        try:
            if read_at and entry.reads is None:
                raise Conflict(
                    f"what transaction {entry.id} read at {read_at} was noted by another owner; run it again"
                )
            claim = yield from self._claim(entry, keys)
        except Conflict:
            yield from self._abort(entry, "")
            raise
        try:
            timestamp = yield from self._write_commit(coordinator, entry, txn, writes)
        except (OutcomeUnknown, Unavailable):
            # Its keys stay claimed until it is settled, if need be by the next owner.
            if entry.doubt is not None:
                entry.doubt.also(partial(self._release_claim, claim, None, entry))
            elif txn.state is TxnState.OPEN:
                self._release_claim(claim, None, entry)
            raise
        except TidegateError as error:
            self._release_claim(claim, None, entry)
            if isinstance(error, TransactionAborted):
                yield from self._abort(entry, error.reason or str(error))
            raise
        self._release_claim(claim, timestamp)
        return timestamp

    def _write_commit(
        self, coordinator: Coordinator, entry: Entry, txn: Transaction, writes: Writes
    ) -> Steps[Timestamp]:
        if not entry.enlisted and not entry.sessions and not txn.logged and len(writes) <= 1:
            return (yield from self._commit_at_once(coordinator, entry, writes))
        everything = {name: list(pieces) for name, pieces in writes.items() if pieces}
        prepared = []
        committed = decided = False
        try:
            for who in entry.enlisted.values():
                prepared.append(who)
                for channel, piece in who.prepare(entry.id):
                    everything.setdefault(channel, []).append(piece)
            if not txn.logged and not entry.sessions and len(everything) <= 1:
                timestamp = yield from self._commit_at_once(coordinator, entry, everything)
            else:
                timestamp = yield from self._commit_in_two(coordinator, entry, everything)
            committed = decided = True
            return timestamp
        except (OutcomeUnknown, Unavailable):
            if entry.doubt is None and txn.state is TxnState.OPEN:
                raise  # What it wrote ahead of its commit failed: it is not decided, and will not be.
            decided = True  # Not by us: whoever takes part learns it from the log.
            if entry.doubt is not None:
                for who in prepared:
                    entry.doubt.also(partial(who.unprepare, entry.id))
            prepared = []
            raise
        finally:
            if committed:
                for who in prepared:
                    who.ended(entry.id, True)
            elif not decided:
                for who in prepared:
                    who.unprepare(entry.id)

    def _commit_at_once(self, coordinator: Coordinator, entry: Entry, writes: Writes) -> Steps[Timestamp]:
        """One write in one channel, or none at all."""
        id = entry.id
        with self._lock:
            coordinator.commit_at_once(id)
        timestamp = Timestamp.ZERO
        name = ""
        try:
            for name, pieces in writes.items():
                if not pieces:
                    continue
                request = self._channels[name].transaction(id.to_bytes16(), pieces)
                yield [request]
                if request.error is not None:
                    raise request.error
                timestamp = request.item.result().time_tick
        except (OutcomeUnknown, Unavailable) as error:
            segment = error.segment if isinstance(error, OutcomeUnknown) else None
            entry.doubt = Doubt(self._channels[name], segment, [partial(self._reopen, coordinator, id)])
            raise OutcomeUnknown(f"whether transaction {id} is committed is not known: {error}") from error
        except BaseException:
            self._reopen(coordinator, id)
            raise
        if not timestamp:
            timestamp = Timestamp(self._allocate(1))  # It wrote nothing; this is as good a place in time as any.
        with self._lock:
            coordinator.finish_at_once(id, timestamp, timestamp.physical_ms)
            self._entries.pop(id, None)
        return timestamp

    def _reopen(self, coordinator: Coordinator, id: TxnId) -> None:
        with self._lock:
            coordinator.reopen_at_once(id)

    def _commit_in_two(
        self, coordinator: Coordinator, entry: Entry, writes: dict[str, list[Piece]]
    ) -> Steps[Timestamp]:
        if sum([each.size for pieces in writes.values() for each in pieces]) > self._redo_bytes:
            yield from self._write_ahead(entry, writes, also=_AHEAD)
            writes = {}
        id = entry.id
        journal = self._coordinators[id.coordinator][1]
        entry.places = holds = dict[str, Reservation]()
        journal.enter()
        try:
            yield [Under(each) for session in entry.sessions.values() for each in session.pending]
            plan: dict[str, ChannelPlan] = {}
            for name in sorted({*writes, *entry.sessions}):
                holds[name], plan[name] = self._hold(entry, name, writes.get(name, []))
            timestamp = Timestamp(self._allocate(1))
            with self._lock:
                names = [*[f"channel/{name}" for name in plan], *entry.enlisted]
                record = coordinator.plan_commit(id, timestamp, names, encode_plan(plan))
            if record is None:
                raise InvalidTransactionState(f"transaction {id} is being committed already", state="COMMITTING")
            request = journal.request(record)
            yield [request]
            if request.error is not None:
                raise request.error
            with self._lock:
                coordinator.apply(record)
        except (OutcomeUnknown, Unavailable) as error:
            # The decision may be in the log: the places stay taken, so that no tick passes it, until that is settled,
            # if need be by the next owner, who reads the log and carries it out.
            segment = error.segment if isinstance(error, OutcomeUnknown) else None
            entry.doubt = Doubt(journal.writer, segment, [partial(self._let_go, entry, holds)])
            raise OutcomeUnknown(f"whether transaction {id} is committed is not known: {error}") from error
        except BaseException:
            self._let_go(entry, holds)
            raise
        finally:
            journal.leave()
        # Decided, and all that completes it is in the log. Nobody sees it or passes it before it is written, so there
        # is nothing to wait for.
        entry.plan, entry.driving, entry.holds = plan, len(holds), holds
        self._drive(coordinator, entry)
        return timestamp

    def _let_go(self, entry: Entry, holds: Mapping[str, Reservation]) -> None:
        """The commit is known not to be decided: give its places back."""
        for name, held in holds.items():
            held.release()
            if name in entry.sessions:
                entry.sessions[name].commit_failed()

    def _hold(self, entry: Entry, name: str, pieces: list[Piece]) -> tuple[Reservation, ChannelPlan]:
        session = entry.sessions.get(name)
        places = [each.vchannel for each in pieces]
        count = sum([each.count for each in pieces])
        size = sum([each.size for each in pieces])
        if session is not None:
            held = session.hold(places, count, self._hold_timeout_s, size=size)
            return held, ChannelPlan(int(held.time_tick), pieces, tuple(session.runs))
        held = self._channels[name].reserve(places, count=count + 1, size=size, timeout_s=self._hold_timeout_s)
        return held, ChannelPlan(int(held.time_tick), pieces, ())

    def _drive(self, coordinator: Coordinator, entry: Entry) -> list[Request]:
        """Begin to write a decided commit wherever it is missing. What fails is tried again by `drive_on`."""
        id = entry.id
        timestamp = coordinator.get(id).commit_timestamp or Timestamp.ZERO
        requests: dict[str, Request] = {}
        for name, held in entry.holds.items():
            plan = entry.plan[name]
            try:
                requests[name] = held.commit(id.to_bytes16(), plan.pieces, at=timestamp, runs=plan.runs)
            except (Retryable, Unavailable) as error:  # No timestamp could be had. It is decided all the same.
                _logger.warning(_UNWRITTEN, id, name, error)
        entry.driving = len(requests)
        for name, request in requests.items():
            request.begin()
            request.add_done_callback(partial(self._driven, entry, timestamp, name, request))
        return list(requests.values())

    def _driven(self, entry: Entry, timestamp: Timestamp, name: str, request: Request, _: object) -> None:
        """A channel has written its part of a decided commit, or could not."""
        if request.error is not None:
            _logger.warning(_UNWRITTEN, entry.id, name, request.error)
        elif name in entry.sessions:
            entry.sessions[name].committed(int(timestamp))
        with self._lock:
            if request.error is None:
                del entry.holds[name]
            entry.driving -= 1
            if entry.holds:
                return
            self._ends.append(entry.id)
            self._entries.pop(entry.id, None)

    def drive_on(self) -> Steps[int]:
        """Try again to carry out decided commits and aborts that could not be; how many commits are left."""
        self.settle_doubts()
        with self._lock:
            todo = [each for each in self._entries.values() if each.holds and not each.driving]
            for entry in todo:
                entry.driving = len(entry.holds)
            aborting, self._aborting = self._aborting, []
        for entry in todo:
            yield self._drive(self._coordinators[entry.id.coordinator][0], entry)
        yield from self.abort_all(aborting, "")
        with self._lock:
            return sum(1 for each in self._entries.values() if each.holds)

    def send(self, client: str, writes: Writes, keys: Keys = ()) -> Steps[Timestamp]:
        """Append messages without a transaction of the caller's: all of them become visible together.

        One message, or a batch, in one place is a plain append; more are a transaction of their own.
        """
        pieces = [(name, piece) for name, each in writes.items() for piece in each]
        if len(pieces) == 1:
            return self.append_plain(*pieces[0], keys)
        return self._send(self.begin(client), writes, keys)

    def _send(self, id: TxnId, writes: Writes, keys: Keys) -> Steps[Timestamp]:
        try:
            return (yield from self.commit(id, writes, keys))
        except (OutcomeUnknown, Unavailable):
            raise
        except TidegateError:
            yield from self.abort(id)  # Nobody else knows it.
            raise

    # -- abort -----------------------------------------------------------------------------------------------

    def abort(self, id: TxnId, reason: str = "") -> Steps[None]:
        """End the transaction without effect. May be repeated.

        Raises: `InvalidTransactionState` when it is committed or being committed.
        """

        def work(entry: Entry) -> Steps[None]:
            yield from self._abort(entry, reason)

        return self._alone(id, work, finished=self._finished_abort)

    def _abort(self, entry: Entry, reason: str) -> Steps[None]:
        id = entry.id
        coordinator, journal = self._coordinators[id.coordinator]
        self._settle_doubt(entry)
        journal.enter()
        try:
            with self._lock:
                record = coordinator.plan_abort(id, reason)
                entry.ending_ms = entry.ending_ms if record is None else self._now_ms()
                if record is None and not coordinator.get(id).logged:
                    coordinator.abort_unlogged(id, reason, self._now_ms())
            if record is not None:
                request = journal.request(record)
                yield [request]
                if request.error is not None:
                    raise request.error
                with self._lock:
                    coordinator.apply(record)
        finally:
            journal.leave()
        try:
            yield from self._carry_out_abort(entry)
        except TidegateError:
            with self._lock:
                self._aborting.append(id)
            raise

    def _carry_out_abort(self, entry: Entry) -> Steps[None]:
        coordinator = self._coordinators[entry.id.coordinator][0]
        for session in entry.sessions.values():
            yield from session.rollback_steps()
        for who in entry.enlisted.values():
            who.ended(entry.id, False)
        with self._lock:
            if entry.reads is not None:
                self._conflicts.end_read(entry.reads)
            logged = coordinator.get(entry.id).logged
        if logged:
            self._finish(entry.id)
        self._drop(entry)

    def _finished_commit(self, txn: Transaction) -> Timestamp:
        """The answer to a commit that is repeated."""
        if txn.state is TxnState.COMMITTED and txn.commit_timestamp is not None:
            return txn.commit_timestamp
        self._coordinator(txn.id).require_open(txn.id)
        raise InvalidTransactionState(f"transaction {txn.id} is {txn.state}", state=txn.state)

    def _finished_abort(self, txn: Transaction) -> None:
        """The answer to an abort that is repeated."""
        self._coordinator(txn.id).plan_abort(txn.id)

    # -- what nobody asks for ------------------------------------------------------------------------------------

    def expire(self) -> Steps[int]:
        """Abort what is past its deadline; how many were."""
        now = self._now_ms()
        with self._lock:
            late = [id for coordinator, _ in self._coordinators for id in coordinator.expired(now)]
        return (yield from self.abort_all(late, TIMEOUT))

    def fail_client(self, client: str) -> Steps[int]:
        """Abort what a client left open whose lease is gone; how many were."""
        with self._lock:
            left = [id for coordinator, _ in self._coordinators for id in coordinator.fail_client(client)]
        return (yield from self.abort_all(left, LEASE))

    def abort_all(self, ids: Sequence[TxnId], reason: str) -> Steps[int]:
        """Abort what is still open of these; how many were."""
        count = 0
        for id in ids:
            try:
                yield from self.abort(id, reason)
                count += 1
            except (InvalidTransactionState, TransactionNotFound, OutcomeUnknown):
                continue  # It ended meanwhile, or the disk has to say first whether it did.
            except TidegateError as error:
                _logger.warning("transaction %s could not be aborted and is tried again: %s", id, error)
        return count
