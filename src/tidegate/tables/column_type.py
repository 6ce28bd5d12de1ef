"""The types of columns: Spark SQL text to Arrow and back.

    BOOLEAN   TINYINT | BYTE   SMALLINT | SHORT   INT | INTEGER   BIGINT | LONG   FLOAT | REAL   DOUBLE
    DECIMAL[(precision[, scale])] | DEC | NUMERIC   STRING | TEXT   BINARY   DATE   TIMESTAMP | TIMESTAMP_LTZ
    TIMESTAMP_NTZ   ARRAY<T>   STRUCT<name: T, ...>   MAP<K, V>

Law: `from_sql(to_sql(type)) == type` for each of these, and `to_sql` gives one text for one type, which is what the
catalog's records hold. VARCHAR(n) and CHAR(n) are refused: Tidegate checks no lengths, and would break the promise.
Whatever is nested may be null, but for the keys of a map.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import pyarrow as pa

from tidegate.errors import InvalidArgument

DECIMAL_PRECISION_MAX: Final = 38
NESTING_MAX: Final = 50
"""How deep types nest; deeper ones would exhaust the stack of whatever walks them."""
_SIMPLE: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
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
_ALIASES: Final = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TEXT": "STRING",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
}
_NAMES: Final = {type: name for name, type in _SIMPLE.items()}
KNOWN: Final = ", ".join([*_SIMPLE, "DECIMAL(p, s)", "ARRAY<T>", "STRUCT<name: T, ...>", "MAP<K, V>"])
"""What an error says about the types there are."""
_TOKEN: Final = re.compile(r"\s*(?:(?P<word>\w+)|(?P<quoted>`(?:[^`]|``)+`)|(?P<sign>[<>(),:])|(?P<end>\Z))")
_PLAIN_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@lru_cache(maxsize=4096)
def from_sql(text: str) -> pa.DataType:
    """The Arrow type that a Spark SQL type means.

    Raises: `InvalidArgument` with the text and the known types.
    """
    return _Reader(text).whole()


def to_sql(type: pa.DataType) -> str:
    """The one Spark SQL text of a type.

    Raises: `InvalidArgument` for an Arrow type that has none.
    """
    name = _NAMES.get(type)
    if name is not None:
        return name
    if pa.types.is_decimal128(type) and 0 <= type.scale <= type.precision:
        return f"DECIMAL({type.precision}, {type.scale})"
    if pa.types.is_map(type) and type.item_field.nullable and not type.keys_sorted:
        return f"MAP<{to_sql(type.key_type)}, {to_sql(type.item_type)}>"
    if pa.types.is_list(type) and type.value_field.nullable:
        return f"ARRAY<{to_sql(type.value_type)}>"
    if pa.types.is_struct(type) and type.num_fields and all(field.nullable for field in type):
        return f"STRUCT<{', '.join(f'{_field_name(field.name)}: {to_sql(field.type)}' for field in type)}>"
    raise InvalidArgument(f"the Arrow type {type} is not one of a column; there are {KNOWN}")


def may_be_key(type: pa.DataType) -> bool:
    """Whether equal values of a type are equal in every engine, so that it can identify a row."""
    return not (pa.types.is_floating(type) or pa.types.is_nested(type))


KEY_TYPES: Final = "integers, BOOLEAN, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ and DECIMAL"


def simple(name: str) -> pa.DataType:
    """A type without parameters, by its name in any case. Raises: `InvalidArgument`."""
    known = name.upper()
    known = _ALIASES.get(known, known)
    found = _SIMPLE.get(known)
    if found is not None:
        return found
    if known == "DECIMAL":
        return decimal()
    raise InvalidArgument(f"{name} is not a type of a column: {_hint(known)}")


def decimal(precision: int = 10, scale: int = 0) -> pa.DataType:
    """Raises: `InvalidArgument` for more digits than there are."""
    if not 1 <= precision <= DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
        raise InvalidArgument(
            f"DECIMAL({precision}, {scale}) is not a type of a column: it has 1 to {DECIMAL_PRECISION_MAX} digits,"
            f" and not more behind the point than in all"
        )
    return pa.decimal128(precision, scale)


def struct(fields: list[tuple[str, pa.DataType]]) -> pa.DataType:
    """Raises: `InvalidArgument` for two fields of one name, whatever their case."""
    seen: dict[str, str] = {}
    for name, _ in fields:
        there = seen.get(name.casefold())
        if there is not None:
            raise InvalidArgument(f"STRUCT has two fields {there!r} and {name!r}; upper and lower case are the same")
        seen[name.casefold()] = name
    return pa.struct([pa.field(name, type) for name, type in fields])


def map(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Raises: `InvalidArgument` for maps as keys, which Spark does not have."""
    if pa.types.is_map(key):
        raise InvalidArgument("the keys of a MAP cannot be MAPs")
    return pa.map_(key, value)


