"""`Applying`: committed transactions of tables on their way into another database, in order, none of them in part."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, get_args

from tidegate.capture.applied import Applied
from tidegate.capture.applier import Applier, Policy, Start
from tidegate.capture.target import Conflict, without_password
from tidegate.cdc.apply_plan import POLICIES
from tidegate.clock.timestamp import Timestamp
from tidegate.database.local import LocalBackend
from tidegate.errors import Closed, InvalidArgument, Retryable, TidegateError, Unavailable, WaitTimeout

if TYPE_CHECKING:
    from tidegate.database.replication_calls import ReplicationCalls

_logger = logging.getLogger("tidegate.capture")
_LOOK_S: Final = 0.1
"""How often somebody who follows looks for news."""
_AGAIN_S: Final = (0.2, 5.0)
"""How long to wait before a target that failed is tried again: at first, and at most."""


class Applying:
    """What is being applied, or was. Its figures may be read from any thread."""

    def __init__(self, db: ReplicationCalls, applier: Applier, to: str, name: str) -> None:
        self._db = db
        self._applier = applier
        self.to: Final = without_password(to)
        self.name: Final = name
        self.error: Exception | None = None
        """What it was ended by."""
        self.trouble: TidegateError | None = None
        """What it tries to get over while it follows."""
        self._stop = Event()
        self._thread: Thread | None = None

    @property
    def done(self) -> Applied:
        """All figures."""
        return self._applier.done

    @property
    def transactions(self) -> int:
        """How many were applied."""
        return self.done.transactions

    @property
    def rows(self) -> int:
        """How many changed rows they had."""
        return self.done.rows

    @property
    def conflicts(self) -> list[Conflict]:
        """Those that were skipped: the last 100. `done.conflicts` counts all."""
        return list(self.done.last_conflicts)

    @property
    def position(self) -> Timestamp:
        """Everything at or below it is at the target."""
        return self.done.position

    @property
    def state(self) -> str:
        """`following`, `waiting` for a target that cannot be written to now, `failed` or `stopped`."""
        if self.error is not None:
            return "failed"
        if not self.is_running:
            return "stopped"
        return "following" if self.trouble is None else "waiting"

    def status(self) -> dict[str, Any]:
        """All figures, as data."""
        done = self.done
        return {
            "name": self.name,
            "to": self.to,
            "state": self.state,
            "transactions": done.transactions,
            "rows": done.rows,
            "copied": done.copied,
            "chunks": done.chunks,
            "left_out": done.left_out,
            "conflicts": done.conflicts,
            "position": str(done.position),
            "lag_ms": max(int(time.time() * 1000) - done.position.physical_ms, 0),
            "warning": done.warning or None,
            "trouble": None if self.trouble is None else str(self.trouble),
            "error": None if self.error is None else str(self.error),
        }

    # -- running ---------------------------------------------------------------------------------------------------

    def run_once(self) -> None:
        """Apply what was committed before the call."""
        try:
            self._applier.catch_up()
        finally:
            self._applier.close()

    def start(self, *, once: bool = False) -> None:
        """Go on in a thread, until `stop`; `once` only until what is committed now is applied."""
        self._tell()
        self._thread = Thread(target=self._in_thread, args=(once,), name=f"tidegate-apply {self.name}", daemon=True)
        self._thread.start()

    def _in_thread(self, once: bool) -> None:
        try:
            if once:
                self._applier.watch = self._watch
                self.run_once()
            else:
                self.follow()
        except _Stopped:
            pass
        except Exception as error:
            self.error = error
            _logger.info("applying to %s ended: %s", self.to, error)

    def _told(self) -> list[Callable[[], dict[str, Any]]] | None:
        """What those say of themselves that apply from the database that this process owns."""
        backend = self._db.backend
        return backend.engine.applies if isinstance(backend, LocalBackend) else None

    def _tell(self) -> None:
        """Be in the database's status, in place of an earlier one of this name to the same target."""
        told = self._told()
        if told is not None:
            told[:] = [each for each in told if (was := each())["name"] != self.name or was["to"] != self.to]
            told.append(self.status)

    def _watch(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def follow(self) -> None:
        """Go on until told to stop, in this thread. A target that cannot be reached or written to is tried again.

        Raises: `ApplyConflict`, and whatever repeating does not help against.
        """
        pause_s = _AGAIN_S[0]
        self._applier.watch = self._watch
        try:
            while not self._stop.is_set():
                try:
                    self._applier.catch_up()
                except Closed:
                    raise
                except (Retryable, Unavailable) as error:
                    if str(error) != str(self.trouble):
                        _logger.info("applying to %s: %s", self.to, error)
                    self.trouble = error
                    self._stop.wait(pause_s)
                    pause_s = min(pause_s * 2, _AGAIN_S[1])
                    continue
                self.trouble, pause_s = None, _AGAIN_S[0]
                self._stop.wait(_LOOK_S)
        except _Stopped:
            pass
        finally:
            self._applier.close()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait_for(self, timestamp: Timestamp, timeout: float = 30.0) -> None:
        """Wait until everything at or below a Timestamp is at the target.

        Raises: what ended it; `WaitTimeout`.
        """
        until = time.monotonic() + timeout
        while self.position < timestamp:
            if not self.is_running:
                raise self.error or Closed(f"applying to {self.to} was stopped at {self.position}")
            if time.monotonic() > until:
                raise WaitTimeout(
                    f"{self.to} is at {self.position} and not at {timestamp} after {timeout:g} s"
                    + ("" if self.trouble is None else f": {self.trouble}")
                )
            time.sleep(0.01)

    def stop(self) -> None:
        """End it after the chunk that is being applied. May be repeated.

        Raises: what had ended it before.
        """
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            if self.error is not None:
                raise self.error  # It stays in the status, for whoever asks why nothing comes.
            told = self._told()
            if told is not None:
                with suppress(ValueError):
                    told.remove(self.status)

    def __enter__(self) -> Applying:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<applying to {self.to}: {self.transactions:,} transactions, {self.rows:,} rows, at {self.position}>"


class _Stopped(Exception):
    """Somebody has called `stop`."""


def make(
    db: ReplicationCalls,
    tables: Sequence[str],
    to: str,
    *,
    name: str | None = None,
    policy: Policy = "stop",
    chunk_rows: int = 1000,
    start: Start = "snapshot",
    restart: bool = False,
) -> Applying:
    """What `apply` runs, not yet running. Raises: `InvalidArgument`."""
    if isinstance(tables, str | Mapping) or not isinstance(tables, Iterable):
        raise InvalidArgument(f"tables are names of tables, not {tables!r}")
    tables = list(tables)
    if not tables:
        raise InvalidArgument("name at least one table to apply")
    for each in tables:
        if not isinstance(each, str):
            raise InvalidArgument(f"tables are names of tables, and {each!r} is none")
    if not isinstance(to, str):
        shown = f"; for a file write 'sqlite:///{to}'" if isinstance(to, PurePath) else ""
        raise InvalidArgument(
            f"to: a database to apply to is named by a URL, sqlite:///app.db, turso:///app.db or"
            f" postgresql://user@host/name, not by {to!r}{shown}"
        )
    if name is not None and not isinstance(name, str):
        raise InvalidArgument(f"name is a text, not {name!r}")
    if policy not in POLICIES:
        raise InvalidArgument(f"policy is {', '.join(map(repr, get_args(Policy)))}, not {policy!r}")
    if isinstance(chunk_rows, bool) or not isinstance(chunk_rows, int) or chunk_rows < 1:
        raise InvalidArgument(f"chunk_rows is a number above 0, not {chunk_rows!r}")
    if start not in ("snapshot", "now") and not isinstance(start, Timestamp):
        raise InvalidArgument(f"start is 'snapshot', 'now' or a Timestamp, not {start!r}")
    if restart and start != "snapshot":
        raise InvalidArgument(
            f"restart replaces the rows there by those here, and start={str(start)!r} says to copy none: leave one of"
            f" them out; another name=... begins where start says, and leaves the rows that are there"
        )
    chosen = name or f"tidegate:{db.id.hex()}"
    applier = Applier(db, tables, to, name=chosen, policy=policy, chunk_rows=chunk_rows, start=start, restart=restart)
    return Applying(db, applier, to, chosen)


def apply(
    db: ReplicationCalls,
    tables: Sequence[str],
    to: str,
    *,
    name: str | None = None,
    policy: Policy = "stop",
    chunk_rows: int = 1000,
    start: Start = "snapshot",
    restart: bool = False,
    follow: bool = False,
) -> Applying:
    """See `Database.apply`."""
    found = make(db, tables, to, name=name, policy=policy, chunk_rows=chunk_rows, start=start, restart=restart)
    if follow:
        found.start()
    else:
        found.run_once()
    return found
