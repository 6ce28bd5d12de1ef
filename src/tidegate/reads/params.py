"""Values for `?` and `:name` in a query, put in as literals of Spark SQL. No text of a value is ever read as SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from tidegate.errors import InvalidArgument
from tidegate.tables.spark_sql import DIALECT, shorten

Params = Sequence[Any] | Mapping[str, Any] | None
_INT_MAX: Final = (1 << 31) - 1
_BIGINT_MAX: Final = (1 << 63) - 1
_BEFORE_A_VALUE: Final = frozenset("(,=<>+-*/%|!&^~[")
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
    try:
        tokens = DIALECT.tokenize(sql)
    except SqlglotError:
        raise InvalidArgument(f"a quote or a comment is not closed in {shorten(sql)}") from None
    for index, token in enumerate(tokens):
        if named is None and token.token_type == TokenType.PLACEHOLDER:
            if count >= len(given):
                raise InvalidArgument(f"{len(given)} values are given, and there are more `?` in {shorten(sql)}")
            parts += (sql[done : token.start], " ", literal(given[count], f"value {count + 1}"), " ")
            done = token.end + 1
            count += 1
        elif named is not None and token.token_type == TokenType.COLON and _begins_value(sql, tokens, index):
            name = tokens[index + 1]
            if name.text not in named:
                raise InvalidArgument(f"no value is given for :{name.text} in {shorten(sql)}")
            parts += (sql[done : token.start], " ", literal(named[name.text], f"value {name.text!r}"), " ")
            done = name.end + 1
            used.add(name.text)
    if named is None and count < len(given):
        raise InvalidArgument(f"{len(given)} values are given for {count} `?` in {shorten(sql)}")
    if named is not None and (unused := sorted(set(named) - used)):
        raise InvalidArgument(f"there is no :{unused[0]} in {shorten(sql)}")
    return "".join([*parts, sql[done:]])


def _begins_value(sql: str, tokens: Sequence[Any], index: int) -> bool:
    """Whether a colon begins `:name`: behind a name it looks into a JSON text, or gives a field its type."""
    colon = tokens[index]
    if index + 1 >= len(tokens) or tokens[index + 1].start != colon.end + 1:
        return False
    before = sql[colon.start - 1] if colon.start else " "
    return tokens[index + 1].text.isidentifier() and (before.isspace() or before in _BEFORE_A_VALUE)


def literal(value: Any, what: str = "the value") -> str:
    """A value as Spark SQL writes it. Raises: `InvalidArgument`."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            number = int(value)
            if not -_BIGINT_MAX - 1 <= number <= _BIGINT_MAX:
                raise InvalidArgument(f"{what} is {number}, beyond BIGINT; give a Decimal")
            if number == -_BIGINT_MAX - 1:
                return f"(-{_BIGINT_MAX}L - 1)"
            if number == -_INT_MAX - 1:
                return f"CAST({number}L AS INT)"
            text = str(number) if -_INT_MAX <= number <= _INT_MAX else f"{number}L"
            return text if number >= 0 else f"({text})"
        case float():
            number_text = float.__repr__(value) if isfinite(value) else _special(value)
            return f"CAST('{number_text}' AS DOUBLE)"
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
            return f"'{str(value).translate(_ESCAPED)}'"
        case bytes() | bytearray():
            return f"X'{bytes(value).hex()}'"
        case datetime():
            if value.tzinfo is None:
                return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
            try:
                utc = value.astimezone(UTC).replace(tzinfo=None)
            except OverflowError:
                raise InvalidArgument(f"{what} is {value}, which UTC does not have") from None
            return f"TIMESTAMP '{utc.isoformat(' ')}'"
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
