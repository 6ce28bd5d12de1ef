"""Cursors of a recording connection: they tell what a statement is, and leave it to the connection if it matters."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture.statements import LONGEST_KEPT, READ, classify, classify_kept, split

if TYPE_CHECKING:
    from tidegate.capture.sqlite import Connection

run_plain: Final = sqlite3.Cursor.execute
"""Runs a statement as Python does, without recording."""
in_transaction: Final[Callable[[sqlite3.Connection], bool]] = sqlite3.Connection.in_transaction.__get__
_rowcount: Final = sqlite3.Cursor.rowcount.__get__


class Cursor(sqlite3.Cursor):
    """A cursor of a recording connection."""

    connection: Connection
    _rowcount: int | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """Runs a statement, and records what it changes."""
        if self._rowcount is not None:
            self._rowcount = None
        if type(sql) is not str and not isinstance(sql, str):
            return run_plain(self, sql, parameters)  # Which says what is wrong with it.
        statement = classify_kept(sql) if len(sql) <= LONGEST_KEPT else classify(sql)
        if statement is READ:
            run_plain(self, sql, parameters)
        elif statement.plain and in_transaction(self.connection):
            # The same as `run` would do, without asking again.
            self.connection.write(statement, run_plain, self, sql, parameters)
        else:
            self.connection.run(self, statement, sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Cursor:
        """Runs a statement for each of `parameters`: outside a transaction, each is one of its own."""
        self._rowcount = None
        statement = classify_kept(sql) if len(sql) <= LONGEST_KEPT else classify(sql)
        self.connection.run_many(self, statement, sql, parameters)
        return self

    def executescript(self, sql_script: str, /) -> Cursor:
        """Commits, and runs all statements of a script."""
        if not isinstance(sql_script, str) or "\0" in sql_script:
            super().executescript(sql_script)  # Which says what is wrong with it.
        connection = self.connection
        connection.commit()
        cursor = Cursor(connection)
        for sql in split(sql_script):
            connection.run(cursor, classify(sql), sql, (), implicit=False)
            if cursor.description is not None:
                _go_through(cursor)
        return self

    @property
    def rowcount(self) -> int:
        """As of `sqlite3.Cursor`."""
        return int(_rowcount(self)) if self._rowcount is None else self._rowcount

    def counted(self, rows: int) -> None:
        """Sets `rowcount`, where a call ran several statements."""
        self._rowcount = rows

    def hold(self) -> None:
        """Takes all rows of a statement, so that its transaction can end, and gives them out when asked."""
        try:
            rows = deque(sqlite3.Cursor.fetchall(self))
        except BaseException:
            run_plain(self, "")  # Ends the statement, as its transaction is about to.
            raise
        self.__class__ = _holding(type(self))
        self._rows = rows


def _go_through(cursor: Cursor) -> None:
    """Ends a statement whose rows nobody wants: nothing is made of them that could fail."""
    connection = cursor.connection
    factory = connection.text_factory
    connection.text_factory = bytes
    try:
        for _ in cursor:
            pass
    finally:
        connection.text_factory = factory


class _HoldingCursor(Cursor):
    """A cursor that has all of its rows: a class of its own, so that reading from others is as fast as ever.

    Invariant: stands right in front of `Cursor` among a cursor's classes, behind those that a user has derived.
    """

    _rows: deque[Any]
    _kind: type[Cursor]
    """What it was, and becomes again."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        self._let_go()
        return Cursor.execute(self, sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        self._let_go()
        return Cursor.executemany(self, sql, parameters)

    def close(self) -> None:
        self._let_go()
        Cursor.close(self)

    def _let_go(self) -> None:
        self.__class__ = self._kind  # type: ignore[assignment]

    def __iter__(self) -> _HoldingCursor:
        return self

    def __next__(self) -> Any:
        if not self._rows:
            raise StopIteration
        return self._rows.popleft()

    def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[Any]:
        most = self.arraysize if size is None else size
        return [self._rows.popleft() for _ in range(min(most, len(self._rows)))]

    def fetchall(self) -> list[Any]:
        rows = list(self._rows)
        self._rows.clear()
        return rows


@lru_cache(maxsize=64)
def _holding(kind: type[Cursor]) -> type[Cursor]:
    """The class that a cursor of this one has while it holds rows: it can do what the user's class can."""
    bases = (_HoldingCursor,) if kind is Cursor else (kind, _HoldingCursor)
    return type(kind.__name__, bases, {"__slots__": (), "__module__": kind.__module__, "_kind": kind})
