"""`SqliteTarget`: a SQLite file that transactions are applied to.

Foreign keys are enforced, at the end of each chunk: `sqlite:///app.db?foreign_keys=off` leaves them to others. A file
that is not there is created. Whoever writes beside us is waited for, 10 s long or `busy_s`. Where the application
records its changes, what is applied is recorded, too: for captures of the file it is a change like any other.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import pyarrow as pa

from tidegate.capture.sqlite_ddl import VERSION_TABLE
from tidegate.capture.target import Target, TargetBusy, TargetRefused, Violation
from tidegate.capture.target_values import for_sqlite
from tidegate.cdc.apply_plan import SQLITE, Child, ForeignKey, Row, TargetColumn, TargetTable, quoted
from tidegate.errors import DiskFull, InvalidArgument, StorageFailed, Unavailable

_BUSY_S: Final = 10.0
_OPTIONS: Final = ("foreign_keys", "busy_s", "table")
_KINDS: Final = ("sqlite", "turso")
_LONGEST_S: Final = 1_000_000
USUAL_LOG: Final = "turso_cdc"
_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table'"
_SQL: Final = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE"
_LENIENT: Final = re.compile(r"\bON\s+CONFLICT\s+(REPLACE|IGNORE|FAIL|ROLLBACK)\b", re.IGNORECASE)
"""What a constraint says that replaces rows, or leaves them out."""
_ACTS: Final = ("CASCADE", "SET NULL", "SET DEFAULT")
_FULL: Final = ("disk is full", "no space left", "storagefull", "quotaexceeded", "filetoolarge")
"""What Turso says when there is no room, or a file may not grow: by the names of the errors of its language."""
_REFUSED: Final = ("readonly", "read-only", "permissiondenied", "readonlyfilesystem")
_INTERNAL: Final = ("sqlite_", "__turso_internal")
_NO_FILE: Final = ("unable to open", "isadirectory", "open: notfound", "notadirectory")


class _Reference(NamedTuple):
    """A column's part of a foreign key."""

    number: int
    """Of the foreign key, within its table."""
    parent: str
    own: str
    column: str
    """Of the parent."""
    on_update: str
    on_delete: str


