"""What a statement did to the schema of a SQLite database, as rows of the log, and which tables there are.

As Turso records it: CREATE and DROP of tables and indexes, ADD and DROP COLUMN. Not recorded are what SQLite makes by
itself (indexes of keys, `sqlite_sequence`), indexes that go with their table, renames, views and triggers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidegate.capture.images import image
from tidegate.capture.sqlite_triggers import PREFIX, Table, quoted, text
from tidegate.capture.statements import Statement, indexed, moment, says_to_replace
from tidegate.cdc.record import Value, encode

Query = Callable[[str], Sequence[Sequence[Any]]]
"""Rows of a query on the connection, which may call the recorder's `tidegate_bytes`."""

VERSION_TABLE: Final = "turso_cdc_version"
_CHANGES: Final = re.compile(r"\bchanges\b", re.IGNORECASE)
_ORDINARY: Final = ("table", "index")


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of `sqlite_schema`."""

    type: str
    name: str
    table: str
    page: int
    sql: str | None

    @property
    def is_virtual(self) -> bool:
        """Whether it is a virtual table."""
        return self.type == "table" and self.page == 0

    @property
    def image(self) -> tuple[Value, ...]:
        """Its columns."""
        return (self.type, self.name, self.table, self.page, self.sql)


Entries = Mapping[tuple[str, int], Entry]
"""Rows of `sqlite_schema`, by database and rowid."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A row of the log about the schema, without its number."""

    type: int
    at: tuple[str, int]
    """The database and the rowid in its `sqlite_schema`."""
    before: bytes | None
    after: bytes | None
    updates: bytes | None


def schemas(query: Query) -> tuple[str, ...]:
    """The databases of a connection but the temporary one, `main` first."""
    rows = query("SELECT tidegate_bytes(name) FROM pragma_database_list ORDER BY seq")
    return tuple(name.decode() for (name,) in rows if name != b"temp")


def versions(query: Query, of: Iterable[str]) -> tuple[int, ...]:
    """Numbers that are other ones as soon as anybody has changed a schema."""
    return tuple(int(query(f"PRAGMA {quoted(schema)}.schema_version")[0][0] or 0) for schema in of)


def entries(query: Query, of: Iterable[str]) -> dict[tuple[str, int], Entry]:
    """All schemas as they are."""
    found = {}
    for schema in of:
        # As bytes in UTF-8: the connection's text_factory and the database's encoding may be anything.
        rows = query(
            "SELECT rowid + 0, tidegate_bytes(type), tidegate_bytes(name), tidegate_bytes(tbl_name), rootpage + 0,"
            f" tidegate_bytes(sql) FROM {quoted(schema)}.sqlite_schema"
        )
        for rowid, *columns in rows:
            kind, name, table, page, sql = columns
            text = None if sql is None else sql.decode()
            found[schema, rowid] = Entry(kind.decode(), name.decode(), table.decode(), page, text)
    return found


def changes(before: Entries, after: Entries, statement: Statement, sql: str, mode: str) -> Iterator[SchemaChange]:
    """What is recorded of a statement that led from one state of the schemas to another."""
    verb, what = statement.verb, statement.what.lower()
    changed = [at for at in sorted(before.keys() | after.keys()) if before.get(at) != after.get(at)]
    if any(entry.is_virtual for at in changed for entry in (before.get(at), after.get(at)) if entry):
        return  # It has no rows of its own, and what it keeps them in is its own affair.
    for at in changed:
        old, new = before.get(at), after.get(at)
        named = new or old
        if named is None or named.type not in _ORDINARY or _own(named):
            continue
        if verb == "ALTER" and old and new and what != "rename" and new.type == "table":
            flags: list[Value] = [0, 0, 0, 0, 1, None, None, None, None, sql.strip()]
            yield _change(0, at, old, new, mode, encode(flags) if mode == "full" else None)
        elif verb == "CREATE" and new and not old:
            yield _change(1, at, None, new, mode, None)
        elif verb == "DROP" and old and not new and old.type == what:
            yield _change(-1, at, old, None, mode, None)


def _own(entry: Entry) -> bool:
    """What SQLite makes by itself."""
    return entry.sql is None or entry.name.lower().startswith("sqlite_")


def _change(
    type: int, at: tuple[str, int], old: Entry | None, new: Entry | None, mode: str, updates: bytes | None
) -> SchemaChange:
    before = image(*old.image) if old and mode in ("before", "full") else None
    after = image(*new.image) if new and mode in ("after", "full") else None
    return SchemaChange(type, at, before, after, updates)


def tables(
    query: Query, of: Iterable[str], known: Entries, excluded: Iterable[str], *, looks_up: bool
) -> Iterator[Table]:
    """The tables whose changes are recorded: all but virtual ones, SQLite's own, and those excluded from `main`.

    `looks_up`: whether rows that are replaced have to be looked up.
    """
    apart = {name.lower() for name in excluded}
    found = [
        (schema, name.decode(), bool(without_rowid))
        for schema in of
        for name, kind, without_rowid in query(
            f"SELECT tidegate_bytes(name), tidegate_bytes(type), wr FROM pragma_table_list"
            f" WHERE schema = {text(schema)} ORDER BY name"
        )
        if kind == b"table" and not name.lower().startswith(b"sqlite_")
    ]
    found = [each for each in found if not (each[0] == "main" and each[1].lower() in apart)]
    temporary = temporary_triggers(query)
    user_triggers = [entry for entry in (*known.values(), *temporary) if entry.type == "trigger"]
    moments = [(entry.table.lower(), moment(entry.sql or "")) for entry in user_triggers]
    guarded = {table for table, (time, event) in moments if time == "BEFORE" and event == "DELETE"}
    interrupted = {table for table, (time, event) in moments if time == "BEFORE" and event != "DELETE"}
    followed = {entry.table.lower() for entry in temporary if moment(entry.sql or "")[0] == "AFTER"}
    nested = bool(user_triggers) or any(_has_actions(query, schema, name) for schema, name, _ in found)
    for schema, name, without_rowid in found:
        table = _table(query, schema, name, without_rowid)
        label = name.lower()
        table = replace(
            table, guarded=label in guarded, followed=label in followed, nested=nested and bool(table.identity)
        )
        if looks_up and table.nested:
            table = replace(table, uniques=uniques(query, table, known), interrupted=label in interrupted)
        yield table


