"""What a table's messages changed, as columns, and what remains of many changes to one key.

A change has the columns of the schema asked for, whatever version it was written with, and

    _ts     int64    the TimeTick at which it is visible, as the transaction reader delivers it
    _seq    int64    its position in the log: the order among changes of one transaction, which share a TimeTick
    _op     int8     1: the row is there, with these values; -1: it is gone, and only its key is not NULL

Ordering: `(_ts, _seq)` totally orders the changes of one shard, and so those of one key. It does not depend on how the
log was cut into batches when it was read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvariantBroken
from tidegate.log.batch import BODY_FIELD, BODY_SCHEMA, Batch
from tidegate.log.message import MessageType
from tidegate.tables.row_codec import KEY_ONLY
from tidegate.tables.row_decode import decode_bodies, versions_of
from tidegate.tables.schema import OP, SEQ, SYSTEM_COLUMNS, TS, VERSION_KEY, Table, TableSchema

THERE: Final = 1
GONE: Final = -1

_IS_ROW: Final = np.zeros(256, np.bool_)
_IS_ROW[[MessageType.INSERT, MessageType.UPSERT, MessageType.DELETE]] = True
_DELETE: Final = int(MessageType.DELETE)

_Bool = npt.NDArray[np.bool_]
_I64 = npt.NDArray[np.int64]


def changes_schema(target: TableSchema) -> pa.Schema:
    """The columns of changes: those of the schema, of which all but a key's without NULLs may be NULL, then the
    system's."""
    key = set(target.key)
    fields = [pa.field(each.name, each.type, each.nullable or each.id not in key) for each in target.columns]
    fields += [pa.field(TS, pa.int64(), False), pa.field(SEQ, pa.int64(), False), pa.field(OP, pa.int8(), False)]
    return pa.schema(fields, metadata={VERSION_KEY: str(target.version).encode()})


def changes_of(table: Table, batches: Iterable[Batch], target: TableSchema | None = None) -> pa.Table:
    """The changes in batches of the table's virtual channels, by the newest schema or `target`.

    Messages of others, and those that are no rows, are passed over. Columns follow their id: renamed ones under their
    new name, dropped ones not at all, added ones as NULL where they were not there yet.
    Raises: `InvariantBroken` for a message that is no row of the table.
    """
    reading = _Reading(table, target or table.schema)
    for batch in batches:
        reading.add(batch)
    return reading.finish()


class _Reading:
    """Gathers changes; rows that came as bytes are decoded together at the end."""

    def __init__(self, table: Table, target: TableSchema) -> None:
        self._table = table
        self._target = target
        self._schema = changes_schema(target)
        self._mine = frozenset(table.vchannels)
        self._out: list[pa.RecordBatch] = []
        self._bodies: list[Batch] = []

    def add(self, batch: Batch) -> None:
        if not len(batch):
            return
        mask = _IS_ROW[batch.types]
        mine = np.array([each in self._mine for each in batch.vchannels], np.bool_)
        if not mine.all():
            mask &= mine[batch.vchannel_ids]
        if not mask.any():
            return
        if not mask.all():
            batch = batch.take(np.flatnonzero(mask))
        version = (batch.rows.schema.metadata or {}).get(VERSION_KEY)
        if version is None:
            if not batch.rows.schema.equals(BODY_SCHEMA):
                raise InvariantBroken(f"{self._named} has rows without a schema version: {batch.rows.schema.names}")
            self._bodies.append(batch)
            return
        self._decode_bodies()
        types = batch.types
        is_delete = types == _DELETE
        for op, chosen in ((THERE, ~is_delete), (GONE, is_delete)):
            if chosen.all():
                self._put(batch.rows, int(version), op, batch.time_ticks, batch.positions)
            elif chosen.any():
                rows = batch.rows.filter(pa.array(chosen))
                self._put(rows, int(version), op, batch.time_ticks[chosen], batch.positions[chosen])

    def finish(self) -> pa.Table:
        self._decode_bodies()
        return pa.Table.from_batches(self._out, schema=self._schema)

    @property
    def _named(self) -> str:
        return f"table {self._table.name!r}"

    def _decode_bodies(self) -> None:
        """Decode what came as bytes since the last Arrow rows, by version and kind."""
        batches, self._bodies = self._bodies, []
        if not batches:
            return
        bodies = pa.concat_arrays([each.rows.column(BODY_FIELD) for each in batches])
        ticks = np.concatenate([each.time_ticks for each in batches])
        positions = np.concatenate([each.positions for each in batches])
        is_delete = np.concatenate([each.types for each in batches]) == _DELETE
        kinds = versions_of(bodies) * 2 + np.where(is_delete, KEY_ONLY, 0)
        for kind in np.unique(kinds).tolist():
            chosen = kinds == kind
            version, key_only = divmod(kind, 2)
            some = bodies if chosen.all() else bodies.filter(pa.array(chosen))
            rows = decode_bodies(self._version(version), some, key_only=bool(key_only))
            self._put(rows, version, GONE if key_only else THERE, ticks[chosen], positions[chosen])

    def _version(self, version: int) -> TableSchema:
        if not 0 < version <= len(self._table.versions):
            known = len(self._table.versions)
            raise InvariantBroken(f"{self._named} has a row of schema version {version}, and versions 1 to {known}")
        return self._table.version(version)

    def _put(self, rows: pa.RecordBatch, version: int, op: int, ticks: Any, positions: Any) -> None:
        """Rows written with a version, as changes by the target."""
        written = self._version(version)
        expected = written.arrow_key if op == GONE else written.arrow
        if rows.schema.names != expected.names or rows.schema.types != expected.types:
            raise InvariantBroken(
                f"{self._named} has rows of schema version {version} with the columns {rows.schema.names},"
                f" not {expected.names}"
            )
        places = {each.id: index for index, each in enumerate(written.key_columns if op == GONE else written.columns)}
        columns = []
        for each in self._target.columns:
            place = places.get(each.id)
            columns.append(pa.nulls(rows.num_rows, each.type) if place is None else rows.column(place))
        columns += [
            pa.array(np.ascontiguousarray(ticks).view(np.int64)),
            pa.array(np.ascontiguousarray(positions).view(np.int64)),
            pa.array(np.full(rows.num_rows, op, np.int8)),
        ]
        self._out.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))


