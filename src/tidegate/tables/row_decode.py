"""Many rows out of their compact bytes (`row_codec`), as columns: no Python step per row, but for nested columns.

Bytes that the codec did not write are refused; a row comes back as it was, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import InvariantBroken
from tidegate.tables.nested_value import DECIMAL_BYTES, nested_codec
from tidegate.tables.row_codec import FORMAT, KEY_ONLY, VERSION_AT, VERSION_BYTES_MAX, Layout
from tidegate.tables.schema import TableSchema

_GATHER_BYTES: Final = 1 << 22
"""Variable parts are gathered in steps of about this size: an index for each byte takes eight."""

_COMPILED_MAX: Final = 256

_U8 = npt.NDArray[np.uint8]
_I64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]


def versions_of(bodies: pa.Array) -> _I64:
    """The version of the schema that each row was written with.

    Raises: `InvariantBroken` for bytes that are no row.
    """
    data, starts, sizes = _slices(bodies)
    _check(sizes > VERSION_AT, "is too short for a row")
    _check(data[starts] == FORMAT, f"does not begin with the format {FORMAT}")
    _check(data[starts + 1] <= KEY_ONLY, "is neither a row nor a key")
    versions = np.zeros(len(bodies), np.int64)
    open_rows = np.arange(len(bodies))
    for place in range(VERSION_BYTES_MAX):
        _check(sizes[open_rows] > VERSION_AT + place, "ends inside its header", open_rows)
        found = data[starts[open_rows] + VERSION_AT + place]
        versions[open_rows] |= (found & np.uint8(0x7F)).astype(np.int64) << (7 * place)
        open_rows = open_rows[found > 0x7F]
        if not len(open_rows):
            return versions
    raise InvariantBroken(f"row {open_rows[0]} of {len(bodies):,} has a schema version of more than 32 bits")


def decode_bodies(schema: TableSchema, bodies: pa.Array, *, key_only: bool = False) -> pa.RecordBatch:
    """Rows of one schema version, or their keys, as a batch with its Arrow schema.

    Raises: `InvariantBroken` for bytes that are no rows of that version.
    """
    known = _compiled(schema, key_only=key_only)
    arrow, layout = known.arrow, known.layout
    if not len(bodies):
        return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in arrow], schema=arrow)
    data, starts, sizes = _slices(bodies)
    _check(sizes >= layout.size, f"is too short for schema version {layout.version}")
    heads = _heads(data, starts, known)
    same: _Bool = (heads["header"] == np.frombuffer(layout.header, np.uint8)).all(axis=1)
    _check(same, f"is not of {_named(layout)}")
    ends = heads["ends"].astype(np.int64)
    bounds = np.concatenate([np.zeros((len(bodies), 1), np.int64), ends], axis=1)
    _check(sizes == layout.size + bounds[:, -1], "is longer or shorter than it says")
    ascending: _Bool = np.diff(bounds, axis=1).min(axis=1, initial=0) >= 0
    _check(ascending, "has parts that overlap")
    try:
        columns = _columns(known, data, starts + layout.size, heads, bounds)
        batch = pa.RecordBatch.from_arrays(columns, schema=arrow)
        batch.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvariantBroken(f"{len(bodies):,} rows of {_named(layout)} hold what no column holds: {error}") from error
    return batch


def _columns(known: _Compiled, data: _U8, parts: _I64, heads: Any, bounds: _I64) -> list[pa.Array | None]:
    """The columns of rows; `parts` is where each row's parts of variable length begin, `bounds` how far each goes."""
    layout = known.layout
    nulls = _nulls(heads["nulls"], layout)
    columns: list[pa.Array | None] = [None] * len(layout.columns)
    for place, (index, _) in enumerate(layout.fixed):
        columns[index] = _fixed(known.arrow.field(index).type, heads[f"fixed{place}"], nulls[index])
    for place, index in enumerate(layout.var):
        at, lengths = parts + bounds[:, place], bounds[:, place + 1] - bounds[:, place]
        kind, missing = known.arrow.field(index).type, nulls[index]
        if missing is not None:
            _check(~missing | (lengths == 0), f"has a value in column {layout.columns[index].name!r}, which is NULL")
        decode = known.decoders.get(index)
        if decode is None:
            columns[index] = _var(kind, data, at, lengths, missing)
        else:
            columns[index] = pa.array(_nested(decode, data, at, lengths, missing), kind)
    return columns


class _Compiled:
    """What decoding needs to know of a schema version."""

    __slots__ = ("arrow", "decoders", "head", "layout", "schema")

    def __init__(self, schema: TableSchema, *, key_only: bool) -> None:
        self.schema = schema
        self.arrow = schema.arrow_key if key_only else schema.arrow
        self.layout = layout = Layout(schema, key_only=key_only)
        kinds = {index: layout.columns[index].type for index in layout.var}
        self.decoders = {index: nested_codec(kind)[1] for index, kind in kinds.items() if pa.types.is_nested(kind)}
        names = ["header", "nulls", "ends"]
        formats: list[Any] = [("u1", (layout.nulls_at,)), ("u1", (layout.nulls_size,)), ("<u4", (len(layout.var),))]
        offsets = [0, layout.nulls_at, layout.ends_at]
        at = layout.fixed_at
        for place, (_, code) in enumerate(layout.fixed):
            form = np.dtype(f"V{DECIMAL_BYTES}" if code == "16s" else "u1" if code == "?" else "<" + code)
            names.append(f"fixed{place}")
            formats.append(form)
            offsets.append(at)
            at += form.itemsize
        self.head = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": layout.size})


