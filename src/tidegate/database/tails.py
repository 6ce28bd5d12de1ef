"""`Tails`: what lies in the log behind the last checkpoint, kept as columns, so that a read takes in only what is new.

One follower per channel reads the rows of all tables there, from the checkpoint of the newest read on; what a newer
checkpoint holds is let go. A read further back than that reads the log by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Backpressure, WaitTimeout
from tidegate.log.batch import Batch
from tidegate.log.message import MessageType
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.tables.changes import changes_of, changes_schema
from tidegate.tables.schema import TS, Table, TableSchema
from tidegate.topics.routing import place

BYTES_MAX: Final = 512 << 20
"""What a read may take from the log; what lies further behind the last checkpoint is waited for."""
_KEPT_MAX: Final = 64 << 20
"""What is kept for the next read."""
_READ_S: Final = 10.0
_TABLE: Final = "table/"
_ROWS: Final = frozenset({MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE})


class LogSource(Protocol):
    """Where the log is read: `Log` in the process that owns it, `LogFiles` in any other."""

    def transaction_reader(
        self,
        name: str,
        *,
        after: Timestamp = ...,
        vchannels: frozenset[str] | None = ...,
        types: frozenset[MessageType] | None = ...,
    ) -> TransactionReader: ...


class TailTooLong(Backpressure):
    """There is more in the log behind the last checkpoint than a read may take in."""


class Tails:
    """The tails of all tables of one database. Thread-safe."""

    def __init__(self, log: LogSource, channels: int, *, bytes_max: int = BYTES_MAX, kept_max: int = _KEPT_MAX) -> None:
        self._log = log
        self._channels = channels
        self._bytes_max = bytes_max
        self._kept_max = kept_max
        self._followers: dict[str, _Follower] = {}
        self._decoded: dict[int, _Decoded] = {}
        self._lock = Lock()

    def changes(self, table: Table, schema: TableSchema, after: Timestamp, upto: Timestamp) -> pa.Table:
        """The changes of a table that became visible after one time and up to another, in no order.

        Ordering: every channel has ticked past `upto`; if one has not, this waits for it.
        Raises: `TailTooLong`; `Truncated`; `WaitTimeout`.
        """
        if after >= upto:
            return changes_schema(schema).empty_table()
        with self._lock:
            channels = self._channels_of(table)
            found = self._kept(table, schema, channels, after, upto)
        if found is None:
            found = changes_of(table, self._bounded(self.batches(table, after, upto)), schema)
        return found

    def close(self) -> None:
        with self._lock:
            self._forget()

    # -- what is kept ------------------------------------------------------------------------------------------------

    def _kept(
        self, table: Table, schema: TableSchema, channels: Sequence[str], after: Timestamp, upto: Timestamp
    ) -> pa.Table | None:
        """The changes from what is kept; None when they reach further back."""
        followers = [self._follower(name, after) for name in channels]
        if any(each is None for each in followers):
            return None
        known = [each for each in followers if each is not None]
        try:
            for follower in known:
                for batch in self._bounded(follower.advance(upto)):
                    follower.keep(batch)
        except BaseException:
            self._forget()  # Some of it was read and not kept.
            raise
        decoded = self._decoded.get(table.id)
        if decoded is None or decoded.version != schema.version:
            decoded = self._decoded[table.id] = _Decoded(schema)
        decoded.take(table, [part for each in known for part in each.of(table)])
        found = decoded.between(after, upto)
        if sum(each.nbytes for each in self._followers.values()) > self._kept_max:
            self._forget()
        return found

    def _follower(self, channel: str, after: Timestamp) -> _Follower | None:
        """Who follows a channel from `after` on, or from before; None when he began later."""
        found = self._followers.get(channel)
        if found is not None and found.start > after:
            return None
        if found is None or found.reader.after < after:
            if found is not None:
                found.close()
            found = self._followers[channel] = _Follower(self._log, channel, after)
        found.let_go(after)
        return found

    def _forget(self) -> None:
        for each in self._followers.values():
            each.close()
        self._followers.clear()
        self._decoded.clear()

    # -- reading the log ---------------------------------------------------------------------------------------------

    def batches(self, table: Table, after: Timestamp, upto: Timestamp) -> Iterator[Batch]:
        """The messages themselves, from the log."""
        mine = frozenset(table.vchannels)
        for name in self._channels_of(table):
            with self._log.transaction_reader(name, after=after, vchannels=mine, types=_ROWS) as reader:
                yield from _until(reader, name, upto, cut=True)

    def _bounded(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        nbytes = 0
        for batch in batches:
            nbytes += batch.rows.nbytes
            if nbytes > self._bytes_max:
                raise TailTooLong(
                    f"more than {self._bytes_max:,} bytes were written since the last checkpoint; let the pipeline"
                    f" catch up, as `flush` does, or read with consistency 'eventual'"
                )
            yield batch

    def _channels_of(self, table: Table) -> list[str]:
        return sorted({f"data-{place(table.id, shard, self._channels)}" for shard in range(table.shards)})


class _Follower:
    """Reads one channel on and on, and keeps the rows of tables by virtual channel."""

    def __init__(self, log: LogSource, channel: str, after: Timestamp) -> None:
        self._channel = channel
        self.start = after
        self.reader: Final = log.transaction_reader(channel, after=after, types=_ROWS)
        self._parts: dict[str, list[Batch]] = {}
        self.nbytes = 0

    def advance(self, upto: Timestamp) -> Iterator[Batch]:
        return _until(self.reader, self._channel, upto, cut=False)

    def keep(self, batch: Batch) -> None:
        for index, name in enumerate(batch.vchannels):
            if not name.startswith(_TABLE):
                continue
            part = batch if len(batch.vchannels) == 1 else batch.where(batch.vchannel_ids == index)
            if len(part):
                self._parts.setdefault(name, []).append(part)
                self.nbytes += part.rows.nbytes

    def of(self, table: Table) -> list[Batch]:
        return [part for name in table.vchannels for part in self._parts.get(name, ())]

    def let_go(self, after: Timestamp) -> None:
        """Forget what a checkpoint at `after` holds."""
        if after <= self.start:
            return
        self.start = after
        for name, parts in list(self._parts.items()):
            kept = [each for each in parts if int(each.time_ticks.max()) > after]
            if len(kept) != len(parts):
                self.nbytes -= sum(each.rows.nbytes for each in parts if int(each.time_ticks.max()) <= after)
                self._parts[name] = kept

    def close(self) -> None:
        self.reader.close()


class _Decoded:
    """A table's rows in the tail, as changes by one version of its schema. Each batch is decoded once."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self.version: Final = schema.version
        self._known: dict[int, Batch] = {}
        """By identity; kept, so that no other batch gets it."""
        self._changes: list[pa.Table] = []

    def take(self, table: Table, batches: Sequence[Batch]) -> None:
        there = {id(each): each for each in batches}
        new = [each for key, each in there.items() if key not in self._known]
        gone = len(self._known) + len(new) - len(there)
        if new:
            self._changes.append(changes_of(table, new, self._schema))
        if gone:
            # A checkpoint holds them now; what else came with them stays.
            oldest = min((int(each.time_ticks.min()) for each in there.values()), default=None)
            self._changes = [] if oldest is None else [_above(pa.concat_tables(self._changes), oldest - 1)]
        elif len(self._changes) > 16:
            self._changes = [pa.concat_tables(self._changes).combine_chunks()]
        self._known = there

    def between(self, after: Timestamp, upto: Timestamp) -> pa.Table:
        if not self._changes:
            return changes_schema(self._schema).empty_table()
        found = pa.concat_tables(self._changes)
        ticks = found.column(TS)
        wanted = pc.and_(pc.greater(ticks, int(after)), pc.less_equal(ticks, int(upto)))
        return found.filter(wanted)


def _above(changes: pa.Table, after: int) -> pa.Table:
    return changes.filter(pc.greater(changes.column(TS), after))


def _until(reader: TransactionReader, channel: str, upto: Timestamp, *, cut: bool) -> Iterator[Batch]:
    """What a reader delivers until it has come to `upto`; with `cut` nothing above it."""
    while reader.after < upto:
        delivery = reader.read(_READ_S)
        if delivery is None:
            raise WaitTimeout(
                f"channel {channel!r} has come to {Timestamp(reader.after)} and not to {upto} within {_READ_S:g} s;"
                f" `tidegate status` says what holds it"
            )
        for batch in delivery.batches:
            if not cut:
                yield batch
            elif (mask := batch.time_ticks <= np.uint64(int(upto))).any():
                yield batch if mask.all() else batch.where(mask)
