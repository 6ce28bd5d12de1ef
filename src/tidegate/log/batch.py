"""`Batch`: many messages as columns, the form in which they are read, reordered and handed to Arrow.

System columns are numpy arrays of equal length; the payload is one Arrow record batch. Messages
that were appended as bytes have a single payload column, `body`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.clock.timestamp import Timestamp
from tidegate.log.message import ALL_VCHANNELS, Message, MessageType, Position, Term

BODY_FIELD: Final = "body"
BODY_SCHEMA: Final = pa.schema([pa.field(BODY_FIELD, pa.binary(), nullable=False)])

U64 = npt.NDArray[np.uint64]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages in physical order, unless a reader has put them into TimeTick order.

    Invariant: all arrays and `rows` have the same length; `vchannel_ids` index `vchannels`.
    """

    time_ticks: U64
    positions: U64
    last_confirmed: U64
    types: U8
    vchannel_ids: U16
    vchannels: tuple[str, ...]
    rows: pa.RecordBatch
    term: Term
    txns: npt.NDArray[np.void] | None = None
    """16 bytes a message, all zero for none; None when no message has one."""

    def __len__(self) -> int:
        return len(self.time_ticks)

    @property
    def first_time_tick(self) -> int:
        """The smallest."""
        return int(self.time_ticks.min())

    @property
    def last_time_tick(self) -> int:
        """The largest."""
        return int(self.time_ticks.max())

    @property
    def first_position(self) -> int:
        return int(self.positions[0])

    @property
    def is_sorted(self) -> bool:
        """Whether TimeTicks strictly ascend."""
        return bool(np.all(self.time_ticks[1:] > self.time_ticks[:-1]))

    @property
    def nbytes(self) -> int:
        """Roughly what it costs in memory."""
        return int(self.rows.nbytes) + 27 * len(self)

    def slice(self, start: int, stop: int) -> Batch:
        """The messages from index `start` up to `stop`, without copying."""
        return replace(
            self,
            time_ticks=self.time_ticks[start:stop],
            positions=self.positions[start:stop],
            last_confirmed=self.last_confirmed[start:stop],
            types=self.types[start:stop],
            vchannel_ids=self.vchannel_ids[start:stop],
            rows=self.rows.slice(start, stop - start),
            txns=None if self.txns is None else self.txns[start:stop],
        )

    def take(self, indices: npt.NDArray[np.intp]) -> Batch:
        """The messages at `indices`, in that order."""
        return replace(
            self,
            time_ticks=self.time_ticks[indices],
            positions=self.positions[indices],
            last_confirmed=self.last_confirmed[indices],
            types=self.types[indices],
            vchannel_ids=self.vchannel_ids[indices],
            rows=self.rows.take(pa.array(indices, pa.int64())),
            txns=None if self.txns is None else self.txns[indices],
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> Batch:
        """The messages whose mask is true, in the same order; itself when that is all of them."""
        if mask.all():
            return self
        return self.take(np.flatnonzero(mask))

    def only_vchannel(self, name: str) -> Batch | None:
        """The messages of one virtual channel and those meant for all; None when there are none."""
        wanted = [index for index, each in enumerate(self.vchannels) if each in (name, ALL_VCHANNELS)]
        if not wanted:
            return None
        if len(wanted) == len(self.vchannels):
            return self
        mask = self.vchannel_ids == wanted[0]
        for index in wanted[1:]:
            mask |= self.vchannel_ids == index
        return self.where(mask) if mask.any() else None

    def index_of_txn(self, txn: bytes) -> int | None:
        """Where the first message of a transaction stands; None when there is none."""
        if self.txns is None:
            return None
        found = np.flatnonzero(self.txns == np.frombuffer(txn, "V16")[0])
        return int(found[0]) if len(found) else None

    def messages(self) -> Iterator[Message]:
        """One message after the other. Rows become Python objects here and nowhere else."""
        names = self.vchannels
        bodies: Sequence[Any]
        is_bytes = self.rows.schema.equals(BODY_SCHEMA)
        bodies = bodies_of(self.rows) if is_bytes else self.rows.to_pylist()
        txns = [None] * len(self) if self.txns is None else [_txn(bytes(each)) for each in self.txns]
        columns = zip(
            self.time_ticks.tolist(),
            self.positions.tolist(),
            self.last_confirmed.tolist(),
            self.types.tolist(),
            self.vchannel_ids.tolist(),
            bodies,
            txns,
            strict=True,
        )
        for time_tick, position, last_confirmed, kind, vchannel, body, txn in columns:
            yield Message(
                time_tick=Timestamp(time_tick),
                position=Position(position),
                last_confirmed=Position(last_confirmed),
                type=MessageType(kind),
                vchannel=names[vchannel],
                term=self.term,
                body=body if is_bytes else None,
                row=None if is_bytes else body,
                txn=txn,
            )

    def to_arrow(self) -> pa.RecordBatch:
        """One record batch: the system columns, named with a leading underscore, then the payload."""
        names = pa.DictionaryArray.from_arrays(pa.array(self.vchannel_ids), pa.array(self.vchannels, pa.string()))
        txns = pa.nulls(len(self), pa.binary(16))
        if self.txns is not None:
            txns = pa.array([_txn(bytes(each)) for each in self.txns], pa.binary(16))
        columns = {
            "_time_tick": pa.array(self.time_ticks),
            "_position": pa.array(self.positions),
            "_last_confirmed": pa.array(self.last_confirmed),
            "_type": pa.array(self.types),
            "_vchannel": names,
            "_txn": txns,
        }
        for field, column in zip(self.rows.schema, self.rows.columns, strict=True):
            columns[field.name] = column
        return pa.RecordBatch.from_pydict(columns)


class RunBatch(Batch):
    """Messages with consecutive positions and TimeTicks, of one type and virtual channel, in no transaction.

    What nearly every block holds. Its system columns are made only when somebody asks for them.
    """

    __slots__ = ("_first_position", "_first_tick", "_kind", "_last_confirmed")
    _first_position: int
    _first_tick: int
    _kind: int
    _last_confirmed: int

    def __init__(
        self,
        *,
        first_tick: int,
        first_position: int,
        last_confirmed: int,
        kind: int,
        vchannel: str,
        rows: pa.RecordBatch,
        term: Term,
    ) -> None:
        assign = object.__setattr__
        assign(self, "_first_tick", first_tick)
        assign(self, "_first_position", first_position)
        assign(self, "_last_confirmed", last_confirmed)
        assign(self, "_kind", kind)
        assign(self, "vchannels", (vchannel,))
        assign(self, "rows", rows)
        assign(self, "term", term)
        assign(self, "txns", None)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def time_ticks(self) -> U64:
        return np.arange(self._first_tick, self._first_tick + len(self), dtype=np.uint64)

    @property
    def positions(self) -> U64:
        return np.arange(self._first_position, self._first_position + len(self), dtype=np.uint64)

    @property
    def last_confirmed(self) -> U64:
        return np.full(len(self), self._last_confirmed, np.uint64)

    @property
    def types(self) -> U8:
        return np.full(len(self), self._kind, np.uint8)

    @property
    def vchannel_ids(self) -> U16:
        return np.zeros(len(self), np.uint16)

    @property
    def first_time_tick(self) -> int:
        return self._first_tick

    @property
    def last_time_tick(self) -> int:
        return self._first_tick + len(self) - 1

    @property
    def first_position(self) -> int:
        return self._first_position

    @property
    def is_sorted(self) -> bool:
        return True

    def slice(self, start: int, stop: int) -> Batch:
        return RunBatch(
            first_tick=self._first_tick + start,
            first_position=self._first_position + start,
            last_confirmed=self._last_confirmed,
            kind=self._kind,
            vchannel=self.vchannels[0],
            rows=self.rows.slice(start, stop - start),
            term=self.term,
        )

    def take(self, indices: npt.NDArray[np.intp]) -> Batch:
        return Batch(
            time_ticks=self.time_ticks,
            positions=self.positions,
            last_confirmed=self.last_confirmed,
            types=self.types,
            vchannel_ids=self.vchannel_ids,
            vchannels=self.vchannels,
            rows=self.rows,
            term=self.term,
        ).take(indices)


def _txn(raw: bytes) -> bytes | None:
    return raw if any(raw) else None


def body_rows(bodies: Sequence[bytes | memoryview]) -> pa.RecordBatch:
    """A payload of plain bytes."""
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], schema=BODY_SCHEMA)


