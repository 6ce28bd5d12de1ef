"""Reading a span of the log as Arrow batches: what a partition of the data source does, without Spark.

A span is what became visible in one channel above one Timestamp and up to another. Transactions come whole: a message's
TimeTick is its transaction's commit Timestamp, so no cut goes through one. Whoever reads waits until the channel has
ticked past the end of the span, so that nothing of it can come later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.catalog.catalog import CATALOG_VCHANNEL, Catalog
from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import NotFound, WaitTimeout
from tidegate.log.batch import BODY_SCHEMA, Batch
from tidegate.log.message import ALL_VCHANNELS, NO_POSITION, MessageType, Position, Tick
from tidegate.pipeline.catalog_file import newest_catalog
from tidegate.runtime.log_files import LogFiles
from tidegate.tables.changes import changes_of, changes_schema
from tidegate.tables.schema import Table
from tidegate.topics.routing import place
from tidegate.topics.value import decode

SYSTEM_CHANNEL: Final = "system"
WAIT_S: Final = 30.0
"""How long to wait for a channel to tick past the end of a span that a cut has promised."""
_DATA: Final = frozenset({MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE})

TOPIC_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("_ts", pa.int64()),
        pa.field("_shard", pa.int32()),
        pa.field("_txn", pa.binary()),
        pa.field("_seq", pa.int64()),
    ]
)
"""A topic's messages. `value` is the JSON of what was sent, `bytes` what was sent as bytes; one of the two is null. A
number as a key is its digits, bytes are their hexadecimal digits. `_seq` orders messages of one Timestamp
within a shard."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one channel: what became visible above `after`, up to and with `upto`.

    `position` is a place from which nothing of it is missed; `vchannels` leaves out all others, None none.
    """

    channel: str
    after: int
    upto: int
    position: int = NO_POSITION
    vchannels: tuple[str, ...] | None = None


def read_span(path: str | Path, span: Span, *, wait_s: float = WAIT_S) -> Iterator[Batch]:
    """The span's messages in the order in which they became visible, a few of them at a time.

    Raises: `WaitTimeout` when the channel does not tick past the end in time; `Truncated` when retention was faster.
    """
    if span.upto <= span.after:
        return
    with LogFiles(path).transaction_reader(
        span.channel,
        position=Position(span.position),
        after=Timestamp(span.after),
        vchannels=None if span.vchannels is None else frozenset(span.vchannels),
        types=_DATA,
    ) as reader:
        while reader.after < span.upto:
            delivery = reader.read(wait_s)
            if delivery is None:
                raise WaitTimeout(
                    f"channel {span.channel!r} has come to {Timestamp(reader.after)} and not to {Timestamp(span.upto)}"
                    f" within {wait_s:g} s; is the database open for writing?"
                )
            for batch in delivery.batches:
                if batch.last_time_tick <= span.upto:
                    yield batch
                elif batch.first_time_tick <= span.upto:
                    yield batch.where(batch.time_ticks <= np.uint64(span.upto))


def latest_tick(path: str | Path, channel: str) -> Timestamp:
    """How far a channel's messages are complete, as far as its files and the writer's published place say."""
    files = LogFiles(path)
    last = files.segments(channel)[-1:]
    position = last[0].first_position if last else NO_POSITION
    after = last[0].after_time_tick if last else Timestamp.ZERO
    with files.reader(channel, position=position, after=after, vchannel=ALL_VCHANNELS) as reader:
        while reader.poll() is not None:
            pass
        return Timestamp(reader.after)


# -- topics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """Where something named lies: its virtual channels, by channel, with the shard of each."""

    name: str
    created: Timestamp
    by_channel: dict[str, dict[str, int]]


def find_topic(path: str | Path, name: str) -> Places:
    """Where a topic's shards are, by the catalog's records in the log.

    Raises: `NotFound`, with names that come near.
    """
    topic = catalog_log(str(path)).now().topic(name)
    return Places(topic.name, topic.created, _by_channel(topic.id, topic.vchannels, _data_channels(path)))


def _data_channels(path: str | Path) -> int:
    return sum(1 for each in LogFiles(path).channels() if each.startswith("data-"))


def _by_channel(id: int, vchannels: tuple[str, ...], channels: int) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for shard, vchannel in enumerate(vchannels):
        found.setdefault(f"data-{place(id, shard, channels)}", {})[vchannel] = shard
    return found


class CatalogLog:
    """The catalog by its records in the log, read on from where the last look ended."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._catalog = Catalog()
        self._tick: Tick | None = None

    def now(self) -> Catalog:
        """As of what is durable now. Nobody else changes what this returns."""
        tick = self._tick
        with LogFiles(self._path).transaction_reader(
            SYSTEM_CHANNEL,
            position=NO_POSITION if tick is None else tick.last_confirmed,
            after=Timestamp.ZERO if tick is None else tick.time_tick,
            vchannels=frozenset({CATALOG_VCHANNEL}),
        ) as reader:
            while (delivery := reader.poll()) is not None:
                for message in delivery.messages():
                    if message.vchannel != CATALOG_VCHANNEL or message.body is None:
                        continue
                    if message.body[:1] == b"\1":  # A snapshot holds the effect of all records before it.
                        self._catalog = Catalog.restore(message.body[1:])
                    else:
                        self._catalog.apply(message.body[1:], message.time_tick)
                self._tick = delivery.tick
        return self._catalog


