"""`SimDisk`: files that delay, tear, lose unsynced writes, fill up and return errors.

Everybody sees what was written at once, as through a page cache. What is durable is kept apart: a
loss of power keeps what was synced, and of the rest any subset of sectors, of names any prefix of changes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

SECTOR: Final = 512


class Hook(Protocol):
    """Called before and after every operation; may raise `Crash`, or `OSError` before it."""

    def __call__(self, operation: str, path: str, *, done: bool) -> None: ...


class Inode:
    """A file's bytes: as seen, as durable, and the writes between."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        self.resized = True

    def sync(self) -> None:
        if self.resized or len(self.durable) != len(self.data):
            self.durable = bytearray(self.data)
        else:
            for offset, data in self.pending:
                self.durable[offset : offset + len(data)] = data
        self.pending.clear()
        self.resized = False

    def lose_power(self, rng: Random, torn: float) -> None:
        """Keep what was synced, and of every unsynced write some of its sectors."""
        kept = self.durable
        if self.resized and rng.random() < 0.5:
            kept = kept[: len(self.data)] + bytes(max(len(self.data) - len(kept), 0))
        for offset, data in self.pending:
            at = 0
            while at < len(data):
                stop = min(len(data), at + SECTOR - (offset + at) % SECTOR)
                if rng.random() < torn and offset + stop <= len(kept):
                    kept[offset + at : offset + stop] = data[at:stop]
                at = stop
        self.durable = bytearray(kept)
        self.data = bytearray(kept)
        self.pending.clear()
        self.resized = False


class SimFile:
    """One open file of one process."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode, hook: Hook) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._hook = hook

    def write(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        data = b"".join(buffers)
        inode = self._inode
        try:
            self._hook("write", self._path, done=False)
        except OSError:
            # A failed write may have written any part of its bytes.
            size = self._disk.rng.choice((0, self._disk.rng.randrange(len(data) + 1), len(data)))
            self._put(offset, data[:size])
            raise
        self._put(offset, data)
        inode.resized = inode.resized or len(inode.durable) != len(inode.data)
        self._hook("write", self._path, done=True)

    def _put(self, offset: int, data: bytes) -> None:
        inode = self._inode
        if offset + len(data) > len(inode.data):
            inode.data.extend(bytes(offset + len(data) - len(inode.data)))
            inode.resized = True
        inode.data[offset : offset + len(data)] = data
        inode.pending.append((offset, data))

    def sync(self) -> None:
        try:
            self._hook("sync", self._path, done=False)
        except OSError:
            # What was written since the last good sync may never reach the disk, and nobody will say so again.
            self._inode.pending.clear()
            raise
        self._inode.sync()
        self._hook("sync", self._path, done=True)

    def read(self, offset: int, size: int) -> memoryview:
        return memoryview(bytes(self._inode.data[offset : offset + size]))

    def size(self) -> int:
        return len(self._inode.data)

    def next_data(self, offset: int) -> int:
        return offset

    def truncate(self, size: int) -> None:
        self._hook("truncate", self._path, done=False)
        inode = self._inode
        if size < len(inode.data):
            del inode.data[size:]
        else:
            inode.data.extend(bytes(size - len(inode.data)))
        inode.resized = True
        self._hook("truncate", self._path, done=True)

    def close(self) -> None:
        return


class SimDisk:
    """The disk of one machine, shared by its processes."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._changes: list[Callable[[dict[str, Inode]], None]] = []
        self.full = False

    def lose_power(self, torn: float) -> None:
        kept = self.rng.randrange(len(self._changes) + 1)
        for change in self._changes[:kept]:
            change(self._durable_names)
        self._changes.clear()
        self.names = dict(self._durable_names)
        for path in sorted(self.names):
            self.names[path].lose_power(self.rng, torn)

    def change(self, apply: Callable[[dict[str, Inode]], None]) -> None:
        """Change names: seen at once, durable with the next `sync_dir`."""
        apply(self.names)
        self._changes.append(apply)

    def sync_names(self) -> None:
        for change in self._changes:
            change(self._durable_names)
        self._changes.clear()


class SimFiles:
    """The file port as one process sees it. Its hook decides what goes wrong for that process."""

    def __init__(self, disk: SimDisk, hook: Hook) -> None:
        self._disk = disk
        self._hook = hook

    def create(self, path: str, size: int) -> SimFile:
        self._hook("create", path, done=False)
        if path in self._disk.names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        if self._disk.full and size:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        inode = Inode(size)

        def apply(names: dict[str, Inode]) -> None:
            names[path] = inode

        self._disk.change(apply)
        self._hook("create", path, done=True)
        return SimFile(self._disk, path, inode, self._hook)

    def open(self, path: str, *, write: bool = False) -> SimFile:
        inode = self._disk.names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return SimFile(self._disk, path, inode, self._hook if write else _quiet)

    def rename(self, old: str, new: str) -> None:
        self._hook("rename", old, done=False)
        if old not in self._disk.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", old)

        def apply(names: dict[str, Inode]) -> None:
            if old in names:
                names[new] = names.pop(old)

        self._disk.change(apply)
        self._hook("rename", old, done=True)

    def remove(self, path: str) -> None:
        self._hook("remove", path, done=False)
        if path not in self._disk.names:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)

        def apply(names: dict[str, Inode]) -> None:
            names.pop(path, None)

        self._disk.change(apply)
        self._hook("remove", path, done=True)

    def names(self, path: str) -> list[str]:
        prefix = path + "/"
        return sorted(name[len(prefix) :] for name in self._disk.names if name.startswith(prefix))

    def make_dir(self, path: str) -> None:
        """Directories are there when they are needed."""

    def sync_dir(self, path: str) -> None:
        self._hook("sync_dir", path, done=False)
        self._disk.sync_names()
        self._hook("sync_dir", path, done=True)

    def describe(self, path: str) -> str:
        return path


def _quiet(operation: str, path: str, *, done: bool) -> None:
    """For files opened to be read: reading does not fail here."""
