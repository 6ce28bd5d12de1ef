"""EXPLAIN MATERIALIZED VIEW leaves nothing unexplained: node, rule, reason, key, columns and statements (issue 6)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tidegate.views.definition import Relation
from tidegate.views.explain import MOST, explain
from view_shop import SHOP

RELATIONS = {name: Relation(name, at, 1, table.schema, table.key) for at, (name, table) in enumerate(SHOP.items())}


def explained(sql: str) -> list[dict[str, Any]]:
    return explain(sql, (), RELATIONS, "v")


def test_each_node_says_what_it_is_and_what_it_follows() -> None:
    rows = explained("SELECT region, sum(amt) AS t FROM o JOIN c ON o.cu = c.id GROUP BY region HAVING sum(amt) > 5")
    assert [(each["node"], each["rule"], each["when_changes"]) for each in rows] == [
        ("v#1", "linear", "c"),
        ("v#1", "linear", "o"),
        ("v#1", "linear", MOST),
        ("v", "linear", "v#1"),
        ("v", "linear", MOST),
    ]
    assert rows[0]["stored_for"] == "HAVING leaves groups out of it"
    assert rows[-1]["stored_for"] == "it is the view"
    assert rows[0]["key"] == "c_region"
    assert "_a0 (how many rows)" in rows[0]["stores"]


def test_every_relation_of_a_statement_is_said_to_be_something() -> None:
    (first, _) = explained("SELECT id, n FROM o WHERE n > 1")
    assert "-- `o@d`: the rows of o that changed: _w is -1 for one as it was, 1 for one as it is" in first["sql"]
    assert "-- #1:\nSELECT" in first["sql"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT id, cu IN (SELECT id FROM c) AS b FROM o", "no rule covers o_cu IN .* where NULL is another answer"),
        (
            "SELECT id, (SELECT max(qty) FROM l WHERE l.od < o.id) AS m FROM o",
            "linked by l_od < o_id, and not by",
        ),
        ("SELECT id, sum(n) OVER () AS s FROM o", "a window without PARTITION BY is one of all rows"),
    ],
)
def test_what_is_computed_in_full_says_why(sql: str, why: str) -> None:
    rows = explained(sql)
    assert {each["rule"] for each in rows} == {"full"}
    assert re.search(why, rows[0]["why"]), rows[0]["why"]
