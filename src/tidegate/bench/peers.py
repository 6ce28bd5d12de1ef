"""Tidegate beside Pathway, Flink and DuckDB in one run: `make bench-peers`.

Every side reads the same files of signed rows and stores its result, and the results are checked against each other: a
side that is wrong, or that cannot be installed or run, is reported as such and not left out. What differs all the
same is said in docs/benchmarks.md.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from tidegate.bench import peer_inputs, peer_ours
from tidegate.bench.peer_inputs import TOTAL, Input, read_answer
from tidegate.bench.peer_sides import SIDE_S, SideFailed, environment, run_side
from tidegate.bench.report import Report
from tidegate.bench.work import Work
from tidegate.errors import InvariantBroken

GOAL: Final = ">= 3"
MISSED: Final = 4
_TOLD: Final = ">= 0"
"""No goal: a figure to be known."""
PEERS: Final = ("pathway", "flink")
_SPEEDS: Final = (
    ("pathway", "steps", GOAL),
    ("pathway", "rows", GOAL),
    ("pathway", "batch", _TOLD),
    ("flink", "batched", GOAL),
)
"""Each way of feeding a peer. What gives one output for everything is not incremental, and no goal."""


@dataclass(slots=True)
class Sides:
    """The interpreters of the sides, by name, or why there is none."""

    parent: Path
    names: tuple[str, ...] = PEERS
    timeout_s: float = SIDE_S
    _found: dict[str, Path | SideFailed] = field(default_factory=dict)

    def run(self, name: str, workload: str, given: Input, output: Path, *how: str) -> Any:
        """Raises: `SideFailed`."""
        python = self._python(name)
        shutil.rmtree(output, ignore_errors=True)
        return run_side(
            name, python, [workload, str(given.directory), str(output), *how], output, timeout_s=self.timeout_s
        )

    def _python(self, name: str) -> Path:
        if name == "duckdb":
            return Path(sys.executable)
        if name not in self._found:
            try:
                self._found[name] = environment(name, self.parent)
            except SideFailed as error:
                # Not tried again for the next workload: it takes minutes.
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, SideFailed):
            raise found
        return found


def keyed(report: Report, work: Work, sides: Sides) -> None:
    """Sums by key: 5 million changes over 100,000 keys, of which a fifth takes rows away."""
    step = work.pick(peer_inputs.STEP, 2_000)
    given = peer_inputs.keyed(work.directory / "in", work.pick(5_000_000, 20_000), work.pick(100_000, 500), step)
    _workload("keyed", report, work, sides, given, peer_ours.keyed)


def joined(report: Report, work: Work, sides: Sides) -> None:
    """Orders, some updated, joined with customers who move, by region."""
    step = work.pick(peer_inputs.STEP, 2_000)
    given = peer_inputs.joined(work.directory / "in", work.pick(2_000_000, 20_000), work.pick(200_000, 1_000), step)
    _workload("joined", report, work, sides, given, peer_ours.joined)


def bank(report: Report, work: Work, sides: Sides) -> None:
    """Transfers: how many of the totals that a side showed were not the sum of the money there is."""
    given = peer_inputs.bank(work.directory / "in", work.pick(10_000, 300))
    ours = peer_ours.bank(given, work.directory)
    if not ours.totals or not ours.read:
        raise InvariantBroken("bank: Tidegate showed no total, so that none was wrong means nothing")
    wrong = sum(total != TOTAL for total in (*ours.totals, *ours.read))
    report.add(
        "peers.bank.tidegate",
        given.changes / ours.seconds,
        "transfers/s",
        against=f"wrong: {wrong} of {len(ours.totals):,} totals it gave out and {len(ours.read):,} that were read",
        ratio=wrong,
        goal="<= 0",
    )
    told = (("pathway", "timer"), ("pathway", "transfers"), ("flink", "plain"), ("flink", "batched"), ("duckdb", ""))
    for name, how in told:
        if name not in (*sides.names, "duckdb"):
            continue
        title = f"peers.bank.{name}" + (f".{how}" if how else "")
        try:
            said = sides.run(name, "bank", given, work.directory / name, *filter(None, [how]))
            if said["shown"][-1:] != [TOTAL]:
                raise SideFailed(f"{name} ended with a total of {said['shown'][-1:]} and not {TOTAL}")
        except SideFailed as error:
            _failed(report, title, error, _TOLD)
            continue
        shown = said["shown"]
        wrong = sum(total != TOTAL for total in shown)
        report.add(
            title,
            given.changes / said["seconds"],
            "transfers/s",
            against=f"wrong: {wrong:,} of {len(shown):,} totals it gave out",
            ratio=wrong / max(len(shown), 1),
            goal=_TOLD,
        )


Workload = Callable[[Report, Work, Sides], None]
WORKLOADS: Final[dict[str, Workload]] = {"peers.keyed": keyed, "peers.joined": joined, "peers.bank": bank}


def run(
    report: Report,
    quick: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    only: str | None = None,
    *,
    sides: Sides,
) -> None:
    """Measure every workload, or those whose name contains `only`; see `bench.log`."""
    for name, workload in WORKLOADS.items():
        if only is not None and only not in name:
            continue
        progress(name)
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
            workload(report, Work(Path(directory), quick), sides)


def _workload(
    name: str, report: Report, work: Work, sides: Sides, given: Input, run_ours: Callable[[Input, Path], peer_ours.Ours]
) -> None:
    duck = sides.run("duckdb", name, given, work.directory / "duckdb")
    expected = read_answer(work.directory / "duckdb" / "result.csv")
    ours = run_ours(given, work.directory / "ours")
    if ours.found != expected:
        raise InvariantBroken(f"{name}: Tidegate's view is not what DuckDB computes: {_differ(ours.found, expected)}")
    for side, how, goal in _SPEEDS:
        if side not in sides.names:
            continue
        title = f"peers.{name}.{side}.{how}"
        try:
            said = sides.run(side, name, given, work.directory / side, how)
            found = read_answer(work.directory / side / "result.csv")
            if found != expected:
                raise SideFailed(f"{side} gave another result: {_differ(found, expected)}")
        except SideFailed as error:
            _failed(report, title, error, goal)
            continue
        whom = f"{side} {said['version']}, {how}, {said['outputs']:,} outputs"
        _compare(report, title, given, ours, whom, said["seconds"], goal)
    _compare(report, f"peers.{name}.duckdb", given, ours, _recomputing(duck, given), duck["seconds"], _TOLD)
    _ahead_from(report, name, duck["small"], ours.small_s)


def _ahead_from(report: Report, name: str, points: list[tuple[int, float]], ours_s: float) -> None:
    """Where the line through DuckDB's times at two sizes of the table meets our epoch, for 1,000 changed rows."""
    (small, small_s), (large, large_s) = points
    per_row = (large_s - small_s) / (large - small)
    how = "extrapolated from" if per_row > 0 else "NOT TO BE EXTRAPOLATED, as it did not grow between"
    report.add(
        f"peers.{name}.ahead_from",
        max(large + (ours_s - large_s) / per_row, 0.0) if per_row > 0 else 0.0,
        "rows in the table",
        against=f"DuckDB, {how} {small_s * 1000:,.1f} ms at {small:,} rows and {large_s * 1000:,.1f} ms at {large:,};"
        f" ours takes {ours_s * 1000:,.0f} ms for 1,000 changed rows",
        ratio=ours_s / large_s,
        goal=_TOLD,
    )


