"""One Python value on its way into a column: taken over exactly, or refused with the reason.

Nothing is parsed, cut or rounded in silence:

    integers        int; a float or Decimal that is whole, a float up to 2^53 (above it may be rounded already)
    FLOAT, DOUBLE   float; an int up to 2^24 or 2^53, where every int is exact; a Decimal, as its nearest float
    DECIMAL         Decimal and int that fit without rounding; a float, as the decimal it prints as
    STRING          str           BOOLEAN     bool, and no number
    BINARY          bytes, bytearray, memoryview
    DATE            date; a datetime at midnight UTC
    TIMESTAMP       datetime, one without a time zone taken as UTC; a date, as its midnight. Microseconds.
    ARRAY           list, tuple, numpy array          MAP     dict, or pairs
    STRUCT          dict, missing nullable fields become NULL; a tuple with all fields in order

numpy's scalars count as Python's. None and pandas' NA and NaT are NULL; a float NaN is a value of FLOAT and DOUBLE.

A value taken over has the form that Arrow and the row codec understand: days for DATE, microseconds since 1970 for
TIMESTAMP, dicts for STRUCT, pairs for MAP, and itself for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from math import isfinite
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidegate.errors import InvalidArgument
from tidegate.tables.column_type import KNOWN

Convert = Callable[[Any], Any]

EXACT: Final = 1 << 53
"""Up to here every whole number is a double, and a double that is whole is the number that was meant."""
_EXACT_FLOAT: Final = 1 << 24
_FLOAT_MAX: Final = float.fromhex("0x1.ffffffp127")
"""From here on rounding to 32 bits gives infinity."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_EXACTLY: Final = Context(prec=120)
"""Wide enough that moving the point of a number of 38 digits never rounds."""
_MISSING: Final = frozenset({"NoneType", "NAType", "NaTType"})
_SHOWN: Final = 60


class Refused(Exception):
    """Why a value does not belong into a column."""


def is_missing(value: Any) -> bool:
    """Whether a value stands for NULL."""
    if type(value).__name__ in _MISSING:
        return True
    return isinstance(value, np.datetime64) and bool(np.isnat(value))


def converter(kind: pa.DataType) -> Convert:
    """A function that takes one value, which is not missing, over into a column of this type.

    It raises `Refused`. Raises: `InvalidArgument` for a type that no table has.
    """
    is_ = pa.types
    if is_.is_signed_integer(kind):
        return _integer(kind)
    if is_.is_float64(kind) or is_.is_float32(kind):
        return _floating(kind)
    if is_.is_decimal128(kind):
        return _decimal(kind)
    if is_.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"):
        return _utc if kind.tz else _wall_clock
    if is_.is_list(kind):
        return _array(kind)
    if is_.is_struct(kind):
        return _struct(kind)
    if is_.is_map(kind):
        return _map(kind)
    plain = {pa.bool_(): _boolean, pa.string(): _text, pa.binary(): _raw, pa.date32(): _day}.get(kind)
    if plain is None:
        raise InvalidArgument(f"the Arrow type {kind} is not one of a column; there are {KNOWN}")
    return plain


def int_range(kind: pa.DataType) -> tuple[int, int]:
    """The smallest and largest number of an integer type."""
    return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1


def unscaled(value: Decimal, scale: int) -> int:
    """The digits of a decimal that was taken over into a column of this scale, as one number."""
    return int(_EXACTLY.scaleb(value, scale))


def scaled(digits: int, scale: int) -> Decimal:
    """What `unscaled` was made of."""
    return _EXACTLY.scaleb(Decimal(digits), -scale)


