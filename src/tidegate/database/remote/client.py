"""`RemoteBackend`: the database that another process owns.

Raises `Disconnected` when the owner does not answer: whether the call was carried out is then not known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from tidegate.catalog.entries import Topic
from tidegate.catalog.table_fold import table_of
from tidegate.clock.timestamp import Timestamp
from tidegate.database.backend import Limits
from tidegate.database.live_transactions import Keys, Writes
from tidegate.database.read_gate import ReadAsk, ReadPlace, pack_ask, unpack_place
from tidegate.database.received import Received
from tidegate.database.remote import frames
from tidegate.database.remote.address import find
from tidegate.database.transaction_runs import Member
from tidegate.errors import InvariantBroken, TidegateError, Unavailable
from tidegate.tables.schema import Table
from tidegate.topics.message_id import MessageId
from tidegate.txn.txn_id import TxnId

_logger = logging.getLogger("tidegate.database")
_CONNECT_S: Final = 2.0
_WAIT_MAX_S: Final = 86_400.0
"""A read that makes progress may wait for long; one that does not is refused by the owner."""


class Disconnected(Exception):
    """The owner does not answer. It may have died, before or after it did what it was asked to."""


class RemoteBackend:
    """Calls of one client. Thread-safe."""

    def __init__(self, path: Path, client: str, name: str, answer_s: float) -> None:
        """Connect to the owner of the database at `path`; an answer is waited for up to `answer_s`.

        Raises: `Disconnected` when nobody listens there.
        """
        location = find(path)
        if location is None:
            raise Disconnected(f"nobody has said where the owner of {path} listens")
        self._client = client
        self._answer_s = answer_s
        self._stop = Event()
        self._lock = Lock()
        self._calls = 0
        """Under way. Arrow's client must not be closed meanwhile: it frees what they work with."""
        self._is_dropped = False
        try:
            self._flight = flight.connect(location)
        except (pa.ArrowException, OSError) as error:
            raise Disconnected(str(error)) from error
        try:
            found = self._call("hello", {"name": name}, timeout_s=min(_CONNECT_S, answer_s))[0]
        except BaseException:
            self.drop()
            raise
        if found.get("version") != frames.VERSION:
            self.drop()
            raise Unavailable(
                f"{path} is owned by process {found.get('pid')}, whose Tidegate speaks version"
                f" {found.get('version')} and this one {frames.VERSION}; use the same Tidegate in both"
            )
        self._channels = int(found["channels"])
        self.limits: Final = Limits(**found["limits"])
        self.database_id: Final = bytes.fromhex(found["database"])
        self.owner_pid: Final = int(found["pid"])
        self._beat_s = found["lease_ms"] / 3000
        self._thread = Thread(target=self._keep_alive, name="tidegate-alive", daemon=True)
        self._thread.start()

    def _keep_alive(self) -> None:
        while not self._stop.wait(self._beat_s):
            with suppress(TidegateError, Disconnected):  # Whoever calls next finds out and says so.
                self._call("alive", {}, timeout_s=self._beat_s)

    def _call(
        self, name: str, head: frames.Head, blobs: Sequence[frames.Bytes] = (), timeout_s: float | None = None
    ) -> tuple[Any, list[memoryview]]:
        head["client"] = self._client
        action = flight.Action(name, frames.pack(head, blobs))
        options = flight.FlightCallOptions(timeout=self._answer_s if timeout_s is None else timeout_s)
        with self._calling(name):
            try:
                results = list(self._flight.do_action(action, options))
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                raise Disconnected(f"{name}: {error}") from error
        if len(results) != 1:
            raise InvariantBroken(f"the owner gave {len(results)} answers to {name!r}")
        answer, parts = frames.unpack(memoryview(results[0].body))
        if "error" in answer:
            frames.raise_error(answer["error"])
        return answer["ok"], parts

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        with self._lock:
            if self._is_dropped or (self._stop.is_set() and name != "bye"):
                raise Disconnected(f"{name}: the connection was given up")
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                is_last = self._is_dropped and not self._calls
            if is_last:
                self._hang_up()

    def _hang_up(self) -> None:
        with suppress(Exception):
            self._flight.close()

    @property
    def is_owner(self) -> bool:
        return False

    @property
    def channels(self) -> int:
        return self._channels

    def execute(self, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("execute", {"sql": sql})[0]
        return found

    def change_behind(self, guard: TxnId, sql: str, read_at: Timestamp | None) -> None:
        self._call(
            "change_behind", {"txn": str(guard), "sql": sql, "read_at": None if read_at is None else int(read_at)}
        )

    def topic(self, name: str) -> Topic:
        found = self._call("topic", {"name": name})[0]
        return Topic(found["id"], found["name"], found["shards"], Timestamp(found["created"]))

    def table(self, name: str, at: Timestamp | None = None) -> Table:
        return table_of(self._call("table", {"name": name, "at": None if at is None else int(at)})[0])

    def flush(self, timeout_s: float) -> Timestamp:
        return Timestamp(self._call("flush", {"timeout_s": timeout_s}, timeout_s=self._answer_s + timeout_s)[0])

    def pause_pipeline(self, paused: bool) -> None:
        self._call("pause_pipeline", {"paused": paused})

    def set_barriers(self, interval_ms: int, checkpoint_every: int) -> None:
        self._call("set_barriers", {"interval_ms": interval_ms, "checkpoint_every": checkpoint_every})

    def now(self) -> Timestamp:
        return Timestamp(self._call("now", {})[0])

    def begin_read(self, ask: ReadAsk) -> ReadPlace:
        wait_s = _WAIT_MAX_S if ask.timeout_ms is None else ask.timeout_ms / 1000
        found = self._call("begin_read", pack_ask(ask), timeout_s=self._answer_s + wait_s)[0]
        return unpack_place(found, table_of)

    # -- transactions ----------------------------------------------------------------------------------------

    def begin(self, timeout_ms: int | None) -> TxnId:
        return TxnId.parse(self._call("begin", {"timeout_ms": timeout_ms})[0])

    def commit(self, id: TxnId, writes: Writes, keys: Keys, read_at: Timestamp | None) -> Timestamp:
        blobs: list[frames.Bytes] = [frames.pack_hashes(keys() if callable(keys) else keys)]
        channels = frames.pack_writes(_lists(writes), blobs)
        head = {"txn": str(id), "channels": channels, "read_at": None if read_at is None else int(read_at)}
        return Timestamp(self._call("commit", head, blobs)[0])

    def commit_run(self, guard: TxnId, members: Sequence[Member], read_at: Timestamp | None) -> list[Timestamp]:
        blobs: list[frames.Bytes] = []
        run = []
        for id, writes, keys in members:
            blobs.append(frames.pack_hashes(keys() if callable(keys) else keys))
            run.append([str(id), frames.pack_writes(_lists(writes), blobs)])
        head = {"txn": str(guard), "run": run, "read_at": None if read_at is None else int(read_at)}
        return [Timestamp(each) for each in self._call("commit_run", head, blobs)[0]]

    def write_ahead(self, id: TxnId, writes: Writes) -> None:
        blobs: list[frames.Bytes] = []
        channels = frames.pack_writes(_lists(writes), blobs)
        self._call("write_ahead", {"txn": str(id), "channels": channels}, blobs)

    def note_read(self, id: TxnId, hashes: Sequence[int], table: str) -> Timestamp:
        found = self._call("note_read", {"txn": str(id), "table": table}, [frames.pack_hashes(hashes)])[0]
        return Timestamp(found)

    def abort(self, id: TxnId, reason: str = "") -> None:
        self._call("abort", {"txn": str(id), "reason": reason})

    def find_commit(self, id: TxnId) -> Timestamp | None:
        found = self._call("find_commit", {"txn": str(id)})[0]
        return None if found is None else Timestamp(found)

    def transactions(self, finished: int | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("transactions", {"finished": finished})[0]
        return found

    # -- topics ----------------------------------------------------------------------------------------------

    def open_producer(self, topic: str, name: str) -> tuple[int, int | None]:
        epoch, last = self._call("open_producer", {"topic": topic, "name": name})[0]
        return epoch, last

    def produce(
        self, topic: str, producer: str, epoch: int, first: int, count: int, writes: Writes, keys: Keys
    ) -> tuple[Timestamp | None, bool]:
        blobs: list[frames.Bytes] = [frames.pack_hashes(keys() if callable(keys) else keys)]
        head = {"topic": topic, "producer": producer, "epoch": epoch, "first": first, "count": count}
        head["channels"] = frames.pack_writes(_lists(writes), blobs)
        timestamp, duplicate = self._call("produce", head, blobs)[0]
        return (None if timestamp is None else Timestamp(timestamp)), duplicate

    # -- subscriptions ---------------------------------------------------------------------------------------

    def subscribe(self, topic: str, name: str, options: dict[str, Any]) -> str:
        return str(self._call("subscribe", {"topic": topic, "name": name, "options": options})[0])

    def unsubscribe(self, topic: str, name: str) -> None:
        self._call("unsubscribe", {"topic": topic, "name": name})

    def receive(self, consumer: str, max_messages: int, timeout_s: float) -> list[Received]:
        head = {"consumer": consumer, "max": max_messages, "timeout_s": timeout_s}
        return frames.unpack_received(*self._call("receive", head, timeout_s=self._answer_s + timeout_s))

    def ack(self, consumer: str, ids: Sequence[MessageId], *, cumulative: bool, txn: TxnId | None) -> None:
        head = {"consumer": consumer, "ids": [list(each) for each in ids], "cumulative": cumulative}
        self._call("ack", {**head, "txn": None if txn is None else str(txn)})

    def nack(self, consumer: str, ids: Sequence[MessageId], delay_ms: int) -> None:
        self._call("nack", {"consumer": consumer, "ids": [list(each) for each in ids], "delay_ms": delay_ms})

    def redeliver(self, consumer: str) -> None:
        self._call("redeliver", {"consumer": consumer})

    def disconnect(self, consumer: str) -> None:
        self._call("disconnect", {"consumer": consumer})

    def subscription_stats(self, topic: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call("subscription_stats", {"topic": topic, "name": name})[0]
        return found

    # -- the whole -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call("status", {})[0]
        return found

    def close(self) -> None:
        self.drop(goodbye=True)

    def drop(self, *, goodbye: bool = False) -> None:
        """Let go of the connection, which ends with the last call that is under way. May be repeated."""
        self._stop.set()
        if goodbye:
            with suppress(TidegateError, Disconnected):
                self._call("bye", {}, timeout_s=_CONNECT_S)
        with self._lock:
            is_last = not self._is_dropped and not self._calls
            self._is_dropped = True
        if is_last:
            self._hang_up()


def _lists(writes: Writes) -> dict[str, list[Any]]:
    return {name: list(pieces) for name, pieces in writes.items()}