def _recomputing(duck: Any, given: Input) -> str:
    return f"DuckDB {duck['version']}, the whole view anew after each of {given.steps} steps"


def _compare(
    report: Report, title: str, given: Input, ours: peer_ours.Ours, whom: str, seconds: float, goal: str
) -> None:
    report.add(
        title,
        given.changes / ours.seconds,
        "changes/s",
        against=f"{whom}: {given.changes / seconds:,.0f} changes/s; ours in {ours.epochs} epochs",
        ratio=seconds / ours.seconds,
        goal=goal,
    )


def _failed(report: Report, title: str, error: SideFailed, goal: str) -> None:
    report.add(title, 0.0, "changes/s", against=f"NOT MEASURED: {error}", ratio=0.0, goal=goal)


def _differ(found: peer_inputs.Answer, expected: peer_inputs.Answer) -> str:
    wrong = [group for group in expected.keys() | found.keys() if found.get(group) != expected.get(group)]
    some = ", ".join(f"{group}: {found.get(group)} for {expected.get(group)}" for group in sorted(wrong)[:3])
    return f"{len(wrong):,} of {len(expected):,} groups, such as {some}"


@click.command()
@click.option("--environments", type=click.Path(path_type=Path), default=Path(".venv-peers"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One object a line.")
@click.option("--check", is_flag=True, help="Exit with 4 when a goal is missed.")
@click.option("--quick", is_flag=True, help="Sizes too small to mean anything, to see that it all works.")
@click.option("--only", metavar="TEXT", help="Only what has TEXT in its name, such as bank.")
@click.option(
    "--minutes", type=float, default=SIDE_S / 60, show_default=True, help="For one side and workload, at most."
)
def main(environments: Path, as_json: bool, check: bool, quick: bool, only: str | None, minutes: float) -> None:
    """Run both workloads and the bank on Tidegate, Pathway, Flink and DuckDB."""
    # By an exception, so that a side that runs is ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = Report(as_json=as_json)
    sides = Sides(environments.absolute(), timeout_s=minutes * 60)
    run(report, quick, lambda name: click.echo(f"measuring {name}", err=True), only, sides=sides)
    report.print()
    if check and not report.met:
        sys.exit(MISSED)


if __name__ == "__main__":
    main()
