"""Rows on a screen of so many columns: as a table, or a line for each value where a table does not fit.

Pure: values in, lines of styled pieces out. Numbers are never cut: half a number is a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

from rich.cells import cell_len

from tidegate.cli.output import printable, shorten, to_json
from tidegate.cli.shell.answer import Rows

Piece = tuple[str, str]
"""A style (title, rule, null or nothing) and a text."""
Line = list[Piece]

_GAP: Final = 2
_NARROWEST: Final = 12
"""A text column is cut down to this before a table is given up."""
_VALUE_LENGTH_MAX: Final = 4_000
"""Characters of one value where each has lines of its own."""
_LOOKS_LIKE_NULL: Final = re.compile(r"'*NULL'*")


def cell(value: Any) -> Piece:
    """A value on one line. NULL is NULL; the string 'NULL' has quotes."""
    match value:
        case None:
            return "null", "NULL"
        case str():
            return "", f"'{value}'" if _LOOKS_LIKE_NULL.fullmatch(value) else printable(value)
        case datetime() | Decimal() | date() | time():
            return "", str(value)
        case bytes():
            return "", f"X'{value.hex()}'"
        case list() if value and all(isinstance(each, str) for each in value):
            return "", printable(", ".join(value))
        case _:
            return "", printable(to_json(value))


def lay_out(rows: Rows, width: int | None, expanded: str = "auto") -> Iterator[Line]:
    """The lines of an answer. Without `width` nothing is cut; `expanded` is auto, on or off."""
    blank = ("", "")
    cells = [[blank if value is None and not rows.shows_null else cell(value) for value in row] for row in rows.rows]
    if expanded == "on":
        yield from _records(rows, cells, width)
        return
    titles = [printable(each) for each in rows.columns]
    widths = [max([cell_len(title), *(cell_len(row[at][1]) for row in cells)]) for at, title in enumerate(titles)]
    if width is not None:
        fitting = _fit(widths, rows.is_number, titles, width)
        if fitting is None and expanded == "auto":
            yield from _records(rows, cells, width)
            return
        widths = fitting or [
            each if is_number else min(each, _NARROWEST) for each, is_number in zip(widths, rows.is_number)
        ]
    yield _line([("title", each) for each in titles], widths, rows.is_number)
    yield [("rule", "─" * (sum(widths) + _GAP * (len(widths) - 1)))]
    for row in cells:
        yield _line(row, widths, rows.is_number)


def _fit(widths: list[int], is_number: Sequence[bool], titles: Sequence[str], width: int) -> list[int] | None:
    """Widths that fit, the widest texts made narrower first; None if even narrow ones do not."""
    room = width - _GAP * (len(widths) - 1)
    if sum(widths) <= room:
        return widths
    # What a column needs to be of use: numbers whole, texts a few letters and their title.
    least = [
        each if number else min(each, max(_NARROWEST, min(cell_len(title), 2 * _NARROWEST)))
        for each, number, title in zip(widths, is_number, titles)
    ]
    if sum(least) > room:
        return None
    low, high = 0, max(widths)
    while low < high:  # The highest cap that fits.
        cap = (low + high + 1) // 2
        if sum(max(at_least, min(each, cap)) for at_least, each in zip(least, widths)) <= room:
            low = cap
        else:
            high = cap - 1
    found = [max(at_least, min(each, low)) for at_least, each in zip(least, widths)]
    spare = room - sum(found)
    for at, each in enumerate(widths):
        more = 1 if spare and found[at] < each else 0
        found[at] += more
        spare -= more
    return found


def _line(pieces: Sequence[Piece], widths: Sequence[int], is_number: Sequence[bool]) -> Line:
    line: Line = []
    last = len(pieces) - 1
    for at, ((style, text), width, right) in enumerate(zip(pieces, widths, is_number)):
        kept = shorten(text, width)
        padding = " " * (width - cell_len(kept))
        gap = "" if at == last else " " * _GAP
        if right:
            line += [("", padding), (style, kept), ("", gap)]
        else:
            line += [(style, kept), ("", "" if at == last else padding + gap)]
    return [piece for piece in line if piece[1]]


def _records(rows: Rows, cells: Sequence[Sequence[Piece]], width: int | None) -> Iterator[Line]:
    """Each value on lines of its own, behind the name of its column."""
    titles = [printable(each) for each in rows.columns]
    wide = max([cell_len(each) for each in titles], default=0)
    if width is not None:
        wide = min(wide, max(width // 3, 8))
    room = None if width is None else max(width - wide - _GAP, 8)
    for number, row in enumerate(cells, 1):
        head = f"─ row {number:,} "
        yield [("rule", head + "─" * max((width or 40) - len(head), 0))]
        for title, (style, text) in zip(titles, row):
            short = shorten(title, wide)
            lead = short + " " * (wide - cell_len(short) + _GAP)
            for at, part in enumerate(_folded(text, room)):
                yield [("title", lead) if not at else ("", " " * len(lead)), (style, part)]


def _folded(text: str, room: int | None) -> Iterator[str]:
    if len(text) > _VALUE_LENGTH_MAX and room is not None:
        text = text[:_VALUE_LENGTH_MAX] + "…"
    if room is None or cell_len(text) <= room:
        yield text
        return
    start = used = 0
    for at, character in enumerate(text):
        wide = cell_len(character)
        if used + wide > room:
            yield text[start:at]
            start, used = at, 0
        used += wide
    yield text[start:]
