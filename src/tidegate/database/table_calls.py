"""`TableCalls`: the part of a `Database` that is about tables."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.database.backend import Backend, Limits
from tidegate.database.local import LocalBackend
from tidegate.database.outgoing import Outgoing
from tidegate.database.row_taker import RowTaker
from tidegate.database.sent import Sent
from tidegate.database.transaction import Transaction
from tidegate.errors import NotFound, NotLeader, SchemaMismatch, TransactionAborted
from tidegate.tables.schema import Table

_logger = logging.getLogger("tidegate.database")
T = TypeVar("T")


class TableCalls(ABC):
    """Writing and reading tables; `Database` has the rest."""

    path: Path
    name: str
    _lock: RLock
    _tables: dict[str, RowTaker]
    life: int

    @property
    @abstractmethod
    def backend(self) -> Backend: ...

    @property
    @abstractmethod
    def channels(self) -> int: ...

    @property
    @abstractmethod
    def limits(self) -> Limits: ...

    @abstractmethod
    def again(self, call: Callable[[], T]) -> T: ...

    @abstractmethod
    def transaction(self, timeout: float | None = None) -> Transaction: ...

    @abstractmethod
    def next_turn(self) -> int: ...

    @abstractmethod
    def seen(self, timestamp: Timestamp) -> None: ...

    @property
    @abstractmethod
    def last_seen(self) -> Timestamp: ...

    @abstractmethod
    def _check_names(self) -> None: ...

    @abstractmethod
    def _send_whole(self, outgoing: Outgoing) -> Timestamp: ...

    # -- looking up ------------------------------------------------------------------------------------------

    def table(self, name: str, *, fresh: bool = False) -> RowTaker:
        """A table by its name, ready to take rows; `fresh` asks the owner though it is known here.

        Raises: `NotFound`.
        """
        self._check_names()
        found = self._tables.get(name)
        if found is None or fresh:
            table = self.again(lambda: self.backend.table(name))
            if found is None or found.table != table:
                found = self._tables[name] = RowTaker(table)
        return found

    def find_table(self, name: str) -> RowTaker | None:
        """As `table`; None when there is none."""
        try:
            return self.table(name)
        except NotFound:
            return None

    def table_at(self, name: str, at: Timestamp) -> Table:
        """The table that has a name in the cut at `at`, by the owner's word: what is known here may be older.

        Raises: `NotFound`.
        """
        found = self.again(lambda: self.backend.table(name, at))
        known = self._tables.get(name)
        if found.dropped is None and known is not None and known.table != found:
            self._tables[name] = RowTaker(found)
        return found

    def look_again(self, error: BaseException) -> None:
        """Forget the tables known here if a write failed because they are not so any more."""
        if isinstance(error, SchemaMismatch | NotFound):
            self._tables = {}

    # -- writing ---------------------------------------------------------------------------------------------

    def insert(self, table: str, rows: Any) -> Sent:
        """Write rows of a table, all at once; durable when this returns. See `Transaction.insert`."""
        return self._write_rows(table, rows, delete=False)

    def upsert(self, table: str, rows: Any) -> Sent:
        """As `insert`: a row whose key is there already replaces it."""
        return self._write_rows(table, rows, delete=False)

    def delete(self, table: str, keys: Any) -> Sent:
        """End rows by their keys, all at once. See `Transaction.delete`."""
        return self._write_rows(table, keys, delete=True)

    def _write_rows(self, name: str, rows: Any, *, delete: bool) -> Sent:
        if isinstance(rows, pa.RecordBatchReader):
            rows = rows.read_all()
        elif isinstance(rows, Iterator):
            rows = list(rows)  # It may have to be gone through twice.
        taker = self.table(name)
        while True:
            outgoing = Outgoing(self.channels, self.limits)
            count = outgoing.add_rows(taker, rows, delete=delete, turn=self.next_turn())
            if not count:
                return Sent(self.last_seen, 0)
            try:
                return Sent(self._send_rows(outgoing), count)
            except (SchemaMismatch, NotFound, TransactionAborted) as error:  # The last of what was written ahead.
                # Once for each version that is new here: whoever gets the same answer again would get it for ever.
                newer = self.table(name, fresh=True)
                if newer.version == taker.version:
                    raise
                _logger.debug("%s: %s", self.path, error)
                taker = newer

    def _send_rows(self, outgoing: Outgoing) -> Timestamp:
        backend = self.backend
        if outgoing.nbytes > self.limits.buffer_bytes and outgoing.count > 1:
            with self.transaction() as txn:  # More than a commit carries: it is written ahead.
                txn.adopt(outgoing)
            return txn.commit_timestamp or Timestamp.ZERO
        if isinstance(backend, LocalBackend):
            timestamp = backend.send(outgoing.writes(), outgoing.keys)
        else:
            timestamp = self._send_whole(outgoing)
        self.seen(timestamp)
        return timestamp

    def create_view(
        self,
        name: str,
        query: str | Callable[..., Any],
        *,
        reads: Sequence[str] | None = None,
        if_not_exists: bool = False,
    ) -> None:
        """Create a materialized view: of a query in Spark SQL, or of a function of PySpark's DataFrames that gives one.

        A function gets the tables and views that `reads` names, else those that its parameters are called after. It is
        kept with the database, and computed anew, in Spark, whenever one of them changes.
        Raises: `InvalidArgument`, `NotFound`.
        """
        if callable(query):
            from inspect import signature

            from tidegate.spark.statements import function_query

            query = function_query(query, tuple(signature(query).parameters if reads is None else reads))
        quoted = "`" + name.replace("`", "``") + "`"
        exists = "IF NOT EXISTS " if if_not_exists else ""
        statement = f"CREATE MATERIALIZED VIEW {exists}{quoted} AS {query}"
        self.again(lambda: self.backend.execute(statement))

    def flush(self, timeout: float = 60.0) -> Timestamp:
        """A checkpoint that holds everything written before; its Timestamp.

        Raises: `WaitTimeout`, `Unavailable`, saying what holds it up.
        """
        return self.again(lambda: self.backend.flush(timeout))

    def pause_pipeline(self) -> None:
        """Make no more checkpoints until `resume_pipeline`, beyond what is under way; writes and strong reads go on."""
        self.again(lambda: self.backend.pause_pipeline(True))

    def resume_pipeline(self) -> None:
        """Go on; what was written meanwhile comes in few epochs."""
        self.again(lambda: self.backend.pause_pipeline(False))

    def set_barriers(self, interval_ms: int, *, checkpoint_every: int = 1) -> None:
        """How often barriers are taken from now on, and every which is a checkpoint; until the owner changes.

        Raises: `InvalidArgument` below 50 ms.
        """
        self.again(lambda: self.backend.set_barriers(interval_ms, checkpoint_every))

    def run_pipeline_on(self, session: Any) -> None:
        """Run the pipeline on this SparkSession instead of a worker of its own; only where the database is owned.

        The session stays the caller's, and must live as long as the database is open here.
        Raises: `NotLeader` elsewhere.
        """
        from tidegate.spark.session_worker import session_worker

        backend = self.backend
        if not isinstance(backend, LocalBackend):
            raise NotLeader(f"{self.path} is owned by another process; its pipeline runs there")
        backend.engine.pipeline.use(session_worker(session))
