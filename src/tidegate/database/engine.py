"""`Engine`: a database in the process that owns it: its log, catalog, coordinators, topics and subscriptions.

PATH/log/system    catalog and coordinators        PATH/log/data-N    shards of topics, subscriptions' acknowledgements

Opening, in this order: the system channel is fenced and read, so that every decision of an older owner is known; then
the data channels, each completing the decided commits it lacks before it ticks; then what was open goes on.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final, TypeVar

from tidegate.catalog.catalog import CATALOG_VCHANNEL, Catalog
from tidegate.catalog.entries import Change, TableAltered, TableCreated, TableDropped, Topic, TopicDropped
from tidegate.catalog.records import read as read_record
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.database.clients import OWNER, Clients
from tidegate.database.live_transactions import Keys, Writes
from tidegate.database.producing import Producing
from tidegate.database.read_gate import ReadGate
from tidegate.database.report import Report
from tidegate.database.settings import DatabaseSettings
from tidegate.database.subscriptions import Subscriptions
from tidegate.database.transaction_runs import TransactionRuns
from tidegate.database.write_gate import WriteGate
from tidegate.errors import (
    InvariantBroken,
    NotFound,
    OutcomeUnknown,
    Retryable,
    SchemaMismatch,
    TidegateError,
    WaitTimeout,
)
from tidegate.log.message import Message, MessageType
from tidegate.pipeline.host import Pipeline
from tidegate.pipeline.spark_worker import spark_worker
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.journal import Journal
from tidegate.runtime.log import Log
from tidegate.runtime.pieces import Piece
from tidegate.runtime.steps import Steps, run
from tidegate.tables.row_codec import version_of
from tidegate.tables.schema import VERSION_KEY, Table
from tidegate.topics.routing import place
from tidegate.txn.conflicts import ConflictWindow
from tidegate.txn.coordinator import Coordinator
from tidegate.txn.coordinator_table import LEASE, CoordinatorSettings
from tidegate.txn.txn_id import TxnId

_logger = logging.getLogger("tidegate.database")
T = TypeVar("T")
SYSTEM: Final = "system"
_SHAPE: Final = "database/shape"
_IDENTITY: Final = "database/id"
_ENDS_PLACES: Final = frozenset({"alter_table", "drop_table", "drop_topic"})
"""Changes after which messages made before are not taken any more."""
_LOOK_EVERY_S: Final = 0.05
_READ_S: Final = 10.0
_DDL_S: Final = 10.0


class Engine:
    """The one owner of a database. Its methods may be called from any thread."""

    def __init__(self, path: str | Path, settings: DatabaseSettings | None = None, *, takeover: bool = False) -> None:
        """Open or create the database at `path`.

        Raises: `InUse` when another process owns it; what opening a `Log` raises.
        """
        self.path: Final = Path(path)
        self.settings = settings or DatabaseSettings()
        with ExitStack() as ends:
            self.log: Final = ends.enter_context(Log(path, settings=self.settings.log, takeover=takeover))
            self.channels, coordinators = self._shape()
            self.id: Final = self._identity()
            """Chosen when the database was created."""
            self._catalog = Catalog()
            self._catalog_lock = Lock()
            self.log.channel(SYSTEM)
            self._catalog_journal = Journal(self.log, SYSTEM, CATALOG_VCHANNEL, snapshot_every=1000)
            self._catalog_journal.recover(self._restore_catalog, self._recover_catalog)
            self.write_gate: Final = WriteGate()
            self._places: dict[str, Table | None] = {}
            """The table that a virtual channel belongs to; None for a topic's."""
            self._note_places()
            self._coordinators = [self._open_coordinator(number) for number in range(coordinators)]
            self.transactions: Final = TransactionRuns(
                self._coordinators,
                allocate=self.log.allocate,
                conflicts=ConflictWindow(self.log.allocate(1), keys_max=self.settings.conflict_keys_max),
                redo_bytes=self.settings.redo_bytes,
            )
            writers = {name: self._open_channel(name) for name in self.channels}
            run(self.transactions.resume(writers))
            self._opened = self.log.allocate(1)
            self.clients: Final = Clients(time.monotonic)
            self.clients.add(OWNER, OWNER, None)
            self._left_behind = self._expect_clients()
            self.captures: list[Callable[[], dict[str, Any]]] = []
            """What captures in this process say of themselves."""
            self.applies: list[Callable[[], dict[str, Any]]] = []
            """What those say that apply to other databases."""
            self.on_catalog: list[Callable[[Change], None]] = []
            """Told of every change of the catalog, after it is durable."""
            self.on_client_gone: list[Callable[[str], None]] = []
            """Told of every client that left or was given up, after its transactions were aborted."""
            self.subscriptions: Final = Subscriptions(self)
            ends.callback(self.subscriptions.close)
            self.producing: Final = Producing(self)
            ends.callback(self.producing.close)
            self.pipeline: Final = Pipeline(self, spark_worker if self.settings.pipeline else None)
            ends.callback(self.pipeline.close)
            self.on_catalog.append(self.pipeline.catalog_changed)
            if self._catalog.tables():
                self.pipeline.start()
            self.report: Final = Report(self)
            self.reads: Final = ReadGate(self)
            self._stop = Event()
            self._thread = Thread(target=self._look_after, name="tidegate-database", daemon=True)
            self._thread.start()
            ends.callback(self._stop_thread)
            self._ends = ends.pop_all()

    def _expect_clients(self) -> list[TxnId]:
        """Whoever left a transaction open has his lease to come again; the transactions of an owner before, who cannot.

        They are kept for as long, so that they can be seen.
        """
        mine = []
        for txn, _ in self.transactions.look(finished=0):
            if txn.client == OWNER:
                mine.append(txn.id)
            elif txn.client:
                self.clients.add(txn.client, txn.client.rpartition(":")[0] or txn.client, self.settings.lease_ms)
        return mine

    def _shape(self) -> tuple[list[str], int]:
        """The number of channels and coordinators, fixed when the database was created."""
        store = self.log.metadata
        found = store.get(_SHAPE)
        if found is None:
            shape = {"channels": self.settings.channels, "coordinators": self.settings.coordinators}
            store.compare_and_set(_SHAPE, json.dumps(shape).encode(), expected=0)
            found = store.get(_SHAPE)
        shape = json.loads(found.value) if found is not None else {}
        return [f"data-{number}" for number in range(shape["channels"])], int(shape["coordinators"])

    def _identity(self) -> bytes:
        store = self.log.metadata
        store.compare_and_set(_IDENTITY, secrets.token_bytes(16), expected=0)
        found = store.get(_IDENTITY)
        if found is None:
            raise InvariantBroken(f"{self.path}: the database has no identity")
        return found.value

    def _restore_catalog(self, snapshot: bytes) -> None:
        self._catalog = Catalog.restore(snapshot)

    def _recover_catalog(self, record: bytes, message: Message) -> None:
        self._catalog.apply(record, message.time_tick)

    def _open_coordinator(self, number: int) -> tuple[Coordinator, Journal]:
        settings = self.settings
        coordinator = Coordinator(
            number,
            CoordinatorSettings(
                timeout_default_ms=settings.transaction_timeout_ms,
                timeout_max_ms=settings.transaction_timeout_max_ms,
                active_max=settings.transactions_max,
                remember_ms=settings.remember_ms,
                remembered_max=settings.remembered_max,
                plan_bytes_max=4 * settings.redo_bytes + (1 << 20),
            ),
        )
        every = settings.snapshot_records
        journal = Journal(self.log, SYSTEM, f"coordinator/{number}", snapshot_every=every)
        journal.recover(coordinator.restore, lambda record, _: _ignore(coordinator.apply(record)))
        return coordinator, journal

    def _open_channel(self, name: str) -> ChannelWriter:
        return self.log.channel(name, redo=lambda: self.transactions.redo_for(name))

    # -- catalog ---------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    def change_catalog(
        self, plan: Callable[[Catalog], bytes | None], check: Callable[[], None] | None = None
    ) -> Change | None:
        """Plan a change, make it durable, apply it; None when the plan says that there is nothing to do. `check` may
        refuse it by what it raises. Ordering: nothing commits between the check and the change."""
        journal = self._catalog_journal
        journal.enter()
        try:
            with self._catalog_lock:  # One at a time: changes are rare.
                record = plan(self._catalog)
                if record is None:
                    return None
                is_alone = check is not None or read_record(record)[0] in _ENDS_PLACES
                with self.write_gate.alone() if is_alone else nullcontext():
                    if check is not None:
                        check()
                    request = journal.request(record)
                    request.wait()
                    if request.error is not None:
                        raise request.error
                    change = self._catalog.apply(record, request.item.result().time_tick)
                    self._note_places()
        finally:
            journal.leave()
        if change is not None:
            self._announce(change, record)
            for told in self.on_catalog:
                told(change)
        return change

    def _announce(self, change: Change, record: bytes) -> None:
        """Put a change into the virtual channels it is about: what straddles it there is failed, and told why.

        The catalog's own record decides. If one of these cannot be written, what is open there ends at its timeout.
        """
        match change:
            case TopicDropped(topic, _):
                about: Topic | Table = topic
            case TableCreated(table) | TableAltered(table) | TableDropped(table):
                about = table
            case _:
                return
        for shard in range(about.shards):
            vchannel = about.vchannel(shard)
            try:
                self.log.channel(self.channel_of(about.id, shard), create=False).append(
                    vchannel, record, kind=MessageType.DDL, timeout_s=_DDL_S
                )
            except (Retryable, OutcomeUnknown) as error:
                _logger.warning("%s: a change of %r was not written there: %s", self.path, vchannel, error)

    def topic(self, name: str) -> Topic:
        """A topic by its name.

        Raises: `NotFound`.
        """
        with self._catalog_lock:
            return self._catalog.topic(name)

    def table(self, name: str, at: Timestamp | None = None) -> Table:
        """A table by its name; with `at` the one that had it at that time, which may have been dropped since.

        Ordering: it knows every change at or below a Timestamp that was allocated before the call.
        Raises: `NotFound`.
        """
        with self._catalog_lock:
            return self._table(name, at)

    def _table(self, name: str, at: Timestamp | None) -> Table:
        if at is not None:
            for each in self._catalog.tables_at(at):
                if each.name == name:
                    return each
        return self._catalog.table(name)

    def read_at(
        self, names: Sequence[str], at: Timestamp
    ) -> tuple[dict[str, Table], dict[str, View], list[Table | View]]:
        """The tables and the views that had names at a time; and all that those views read, directly or not.

        Ordering: as `table`. Raises: `NotFound`.
        """
        tables: dict[str, Table] = {}
        views: dict[str, View] = {}
        under: dict[int, Table | View] = {}
        with self._catalog_lock:
            there = {each.name: each for each in self._catalog.views_at(at)}
            for name in names:
                if name in there:
                    views[name] = there[name]
                    self._catalog.read_by(there[name], under)
                else:
                    tables[name] = self._table(name, at)
        return tables, views, list(under.values())

    def tables_changed(self, names: Sequence[str]) -> Timestamp:
        """When one of the tables that have, or had, these names was last created, altered or dropped."""
        with self._catalog_lock:
            return self._catalog.tables_changed(names)

    @contextmanager
    def writing(self, writes: Writes) -> Iterator[None]:
        """Write messages to where they belong. Raises: as `check_places`."""
        self.write_gate.enter()
        try:
            self.check_places(writes)
            yield
        finally:
            self.write_gate.leave()

    def inside_gate(self, writes: Writes, steps: Callable[[], Steps[T]]) -> Steps[T]:
        """As `writing`, for a procedure: it leaves the gate at its own end, also when its caller is gone.

        Ordering: the gate was entered.
        """
        try:
            self.check_places(writes)
            return (yield from steps())
        finally:
            self.write_gate.leave()

    def check_places(self, writes: Writes) -> None:
        """Refuse messages for a topic or table that was dropped since its place was looked up: nobody would ever read
        them; and rows made for another version of their table's schema.

        Raises: `NotFound`, `SchemaMismatch`.
        """
        for pieces in writes.values():
            for piece in pieces:
                table = self._places.get(piece.vchannel, _NOWHERE)
                if table is _NOWHERE:
                    self._refuse_place(piece.vchannel)
                elif table is not None:
                    _check_version(table, piece)

    def _refuse_place(self, vchannel: str) -> None:
        """Raises: `SchemaMismatch` when another table has the name of the one that was dropped, else `NotFound`."""
        name = vchannel.partition(".")[2].rpartition("/")[0]
        if not vchannel.startswith("table/"):
            raise NotFound(
                f"{vchannel!r} belongs to no topic: it was dropped, or dropped and created again; nothing was written"
            )
        table = next((each for each in self._catalog.tables() if each.name == name), None)
        if table is None:
            raise NotFound(f"table {name!r} was dropped; nothing was written")
        raise SchemaMismatch(
            f"table {name!r} was dropped and created again at {table.created}, and rows were made for the one before;"
            f" look the table up again",
            table=name,
            timestamp=int(table.created),
        )

    def _note_places(self) -> None:
        places: dict[str, Table | None] = {name: None for each in self._catalog.topics() for name in each.vchannels}
        places.update((name, each) for each in self._catalog.tables() for name in each.vchannels)
        self._places = places

    def channel_of(self, topic_id: int, shard: int) -> str:
        """The channel that a shard of a topic lies in."""
        return self.channels[place(topic_id, shard, len(self.channels))]

    # -- transactions ----------------------------------------------------------------------------------------

    def begin(self, client: str = OWNER, timeout_ms: int | None = None) -> TxnId:
        """Begin a transaction."""
        self.clients.check(client)
        return self.transactions.begin(client, timeout_ms)

    def commit(self, id: TxnId, writes: Writes, keys: Keys = ()) -> Timestamp:
        """Commit it; see `Transactions.commit`."""
        return run(self.transactions.commit(id, writes, keys))

    def write_ahead(self, id: TxnId, writes: Writes) -> None:
        """Write messages of it ahead of its commit."""
        with self.writing(writes):
            run(self.transactions.write_ahead(id, writes))

    def abort(self, id: TxnId, reason: str = "") -> None:
        """Abort it."""
        run(self.transactions.abort(id, reason))

    def find_commit(self, id: TxnId, channels: Sequence[str]) -> Timestamp | None:
        """When a transaction was committed, found in the log: for one whose owner died before it could answer.

        Nobody but this process can write to the channels any more, so what is not there will never be.
        """
        found = self.transactions.committed_at(id)
        if found is not None:
            return found
        raw = id.to_bytes16()
        now = self.log.allocate(1)
        self.wait_until_visible(now)
        for name in channels:
            with self.log.transaction_reader(name, after=Timestamp(id.counter - 1)) as reader:
                while reader.after < now:
                    delivery = reader.read(_READ_S)
                    if delivery is None:
                        raise WaitTimeout(f"channel {name!r} was not read up to {now} in {_READ_S} s; ask again")
                    for batch in delivery.batches:
                        at = batch.index_of_txn(raw)
                        if at is not None:
                            return Timestamp(int(batch.time_ticks[at]))
        return None

    def send(self, writes: Writes, keys: Keys = ()) -> Timestamp:
        """As `Transactions.send`."""
        return run(self.transactions.send(OWNER, writes, keys))

    def wait_until_visible(self, timestamp: Timestamp, timeout_s: float = 10.0) -> None:
        """Wait until every channel has ticked past `timestamp`, asking for the ticks now.

        Raises: `WaitTimeout`, naming the channel.
        """
        deadline = time.monotonic() + timeout_s
        for name in self.channels:
            writer = self.log.channel(name, create=False)
            while writer.latest_tick.time_tick < timestamp:
                writer.tick()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WaitTimeout(
                        f"channel {name!r} has come to {writer.latest_tick.time_tick} and not to {timestamp} within"
                        f" {timeout_s} s; `tidegate transactions` and `tidegate log show` say what holds it"
                    )
                writer.wait_for_tick(int(timestamp) - 1, min(left, 0.05))

    # -- looking after ---------------------------------------------------------------------------------------

    def client_gone(self, client: str, *, lost: bool) -> None:
        """A client has left, or was silent for too long: what it holds is given to others."""
        self.clients.remove(client)
        count = run(self.transactions.fail_client(client))
        if lost:
            _logger.warning("client %s was silent for too long; %d of its transactions were aborted", client, count)
        for told in self.on_client_gone:
            told(client)

    def _look_after(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            for work in (self._expire, self._snapshots, self.subscriptions.maintain, self.producing.maintain):
                try:
                    work()
                except TidegateError as error:
                    _logger.warning("%s: %s", self.path, error)
                except Exception:
                    _logger.exception("%s: background work met a defect", self.path)

    def _expire(self) -> None:
        run(self.transactions.expire())
        run(self.transactions.drive_on())
        run(self.transactions.log_lingering())
        run(self.transactions.write_ends())
        self.report.rates.sample()
        for client in self.clients.take_silent():
            self.client_gone(client, lost=True)
        if self._left_behind and self.log.allocate(1).ms_since(self._opened) > self.settings.lease_ms:
            left, self._left_behind = self._left_behind, []
            run(self.transactions.abort_all(left, LEASE))

    def _snapshots(self) -> None:
        for coordinator, journal in self._coordinators:
            if journal.wants_snapshot(len(coordinator)):
                journal.snapshot(lambda each=coordinator: self.transactions.snapshot_of(each))  # type: ignore[misc]
        if self._catalog_journal.wants_snapshot():
            self._catalog_journal.snapshot(lambda: self._catalog.snapshot())

    def _stop_thread(self) -> None:
        self._stop.set()
        self._thread.join()
        run(self.transactions.write_ends())

    def status(self) -> dict[str, Any]:
        """The state of the database, as data; see `Report`."""
        return self.report.status()

    def close(self) -> None:
        """Stop owning the database. Open transactions that were logged can go on with the next owner."""
        self._ends.close()


_NOWHERE: Final = Table(0, "", 0, Timestamp.ZERO, ())


def _check_version(table: Table, piece: Piece) -> None:
    """Raises: `SchemaMismatch` unless all rows of the piece were made for the table's newest schema."""
    if piece.rows is not None:
        found = {int((piece.rows.schema.metadata or {}).get(VERSION_KEY, b"0"))}
    else:
        bodies = piece.bodies if piece.bodies is not None else [piece.body]
        found = {version_of(each) for each in bodies}
    newest = table.schema
    if found != {newest.version}:
        raise SchemaMismatch(
            f"table {table.name!r} has version {newest.version} of its schema since {newest.since}, and rows were made"
            f" for {', '.join(map(str, sorted(found - {newest.version})))}; look the table up again",
            table=table.name,
            timestamp=int(newest.since),
        )


def _ignore(_: object) -> None:
    pass
