"""`tidegate transactions`: what is open, since when, whose it is, what waits for it; and the way to end one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.cells import cell_len
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from tidegate.cli.output import duration, json_option, print_json, print_line, printable, size
from tidegate.cli.reach import note_opened, path_argument, reach, show, span_ms, watchable
from tidegate.errors import InvalidArgument, InvalidTransactionState, TransactionNotFound
from tidegate.txn.txn_id import TxnId

_TITLES: Final = ("id", "state", "age", "left", "client")
_STYLES: Final = {"open": "", "committing": "cyan", "aborting": "cyan", "committed": "green", "aborted": "red"}

Row = dict[str, Any]


class _ListByDefault(click.Group):
    """`transactions PATH` is `transactions list PATH`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] PATH")
        formatter.write_usage(ctx.command_path, "abort [OPTIONS] PATH ID")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.commands["list"].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group("transactions", cls=_ListByDefault)
def transactions() -> None:
    """List the transactions of the database at PATH that are open or ending; `abort` ends one.

    A database that another process has open is reached through that process. One that nobody has open is opened:
    what was open in its log when its owner stopped is listed. It ends at its timeout, or when its client has been
    gone for as long as a lease (10 s).

    \b
    Under each transaction stands what it takes part in, and what waits for it:
      writes         channels it has written to ahead of its commit
      acknowledges   subscriptions, and how many messages nobody else gets meanwhile
      holds ticks    its commit holds places there, and readers wait behind them
      keeps log      LastConfirmed and retention stay where it begins
      HANGS          open for more than half of its timeout, or ending for more than 1 s

    An open transaction holds up no reader: only one whose commit is under way does.

    \b
    Examples:
      tidegate transactions shop.tide
      tidegate transactions shop.tide --older-than 10s --watch
      tidegate transactions shop.tide --all --json | jq 'select(.state == "aborted") | .reason'
      tidegate transactions abort shop.tide 0-68786cfc5880001 --reason "its client is stuck"

    Exit codes: 0 fine, also with nothing to list; 1 no such database or transaction, or it is committed; 2 usage.
    """


@transactions.command("list", short_help="List them; what `tidegate transactions PATH` does.")
@path_argument
@click.option("--all", "everything", is_flag=True, help="Also those that have ended, with outcome and reason.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="With --all: how many of those that have ended, the newest first.",
)
@click.option(
    "--older-than", "older_ms", callback=span_ms, metavar="AGE", help="Only what is older than 500ms, 10s, 2m, 1h."
)
@watchable
@json_option
def list_them(
    path: Path, everything: bool, limit: int, older_ms: int | None, watch: bool, every_s: float, as_json: bool
) -> None:
    """List transactions of the database at PATH, the oldest first; then, with --all, those that ended last.

    --json prints one object a transaction; with --watch one list a line.

    \b
    Examples:
      tidegate transactions shop.tide
      tidegate transactions shop.tide --all --limit 20
      tidegate transactions shop.tide --older-than 10s --watch
    """
    with reach(path, "transactions") as db:
        note_opened(db)

        def ask() -> list[Row]:
            found = db.transactions(limit if everything else 0)
            return [each for each in found if older_ms is None or each["age_ms"] > older_ms]

        def draw(rows: list[Row]) -> Group:
            return _draw(rows, nothing=_nothing(path, everything, older_ms))

        show(ask, draw, _lines, as_json=as_json, watch=watch, every_s=every_s)


def _lines(rows: list[Row]) -> Iterator[Row]:
    return iter(rows)


def _nothing(path: Path, everything: bool, older_ms: int | None) -> str:
    if older_ms is not None:
        return f"No transaction of {path} is older than {duration(older_ms)}."
    if everything:
        return f"{path} has no transactions, and remembers none that ended."
    return f"No transaction of {path} is open. --all shows those that have ended."


