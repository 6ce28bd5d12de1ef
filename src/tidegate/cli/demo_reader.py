"""The demo's reader: counts what it gets and checks the order. Run as a module it is the second process,

which knows nothing but the log's directory: `python -m tidegate.cli.demo_reader PATH {"CHANNEL": AFTER}`. It prints its
counts as JSON, a line every tenth of a second, and ends once it has read up to the TimeTicks it is given on stdin.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from threading import Thread
from typing import Final

import numpy as np

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import TidegateError
from tidegate.runtime.channel_reader import ChannelReader, Delivery
from tidegate.runtime.log import LogFiles

_REPORT_EVERY_S: Final = 0.1
_IDLE_S: Final = 0.01


@dataclass(slots=True)
class Count:
    """What one reader got of one channel."""

    rows: int = 0
    in_order: bool = True
    last: int = 0
    """TimeTick of the last row."""
    tick: int = 0
    error: str | None = None

    def add(self, delivery: Delivery) -> None:
        """Count a delivery; every TimeTick must be above all before it and none above the delivery's tick."""
        for batch in delivery.batches:
            ticks = batch.time_ticks
            self.in_order = self.in_order and int(ticks[0]) > self.last and bool(np.all(ticks[1:] > ticks[:-1]))
            self.last = int(ticks[-1])
            self.rows += len(batch)
        tick = int(delivery.tick.time_tick)
        self.in_order = self.in_order and self.last <= tick and self.tick < tick
        self.tick = tick


def read_all(
    readers: Mapping[str, ChannelReader],
    counts: Mapping[str, Count],
    targets: Callable[[], Mapping[str, int]],
    report: Callable[[], None],
) -> None:
    """Read all channels in turn until each has reached its target, once there are targets."""
    while True:
        idle = True
        for name, reader in readers.items():
            try:
                delivery = reader.poll()
            except TidegateError as error:
                counts[name].error = str(error)
                report()
                return
            if delivery is not None:
                idle = False
                counts[name].add(delivery)
        report()
        wanted = targets()
        if wanted and all(reader.after >= wanted[name] for name, reader in readers.items()):
            return
        if idle:
            time.sleep(_IDLE_S)


def main() -> None:
    files, after = LogFiles(sys.argv[1]), json.loads(sys.argv[2])
    readers = {name: files.reader(name, after=Timestamp(tick)) for name, tick in after.items()}
    counts = {name: Count() for name in readers}
    targets: dict[str, int] = {}
    due = 0.0

    def show() -> None:
        print(json.dumps({name: asdict(count) for name, count in counts.items()}), flush=True)

    def report() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _REPORT_EVERY_S
            show()

    def listen() -> None:
        # An empty line means that the demo is gone: then any target will do.
        targets.update(json.loads(sys.stdin.readline() or "null") or dict.fromkeys(readers, 0))

    Thread(target=listen, daemon=True).start()
    read_all(readers, counts, lambda: targets, report)
    show()


if __name__ == "__main__":
    main()
