"""`Tails`: what lies in the log behind the last checkpoint, kept as columns, so that a read takes in only what is new.

One follower per channel reads the rows of all tables there, from the checkpoint of the newest read on; what a newer
checkpoint holds is let go. A read further back than that reads the log by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from threading import Lock
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Backpressure, WaitTimeout
from tidegate.log.batch import Batch
from tidegate.log.message import MessageType
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.snapshots.one_key import OneKey, only_key
from tidegate.tables.changes import changes_of, changes_schema
from tidegate.tables.schema import TS, Table, TableSchema
from tidegate.tables.shards import key_of
from tidegate.topics.routing import place, shard_of

BYTES_MAX: Final = 512 << 20
"""What a read may take from the log; what lies further behind the last checkpoint is waited for."""
_KEPT_MAX: Final = 64 << 20
"""What is kept for the next read."""
_READ_S: Final = 10.0
_CHUNKS_MAX: Final = 16
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
        self._numbers = count()
        self._lock = Lock()

    def changes(
        self,
        table: Table,
        schema: TableSchema,
        after: Timestamp,
        upto: Timestamp,
        *,
        deadline_s: float | None = None,
        key: OneKey | None = None,
    ) -> pa.Table:
        """The changes of a table that became visible after one time and up to another, in no order.

        Those of one `key`, if it is given: then only its shard is read.
        Ordering: every channel has ticked past `upto`; if one has not, this waits for it, until `deadline_s` of the
        monotonic clock at most.
        Raises: `TailTooLong`; `Truncated`; `WaitTimeout`.
        """
        if after >= upto:
            return changes_schema(schema).empty_table()
        bound = _Bound(self._bytes_max, deadline_s)
        if not self._lock.acquire(timeout=bound.left_s()):
            raise WaitTimeout("other reads take in the log behind the last checkpoint for longer than the timeout")
        try:
            found = self._kept(table, schema, after, upto, bound, key)
        finally:
            self._lock.release()
        if found is None:
            found = changes_of(table, bound.counted(self.batches(table, after, upto, bound)), schema)
            found = found if key is None else only_key(found, key)
        return found

    def close(self) -> None:
        with self._lock:
            self._forget()

    # -- what is kept ------------------------------------------------------------------------------------------------

    def _kept(
        self,
        table: Table,
        schema: TableSchema,
        after: Timestamp,
        upto: Timestamp,
        bound: _Bound,
        key: OneKey | None,
    ) -> pa.Table | None:
        """The changes from what is kept; None when they reach further back."""
        known = []
        shards = range(table.shards) if key is None else [shard_of_key(table, schema, key)]
        for name in self._channels_of(table, shards):
            follower = self._follower(name, after)
            if follower is None:
                return None
            known.append(follower)
        try:
            for follower in known:
                for batch in bound.counted(follower.advance(upto, bound)):
                    follower.keep(batch, self._numbers)
        except BaseException:
            self._forget()  # Some of it was read and not kept.
            raise
        decoded = self._decoded.get(table.id)
        if decoded is None or decoded.version != schema.version:
            decoded = self._decoded[table.id] = _Decoded(schema)
        vchannels = [table.vchannel(each) for each in shards]
        parts = [part for each in known for part in each.of(vchannels)]
        found = decoded.between(table, parts, after, upto, key)
        if self._nbytes() > self._kept_max:
            self._forget()
        return found

    def _nbytes(self) -> int:
        kept = sum(each.nbytes for each in self._followers.values())
        return kept + sum(each.nbytes for each in self._decoded.values())

    def _follower(self, channel: str, after: Timestamp) -> _Follower | None:
        """Who follows a channel from `after` on, or from before; None when he began later."""
        found = self._followers.get(channel)
        if found is not None and found.start > after:
            return None
        if found is None or found.reader.after < after:
            if found is not None:
                found.close()
            found = self._followers[channel] = _Follower(self._log, channel, after)
            self._drop_unused()
        elif found.let_go(after):
            self._drop_unused()
        return found

    def _drop_unused(self) -> None:
        """Forget what was decoded of messages that nobody keeps any more."""
        there = {number for each in self._followers.values() for number in each.numbers()}
        self._decoded = {id: each for id, each in self._decoded.items() if each.keep_only(there)}

    def _forget(self) -> None:
        for each in self._followers.values():
            each.close()
        self._followers.clear()
        self._decoded.clear()

    # -- reading the log ---------------------------------------------------------------------------------------------

    def batches(self, table: Table, after: Timestamp, upto: Timestamp, bound: _Bound | None = None) -> Iterator[Batch]:
        """The messages themselves, from the log."""
        mine = frozenset(table.vchannels)
        for name in self._channels_of(table, range(table.shards)):
            with self._log.transaction_reader(name, after=after, vchannels=mine, types=_ROWS) as reader:
                for batch in _until(reader, name, upto, bound or _Bound(self._bytes_max, None)):
                    if (mask := _upto(batch, upto)).any():
                        yield batch if mask.all() else batch.where(mask)

    def _channels_of(self, table: Table, shards: Iterable[int]) -> list[str]:
        return sorted({f"data-{place(table.id, shard, self._channels)}" for shard in shards})


class _Bound:
    """What one read may take in, and until when."""

    def __init__(self, bytes_max: int, deadline_s: float | None) -> None:
        self._bytes_max = bytes_max
        self._deadline_s = deadline_s
        self._nbytes = 0

    def left_s(self) -> float:
        return _READ_S if self._deadline_s is None else min(max(self._deadline_s - time.monotonic(), 0.0), _READ_S)

    def counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Raises: `TailTooLong`."""
        for batch in batches:
            self._nbytes += batch.rows.nbytes
            if self._nbytes > self._bytes_max:
                raise TailTooLong(
                    f"more than {self._bytes_max:,} bytes were written since the last checkpoint; let the pipeline"
                    f" catch up, as `flush` does, or read with consistency 'eventual'"
                )
            yield batch


