"""`tidegate simulate`: run the real code under a simulated scheduler, clock, disk and network."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tidegate.sim.bugs import BUGS
from tidegate.sim.capture_bugs import CAPTURE_BUGS
from tidegate.sim.capture_world import CaptureWorld
from tidegate.sim.pipe_bugs import PIPE_BUGS
from tidegate.sim.pipe_world import PipeWorld
from tidegate.sim.read_bugs import READ_BUGS
from tidegate.sim.read_world import ReadWorld
from tidegate.sim.stage import Outcome
from tidegate.sim.sub_bugs import SUB_BUGS
from tidegate.sim.sub_world import SubWorld
from tidegate.sim.txn_bugs import TXN_BUGS
from tidegate.sim.txn_world import TxnWorld
from tidegate.sim.world import World

_WORLDS: dict[str, type[World | TxnWorld | PipeWorld | ReadWorld | CaptureWorld]] = {
    "log": World,
    "transactions": TxnWorld,
    "subscriptions": SubWorld,
    "pipeline": PipeWorld,
    "reads": ReadWorld,
    "captures": CaptureWorld,
}
_TURNS = ("log", "transactions", "log", "subscriptions", "pipeline", "reads", "captures")
_HOMES = {
    "log": BUGS,
    "transactions": TXN_BUGS,
    "subscriptions": SUB_BUGS,
    "pipeline": PIPE_BUGS,
    "reads": READ_BUGS,
    "captures": CAPTURE_BUGS,
}
_BUGS = {**BUGS, **TXN_BUGS, **SUB_BUGS, **PIPE_BUGS, **READ_BUGS, **CAPTURE_BUGS}


@click.command(
    epilog="""\b
Examples:
  tidegate simulate                    500 runs, seeds 0 to 499
  tidegate simulate --seeds 5000       more of them
  tidegate simulate --seed 42 --trace  one run, with all that happened in it
  tidegate simulate --world transactions
                                       only transactions over several channels
  tidegate simulate --world subscriptions
                                       only consume, process and produce
  tidegate simulate --world pipeline   only barriers, workers and checkpoints
  tidegate simulate --world reads      only sessions that read, and what they wait for
  tidegate simulate --world captures   only captures that die, hang and take over from each other
  tidegate simulate --bug acknowledge-before-sync
                                       plant a known bug and see it found

Exit codes: 0 every promise held, 1 one was broken, 2 wrong usage.
"""
)
@click.option("--seeds", type=click.IntRange(1), help="How many runs.  [default: 500]")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=click.IntRange(0), help="One run, twice, to see that it repeats itself.")
@click.option(
    "--world",
    type=click.Choice(list(_WORLDS)),
    help="Only one of them; by default seeds play log, transactions, log, subscriptions, pipeline, reads and captures"
    " in turn.",
)
@click.option("--steps", type=click.IntRange(10, 100_000), help="Steps a run.  [default: by world]")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: one per core]")
@click.option(
    "--bug",
    type=click.Choice(sorted(_BUGS)),
    metavar="NAME",
    help=f"Plant one of {len(_BUGS)} known bugs first; a name that is none lists them.",
)
@click.option("--trace", is_flag=True, help="With --seed: print all that happened.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a run, then a summary.")
def simulate(
    *,
    seeds: int | None,
    first: int,
    seed: int | None,
    world: str | None,
    steps: int | None,
    jobs: int | None,
    bug: str | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Run the real oracle, channels, transactions, recovery, readers, barriers, checkpoints, reads and captures under a
    seeded scheduler, a clock that jumps, a disk that tears, loses unsynced writes, fills up and fails, and a network
    that loses and repeats; and check every promise against an independent auditor."""
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed runs one seed, --seeds many; give one of them")
    if trace and seed is None:
        raise click.UsageError("--trace goes with --seed: it prints one run")
    if bug is not None:
        home = next(name for name, bugs in _HOMES.items() if bug in bugs)
        if world not in (None, home):
            raise click.UsageError(f"{bug} is planted in the world `{home}`; leave --world out")
        world = home
    plot = Plot(world, steps, bug)
    if seed is not None:
        sys.exit(_one(seed, plot, trace=trace, as_json=as_json))
    sys.exit(_many(first, seeds or 500, plot, jobs or os.cpu_count() or 1, as_json=as_json))


