"""Values that are awkward as keys: NaN, the two zeros, decimals, times, NULL and keys that change (issue 6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from view_world import Change, TableOf, World

NAN = float("nan")
START = datetime(2026, 5, 1, tzinfo=UTC)
FLOATS = [0.0, -0.0, NAN, None, 1.5, float("inf"), NAN, -0.0]
DECIMALS = [Decimal("1.50"), Decimal("-0.01"), None, Decimal("1.50"), Decimal("99999999.99"), Decimal("0.00")]
TIMES = [START, START + timedelta(microseconds=1), None, START, START - timedelta(days=20000)]
COLUMNS = {
    "double": (pa.float64(), FLOATS),
    "float": (pa.float32(), FLOATS),
    "decimal": (pa.decimal128(10, 2), DECIMALS),
    "timestamp": (pa.timestamp("us", tz="UTC"), TIMES),
}
QUERIES = [
    "SELECT x, count(*) AS k FROM t GROUP BY x",
    "SELECT DISTINCT x FROM t",
    "SELECT x, max(id) AS m FROM t GROUP BY x",
    "SELECT x FROM t EXCEPT SELECT x FROM u",
    "SELECT a.id, b.id AS other FROM t a JOIN u b ON a.x = b.x",
    "SELECT a.id, b.id AS other FROM t a LEFT JOIN u b ON a.x = b.x",
    "SELECT id, row_number() OVER (PARTITION BY x ORDER BY id) AS r FROM t",
    "SELECT min(x) AS a, max(x) AS b, count(DISTINCT x) AS d FROM t",
]


@pytest.mark.parametrize("kind", COLUMNS)
def test_any_value_may_be_grouped_and_joined_by(kind: str) -> None:
    type, values = COLUMNS[kind]
    table = TableOf(pa.schema([("id", pa.int64()), ("x", type)]), ("id",))
    world = World({"t": table, "u": table})
    for number, sql in enumerate(QUERIES):
        world.create(f"v{number}", sql)

    def rows(places: range, shift: int) -> list[dict[str, Any]]:
        return [{"id": at, "x": values[(at + shift) % len(values)]} for at in places]

    steps = [
        {"t": Change(rows(range(6), 0))},
        {"u": Change(rows(range(4), 1))},
        {"t": Change(rows(range(2, 5), 3), [(0,)]), "u": Change(rows(range(2), 4))},
        {"t": Change((), [(1,), (2,)]), "u": Change((), [(0,), (1,), (2,), (3,)])},
    ]
    for changes in steps:
        world.step(changes)
        for name in world.views:
            world.check(name)


def test_a_row_whose_key_changes_leaves_one_place_and_comes_to_another() -> None:
    """An update of a key is a delete and an insert in one transaction."""
    table = TableOf(pa.schema([("id", pa.int64()), ("g", pa.string())]), ("id",))
    world = World({"t": table})
    world.create("same", "SELECT * FROM t")
    world.create("groups", "SELECT g, count(*) AS k, max(id) AS m FROM t GROUP BY g")
    world.create("pairs", "SELECT a.id, b.id AS next FROM t a LEFT JOIN t b ON b.id = a.id + 1")
    world.step({"t": Change([{"id": 1, "g": "a"}, {"id": 2, "g": "a"}])})
    world.step({"t": Change([{"id": 3, "g": "a"}], [(1,)])})
    for name in world.views:
        world.check(name)
    assert world.stored("pairs").num_rows == 2


def test_a_transaction_that_changes_nothing_changes_no_view() -> None:
    table = TableOf(pa.schema([("id", pa.int64()), ("n", pa.int64())]), ("id",))
    world = World({"t": table})
    world.create("v", "SELECT n % 2 AS m, sum(n) AS s FROM t GROUP BY n % 2")
    world.step({"t": Change([{"id": 1, "n": 3}])})
    world.step({"t": Change([{"id": 1, "n": 3}], [(9,)])})
    assert world.changed("v") == 0
    world.check("v")