class SqliteTarget(Target):
    """See the module."""

    kind = "sqlite"
    dialect = SQLITE

    def __init__(self, rest: str) -> None:
        """`rest` is what follows `sqlite://`: a slash, then the path."""
        text, _, options = rest.partition("?")
        self._options = dict(parse_qsl(options, keep_blank_values=True))
        if unknown := [each for each in self._options if each not in _OPTIONS]:
            raise InvalidArgument(f"{self.kind}://{rest}: unknown option {unknown[0]!r}; there are {_OPTIONS}")
        path = unquote(text.removeprefix("/"))
        if path == ":memory:":
            raise InvalidArgument(
                f"{self.kind}://{rest} is gone when applying ends, and with it what was applied; name a file:"
                f" {self.kind}:///app.db"
            )
        if not text.startswith("/") or not path:
            raise InvalidArgument(
                f"{self.kind}://{rest} names no file; write {self.kind}:///app.db, or {self.kind}:////var/app.db for a"
                f" path that begins with a slash"
            )
        self._has_actions: Final = self._options.get("foreign_keys", "on") != "off"
        """Whether foreign keys are enforced, and do what they say."""
        self._busy_s: Final = self._seconds("busy_s", _BUSY_S)
        self.path: Final = Path(path)
        self.shown = f"{self.kind}:///{self.path}"
        self.identity = sqlite_identity(self.path)
        places = {self.path.absolute(), self.path.resolve()}
        self.known_as = frozenset({self.identity, *(f"{kind}:///{each}" for kind in _KINDS for each in places)})
        if not self.path.parent.is_dir():
            raise InvalidArgument(f"{self.shown}: there is no directory {self.path.parent}; create it")
        try:
            self._open()
        except self._errors as error:
            raise self._explained(error) from error

    def _seconds(self, option: str, otherwise: float) -> float:
        given = self._options.get(option)
        try:
            found = otherwise if given is None else float(given)
        except ValueError:
            found = math.nan
        if not 0 <= found < _LONGEST_S:
            raise InvalidArgument(f"{option} is a number of seconds from 0 to {_LONGEST_S:,}, not {given!r}")
        return found

    def _open(self) -> None:
        self._connection = self._connect()
        self._log: str | None = None
        try:
            self.run("SELECT 1 FROM sqlite_schema LIMIT 1")
            log = self._change_table()
            if log is not None:
                self._record(log)
                self._log = log
            if self._has_actions:
                self.run("PRAGMA foreign_keys = ON")
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Any:
        return sqlite3.connect(self.path, isolation_level=None, timeout=self._busy_s, check_same_thread=False)

    def _record(self, log: str) -> None:
        """From now on what is written is recorded."""
        from tidegate.capture import sqlite as recorded

        self._connection.close()
        options: dict[str, Any] = {"isolation_level": None, "timeout": self._busy_s, "check_same_thread": False}
        self._connection = recorded.connect(str(self.path), "full", log, **options)

    def _change_table(self) -> str | None:
        """Where the application records its changes.

        Raises: `InvalidArgument` when there are several, and none is the usual one.
        """
        there = {str(name).lower(): str(name) for (name,) in self.run(_TABLES)}
        wanted = self._options.get("table")
        if wanted is not None:
            if wanted.lower() not in there:
                raise InvalidArgument(f"{self.shown} has no change table {wanted!r}; leave the option `table` out")
            return there[wanted.lower()]
        if USUAL_LOG in there:
            return there[USUAL_LOG]
        if VERSION_TABLE not in there:
            return None
        rows = self.run(f"SELECT table_name FROM {VERSION_TABLE}")
        logs = [there[str(name).lower()] for (name,) in rows if str(name).lower() in there]
        if len(logs) > 1:
            raise InvalidArgument(
                f"{self.shown} has several change tables, {', '.join(sorted(logs))}; say which one is to have what is"
                f" applied: ?table={sorted(logs)[0]}"
            )
        return logs[0] if logs else None

    _errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    _integrity: tuple[type[Exception], ...] = (sqlite3.IntegrityError,)

    # -- statements ------------------------------------------------------------------------------------------------

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        try:
            found: list[Row] = self._connection.execute(sql, tuple(values)).fetchall()
            return found
        except self._errors as error:
            raise self._explained(error) from error

    def many(self, sql: str, rows: Sequence[Row]) -> int:
        try:
            return max(int(self._connection.executemany(sql, rows).rowcount), 0)
        except self._errors as error:
            raise self._explained(error) from error

    def begin(self, *, deferred: bool = True) -> None:
        self.run("BEGIN IMMEDIATE")
        if self._log is None and self._change_table() is not None:
            # It is recorded by now.
            self.run("ROLLBACK")
            self.close()
            self._open()
            self.run("BEGIN IMMEDIATE")
        if deferred:
            self.run("PRAGMA defer_foreign_keys = ON")

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        # Without one it is refused, and when the disk fails SQLite has done it already.
        with suppress(*self._errors):
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        with suppress(*self._errors):
            self._connection.close()

    def _explained(self, error: Exception) -> Exception:
        text = str(error)
        low = text.lower()
        if isinstance(error, self._integrity) or "constraint failed" in low:
            if not getattr(self._connection, "in_transaction", True):
                return TargetRefused(
                    f"{self.shown}: {text}; a trigger has rolled the whole transaction back, and so the row is not"
                    f" known: let it RAISE(ABORT, ...). Nothing of the chunk was applied"
                )
            is_unique = "unique" in low or "primary key" in low
            return Violation(text, is_unique=is_unique, is_reference="foreign key" in low)
        if "foreign key mismatch" in low or "no such table: main." in low:  # Else a table is named without the file.
            return InvalidArgument(
                f"{self.shown}: {text}; a foreign key refers to what is not there, or not unique: mend it, or leave"
                f" foreign keys to others with ?foreign_keys=off"
            )
        if "no such table" in low or "no such column" in low or "has no column" in low:
            return InvalidArgument(
                f"{self.shown}: {text}; it was there before: put it back, or start anew with restart=True"
            )
        # Turso has no codes: what it says is as SQLite says it.
        code = str(getattr(error, "sqlite_errorname", ""))
        if "run it again" in low:
            return TargetBusy(f"{self.shown}: {text}. Nothing of the chunk was applied, and a repeat goes on")
        if "locked by another process" in low:
            return TargetBusy(
                f"{self.shown} is open in another process, and Turso lets one at a time ({text}); end that one, or"
                f" apply in it. Nothing of the chunk was applied"
            )
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or "is locked" in low or "busy" in low:
            return TargetBusy(
                f"{self.shown} is locked by another connection ({text}); let it commit, or wait longer with ?busy_s=60."
                f" Nothing of the chunk was applied"
            )
        if code == "SQLITE_FULL" or any(each in low for each in _FULL):
            return DiskFull(f"{self.shown}: {text}; make room. Nothing of the chunk was applied, and a repeat goes on")
        if code.startswith("SQLITE_READONLY") or any(each in low for each in _REFUSED):
            return Unavailable(f"{self.shown} cannot be written to ({text}); check its permissions and its directory's")
        if code in ("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT") or any(each in low for each in _NO_FILE):
            return Unavailable(f"{self.shown} cannot be opened: {text}; check the path and its permissions")
        if "not a database" in low or "malformed" in low:
            return Unavailable(f"{self.shown} cannot be opened: {text}; it is damaged, or no database")
        if code.startswith("SQLITE_IOERR") or "i/o error" in low:
            return StorageFailed(f"{self.shown}: {text}; check its disk. Nothing of the chunk was applied")
        return TargetRefused(f"{self.shown}: {text}; nothing of the chunk was applied")

    # -- tables ----------------------------------------------------------------------------------------------------

    def shape(self, table: str) -> TargetTable | None:
        found = self.run(f"PRAGMA table_xinfo({quoted(table)})")
        if not found:
            return None
        columns = tuple(
            TargetColumn(
                name=str(name),
                is_nullable=not not_null and not pk,
                has_default=default is not None or (pk and str(kind).upper() == "INTEGER"),
                is_generated=hidden in (2, 3),
            )
            for _, name, kind, not_null, default, pk, hidden in found
            if hidden != 1
        )
        keys = [frozenset(str(each[1]) for each in found if each[5])]
        for index in self.run(f"PRAGMA index_list({quoted(table)})"):
            if index[2] and not (len(index) > 4 and index[4]):
                parts = self.run(f"PRAGMA index_info({quoted(str(index[1]))})")
                if all(part[2] is not None for part in parts):
                    keys.append(frozenset(str(part[2]) for part in parts))
        keys = [each for each in keys if each]
        children = self._children(table)
        dependents, passed_on = self._acted_on(children)
        own = self._foreign_keys(table)
        return TargetTable(
            table,
            columns,
            tuple(keys),
            tuple(
                ForeignKey(parts[0].parent, tuple(each.own for each in parts), tuple(each.column for each in parts))
                for parts in _grouped(own)
            ),
            dependents,
            passed_on,
            self._has_actions and any(each.on_update in _ACTS or each.on_delete in _ACTS for each in own),
            children=tuple(
                Child(other, tuple(each.own for each in parts), tuple(each.column for each in parts))
                for other, parts in children
            ),
            is_lenient=any(_LENIENT.search(str(sql)) for (sql,) in self.run(_SQL, (table,))),
        )

    def _foreign_keys(self, table: str) -> list[_Reference]:
        found = self.run(f"PRAGMA foreign_key_list({quoted(table)})")
        return [
            _Reference(
                int(number),
                str(parent),
                str(own),
                str(to) if to else self._key_column(str(parent), place),
                str(on_update).upper(),
                str(on_delete).upper(),
            )
            for number, place, parent, own, to, on_update, on_delete, *_ in sorted(found, key=lambda each: each[:2])
        ]

    def _key_column(self, table: str, place: int) -> str:
        """What a foreign key refers to that does not say it (NULL, or nothing): that column of the primary key."""
        key = sorted((each[5], str(each[1])) for each in self.run(f"PRAGMA table_xinfo({quoted(table)})") if each[5])
        return key[place][1] if place < len(key) else ""

    def _children(self, table: str) -> list[tuple[str, list[_Reference]]]:
        """The foreign keys that refer to a table, and are enforced: their tables and their parts."""
        return [
            (str(other), parts)
            for (other,) in (self.run(_TABLES) if self._has_actions else ())
            for parts in _grouped(self._foreign_keys(str(other)))
            if parts[0].parent.casefold() == table.casefold()
        ]

    @staticmethod
    def _acted_on(children: list[tuple[str, list[_Reference]]]) -> tuple[frozenset[str], frozenset[str]]:
        """The tables that deleting a row does something to, and the columns whose change does."""
        dependents = {other for other, parts in children if parts[0].on_delete in (*_ACTS, "RESTRICT")}
        passed_on = {each.column for _, parts in children for each in parts if each.on_update in _ACTS}
        return frozenset(dependents), frozenset(passed_on)

    def taken_for(self, table: str) -> str:
        name = table.casefold()
        if name in (VERSION_TABLE, USUAL_LOG, (self._log or USUAL_LOG).casefold()):
            return "changes of the file are recorded there"
        if name.startswith(_INTERNAL):
            return "such names belong to the database itself"
        return super().taken_for(table)

    def column_type(self, type: pa.DataType) -> str:
        if pa.types.is_integer(type):
            return "INTEGER"
        if pa.types.is_boolean(type):
            return "BOOLEAN"
        if pa.types.is_floating(type):
            return "REAL"
        if pa.types.is_binary(type):
            return "BLOB"
        if pa.types.is_date(type):
            return "DATE"
        if pa.types.is_timestamp(type):
            return "TIMESTAMP"
        return "TEXT"  # Also decimals: as numbers they would lose digits.

    def values(self, column: pa.Array | pa.ChunkedArray) -> list[Any]:
        return for_sqlite(column)

    def broken_references(self, tables: Sequence[str]) -> str:
        found = []
        for table in tables:
            for _, row, parent, _ in self.run(f"PRAGMA foreign_key_check({quoted(table)})")[:3]:
                found.append(f"row {row} of {table!r} refers to {parent!r}")
        return ", ".join(found)


def _grouped(parts: list[_Reference]) -> list[list[_Reference]]:
    return [list(some) for _, some in groupby(parts, key=lambda each: each.number)]


def sqlite_identity(path: Path) -> str:
    """What a SQLite file is called wherever it is captured or applied to."""
    return f"sqlite:{path.resolve()}"
