"""`fold`: what a worker does with one channel's share of a batch: its changes become layers, one or more per shard.

Reads the span between two cuts, transactions whole, keeps of each key its last change, and writes Parquet files that
nobody sees before a checkpoint names them. Done again it writes the same rows under other names.

Memory is bounded, however long the span: what has gathered is written when a shard has more than `CHUNK_BYTES`, and of
the largest when all together have more than `SHARE_BYTES`; a shard then has several files of one span, and the newest
change of a key wins among them as among all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from tidegate.catalog.catalog import Catalog
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken, WaitTimeout
from tidegate.log.batch import Batch
from tidegate.log.message import MessageType, Position
from tidegate.pipeline.catalog_file import read_catalog
from tidegate.runtime.log_files import LogFiles
from tidegate.snapshots.layer_writer import LayerWriter
from tidegate.snapshots.manifest import FileEntry
from tidegate.tables.changes import changes_of, net
from tidegate.tables.schema import Table
from tidegate.topics.routing import place

CHUNK_BYTES: Final = 96 << 20
SHARE_BYTES: Final = 256 << 20
_READ_S: Final = 30.0
ROWS: Final = frozenset({MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE})


class Share(Protocol):
    """One channel's share of a batch; see `spark.work.WorkItem`."""

    @property
    def database(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def after(self) -> int: ...
    @property
    def upto(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def catalog_version(self) -> int: ...
    @property
    def arguments(self) -> dict[str, Any]: ...


def fold(share: Share) -> Iterator[dict[str, Any]]:
    """Fold a share; what the manifest must hold of each file it has written.

    Raises: `Truncated`, `Corruption` from the log; `DiskFull`, `StorageFailed` from the disk of the snapshots.
    """
    database = Path(share.database)
    catalog = read_catalog(database, share.catalog_version)
    shards = _shards(catalog, share.channel, int(share.arguments["channels"]), Timestamp(share.upto))
    if not shards:
        return
    gathering = {vchannel: _Shard(database, table, number, share) for vchannel, (table, number) in shards.items()}
    gathered = 0
    for batch in _visible(database, share, frozenset(shards)):
        for at, vchannel in enumerate(batch.vchannels):
            shard = gathering.get(vchannel)
            if shard is None:
                continue
            mine = batch if len(batch.vchannels) == 1 else batch.where(batch.vchannel_ids == at)
            if len(mine):
                gathered -= shard.nbytes
                yield from shard.add(mine)
                gathered += shard.nbytes
        while gathered > SHARE_BYTES:
            largest = max(gathering.values(), key=lambda each: each.nbytes)
            gathered -= largest.nbytes
            yield from largest.finish()
    for shard in gathering.values():
        yield from shard.finish()


def entry_of(report: dict[str, Any]) -> FileEntry:
    """The manifest's entry that a report is of."""
    return FileEntry(*report["file"])


class _Shard:
    """Gathers the changes of one shard and writes them."""

    def __init__(self, database: Path, table: Table, number: int, share: Share) -> None:
        self._root = database / "snapshots"
        self._table = table
        self._schema = table.at(Timestamp(share.upto))
        self._key = [each.name for each in self._schema.key_columns]
        self._number = number
        self._share = share
        self._batches: list[Batch] = []
        self.nbytes = 0
        """Of what has gathered."""

    def add(self, batch: Batch) -> Iterator[dict[str, Any]]:
        self._batches.append(batch)
        self.nbytes += batch.nbytes
        if self.nbytes > CHUNK_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[dict[str, Any]]:
        if not self._batches:
            return
        changes = changes_of(self._table, self._batches, self._schema)
        self._batches, self.nbytes = [], 0
        if not changes.num_rows:
            return
        changes = net(changes, self._key)
        if self._key:
            changes = changes.sort_by([(name, "ascending") for name in self._key])
        entry = self._write(changes)
        if entry is not None:
            yield {"file": list(astuple(entry))}

    def _write(self, changes: pa.Table) -> FileEntry | None:
        with LayerWriter(
            self._root,
            self._table.id,
            self._schema,
            shard=self._number,
            first=self._share.first,
            last=self._share.last,
            sorted=bool(self._key),
            distinct=bool(self._key),
        ) as writer:
            writer.write(changes)
            return writer.close()


def _shards(catalog: Catalog, channel: str, channels: int, upto: Timestamp) -> dict[str, tuple[Table, int]]:
    """The shards of tables that lie in a channel."""
    return {
        table.vchannel(shard): (table, shard)
        for table in catalog.tables_at(upto)
        for shard in range(table.shards)
        if f"data-{place(table.id, shard, channels)}" == channel
    }


def _visible(database: Path, share: Share, vchannels: frozenset[str]) -> Iterator[Batch]:
    """What became visible in the span, in order."""
    upto = share.upto
    with LogFiles(database).transaction_reader(
        share.channel,
        position=Position(share.position),
        after=Timestamp(share.after),
        vchannels=vchannels,
        types=ROWS,
    ) as reader:
        while reader.after < upto:
            delivery = reader.read(_READ_S)
            if delivery is None:
                raise WaitTimeout(
                    f"channel {share.channel!r} was read up to {Timestamp(reader.after)} and not to {Timestamp(upto)}"
                    f" within {_READ_S:g} s, though a cut says that it has ticked; try again"
                )
            for batch in delivery.batches:
                if int(batch.time_ticks[0]) <= share.after:
                    raise InvariantBroken(f"channel {share.channel!r} gave a message at or below {share.after} again")
                if int(batch.time_ticks[-1]) <= upto:
                    yield batch
                else:
                    mask = batch.time_ticks <= upto
                    if mask.any():
                        yield batch.where(mask)
