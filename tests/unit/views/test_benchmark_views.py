"""TPC-H and Nexmark as views: each equals its query after every transaction (issue 6, proof; design, promise 4).

Each query is a view twice: created before there is any row, and after the first ones. Then rows are put, changed and
deleted, in all tables and in columns that queries join, group and order by.
"""

from __future__ import annotations

import pytest

from benchmark_views import SIZES, WHEN, Run, run
from tidegate.bench.workloads import nexmark, tpch

STILL = {"tpch": {"q15", "q17"}, "nexmark": {"q2"}}
"""Views of few rows, which the changes of the short run leave as they are."""
STEPS, STEP = 2, 250
LONG_STEPS, LONG_STEP = 20, 20


@pytest.mark.parametrize("name", SIZES)
def test_every_query_as_a_view_equals_its_query_after_every_transaction(name: str) -> None:
    found = run(name, STEPS, STEP, seed=1)
    assert not found.wrong, "\n\n".join(found.wrong)
    assert found.shown == set(found.module.QUERIES), "every view has shown rows"
    assert found.still <= STILL[name], "every other view has changed"
    assert all(found.done[each] > 10 for each in ("new", "changed", "deleted")), found.done


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 4))
@pytest.mark.parametrize("name", SIZES)
def test_every_query_as_a_view_equals_its_query_over_a_long_run(name: str, seed: int) -> None:
    found = run(name, LONG_STEPS, LONG_STEP, seed)
    assert not found.wrong, "\n\n".join(found.wrong[:5])


@pytest.mark.parametrize("name", SIZES)
def test_a_view_that_is_not_maintained_would_be_seen(name: str) -> None:
    found = Run(*SIZES[name], 1)
    sql = {"tpch": tpch.QUERIES["q1"], "nexmark": nexmark.QUERIES["q17"]}[name]
    for when in WHEN:
        found.load(when)
    world = found.worlds["after"]
    world.create("v", sql)
    views, world.views = world.views, {}
    found.step(100)
    world.views = views
    found.check()
    assert len(found.wrong) == 1
