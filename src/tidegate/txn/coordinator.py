"""The transaction coordinator: decides what becomes of every transaction, exactly once (seed 002).

Write-ahead: `plan_*` check and return the record to append, and change nothing; once it is durable, `apply` carries it
out. Recovery folds the same records through the same `apply`, from the beginning or from a snapshot. What was never
logged is presumed aborted: beginning a transaction costs no write, nor does ending one that wrote nothing.

    begin ──▶ plan_register* ──▶ plan_commit ──▶ (markers at every participant) ──▶ plan_finish
                            └──▶ plan_abort ───▶ (markers at every participant) ──▶ plan_finish
    begin ──▶ commit_at_once ──▶ (one write in one channel) ──▶ finish_at_once, or reopen_at_once if it failed

Pure: ids and times come in as arguments. The caller lets nothing else happen to a transaction between `plan_*` and
`apply`; different transactions need no order among each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappush
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Backpressure,
    InvalidArgument,
    InvalidTransactionState,
    InvariantBroken,
    LimitExceeded,
    TidegateError,
    TransactionAborted,
    TransactionExpired,
)
from tidegate.txn.coordinator_records import (
    Aborting,
    Committing,
    Ended,
    Opening,
    Record,
    Registered,
    Snapshot,
    Totals,
    Transaction,
    TxnState,
    decode,
    decode_snapshot,
    encode,
    encode_snapshot,
)
from tidegate.txn.coordinator_table import LEASE, TIMEOUT, TransactionTable, ending_of, illegal
from tidegate.txn.txn_id import TxnId

_TEXT_MAX: Final = 256


class Coordinator(TransactionTable):
    """The transactions of one coordinator id. Several coordinators live side by side and share nothing.

    Invariants: a transaction only takes steps of `TxnState.may_become`; ids strictly increase; `low_watermark` never
    falls; `restore(snapshot)` and the later records give the state that all the records give.
    """

    # -- begin -----------------------------------------------------------------------------------------------

    def begin(self, counter: int, now_ms: int, timeout_ms: int | None = None, client: str = "") -> Transaction:
        """Open a transaction, in memory only. `counter` is a fresh Timestamp of the oracle, `now_ms` its physical part.

        Raises: `LimitExceeded` for a timeout above `timeout_max_ms`, `Backpressure` when too many are under way,
        `InvariantBroken` for a counter that is not above every counter seen.
        """
        settings = self.settings
        timeout_ms = settings.timeout_default_ms if timeout_ms is None else timeout_ms
        if timeout_ms < 1:
            raise InvalidArgument(f"the timeout of a transaction is at least 1 ms, not {timeout_ms}")
        if timeout_ms > settings.timeout_max_ms:
            raise LimitExceeded(
                "the transaction's timeout in ms",
                timeout_ms,
                settings.timeout_max_ms,
                "transaction_timeout_max_ms",
                instead="ask for less",
            )
        if len(client) > _TEXT_MAX:
            raise InvalidArgument(f"a client's name has at most {_TEXT_MAX} characters, not {len(client)}")
        if len(self._live) >= settings.active_max:
            raise Backpressure(
                f"coordinator {self.coordinator} has {len(self._live):,} transactions under way, as many as"
                f" `transactions_max` allows; end some, or try again later"
            )
        if counter <= self._largest:
            raise InvariantBroken(
                f"coordinator {self.coordinator}: counter {counter} is not above {self._largest}, which was seen before"
            )
        txn = Transaction(TxnId.make(self.coordinator, counter), client, now_ms, now_ms + timeout_ms)
        self._add(txn)
        return txn

    def require_open(self, id: TxnId) -> Transaction:
        """The transaction, if it can still be written to.

        Raises: `TransactionNotFound`; `TransactionExpired` or `TransactionAborted` when it was ended from outside;
        `InvalidTransactionState`.
        """
        txn = self.get(id)
        if txn.state is not TxnState.OPEN:
            raise _refusal(txn, "written to")
        return txn

    # -- write-ahead: records to append ----------------------------------------------------------------------

    def plan_register(self, id: TxnId, participants: Iterable[str]) -> bytes | None:
        """The record that adds participants, before anything is written to them; None when all are known.

        Raises: as `require_open`; `LimitExceeded` above `participants_max`.
        """
        txn = self.require_open(id)
        new = tuple(sorted(set(participants).difference(txn.participants)))
        if not new:
            return None
        self._check_participants(len(txn.participants) + len(new))
        return encode(Registered(id, new, None if txn.logged else _opening_of(txn)))

    def plan_commit(
        self, id: TxnId, commit_timestamp: Timestamp, participants: Iterable[str], plan: bytes
    ) -> bytes | None:
        """The record after which the transaction will be committed whatever happens.

        None when it is committed, or being committed, already: go on as its state says.
        Raises: `TransactionNotFound`; `TransactionExpired` or `TransactionAborted` when it was ended from outside;
        `InvalidTransactionState`; `LimitExceeded` above `plan_bytes_max` or `participants_max`.
        """
        txn = self.get(id)
        if txn.state is TxnState.COMMITTED or (txn.state is TxnState.COMMITTING and txn.logged):
            return None
        if txn.state is not TxnState.OPEN:
            raise _refusal(txn, "committed")
        if len(plan) > self.settings.plan_bytes_max:
            raise LimitExceeded(
                f"the commit plan of transaction {id} in bytes",
                len(plan),
                self.settings.plan_bytes_max,
                "plan_bytes_max",
            )
        everywhere = tuple(sorted({*txn.participants, *participants}))
        self._check_participants(len(everywhere))
        return encode(Committing(id, commit_timestamp, everywhere, _opening_of(txn), plan))

    def plan_abort(self, id: TxnId, reason: str = "") -> bytes | None:
        """The record after which the transaction will be aborted; without a reason its owner asked for it.

        None when there is nothing to log: it is aborted, or being aborted, already, or it was never logged; call
        `abort_unlogged` then.
        Raises: `TransactionNotFound`; `InvalidTransactionState` when it is committed or being committed.
        """
        txn = self.get(id)
        if txn.state in (TxnState.ABORTING, TxnState.ABORTED):
            return None
        if txn.state is not TxnState.OPEN:
            raise _refusal(txn, "aborted")
        return encode(Aborting(id, reason[:_TEXT_MAX])) if txn.logged else None

    def plan_finish(self, id: TxnId, now_ms: int) -> bytes | None:
        """The record that ends it, once every participant has its marker; None when it has ended already.

        Raises: `TransactionNotFound`; `InvalidTransactionState` when it is open; `InvariantBroken` when no record of
        it exists.
        """
        txn = self.get(id)
        if txn.state.has_ended:
            return None
        if txn.state is TxnState.OPEN:
            raise InvalidTransactionState(
                f"transaction {id} is open; commit or abort it before it is finished", state=txn.state
            )
        self._require_logged(txn, True)
        return encode(Ended(id, ending_of(txn.state), now_ms))

    # -- memory only: transactions without a record ----------------------------------------------------------

    def abort_unlogged(self, id: TxnId, reason: str, now_ms: int) -> Transaction:
        """Abort an open transaction of which no record exists; one that is or will be aborted stays as it is.

        Raises: `TransactionNotFound`; `InvalidTransactionState` when it is committed or being committed;
        `InvariantBroken` when a record of it exists.
        """
        txn = self.get(id)
        if txn.state in (TxnState.ABORTING, TxnState.ABORTED):
            return txn
        if txn.state is not TxnState.OPEN:
            raise _refusal(txn, "aborted")
        self._require_logged(txn, False)
        txn.reason = reason[:_TEXT_MAX]
        self._move(txn, TxnState.ABORTING)
        self._end(txn, now_ms)
        return txn

    def commit_at_once(self, id: TxnId) -> bool:
        """Start to commit a transaction with all of its bodies in one channel, by one write there. True: write now.

        False when it is committed already. While its write is under way, or its fate unknown, it stays COMMITTING.
        Raises: as `plan_commit`; `InvalidTransactionState` when its commit is under way; `InvariantBroken` when a
        record of it exists.
        """
        txn = self.get(id)
        if txn.state is TxnState.COMMITTED:
            return False
        if txn.state is not TxnState.OPEN:
            raise _refusal(txn, "committed")
        self._require_logged(txn, False)
        self._move(txn, TxnState.COMMITTING)
        return True

    def finish_at_once(self, id: TxnId, commit_timestamp: Timestamp, now_ms: int) -> Transaction:
        """The one write is durable: the transaction is committed."""
        txn = self._at_once(id)
        txn.commit_timestamp = commit_timestamp
        self._end(txn, now_ms)
        return txn

    def reopen_at_once(self, id: TxnId) -> Transaction:
        """The one write is known to be absent: the transaction is open as before, and may be committed or aborted.

        No step back of the machine: nothing was durable, so the commit had not begun.
        """
        txn = self._at_once(id)
        txn.state = TxnState.OPEN
        heappush(self._deadlines, (txn.deadline_ms, txn.id))  # its entry may have been dropped meanwhile
        self._shrink()
        return txn

    # -- the fold --------------------------------------------------------------------------------------------

    def apply(self, record: bytes) -> Transaction | None:
        """Carry out a durable record. Returns its transaction, None when the record says nothing about a known one.

        The same record again changes nothing while its transaction is remembered, and neither does a later record of
        one whose first was trimmed: it has ended. (COMMITTING is complete in itself, and never passed over.)
        Raises: `InvariantBroken` when the log asks for a step that no transaction can take.
        """
        change = decode(record)
        if change.id.coordinator != self.coordinator:
            raise InvariantBroken(f"coordinator {self.coordinator} met a record of transaction {change.id}")
        txn = self._live.get(change.id) or self._ended.get(change.id) or self._first_met(change)
        if txn is None:
            self._largest = max(self._largest, change.id.counter)
            return None
        match change:
            case Registered():
                self._register(txn, change.participants)
            case Committing():
                self._commit(txn, change)
            case Aborting():
                if txn.state not in (TxnState.ABORTING, TxnState.ABORTED):
                    self._move(txn, TxnState.ABORTING)
                    txn.reason = change.reason
            case Ended():
                if txn.state is not change.state:
                    if not txn.state.may_become(change.state):
                        raise illegal(txn, change.state)
                    self._require_logged(txn, True)
                    self._end(txn, change.ended_ms)
        txn.logged = True
        return txn

    def _first_met(self, change: Record) -> Transaction | None:
        opening = change.opening if isinstance(change, Registered | Committing) else None
        if opening is None:
            return None
        txn = Transaction(change.id, opening.client, opening.opened_ms, opening.deadline_ms)
        self._add(txn)
        return txn

    def _register(self, txn: Transaction, participants: tuple[str, ...]) -> None:
        everywhere = {*txn.participants, *participants}
        if len(everywhere) == len(txn.participants):
            return
        if txn.state is not TxnState.OPEN:
            raise InvariantBroken(
                f"transaction {txn.id} is {txn.state}, and the log adds {', '.join(participants)} to it"
            )
        txn.participants = tuple(sorted(everywhere))

    def _commit(self, txn: Transaction, change: Committing) -> None:
        if txn.state in (TxnState.COMMITTING, TxnState.COMMITTED) and txn.commit_timestamp == change.commit_timestamp:
            return
        if txn.state is not TxnState.OPEN:
            raise illegal(txn, TxnState.COMMITTING)
        self._register(txn, change.participants)
        self._move(txn, TxnState.COMMITTING)
        txn.commit_timestamp = change.commit_timestamp
        txn.plan = change.plan

    def to_drive(self) -> list[Transaction]:
        """After recovery: what must be carried to its end. Commits by commit Timestamp, then aborts by id."""
        ending = [txn for txn in self._live.values() if txn.logged and txn.state is not TxnState.OPEN]
        return sorted(ending, key=lambda txn: (txn.commit_timestamp is None, txn.commit_timestamp or 0, txn.id))

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """All that a restart must not lose. Open transactions without a record are not part of it."""
        live = sorted((txn for txn in self._live.values() if txn.logged), key=lambda txn: txn.id)
        totals = Totals(
            self._totals.begun - (len(self._live) - len(live)),  # counted at their first record, if they get one
            self._totals.committed,
            self._totals.aborted,
            self._totals.expired,
        )
        ended = tuple(self._ended[id] for id in self._ended_order)
        return encode_snapshot(Snapshot(self.coordinator, self._largest, totals, tuple(live), ended))

    def restore(self, raw: bytes) -> None:
        """Start from a snapshot. Ordering: before anything else; then `apply` the records that came after it."""
        if self._largest:
            raise InvariantBroken(f"coordinator {self.coordinator} restores a snapshot after it has begun to work")
        snapshot = decode_snapshot(raw)
        if snapshot.coordinator != self.coordinator:
            raise InvariantBroken(f"coordinator {self.coordinator} met a snapshot of {snapshot.coordinator}")
        for txn in snapshot.live:
            self._add(txn)
        for txn in snapshot.ended:
            self._remember(txn)
        self._largest = snapshot.largest
        self._totals = snapshot.totals

    # -- inside ----------------------------------------------------------------------------------------------

    def _at_once(self, id: TxnId) -> Transaction:
        txn = self.get(id)
        if txn.state is not TxnState.COMMITTING or txn.logged:
            raise InvariantBroken(f"transaction {id} is {txn.state} and is not being committed at once")
        return txn

    def _require_logged(self, txn: Transaction, logged: bool) -> None:
        if txn.logged is not logged:
            has = "has records, and only a record ends it" if txn.logged else "has no record, and needs none to end"
            raise InvariantBroken(f"transaction {txn.id} is {txn.state}: it {has}")

    def _check_participants(self, count: int) -> None:
        if count > self.settings.participants_max:
            raise LimitExceeded(
                "the number of a transaction's participants", count, self.settings.participants_max, "participants_max"
            )


def _opening_of(txn: Transaction) -> Opening:
    return Opening(txn.client, txn.opened_ms, txn.deadline_ms)


def _refusal(txn: Transaction, what: str) -> TidegateError:
    """Why a transaction that is not open cannot be written to, committed or aborted."""
    if txn.state in (TxnState.ABORTING, TxnState.ABORTED) and txn.reason:
        if txn.reason == TIMEOUT:
            return TransactionExpired(
                f"transaction {txn.id} was aborted at its timeout of {txn.deadline_ms - txn.opened_ms:,} ms; run it"
                f" again, with a longer timeout if it needs one",
                reason=txn.reason,
            )
        if txn.reason == LEASE:
            return TransactionExpired(
                f"transaction {txn.id} was aborted because its client {txn.client!r} was silent for too long;"
                f" run it again",
                reason=txn.reason,
            )
        return TransactionAborted(
            f"transaction {txn.id} was aborted: {txn.reason}; nothing of it remains, run it again", reason=txn.reason
        )
    if txn.state is TxnState.COMMITTING and txn.commit_timestamp is not None:  # Decided: to others it is committed.
        return InvalidTransactionState(
            f"transaction {txn.id} is committed and cannot be {what}; begin a new one", state=txn.state
        )
    advice = "wait for its end" if not txn.state.has_ended else "begin a new one"
    return InvalidTransactionState(
        f"transaction {txn.id} is {txn.state} and cannot be {what}; {advice}", state=txn.state
    )
