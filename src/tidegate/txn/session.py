"""`Session`: the part of one transaction that lives in one channel while its bodies are written ahead of the commit.

    IN_FLIGHT ──request_commit──▶ ON_COMMIT ──commit_done──▶ COMMITTED
        │  ▲                       │     │
        │  └─────commit_failed─────┘     └──reject_commit──▶ ROLLED_BACK
        └──request_rollback──▶ ON_ROLLBACK ──rollback_done──────▲

Beside its state a session that is IN_FLIGHT may *expire* (no body for as long as its keepalive) or be *failed* (by an
exclusive append); both are for ever, and from then on it takes neither bodies nor a commit. A commit that was accepted
can no longer expire or be failed: it may be part of the log.

Pure: TimeTicks and positions come in as arguments. The caller holds the channel's lock around every call.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from struct import Struct
from typing import Final, Protocol

from tidegate.clock.timestamp import LOGICAL_BITS, PHYSICAL_MS_MAX, Timestamp
from tidegate.errors import (
    InvalidArgument,
    InvalidTransactionState,
    InvariantBroken,
    LimitExceeded,
    TransactionAborted,
    TransactionExpired,
)
from tidegate.log.message import ALL_VCHANNELS

KEEPALIVE_MS_DEFAULT: Final = 10_000
RUNS_MAX: Final = 100_000
"""How many runs of bodies one session may hold: its commit marker names them all."""
NEVER: Final = 1 << 64
"""Above every TimeTick: the expiry of a session that does not expire."""

BEGIN_VERSION: Final = 1
_BEGIN: Final = Struct("<BQ")
_INFINITE: Final = (1 << 64) - 1


class SessionState(Enum):
    """How far a session has come; the module's picture shows the ways between them."""

    IN_FLIGHT = "in flight"
    ON_COMMIT = "committing"
    COMMITTED = "committed"
    ON_ROLLBACK = "rolling back"
    ROLLED_BACK = "rolled back"


class Keeper(Protocol):
    """Who is told of a session's beginning and end: the `Sessions` of its channel."""

    def began(self, session: Session) -> None: ...

    def ended(self, session: Session) -> None: ...


