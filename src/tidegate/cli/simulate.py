"""`tidegate simulate`: run the real log code under a simulated scheduler, clock and disk."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tidegate.sim.bugs import BUGS
from tidegate.sim.stage import Outcome
from tidegate.sim.world import World
from tidegate.sim.world import simulate as run_one


@click.command(
    epilog="""\b
Examples:
  tidegate simulate                    500 runs, seeds 0 to 499
  tidegate simulate --seeds 5000       more of them
  tidegate simulate --seed 42 --trace  one run, with all that happened in it
  tidegate simulate --bug acknowledge-before-sync
                                       plant a known bug and see it found

Exit codes: 0 every promise held, 1 one was broken, 2 wrong usage.
"""
)
@click.option("--seeds", type=click.IntRange(1), help="How many runs.  [default: 500]")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=click.IntRange(0), help="One run, twice, to see that it repeats itself.")
@click.option("--steps", type=click.IntRange(10, 100_000), default=700, show_default=True, help="Steps a run.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: one per core]")
@click.option("--bug", type=click.Choice(sorted(BUGS)), help="Plant a known bug first.")
@click.option("--trace", is_flag=True, help="With --seed: print all that happened.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a run, then a summary.")
def simulate(
    *,
    seeds: int | None,
    first: int,
    seed: int | None,
    steps: int,
    jobs: int | None,
    bug: str | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Run the real oracle, channels, recovery and readers under a seeded scheduler, a clock that jumps, and a disk
    that tears, loses unsynced writes, fills up and fails; and check every promise against an independent auditor."""
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed runs one seed, --seeds many; give one of them")
    if trace and seed is None:
        raise click.UsageError("--trace goes with --seed: it prints one run")
    if seed is not None:
        sys.exit(_one(seed, steps, bug, trace=trace, as_json=as_json))
    sys.exit(_many(first, seeds or 500, steps, bug, jobs or os.cpu_count() or 1, as_json=as_json))


def _run(seed: int, *, steps: int, bug: str | None) -> Outcome:
    if bug is None:
        return run_one(seed, steps=steps)
    with BUGS[bug]():
        return run_one(seed, steps=steps)


def _one(seed: int, steps: int, bug: str | None, *, trace: bool, as_json: bool) -> int:
    world = World(seed, steps=steps, keep_trace=True)
    if bug is None:
        outcome = world.run()
    else:
        with BUGS[bug]():
            outcome = world.run()
    again = _run(seed, steps=steps, bug=bug)
    repeats = outcome.digest == again.digest
    if as_json:
        click.echo(json.dumps({**_facts(outcome), "repeats": repeats, "trace": outcome.trace if trace else None}))
    else:
        shown = outcome.trace if trace else outcome.trace[-40:] if outcome.violation else ()
        for line in shown:
            click.echo(f"  {line}")
        click.echo(f"seed {seed}: digest {outcome.digest}, {'the same twice' if repeats else 'NOT the same twice'}")
        click.echo(
            f"{outcome.acknowledged:,} appends acknowledged, {outcome.deliveries:,} deliveries checked,"
            f" {outcome.crashes:,} crashes"
        )
        click.echo(f"BROKEN  {outcome.violation}" if outcome.violation else "every promise held")
    return int(outcome.violation is not None or not repeats)


def _many(first: int, count: int, steps: int, bug: str | None, jobs: int, *, as_json: bool) -> int:
    started = time.monotonic()
    broken: list[Outcome] = []
    marks: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=as_json or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("simulating", total=count)
        for outcome in _outcomes(range(first, first + count), steps, bug, jobs):
            progress.advance(task)
            totals.update(
                acknowledged=outcome.acknowledged, deliveries=outcome.deliveries, crashes=outcome.crashes, runs=1
            )
            marks.update(outcome.marks)
            if as_json:
                click.echo(json.dumps(_facts(outcome)))
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
        planted = f" --bug {bug}" if bug else ""
        length = f" --steps {steps}" if steps != _DEFAULT_STEPS else ""
        click.echo(f"  replay: tidegate simulate --seed {outcome.seed}{length}{planted} --trace")
    return int(bool(broken))


def _outcomes(seeds: Iterable[int], steps: int, bug: str | None, jobs: int) -> Iterator[Outcome]:
    work = partial(_run, steps=steps, bug=bug)
    if jobs == 1:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, seeds, chunksize=8)


def _facts(outcome: Outcome) -> dict[str, object]:
    return {
        "seed": outcome.seed,
        "digest": outcome.digest,
        "acknowledged": outcome.acknowledged,
        "deliveries": outcome.deliveries,
        "crashes": outcome.crashes,
        "violation": outcome.violation,
        "replay": f"tidegate simulate --seed {outcome.seed} --trace" if outcome.violation else None,
    }


_DEFAULT_STEPS = 700
_LABELS = {
    "runs": "runs",
    "acknowledged": "appends acknowledged",
    "deliveries": "deliveries checked",
    "crashes": "crashes and losses of power",
}
