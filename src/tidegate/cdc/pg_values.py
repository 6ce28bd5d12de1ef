"""PostgreSQL's texts into values: one by one (`value`), or a column of them at once (`column`).

Law: `column(texts, r).to_pylist() == [value(each, r) for each in texts]`. The server is to write dates and times in ISO
form, times with a zone in UTC, and bytea in hex. What is no value of a column's type here is refused: not a number in
a DECIMAL, infinity and years outside 1 to 9999 in dates and times, and arrays of more than one dimension.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.cdc.pg_types import Form, Reading

_ARROW: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+), (\d+)\)")
_BOUNDS: Final = re.compile(r"(?:\[-?\d+:-?\d+\])+=")
_SHOWN: Final = 60


class Unfit(ValueError):
    """A text that is no value of its column's type, and why."""


@lru_cache(maxsize=1024)
def arrow_type(reading: Reading) -> pa.DataType:
    """The Arrow type of a column that is read so."""
    if reading.element is not None:
        return pa.list_(arrow_type(reading.element))
    if reading.form == "decimal":
        found = _DECIMAL.fullmatch(reading.sql)
        if found:
            return pa.decimal128(int(found[1]), int(found[2]))
    return _ARROW[reading.sql]


def value(text: str, reading: Reading) -> Any:
    """One text as a value. Raises: `Unfit`."""
    return reader(reading)(text)


def reader(reading: Reading) -> Callable[[str], Any]:
    """What reads texts one by one. It raises `Unfit`."""
    if reading.element is not None:
        return _array_reader(reading.element, reading.separator)
    return _READERS[reading.form]


def column(texts: pa.Array, reading: Reading) -> pa.Array:
    """A column of texts, NULLs among them, as one of values. Raises: `Unfit`."""
    try:
        return _COLUMNS[reading.form](texts, reading)
    except (pa.ArrowInvalid, ValueError):
        # Value by value, to say which one it is; or it was only Arrow that could not read it.
        read = reader(reading)
        found = [None if each is None else read(each) for each in _strings(texts)]
        return pa.array(found, arrow_type(reading))


def _strings(texts: pa.Array) -> list[str | None]:
    try:
        return texts.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise Unfit(f"it is no text in UTF-8: {bytes(error.object)[:_SHOWN]!r}") from None


# One by one -------------------------------------------------------------------------------------------------------


def _bool(text: str) -> bool:
    if text not in ("t", "f"):
        raise Unfit(f"{text[:_SHOWN]!r} is neither t nor f")
    return text == "t"


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise Unfit(f"{text[:_SHOWN]!r} is no number") from None

    return read


def _decimal(text: str) -> Decimal:
    try:
        found = Decimal(text)
    except ArithmeticError:
        raise Unfit(f"{text[:_SHOWN]!r} is no number") from None
    if not found.is_finite():
        raise Unfit(f"{text} is no value of a DECIMAL")
    return found


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise Unfit("bytea is not written in hex; the server's bytea_output was changed")
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise Unfit(f"{text[:_SHOWN]!r} is no bytea") from None


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise _no_time(text) from None


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise _no_time(text) from None


def _no_time(text: str) -> Unfit:
    if "infinity" in text:
        return Unfit(f"{text} is no value of a date or time here")
    return Unfit(f"{text[:_SHOWN]!r} is not of the years 1 to 9999 in ISO form")


def _array_reader(element: Reading, separator: str) -> Callable[[str], list[Any]]:
    read = reader(element)
    return lambda text: [None if each is None else read(each) for each in elements(text, separator)]


_READERS: Final[dict[Form, Callable[[str], Any]]] = {
    "bool": _bool,
    "integer": _number(int),
    "float": _number(float),
    "decimal": _decimal,
    "bytes": _bytes,
    "date": _date,
    "time": _time,
    "zoned": _time,
    "text": str,
}


def elements(text: str, separator: str = ",") -> list[str | None]:
    """The elements of an array as texts. Raises: `Unfit` for one of more dimensions."""
    bounds = _BOUNDS.match(text)
    body = text[bounds.end() :] if bounds else text
    if not (body.startswith("{") and body.endswith("}")):
        raise Unfit(f"{text[:_SHOWN]!r} is no array")
    if body == "{}":
        return []
    if body.startswith("{{"):
        raise Unfit(f"{text[:_SHOWN]!r} has more than one dimension")
    if '"' not in body and "\\" not in body:
        return [None if each == "NULL" else each for each in body[1:-1].split(separator)]
    return [_element(each, text) for each in _pattern(separator).findall(body[1:-1])]


@lru_cache(maxsize=8)
def _pattern(separator: str) -> re.Pattern[str]:
    return re.compile(rf'("(?:[^"\\]|\\.)*"|[^{re.escape(separator)}]+)(?:{re.escape(separator)}|\Z)', re.DOTALL)


def _element(found: str, text: str) -> str | None:
    if found.startswith('"'):
        return re.sub(r"\\(.)", r"\1", found[1:-1], flags=re.DOTALL)
    if "\\" in found:
        raise Unfit(f"{text[:_SHOWN]!r} is no array")
    return None if found == "NULL" else found


# Columns ----------------------------------------------------------------------------------------------------------


def _bool_column(texts: pa.Array, _: Reading) -> pa.Array:
    known = pc.is_in(texts, value_set=pa.array(["t", "f", None], pa.string()))
    if not pc.all(known).as_py():
        raise Unfit("neither t nor f")
    return pc.equal(texts, "t")


def _cast_column(texts: pa.Array, reading: Reading) -> pa.Array:
    return texts.cast(arrow_type(reading))


def _text_column(texts: pa.Array, _: Reading) -> pa.Array:
    texts.validate(full=True)  # A database of no encoding holds any bytes.
    return texts


def _bytes_column(texts: pa.Array, _: Reading) -> pa.Array:
    """All of a column's digits at once: they are two for each byte, wherever a value begins."""
    if not pc.all(pc.starts_with(texts, "\\x")).as_py() and texts.null_count < len(texts):
        raise Unfit("not in hex")
    digits = pc.utf8_slice_codeunits(texts, 2)
    if isinstance(digits, pa.ChunkedArray):
        digits = digits.combine_chunks()
    offsets = np.frombuffer(digits.buffers()[1], np.int32, len(digits) + 1, digits.offset * 4)
    data = digits.buffers()[2]
    written = bytes(data)[offsets[0] : offsets[-1]] if data is not None else b""
    raw = bytes.fromhex(written.decode())
    if len(raw) * 2 != len(written):
        raise Unfit("not in hex")
    found = pa.py_buffer(((offsets - offsets[0]) // 2).astype(np.int32))
    valid = pa.py_buffer(np.packbits(digits.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(digits), [valid, found, pa.py_buffer(raw)])


def _array_column(texts: pa.Array, reading: Reading) -> pa.Array:
    inner = reading.element or reading
    flat: list[str | None] = []
    ends = [0]
    for each in texts.to_pylist():
        if each is not None:
            flat += elements(each, reading.separator)
        ends.append(len(flat))
    values = column(pa.array(flat, pa.string()), inner)
    mask = texts.is_null() if texts.null_count else None
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=mask)


_COLUMNS: Final[dict[Form, Callable[[pa.Array, Reading], pa.Array]]] = {
    "bool": _bool_column,
    "integer": _cast_column,
    "float": _cast_column,
    "decimal": _cast_column,
    "bytes": _bytes_column,
    "date": _cast_column,
    "time": _cast_column,
    "zoned": _cast_column,
    "text": _text_column,
    "array": _array_column,
}
