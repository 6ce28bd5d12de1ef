"""Random views, maintained step by step, end as Spark's own batch answer to their query (issue 6, "Proof").

What DuckDB and Spark would answer differently does not show in tests/laws/test_random_view_laws.py: here it does.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from random_views import case, replay
from view_world import World, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
SEEDS = range(5000, 5032)
ANSWERED_MIN = 24
AT_ONCE = 4


def test_maintained_views_are_what_spark_answers(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    def ask(seed: int, world: World) -> bool:
        """Whether Spark has an answer; in a session of its own, for the tables are called as the others'."""
        session = spark.newSession()
        plan, sql = world.views["v"]
        for name, table in world.tables.items():
            rows = world.stored(name).select(table.schema.names).cast(table.schema)
            session.createDataFrame(rows).createOrReplaceTempView(name)
        try:
            found = session.sql(sql).toArrow()
        except AnalysisException:  # Spark refuses some correlated subqueries.
            return False
        want, got = rows_of(found), rows_of(world.stored("v").select(plan.columns))
        assert got == want, f"seed {seed}: {sql}\nSpark {want - got}\nview {got - want}\n{case(seed).fixture()}"
        return True

    worlds = {seed: replay(case(seed)) for seed in SEEDS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answered = sum(pool.map(lambda pair: pair[1] is not None and ask(*pair), worlds.items()))
    assert answered >= ANSWERED_MIN
