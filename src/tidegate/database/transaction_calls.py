"""`TransactionCalls`: the part of a `Database` that carries its transactions to whoever owns it by then.

A transaction of a process outlives the owner it began at, as long as all that was known of it is known here too.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.clock.timestamp import Timestamp
from tidegate.database.live_transactions import Keys, Writes
from tidegate.database.local import LocalBackend
from tidegate.database.remote.client import Disconnected
from tidegate.database.replication_calls import ReplicationCalls
from tidegate.database.transaction_runs import Member
from tidegate.errors import (
    Conflict,
    OutcomeUnknown,
    TidegateError,
    TransactionAborted,
    TransactionExpired,
    TransactionNotFound,
    Unavailable,
)
from tidegate.txn.coordinator_table import TIMEOUT
from tidegate.txn.txn_id import TxnId

if TYPE_CHECKING:
    from tidegate.database.transaction import Transaction

T = TypeVar("T")


class TransactionCalls(ReplicationCalls):
    """Committing and aborting; `Database` has the rest."""

    @abstractmethod
    def _forget_names(self) -> None: ...

    @abstractmethod
    def _reconnect(self, life: int, why: BaseException) -> None: ...

    def commit(self, txn: Transaction, writes: Writes, keys: Keys) -> Timestamp:
        """Commit for a `Transaction`, whatever happens to the owner meanwhile."""
        asked = False
        try:
            while True:
                life = self.life
                try:
                    return self.backend.commit(txn.id, writes, keys, txn.read_at)
                except Disconnected as error:
                    asked = True
                    self._reconnect(life, error)
                except TransactionNotFound:
                    if txn.life == self.life:
                        raise
                found = self.find_commit(txn)
                if found is not None:
                    return found
                asked = False
                self._take_along(txn)
        except Unavailable as error:
            if not asked:
                raise
            raise OutcomeUnknown(
                f"whether transaction {txn.id} is committed is not known: {error}; call commit again to learn it"
            ) from error

    def commit_run(self, guard: Transaction, run: Sequence[Transaction]) -> list[Timestamp]:
        """Commit transactions, in order, as one write: all of them, or the first few, or none.

        Each is one by itself, with a commit Timestamp of its own, and writes to one channel, the same one. They fail
        when what `guard` has read was written since; it stays open, and from then on reads as of their commit.
        Raises: as `Transaction.commit`. What was not committed is aborted, unless its outcome is unknown, as it is when
        the owner dies meanwhile.
        """
        members = [each.member() for each in run]
        life = self.life
        try:
            found = self._commit_members(guard, members, life)
        except TransactionNotFound as error:
            if all(each.life == self.life for each in (guard, *run)):
                raise
            raise Conflict(
                f"{self.path} has another owner since transaction {guard.id}, or one of its run, began; run them again"
            ) from error
        except TidegateError as error:
            guard.refused(error)
            if not isinstance(error, OutcomeUnknown):
                for each in run:
                    with suppress(TidegateError):  # It is committed, or is aborted at its timeout anyway.
                        each.abort()
            raise
        return [each.ended(timestamp) for each, timestamp in zip(run, found, strict=True)]

    def _commit_members(self, guard: Transaction, members: Sequence[Member], life: int) -> list[Timestamp]:
        try:
            return self.backend.commit_run(guard.id, members, guard.read_at)
        except Disconnected as error:
            self._reconnect(life, error)
            raise OutcomeUnknown(
                f"the owner of {self.path} died while it committed transaction {members[0].id} and"
                f" {len(members) - 1} behind it; read before you repeat them"
            ) from error

    def change_behind(self, guard: Transaction, statement: str) -> None:
        """Carry out CREATE, ALTER or DROP TABLE, unless what `guard` has read was written since; the guard stays open.

        So who was overtaken by somebody else cannot change a table under him.
        Raises: `Conflict` when it was, and as `sql`; `OutcomeUnknown` when the owner dies meanwhile.
        """
        life = self.life
        try:
            self.backend.change_behind(guard.id, statement, guard.read_at)
        except TransactionNotFound as error:
            if guard.life == self.life:
                raise
            raise Conflict(f"{self.path} has another owner since transaction {guard.id} began; run it again") from error
        except Disconnected as error:
            self._reconnect(life, error)
            raise OutcomeUnknown(
                f"the owner of {self.path} died while it changed a table: {statement}; look before you repeat it"
            ) from error
        finally:
            self._forget_names()

    def find_commit(self, txn: Transaction) -> Timestamp | None:
        """When a transaction of an owner that died was committed, if it was."""
        return self.again(lambda: self.backend.find_commit(txn.id))

    def for_transaction(self, txn: Transaction, call: Callable[[], T]) -> T:
        """A call for a transaction that is not to be repeated by itself.

        Raises: `TransactionAborted` when the owner died and what it knew of the transaction with it.
        """
        while True:
            life = self.life
            try:
                return call()
            except Disconnected as error:
                self._reconnect(life, error)
                raise TransactionAborted(
                    f"the owner of {self.path} died while transaction {txn.id} was under way; run it again",
                    reason="the owner died",
                ) from error
            except TransactionNotFound:
                if txn.life == self.life:
                    raise
                self._take_along(txn)

    def _take_along(self, txn: Transaction) -> None:
        """Go on with a transaction at a new owner: under its own id if the log knows it, else under a new one.

        Raises: `TransactionAborted` when a part of it was known to the old owner only.
        """
        if any(each["id"] == str(txn.id) for each in self.transactions(finished=0)):
            txn.life = self.life
            return
        if txn.is_known_to_owner:
            raise TransactionAborted(
                f"the owner of {self.path} died, and with it what it knew of transaction {txn.id}; run it again",
                reason="the owner died",
            )
        if txn.is_late:
            raise TransactionExpired(
                f"transaction {txn.id} was not committed within its timeout; run it again, with a longer timeout if it"
                f" needs one",
                reason=TIMEOUT,
            )
        txn.begin_again(self.again(lambda: self.backend.begin(txn.timeout_ms)), self.life)

    async def commit_async(self, txn: Transaction, writes: Writes, keys: Keys) -> Timestamp:
        """As `commit`, in an event loop, for the owner."""
        backend = self.backend
        if not isinstance(backend, LocalBackend):
            return await asyncio.to_thread(self.commit, txn, writes, keys)
        return await backend.commit_async(txn.id, writes, keys, txn.read_at)

    def transactions(self, finished: int | None = None) -> list[dict[str, Any]]:
        """Transactions that are live, and those that ended not long ago: the newest `finished`, by default all."""
        return self.again(lambda: self.backend.transactions(finished))

    def abort(self, id: str | TxnId, reason: str = "ended by hand") -> None:
        """End somebody's transaction."""
        found = id if isinstance(id, TxnId) else TxnId.parse(id)
        self.again(lambda: self.backend.abort(found, reason))
