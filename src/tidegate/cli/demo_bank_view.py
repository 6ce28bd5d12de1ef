"""What the demo's bank shows, five times a second, and what it says at the end. Fits 80 columns and 24 lines."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from time import monotonic
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.demo_bank import Bank
from tidegate.cli.demo_bank_ledger import ACCOUNTS, TOTAL
from tidegate.cli.demo_bank_reader import Reader
from tidegate.cli.demo_bank_writer import TELLERS
from tidegate.cli.demo_view import panel
from tidegate.cli.output import console, duration, print_json, print_line, printable, shorten
from tidegate.clock.timestamp import Timestamp

_SPARKS: Final = " ▁▂▃▄▅▆▇█"
_SPARK_COLUMNS: Final = 30
_TICKS: Final = 40
_LINE: Final = 76
_OLD_MS: Final = 5_000
_STORY_MAX: Final = 3
_COLUMNS: Final = (("", 13), ("answers", 8), ("sum", 10), ("at this cut", 20), ("its age", 9), ("took", 8))


def frame(bank: Bank) -> RenderableType:
    """One picture of the state."""
    return Group(
        Text.assemble(("tidegate demo", "bold cyan"), f"  a bank of {ACCOUNTS:,} accounts  ", (_when(bank), "bold")),
        panel("transfers: two accounts and a record, in one transaction each", _transfers(bank)),
        panel("pipeline: how long what is oldest has been in each stage", _pipeline(bank)),
        panel("reads: SELECT sum(balance), count(*) FROM accounts", _reads(bank)),
    )


def _when(bank: Bank) -> str:
    now = monotonic()
    if bank.started is None:
        return f"opening, {now - bank.began:.1f} s"
    gone = f"{min(now - bank.started, max(bank.seconds, bank.ran_s)):4.1f} of {bank.seconds:g} s"
    if bank.phase == "finishing":
        what = "the last checkpoint is waited for" if "strong" in bank.audited else "the end is checked"
        return f"{gone}; {what}, {now - bank.started - bank.ran_s:.1f} s"
    return gone


# -- the parts -------------------------------------------------------------------------------------------------------


def _transfers(bank: Bank) -> RenderableType:
    table = _grid()
    table.add_row(
        Text.assemble((f"{bank.rate:5,.0f}", "bold green"), " commits/s  ", (sparkline(bank), "green")),
        Text.assemble((f"{bank.committed:,}", "bold"), " committed"),
    )
    table.add_row(Text(_writer(bank)), Text(f"{bank.ledger.conflicts:,} conflicts retried"))
    story = [_story_line(at, text) for at, text in bank.story[-_STORY_MAX:]]
    if not story and bank.will_kill:
        story = [Text(f"at {bank.seconds / 3:.0f} s the writer's process is killed", "dim")]
    return Group(table, *story)


def _story_line(at: float, text: str) -> Text:
    style = "bold red" if text.startswith("SIGKILL") else "yellow" if text.startswith("another") else "green"
    return Text.assemble((f"{at:4.1f} s ", "dim"), (shorten(text, _LINE - 7), style))


def _writer(bank: Bank) -> str:
    if not bank.lives:
        return "the writer is started in a moment"
    if bank.phase != "running":
        return f"the writer, process {bank.lives[-1]}, has ended"
    doing = f"{TELLERS} threads" if bank.is_writing else "it starts"
    return f"writer: process {bank.lives[-1]}, {doing}"


def sparkline(bank: Bank, columns: int = _SPARK_COLUMNS) -> str:
    """Commits in each of the last half seconds, the newest to the right, the most being full height."""
    counts = [count for _, count in bank.samples][-columns - 1 :]
    steps = [after - before for before, after in pairwise(counts)]
    most = max(steps, default=0) or 1
    return "".join(_SPARKS[-(-max(step, 0) * (len(_SPARKS) - 1) // most)] for step in steps).rjust(columns)


def _pipeline(bank: Bank) -> RenderableType:
    found = bank.status
    age = found.get("lag_ms")
    table = _grid()
    if bank.without_spark is not None:
        table.add_row(Text("no checkpoints; strong and bounded reads do without", "yellow"), "")
        return Group(table, Text(shorten(printable(bank.without_spark), _LINE), "yellow", no_wrap=True), _stages(bank))
    if not bank.checkpoints:
        waited = monotonic() - (bank.started or bank.began)
        table.add_row(
            Text.assemble(("Spark starts, ", "yellow"), (f"{waited:.1f} s", "bold yellow"), " (10 to 30 are normal)"),
            "strong reads do without it",
        )
    else:
        visible = f"{bank.visible_s[-1]:.1f} s" if bank.visible_s else "..."
        table.add_row(
            Text.assemble(
                "checkpoint ",
                (f"{bank.checkpoints:,}", "bold green"),
                ", ",
                ("" if age is None else duration(age), "yellow" if (age or 0) > _OLD_MS else "bold green"),
                " old",
            ),
            Text.assemble("from commit to checkpoint ", (visible, "bold green")),
        )
    return Group(table, Text(shorten(doing(bank), _LINE), no_wrap=True), _stages(bank))


def doing(bank: Bank) -> str:
    """What the pipeline is at, in a line."""
    found = bank.status
    worker = found.get("worker")
    if not found or worker is None:
        why = f": {printable(found['failure'])}" if found.get("failure") else ""
        return f"no worker runs; one is started in a moment{why}"
    if not bank.checkpoints:
        return f"Spark: process {worker}, {bank.stage}"
    waits = found.get("uncommitted_epochs", 0)
    more = f"; {waits:,} epochs wait" if waits > 1 else ""
    return f"Spark: process {worker}, last batch {duration(found.get('last_batch_s', 0) * 1e3)}{more}"


def _stages(bank: Bank) -> Text:
    lag = bank.status.get("lag") or {}
    stages = (
        ("append", "append_to_tick_ms"),
        ("tick", "tick_to_barrier_ms"),
        ("barrier", "barrier_to_report_ms"),
        ("folded", "report_to_checkpoint_ms"),
    )
    text = Text(no_wrap=True)
    for name, key in stages:
        ms = lag.get(key)
        style = "dim" if ms is None else "yellow" if ms > _OLD_MS else "cyan"
        text.append(f"{name} ")
        text.append(f"─{'?' if ms is None else duration(ms)}─▶ ", style)
    return text.append("checkpoint")


def _reads(bank: Bank) -> RenderableType:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title, width in _COLUMNS:  # Of a fixed width, so that the eye finds them where they were.
        table.add_column(title, justify="right" if title else "left", no_wrap=True, min_width=width)
    for each in bank.readers:
        table.add_row(*_reader(each))
    table.add_row(*_writers_reads(bank))
    ticks = list(bank.ticks)[-_TICKS:]
    row = Text(no_wrap=True)
    row.append("sums ", "bold")
    for good in ticks:
        row.append("✓" if good else "✗", "green" if good else "bold red")
    row.append(f" {len(bank.cuts):,} cuts", "bold")
    good = all(bank.ticks)
    if ticks:
        row.append(f", all {TOTAL:,}" if good else ", NOT all right", "green" if good else "bold red")
    return Group(table, row)


def _reader(reader: Reader) -> list[RenderableType]:
    last = reader.last
    if last is None:
        return [Text(reader.name, "bold"), "0", "", "", "", ""]
    return [
        Text(reader.name, "bold"),
        f"{reader.answers:,}",
        Text(f"{last.total:,}", "green" if last.total == TOTAL else "bold red"),
        _clock(last.at),
        duration(reader.age_ms),
        duration(reader.took_s * 1e3),
    ]


def _writers_reads(bank: Bank) -> list[RenderableType]:
    """The tellers look at all accounts before they write."""
    last = bank.ledger.last_read
    name = Text("by the writer", "bold")
    if last is None:
        return [name, "0", "", "", "", ""]
    style = "green" if last.total == TOTAL else "bold red"
    return [name, f"{bank.ledger.reads:,}", Text(f"{last.total:,}", style), _clock(last.at), "", ""]


def _clock(at: int) -> str:
    """The part of a Timestamp that changes while one looks at it."""
    return str(Timestamp(at)).partition("T")[2]


def _grid() -> Table:
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    return table


# -- as text ---------------------------------------------------------------------------------------------------------


def line(bank: Bank) -> str:
    """The state in one line of text, for a pipe."""
    if bank.started is None:
        return _when(bank)
    found, lag = bank.status, bank.status.get("lag") or {}
    if bank.without_spark is not None:
        pipeline = "no checkpoints"
    elif not bank.checkpoints:
        pipeline = "Spark starts"
    else:
        pipeline = f"checkpoint {bank.checkpoints:,}, {duration(found.get('lag_ms') or 0)} old"
    stages = "/".join(
        "?" if lag.get(key) is None else duration(lag[key])
        for key in ("append_to_tick_ms", "tick_to_barrier_ms", "barrier_to_checkpoint_ms")
    )
    reads = ", ".join(f"{each.level} {each.answers:,}" for each in bank.readers)
    sums = f"all {TOTAL:,}" if all(bank.ticks) else "NOT all right"
    told = f"  {bank.story[-1][1]}" if bank.story and bank.back_s is None else ""
    return (
        f"{monotonic() - bank.started:4.1f} s  {bank.committed:,} commits ({bank.rate:,.0f}/s)  {pipeline}"
        f", lag {stages}  reads: {reads}  {len(bank.cuts):,} sums, {sums}{told}"
    )


def summary(bank: Bank, *, to_json: bool) -> bool:
    """Say how it went; whether it went as it must."""
    if to_json:
        print_json(as_json(bank))
        return bank.is_right
    print_line()
    table = Table.grid(padding=(0, 2, 0, 0))
    for title, text in told(bank):
        table.add_row(Text(title, "bold"), Text(text))
    console().print(table)
    for error in bank.errors:
        print_line(printable(error), style="bold red")
    if bank.is_right:
        print_line(f"The sum was {TOTAL:,} at every cut, and no transfer was lost or made twice.", style="bold green")
    else:
        print_line("The bank does NOT add up, or did not come to its end.", style="bold red")
    return bank.is_right


def told(bank: Bank) -> list[tuple[str, str]]:
    """What happened, line by line."""
    ledger, ran = bank.ledger, f"{bank.ran_s:.1f} s, {bank.committed / (bank.ran_s or 1.0):,.0f}/s"
    reads = ", ".join(f"{each.answers:,} {each.name}" for each in bank.readers)
    lines = [
        ("transfers", f"{bank.committed:,} committed in {ran}; {ledger.conflicts:,} conflicts retried"),
        ("reads", f"{reads}; {ledger.reads:,} by the writer"),
        ("cuts", f"{len(bank.cuts):,}, the sum {f'{TOTAL:,} at each' if all(bank.ticks) else 'NOT the same at each'}"),
        ("checkpoints", _checkpoints(bank)),
    ]
    if bank.killed_at is not None and bank.back_s is not None:
        under_way = f"{len(bank.lost)} transfers were under way: {bank.fate}"
        lines.append(("kill", f"{under_way}; the next writer committed {bank.back_s:.1f} s later"))
    if bank.audited and not bank.errors:
        where = "now and in the last checkpoint" if "eventual" in bank.audited else "now"
        lines.append(("audit", f"every acknowledged transfer is there once, {where}; every balance follows from them"))
    return lines


def _checkpoints(bank: Bank) -> str:
    if bank.without_spark is not None:
        return f"none: {printable(bank.without_spark)}"
    if bank.first_checkpoint_s is None:
        return "none yet, Spark was still starting"
    visible = f"; {median(bank.visible_s):.1f} s from commit to checkpoint" if bank.visible_s else ""
    return (
        f"{bank.checkpoints:,}, the first after {bank.first_checkpoint_s:.1f} s, most of it the start of Spark{visible}"
    )


def as_json(bank: Bank) -> dict[str, Any]:
    """The summary for programs."""
    return {
        "good": bank.is_right,
        "errors": bank.errors,
        "interrupted": bank.interrupted.is_set(),
        "seconds": round(bank.ran_s, 3),
        "transfers": bank.committed,
        "commits_per_s": round(bank.committed / bank.ran_s, 1) if bank.ran_s else 0.0,
        "conflicts": bank.ledger.conflicts,
        "reads": {**{str(each.level): each.answers for each in bank.readers}, "writer": bank.ledger.reads},
        "cuts": len(bank.cuts),
        "sum": TOTAL if all(bank.ticks) else None,
        "checkpoints": bank.checkpoints,
        "without_spark": bank.without_spark,
        "first_checkpoint_s": _rounded(bank.first_checkpoint_s),
        "commit_to_checkpoint_s": _rounded(median(bank.visible_s)) if bank.visible_s else None,
        "kill": None
        if bank.killed_at is None
        else {
            "process": bank.lives[0],
            "under_way": len(bank.lost),
            "there_whole": bank.survived,
            "committed_again_after_s": _rounded(bank.back_s),
        },
        "acknowledged_once": {level: str(at) for level, at in bank.audited.items()} if not bank.errors else {},
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
