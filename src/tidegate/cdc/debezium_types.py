"""Types and values of Debezium's events: by the schema that an event carries, or by the values where it carries none.

A value is what Kafka Connect's JSON converter makes of it: decimals and bytes in base64, days and microseconds as
numbers, zoned timestamps as texts.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

from tidegate.errors import SourceUnreadable

Convert = Callable[[Any], Any]
UNSENT: Final = "__debezium_unavailable_value"
"""What stands for a large value that an update did not touch, and that PostgreSQL therefore did not log."""
_UNSENT_BYTES: Final = base64.b64encode(UNSENT.encode()).decode()
_UNSENT_MAP: Final = {UNSENT: UNSENT}
"""In an hstore, which comes as a map or as the JSON text of one."""
_UNSENT_TEXTS: Final = frozenset(
    (UNSENT, _UNSENT_BYTES, json.dumps(_UNSENT_MAP), json.dumps(_UNSENT_MAP, separators=(",", ":")))
)
_UNSENT_LISTS: Final = (
    [UNSENT],
    [_UNSENT_BYTES],
    list(UNSENT.encode()),
    ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
)
"""In arrays of texts; of bytes; of numbers, dates and the like; of UUIDs, where it is the name's of version 3."""
# Without a time zone: of a clock on a wall somewhere.
_DAY_0: Final = date(1970, 1, 1)
_TIME_0: Final = datetime(1970, 1, 1)
_NO_DEFAULTS: Final = (_DAY_0, _TIME_0, _TIME_0.replace(tzinfo=UTC))
_PRECISION_MAX: Final = 38
_EXACT: Final = Context(prec=150_000)
"""More digits than a number of PostgreSQL has: nothing is rounded."""


class Field(NamedTuple):
    """A column, and what makes a value of it."""

    name: str
    type: str
    convert: Convert
    is_nullable: bool = True


def _same(value: Any) -> Any:
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value)


def _decimal(scale: int) -> Convert:
    def convert(value: Any) -> Decimal:
        if isinstance(value, str):
            try:
                unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
                return Decimal(unscaled).scaleb(-scale, _EXACT)
            except ValueError:
                return Decimal(value)  # decimal.handling.mode=string
        return Decimal(str(value))

    return convert


def _fitting(precision: int, scale: int, read: Convert) -> Convert:
    """Numbers that a type has place for, without rounding."""

    def convert(value: Any) -> Decimal:
        found: Decimal = read(value)
        if found:
            _, digits, last = found.normalize(_EXACT).as_tuple()
            if not isinstance(last, int) or -last > scale or len(digits) + last > precision - scale:
                raise ValueError(f"no DECIMAL({precision}, {scale})")
        return found

    return convert


def _number(value: Any) -> Decimal:
    """A decimal that brings its scale along, or that is written as a text."""
    if isinstance(value, Mapping):
        found: Decimal = _decimal(int(value["scale"]))(value["value"])
        return found
    return Decimal(str(value))


def _text(value: Decimal) -> str:
    return f"{value:f}"


def _variable(value: Any) -> str:
    return _text(_number(value)) if isinstance(value, Mapping) else str(value)


def _whole(value: Any) -> int:
    found = int(value)
    if found != value and str(found) != value:
        raise ValueError(f"no whole number: {value!r}")
    return found


def _days(value: Any) -> date:
    return _DAY_0 + timedelta(days=value)


def _millis(value: Any) -> datetime:
    return _TIME_0 + timedelta(milliseconds=value)


def _micros(value: Any) -> datetime:
    return _TIME_0 + timedelta(microseconds=value)


def _zoned(value: Any) -> datetime:
    found = datetime.fromisoformat(str(value))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_PLAIN: Final[dict[str, tuple[str, Convert]]] = {
    "int8": ("TINYINT", _same),
    "int16": ("SMALLINT", _same),
    "int32": ("INT", _same),
    "int64": ("BIGINT", _same),
    "float": ("FLOAT", float),
    "float32": ("FLOAT", float),
    "double": ("DOUBLE", float),
    "float64": ("DOUBLE", float),
    "boolean": ("BOOLEAN", _same),
    "string": ("STRING", _same),
    "bytes": ("BINARY", _bytes),
}
_LOGICAL: Final[dict[str, tuple[str, Convert]]] = {
    "io.debezium.time.Date": ("DATE", _days),
    "org.apache.kafka.connect.data.Date": ("DATE", _days),
    "io.debezium.time.Timestamp": ("TIMESTAMP_NTZ", _millis),
    "org.apache.kafka.connect.data.Timestamp": ("TIMESTAMP_NTZ", _millis),
    "io.debezium.time.MicroTimestamp": ("TIMESTAMP_NTZ", _micros),
    "io.debezium.time.ZonedTimestamp": ("TIMESTAMP", _zoned),
    "io.debezium.data.VariableScaleDecimal": ("STRING", _variable),
    "org.apache.kafka.connect.data.Decimal": ("DECIMAL", _same),
}
_CHOSEN: Final[dict[str, Convert]] = {
    "BIGINT": _whole,
    "INT": _whole,
    "SMALLINT": _whole,
    "TINYINT": _whole,
    "DOUBLE": float,
    "STRING": _json,
    "BOOLEAN": _same,
    "BINARY": _bytes,
    "DATE": _days,
    "TIMESTAMP": _zoned,
    "TIMESTAMP_NTZ": _micros,
}
_DECIMAL: Final = re.compile(r"DECIMAL\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", re.IGNORECASE)


