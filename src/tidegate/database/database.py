"""`Database`: what `tidegate.open` returns: the same calls in the process that owns the data and in all others.

One process owns a database at a time; the others reach it through a socket in its directory. When the owner ends,
however that happens, one of the others becomes it, and the rest go on with that one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any, Final, Literal, TypeVar
from weakref import WeakSet

from tidegate.catalog.entries import Topic
from tidegate.clock.timestamp import Timestamp
from tidegate.database.backend import Backend, Limits
from tidegate.database.consumer import Consumer
from tidegate.database.engine import Engine
from tidegate.database.local import LocalBackend
from tidegate.database.outgoing import Key, Outgoing, check_count
from tidegate.database.producer import Producer
from tidegate.database.read_settings import ReadSettings, parse_set
from tidegate.database.remote.client import Disconnected, RemoteBackend
from tidegate.database.remote.server import Server
from tidegate.database.row_taker import RowTaker
from tidegate.database.sent import Sent
from tidegate.database.session import Memory
from tidegate.database.settings import DatabaseSettings
from tidegate.database.transaction import Transaction
from tidegate.database.transaction_calls import TransactionCalls
from tidegate.errors import (
    Closed,
    Conflict,
    InUse,
    InvalidArgument,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    SchemaMismatch,
    TidegateError,
    TransactionAborted,
    Unavailable,
)
from tidegate.reads.consistency import Consistency
from tidegate.runtime.writer_lock import writer_of

_logger = logging.getLogger("tidegate.database")
_TRY_EVERY_S: Final = 0.02
T = TypeVar("T")


class Database(TransactionCalls):
    """A database. Its calls may come from any thread; use it as a context manager."""

    def __init__(
        self,
        path: str | Path,
        *,
        settings: DatabaseSettings | None = None,
        name: str | None = None,
        consistency: Consistency | str | None = None,
        staleness: float | None = None,
    ) -> None:
        """Open or create the database at `path`, or connect to the process that has it open.

        `name` is how this client is called in lists; by default it is its host and process. `consistency` and
        `staleness` are how it reads unless a query says otherwise; see `query`.
        Raises: what opening the log raises; `InUse` when another process owns the database and does not answer.
        """
        self.path = Path(path)
        self.settings: Final = settings or DatabaseSettings()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._client = f"{self.name}:{secrets.token_hex(4)}"
        self._lock = RLock()
        self._closed = False
        self._server: Server | None = None
        self.life = 0
        """Counts the connections to an owner, this process included."""
        self._attempts = 0
        """How often another owner was looked for."""
        self._nobody: InUse | None = None
        """Why the last time there was none."""
        self._turns = count()
        self._topics: dict[str, Topic] = {}
        self._tables: dict[str, RowTaker] = {}
        self._topics_as_of = -1
        """The version of the catalog they were looked up in, where that is known."""
        self._consumers: list[Consumer] = []
        self.snapshots = WeakSet()
        self.memory = Memory(ReadSettings().with_(consistency=consistency, staleness=staleness))
        self._backend = self._connect()
        self.memory.wrote(self.again(lambda: self.backend.now()))

    # -- the owner -------------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """Whoever owns the data now."""
        if self._closed:
            raise Closed(f"the database at {self.path} was closed; open it again")
        return self._backend

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the database."""
        return self.backend.is_owner

    @property
    def engine(self) -> Engine:
        """The engine, in the process that owns the database.

        Raises: `NotLeader` elsewhere.
        """
        backend = self.backend
        if not isinstance(backend, LocalBackend):
            raise NotLeader(f"{self.path} is owned by another process; its engine is there")
        return backend.engine

    @property
    def channels(self) -> int:
        return self.backend.channels

    @property
    def limits(self) -> Limits:
        """What the owner takes."""
        return self.backend.limits

    def _connect(self) -> Backend:
        """Become the owner, or find the one there is."""
        wait_s = self.settings.connect_ms / 1000
        deadline = time.monotonic() + wait_s
        while True:
            why: Exception
            try:
                backend: Backend = self._own()
                break
            except InUse as error:
                why = error
            try:
                backend = RemoteBackend(self.path, self._client, self.name, wait_s)
                break
            except Disconnected as error:
                why = error
            if time.monotonic() > deadline:
                raise InUse(
                    f"{self.path} is owned by {writer_of(self.path) or 'another process'}, which does not answer"
                    f" within {wait_s:g} s; end that process, or let it go on: {why}"
                )
            time.sleep(_TRY_EVERY_S)
        self.life += 1
        return backend

    def _own(self) -> Backend:
        engine = Engine(self.path, self.settings)
        try:
            self._server = Server(engine, self.path)
        except BaseException:
            engine.close()
            raise
        return LocalBackend(engine)

    def _reconnect(self, life: int, why: BaseException) -> None:
        """The owner of `life` does not answer any more: find the next one, or become it."""
        attempts = self._attempts
        with self._lock:
            if self._closed or self.life != life:
                return
            if self._attempts != attempts and self._nobody is not None:
                raise InUse(str(self._nobody)) from why  # Another thread has just tried; not one after the other.
            _logger.info("%s: the owner is gone (%s)", self.path, why)
            if isinstance(self._backend, RemoteBackend):
                self._backend.drop()
            self._forget_names()
            self._nobody = None
            try:
                self._backend = self._connect()
            except InUse as error:
                self._nobody = error
                raise
            finally:
                self._attempts += 1

    def again(self, call: Callable[[], T]) -> T:
        """Make a call that may be repeated, at the next owner if this one is gone."""
        while True:
            life = self.life
            try:
                return call()
            except Disconnected as error:
                self._reconnect(life, error)

    # -- statements ------------------------------------------------------------------------------------------

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Run a statement; its rows, if it has any. INSERT, UPDATE and DELETE say how many rows they wrote.

        `SET consistency = ...` (also staleness, timeout, max_lag, engine) changes how this object reads.
        """
        change = parse_set(statement)
        if change is not None:
            self.memory.settings = self.memory.settings.set(*change)
            return []
        return self.run_sql(statement, self.memory)

    def run_sql(self, statement: str, memory: Memory) -> list[dict[str, Any]]:
        """As `sql`, for whoever remembers with `memory`."""
        from tidegate.database.dml import run_alone

        found = run_alone(self, statement, memory)
        if found is None:
            found = self.again(lambda: self.backend.execute(statement))
            self._forget_names()
            memory.wrote(self.again(lambda: self.backend.now()))  # It may have changed the catalog.
        return found

    def topic(self, name: str, *, fresh: bool = False) -> Topic:
        """A topic by its name; `fresh` asks the owner though it is known here.

        Raises: `NotFound`.
        """
        self._check_names()
        found = self._topics.get(name)
        if found is None or fresh:
            found = self._topics[name] = self.again(lambda: self.backend.topic(name))
        return found

    def _check_names(self) -> None:
        """Forget what was looked up in an older catalog, where that can be known without asking."""
        backend = self.backend
        if type(backend) is LocalBackend and backend.engine.catalog.version != self._topics_as_of:
            self._topics_as_of = backend.engine.catalog.version
            self._forget_names()

    def _forget_names(self) -> None:
        self._topics, self._tables = {}, {}

    # -- transactions ----------------------------------------------------------------------------------------

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Begin a transaction. It is aborted when it is still open after `timeout` seconds (60 by default)."""
        timeout_ms = None if timeout is None else _milliseconds(timeout)
        return Transaction(self, self.again(lambda: self.backend.begin(timeout_ms)), timeout_ms, self.life)

    def run(self, work: Callable[[Transaction], T], *, attempts: int = 10, timeout: float | None = None) -> T:
        """Run `work` in a transaction, again when another one was faster, after a pause that grows and varies.

        Raises: what `work` raises; the last `Conflict` or `TransactionAborted` when no attempt is left.
        """
        if attempts < 1:
            raise InvalidArgument(f"attempts is at least 1, not {attempts}")
        attempt = 0
        version: tuple[int, int] | None = None
        while True:
            try:
                with self.transaction(timeout) as txn:
                    return work(txn)
            except SchemaMismatch as error:
                # As long as the schema is a newer one each time, who changes it is at fault, and not who writes.
                newer = self.table(error.table, fresh=True).version
                attempt += newer == version
                version = newer
                if attempt == attempts:
                    raise
            except (Conflict, TransactionAborted):
                attempt += 1
                if attempt == attempts:
                    raise
                time.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.25)))

    # -- topics ----------------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, *, key: Key | None = None, headers: Mapping[str, str] | None = None) -> Sent:
        """Send a message, or one for each row of an Arrow batch or table; durable when this returns."""
        for fresh in (False, True):
            found = self.topic(topic, fresh=fresh)
            outgoing = Outgoing(self.channels, self.limits)
            sent = check_count(outgoing.add(found, value, key=key, headers=headers, turn=self.next_turn()))
            backend = self.backend
            try:
                if isinstance(backend, LocalBackend):
                    timestamp = backend.send(outgoing.writes(), outgoing.keys)
                else:
                    # A transaction of its own: its id tells, after a lost answer, whether it was carried out.
                    timestamp = self._send_whole(outgoing)
                break
            except NotFound:
                if fresh:
                    raise  # It was dropped; the first time it may have been created again since.
        self.seen(timestamp)
        return Sent(timestamp, sent)

    def _send_whole(self, outgoing: Outgoing) -> Timestamp:
        txn = self.transaction()
        try:
            return self.commit(txn, outgoing.writes(), outgoing.keys)
        except (OutcomeUnknown, Unavailable):
            raise
        except TidegateError:
            with suppress(TidegateError):  # It is aborted at its timeout anyway.
                txn.abort()
            raise

    async def send_async(
        self, topic: str, value: Any, *, key: Key | None = None, headers: Mapping[str, str] | None = None
    ) -> Sent:
        """`send` for asyncio."""
        backend = self.backend
        if not isinstance(backend, LocalBackend):
            return await asyncio.to_thread(lambda: self.send(topic, value, key=key, headers=headers))
        outgoing = Outgoing(self.channels, self.limits)
        sent = check_count(outgoing.add(self.topic(topic), value, key=key, headers=headers, turn=self.next_turn()))
        timestamp = await backend.send_async(outgoing.writes(), outgoing.keys)
        self.seen(timestamp)
        return Sent(timestamp, sent)

    def producer(self, topic: str, name: str) -> Producer:
        """A producer whose sends are recognised when they are repeated, also after a restart."""
        return Producer(self, topic, name)

    def subscribe(
        self,
        topic: str,
        name: str,
        *,
        kind: Literal["exclusive", "failover", "shared"] | None = None,
        start: Literal["earliest", "latest"] | Timestamp = "earliest",
        max_redeliveries: int | None = None,
        dead_letter_topic: str | None = None,
    ) -> Consumer:
        """Connect to a subscription of a topic, which is created if it does not exist.

        Of a view it gives the changes: dicts with its columns, `_change`, `_epoch` and `_ts`; from `earliest`, its rows
        come first.
        A new one is exclusive unless `kind` says otherwise, and begins at `start`. A message that was given back more
        than `max_redeliveries` times goes to `dead_letter_topic` instead.
        Raises: `NotFound`; `InUse` when it is exclusive and somebody is connected.
        """
        options = {
            "kind": kind,
            "start": int(start) if isinstance(start, Timestamp) else start,
            "max_redeliveries": max_redeliveries,
            "dead_letter_topic": dead_letter_topic,
        }
        consumer = self.again(lambda: Consumer(self, topic, name, options))
        self._consumers.append(consumer)
        return consumer

    def unsubscribe(self, topic: str, name: str) -> None:
        """Drop a subscription."""
        self.again(lambda: self.backend.unsubscribe(topic, name))

    # -- the whole -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The state of the database, as data."""
        return self.again(lambda: self.backend.status())

    def seen(self, timestamp: Timestamp) -> None:
        """Remember how far this client has come."""
        self.memory.wrote(timestamp)

    @property
    def last_seen(self) -> Timestamp:
        """The newest Timestamp this client knows to be visible."""
        return max(self.memory.seen)

    def next_turn(self) -> int:
        return next(self._turns)

    def forget(self, consumer: Consumer) -> None:
        with suppress(ValueError):
            self._consumers.remove(consumer)

    def close(self) -> None:
        """Close it. If this process owns the database, another one that has it open becomes the owner."""
        self._stop_captures()
        with self._lock:
            if self._closed:
                return
            for consumer in list(self._consumers):
                with suppress(TidegateError, Disconnected):
                    consumer.close()
            self._close_reading()
            self._closed = True
            if self._server is not None:
                self._server.close()
            self._backend.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tidegate database {self.path}>"


def _milliseconds(timeout: float) -> int:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0 or timeout == float("inf"):
        raise InvalidArgument(f"the timeout of a transaction is a number of seconds above 0, not {timeout!r}")
    return max(round(timeout * 1000), 1)
