"""What is handed to Spark for a statement is gone after it, and nobody's views are replaced. Issue 6."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tidegate
from tidegate import DatabaseSettings
from tidegate.spark import query_session
from tidegate.spark.statements import SparkStatements, function_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
ROWS = pa.table({"id": pa.array([1], pa.int64())})
SCHEMAS = dict.fromkeys(("orders", "orders@a", "#1"), ROWS.schema)


def views(session: SparkSession) -> set[str]:
    return {each.viewName for each in session.sql("SHOW VIEWS").collect()}


def test_a_session_that_is_handed_over_keeps_its_views_and_gets_no_others(spark: SparkSession) -> None:
    spark.sql("SELECT 'mine' AS who").createOrReplaceTempView("orders")
    before = views(spark)
    statements = SparkStatements(spark)

    def twice(orders: DataFrame) -> DataFrame:
        return orders.unionAll(orders)

    try:
        for sql in ("SELECT x.id FROM orders x, `orders@a` y, `#1` z", function_query(twice, ("orders",))):
            found = statements(sql, SCHEMAS, lambda _: ROWS)
            assert set(found.column("id").to_pylist()) == {1}
            assert views(statements._session) <= before, "nothing of the statement is left"
            assert statements.types(sql, SCHEMAS).names == ["id"]
        assert [each.who for each in spark.table("orders").collect()] == ["mine"]
        assert views(spark) == before
    finally:
        spark.catalog.dropTempView("orders")


def test_a_query_leaves_no_view_in_the_session_that_it_ran_on(spark: SparkSession, tmp_path: Path) -> None:
    with tidegate.open(tmp_path / "shop.tide", settings=DatabaseSettings(pipeline=False)) as db:
        db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY)")
        db.insert("orders", {"id": 7})
        assert db.query("SELECT id FROM orders", "strong", engine="spark").rows() == [{"id": 7}]
    assert query_session._idle
    assert [views(each) for each in query_session._idle] == [set()] * len(query_session._idle)
