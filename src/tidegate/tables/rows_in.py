"""What users hand in as rows or keys, made into what the log takes: an Arrow batch, or compact bytes for a few rows.

Rows are a dict, a list of dicts or of tuples in the order of the columns, a pandas or Polars DataFrame, an Arrow table
or batch, or anything that streams Arrow (`__arrow_c_stream__`). Keys are a list of values, of tuples or dicts for a
compound key, or any of the above with just the key's columns.

Both ways in have the same rules and errors: names in any case; columns left out are NULL; names that are not there are
refused; values as in `column_value`. In a pandas DataFrame NaN is NULL, since pandas itself does not tell them apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.errors import InvalidArgument
from tidegate.tables.arrow_in import column_in, values_in
from tidegate.tables.column_value import Refused
from tidegate.tables.row_codec import RowCodec, refusal
from tidegate.tables.schema import Column, TableSchema
from tidegate.tables.shards import key_maker, key_of
from tidegate.topics.routing import Key

_SHAPES_MAX: Final = 1024
_COMPILED_MAX: Final = 256
_TUPLES: Final = {tuple}
_NULL: Final = type(None)
_PLAIN: Final = frozenset({list, tuple, dict})

Plan = tuple[Any, ...] | None
"""Under which name a row has each column, None for one it has not; None altogether when it has all of them in order."""


class RowsIn:
    """Takes rows for one schema version, or with `key_only` the keys of rows to delete."""

    __slots__ = (
        "_arrow", "_codec", "_direct", "_key", "_key_columns", "_names", "_shapes", "columns", "key_only", "schema",
    )  # fmt: skip

    def __init__(self, schema: TableSchema, *, key_only: bool = False) -> None:
        self.schema = schema
        self.key_only = key_only
        self._arrow = schema.arrow_key if key_only else schema.arrow
        self._codec = RowCodec(schema, key_only=key_only)
        self.columns: tuple[Column, ...] = self._codec.layout.columns
        self._names = {each.name.casefold(): index for index, each in enumerate(self.columns)}
        self._direct = [_direct(each.type) for each in self.columns]
        self._shapes: dict[tuple[Any, ...], Plan] = {}
        self._key_columns = schema.key_columns
        self._key: Callable[[Sequence[Any]], Key] | None = None
        if schema.key:
            places = {each.id: index for index, each in enumerate(self.columns)}
            self._key = key_maker(self._key_columns, [places[id] for id in schema.key])

    def encode(self, rows: Any) -> list[bytes]:
        """Rows or keys as compact bytes, for a few of them.

        Raises: `InvalidArgument`, naming column and row.
        """
        encode = self._codec.encode
        return [encode(values, row) for row, values in enumerate(self._each(rows))]

    def encode_keyed(self, rows: Any) -> tuple[list[bytes], list[Key]]:
        """`encode`, and each row's key as routing hashes it.

        Raises: `InvalidArgument`, also for a table without a key.
        """
        if self._key is None:
            raise InvalidArgument("the table has no primary key; its rows are spread by turns")
        bodies, keys = [], []
        for row, values in enumerate(self._each(rows)):
            bodies.append(self._codec.encode(values, row))
            try:
                keys.append(self._key(values))
            except Refused:
                places = [self._names[each.name.casefold()] for each in self._key_columns]
                keys.append(key_of(self._key_columns, [values[index] for index in places], row))
        return bodies, keys

    def batch(self, rows: Any) -> pa.RecordBatch:
        """Rows or keys as one Arrow batch with exactly the schema's `arrow` or `arrow_key`.

        Raises: `InvalidArgument`, naming column and row.
        """
        table = self._tabular(rows)
        if table is not None:
            arrays = self._from_columns(table)
        else:
            arrays = self._from_rows(self._each(rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    # Rows one by one ------------------------------------------------------------------------------------------------

    def _each(self, rows: Any) -> list[Sequence[Any]]:
        """The values of each row in the order of the columns."""
        if self._tabular_kind(rows):
            return list(zip(*(each.to_pylist() for each in self.batch(rows).columns), strict=True))
        if type(rows) is list:
            # Whole tuples, which is what programs send many of, are looked at all at once.
            if set(map(type, rows)) == _TUPLES and set(map(len, rows)) == {len(self.columns)}:
                return rows
        elif isinstance(rows, Mapping) or (self.key_only and (isinstance(rows, str | bytes) or not _is_many(rows))):
            rows = (rows,)
        elif isinstance(rows, str | bytes) or not _is_many(rows):
            raise InvalidArgument(f"rows are dicts, tuples, a DataFrame or Arrow, not a {type(rows).__name__}")
        return [self._values(row, number) for number, row in enumerate(rows)]

    def _values(self, row: Any, number: int) -> Sequence[Any]:
        if type(row) is dict or isinstance(row, Mapping):
            names = tuple(row)
            try:
                plan = self._shapes[names]
            except KeyError:
                plan = self._shape(names, number)
            if plan is None:
                return tuple(row.values())
            return [None if name is None else row[name] for name in plan]
        if isinstance(row, tuple | list) and not (self.key_only and len(self.columns) == 1):
            if len(row) == len(self.columns):
                return row
            names_wanted = ", ".join(each.name for each in self.columns)
            raise InvalidArgument(f"row {number} has {len(row)} values for {len(self.columns)} columns: {names_wanted}")
        if self.key_only:
            if len(self.columns) == 1:
                return row if isinstance(row, tuple) and len(row) == 1 else (row,)
            wanted = f"a tuple or dict of the key's columns {', '.join(each.name for each in self.columns)}"
        else:
            wanted = "a dict, or a tuple with all columns in order"
        raise InvalidArgument(f"row {number} is a {type(row).__name__}; give {wanted}")

    def _shape(self, names: tuple[Any, ...], number: int) -> Plan:
        """How to read a dict with these names. Raises: `InvalidArgument`."""
        found: list[Any] = [None] * len(self.columns)
        for name, index in zip(names, self._places(names, f"row {number}"), strict=True):
            found[index] = name
        in_order = list(names) == found
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes.clear()
        plan = self._shapes[names] = None if in_order else tuple(found)
        return plan

    def _places(self, names: Iterable[Any], where: str) -> list[int]:
        """The column that each name means. Raises: `InvalidArgument` for one that means none, or two that mean one."""
        places: list[int] = []
        for name in names:
            index = self._names.get(name.casefold()) if isinstance(name, str) else None
            if index is None:
                raise InvalidArgument(f"{where}: {self._no_column(name)}")
            if index in places:
                raise InvalidArgument(f"{where}: column {self.columns[index].name!r} is given twice")
            places.append(index)
        return places

    def _no_column(self, name: Any) -> str:
        if (
            self.key_only
            and isinstance(name, str)
            and any(each.name.casefold() == name.casefold() for each in self.schema.columns)
        ):
            key = ", ".join(each.name for each in self.columns)
            return f"column {name!r} is not part of the key; a row is deleted by its key alone: {key}"
        near = get_close_matches(str(name).casefold(), self._names, n=3)
        known = [self.columns[self._names[each]].name for each in near] or [each.name for each in self.columns]
        return f"there is no column {name!r}; {'did you mean' if near else 'there are'} {', '.join(known)}"

    def _from_rows(self, rows: list[Sequence[Any]]) -> list[pa.Array]:
        columns = zip(*rows, strict=True) if rows else ((),) * len(self.columns)
        arrays = []
        for column, direct, values in zip(self.columns, self._direct, columns, strict=True):
            kinds = set(map(type, values))
            if kinds <= direct and (column.nullable or _NULL not in kinds):
                try:
                    arrays.append(pa.array(values, column.type))
                    continue
                except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
                    pass  # Value by value finds the one at fault and says what is wrong with it.
            arrays.append(values_in(list(values), column))
        return arrays

    # Whole columns --------------------------------------------------------------------------------------------------

    def _tabular_kind(self, rows: Any) -> bool:
        return type(rows) not in _PLAIN and (
            isinstance(rows, pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray | np.ndarray)
            or hasattr(rows, "__arrow_c_stream__")
            or hasattr(rows, "__arrow_c_array__")
            or _pandas(rows, "DataFrame")
        )

    def _tabular(self, rows: Any) -> dict[str, Any] | None:
        """Its columns by name; None for what is not a table. Values are Arrow, or a list of Python values."""
        if not self._tabular_kind(rows):
            return None
        if _pandas(rows, "DataFrame"):
            names = [str(each) for each in rows.columns]
            return self._named(names, [_from_pandas(rows.iloc[:, index]) for index in range(len(names))])
        if isinstance(rows, pa.Array | pa.ChunkedArray | np.ndarray) or _pandas(rows, "Series"):
            return self._named([self.columns[0].name], [self._only_key(rows)])
        table = rows if isinstance(rows, pa.Table | pa.RecordBatch) else _from_arrow(rows)
        if isinstance(table, pa.ChunkedArray):
            return self._named([self.columns[0].name], [self._only_key(table)])
        return self._named(table.schema.names, table.columns)

    def _only_key(self, column: Any) -> Any:
        """A bare column, which can only be that of a simple key."""
        if not self.key_only or len(self.columns) > 1 or (isinstance(column, np.ndarray) and column.ndim != 1):
            raise InvalidArgument(f"a {type(column).__name__} has no column names; give a table or a list of dicts")
        if isinstance(column, np.ndarray):
            return column.tolist() if column.dtype == object else pa.array(column)
        return _from_pandas(column) if _pandas(column, "Series") else column

    def _named(self, names: list[str], columns: list[Any]) -> dict[str, Any]:
        places = self._places(names, "the columns given")
        return {self.columns[place].name: column for place, column in zip(places, columns, strict=True)}

    def _from_columns(self, given: dict[str, Any]) -> list[pa.Array]:
        count = len(next(iter(given.values()))) if given else 0
        arrays = []
        for column in self.columns:
            values = given.get(column.name)
            if values is None:
                if not column.nullable and count:
                    raise refusal(column, 0, "it is missing and may not be NULL")
                arrays.append(pa.nulls(count, column.type))
            elif isinstance(values, list):
                arrays.append(values_in(values, column))
            else:
                arrays.append(column_in(values, column))
        return arrays


def rows_in(schema: TableSchema, rows: Any) -> pa.RecordBatch:
    """Rows as an Arrow batch with exactly `schema.arrow`. Raises: `InvalidArgument`."""
    return _compiled(schema, key_only=False).batch(rows)


def keys_in(schema: TableSchema, keys: Any) -> pa.RecordBatch:
    """Keys of rows to delete as an Arrow batch with exactly `schema.arrow_key`. Raises: `InvalidArgument`."""
    return _compiled(schema, key_only=True).batch(keys)


def encode_rows(schema: TableSchema, rows: Any) -> list[bytes]:
    """A few rows straight to compact bytes, by the same rules. Raises: `InvalidArgument`."""
    return _compiled(schema, key_only=False).encode(rows)


def encode_keys(schema: TableSchema, keys: Any) -> list[bytes]:
    """A few keys straight to compact bytes, by the same rules. Raises: `InvalidArgument`."""
    return _compiled(schema, key_only=True).encode(keys)


_compiled_by_id: Final[dict[tuple[int, bool], RowsIn]] = {}


def _compiled(schema: TableSchema, *, key_only: bool) -> RowsIn:
    # By identity: hashing a schema takes longer than encoding a row. The entry keeps its schema alive, so that no
    # other one can have its id.
    found = _compiled_by_id.get((id(schema), key_only))
    if found is None:
        found = RowsIn(schema, key_only=key_only)
        if len(_compiled_by_id) >= _COMPILED_MAX:
            _compiled_by_id.clear()
        _compiled_by_id[id(schema), key_only] = found
    return found


def _direct(kind: pa.DataType) -> frozenset[type]:
    """The Python types that Arrow takes over into a column by our rules."""
    is_ = pa.types
    if is_.is_integer(kind):
        return frozenset({int, _NULL})
    if is_.is_decimal(kind):
        return frozenset({Decimal, _NULL})
    if is_.is_timestamp(kind) and kind.tz:
        return frozenset({datetime, _NULL})
    plain = {
        pa.bool_(): bool, pa.float64(): float, pa.string(): str, pa.binary(): bytes, pa.date32(): date
    }  # fmt: skip
    return frozenset({plain[kind], _NULL}) if kind in plain else frozenset()


def _is_many(rows: Any) -> bool:
    return isinstance(rows, Iterable)


def _pandas(value: Any, name: str) -> bool:
    """Whether it is pandas' class of that name; pandas is not imported to find out."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, getattr(pandas, name, ()))


def _from_arrow(rows: Any) -> pa.Table | pa.RecordBatch | pa.ChunkedArray:
    """What an object gives through Arrow's C interface: a table, or a bare column."""
    try:
        if not hasattr(rows, "__arrow_c_stream__"):
            array = pa.array(rows)
            return (
                pa.RecordBatch.from_struct_array(array) if pa.types.is_struct(array.type) else pa.chunked_array([array])
            )
        try:
            stream = pa.RecordBatchReader.from_stream(rows)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.chunked_array(rows)
        return stream.read_all()
    except (pa.ArrowException, OSError) as error:
        why = str(error).partition(". Detail")[0]
        raise InvalidArgument(f"the {type(rows).__name__} broke while its rows were read: {why}") from error


def _from_pandas(series: Any) -> Any:
    """A column of pandas: as Arrow where its type says what it holds, else its Python values."""
    if series.dtype == object:
        return [None if isinstance(each, float) and each != each else each for each in series.tolist()]
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"column {series.name!r} of the DataFrame has no Arrow form: {error}") from None
