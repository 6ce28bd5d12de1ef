"""`TursoSource`: a database of Turso, read through `pyturso`, as a source: its own change table, v1 and v2.

With journal mode `mvcc` writers run side by side, and transactions are taken as far as Turso's watermark says that
nothing earlier can appear. Turso lets one process at a time open a database: a capture runs in the application's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate.capture.change_log import Reader
from tidegate.capture.change_table_source import BATCH, PAGE, ChangeTableSource
from tidegate.errors import InvalidArgument, NotFound, SourceUnreadable, Unavailable


class TursoReader(Reader):
    """A connection of `pyturso`."""

    def __init__(self, path: str) -> None:
        """Raises: `InvalidArgument` if `pyturso` is not installed, `NotFound`, `Unavailable`."""
        try:
            import turso
        except ImportError:
            raise InvalidArgument(
                "Turso is read through pyturso, which is not installed: pip install 'tidegate[turso]'"
            ) from None
        self._turso = turso
        self._path = Path(path).absolute()
        if not self._path.is_file():
            raise NotFound(f"there is no Turso database {path}")
        self._in_transaction = False
        with self._errors():
            self._connection: Any = turso.connect(str(self._path), isolation_level=None)

    @property
    def is_concurrent(self) -> bool:
        """Whether writers may run side by side."""
        return "mvcc" in str(self.query("PRAGMA journal_mode")[0][0]).lower()

    def query(self, sql: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        with self._errors():
            return [tuple(row) for row in self._connection.execute(sql, values).fetchall()]

    def stream(self, sql: str, size: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        with self._errors():
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(size):
                yield rows

    def begin(self) -> None:
        self.query("BEGIN")
        self._in_transaction = True
        self.query("SELECT count(*) FROM sqlite_schema")  # From here on it is one moment.

    def end(self) -> None:
        if self._in_transaction:
            self._in_transaction = False
            self.query("ROLLBACK")

    def version(self) -> object:
        return None

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._turso.Error as error:
            said = str(error)
            if "locked by another process" in said:
                raise Unavailable(
                    f"{self._path} is open in another process, and Turso lets one at a time: capture it in that one,"
                    f" or when it is closed"
                ) from error
            if isinstance(
                error, self._turso.OperationalError | self._turso.InterfaceError | self._turso.ProgrammingError
            ):
                raise Unavailable(f"{self._path} cannot be read now: {said}; open the source again") from error
            raise SourceUnreadable(f"{self._path} cannot be read by Turso: {said}") from error


class TursoSource(ChangeTableSource):
    """A file of Turso."""

    kind = "turso"

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
        """Raises: `NotFound`, `Unavailable`, `InvalidArgument` if nothing is recorded there."""
        reader = TursoReader(path)
        try:
            super().__init__(
                reader,
                identity=f"turso:///{Path(path).absolute()}",
                log=table,
                types=types,
                pruned=pruned,
                is_concurrent=reader.is_concurrent,
                page=page,
                batch=batch,
            )
        except BaseException:
            reader.close()
            raise
