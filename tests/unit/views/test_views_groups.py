"""Views that group: aggregates of every kind, HAVING, grouping sets, windows of time, DISTINCT and set operations.

Each is equal to its query at every step of random transactions (design.md, promise 4).
"""

from __future__ import annotations

import pytest

from view_shop import follows

LINEAR, KEYS, FULL = "linear", "affected keys", "full"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, sum(n) AS s, count(*) AS k, count(n) AS cn, avg(n) AS a FROM o GROUP BY g",
        "SELECT g, sum(amt) AS s, avg(amt) AS a FROM o GROUP BY g",
        "SELECT g, sum(n * 2 + 1) AS s, avg(n + 1) AS a, sum(amt * n) AS m, count_if(n > 2) AS c FROM o GROUP BY g",
        "SELECT g, count(*) FILTER (WHERE n > 2) AS k, sum(n) FILTER (WHERE x > 1) AS s FROM o GROUP BY g",
        "SELECT sum(n) AS s, count(*) AS k FROM o",
        "SELECT count(*) AS k FROM o, c",
        "SELECT sum(n) AS s FROM o WHERE g = 'nowhere'",
        "SELECT n % 3 AS m, count(*) AS k FROM o GROUP BY n % 3",
        "SELECT sum(amt) / count(*) AS r FROM o GROUP BY CASE WHEN n > 2 THEN 'hi' ELSE 'lo' END",
        "SELECT who, what, count(*) AS k, sum(v) AS s FROM e GROUP BY who, what",
        "SELECT region, sum(amt) AS total, count(*) AS k FROM o JOIN c ON o.cu = c.id GROUP BY region",
        "SELECT c.region, sum(l.qty) AS q FROM c LEFT JOIN o ON o.cu = c.id LEFT JOIN l ON l.od = o.id GROUP BY region",
        "SELECT g, count(*) AS k FROM o GROUP BY ALL",
        "SELECT t, count(*) AS k FROM o LATERAL VIEW explode(tags) x AS t GROUP BY t",
        "SELECT c, count(*) AS k FROM (SELECT cu AS c FROM o UNION ALL SELECT id FROM c) GROUP BY c",
    ],
)
def test_sums_and_counts_are_added_to(sql: str) -> None:
    follows(sql, rules=[LINEAR])


@pytest.mark.parametrize(
    "calls",
    [
        "sum(x) AS s, avg(x) AS a",
        "min(n) AS mi, max(amt) AS ma, max(g) AS mg",
        "count(DISTINCT cu) AS d, count(DISTINCT n, cu) AS dd, sum(DISTINCT n) AS s",
        "stddev(x) AS s, stddev_pop(n) AS p, var_samp(x) AS v, corr(n, x) AS c",
        "collect_set(n) AS s, collect_list(n) AS l, array_agg(cu) AS a",
        "percentile(n, 0.5) AS p, median(n) AS m",
        "bool_and(n > 1) AS b, bit_or(n) AS o, bool_or(n IS NULL) AS some",
        "max_by(g, id) AS m, min_by(x, id) AS n",
        "sum(x) FILTER (WHERE n > 2) AS s, count(DISTINCT n) FILTER (WHERE x > 1) AS d",
        "sum(n) AS s, min(n) AS m, count(*) AS k",
    ],
)
def test_other_aggregates_are_right_for_each_group_that_changed(calls: str) -> None:
    found = follows(f"SELECT g, {calls} FROM o GROUP BY g")
    assert FULL not in [each.rule for each in found.nodes]


@pytest.mark.parametrize("call", ["max(n)", "min(x)", "collect_list(n)", "stddev(n)", "count(DISTINCT g)"])
def test_aggregates_of_all_rows_are_right(call: str) -> None:
    follows(f"SELECT {call} AS a FROM o")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, sum(amt) AS total FROM o GROUP BY g HAVING sum(amt) > 5",
        "SELECT count(*) AS k FROM o HAVING count(*) > 5",
        "SELECT g, max(n) AS m FROM o GROUP BY g HAVING max(n) > 3 AND count(*) > 1",
        "SELECT g, sum(n) AS s FROM o GROUP BY g HAVING sum(n) > (SELECT avg(lim) FROM c)",
        # A group comes back with all of its rows, also where HAVING stands in a subquery, a WITH or below a window.
        "SELECT sum(s) AS t FROM (SELECT cu, sum(n) AS s FROM o GROUP BY cu HAVING sum(n) > 2)",
        "WITH a AS (SELECT g, count(*) AS k FROM o GROUP BY g HAVING count(*) > 2) SELECT x.g FROM a x, a y",
        "SELECT g, rank() OVER (PARTITION BY sum(n) ORDER BY g) AS r FROM o GROUP BY g HAVING sum(n) > 3",
    ],
)
def test_having_keeps_what_it_leaves_out_for_later(sql: str) -> None:
    found = follows(sql)
    assert FULL not in [each.rule for each in found.nodes]


