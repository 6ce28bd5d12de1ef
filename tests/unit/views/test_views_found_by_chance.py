"""Cases that random queries have found wrong (tests/random_views.py), as small as they could be made."""

from __future__ import annotations

import pytest

from random_views import Case, replay
from view_shop import follows

CASES = {
    "a group that HAVING left out comes back with all of its rows": Case(
        tables={"t0": ({"id": "BIGINT", "g": "STRING", "n": "INT"}, ("id",))},
        sql="SELECT sum(r.s) AS t FROM (SELECT g, sum(n) AS s FROM t0 GROUP BY g HAVING sum(n) > 3) AS r",
        filled=1,
        steps=[{"t0": ([(1, "a", 2)], [])}, {"t0": ([(2, "a", 2)], [])}],
    ),
    "the partition is kept where a window is shown twice": Case(
        tables={"t0": ({"a0": "INT", "a1": "STRING"}, ("a0", "a1"))},
        sql="SELECT r1.c4 AS c9, max(r1.w3) OVER (PARTITION BY r1.w3) AS w7, max(r1.w3) OVER (PARTITION BY r1.w3) AS w8"
        " FROM (SELECT a0 AS c4, rank() OVER (PARTITION BY a1 ORDER BY a1) AS w3 FROM t0) AS r1",
        filled=0,
        steps=[{"t0": ([(1, "a"), (2, "a")], [])}, {"t0": ([(3, "b")], [(1, "a")])}],
    ),
    "ORDER BY may be by a subquery": Case(
        tables={"t0": ({"a0": "INT", "a1": "INT", "a2": "BIGINT"}, ("a0",))},
        sql="SELECT r1.a0 AS c2, (SELECT min(r5.a1) FROM t0 AS r5 WHERE r5.a2 = r1.a2) AS c6 FROM t0 AS r1"
        " ORDER BY c6 DESC, c2 LIMIT 2 OFFSET 1",
        filled=0,
        steps=[{"t0": ([(1, 1, 1), (2, 5, 1), (3, None, 2)], [])}, {"t0": ([(4, 0, 2)], [(1,)])}],
    ),
    "a column that is shown twice, below a window and a filter": Case(
        tables={"t0": ({"b0": "INT", "b1": "BIGINT", "b2": "STRING"}, ("b2",))},
        sql="SELECT * FROM (SELECT r3.c10 AS c13, r3.c11 AS c14, lag(r3.c10) OVER (PARTITION BY r3.c9 ORDER BY r3.c9,"
        " r3.c10, r3.c11) AS w12 FROM (SELECT b0 + 2 AS c9, b1 AS c10, b1 AS c11 FROM t0) AS r3) AS q WHERE w12 <= 2",
        filled=0,
        steps=[{"t0": ([(1, 1, "a"), (1, 2, "b"), (1, 4, "c")], [])}, {"t0": ([(1, 3, "b")], [("a",)])}],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_was_found_once_is_right(case: Case) -> None:
    assert replay(case) is not None


def test_rollup_after_the_columns_is_of_all_of_them() -> None:
    """`GROUP BY g, n WITH ROLLUP` was taken for `GROUP BY g, n`."""
    follows("SELECT g, n, count(*) AS k FROM o GROUP BY g, n WITH ROLLUP", steps=2)
