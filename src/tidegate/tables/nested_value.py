"""An array, struct or map as bytes: what a row holds where a column has parts.

Read by the column's type, so nothing in the bytes repeats it. Little endian; a size is a varint (7 bits a byte, the
high bit set on all but the last).

    a number, BOOLEAN, DATE, TIMESTAMP      its fixed width; DECIMAL its digits in 16 bytes
    STRING, BINARY                          size, bytes
    ARRAY                                   count, NULL bits, the elements that are not NULL
    STRUCT                                  NULL bits, the fields that are not NULL
    MAP                                     the keys as an ARRAY, the values as an ARRAY

Values have the form that `column_value` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import pyarrow as pa

from tidegate.errors import InvariantBroken
from tidegate.tables.column_value import scaled, unscaled

Write = Callable[[Any, bytearray], None]
Read = Callable[[bytes, int], tuple[Any, int]]

DECIMAL_BYTES: Final = 16
STRUCT_CODES: Final = {
    pa.bool_(): "?", pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q",
    pa.float32(): "f", pa.float64(): "d", pa.date32(): "i",
    pa.timestamp("us"): "q", pa.timestamp("us", "UTC"): "q",
}  # fmt: skip
"""How the `struct` module packs a type of fixed width."""


def nested_codec(kind: pa.DataType) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Two functions: value to bytes and back. The second raises `InvariantBroken` for bytes the first never made."""
    write, read = _writer(kind), _reader(kind)

    def encode(value: Any) -> bytes:
        out = bytearray()
        write(value, out)
        return bytes(out)

    def decode(raw: bytes) -> Any:
        try:
            value, end = read(raw, 0)
        except (StructError, IndexError, UnicodeDecodeError, _Torn) as error:
            raise InvariantBroken(f"{len(raw):,} bytes are no value of {kind}: {error}") from error
        if end != len(raw):
            raise InvariantBroken(f"{len(raw):,} bytes are no value of {kind}, which ends at byte {end:,}")
        return value

    return encode, decode


class _Torn(Exception):
    pass


def _put_size(size: int, out: bytearray) -> None:
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)


def _get_size(raw: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while raw[at] & 0x80:
        size |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
    return size | raw[at] << shift, at + 1


def _get(raw: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size > len(raw) - at:
        raise _Torn(f"{size:,} bytes wanted at {at:,}")
    return raw[at : at + size], at + size


def _put_parts(values: Sequence[Any], writes: Sequence[Write], out: bytearray) -> None:
    start = len(out)
    out += bytes((len(values) + 7) // 8)
    for index, value in enumerate(values):
        if value is None:
            out[start + (index >> 3)] |= 1 << (index & 7)
    for value, write in zip(values, writes, strict=True):
        if value is not None:
            write(value, out)


def _get_nulls(raw: bytes, at: int, count: int) -> tuple[bytes, int]:
    bits, at = _get(raw, at, (count + 7) // 8)
    if count & 7 and bits[-1] >> (count & 7):
        raise _Torn(f"NULL bits behind the last of {count} parts")
    return bits, at


def _writer(kind: pa.DataType) -> Write:
    is_ = pa.types
    if is_.is_list(kind):
        return _list_writer(_writer(kind.value_type))
    if is_.is_map(kind):
        keys, items = _list_writer(_writer(kind.key_type)), _list_writer(_writer(kind.item_type))

        def write_map(value: list[tuple[Any, Any]], out: bytearray) -> None:
            keys([each for each, _ in value], out)
            items([each for _, each in value], out)

        return write_map
    if is_.is_struct(kind):
        names, writes = [each.name for each in kind], [_writer(each.type) for each in kind]
        return lambda value, out: _put_parts([value[name] for name in names], writes, out)
    if is_.is_string(kind):
        return lambda value, out: _put_bytes(value.encode(), out)
    if is_.is_binary(kind):
        return _put_bytes
    if is_.is_decimal(kind):
        return lambda value, out: out.extend(unscaled(value, kind.scale).to_bytes(DECIMAL_BYTES, "little", signed=True))
    pack = Struct("<" + STRUCT_CODES[kind]).pack
    return lambda value, out: out.extend(pack(value))


def _put_bytes(value: bytes, out: bytearray) -> None:
    _put_size(len(value), out)
    out += value


def _list_writer(write: Write) -> Write:
    def write_list(value: list[Any], out: bytearray) -> None:
        _put_size(len(value), out)
        _put_parts(value, [write] * len(value), out)

    return write_list


def _reader(kind: pa.DataType) -> Read:
    is_ = pa.types
    if is_.is_list(kind):
        return _list_reader(_reader(kind.value_type))
    if is_.is_map(kind):
        return _map_reader(_list_reader(_reader(kind.key_type)), _list_reader(_reader(kind.item_type)))
    if is_.is_struct(kind):
        return _struct_reader([(each.name, _reader(each.type)) for each in kind])
    if is_.is_string(kind) or is_.is_binary(kind):
        is_text = is_.is_string(kind)

        def read_bytes(raw: bytes, at: int) -> tuple[Any, int]:
            size, at = _get_size(raw, at)
            found, at = _get(raw, at, size)
            return found.decode() if is_text else found, at

        return read_bytes
    if is_.is_decimal(kind):

        def read_decimal(raw: bytes, at: int) -> tuple[Any, int]:
            found, at = _get(raw, at, DECIMAL_BYTES)
            return scaled(int.from_bytes(found, "little", signed=True), kind.scale), at

        return read_decimal
    form = Struct("<" + STRUCT_CODES[kind])

    def read_fixed(raw: bytes, at: int) -> tuple[Any, int]:
        return form.unpack_from(raw, at)[0], at + form.size

    return read_fixed


def _list_reader(read: Read) -> Read:
    def read_list(raw: bytes, at: int) -> tuple[list[Any], int]:
        count, at = _get_size(raw, at)
        nulls, at = _get_nulls(raw, at, count)
        out: list[Any] = [None] * count
        for index in range(count):
            if not nulls[index >> 3] >> (index & 7) & 1:
                out[index], at = read(raw, at)
        return out, at

    return read_list


def _struct_reader(fields: list[tuple[str, Read]]) -> Read:
    def read_struct(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
        nulls, at = _get_nulls(raw, at, len(fields))
        out: dict[str, Any] = {}
        for index, (name, read) in enumerate(fields):
            out[name] = None
            if not nulls[index >> 3] >> (index & 7) & 1:
                out[name], at = read(raw, at)
        return out, at

    return read_struct


def _map_reader(keys: Read, items: Read) -> Read:
    def read_map(raw: bytes, at: int) -> tuple[list[tuple[Any, Any]], int]:
        names, at = keys(raw, at)
        values, at = items(raw, at)
        if len(names) != len(values) or None in names:
            raise _Torn(f"{len(names)} keys and {len(values)} values")
        return list(zip(names, values, strict=True)), at

    return read_map
