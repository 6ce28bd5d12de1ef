"""Views that pass changes through row by row: filters, projections, joins and unions.

Each is equal to its query at every step of random transactions, made before the data and after it: promise 4.
"""

from __future__ import annotations

import pytest

from view_shop import follows

LINEAR, KEYS = "linear", "affected keys"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM o WHERE n > 2",
        "SELECT id, cu * 2 AS c2, upper(g) AS g FROM o",
        "SELECT id, CASE WHEN n > 2 THEN 'a' END AS w, coalesce(g, 'none') AS gg, date_trunc('hour', ts) AS h FROM o",
        "SELECT id, named_struct('a', g, 'b', n) AS s, map('n', n) AS m, tags FROM o",
        "SELECT s.a, s.b + 1 AS b FROM (SELECT named_struct('a', g, 'b', n) AS s FROM o WHERE n IS NOT NULL)",
        "SELECT id, id AS again, n + 1 AS one, n + 1 AS same FROM o",
        "SELECT * FROM e",
        "SELECT 1 AS one",
        "SELECT a, b FROM VALUES (1, 'x'), (2, NULL) AS t(a, b)",
    ],
)
def test_filters_and_projections_pass_changes_through(sql: str) -> None:
    follows(sql, rules=[LINEAR])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT o.id, c.region, o.amt FROM o JOIN c ON o.cu = c.id",
        "SELECT id, region FROM o JOIN c USING (id)",
        "SELECT id, region FROM o NATURAL JOIN c",
        "SELECT o.id, l.line, c.region FROM o, l, c WHERE o.id = l.od AND o.cu = c.id AND l.qty > 2",
        "SELECT o.id FROM o JOIN c ON o.cu = c.id AND o.n < c.lim WHERE o.g = 'a'",
        "SELECT o.id, c.id AS c FROM o CROSS JOIN c WHERE o.n < c.lim",
        "SELECT o.id, t.b FROM o JOIN (VALUES (1, 'x'), (2, 'y')) AS t(a, b) ON o.n = t.a",
    ],
)
def test_an_inner_join_joins_each_change_with_what_it_meets(sql: str) -> None:
    follows(sql, rules=[LINEAR])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a.id AS x, b.id AS y FROM o a JOIN o b ON a.cu = b.cu AND a.id < b.id",
        "SELECT a.who, b.what FROM e a JOIN e b ON a.who = b.who",
        "SELECT a.id FROM o a JOIN o b ON a.id = b.cu JOIN o c ON b.id = c.cu JOIN o d ON c.id = d.cu JOIN o e"
        " ON d.n = e.n",
    ],
)
def test_a_table_may_be_joined_with_itself(sql: str) -> None:
    follows(sql, rules=[LINEAR])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT o.id, c.region FROM o LEFT JOIN c ON o.cu = c.id AND c.lim > 2",
        "SELECT o.id, c.region FROM o RIGHT JOIN c ON o.cu = c.id",
        "SELECT o.id AS oid, c.id AS cid, c.region FROM o FULL JOIN c ON o.cu = c.id",
        "SELECT id, region FROM o FULL JOIN c USING (id)",
        "SELECT id FROM o LEFT SEMI JOIN c ON o.cu = c.id",
        "SELECT id FROM o LEFT ANTI JOIN c ON o.cu = c.id AND o.n < c.lim",
        "SELECT o.id, c.region, l.p FROM o LEFT JOIN c ON o.cu = c.id LEFT JOIN l ON l.od = o.id AND l.qty > c.lim",
    ],
)
def test_rows_whose_partners_changed_are_joined_anew(sql: str) -> None:
    follows(sql, rules=[KEYS])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, g FROM o UNION ALL SELECT id, region FROM c",
        "SELECT id, n FROM o UNION ALL SELECT id, lim FROM c UNION ALL SELECT od, qty FROM l",
        "SELECT who FROM e UNION ALL SELECT who FROM e UNION ALL SELECT id FROM c",
        "SELECT id AS k, CAST(n AS DOUBLE) AS v FROM o UNION ALL SELECT id, lim FROM c",
    ],
)
def test_union_all_keeps_every_row_of_every_side(sql: str) -> None:
    follows(sql, rules=[LINEAR])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, t FROM o LATERAL VIEW explode(tags) x AS t",
        "SELECT id, t FROM o LATERAL VIEW OUTER explode(tags) x AS t",
        "SELECT id, p, t FROM o LATERAL VIEW posexplode(tags) x AS p, t",
        "SELECT id, explode(array(n, cu)) AS e FROM o",
    ],
)
def test_explode_gives_a_row_for_each_element(sql: str) -> None:
    follows(sql, rules=[LINEAR])


def test_a_view_may_have_many_columns() -> None:
    wide = ", ".join(f"n + {number} AS n{number}" for number in range(60))
    found = follows(f"SELECT id, {wide} FROM o", rules=[LINEAR], steps=2)
    assert len(found.columns) == 61


def test_a_union_may_have_many_sides() -> None:
    sql = " UNION ALL ".join(f"SELECT id, n + {number} AS n FROM o" for number in range(20))
    follows(sql, rules=[LINEAR], steps=2)


def test_columns_may_have_any_name() -> None:
    sql = "SELECT id AS `a b`, n AS `a.b`, g AS `a``b`, cu AS `SELECT`, x AS `Upper`, amt AS `ü\"'` FROM o"
    on_it = "SELECT `a``b`, `SELECT`, sum(`a.b`) AS `the sum`, max(`Upper`) AS `MAX` FROM v0 GROUP BY `a``b`, `SELECT`"
    found = follows(sql, on_it)
    assert found.columns == ["a`b", "SELECT", "the sum", "MAX"]
