"""A view created on much data is filled beside the batches, survives crashes, and becomes readable when it has caught
up. Issue 6: "A view created on existing data is filled from a pinned snapshot while the pipeline goes on"."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import pytest
from view_rig import Shop

from helpers import eventually
from tidegate.pipeline import view_fill
from tidegate.pipeline.view_fill import Fill
from tidegate.snapshots.pins import live_pins

JOINED = "SELECT t.id, t.n, u.s FROM t JOIN u ON t.u = u.id"
GROUPED = "SELECT u, count(*) AS c, sum(n) AS s, max(n) AS m FROM t GROUP BY u"
LOGGED = "SELECT line, count(*) AS c FROM log GROUP BY line"


class Gate:
    """Holds the threads that fill views back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = Event()
        self.reached = Event()
        self.held: set[str] = set()
        real = Fill._fill
        gate = self

        def fill(self: Fill, *arguments: Any) -> None:
            gate.held.add(self.view.name)
            gate.reached.set()
            while not gate.open.wait(0.01):
                if self._cancelled.is_set():
                    raise duckdb.InterruptException("cancelled")
            real(self, *arguments)

        monkeypatch.setattr(Fill, "_fill", fill)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(view_fill, "FILL_ABOVE", 20)
    found = Shop(tmp_path / "shop.tide", monkeypatch)
    found.db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, u BIGINT, n BIGINT) SHARDS 2")
    found.db.sql("CREATE TABLE u (id BIGINT PRIMARY KEY, s STRING)")
    found.db.sql("CREATE TABLE log (line STRING)")
    found.db.insert("t", [{"id": id, "u": id % 7, "n": id} for id in range(50)])
    found.db.insert("u", [{"id": id, "s": "abc"[id % 3]} for id in range(7)])
    found.db.insert("log", [{"line": "xyz"[id % 3]} for id in range(30)])
    found.db.flush()
    yield found
    found.close()


def create(shop: Shop, **views: str) -> None:
    for name, sql in views.items():
        shop.db.sql(f"CREATE MATERIALIZED VIEW {name} AS {sql}")


def state(shop: Shop, name: str) -> str:
    found = shop.state(name)
    return "" if found is None else found.state


def wait_live(shop: Shop, *names: str) -> None:
    """Nobody writes and nobody asks for a barrier."""
    eventually(lambda: all(state(shop, name) == "live" for name in names), 30, f"{names} live")


def write(shop: Shop) -> None:
    with shop.db.transaction() as txn:
        txn.insert("t", [{"id": 3, "u": 6, "n": 999}, {"id": 100, "u": 1, "n": 7}])
        txn.delete("t", [4, 5])
        txn.insert("u", {"id": 2, "s": "new"})
        txn.delete("u", [1])
        txn.insert("log", {"line": "x"})
    shop.db.flush()


def leftovers(shop: Shop) -> list[str]:
    return [str(each) for each in (shop.db.engine.path / "snapshots" / "fills").glob("**/*")]


def test_the_pipeline_goes_on_while_it_is_filled_and_it_is_live_once_it_has_caught_up(shop: Shop, gate: Gate) -> None:
    create(shop, joined=JOINED, grouped=GROUPED, logged=LOGGED)
    assert gate.reached.wait(10)
    write(shop)
    assert [state(shop, name) for name in ("joined", "grouped", "logged")] == ["filling"] * 3
    shop.db.insert("t", {"id": 3, "u": 0, "n": 1})
    shop.db.delete("t", [100])
    shop.db.flush()
    shop.db.insert("t", {"id": 4, "u": 2, "n": 2})
    assert len(gate.held) <= view_fill.AT_ONCE_MAX == 2, "the third waits for its turn: memory is bounded"
    gate.open.set()
    wait_live(shop, "joined", "grouped", "logged")
    shop.db.flush()
    shop.check("joined", "grouped", "logged")
    write(shop)
    shop.check("joined", "grouped", "logged")
    assert not leftovers(shop) and not live_pins(shop.db.engine.pipeline.store)


def test_an_idle_database_gets_the_barriers_that_a_fill_needs(shop: Shop) -> None:
    create(shop, joined=JOINED)
    wait_live(shop, "joined")
    shop.check("joined")
    assert shop.stored("joined")


def test_it_is_filled_in_the_batch_when_it_reads_little(shop: Shop, gate: Gate) -> None:
    create(shop, small="SELECT s, count(*) AS c FROM u GROUP BY s")
    shop.db.flush()
    shop.check("small")
    assert not gate.reached.is_set()


def test_how_far_it_is_is_shown(shop: Shop, gate: Gate) -> None:
    create(shop, joined=JOINED)
    assert gate.reached.wait(10)
    shown = eventually(lambda: (found := shop.shown("joined"))["percent"] is not None and found)
    assert shown["state"] == "filling" and 0 <= shown["percent"] < 100 and shown["age_ms"] is None
    gate.open.set()
    wait_live(shop, "joined")
    eventually(lambda: shop.shown("joined")["percent"] is None)


def test_a_dropped_view_is_filled_no_more(shop: Shop, gate: Gate) -> None:
    create(shop, joined=JOINED, grouped=GROUPED)
    assert gate.reached.wait(10)
    shop.db.sql("DROP MATERIALIZED VIEW joined")
    shop.db.flush()
    write(shop)
    gate.open.set()
    wait_live(shop, "grouped")
    shop.check("grouped")
    eventually(lambda: not leftovers(shop))


