"""What the demo's second scene shows, ten times a second, and what it says at the end. Fits 80 columns."""

from __future__ import annotations

from time import monotonic
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.demo_money import ACCOUNTS, SHARDS, TOTAL, Money
from tidegate.cli.demo_view import bar, panel
from tidegate.cli.output import print_line

_BAR: Final = 8
_SHOWN: Final = 12
"""Accounts with a bar of their own."""


def frame(money: Money, seconds: float) -> RenderableType:
    """One picture of the state."""
    now = monotonic()
    for mover in money.movers:
        mover.update_rate(now)
    gone = min(now - money.started, seconds)
    return Group(
        Text.assemble(("tidegate demo: money", "bold cyan"), f"  {gone:4.1f} of {seconds:g} s"),
        Text(),
        panel(f"movers: every transfer is one transaction over {SHARDS} channels", _movers(money)),
        panel(f"reader: {ACCOUNTS} accounts added up at every cut through all channels", _cuts(money)),
        panel("subscription: acknowledged and written to the ledger in one transaction", _books(money)),
    )


def _movers(money: Money) -> RenderableType:
    table = _table("mover", "transfers", "/s", " ", "rolled back", "last")
    fastest = max(max(each.rate for each in money.movers), 1.0)
    for each in money.movers:
        table.add_row(
            Text(each.name, "bold"),
            f"{each.committed:,}",
            f"{each.rate:,.0f}",
            Text(bar(each.rate / fastest, _BAR), "green"),
            f"{each.rolled_back:,}",
            f"{each.latency_s * 1e3:,.1f} ms" if each.latency_s else "",
        )
    rate = sum(each.rate for each in money.movers)
    table.add_row("all", f"{money.committed:,}", f"{rate:,.0f}", "", f"{money.rolled_back:,}", "")
    return Group(table, Text("zoe began a transaction, wrote 1 MB and sleeps; nobody waits for her", "dim"))


def _cuts(money: Money) -> RenderableType:
    cuts = money.cuts
    right = not cuts.torn
    table = _table("", "sum", "looks", "wrong sums", "")
    table.add_row(
        Text("at a cut", "bold"),
        Text(f"{cuts.sum:,}", "green" if right else "bold red"),
        f"{cuts.cuts:,}",
        Text(f"{cuts.torn:,}", "green" if right else "bold red"),
        f"{TOTAL:,} every time" if right else "TORN",
    )
    table.add_row(
        "as it comes in", f"{cuts.careless_sum:,}", f"{cuts.careless_looks:,}", f"{cuts.careless_wrong:,}", ""
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    cells = [
        Text.assemble((f"{account:>2} ", "dim"), (bar(max(balance, 0) / 300, 6), "cyan"), f"{balance:>5}")
        for account, balance in enumerate(cuts.balances[:_SHOWN])
    ]
    for start in range(0, _SHOWN, 4):
        grid.add_row(*cells[start : start + 4])
    return Group(table, grid)


def _books(money: Money) -> RenderableType:
    books = money.bookkeeper
    table = _table("consumed", "to come", "twice", "transactions", "rolled back")
    table.add_row(
        f"{len(books.entered):,}",
        f"{max(money.messages - len(books.entered), 0):,}",
        Text(f"{books.twice:,}", "bold red" if books.twice else "green"),
        f"{books.committed:,}",
        f"{books.rolled_back:,}",
    )
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for number, title in enumerate(titles):
        left = (number == 0 and title != "consumed") or not title.strip()
        table.add_column(title.strip(), justify="left" if left else "right", no_wrap=True)
    return table


def line(money: Money) -> str:
    """The state in one line of text, for a pipe."""
    now = monotonic()
    for mover in money.movers:
        mover.update_rate(now)
    cuts, books = money.cuts, money.bookkeeper
    rate = sum(each.rate for each in money.movers)
    return (
        f"{now - money.started:4.1f} s  transfers {money.committed:,} ({rate:,.0f}/s)  {cuts.cuts:,} cuts, sum"
        f" {cuts.sum:,}, {cuts.torn:,} torn  consumed {len(books.entered):,}, {books.twice:,} twice"
    )


def summary(money: Money, ran: float) -> bool:
    """Say how it went; whether it went as it must."""
    cuts, books = money.cuts, money.bookkeeper
    print_line()
    print_line(
        f"{money.committed:,} transfers over {SHARDS} channels in {ran:.1f} s, {money.committed / ran:,.0f}/s;"
        f" {money.rolled_back:,} more were rolled back"
    )
    print_line(
        f"{cuts.cuts:,} cuts, the sum was {TOTAL:,} at {'every one' if not cuts.torn else 'NOT every one'};"
        f" of {cuts.careless_looks:,} looks without a cut {cuts.careless_wrong:,} would have been wrong",
        style="red" if cuts.torn or cuts.sum != TOTAL else None,
    )
    print_line(
        f"{len(books.entered):,} of {money.messages:,} messages consumed, {books.twice:,} twice, {cuts.ledger:,} in the"
        f" ledger; {books.rolled_back:,} of {books.committed + books.rolled_back:,} transactions were rolled back and"
        f" their messages delivered again",
        style="red" if books.twice or not len(books.entered) == money.messages == cuts.ledger else None,
    )
    print_line("one transaction stayed open all the time, and nobody waited for it")
    for error in money.errors:
        print_line(error, style="red")
    if money.is_right:
        print_line("No cut showed a part of a transaction, and everything was consumed once.", style="bold green")
    else:
        print_line("A cut was torn, or NOT everything was consumed once.", style="bold red")
    return money.is_right
