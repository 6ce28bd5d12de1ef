"""`tidegate log verify`: read every block of a log and say what is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from tidegate.cli.channel_view import End, end_of, view
from tidegate.cli.output import json_option, print_json, print_line, print_table, size
from tidegate.errors import Corruption
from tidegate.runtime.log import LogFiles
from tidegate.runtime.verify import Checked, Problem
from tidegate.runtime.verify import verify as verify_channel

DAMAGED: Final = 3


@click.command(short_help="Read everything and list what is damaged.")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("channel", required=False)
@json_option
@click.pass_context
def verify(ctx: click.Context, path: Path, channel: str | None, as_json: bool) -> None:
    """Read every block of the log at PATH, or of one CHANNEL, and list what is damaged.

    Changes nothing. Exits with 3 when there is damage. While a process writes, it checks what that process has
    published so far.

    \b
    Examples:
      tidegate log verify shop.tide
      tidegate log verify shop.tide orders --json
    """
    files = LogFiles(path)
    if channel is not None:
        files.channel(channel)
    names = [channel] if channel is not None else files.channels()
    results: list[Checked] = []
    with _progress(files, names) as advance:
        results.extend(check(files, name, advance) for name in names)
    if as_json:
        for each in results:
            print_json({**asdict(each), "damaged": bool(each.problems)})
    else:
        _print(results, path)
    if any(each.problems for each in results):
        ctx.exit(DAMAGED)


def check(files: LogFiles, name: str, progress: Callable[[int], None] = lambda _: None) -> Checked:
    """Verify one channel, as far as it is settled."""
    try:
        end = end_of(files, name)
    except Corruption:
        end = End(None, 0, files.is_written())
    result = verify_channel(files.channel(name), name, progress, published=end.limit, live=end.is_live)
    result.problems = list(dict.fromkeys(result.problems))
    return result


def _print(results: list[Checked], path: Path) -> None:
    rows = [
        [
            each.channel,
            f"{each.segments:,}",
            f"{each.blocks:,}",
            f"{each.messages:,}",
            size(each.bytes),
            "damaged" if each.problems else "intact",
        ]
        for each in results
    ]
    titles = ["channel", "segments", "blocks", "messages", "bytes", "result"]
    print_table(titles, rows, right="segments blocks messages bytes")
    for each in results:
        if each.torn_bytes:
            print_line(
                f"{each.channel}: {each.torn_bytes:,} bytes behind the last whole block are an unfinished write that"
                f" nobody was told had succeeded; the next writer drops them"
            )
        print_problems(each.problems)
        if each.problems:
            print_line(
                f"Restore the damaged files from a copy, or run `tidegate log repair {path} {each.channel}` to see"
                f" what can be saved."
            )


def print_problems(problems: list[Problem]) -> None:
    for problem in problems:
        print_line(f"{problem.segment} at offset {problem.offset:,}: {problem.why}", style="red")


@contextmanager
def _progress(files: LogFiles, names: list[str]) -> Iterator[Callable[[int], None]]:
    """A bar on stderr when that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    total = sum(view(files, name).bytes for name in names)
    shown = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)
