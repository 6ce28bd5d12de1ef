"""The law of views: whatever the query and whatever happens to the tables, a maintained view is its query.

Random queries over random schemas (issue 6, "Proof"). A failure prints its case, as small as it could be made: paste it
into tests/unit/views/test_views_found_by_chance.py.
"""

from __future__ import annotations

import os

import pytest

from random_views import Differs, case, replay, smaller

CASES, MORE_CASES = 80, 160
AT_ONCE = 20
FIRSTS = [
    *range(0, CASES, AT_ONCE),
    *(pytest.param(each, marks=pytest.mark.long) for each in range(CASES, MORE_CASES, AT_ONCE)),
]
LONG_CASES = int(os.environ.get("TIDEGATE_RANDOM_VIEWS", "3000"))
FIRST_LONG = int(os.environ.get("TIDEGATE_RANDOM_VIEWS_FROM", "100000"))


def hold(seeds: range) -> int:
    """How many of the seeds had a query that can be a view."""
    held = 0
    for seed in seeds:
        found = case(seed)
        try:
            held += replay(found) is not None
        except Differs:
            replay(smaller(found))
            raise
    return held


@pytest.mark.parametrize("first", FIRSTS)
def test_a_maintained_view_is_its_query(first: int) -> None:
    assert hold(range(first, first + AT_ONCE)) > AT_ONCE // 2


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(FIRST_LONG, FIRST_LONG + LONG_CASES, 100))
def test_many_maintained_views_are_their_queries(first: int) -> None:
    assert hold(range(first, first + 100)) > 50