@lru_cache(maxsize=16)
def catalog_log(path: str) -> CatalogLog:
    """The one of this process: a stream asks once a batch."""
    return CatalogLog(path)


def topic_rows(batch: Batch, shards: dict[str, int]) -> pa.RecordBatch:
    """A topic's messages as columns of `TOPIC_SCHEMA`. Rows that were sent as Arrow become their JSON."""
    numbers = np.array([shards.get(name, -1) for name in batch.vchannels], np.int32)[batch.vchannel_ids]
    batch = batch.where(numbers >= 0)
    numbers = numbers[numbers >= 0]
    if batch.rows.schema.equals(BODY_SCHEMA):
        keys, values, raw, headers = _bodies(batch.rows.column(0).to_pylist())
    else:
        values = [json.dumps(row, default=str, separators=(",", ":")) for row in batch.rows.to_pylist()]
        keys, raw, headers = [None] * len(batch), [None] * len(batch), [[] for _ in values]
    columns = [
        pa.array(keys, pa.string()),
        pa.array(values, pa.string()),
        pa.array(raw, pa.binary()),
        pa.array(headers, pa.map_(pa.string(), pa.string())),
        pa.array(batch.time_ticks.astype(np.int64)),
        pa.array(numbers),
        _txns(batch),
        pa.array(batch.positions.astype(np.int64)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TOPIC_SCHEMA)


def _bodies(bodies: list[bytes]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    keys: list[Any] = []
    values: list[Any] = []
    raw: list[Any] = []
    headers: list[Any] = []
    for body in bodies:
        found = decode(body)
        key = found.key
        keys.append(key if key is None or isinstance(key, str) else key.hex() if isinstance(key, bytes) else str(key))
        value = found.value
        values.append(
            None if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        )
        raw.append(value if isinstance(value, bytes) else None)
        headers.append(list(found.headers.items()))
    return keys, values, raw, headers


def _txns(batch: Batch) -> pa.Array:
    if batch.txns is None:
        return pa.nulls(len(batch), pa.binary())
    return pa.array([raw if any(raw := bytes(each)) else None for each in batch.txns], pa.binary())


# -- tables ----------------------------------------------------------------------------------------------------------

Decode = Callable[[Batch], Iterator[pa.RecordBatch]]
"""How messages become rows: one function for topics, one for each table."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """A table's changes: where they are, and by which of its schemas they are read."""

    path: str
    id: int
    version: int
    schema: pa.Schema
    places: Places

    def table_at(self, catalog_version: int | None) -> Table:
        """The table with all schemas that a span may need whose end is in this version of the catalog, None: unknown.

        Asked once a batch, where batches are planned, and handed to the partitions. A version of the catalog that is a
        file is one small read, whatever lies in the log.
        """
        if catalog_version is not None:
            catalog = newest_catalog(Path(self.path))
            if catalog is not None and catalog.version >= catalog_version:
                try:
                    table = catalog.table_by_id(self.id)
                except NotFound:
                    pass  # Dropped and forgotten there.
                else:
                    if len(table.versions) >= self.version:
                        return table
        return catalog_log(self.path).now().table_by_id(self.id)

    def decode(self, table: Table) -> Decode:
        """Rows of any version in `table`, by this one's columns."""
        target = table.version(self.version)

        def rows(batch: Batch) -> Iterator[pa.RecordBatch]:
            yield from changes_of(table, [batch], target).to_batches()

        return rows


def find_table(path: str | Path, name: str) -> TableChanges:
    """A table's changes by its newest schema: its columns, and `_ts`, `_seq` and `_op`.

    Raises: `NotFound`, with names that come near.
    """
    table = catalog_log(str(path)).now().table(name)
    by_channel = _by_channel(table.id, table.vchannels, _data_channels(path))
    places = Places(name, Timestamp(table.created), by_channel)
    schema = changes_schema(table.schema).remove_metadata()
    return TableChanges(str(path), table.id, table.schema.version, schema, places)


def find_view(path: str | Path, name: str) -> View | None:
    """The view of that name, if there is one."""
    return next((each for each in catalog_log(str(path)).now().views() if each.name == name), None)
