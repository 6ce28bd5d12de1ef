"""`Backend`: what a `Database` asks of whoever owns the data: this process, or another one through a socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tidegate.catalog.entries import Topic
from tidegate.clock.timestamp import Timestamp
from tidegate.database.live_transactions import Keys, Writes
from tidegate.database.read_gate import ReadAsk, ReadPlace
from tidegate.database.received import Received
from tidegate.database.transaction_runs import Member
from tidegate.tables.schema import Table
from tidegate.topics.message_id import MessageId
from tidegate.txn.txn_id import TxnId


class Limits(NamedTuple):
    """What the owner takes from its clients."""

    buffer_bytes: int = 1 << 20
    """What a transaction gathers before its messages are written ahead."""
    message_bytes: int = 16 << 20
    batch_rows: int = 1 << 17
    batch_bytes: int = 64 << 20
    timeout_ms: int = 60_000
    """How long a transaction may stay open that does not ask for another time."""


class Backend(Protocol):
    """Calls for one client. Every one of them may raise what the owner raises."""

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the database."""

    @property
    def channels(self) -> int:
        """How many channels data is spread over."""

    @property
    def limits(self) -> Limits:
        """What it takes."""

    def execute(self, sql: str) -> list[dict[str, Any]]: ...

    def change_behind(self, guard: TxnId, sql: str, read_at: Timestamp | None) -> None: ...

    def topic(self, name: str) -> Topic: ...

    def table(self, name: str, at: Timestamp | None = None) -> Table: ...

    def flush(self, timeout_s: float) -> Timestamp: ...

    def pause_pipeline(self, paused: bool) -> None: ...

    def set_barriers(self, interval_ms: int, checkpoint_every: int) -> None: ...

    @property
    def database_id(self) -> bytes:
        """16 bytes, chosen when the database was created."""

    def now(self) -> Timestamp:
        """A Timestamp above all that was handed out before."""

    def begin_read(self, ask: ReadAsk) -> ReadPlace: ...

    # Transactions

    def begin(self, timeout_ms: int | None) -> TxnId: ...

    def commit(self, id: TxnId, writes: Writes, keys: Keys, read_at: Timestamp | None) -> Timestamp: ...

    def commit_run(self, guard: TxnId, members: Sequence[Member], read_at: Timestamp | None) -> list[Timestamp]: ...

    def write_ahead(self, id: TxnId, writes: Writes) -> None: ...

    def note_read(self, id: TxnId, hashes: Sequence[int], table: str) -> Timestamp: ...

    def abort(self, id: TxnId, reason: str = "") -> None: ...

    def find_commit(self, id: TxnId) -> Timestamp | None: ...

    def transactions(self, finished: int | None = None) -> list[dict[str, Any]]: ...

    # Topics

    def open_producer(self, topic: str, name: str) -> tuple[int, int | None]: ...

    def produce(
        self, topic: str, producer: str, epoch: int, first: int, count: int, writes: Writes, keys: Keys
    ) -> tuple[Timestamp | None, bool]: ...

    # Subscriptions

    def subscribe(self, topic: str, name: str, options: dict[str, Any]) -> str: ...

    def unsubscribe(self, topic: str, name: str) -> None: ...

    def receive(self, consumer: str, max_messages: int, timeout_s: float) -> list[Received]: ...

    def ack(self, consumer: str, ids: Sequence[MessageId], *, cumulative: bool, txn: TxnId | None) -> None: ...

    def nack(self, consumer: str, ids: Sequence[MessageId], delay_ms: int) -> None: ...

    def redeliver(self, consumer: str) -> None: ...

    def disconnect(self, consumer: str) -> None: ...

    def subscription_stats(self, topic: str, name: str) -> dict[str, Any]: ...

    # The whole

    def status(self) -> dict[str, Any]: ...

    def close(self) -> None: ...