@dataclass(frozen=True, slots=True)
class Plot:
    """What is played: in which world, for how long, with which planted bug."""

    world: str | None
    steps: int | None
    bug: str | None

    def run(self, seed: int, *, keep_trace: bool = False) -> Outcome:
        kind = _WORLDS[self.world or _TURNS[seed % len(_TURNS)]]
        options = {"keep_trace": keep_trace} if self.steps is None else {"keep_trace": keep_trace, "steps": self.steps}
        if self.bug is None:
            return kind(seed, **options).run()
        with _BUGS[self.bug]():
            return kind(seed, **options).run()

    def replay(self, seed: int) -> str:
        """The command that runs the same once more."""
        world = f" --world {self.world}" if self.world and not self.bug else ""
        length = f" --steps {self.steps}" if self.steps is not None else ""
        planted = f" --bug {self.bug}" if self.bug else ""
        return f"tidegate simulate --seed {seed}{world}{length}{planted} --trace"


def _one(seed: int, plot: Plot, *, trace: bool, as_json: bool) -> int:
    outcome = plot.run(seed, keep_trace=True)
    again = plot.run(seed)
    repeats = outcome.digest == again.digest
    if as_json:
        click.echo(json.dumps({**_facts(outcome, plot), "repeats": repeats, "trace": outcome.trace if trace else None}))
    else:
        shown = outcome.trace if trace else outcome.trace[-40:] if outcome.violation else ()
        for line in shown:
            click.echo(f"  {line}")
        click.echo(f"seed {seed}: digest {outcome.digest}, {'the same twice' if repeats else 'NOT the same twice'}")
        click.echo(
            f"{outcome.acknowledged:,} acknowledged, {outcome.deliveries:,} deliveries checked,"
            f" {outcome.crashes:,} crashes"
        )
        click.echo(f"BROKEN  {outcome.violation}" if outcome.violation else "every promise held")
    return int(outcome.violation is not None or not repeats)


def _many(first: int, count: int, plot: Plot, jobs: int, *, as_json: bool) -> int:
    started = time.monotonic()
    broken: list[Outcome] = []
    marks: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=as_json or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("simulating", total=count)
        for outcome in _outcomes(range(first, first + count), plot, jobs):
            progress.advance(task)
            totals.update(
                acknowledged=outcome.acknowledged, deliveries=outcome.deliveries, crashes=outcome.crashes, runs=1
            )
            marks.update(outcome.marks)
            if as_json:
                click.echo(json.dumps(_facts(outcome, plot)))
            if outcome.violation is not None:
                broken.append(outcome)
                if not as_json:
                    progress.console.print(f"[red]seed {outcome.seed}[/red]  {outcome.violation}", highlight=False)
    seconds = time.monotonic() - started
    summary = {**totals, "broken": len(broken), "seconds": round(seconds, 1), "kinds_of_event": len(marks)}
    if as_json:
        click.echo(json.dumps({"summary": summary}))
        return int(bool(broken))
    table = Table(show_header=False, box=None, pad_edge=False)
    for name in ("runs", "acknowledged", "deliveries", "crashes"):
        table.add_row(_LABELS[name], f"{totals[name]:,}")
    table.add_row("time", f"{seconds:.1f} s, {seconds / count * 1000:.0f} ms a run")
    Console().print(table)
    click.echo(f"{len(broken)} of {count} runs broke a promise" if broken else "every promise held")
    for outcome in broken[:5]:
        click.echo(f"  replay: {plot.replay(outcome.seed)}")
    return int(bool(broken))


def _outcomes(seeds: Iterable[int], plot: Plot, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(plot.run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(plot.run, seeds, chunksize=8)


def _facts(outcome: Outcome, plot: Plot) -> dict[str, object]:
    return {
        "seed": outcome.seed,
        "digest": outcome.digest,
        "acknowledged": outcome.acknowledged,
        "deliveries": outcome.deliveries,
        "crashes": outcome.crashes,
        "violation": outcome.violation,
        "replay": plot.replay(outcome.seed) if outcome.violation else None,
    }


_LABELS = {
    "runs": "runs",
    "acknowledged": "appends and commits acknowledged",
    "deliveries": "deliveries checked",
    "crashes": "crashes and losses of power",
}