@pytest.mark.parametrize(
    "by",
    [
        "ROLLUP (g, cu)",
        "CUBE (g, cu)",
        "GROUPING SETS ((g), (cu), ())",
        "g, cu WITH ROLLUP",
        "g, cu WITH CUBE",
        "g, ROLLUP (cu)",
    ],
)
def test_each_grouping_set_has_its_groups(by: str) -> None:
    follows(f"SELECT g, cu, count(*) AS k, sum(n + 1) AS s FROM o GROUP BY {by}", rules=[LINEAR])


def test_grouping_says_which_columns_a_row_is_grouped_by() -> None:
    follows(
        "SELECT g, cu, max(n) AS m, grouping(g) AS gg, grouping_id() AS id FROM o GROUP BY CUBE (g, cu)",
        steps=3,
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT window.start AS s, window.end AS e, count(*) AS k FROM o GROUP BY window(ts, '10 minutes')",
        "SELECT window, sum(n) AS k FROM o GROUP BY window(ts, '10 minutes')",
        "SELECT g, window(ts, '10 minutes', '5 minutes').start AS s, count(*) AS k FROM o"
        " GROUP BY g, window(ts, '10 minutes', '5 minutes')",
        "SELECT window.end AS e, count(*) AS k FROM o GROUP BY window(ts, '20 minutes', '5 minutes')",
    ],
)
def test_windows_of_time_are_groups(sql: str) -> None:
    follows(sql, rules=[LINEAR])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT g, cu FROM o",
        "SELECT DISTINCT who, v FROM e",
        "SELECT DISTINCT x FROM o",
        "SELECT g FROM o UNION SELECT region FROM c",
    ],
)
def test_distinct_counts_the_rows_that_are_the_same(sql: str) -> None:
    follows(sql, rules=[LINEAR])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT cu AS k FROM o EXCEPT SELECT id FROM c",
        "SELECT g FROM o MINUS SELECT region FROM c",
        "SELECT cu AS k, n FROM o INTERSECT SELECT id, lim FROM c",
        "SELECT who FROM e EXCEPT ALL SELECT v FROM e",
        "SELECT cu AS k FROM o EXCEPT ALL SELECT id FROM c",
        "SELECT who FROM e INTERSECT ALL SELECT id FROM c",
    ],
)
def test_except_and_intersect_are_decided_for_each_row_that_changed(sql: str) -> None:
    follows(sql, rules=[KEYS])


def test_set_operations_may_follow_one_another() -> None:
    follows("SELECT g, n FROM o UNION SELECT region, lim FROM c UNION ALL SELECT p, qty FROM l", rules=[LINEAR, LINEAR])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT tags FROM o",
        "SELECT tags, count(*) AS k FROM o GROUP BY tags",
        "SELECT named_struct('a', g, 'b', n) AS st, count(*) AS k FROM o GROUP BY named_struct('a', g, 'b', n)",
        "SELECT array(named_struct('a', g, 'b', tags)) AS a, max(n) AS k FROM o"
        " GROUP BY array(named_struct('a', g, 'b', tags))",
        "SELECT tags FROM o EXCEPT SELECT array(p) FROM l",
        "SELECT t.tags, c.region, t.k FROM (SELECT tags, cu, count(*) AS k FROM o GROUP BY tags, cu) t"
        " JOIN c ON c.id = t.cu",
        "SELECT s.a, count(*) AS k FROM (SELECT named_struct('a', g) AS s FROM o) GROUP BY s.a",
    ],
)
def test_groups_of_nested_values_are_told_apart_by_plain_keys(sql: str) -> None:
    """A node's key may not be nested: `World` refuses one that is."""
    found = follows(sql)
    assert FULL not in [each.rule for each in found.nodes]
