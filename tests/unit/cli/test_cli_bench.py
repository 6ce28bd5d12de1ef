"""`tidegate bench` works and says what it measured. Whether goals are met is not for tests to say."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidegate.bench.log import MEASURES
from tidegate.bench.report import Report
from tidegate.cli.main import tidegate

EXPECTED = {
    "log.append.single",
    "log.append.8_writers",
    "log.append.8_threads",
    "log.append.64_writers_async",
    "log.append.batch_10k",
    "log.vs_sqlite.single_8",
    "log.vs_sqlite.single_8_threads",
    "log.vs_sqlite.batch_500",
    "log.read.batches",
    "log.read.rows_unsealed",
    "log.read.rows_sealed",
    "log.open.1gb",
    "log.open.1gb_killed",
    "log.memory.1gb",
}


@pytest.mark.slow
def test_every_figure_of_the_log_has_all_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = CliRunner().invoke(tidegate, ["bench", "log", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    figures = [json.loads(line) for line in result.stdout.splitlines()]
    assert {figure["name"] for figure in figures} == EXPECTED
    for figure in figures:
        assert list(figure) == ["name", "value", "unit", "against", "ratio", "goal", "met"]
        assert figure["value"] > 0 and figure["ratio"] > 0, figure
        assert figure["goal"].split()[0] in ("<=", ">=") and float(figure["goal"].split()[1])
        assert figure["met"] in (True, False) and figure["unit"] and figure["against"]
    assert list(tmp_path.iterdir()) == [], "its files are removed"


@pytest.mark.slow
def test_every_figure_of_capture_is_measured() -> None:
    figures = {}
    for only in ("overhead", "shipping", "left_alone", "snapshot"):  # Freshness needs Spark.
        result = CliRunner().invoke(tidegate, ["bench", "capture", "--quick", "--json", "--only", only])
        assert result.exit_code == 0, result.output
        figures |= {each["name"]: each for each in map(json.loads, result.stdout.splitlines())}
    assert set(figures) == {
        "capture.overhead.orders",
        "capture.overhead.orders.turso",
        "capture.overhead.bulk",
        "capture.overhead.bulk.turso",
        "capture.shipping.sqlite.100_rows",
        "capture.shipping.sqlite.10_rows",
        "capture.shipping.postgres",
        "capture.left_alone",
        "capture.snapshot",
    }
    assert all(each["value"] > 0 and "NOT MEASURED" not in each["against"] for each in figures.values())


def test_only_what_is_named_is_measured_and_shown_as_a_table() -> None:
    result = CliRunner().invoke(
        tidegate, ["bench", "log", "--quick", "--only", "append.single"], env={"COLUMNS": "160"}
    )
    assert result.exit_code == 0
    assert "log.append.single" in result.stdout and "fdatasync" in result.stdout and "sqlite" not in result.stdout


def test_a_name_nothing_has_is_a_wrong_usage() -> None:
    result = CliRunner().invoke(tidegate, ["bench", "--only", "nope"])
    assert result.exit_code == 2 and "'nope'" in result.stderr


def test_a_missed_goal_exits_with_4_when_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def missed(report: Report, _: object) -> None:
        report.add("log.append.single", 1.0, "us", against="nothing", ratio=9.0, goal="<= 1.6")

    monkeypatch.setitem(MEASURES, "log.append.single", missed)
    arguments = ["bench", "log", "--only", "append.single"]
    assert CliRunner().invoke(tidegate, arguments).exit_code == 0
    result = CliRunner().invoke(tidegate, [*arguments, "--check"])
    assert result.exit_code == 4 and "missed: log.append.single" in result.stderr


def test_an_unknown_benchmark_is_a_wrong_usage() -> None:
    assert CliRunner().invoke(tidegate, ["bench", "nope"]).exit_code == 2