Part = tuple[int, Batch]
"""Messages of one virtual channel, and a number that no other has."""


class _Follower:
    """Reads one channel on and on, and keeps the rows of tables by virtual channel."""

    def __init__(self, log: LogSource, channel: str, after: Timestamp) -> None:
        self._channel = channel
        self.start = after
        self.reader: Final = log.transaction_reader(channel, after=after, types=_ROWS)
        self._parts: dict[str, list[Part]] = {}
        self.nbytes = 0

    def advance(self, upto: Timestamp, bound: _Bound) -> Iterator[Batch]:
        return _until(self.reader, self._channel, upto, bound)

    def keep(self, batch: Batch, numbers: Iterator[int]) -> None:
        for index, name in enumerate(batch.vchannels):
            if not name.startswith(_TABLE):
                continue
            part = batch if len(batch.vchannels) == 1 else batch.where(batch.vchannel_ids == index)
            if len(part):
                self._parts.setdefault(name, []).append((next(numbers), part))
                self.nbytes += part.rows.nbytes

    def of(self, vchannels: Iterable[str]) -> list[Part]:
        return [part for name in vchannels for part in self._parts.get(name, ())]

    def numbers(self) -> Iterator[int]:
        return (number for parts in self._parts.values() for number, _ in parts)

    def let_go(self, after: Timestamp) -> bool:
        """Forget what a checkpoint at `after` holds; whether that was anything."""
        if after <= self.start:
            return False
        self.start = after
        before = self.nbytes
        for name, parts in list(self._parts.items()):
            kept = [each for each in parts if int(each[1].time_ticks.max()) > after]
            if len(kept) != len(parts):
                self.nbytes -= sum(each[1].rows.nbytes for each in parts if int(each[1].time_ticks.max()) <= after)
                self._parts[name] = kept
        return self.nbytes != before

    def close(self) -> None:
        self.reader.close()


class _Decoded:
    """A table's rows in the tail, as changes by one version of its schema. Each part is decoded once."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self.version: Final = schema.version
        self._chunks: list[_Chunk] = []
        self._known: set[int] = set()
        self.nbytes = 0

    def keep_only(self, numbers: set[int]) -> bool:
        """Forget chunks of which no part is there any more; whether anything is left."""
        self._set([each for each in self._chunks if not each.numbers.isdisjoint(numbers)])
        return bool(self._chunks)

    def _set(self, chunks: list[_Chunk]) -> None:
        self._chunks = chunks
        self._known = set().union(*(each.numbers for each in chunks))
        self.nbytes = sum(each.nbytes for each in chunks)

    def _add(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        self._known |= chunk.numbers
        self.nbytes += chunk.nbytes
        if len(self._chunks) > _CHUNKS_MAX:
            numbers = frozenset[int]().union(*(each.numbers for each in self._chunks))
            rows = pa.concat_tables([each.rows for each in self._chunks]).combine_chunks()
            self._set([_Chunk(numbers, rows, rows.nbytes)])

    def between(
        self, table: Table, parts: Sequence[Part], after: Timestamp, upto: Timestamp, key: OneKey | None
    ) -> pa.Table:
        """The changes in `parts`, and maybe others of the table; of `key` alone if it is given."""
        new, later = [], []
        for number, batch in parts:
            if number in self._known:
                continue
            mask = _upto(batch, upto)
            if mask.all():
                new.append((number, batch))
            elif mask.any():
                # What lies above `upto` may be of a schema that this read does not know.
                later.append(batch.where(mask))
        if new:
            changes = changes_of(table, [batch for _, batch in new], self._schema)
            self._add(_Chunk(frozenset(number for number, _ in new), changes, changes.nbytes))
        found = [each.rows for each in self._chunks]
        if later:
            found.append(changes_of(table, later, self._schema))
        if key is not None:
            found = [each for each in (only_key(each, key) for each in found) if each.num_rows]
        if not found:
            return changes_schema(self._schema).empty_table()
        whole = pa.concat_tables(found)
        ticks = whole.column(TS)
        return whole.filter(pc.and_(pc.greater(ticks, int(after)), pc.less_equal(ticks, int(upto))))


class _Chunk(NamedTuple):
    """Parts that were decoded together."""

    numbers: frozenset[int]
    rows: pa.Table
    nbytes: int


def shard_of_key(table: Table, schema: TableSchema, key: OneKey) -> int:
    """The only shard of a table that a key is ever in."""
    columns = schema.key_columns
    return shard_of(key_of(columns, [key[each.name] for each in columns]), table.shards)


def _upto(batch: Batch, upto: Timestamp) -> npt.NDArray[np.bool_]:
    return batch.time_ticks <= np.uint64(int(upto))


def _until(reader: TransactionReader, channel: str, upto: Timestamp, bound: _Bound) -> Iterator[Batch]:
    """What a reader delivers until it has come to `upto`, and what came with it."""
    while reader.after < upto:
        delivery = reader.read(bound.left_s())
        if delivery is None:
            raise WaitTimeout(
                f"channel {channel!r} has come to {Timestamp(reader.after)} and not to {upto} in time;"
                f" `tidegate status` says what holds it"
            )
        yield from delivery.batches
