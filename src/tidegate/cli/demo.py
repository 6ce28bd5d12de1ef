"""`tidegate demo`: a log at work, live in the terminal."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import click
from rich.live import Live

from tidegate.cli.demo_reader import Count
from tidegate.cli.demo_view import frame, is_right, line
from tidegate.cli.demo_work import Work
from tidegate.cli.output import console, print_line
from tidegate.errors import InvalidArgument
from tidegate.runtime.log import Log

_FRAME_S = 0.1


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0.1, max=3600), default=8.0, show_default=True, help="How long.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Keep the log here; else it is temporary.")
@click.option("--plain", is_flag=True, help="A line a second instead of a live picture; so it is in a pipe, too.")
@click.pass_context
def demo(ctx: click.Context, seconds: float, directory: Path | None, plain: bool) -> None:
    """Write to two channels from seven threads and read them back in two processes, live.

    One writer now and then takes a TimeTick and holds it: no tick may pass it, so both TimeTicks of its channel wait,
    and nobody else's appends do. At the end both readers must have got everything that was acknowledged, in order;
    otherwise the exit code is 1.

    \b
    Examples:
      tidegate demo
      tidegate demo --seconds 30 --dir demo.tide
      tidegate log print demo.tide orders --limit 10
    """
    with ExitStack() as stack:
        # Cleaning up takes a moment; a second Ctrl-C must not leave half of it behind.
        stack.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        path = directory or _temporary(stack)
        if path.is_dir() and any(path.iterdir()) and not (path / "log").is_dir():
            raise InvalidArgument(f"{path} is not empty and holds no log; name a new directory")
        log = stack.enter_context(Log(path))
        work = Work(log, random.Random())
        stack.callback(work.close)
        stack.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)
        work.start()
        ran = (_show_lines if plain or not sys.stdout.isatty() else _show_live)(work, seconds)
        if not _summary(work, ran):
            ctx.exit(1)
        if directory is not None:
            print_line(f"The log is in {path}; look at it with `tidegate log show {path}`.")


def _temporary(stack: ExitStack) -> Path:
    path = tempfile.mkdtemp(prefix="tidegate-demo-")
    stack.callback(shutil.rmtree, path, ignore_errors=True)
    return Path(path) / "demo.tide"


def _show_live(work: Work, seconds: float) -> float:
    """Show a picture ten times a second, and one of the end; how long the writers ran."""
    end = work.started + seconds
    with Live(frame(work, seconds), console=console(), auto_refresh=False) as live:
        while monotonic() < end:
            sleep(_FRAME_S)
            live.update(frame(work, seconds), refresh=True)
        ran = work.finish()
        live.update(frame(work, seconds), refresh=True)
    return ran


def _show_lines(work: Work, seconds: float) -> float:
    """Print a line a second; how long the writers ran."""
    end = work.started + seconds
    while (left := end - monotonic()) > 0:
        sleep(min(left, 1.0))
        click.echo(line(work))
        sys.stdout.flush()
    return work.finish()


def _summary(work: Work, ran: float) -> bool:
    """Say how it went; whether both readers got all that was acknowledged, in order."""
    rows = work.rows
    print_line()
    print_line(f"{rows:,} rows acknowledged in {ran:.1f} s, {rows / ran:,.0f} rows/s, each synced before that")
    holder = work.writers[-1]
    if holder.holds:
        print_line(
            f"{holder.holds} times {holder.name} held the watermark of orders back, for up to"
            f" {holder.held_max_s * 1e3:.0f} ms; no append waited for that"
        )
    ok = True
    for name, counts in (("this process", work.here), (f"process {work.process_id}", work.there)):
        received = sum(each.rows for each in counts.values())
        good = received == rows and is_right(counts)
        ok = ok and good
        print_line(f"{received:,} rows received in {name}, {_order(counts)}", style=None if good else "red")
    for writer in work.writers:
        if writer.error is not None:
            ok = False
            print_line(f"{writer.name} stopped: {writer.error}", style="red")
    verdict = "Everything acknowledged was received by both readers, in order."
    if ok:
        print_line(verdict, style="bold green")
    else:
        print_line("NOT everything acknowledged was received by both readers in order.", style="bold red")
    return ok


def _order(counts: dict[str, Count]) -> str:
    errors = [each.error for each in counts.values() if each.error is not None]
    if errors:
        return errors[0]
    return "in TimeTick order" if is_right(counts) else "NOT in TimeTick order"
