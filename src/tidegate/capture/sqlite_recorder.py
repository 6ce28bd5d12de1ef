"""What a recording connection knows: its log, its triggers and the schema they were made for, its transaction's id.

Everything of the recorder's own in the database is TEMP, and goes with the connection; what it keeps for others is the
change table and `turso_cdc_version`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from tidegate.capture import sqlite_ddl as ddl
from tidegate.capture.images import image
from tidegate.capture.sqlite_nested import Frame, Nest, nested_triggers
from tidegate.capture.sqlite_triggers import (
    COMMIT_VIEW,
    LOG_VIEW,
    PREFIX,
    Log,
    Slot,
    Table,
    log_views,
    quoted,
    triggers,
)
from tidegate.capture.statements import Statement
from tidegate.cdc.record import Value
from tidegate.errors import InvalidArgument, SourceUnreadable

MODES: Final = ("off", "id", "before", "after", "full")
NONE: Final = -1
"""The transaction id while nothing is recorded."""
_WRITE_COMMIT: Final = f"INSERT INTO {COMMIT_VIEW} VALUES(?)"
_DEFINITIONS: Final = {
    "change_id": "INTEGER PRIMARY KEY",
    "change_time": "INTEGER",
    "change_txn_id": "INTEGER",
    "change_type": "INTEGER",
    "table_name": "TEXT",
    "id": "",
    "before": "BLOB",
    "after": "BLOB",
    "updates": "BLOB",
}
_COUNT: Final = f"{PREFIX}count"
_SAY: Final = f"{PREFIX}say"
_FILL: Final = f"{PREFIX}fill"
_RESTORE: Final = (
    f"CREATE TEMP TABLE IF NOT EXISTS {_COUNT}(n)",
    f"CREATE TEMP VIEW {_FILL} AS SELECT 0 AS n",
    f"CREATE TEMP TRIGGER {_FILL}_write INSTEAD OF INSERT ON {_FILL} BEGIN INSERT INTO {_COUNT}"
    " SELECT n FROM (WITH RECURSIVE c(n) AS (SELECT 1 WHERE new.n > 0 UNION ALL SELECT n + 1 FROM c WHERE n < new.n)"
    " SELECT n FROM c); END",
)


class Recorder:
    """The recording of one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cursor = sqlite3.Cursor(connection)
        self.log: Log | None = None
        self._transaction: dict[int, int] = {}
        """The transaction's id at 0, once something was recorded: `conn_txn_id` is this dictionary's `setdefault`."""
        self._images: list[int | bytes | None] = []
        self.marks: set[int] = set()
        """Columns set by UPDATEs at work (see `Slot`). Between statements, left by rows that were passed over."""
        self._frames: list[Frame] = []
        """The same, where updates may run within one another."""
        self._replacing: dict[int, int] = {0: 0}
        """At 0, the number of the statement at work if it may replace rows that have to be looked up, or 0."""
        self._statements = 0
        self.needs_care = True
        """Whether `before_write` has something to do."""
        self._slots: list[tuple[Slot, Nest]] = []
        self._installed: dict[tuple[str, str], tuple[Table, int]] = {}
        self._schemas: tuple[str, ...] = ("main",)
        self._versions: tuple[int, ...] | None = None
        """Of the schemas that the triggers were made for."""
        self.hidden_changes: list[int] = []
        """What `changes()` was before a row was written to the log behind a statement."""
        self.uncounted = 0
        """Of `total_changes`, what was only done to set `changes()`."""
        self._schema_changed = False
        """Whether this transaction did."""
        self._recursive = False
        self.recursive_wanted = False
        """What the user has set `recursive_triggers` to."""
        self._has_triggers = self._may_replace = self._counts = False
        """What there is in the schema: triggers of the user, such that replace rows, such that ask for `changes()`."""
        self._functions_made = False

    # The transaction.

    @property
    def transaction_id(self) -> int:
        """The id of the transaction: the change_id of its first change, or -1."""
        return self._transaction.get(0, NONE)

    def ended(self, *, rolled_back: bool) -> None:
        """A transaction is over."""
        self._transaction.clear()
        if rolled_back and self._schema_changed:
            self._versions = None  # The triggers that were made in it are gone.
        self._schema_changed = False

    def rolled_back_to(self) -> None:
        """A part of the transaction was undone, and with it perhaps triggers."""
        if self._schema_changed and self.log:
            self.install()

    def is_own(self, table: str) -> bool:
        """Whether this is a table of the recorder's own, by its name in lower case."""
        return self.log is not None and table in (self.log.name.lower(), ddl.VERSION_TABLE)

    def has_recorded(self) -> bool:
        """Whether the log has something of a transaction of a single statement that failed."""
        if self.log is None or not self._transaction or not self._connection.in_transaction:
            return False
        log, first = f"main.{quoted(self.log.name)}", self.transaction_id
        return bool(self.query(f"SELECT 1 FROM {log} WHERE change_id >= ? AND change_txn_id = ?", first, first))

    def write_commit(self) -> bool:
        """Records that the transaction commits. Returns: whether the log's version knows that."""
        if self.log is None or self.log.version == "v1":
            return False
        self.run(_WRITE_COMMIT, self.transaction_id)
        del self.hidden_changes[1:]
        return True

    def remove_commit(self) -> None:
        """Removes the COMMIT just written: the transaction goes on."""
        if self.log:
            name = f"main.{quoted(self.log.name)}"
            before = self._total()
            self.run(f"DELETE FROM {name} WHERE change_id = (SELECT max(change_id) FROM {name})")
            self.uncounted += self._total() - before

    def _write(self, type: int, table: str | None, *values: Value) -> None:
        self.run(f"INSERT INTO {LOG_VIEW} VALUES(?, ?, ?, ?, ?, ?)", type, table, *values)
        del self.hidden_changes[1:]

    # Statements.

    def before_write(self, statement: Statement) -> None:
        """A statement that changes rows is about to run."""
        self.marks.clear()
        self._frames.clear()
        if self._counts:
            self.restore_changes()
        if self._looks_up:
            self._statements += 1
            replaces = statement.replaces or (self._may_replace and not statement.keeps)
            self._replacing[0] = self._statements if replaces else 0

    def recursive_was_set(self) -> None:
        """The user has set `recursive_triggers`."""
        self._recursive = self.recursive_wanted = bool(self.query("PRAGMA recursive_triggers")[0][0])
        self.install()

    @property
    def _looks_up(self) -> bool:
        """Whether rows that are replaced have to be looked up."""
        return self._has_triggers and not self.recursive_wanted

    def _set_recursive(self, wanted: bool) -> None:
        if wanted is not self._recursive:
            self.run(f"PRAGMA recursive_triggers = {int(wanted)}")
            self._recursive = wanted

    def restore_changes(self) -> None:
        """Makes `changes()` what it was before the recorder wrote."""
        if not self.hidden_changes:
            return
        count = self.hidden_changes[0]
        before = self._total()
        self.run(f"INSERT INTO {_FILL} VALUES(?)", count)
        self.run(f"DELETE FROM {_COUNT}")
        self.uncounted += self._total() - before
        self.hidden_changes.clear()

    # The log.

    def enable(self, mode: str, table: str) -> None:
        """Records in `table` from now on, which is created if need be; with mode off, no longer.

        Raises: `InvalidArgument` for another mode or no name; `SourceUnreadable` for a log of another version.
        """
        if mode not in MODES:
            raise InvalidArgument(f"no mode of recording: {mode!r}; use one of {', '.join(MODES)}")
        if not table or "\0" in table or table.lower().startswith("sqlite_"):
            raise InvalidArgument(f"no name for a change table: {table!r}")
        self._disable()
        if mode == "off":
            return
        self._make_functions()
        version = self._version(table)
        if version is None:
            own = not self._connection.in_transaction
            try:
                if own:
                    self.run("BEGIN IMMEDIATE")
                version = self._create(table)
                if own:
                    self.run("COMMIT")
            except BaseException:
                if own and self._connection.in_transaction:
                    self.run("ROLLBACK")
                raise
        if version not in ("v1", "v2"):
            raise SourceUnreadable(
                f"change table {table!r} is of version {version!r}, and only v1 and v2 are known:"
                " record into another table"
            )
        made = self.query(
            "SELECT instr(lower(sql), 'autoincrement') FROM main.sqlite_schema WHERE name = ? COLLATE NOCASE", table
        )
        self.log = Log(table, mode, version, autoincrement=bool(made and made[0][0]))
        self.install()

    def _disable(self) -> None:
        if self.log is not None:
            self.restore_changes()
            self.log = None
            self._drop(PREFIX)
            self._installed.clear()
            self._set_recursive(self.recursive_wanted)

    def _version(self, table: str) -> str | None:
        """The version that a table is said to have, if it is there and said."""
        names = {name.lower() for _, name in self._tables()}
        if ddl.VERSION_TABLE not in names or table.lower() not in names:
            return None
        return self._said_version(table)

    def _said_version(self, table: str) -> str | None:
        rows = self.query(f"SELECT tidegate_bytes(version) FROM main.{ddl.VERSION_TABLE} WHERE table_name = ?", table)
        return rows[0][0].decode() if rows else None

    def _create(self, table: str) -> str:
        """Creates what is not there. Returns: the log's version."""
        names = {name.lower() for _, name in self._tables()}
        if ddl.VERSION_TABLE not in names:
            self.run(f"CREATE TABLE main.{ddl.VERSION_TABLE} (table_name TEXT PRIMARY KEY, version TEXT NOT NULL)")
        version = self._said_version(table)
        there = table.lower() in names
        if version is None:
            version = "v1" if there else "v2"
            self._say_version(table, version)
        if not there and version in ("v1", "v2"):
            columns = (
                f"{quoted(name) if name in ('before', 'after') else name} {_DEFINITIONS[name]}".strip()
                for name in Log(table, "full", version).columns
            )
            self.run(f"CREATE TABLE main.{quoted(table)} ({', '.join(columns)})")
        return version

    def _say_version(self, table: str, version: str) -> None:
        """Writes the version of a table, so that none of SQLite's counters shows it."""
        before = self._total()
        self._keep_changes()
        for sql in (
            f"CREATE TEMP VIEW {_SAY} AS SELECT NULL AS t, NULL AS v",
            f"CREATE TEMP TRIGGER {_SAY}_write INSTEAD OF INSERT ON {_SAY}"
            f" BEGIN INSERT INTO {ddl.VERSION_TABLE} VALUES(new.t, new.v); END",
        ):
            self.run(sql)
        self.run(f"INSERT INTO {_SAY} VALUES(?, ?)", table, version)
        self.run(f"DROP VIEW temp.{_SAY}")
        self.uncounted += self._total() - before

    def _tables(self) -> list[tuple[str, str]]:
        rows = self.query("SELECT tidegate_bytes(name) FROM main.sqlite_schema WHERE type = 'table'")
        return [("main", name.decode()) for (name,) in rows]

    # The triggers.

    def check(self) -> None:
        """A transaction begins: renews the triggers if the schema is not the one that they were made for."""
        if self._transaction or self._schema_changed:
            self.ended(rolled_back=True)  # By SQLite, as rows of a statement were fetched: nobody has told.
        if not self.is_current:
            self.install()

    @property
    def is_current(self) -> bool:
        """Whether the triggers are those of the schema as it is."""
        if self.log is None:
            return True
        if len(self._schemas) > 1:
            return ddl.versions(self.query, self._schemas) == self._versions
        row = self._cursor.execute("PRAGMA main.schema_version").fetchone()
        return bool(row == self._versions)

    def install(self) -> None:
        """Makes all triggers anew."""
        if self.log is None:
            return
        own = not self._connection.in_transaction
        if own:
            self.run("BEGIN")
        try:
            self._drop(PREFIX)
            self._installed.clear()
            for sql in (*_RESTORE, *log_views(self.log)):
                self.run(sql)
            self._schemas = ddl.schemas(self.query)
            self.refresh(self.schema())
        except BaseException:
            if own and self._connection.in_transaction:
                self.run("ROLLBACK")
            self._versions = None
            raise
        if own:
            self.run("COMMIT")
        else:
            self._schema_changed = True  # Rolled back, the triggers go.

    def uninstall(self) -> None:
        """Takes all triggers away, before a statement that they would be in the way of."""
        self._drop(PREFIX, but=(LOG_VIEW, COMMIT_VIEW, _FILL))
        self._installed.clear()
        self._versions = None

    def schema(self) -> ddl.Entries:
        """The schemas as they are."""
        return ddl.entries(self.query, self._schemas)

    def refresh(self, known: ddl.Entries) -> None:
        """Makes the triggers of tables that are new or not what they were."""
        if self.log is None:
            return
        everything = [*known.values(), *ddl.temporary_triggers(self.query)]
        self._has_triggers = any(each.type == "trigger" for each in everything)
        self._may_replace = ddl.may_replace(everything)
        self._counts = ddl.counts(everything)
        # It makes SQLite tell which rows are replaced. The user's triggers would call themselves.
        self._set_recursive(self.recursive_wanted or not self._has_triggers)
        self._replacing[0] = 0
        own = (self.log.name, ddl.VERSION_TABLE)
        found = {}
        for table in ddl.tables(self.query, self._schemas, known, own, looks_up=self._looks_up):
            found[table.schema, table.name] = table
        for name in [name for name in self._installed if self._installed[name][0] != found.get(name)]:
            _, number = self._installed.pop(name)
            self._drop(f"{PREFIX}{number}_")
        taken = {number for _, number in self._installed.values()}
        free = [number for number in range(len(self._slots)) if number not in taken]
        for name, table in found.items():
            if name in self._installed:
                continue
            number = free.pop() if free else self._new_slot()
            slot, nest = self._slots[number]
            slot.serve(table, self.log.mode)
            nest.serve(table)
            for sql in (nested_triggers if table.nested else triggers)(table, number, self.log):
                self.run(sql)
            self._installed[name] = (table, number)
        self.needs_care = self._counts or any(table.nested for table, _ in self._installed.values())
        self._versions = ddl.versions(self.query, self._schemas)

    def schema_was_changed(self, before: ddl.Entries, statement: Statement, sql: str) -> None:
        """Records what a statement did to the schema, and follows it."""
        if self.log is None:
            return
        self._schema_changed = True
        after = self.schema()
        for schema, gone in sorted(before.keys() - after.keys()):
            self._forget_log(schema, before[schema, gone])
        self.refresh(after)
        for change in ddl.changes(before, after, statement, sql, self.log.mode):
            entry = after.get(change.at) or before[change.at]
            if not (change.at[0] == "main" and self.is_own(entry.table.lower())):
                self._write(change.type, "sqlite_schema", change.at[1], change.before, change.after, change.updates)

    def _forget_log(self, schema: str, entry: ddl.Entry) -> None:
        """Removes the version of a change table that was dropped."""
        if schema == "main" and entry.type == "table" and entry.name.lower() != ddl.VERSION_TABLE:
            names = {name.lower() for _, name in self._tables()}
            if ddl.VERSION_TABLE in names and self._said_version(entry.name):
                before = self._total()
                self._keep_changes()
                self.run(f"DELETE FROM main.{ddl.VERSION_TABLE} WHERE table_name = ?", entry.name)
                self.uncounted += self._total() - before

    def _keep_changes(self) -> None:
        if not self.hidden_changes:
            self.hidden_changes.append(int(self.query("SELECT changes()")[0][0]))

    def _drop(self, prefix: str, but: Sequence[str] = ()) -> None:
        """Drops temporary triggers and views with names that begin so."""
        rows = self.query(
            "SELECT tidegate_bytes(type), tidegate_bytes(name), tidegate_bytes(tbl_name) FROM sqlite_temp_schema"
            " WHERE type IN ('trigger', 'view') AND substr(name, 1, length(?)) = ? ORDER BY type",
            prefix,
            prefix,
        )
        orphans = []
        for kind, name, table in ([value.decode() for value in row] for row in rows):
            if table in but or name in but:
                continue
            try:
                self.run(f"DROP {kind} temp.{quoted(name)}")
            except sqlite3.OperationalError as error:
                if not str(error).startswith("no such trigger"):
                    raise
                orphans.append(name)
        if orphans:
            self._forget(orphans)

    def _forget(self, orphans: Sequence[str]) -> None:
        """Removes triggers of tables that another connection has dropped or renamed.

        Once it has seen that, SQLite passes over them and cannot drop them; with a table so called they would be back.
        """
        was = int(self.query("PRAGMA writable_schema")[0][0])
        before = self._total()
        self._keep_changes()
        self.run("PRAGMA writable_schema = 1")
        try:
            for name in orphans:
                self.run("DELETE FROM sqlite_temp_schema WHERE type = 'trigger' AND name = ?", name)
        finally:
            self.run(f"PRAGMA writable_schema = {was}")
            self.uncounted += self._total() - before

    def _new_slot(self) -> int:
        slot = Slot(len(self._slots), marks=self.marks, images=self._images)
        nest = Nest(slot, self._frames)
        self._slots.append((slot, nest))
        create = self._connection.create_function
        create(f"tidegate_update_{slot.number}", -1, slot.update)
        create(f"tidegate_hold_{slot.number}", -1, slot.hold)
        create(f"tidegate_image_{slot.number}", 0, slot.image)
        create(f"tidegate_mark_{slot.number}", -1, nest.mark)
        create(f"tidegate_nested_{slot.number}", -1, nest.update)
        return slot.number

    def _make_functions(self) -> None:
        """Once: SQLite replaces no function while a statement runs."""
        if self._functions_made:
            return
        create = self._connection.create_function
        create("tidegate_bytes", 1, _bytes)
        create("tidegate_image", -1, image)
        create("tidegate_mark", 1, self.marks.add)
        create("tidegate_txn_id", 0, partial(self._transaction.get, 0))
        create("tidegate_pop", 0, self._images.pop)
        create("tidegate_replaces", 0, partial(self._replacing.get, 0))
        create("tidegate_keep", 1, self.hidden_changes.append)
        create("conn_txn_id", 1, partial(self._transaction.setdefault, 0))
        create("total_changes", 0, lambda: self._total() - self.uncounted)
        self._functions_made = True

    # The connection, as it is below.

    def query(self, sql: str, *values: Value) -> list[Any]:
        """The rows of a query of the recorder's own."""
        return self.run(sql, *values).fetchall()

    def run(self, sql: str, *values: Value) -> sqlite3.Cursor:
        """Runs a statement of the recorder's own."""
        return self._cursor.execute(sql, values)

    def _total(self) -> int:
        return int(sqlite3.Connection.total_changes.__get__(self._connection))


def _bytes(text: str | None) -> bytes | None:
    """A text for the recorder to read as UTF-8, whatever the encoding of the database and the user's `text_factory`."""
    return None if text is None else str(text).encode()
