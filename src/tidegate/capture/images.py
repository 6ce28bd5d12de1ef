"""The images of changed rows, as fast as plain Python makes them: what `tidegate.cdc.record.encode` says, byte by byte.

This runs once for every changed row, so the common cases stand in one loop, and all else is left to `encode`. An
update's three records share what they have in common.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from tidegate.cdc.record import Value, encode

_FLOAT: Final = Struct(">d").pack
_BYTE: Final = tuple(bytes((number,)) for number in range(256))
_LENGTHS: Final = (0, 1, 2, 3, 4, 6, 8)
_TYPE_OF_BITS: Final = tuple(
    next(type for type in range(1, 7) if bits < _LENGTHS[type] * 8) for bits in range(_LENGTHS[6] * 8)
)
_SMALL: Final = {
    number: (_BYTE[type], number.to_bytes(_LENGTHS[type], "big", signed=True))
    for number in range(-128, 4096)
    for type in (1 if number < 128 else 2,)
} | {0: (b"\x08", b""), 1: (b"\x09", b"")}
"""Type and bytes of integers that are met often."""
_NULL: Final = (b"\x00", b"")
_SHORTEST_TEXT: Final = 13
_ONE_BYTE: Final = 0x80
_ALL_SHORT: Final = 50
"""If the header of `updates` is no longer, there are 25 columns at most, and a type takes five bytes at most."""

Piece = tuple[bytes, bytes]
"""A value's type and its bytes."""
Flags = tuple[bytes, tuple[bool, ...]]
"""Which columns an update sets: as the beginning of a header, and for each."""


def image(*values: Value) -> bytes:
    """A record of values."""
    header = body = b""
    for value in values:
        kind = type(value)
        if kind is int:
            if value in _SMALL:
                one, data = _SMALL[value]  # type: ignore[index]
                header += one
                body += data
            else:
                type_ = _TYPE_OF_BITS[(value if value >= 0 else ~value).bit_length()]  # type: ignore
                header += _BYTE[type_]
                body += value.to_bytes(_LENGTHS[type_], "big", signed=True)  # type: ignore[union-attr]
        elif kind is str:
            data = value.encode()  # type: ignore[union-attr]
            length = _SHORTEST_TEXT + 2 * len(data)
            header += _BYTE[length] if length < _ONE_BYTE else _two_bytes(length)
            body += data
        elif value is None:
            header += b"\x00"
        elif kind is float:
            header += b"\x07"
            body += _FLOAT(value)
        else:
            one, data = piece(value)
            header += one
            body += data
    length = len(header) + 1
    return _BYTE[length] + header + body if length < _ONE_BYTE else encode(values)


def piece(value: Value) -> Piece:
    """A value's part of a record."""
    kind = type(value)
    if kind is str:
        data = value.encode()  # type: ignore[union-attr]
        length = _SHORTEST_TEXT + 2 * len(data)
        return _BYTE[length] if length < _ONE_BYTE else _two_bytes(length), data
    if kind is int:
        if value in _SMALL:
            return _SMALL[value]  # type: ignore[index]
        type_ = _TYPE_OF_BITS[(value if value >= 0 else ~value).bit_length()]  # type: ignore
        return _BYTE[type_], value.to_bytes(_LENGTHS[type_], "big", signed=True)  # type: ignore[union-attr]
    if value is None:
        return _NULL
    if kind is float:
        return b"\x07", _FLOAT(value)
    record = encode((value,))  # The header's length, the type, the bytes.
    return record[1 : record[0]], record[record[0] :]


def update_images(old: tuple[Value, ...], new: tuple[Value, ...], flags: Flags) -> tuple[bytes, bytes, bytes]:
    """`updates`, `after` and `before` of an updated row."""
    set_header, is_set = flags
    old_header = old_body = new_header = new_body = set_body = b""
    for was, now, chosen in zip(old, new, is_set):
        type_, data = piece(was)
        old_header += type_
        old_body += data
        if chosen:
            if now is not was:
                type_, data = piece(now)
            set_header += type_
            set_body += data
        else:
            # A computed column. Equal floats need not be the same: 0.0 and -0.0.
            if now is not was and (now != was or type(now) is not type(was) or type(now) is float):
                type_, data = piece(now)
            set_header += b"\x00"
        new_header += type_
        new_body += data
    # The header of `updates` has the most types, and is not always the longest: of what is not set they are short.
    if len(set_header) > _ALL_SHORT and max(len(set_header), len(new_header), len(old_header)) + 1 >= _ONE_BYTE:
        values = [now if chosen else None for now, chosen in zip(new, is_set)]
        return encode([*map(int, is_set), *values]), encode(new), encode(old)
    return (
        _BYTE[len(set_header) + 1] + set_header + set_body,
        _BYTE[len(new_header) + 1] + new_header + new_body,
        _BYTE[len(old_header) + 1] + old_header + old_body,
    )


def flags_of(columns: int, chosen: frozenset[int]) -> Flags:
    """Which of so many columns were set, as `update_images` wants it."""
    is_set = tuple(column in chosen for column in range(columns))
    return b"".join(_SMALL[int(flag)][0] for flag in is_set), is_set


def _two_bytes(number: int) -> bytes:
    """A varint above 127."""
    if number < 1 << 14:
        return bytes((0x80 | number >> 7, number & 0x7F))
    digits = [number & 0x7F]
    while number := number >> 7:
        digits.append(0x80 | number & 0x7F)
    return bytes(reversed(digits))
