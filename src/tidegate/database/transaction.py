"""`Transaction`: what `db.transaction()` gives: messages and acknowledgements that count together, or not at all.

What it sends is kept until it commits, so that most transactions are one write; what is too much to keep is written
ahead. Leaving its `with` block commits it, an exception inside aborts it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.catalog.entries import Topic
from tidegate.clock.timestamp import Timestamp
from tidegate.database.consumer import by_consumer
from tidegate.database.live_transactions import Keys, Writes
from tidegate.database.outgoing import Key, Outgoing
from tidegate.database.transaction_runs import Member
from tidegate.errors import (
    Conflict,
    InvalidArgument,
    InvalidTransactionState,
    OutcomeUnknown,
    Retryable,
    SchemaMismatch,
    TidegateError,
    TransactionAborted,
    TransactionExpired,
    TransactionNotFound,
    Unavailable,
)
from tidegate.log.batch import Batch
from tidegate.runtime.steps import Gate
from tidegate.tables.schema import Table
from tidegate.topics.routing import key_hash
from tidegate.txn.coordinator_table import TIMEOUT
from tidegate.txn.txn_id import TxnId

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.received import Received
    from tidegate.database.result import Result
    from tidegate.reads.params import Params


class Transaction:
    """One transaction. Its calls may come from several threads; its end comes once."""

    __slots__ = (
        "_database", "_deadline_s", "_failed", "_idle", "_lock", "_outgoing", "_under_way", "_used_owner",
        "_writing_ahead", "commit_timestamp", "id", "life", "on_commit", "read_at", "state", "timeout_ms",
    )  # fmt: skip

    def __init__(self, database: Database, id: TxnId, timeout_ms: int | None, life: int) -> None:
        self._database = database
        self.timeout_ms = timeout_ms
        self.life = life
        """Which connection to an owner it began in."""
        self._lock = Lock()
        """Covers all below."""
        self._under_way = 0
        """Calls to the owner that belong to it; its end waits for them."""
        self._idle: Gate | None = None
        """Opened when none is under way any more, if somebody waits for that."""
        self._writing_ahead: Lock | None = None
        """Held by the one thread that writes ahead, so that messages are written in the order they were sent."""
        limits = database.limits
        self._deadline_s = time.monotonic() + (limits.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        """Not before the owner's, which began to count earlier."""
        self._outgoing: Outgoing | None = None
        self._failed: BaseException | None = None
        self._used_owner = False
        """The owner has heard of it since it began: its acknowledgements, reads or messages written ahead."""
        self.id = id
        self.read_at: Timestamp | None = None
        """As of when it reads, if it has read."""
        self.commit_timestamp: Timestamp | None = None
        """Its place in time, once it is committed."""
        self.on_commit: Callable[[Timestamp], None] | None = None
        """Told of its commit Timestamp."""
        self.state = "OPEN"

    # -- what it does ----------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, *, key: Key | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Send a message with the transaction; or one for each row of an Arrow batch or table, `key` being a column.

        Raises: `NotFound`, `InvalidArgument`, `LimitExceeded`: it goes on without the message; `TransactionAborted`
        when messages had to be written ahead and it was ended from outside.
        """
        if self._add(self._database.topic(topic), value, key, headers):
            self._write_ahead()

    async def send_async(
        self, topic: str, value: Any, *, key: Key | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """`send` for asyncio: the event loop goes on while messages are written ahead."""
        database = self._database
        found = database.topic(topic) if database.backend.is_owner else await asyncio.to_thread(database.topic, topic)
        if self._add(found, value, key, headers):
            # Cancelled, it is written all the same: the message was taken, and its end waits for it.
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._write_ahead)))

    def insert(self, table: str, rows: Any) -> int:
        """Write rows of a table: dicts, tuples, a pandas or Polars DataFrame, Arrow; how many they were.

        A row whose key is there already replaces it.
        Raises: `NotFound`, `InvalidArgument` naming column and row: it goes on without them.
        """
        return self._write_rows(table, rows, delete=False)

    def upsert(self, table: str, rows: Any) -> int:
        """As `insert`, which replaces rows too: the name for whoever means it."""
        return self._write_rows(table, rows, delete=False)

    def delete(self, table: str, keys: Any) -> int:
        """End rows of a table by their keys: values, or tuples or dicts for a compound key; how many keys they were.

        A key that is not there is no error.
        """
        return self._write_rows(table, keys, delete=True)

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run INSERT, UPDATE or DELETE as part of the transaction; how many rows it wrote."""
        from tidegate.database.dml import run_in

        return run_in(self._database, self, statement)

    def query(self, sql: str, *, params: Params = None) -> Result:
        """The answer to a query at the Timestamp of the transaction's reads, its own rows on top.

        The same cut for all its queries. What it reads is not noted: `read` does that for keys whose change by somebody
        else must make the commit fail.
        """
        from tidegate.database.dml import read
        from tidegate.database.result import Result

        rows = read(self._database, self, sql, params=params)
        return Result(rows, self.read_at or self._database.last_seen)

    def _write_rows(self, table: str, rows: Any, *, delete: bool) -> int:
        found = self._database.table(table)
        count = 0

        def add(outgoing: Outgoing, turn: int) -> None:
            nonlocal count
            count = outgoing.add_rows(found, rows, delete=delete, turn=turn)

        if self._keep("write rows", add):
            self._write_ahead()
        return count

    def adopt(self, outgoing: Outgoing) -> None:
        """Take over what was gathered elsewhere. Ordering: before anything else is written with it."""
        with self._lock:
            self._check_open("write")
            self._outgoing = outgoing
            self._begin_call()
        self._write_ahead()

    def own_changes(self, table: Table) -> list[Batch]:
        """What it has written to a table and not committed.

        Raises: `InvalidTransactionState` when some of it was written ahead, and cannot be looked at any more.
        """
        with self._lock:
            if self._writing_ahead is not None:
                raise InvalidTransactionState(
                    f"transaction {self.id} has written more than it keeps in memory, and cannot read its own rows"
                    f" any more; read before, or raise `transaction_buffer_bytes`",
                    state=self.state,
                )
            return [] if self._outgoing is None else self._outgoing.batches_of(table)

    def _add(self, topic: Topic, value: Any, key: Key | None, headers: Mapping[str, str] | None) -> bool:
        """Keep a message; whether it has become so much that `_write_ahead` has to follow."""
        with self._lock:
            if self.state != "OPEN" or time.monotonic() > self._deadline_s:
                self._check_open("send")
            outgoing = self._outgoing
            if outgoing is None:
                database = self._database
                outgoing = self._outgoing = Outgoing(database.channels, database.limits)
            turn = 0 if topic.shards == 1 else self._database.next_turn()
            outgoing.add(topic, value, key, headers, turn)
            return outgoing.nbytes > outgoing.buffer_bytes and self._is_full(outgoing)

    def _keep(self, what: str, add: Callable[[Outgoing, int], None]) -> bool:
        """Let `add` put something into what goes out; whether `_write_ahead` has to follow."""
        database = self._database
        with self._lock:
            self._check_open(what)
            if self._outgoing is None:
                self._outgoing = Outgoing(database.channels, database.limits)
            add(self._outgoing, database.next_turn())
            return self._is_full(self._outgoing)

    def _is_full(self, outgoing: Outgoing) -> bool:
        if outgoing.nbytes <= outgoing.limits.buffer_bytes:
            return False
        self._begin_call()
        return True

    def _write_ahead(self) -> None:
        try:
            with self._lock:
                if self._writing_ahead is None:
                    self._writing_ahead = Lock()
            with self._writing_ahead:
                with self._lock:
                    ahead = self._outgoing.take() if self._outgoing is not None else {}
                if not ahead:
                    return  # Another thread took it along.
                try:
                    self._database.for_transaction(self, lambda: self._database.backend.write_ahead(self.id, ahead))
                except BaseException as error:
                    self._failed = error  # Messages are missing whose senders were told that all is well.
                    self._database.look_again(error)
                    raise
        finally:
            self._end_call()

    def ack(self, messages: Received | Sequence[Received]) -> None:
        """Acknowledge messages if the transaction commits. Nobody else gets or acknowledges them meanwhile.

        Raises: `Conflict` when another transaction was faster; the transaction can then only be aborted.
        """
        self._ack([messages] if not isinstance(messages, Sequence) else messages, cumulative=False)

    def ack_cumulative(self, message: Received) -> None:
        """As `ack`, for everything in the message's shard up to it."""
        self._ack([message], cumulative=True)

    def _ack(self, messages: Sequence[Received], *, cumulative: bool) -> None:
        found = by_consumer(messages)
        with self._lock:
            self._check_open("acknowledge")
            self._begin_call()
        try:
            for consumer, via, ids in found:
                with consumer.checking(via):
                    self._ask(
                        lambda via=via, ids=ids: self._database.backend.ack(
                            via, ids, cumulative=cumulative, txn=self.id
                        )
                    )
        finally:
            self._end_call()

    def read(self, table: str, keys: Any) -> Timestamp:
        """Note that these keys are read. Its commit fails with `Conflict` when somebody else has written one since.

        Keys of a table are given as to `delete`, those of a topic's messages as a list. Returns the Timestamp as of
        which it reads, the same for all its reads.
        """
        taker = self._database.find_table(table)
        if taker is None:
            return self.read_hashes(table, [key_hash(table, key) for key in keys])
        return self.read_hashes(taker.table.name, taker.hashes_of(keys))

    def read_hashes(self, name: str, hashes: Sequence[int]) -> Timestamp:
        """As `read`, for keys whose hashes are known, of the table or topic of that very name."""
        with self._lock:
            self._check_open("read")
            self._begin_call()
        try:
            found: Timestamp = self._ask(lambda: self._database.backend.note_read(self.id, hashes, name))
            self.read_at = found
        finally:
            self._end_call()
        return found

    # -- its end ---------------------------------------------------------------------------------------------

    @property
    def channel(self) -> str | None:
        """The only channel that it writes to, while all it does is known here alone: it can then be one of a run."""
        outgoing = self._outgoing
        return None if outgoing is None or self._used_owner else outgoing.channel

    @property
    def nbytes(self) -> int:
        """About how much it keeps in memory."""
        return 0 if self._outgoing is None else self._outgoing.nbytes

    def member(self) -> Member:
        """Itself, for a run of commits. Ordering: nothing is added to it any more."""
        self._prepare_commit()
        return Member(self.id, *self._rest())

    def commit(self) -> Timestamp:
        """Make all of it visible at once; its commit Timestamp. May be repeated: the answer is the same.

        Waits for what other threads are sending with it.
        Raises: `Conflict`, `TransactionAborted`, `TransactionExpired`, `InvalidArgument`: nothing of it remains.
        Another `Retryable`: nothing was written; call it again, or abort. `OutcomeUnknown`: nobody could be asked; call
        it again to learn the outcome.
        """
        if self.commit_timestamp is not None:
            return self.commit_timestamp
        self._prepare_commit()
        writes, keys = self._rest()
        try:
            return self.ended(self._database.commit(self, writes, keys))
        except TidegateError as error:
            self.refused(error)
            raise

    async def commit_async(self) -> Timestamp:
        """`commit` for asyncio: the event loop goes on meanwhile. Cancelled, it is carried out all the same."""
        if self.commit_timestamp is not None:
            return self.commit_timestamp
        if self._used_owner or not self._database.backend.is_owner:
            return await asyncio.to_thread(self.commit)
        self._prepare_commit()
        writes, keys = self._rest()
        if len(writes) > 1:
            return await asyncio.to_thread(self.commit)  # It takes places, and may have to wait for one.
        try:
            return self.ended(await self._database.commit_async(self, writes, keys))
        except TidegateError as error:
            self.refused(error)
            raise

    def _rest(self) -> tuple[Writes, Keys]:
        """What goes with the commit. Ordering: nobody adds to it any more."""
        outgoing = self._outgoing
        return ({}, ()) if outgoing is None else (outgoing.writes(), outgoing.keys)

    def _prepare_commit(self) -> None:
        with self._lock:
            if self.state != "COMMITTING":
                self._check_open("commit")
            self.state = "COMMITTING"  # From here on nothing is added to it.
            if self._under_way and self._idle is None:
                self._idle = Gate()
            idle = self._idle
        if idle is not None:
            idle.wait()
        failed = self._failed
        if failed is not None:
            self.abort()
            raise TransactionAborted(
                f"transaction {self.id} was aborted because a part of it had failed: {failed}; run it again",
                reason=str(failed),
            ) from failed

    def ended(self, timestamp: Timestamp) -> Timestamp:
        """It is committed."""
        self.commit_timestamp = timestamp
        self.state = "COMMITTED"
        self._outgoing = None
        self._database.seen(timestamp)
        if self.on_commit is not None:
            self.on_commit(timestamp)
        return timestamp

    def refused(self, error: TidegateError) -> None:
        """The commit failed: whatever can never be committed is ended."""
        self._database.look_again(error)
        if isinstance(error, Conflict | TransactionAborted):
            self._let_go()
        elif isinstance(error, InvalidArgument | SchemaMismatch) and not isinstance(error, TransactionNotFound):
            with suppress(TidegateError):  # It is aborted at its timeout anyway.
                self.abort()

    def _let_go(self) -> None:
        self.state = "ABORTED"
        self._outgoing = None

    def abort(self) -> None:
        """End it without effect. May be repeated.

        Raises: `InvalidTransactionState` when it is committed, also by a commit whose answer was lost.
        """
        with self._lock:
            if self.state == "ABORTED":
                return
            tried = self.state == "COMMITTING"
            committed = self.commit_timestamp
        if committed is None:
            try:
                self._database.again(lambda: self._database.backend.abort(self.id))
            except TransactionNotFound:
                if self.life == self._database.life:
                    raise
                # Its owner died, and with it the transaction, unless a commit had come through before.
                if tried:
                    committed = self._database.find_commit(self)
        if committed is not None:
            self.ended(committed)
            raise InvalidTransactionState(f"transaction {self.id} is committed; begin a new one", state=self.state)
        self._let_go()

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self.state == "OPEN":
                self._commit_or_abort()
            return
        if self.state in ("OPEN", "COMMITTING"):
            try:
                self.abort()
            except TidegateError as failed:
                # What was raised inside matters more; an open transaction is aborted at its timeout anyway.
                if error is not None:
                    error.add_note(f"transaction {self.id} could not be aborted now: {failed}")

    def _commit_or_abort(self) -> None:
        try:
            self.commit()
        except (OutcomeUnknown, Unavailable):
            raise  # Whoever calls `commit` again learns what became of it.
        except Retryable:
            with suppress(TidegateError):
                self.abort()
            raise

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self.state != "OPEN":
            await asyncio.to_thread(self.__exit__, kind, error, trace)
            return
        try:
            await self.commit_async()
        except Retryable:
            await asyncio.to_thread(self.__exit__, Retryable, None, None)
            raise

    @property
    def is_known_to_owner(self) -> bool:
        """Whether the owner's log may know it."""
        return self._used_owner

    @property
    def is_late(self) -> bool:
        """Whether its time is up."""
        return time.monotonic() > self._deadline_s

    def begin_again(self, id: TxnId, life: int) -> None:
        """Go on under another id: the owner died before it had heard of this one, and nothing of it was written."""
        self.id, self.life = id, life

    # -- inside ----------------------------------------------------------------------------------------------

    def _begin_call(self) -> None:
        """Ordering: under the lock, and `_end_call` follows."""
        self._used_owner = True
        self._under_way += 1

    def _end_call(self) -> None:
        with self._lock:
            self._under_way -= 1
            idle, self._idle = (None, self._idle) if self._under_way else (self._idle, None)
        if idle is not None:
            idle.open()

    def _check_open(self, what: str) -> None:
        # For a commit the owner's word counts.
        if self.state == "OPEN" and what != "commit" and time.monotonic() > self._deadline_s:
            self._let_go()
            raise TransactionExpired(
                f"transaction {self.id} cannot {what} after its timeout; run it again, with a longer timeout if it"
                f" needs one",
                reason=TIMEOUT,
            )
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
