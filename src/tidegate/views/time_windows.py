"""`window(time, width[, slide[, start]])`: a row is there once for each window that its time lies in.

The column `window`, which Spark makes of `GROUP BY window(...)`, is written out as the call first; `session_window`
too. The windows of a row are numbered, and each is an expression of the time and that number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tidegate.reads.time_windows import NAMES
from tidegate.views.names import NotUnderstood, function_name
from tidegate.views.operators import column

_MICROS: Final = {
    "week": 604_800_000_000, "day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000,
    "millisecond": 1_000, "microsecond": 1,
}  # fmt: skip
_WINDOWS_MAX: Final = 10_000


def with_windows(tree: exp.Expr) -> exp.Expr:
    """A query in which nothing names `window` that no source has."""
    tree = tree.copy()
    for select in tree.find_all(exp.Select):
        group = select.args.get("group")
        calls = [each for each in (group.expressions if group else []) if function_name(each) in NAMES]
        names = {function_name(each) for each in calls}
        sources = [select.args.get("from_"), *(select.args.get("joins") or [])]
        if len(calls) != 1 or any(each is not None and each.this.alias_or_name in names for each in sources):
            continue
        for each in select.expressions:
            _write_out(each, calls[0])
        for name in ("having", "order", "qualify"):
            if (part := select.args.get(name)) is not None:
                _write_out(part, calls[0])
    return tree


def _write_out(node: exp.Expr, call: exp.Expr) -> None:
    wanted = function_name(call)
    for each in list(node.find_all(exp.Column)):
        name, table = each.name.lower(), each.table.lower()
        if table == wanted:
            new: exp.Expr = exp.Dot(this=call.copy(), expression=exp.to_identifier(each.name))
        elif name == wanted and not table:
            new = call.copy()
        else:
            continue
        is_shown = isinstance(each.parent, exp.Select)
        each.replace(exp.alias_(new, each.name) if is_shown else new)


@dataclass(frozen=True, slots=True)
class Hops:
    """The windows of a call."""

    time: exp.Expr
    width: int
    slide: int
    first: int

    @property
    def count(self) -> int:
        """In so many windows a row may lie."""
        return -(-self.width // self.slide)

    def numbers(self) -> exp.Expr:
        """Gives a row for each."""
        numbers = call("sequence", exp.Literal.number(0), exp.Literal.number(self.count - 1))
        return call("posexplode", numbers)

    def condition(self, number: str | None) -> exp.Expr:
        """Whether a row lies in the window of a number."""
        known: exp.Expr = exp.Not(this=exp.Is(this=self.time.copy(), expression=exp.null()))
        if self.width % self.slide == 0:
            return known
        end = exp.Add(this=self._start(number), expression=exp.Literal.number(self.width))
        return exp.and_(known, exp.LT(this=call("unix_micros", self.time.copy()), expression=end))

    def struct(self, number: str | None) -> exp.Expr:
        start = self._start(number)
        end = exp.Add(this=start.copy(), expression=exp.Literal.number(self.width))
        bounds = {"start": start, "end": end}
        parts = [(exp.Literal.string(name), call("timestamp_micros", each)) for name, each in bounds.items()]
        return call("named_struct", *(each for pair in parts for each in pair))

    def _start(self, number: str | None) -> exp.Expr:
        moment = call("unix_micros", self.time.copy())
        slide = exp.Literal.number(self.slide)
        since = exp.Sub(this=moment.copy(), expression=exp.Literal.number(self.first))
        start: exp.Expr = exp.Sub(this=moment, expression=call("pmod", since, slide))
        if number is None:
            return exp.paren(start)
        return exp.paren(exp.Sub(this=start, expression=exp.Mul(this=column(number), expression=slide.copy())))


def hops_in(node: exp.Expr) -> list[exp.Expr]:
    """The calls of `window` in an expression; those of subqueries are not its own."""
    if function_name(node) == "window":
        return [node]
    if isinstance(node, exp.Query):
        return []
    return [found for each in node.iter_expressions() for found in hops_in(each)]


def hops(node: exp.Expr) -> Hops:
    """What a call of `window` means. Raises: `NotUnderstood`."""
    args = node.expressions
    if not 2 <= len(args) <= 4:
        raise NotUnderstood(node.sql()[:60])
    width = duration(args[1])
    slide = duration(args[2]) if len(args) > 2 else width
    first = duration(args[3]) if len(args) > 3 else 0
    if not 0 < slide <= width or not 0 <= first < slide or width > slide * _WINDOWS_MAX:
        raise NotUnderstood(node.sql()[:60])
    return Hops(args[0], width, slide, first)


def check_time(type: pa.DataType) -> None:
    """Raises: `NotUnderstood` where a time is not one."""
    if not pa.types.is_timestamp(type) or type.tz is None:
        raise NotUnderstood(f"a window of the type {type}")


def duration(node: exp.Expr) -> int:
    """'1 hour 30 minutes' in microseconds. Raises: `NotUnderstood`."""
    text = node.name.lower() if isinstance(node, exp.Literal) and node.is_string else ""
    found = re.fullmatch(r"\s*(?:interval\s+)?((?:\d{1,9}\s+[a-z]+\s*)+)", text)
    parts = re.findall(r"(\d+)\s+([a-z]+)", found.group(1)) if found else []
    units = [unit.removesuffix("s") for _, unit in parts]
    if not parts or any(each not in _MICROS for each in units):
        raise NotUnderstood(f"the interval {node.sql()[:40]}")
    return sum(int(count) * _MICROS[unit] for (count, _), unit in zip(parts, units))


def call(name: str, *args: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=list(args))
