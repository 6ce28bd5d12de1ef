"""Connections to SQLite that record what they change, as the change table of seed 003: `connect`.

A connection is one of Python's `sqlite3`, used as any other. What it changes stands in the change table, written by
the same transaction: who sees a change sees its record, and what is rolled back leaves none. Recording is the
connection's own: other connections are not recorded, and opening the database again does not record. What differs
from Turso is listed in docs/capture-sqlite.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

from tidegate.capture.sqlite_cursor import Cursor, in_transaction, run_plain
from tidegate.capture.sqlite_recorder import NONE, Recorder
from tidegate.capture.sqlite_shared import shared_connection
from tidegate.capture.statements import Kind, Statement, target
from tidegate.errors import InvalidArgument

_OLDEST: Final = (3, 38, 0)
_LEVELS: Final = ("", "DEFERRED", "IMMEDIATE", "EXCLUSIVE")
_PRAGMAS: Final = ("capture_data_changes_conn", "unstable_capture_data_changes_conn")
_FORGETTING: Final = ("temp_store", "temp_store_directory")
"""Pragmas that begin a new temporary database when they are set."""
_LEGACY: Final = -1
_cursor: Final = sqlite3.Connection.cursor


class Capture(NamedTuple):
    """How a connection records, as Turso's pragma says it."""

    mode: str
    table: str | None
    version: str | None


