"""A row as compact bytes, for the few rows of a small write: an Arrow batch of one row costs more than its sync.

    u8        format, 1
    u8        0: a row; 1: only the key's columns, for a delete
    varint    version of the schema (7 bits a byte, the high bit set on all but the last)
    NULLs     one bit a column, in the order of the columns, from the lowest bit of the first byte
    fixed     the columns of fixed width, little endian: BOOLEAN in a byte, DATE as days and TIMESTAMP as microseconds
              since 1970, DECIMAL as its digits in 16 bytes; zeros where NULL
    u32 each  where the STRING, BINARY and nested columns end, counted from where the first begins
    bytes     of those, one after the other; nested ones as in `nested_value`

Up to the last bytes all rows of a version are laid out alike, so many of them are read as columns (`row_decode`).
These numbers are on disk and never change meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import accumulate
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.tables.column_type import to_sql
from tidegate.tables.column_value import Refused, converter, is_missing, unscaled
from tidegate.tables.nested_value import DECIMAL_BYTES, STRUCT_CODES, nested_codec
from tidegate.tables.schema import Column, TableSchema

FORMAT: Final = 1
ROW: Final = 0
KEY_ONLY: Final = 1
VERSION_AT: Final = 2
VERSION_BYTES_MAX: Final = 5

ToWire = Callable[[Any], Any]
"""A value that is not missing to what `struct` packs, or to bytes."""


class Layout:
    """Where things stand in the bytes of a row of one schema version.

    Invariant: `nulls_at`, `fixed_at`, `ends_at` and `size` depend on nothing but the columns and the version.
    """

    __slots__ = (
        "columns",
        "ends_at",
        "fixed",
        "fixed_at",
        "header",
        "nulls_at",
        "nulls_size",
        "size",
        "var",
        "version",
    )

    def __init__(self, schema: TableSchema, *, key_only: bool) -> None:
        self.version = schema.version
        self.columns: tuple[Column, ...] = schema.key_columns if key_only else schema.columns
        if key_only and not self.columns:
            raise InvalidArgument("a table without a primary key only grows; there is no key to name a row by")
        self.header = bytes([FORMAT, KEY_ONLY if key_only else ROW]) + _varint(schema.version)
        self.nulls_at = len(self.header)
        self.nulls_size = (len(self.columns) + 7) // 8
        self.fixed: list[tuple[int, str]] = []
        """The index of each column of fixed width, and how `struct` packs it."""
        self.var: list[int] = []
        """The indexes of the others."""
        for index, column in enumerate(self.columns):
            code = fixed_code(column.type)
            if code:
                self.fixed.append((index, code))
            else:
                self.var.append(index)
        self.fixed_at = self.nulls_at + self.nulls_size
        self.ends_at = self.fixed_at + Struct("<" + "".join(code for _, code in self.fixed)).size
        self.size = self.ends_at + 4 * len(self.var)


class _Fixed(NamedTuple):
    at: int
    python: Any
    """Values of exactly this type are packed as they are; `struct` checks the range of numbers."""
    to_wire: ToWire
    zero: Any


class _Var(NamedTuple):
    at: int
    python: Any
    to_wire: ToWire


class RowCodec:
    """Encodes rows of one schema version, or their keys only."""

    __slots__ = ("_fixed", "_pack", "_required", "_var", "layout")

    def __init__(self, schema: TableSchema, *, key_only: bool = False) -> None:
        self.layout = layout = Layout(schema, key_only=key_only)
        columns = layout.columns
        self._required = sum(1 << index for index, each in enumerate(columns) if not each.nullable)
        codes = "".join(code for _, code in layout.fixed)
        self._pack = Struct(f"<{layout.nulls_at}s{layout.nulls_size}s{codes}{len(layout.var)}I").pack
        self._fixed = [
            _Fixed(index, _python(columns[index].type), _to_wire(columns[index].type), b"" if code == "16s" else 0)
            for index, code in layout.fixed
        ]
        self._var = [_Var(index, _python(columns[index].type), _to_wire(columns[index].type)) for index in layout.var]

    def encode(self, values: Sequence[Any], row: int = 0) -> bytes:
        """One row, its values in the order of the columns. What they may be: see `column_value`.

        Raises: `InvalidArgument` for a value that does not belong there, with its column and `row`.
        """
        layout = self.layout
        if len(values) != len(layout.columns):
            names = ", ".join(each.name for each in layout.columns)
            raise InvalidArgument(f"row {row} has {len(values)} values for {len(layout.columns)} columns: {names}")
        nulls = 0
        packed: list[Any] = []
        parts: list[Any] = []
        try:
            for index, python, to_wire, zero in self._fixed:
                value = values[index]
                if type(value) is python:
                    packed.append(value)
                elif value is None or is_missing(value):
                    nulls |= 1 << index
                    packed.append(zero)
                else:
                    packed.append(to_wire(value))
            for index, python, to_wire in self._var:
                value = values[index]
                if type(value) is python:
                    parts.append(value.encode() if python is str else value)
                elif value is None or is_missing(value):
                    nulls |= 1 << index
                    parts.append(b"")
                else:
                    parts.append(to_wire(value))
            if not nulls & self._required:
                bits = nulls.to_bytes(layout.nulls_size, "little")
                head: bytes = self._pack(layout.header, bits, *packed, *accumulate(map(len, parts)))
                return head + b"".join(parts) if parts else head
        except (Refused, StructError, OverflowError, UnicodeEncodeError):
            pass
        raise self._why(values, row)

    def _why(self, values: Sequence[Any], row: int) -> Exception:
        """What is wrong with a row that could not be encoded."""
        for column, value in zip(self.layout.columns, values, strict=True):
            try:
                check_value(column, value)
            except Refused as refused:
                return refusal(column, row, refused)
        size = sum(len(each) for each in values if isinstance(each, str | bytes))
        if size >= 1 << 31:
            return InvalidArgument(f"row {row} has {size:,} bytes; a message holds far less")
        return InvariantBroken(f"row {row} of schema version {self.layout.version} was refused for no reason")


def check_value(column: Column, value: Any) -> Any:
    """The value as `column_value` takes it over, None for NULL. Raises: `Refused`."""
    if value is None or is_missing(value):
        if column.nullable:
            return None
        raise Refused("it is NULL and may not be")
    return converter(column.type)(value)


def refusal(column: Column, row: int, why: Refused | str) -> InvalidArgument:
    """The error for a value that does not belong into its column."""
    return InvalidArgument(f"row {row}, column {column.name!r} ({to_sql(column.type)}): {why}")


def fixed_code(kind: pa.DataType) -> str:
    """How `struct` packs a type; empty for a type without a fixed width."""
    return f"{DECIMAL_BYTES}s" if pa.types.is_decimal128(kind) else STRUCT_CODES.get(kind, "")


def version_of(body: bytes) -> int:
    """The version of the schema that a row was encoded with; 0 for bytes that are no row. For many, `versions_of`."""
    if len(body) <= VERSION_AT or body[0] != FORMAT:
        return 0
    version = 0
    for place, byte in enumerate(body[VERSION_AT : VERSION_AT + VERSION_BYTES_MAX]):
        version |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return version
    return 0


def _varint(number: int) -> bytes:
    if not 0 < number < 1 << 32:
        raise InvariantBroken(f"schema version {number} is not a number of 32 bits above 0")
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Never:
    """The type of no value."""


def _python(kind: pa.DataType) -> type:
    is_ = pa.types
    if is_.is_integer(kind):
        return int
    if is_.is_floating(kind):
        return float
    return {pa.bool_(): bool, pa.string(): str, pa.binary(): bytes}.get(kind, _Never)


def _to_wire(kind: pa.DataType) -> ToWire:
    convert = converter(kind)
    if pa.types.is_decimal(kind):
        return lambda value: _decimal_bytes(convert(value), kind.scale)
    if pa.types.is_string(kind):
        return lambda value: convert(value).encode()
    if pa.types.is_nested(kind):
        encode, _ = nested_codec(kind)
        return lambda value: encode(convert(value))
    return convert


def _decimal_bytes(value: Decimal, scale: int) -> bytes:
    return unscaled(value, scale).to_bytes(DECIMAL_BYTES, "little", signed=True)
