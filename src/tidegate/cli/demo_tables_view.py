"""What the demo's third scene shows, five times a second, and what it says at the end. Fits 80 columns."""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.demo_tables import ACCOUNTS, TOTAL, Sums, Tables
from tidegate.cli.demo_view import bar, panel
from tidegate.cli.output import duration, print_json, print_line, printable, shorten
from tidegate.clock.timestamp import Timestamp

_BAR: Final = 8
_WHY: Final = 74
"""Columns for what the pipeline waits for."""
_NAMES: Final = {"checkpoint": "at the last checkpoint", "strong": "strong, log included", "past": "at an earlier time"}


def frame(tables: Tables) -> RenderableType:
    """One picture of the state."""
    now = _update(tables)
    return Group(
        Text.assemble(("tidegate demo: tables", "bold cyan"), f"  {_when(tables, now)}"),
        Text(),
        panel("movers: each transfer is one transaction over two tables", _movers(tables)),
        panel("pipeline: Spark folds what was committed into checkpoints", _pipeline(tables)),
        panel(f"readers: {ACCOUNTS} balances added up, and transfers counted, again and again", _sums(tables)),
    )


def _update(tables: Tables) -> float:
    now = monotonic()
    if tables.started is not None and tables.phase == "running":
        for mover in tables.movers:
            mover.update_rate(now)
    return now


def _when(tables: Tables, now: float) -> str:
    if tables.started is None:
        return f"Spark starts, {now - tables.began:.1f} s; 10 to 30 are normal"
    gone = f"{min(now - tables.started, tables.seconds):4.1f} of {tables.seconds:g} s"
    if tables.phase == "finishing":
        return f"{gone}; the last checkpoint is waited for, {now - tables.started - tables.ran_s:.1f} s"
    return gone


def _movers(tables: Tables) -> RenderableType:
    table = _table("mover", "transfers", "/s", " ", "rolled back", "last")
    fastest = max(max(each.rate for each in tables.movers), 1.0)
    for each in tables.movers:
        table.add_row(
            Text(each.name, "bold"),
            f"{each.committed:,}",
            f"{each.rate:,.0f}",
            Text(bar(each.rate / fastest, _BAR), "green"),
            f"{each.rolled_back:,}",
            f"{each.latency_s * 1e3:,.1f} ms" if each.latency_s else "",
        )
    table.add_row("all", f"{tables.committed:,}", f"{_rate(tables):,.0f}", "", f"{tables.rolled_back:,}", "")
    return table


def _rate(tables: Tables) -> float:
    return sum(each.rate for each in tables.movers)


def _pipeline(tables: Tables) -> RenderableType:
    found = tables.pipeline.status()
    table = _table("service time", "age", "epoch", "checkpoint", "last batch", "files")
    age = found["lag_ms"]
    table.add_row(
        found["service_time_text"] or "none yet",
        "" if age is None else Text(duration(age), "yellow" if age > 3_000 else "green"),
        f"{found['epoch']:,}",
        f"{found['checkpoint']:,}",
        duration(found["last_batch_s"] * 1e3) if found["last_batch_s"] else "",
        f"{tables.files:,}",
    )
    story = [
        Text.assemble((f"{at:5.1f} s  ", "dim"), (text, "red" if text.startswith("SIGKILL") else "green"))
        for at, text in tables.story
    ]
    if tables.will_kill and not story:
        story = [Text("in the middle its worker is killed", "dim")]
    return Group(table, Text(shorten(doing(tables, found), _WHY), no_wrap=True), *story)


def doing(tables: Tables, found: dict[str, Any]) -> str:
    """What the pipeline is at, in a line. `found` is what it says of itself."""
    worker, failure = found["worker"], found["failure"]
    if worker is None:
        why = f": {printable(failure)}" if failure and tables.killed is None else ""
        return f"no worker runs; one is started in a moment{why}"
    if tables.started is None:
        return f"worker, process {worker}: {tables.stage}"
    if failure is not None:
        return f"worker, process {worker}: {tables.stage}; {found.get('uncommitted_epochs', 0):,} epochs wait"
    return f"worker, process {worker}; a barrier every {duration(found.get('interval_ms', 0))}"


def _sums(tables: Tables) -> RenderableType:
    table = _table("", "sum", "transfers", "as of", "took", "asked", "torn")
    newest = tables.db.last_seen
    for each in tables.sums:
        style = "bold red" if each.torn else "green"
        table.add_row(
            Text(_NAMES[each.name], "bold"),
            "" if each.total is None else Text(f"{each.total:,}", style),
            f"{each.transfers:,}" if each.asked else "",
            _ago(each, newest),
            duration(each.took_s * 1e3) if each.asked else "",
            f"{each.asked:,}",
            Text(f"{each.torn:,}", style),
        )
    return table


