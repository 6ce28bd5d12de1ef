"""SQLite's record format: the values of a row as bytes, as a change table keeps them (seed 003, `before` and `after`).

A record is its header's length, a type for each value, and the values: integers in as few bytes as they need, 0 and 1
in none, floats in eight. Lengths and types are *varints*: seven bits a byte, most significant first, and all eight of
a ninth.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tidegate.errors import InvalidArgument, SourceUnreadable

Value = int | float | str | bytes | None

_FLOAT: Final = struct.Struct(">d")
_LENGTHS: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Bytes of a value, by types 0 to 9."""
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_TYPE_OF_BITS: Final = tuple(
    next(type for type, length in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 8)) if bits < length * 8)
    for bits in range(64)
)
"""The type of an integer that needs so many bits beside its sign."""


def encode(values: Sequence[Value]) -> bytes:
    """A record of values. Raises: `InvalidArgument` for what SQLite has no value for."""
    header, body = bytearray(), bytearray()
    for value in values:
        # The commonest first: this runs for every row that is changed.
        kind = type(value)
        if kind is int:
            if value == 0 or value == 1:
                header.append(8 + int(value))
                continue
            body += _integer(header, value)  # type: ignore[arg-type]
        elif kind is str:
            data = value.encode()  # type: ignore[union-attr]
            _varint(header, 13 + 2 * len(data))
            body += data
        elif value is None:
            header.append(0)
        elif kind is float:
            if value != value:  # SQLite has no NaN.
                header.append(0)
                continue
            header.append(7)
            body += _FLOAT.pack(value)
        elif isinstance(value, bytes | bytearray | memoryview):
            _varint(header, 12 + 2 * len(value))
            body += value
        elif isinstance(value, int):  # A bool.
            header.append(8 + int(value))
        else:
            raise InvalidArgument(f"SQLite has no value for {value!r}, {kind.__name__}")
    return _with_length(header) + bytes(body)


def _integer(header: bytearray, value: int) -> bytes:
    if not _LEAST <= value <= _MOST:
        raise InvalidArgument(f"{value} does not fit into SQLite's 64 bits")
    type = _TYPE_OF_BITS[(value if value >= 0 else ~value).bit_length()]
    header.append(type)
    return value.to_bytes(_LENGTHS[type], "big", signed=True)


def _with_length(header: bytearray) -> bytes:
    """The header with its own length, which counts itself, before it."""
    length = len(header) + 1
    if length < 0x80:
        return bytes((length,)) + bytes(header)
    found = bytearray()
    while True:
        found.clear()
        _varint(found, length)
        if len(header) + len(found) == length:
            return bytes(found + header)
        length = len(header) + len(found)


def _varint(into: bytearray, number: int) -> None:
    if number < 0x80:
        into.append(number)
        return
    if number >> 56:
        into += bytes(0x80 | (number >> shift) & 0x7F for shift in range(57, 7, -7))
        into.append(number & 0xFF)
        return
    digits = [number & 0x7F]
    while number := number >> 7:
        digits.append(0x80 | number & 0x7F)
    into += bytes(reversed(digits))


def decode(record: bytes) -> list[Value]:
    """The values of a record. Raises: `SourceUnreadable` for bytes that are none."""
    try:
        length, at = read_varint(record, 0)
        if not at <= length <= len(record):
            raise ValueError(f"its header has {length} bytes")
        values: list[Value] = []
        place = length
        while at < length:
            type, at = read_varint(record, at)
            size = _LENGTHS[type] if type < 10 else (type - 12) // 2
            if type in (10, 11) or place + size > len(record):
                raise ValueError(f"value {len(values)} of type {type} does not fit")
            values.append(_value(type, record[place : place + size]))
            place += size
        if at != length or place != len(record):
            raise ValueError("bytes are left over")
    except (ValueError, IndexError) as error:
        raise SourceUnreadable(f"no record of SQLite: {record[:40].hex()}...: {error}") from error
    return values


def _value(type: int, data: bytes) -> Value:
    if type == 0:
        return None
    if type < 7:
        return int.from_bytes(data, "big", signed=True)
    if type == 7:
        return float(_FLOAT.unpack(data)[0])
    if type < 10:
        return type - 8
    return data.decode() if type % 2 else data


def read_varint(record: bytes, at: int) -> tuple[int, int]:
    """A number, and the place behind it."""
    number = 0
    for byte in record[at : at + 8]:
        at += 1
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number, at
    return number << 8 | record[at], at + 1
