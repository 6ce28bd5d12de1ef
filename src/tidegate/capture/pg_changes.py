"""`Changes`: what PostgreSQL says of one transaction after the other, as changes of captured tables.

Tables do not wait for each other within a transaction, so all that is said of one is taken together: as few `Rows` as
there can be, rows that go before those that come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from tidegate.capture.pg_catalog import Shape
from tidegate.capture.source import Change, Patch, Reshaped, Rows, SourceTable, Truncated
from tidegate.cdc.pg_rows import Keyless, Patched, Reduced, Texts, reduce
from tidegate.cdc.pg_types import Reading
from tidegate.cdc.pg_values import Unfit, arrow_type, column, reader
from tidegate.cdc.pgoutput import Decoder, Relation, Truncate, Unchanged
from tidegate.errors import SourceUnreadable

_RELATION, _TRUNCATE = b"RT"
_OID: Final = slice(1, 5)
_MANY: Final = 48
"""Rows from which on Arrow is less work than tuples, for whoever writes them, too."""


class Catalog(Protocol):
    """What is not in the messages."""

    def shape(self, relation: Relation) -> Shape | None:
        """How the rows of a table are read; None when it is not captured."""

    def reshaped(self, was: SourceTable | None, shape: Shape) -> Reshaped | None:
        """What became of a table; None when nothing did. Called for every look of it, in order."""

    def emptied(self, oid: int, xid: int) -> None:
        """A transaction has truncated a captured table."""


class Changes:
    """The changes of transactions, which are gone through one after the other, each to its end."""

    def __init__(self, catalog: Catalog, known: Iterable[SourceTable]) -> None:
        self._catalog = catalog
        self._known = {table.name: table for table in known}
        self._shapes: dict[bytes, Shape | None] = {}
        self._said: dict[bytes, bytes] = {}
        """What was said last of tables that are not captured, which the server does not say again."""
        self._decoder = Decoder()

    def of(self, chunks: Iterable[list[bytes]], xid: int) -> Iterator[Change]:
        """What the messages of one transaction say, chunk by chunk.

        Raises: `SourceUnreadable`, naming table and column.
        """
        for chunk in chunks:
            waiting: dict[bytes, list[bytes]] = {}
            for message in chunk:
                kind = message[0]
                if kind == _RELATION:
                    oid, shape = message[_OID], self._described(message)
                    # It is often said again without having changed.
                    if oid in waiting and shape != self._shapes.get(oid):
                        yield from self._rows(oid, waiting.pop(oid))
                    self._shapes[oid] = shape
                elif kind == _TRUNCATE:
                    found = self._decoder.decode(message)
                    if isinstance(found, Truncate):
                        for number in found.relations:
                            oid = number.to_bytes(4, "big")
                            waiting.pop(oid, None)  # They go with the others.
                            shape = self._shape(oid)
                            if shape is not None:
                                yield from self._look(shape)
                                self._catalog.emptied(number, xid)
                                yield Truncated(shape.table.name)
                else:
                    try:
                        waiting[message[_OID]].append(message)
                    except KeyError:
                        waiting[message[_OID]] = [message]
            for oid, messages in waiting.items():
                yield from self._rows(oid, messages)

    def pass_over(self, chunks: Iterable[list[bytes]]) -> None:
        """A transaction that was given before: only what it says about the look of tables counts."""
        for chunk in chunks:
            for message in chunk:
                if message[0] == _RELATION:
                    self._shapes[message[_OID]] = self._described(message)

    def _described(self, message: bytes) -> Shape | None:
        relation = self._decoder.decode(message)
        if not isinstance(relation, Relation):
            raise SourceUnreadable(f"PostgreSQL sent {relation} where a table was to be described")
        found = self._catalog.shape(relation)
        if found is None:
            self._said[message[_OID]] = message
        return found

    def joined(self, shape: Shape) -> None:
        """From here on a table is captured, and known to look so."""
        self._known[shape.table.name] = shape.table
        said = self._said.pop(shape.oid.to_bytes(4, "big"), None)
        if said is not None:
            self._shapes[said[_OID]] = self._described(said)

    def _shape(self, oid: bytes) -> Shape | None:
        try:
            return self._shapes[oid]
        except KeyError:
            number = int.from_bytes(oid, "big")
            raise SourceUnreadable(f"PostgreSQL sent a row of table {number} and has not said what it is") from None

    def _look(self, shape: Shape) -> Iterator[Change]:
        """Says what a table looks like, when it is not what is known: only now that rows of it count."""
        known = self._known.get(shape.table.name)
        if known is not shape.table:
            found = self._catalog.reshaped(known, shape)
            self._known[shape.table.name] = shape.table
            if found is not None:
                yield found

    def _rows(self, oid: bytes, messages: list[bytes] | None) -> Iterator[Change]:
        shape = self._shape(oid) if messages else None
        if shape is None or not messages:
            return
        yield from self._look(shape)
        try:
            reduced = reduce(messages, len(shape.readings), shape.key)
        except Keyless:
            raise SourceUnreadable(
                f"rows of table {shape.table.name!r} were updated or deleted, and nothing identifies them here: give it"
                f" a primary key, or a unique index and ALTER TABLE ... REPLICA IDENTITY USING INDEX, and capture it"
                f" anew; or leave it out"
            ) from None
        yield from changes_of(reduced, shape)


def changes_of(reduced: Reduced, shape: Shape) -> Iterator[Change]:
    """What is left of a table's changes, with values for texts. Raises: `SourceUnreadable`."""
    name, columns = shape.table.name, [each.name for each in shape.table.columns]
    if reduced.patches:
        yield _patch(reduced.patches, shape)
    if reduced.deletes:
        keys = [columns[at] for at in shape.key]
        readings = [shape.readings[at] for at in shape.key]
        yield Rows(name, values_of(reduced.deletes, keys, readings, name), is_delete=True)
    if reduced.columns is not None:
        yield Rows(name, batch_of(reduced.columns, columns, shape.readings, name))
    elif reduced.rows:
        yield Rows(name, values_of(reduced.rows, columns, shape.readings, name))


