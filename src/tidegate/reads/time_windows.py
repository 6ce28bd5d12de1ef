"""`window(time, width[, slide[, start]])` and `session_window(time, gap)`: the windows of time that a row lies in.

They are of the type STRUCT<start, end>.
A row is there once for each of its windows, and not at all where its time is NULL. So a window is a part of FROM and
of WHERE, and every call of it in one SELECT is the same one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tidegate.reads.aggregates import one_zero
from tidegate.reads.spark_types import STRING, TIMESTAMP, NeedsSpark, Typed, shown

STRUCT: Final = pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP)])
_UNITS: Final = {
    "week": 7 * 86_400_000_000, "day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000,
    "millisecond": 1_000, "microsecond": 1,
}  # fmt: skip
_WINDOWS_MAX: Final = 10_000
NAMES: Final = ("window", "session_window")


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The windows of one SELECT."""

    column: Typed
    start: str
    """When a window starts: two with the same start are the same."""
    source: str
    """What is added to FROM: a number for each window that a row may lie in."""
    condition: str
    """Whether a row lies in it."""
    key: tuple[str, int, int, int]
    """The time, the width, the slide and the start: what a call is given."""


def calls(node: exp.Expr) -> Iterator[exp.Expr]:
    """The calls of `window` in a SELECT, without those in queries inside of it."""
    for name in ("expressions", "where", "group", "having", "qualify", "order"):
        parts = node.args.get(name)
        for each in parts if isinstance(parts, list) else [parts]:
            if each is not None:
                yield from _calls(each)


def _calls(node: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(node, exp.Anonymous) and node.name.lower() in NAMES:
        yield node
    elif not isinstance(node, exp.Query):
        for each in node.iter_expressions():
            yield from _calls(each)


def of_rows(args: Sequence[Typed], fresh: Callable[[], str]) -> TimeWindow:
    """The windows that a call means. Raises: `NeedsSpark`."""
    if not 2 <= len(args) <= 4 or args[0].type != TIMESTAMP:
        raise NeedsSpark(f"window() of {', '.join(shown(each.type) for each in args)}")
    width = _micros(args[1])
    slide = _micros(args[2]) if len(args) > 2 else width
    first = _micros(args[3]) if len(args) > 3 else 0
    count = -(-width // slide) if slide else 0
    if not 0 < slide <= width or not 0 <= first < slide or count > _WINDOWS_MAX:
        raise NeedsSpark(f"such a window of {args[1].name}")
    x = args[0].sql
    moment = f"epoch_us({x})"
    start = f"{moment} - ((({moment} - {first}) % {slide}) + {slide}) % {slide}"
    source, condition = "", f"{x} IS NOT NULL"
    if count > 1:
        alias = fresh()
        source = f" CROSS JOIN (SELECT unnest(range(0, {count})) AS i) AS {alias}"
        start = f"{start} - {alias}.i * {slide}"
        if width % slide:
            condition += f" AND {moment} < {start} + {width}"
    begin = f"make_timestamptz({start})"
    sql = f'struct_pack("start" := {begin}, "end" := make_timestamptz(epoch_us({begin}) + {width}))'
    return TimeWindow(Typed(sql, STRUCT, "window"), begin, source, condition, (x, width, slide, first))


def sessions(
    args: Sequence[Typed], keys: Sequence[Typed], columns: Sequence[str], rows: str, fresh: Callable[[], str]
) -> tuple[str, TimeWindow]:
    """Rows with the session of each: those of one group with no gap between them. `rows` are FROM and WHERE, and
    `columns` what is wanted of them, which are d0, d1 and so on in the answer. Raises: `NeedsSpark`.
    """
    if len(args) != 2 or args[0].type != TIMESTAMP:
        raise NeedsSpark(f"session_window() of {', '.join(shown(each.type) for each in args)}")
    gap, x, alias = _micros(args[1]), args[0].sql, fresh()
    if not gap:
        raise NeedsSpark("a session without a gap")
    listed = [f"{each} AS d{index}" for index, each in enumerate(columns)]
    listed += [f"{one_zero(each.sql, each.type)} AS k{index}" for index, each in enumerate(keys)]
    among = ", ".join(f"k{index}" for index in range(len(keys)))
    by = f"PARTITION BY {among} " if among else ""
    found = f"SELECT {', '.join(listed)}{', ' if listed else ''}epoch_us({x}) AS t{rows}"
    found = f"SELECT *, coalesce(t > lag(t) OVER ({by}ORDER BY t) + {gap}, true) AS is_new FROM ({found}) AS p"
    found = f"SELECT *, count(*) FILTER (WHERE is_new) OVER ({by}ORDER BY t) AS g FROM ({found}) AS q"
    whole = f"OVER (PARTITION BY {among}{', ' if among else ''}g)"
    begin, end = f"make_timestamptz(min(t) {whole})", f"make_timestamptz(max(t) {whole} + {gap})"
    found = f'SELECT *, struct_pack("start" := {begin}, "end" := {end}) AS w FROM ({found}) AS r'
    column = Typed(f"{alias}.w", STRUCT, "session_window")
    return f" FROM ({found}) AS {alias}", TimeWindow(column, column.sql, "", "", (x, gap, 0, 0))


def _micros(arg: Typed) -> int:
    """The length of '10 minutes', '1 hour 30 minutes' and the like. Raises: `NeedsSpark`."""
    text = arg.value if arg.type == STRING and isinstance(arg.value, str) else ""
    found = re.fullmatch(r"\s*(?:interval\s+)?((?:\d{1,9}\s+[a-z]+\s*)+)", text.lower())
    parts = re.findall(r"(\d+)\s+([a-z]+)", found.group(1)) if found else []
    units = [unit.removesuffix("s") for _, unit in parts]
    if not parts or any(each not in _UNITS for each in units):
        raise NeedsSpark(f"the interval {arg.name!r}")
    return sum(int(count) * _UNITS[unit] for (count, _), unit in zip(parts, units))
