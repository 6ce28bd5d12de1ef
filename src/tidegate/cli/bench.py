"""`tidegate bench`: measure this machine, each figure against a plain alternative."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

import click
from rich.console import Console

from tidegate.bench.report import Report
from tidegate.cli.output import json_option

MISSED: Final = 4
MEASURED: Final = ("log", "transactions", "pipeline", "reads", "views", "capture")
"""By modules of `bench`."""


@click.command()
@click.argument("what", type=click.Choice(["oracle", *MEASURED, "all"]), default="all")
@json_option
@click.option("--check", is_flag=True, help="Exit with 4 when a goal is missed.")
@click.option("--quick", is_flag=True, help="Sizes too small to mean anything, to see that it all works.")
@click.option("--only", metavar="TEXT", help="Only what has TEXT in its name, such as log.read.")
@click.pass_context
def bench(ctx: click.Context, what: str, as_json: bool, check: bool, quick: bool, only: str | None) -> None:
    """Measure the oracle, the log, transactions, the pipeline, reads, views, capture, or all of them.

    Every figure is measured against something in the same run, in turn, and its goal bounds the ratio of the two, so
    that a slow or busy machine does not decide. Files lie in a temporary directory; set TMPDIR to
    measure another disk. The log needs about 3 GB there and a few minutes.

    \b
    Examples:
      tidegate bench
      tidegate bench log --only read
      tidegate bench all --check --json > figures.jsonl
    """
    report = Report(as_json=as_json)
    with _progress() as progress:
        if what in ("oracle", "all") and (only is None or only in "oracle.single oracle.batch_1000"):
            from tidegate.bench import oracle

            progress("oracle")
            oracle.run(report)
        for name in MEASURED:
            if what in (name, "all"):
                import_module(f"tidegate.bench.{name}").run(report, quick, progress, only)
    if not report.figures:
        raise click.BadParameter(f"nothing has {only!r} in its name.", param_hint="--only")
    report.print()
    if check and not report.met:
        missed = ", ".join(figure.name for figure in report.figures if not figure.met)
        click.echo(f"tidegate: missed: {missed}", err=True)
        ctx.exit(MISSED)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is being measured, on stderr when that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda name: status.update(f"measuring {name}")
