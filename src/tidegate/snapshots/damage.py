"""The error for files of a snapshot that are missing or are not what was written, and how it is found out which."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.errors import Corruption, TidegateError
from tidegate.snapshots.manifest import FileEntry


class SnapshotDamaged(Corruption):
    """A file that a checkpoint needs is missing or unreadable. `path`, `table` and `checkpoint` say which."""

    def __init__(self, path: str, why: str, *, checkpoint: int, table: int | None = None, name: str = "") -> None:
        whose = f" of table {name!r} (number {table})" if table is not None and name else ""
        whose = whose or (f" of table number {table}" if table is not None else "")
        TidegateError.__init__(
            self,
            f"{path}{whose}, needed by checkpoint {checkpoint}: {why}; restore the file from a copy,"
            f" or read at a checkpoint that does not need it",
        )
        self.path = path
        self.offset = 0
        self.why = why
        self.table = table
        self.checkpoint = checkpoint


def find_damage(root: Path, files: Iterable[FileEntry], *, whole: bool) -> tuple[FileEntry, str] | None:
    """The first file that is missing, has another size, or cannot be read; `whole` reads every page of it."""
    for each in files:
        if why := _damage(root / each.path, each, whole):
            return each, why
    return None


def _damage(path: Path, entry: FileEntry, whole: bool) -> str | None:
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"it has {size:,} bytes instead of {entry.bytes:,}"
        if whole:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                rows = sum(batch.num_rows for batch in file.iter_batches())
            if rows != entry.rows:
                return f"it has {rows:,} rows instead of {entry.rows:,}"
    except FileNotFoundError:
        return "it is missing"
    except (OSError, pa.ArrowException) as error:
        return f"it cannot be read ({str(error).splitlines()[0]})"
    return None
