"""What a benchmark reports: figures, each against something measured in the same run, with a goal.

A machine that is busy or slow changes both sides of a ratio, so goals are set on ratios.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from tidegate.errors import InvalidArgument


def _readable(value: float) -> str:
    """Four digits that count, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, and its ratio to what it is measured against."""

    name: str
    value: float
    unit: str
    against: str
    ratio: float
    goal: str
    met: bool


class Report:
    """Collects figures; prints them as a table at the end, or as JSON, one object a line, as they come."""

    def __init__(self, *, as_json: bool = False, out: TextIO | None = None) -> None:
        self.figures: list[Figure] = []
        self._as_json = as_json
        self._out = out or sys.stdout

    @property
    def met(self) -> bool:
        """Whether every goal was met."""
        return all(figure.met for figure in self.figures)

    def add(self, name: str, value: float, unit: str, *, against: str, ratio: float, goal: str) -> Figure:
        """Record a figure. `goal` bounds the ratio: "<= 3.0" or ">= 0.5"."""
        figure = Figure(name, value, unit, against, ratio, goal, _meets(ratio, goal))
        self.figures.append(figure)
        if self._as_json:
            print(json.dumps(asdict(figure)), file=self._out, flush=True)
        return figure

    def print(self) -> None:
        """Print the table; nothing in JSON mode, where every figure is out already."""
        if self._as_json:
            return
        table = Table()
        table.add_column("figure", overflow="fold", min_width=18)
        for name in ("value", "against"):
            table.add_column(name)
        for name in ("ratio", "goal", "met"):
            table.add_column(name, no_wrap=True)
        for figure in self.figures:
            table.add_row(
                figure.name,
                f"{_readable(figure.value)} {figure.unit}",
                figure.against,
                f"{figure.ratio:.2f}",
                figure.goal,
                "[green]yes" if figure.met else "[red]no",
            )
        Console(file=self._out).print(table)


def alternate(a: Callable[[], Any], b: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The median seconds of a call of `a` and of `b`, called in turn so that both meet the same machine.

    One round of each goes unmeasured first.
    """
    measured: tuple[list[float], list[float]] = ([], [])
    for round_number in range(rounds + 1):
        for call, seconds in zip((a, b), measured, strict=True):
            began = time.perf_counter()
            call()
            if round_number:
                seconds.append(time.perf_counter() - began)
    return statistics.median(measured[0]), statistics.median(measured[1])


def times(call: Callable[[], Any], count: int) -> Callable[[], None]:
    """A callable that makes `count` calls: for what is too short to be timed alone."""

    def calls() -> None:
        for _ in repeat(None, count):
            call()

    return calls


def _meets(ratio: float, goal: str) -> bool:
    relation, _, bound = goal.partition(" ")
    match relation:
        case "<=":
            return ratio <= float(bound)
        case ">=":
            return ratio >= float(bound)
        case _:
            raise InvalidArgument(f"a goal reads '<= 3.0' or '>= 0.5', not {goal!r}")
