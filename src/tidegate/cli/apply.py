"""`tidegate apply`: the transactions of tables into another database, once or from now on, with what is under way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from tidegate.cli.log_print import moment
from tidegate.cli.main import Failure
from tidegate.cli.output import console, duration, json_option, print_json, printable
from tidegate.cli.reach import note_opened, reach
from tidegate.clock.timestamp import Timestamp

if TYPE_CHECKING:
    from tidegate.capture.applying import Applying

_DRAW_S: Final = 0.25
_SAY_S: Final = 1.0


def _start(ctx: click.Context, param: click.Parameter, value: str) -> str | Timestamp | None:
    return value if value in ("snapshot", "now") else moment(ctx, param, value)


class ConflictFailure(Failure):
    """A conflict that ended it."""

    exit_code = 5


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@click.option("--from", "path", required=True, type=click.Path(path_type=Path), help="The database's directory.")
@click.option("--to", "url", required=True, metavar="URL", help="sqlite:///FILE, turso:///FILE or postgresql://...")
@click.option("--name", help="Tells several of them apart at one target; by default the database's id.")
@click.option(
    "--policy",
    type=click.Choice(["stop", "overwrite", "skip"]),
    default="stop",
    show_default=True,
    help="When the target's row is not what it was here: end, take ours, or leave theirs.",
)
@click.option(
    "--chunk-rows",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="About how many rows are one transaction at the target; none is ever cut.",
)
@click.option(
    "--start",
    default="snapshot",
    show_default=True,
    callback=_start,
    help="Where a new target begins: snapshot, the rows and what follows; now; or a Timestamp.",
)
@click.option(
    "--restart", is_flag=True, help="Replace the tables' rows at the target by those here, and go on from there."
)
@click.option("--once", is_flag=True, help="Apply what is committed now and end; else go on until Ctrl-C.")
@json_option
def apply(
    tables: tuple[str, ...],
    path: Path,
    url: str,
    name: str | None,
    policy: Literal["stop", "overwrite", "skip"],
    chunk_rows: int,
    start: Any,
    restart: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Apply committed transactions of TABLE... to another database: in order, each whole, each once.

    How far it is, the target keeps itself, in tidegate_applied: end this command as you like, and call it again. A
    target that cannot be reached or is locked is tried again; with --once it ends it. Tables that are not there are
    created.

    \b
    Examples:
      tidegate apply orders items --from shop.tide --to sqlite:///copy.db --once
      tidegate apply orders --from shop.tide --to postgresql://me@host/shop
      tidegate apply orders --from shop.tide --to turso:///edge.db --policy skip --json
      tidegate apply orders --from shop.tide --to sqlite:///copy.db --restart

    Exit codes: 0 fine, 1 it could not go on, 2 usage, 5 a conflict with what the target holds, 130 interrupted.
    """
    from tidegate.capture.applying import make
    from tidegate.capture.target import ApplyConflict

    with reach(path, "apply") as db:
        if not as_json:
            note_opened(db)
        work = make(
            db,
            tables,
            url,
            name=name,
            policy=policy,
            chunk_rows=chunk_rows,
            start=start,
            restart=restart,
        )
        try:
            work.start(once=once)
            _show(work, as_json=as_json)
            work.stop()
        except ApplyConflict as error:
            if as_json:
                print_json({**work.status(), "conflict": _conflict(error.conflict)})
            raise ConflictFailure(str(error)) from error
        finally:
            work.stop()
            if as_json:
                print_json(work.status())
            elif work.position:
                _sum_up(work)


def _show(work: Applying, *, as_json: bool) -> None:
    """Show what goes on, for as long as it does."""
    from rich.live import Live
    from rich.text import Text

    rates = _Rates()
    screen = console()
    if not as_json and screen.is_terminal:
        with Live(Text(""), console=screen, auto_refresh=False, transient=True) as live:
            while work.is_running:
                live.update(Text(printable(rates.line(work)), overflow="ellipsis", no_wrap=True), refresh=True)
                time.sleep(_DRAW_S)
        return
    said_s = time.monotonic()
    trouble = ""
    while work.is_running:
        time.sleep(0.02)
        if as_json and time.monotonic() - said_s >= _SAY_S:
            said_s = time.monotonic()
            print_json(work.status())
        if not as_json and (now := str(work.trouble or "")) != trouble:
            trouble = now
            click.echo(f"tidegate: {printable(now)}; trying again" if now else "tidegate: going on", err=True)


class _Rates:
    """How fast it goes, over the last seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int, int]] = []

    def line(self, work: Applying) -> str:
        done = work.done
        now = time.monotonic()
        self._seen = [each for each in self._seen if now - each[0] < 5] + [
            (now, done.transactions, done.rows + done.copied)
        ]
        first, last = self._seen[0], self._seen[-1]
        span = max(last[0] - first[0], 1e-3)
        text = (
            f"to {work.to}: {done.transactions:,} transactions ({(last[1] - first[1]) / span:,.0f}/s),"
            f" {done.rows + done.copied:,} rows ({(last[2] - first[2]) / span:,.0f}/s)"
        )
        if done.conflicts:
            text += f", {done.conflicts:,} conflicts skipped"
        if work.trouble is not None:
            return f"{text}; {work.trouble}"
        return f"{text}, {duration(work.status()['lag_ms'])} behind" if done.position else f"{text}, beginning"


def _sum_up(work: Applying) -> None:
    done = work.done
    for each in list(done.last_conflicts)[-10:]:
        click.echo(printable(f"skipped: {each}"))
    line = f"{work.to} is at {done.position}: {done.transactions:,} transactions with {done.rows:,} rows"
    if done.copied:
        line += f", {done.copied:,} rows copied at the start"
    if done.left_out:
        line += f", {done.left_out:,} transactions of its own left out"
    if done.conflicts:
        line += f", {done.conflicts:,} conflicts skipped"
    click.echo(printable(line))
    if done.warning:
        click.echo(f"tidegate: warning: {printable(done.warning)}", err=True)


def _conflict(conflict: Any) -> dict[str, Any]:
    names = ("table", "key", "what", "there", "expected", "coming", "timestamp")
    return {each: getattr(conflict, each) for each in names} | {"timestamp": str(conflict.timestamp)}
