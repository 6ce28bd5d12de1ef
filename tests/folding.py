"""A pipeline's worker as a thread, without Spark: told what the real one is told, folding with the real fold."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

from tidegate.barrier.cut import Cut, decode_cut
from tidegate.pipeline.fold import fold
from tidegate.pipeline.host import Pipeline
from tidegate.pipeline.view_stage import ViewStage, with_views

Crash = Callable[[str, int], bool]
"""Whether to die at a point ("folded", "reported"), in an epoch."""


@dataclass(frozen=True)
class Share:
    database: str
    channel: str
    first: int
    last: int
    after: int
    upto: int
    position: int
    catalog_version: int
    arguments: dict[str, Any]


class Folding:
    """Folds every span it is handed, until it is stopped or told to crash."""

    def __init__(self, pipeline: Pipeline, at: Cut | None, crash: Crash = lambda *_: False) -> None:
        self.pid = os.getpid()
        self._pipeline = pipeline
        self._term = pipeline.current_term
        self._at = at
        self._crash = crash
        self._stage = ViewStage(pipeline.path, pipeline.store, say=self._say)
        self._told: Queue[dict[str, Any]] = Queue()
        self._thread = Thread(target=self._run, name="folding", daemon=True)
        self._thread.start()

    def send(self, message: dict[str, Any]) -> bool:
        self._told.put(message)
        return self._thread.is_alive()

    def stop(self, timeout_s: float = 10.0) -> None:
        self.kill()
        self._thread.join(timeout_s)

    def kill(self) -> None:
        self._told.put({"stop": True})

    def _say(self, facts: dict[str, Any]) -> None:
        self._pipeline.heard(self._term, facts)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._stage.close()

    def _work(self) -> None:
        why = "it was stopped"
        while True:
            message = self._told.get()
            if "stop" in message:
                return
            if "cut" not in message:
                continue
            cut = decode_cut(json.dumps(message["cut"]).encode())
            if self._at is not None and cut.epoch <= self._at.epoch:
                continue
            try:
                if not self._fold(cut):
                    why = "it crashed as it was told to"
                    break
            except Exception as error:
                why = repr(error)
                break
        self._pipeline.ended(self._term, why)

    def _fold(self, cut: Cut) -> bool:
        before = self._at
        reports = []
        for channel in self._pipeline.channels:
            place = None if before is None else before.places.get(channel)
            share = Share(
                str(self._pipeline.path),
                channel,
                1 if before is None else before.epoch + 1,
                cut.epoch,
                0 if before is None else int(before.timestamp),
                int(cut.timestamp),
                0 if place is None else place.position,
                cut.catalog_version,
                {"channels": len(self._pipeline.channels)},
            )
            reports += [{"channel": channel, **json.loads(json.dumps(each))} for each in fold(share)]
        if self._crash("folded", cut.epoch):
            return False
        first = 1 if before is None else before.epoch + 1
        reports = with_views(self._stage, first, cut.epoch, cut, reports)
        batch = {"id": 0, "first": first, "last": cut.epoch, "seconds": 0.0, "reports": reports}
        self._pipeline.heard(self._term, {"batch": batch})
        self._at = cut
        return not self._crash("reported", cut.epoch)


def folding(crash: Crash = lambda *_: False) -> Callable[[Pipeline, Path, Cut | None], Folding]:
    """What to give a pipeline as its `start_worker`."""
    return lambda pipeline, _, at: Folding(pipeline, at, crash)
