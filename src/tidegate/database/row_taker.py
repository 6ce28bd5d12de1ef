"""`RowTaker`: rows that users hand in, made into the messages of a table's shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.database.backend import Limits
from tidegate.errors import InvalidArgument, LimitExceeded
from tidegate.log.batch import Batch, body_rows
from tidegate.log.message import MessageType, Term
from tidegate.tables.rows_in import RowsIn
from tidegate.tables.schema import Table
from tidegate.tables.shards import key_columns_of, split_by_shard
from tidegate.topics.routing import Key, key_hash, key_hashes, shard_of

_FEW: Final = 16
"""Up to so many rows are written as bytes: an Arrow batch of one costs as much as the disk."""

Hashes = Callable[[], Sequence[int]]
Parts = list[tuple[int, bytes | pa.RecordBatch]]


class RowTaker:
    """Takes rows for one version of a table's schema."""

    def __init__(self, table: Table) -> None:
        self.table: Final = table
        schema = table.schema
        self._key: Final = [each.name for each in schema.key_columns]
        self._rows: Final = RowsIn(schema)
        self._keys: Final = RowsIn(schema, key_only=True) if schema.key else None

    @property
    def version(self) -> tuple[int, int]:
        """Of which table, and which version of its schema."""
        return self.table.id, self.table.schema.version

    def take(self, rows: Any, limits: Limits, *, delete: bool, turn: int) -> tuple[Parts, Hashes | None, int]:
        """Rows, or keys, by shard; the hashes of their keys; how many they are.

        Raises: `InvalidArgument`, `LimitExceeded`.
        """
        takes = self._taking(delete)
        if isinstance(rows, Mapping) or (isinstance(rows, list | tuple) and len(rows) <= _FEW):
            return self._few(takes, rows, limits, turn)
        batch = takes.batch(rows)
        return self._many(batch, limits, turn)

    def batch(self, rows: Any) -> pa.RecordBatch:
        """Rows as one Arrow batch of the table's schema."""
        return self._rows.batch(rows)

    def hashes_of(self, keys: Any) -> list[int]:
        """The hashes of keys, in any form in which rows are deleted by them."""
        if isinstance(keys, list | tuple) and not keys:
            return []
        if self._keys is None:
            raise InvalidArgument(f"table {self.table.name!r} has no primary key, so there is nothing to look for")
        if isinstance(keys, list | tuple) and len(keys) <= _FEW:
            return [key_hash(self.table.name, each) for each in self._keys.encode_keyed(keys)[1]]
        return self._hashes(self._keys.batch(keys))

    def _hashes(self, batch: pa.RecordBatch) -> list[int]:
        found: list[int] = key_hashes(self.table.name, key_columns_of(batch, self._key)).tolist()
        return found

    def _taking(self, delete: bool) -> RowsIn:
        if not delete:
            return self._rows
        if self._keys is None:
            raise InvalidArgument(
                f"table {self.table.name!r} has no primary key: its rows stay. Create it with one to delete by it"
            )
        return self._keys

    def _few(self, takes: RowsIn, rows: Any, limits: Limits, turn: int) -> tuple[Parts, Hashes | None, int]:
        table = self.table
        keys: list[Key] | None = None
        if self._key:
            bodies, keys = takes.encode_keyed(rows)
        else:
            bodies = takes.encode(rows)
        parts: Parts = []
        for number, body in enumerate(bodies):
            if len(body) > limits.message_bytes:
                what = f"table {table.name!r}, row {number}: its size in bytes"
                raise LimitExceeded(what, len(body), limits.message_bytes, "message_bytes_max")
            shard = (
                0 if table.shards == 1 else shard_of(None if keys is None else keys[number], table.shards, turn=turn)
            )
            parts.append((shard, body))
        if keys is None:
            return parts, None, len(bodies)
        return parts, lambda: [key_hash(table.name, key) for key in keys], len(bodies)

    def _many(self, batch: pa.RecordBatch, limits: Limits, turn: int) -> tuple[Parts, Hashes | None, int]:
        table, count = self.table, batch.num_rows
        parts: Parts = []
        if not count:
            return parts, None, 0
        # A batch is one append; what is too much for one becomes several, of one transaction. How much memory it holds
        # takes Arrow no time to tell; its size is more only where columns share some.
        step, most = limits.batch_rows, limits.batch_bytes // 2
        if batch.get_total_buffer_size() * batch.num_columns > most:
            step = min(step, max(most * count // max(batch.nbytes, 1), 1))
        for start in range(0, count, step):
            part = batch.slice(start, step)
            if part.num_rows == 1 and part.nbytes > limits.batch_bytes:
                what = f"table {table.name!r}, row {start}: its size in bytes"
                raise LimitExceeded(what, part.nbytes, limits.batch_bytes, "block_bytes_max")
            parts.extend(split_by_shard(part, self._key, table.shards, turn=turn + start // step))
        return parts, (lambda: self._hashes(batch)) if self._key else None, count


def as_batches(table: Table, pieces: Iterable[tuple[str, MessageType, list[bytes] | pa.RecordBatch]]) -> list[Batch]:
    """Messages that are not in the log yet, as a reader would get them: above everything that is, in their order."""
    mine, found, at = frozenset(table.vchannels), [], 1
    for vchannel, kind, payload in pieces:
        if vchannel not in mine:
            continue
        rows = body_rows(payload) if isinstance(payload, list) else payload
        count = rows.num_rows
        found.append(
            Batch(
                time_ticks=np.full(count, int(Timestamp.MAX) >> 1, np.uint64),
                positions=np.arange(at, at + count, dtype=np.uint64),
                last_confirmed=np.zeros(count, np.uint64),
                types=np.full(count, int(kind), np.uint8),
                vchannel_ids=np.zeros(count, np.uint16),
                vchannels=(vchannel,),
                rows=rows,
                term=Term(0),
            )
        )
        at += count
    return found