class Connection(sqlite3.Connection):
    """A connection that records its changes: made by `connect`."""

    # Below, no transaction is ever opened by Python itself; `_level` says when this class does.
    _level: str | None = None
    _recorder: Recorder
    _own = False
    """Whether the transaction is of a single statement."""
    _unverified = False
    """Whether nothing was written yet since the schema was looked at, so that others may have changed it."""

    _cursors: type[Cursor] = Cursor
    """What `execute` makes, which asks `cursor` as little as Python's own does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._recorder = Recorder(self)  # A derived class may run statements as it begins.

    def begin_recording(self, level: str | None, mode: str, table: str) -> None:
        """Called once, by `connect`."""
        self._level = _checked_level(level)
        self._recorder.enable(mode, table)

    # Recording.

    @property
    def capture(self) -> Capture:
        """The mode, the change table and its version; ("off", None, None) while nothing is recorded."""
        log = self._recorder.log
        return Capture("off", None, None) if log is None else Capture(log.mode, log.name, log.version)

    def set_capture(self, mode: str, table: str = "turso_cdc") -> None:
        """Records in another way or another table from now on. Raises: as `connect`; then nothing is recorded."""
        self._recorder.enable(mode, table)

    @property
    def conn_txn_id(self) -> int:
        """The id of the transaction: the change_id of its first recorded change, or -1."""
        return self._recorder.transaction_id

    @property
    def is_autocommit(self) -> bool:
        """Whether each statement is a transaction of its own."""
        return self._own or not self.in_transaction

    # As of sqlite3.

    @property
    def isolation_level(self) -> Any:
        """How transactions are opened before INSERT, UPDATE, DELETE and REPLACE; None: they are not."""
        in_transaction(self)  # Raises if it is closed.
        return self._level

    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None:
        self._level = _checked_level(level)
        if level is None:
            self.commit()

    @property
    def autocommit(self) -> int:
        """`sqlite3.LEGACY_TRANSACTION_CONTROL`: `isolation_level` says how transactions are opened."""
        return _LEGACY

    @autocommit.setter
    def autocommit(self, wanted: int) -> None:
        # Python would open and end transactions itself, below, where no COMMIT is recorded.
        if wanted != _LEGACY:
            raise sqlite3.NotSupportedError(
                "`autocommit` is not recorded: use `isolation_level`, None for no implicit transactions"
            )

    @property
    def total_changes(self) -> int:
        """Rows changed since the connection was opened, those of the change table among them."""
        return int(_total_changes(self)) - self._recorder.uncounted

    def cursor(self, factory: Any = None) -> Any:
        """A cursor. Raises: `InvalidArgument` for a factory of cursors that do not record."""
        cursor = super().cursor(Cursor if factory is None else factory)
        if not isinstance(cursor, Cursor):
            raise InvalidArgument(f"cursors of {factory!r} do not record: derive them from {Cursor!r}")
        return cursor

    # Python's own would run past the cursors of this connection.

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Runs a statement on a new cursor."""
        return _cursor(self, self._cursors).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        """Runs a statement on a new cursor, for each of `parameters`."""
        return _cursor(self, self._cursors).executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> Any:
        """Runs a script on a new cursor."""
        return _cursor(self, self._cursors).executescript(sql_script)

    def commit(self) -> None:
        """Commits the transaction, if there is one."""
        if self.in_transaction:
            self._commit(lambda: super(Connection, self).commit())

    def rollback(self) -> None:
        """Rolls the transaction back, if there is one."""
        super().rollback()
        self._recorder.ended(rolled_back=True)

    def __enter__(self) -> Connection:
        in_transaction(self)  # Raises if it is closed.
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        if type is None:
            try:
                self.commit()
            except BaseException:
                self.rollback()
                raise
        else:
            self.rollback()
        return False

    def blobopen(self, *args: Any, readonly: bool = False, **options: Any) -> Any:
        """Opens a BLOB. Raises: `NotSupportedError` for writing while changes are recorded, which it would go past."""
        if not readonly and self._recorder.log:
            raise sqlite3.NotSupportedError("writing to an open BLOB is not recorded: use UPDATE, or readonly=True")
        return super().blobopen(*args, readonly=readonly, **options)

    def deserialize(self, *args: Any, **options: Any) -> None:
        """Replaces a database. Raises: `NotSupportedError` while changes are recorded."""
        if self._recorder.log:
            raise sqlite3.NotSupportedError("replacing a database is not recorded: set_capture('off') first")
        super().deserialize(*args, **options)

    # Statements.

    def run(self, cursor: Cursor, statement: Statement, sql: str, parameters: Any, *, implicit: bool = True) -> None:
        """Runs a statement on a cursor; called by cursors. `implicit`: whether a transaction may be opened for it."""
        recorder = self._recorder
        if statement.internal:
            raise sqlite3.OperationalError(f"{statement.internal} is an internal function used by CDC")
        if statement.counts:
            recorder.restore_changes()
        kind = statement.kind
        if kind is Kind.WRITE:
            if in_transaction(self):
                self.write(statement, run_plain, cursor, sql, parameters)
            elif implicit and self._opens(statement):
                self._write_first(statement, run_plain, cursor, sql, parameters)
            else:
                self._run_alone(cursor, statement, sql, lambda: run_plain(cursor, sql, parameters))
        elif kind is Kind.SCHEMA and recorder.log:
            self._run_schema(cursor, statement, sql, parameters)
        elif kind is Kind.COMMIT and in_transaction(self):
            self._commit(lambda: run_plain(cursor, sql, parameters))
        elif kind is Kind.PRAGMA:
            self._run_pragma(cursor, statement, sql, parameters)
        elif kind is Kind.DATABASES and recorder.log:
            recorder.uninstall()
            try:
                run_plain(cursor, sql, parameters)
            finally:
                recorder.install()
        else:
            if kind in (Kind.BEGIN, Kind.SAVEPOINT):
                self._opening()
            run_plain(cursor, sql, parameters)
            if kind is Kind.ROLLBACK_TO:
                recorder.rolled_back_to()
            elif kind in (Kind.ROLLBACK, Kind.RELEASE) and not in_transaction(self):
                recorder.ended(rolled_back=kind is Kind.ROLLBACK)

    def run_many(self, cursor: Cursor, statement: Statement, sql: str, parameters: Iterable[Any]) -> None:
        """Runs a statement many times; called by cursors."""
        many = sqlite3.Cursor.executemany
        if statement.internal:
            raise sqlite3.OperationalError(f"{statement.internal} is an internal function used by CDC")
        if statement.counts:
            self._recorder.restore_changes()
        if not statement.begins:
            many(cursor, sql, parameters)
        elif in_transaction(self):
            self.write(statement, many, cursor, sql, parameters)
        elif self._opens(statement):
            self._write_first(statement, many, cursor, sql, parameters)
        elif self._recorder.log is None:
            many(cursor, sql, parameters)
        else:
            rows = 0
            for one in parameters:
                self._run_alone(cursor, statement, sql, partial(many, cursor, sql, (one,)))
                rows += sqlite3.Cursor.rowcount.__get__(cursor)
            cursor.counted(rows)

    def _opens(self, statement: Statement) -> bool:
        """Opens a transaction, if the isolation level says so for this statement."""
        if self._level is None or not statement.begins:
            return False
        recorder = self._recorder
        if recorder.log is None or self._level.upper() == "EXCLUSIVE":
            recorder.run(f"BEGIN {self._level}")
        else:
            # A write follows, so nothing is locked sooner; and the schema can be looked at while nobody changes it.
            recorder.run("BEGIN IMMEDIATE")
        recorder.check()
        self._unverified = False
        return True

    def _opening(self) -> None:
        """A transaction is about to begin. The schema is looked at before, because to read in it would be too early:
        a transaction that has read may not be allowed to write any more."""
        if self._recorder.log and not in_transaction(self):
            self._recorder.check()
            self._unverified = True

    def write(self, statement: Statement, work: Callable[..., object], *arguments: Any) -> None:
        """Runs a statement that changes rows within a transaction; called by cursors."""
        recorder = self._recorder
        if recorder.log is None:
            work(*arguments)
            return
        if recorder.needs_care or recorder.marks:
            recorder.before_write(statement)
        try:
            work(*arguments)
        except BaseException as error:
            if isinstance(error, sqlite3.IntegrityError):
                recorder.hidden_changes.clear()  # Unlike one that could not even begin, it has set `changes()`.
            if not in_transaction(self):
                recorder.ended(rolled_back=True)
            raise
        recorder.hidden_changes.clear()
        if self._unverified:
            self._unverified = False
            if not recorder.is_current:
                self.rollback()
                raise sqlite3.OperationalError(
                    "another connection changed the schema as the transaction began; it was rolled back: run it again"
                )

    def _write_first(self, statement: Statement, work: Callable[..., object], *arguments: Any) -> None:
        """Runs the statement that a transaction was opened for."""
        before = _total_changes(self)
        try:
            self.write(statement, work, *arguments)
        except sqlite3.IntegrityError:
            raise
        except BaseException:
            # Python compiles a statement before it opens a transaction: one that is none leaves none open, and no lock.
            if in_transaction(self) and _total_changes(self) == before:
                self.rollback()
            raise

    def _run_alone(self, cursor: Cursor, statement: Statement, sql: str, work: Callable[[], object]) -> None:
        """Runs a statement that changes rows as a transaction of its own."""
        recorder = self._recorder
        if recorder.log is None:
            work()
            return
        try:
            self._begin_own()
            recorder.check()
            recorder.before_write(statement)
            work()
            recorder.hidden_changes.clear()
            if statement.returning and cursor.description is not None:
                cursor.hold()
        except BaseException as error:
            if isinstance(error, sqlite3.IntegrityError):
                recorder.hidden_changes.clear()
            # With OR FAIL, what was changed before the failure stays; and all, if rows could not be made of what is
            # returned, or CTRL-C came behind the statement. Of any other failure nothing is left to commit.
            self._end_own(keep=in_transaction(self), record=recorder.has_recorded())
            raise
        # A statement without changes has a COMMIT all the same, unless it is one about the log.
        self._end_own(keep=True, record=recorder.transaction_id != NONE or not recorder.is_own(target(sql)))

    def _begin_own(self) -> None:
        self._own, self._unverified = True, False
        self._recorder.run("BEGIN IMMEDIATE")

    def _end_own(self, *, keep: bool, record: bool) -> None:
        recorder = self._recorder
        committed = False
        try:
            if keep:
                if record:
                    recorder.write_commit()
                recorder.run("COMMIT")
                committed = True
        finally:
            self._own = False
            if not committed and in_transaction(self):
                recorder.run("ROLLBACK")
            recorder.ended(rolled_back=not committed)

    def _commit(self, work: Callable[[], object]) -> None:
        recorder = self._recorder
        written = recorder.transaction_id != NONE and recorder.write_commit()
        try:
            work()
        except BaseException:
            if not in_transaction(self):
                recorder.ended(rolled_back=True)
            elif written:
                recorder.remove_commit()
            raise
        recorder.ended(rolled_back=False)

    def _run_schema(self, cursor: Cursor, statement: Statement, sql: str, parameters: Any) -> None:
        """Runs a statement that changes the schema."""
        recorder = self._recorder
        own = not in_transaction(self)
        refused = False
        try:
            if own:
                self._begin_own()
                recorder.check()
            before = recorder.schema()
            try:
                if statement.verb == "ALTER":
                    recorder.uninstall()  # It would try to change them too.
                run_plain(cursor, sql, parameters)
            except BaseException as error:
                if statement.verb == "ALTER" and in_transaction(self):
                    recorder.install()
                refused = isinstance(error, sqlite3.Error)
                raise
            recorder.schema_was_changed(before, statement, sql)
            self._unverified = False
        except BaseException:
            if own:
                # What SQLite refuses changes nothing. The triggers made anew stay, and so do statements that are still
                # read, which end if a transaction that made any is rolled back.
                self._end_own(keep=refused and in_transaction(self), record=False)
            elif not in_transaction(self):
                recorder.ended(rolled_back=True)
            raise
        if own:
            self._end_own(keep=True, record=recorder.transaction_id != NONE)

    def _run_pragma(self, cursor: Cursor, statement: Statement, sql: str, parameters: Any) -> None:
        recorder = self._recorder
        name, value = statement.what, statement.value
        if name in _PRAGMAS:
            if value is None:
                run_plain(cursor, "SELECT ? AS mode, ? AS 'table', ? AS version", self.capture)
            else:
                mode, _, table = value.partition(",")
                self.set_capture(mode, table.strip() or "turso_cdc")
                run_plain(cursor, sql, parameters)  # Which SQLite takes for nothing.
            return
        if name == "journal_mode" and value is not None and recorder.log:
            now = str(recorder.query("SELECT tidegate_bytes(journal_mode) FROM pragma_journal_mode")[0][0].decode())
            if value.lower() != now:
                raise sqlite3.OperationalError(
                    f"the journal mode cannot be changed from {now} while CDC is on: turn it off first, by"
                    " set_capture('off') or PRAGMA capture_data_changes_conn('off')"
                )
        if name == "recursive_triggers" and value is None:
            run_plain(cursor, "SELECT ? AS recursive_triggers", (int(recorder.recursive_wanted),))
            return
        run_plain(cursor, sql, parameters)
        if name == "recursive_triggers":
            recorder.recursive_was_set()
        elif name in _FORGETTING and value is not None:
            recorder.install()  # SQLite has removed everything temporary, the triggers too.