class Session:
    """One transaction in one channel.

    Invariants: bodies are taken only while IN_FLIGHT; COMMITTED, ROLLED_BACK, `expired` and `failed` are final;
    `runs` ascend and neither overlap nor touch; `last_tick` never goes back.
    """

    __slots__ = (
        "_highest_tick",
        "_keeper",
        "_runs_max",
        "begin_tick",
        "count",
        "end_tick",
        "expired",
        "failed",
        "failed_tick",
        "first_position",
        "id",
        "in_flight",
        "keepalive_ms",
        "last_tick",
        "nbytes",
        "recovered",
        "runs",
        "state",
        "vchannels",
    )

    def __init__(
        self,
        txn: bytes,
        begin_tick: int,
        keepalive_ms: int | None = 0,
        vchannel: str = ALL_VCHANNELS,
        *,
        keeper: Keeper | None = None,
        recovered: bool = False,
        runs_max: int = RUNS_MAX,
    ) -> None:
        """`begin_tick` is the TimeTick of the BEGIN message, which is yet to be written.

        Raises: `InvalidArgument` for an id that is not 16 bytes or a keepalive below 1 ms.
        """
        if len(txn) != 16 or not any(txn):
            raise InvalidArgument(f"a transaction id is 16 bytes, not all of them zero; this one is {txn.hex()!r}")
        self.id: Final = txn
        self.keepalive_ms: Final = checked_keepalive(keepalive_ms)
        self.begin_tick: Final = begin_tick
        self.recovered: Final = recovered
        """Found in the log after a restart."""
        self.state = SessionState.IN_FLIGHT
        self.last_tick = begin_tick
        """Of the last body known to be durable; the lease counts from here."""
        self.end_tick: int | None = None
        """Of its COMMIT or ROLLBACK, from the moment that one is requested."""
        self.expired = False
        self.failed = ""
        """Why it was failed from outside; empty when it was not."""
        self.failed_tick = 0
        self.in_flight = 0
        self.first_position: int | None = None
        """Of its BEGIN, the first message it has."""
        self.runs: list[tuple[int, int]] = []
        """Where its bodies lie, as (first position, count)."""
        self.count = 0
        self.nbytes = 0
        self.vchannels: set[str] = set()
        """Virtual channels it has begun or tried to write in."""
        if vchannel != ALL_VCHANNELS:
            self.vchannels.add(vchannel)
        self._highest_tick = begin_tick
        self._keeper = keeper
        self._runs_max = runs_max

    # -- what it says of itself --------------------------------------------------------------------------------

    @property
    def expiry_tick(self) -> int:
        """The first TimeTick that comes too late; `NEVER` when the coordinator decides how long it lives."""
        if self.keepalive_ms is None:
            return NEVER
        return min(self.last_tick + (self.keepalive_ms << LOGICAL_BITS), NEVER)

    @property
    def has_ended(self) -> bool:
        """Committed or rolled back."""
        return self.state is SessionState.COMMITTED or self.state is SessionState.ROLLED_BACK

    @property
    def is_open(self) -> bool:
        """Whether it still takes bodies, a commit or a rollback, as far as is known without looking at the time."""
        return self.state is SessionState.IN_FLIGHT and not self.expired and not self.failed

    @property
    def is_ready(self) -> bool:
        """Its end was requested and no body is on its way: the COMMIT or ROLLBACK may be written."""
        return self.in_flight == 0 and self.state in (SessionState.ON_COMMIT, SessionState.ON_ROLLBACK)

    def is_resolved(self, confirmed: int) -> bool:
        """Whether nothing at a TimeTick above `confirmed` will still be assembled from its messages.

        Invariant: once true it stays true for the same or a larger `confirmed`.
        """
        if self.expired or self.failed:
            return True
        if self.has_ended:
            return self.end_tick is not None and self.end_tick <= confirmed
        # Saying yes is a promise, not an observation: LastConfirmedMessageID moves behind this session's messages, and
        # readers will start there. Were a body or commit accepted afterwards (an older TimeTick presented late, a lease
        # renewed by a body that was still being written), they would miss the transaction. So the answer is
        # made sticky here: whoever comes now is refused, whatever TimeTick he has.
        return self.expire(confirmed)

    def expire(self, tick: int) -> bool:
        """Whether it has expired at `tick`; if so, it is so for ever.

        A body on its way holds that off, since it renews the lease once it is durable, and its
        TimeTick was in time. So does a commit or rollback that was accepted.
        """
        if not self.expired and self.is_open and self.in_flight == 0 and tick >= self.expiry_tick:
            self.expired = True
        return self.expired

    def adopt(self, keeper: Keeper, runs_max: int) -> None:
        """Belong to `keeper` from now on: it was found in the log before there was one."""
        self._keeper = keeper
        self._runs_max = runs_max

    # -- bodies ------------------------------------------------------------------------------------------------

    def begun(self, position: int) -> None:
        """Its BEGIN is durable at `position`."""
        if self.first_position is not None:
            raise InvariantBroken(f"{self}: its BEGIN was written twice, at {self.first_position} and {position}")
        self.first_position = position
        if self._keeper is not None:
            self._keeper.began(self)

    def add(self, tick: int, vchannel: str) -> None:
        """A body, or a run of them from TimeTick `tick` on, is about to be written to `vchannel`.

        Ordering: called before the write; `done` or `fail_body` follows exactly once.
        Raises: `TransactionExpired`, `TransactionAborted`, `InvalidTransactionState`, `LimitExceeded`.
        """
        self._check_open(tick, "take another message")
        if tick <= self.begin_tick:
            raise InvariantBroken(f"{self}: TimeTick {tick} of a body is not above {self.begin_tick} of its BEGIN")
        if len(self.runs) + self.in_flight >= self._runs_max:
            places = f"the number of separate places in the log that transaction {self.id.hex()} has written to"
            raise LimitExceeded(places, len(self.runs) + self.in_flight + 1, self._runs_max, "session_runs_max")
        self.in_flight += 1
        self._highest_tick = max(self._highest_tick, tick)
        if vchannel != ALL_VCHANNELS:
            self.vchannels.add(vchannel)

    def done(self, tick: int, position: int, count: int = 1, nbytes: int = 0) -> None:
        """What was added is durable: `count` messages from `position` on, the last of them at TimeTick `tick`."""
        self._landed()
        if self.first_position is None:
            raise InvariantBroken(f"{self}: a body was written at {position} before its BEGIN")
        self.record(tick, position, count, nbytes)

    def fail_body(self) -> None:
        """What was added is known not to be part of the log. The lease is not renewed."""
        self._landed()

    def record(self, tick: int, position: int, count: int, nbytes: int, vchannel: str = ALL_VCHANNELS) -> None:
        """Note bodies that are part of the log, and renew the lease."""
        if count < 1:
            raise InvariantBroken(f"{self}: a run of {count} bodies at {position}")
        self._enter_run(position, count)
        self.count += count
        self.nbytes += nbytes
        self.last_tick = max(self.last_tick, tick)
        self._highest_tick = max(self._highest_tick, tick)
        if vchannel != ALL_VCHANNELS:
            self.vchannels.add(vchannel)

    # -- its end -----------------------------------------------------------------------------------------------

    def request_commit(self, tick: int) -> bool:
        """Take no more bodies; the COMMIT will be written at or above `tick`. Whether bodies are still on their way.

        Ordering: the COMMIT is written once `is_ready`. The caller holds the channel's watermark below `tick`, and the
        locks that keep exclusive appends out of its virtual channels, until `commit_done`.
        Raises: `TransactionExpired`, `TransactionAborted`, `InvalidTransactionState`.
        """
        self._check_open(tick, "be committed")
        if tick <= self._highest_tick:
            raise InvariantBroken(f"{self}: TimeTick {tick} of its COMMIT is not above {self._highest_tick} of a body")
        self.state = SessionState.ON_COMMIT
        self.end_tick = tick
        return self.in_flight > 0

    def commit_done(self, tick: int) -> None:
        """The COMMIT at `tick` is part of the log, or may be: an outcome that is not known counts as committed."""
        self._require_ready(SessionState.ON_COMMIT, "commit_done")
        if self.end_tick is None or tick < self.end_tick or tick <= self._highest_tick:
            raise InvariantBroken(f"{self}: it was committed at {tick}, requested at {self.end_tick}")
        self._end(SessionState.COMMITTED, tick)

    def commit_failed(self) -> None:
        """The COMMIT is known not to be part of the log, or nobody waits to write it: it may be requested again."""
        if self.state is not SessionState.ON_COMMIT:
            raise InvariantBroken(f"{self}: commit_failed while {self.state.value}")
        self.state = SessionState.IN_FLIGHT
        self.end_tick = None

    def reject_commit(self) -> None:
        """The commit was refused, and no COMMIT was written."""
        self._require_ready(SessionState.ON_COMMIT, "reject_commit")
        self._end(SessionState.ROLLED_BACK, self.end_tick)

    def request_rollback(self, tick: int) -> bool:
        """Take no more bodies; the ROLLBACK will be written at `tick`. Whether bodies are still on their way.

        Raises: `TransactionExpired`, `TransactionAborted`, `InvalidTransactionState`.
        """
        self._check_open(tick, "be rolled back")
        self.state = SessionState.ON_ROLLBACK
        self.end_tick = tick
        return self.in_flight > 0

    def rollback_done(self) -> None:
        """The ROLLBACK was written, or could not be: without it the bodies are never assembled either."""
        self._require_ready(SessionState.ON_ROLLBACK, "rollback_done")
        self._end(SessionState.ROLLED_BACK, self.end_tick)

    def fail(self, tick: int, why: str) -> bool:
        """End it from outside, because of what happened at `tick`. Whether it did: only an open session can be."""
        if not self.is_open:
            return False
        self.failed = why or "ended from outside"
        self.failed_tick = tick
        return True

    # -- inside ------------------------------------------------------------------------------------------------

    def _check_open(self, tick: int, do: str) -> None:
        if self.failed:
            raise aborted(self.id, self.failed, self.failed_tick)
        # Unlike `expire`, a body on its way does not help here: a call that comes this late is refused.
        if self.state is SessionState.IN_FLIGHT and tick >= self.expiry_tick:
            self.expired = True
        if self.expired:
            raise TransactionExpired(
                f"transaction {self.id.hex()} cannot {do}: it was silent for longer than its keepalive of"
                f" {self.keepalive_ms:,} ms after {_when(self.last_tick)}; run it again, or begin it with a longer one",
                reason="expired",
            )
        if self.state is not SessionState.IN_FLIGHT:
            raise InvalidTransactionState(
                f"transaction {self.id.hex()} cannot {do}: it is {self.state.value}; begin a new one",
                state=self.state.name,
            )

    def _landed(self) -> None:
        if self.in_flight < 1:
            raise InvariantBroken(f"{self}: a body ended that was not on its way")
        self.in_flight -= 1

    def _require_ready(self, state: SessionState, call: str) -> None:
        if self.state is not state or self.in_flight:
            raise InvariantBroken(f"{self}: {call} while {self.state.value} with {self.in_flight} bodies on their way")

    def _end(self, state: SessionState, tick: int | None) -> None:
        self.state = state
        self.end_tick = tick
        if self._keeper is not None:
            self._keeper.ended(self)

    def _enter_run(self, first: int, count: int) -> None:
        """Bodies written side by side come back in any order, so a run may belong anywhere."""
        runs = self.runs
        at = len(runs) if not runs or runs[-1][0] < first else bisect_left(runs, (first, 0))
        end = first + count
        start = at
        if at > 0:
            before, length = runs[at - 1]
            if before + length > first:
                raise InvariantBroken(f"{self}: two bodies at position {first}")
            if before + length == first:
                start, first = at - 1, before
        if at < len(runs):
            after, length = runs[at]
            if after < end:
                raise InvariantBroken(f"{self}: two bodies at position {after}")
            if after == end:
                at, end = at + 1, end + length
        runs[start:at] = [(first, end - first)]

    def __repr__(self) -> str:
        return f"transaction {self.id.hex()}"