def fields_of(schema: Sequence[Mapping[str, Any]]) -> list[Field]:
    """The columns that an event's schema has for its rows."""
    return [Field(str(each["field"]), *_typed(each), bool(each.get("optional", False))) for each in schema]


def defaults_of(table: str, fields: Sequence[Field], schema: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The defaults that an event's schema has for some columns, by name.

    Where a default is computed (`now()`), Debezium says the beginning of 1970, which is none.
    """
    said = {str(each["field"]): each.get("default") for each in schema}
    row = row_of(table, fields, said)
    found = {each.name: value for each, value in zip(fields, row, strict=True) if value is not None}
    return {name: value for name, value in found.items() if value not in _NO_DEFAULTS}


def _typed(field: Mapping[str, Any]) -> tuple[str, Convert]:
    name, type = field.get("name"), str(field.get("type"))
    parameters = field.get("parameters") or {}
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int(parameters.get("scale", 0))
        precision = int(parameters.get("connect.decimal.precision", _PRECISION_MAX))
        return f"DECIMAL({min(max(precision, scale, 1), _PRECISION_MAX)}, {scale})", _decimal(scale)
    if name in _LOGICAL:
        return _LOGICAL[name]
    if type == "array":
        inner, convert = _typed(field.get("items") or {"type": "string"})
        return f"ARRAY<{inner}>", lambda values: [None if each is None else convert(each) for each in values]
    return _PLAIN.get(type, ("STRING", _json))


def field_as(name: str, type: str, schema: Mapping[str, Any] | None = None) -> Field:
    """A column of a type that is known from before, or chosen; `schema` is what an event's says of its values.

    Raises: `SourceUnreadable` for a type that there is not.
    """
    number, said = (None, ("", _same)) if schema is None else (_number_of(schema), _typed(schema))
    found = _DECIMAL.fullmatch(type)
    if found:
        precision, scale = int(found[1]), int(found[2] or 0)
        is_text = schema is not None and schema.get("type") == "string"
        read = number or (_number if is_text else _decimal(scale))
        return Field(name, f"DECIMAL({precision}, {scale})", _fitting(precision, scale, read))
    if type.upper() == said[0]:
        return Field(name, *said)
    if type.upper().startswith("ARRAY<"):
        _, inner_type, inner, _ = field_as(name, type[6:-1], schema and schema.get("items"))
        return Field(
            name, f"ARRAY<{inner_type}>", lambda values: [None if each is None else inner(each) for each in values]
        )
    convert = _CHOSEN.get(type.upper()) or next(
        (each for plain, each in _PLAIN.values() if plain == type.upper()), None
    )
    if convert is None:
        raise SourceUnreadable(f"column {name!r}: values of events are no {type}")
    if number is not None:
        last = _text if type.upper() == "STRING" else convert
        return Field(name, type.upper(), lambda value: last(number(value)))
    return Field(name, type.upper(), convert)


def _number_of(schema: Mapping[str, Any]) -> Convert | None:
    """What reads the digits of a decimal, if that is what an event's schema says."""
    match schema.get("name"):
        case "org.apache.kafka.connect.data.Decimal":
            return _decimal(int((schema.get("parameters") or {}).get("scale", 0)))
        case "io.debezium.data.VariableScaleDecimal":
            return _number
    return None


def fields_by_values(rows: Iterable[Mapping[str, Any]]) -> list[Field]:
    """Columns by what some rows have in them, where events bring no schema."""
    kinds: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            found = kinds.setdefault(name, set())
            if value is not None:
                found.add(type(value))
    return [field_as(name, _guess(found)) for name, found in kinds.items()]


def _guess(kinds: set[type]) -> str:
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    return "DOUBLE" if kinds in ({float}, {int, float}) else "STRING"


def is_unsent(value: Any) -> bool:
    """Whether it only stands for a value that was not sent."""
    if type(value) is str:
        return value in _UNSENT_TEXTS
    return (type(value) is list and value in _UNSENT_LISTS) or (type(value) is dict and value == _UNSENT_MAP)


def row_of(
    table: str, fields: Sequence[Field], image: Mapping[str, Any], unsent: list[str] | None = None
) -> tuple[Any, ...]:
    """A row. Columns whose values were not sent are None, and added to `unsent`.

    Raises: `SourceUnreadable` for a value that is none of its column, or was not sent though it must be there.
    """
    found: list[Any] = []
    for name, type, convert, _ in fields:
        value = image.get(name)
        if value is None:
            found.append(None)
            continue
        if is_unsent(value):
            if unsent is not None:
                unsent.append(name)
                found.append(None)
                continue
            raise SourceUnreadable(
                f"table {table!r}, column {name!r}: a large value that was not changed was not sent;"
                f" ALTER TABLE {table} REPLICA IDENTITY FULL, and take a new snapshot: restart=True, or --restart"
            )
        try:
            found.append(convert(value))
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            said, better = repr(value)[:60], "DOUBLE" if isinstance(value, float) else "STRING"
            raise SourceUnreadable(
                f'table {table!r}, column {name!r}: {said} is no {type}; choose its type: types={{"{table}.{name}":'
                f' "{better}"}}, and take a new snapshot: restart=True, or --restart'
            ) from error
    return tuple(found)
