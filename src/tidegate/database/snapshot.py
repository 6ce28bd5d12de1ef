"""`Snapshot`: one cut for any number of queries, kept until it is closed or its time is up."""

from __future__ import annotations

import time
from contextlib import ExitStack
from threading import Lock, Timer
from typing import TYPE_CHECKING, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.database.read_settings import ReadSettings, seconds
from tidegate.errors import Closed, InvalidArgument

if TYPE_CHECKING:
    from tidegate.database.database import Database
    from tidegate.database.result import Result, ResultStream
    from tidegate.reads.params import Params
    from tidegate.snapshots.manifest import Manifest


_LONGEST_S: Final = 7 * 86_400


class Snapshot:
    """A pinned cut, for reading only. Every query on it sees the same. Use it as a context manager; thread-safe."""

    def __init__(self, database: Database, at: Timestamp, settings: ReadSettings, timeout_s: float) -> None:
        """Ordering: every channel has ticked past `at`. Raises: `InvalidArgument` for a time that is none."""
        timeout_s = seconds("timeout", timeout_s)
        if timeout_s > _LONGEST_S:
            raise InvalidArgument(f"a snapshot is kept for {_LONGEST_S:,} s at most, not {timeout_s:,.0f}")
        self._database = database
        self.timestamp = at
        """The cut."""
        self._settings = settings.with_(consistency=at)
        self._timeout_s = timeout_s
        self._until_s = time.monotonic() + timeout_s
        self._lock = Lock()
        self._ends = ExitStack()
        reader = database.cut_reader
        self.manifest: Manifest = reader.store.at(at)
        self._ends.enter_context(reader.keeper.reading(self.manifest.checkpoint, at_once=True))
        self._is_closed = False
        timer = Timer(timeout_s, self.close)
        timer.daemon = True
        timer.start()
        self._ends.callback(timer.cancel)
        database.snapshots.add(self)

    def query(
        self, sql: str, *, params: Params = None, timeout: float | None = None, engine: str | None = None
    ) -> Result:
        """The answer to a query at this cut. Raises: `Closed` when its time is up."""
        self._check()
        wanted = self._settings.with_(timeout=timeout, engine=engine)
        return self._database.read(sql, wanted, None, params, self)

    def stream(self, sql: str, *, params: Params = None) -> ResultStream:
        """As `query`, batch by batch."""
        self._check()
        return self._database.read_stream(sql, self._settings, None, params, self)

    def _check(self) -> None:
        if time.monotonic() > self._until_s:
            self.close()
            raise Closed(
                f"the snapshot at {self.timestamp} was kept for {self._timeout_s:g} s and is let go; take another, with"
                f" a longer `timeout` if it needs one"
            )
        if self._is_closed:
            raise Closed(f"the snapshot at {self.timestamp} was closed; take another")

    def close(self) -> None:
        """Let the cut go. May be repeated."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._ends.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<snapshot at {self.timestamp}>"
