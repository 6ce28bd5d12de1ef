"""Subqueries in views: what they give where no row is linked, and where they may stand (issue 6, promise 4)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.errors import InvalidArgument
from tidegate.views.define import define
from tidegate.views.definition import Relation
from tidegate.views.names import subqueries_in
from tidegate.views.operators import Plan, expressions, walk
from view_shop import SHOP, follows

FULL = "full"
RELATIONS = {name: Relation(name, at, 1, table.schema, table.key) for at, (name, table) in enumerate(SHOP.items())}
VALUES = [
    "coalesce(sum(qty), 0)",
    "count(*) FILTER (WHERE qty > 3)",
    "count(qty)",
    "collect_list(qty)",
    "CASE WHEN sum(qty) > 3 THEN 'many' ELSE 'few' END",
    "max(qty) IS NULL",
    "max(qty) - min(qty)",
    "count(DISTINCT p)",
    "coalesce(max(p), 'none')",
]


def is_taken_apart(found: Plan) -> bool:
    """No node is computed in full, and none has a query left in it as text."""
    ops = [op for node in found.nodes if node.root is not None for op in walk(node.root)]
    return all(each.rule != FULL for each in found.nodes) and not any(
        subqueries_in(each) for op in ops for each in expressions(op)
    )


@pytest.mark.parametrize("value", VALUES)
def test_an_expression_over_no_linked_rows_is_that_of_empty_aggregates(value: str) -> None:
    """Issue 6, promise 4: `coalesce(sum(qty), 0)` is 0 where an order has no lines, and not NULL."""
    assert is_taken_apart(follows(f"SELECT id, (SELECT {value} FROM l WHERE l.od = o.id) AS s FROM o"))


@pytest.mark.parametrize(
    "condition",
    [
        "(SELECT coalesce(max(qty), 7) FROM l WHERE l.od = o.id) > 3",
        "n * (SELECT coalesce(sum(qty), 0) + 1 FROM l WHERE l.od = o.id) < 9",
        "(SELECT max(qty) IS NULL FROM l WHERE l.od = o.id)",
    ],
)
def test_a_condition_too_is_of_the_row_around_the_subquery(condition: str) -> None:
    assert is_taken_apart(follows(f"SELECT id FROM o WHERE {condition}"))


def test_a_scalar_subquery_whose_only_row_is_passed_over_is_null() -> None:
    """Promise 4: OFFSET 1 leaves nothing of one row."""
    follows("SELECT id, (SELECT max(qty) FROM l WHERE l.od = o.id ORDER BY 1 LIMIT 1 OFFSET 1) AS s FROM o", steps=2)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, sum(n * (SELECT max(lim) FROM c)) AS k FROM o GROUP BY g",
        "SELECT g, sum((SELECT max(lim) FROM c WHERE c.id = o.cu)) AS k FROM o GROUP BY g",
        "SELECT g, max((SELECT region FROM c WHERE c.id = o.cu)) AS k, count(*) AS m FROM o GROUP BY g",
        "SELECT sum(n + (SELECT coalesce(sum(qty), 0) FROM l WHERE l.od = o.id)) AS k FROM o",
        "SELECT region, sum(n * (SELECT max(lim) FROM c)) AS k FROM o JOIN c ON c.id = o.cu GROUP BY region",
        "SELECT g, count(*) AS k FROM o GROUP BY g HAVING max(n + (SELECT min(lim) FROM c)) > 3",
        "SELECT g, count(CASE WHEN EXISTS (SELECT 1 FROM l WHERE l.od = o.id) THEN 1 END) AS k FROM o GROUP BY g",
        "SELECT g, count(*) FILTER (WHERE EXISTS (SELECT 1 FROM l WHERE l.od = o.id)) AS k FROM o GROUP BY g",
    ],
)
def test_what_an_aggregate_is_given_may_be_a_subquery(sql: str) -> None:
    """Issue 6: it is joined before rows are grouped, and what it reads is read by the view."""
    found = follows(sql)
    assert len(found.inputs) == 2
    assert is_taken_apart(found)


def test_a_subquery_within_an_aggregate_is_joined_once_for_all_who_name_it() -> None:
    value = "sum(n * (SELECT max(lim) FROM c))"
    found = follows(f"SELECT g, {value} AS a, {value} + 1 AS b FROM o GROUP BY g HAVING {value} > 0")
    assert sum(each.reads == {"c"} for each in found.nodes) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS k FROM o GROUP BY n + (SELECT count(*) FROM c)",
        "SELECT g, count(*) FILTER (WHERE n IN (SELECT lim FROM c)) AS k FROM o GROUP BY g",
        "SELECT id, t FROM o LATERAL VIEW explode(array((SELECT max(lim) FROM c), n)) z AS t",
        "SELECT id FROM o QUALIFY row_number() OVER (PARTITION BY g ORDER BY id) > (SELECT count(*) - 2 FROM c)",
        "SELECT id FROM o ORDER BY n + (SELECT coalesce(max(c.id), 0) FROM c), id LIMIT 3",
    ],
)
def test_a_subquery_anywhere_else_is_followed_too(sql: str) -> None:
    """Issue 6, promise 4: joined, or computed in full; its table is an input of the view either way."""
    assert follows(sql).inputs == {"o", "c"}


def test_the_tables_of_a_subquery_within_an_aggregate_cannot_be_dropped_unnoticed() -> None:
    found = define("SELECT g, sum(n * (SELECT max(lim) FROM c)) AS k FROM o GROUP BY g", (), RELATIONS)
    assert set(found.inputs) == {"o", "c"}
    assert found.used["c"] == {"lim"}
    assert [each.type for each in found.nodes[-1].columns][:2] == [pa.string(), pa.int64()]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g, (SELECT max(lim) FROM c WHERE c.region = o.g) AS m, count(*) AS k FROM o GROUP BY g",
        "SELECT g, n, (SELECT max(lim) FROM c WHERE c.region = o.g) AS m, count(*) AS k FROM o GROUP BY ROLLUP (g, n)",
        "SELECT g, count(*) AS k FROM o GROUP BY g HAVING count(*) > (SELECT count(*) FROM c WHERE c.region = o.g)",
        "SELECT g, (SELECT max(o.id) FROM o WHERE o.n > 1) AS m FROM o GROUP BY g",
    ],
)
def test_a_subquery_may_be_of_groups(sql: str) -> None:
    """Promise 4: what cannot be taken apart well is computed in full."""
    follows(sql, steps=2)


def test_a_subquery_of_groups_that_is_linked_by_what_only_rows_have_is_refused() -> None:
    sql = "SELECT upper(g) AS u, (SELECT max(lim) FROM c WHERE c.region = upper(o.g)) AS m FROM o GROUP BY upper(g)"
    with pytest.raises(InvalidArgument, match="the column 'g' of rows that it groups: GROUP BY it too"):
        define(sql, (), RELATIONS)
