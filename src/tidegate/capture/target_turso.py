"""`TursoTarget`: a Turso file that transactions are applied to, through `pyturso`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, Final

from tidegate.capture.target_sqlite import SqliteTarget
from tidegate.cdc.apply_plan import Row
from tidegate.errors import InvalidArgument

_CREATING: Final = Lock()
"""Two threads that write to a new file at once end the process: its first page is made by one."""


class TursoTarget(SqliteTarget):
    """As SQLite's, by Turso's own engine."""

    kind = "turso"

    def _connect(self) -> Any:
        try:
            import turso
        except ImportError as error:
            raise InvalidArgument(
                "a Turso database is reached with pyturso, which is not installed: pip install 'tidegate[turso]'"
            ) from error
        self._errors = (turso.Error,)
        self._integrity = (turso.IntegrityError,)
        with _CREATING:
            found = TursoConnection(turso, str(self.path))
            found.execute(f"PRAGMA busy_timeout = {round(self._busy_s * 1000)}")
            if not self.path.stat().st_size:
                found.execute("BEGIN IMMEDIATE")
                found.execute("COMMIT")
        return found

    def _record(self, log: str) -> None:
        self.run(f"PRAGMA capture_data_changes_conn('full,{log}')")


class TursoConnection:
    """A connection of `pyturso`: each of its errors is a `turso.Error`, and nothing of it is left when it is closed.

    By itself it raises classes that are none of its own hierarchy, as when the disk is full, and lets go of the file
    only when nobody refers to it any more, the tracebacks of its errors among them; until then no other process can
    open the file.
    """

    def __init__(self, turso: Any, path: str) -> None:
        self._turso = turso
        self._inner: Any = None
        self._inner = self._call(lambda: turso.connect(path, isolation_level=None))

    def execute(self, sql: str, values: Sequence[Any] = ()) -> TursoRows:
        return TursoRows(self._call(lambda: self._alive().execute(sql, values).fetchall()), -1)

    def executemany(self, sql: str, rows: Iterable[Row]) -> TursoRows:
        return TursoRows([], self._call(lambda: self._alive().executemany(sql, rows).rowcount))

    def close(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            self._call(inner.close)

    def _alive(self) -> Any:
        if self._inner is None:
            raise self._turso.InterfaceError("the connection is closed")
        return self._inner

    def _call(self, what: Callable[[], Any]) -> Any:
        try:
            return what()
        except self._turso.Error as error:
            failed = type(error)(str(error))
        except BaseException as error:
            kind = type(error)
            if kind.__name__ != "PanicException" and kind.__module__.partition(".")[0] != "turso":
                raise
            about = "disk I/O error" if kind.__name__ == "IoError" else kind.__name__
            failed = self._turso.DatabaseError(f"{about}: {error}")
        raise failed  # Without the traceback, in which the connection would live on.


class TursoRows:
    """What a statement has given."""

    def __init__(self, rows: list[Row], rowcount: int) -> None:
        self._rows = rows
        self.rowcount = rowcount

    def fetchall(self) -> list[Row]:
        return self._rows
