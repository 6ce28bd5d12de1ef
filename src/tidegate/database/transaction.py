"""`Transaction`: what `db.transaction()` gives: messages and acknowledgements that count together, or not at all.

What it sends is kept until it commits, so that most transactions are one write; what is too much to keep is written
ahead. Leaving its `with` block commits it, an exception inside aborts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.clock.timestamp import Timestamp
from tidegate.database.outgoing import Key, Outgoing
from tidegate.errors import (
    Conflict,
    InvalidArgument,
    InvalidTransactionState,
    TidegateError,
    TransactionAborted,
    TransactionNotFound,
)
from tidegate.topics.routing import key_hash
from tidegate.txn.txn_id import TxnId

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.received import Received


class Transaction:
    """One transaction. Its calls may come from several threads; its end comes once."""

    __slots__ = (
        "_database", "_failed", "_lock", "_outgoing", "_used_owner", "commit_timestamp", "id", "life", "state",
        "timeout_ms",
    )  # fmt: skip

    def __init__(self, database: Database, id: TxnId, timeout_ms: int | None, life: int) -> None:
        self._database = database
        self.timeout_ms = timeout_ms
        self.life = life
        """Which connection to an owner it began in."""
        self._lock = Lock()
        self._outgoing: Outgoing | None = None
        self._failed: BaseException | None = None
        self._used_owner = False
        """The owner has heard of it since it began: its acknowledgements, reads or messages written ahead."""
        self.id = id
        self.commit_timestamp: Timestamp | None = None
        """Its place in time, once it is committed."""
        self.state = "OPEN"

    # -- what it does ----------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, *, key: Key | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Send a message with the transaction; or one for each row of an Arrow batch or table, `key` being a column.

        Raises: `NotFound`, `InvalidArgument`, `LimitExceeded`; `TransactionAborted` when messages had to be written
        ahead and it was ended from outside.
        """
        database = self._database
        found = database.topic(topic)
        with self._lock:
            self._check_open("send")
            if self._outgoing is None:
                self._outgoing = Outgoing(database.channels)
            self._outgoing.add(found, value, key=key, headers=headers, turn=database.next_turn())
            ahead = (
                self._outgoing.take() if self._outgoing.nbytes > database.settings.transaction_buffer_bytes else None
            )
        if ahead is not None:
            self._used_owner = True
            self._ask(lambda: database.backend.write_ahead(self.id, ahead))

    def ack(self, messages: Received | Sequence[Received]) -> None:
        """Acknowledge messages if the transaction commits. Nobody else gets or acknowledges them meanwhile.

        Raises: `Conflict` when another transaction was faster; the transaction can then only be aborted.
        """
        self._ack([messages] if not isinstance(messages, Sequence) else messages, cumulative=False)

    def ack_cumulative(self, message: Received) -> None:
        """As `ack`, for everything in the message's shard up to it."""
        self._ack([message], cumulative=True)

    def _ack(self, messages: Sequence[Received], *, cumulative: bool) -> None:
        with self._lock:
            self._check_open("acknowledge")
            self._used_owner = True
        for consumer, ids in self._database.by_consumer(messages):
            self._ask(
                lambda consumer=consumer, ids=ids: self._database.backend.ack(
                    consumer, ids, cumulative=cumulative, txn=self.id
                )
            )

    def read(self, table: str, keys: Iterable[Key]) -> Timestamp:
        """Note that these keys are read. Its commit fails with `Conflict` when somebody else has written one since.

        Returns the Timestamp as of which it reads, the same for all its reads.
        """
        hashes = [key_hash(table, key) for key in keys]
        with self._lock:
            self._check_open("read")
            self._used_owner = True
        found: Timestamp = self._ask(lambda: self._database.backend.note_read(self.id, hashes, table))
        return found

    # -- its end ---------------------------------------------------------------------------------------------

    def commit(self) -> Timestamp:
        """Make all of it visible at once; its commit Timestamp. May be repeated after a lost answer.

        Raises: `Conflict`, `TransactionAborted`, `TransactionExpired`: nothing of it remains, run it again.
        `OutcomeUnknown`: nobody could be asked; call it again to learn the outcome.
        """
        if self.state == "COMMITTED" and self.commit_timestamp is not None:
            raise InvalidTransactionState(f"transaction {self.id} was committed already", state=self.state)
        self._prepare_commit()
        outgoing = self._outgoing
        writes = outgoing.writes() if outgoing is not None else {}
        keys = outgoing.hashes if outgoing is not None else ()
        try:
            self._ended(self._database.commit(self, writes, keys))
        except (Conflict, TransactionAborted):
            self.state = "ABORTED"
            raise
        return self._timestamp()

    async def commit_async(self) -> Timestamp:
        """`commit` for asyncio: the event loop goes on meanwhile."""
        if self._database.backend.is_owner:
            self._prepare_commit()
            outgoing = self._outgoing
            writes = outgoing.writes() if outgoing is not None else {}
            try:
                self._ended(await self._database.commit_async(self, writes, outgoing.hashes if outgoing else ()))
            except (Conflict, TransactionAborted):
                self.state = "ABORTED"
                raise
            return self._timestamp()
        return await asyncio.to_thread(self.commit)

    def _prepare_commit(self) -> None:
        with self._lock:
            if self.state != "COMMITTING":
                self._check_open("commit")
            failed = self._failed
            if failed is None:
                self.state = "COMMITTING"
        if failed is not None:
            self.abort()
            raise TransactionAborted(
                f"transaction {self.id} was aborted because a part of it had failed: {failed}; run it again",
                reason=str(failed),
            ) from failed

    def _ended(self, timestamp: Timestamp) -> None:
        self.commit_timestamp = timestamp
        self.state = "COMMITTED"
        self._outgoing = None
        self._database.seen(timestamp)

    def _timestamp(self) -> Timestamp:
        return self.commit_timestamp or Timestamp.ZERO

    def abort(self) -> None:
        """End it without effect. May be repeated."""
        with self._lock:
            if self.state == "ABORTED":
                return
            if self.state == "COMMITTED":
                raise InvalidTransactionState(f"transaction {self.id} is committed; begin a new one", state=self.state)
        try:
            self._database.again(lambda: self._database.backend.abort(self.id))
        except TransactionNotFound:
            if self.life == self._database.life:
                raise  # Else its owner died, and with it the transaction.
        self.state = "ABORTED"
        self._outgoing = None

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self.state == "OPEN":
                self.commit()
            return
        if self.state in ("OPEN", "COMMITTING"):
            try:
                self.abort()
            except TidegateError as failed:
                # What was raised inside matters more; an open transaction is aborted at its timeout anyway.
                if error is not None:
                    error.add_note(f"transaction {self.id} could not be aborted now: {failed}")

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.state == "OPEN":
            await self.commit_async()
        else:
            await asyncio.to_thread(self.__exit__, kind, error, trace)

    @property
    def is_known_to_owner(self) -> bool:
        """Whether the owner's log may know it."""
        return self._used_owner

    def begin_again(self, id: TxnId, life: int) -> None:
        """Go on under another id: the owner died before it had heard of this one, and nothing of it was written."""
        self.id, self.life = id, life

    # -- inside ----------------------------------------------------------------------------------------------

    def _check_open(self, what: str) -> None:
        if self.state != "OPEN":
            raise InvalidTransactionState(
                f"transaction {self.id} is {self.state} and cannot {what}; begin a new one", state=self.state
            )

    def _ask(self, call: Any) -> Any:
        """A call to the owner; if it fails, the transaction cannot be committed any more."""
        try:
            return self._database.for_transaction(self, call)
        except InvalidArgument:
            raise  # Nothing was done, and nothing is missing.
        except TidegateError as error:
            self._failed = error
            raise