def shown(value: Any) -> str:
    """A value in an error message: short."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _wrong(value: Any, wanted: str) -> Refused:
    return Refused(f"{shown(value)} is a {type(value).__name__}, and {wanted} is wanted")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _boolean(value: Any) -> bool:
    value = _plain(value)
    if type(value) is bool:
        return value
    raise _wrong(value, "a bool")


def _integer(kind: pa.DataType) -> Convert:
    low, high = int_range(kind)

    def convert(value: Any) -> int:
        if type(value) is not int:
            value = _whole(value)
        if low <= value <= high:
            return int(value)
        raise Refused(f"{value} is out of range: {low:,} to {high:,}")

    return convert


def _whole(value: Any) -> int:
    value = _plain(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        if not value.is_integer():
            raise Refused(f"{value!r} is not a whole number; round it first")
        if abs(value) > EXACT:
            raise Refused(f"{value!r} is a float above 2^53 and may be rounded already; pass an int")
        return int(value)
    if isinstance(value, Decimal):
        if not value.is_finite() or (value and value.adjusted() > 40) or value != int(value):
            raise Refused(f"{value} is not a whole number of at most 64 bits")
        return int(value)
    raise _wrong(value, "an int")


def _floating(kind: pa.DataType) -> Convert:
    is_short = kind.bit_width == 32
    exact = _EXACT_FLOAT if is_short else EXACT

    def convert(value: Any) -> float:
        value = _plain(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > exact:
                raise Refused(f"{value} is an int that a float may not hold exactly; pass a float if that is wanted")
        elif isinstance(value, Decimal):
            if not value.is_finite():
                raise Refused(f"{value} is a Decimal without a value; pass float({str(value)!r})")
        elif not isinstance(value, float):
            raise _wrong(value, "a float")
        number = float(value)
        if (is_short and isfinite(number) and abs(number) >= _FLOAT_MAX) or (
            isinstance(value, Decimal) and not isfinite(number)
        ):
            raise Refused(f"{shown(value)} is out of range")
        return number

    return convert


def _decimal(kind: pa.DataType) -> Convert:
    scale = kind.scale
    limit = 10**kind.precision

    def convert(value: Any) -> Decimal:
        value = _plain(value)
        if isinstance(value, float):
            value = Decimal(repr(float(value)))
        elif isinstance(value, int) and not isinstance(value, bool):
            value = Decimal(value) if abs(value) < 10**40 else Decimal("1e99")
        elif not isinstance(value, Decimal):
            raise _wrong(value, "a Decimal")
        if not value.is_finite():
            raise Refused(f"{value} is no decimal number")
        if value and value.adjusted() > 40:
            raise Refused(f"{shown(value)} has more digits than {kind.precision - scale} before the point")
        moved = _EXACTLY.scaleb(value, scale) if value else value
        digits = int(moved) if value else 0
        if moved != digits or len(value.as_tuple().digits) > _EXACTLY.prec:
            raise Refused(f"{shown(value)} has more than {scale} digits behind the point; round it first")
        if abs(digits) >= limit:
            raise Refused(f"{shown(value)} has more digits than {kind.precision - scale} before the point")
        return scaled(digits, scale)

    return convert


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{shown(value)} holds half a surrogate pair, which is not text; use BINARY") from None
    return str(value)


def _raw(value: Any) -> bytes:
    value = _plain(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _wrong(value, "bytes")


def _day(value: Any) -> int:
    if isinstance(value, np.datetime64):
        value = _from_numpy(value)
    if isinstance(value, datetime):
        days, rest = divmod(_micros(value if value.tzinfo else value.replace(tzinfo=UTC)), _DAY_US)
        if rest:
            raise Refused(f"{value} has a time of day; take its date() first")
        return days
    if isinstance(value, date):
        return value.toordinal() - _EPOCH_DAY
    raise _wrong(value, "a date")


def _utc(value: Any) -> int:
    if isinstance(value, np.datetime64):
        value = _from_numpy(value)
    if isinstance(value, datetime):
        return _micros(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, date):
        return (value.toordinal() - _EPOCH_DAY) * _DAY_US
    raise _wrong(value, "a datetime")


def _wall_clock(value: Any) -> int:
    if isinstance(value, datetime) and value.tzinfo is not None:
        raise Refused(f"{value} has a time zone, and TIMESTAMP_NTZ has none; use TIMESTAMP or take it off")
    return _utc(value)


def _micros(when: datetime) -> int:
    if getattr(when, "nanosecond", 0):
        raise Refused(f"{when} has nanoseconds; a TIMESTAMP has microseconds, so round it first")
    since = when - _EPOCH
    return since.days * _DAY_US + since.seconds * 1_000_000 + since.microseconds


def _from_numpy(value: np.datetime64) -> datetime:
    micros = value.astype("datetime64[us]")
    found = micros.item()
    if micros != value or not isinstance(found, datetime):
        raise Refused(f"{value} is not a time of the years 1 to 9999 in microseconds")
    return found


def _inner(kind: pa.DataType) -> Convert:
    """Converts a value inside another, which may be NULL."""
    convert = converter(kind)
    return lambda value: None if is_missing(value) else convert(value)


def _array(kind: pa.DataType) -> Convert:
    inner = _inner(kind.value_type)

    def convert(value: Any) -> list[Any]:
        if isinstance(value, list | tuple | np.ndarray):
            return [inner(each) for each in value]
        raise _wrong(value, "a list")

    return convert


def _struct(kind: pa.DataType) -> Convert:
    fields = [(each.name, _inner(each.type)) for each in kind]
    by_name = {name.casefold(): name for name, _ in fields}

    def convert(value: Any) -> dict[str, Any]:
        if isinstance(value, Mapping):
            given = {
                by_name.get(name.casefold() if isinstance(name, str) else name): each for name, each in value.items()
            }
            if None in given or len(given) < len(value):
                raise Refused(f"{shown(value)} has not the fields {', '.join(by_name.values())}, each at most once")
            return {name: inner(given.get(name)) for name, inner in fields}
        if isinstance(value, tuple) and len(value) == len(fields):
            return {name: inner(each) for (name, inner), each in zip(fields, value, strict=True)}
        raise _wrong(value, f"a dict with {', '.join(by_name.values())}")

    return convert


def _map(kind: pa.DataType) -> Convert:
    key, item = converter(kind.key_type), _inner(kind.item_type)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        pairs = value.items() if isinstance(value, Mapping) else value
        if not isinstance(value, Mapping | Sequence) or isinstance(value, str | bytes):
            raise _wrong(value, "a dict")
        for each in pairs:
            if not isinstance(each, tuple | list) or len(each) != 2:
                raise Refused(f"{shown(each)} is not a pair of key and value")
            if is_missing(each[0]):
                raise Refused("a key of a MAP may not be NULL")
        return [(key(name), item(each)) for name, each in pairs]

    return convert
