"""How commands print: tables for people, one JSON object a line for programs, and never a control code in a pipe."""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

import click
from rich.cells import cell_len

from tidegate.clock.timestamp import Timestamp

if TYPE_CHECKING:  # Where they are used they are imported: a command whose output is plain need not wait for them.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_PIPE_WIDTH: Final = 160
"""Columns for tables when nobody's terminal says how many there are."""
_ESCAPED_SPACE: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

json_option: Final[Callable[[Any], Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line, instead of a table."
)


def console() -> Console:
    """What goes to stdout. In a pipe: no colours, and wide enough that tables keep their lines."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else columns()
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, soft_wrap=False)


def has_colours() -> bool:
    """Whether stdout takes colours."""
    if not (sys.stdout.isatty() or os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE")):
        return False  # As `console` would say, without loading what draws.
    screen = console()
    return screen.is_terminal and not (screen.no_color or screen.is_dumb_terminal)


def columns() -> int:
    """How many columns a line may take."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return max(int(os.environ["COLUMNS"]), 40)
    if sys.stdout.isatty():
        return os.get_terminal_size(sys.stdout.fileno()).columns or _PIPE_WIDTH
    return _PIPE_WIDTH


def print_json(value: Any) -> None:
    """One object on one line, at once."""
    sys.stdout.write(to_json(value) + "\n")
    sys.stdout.flush()


def to_json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: str = "") -> None:
    """Print what `make_table` makes."""
    console().print(make_table(titles, rows, right=right))


def make_table(titles: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: str = "") -> Table:
    """A table; the columns named in `right`, separated by spaces, are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    aligned = right.split()
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, title in enumerate(titles):
        is_right = title in aligned
        table.add_column(
            title, justify="right" if is_right else "left", overflow="fold", no_wrap=is_right or not number
        )
    for row in rows:
        table.add_row(*[cell if isinstance(cell, Text) else Text(cell) for cell in row])
    return table


def print_line(text: str = "", *, style: str | None = None) -> None:
    from rich.text import Text

    console().print(Text(text, style=style or ""))


def size(count: int) -> str:
    """Bytes, readable: `1.5 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(ms: float) -> str:
    """A span of time, readable, in at most nine columns: `450 ms`, `12.3 s`, `2 min 5 s`, `3 h 12 m`."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def when(timestamp: Timestamp) -> str:
    """Its physical part, readable; two words, so that a narrow table can fold it."""
    return f"{timestamp.to_datetime():%Y-%m-%d %H:%M:%S}.{timestamp.physical_ms % 1000:03d}Z"


def printable(text: str) -> str:
    """The text on one line, with everything a terminal might take for a command escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    short = _ESCAPED_SPACE.get(character)
    return short or (f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}")


def body_preview(body: bytes) -> str:
    """A body as text if it is text, else as hexadecimal digits."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body.hex()
    if all(each.isprintable() or each in _ESCAPED_SPACE for each in text):
        return printable(text)
    return body.hex()


def shorten(text: str, width: int) -> str:
    """The text in at most `width` columns of a terminal."""
    if len(text) <= width and cell_len(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    while cell_len(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


def _plain(value: Any) -> Any:
    """What JSON can hold: bytes as text or marked base64, times as ISO text, what is no number as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case _:
            return str(value)
