"""Values for `?` and `:name` in a query, put in as literals of Spark SQL. No text of a value is ever read as SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from sqlglot import TokenType

from tidegate.errors import InvalidArgument
from tidegate.tables.spark_sql import DIALECT, shorten

Params = Sequence[Any] | Mapping[str, Any] | None
_INT: Final = range(-(1 << 31), 1 << 31)
_BIGINT: Final = range(-(1 << 63), 1 << 63)
_ESCAPED: Final = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def bind(sql: str, params: Params) -> str:
    """The query with its values in it.

    Raises: `InvalidArgument` when a value is missing, too many are given, or one has no literal.
    """
    if params is None:
        return sql
    named = params if isinstance(params, Mapping) else None
    given = [] if isinstance(params, Mapping | str | bytes) else list(params)
    if isinstance(params, str | bytes):
        raise InvalidArgument(f"`params` is a list of values, or a dict of them by name, not {params!r}")
    parts: list[str] = []
    used: set[str] = set()
    count = done = 0
    tokens = DIALECT.tokenize(sql)
    for index, token in enumerate(tokens):
        if named is None and token.token_type == TokenType.PLACEHOLDER:
            if count >= len(given):
                raise InvalidArgument(f"{len(given)} values are given, and there are more `?` in {shorten(sql)}")
            parts += (sql[done : token.start], literal(given[count], f"value {count + 1}"))
            done = token.end + 1
            count += 1
        elif named is not None and token.token_type == TokenType.COLON and index + 1 < len(tokens):
            name = tokens[index + 1]
            if name.start != token.end + 1 or name.text not in named:
                if name.start == token.end + 1 and name.text.isidentifier() and _begins(tokens, index):
                    raise InvalidArgument(f"no value is given for :{name.text} in {shorten(sql)}")
                continue
            parts += (sql[done : token.start], literal(named[name.text], f"value {name.text!r}"))
            done = name.end + 1
            used.add(name.text)
    if named is None and count < len(given):
        raise InvalidArgument(f"{len(given)} values are given for {count} `?` in {shorten(sql)}")
    if named is not None and (unused := sorted(set(named) - used)):
        raise InvalidArgument(f"there is no :{unused[0]} in {shorten(sql)}")
    return "".join([*parts, sql[done:]])


def _begins(tokens: Sequence[Any], index: int) -> bool:
    """Whether a colon begins a value: behind a name it would look into a JSON text."""
    return index == 0 or tokens[index - 1].end + 1 != tokens[index].start


def literal(value: Any, what: str = "the value") -> str:
    """A value as Spark SQL writes it. Raises: `InvalidArgument`."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            if value not in _BIGINT:
                raise InvalidArgument(f"{what} is {value}, beyond BIGINT; give a Decimal")
            if value == _BIGINT.start:
                return f"(-{_BIGINT.stop - 1}L - 1)"
            text = str(value) if value in _INT and value != _INT.start else f"{value}L"
            return text if value >= 0 else f"({text})"
        case float():
            return f"CAST('{value!r}' AS DOUBLE)" if isfinite(value) else f"CAST('{_special(value)}' AS DOUBLE)"
        case Decimal():
            if not value.is_finite():
                raise InvalidArgument(f"{what} is {value}, which DECIMAL does not have")
            _, digits, exponent = value.as_tuple()
            scale = max(-int(exponent), 0)
            precision = max(len(digits) + max(int(exponent), 0), scale, 1)
            if precision > 38:
                raise InvalidArgument(f"{what} has {precision} digits, and DECIMAL at most 38")
            return f"CAST('{value:f}' AS DECIMAL({precision}, {scale}))"
        case str():
            return f"'{value.translate(_ESCAPED)}'"
        case bytes() | bytearray():
            return f"X'{bytes(value).hex()}'"
        case datetime():
            if value.tzinfo is None:
                return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
            return f"TIMESTAMP '{value.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case list() | tuple():
            inner = ", ".join(literal(each, f"{what}[{index}]") for index, each in enumerate(value))
            return f"array({inner})"
    raise InvalidArgument(
        f"{what} is a {type(value).__name__}; give a number, text, bytes, date, time or a list of them"
    )


def _special(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