_compiled_by_id: Final[dict[tuple[int, bool], _Compiled]] = {}


def _compiled(schema: TableSchema, *, key_only: bool) -> _Compiled:
    # By identity, as in `rows_in`: the entry keeps its schema alive, so that no other one can have its id.
    found = _compiled_by_id.get((id(schema), key_only))
    if found is None:
        found = _Compiled(schema, key_only=key_only)
        if len(_compiled_by_id) >= _COMPILED_MAX:
            _compiled_by_id.clear()
        _compiled_by_id[id(schema), key_only] = found
    return found


def _named(layout: Layout) -> str:
    return f"schema version {layout.version}{', key only' if layout.header[1] == KEY_ONLY else ''}"


def _check(good: _Bool, what: str, rows: npt.NDArray[np.intp] | None = None) -> None:
    if not good.all():
        place = int(np.flatnonzero(~good)[0])
        row = place if rows is None else int(rows[place])
        raise InvariantBroken(f"row {row} of those read {what}; the log holds bytes that the row codec did not write")


def _slices(bodies: pa.Array) -> tuple[_U8, _I64, _I64]:
    """The bytes, and where each row begins and how long it is."""
    if not pa.types.is_binary(bodies.type) or bodies.null_count:
        raise InvariantBroken(f"rows are read from bytes without NULLs, not from {bodies.type}")
    _, offsets, data = bodies.buffers()
    if not len(bodies) or data is None:
        return np.zeros(1, np.uint8), np.zeros(len(bodies), np.int64), np.zeros(len(bodies), np.int64)
    bounds = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8), bounds[:-1], np.diff(bounds)


def _heads(data: _U8, starts: _I64, known: _Compiled) -> Any:
    """The part of each row that is laid out alike, as one structured array."""
    size = known.layout.size
    # Every place of the data seen as the beginning of a row: picking is then one copy of `size` bytes for each.
    windows: npt.NDArray[np.void] = np.ndarray((len(data) - size + 1,), f"V{size}", buffer=data, strides=(1,))
    return windows[starts].view(known.head)


def _nulls(bits: _U8, layout: Layout) -> list[_Bool | None]:
    """For each column which rows are NULL; None where none is."""
    count = len(layout.columns)
    if not bits.any():
        return [None] * count
    if count & 7:
        _check(bits[:, -1] >> (count & 7) == 0, "has NULLs behind its last column")
    found: list[_Bool | None] = []
    for index, column in enumerate(layout.columns):
        missing: _Bool = bits[:, index >> 3] >> np.uint8(index & 7) & np.uint8(1) == 1
        found.append(missing if missing.any() else None)
        if not column.nullable:
            _check(~missing, f"is NULL in column {column.name!r}, which may not be")
    return found


def _validity(missing: _Bool | None) -> pa.Buffer | None:
    return None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))


def _fixed(kind: pa.DataType, values: npt.NDArray[Any], missing: _Bool | None) -> pa.Array:
    if pa.types.is_boolean(kind):
        _check(values <= 1, "has a BOOLEAN that is neither true nor false")
        raw = np.packbits(values, bitorder="little")
    else:
        raw = np.ascontiguousarray(values).view(np.uint8)
    return pa.Array.from_buffers(kind, len(values), [_validity(missing), pa.py_buffer(raw)])


def _nested(decode: Callable[[bytes], Any], data: _U8, starts: _I64, lengths: _I64, missing: _Bool | None) -> list[Any]:
    raw = data.data
    gone = [False] * len(starts) if missing is None else missing.tolist()
    return [
        None if null else decode(bytes(raw[start : start + length]))
        for start, length, null in zip(starts.tolist(), lengths.tolist(), gone, strict=True)
    ]


def _var(kind: pa.DataType, data: _U8, starts: _I64, lengths: _I64, missing: _Bool | None) -> pa.Array:
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_validity(missing), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(_gather(data, starts, offsets))]
    return pa.Array.from_buffers(kind, len(starts), buffers)


def _gather(data: _U8, starts: _I64, offsets: _I64) -> _U8:
    """The slices of `data` that begin at `starts`, next to each other; `offsets` say where each goes."""
    out = np.empty(int(offsets[-1]), np.uint8)
    first = 0
    while first < len(starts):
        until = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _GATHER_BYTES, "right")) - 1)
        here, end = int(offsets[first]), int(offsets[until])
        shift = np.repeat(starts[first:until] - offsets[first:until], np.diff(offsets[first : until + 1]))
        out[here:end] = data[shift + np.arange(here, end)]
        first = until
    return out
