"""A whole Arrow column on its way into a table's column, by the rules of `column_value` and without a step per row.

Types that say the same in another form (large and view strings, dictionaries, other units of time) are taken over as
columns. What has no such way, such as a column of floats for a DECIMAL, goes value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InvalidArgument
from tidegate.tables.column_value import EXACT, Refused, converter, int_range, is_missing
from tidegate.tables.row_codec import check_value, refusal
from tidegate.tables.schema import Column

_DAY_US = 86_400_000_000


def column_in(given: pa.Array | pa.ChunkedArray, column: Column) -> pa.Array:
    """The values as one array of the column's type.

    Raises: `InvalidArgument`, naming column and row.
    """
    array = _one(given, column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind, wanted = array.type, column.type
    if kind != wanted:
        cast = _cast(kind, wanted)
        try:
            array = cast(array, wanted) if cast else None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _first_refused(array, column, cast, error) from None
        if array is None:
            return values_in(_one(given, column).to_pylist(), column)
    if array.null_count and not column.nullable:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise refusal(column, row, "it is NULL and may not be")
    return array


def values_in(values: list[Any], column: Column) -> pa.Array:
    """Python values as one array of the column's type.

    Raises: `InvalidArgument`, naming column and row.
    """
    convert = converter(column.type)
    out: list[Any] = []
    for row, value in enumerate(values):
        try:
            out.append(check_value(column, value) if is_missing(value) else convert(value))
        except Refused as refused:
            raise refusal(column, row, refused) from None
    return pa.array(out, column.type)


def _one(given: pa.Array | pa.ChunkedArray, column: Column) -> pa.Array:
    if not isinstance(given, pa.ChunkedArray):
        return given
    if given.num_chunks == 1:
        return given.chunk(0)
    try:
        joined = given.combine_chunks()
    except pa.ArrowInvalid as error:
        raise InvalidArgument(
            f"column {column.name!r} is too large for one write ({error}); write fewer rows"
        ) from None
    if isinstance(joined, pa.ChunkedArray):
        if joined.num_chunks > 1:
            raise InvalidArgument(f"column {column.name!r} has more than 2 GiB; write fewer rows at once")
        return joined.chunk(0) if joined.num_chunks else pa.nulls(0, given.type)
    return joined


_Cast = Callable[[pa.Array, pa.DataType], Any]


def _cast(kind: pa.DataType, wanted: pa.DataType) -> _Cast | None:
    """How a column of one type becomes one of another, or raises `ArrowInvalid`; None when only value by value."""
    is_ = pa.types
    if is_.is_null(kind):
        return lambda array, wanted: pa.nulls(len(array), wanted)
    if is_.is_integer(kind):
        if is_.is_integer(wanted) or is_.is_floating(wanted):
            return _safely
        if is_.is_decimal(wanted):
            return lambda array, wanted: array.cast(pa.decimal128(20, 0)).cast(wanted)
    if is_.is_floating(kind):
        if is_.is_float64(wanted):
            return _safely
        if is_.is_float32(wanted):
            return _shortened
        if is_.is_integer(wanted):
            return _whole
    if is_.is_decimal(kind) and is_.is_decimal(wanted):
        return _safely
    if is_.is_temporal(kind) and is_.is_timestamp(wanted):
        return _to_timestamp(kind, wanted)
    if is_.is_temporal(kind) and is_.is_date(wanted):
        return None if is_.is_time(kind) or is_.is_duration(kind) else _to_date
    return _safely if _same_form(kind, wanted) else None


def _same_form(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types hold the same values, perhaps in another layout."""
    is_ = pa.types
    if kind == wanted:
        return True
    if is_.is_string(wanted):
        return bool(is_.is_large_string(kind) or is_.is_string_view(kind))
    if is_.is_binary(wanted):
        return bool(is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind))
    if is_.is_list(wanted):
        if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
            return _same_form(kind.value_type, wanted.value_type)
        return False
    if is_.is_struct(wanted) and is_.is_struct(kind):
        return [each.name for each in kind] == [each.name for each in wanted] and all(
            _same_form(mine.type, other.type) for mine, other in zip(kind, wanted, strict=True)
        )
    if is_.is_map(wanted) and is_.is_map(kind):
        return _same_form(kind.key_type, wanted.key_type) and _same_form(kind.item_type, wanted.item_type)
    return False


def _safely(array: pa.Array, wanted: pa.DataType) -> Any:
    return array.cast(wanted, safe=True)


def _shortened(array: pa.Array, wanted: pa.DataType) -> Any:
    out = array.cast(wanted)
    if pc.sum(pc.is_inf(out)).as_py() != pc.sum(pc.is_inf(array)).as_py():
        raise pa.ArrowInvalid("out of range")
    return out


def _whole(array: pa.Array, wanted: pa.DataType) -> Any:
    double = array.cast(pa.float64())
    if (pc.max(pc.abs(double)).as_py() or 0) > EXACT:
        raise pa.ArrowInvalid("above 2^53")
    low, high = int_range(wanted)
    whole = double.cast(pa.int64(), safe=True)
    ends = pc.min_max(whole).as_py()
    if ends["min"] is not None and not low <= ends["min"] <= ends["max"] <= high:
        raise pa.ArrowInvalid("out of range")
    return whole.cast(wanted)


def _to_timestamp(kind: pa.DataType, wanted: pa.DataType) -> _Cast | None:
    if pa.types.is_date(kind):
        return _safely
    if pa.types.is_timestamp(kind) and (wanted.tz or not kind.tz):
        # Arrow keeps the instant of a column with a zone, and takes one without as UTC.
        return _safely
    return None


def _to_date(array: pa.Array, wanted: pa.DataType) -> Any:
    if pa.types.is_date(array.type):
        return array.cast(wanted, safe=True)
    micros = array.cast(pa.timestamp("us", "UTC"), safe=True).cast(pa.int64())
    days = pc.cast(pc.floor(pc.divide(micros.cast(pa.float64(), safe=False), float(_DAY_US))), pa.int64())
    if not pc.all(pc.equal(pc.multiply(days, _DAY_US), micros)).as_py() and micros.null_count < len(micros):
        raise pa.ArrowInvalid("has a time of day")
    return days.cast(pa.int32()).cast(wanted)


def _first_refused(array: pa.Array, column: Column, cast: _Cast | None, error: Exception) -> InvalidArgument:
    """The error for the first value that cannot be taken over, found by halving."""
    first, until = 0, len(array)
    while until - first > 1:
        middle = (first + until) // 2
        try:
            if cast:
                cast(array.slice(first, middle - first), column.type)
            first = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            until = middle
    try:
        check_value(column, array[first].as_py())
    except Refused as refused:
        return refusal(column, first, refused)
    except (ValueError, ImportError):
        pass
    return refusal(column, first, str(error))
