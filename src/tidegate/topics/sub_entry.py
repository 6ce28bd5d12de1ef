"""What a subscription keeps of a message it was fed and that is not acknowledged, and what it says to the outside.

             take                      ack            confirm
READY ───────────────▶ DELIVERED ───────────▶ ACKING ──────────▶ GONE
  ▲  ▲                  │  │  │                  │                ▲
  │  └── WAITING ◀──────┘  │  └─ ack_in_txn ▶ PENDING ── commit ──┘
  │     nack, delay        │                     │
  └────────────────────────┴──── abort ──────────┘   a count above the limit leads to DEAD instead of READY
    nack, redeliver, consumer gone
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidegate.topics.message_id import MessageId

READY: Final = 0
"""May be delivered."""
DELIVERED: Final = 1
"""A consumer has it."""
WAITING: Final = 2
"""Negatively acknowledged; READY when its delay is over."""
PENDING: Final = 3
"""A transaction that has not ended acknowledges it."""
ACKING: Final = 4
"""Acknowledged, and the record is on its way to the log."""
DEAD: Final = 5
"""Given back too often: never delivered again, waits to be moved to the dead-letter topic."""
GONE: Final = 6
"""Acknowledged."""


class Delivered(NamedTuple):
    """A message as a consumer gets it."""

    id: MessageId
    payload: Any
    redelivery_count: int
    """How often it was handed out and given back before, since the subscription was opened."""


class Consumer:
    """One connected consumer. A new one with the same name is another `Consumer`."""

    __slots__ = ("alive", "name", "unacked")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.alive = True
        self.unacked = 0
        """Messages in state DELIVERED that it holds."""


class Entry:
    """One message in memory.

    Invariant: `txn` is set only while PENDING, and only if the message is acknowledged by itself, not cumulatively.
    """

    __slots__ = ("consumer", "count", "due_ms", "flights", "id", "payload", "queued", "state", "txn")

    def __init__(self, id: MessageId, payload: Any, state: int) -> None:
        self.id = id
        self.payload = payload
        self.state = state
        self.consumer: Consumer | None = None
        """Who has it, or had it when it was acknowledged."""
        self.count = 0
        self.due_ms = 0
        self.flights = 0
        """Ordinary acknowledgements on their way to the log."""
        self.queued = False
        """Whether one of the queues knows it, though its state may have changed since."""
        self.txn: bytes | None = None

    @property
    def was_delivered(self) -> bool:
        return self.count > 0 or self.state != READY


class Run(Entry):
    """Acknowledged messages that follow each other, from `first` to `id`, kept as one."""

    __slots__ = ("first",)

    def __init__(self, first: MessageId, last: MessageId) -> None:
        super().__init__(last, None, GONE)
        self.first = first


@dataclass(slots=True, eq=False)
class Change:
    """An acknowledgement that is already in effect in memory and not yet in the log.

    Ordering: append `record`; then `Subscription.confirm(change)`, or `revert(change)` if it is known not to be in the
    log. With a transaction, append `commit_record` within it, so that it becomes visible with the commit.
    """

    record: bytes | None
    """None when everything was acknowledged before: there is nothing to append."""
    ids: tuple[MessageId, ...]
    """What it acknowledges; for a cumulative one, only the last."""
    txn: bytes | None = None
    commit_record: bytes | None = None
    cumulative: bool = False
    entries: list[Entry] | None = None
    """What is in flight; None once settled."""


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """A subscription at one moment."""

    name: str
    kind: str
    active: str | None
    """The consumer that receives, where only one does."""
    consumers: dict[str, int]
    """Unacknowledged messages in each consumer's hands."""
    backlog_in_memory: int
    """Fed and not acknowledged, whatever their state."""
    ready: int
    waiting: int
    pending: int
    """In memory and held by transactions."""
    pending_txns: tuple[bytes, ...]
    dead: int
    """In memory, not acknowledged, to be moved to the dead-letter topic."""
    acked_above_mark: int
    oldest_unacked: dict[int, MessageId]
    """Per shard, the first message in memory that is not acknowledged."""
    delivered_total: int
    redelivered_total: int
    acknowledged_total: int
    dead_total: int
