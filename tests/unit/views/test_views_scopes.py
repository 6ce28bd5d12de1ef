"""What a name in a view's query means: a table, a WITH, a column that was given another name (issue 6, promise 4)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from tidegate.errors import NotFound
from tidegate.views.operators import Scan, Source, walk
from tidegate.views.plan import plan
from view_shop import follows
from view_world import Change, TableOf, World

LONG = pa.int64()
PLAIN = TableOf(pa.schema([("id", LONG), ("n", LONG)]), ("id",))


def sources(*names: str) -> Mapping[str, Source]:
    return {name: Source(name, ("id", "n"), ("id",), {"id": LONG, "n": LONG}) for name in names}


@pytest.mark.parametrize(
    "sql",
    [
        "WITH a AS (SELECT id FROM c), c AS (SELECT id + 3 AS id FROM o) SELECT a.id, c.id AS j FROM a"
        " JOIN c ON a.id = c.id",
        "WITH a AS (SELECT id FROM c) SELECT * FROM (WITH c AS (SELECT id + 3 AS id FROM o) SELECT a.id, c.id AS j"
        " FROM a JOIN c ON a.id = c.id) AS z",
        "WITH b AS (SELECT id FROM c), a AS (SELECT id FROM b) SELECT * FROM (WITH b AS (SELECT id + 3 AS id FROM o)"
        " SELECT a.id, b.id AS j FROM a JOIN b ON a.id = b.id) AS z",
        "WITH a AS (SELECT id FROM c), b AS (WITH a AS (SELECT cu AS id FROM o) SELECT id FROM a)"
        " SELECT a.id, b.id AS j FROM a JOIN b ON a.id = b.id",
        "WITH c AS (SELECT id, lim FROM c WHERE lim > 1) SELECT c.id, count(*) AS k FROM c GROUP BY c.id",
    ],
)
def test_a_with_sees_what_stands_before_it_where_it_is_defined(sql: str) -> None:
    follows(sql)


def test_the_same_text_in_two_withs_may_mean_two_things() -> None:
    """Each is stored by itself: `b` groups another `a` in the one place than in the other."""
    grouped = "b AS (SELECT g, count(*) AS k FROM a GROUP BY g)"
    one = f"(WITH a AS (SELECT g FROM o), {grouped} SELECT * FROM b)"
    other = f"(WITH a AS (SELECT region AS g FROM c), {grouped} SELECT * FROM b)"
    follows(f"SELECT x.g, x.k, y.g AS h FROM {one} AS x JOIN {other} AS y ON x.k = y.k")


def test_a_with_in_a_subquery_is_the_one_that_is_meant() -> None:
    follows(
        "WITH a AS (SELECT id FROM c) SELECT a.id FROM a WHERE a.id IN (WITH a AS (SELECT cu FROM o WHERE n > 2)"
        " SELECT cu FROM a)"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM c AS x(lim, region, id)",
        "SELECT x.a, x.b FROM c AS x(b, r, a)",
        "SELECT a.id, o.g FROM c AS a(lim, region, id) JOIN o ON o.cu = a.lim",
        "WITH q AS (SELECT id, n FROM o) SELECT n FROM q AS r(n, id) WHERE id > 1",
        "SELECT a, count(*) AS k FROM c AS x(b, a, d) GROUP BY a",
    ],
)
def test_columns_of_a_table_may_get_other_names_in_from(sql: str) -> None:
    """Spark 4: `c AS x(lim, region, id)` calls the first column lim."""
    found = follows(sql)
    assert all(each.rule != "full" for each in found.nodes)


def test_a_name_with_a_dot_is_one_name() -> None:
    """`shop.orders` is a table of its own, whatever `orders` is."""
    world = World({"shop.orders": PLAIN, "orders": PLAIN})
    queries = {
        "v1": "SELECT id FROM shop.orders",
        "v2": "SELECT id FROM `shop.orders`",
        "v3": "SELECT o.id FROM shop.orders o JOIN orders p ON o.n = p.n",
        "v4": "SELECT orders.id, orders.n FROM shop.orders",
        "v5": "SELECT g, count(*) AS c FROM (SELECT n AS g FROM shop.orders) GROUP BY g",
        "v6": "WITH orders AS (SELECT id FROM shop.orders) SELECT id FROM orders",
        "v7": "SELECT id, CASE WHEN id IN (SELECT id FROM orders) THEN 1 ELSE 0 END AS h FROM shop.orders",
        "x.v8": "SELECT id, n FROM shop.orders",
        "v9": "SELECT n, sum(id) AS s FROM x.v8 GROUP BY n",
    }
    for name, sql in queries.items():
        world.create(name, sql)
    inputs = {name: found.inputs for name, (found, _) in world.views.items()}
    assert inputs["v1"] == inputs["v2"] == inputs["v4"] == inputs["v5"] == inputs["v6"] == {"shop.orders"}
    assert inputs["v3"] == inputs["v7"] == {"shop.orders", "orders"}
    assert inputs["v9"] == {"x.v8"}
    for number in range(3):
        rows = [{"id": number * 3 + each, "n": each} for each in range(3)]
        world.step({"shop.orders": Change(rows), "orders": Change(rows[:number])})
        for name in queries:
            world.check(name)


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("SELECT id FROM t", {"t"}),
        ("SELECT id FROM T", {"T"}),
        ("SELECT a.id FROM t AS a JOIN T AS b ON a.id = b.id", {"t", "T"}),
        ("SELECT id, n IN (SELECT id FROM T) AS h FROM t", {"t", "T"}),
        ("SELECT id, n IN (SELECT id FROM t) AS h FROM t", {"t"}),
    ],
)
def test_tables_whose_names_differ_by_case_are_two(sql: str, reads: set[str]) -> None:
    """docs: names are told apart by upper and lower case."""
    found = plan(sql, sources("t", "T"))
    assert found.inputs == reads
    scans = {each.relation for node in found.nodes if node.root for each in walk(node.root) if isinstance(each, Scan)}
    assert scans in (reads, set())


def test_a_table_that_only_seems_to_be_there_is_not_found() -> None:
    with pytest.raises(NotFound, match=r"no table 'Shop\.orders'"):
        plan("SELECT id FROM Shop.orders", sources("shop.orders", "orders"))