_total_changes: Final = sqlite3.Connection.total_changes.__get__


def _checked_level(level: str | None) -> str | None:
    if level is not None and not isinstance(level, str):
        raise TypeError(f"isolation_level must be a string or None, not {level!r}")
    if level is not None and level.upper() not in _LEVELS:
        raise ValueError(f"isolation_level must be None or one of {', '.join(map(repr, _LEVELS))}, not {level!r}")
    return level


def connect(path: str, mode: str = "full", table: str = "turso_cdc", **options: Any) -> Connection:
    """Opens a database whose changes are recorded in `table`: mode off, id, before, after or full.

    `options` are those of `sqlite3.connect`. The change table is created where there is none.
    Raises: `InvalidArgument` for a mode there is not or an option that recording cannot keep, `SourceUnreadable` for a
    change table of a version there is not.
    """
    if sqlite3.sqlite_version_info < _OLDEST:
        raise InvalidArgument(f"recording needs SQLite 3.38, not {sqlite3.sqlite_version}: use a newer Python")
    factory = options.pop("factory", Connection)
    if not (isinstance(factory, type) and issubclass(factory, Connection)):
        raise InvalidArgument(f"{factory!r} does not record: leave `factory` out, or derive it from {Connection!r}")
    if "autocommit" in options:
        raise InvalidArgument("`autocommit` is not recorded: use `isolation_level`, None for no implicit transactions")
    level = options.pop("isolation_level", "")
    if not options.get("check_same_thread", True):
        factory = shared_connection(factory)  # type: ignore[arg-type]
    connection: Connection = sqlite3.connect(path, isolation_level=None, factory=factory, **options)
    try:
        connection.begin_recording(level, mode, table)
    except BaseException:
        connection.close()
        raise
    return connection
