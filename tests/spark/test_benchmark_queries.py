"""TPC-H and Nexmark: DuckDB answers every query as Spark does (issue 6, proof: what views are compared with).

The tables are those behind some transactions, so that rows were changed and taken away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from tidegate.bench.workloads import nexmark, tpch
from tidegate.reads.translate import SETUP, as_spark, translate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {"spark.sql.leafNodeDefaultParallelism": "1", "spark.sql.shuffle.partitions": "1"}
AT_ONCE = 4
TRANSACTIONS = 10
WORKLOADS = {"tpch": (tpch, 0.002), "nexmark": (nexmark, 3000)}


def changed(name: str) -> dict[str, pa.Table]:
    module, size = WORKLOADS[name]
    changes = module.Changes(module.tables(size))
    for _ in range(TRANSACTIONS):
        changes.next()
    return changes.tables()


def rows(answer: pa.Table) -> list[tuple[Any, ...]]:
    """In one order, by everything that is exact."""
    found = list(zip(*(each.to_pylist() for each in answer.columns)))
    return sorted(found, key=lambda row: repr([f"{each:.6g}" if isinstance(each, float) else each for each in row]))


def differences(ours: pa.Table, theirs: pa.Table) -> str:
    """What is not the same; "": nothing. Floats may differ in the last digits: sums are added in another order."""
    if ours.column_names != theirs.column_names:
        return f"columns {ours.column_names} and {theirs.column_names}"
    if ours.schema.types != theirs.schema.types:
        return f"types {ours.schema.types} and {theirs.schema.types}"
    if ours.num_rows != theirs.num_rows:
        return f"{ours.num_rows} rows and {theirs.num_rows}"
    for mine, other in zip(rows(ours), rows(theirs)):
        for a, b in zip(mine, other):
            same = math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
            if not same:
                return f"{mine} and {other}"
    return ""


@pytest.fixture(params=WORKLOADS, scope="module")
def workload(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[tuple[Any, dict[str, pa.Table]]]:
    """A workload, and its tables; Spark knows them too."""
    module, _ = WORKLOADS[request.param]
    tables = changed(request.param)
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    for name, table in tables.items():
        spark.createDataFrame(table).createOrReplaceTempView(name)
    yield module, tables
    for name in tables:
        spark.catalog.dropTempView(name)
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def test_every_query_has_an_answer_and_it_is_sparks(
    workload: tuple[Any, dict[str, pa.Table]], spark: SparkSession
) -> None:
    module, tables = workload
    with ThreadPoolExecutor(AT_ONCE) as pool:
        expected = dict(zip(module.QUERIES, pool.map(lambda sql: spark.sql(sql).toArrow(), module.QUERIES.values())))
    wrong = {}
    with duckdb.connect() as duck:
        for each in SETUP:
            duck.execute(each)
        for name, table in tables.items():
            duck.register(name, table)
        for name, sql in module.QUERIES.items():
            translated = translate(sql, module.SCHEMAS)
            found = as_spark(duck.sql(translated.sql).to_arrow_table(), translated)
            assert found.num_rows and any(each.null_count < found.num_rows for each in found.columns), name
            wrong[name] = differences(found, expected[name])
    assert not any(wrong.values()), "\n".join(f"{name}: {why}" for name, why in wrong.items() if why)


def test_a_difference_would_be_seen() -> None:
    one = pa.table({"a": [1, 2], "b": [0.1, 0.2]})
    assert differences(one, pa.table({"a": [2, 1], "b": [0.2, 0.1 + 1e-15]})) == ""
    assert differences(one, pa.table({"a": [1, 2], "b": [0.1, 0.2000001]}))
    assert differences(one, pa.table({"a": [1, 2], "b": [0.2, 0.1]}))
    assert differences(one, pa.table({"a": [1], "b": [0.1]}))
    assert differences(one, pa.table({"a": ["1", "2"], "b": [0.1, 0.2]}))