def test_a_view_on_one_that_is_filled_waits_for_it(shop: Shop, gate: Gate) -> None:
    """Then it is filled itself, in its turn: from a checkpoint that has the other."""
    create(shop, joined=JOINED, above="SELECT s, sum(n) AS n FROM joined GROUP BY s")
    create(shop, top="SELECT max(n) AS n FROM above")
    assert gate.reached.wait(10)
    shop.db.flush()
    for name, of in (("above", "joined"), ("top", "above")):
        assert state(shop, name) == "filling"
        assert shop.shown(name)["error"] == f"it waits for the view {of!r}, which is being filled"
    write(shop)
    gate.open.set()
    wait_live(shop, "joined", "above", "top")
    shop.check("joined", "above", "top")
    write(shop)
    shop.check("joined", "above", "top")


def test_what_fails_while_it_is_filled_stops_that_view_alone(shop: Shop) -> None:
    create(shop, bad="SELECT id, 10 DIV n AS x FROM t", joined=JOINED)
    eventually(lambda: state(shop, "bad") == "failed", 20)
    assert shop.shown("bad")["error"].startswith("division by zero; correct the rows")
    wait_live(shop, "joined")
    shop.db.insert("t", {"id": 0, "u": 0, "n": 1})
    shop.db.sql("ALTER MATERIALIZED VIEW bad RESUME")
    wait_live(shop, "bad")
    shop.check("bad", "joined")


def test_a_view_that_is_resumed_is_filled_anew_and_those_that_read_it_come_back(shop: Shop) -> None:
    create(shop, v="SELECT id, 10 DIV (n + 1) AS x FROM t", w="SELECT x, count(*) AS c FROM v GROUP BY x")
    wait_live(shop, "v", "w")
    shop.db.insert("t", {"id": 1, "u": 0, "n": -1})
    shop.db.flush()
    assert (state(shop, "v"), state(shop, "w")) == ("failed", "failed")
    shop.db.insert("t", {"id": 1, "u": 0, "n": 1})
    shop.db.sql("ALTER MATERIALIZED VIEW v RESUME")
    wait_live(shop, "v", "w")
    shop.check("v", "w")


def test_a_restart_while_it_is_filled_begins_again_though_nobody_writes(shop: Shop, gate: Gate) -> None:
    create(shop, joined=JOINED)
    assert gate.reached.wait(10)
    shop.db.flush()
    write(shop)
    gate.open.set()
    shop.open()
    wait_live(shop, "joined")
    shop.check("joined")
    assert not leftovers(shop)


def test_when_too_much_changed_it_is_filled_a_second_time(
    shop: Shop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    real = Fill.__init__

    def init(self: Fill, *arguments: Any) -> None:
        real(self, *arguments)
        rounds.append(self.round)

    monkeypatch.setattr(Fill, "__init__", init)
    create(shop, joined=JOINED)
    assert gate.reached.wait(10)
    shop.db.insert("t", [{"id": id, "u": 1, "n": -id} for id in range(60)])
    shop.db.flush()
    gate.open.set()
    wait_live(shop, "joined")
    shop.check("joined")
    assert rounds == [1, 2]


def test_pins_that_were_lost_let_it_begin_again(shop: Shop, gate: Gate) -> None:
    create(shop, joined=JOINED)
    assert gate.reached.wait(10)
    fills = shop.db.engine.pipeline._child._stage._fills  # type: ignore[union-attr]
    first = fills.get(shop.view("joined").id)
    fills._lost(Exception("the lease"))
    write(shop)
    assert fills.get(shop.view("joined").id) is not first
    gate.open.set()
    wait_live(shop, "joined")
    shop.check("joined")


@pytest.mark.parametrize("nth", range(7))
def test_a_crash_at_any_point_of_a_fill_leaves_nothing_wrong(shop: Shop, nth: int) -> None:
    """Promise 6. The worker dies at the n-th of its points after the views were created, whatever it does then."""
    points: list[str] = []
    armed = Event()

    def crash(point: str, epoch: int) -> bool:
        if armed.is_set():
            points.append(f"{point} {epoch}")
            return len(points) == nth + 1
        return False

    shop.open(crash)
    armed.set()
    create(shop, joined=JOINED, grouped=GROUPED)
    shop.db.insert("t", {"id": 7, "u": 3, "n": 70})
    shop.db.delete("t", [8])
    wait_live(shop, "joined", "grouped")
    shop.db.flush()
    shop.check("joined", "grouped")
    assert len(points) > nth and not leftovers(shop)


@pytest.mark.parametrize("seed", range(2))
def test_writes_at_any_time_of_fills_leave_views_equal_to_their_queries(shop: Shop, seed: int) -> None:
    dice = random.Random(seed)
    create(shop, joined=JOINED, logged=LOGGED)
    for step in range(25):
        with shop.db.transaction() as txn:
            ids = {dice.randrange(60) for _ in range(3)}
            txn.insert("t", [{"id": id, "u": dice.randrange(8), "n": dice.randrange(9)} for id in sorted(ids)])
            gone = sorted({dice.randrange(60) for _ in range(2)} - ids)
            txn.delete("t", gone)
            txn.insert("u", {"id": dice.randrange(8), "s": dice.choice("abc")})
            txn.insert("log", {"line": dice.choice("xyz")})
        if step == 5:
            create(shop, grouped=GROUPED)
        if step == 12:
            create(shop, above="SELECT s, count(*) AS c FROM joined GROUP BY s")
        if step == 16:
            shop.db.sql("DROP MATERIALIZED VIEW logged")
        if step % 3 == 0:
            shop.db.flush()
            shop.check()
    wait_live(shop, "joined", "grouped", "above")
    shop.db.flush()
    shop.check("joined", "grouped", "above")
