"""What the demo shows, ten times a second. Fits 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidegate.cli.demo_reader import Count
from tidegate.cli.demo_work import Work, Writer
from tidegate.clock.timestamp import Timestamp
from tidegate.log.channel import ChannelStatus

_BAR: Final = 8
_BAR_MS: Final = 800
"""Lag that fills a bar."""
_PARTS: Final = " ▏▎▍▌▋▊▉█"
_RATE_BAR: Final = 8


def frame(work: Work, seconds: float) -> RenderableType:
    """One picture of the state."""
    now = monotonic()
    for writer in work.writers:
        writer.update_rate(now)
    newest = work.log.oracle.last()
    gone = min(now - work.started, seconds)
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    head.add_row(
        Text.assemble(("tidegate demo", "bold cyan"), f"  {gone:4.1f} of {seconds:g} s"),
        Text.assemble("oracle  ", (str(newest), "bold")),
    )
    return Group(
        head,
        Text(),
        panel("writers: how fast each gets its rows acknowledged, each one synced", _writers(work, now)),
        panel("channels: how far each TimeTick is behind the oracle", _channels(work, newest)),
        panel("readers: everything in TimeTick order", _readers(work)),
    )


def panel(title: str, body: RenderableType) -> Panel:
    """A part of the picture."""
    return Panel(body, title=title, title_align="left", box=box.ROUNDED, border_style="dim", padding=(0, 1))


def _table(*titles: str) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for title in titles:
        left = title in ("writer", "to", "channel", "does", "reader", "in order") or title.startswith(" ")
        table.add_column(title.strip(), justify="left" if left else "right", no_wrap=True)
    return table


def _writers(work: Work, now: float) -> Table:
    table = _table("writer", "to", "does", "rows", "rows/s", " ", "last")
    fastest = max(max((each.rate for each in work.writers), default=0.0), 1.0)
    for each in work.writers:
        table.add_row(
            Text(each.name, "bold"),
            each.vchannel,
            _doing(each, now),
            f"{each.rows:,}",
            f"{each.rate:,.0f}",
            Text(bar(each.rate / fastest, _RATE_BAR), "green"),
            f"{each.latency_s * 1e3:,.1f} ms" if each.latency_s else "",
        )
    total = sum(each.rate for each in work.writers)
    table.add_row("", "", Text("all", "bold"), Text(f"{work.rows:,}", "bold"), Text(f"{total:,.0f}", "bold"), "", "")
    return table


def _doing(each: Writer, now: float) -> Text:
    if each.error is not None:
        return Text(each.error, "red", overflow="ellipsis")
    since = each.holding_since
    if since is None:
        return Text(each.does)
    return Text(f"HOLDS, {(now - since) * 1e3:3.0f} ms", "bold yellow")


def _channels(work: Work, newest: Timestamp) -> Table:
    table = _table("channel", "allocated", "confirmed", " ", "synced", "  ", "position", "LastConf.")
    for name, channel in work.channels.items():
        status = channel.status()
        found = status.channel
        waits = _waits(found)
        lags = [lag_ms(newest, each) for each in (found.allocated, found.confirmed, found.synced)]
        table.add_row(
            Text(name, "bold yellow" if waits else "bold"),
            f"{lags[0]} ms",
            f"{lags[1]} ms",
            Text(bar(lags[1] / _BAR_MS, _BAR), "yellow" if waits else "green"),
            f"{lags[2]} ms",
            Text(bar(lags[2] / _BAR_MS, _BAR), "yellow" if waits else "cyan"),
            f"{status.position:,}",
            f"{found.last_confirmed:,}",
        )
    return table


def _waits(status: ChannelStatus) -> bool:
    """Whether something in flight holds the watermark back for long."""
    oldest = status.oldest_in_flight
    return oldest is not None and status.allocated.ms_since(oldest) > 100


def _readers(work: Work) -> Table:
    table = _table("reader", *work.channels, "all", "to come", "in order")
    for name, counts in (
        ("this process, from memory", work.here),
        (f"process {work.process_id}, from files", work.there),
    ):
        rows = sum(each.rows for each in counts.values())
        table.add_row(
            Text(name, "bold"),
            *[f"{each.rows:,}" for each in counts.values()],
            f"{rows:,}",
            f"{max(work.rows - rows, 0):,}",
            Text("yes", "green") if is_right(counts) else Text("NO", "bold red"),
        )
    return table


def is_right(counts: Mapping[str, Count]) -> bool:
    return all(each.in_order and each.error is None for each in counts.values())


def lag_ms(newest: Timestamp, timestamp: Timestamp) -> int:
    return max(newest.ms_since(timestamp), 0)


def bar(part: float, width: int) -> str:
    """A bar of `width` columns, filled in eighths."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    text = "█" * full + (_PARTS[rest] if rest else "")
    return text.ljust(width)


def line(work: Work) -> str:
    """The state in one line of text, for a pipe."""
    now = monotonic()
    for writer in work.writers:
        writer.update_rate(now)
    newest = work.log.oracle.last()
    lags = []
    for name, channel in work.channels.items():
        status = channel.status().channel
        note = ", waits" if _waits(status) else ""
        confirmed, synced = lag_ms(newest, status.confirmed), lag_ms(newest, status.synced)
        lags.append(f"{name} confirmed -{confirmed} ms synced -{synced} ms{note}")
    here, there = (sum(each.rows for each in counts.values()) for counts in (work.here, work.there))
    rate = sum(each.rate for each in work.writers)
    return (
        f"{now - work.started:4.1f} s  rows {work.rows:,} ({rate:,.0f}/s)  {'  '.join(lags)}"
        f"  readers {here:,} and {there:,}"
    )