def _patch(patches: list[Patched], shape: Shape) -> Patch:
    columns = [each.name for each in shape.table.columns]
    name, keys = shape.table.name, [columns[at] for at in shape.key]
    rows: list[Texts] = []
    absent: list[tuple[str, ...]] = []
    for each in patches:
        missing = {at for at, cell in enumerate(each.row) if isinstance(cell, Unchanged)}
        rows.append(tuple(None if at in missing else cell for at, cell in enumerate(each.row)))  # type: ignore[misc]
        absent.append(tuple(columns[at] for at in sorted(missing)))
    was = _tuples([each.was for each in patches], keys, [shape.readings[at] for at in shape.key], name)
    return Patch(name, was, _tuples(rows, columns, shape.readings, name), absent)


def values_of(rows: Sequence[Texts], columns: list[str], readings: Sequence[Reading], table: str) -> Any:
    """Rows of texts as tuples of values when they are few, and as Arrow when they are many."""
    if len(rows) < _MANY:
        return _tuples(rows, columns, readings, table)
    return batch_of([pa.array(each, pa.string()) for each in zip(*rows)], columns, readings, table)


def _tuples(
    rows: Sequence[Texts], columns: list[str], readings: Sequence[Reading], table: str
) -> list[tuple[Any, ...]]:
    reads = [reader(each) for each in readings]
    try:
        return [tuple(None if text is None else read(text) for read, text in zip(reads, row)) for row in rows]
    except Unfit:
        for row in rows:
            for name, read, text in zip(columns, reads, row):
                _try(read, text, table, name)
        raise


def _try(read: Callable[[str], Any], text: str | None, table: str, column: str) -> None:
    try:
        if text is not None:
            read(text)
    except Unfit as unfit:
        raise _unreadable(unfit, table, column) from None


def batch_of(texts: Sequence[pa.Array], columns: list[str], readings: Sequence[Reading], table: str) -> pa.RecordBatch:
    """Columns of texts as columns of values. Raises: `SourceUnreadable`."""
    arrays, fields = [], []
    for each, name, reading in zip(texts, columns, readings):
        try:
            arrays.append(column(each, reading))
        except Unfit as unfit:
            raise _unreadable(unfit, table, name) from None
        fields.append(pa.field(name, arrow_type(reading)))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _unreadable(unfit: Unfit, table: str, column: str) -> SourceUnreadable:
    return SourceUnreadable(
        f"table {table!r}, column {column!r}: {unfit}; change the value at the source and capture the table anew, or"
        f" leave the table out"
    )
