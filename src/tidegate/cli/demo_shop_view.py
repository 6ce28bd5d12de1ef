"""What the demo's shop shows, five times a second, and what it says at the end. Fits 80 columns and 24 lines."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tidegate.cli.demo_shop import Shop
from tidegate.cli.demo_shop_actor import DEAD, LIVES, STARTS, Lane
from tidegate.cli.demo_shop_books import torn
from tidegate.cli.demo_shop_reader import Reader
from tidegate.cli.demo_view import panel
from tidegate.cli.output import console, duration, print_json, print_line, printable, shorten

_SPARKS: Final = " ▁▂▃▄▅▆▇█"
_SPARK_COLUMNS: Final = 24
_LANE_ENDS: Final = 26
"""Columns of a lane that are not its picture."""
_LINE: Final = 76
_STORY_MAX: Final = 3
_MARKS: Final = {LIVES: ("━", "green"), STARTS: ("╌", "yellow"), DEAD: ("✗", "bold red")}
_COLUMNS: Final = (("", 16), ("answers", 8), ("orders", 7), ("items", 7), ("paid", 11), ("torn", 5), ("its age", 8))
GOOD: Final = "Every order always had all of its items and its payment, and in the end all is what SQLite has."
BAD: Final = "An order was torn, or the end is NOT what SQLite has, or it was not reached."


def frame(shop: Shop) -> RenderableType:
    """One picture of the state."""
    return Group(
        Text.assemble(("tidegate demo shop", "bold cyan"), "  SQLite, captured live  ", (_when(shop), "bold")),
        panel("the application: orders, items and payments, in one transaction each", _application(shop)),
        panel("who lives: ━ at work  ╌ starting  ✗ killed", _lives(shop)),
        panel("the answers: every order with all of its items and its payment", _answers(shop)),
    )


def _when(shop: Shop) -> str:
    now = monotonic()
    if shop.started is None:
        return f"opening, {now - shop.began:.1f} s"
    gone = f"{min(now - shop.started, max(shop.seconds, shop.ran_s)):4.1f} of {shop.seconds:g} s"
    if shop.phase == "finishing":
        return f"{gone}, the end is checked"
    if shop.phase == "running" and now - shop.started > shop.seconds:
        return f"{now - shop.started:4.1f} of {shop.seconds:g} s, not all are back"
    return gone


# -- the parts -------------------------------------------------------------------------------------------------------


def _application(shop: Shop) -> RenderableType:
    done, table = shop.books.done, _grid()
    rate = shop.rate if shop.phase == "running" else 0.0
    table.add_row(
        Text.assemble((f"{rate:5,.0f}", "bold green"), " commits/s  ", (sparkline(shop), "green")),
        Text.assemble((f"{shop.books.committed:,}", "bold"), " committed"),
    )
    kinds = ", ".join(f"{done[each]:,} {each}" for each in ("placed", "changed", "cancelled"))
    table.add_row(Text(f"orders: {kinds}"), Text(f"{done['declined']:,} rolled back"))
    return table


def sparkline(shop: Shop, columns: int = _SPARK_COLUMNS) -> str:
    """Commits in each of the last half seconds, the newest to the right, the most being full height."""
    counts = [count for _, count in shop.samples][-columns - 1 :]
    steps = [after - before for before, after in pairwise(counts)]
    most = max(steps, default=0) or 1
    return "".join(_SPARKS[-(-max(step, 0) * (len(_SPARKS) - 1) // most)] for step in steps).rjust(columns)


def _lives(shop: Shop) -> RenderableType:
    rows: list[RenderableType] = []
    now = shop.ran_s or shop.gone_s
    for lane in shop.lanes.values():
        if lane.name == "pipeline" and shop.without_spark is not None:
            rows.append(Text(shorten(f"no pipeline: {printable(shop.without_spark)}", _LINE), "yellow", no_wrap=True))
            continue
        rows.append(LaneLine(lane, max(shop.seconds, now), now if shop.started else -1.0, _doing(shop, lane.name)))
    story = [_story_line(at, text) for at, text in shop.story[-_STORY_MAX:]]
    if not story and shop.kills:
        names = ", ".join(f"{each.who} at {each.at_s:.0f} s" for each in shop.kills)
        story = [Text(f"to be killed: {names}", "dim")]
    return Group(*rows, *story)


class LaneLine:
    """A lane, drawn as wide as there is room."""

    def __init__(self, lane: Lane, span_s: float, now_s: float, doing: str) -> None:
        self._lane, self._span_s, self._now_s, self._doing = lane, span_s, now_s, doing

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        columns = max(options.max_width - _LANE_ENDS, 1)
        text = Text(no_wrap=True)
        text.append(f"{self._lane.name:<12}", "bold")
        cells = self._lane.cells(columns, self._span_s, self._now_s)
        for each in cells:
            text.append(*(_MARKS[each] if each is not None else (" ", "")))
        text.append("·" * (columns - len(cells)), "dim")
        yield text.append(f" {self._doing}", "" if self._lane.state == LIVES else "yellow")


def _doing(shop: Shop, name: str) -> str:
    """What it is at, in 13 columns."""
    if name == "answers":
        return f"{shop.answers:,}"
    if name == "pipeline":
        if shop.lanes[name].state == LIVES:
            return f"checkpt {shop.checkpoints:,}"
        return {"Python starts": "Python starts", "Java starts, and Spark in it": "Spark starts"}.get(
            shop.stage, "first epochs"
        )
    actor = shop.actors.get(name)
    if actor is None or actor.pid is None:
        return "has ended" if shop.phase in ("finishing", "done") else ""
    return f"pid {actor.pid}"


def _story_line(at: float, text: str) -> Text:
    style = "bold red" if text.startswith("SIGKILL") else "green"
    return Text.assemble((f"{at:4.1f} s ", "dim"), (shorten(text, _LINE - 7), style), no_wrap=True)


def _answers(shop: Shop) -> RenderableType:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title, width in _COLUMNS:  # Of a fixed width, so that the eye finds them where they were.
        table.add_column(title, justify="right" if title else "left", no_wrap=True, min_width=width)
    for each in shop.readers:
        table.add_row(*_reader(each))
    visible = f"{shop.visible_s[-1]:.1f} s" if shop.visible_s else "..."
    lines = [Text.assemble("from SQLite's commit to the view ", (visible, "bold green"), no_wrap=True)]
    return Group(table, *lines, *[_receipt(each) for each in shop.receipts])


def _reader(reader: Reader) -> list[RenderableType]:
    last = reader.last
    if last is None:
        return [Text(reader.name, "bold"), "0", "", "", "", "", ""]
    good = torn(last) is None
    return [
        Text(reader.name, "bold"),
        f"{reader.answers:,}",
        f"{last.orders:,}",
        f"{last.items:,}",
        Text(money(last.paid), "green" if good else "bold red"),
        Text(f"{reader.torn:,}", "bold red" if reader.torn else "green"),
        duration(reader.age_ms),
    ]


def _receipt(row: dict[str, Any]) -> Text:
    """An order as the view has it."""
    good = row["total"] == row["paid"]
    return Text.assemble(
        (f"order {row['id']:>6,} ", "bold"),
        f"{row['customer']:<4} {row['items']} item{'s' if row['items'] != 1 else ' '}  {money(row['total']):>8}",
        (f"  paid {money(row['paid']):>8}  ", "green" if good else "bold red"),
        ("✓" if good else "✗", "green" if good else "bold red"),
        no_wrap=True,
    )


def money(cents: int) -> str:
    return f"{cents / 100:,.2f}"


def _grid() -> Table:
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    return table


# -- as text ---------------------------------------------------------------------------------------------------------


def line(shop: Shop) -> str:
    """The state in one line of text, for a pipe."""
    if shop.started is None:
        return _when(shop)
    lives = ", ".join(
        f"{each.name} {each.state}"
        for each in shop.lanes.values()
        if each.name != "pipeline" or shop.without_spark is None
    )
    last = shop.readers[-1].last
    seen = "no answer yet" if last is None else f"{last.orders:,} orders in the view"
    told = (
        f"  {shop.story[-1][1]}"
        if shop.story and any(each.killed_at and not each.is_over for each in shop.kills)
        else ""
    )
    return (
        f"{shop.gone_s:4.1f} s  {shop.books.committed:,} commits ({shop.rate:,.0f}/s)  {lives}"
        f"  {shop.answers:,} answers, {shop.torn:,} torn, {seen}{told}"
    )


def summary(shop: Shop, *, to_json: bool) -> bool:
    """Say how it went; whether it went as it must."""
    if to_json:
        print_json(as_json(shop))
        return shop.is_right
    print_line()
    table = Table.grid(padding=(0, 2, 0, 0))
    for title, text in told(shop):
        table.add_row(Text(title, "bold"), Text(text))
    console().print(table)
    for error in shop.errors:
        print_line(printable(error), style="bold red")
    print_line(GOOD if shop.is_right else BAD, style="bold green" if shop.is_right else "bold red")
    return shop.is_right


def told(shop: Shop) -> list[tuple[str, str]]:
    """What happened, line by line."""
    done = shop.books.done
    kinds = ", ".join(f"{done[each]:,} {each}" for each in ("placed", "changed", "cancelled"))
    reads = ", ".join(f"{each.answers:,} {each.name.replace(', ', ' of the ')}" for each in shop.readers)
    lines = [
        ("orders", f"{kinds} in {shop.ran_s:.1f} s; {done['declined']:,} rolled back by the application"),
        ("answers", f"{reads}; {shop.torn:,} torn"),
    ]
    if shop.without_spark is not None:
        lines.append(("checkpoints", f"none: {printable(shop.without_spark)}"))
    else:
        visible = f"; {median(shop.visible_s):.1f} s from SQLite's commit to the view" if shop.visible_s else ""
        lines.append(("checkpoints", f"{shop.checkpoints:,}{visible}"))
    killed = [f"the {each.who}, back after {each.back_s:.1f} s" for each in shop.kills if each.back_s is not None]
    if killed:
        lines.append(("killed", "; ".join(killed)))
    if shop.equal:
        where = "now and in the last checkpoint" if "eventual" in shop.equal else "now"
        lines.append(("compared", f"{shop.rows:,} rows of three tables and the view, {where}: equal to SQLite's"))
    return lines


def as_json(shop: Shop) -> dict[str, Any]:
    """The summary for programs."""
    return {
        "good": shop.is_right,
        "errors": shop.errors,
        "interrupted": shop.interrupted.is_set(),
        "seconds": round(shop.ran_s, 3),
        "transactions": shop.books.committed,
        **shop.books.done,
        "answers": {each.name: each.answers for each in shop.readers},
        "torn": shop.torn,
        "age_ms": {each.name: each.age_ms for each in shop.readers},
        "longest_wait_s": {each.name: round(each.waited_max_s, 3) for each in shop.readers},
        "checkpoints": shop.checkpoints,
        "without_spark": shop.without_spark,
        "commit_to_view_s": round(median(shop.visible_s), 3) if shop.visible_s else None,
        "kills": [
            {
                "who": each.who,
                "process": each.pid,
                "back_after_s": None if each.back_s is None else round(each.back_s, 3),
            }
            for each in shop.kills
            if each.killed_at is not None
        ],
        "equal_to_sqlite": {level: str(at) for level, at in shop.equal.items()},
        "rows_compared": shop.rows,
    }
