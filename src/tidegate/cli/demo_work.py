"""What the demo does: writers of several kinds, a reader here, and a reader in another process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

from tidegate.cli.demo_reader import Count, read_all
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import TidegateError
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.log import Log

CHANNELS: Final = ("orders", "payments")
_BATCH: Final = 250
_BATCH_EVERY_S: Final = 0.05
_ROW_EVERY_S: Final = 0.001
_HOLD_EVERY_S: Final = 1.2
_HOLD_S: Final = (0.3, 0.7)
_END_MAX_S: Final = 20.0
_WINDOW_S: Final = 1.0


@dataclass(slots=True)
class Writer:
    """One writer and what it has done so far. Written by its own thread, read by the display."""

    name: str
    vchannel: str
    channel: ChannelWriter
    does: str
    rows: int = 0
    """Acknowledged."""
    last: int = 0
    """TimeTick of its last acknowledged row."""
    latency_s: float = 0.0
    """Of its last append."""
    holding_since: float | None = None
    holds: int = 0
    held_max_s: float = 0.0
    error: str | None = None
    rate: float = 0.0
    _marks: list[tuple[float, int]] = field(default_factory=list)

    def update_rate(self, now: float) -> None:
        """Rows a second over the last second."""
        self._marks.append((now, self.rows))
        while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW_S:
            self._marks.pop(0)
        began, rows = self._marks[0]
        self.rate = (self.rows - rows) / (now - began) if now > began else 0.0


class Work:
    """Everything that runs while the demo is shown."""

    def __init__(self, log: Log, rng: random.Random) -> None:
        self.log: Final = log
        self.started = monotonic()
        self._rng = rng
        self._stop = Event()
        self.channels: Final = {name: log.channel(name) for name in CHANNELS}
        orders, payments = (self.channels[name] for name in CHANNELS)
        self.writers: Final = [
            Writer("ann", "orders/0", orders, "row by row"),
            Writer("bo", "orders/1", orders, "row by row"),
            Writer("cy", "payments/0", payments, "row by row"),
            Writer("di", "payments/1", payments, "row by row"),
            Writer("ed", "orders/2", orders, f"batches of {_BATCH}"),
            Writer("flo", "payments/2", payments, f"batches of {_BATCH}"),
            Writer("gus", "orders/3", orders, "holds its place"),
        ]
        self._from: Final = {name: int(each.status().channel.synced) for name, each in self.channels.items()}
        """Rows of an earlier demo in the same directory are not counted."""
        self.here: Final = {name: Count() for name in CHANNELS}
        self.there: dict[str, Count] = {name: Count() for name in CHANNELS}
        self._targets: dict[str, int] = {}
        self._reading = Event()
        self._threads = [Thread(target=self._run, args=(each,), daemon=True) for each in self.writers]
        self._reader = Thread(target=self._read_here, daemon=True)
        self._process = _start_reader(log.path, self._from)
        self._listener = Thread(target=self._listen, daemon=True)

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def rows(self) -> int:
        """Acknowledged by now."""
        return sum(each.rows for each in self.writers)

    def start(self) -> None:
        """Let everything run, the readers first."""
        self._listener.start()
        self._reader.start()
        self._reading.wait(_END_MAX_S)
        self.started = monotonic()
        for writer in self.writers:
            writer.update_rate(self.started)
        for thread in self._threads:
            thread.start()

    def finish(self) -> float:
        """Stop the writers and let the readers read to the end; how many seconds the writers ran.

        A reader that does not get there in time is left behind: the counts then differ.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_MAX_S)
        ran = monotonic() - self.started
        for name, channel in self.channels.items():
            channel.tick()
            last = max(each.last for each in self.writers if each.channel is channel)
            self._targets[name] = max(last, self._from[name])
        self._tell(json.dumps(self._targets))
        self._reader.join(_END_MAX_S)
        self._listener.join(_END_MAX_S)
        return ran

    def close(self) -> None:
        """End whatever still runs."""
        self._stop.set()
        self._targets = self._targets or dict.fromkeys(CHANNELS, 0)
        self._process.kill()
        self._process.wait()
        for thread in (*self._threads, self._reader, self._listener):
            if thread.ident is not None:
                thread.join(_END_MAX_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    # Writers

    def _run(self, writer: Writer) -> None:
        rng = random.Random(self._rng.random())
        step: Callable[[Writer, random.Random], None] = _write_row
        if writer.does.startswith("batches"):
            step = _write_batch
        elif writer.does.startswith("holds"):
            step = self._hold
        try:
            while not self._stop.is_set():
                step(writer, rng)
        except TidegateError as error:
            writer.error = str(error)

    def _hold(self, writer: Writer, rng: random.Random) -> None:
        """Take a TimeTick, keep everybody's watermark below it for a while, then write at it."""
        if self._stop.wait(_HOLD_EVERY_S):
            return
        writer.holding_since = began = monotonic()
        with writer.channel.reserve(writer.vchannel) as place:
            self._stop.wait(rng.uniform(*_HOLD_S))
            done = place.append_async(b'{"held": true}').result()
        writer.latency_s = monotonic() - began
        writer.holding_since = None
        writer.holds += 1
        writer.held_max_s = max(writer.held_max_s, writer.latency_s)
        writer.rows += 1
        writer.last = max(writer.last, int(done.last_time_tick))

    # Readers

    def _read_here(self) -> None:
        def report() -> None:
            self._reading.set()

        readers = {name: self.log.reader(name, after=Timestamp(self._from[name])) for name in CHANNELS}
        read_all(readers, self.here, lambda: self._targets, report)
        for reader in readers.values():
            reader.close()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            found: dict[str, dict[str, Any]] = json.loads(line)
            self.there = {name: Count(**found[name]) for name in CHANNELS}

    def _tell(self, text: str) -> None:
        if self._process.stdin is not None and self._process.poll() is None:
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()


def _write_row(writer: Writer, rng: random.Random) -> None:
    body = b'{"writer": "%s", "row": %d, "amount": %d}' % (writer.name.encode(), writer.rows, rng.randrange(1000))
    began = monotonic()
    done = writer.channel.append(writer.vchannel, body)
    writer.latency_s = monotonic() - began
    writer.rows += 1
    writer.last = int(done.last_time_tick)
    time.sleep(_ROW_EVERY_S)


def _write_batch(writer: Writer, rng: random.Random) -> None:
    bodies: Sequence[bytes] = [b'{"writer": "%s", "row": %d}' % (writer.name.encode(), n) for n in range(_BATCH)]
    began = monotonic()
    done = writer.channel.append_batch(writer.vchannel, bodies)
    writer.latency_s = monotonic() - began
    writer.rows += len(bodies)
    writer.last = int(done.last_time_tick)
    time.sleep(_BATCH_EVERY_S * rng.uniform(0.5, 1.5))


def _start_reader(path: Path, after: dict[str, int]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidegate.cli.demo_reader", str(path), json.dumps(after)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
