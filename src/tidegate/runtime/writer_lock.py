"""The writer's lock: one process at a time has a log open for writing, and the kernel lets go when it dies.

The lock belongs to the open file, which a forked child shares. So a child closes its copy at once: it neither
holds the lock when its parent dies nor lets go of it for its parent.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from threading import RLock
from typing import Final

from tidegate.errors import InUse

LOCK: Final = "lock"
"""Its file, beside the channels."""
_ATTEMPTS: Final = 10


class WriterLock:
    """The open lock file of one log, and whether we hold the lock."""

    def __init__(self, name: Path) -> None:
        self.is_held = False
        self.is_inherited = False
        """Whether this is a forked child's copy: the lock is its parent's."""
        with _forking:
            self._descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _open.add(self)

    def try_lock(self) -> bool:
        """Take the lock if nobody has it, and leave our process id in it; whether we hold it now."""
        if not self.is_held:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self.is_held = True
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        return True

    def let_go(self) -> None:
        """Unlock and close. May be repeated."""
        with _forking:
            if self in _open:
                # A process that is just being started has a copy for a moment, so closing alone is not enough.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                self._close()

    def leave_to_parent(self) -> None:
        """Close a forked child's copy. That does not unlock, for the parent still has the file open."""
        self._close()
        self.is_inherited = True

    def _close(self) -> None:
        _open.discard(self)
        self.is_held = False
        os.close(self._descriptor)


_forking: Final = RLock()
"""Held while a process forks: no lock file is then open that `_open` does not know."""
_open: Final[set[WriterLock]] = set()


def _after_fork() -> None:
    try:
        for each in list(_open):
            each.leave_to_parent()
    finally:
        _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_after_fork)


def take_lock(path: Path, *, takeover: bool) -> WriterLock:
    """Take the writer's lock, which the kernel releases when the process dies. With `takeover`, go on without it.

    Raises: `InUse` naming the process that has it.
    """
    name = path / "log" / LOCK
    lock = WriterLock(name)
    for attempt in range(_ATTEMPTS):
        if lock.try_lock() or takeover:
            return lock
        if attempt < _ATTEMPTS - 1:
            # A reader that looks whether anybody writes holds the lock for a moment, too.
            time.sleep(0.01)
    lock.let_go()
    raise InUse(
        f"{path} is open in {_holder(name)}; use it through that process, close it, or read it with"
        f" tidegate.read_log. If that process hangs, takeover=True fences it"
    )


def writer_of(path: Path) -> str | None:
    """Which process has the log open for writing, if one has."""
    name = path / "log" / LOCK
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # A child that another thread forks meanwhile has the file open as well, so closing alone is not enough.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return _holder(name)
    finally:
        os.close(descriptor)
    return None


def _holder(lock: Path) -> str:
    text = lock.read_text().strip()
    return f"process {text}" if text.isdecimal() else "another process"
