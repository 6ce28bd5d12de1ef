"""TPC-H and Nexmark: what views hold after a run equals Spark's own answer over the tables (issue 6, proof)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from test_benchmark_queries import AT_ONCE, SETTINGS, differences

from benchmark_views import SIZES, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEP = 250


@pytest.fixture
def quick_spark(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


@pytest.mark.parametrize("name", SIZES)
def test_after_a_run_every_view_holds_what_spark_answers(name: str, quick_spark: SparkSession) -> None:
    found = Run(*SIZES[name], seed=1, when=["before"])
    found.create("before")
    found.load("before")
    found.step(STEP)
    queries = found.module.QUERIES
    for table, rows in found.changes.tables().items():
        quick_spark.createDataFrame(rows).createOrReplaceTempView(table)
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            expected = dict(zip(queries, pool.map(lambda sql: quick_spark.sql(sql).toArrow(), queries.values())))
    finally:
        for table in found.tables:
            quick_spark.catalog.dropTempView(table)
    wrong = {each: differences(stored(found, each), expected[each]) for each in queries}
    assert not any(wrong.values()), "\n".join(f"{each}: {why}" for each, why in wrong.items() if why)


def stored(found: Run, view: str) -> pa.Table:
    world = found.worlds["before"]
    plan = world.views[view][0]
    types = plan.nodes[-1].types
    return world.stored(view).select(plan.columns).cast(pa.schema([(each, types[each]) for each in plan.columns]))
