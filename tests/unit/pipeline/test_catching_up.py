"""How far catching up is, and how long it takes: as data, and in `tidegate status` (promise 8)."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from folding import Folding
from helpers import eventually
from tidegate import DatabaseSettings
from tidegate.barrier.catching_up import WAITING_MIN, CatchingUp, CatchUpStatus
from tidegate.barrier.cut import Cut, Epoch
from tidegate.cli.status import _pipeline
from tidegate.clock.timestamp import Timestamp
from tidegate.database import engine as engine_module


def cuts(first: int, last: int, nbytes: int = 0) -> list[Cut]:
    return [
        Cut(Epoch(epoch), Timestamp(epoch * 10 - 10), Timestamp(epoch * 10), {}, nbytes=nbytes)
        for epoch in range(first, last + 1)
    ]


def test_few_epochs_that_wait_are_no_catching_up() -> None:
    round = CatchingUp()
    round.see(cuts(1, WAITING_MIN - 1), is_working=True, now_ms=0)
    assert round.status(0) is None


def test_it_is_told_how_many_of_those_that_waited_are_done_and_how_long_the_rest_takes() -> None:
    round = CatchingUp()
    round.see(cuts(11, 30), is_working=True, now_ms=1000)
    assert round.status(1500) == CatchUpStatus(0, 20, 0.0, None)
    round.see(cuts(16, 33), is_working=True, now_ms=3000)  # 5 in 2 s; those that come meanwhile do not count.
    assert round.status(3000) == CatchUpStatus(5, 20, 25.0, 6000)
    assert round.status(4000) == CatchUpStatus(5, 20, 25.0, 5000)
    assert round.status(99_000) == CatchUpStatus(5, 20, 25.0, 0)
    round.see(cuts(31, 35), is_working=True, now_ms=9000)  # The next round.
    assert round.status(9000) == CatchUpStatus(0, 5, 0.0, None)
    round.see([], is_working=True, now_ms=9900)
    assert round.status(9900) is None


def test_it_counts_by_what_epochs_hold_where_that_is_known() -> None:
    round = CatchingUp()
    waiting = [*cuts(1, 3, nbytes=100), *cuts(4, 4, nbytes=700)]
    round.see(waiting, is_working=True, now_ms=0)
    round.see(waiting[3:], is_working=True, now_ms=300)
    assert round.status(300) == CatchUpStatus(3, 4, 30.0, 700)


def test_time_and_epochs_while_nobody_works_belong_to_its_beginning() -> None:
    """After a pause of an hour the estimate is not of hours."""
    round = CatchingUp()
    round.see(cuts(1, 10), is_working=False, now_ms=0)
    round.see(cuts(1, 50), is_working=False, now_ms=3_600_000)
    round.see(cuts(26, 50), is_working=True, now_ms=3_601_000)
    assert round.status(3_601_000) == CatchUpStatus(25, 50, 50.0, 1000)


def test_a_pipeline_without_a_worker_falls_behind_and_says_how_far_it_is_when_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Folding] = []

    def start(pipeline, work, at):  # type: ignore[no-untyped-def]
        if not made:
            raise OSError("there is no room for a process")
        return Folding(pipeline, at)

    monkeypatch.setattr(engine_module, "spark_worker", start)
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(barrier_interval_ms=50)) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        pipeline = db.engine.pipeline

        def is_behind() -> bool:
            db.insert("t", [{"id": 1}])
            return bool(pipeline.status().get("catching_up"))

        eventually(is_behind, 60)
        found = pipeline.status()["catching_up"]
        assert found["done"] == 0 and found["percent"] == 0 and found["epochs"] >= WAITING_MIN
        made.append(None)  # type: ignore[arg-type]
        db.flush(60)
        eventually(lambda: pipeline.status()["catching_up"] is None, 60)


def test_people_see_how_far_catching_up_and_compactions_are(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    row = {
        "checkpoint": 0, "worker": 7, "last_batch_s": 0, "waits_for": None, "failure": None, "uncommitted_epochs": 30,
        "catching_up": {"done": 5, "epochs": 20, "percent": 25.0, "left_ms": 6000},
        "upkeep": {"running": [{"table": "orders", "shard": 1, "rows": 500, "of": 2000}]},
        "lag": {"append_to_tick_ms": None, "tick_to_barrier_ms": None, "barrier_to_checkpoint_ms": None},
    }  # fmt: skip
    console = Console(width=100)
    for each in _pipeline(row, 1000):
        console.print(each)
    said = capsys.readouterr().out
    assert "25%, 5 of 20 epochs that waited, about 6.0 s left" in said
    assert "of orders, shard 1: 500 of 2,000 rows, 25%" in said
