"""The pipeline's worker on a SparkSession that the user has: the same driver, in a thread of this process.

Spark's Python workers must be able to import this package and to reach the database's directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from tidegate.barrier.cut import Cut
from tidegate.pipeline.host import Pipeline
from tidegate.pipeline.spark_worker import FOLD
from tidegate.pipeline.upkeep import Upkeep
from tidegate.pipeline.view_stage import ViewStage, with_views
from tidegate.spark.cuts import CutFile, Point
from tidegate.spark.driver import Batch, Driver
from tidegate.spark.statements import SparkStatements
from tidegate.spark.worker import Orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_worker(session: SparkSession) -> Callable[[Pipeline, Path, Cut | None], SessionWorker]:
    """What to give a pipeline so that it runs on this session."""
    return lambda pipeline, work, at: SessionWorker(session, pipeline, work, at)


class SessionWorker:
    """Speaks with the pipeline as the worker's process does. The session stays the user's: it is never stopped."""

    def __init__(self, session: SparkSession, pipeline: Pipeline, work: Path, at: Cut | None) -> None:
        self.pid = os.getpid()
        self._pipeline = pipeline
        self._term = pipeline.current_term
        query = work / "query"
        query.mkdir(parents=True, exist_ok=True)
        self._cuts = CutFile(query / "cuts")
        self._orders = Orders(self._cuts)
        self._stage = ViewStage(pipeline.path, pipeline.store, spark=SparkStatements(session), say=self._say)
        self._driver = Driver(
            session,
            pipeline.path,
            query,
            FOLD,
            self._finish,
            start=Point() if at is None else Point(at.epoch, at.timestamp),
            channels=tuple(pipeline.channels),
            arguments={"channels": len(pipeline.channels)},
        )
        self._upkeep = Upkeep(pipeline.path, pipeline.store, pipeline.settings.snapshot_retention_s)
        self._thread = Thread(target=self._run, name="tidegate-spark", daemon=True)
        self._thread.start()

    def send(self, message: dict[str, Any]) -> bool:
        """Say something to it; False when it has ended."""
        self._orders.take(message)
        return self._thread.is_alive()

    def stop(self, timeout_s: float = 30.0) -> None:
        """End it between two batches."""
        self._orders.take({"stop": True})
        self._thread.join(timeout_s)
        self._upkeep.stop(timeout_s)

    def kill(self) -> None:
        """As `stop`, without waiting: a thread cannot be killed."""
        self._orders.take({"stop": True})

    def _say(self, facts: dict[str, Any]) -> None:
        if not self._orders.is_stopped:
            self._pipeline.heard(self._term, facts)

    def _finish(self, batch: Batch) -> None:
        found = with_views(self._stage, batch.first, batch.last, self._cuts.read(batch.last), batch.reports)
        batch = replace(batch, reports=tuple(found))
        self._pipeline.heard(self._term, {"batch": batch.to_json()})
        self._orders.wait_committed(batch.last)

    def _run(self) -> None:
        why = "it was stopped"
        try:
            self._driver.start()
            self._upkeep.start()
            while self._driver.is_active and not self._orders.wait_stop(0.5):
                pass
            if self._orders.is_stopped:
                self._driver.stop()
            else:
                self._driver.wait(1.0)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        self._stage.close()
        self._pipeline.ended(self._term, why)
