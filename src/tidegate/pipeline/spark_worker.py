"""How the owner starts the worker that runs on Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.barrier.cut import Cut
from tidegate.pipeline.child import Child, python_command

if TYPE_CHECKING:
    from tidegate.pipeline.host import Pipeline

FOLD: Final = "tidegate.pipeline.fold:fold"


def spark_worker(pipeline: Pipeline, work: Path, at: Cut | None) -> Child:
    """Start the process. It begins behind the cut `at`, and is told the next ones."""
    term, channels = pipeline.current_term, pipeline.channels
    command = python_command(
        "tidegate.spark.worker",
        str(pipeline.path),
        "--work",
        str(work),
        "--fold",
        FOLD,
        "--arguments",
        json.dumps({"channels": len(channels)}),
        "--retention-s",
        str(pipeline.settings.snapshot_retention_s),
        "--start-epoch",
        str(0 if at is None else at.epoch),
        "--start-timestamp",
        str(0 if at is None else int(at.timestamp)),
    )
    if pipeline.settings.spark_ui:
        command.append("--ui")
    for name, value in pipeline.settings.spark_options.items():
        command += ["--conf", f"{name}={value}"]
    for name in channels:
        command += ["--channel", name]
    return Child(
        command,
        log=pipeline.path / "pipeline" / "worker.log",
        on_message=lambda message: pipeline.heard(term, message),
        on_end=lambda why: pipeline.ended(term, why),
    )