def checked_keepalive(keepalive_ms: int | None, default: int = KEEPALIVE_MS_DEFAULT) -> int | None:
    """The keepalive to use: 0 means the default, None means that it never expires by itself.

    Raises: `InvalidArgument` for less than a millisecond or more than the timeline holds.
    """
    if keepalive_ms is None:
        return None
    if keepalive_ms == 0:
        return default
    if not isinstance(keepalive_ms, int) or not 1 <= keepalive_ms <= PHYSICAL_MS_MAX:
        raise InvalidArgument(
            f"a transaction's keepalive is a whole number of milliseconds, at least 1, not {keepalive_ms};"
            f" use 0 for the default of {default:,} ms"
        )
    return keepalive_ms


def encode_begin(keepalive_ms: int | None) -> bytes:
    """The body of a BEGIN message: u8 version, u64 keepalive in milliseconds (all ones for none), little endian."""
    keepalive_ms = checked_keepalive(keepalive_ms)
    return _BEGIN.pack(BEGIN_VERSION, _INFINITE if keepalive_ms is None else keepalive_ms)


def decode_begin(body: bytes | memoryview) -> int | None:
    """The keepalive that a BEGIN message carries. What this version adds later stands behind it and is skipped here.

    Raises: `InvalidArgument` when it is no BEGIN body, or one of a version that is not known here.
    """
    if len(body) < _BEGIN.size:
        raise InvalidArgument(f"the body of a BEGIN message has at least {_BEGIN.size} bytes, not {len(body)}")
    version, keepalive_ms = _BEGIN.unpack_from(body)
    if version != BEGIN_VERSION:
        raise InvalidArgument(
            f"the body of a BEGIN message has version {version}, and only {BEGIN_VERSION} is known here;"
            f" open the log with the newest Tidegate that has written to it"
        )
    if keepalive_ms == _INFINITE:
        return None
    if keepalive_ms == 0:
        raise InvalidArgument("the body of a BEGIN message has a keepalive of 0 ms, which is never written")
    return checked_keepalive(keepalive_ms)


def aborted(txn: bytes, why: str, tick: int) -> TransactionAborted:
    """The error for a transaction that was failed from outside at `tick`."""
    return TransactionAborted(
        f"transaction {txn.hex()} was ended at {_when(tick)}: {why}; nothing of it remains, run it again", reason=why
    )


def _when(tick: int) -> str:
    return f"{Timestamp(tick)} (TimeTick {tick})"
