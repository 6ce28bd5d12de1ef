"""`window()` and `session_window()` in views: a row and a key for each window; sessions that grow and merge.

Issue 6: "tumbling and hopping windows (`window(ts, ...)`)"; promise 4 at every step.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from view_world import Change, TableOf, World

TABLES = {
    "t": TableOf(
        pa.schema([("id", pa.int64()), ("g", pa.string()), ("x", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]),
        ("id",),
    ),
    "u": TableOf(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ("k",)),
}
START = datetime(2026, 3, 29, tzinfo=UTC)
QUERIES = {
    "SELECT id, window(ts, '10 seconds', '2 seconds') AS w FROM t": "linear",
    "SELECT id, window(ts, '10 seconds').start AS w FROM t": "linear",
    # Nobody shows the window, and a row is there for each all the same.
    "SELECT count(*) AS n FROM (SELECT id, window(ts, '10 seconds', '4 seconds') AS w FROM t)": "linear",
    "SELECT count(*) AS n FROM (SELECT id, window(ts, '10 seconds') AS w FROM t)": "linear",
    "SELECT g, window.start AS s, count(*) AS n, sum(x) AS y FROM t GROUP BY g, window(ts, '9 seconds', '4 seconds')": (
        "linear"
    ),
    "SELECT window, max(x) AS m FROM t GROUP BY window(ts, '10 seconds', '5 seconds', '1 second')": "affected keys",
    "SELECT window.end AS e, count(*) AS n FROM t GROUP BY window(ts, '10 seconds') HAVING count(*) > 2": "linear",
    "SELECT g, session_window.start AS s, session_window.end AS e, count(*) AS n, sum(x) AS y FROM t"
    " GROUP BY g, session_window(ts, '5 seconds')": "affected keys",
    "SELECT t.g, session_window.start AS s, sum(u.v) AS y FROM t JOIN u ON t.x = u.k"
    " GROUP BY t.g, session_window(t.ts, '4 seconds')": "affected keys",
    "SELECT g, session_window.start AS s, count(*) AS n,"
    " rank() OVER (PARTITION BY g ORDER BY count(*) DESC, session_window.start) AS r FROM t"
    " GROUP BY g, session_window(ts, '5 seconds')": "affected keys",
    # Sessions of all rows: there is nothing to tell parts of them from others.
    "SELECT session_window, count(*) AS n FROM t GROUP BY session_window(ts, '3 seconds')": "full",
}
"""And the worst rule of their nodes."""


def row(rng: random.Random) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    at = START + timedelta(seconds=rng.randrange(60), microseconds=rng.choice([0, 1, 999_999]))
    return {"id": rng.randrange(25), "g": maybe(rng.choice("ab")), "x": maybe(rng.randrange(6)), "ts": maybe(at)}


def changes(rng: random.Random) -> dict[str, Change]:
    rows = {each["id"]: each for each in (row(rng) for _ in range(rng.randrange(5)))}
    gone = {rng.randrange(25) for _ in range(rng.randrange(6))} - set(rows)
    other = {"k": rng.randrange(6), "v": rng.randrange(9)}
    return {"t": Change(list(rows.values()), [(each,) for each in gone]), "u": Change([other])}


@pytest.mark.parametrize("sql", QUERIES)
def test_a_view_with_windows_of_time_follows_its_query(sql: str) -> None:
    rng, world = random.Random(sql), World(TABLES)
    for _ in range(4):
        world.step(changes(rng))
    nodes = world.create("v", sql).nodes
    rules = {each.rule for each in nodes}
    worst = next(each for each in ("full", "affected keys", "linear") if each in rules)
    assert (worst, all(each.root is not None for each in nodes)) == (QUERIES[sql], True)
    shown = 0
    for _ in range(10):
        world.step(changes(rng))
        world.check("v")
        shown += world.stored("v").num_rows
    assert shown


def test_a_row_between_two_sessions_makes_them_one_and_its_going_makes_them_two() -> None:
    world = World(TABLES)
    times = {1: 0, 2: 8, 3: 4}
    rows = [{"id": id, "g": "a", "x": 1, "ts": START + timedelta(seconds=at)} for id, at in times.items()]
    world.create("v", "SELECT g, session_window, count(*) AS n FROM t GROUP BY g, session_window(ts, '5 seconds')")
    for change, count in ((Change(rows[:2]), 2), (Change(rows[2:]), 1), (Change([], [(3,)]), 2)):
        world.step({"t": change})
        world.check("v")
        assert world.stored("v").num_rows == count