def _hint(name: str) -> str:
    if name in ("VARCHAR", "CHAR", "NVARCHAR", "CHARACTER"):
        return "lengths of strings are not checked; write STRING"
    if name in ("DATETIME", "TIMESTAMPTZ"):
        return "write TIMESTAMP, or TIMESTAMP_NTZ for one without a time zone"
    if name in ("BLOB", "BYTES", "VARBINARY", "BYTEA"):
        return "write BINARY"
    return f"there are {KNOWN}"


def _field_name(name: str) -> str:
    return name if _PLAIN_FIELD.fullmatch(name) else "`" + name.replace("`", "``") + "`"


class _Reader:
    """Reads one type out of its text."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidArgument(f"a type is Spark SQL text, not {text!r}; there are {KNOWN}")
        self._text = text
        self._at = 0
        self._depth = 0
        self._advance()

    def whole(self) -> pa.DataType:
        try:
            type = self._type()
        except InvalidArgument as error:
            text = _shorten(self._text)
            if text in str(error):
                raise
            raise InvalidArgument(f"{error} (in {text})") from None
        if self._kind != "end":
            raise self._unexpected("the end of the type")
        return type

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            start = len(self._text) - len(self._text[self._at :].lstrip())
            self._kind, self._token, self._start, self._at = "other", self._text[start], start, start + 1
            return
        self._kind = match.lastgroup or ""
        self._token = match.group(self._kind)
        self._start, self._at = match.start(self._kind), match.end()

    def _skip(self, sign: str) -> bool:
        if self._kind != "sign" or self._token != sign:
            return False
        self._advance()
        return True

    def _take(self, sign: str) -> None:
        if not self._skip(sign):
            raise self._unexpected(repr(sign))

    def _type(self) -> pa.DataType:
        if self._kind != "word" or self._token[0].isdigit():
            raise self._unexpected("a type")
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise InvalidArgument(f"the type {_shorten(self._text)} nests deeper than {NESTING_MAX} levels")
        name = self._token
        self._advance()
        type = self._rest(name)
        self._depth -= 1
        return type

    def _rest(self, name: str) -> pa.DataType:
        match _ALIASES.get(name.upper(), name.upper()):
            case "ARRAY":
                self._take("<")
                element = self._type()
                self._take(">")
                return pa.list_(element)
            case "MAP":
                self._take("<")
                key = self._type()
                self._take(",")
                value = self._type()
                self._take(">")
                return map(key, value)
            case "STRUCT":
                return self._struct()
            case "DECIMAL" if self._skip("("):
                precision = self._number()
                scale = self._number() if self._skip(",") else 0
                self._take(")")
                return decimal(precision, scale)
            case _:
                return simple(name)

    def _struct(self) -> pa.DataType:
        self._take("<")
        fields = [self._field()]
        while self._skip(","):
            fields.append(self._field())
        self._take(">")
        return struct(fields)

    def _field(self) -> tuple[str, pa.DataType]:
        if self._kind == "quoted":
            name = self._token[1:-1].replace("``", "`")
        elif self._kind == "word":
            name = self._token
        else:
            raise self._unexpected("the name of a field")
        self._advance()
        self._skip(":")  # Spark takes `name T` as well as `name: T`.
        return name, self._type()

    def _number(self) -> int:
        if self._kind != "word" or not re.fullmatch("[0-9]{1,9}", self._token):
            raise self._unexpected("a number")
        number = int(self._token)
        self._advance()
        return number

    def _unexpected(self, expected: str) -> InvalidArgument:
        text = _shorten(self._text)
        if self._kind == "end":
            return InvalidArgument(f"the type {text!r} ends where {expected} is expected; there are {KNOWN}")
        return InvalidArgument(
            f"{self._token!r} at column {self._start + 1} of the type {text!r} is not understood:"
            f" {expected} is expected; there are {KNOWN}"
        )


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
