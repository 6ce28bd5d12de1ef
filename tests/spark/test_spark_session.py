"""A session of Spark that lives for months keeps little of what it has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERIES = 160
KEPT_MAX = 60
"""Spark's fifty, and those that it has not cleaned away yet."""


def test_a_quick_one_has_room_for_the_code_that_it_compiles(spark: SparkSession) -> None:
    """With one compiler alone Java reserves 48 MB by default, and some thousand plans later the JVM has ended."""
    management = spark._jvm.java.lang.management.ManagementFactory
    pools = [each for each in management.getMemoryPoolMXBeans() if "Code" in each.getName()]
    assert sum(each.getUsage().getMax() for each in pools) >= 200 << 20


def test_what_has_run_is_not_kept_for_ever(spark: SparkSession) -> None:
    """By default the plans of a thousand queries stay in memory, which is more than a small heap has."""
    store = spark._jsparkSession.sharedState().statusStore()
    for number in range(QUERIES):
        spark.sql(f"SELECT {number} AS n").collect()
    eventually(lambda: 0 < store.executionsCount() <= KEPT_MAX, 20)
