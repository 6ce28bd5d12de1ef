"""Messages on their way out: values become bodies, keys decide the shard, and everything is gathered by channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.catalog.entries import Topic
from tidegate.database.backend import Limits
from tidegate.database.row_taker import RowTaker, as_batches
from tidegate.errors import InvalidArgument, LimitExceeded, NotFound
from tidegate.log.batch import Batch
from tidegate.log.message import MessageType
from tidegate.runtime.pieces import Piece
from tidegate.tables.schema import Table
from tidegate.topics.routing import key_hash, key_hashes, place, shard_of, shards_of
from tidegate.topics.value import encode
from tidegate.txn.conflicts import U64, Hashes, Written

Key = str | bytes | int


_PLAIN: Final = (dict, bytes, str, list)


class Outgoing:
    """What a transaction, or a single send, will write. Not thread-safe."""

    __slots__ = (
        "_ahead",
        "_channels",
        "_hashes",
        "_keys",
        "_last",
        "_names",
        "_pieces",
        "buffer_bytes",
        "limits",
        "nbytes",
    )

    def __init__(self, channels: int, limits: Limits | None = None) -> None:
        self._channels = channels
        self.limits = limits or Limits()
        self.buffer_bytes = self.limits.buffer_bytes
        self._pieces: list[tuple[int, str, MessageType, list[bytes] | pa.RecordBatch, int]] = []
        """The last is the size of Arrow rows."""
        self._last: dict[tuple[int, int], tuple[MessageType, list[bytes] | pa.RecordBatch]] = {}
        """The newest messages of a shard, by its topic or table and its number."""
        self._hashes: list[Callable[[], Sequence[int]]] = []
        """What makes the hashes of keys; it holds their rows."""
        self._ahead: list[U64] = []
        """The hashes of keys whose rows were taken."""
        self._names: set[str] = set()
        """Where keys were written to."""
        self._keys = 0
        """How many of them there are at most."""
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def count(self) -> int:
        """How many appends it is."""
        return len(self._pieces)

    @property
    def channel(self) -> str | None:
        """The only channel that it is for; None when there are several, or it is empty."""
        found = {each[0] for each in self._pieces}
        return f"data-{found.pop()}" if len(found) == 1 else None

    def add(
        self,
        topic: Topic,
        value: Any,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        turn: int = 0,
    ) -> int:
        """Add a message, or one for each row of an Arrow batch or table; how many.

        `key` names the column that holds the keys of Arrow rows. Without a key, `turn` chooses the shard.
        Raises: `InvalidArgument`, `LimitExceeded`, `NotFound`: nothing of it was added.
        """
        if type(value) not in _PLAIN and isinstance(value, pa.RecordBatch | pa.Table):
            return self._add_rows(topic, value, key, turn)
        body = encode(value, key, headers, bytes_max=self.limits.message_bytes)
        shard = 0 if topic.shards == 1 else shard_of(key, topic.shards, turn=turn)
        self._put_body(topic, shard, MessageType.INSERT, body)
        if key is not None:
            self._note(topic.name, lambda: (key_hash(topic.name, key),), 1)
        return 1

    def _add_rows(self, topic: Topic, rows: pa.RecordBatch | pa.Table, key: Key | None, turn: int) -> int:
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        if key is not None and (not isinstance(key, str) or key not in rows.schema.names):
            raise NotFound(f"the rows have no column {key!r} for their key; there are: {', '.join(rows.schema.names)}")
        parts: list[tuple[int, pa.RecordBatch]] = []
        hashes: list[Callable[[], Sequence[int]]] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            self._check_batch(batch)
            if key is None:
                parts.append((shard_of(None, topic.shards, turn=turn), batch))
                continue
            shards = shards_of(batch.column(key), topic.shards)
            for shard in np.unique(shards).tolist():
                alone = topic.shards == 1
                parts.append((shard, batch if alone else batch.take(pa.array(np.flatnonzero(shards == shard)))))
            hashes.append(partial(_hashes_of, topic.name, batch.column(key)))
        for shard, part in parts:  # All of them or none.
            self._put(topic, shard, MessageType.INSERT, part, part.nbytes)
        for each in hashes:
            self._note(topic.name, each, 0)
        self._keys += rows.num_rows if hashes else 0
        return int(rows.num_rows)

    def add_rows(self, to: RowTaker, rows: Any, *, delete: bool = False, turn: int = 0) -> int:
        """Add rows of a table, or with `delete` the keys of rows that end; how many.

        Raises: `InvalidArgument`, `LimitExceeded`: nothing of it was added.
        """
        parts, hashes, count = to.take(rows, self.limits, delete=delete, turn=turn)
        kind = MessageType.DELETE if delete else MessageType.INSERT
        for shard, part in parts:
            if isinstance(part, bytes):
                self._put_body(to.table, shard, kind, part)
            else:
                self._put(to.table, shard, kind, part, part.nbytes)
        if hashes is not None:
            self._note(to.table.name, hashes, count)
        return count

    def _note(self, name: str, hashes: Callable[[], Sequence[int]], count: int) -> None:
        self._hashes.append(hashes)
        self._names.add(name)
        self._keys += count

    def batches_of(self, table: Table) -> list[Batch]:
        """What it holds of a table's rows, in order, as a reader would get it."""
        return as_batches(table, [(vchannel, kind, payload) for _, vchannel, kind, payload, _ in self._pieces])

    def _check_batch(self, batch: pa.RecordBatch) -> None:
        limits = self.limits
        if batch.num_rows > limits.batch_rows:
            raise LimitExceeded(
                "the number of rows in an Arrow batch", batch.num_rows, limits.batch_rows, "batch_rows_max"
            )
        if batch.nbytes > limits.batch_bytes:
            raise LimitExceeded("the size of an Arrow batch", batch.nbytes, limits.batch_bytes, "block_bytes_max")

    def _put_body(self, to: Topic | Table, shard: int, kind: MessageType, body: bytes) -> None:
        self.nbytes += len(body) + 32
        last = self._last.get((to.id, shard))
        if last is not None and last[0] is kind and type(last[1]) is list:
            last[1].append(body)
        else:
            self._put(to, shard, kind, [body])

    def _put(
        self, to: Topic | Table, shard: int, kind: MessageType, payload: list[bytes] | pa.RecordBatch, size: int = 0
    ) -> None:
        self.nbytes += size
        self._last[to.id, shard] = kind, payload
        self._pieces.append((place(to.id, shard, self._channels), to.vchannel(shard), kind, payload, size))

    def writes(self) -> dict[str, list[Piece]]:
        """The messages by channel, in order within each virtual channel."""
        found: dict[str, list[Piece]] = {}
        for channel, vchannel, kind, payload, size in self._pieces:
            single = isinstance(payload, list) and len(payload) == 1
            piece = Piece(vchannel, payload[0] if single else payload, kind, size=size)
            found.setdefault(f"data-{channel}", []).append(piece)
        return found

    @property
    def keys(self) -> Written:
        """The keys that are written so far."""
        found = partial(_all_of, tuple(self._ahead), tuple(self._hashes))
        return Written(found, frozenset(self._names), self._keys)

    def take(self) -> dict[str, list[Piece]]:
        """The messages by channel, which are then somebody else's; the keys stay, without the rows."""
        writes = self.writes()
        if self._hashes:
            self._ahead.append(np.asarray(_all_of((), self._hashes), np.uint64))
            self._hashes = []
        self._pieces, self._last, self.nbytes = [], {}, 0
        return writes


def _all_of(ahead: Sequence[U64], hashes: Sequence[Callable[[], Sequence[int]]]) -> Hashes:
    found: list[int] = []
    for each in hashes:
        found.extend(each())
    return np.concatenate([*ahead, np.asarray(found, np.uint64)]) if ahead else found


def _hashes_of(topic: str, column: pa.Array) -> list[int]:
    found: list[int] = key_hashes(topic, [column]).tolist()
    return found


def check_count(count: int) -> int:
    if count < 1:
        raise InvalidArgument("there are no rows to send")
    return count
