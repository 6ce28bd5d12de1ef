"""When the first worker is started, and how one that is still starting ends: whoever opens a database asks first."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import tidegate
from folding import folding
from helpers import eventually
from tidegate import DatabaseSettings
from tidegate.database import engine as engine_module
from tidegate.pipeline import host


class Workers:
    """Starts workers that fold, and counts them."""

    def __init__(self) -> None:
        self.started = 0
        self._start = folding()

    def __call__(self, *args: Any) -> Any:
        self.started += 1
        return self._start(*args)


class Silent:
    """A worker that has not said anything yet."""

    pid = 1

    def __init__(self) -> None:
        self.ends: list[str] = []

    def send(self, _: Any) -> bool:
        return True

    def stop(self, _: float = 0.0) -> None:
        self.ends.append("stop")

    def kill(self) -> None:
        self.ends.append("kill")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with rows that no checkpoint has."""
    found = tmp_path / "x.tide"
    with tidegate.open(found, settings=DatabaseSettings(pipeline=False)) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        db.insert("t", [{"id": 1}, {"id": 2}])
    return found


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    found = Workers()
    monkeypatch.setattr(engine_module, "spark_worker", found)
    return found


def wait_for_work(db: tidegate.Database) -> None:
    pipeline = db.engine.pipeline
    eventually(lambda: bool(pipeline._machines and pipeline._machines.epochs.uncommitted), 20, "a barrier")
    with pipeline._changed:
        pipeline._keep_worker()  # As its thread does in every turn.


def test_after_opening_answers_come_first_and_a_flush_starts_the_worker_at_once(
    path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 5: the first answer within 1.5 s; a worker that starts takes a core for seconds."""
    monkeypatch.setattr(host, "_FIRST_S", 600.0)
    with tidegate.open(path) as db:
        wait_for_work(db)
        assert len(db.query("SELECT * FROM t", "strong")) == 2
        assert workers.started == 0
        db.flush(30)
        assert workers.started == 1
        assert len(db.query("SELECT * FROM t", "eventual")) == 2


def test_a_read_that_waits_for_a_checkpoint_starts_the_worker_at_once(
    path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_FIRST_S", 600.0)
    with tidegate.open(path) as db:
        wait_for_work(db)
        pipeline, done = db.engine.pipeline, Event()
        waiter = Thread(target=lambda: pipeline.wait_for(pipeline.service_time.next(), 30) and done.set())
        waiter.start()
        waiter.join(30)
        assert done.is_set() and workers.started == 1


def test_nobody_need_ask_for_the_worker(path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 2: what is written comes into a checkpoint by itself."""
    monkeypatch.setattr(host, "_FIRST_S", 0.2)
    with tidegate.open(path) as db:
        eventually(lambda: len(db.query("SELECT * FROM t", "eventual")) == 2, 20, "a checkpoint")


def test_a_worker_that_is_still_starting_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing to finish: what it has not reported is done again by the next owner."""
    silent = Silent()
    monkeypatch.setattr(engine_module, "spark_worker", lambda *_: silent)
    monkeypatch.setattr(host, "_FIRST_S", 0.0)
    with tidegate.open(path) as db:
        eventually(lambda: db.engine.pipeline._child is silent, 20, "a worker")
    assert silent.ends == ["kill"]


def test_a_worker_that_has_said_something_is_asked_to_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent()
    monkeypatch.setattr(engine_module, "spark_worker", lambda *_: silent)
    monkeypatch.setattr(host, "_FIRST_S", 0.0)
    with tidegate.open(path) as db:
        eventually(lambda: db.engine.pipeline._child is silent, 20, "a worker")
        db.engine.pipeline.heard(db.engine.pipeline.current_term, {"ready": {}})
    assert silent.ends == ["stop"]