def _has_actions(query: Query, schema: str, name: str) -> bool:
    """Whether changes of other tables are carried on to this one by foreign keys."""
    still = "('NO ACTION', 'RESTRICT')"
    return bool(
        query(
            f"SELECT 1 FROM pragma_foreign_key_list({text(name)}, {text(schema)})"
            f" WHERE on_update NOT IN {still} OR on_delete NOT IN {still}"
        )
    )


def _table(query: Query, schema: str, name: str, without_rowid: bool) -> Table:
    columns: list[str] = []
    keys: dict[int, int] = {}
    types: dict[int, str] = {}
    computed: set[int] = set()
    for column, type, place, hidden in query(
        f"SELECT tidegate_bytes(name), tidegate_bytes(type), pk, hidden"
        f" FROM pragma_table_xinfo({text(name)}, {text(schema)})"
    ):
        if hidden not in (0, 3):  # Computed when read: no image has it.
            continue
        if hidden:
            computed.add(len(columns))
        if place:
            keys[int(place)] = len(columns)
            types[len(columns)] = type.decode().upper()
        columns.append(column.decode())
    key = tuple(keys[place] for place in sorted(keys))
    if without_rowid:
        return Table(schema, name, tuple(columns), None, key, computed=frozenset(computed))
    alias = key[0] if len(key) == 1 and types[key[0]] == "INTEGER" else None
    if alias is not None and query(
        # INTEGER PRIMARY KEY DESC has an index, and is not the rowid.
        f"SELECT 1 FROM pragma_index_list({text(name)}, {text(schema)}) WHERE origin = 'pk'"
    ):
        alias = None
    return Table(schema, name, tuple(columns), alias, (), computed=frozenset(computed))


def uniques(query: Query, table: Table, known: Entries) -> tuple[str, ...]:
    """What no two rows of a table have in common, as conditions on `t` and the row `new`."""
    named = {entry.name.lower(): entry for at, entry in known.items() if at[0] == table.schema}
    defaults = {
        row[0]: row[1]
        for row in query(
            "SELECT tidegate_bytes(name), tidegate_bytes(dflt_value)"
            f" FROM pragma_table_xinfo({text(table.name)}, {text(table.schema)})"
            ' WHERE "notnull" AND dflt_value IS NOT NULL'
        )
    }
    every = query(f"SELECT tidegate_bytes(name) FROM pragma_table_xinfo({text(table.name)}, {text(table.schema)})")
    new = ", ".join(f"new.{quoted(name.decode())} AS {quoted(name.decode())}" for (name,) in every)
    found = [] if table.rowid is None else [f"t.{quoted(table.rowid)} = new.{quoted(table.rowid)}"]
    for index, partial in query(
        f"SELECT tidegate_bytes(name), partial FROM pragma_index_list({text(table.name)}, {text(table.schema)})"
        ' WHERE "unique"'
    ):
        name = index.decode()
        columns = query(
            "SELECT cid, tidegate_bytes(name), tidegate_bytes(coll)"
            f" FROM pragma_index_xinfo({text(name)}, {text(table.schema)}) WHERE key ORDER BY seqno"
        )
        terms: list[str] = []
        where = ""
        if partial or any(cid < 0 for cid, *_ in columns):
            terms, where = indexed(named[name.lower()].sql or "")
        conditions = [where] if where else []
        for at, (cid, column, collation) in enumerate(columns):
            if cid < 0:
                conditions.append(f"({terms[at]}) = (SELECT {terms[at]} FROM (SELECT {new}))")
                continue
            value = f"new.{quoted(column.decode())}"
            if column in defaults:  # Which takes the place of NULL where NOT NULL says to replace.
                value = f"ifnull({value}, {defaults[column].decode()})"
            conditions.append(f"t.{quoted(column.decode())} = {value} COLLATE {quoted(collation.decode())}")
        found.append(" AND ".join(f"({condition})" for condition in conditions))
    return tuple(found)


def temporary_triggers(query: Query) -> list[Entry]:
    """The user's TEMP triggers."""
    rows = query(
        "SELECT tidegate_bytes(name), tidegate_bytes(tbl_name), tidegate_bytes(sql) FROM sqlite_temp_schema"
        f" WHERE type = 'trigger' AND substr(name, 1, {len(PREFIX)}) <> {text(PREFIX)} ORDER BY rowid"
    )
    return [Entry("trigger", name.decode(), table.decode(), 0, sql.decode()) for name, table, sql in rows]


def may_replace(known: Iterable[Entry]) -> bool:
    """Whether some table or trigger says by itself that rows in its way are replaced."""
    return any(says_to_replace(entry.sql or "") for entry in known if entry.type in ("table", "trigger"))


def counts(known: Iterable[Entry]) -> bool:
    """Whether some trigger asks how many rows were changed."""
    return any(entry.type == "trigger" and _CHANGES.search(entry.sql or "") for entry in known)