def net(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Of each key only its last change by `(_ts, _seq)`; without a key all of them.

    Itself when no key has two. The order of the result means nothing. NULL equals NULL, where the schema lets the key
    be NULL; NaN equals NaN, and -0.0 equals 0.0.
    """
    if not key or changes.num_rows < 2:
        return changes
    codes = _codes(changes, key)
    if codes is None:
        return changes
    last = np.zeros(int(codes.max()) + 1, np.intp)
    order = _order(changes)
    # Where an index is repeated numpy keeps what was assigned last.
    if order is None:
        last[codes] = np.arange(len(codes))
    else:
        last[codes[order]] = order
    keep = np.zeros(len(codes), np.bool_)
    keep[last] = True
    return changes.filter(pa.array(keep))


def apply(rows: pa.Table, changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows of a table after changes that are all later than they. Small and plain: the reference for all others.

    A key that changed has its last row, or none if that change took it away; without a key changes add rows.
    """
    names = [each for each in changes.schema.names if each not in SYSTEM_COLUMNS]
    before = changes.schema.empty_table()
    if rows.num_rows:
        old = np.full(rows.num_rows, -1, np.int64)
        system = {TS: pa.array(old), SEQ: pa.array(old), OP: pa.array(np.full(rows.num_rows, THERE, np.int8))}
        columns = [system[each] if each in system else rows.column(each) for each in changes.schema.names]
        before = pa.Table.from_arrays(columns, schema=changes.schema)
    left = net(pa.concat_tables([before, changes]), key)
    there = left.column(OP).to_numpy() == THERE
    return left.filter(pa.array(there)).select(names).cast(rows.schema)


def _order(changes: pa.Table) -> npt.NDArray[np.intp] | None:
    """The rows by `(_ts, _seq)`; None when they stand in that order."""
    ts, seq = changes.column(TS).to_numpy(), changes.column(SEQ).to_numpy()
    later = (ts[1:] > ts[:-1]) | ((ts[1:] == ts[:-1]) & (seq[1:] >= seq[:-1]))
    return None if later.all() else np.lexsort((seq, ts))


def _codes(changes: pa.Table, key: Sequence[str]) -> _I64 | None:
    """A small number for each row, equal where the keys are equal; None when no two are."""
    codes: _I64 | None = None
    for name in key:
        column = changes.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        if column.null_count and not changes.schema.field(name).nullable:
            raise InvariantBroken(f"column {name!r} is part of the key, and {column.null_count} changes have none")
        if pa.types.is_integer(column.type) and not column.null_count and _ascends(column.to_numpy()):
            return None
        if pa.types.is_floating(column.type):
            # One zero of two, one NaN of many: Arrow tells them apart.
            zero, nan = pa.scalar(0.0, column.type), pa.scalar(math.nan, column.type)
            column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        encoded = column.dictionary_encode("encode")
        mine = encoded.indices.to_numpy().astype(np.int64)
        if len(encoded.dictionary) == len(mine):
            return None
        if codes is None:
            codes = mine
            continue
        pairs = pa.array(codes * len(encoded.dictionary) + mine).dictionary_encode()
        codes = pairs.indices.to_numpy().astype(np.int64)
        if len(pairs.dictionary) == len(codes):
            return None
    return codes


def _ascends(values: npt.NDArray[Any]) -> bool:
    return bool((values[1:] > values[:-1]).all())
