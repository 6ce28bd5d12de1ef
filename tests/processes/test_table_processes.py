"""Tables in several processes: no update is lost, and what was acknowledged survives SIGKILL (promises 2 and 6)."""

import random

import pytest

import tidegate
from children import Child
from database_rig import quick
from helpers import eventually

COMMON = r"""
import sys
import tidegate
from tidegate import DatabaseSettings, LogSettings

path, name = sys.argv[1], sys.argv[2]
db = tidegate.open(path, settings=DatabaseSettings(pipeline=False, log=LogSettings(tick_interval_ms=5)))

def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()

say("ready")
"""

COUNTER = (
    COMMON
    + r"""
for _ in range(50):
    db.sql("UPDATE t SET n = n + 1 WHERE id = 1")
say("done")
db.close()
"""
)

WRITER = (
    COMMON
    + r"""
import itertools

for number in itertools.count():
    # One transaction over several shards and ways in; every third round takes rows away, some change the schema.
    key = f"{name}.{number}"
    with db.transaction() as txn:
        txn.insert("pairs", [{"id": key + ".left", "n": number}])
        txn.sql(f"INSERT INTO pairs (id, n) VALUES ('{key}.right', {number})")
        txn.sql("UPDATE t SET n = n + 1 WHERE id = 1")
    say(f"put {key} {number}")
    if number % 3 == 2:
        gone = f"{name}.{number - 1}"
        say(f"taking {gone}")
        with db.transaction() as txn:
            txn.delete("pairs", [gone + ".left", gone + ".right"])
        say(f"taken {gone}")
    if number % 10 == 9:
        db.sql(f"ALTER TABLE pairs ADD COLUMN {name}_{number} INT")
        say(f"altered {name}_{number}")
"""
)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "t.tide"
    with tidegate.open(found, settings=quick(pipeline=False)) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
        db.sql("CREATE TABLE pairs (id STRING PRIMARY KEY, n BIGINT) SHARDS 3")
        db.insert("t", [(1, 0)])
    return found


@pytest.mark.slow
def test_processes_that_count_lose_nothing(path, tmp_path):
    """Issue 4: UPDATE writes with the transactions' optimistic check, through the socket as well."""
    with tidegate.open(path, settings=quick(pipeline=False)) as db:
        child = Child(COUNTER, path, "other", errors=tmp_path / "errors").wait_ready()
        try:
            for _ in range(50):
                db.sql("UPDATE t SET n = n + 1 WHERE id = 1")
            assert child.wait(120) == 0 and child.lines == ["done"], child.errors.read_text()
        finally:
            child.kill()
        assert db.query("SELECT n FROM t", "strong").rows() == [{"n": 100}]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3))])
def test_what_was_acknowledged_of_tables_survives_sigkill(path, tmp_path, seed):
    """Promise 6, for rows, deletes and changes of a schema; promise 2: pairs are there whole or not at all."""
    rng = random.Random(seed)
    said: list[str] = []
    for life in range(3):
        child = Child(WRITER, path, f"life{life}", errors=tmp_path / "errors").wait_ready()
        try:
            wanted = rng.randrange(5, 40)
            eventually(lambda child=child, wanted=wanted: len(child.lines) >= wanted, 60, "transactions")
        finally:
            child.kill()
        said += child.lines
    with tidegate.open(path, settings=quick(pipeline=False)) as db:
        found = {row["id"]: row["n"] for row in db.query("SELECT id, n FROM pairs", "strong").rows()}
        columns = {row["column"] for row in db.sql("DESCRIBE pairs")}
        (counted,) = db.query("SELECT n FROM t", "strong").rows()
    facts = [line.split() for line in said]
    put = {name: int(number) for word, name, *rest in facts if word == "put" for number in rest}
    taken = {name for word, name, *_ in facts if word == "taken"}
    maybe = {name for word, name, *_ in facts if word == "taking"} - taken
    for name, number in put.items():
        if name in maybe:
            continue
        for side in ("left", "right"):
            assert found.get(f"{name}.{side}") == (None if name in taken else number), (name, side)
    names = {id.rpartition(".")[0] for id in found}
    assert all({f"{name}.left", f"{name}.right"} <= set(found) for name in names), "a pair is torn"
    assert len(names - set(put)) <= 3, "at most one transaction of each life was not acknowledged and is there"
    assert len(put) <= counted["n"] <= len(put) + 3
    assert {name for word, name, *_ in facts if word == "altered"} <= columns
