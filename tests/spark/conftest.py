"""What the tests on Spark share: one session for all of them, folds that its workers can import, and recorded cuts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_paths import HERE, PATH

import tidegate
from database_rig import quick
from tidegate import Timestamp
from tidegate.barrier.cut import Cut, Epoch, Place
from tidegate.database.database import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NOT_OURS = (
    # Spark 4.3 says so at every import, and of nothing that is used here.
    "ignore:PySpark does not yet fully support pandas:FutureWarning",
    # Spark's own sockets to its JVM, closed by the collector.
    "ignore:unclosed <socket:ResourceWarning",
    # py4j's pipe to the JVM, which ends with it.
    "ignore:unclosed file <_io.BufferedWriter:ResourceWarning",
    "ignore:subprocess .* is still running:ResourceWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for each in NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(each))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    import warnings

    from tidegate.spark.session import QUICK_JVM, start_session, stop_session
    from tidegate.spark.source import register

    work = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        options = {"spark.executorEnv.PYTHONPATH": PATH, "spark.driver.extraJavaOptions": QUICK_JVM}
        session = start_session(work, options, cores=2, memory_mb=3072)  # Four queries of TPC-H at once.
    register(session)
    yield session
    stop_session(session, work)


class Bench:
    """A database, and its cuts as the barrier clock would record them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db: Database = tidegate.open(path, settings=quick())
        self.cuts: list[Cut] = []

    def cut(self) -> Cut:
        """Everything before is in it, everything after is not."""
        engine = self.db.engine
        ticks = {name: engine.log.channel(name, create=False).latest_tick for name in engine.channels}
        now = Timestamp(int(engine.log.allocate(1)))
        engine.wait_until_visible(now)
        places = {name: Place(tick.last_confirmed, tick.time_tick) for name, tick in ticks.items()}
        since = self.cuts[-1].timestamp if self.cuts else Timestamp.ZERO
        self.cuts.append(Cut(Epoch(len(self.cuts) + 1), since, now, places))
        return self.cuts[-1]

    def send(self, topic: str, *values: object) -> None:
        """All of them in one transaction, each with its own text as key."""
        with self.db.transaction() as txn:
            for value in values:
                txn.send(topic, value, key=str(value))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "shop.tide")
    yield bench
    bench.db.close()
