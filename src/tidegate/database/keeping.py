"""`Keeper`: sees to it that no file is collected under a read.

What is the newest checkpoint when a read begins stays for the retention time after it was replaced, which is at least
a minute. So a read of it costs no pin until it has run for a while; one of an older checkpoint is pinned first.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Final

from tidegate.errors import TidegateError
from tidegate.snapshots.pins import Pins
from tidegate.snapshots.store import SnapshotStore

_logger = logging.getLogger("tidegate.database")
_PIN_AFTER_S: Final = 15.0
_LOOK_EVERY_S: Final = 5.0


class _Hold:
    __slots__ = ("checkpoint", "generation", "since_s")

    def __init__(self, checkpoint: int) -> None:
        self.checkpoint = checkpoint
        self.generation: int | None = None
        """Of its pin, if it has one."""
        self.since_s = time.monotonic()


class Keeper:
    """The checkpoints that this process reads. Thread-safe."""

    def __init__(self, store: SnapshotStore, *, pin_after_s: float = _PIN_AFTER_S) -> None:
        self._store = store
        self._pins = Pins(store, f"reader-{secrets.token_hex(8)}")
        self._pin_after_s = pin_after_s
        self._holds: set[_Hold] = set()
        self._lock = Lock()
        self._stop = Event()
        self._thread: Thread | None = None

    @contextmanager
    def reading(self, checkpoint: int, *, at_once: bool = False) -> Iterator[None]:
        """Keep a checkpoint for as long as this lasts; `at_once` pins it now, whichever it is.

        Raises: `Truncated` when it is gone.
        """
        if not checkpoint:
            yield  # Nothing was written yet.
            return
        hold = _Hold(checkpoint)
        if at_once or checkpoint != self._store.pointer().checkpoint:
            self._pin(hold)
        with self._lock:
            self._holds.add(hold)
            if self._thread is None and not self._stop.is_set():
                self._thread = Thread(target=self._look_after, name="tidegate-pins", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._holds.discard(hold)
                generation = hold.generation
            if generation is not None:
                self._pins.unpin(checkpoint, generation)

    def _pin(self, hold: _Hold) -> None:
        self._pins.pin(hold.checkpoint)
        hold.generation = self._pins.generation

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._pins.close()

    def _look_after(self) -> None:
        while not self._stop.wait(min(_LOOK_EVERY_S, self._pin_after_s / 2)):
            try:
                self._pins.renew()
            except TidegateError as error:  # Lost, as after a long sleep: they are pinned again below.
                _logger.warning("keeping what is read: %s", error)
            self._pin_long()

    def _pin_long(self) -> None:
        now = time.monotonic()
        with self._lock:
            for hold in self._holds:
                lost = hold.generation is not None and hold.generation != self._pins.generation
                long = hold.generation is None and now - hold.since_s >= self._pin_after_s
                if lost or long:
                    try:
                        self._pin(hold)
                    except TidegateError as error:
                        _logger.warning("checkpoint %d is read and cannot be kept: %s", hold.checkpoint, error)
