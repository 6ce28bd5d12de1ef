"""SQLite's side of the comparison: a process that inserts rows when told to. Imports nothing that starts slowly.

`python -m tidegate.bench.sqlite_writer DATABASE ROW_BYTES`, then a line "START SECONDS" on stdin for every round, in
seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path


def connect(path: Path) -> sqlite3.Connection:
    """A database that promises of every transaction what the log promises of every append."""
    database = sqlite3.connect(path, isolation_level=None, timeout=60)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    return database


def serve(path: Path, row_bytes: int) -> None:
    """Answer every line with the rows a second of that round, one transaction each."""
    row = bytes(row_bytes)
    with closing(connect(path)) as database:
        print("ready", flush=True)
        for line in sys.stdin:
            start, seconds = map(float, line.split())
            time.sleep(max(start - time.monotonic(), 0))
            count, end = 0, start + seconds
            while time.monotonic() < end:
                database.execute("INSERT INTO rows (body) VALUES (?)", (row,))
                count += 1
            print(count / (time.monotonic() - start), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
