"""`TableSnapshot`: all rows of a SQLite database's captured tables, as of one read transaction, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.capture.change_log import Reader
from tidegate.capture.source import Rows
from tidegate.capture.sqlite_shape import Shape, columns_of
from tidegate.capture.sqlite_triggers import quoted
from tidegate.cdc.row_layout import misfit
from tidegate.cdc.sqlite_types import array_of, convert
from tidegate.errors import InvariantBroken, SourceUnreadable


class TableSnapshot:
    """See `Snapshot`: all rows as of one read transaction."""

    def __init__(
        self, reader: Reader, shapes: Sequence[Shape], position: str, rows: Mapping[str, int], batch: int
    ) -> None:
        self.position = position
        self.rows = rows
        self._reader = reader
        self._shapes = shapes
        self._batch = batch

    def batches(self) -> Iterator[Rows]:
        for shape in self._shapes:
            columns = shape.table.columns
            names = [each.name for each in columns]
            for rows in self._reader.stream(f"SELECT {columns_of(shape)} FROM {quoted(shape.name)}", self._batch):
                arrays = []
                for at, values in enumerate(zip(*rows)):
                    try:
                        arrays.append(array_of(values, columns[at].type))
                    except ValueError:
                        self._refuse(shape, columns[at].name, columns[at].type, values, rows)
                    if columns[at].name in shape.key_names and arrays[-1].null_count:
                        raise SourceUnreadable(
                            f"table {shape.name!r}: its key {', '.join(shape.key_names)} has NULLs, which identify"
                            f" nothing: declare it NOT NULL, and give the rows a key"
                        )
                yield Rows(shape.table.name, pa.RecordBatch.from_arrays(arrays, names=names))

    def _refuse(self, shape: Shape, name: str, type: str, values: Sequence[Any], rows: Sequence[Any]) -> None:
        for at, value in enumerate(values):
            try:
                convert(value, type)
            except ValueError as error:
                is_first = shape.has_own_rowid or (shape.is_by_row and shape.key == (0,))
                row = rows[at][0] if is_first else None
                raise misfit(shape.name, name, row, value, type) from error
        raise InvariantBroken(f"table {shape.name!r}, column {name!r}: no value that does not fit")

    def close(self) -> None:
        self._reader.end()
