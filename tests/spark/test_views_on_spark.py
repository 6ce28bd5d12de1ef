"""Views through the real worker: DuckDB's share, Spark's share, functions of DataFrames; a worker that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidegate
from helpers import eventually
from tidegate import Database, DatabaseSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.slow
FLUSH_S = 180.0
BY_REGION = (
    "SELECT c.region, sum(o.amount) AS total FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.region"
)


@pytest.fixture(scope="module")
def db(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    settings = DatabaseSettings(barrier_interval_ms=600_000)
    with tidegate.open(tmp_path_factory.mktemp("views") / "shop.tide", settings=settings) as db:
        db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT, amount BIGINT)")
        db.sql("CREATE TABLE customers (id BIGINT PRIMARY KEY, name STRING, region STRING)")
        db.insert("customers", [{"id": id, "name": f"name {id}", "region": "nesw"[id % 4]} for id in range(40)])
        db.insert("orders", [{"id": id, "customer": id % 40, "amount": id} for id in range(400)])
        yield db


def stored(db: Database, sql: str) -> list[dict[str, Any]]:
    """A view's rows at the checkpoint that holds all that was written."""
    db.flush(FLUSH_S)
    found = db.query(sql, "eventual")
    assert set(found.views.values()) == {"stored"}
    return found.rows()


def change(db: Database, turn: int) -> None:
    with db.transaction() as txn:
        txn.upsert("orders", [{"id": id, "customer": (id + turn) % 50, "amount": turn} for id in range(0, 400, 7)])
        txn.delete("orders", list(range(turn, 400, 31)))
        txn.upsert("customers", [{"id": turn, "name": f"again {turn}", "region": None}])


def test_a_view_is_its_query_at_every_checkpoint_and_the_worker_may_be_killed(db: Database) -> None:
    """Promise 4, and 6: a batch that was cut short is done again, and once."""
    db.sql(f"CREATE MATERIALIZED VIEW by_region AS {BY_REGION}")
    for turn in range(3):
        change(db, turn)
        found = stored(db, "SELECT * FROM by_region ORDER BY region")
        at = db.query("SELECT 1", "eventual").timestamp
        assert found == db.query(f"{BY_REGION} ORDER BY region", "eventual").rows(), at
        if turn == 1:
            before = db.status()["pipeline"]["worker"]
            change(db, 10)
            os.kill(before, signal.SIGKILL)
            eventually(lambda: db.engine.pipeline.failure is not None, 60.0, "the death of the worker is noticed")


def test_what_only_spark_can_compute_is_kept_up_to_date_by_spark(db: Database) -> None:
    """The same rules: a change passes through, computed by Spark, as EXPLAIN says."""
    db.sql("CREATE MATERIALIZED VIEW sounds AS SELECT id, soundex(name) AS sound FROM customers")
    assert {each["rule"] for each in db.sql("EXPLAIN MATERIALIZED VIEW sounds")} == {"linear"}
    assert (
        len(stored(db, "SELECT * FROM sounds"))
        == db.query("SELECT count(*) AS n FROM customers", "strong").rows()[0]["n"]
    )
    db.upsert("customers", [{"id": 1, "name": "Robert", "region": "n"}])
    assert stored(db, "SELECT sound FROM sounds WHERE id = 1") == [{"sound": "R163"}]


def test_a_function_of_data_frames_is_a_view(db: Database) -> None:
    """Recomputed whenever something it reads changes; EXPLAIN says so."""

    def large(orders: DataFrame, customers: DataFrame) -> DataFrame:
        joined = orders.join(customers, orders.customer == customers.id).where(orders.amount > 100)
        return joined.groupBy("region").count()

    db.create_view("large", large)
    assert {each["rule"] for each in db.sql("EXPLAIN MATERIALIZED VIEW large")} == {"full"}
    sql = "SELECT c.region, count(*) AS count FROM orders o JOIN customers c ON o.customer = c.id WHERE o.amount > 100"
    for turn in (20, 21):
        change(db, turn)
        want = f"{sql} GROUP BY c.region ORDER BY region"
        assert stored(db, "SELECT * FROM large ORDER BY region") == db.query(want, "eventual").rows()
    found = db.query("SELECT sum(count) AS n FROM large", "strong")
    assert found.views == {"large": "stored"}


def test_a_function_that_fails_stops_its_view_alone(db: Database, tmp_path: Path) -> None:
    flag = str(tmp_path / "fail")

    def fragile(customers: DataFrame) -> DataFrame:
        if Path(flag).exists():
            raise ValueError("the flag is up")
        return customers.select("id", "region")

    db.create_view("fragile", fragile)
    assert stored(db, "SELECT * FROM fragile")
    Path(flag).touch()
    change(db, 30)
    db.flush(FLUSH_S)
    with pytest.raises(tidegate.TidegateError, match="the flag is up"):
        db.query("SELECT * FROM fragile", "eventual")
    assert db.query("SELECT count(*) AS n FROM customers", "eventual").rows()[0]["n"]
    Path(flag).unlink()
    db.sql("ALTER MATERIALIZED VIEW fragile RESUME")
    assert (
        len(stored(db, "SELECT * FROM fragile"))
        == db.query("SELECT count(*) AS n FROM customers", "eventual").rows()[0]["n"]
    )


def test_spark_reads_a_view_at_a_checkpoint(db: Database, spark: Any) -> None:
    db.sql(f"CREATE MATERIALIZED VIEW IF NOT EXISTS by_region AS {BY_REGION}")
    mine = stored(db, "SELECT * FROM by_region ORDER BY region")
    frame = spark.read.format("tidegate").option("path", str(db.path)).option("table", "by_region")
    found = frame.option("consistency", "eventual").load()
    assert found.columns == ["region", "total"]
    assert sorted(map(str, (each.asDict() for each in found.collect()))) == sorted(map(str, mine))
