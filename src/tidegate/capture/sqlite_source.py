"""`SqliteSource`: a database of plain SQLite whose changes `tidegate.capture.sqlite.connect` records, as a source.

It is opened to be read only, beside whoever writes. A file written by Turso and closed is read the same way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tidegate.capture.change_log import Reader
from tidegate.capture.change_table_source import BATCH, PAGE, ChangeTableSource
from tidegate.errors import NotFound, SourceUnreadable, Unavailable

BUSY_S: Final = 10.0
"""How long to wait for a lock."""


class SqliteReader(Reader):
    """A connection of Python's `sqlite3`."""

    def __init__(self, path: str, busy_s: float = BUSY_S) -> None:
        """Raises: `NotFound` if there is no such file."""
        self._path = Path(path).absolute()
        if not self._path.is_file():
            raise NotFound(f"there is no SQLite database {path}")
        self._file = self._identity()
        with _errors(self._path):
            uri = f"file:{quote(str(self._path))}?mode=ro"
            # A capture may be opened by one thread and driven by another.
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
            )
        try:
            self.query("PRAGMA query_only = 1")
            try:
                self.query("SELECT count(*) FROM sqlite_schema")
            except Unavailable:
                self._undo(busy_s)
                self.query("SELECT count(*) FROM sqlite_schema")
        except BaseException:
            self.close()
            raise

    def _undo(self, busy_s: float) -> None:
        """Lets SQLite undo what an application has left half done that was killed: who only reads may not."""
        if not Path(f"{self._path}-journal").exists():
            return
        uri = f"file:{quote(str(self._path))}?mode=rw"
        with _errors(self._path), closing(sqlite3.connect(uri, uri=True, timeout=busy_s)) as other:
            other.execute("SELECT count(*) FROM sqlite_schema").fetchall()

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def query(self, sql: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        with _errors(self._path):
            return self._connection.execute(sql, values).fetchall()

    def stream(self, sql: str, size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        with _errors(self._path):
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(size):
                yield rows

    def begin(self) -> None:
        self.query("BEGIN")
        self.query("SELECT 1 FROM sqlite_schema")  # From here on it is one moment.

    def end(self) -> None:
        if self._connection.in_transaction:
            self.query("ROLLBACK")

    def version(self) -> object:
        """Raises: `Unavailable` if the file was replaced by another one."""
        if self._identity() != self._file:
            raise Unavailable(f"{self._path} is not the file any more that was opened: open the source again")
        return self.query("PRAGMA data_version")[0][0]

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise Unavailable(f"{path}: {error}") from error
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" in str(error):
            raise SourceUnreadable(f"{path}: {error}: a text that is no UTF-8 cannot be captured") from error
        raise Unavailable(f"{path} cannot be read now: {error}; open the source again") from error
    except sqlite3.DatabaseError as error:
        raise SourceUnreadable(f"{path} is not readable as a SQLite database: {error}") from error


class SqliteSource(ChangeTableSource):
    """A file of SQLite."""

    kind = "sqlite"

    def __init__(
        self,
        path: str,
        *,
        table: str = "turso_cdc",
        types: Mapping[str, str] | None = None,
        pruned: str | None = None,
        page: int = PAGE,
        batch: int = BATCH,
    ) -> None:
        """Raises: `NotFound`, `InvalidArgument` if nothing is recorded there."""
        reader = SqliteReader(path)
        try:
            super().__init__(
                reader,
                identity=f"sqlite:///{Path(path).absolute()}",
                log=table,
                types=types,
                pruned=pruned,
                page=page,
                batch=batch,
            )
        except BaseException:
            reader.close()
            raise