def _ago(sums: Sums, newest: Timestamp) -> str:
    if sums.at is None:
        return ""
    ms = newest.ms_since(sums.at)
    return f"{duration(ms)} ago" if ms > 0 else "now"


def _table(*titles: str) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for number, title in enumerate(titles):
        table.add_column(title.strip(), justify="left" if not (number and title.strip()) else "right", no_wrap=True)
    return table


def line(tables: Tables) -> str:
    """The state in one line of text, for a pipe."""
    now = _update(tables)
    found = tables.pipeline.status()
    if tables.started is None:
        return f"{now - tables.began:4.1f} s  {doing(tables, found)}"
    sums = ", ".join(f"{each.name} {'?' if each.total is None else f'{each.total:,}'}" for each in tables.sums)
    age = "" if found["lag_ms"] is None else f", {duration(found['lag_ms'])} old"
    return (
        f"{now - tables.started:4.1f} s  transfers {tables.committed:,} ({_rate(tables):,.0f}/s)"
        f"  epoch {found['epoch']:,}{age}, batch {duration(found['last_batch_s'] * 1e3)}, {tables.files:,} files"
        f"  sums: {sums}, {tables.torn:,} torn  {doing(tables, found) if found['failure'] else ''}"
    ).rstrip()


def as_json(tables: Tables) -> dict[str, Any]:
    """The state for programs."""
    now = _update(tables)
    found = tables.pipeline.status()
    names = ("service_time", "service_time_text", "epoch", "checkpoint", "last_batch_s", "worker", "failure")
    return {
        "phase": tables.phase,
        "seconds": round(now - (tables.started or tables.began), 3),
        "transactions": tables.committed,
        "commits_per_s": round(_rate(tables), 1),
        **{name: found[name] for name in names},
        "age_ms": found["lag_ms"],
        "files": tables.files,
        "doing": doing(tables, found),
        "sums": {
            each.name: {
                "sum": each.total,
                "transfers": each.transfers,
                "at": None if each.at is None else int(each.at),
                "asked": each.asked,
                "torn": each.torn,
            }
            for each in tables.sums
        },
    }


def summary(tables: Tables, *, to_json: bool) -> bool:
    """Say how it went; whether it went as it must."""
    if to_json:
        print_json(_summary_json(tables))
        return tables.is_right
    print_line()
    ran = tables.ran_s
    if ran:
        print_line(
            f"{tables.committed:,} transactions over two tables in {ran:.1f} s, {tables.committed / ran:,.0f}/s;"
            f" {tables.rolled_back:,} more were rolled back"
        )
        print_line(f"{tables.checkpoints:,} checkpoints, {tables.files:,} files in the last one")
        print_line(
            f"{tables.asked:,} sums checked, torn: {tables.torn:,}; {tables.checkpoint.asked:,} at the last checkpoint,"
            f" {tables.strong.asked:,} strong, {tables.past.asked:,} before",
            style="red" if tables.torn else None,
        )
    if tables.killed is not None and tables.back_s is not None:
        print_line(f"the worker was killed, and the next checkpoint there after {tables.back_s:.1f} s")
    if tables.phase == "done":
        found = tables.checkpoint.transfers
        print_line(
            f"{found:,} of {tables.committed:,} transfers are in the last checkpoint",
            style=None if found == tables.committed else "red",
        )
    for error in tables.errors:
        print_line(printable(error), style="red")
    if tables.is_right:
        print_line(f"The sum was {TOTAL:,} at every time, and nothing was lost.", style="bold green")
    else:
        print_line("A sum was torn, or NOT everything came through.", style="bold red")
    return tables.is_right


def _summary_json(tables: Tables) -> dict[str, Any]:
    return {
        "phase": "end",
        "transactions": tables.committed,
        "rolled_back": tables.rolled_back,
        "seconds": round(tables.ran_s, 3),
        "checkpoints": tables.checkpoints,
        "sums_checked": tables.asked,
        "torn": tables.torn,
        "in_the_last_checkpoint": tables.checkpoint.transfers,
        "killed_worker": tables.killed,
        "back_after_s": None if tables.back_s is None else round(tables.back_s, 3),
        "errors": tables.errors,
        "good": tables.is_right,
    }
