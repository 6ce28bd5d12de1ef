"""`Session`: reads that never go back, and see what was written through it; in this process or, by its token, another.

`Memory` is what a session remembers. A `Database` has one of its own, for the calls made on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from tidegate.clock.timestamp import Timestamp
from tidegate.database.read_settings import ReadSettings, parse_set
from tidegate.reads import token as tokens
from tidegate.reads.consistency import Consistency, Seen

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.result import Result, ResultStream
    from tidegate.database.sent import Sent
    from tidegate.database.snapshot import Snapshot
    from tidegate.database.transaction import Transaction
    from tidegate.reads.params import Params


class Memory:
    """What a session has seen, and how it reads. Thread-safe; it never goes back."""

    def __init__(self, settings: ReadSettings, seen: Seen | None = None) -> None:
        self.settings = settings
        self._seen = seen or Seen()
        self._lock = Lock()

    @property
    def seen(self) -> Seen:
        return self._seen

    def read(self, at: Timestamp) -> None:
        """An answer of this cut was given."""
        with self._lock:
            self._seen = self._seen.after_read(at)

    def wrote(self, at: Timestamp) -> None:
        """Something was written at this time."""
        with self._lock:
            self._seen = self._seen.after_write(at)


class Session:
    """A session of a database. Its calls may come from several threads.

    Invariant: no answer is of an earlier cut than one before it, but for a Timestamp that a query names itself.
    """

    def __init__(self, database: Database, settings: ReadSettings, token: str | None) -> None:
        self._database = database
        # A new one begins with all that was acknowledged before.
        now = Seen(written=database.again(lambda: database.backend.now())) if token is None else None
        self.memory = Memory(settings, now or tokens.decode(token or "", database.id))

    @property
    def token(self) -> str:
        """What another process goes on with: `db.session(token=...)`. It changes with every read and write."""
        return tokens.encode(self._database.id, self.memory.seen)

    # -- reading -----------------------------------------------------------------------------------------------------

    def query(
        self,
        sql: str,
        consistency: Consistency | str | None = None,
        *,
        params: Params = None,
        staleness: float | None = None,
        timeout: float | None = None,
        max_lag: float | None = None,
        engine: str | None = None,
    ) -> Result:
        """As `Database.query`, for this session."""
        wanted = self.memory.settings.with_(
            consistency=consistency, staleness=staleness, timeout=timeout, max_lag=max_lag, engine=engine
        )
        return self._database.read(sql, wanted, self.memory, params)

    def stream(
        self,
        sql: str,
        consistency: Consistency | str | None = None,
        *,
        params: Params = None,
        staleness: float | None = None,
        max_lag: float | None = None,
    ) -> ResultStream:
        """As `Database.stream`, for this session."""
        wanted = self.memory.settings.with_(consistency=consistency, staleness=staleness, max_lag=max_lag)
        return self._database.read_stream(sql, wanted, self.memory, params)

    def snapshot(
        self, consistency: Consistency | str | None = None, *, staleness: float | None = None, timeout: float = 600.0
    ) -> Snapshot:
        """As `Database.snapshot`, for this session."""
        wanted = self.memory.settings.with_(consistency=consistency, staleness=staleness)
        return self._database.take_snapshot(wanted, self.memory, timeout)

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """As `Database.sql`, for this session. `SET consistency = ...` changes how it reads."""
        change = parse_set(statement)
        if change is not None:
            self.memory.settings = self.memory.settings.set(*change)
            return []
        return self._database.run_sql(statement, self.memory)

    # -- writing -----------------------------------------------------------------------------------------------------

    def insert(self, table: str, rows: Any) -> Sent:
        """As `Database.insert`."""
        return self._wrote(self._database.insert(table, rows))

    def upsert(self, table: str, rows: Any) -> Sent:
        """As `Database.upsert`."""
        return self._wrote(self._database.upsert(table, rows))

    def delete(self, table: str, keys: Any) -> Sent:
        """As `Database.delete`."""
        return self._wrote(self._database.delete(table, keys))

    def send(
        self, topic: str, value: Any, *, key: str | bytes | int | None = None, headers: Mapping[str, str] | None = None
    ) -> Sent:
        """As `Database.send`."""
        return self._wrote(self._database.send(topic, value, key=key, headers=headers))

    def transaction(self, timeout: float | None = None) -> Transaction:
        """As `Database.transaction`; the session sees what it commits."""
        txn = self._database.transaction(timeout)
        txn.on_commit = self.memory.wrote
        return txn

    def _wrote(self, sent: Sent) -> Sent:
        self.memory.wrote(sent.timestamp)
        return sent
