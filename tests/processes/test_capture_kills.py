"""Random histories of an application, and SIGKILL for it, the capture and the pipeline, in turn (promise 7, seed 003).

At every moment, and at every checkpoint, the captured tables are those of the source as of some committed transaction
of it; in the end, of all.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import captured_app
import pytest

from children import Child
from helpers import eventually

HERE = str(Path(__file__).parent)

APP = f"""
import sys, time
sys.path.insert(0, {HERE!r})
import captured_app
from tidegate.capture import sqlite
path, pause = sys.argv[1], float(sys.argv[2])
db = sqlite.connect(path, isolation_level=None, timeout=30)
print("ready", flush=True)
while True:
    print(captured_app.step(db), flush=True)
    time.sleep(pause)
"""

FOLDING = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
def folds_without_spark():
    from mortal_folding import MortalFolding
    from tidegate.database import engine
    engine.spark_worker = lambda pipeline, _, at: MortalFolding(pipeline, at)
"""

CAPTURE = (
    FOLDING
    + """
import sys, time
import tidegate
source, path, pipeline = sys.argv[1], sys.argv[2], sys.argv[3] != "no"
if sys.argv[3] == "folding":
    folds_without_spark()
settings = tidegate.DatabaseSettings(pipeline=pipeline, lease_ms=3000, barrier_interval_ms=200)
db = tidegate.open(path, settings=settings, name="capture")
capture = db.capture("sqlite:///" + source, name="app")
print("ready", flush=True)
while True:
    time.sleep(0.2)
    if pipeline:
        try:
            worker = db.status()["pipeline"]["worker"]
            print(worker, flush=True) if worker else None
        except tidegate.TidegateError:
            pass
    if not capture.is_running:
        print("!" + str(capture.error).replace("\\n", " "), flush=True)
        break
"""
)

READER = (
    FOLDING
    + f"""
import json, sys, time
sys.path.insert(0, {HERE!r})
import captured_app, tidegate
from tidegate import errors
path, pipeline, level = sys.argv[1], sys.argv[2] != "no", sys.argv[3]
if sys.argv[2] == "folding":
    folds_without_spark()
settings = tidegate.DatabaseSettings(pipeline=pipeline, lease_ms=3000, barrier_interval_ms=200)
db = tidegate.open(path, settings=settings, name="reader " + level)
print("ready", flush=True)
while True:
    try:
        with db.snapshot(level) as cut:
            found = captured_app.content(
                lambda sql: [
                    [row[each] for each in row if each != "_rowid"] for row in cut.query(sql).rows()
                ]
            )
        print(json.dumps(found), flush=True)
    except (errors.NotFound, errors.Unavailable, errors.Retryable, errors.OutcomeUnknown):
        pass
    time.sleep(0.05)
"""
)


class Expected:
    """What the application's database is after each of its transactions."""

    def __init__(self):
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        captured_app.prepare(self._db)
        self._after = [self._content()]

    def _content(self):
        return captured_app.content(lambda sql: self._db.execute(sql).fetchall())

    def after(self, n):
        while len(self._after) <= n:
            captured_app.step(self._db)
            self._after.append(self._content())
        return self._after[n]


def number_of(found):
    """Which transaction an answer says it is as of."""
    return int(found["state"][0].strip("()").split(",")[1])


def check(reader, expected):
    """Every answer is of one transaction of the source, and none of an earlier one than the answer before."""
    last, numbers = 0, set()
    for line in list(reader.lines):
        found = json.loads(line)
        if not found["state"]:
            continue
        n = number_of(found)
        assert n >= last, f"an answer of transaction {n} after one of {last}"
        last = n
        if n not in numbers:
            assert found == expected.after(n), f"not what the source was after transaction {n}"
            numbers.add(n)
    assert not reader.complaints
    return numbers


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "app.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    from tidegate.capture import sqlite

    with sqlite.connect(str(path), isolation_level=None) as db:
        captured_app.prepare(db)
    return path


def is_taken(reader, source):
    """Whether an answer shows everything that the application has committed."""
    db = sqlite3.connect(source)
    try:
        n = captured_app.done(db)
    finally:
        db.close()
    lines = [line for line in reader.lines[-3:] if json.loads(line)["state"]]
    return bool(lines) and number_of(json.loads(lines[-1])) == n and n


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.long) for each in range(2, 12))])
def test_killed_at_any_moment_nothing_is_lost_torn_or_taken_twice(tmp_path, source, seed):
    rng = random.Random(seed)
    children = []

    def start(code, *arguments):
        children.append(Child(code, *arguments, errors=tmp_path / "errors"))
        return children[-1]

    def apps():
        return start(APP, source, 0.002)

    def captures():
        return start(CAPTURE, source, tmp_path / "x.tide", "no")

    try:
        app, capture = apps(), captures()
        capture.wait_ready()
        reader = start(READER, tmp_path / "x.tide", "no", "strong").wait_ready()
        for _ in range(8):
            time.sleep(rng.uniform(0.05, 0.8))
            if rng.random() < 0.4:
                app.kill()
                app = apps()
            else:
                capture.kill()
                capture = captures()
        app.wait_ready()
        capture.wait_ready()
        eventually(lambda: len(app.lines) > 10, 60, "the application goes on")
        app.kill()
        n = eventually(lambda: is_taken(reader, source), 60, "everything is taken")
        assert n > captured_app.WIDER_AT
        reader.kill()
        seen = check(reader, Expected())
        assert n in seen and len(seen) > 5
        assert not capture.complaints
    finally:
        for each in children:
            each.kill()


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["folding", pytest.param("spark", marks=pytest.mark.long)])
def test_every_checkpoint_is_the_source_as_of_one_transaction(tmp_path, source, worker):
    """The pipeline's worker is killed too: one that folds as Spark's does, or Spark's. Read from checkpoints alone."""
    children = []

    def start(code, *arguments):
        children.append(Child(code, *arguments, errors=tmp_path / "errors"))
        return children[-1]

    def captures():
        return start(CAPTURE, source, tmp_path / "x.tide", worker)

    try:
        app, capture = start(APP, source, 0.02), captures()
        capture.wait_ready()
        reader = start(READER, tmp_path / "x.tide", worker, "eventual").wait_ready()
        eventually(lambda: len(set(reader.lines)) > 3, 120, "checkpoints are made")
        app.kill()
        app = start(APP, source, 0.02).wait_ready()
        killed = eventually(lambda: capture.lines, 60)[-1]
        os.kill(int(killed), signal.SIGKILL)  # The pipeline's worker.
        eventually(lambda: capture.lines[-1] != killed, 60, "another worker takes its place")
        capture.kill()  # While that one begins.
        capture = captures().wait_ready()
        seen = len(set(reader.lines))
        eventually(lambda: len(set(reader.lines)) > seen + 2, 120, "checkpoints go on with another owner")
        app.kill()
        n = eventually(lambda: is_taken(reader, source), 120, "a checkpoint has everything")
        reader.kill()
        assert n in check(reader, Expected())
    finally:
        for each in children:
            each.kill()
