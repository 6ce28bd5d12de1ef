"""Queries of TPC-H and Nexmark as views of a database: stored with each checkpoint, equal to the query (promise 4).

All 49 are maintained in tests/unit/views/test_benchmark_views.py; these go through transactions, the fold, files and
reads too. They cover what views store in other ways: sums, extremes, first rows, windows of time, sessions, semi-joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from view_rig import Shop

from helpers import eventually
from tidegate import Database
from tidegate.bench.workloads import nexmark, tpch
from view_world import rows_of

CHOSEN = {
    "tpch": (tpch, 0.0005, ("q1", "q2", "q10", "q13", "q15", "q22")),
    "nexmark": (nexmark, 1000, ("q5", "q6", "q8", "q11", "q19", "q102", "q104", "q105", "q106")),
}
STEPS, STEP = 2, 40


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.tide", monkeypatch)
    yield found
    found.close()


@pytest.mark.parametrize("name", CHOSEN)
def test_queries_of_benchmarks_created_before_and_after_the_data_equal_their_queries(name: str, shop: Shop) -> None:
    module, size, queries = CHOSEN[name]
    db, tables = shop.db, module.tables(size)
    for each in module.__dict__[name.upper()].ddl():
        db.sql(each)
    create(db, module, queries, "before")
    db.flush()
    check(shop, module, queries, "before")
    with db.transaction() as txn:
        for table, rows in tables.items():
            txn.insert(table, rows)
    db.flush()
    create(db, module, queries, "after")
    db.flush()
    check(shop, module, queries, "before", "after")
    changes = module.Changes(tables)
    for _ in range(STEPS):
        with db.transaction() as txn:
            for table, rows, deleted in changes.next(STEP):
                txn.upsert(table, rows)
                txn.delete(table, deleted)
        db.flush()
        check(shop, module, queries, "before", "after")


def create(db: Database, module: ModuleType, queries: tuple[str, ...], when: str) -> None:
    """All of them in one batch."""
    db.engine.pipeline.pause()
    for each in queries:
        db.sql(f"CREATE MATERIALIZED VIEW {each}_{when} AS {module.QUERIES[each]}")
    db.engine.pipeline.resume()


def check(shop: Shop, module: ModuleType, queries: tuple[str, ...], *when: str) -> None:
    """At the newest checkpoint a view's stored rows are what its query gives at that Timestamp."""
    names = [f"{query}_{each}" for query in queries for each in when]
    eventually(lambda: all(getattr(shop.state(each), "state", "") == "live" for each in names), 60, f"{names} live")
    with shop.db.snapshot("eventual") as cut:
        for query in queries:
            want = rows_of(cut.query(module.QUERIES[query]).to_arrow())
            for name in (f"{query}_{each}" for each in when):
                found = cut.query(f"SELECT * FROM {name}")
                assert found.views == {name: "stored"}
                got = rows_of(found.to_arrow())
                assert got == want, f"{name}: too many {got - want}, missing {want - got}"
