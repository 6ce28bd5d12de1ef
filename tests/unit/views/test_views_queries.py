"""Views with windows, first rows, subqueries, WITH and other views (issue 6, "covered incrementally").

Each is equal to its query at every step of random transactions (design.md, promise 4).
"""

from __future__ import annotations

import pytest

from view_shop import follows

LINEAR, KEYS, FULL = "linear", "affected keys", "full"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, row_number() OVER (PARTITION BY g ORDER BY x DESC, id) AS rn FROM o",
        "SELECT id, lag(n) OVER (PARTITION BY g ORDER BY id) AS p, lead(n, 2, 0) OVER (PARTITION BY g ORDER BY id) AS q"
        " FROM o",
        "SELECT id, sum(n) OVER (PARTITION BY g ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM o",
        "SELECT id, ntile(2) OVER w AS t, first_value(n) OVER w AS f FROM o WINDOW w AS (PARTITION BY g ORDER BY id)",
        "SELECT id, count(*) OVER (PARTITION BY coalesce(g, 'none')) AS k FROM o",
    ],
)
def test_windows_are_computed_anew_for_the_partitions_that_changed(sql: str) -> None:
    follows(sql, rules=[KEYS])


def test_windows_of_several_partitions_follow_one_another() -> None:
    follows("SELECT id, sum(n) OVER (PARTITION BY g) AS a, max(n) OVER (PARTITION BY cu) AS b FROM o", rules=[KEYS] * 2)


def test_windows_may_be_of_groups() -> None:
    follows("SELECT g, sum(n) AS s, rank() OVER (PARTITION BY count(*) ORDER BY g) AS r FROM o GROUP BY g")


@pytest.mark.parametrize("over", ["()", "(ORDER BY id)"])
def test_a_window_of_all_rows_is_computed_in_full(over: str) -> None:
    found = follows(f"SELECT id, sum(n) OVER {over} AS s FROM o", rules=[FULL])
    assert "PARTITION BY" in found.nodes[0].why


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, g, x FROM (SELECT id, g, x, row_number() OVER (PARTITION BY g ORDER BY x DESC, id) AS rn FROM o)"
        " WHERE rn <= 2",
        "SELECT g, n FROM (SELECT g, n, dense_rank() OVER (PARTITION BY g ORDER BY n DESC) AS r FROM o) WHERE r <= 2",
        "SELECT id FROM o QUALIFY row_number() OVER (PARTITION BY g ORDER BY n, id) = 1",
    ],
)
def test_the_first_rows_of_each_group(sql: str) -> None:
    found = follows(sql)
    assert found.nodes[0].rule == KEYS


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, x FROM o ORDER BY x DESC, id LIMIT 5",
        "SELECT id, n FROM o ORDER BY n DESC NULLS LAST, id LIMIT 3 OFFSET 2",
        "SELECT p, sum(qty) AS q FROM l GROUP BY p ORDER BY q DESC, p LIMIT 2",
        "SELECT DISTINCT g FROM o ORDER BY g LIMIT 2",
        "SELECT id, (SELECT count(*) FROM l WHERE l.od = o.id) AS k FROM o ORDER BY k DESC, id LIMIT 3",
        "SELECT id FROM o UNION ALL SELECT id FROM c ORDER BY id LIMIT 4",
    ],
)
def test_a_view_with_order_and_limit_holds_those_rows(sql: str) -> None:
    follows(sql)


@pytest.mark.parametrize(
    "condition",
    [
        "EXISTS (SELECT 1 FROM c WHERE c.id = o.cu AND c.lim > o.n)",
        "EXISTS (SELECT 1 FROM c WHERE c.id = o.cu LIMIT 1)",
        "NOT EXISTS (SELECT 1 FROM l WHERE l.od = o.id)",
        "EXISTS (SELECT 1 FROM c WHERE lim > 4)",
        "cu IN (SELECT id FROM c WHERE lim > 1)",
        "(cu, n) IN (SELECT id, lim FROM c)",
        "n NOT IN (SELECT lim FROM c)",
        "cu NOT IN (SELECT id FROM c WHERE region = 'n')",
        "n > 3 OR EXISTS (SELECT 1 FROM c WHERE c.id = o.cu)",
        "n > 3 OR cu IN (SELECT id FROM c WHERE lim < 4)",
        "n > (SELECT avg(n) FROM o i WHERE i.g = o.g)",
        "n > (SELECT avg(lim) FROM c)",
        "n > (SELECT max(lim) - 2 FROM c WHERE c.id <= 3)",
        "cu IN (SELECT id FROM c WHERE EXISTS (SELECT 1 FROM l WHERE l.od = c.id))",
    ],
)
def test_conditions_with_subqueries_are_joins(condition: str) -> None:
    found = follows(f"SELECT id FROM o WHERE {condition}")
    assert found.nodes[-1].rule != FULL


