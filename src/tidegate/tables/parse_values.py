"""Reads INSERT ... VALUES of nothing but plain literals, some thirty times faster than sqlglot.

Law: what `plain_insert` reads, it reads as `parse_dml.insert` does. All else, right or wrong, it leaves to that.
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import isinf
from typing import Any, Final

from tidegate.errors import InvalidArgument
from tidegate.tables.statements import Insert

DIGITS_MAX: Final = 1000
"""Of a literal number; no type of a column holds more than a few hundred."""
_HEAD: Final = re.compile(
    r"\s*INSERT\s+INTO\s+(?:TABLE\s+)?(?P<table>[A-Z_]\w*(?:\.[A-Z_]\w*)*)\s*"
    r"(?:\(\s*(?P<columns>[A-Z_]\w*(?:\s*,\s*[A-Z_]\w*)*)\s*\)\s*)?\bVALUES\s*\(",
    re.IGNORECASE | re.ASCII,
)
_VALUE: Final = re.compile(
    r"\s*(?:(-?[0-9]+)|(-?[0-9]+\.[0-9]+(?:E[+-]?[0-9]+)?|-?[0-9]+E[+-]?[0-9]+)|'([^'\\]*(?:''[^'\\]*)*)'"
    r"|(NULL|TRUE|FALSE))\s*([,)])",
    re.IGNORECASE,
)
_NEXT_ROW: Final = re.compile(r"\s*,\s*\(")
_END: Final = re.compile(r"\s*(\bON\s+CONFLICT\s+DO\s+NOTHING\s*)?(?:;\s*)*\Z", re.IGNORECASE)
_WORDS: Final = {"NULL": None, "TRUE": True, "FALSE": False}
_NOT_NAMES: Final = frozenset({"TABLE", "VALUES", "SELECT", "BY", "PARTITION"})


def plain_insert(sql: str) -> Insert | None:
    """The statement, or None when it is not one of these."""
    head = _HEAD.match(sql)
    if head is None:
        return None
    table = head["table"]
    columns = None if head["columns"] is None else tuple(each.strip() for each in head["columns"].split(","))
    if table.upper() in _NOT_NAMES or len({each.casefold() for each in columns or ()}) != len(columns or ()):
        return None
    rows: list[tuple[Any, ...]] = []
    width = None if columns is None else len(columns)
    at = head.end()
    while True:
        row: list[Any] = []
        delimiter = ","
        while delimiter == ",":
            found = _VALUE.match(sql, at)
            if found is None:
                return None
            whole, broken, text, word, delimiter = found.groups()
            at = found.end()
            if whole is not None or broken is not None:
                row.append(number(whole or broken))
            elif text is not None:
                row.append(text.replace("''", "'"))
            else:
                row.append(_WORDS[word.upper()])
        if width is None:
            width = len(row)
        if len(row) != width:
            return None
        rows.append(tuple(row))
        more = _NEXT_ROW.match(sql, at)
        if more is None:
            break
        at = more.end()
    end = _END.match(sql, at)
    if end is None:
        return None
    return Insert(table, columns, constants=rows, keep_existing=end[1] is not None)


def number(text: str) -> int | float | Decimal:
    """A number as Spark SQL reads it: with an exponent a double, with a point a decimal.

    Raises: `InvalidArgument` for one that no type holds.
    """
    if len(text) > DIGITS_MAX:
        raise InvalidArgument(f"the number {text[:40]}... has {len(text)} digits; at most {DIGITS_MAX} are read")
    if "e" not in text and "E" not in text:
        return Decimal(text) if "." in text else int(text)
    value = float(text)
    if isinf(value):
        raise InvalidArgument(f"the number {text} is larger than any DOUBLE")
    return value