@transactions.command(short_help="End a transaction without effect.")
@path_argument
@click.argument("id")
@click.option("--reason", default="ended by hand", show_default=True, help="What its client is told.")
@json_option
def abort(path: Path, id: str, reason: str, as_json: bool) -> None:
    """End transaction ID of the database at PATH: nothing of it becomes visible, and its client's commit fails.

    It may be repeated. A transaction that is committed, or whose commit is decided, cannot be ended.

    \b
    Examples:
      tidegate transactions abort shop.tide 0-68786cfc5880001
      tidegate transactions abort shop.tide 0-68786cfc5880001 --reason "its client is stuck" --json
    """
    try:
        found = TxnId.parse(id)
    except InvalidArgument as error:
        raise click.BadParameter(f"{error}.", param_hint="ID") from error
    with reach(path, "transactions abort") as db:
        note_opened(db)
        try:
            db.abort(found, reason)
        except TransactionNotFound as error:
            raise TransactionNotFound(f"{error}; `tidegate transactions {path} --all` lists what is known") from error
        except InvalidTransactionState as error:
            raise InvalidTransactionState(
                f"transaction {found} is {error.state.lower() or 'ending'} and cannot be aborted; what it wrote stays",
                state=error.state,
            ) from error
        row = next((each for each in db.transactions(100) if each["id"] == str(found)), None)
    if as_json:
        print_json(row or {"id": str(found), "state": "aborted", "reason": reason})
    elif row is not None and row["reason"] != reason:
        print_line(f"Transaction {found} was aborted before: {printable(row['reason']) or 'its client asked for it'}.")
    else:
        print_line(f"Transaction {found} is aborted; nothing of it is or becomes visible.")


# -- drawing -----------------------------------------------------------------------------------------------------------


def _draw(rows: list[Row], *, nothing: str) -> Group:
    if not rows:
        return Group(Text(nothing))
    cells = [_cells(each) for each in rows]
    widths = [max(cell_len(row[at]) for row in (_TITLES, *cells)) for at in range(len(_TITLES) - 1)]
    found: list[Text | Padding] = [Text(_line(_TITLES, widths), "bold")]
    for row, text in zip(rows, cells):
        line = Text(_line(text, widths), overflow="fold")
        line.stylize(_STYLES.get(row["state"], ""), widths[0] + 2, widths[0] + 2 + widths[1])
        found.append(line)
        found.extend(Padding(each, (0, 0, 0, 3), expand=False) for each in _details(row))
    return Group(*found)


def _cells(row: Row) -> tuple[str, ...]:
    left = row["timeout_in_ms"] if row["state"] == "open" else None  # One that is ending has no time to lose.
    return (
        row["id"],
        row["state"],
        duration(row["age_ms"]),
        "" if left is None else duration(left) if left >= 0 else "over",
        printable(row["client_name"]),
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    id, state, age, left, client = cells
    return f"{id:<{widths[0]}}  {state:<{widths[1]}}  {age:>{widths[2]}}  {left:>{widths[3]}}  {client}"


def _details(row: Row) -> Iterator[Text]:
    if row["hanging"]:
        yield Text(f"HANGS: {row['hanging']}", "bold yellow")
    waits = row.get("waits") or {"places": [], "written_ahead": [], "pending_acks": {}}
    ahead = {each["channel"]: each for each in waits["written_ahead"]}
    writes = [_written(name, ahead.get(name)) for name in sorted({*row["channels"], *ahead})]
    if writes:
        yield Text(f"writes {', '.join(writes)}")
    acks = waits["pending_acks"]
    for name in sorted({*row["subscriptions"], *acks}):
        yield Text(f"acknowledges {printable(name)}{_pending(acks.get(name))}")
    if waits["places"]:
        held = [f"{each['channel']} for {duration(each['for_ms'])}" for each in waits["places"]]
        yield Text(f"holds ticks of {', '.join(held)}", "yellow")
    kept = [f"{name} from {each['position']:,}" for name, each in sorted(ahead.items()) if each["keeps_log"]]
    if kept:
        yield Text(f"keeps log of {', '.join(kept)}")
    if row["commit_timestamp_time"] is not None:
        what = "committed" if row["state"] == "committed" else "to be committed"
        yield Text(f"{what} at {row['commit_timestamp_time']}")
    if row["reason"]:
        yield Text(f"because: {printable(row['reason'])}")


def _written(name: str, ahead: dict[str, Any] | None) -> str:
    if ahead is None or not ahead["messages"]:
        return name
    return f"{name} ({ahead['messages']:,} messages, {size(ahead['bytes'])})"


def _pending(found: dict[str, int] | None) -> str:
    if found is None:
        return ""
    parts = []
    if found["messages"]:
        parts.append(f"{found['messages']:,} pending")
    if found["shards_up_to_one"]:
        parts.append(f"everything up to one message in {found['shards_up_to_one']:,} shards")
    return f" ({', '.join(parts)})" if parts else ""
