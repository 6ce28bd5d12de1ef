"""The demo's shop, the process that captures it: the owner of the Tidegate database, its pipeline and its views.

What it prints, a line each:

    ready                   the shop's rows are in the log, the views are there, and it follows
    status JSON             how far the capture and the pipeline are, several times a second
    settled TIMESTAMP       everything that the shop had committed before `settle` is visible at this time
    error TEXT              it gives up

On its standard input, `settle` asks for that, `settle checkpoint` for a checkpoint that has it, and `stop` ends it in
good order. The end of that input means that the demo is gone: it ends at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import sleep
from typing import Any, Final

from tidegate.capture.capturing import Capture
from tidegate.cli.demo_shop_app import say
from tidegate.cli.demo_shop_books import TABLES, VIEWS
from tidegate.database.database import Database
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import TidegateError

NAME: Final = "shop"
_REPORT_S: Final = 0.2
_SETTLE_S: Final = 120.0
_OF_PIPELINE: Final = ("worker", "checkpoint", "lag_ms", "last_batch_s", "failure", "waits_for", "uncommitted_epochs")


def make_views(db: Database) -> None:
    """Those that are not there yet."""
    for name, sql in VIEWS.items():
        db.sql(f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name} AS {sql}")


def run(path: Path, source: Path, settings: DatabaseSettings) -> None:
    """Capture until `stop` is heard."""
    heard: Queue[str] = Queue()

    def listen() -> None:
        for line in sys.stdin:
            heard.put(line.strip())
        os._exit(1)

    Thread(target=listen, daemon=True).start()
    with Database(path, name="capture", settings=settings) as db:
        capture = db.capture(f"sqlite:///{source.absolute()}", list(TABLES), name=NAME)
        make_views(db)
        say("ready")
        Thread(target=_report, args=(db, capture), daemon=True).start()
        while (word := _next(heard, capture)) != "stop":
            if word.startswith("settle"):
                capture.catch_up(_SETTLE_S)
                at = db.flush(_SETTLE_S) if word.endswith("checkpoint") else db.backend.now()
                say("settled", int(at))


def _next(heard: Queue[str], capture: Capture) -> str:
    """What is said next. Raises: what has ended the capture."""
    while True:
        try:
            return heard.get(timeout=_REPORT_S)
        except Empty:
            if capture.state == "failed" and capture.error is not None:
                raise capture.error from None


def _report(db: Database, capture: Capture) -> None:
    """Say again and again how it is; until the process ends, and with it this."""
    with suppress(TidegateError):  # The database is closed.
        while True:
            say("status", json.dumps(status(db, capture)))
            sleep(_REPORT_S)


def status(db: Database, capture: Capture) -> dict[str, Any]:
    """What the demo wants to know."""
    pipeline, mine = db.status()["pipeline"], capture.status()
    return {
        "state": mine["state"],
        "transactions": mine["transactions"],
        "rows": mine["rows"],
        "behind": mine["behind"],
        **{name: pipeline.get(name) for name in _OF_PIPELINE},
    }


def main(arguments: Sequence[str]) -> int:
    """Path of the database, path of the shop's, milliseconds between barriers, and `spark` or `no-spark`."""
    path, source, barrier_ms, spark = arguments
    settings = DatabaseSettings(barrier_interval_ms=int(barrier_ms), pipeline=spark == "spark")
    try:
        run(Path(path), Path(source), settings)
    except TidegateError as error:
        say("error", " ".join(str(error).split()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
