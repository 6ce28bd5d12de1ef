"""Sums near the ends of their types: a view fails where its query does, and nowhere else. Issue 6, promise 4."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from view_world import Change, TableOf, World

LEAST, MOST = -(2**63), 2**63 - 1
TABLE = TableOf(pa.schema([("id", pa.int64()), ("g", pa.string()), ("n", pa.int64())]), ("id",))


def row(id: int, n: int | None, g: str = "a") -> dict[str, Any]:
    return {"id": id, "g": g, "n": n}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([6 * 10**18], [-6 * 10**18]),
        ([LEAST], [3]),
        ([LEAST], [MOST]),
        ([MOST, LEAST, MOST], [LEAST, MOST, LEAST + 1]),
        ([MOST, None], [None, LEAST]),
    ],
)
@pytest.mark.parametrize("by", [", g", ""])
def test_a_sum_that_fits_before_and_after_is_added_to_whatever_the_change_is(
    before: list[int | None], after: list[int | None], by: str
) -> None:
    """The change itself may be more than a BIGINT can be."""
    world = World({"t": TABLE})
    plan = world.create("v", f"SELECT sum(n) AS s, count(*) AS c{by} FROM t{' GROUP BY g' if by else ''}")
    assert plan.nodes[-1].rule == "linear"
    world.step({"t": Change([row(id, n) for id, n in enumerate(before)])})
    world.check("v")
    world.step({"t": Change([row(id, n) for id, n in enumerate(after)])})
    world.check("v")
    world.step({"t": Change((), [(id,) for id in range(len(after))])})
    world.check("v")


def test_a_sum_that_does_not_fit_is_an_error_as_it_is_in_the_query() -> None:
    world = World({"t": TABLE})
    world.create("v", "SELECT g, sum(n) AS s FROM t GROUP BY g")
    world.step({"t": Change([row(1, MOST)])})
    with pytest.raises(duckdb.Error):
        world.step({"t": Change([row(2, 1)])})


def test_the_values_of_an_average_may_add_up_to_more_than_a_bigint() -> None:
    """As in Spark: avg() of two times 6e18 is 6e18. The sum beside it stays one of BIGINT."""
    world = World({"t": TABLE})
    plan = world.create("v", "SELECT g, avg(n) AS a FROM t GROUP BY g")
    world.create("both", "SELECT g, avg(n) AS a, sum(n) AS s FROM t WHERE n < 1000 GROUP BY g")
    assert plan.nodes[-1].rule == "linear"
    world.step({"t": Change([row(1, 6 * 10**18), row(2, 6 * 10**18), row(3, 7, "b")])})
    assert world.stored("v").select(["g", "a"]).sort_by("g").to_pylist() == [
        {"g": "a", "a": 6e18},
        {"g": "b", "a": 7.0},
    ]
    for changes in ([row(1, -(6 * 10**18))], [row(1, 5), row(2, None)], [row(3, None, "b")]):
        world.step({"t": Change(changes)})
        world.check("v")
        world.check("both")
    assert world.stored("both").schema.field("s").type == pa.int64()


def test_sums_of_decimals_with_all_digits_are_exact() -> None:
    type = pa.decimal128(28, 2)
    world = World({"t": TableOf(pa.schema([("id", pa.int64()), ("d", type)]), ("id",))})
    world.create("v", "SELECT sum(d) AS s FROM t")
    most = Decimal("9" * 26 + ".99")
    for values in ([most, most], [-most, most], [-most, -most]):
        world.step({"t": Change([{"id": id, "d": each} for id, each in enumerate(values)])})
        world.check("v")
