"""The writer's lock: one process at a time has a log open for writing, and the kernel lets go when it dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from tidegate.errors import InUse

LOCK: Final = "lock"
"""Its file, beside the channels."""
_ATTEMPTS: Final = 10


def take_lock(path: Path, *, takeover: bool) -> tuple[int, bool]:
    """Take the writer's lock, which the kernel releases when the process dies. With `takeover`, go on without it."""
    name = path / "log" / LOCK
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for attempt in range(_ATTEMPTS):
        if try_lock(descriptor):
            return descriptor, True
        if takeover:
            return descriptor, False
        if attempt < _ATTEMPTS - 1:
            # A reader that looks whether anybody writes holds the lock for a moment, too.
            time.sleep(0.01)
    os.close(descriptor)
    raise InUse(
        f"{path} is open in {_holder(name)}; use it through that process, close it, or read it with"
        f" tidegate.read_log. If that process hangs, takeover=True fences it"
    )


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open lock file if nobody has it, and leave our process id in it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return True


def writer_of(path: Path) -> str | None:
    """Which process has the log open for writing, if one has."""
    name = path / "log" / LOCK
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(name)
    finally:
        os.close(descriptor)
    return None


def _holder(lock: Path) -> str:
    text = lock.read_text().strip()
    return f"process {text}" if text.isdecimal() else "another process"


def let_go(descriptor: int) -> None:
    """Unlock and close: a child that was forked meanwhile holds the same open file, so closing alone is not enough."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
