"""Pins: a checkpoint that somebody reads stays readable, whatever retention says, until he is done or dead.

A pin is a key of the metadata store, so the pins of every process count. It lives as long as its owner's lease, one for
all his pins: a dead process's pins end by themselves.

A pin is written first and the floor read second; garbage collection raises the floor first and reads the pins second.
So either it sees the pin, or the reader sees that he came too late.

What is the newest now stays for the retention time after it was replaced. A reader who is done sooner than that needs
no pin.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from tidegate.errors import LeaseLost, NotLeader, Truncated
from tidegate.ports.metadata import Lease
from tidegate.snapshots.store import SnapshotStore

PREFIX: Final = "snapshots/pins/"
TTL_MS: Final = 60_000


class Pins:
    """The pins of one process, by the name of `owner`. Safe to use from several threads.

    `renew` must be called more often than the lease lasts.
    """

    def __init__(self, store: SnapshotStore, owner: str, *, ttl_ms: int = TTL_MS) -> None:
        self._store = store
        self._metadata = store.metadata
        self._owner = owner.replace("/", "_")
        self._ttl_ms = ttl_ms
        self._lease: Lease | None = None
        self._counts: dict[int, int] = {}
        self.generation = 0
        """Counts how often all pins were lost."""
        self._lock = Lock()

    def pin(self, checkpoint: int) -> None:
        """Keep a checkpoint until `unpin` was called as often.

        Raises: `Truncated` when it is gone already.
        """
        with self._lock:
            if not self._counts.get(checkpoint):
                self._hold_lease()
                self._write(checkpoint, b"{}")
                floor = self._store.floor().lowest
                if checkpoint < floor:
                    self._write(checkpoint, None)
                    raise Truncated(
                        f"checkpoint {checkpoint} is older than the retention time, the oldest that is kept is {floor};"
                        f" read there, or raise the retention time"
                    )
            self._counts[checkpoint] = self._counts.get(checkpoint, 0) + 1

    def unpin(self, checkpoint: int, generation: int | None = None) -> None:
        """Take back one `pin`; no effect when that was of another `generation`, and is lost."""
        with self._lock:
            if generation is not None and generation != self.generation:
                return
            left = self._counts.get(checkpoint, 0) - 1
            if left > 0:
                self._counts[checkpoint] = left
            elif left == 0:
                del self._counts[checkpoint]
                self._write(checkpoint, None)

    @contextmanager
    def pinned(self, checkpoint: int) -> Iterator[None]:
        self.pin(checkpoint)
        try:
            yield
        finally:
            self.unpin(checkpoint)

    def renew(self) -> None:
        """Keep the pins alive. Raises: `LeaseLost` when they have ended; all are forgotten then."""
        with self._lock:
            if self._lease is None:
                return
            try:
                self._lease = self._metadata.renew(self._lease)
            except NotLeader as error:
                lost = sorted(self._counts)
                self._lease = None
                self._counts.clear()
                self.generation += 1
                if lost:
                    raise LeaseLost(
                        f"the pins on checkpoints {', '.join(map(str, lost))} ended: {self._owner!r} did not renew them"
                        f" for {self._ttl_ms} ms; read again at a newer checkpoint"
                    ) from error

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            for checkpoint in list(self._counts):
                self._write(checkpoint, None)
            self._counts.clear()
            if self._lease is not None:
                self._metadata.release(self._lease)
                self._lease = None

    def _hold_lease(self) -> None:
        if self._lease is None:
            name = PREFIX + self._owner
            self._lease = self._metadata.acquire(name, self._owner, ttl_ms=self._ttl_ms)
            if self._lease is None:
                raise NotLeader(f"the pins of {self._owner!r} are held by another process; choose another owner's name")

    def _write(self, checkpoint: int, value: bytes | None) -> None:
        key = f"{PREFIX}{self._owner}/{checkpoint}"
        while True:
            found = self._metadata.get(key)
            if value is None and found is None:
                return
            if self._metadata.compare_and_set(key, value, expected=found.version if found else 0) is not None:
                return


def live_pins(store: SnapshotStore) -> set[int]:
    """The checkpoints that anybody alive has pinned. Keys of the dead are removed."""
    found: set[int] = set()
    lives: dict[str, bool] = {}
    for key, value in store.metadata.list(PREFIX).items():
        owner, _, number = key.removeprefix(PREFIX).rpartition("/")
        if owner not in lives:
            lives[owner] = store.metadata.holder(PREFIX + owner) is not None
        if lives[owner]:
            found.add(int(number))
        else:
            store.metadata.compare_and_set(key, None, expected=value.version)
    return found
