"""`tidegate demo` in a pipe: it ends, says that everything is as it must be, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from folding import folding
from tidegate.cli import demo_money_view, demo_tables, demo_work
from tidegate.cli.demo_money import Bookkeeper, Cuts, Money
from tidegate.cli.demo_reader import Count
from tidegate.cli.demo_view import bar, frame
from tidegate.cli.demo_work import Work
from tidegate.cli.main import tidegate
from tidegate.database import engine as engine_module
from tidegate.runtime.log import Log

COMMAND = [sys.executable, "-m", "tidegate"]


@pytest.mark.slow
def test_all_that_is_acknowledged_is_received_by_both_readers(tmp_path: Path) -> None:
    for scene, verdict in (
        ("log", "Everything acknowledged was received by both readers, in order."),
        ("money", "No cut showed a part of a transaction, and everything was consumed once."),
    ):
        found = subprocess.run(
            [*COMMAND, "demo", scene, "--seconds", "1", "--plain"],
            capture_output=True, text=True, timeout=60, check=False, env={**_environment(), "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        assert found.returncode == 0, found.stdout + found.stderr
        assert verdict in found.stdout
        assert found.stderr == "" and "\x1b" not in found.stdout
        assert list(tmp_path.iterdir()) == [], "the temporary directory is removed"


@pytest.mark.slow
def test_an_interrupt_is_quiet_and_cleans_up(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo", "log", "--seconds", "60", "--plain"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**_environment(), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert "rows" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_named_directory_is_kept_and_can_be_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "spark_worker", folding())
    monkeypatch.setattr(demo_tables, "what_is_missing", lambda _: None)
    path = tmp_path / "kept.tide"
    for scene in ("log", "money", "tables", "log", "money", "tables"):
        result = CliRunner().invoke(
            tidegate, ["demo", scene, "--seconds", "0.5", "--plain", "--no-kill", "--dir", str(path)]
        )
        assert result.exit_code == 0, result.output
    result = CliRunner().invoke(tidegate, ["log", "verify", str(path)])
    assert result.exit_code == 0 and "intact" in result.stdout


def test_a_directory_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    result = CliRunner().invoke(tidegate, ["demo", "--dir", str(tmp_path)])
    assert result.exit_code == 1 and str(tmp_path) in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_row_that_does_not_arrive_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Count, delivery: object) -> None:
        self.tick = 1

    monkeypatch.setattr(Count, "add", forget)
    result = CliRunner().invoke(tidegate, ["demo", "log", "--seconds", "0.3", "--plain"])
    assert result.exit_code == 1 and "NOT everything acknowledged" in result.stdout


@pytest.mark.parametrize("width", [80, 110])
def test_the_picture_fits_the_terminal(tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_work, "_start_reader", _no_reader)
    with Log(tmp_path / "demo.tide") as log:
        work = Work(log, random.Random(1))
        for writer in work.writers:
            writer.rows, writer.rate = 9_999_999, 99_999.0
        console = Console(width=width, file=io.StringIO())
        console.print(frame(work, 8.0))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        work.close()
    assert max(map(len, text.splitlines())) <= width
    assert "payments/2" in text and "9,999,999" in text and "…" not in text


def test_a_reader_without_regard_to_cuts_makes_the_money_scene_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 2: the scene would notice a part of a transaction. Here all that came in is taken for the cut."""

    def careless(self: Cuts, cut: int) -> None:
        apply(self, max(self._ticks.values()))

    apply = Cuts._apply
    monkeypatch.setattr(Cuts, "_apply", careless)
    result = CliRunner().invoke(tidegate, ["demo", "money", "--seconds", "1.5", "--plain"])
    assert result.exit_code == 1 and "A cut was torn" in result.stdout


def test_a_message_consumed_twice_makes_the_money_scene_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 7."""
    enter = Bookkeeper.enter
    monkeypatch.setattr(Bookkeeper, "enter", lambda self, messages: enter(self, [*messages, messages[0]]))
    result = CliRunner().invoke(tidegate, ["demo", "money", "--seconds", "0.3", "--plain"])
    assert result.exit_code == 1 and "NOT everything was consumed once" in result.stdout


@pytest.mark.parametrize("width", [80, 110])
def test_the_picture_of_the_money_fits_the_terminal(tmp_path: Path, width: int) -> None:
    money = Money(tmp_path / "demo.tide", random.Random(1))
    money.movers[0].committed, money.movers[0].rate = 9_999_999, 99_999.0
    money.cuts.balances[0] = -1_234
    console = Console(width=width, file=io.StringIO())
    console.print(demo_money_view.frame(money, 8.0))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    money.close()
    assert max(map(len, text.splitlines())) <= width
    assert "9,999,999" in text and "-1234" in text and "…" not in text


def test_a_bar_is_as_long_as_its_part() -> None:
    assert [bar(part, 4) for part in (0, 0.5, 1, 7)] == ["    ", "██  ", "████", "████"]
    assert bar(0.1, 4) == "▍   "


def _no_reader(*_: object) -> subprocess.Popen[str]:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "TMPDIR"}
