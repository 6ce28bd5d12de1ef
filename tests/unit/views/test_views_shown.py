"""What a SELECT shows of groups and windows: DISTINCT of them, IGNORE NULLS, columns of no group (issue 6)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.errors import InvalidArgument
from tidegate.views.define import define
from tidegate.views.definition import Relation
from view_shop import SHOP, follows
from view_world import Change, TableOf, World

RELATIONS = {name: Relation(name, at, 1, table.schema, table.key) for at, (name, table) in enumerate(SHOP.items())}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT count(*) AS c FROM o GROUP BY g",
        "SELECT DISTINCT sum(n) AS s, g FROM o GROUP BY g, cu",
        "SELECT DISTINCT g, count(*) OVER (PARTITION BY g) AS c FROM o",
        "SELECT DISTINCT rank() OVER (PARTITION BY g ORDER BY n) AS r FROM o",
        "SELECT DISTINCT count(*) AS c FROM o GROUP BY g HAVING count(*) > 1",
        "SELECT DISTINCT count(*) AS c FROM o GROUP BY tags",
        "SELECT DISTINCT count(*) AS c FROM o GROUP BY g ORDER BY c DESC LIMIT 2",
        "SELECT DISTINCT max(n) AS c, max(n) AS d FROM o GROUP BY g",
        "SELECT DISTINCT sum(n) AS s FROM o",
        "SELECT DISTINCT count(*) AS c FROM o GROUP BY ROLLUP (g, cu)",
    ],
)
def test_distinct_may_be_of_groups_and_of_windows(sql: str) -> None:
    """Promise 4. What is stored below DISTINCT has a key: that of its groups, or of its rows."""
    found = follows(sql)
    assert all(each.key for each in found.nodes)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, last_value(n) IGNORE NULLS OVER (PARTITION BY g ORDER BY id) AS z FROM o",
        "SELECT cu, max(n) AS m, last_value(max(n)) IGNORE NULLS OVER (PARTITION BY cu ORDER BY g) AS z FROM o"
        " GROUP BY cu, g",
    ],
)
def test_a_window_may_ignore_nulls(sql: str) -> None:
    assert all(each.rule != "full" for each in follows(sql).nodes)


def test_a_window_of_all_rows_may_ignore_nulls() -> None:
    found = follows("SELECT id, last_value(n) IGNORE NULLS OVER (ORDER BY id) AS z FROM o", rules=["full"])
    assert "PARTITION BY" in found.nodes[0].why


def test_an_aggregate_may_ignore_nulls() -> None:
    assert define("SELECT g, first(n) IGNORE NULLS AS f FROM o GROUP BY g", (), RELATIONS).columns == ["g", "f"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT n + 1 AS id, count(*) AS c FROM o GROUP BY id",
        "SELECT n, count(*) AS c FROM o GROUP BY g",
        "SELECT g, CAST(n AS STRING) AS t FROM o GROUP BY g",
        "SELECT n, count(*) AS c FROM o",
        "SELECT c FROM (SELECT n, count(*) AS c FROM o GROUP BY g)",
    ],
)
def test_a_column_that_no_group_has_is_refused(sql: str) -> None:
    """Spark 4 takes GROUP BY id for the table's column, and has no one `n` for a group then."""
    with pytest.raises(InvalidArgument, match=r"view 'view' shows the column 'n' of rows that it groups: GROUP BY it"):
        define(sql, (), RELATIONS)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT n + 1 AS m, count(*) AS c FROM o GROUP BY m",
        "SELECT n + 1 AS m, count(*) AS c FROM o GROUP BY n",
        "SELECT n % 2 AS n, count(*) AS c FROM o GROUP BY n",
        "SELECT 1 + n AS m, count(*) AS c FROM o GROUP BY n + 1, n",
        "SELECT g, count(*) AS n FROM o GROUP BY g ORDER BY n DESC, g LIMIT 2",
        "SELECT cu AS g, max(n) AS n FROM o GROUP BY cu",
    ],
)
def test_what_follows_from_the_groups_is_shown(sql: str) -> None:
    follows(sql, steps=2)


def test_the_fields_of_a_struct_may_be_shown_by_a_star() -> None:
    """Spark 4: `st.*` of a column is its fields, NULLs where it is NULL."""
    fields = pa.struct([("a", pa.int64()), ("b", pa.string())])
    world = World({"t": TableOf(pa.schema([("id", pa.int64()), ("st", fields)]), ("id",))})
    found = world.create("v", "SELECT id, st.* FROM t")
    assert found.columns == ["id", "a", "b"]
    world.step({"t": Change([{"id": 1, "st": {"a": 1, "b": "x"}}, {"id": 2, "st": None}])})
    world.step({"t": Change([{"id": 1, "st": {"a": 2, "b": None}}], [(2,)])})
    world.check("v")
    assert world.stored("v").select(found.columns).to_pylist() == [{"id": 1, "a": 2, "b": None}]
