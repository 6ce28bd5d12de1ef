"""What the log asks of a file system: positional writes, syncs, and atomic renames.

Laws every implementation keeps:

1.  What `write` wrote is durable only once a later `sync` of the same file has returned.
2.  A new, renamed or removed name is durable only once `sync_dir` has returned.
3.  Without those, a crash may keep any part of what was written, in any order, down to single sectors.
4.  `rename` replaces its target in one step: a reader sees the old file or the new one.
5.  `write` that raises may have written any part of its bytes.
6.  After `sync` has raised, what was written since the last good `sync` can never be trusted again.

Errors are `OSError`; the caller gives them names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class File(Protocol):
    """One open file."""

    def write(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        """Write all buffers, one after the other, at `offset`."""

    def sync(self) -> None:
        """Make everything written to this file durable."""

    def read(self, offset: int, size: int) -> memoryview:
        """Up to `size` bytes at `offset`; fewer at the end of the file. May be a view of a shared map."""

    def size(self) -> int:
        """The file's length in bytes."""

    def next_data(self, offset: int) -> int:
        """The first place from `offset` on that may hold more than zeros; the size of the file if there is none."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""

    def close(self) -> None:
        """Close it. Views handed out by `read` stay valid."""


class Files(Protocol):
    """A directory tree, addressed by paths relative to its root."""

    def create(self, path: str, size: int) -> File:
        """A new file of `size` zero bytes with its blocks reserved.

        Raises: `FileExistsError` when the path is taken, `OSError(ENOSPC)` when there is no room, leaving nothing.
        """

    def open(self, path: str, *, write: bool = False) -> File:
        """An existing file."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what has it."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted; empty if there is no such directory."""

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents, durably; no error if it exists."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def describe(self, path: str) -> str:
        """The path as a person would look for it."""
