"""The transactions of one coordinator in memory: found by id, by age, by deadline, by client.

What has ended is remembered for a while and in a bounded number, so that a repeated commit or abort gets its answer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from tidegate.errors import InvalidArgument, InvariantBroken, TransactionNotFound
from tidegate.txn.coordinator_records import Totals, Transaction, TxnState
from tidegate.txn.txn_id import TxnId

TIMEOUT: Final = "timeout"
"""Reason of an abort: the deadline passed."""
LEASE: Final = "lease"
"""Reason of an abort: its client was silent for too long."""

_SLACK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Keyword-only, immutable, checked when made."""

    timeout_default_ms: int = 60_000
    timeout_max_ms: int = 900_000
    active_max: int = 100_000
    """Transactions begun and not ended; more are refused."""
    participants_max: int = 10_000
    plan_bytes_max: int = 2 << 20
    """The commit plan of one transaction."""
    remember_ms: int = 900_000
    """For how long the outcome of an ended transaction is known, so that a repeated commit succeeds."""
    remembered_max: int = 100_000
    """Beyond this many, the ones that ended first are forgotten earlier."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"setting `{field.name}` is a number above zero, not {value!r}")
        if self.timeout_default_ms > self.timeout_max_ms:
            raise InvalidArgument(
                f"`timeout_default_ms` is at most `timeout_max_ms`, {self.timeout_max_ms:,},"
                f" not {self.timeout_default_ms:,}"
            )


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """A coordinator at one moment. The totals go back as far as the log and its snapshots do."""

    coordinator: int
    counts: dict[TxnState, int]
    """Every state; the two final ones count what is remembered."""
    oldest_open: TxnId | None
    oldest_opened_ms: int | None
    next_deadline_ms: int | None
    largest: int
    low_watermark: int
    begun: int
    committed: int
    aborted: int
    expired: int


class TransactionTable:
    """Where a coordinator keeps its transactions. It knows their order and their steps, and nothing of records.

    Invariants: a transaction is live or remembered, never both; both heaps stay in proportion to what is live.
    """

    def __init__(self, coordinator: int, settings: CoordinatorSettings | None = None) -> None:
        TxnId.make(coordinator, 1)  # refuses what is no coordinator
        self.coordinator: Final = coordinator
        self.settings: Final = settings or CoordinatorSettings()
        self._largest = 0
        self._live: dict[TxnId, Transaction] = {}
        self._ended: dict[TxnId, Transaction] = {}
        self._ended_order: deque[TxnId] = deque()
        self._ages: list[TxnId] = []
        """Heap of the live ids, and of some that have ended: those leave when they reach the top."""
        self._deadlines: list[tuple[int, TxnId]] = []
        """Heap of the open ones, and of some that are open no longer."""
        self._totals = Totals()

    # -- look ------------------------------------------------------------------------------------------------

    def get(self, id: TxnId) -> Transaction:
        """A transaction that is under way or remembered. Raises: `TransactionNotFound`."""
        txn = self._live.get(id) or self._ended.get(id)
        if txn is None:
            raise TransactionNotFound(self._why_unknown(id))
        return txn

    def outcome(self, id: TxnId) -> Transaction | None:
        """The transaction if it has ended, None while it has not. Raises: `TransactionNotFound`."""
        txn = self.get(id)
        return txn if txn.state.has_ended else None

    def transactions(self) -> Iterator[Transaction]:
        """Those under way, oldest first, then those remembered, in the order in which they ended."""
        yield from sorted(self._live.values(), key=lambda txn: txn.id)
        yield from [self._ended[id] for id in self._ended_order]

    def __len__(self) -> int:
        """Transactions it knows, live or remembered."""
        return len(self._live) + len(self._ended)

    def live(self) -> Iterator[Transaction]:
        """Those under way, in no particular order."""
        return iter(self._live.values())

    def ended(self, count: int | None = None) -> list[Transaction]:
        """Those remembered, the one that ended last first; at most `count`."""
        return [self._ended[id] for id in islice(reversed(self._ended_order), count)]

    @property
    def totals(self) -> Totals:
        """How many there have been."""
        return self._totals

    def status(self) -> CoordinatorStatus:
        """How many there are, and which is the oldest."""
        counts = Counter(txn.state for txn in (*self._live.values(), *self._ended.values()))
        oldest = min((txn for txn in self._live.values() if txn.state is TxnState.OPEN), key=_id_of, default=None)
        return CoordinatorStatus(
            coordinator=self.coordinator,
            counts={state: counts[state] for state in TxnState},
            oldest_open=None if oldest is None else oldest.id,
            oldest_opened_ms=None if oldest is None else oldest.opened_ms,
            next_deadline_ms=self.next_deadline_ms(),
            largest=self._largest,
            low_watermark=self.low_watermark,
            begun=self._totals.begun,
            committed=self._totals.committed,
            aborted=self._totals.aborted,
            expired=self._totals.expired,
        )

    # -- timeouts and leases ---------------------------------------------------------------------------------

    def expired(self, now_ms: int) -> list[TxnId]:
        """The open transactions whose deadline has come, earliest first.

        They are named again and again until they are aborted, so an abort that failed is not forgotten.
        """
        heap = self._deadlines
        late: list[tuple[int, TxnId]] = []
        while heap and heap[0][0] <= now_ms:
            entry = heappop(heap)
            if self._is_open(entry[1]) and (not late or late[-1] != entry):
                late.append(entry)
        for entry in late:
            heappush(heap, entry)
        return [id for _, id in late]

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of an open transaction, which may have passed; None while nothing is open."""
        heap = self._deadlines
        while heap and not self._is_open(heap[0][1]):
            heappop(heap)
        return heap[0][0] if heap else None

    def fail_client(self, client: str) -> list[TxnId]:
        """The open transactions of a client whose lease is gone, oldest first, for the caller to abort."""
        return sorted(
            id for id, txn in self._live.items() if client and txn.client == client and txn.state is TxnState.OPEN
        )

    # -- what has ended --------------------------------------------------------------------------------------

    @property
    def low_watermark(self) -> int:
        """A counter: every transaction of this coordinator at or below it has ended. 0 at first; never falls.

        Ordering: true once every record is folded; before, one that began early may still have its first record ahead.
        """
        ages = self._ages
        while ages and ages[0] not in self._live:
            heappop(ages)
        return ages[0].counter - 1 if ages else self._largest

    def forget(self, now_ms: int) -> int:
        """Drop the outcomes that ended `remember_ms` ago or earlier. Returns how many."""
        order, until = self._ended_order, now_ms - self.settings.remember_ms
        before = len(order)
        while order and self._ended[order[0]].ended_ms <= until:
            del self._ended[order.popleft()]
        return before - len(order)

    # -- change ----------------------------------------------------------------------------------------------

    def _add(self, txn: Transaction) -> None:
        self._live[txn.id] = txn
        self._largest = max(self._largest, txn.id.counter)
        self._totals.begun += 1
        heappush(self._ages, txn.id)
        if txn.state is TxnState.OPEN:
            heappush(self._deadlines, (txn.deadline_ms, txn.id))

    def _move(self, txn: Transaction, new: TxnState) -> None:
        if not txn.state.may_become(new):
            raise illegal(txn, new)
        txn.state = new

    def _end(self, txn: Transaction, now_ms: int) -> None:
        self._move(txn, ending_of(txn.state))
        txn.ended_ms = now_ms
        txn.plan = b""
        if txn.state is TxnState.COMMITTED:
            self._totals.committed += 1
        else:
            self._totals.aborted += 1
            self._totals.expired += txn.reason in (TIMEOUT, LEASE)
        del self._live[txn.id]
        self._remember(txn)
        self._shrink()

    def _remember(self, txn: Transaction) -> None:
        self._ended[txn.id] = txn
        self._ended_order.append(txn.id)
        while len(self._ended_order) > self.settings.remembered_max:
            del self._ended[self._ended_order.popleft()]

    def _shrink(self) -> None:
        """Keep the heaps in proportion to what is live: one old transaction must not make them grow for ever."""
        most = 2 * len(self._live) + _SLACK
        if len(self._ages) > most:
            self._ages = sorted(self._live)
        if len(self._deadlines) > most:
            self._deadlines = [(txn.deadline_ms, txn.id) for txn in self._live.values() if txn.state is TxnState.OPEN]
            heapify(self._deadlines)

    def _is_open(self, id: TxnId) -> bool:
        txn = self._live.get(id)
        return txn is not None and txn.state is TxnState.OPEN

    def _why_unknown(self, id: TxnId) -> str:
        if id.coordinator != self.coordinator:
            return (
                f"transaction {id} belongs to coordinator {id.coordinator}, and this is coordinator {self.coordinator};"
                f" ask that one"
            )
        if id.counter > self._largest:
            return f"transaction {id} was never begun: it is above every transaction of coordinator {self.coordinator}"
        return (
            f"transaction {id} is not known any more: it ended over {self.settings.remember_ms // 1000:,} s ago, or it"
            f" was open with nothing registered when coordinator {self.coordinator} restarted, or it was never begun"
        )


def ending_of(state: TxnState) -> TxnState:
    """Where a state that is neither open nor final leads."""
    return TxnState.COMMITTED if state is TxnState.COMMITTING else TxnState.ABORTED


def illegal(txn: Transaction, new: TxnState) -> InvariantBroken:
    """The error for a step that `TxnState.may_become` forbids."""
    return InvariantBroken(f"transaction {txn.id} is {txn.state} and cannot become {new}")


def _id_of(txn: Transaction) -> TxnId:
    return txn.id
