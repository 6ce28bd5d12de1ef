"""TPC-H and Nexmark as views: each equals its query after every transaction (issue 6, proof; design, promise 4).

Each query is a view twice: created before there is any row, and after the first ones. Then rows are put, changed and
deleted, in all tables and in columns that queries join, group and order by.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from tidegate.bench.workloads import nexmark, tpch, workload
from view_world import Change, TableOf, World, rows_of

SIZES = {"tpch": (tpch, 0.002), "nexmark": (nexmark, 3000)}
"""So many rows that every query has an answer."""
STILL = {"tpch": {"q2", "q5", "q7", "q11", "q14", "q17", "q18", "q19", "q20", "q21"}, "nexmark": {"q2"}}
"""Views that so few changes may leave as they are."""
STEPS, LONG_STEPS = 3, 60


class Run:
    """A workload, its views, and what was wrong."""

    def __init__(self, module: ModuleType, size: float, seed: int) -> None:
        self.module = module
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        """Rows that were put where there was none, in the place of others, and deleted."""
        self.shown: set[str] = set()
        self.tables: dict[str, pa.Table] = module.tables(size, seed)
        self.changes = module.Changes(self.tables, seed)
        self.world = World({name: TableOf(each, tuple(module.KEYS[name])) for name, each in module.SCHEMAS.items()})

    def create(self, when: str) -> None:
        for name, sql in self.module.QUERIES.items():
            self.world.create(f"{name}_{when}", sql)

    def load(self) -> None:
        self.world.step({name: Change(each.to_pylist()) for name, each in self.tables.items()})

    def step(self, size: int) -> None:
        made = self.changes.next(size)
        for each in made:
            before = self.world.stored(each.table).select(list(self.module.KEYS[each.table]))
            found = rows_of(before.join(each.rows.select(before.column_names), before.column_names, join_type="inner"))
            self.done["changed"] += found.total()
            self.done["new"] += each.rows.num_rows - found.total()
            self.done["deleted"] += each.deleted.num_rows
        self.world.step({each.table: change(each) for each in made})

    def check(self) -> None:
        for name in self.world.views:
            try:
                self.world.check(name)
            except AssertionError as error:
                self.wrong.append(str(error))
            if self.world.stored(name).num_rows:
                self.shown.add(name)

    def rows(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return {name: rows_of(self.world.stored(name)) for name in self.world.views}


def change(made: workload.Change) -> Change:
    return Change(made.rows.to_pylist(), [tuple(each.values()) for each in made.deleted.to_pylist()])


def run(name: str, steps: int, size: int, seed: int) -> Run:
    found = Run(*SIZES[name], seed)
    found.create("before")
    found.check()
    found.load()
    found.create("after")
    found.check()
    first = found.rows()
    for _ in range(steps):
        found.step(size)
        found.check()
    last = found.rows()
    still = {each for each in first if first[each] == last[each]}
    allowed = {f"{each}_{when}" for each in STILL[name] for when in ("before", "after")}
    assert still <= allowed, f"no change has come to {sorted(still - allowed)}: the run proves nothing of them"
    return found


@pytest.mark.parametrize("name", SIZES)
def test_every_query_as_a_view_equals_its_query_after_every_transaction(name: str) -> None:
    found = run(name, STEPS, 40, seed=1)
    assert not found.wrong, "\n\n".join(found.wrong)
    assert found.shown == set(found.world.views), "every view has shown rows"
    assert all(found.done[each] > 10 for each in ("new", "changed", "deleted")), found.done


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("name", SIZES)
def test_every_query_as_a_view_equals_its_query_over_a_long_run(name: str, seed: int) -> None:
    found = run(name, LONG_STEPS, 15, seed)
    assert not found.wrong, "\n\n".join(found.wrong[:5])


@pytest.mark.parametrize("name", SIZES)
def test_a_view_that_is_not_maintained_would_be_seen(name: str) -> None:
    found = Run(*SIZES[name], 1)
    sql = {"tpch": tpch.QUERIES["q1"], "nexmark": nexmark.QUERIES["q17"]}[name]
    found.load()
    found.world.create("v", sql)
    views, found.world.views = found.world.views, {}
    found.step(100)
    found.world.views = views
    found.check()
    assert len(found.wrong) == 1
