"""The queries of TPC-H and Nexmark as views in worlds (`view_world`), with their data and its changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa

from tidegate.bench.workloads import nexmark, tpch, workload
from tidegate.reads.translate import Translated
from view_world import Change, TableOf, World, rows_of

SIZES = {"tpch": (tpch, 0.002), "nexmark": (nexmark, 3000)}
"""So many rows that every query has an answer."""
WHEN = ("before", "after")
"""Views are created before there is any row, and in another world after the first ones."""


class Run:
    """A workload, its tables and views in each world, and what was wrong."""

    def __init__(self, module: ModuleType, size: float, seed: int, when: Sequence[str] = WHEN) -> None:
        self.module = module
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        """Rows that were put where there was none, in the place of others, and deleted."""
        self.shown: set[str] = set()
        self.still: set[str] = set()
        """Views that hold at the end what they held at the beginning."""
        self.tables: dict[str, pa.Table] = module.tables(size, seed)
        self.changes = module.Changes(self.tables, seed)
        tables = {name: TableOf(each, tuple(module.KEYS[name])) for name, each in module.SCHEMAS.items()}
        translated: dict[tuple[str, ...], Translated] = {}
        self.worlds = {each: World(tables, translated) for each in when}

    def create(self, when: str) -> None:
        for name, sql in self.module.QUERIES.items():
            self.worlds[when].create(name, sql)

    def load(self, when: str) -> None:
        self.worlds[when].step({name: Change(each.to_pylist()) for name, each in self.tables.items()})

    def step(self, size: int) -> None:
        made = self.changes.next(size)
        for each in made:
            before = self.worlds["before"].stored(each.table).select(list(self.module.KEYS[each.table]))
            found = before.join(each.rows.select(before.column_names), before.column_names, join_type="inner")
            self.done["changed"] += found.num_rows
            self.done["new"] += each.rows.num_rows - found.num_rows
            self.done["deleted"] += each.deleted.num_rows
        for world in self.worlds.values():
            world.step({each.table: change(each) for each in made})

    def check(self) -> None:
        for when, world in self.worlds.items():
            for name in world.views:
                try:
                    world.check(name)
                except AssertionError as error:
                    self.wrong.append(f"created {when} the data, {error}")
                if world.stored(name).num_rows:
                    self.shown.add(name)

    def rows(self) -> dict[str, Counter[tuple[Any, ...]]]:
        world = self.worlds["before"]
        return {name: rows_of(world.stored(name)) for name in world.views}


def change(made: workload.Change) -> Change:
    return Change(made.rows.to_pylist(), [tuple(each.values()) for each in made.deleted.to_pylist()])


def run(name: str, steps: int, size: int, seed: int) -> Run:
    found = Run(*SIZES[name], seed)
    found.create("before")
    found.check()
    for when in WHEN:
        found.load(when)
    found.create("after")
    found.check()
    first = found.rows()
    for _ in range(steps):
        found.step(size)
        found.check()
    last = found.rows()
    found.still = {each for each in first if first[each] == last[each]}
    return found
