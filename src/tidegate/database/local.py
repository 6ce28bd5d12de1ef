"""`LocalBackend`: the database of this process, for one client: itself, or another one through the server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from tidegate.barrier.clock import BarrierSettings
from tidegate.catalog.entries import Topic
from tidegate.catalog.statements import parse
from tidegate.clock.timestamp import Timestamp
from tidegate.database.backend import Limits
from tidegate.database.clients import OWNER
from tidegate.database.ddl import TableDdl, ViewDdl, run_ddl
from tidegate.database.engine import Engine
from tidegate.database.live_transactions import Keys, Writes
from tidegate.database.read_gate import ReadAsk, ReadPlace
from tidegate.database.received import Received
from tidegate.database.transaction_runs import Member
from tidegate.errors import InvalidArgument
from tidegate.runtime.steps import run, run_async
from tidegate.tables.schema import Table
from tidegate.tables.statements import AlterTable, CreateTable, DropTable
from tidegate.topics import statements
from tidegate.topics.message_id import MessageId
from tidegate.txn.txn_id import TxnId

_SHOWN: Final = (
    "id", "state", "client", "age_ms", "timeout_in_ms", "channels", "subscriptions", "commit_timestamp", "reason",
)  # fmt: skip
"""What SHOW TRANSACTIONS gives; `Report.transactions` has more."""


class LocalBackend:
    """Answers for one client. Every call is a sign of life of the client."""

    def __init__(self, engine: Engine, client: str = OWNER) -> None:
        self.engine = engine
        self._client = client
        self._limits: Limits | None = None

    @property
    def is_owner(self) -> bool:
        return True

    @property
    def channels(self) -> int:
        return len(self.engine.channels)

    @property
    def limits(self) -> Limits:
        if self._limits is None:
            settings = self.engine.settings
            log = settings.log
            self._limits = Limits(
                settings.transaction_buffer_bytes,
                log.message_bytes_max,
                log.batch_rows_max,
                log.block_bytes_max,
                settings.transaction_timeout_ms,
            )
        return self._limits

    def topic(self, name: str) -> Topic:
        return self.engine.topic(name)

    # -- statements ------------------------------------------------------------------------------------------

    def execute(self, sql: str) -> list[dict[str, Any]]:
        engine, catalog = self.engine, self.engine.catalog
        statement = parse(sql)
        match statement:
            case statements.CreateTopic(name, shards, if_not_exists):
                engine.change_catalog(
                    lambda found: found.plan_create_topic(name, shards=shards or 1, if_not_exists=if_not_exists)
                )
            case statements.DropTopic(name, if_exists):
                engine.change_catalog(lambda found: found.plan_drop_topic(name, if_exists=if_exists))
            case statements.DropSubscription(name, of, if_exists):
                engine.change_catalog(lambda found: found.plan_drop_subscription(of, name, if_exists=if_exists))
            case statements.ShowTopics():
                return [_topic_row(each) for each in catalog.topics()]
            case statements.DescribeTopic(name):
                return [self._describe(catalog.topic(name))]
            case statements.ShowSubscriptions(topic):
                return [_plain(asdict(each)) for each in catalog.subscriptions(topic)]
            case statements.ShowTransactions():
                return [{name: each[name] for name in _SHOWN} for each in self.transactions()]
            case _ if isinstance(statement, TableDdl | ViewDdl):
                return run_ddl(engine, statement)
            case _:
                raise InvalidArgument(f"this statement reads or writes rows; use db.sql for it: {sql.strip()[:60]!r}")
        return []

    def change_behind(self, guard: TxnId, sql: str, read_at: Timestamp | None) -> None:
        statement = parse(sql)
        if not isinstance(statement, CreateTable | AlterTable | DropTable):
            raise InvalidArgument(f"this statement changes no table: {sql.strip()[:60]!r}")
        run_ddl(self.engine, statement, lambda: self.engine.transactions.check_guard(guard, read_at))

    def _describe(self, topic: Topic) -> dict[str, Any]:
        channels = [self.engine.channel_of(topic.id, shard) for shard in range(topic.shards)]
        subscriptions = [each.name for each in self.engine.catalog.subscriptions(topic.name)]
        return {**_topic_row(topic), "channels": channels, "subscriptions": subscriptions}

    def table(self, name: str, at: Timestamp | None = None) -> Table:
        return self.engine.table(name, at)

    def flush(self, timeout_s: float) -> Timestamp:
        return self.engine.pipeline.flush(timeout_s)

    def pause_pipeline(self, paused: bool) -> None:
        pipeline = self.engine.pipeline
        if paused:
            pipeline.pause()
        else:
            pipeline.resume()

    def set_barriers(self, interval_ms: int, checkpoint_every: int) -> None:
        self.engine.pipeline.change(BarrierSettings(interval_ms=interval_ms, checkpoint_every=checkpoint_every))

    @property
    def database_id(self) -> bytes:
        return self.engine.id

    def now(self) -> Timestamp:
        return self.engine.log.allocate(1)

    def begin_read(self, ask: ReadAsk) -> ReadPlace:
        return self.engine.reads.begin(ask)

    # -- transactions ----------------------------------------------------------------------------------------

    def begin(self, timeout_ms: int | None) -> TxnId:
        return self.engine.begin(self._client, timeout_ms)

    def commit(self, id: TxnId, writes: Writes, keys: Keys, read_at: Timestamp | None) -> Timestamp:
        if (committed := self.engine.transactions.committed_at(id)) is not None:
            return committed  # Whatever has become of its tables since.
        with self.engine.writing(writes):
            return run(self.engine.transactions.commit(id, writes, keys, read_at=read_at))

    def commit_run(self, guard: TxnId, members: Sequence[Member], read_at: Timestamp | None) -> list[Timestamp]:
        engine = self.engine
        with engine.writing({}):
            for each in members:
                engine.check_places(each.writes)
            return run(engine.transactions.commit_run(guard, members, read_at=read_at))

    async def commit_async(self, id: TxnId, writes: Writes, keys: Keys, read_at: Timestamp | None) -> Timestamp:
        """`commit` in an event loop."""
        engine = self.engine
        if (committed := engine.transactions.committed_at(id)) is not None:
            return committed
        if not engine.write_gate.try_enter():
            # Those inside may need this event loop to go on.
            return await asyncio.to_thread(self.commit, id, writes, keys, read_at)
        return await run_async(
            engine.inside_gate(writes, lambda: engine.transactions.commit(id, writes, keys, read_at=read_at))
        )

    async def send_async(self, writes: Writes, keys: Keys) -> Timestamp:
        """`send` in an event loop."""
        engine = self.engine
        if not engine.write_gate.try_enter():
            return await asyncio.to_thread(self.send, writes, keys)
        return await run_async(engine.inside_gate(writes, lambda: engine.transactions.send(self._client, writes, keys)))

    def write_ahead(self, id: TxnId, writes: Writes) -> None:
        self.engine.write_ahead(id, writes)

    def note_read(self, id: TxnId, hashes: Sequence[int], table: str) -> Timestamp:
        return self.engine.transactions.note_read(id, hashes, table)

    def abort(self, id: TxnId, reason: str = "") -> None:
        self.engine.abort(id, reason)

    def find_commit(self, id: TxnId) -> Timestamp | None:
        return self.engine.find_commit(id, self.engine.channels)

    def transactions(self, finished: int | None = None) -> list[dict[str, Any]]:
        return self.engine.report.transactions(finished)

    # -- topics ----------------------------------------------------------------------------------------------

    def send(self, writes: Writes, keys: Keys) -> Timestamp:
        with self.engine.writing(writes):
            return run(self.engine.transactions.send(self._client, writes, keys))

    def open_producer(self, topic: str, name: str) -> tuple[int, int | None]:
        return self.engine.producing.open_producer(self._client, topic, name)

    def produce(
        self, topic: str, producer: str, epoch: int, first: int, count: int, writes: Writes, keys: Keys
    ) -> tuple[Timestamp | None, bool]:
        with self.engine.writing(writes):
            sent = self.engine.producing.send(self._client, topic, producer, epoch, first, count, writes, keys)
        return sent.timestamp, sent.duplicate

    # -- subscriptions ---------------------------------------------------------------------------------------

    def subscribe(self, topic: str, name: str, options: dict[str, Any]) -> str:
        asked = dict(options)
        if type(asked.get("start")) is int:  # As it comes through the socket.
            asked["start"] = Timestamp(asked["start"])
        return self.engine.subscriptions.subscribe(self._client, topic, name, kind_if_new="exclusive", **asked)

    def unsubscribe(self, topic: str, name: str) -> None:
        self.engine.subscriptions.unsubscribe(topic, name)

    def receive(self, consumer: str, max_messages: int, timeout_s: float) -> list[Received]:
        return self.engine.subscriptions.of(consumer).receive(consumer, max_messages, timeout_s)

    def ack(self, consumer: str, ids: Sequence[MessageId], *, cumulative: bool, txn: TxnId | None) -> None:
        host = self.engine.subscriptions.of(consumer)
        if txn is None:
            steps = host.ack_cumulative(consumer, ids[-1]) if cumulative else host.ack(consumer, ids)
        else:
            # Whoever shares this process cannot go on with the transaction when it is gone.
            later = self._client == OWNER
            if cumulative:
                steps = host.ack_cumulative_in_txn(txn, consumer, ids[-1], later=later)
            else:
                steps = host.ack_in_txn(txn, consumer, ids, later=later)
        run(steps)

    def nack(self, consumer: str, ids: Sequence[MessageId], delay_ms: int) -> None:
        self.engine.subscriptions.of(consumer).nack(consumer, ids, delay_ms)

    def redeliver(self, consumer: str) -> None:
        self.engine.subscriptions.of(consumer).redeliver(consumer)

    def disconnect(self, consumer: str) -> None:
        self.engine.subscriptions.disconnect(consumer)

    def subscription_stats(self, topic: str, name: str) -> dict[str, Any]:
        return self.engine.subscriptions.stats(topic, name)

    # -- the whole -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return self.engine.status()

    def close(self) -> None:
        self.engine.close()


def _topic_row(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "id": topic.id, "shards": topic.shards, "created": str(topic.created)}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Timestamp) else value for name, value in row.items()}
