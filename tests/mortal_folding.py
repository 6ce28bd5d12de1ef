"""The shop's capture as a program of its own, with a worker that folds in a thread and can be killed as a process."""

from __future__ import annotations

import subprocess
import sys
from threading import Thread

from folding import Folding
from tidegate.barrier.cut import Cut
from tidegate.cli import demo_shop_capture
from tidegate.database import engine
from tidegate.pipeline.host import Pipeline


class MortalFolding(Folding):
    """Folds for as long as a process beside it lives, whose id it has; that one ends with this program, too."""

    def __init__(self, pipeline: Pipeline, at: Cut | None) -> None:
        self._beside = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        super().__init__(pipeline, at)
        self.pid = self._beside.pid
        Thread(target=self._die_with_it, daemon=True).start()

    def _die_with_it(self) -> None:
        code = self._beside.wait()
        super().kill()
        self._thread.join()
        self._pipeline.ended(self._term, f"it ended with {code}")

    def kill(self) -> None:
        super().kill()
        self._beside.kill()


if __name__ == "__main__":
    engine.spark_worker = lambda pipeline, _, at: MortalFolding(pipeline, at)  # type: ignore[assignment, return-value]
    sys.exit(demo_shop_capture.main(sys.argv[1:]))
