"""Making files durable, and what a failing disk is called."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidegate.errors import DiskFull, StorageFailed

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, durably."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, durably with its name; or leave nothing.

    Raises: `DiskFull`, `StorageFailed`.
    """
    with storage_errors(path):
        make_directory(path.parent)
        try:
            with path.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            sync_directory(path.parent)
        except OSError:
            remove(path)
            raise


def remove(path: Path) -> None:
    """Delete a file that nobody needs. If that fails, garbage collection tries again."""
    with suppress(OSError):
        path.unlink()


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refused into an error that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(
                f"{path}: no room on the disk; nothing became visible. Free some space, and it is tried again"
            ) from error
        raise StorageFailed(f"{path}: {error.strerror or error}; nothing became visible. Check the disk") from error
