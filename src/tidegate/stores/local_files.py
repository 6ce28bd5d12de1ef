"""`LocalFiles`: the file port on a local POSIX file system."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

_IOV_MAX: Final = 1000
_POOLED_FROM: Final = 64 << 10
"""Reads of at least this size go into Arrow's pool, which keeps its pages; what malloc returns for them is mostly fresh
memory, and touching that for the first time costs more than the copy."""


class LocalFile:
    """One open file, addressed by offset."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def write(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        descriptor = self._descriptor
        if len(buffers) == 1:
            written = os.pwrite(descriptor, buffers[0], offset)
            if written == len(buffers[0]):
                return
        for start in range(0, len(buffers), _IOV_MAX):
            part = [memoryview(each).cast("B") for each in buffers[start : start + _IOV_MAX]]
            while part:
                written = os.pwritev(descriptor, part, offset)
                offset += written
                while part and written >= len(part[0]):
                    written -= len(part.pop(0))
                if written:
                    part[0] = part[0][written:]

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def read(self, offset: int, size: int) -> memoryview:
        if size >= _POOLED_FROM:
            return self._read_pooled(offset, size)
        data = os.pread(self._descriptor, size, offset)
        if len(data) < size and data:
            rest = self.read(offset + len(data), size - len(data))
            if len(rest):
                return memoryview(b"".join((data, rest)))
        return memoryview(data)

    def _read_pooled(self, offset: int, size: int) -> memoryview:
        view = memoryview(pa.allocate_buffer(size)).cast("B")
        filled = 0
        while filled < size:
            count = os.preadv(self._descriptor, [view[filled:]], offset + filled)
            if not count:
                break
            filled += count
        return view[:filled].toreadonly()

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def next_data(self, offset: int) -> int:
        # Room that was reserved and never written counts as a hole.
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size()
            return offset  # A file system that does not know: everything may be data.

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalFiles:
    """A directory on a local disk."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)

    def create(self, path: str, size: int) -> LocalFile:
        full = self._root / path
        descriptor = os.open(full, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            if size:
                os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.close(descriptor)
            full.unlink(missing_ok=True)
            raise
        return LocalFile(full, descriptor)

    def open(self, path: str, *, write: bool = False) -> LocalFile:
        full = self._root / path
        return LocalFile(full, os.open(full, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        (self._root / old).replace(self._root / new)

    def remove(self, path: str) -> None:
        (self._root / path).unlink()

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / path))
        except FileNotFoundError:
            return []

    def make_dir(self, path: str) -> None:
        full = self._root / path
        missing = []
        while not full.is_dir():
            missing.append(full)
            full = full.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            self._sync(each.parent)

    def sync_dir(self, path: str) -> None:
        self._sync(self._root / path)

    def describe(self, path: str) -> str:
        return str(self._root / path)

    @staticmethod
    def _sync(directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
