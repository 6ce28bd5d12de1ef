"""The metadata store in one SQLite file, for every process of one machine.

Writes are `BEGIN IMMEDIATE` transactions in WAL mode with `synchronous=FULL`: when a call returns, its write
is on disk. Reads see the latest commit of any process.

Leases are timed by the machine's monotonic clock, which all its processes share, together with the id of the
boot it counts from: setting the wall clock ends no lease early, and a lease from before a reboot has ended.
(Where the boot has no id to read, the wall clock is used.) A row also names its process, so that the lease
of one that died ends at once instead of running out.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.errors import Closed, OutcomeUnknown, StoreUnavailable, TidegateError
from tidegate.ports.clock import Clock, SystemClock
from tidegate.ports.metadata import Lease, Versioned
from tidegate.stores.memory_metadata import lost

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS entry"
    " (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    # One counter for all keys: a key that was deleted and made again never sees an old version.
    "CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO counter VALUES (1, 0)",
    # The row outlives the lease: the next holder's epoch is counted from it.
    "CREATE TABLE IF NOT EXISTS lease"
    " (name TEXT PRIMARY KEY, owner TEXT NOT NULL, epoch INTEGER NOT NULL, ttl_ms INTEGER NOT NULL,"
    " ends_at_ms INTEGER NOT NULL, ended INTEGER NOT NULL, boot TEXT NOT NULL, pid_space TEXT NOT NULL,"
    " pid INTEGER NOT NULL, started TEXT NOT NULL) WITHOUT ROWID",
)

_ADVICE: Final = {
    sqlite3.SQLITE_BUSY: "another process holds it locked; try again, and if it stays so, end that process",
    sqlite3.SQLITE_LOCKED: "another process holds it locked; try again, and if it stays so, end that process",
    sqlite3.SQLITE_FULL: "its disk is full; make room",
    sqlite3.SQLITE_READONLY: "it is read-only; make the file and its directory writable",
    sqlite3.SQLITE_PERM: "access was refused; make the file and its directory writable",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that its directory exists and is writable",
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a copy",
    sqlite3.SQLITE_NOTADB: "it is not a metadata file; check the path, or restore it from a copy",
    sqlite3.SQLITE_IOERR: "its disk reported an error; check the disk",
}
_NOT_COMMITTED: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
"""Codes of a failed COMMIT after which SQLite has certainly not written the commit record."""


@dataclass(frozen=True, slots=True)
class _Process:
    """Who asks: enough to tell, from another process of the machine, whether it still lives."""

    boot: str
    pid_space: str  # a process id means something only inside its namespace (containers)
    pid: int
    started: str

    @classmethod
    def current(cls) -> _Process:
        pid = os.getpid()
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            pid_space = str(Path("/proc/self/ns/pid").readlink())
        except OSError:
            boot = pid_space = ""
        return cls(boot, pid_space, pid, _stat(pid)[1])


class SqliteMetadataStore:
    """A handle on the metadata file at `path`, which is made if it does not exist.

    Safe to use from many threads; open one handle per process, after forking.
    A lease belongs to the process that acquired it: another one that names the same owner does not get it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_ms: int = 5000,
        clock: Clock | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._process = _Process.current()
        self._db: sqlite3.Connection | None = self._open(busy_timeout_ms)

    def get(self, key: str) -> Versioned | None:
        with self._reading() as db:
            row = db.execute("SELECT value, version FROM entry WHERE key = ?", (key,)).fetchone()
        return Versioned(*row) if row else None

    def compare_and_set(self, key: str, value: bytes | None, *, expected: int) -> int | None:
        with self._writing(f"key {key!r}") as db:
            row = db.execute("SELECT version FROM entry WHERE key = ?", (key,)).fetchone()
            if (row[0] if row else 0) != expected:
                return None
            db.execute("UPDATE counter SET version = version + 1")
            version = int(db.execute("SELECT version FROM counter").fetchone()[0])
            if value is None:
                db.execute("DELETE FROM entry WHERE key = ?", (key,))
            else:
                db.execute("INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", (key, value, version))
            return version

    def list(self, prefix: str) -> dict[str, Versioned]:
        with self._reading() as db:
            # One statement, hence one moment. substr, because LIKE and GLOB give some characters a meaning.
            rows = db.execute(
                "SELECT key, value, version FROM entry WHERE key >= ?1 AND substr(key, 1, length(?1)) = ?1"
                " ORDER BY key",
                (prefix,),
            ).fetchall()
        return {key: Versioned(value, version) for key, value, version in rows}

    def acquire(self, name: str, owner: str, *, ttl_ms: int) -> Lease | None:
        with self._writing(f"lease {name!r}") as db:
            row = self._lease_row(db, name)
            if row is None or not self._lives(row):
                epoch = row.lease.epoch + 1 if row else 1
            elif (row.lease.owner, row.process) == (owner, self._process):
                epoch = row.lease.epoch
            else:
                return None
            lease = Lease(name, owner, epoch, ttl_ms)
            me, ends_at_ms = self._process, self._now_ms() + ttl_ms
            db.execute(
                "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?, ?)",
                (name, owner, epoch, ttl_ms, ends_at_ms, me.boot, me.pid_space, me.pid, me.started),
            )
            return lease

    def renew(self, lease: Lease) -> Lease:
        with self._writing(f"lease {lease.name!r}") as db:
            row = self._lease_row(db, lease.name)
            held = row.lease if row and self._lives(row) else None
            if held is None or (held.owner, held.epoch) != (lease.owner, lease.epoch):
                raise lost(lease, held)
            db.execute(
                "UPDATE lease SET ttl_ms = ?, ends_at_ms = ? WHERE name = ?",
                (lease.ttl_ms, self._now_ms() + lease.ttl_ms, lease.name),
            )
            return lease

    def release(self, lease: Lease) -> None:
        with self._writing(f"lease {lease.name!r}") as db:
            db.execute(
                "UPDATE lease SET ended = 1 WHERE name = ? AND owner = ? AND epoch = ?",
                (lease.name, lease.owner, lease.epoch),
            )

    def holder(self, name: str) -> Lease | None:
        with self._reading() as db:
            row = self._lease_row(db, name)
        return row.lease if row and self._lives(row) else None

    def close(self) -> None:
        with self._lock:
            if self._db is not None and self._process.pid == os.getpid():
                self._db.close()
            self._db = None

    # -- leases ------------------------------------------------------------------------------------------

    def _lease_row(self, db: sqlite3.Connection, name: str) -> _LeaseRow | None:
        found = db.execute(
            "SELECT owner, epoch, ttl_ms, ends_at_ms, ended, boot, pid_space, pid, started FROM lease WHERE name = ?",
            (name,),
        ).fetchone()
        if found is None:
            return None
        owner, epoch, ttl_ms, ends_at_ms, ended, *process = found
        return _LeaseRow(Lease(name, owner, epoch, ttl_ms), ends_at_ms, bool(ended), _Process(*process))

    def _lives(self, row: _LeaseRow) -> bool:
        if row.ended or row.process.boot != self._process.boot or self._now_ms() >= row.ends_at_ms:
            return False
        return row.process.pid_space != self._process.pid_space or not _is_dead(row.process)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000) if self._process.boot else self._clock.wall_ms()

    # -- transactions ------------------------------------------------------------------------------------

    def _open(self, busy_timeout_ms: int) -> sqlite3.Connection:
        # Two processes that turn a new file into WAL mode at once get SQLITE_BUSY without SQLite waiting.
        deadline_s = time.monotonic() + busy_timeout_ms / 1000
        while True:
            db: sqlite3.Connection | None = None
            try:
                db = sqlite3.connect(
                    self._path, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
                )
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                db.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute("COMMIT")
                return db
            except sqlite3.Error as error:
                if db is not None:
                    db.close()
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline_s:
                    raise self._unavailable(error) from error
                time.sleep(0.005)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            db = self._connection()
            try:
                yield db
            except sqlite3.Error as error:
                raise self._unavailable(error) from error

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[sqlite3.Connection]:
        """One transaction, committed at the end of the block and rolled back if that raises.

        Raises: `StoreUnavailable` when nothing was written, `OutcomeUnknown` when COMMIT itself failed in a
        way after which the record may be on disk.
        """
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                self._roll_back(db)
                raise
            try:
                self._commit(db)
            except sqlite3.Error as error:
                self._roll_back(db)
                if _code(error) in _NOT_COMMITTED:
                    raise
                raise OutcomeUnknown(
                    f"metadata file {self._path}: {what} may or may not have been written ({error});"
                    f" read it before writing it again"
                ) from error

    def _commit(self, db: sqlite3.Connection) -> None:
        db.execute("COMMIT")

    def _roll_back(self, db: sqlite3.Connection) -> None:
        # Some errors have ended the transaction already; whatever else fails here, nothing is committed.
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise Closed(f"metadata file {self._path} was closed by this process; open it again")
        if self._process.pid != os.getpid():
            raise Closed(f"metadata file {self._path} was opened before a fork; open it again here")
        return self._db

    def _unavailable(self, error: sqlite3.Error) -> TidegateError:
        advice = _ADVICE.get(_code(error), "check the file and its disk")
        return StoreUnavailable(f"metadata file {self._path}: {advice} ({error})")


@dataclass(frozen=True, slots=True)
class _LeaseRow:
    lease: Lease
    ends_at_ms: int
    ended: bool
    process: _Process


def _code(error: sqlite3.Error) -> int:
    """The primary result code; extended ones carry detail in the higher bits."""
    return int(getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR) & 0xFF


def _stat(pid: int) -> tuple[str, str]:
    """A process's state letter and start time, both "" where they cannot be read."""
    try:
        # The name in parentheses may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError):
        return "", ""


def _is_dead(process: _Process) -> bool:
    """Whether a process of this machine is known to be dead. In doubt it lives."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists and belongs to somebody else
    state, started = _stat(process.pid)
    # A zombie is dead though its parent has not noticed; another start time is another process with that id.
    return state in ("Z", "X") or bool(started and process.started and started != process.started)
