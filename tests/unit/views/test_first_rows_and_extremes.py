"""First rows, min() and max() are merged with the change; all rows are looked at only where one of them is lost.

Issue 6: the cost of an epoch follows the change; a view with ORDER BY and LIMIT n holds those n rows.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.views.plan import plan
from view_world import Change, TableOf, World

TABLE = TableOf(pa.schema([("id", pa.int64()), ("g", pa.string()), ("x", pa.int64())]), ("id",))
TOP = "SELECT id, g FROM t ORDER BY x DESC, id LIMIT 3"
LEAST = "SELECT min(x) AS least, max(x) AS most, count(*) AS n FROM t"
GROUPED = "SELECT g, min(x) AS least, max(x) AS most FROM t GROUP BY g"
ROWS = [(1, "a", 10), (2, "a", 20), (3, "b", 30), (4, "b", 40), (5, "c", 50)]


def world(sql: str, rows: list[tuple[Any, ...]] = ROWS) -> World:
    found = World({"t": TABLE})
    found.step({"t": Change([dict(zip(TABLE.schema.names, each)) for each in rows])})
    found.create("v", sql)
    return found


def reads_all(found: World, *rows: tuple[Any, ...], deletes: tuple[int, ...] = ()) -> bool:
    """Make a change, compare the view with its query, and say whether rows that did not change were read for it."""
    found.step({"t": Change([dict(zip(TABLE.schema.names, each)) for each in rows], [(each,) for each in deletes])})
    found.check("v")
    return any("`t@a`" in each for each in found.statements)


def test_a_row_that_comes_is_merged_with_the_first_ones() -> None:
    found = world(TOP)
    assert not reads_all(found, (6, "d", 45)), "among them"
    assert not reads_all(found, (7, "d", 1)), "behind them"
    assert not reads_all(found, (8, "d", 50)), "beside one of them"


def test_a_row_that_goes_from_behind_the_first_ones_changes_nothing() -> None:
    assert not reads_all(world(TOP), deletes=(1,))


def test_where_one_of_the_first_rows_goes_the_next_is_found_among_all() -> None:
    found = world(TOP)
    assert reads_all(found, deletes=(5,))
    assert reads_all(found, (4, "b", 0)), "it is there still, and not among the first"


def test_a_row_that_goes_is_made_up_for_by_one_that_comes() -> None:
    found = world(TOP)
    assert not reads_all(found, (9, "z", 35), deletes=(4,))
    assert not reads_all(found, (5, "e", 51)), "it moves within the first"
    assert reads_all(found, (9, "z", 5)), "it moves behind the last"


def test_fewer_rows_than_are_wanted_are_all_rows() -> None:
    found = world(TOP, ROWS[:2])
    assert not reads_all(found, deletes=(2,))
    assert not reads_all(found, (2, "a", 1), (3, "b", 2), (4, "b", 3), (5, "c", 4))
    assert found.stored("v").num_rows == 3


def test_first_rows_of_a_join_are_taken_of_rows_that_are_stored() -> None:
    sql = "SELECT a.id FROM t AS a JOIN t AS b ON a.id = b.x ORDER BY a.x, a.id, b.id LIMIT 2"
    found = plan(sql, world(TOP)._sources, name="v").nodes
    assert [each.rule for each in found] == ["linear", "affected keys"]
    assert found[-1].reads == {"v#1"}


def test_rows_behind_an_offset_are_found_anew_and_it_is_said() -> None:
    (found,) = plan(f"{TOP} OFFSET 1", world(TOP)._sources).nodes
    assert found.rule == "full" and "OFFSET" in found.why


@pytest.mark.parametrize("sql", [LEAST, GROUPED])
def test_an_extreme_stays_unless_it_is_taken_away(sql: str) -> None:
    found = world(sql)
    assert not reads_all(found, (6, "a", 15), (7, "b", 60), (8, "x", 0)), "better ones come"
    assert not reads_all(found, (9, "a", 15)), "one in the middle comes"
    assert not reads_all(found, deletes=(6, 9)), "those in the middle go"
    assert not reads_all(found, (7, "b", 70)), "the greatest gets greater"
    assert reads_all(found, (7, "b", 35)), "the greatest gets less"
    assert reads_all(found, deletes=(1,)) == (sql is GROUPED), "10 is the least of its group, not of all"


def test_of_many_groups_only_those_that_lost_an_extreme_are_computed_anew() -> None:
    found = world(GROUPED)
    assert reads_all(found, (2, "a", 5), (9, "b", 99))
    lost = [each for each in found.statements if "LEFT SEMI JOIN" in each and "`t@a`" in each]
    assert len(lost) == 1, "the rows of lost groups"


def test_a_group_that_is_gone_is_not_looked_for() -> None:
    assert not reads_all(world(GROUPED), deletes=(5,))


def test_without_rows_there_is_no_extreme() -> None:
    found = world(LEAST)
    assert reads_all(found, deletes=(1, 2, 3, 4, 5))
    assert found.stored("v").select(["least", "most", "n"]).to_pylist() == [{"least": None, "most": None, "n": 0}]
    assert not reads_all(found, (1, "a", 7))


def test_values_that_are_null_are_no_extremes() -> None:
    found = world(GROUPED, [(1, "a", None), (2, "a", 5), (3, None, None)])
    assert not reads_all(found, (4, "a", None), (5, None, 7))
    assert reads_all(found, (2, "a", None))


def test_a_count_of_distinct_values_is_kept_by_value() -> None:
    """A value that is there once more, or once less, changes nothing."""
    found = world("SELECT count(DISTINCT g) AS values, count(*) AS n, sum(x) AS s, max(x) AS most FROM t")
    assert not reads_all(found, (6, "a", 1), (7, "z", 2))
    assert not reads_all(found, deletes=(6, 7))
    assert not reads_all(found, (8, None, 3)), "NULL is no value"
    assert found.stored("v").to_pylist()[0]["values"] == 3


@pytest.mark.parametrize(("digits", "rule"), [(15, "linear"), (20, "full")])
def test_an_average_of_decimals_is_rounded_once(digits: int, rule: str) -> None:
    """0.01 / 20001 is 0.000000499975: with ten places a half, which six places would round up."""
    found = World({"t": TableOf(pa.schema([("id", pa.int64()), ("y", pa.decimal128(digits, 2))]), ("id",))})
    found.create("v", "SELECT avg(y) AS a FROM t")
    found.step({"t": Change([{"id": each, "y": Decimal(0 if each else "0.01")} for each in range(20001)])})
    found.check("v")
    assert found.views["v"][0].nodes[-1].rule == rule
