"""`Sessions`: the transactions that are open in one channel, and how they are found again after a restart.

Promises: a session is forgotten, and `on_end` called for it, exactly once; a tick costs nothing for sessions that
neither end nor expire; what is kept is bounded by the number of sessions that are open.

Pure: time comes in as TimeTicks. The caller holds the channel's lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from tidegate.errors import (
    Backpressure,
    Closed,
    InvalidArgument,
    InvalidTransactionState,
    InvariantBroken,
    TransactionExpired,
)
from tidegate.log.batch import BODY_SCHEMA, Batch
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType
from tidegate.txn.session import (
    KEEPALIVE_MS_DEFAULT,
    NEVER,
    RUNS_MAX,
    Session,
    aborted,
    checked_keepalive,
    decode_begin,
)

SESSIONS_MAX: Final = 100_000
_REMEMBERED_MAX: Final = 1_024
_SLACK: Final = 64

_Heap = list[tuple[int, bytes]]


class Sessions:
    """All sessions of one channel that are not over, and those whose end no tick has covered yet."""

    def __init__(
        self,
        channel: str,
        *,
        keepalive_ms_default: int = KEEPALIVE_MS_DEFAULT,
        sessions_max: int = SESSIONS_MAX,
        session_runs_max: int = RUNS_MAX,
        on_end: Callable[[Session], None] | None = None,
    ) -> None:
        self.channel: Final = channel
        self._keepalive_ms = checked_keepalive(keepalive_ms_default)
        self._sessions_max = sessions_max
        self._runs_max = session_runs_max
        self._on_end = on_end
        self._known: dict[bytes, Session] = {}
        # Heaps of (when or where, id). Entries are not removed when a session goes or renews its lease, but skipped
        # when they surface; they name ids, so that they keep no session's bodies in memory.
        self._by_expiry: _Heap = []
        self._by_position: _Heap = []
        self._by_end: _Heap = []
        self._recovered = 0
        self._failed: dict[bytes, tuple[str, int]] = {}
        """Why those failed last were, so that a client who asks later is told."""
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Session]:
        """In the order in which they began."""
        return iter(tuple(self._known.values()))

    # -- beginning and finding ---------------------------------------------------------------------------------

    def begin(self, txn: bytes, tick: int, keepalive_ms: int | None = 0, vchannel: str = ALL_VCHANNELS) -> Session:
        """A new session whose BEGIN is about to be written at `tick`.

        Ordering: `begun` of the session follows when its BEGIN is durable, or `begin_failed` here.
        Raises: `Closed`, `Backpressure`, `InvalidArgument`, `InvalidTransactionState` when the id is in use.
        """
        if self.is_closed:
            raise Closed(
                f"channel {self.channel!r} is closing and begins no transactions; open the log again to begin one"
            )
        if txn in self._known:
            state = self._known[txn].state
            raise InvalidTransactionState(
                f"transaction {txn.hex()} has begun already in channel {self.channel!r} and is {state.value};"
                f" use another id",
                state=state.name,
            )
        if len(self._known) >= self._sessions_max:
            raise Backpressure(
                f"channel {self.channel!r} has {len(self._known):,} open transactions, which is its limit;"
                f" wait until some have ended, or raise `sessions_max`"
            )
        if keepalive_ms == 0:
            keepalive_ms = self._keepalive_ms
        session = Session(txn, tick, keepalive_ms, vchannel, keeper=self, runs_max=self._runs_max)
        self._enter(session)
        return session

    def begin_failed(self, session: Session) -> None:
        """Its BEGIN is known not to be part of the log: forget it, unless that has happened already."""
        if session.first_position is not None:
            raise InvariantBroken(f"channel {self.channel!r}: {session} began at {session.first_position}")
        session.fail(session.begin_tick, "its BEGIN could not be written")
        if self._knows(session):
            self._forget(session)

    def get(self, txn: bytes) -> Session:
        """The session of a transaction.

        Raises: `TransactionAborted` when it was failed not long ago; `TransactionExpired` when it is not known here:
        never begun, ended, expired, or begun before a restart and gone since.
        """
        session = self._known.get(txn)
        if session is not None:
            return session
        failed = self._failed.get(txn)
        if failed is not None:
            raise aborted(txn, *failed)
        raise TransactionExpired(
            f"transaction {txn.hex()} is not known here, in channel {self.channel!r}: it has ended, has expired or"
            f" never began; ask for its outcome before you run it again",
            reason="not known here",
        )

    # -- the end of sessions -----------------------------------------------------------------------------------

    def cleanup_until(self, tick: int) -> list[Session]:
        """Forget what has ended by `tick`, and what has expired by then; the latter is returned, oldest lease first.

        Ordering: called before a tick at `tick` is appended. Nothing waits for the ROLLBACK messages that the
        caller writes for what is returned: they only spare a later recovery the wait for its expiry.
        """
        self._forget_ended(tick)
        expired, busy = [], []
        while self._by_expiry and self._by_expiry[0][0] <= tick:
            entry = heappop(self._by_expiry)
            session = self._known.get(entry[1])
            if session is None or session.has_ended:
                continue
            if session.expire(tick) and session.in_flight == 0:
                self._forget(session)
                expired.append(session)
            elif session.expiry_tick > tick:
                heappush(self._by_expiry, (session.expiry_tick, session.id))
            else:
                # A body or its end is on the way. That also holds the channel's watermark back, so there are few.
                busy.append(entry)
        for entry in busy:
            heappush(self._by_expiry, entry)
        return expired

    def fail_at(self, vchannel: str, tick: int, why: str) -> list[Session]:
        """Fail every open session that has written to `vchannel`, or all for `ALL_VCHANNELS`; those that were.

        Ordering: called after an exclusive append at `tick`, whatever its outcome, and before its lock is released.
        A session whose commit was accepted is not failed: its COMMIT may be part of the log already.
        """
        hit = []
        for session in self:
            if (vchannel == ALL_VCHANNELS or vchannel in session.vchannels) and session.fail(tick, why):
                self._forget(session)
                hit.append(session)
        return hit

    def rollback_all(self, tick: int, why: str) -> list[Session]:
        """End every session that is open or has expired; those are returned, for the caller to write their ROLLBACKs.

        What has ended by `tick` is forgotten; what is being committed or rolled back stays until it is.
        """
        self._forget_ended(tick)
        hit = []
        for session in self:
            if session.fail(tick, why) or session.expired:
                self._forget(session)
                hit.append(session)
        return hit

    def close(self) -> None:
        """Begin no more sessions. Those that are open may still end; `is_idle` says when all have."""
        self.is_closed = True

    @property
    def is_idle(self) -> bool:
        """Whether no session is left."""
        return not self._known

    # -- where the oldest begins -------------------------------------------------------------------------------

    @property
    def first_session(self) -> Session | None:
        """Of the unresolved sessions, the one that begins first in the log."""
        heap = self._by_position
        while heap:
            position, txn = heap[0]
            session = self._known.get(txn)
            if session is not None and session.first_position == position and not session.expired:
                return session
            heappop(heap)
        return None

    @property
    def first_position(self) -> int | None:
        """Reading from here misses no message of an unresolved session; None when there is none."""
        session = self.first_session
        return None if session is None else session.first_position

    # -- after a restart ---------------------------------------------------------------------------------------

    def recover(self, found: RecoveredSessions, tick: int) -> list[Session]:
        """Take over what was open at the end of the log, and expire what is too old at `tick`, the current one.

        Returns what has expired, as `cleanup_until` does.
        """
        for session in found.take():
            if session.id in self._known:
                raise InvariantBroken(f"channel {self.channel!r}: {session} was recovered though it is open here")
            session.adopt(self, self._runs_max)
            self._recovered += 1
            self._enter(session)
            self.began(session)
        return self.cleanup_until(tick)

    @property
    def recover_done(self) -> bool:
        """Whether every recovered session is gone."""
        return self._recovered == 0

    # -- told by sessions --------------------------------------------------------------------------------------

    def began(self, session: Session) -> None:
        """Its BEGIN is durable."""
        if session.first_position is not None and self._knows(session):
            heappush(self._by_position, (session.first_position, session.id))

    def ended(self, session: Session) -> None:
        """It was committed or rolled back. It is kept until a tick covers that, since it is not resolved before."""
        if session.end_tick is not None and self._knows(session):
            heappush(self._by_end, (session.end_tick, session.id))

    # -- inside ------------------------------------------------------------------------------------------------

    def _knows(self, session: Session) -> bool:
        return self._known.get(session.id) is session

    def _enter(self, session: Session) -> None:
        self._known[session.id] = session
        if session.expiry_tick < NEVER:
            heappush(self._by_expiry, (session.expiry_tick, session.id))

    def _forget_ended(self, tick: int) -> None:
        while self._by_end and self._by_end[0][0] <= tick:
            session = self._known.get(heappop(self._by_end)[1])
            if session is not None and session.has_ended:
                self._forget(session)

    def _forget(self, session: Session) -> None:
        del self._known[session.id]
        if session.recovered:
            self._recovered -= 1
        if session.failed:
            self._failed[session.id] = (session.failed, session.failed_tick)
            if len(self._failed) > _REMEMBERED_MAX:
                del self._failed[next(iter(self._failed))]
        self._compact(self._by_expiry)
        self._compact(self._by_position)
        if self._on_end is not None:
            self._on_end(session)

    def _compact(self, heap: _Heap) -> None:
        """One old session at the top would keep the entries of all that came and went behind it."""
        if len(heap) > 2 * len(self._known) + _SLACK:
            heap[:] = [entry for entry in heap if entry[1] in self._known]
            heapify(heap)


class RecoveredSessions:
    """Finds the sessions that are open at the end of a log: a fold over its raw messages in physical order.

    BEGIN opens a session, bodies extend it, COMMIT and ROLLBACK end it. An exclusive message (one that belongs to no
    transaction itself) ends those that have written to its virtual channel, as it did when it was appended. Messages
    of transactions without a BEGIN are passed over: they were written at once, or had begun before the place where
    reading began and were resolved by then. Nothing expires before `Sessions.recover` says what time it is.
    """

    def __init__(self) -> None:
        self._open: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._open.values()))

    def fold(self, message: Message) -> None:
        """Take the next message."""
        body = message.body
        tick, position = int(message.time_tick), int(message.position)
        self._step(message.type, tick, position, message.vchannel, message.txn, body, 1, len(body or b""))

    def fold_batch(self, batch: Batch) -> None:
        """Take the next messages, in physical order. Costs nothing for a batch without transactions and DDL."""
        exclusive = batch.types == MessageType.DDL
        if batch.txns is None:
            if not exclusive.any():
                return
            ids = np.zeros((len(batch), 2), np.uint64)
        else:
            ids = np.ascontiguousarray(batch.txns).view(np.uint64).reshape(-1, 2)
        places = np.flatnonzero(ids.any(axis=1) | exclusive)
        if not len(places):
            return
        # Bodies of one transaction that lie side by side in one virtual channel are taken in one step.
        kinds, vchannels, positions = batch.types[places], batch.vchannel_ids[places], batch.positions[places]
        single = np.isin(kinds, _ALONE)
        new = np.ones(len(places), np.bool_)
        new[1:] = (
            single[1:]
            | single[:-1]
            | (ids[places[1:]] != ids[places[:-1]]).any(axis=1)
            | (vchannels[1:] != vchannels[:-1])
            | (positions[1:] != positions[:-1] + 1)
            | (places[1:] != places[:-1] + 1)
        )
        starts = np.flatnonzero(new).tolist()
        is_bytes = batch.rows.schema.equals(BODY_SCHEMA)
        for start, stop in zip(starts, [*starts[1:], len(places)]):
            at, count = int(places[start]), stop - start
            kind = MessageType(int(kinds[start]))
            txn = ids[at].tobytes()
            begins = kind is MessageType.BEGIN and is_bytes
            self._step(
                kind,
                int(batch.time_ticks[at : at + count].max()),
                int(positions[start]),
                batch.vchannels[int(vchannels[start])],
                txn if any(txn) else None,
                batch.rows.column(0)[at].as_py() if begins else None,
                count,
                0 if single[start] else int(batch.rows.slice(at, count).nbytes),
            )

    def end(self, txn: bytes) -> None:
        """Leave out a transaction: its end is known from elsewhere."""
        self._open.pop(txn, None)

    def take(self) -> list[Session]:
        """Hand over what is open, in the order in which it began."""
        found = list(self._open.values())
        self._open = {}
        return found

    def _step(
        self,
        kind: MessageType,
        tick: int,
        position: int,
        vchannel: str,
        txn: bytes | None,
        body: bytes | None,
        count: int,
        nbytes: int,
    ) -> None:
        if txn is None:
            if kind.is_exclusive:
                self._drop(vchannel)
            return
        session = self._open.get(txn)
        match kind:
            case MessageType.BEGIN:
                # A BEGIN that was repeated because its outcome was not known changes nothing.
                if session is None:
                    try:
                        keepalive_ms = decode_begin(body or b"")
                    except InvalidArgument as error:
                        raise InvalidArgument(f"BEGIN of transaction {txn.hex()} at {position}: {error}") from error
                    session = Session(txn, tick, keepalive_ms, vchannel, recovered=True)
                    session.begun(position)
                    self._open[txn] = session
            case MessageType.COMMIT | MessageType.ROLLBACK:
                self._open.pop(txn, None)
            case _:
                if session is not None:
                    session.record(tick, position, count, nbytes, vchannel)

    def _drop(self, vchannel: str) -> None:
        for session in self:
            if vchannel == ALL_VCHANNELS or vchannel in session.vchannels:
                del self._open[session.id]


_ALONE: Final = np.array([MessageType.DDL, MessageType.BEGIN, MessageType.COMMIT, MessageType.ROLLBACK], np.uint8)