@pytest.mark.parametrize(
    "value",
    [
        "(SELECT count(*) FROM l WHERE l.od = o.id)",
        "(SELECT max(qty) FROM l WHERE l.od = o.id)",
        "(SELECT region FROM c WHERE c.id = o.cu)",
        "(SELECT sum(lim) FROM c)",
        "EXISTS (SELECT 1 FROM l WHERE l.od = o.id)",
        "n + (SELECT sum(qty * 2) FROM l WHERE l.od = o.id AND l.p = 'q')",
    ],
)
def test_values_of_subqueries_are_joined(value: str) -> None:
    found = follows(f"SELECT id, {value} AS v FROM o")
    assert found.nodes[-1].rule != FULL


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT id, cu IN (SELECT id FROM c WHERE lim > 2) AS big FROM o", "IN (SELECT"),
        ("SELECT id FROM o WHERE NOT (n > 3 OR cu IN (SELECT id FROM c))", "IN (SELECT"),
        ("SELECT id, (SELECT sum(qty) + count(*) FROM l WHERE l.od = o.id) AS m FROM o", "a count"),
        ("SELECT id, (SELECT max(qty) FROM l WHERE l.od < o.id) AS m FROM o", "linked by"),
        ("SELECT id FROM o WHERE n IN (SELECT count(*) FROM l WHERE l.od = o.id GROUP BY p)", "groups"),
        ("SELECT tags, cu IN (SELECT id FROM c WHERE lim > 2) AS big FROM o", "IN (SELECT"),
    ],
)
def test_what_no_rule_covers_is_computed_in_full_and_says_why(sql: str, why: str) -> None:
    found = follows(sql, rules=[FULL], steps=3)
    assert why in found.nodes[0].why


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT c.region, t.s FROM c JOIN (SELECT cu AS c, sum(n) AS s FROM o GROUP BY cu) t ON t.c = c.id",
        "SELECT region, avg(s) AS a, max(k) AS k FROM (SELECT cu AS c, sum(n) AS s, count(*) AS k FROM o GROUP BY cu) t"
        " JOIN c ON t.c = c.id GROUP BY region",
        "SELECT a.g, b.region FROM (SELECT DISTINCT g FROM o) a CROSS JOIN (SELECT DISTINCT region FROM c) b",
        "SELECT g, max(k) AS m FROM (SELECT g, cu, count(*) AS k FROM o GROUP BY g, cu) GROUP BY g",
        "WITH a AS (SELECT g, n FROM o WHERE n > 1), b AS (SELECT g, count(*) AS k FROM a GROUP BY g)"
        " SELECT a.g, a.n, b.k FROM a JOIN b ON a.g = b.g",
        "WITH a AS (SELECT cu AS c, sum(amt) AS s FROM o GROUP BY cu)"
        " SELECT x.c, x.s FROM a x JOIN (SELECT max(s) AS m FROM a) y ON x.s = y.m",
        "SELECT m, count(*) AS c FROM (SELECT k, max(s) AS m FROM (SELECT cu AS k, g, sum(n) AS s FROM o"
        " GROUP BY cu, g) GROUP BY k) GROUP BY m",
    ],
)
def test_queries_may_nest(sql: str) -> None:
    follows(sql)


def test_a_with_that_groups_is_stored_once() -> None:
    grouped = "SELECT g, count(*) AS k FROM o GROUP BY g"
    found = follows(f"WITH a AS ({grouped}) SELECT x.g, y.k FROM a x JOIN a y ON x.k = y.k")
    assert len(found.nodes) == 2


def test_views_may_read_views() -> None:
    first = "SELECT g, cu, sum(n) AS s FROM o GROUP BY g, cu"
    second = "SELECT g, max(s) AS m, count(*) AS k FROM v0 GROUP BY g"
    third = "SELECT v0.g, v0.cu, v1.m FROM v0 LEFT JOIN v1 ON v0.g = v1.g AND v0.s = v1.m"
    follows(first, second, third, rules=[KEYS])
