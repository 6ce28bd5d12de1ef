"""The least a group commit by threads can cost here: a queue, a write and sync for all who wait, and waking them.

What threads reach above this is the interpreter's and the scheduler's limit, not the log's: no timestamps, no
checksums, no positions.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self


class _Waiter:
    __slots__ = ("done", "lock")

    def __init__(self) -> None:
        self.done = False
        self.lock = allocate_lock()
        self.lock.acquire()


class BareGroupCommit:
    """Appends a fixed number of bytes and waits for the sync, sharing it with whoever waits too."""

    def __init__(self, path: Path, row: bytes) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._row = row
        self._mutex = Lock()
        self._waiting: list[_Waiter] = []
        self._busy = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def __call__(self) -> int:
        own = _Waiter()
        with self._mutex:
            self._waiting.append(own)
            leads, self._busy = not self._busy, True
        if not leads:
            own.lock.acquire()
            if own.done:
                return 1
        with self._mutex:
            group, self._waiting = self._waiting, []
        os.write(self._descriptor, self._row * len(group))
        os.fdatasync(self._descriptor)
        for each in group:
            each.done = True
            if each is not own:
                each.lock.release()
        with self._mutex:
            successor = self._waiting[0] if self._waiting else None
            self._busy = successor is not None
        if successor is not None:
            successor.lock.release()
        return 1