def bodies_of(rows: pa.RecordBatch) -> list[bytes]:
    """The bodies of a payload of plain bytes, as `body_rows` was given them; faster than Arrow's `to_pylist`."""
    column = rows.column(0)
    if not len(column):
        return []
    _, offsets, data = column.buffers()
    if data is None:
        return [b""] * len(column)
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    first = int(ends[0])
    raw = bytes(memoryview(data)[first : int(ends[-1])])
    places: list[int] = (ends - first).tolist()
    return [raw[start:end] for start, end in pairwise(places)]


def concat(batches: Sequence[Batch]) -> Batch:
    """Several batches of one schema and term as one, in the given order."""
    if len(batches) == 1:
        return batches[0]
    names: dict[str, int] = {}
    ids = []
    for batch in batches:
        table = np.array([names.setdefault(name, len(names)) for name in batch.vchannels], np.uint16)
        ids.append(table[batch.vchannel_ids])
    txns = None
    if any(batch.txns is not None for batch in batches):
        txns = np.concatenate([np.zeros(len(batch), "V16") if batch.txns is None else batch.txns for batch in batches])
    return Batch(
        time_ticks=np.concatenate([batch.time_ticks for batch in batches]),
        positions=np.concatenate([batch.positions for batch in batches]),
        last_confirmed=np.concatenate([batch.last_confirmed for batch in batches]),
        types=np.concatenate([batch.types for batch in batches]),
        vchannel_ids=np.concatenate(ids),
        vchannels=tuple(names),
        rows=pa.concat_batches([batch.rows for batch in batches]),
        term=batches[0].term,
        txns=txns,
    )
