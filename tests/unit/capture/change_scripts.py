"""Random scripts of SQL for the comparison with Turso, and what differs from it, made the same on both sides.

Scripts keep to what Turso 0.8.3 does as SQLite does: what it refuses, or answers otherwise as a database, is no matter
of recording. Every rewriting below is a difference listed in docs/capture-sqlite.md, by its number there.
"""

import re

from tidegate.cdc.record import decode, encode

TABLES = {
    "t": ("x integer primary key, y", ("x", "y"), ("x",)),
    "u": ("x integer primary key, y unique, z", ("x", "y", "z"), ("x",)),
    "k": ("a text primary key, b, c", ("a", "b", "c"), ()),
    "p": ("a, b", ("a", "b"), ()),
    "n": ("x integer primary key, i int, r real, s text, b blob, n numeric", ("x", "i", "r", "s", "b", "n"), ("x",)),
    "m": ("a int, b int, c, primary key(a, b)", ("a", "b", "c"), ()),
}
UNIQUE = {"u": "y", "k": "a", "t": "x", "n": "x"}
LITERALS = (
    "NULL", "0", "1", "-1", "7", "127", "128", "-129", "32768", "8388608", "-2147483649", "140737488355328",
    "9223372036854775807", "1.5", "-0.25", "1e300", "''", "'a'", "'abc'", "'ü€'", "x''", "x'00ff'", "'12'", "'3.5'",
)  # fmt: skip


class Script:
    """One script, statement by statement, drawn from a seeded source."""

    def __init__(self, random):
        self.random = random
        self.columns = {}
        self.indexes = []
        self.open = 0
        self.savepoints = 0
        self.made = 0

    def statements(self, length):
        for name in self.random.sample(sorted(TABLES), self.random.randint(1, 3)):
            self.columns[name] = list(TABLES[name][1])
            yield f"CREATE TABLE {name}({TABLES[name][0]})"
        for _ in range(length):
            yield self.statement()
        if self.open:
            yield self.random.choice(("COMMIT", "ROLLBACK"))

    def statement(self):
        choose = self.random.random()
        if choose < 0.16:
            return self.boundary()
        if choose < 0.24 and not self.savepoints:
            return self.schema()
        table = self.random.choice(sorted(self.columns))
        if choose < 0.58:
            return self.insert(table)
        return self.update(table) if choose < 0.82 else self.delete(table)

    def boundary(self):
        if not self.open:
            self.open = 1
            return self.random.choice(("BEGIN", "BEGIN IMMEDIATE"))
        choose = self.random.random()
        if choose < 0.35:
            self.savepoints += 1
            return f"SAVEPOINT s{self.savepoints}"
        if self.savepoints and choose < 0.65:
            if choose < 0.5:
                return f"ROLLBACK TO s{self.savepoints}"
            self.savepoints -= 1
            return f"RELEASE s{self.savepoints + 1}"
        if self.made and choose > 0.8:
            return "SELECT 1"  # Not rolled back: the script would no longer know its tables.
        self.open = self.savepoints = self.made = 0
        return "COMMIT" if choose < 0.85 else "ROLLBACK"

    def schema(self):
        self.made = self.open
        choose = self.random.randrange(6)
        table = self.random.choice(sorted(self.columns))
        name = f"o{self.random.randrange(10**6)}"
        if choose == 0:
            self.columns[name] = ["a", "b"]
            return f"CREATE TABLE {name} (a INTEGER PRIMARY KEY, b)"
        if choose == 1:
            self.indexes.append((name, table))
            return f"CREATE INDEX {name} ON {table} ({self.columns[table][-1]})"
        if choose == 2 and self.indexes:
            index, _ = self.indexes.pop()
            return f"DROP INDEX IF EXISTS {index}"
        if choose == 3 and len(self.columns) > 1:
            del self.columns[table]
            self.indexes = [(index, of) for index, of in self.indexes if of != table]
            return f"DROP TABLE {table}"
        if choose == 4:
            self.columns[table].append(name)
            return f"ALTER TABLE {table} ADD COLUMN {name} DEFAULT {self.random.choice(('NULL', '5', chr(39) * 2))}"
        added = [c for c in self.columns[table] if c.startswith("o") and (table not in {t for _, t in self.indexes})]
        if choose == 5 and added:
            self.columns[table].remove(added[0])
            return f"ALTER TABLE {table} DROP COLUMN {added[0]}"
        return f"CREATE TABLE IF NOT EXISTS {table} (a)"

    def value(self, column):
        if column in ("x", "a") or self.random.random() < 0.3:
            return str(self.random.randrange(6))
        return self.random.choice(LITERALS)

    def insert(self, table):
        columns = self.columns[table]
        rows = self.random.randint(1, 3)
        values = ", ".join("(" + ", ".join(self.value(c) for c in columns) + ")" for _ in range(rows))
        choose = self.random.random()
        if choose < 0.12:
            return f"INSERT OR IGNORE INTO {table} VALUES {values}"
        if choose < 0.3:
            return f"INSERT OR REPLACE INTO {table} VALUES {values}"
        if choose < 0.45 and table in UNIQUE:
            key = UNIQUE[table]
            if choose < 0.35:
                return f"INSERT INTO {table} VALUES {values} ON CONFLICT({key}) DO NOTHING"
            other = self.random.choice([c for c in columns if c not in (key, "x", "y", "a")] or [columns[-1]])
            return f"INSERT INTO {table} VALUES {values} ON CONFLICT({key}) DO UPDATE SET {other} = excluded.{other}"
        if choose < 0.55 and table in ("p", "t"):
            return f"INSERT INTO {table}({columns[1]}) SELECT {columns[1]} FROM {table} WHERE {columns[1]} > 1"
        return f"INSERT INTO {table} VALUES {values}"

    def update(self, table):
        columns = self.columns[table]
        chosen = self.random.sample(columns, self.random.randint(1, min(2, len(columns))))
        parts = []
        for column in chosen:
            value = self.value(column)
            if self.random.random() < 0.2 and column not in ("x", "a"):
                value = column
            parts.append(f"{column} = {value}")
        return f"UPDATE {table} SET {', '.join(parts)} {self.where(table)}"

    def delete(self, table):
        return f"DELETE FROM {table} {self.where(table)}"

    def where(self, table):
        # Not by a part of a key of several columns, and below by rowid: in which order rows are found by an index is no
        # matter of recording.
        column = self.random.choice([c for c in self.columns[table] if table != "m" or c not in ("a", "b")])
        choose = self.random.random()
        if choose < 0.1:
            return f"WHERE {self.columns[table][0]} = -99"
        return f"WHERE {column} = {self.value(column)}" if choose < 0.7 else "WHERE rowid < 4"


CAUSES = (
    "PRAGMA foreign_keys = ON",
    "CREATE TABLE p(x integer primary key, y)",
    "CREATE TABLE c(x integer primary key, p references p(x) on delete cascade, z)",
    "CREATE TABLE d(x integer primary key, p references p(x) on delete set null on update cascade)",
    "CREATE TABLE lg(x integer primary key, what, y)",
    "CREATE TRIGGER p_insert AFTER INSERT ON p WHEN new.y > 2 BEGIN INSERT INTO lg(what, y) VALUES('i', new.y); END",
    "CREATE TRIGGER c_update AFTER UPDATE OF z ON c BEGIN UPDATE lg SET y = new.z WHERE x = 1; END",
    "CREATE TRIGGER p_delete BEFORE DELETE ON p BEGIN INSERT INTO lg(what) VALUES('d'); END",
    "CREATE TRIGGER d_insert BEFORE INSERT ON d BEGIN DELETE FROM lg WHERE x = new.x; END",
)
"""A schema in which statements cause changes to other tables."""


def caused(random, length):
    """A script over `CAUSES`."""
    number = lambda: random.randrange(1, 7)  # noqa: E731
    yield from CAUSES
    begun = False
    for _ in range(length):
        choose = random.randrange(9)
        if choose == 0:
            begun = not begun
            yield "BEGIN" if begun else random.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        elif choose < 4:
            yield f"INSERT INTO p VALUES({number()}, {number()}), ({number()}, {number()})"
        elif choose == 4:
            yield f"INSERT INTO c VALUES({number()}, {number()}, {number()})"
        elif choose == 5:
            yield f"INSERT INTO d VALUES({number()}, {number()})"
        elif choose == 6:
            yield f"UPDATE c SET z = {number()} WHERE x < {number()}"
        elif choose == 7:
            yield f"UPDATE p SET y = {number()} WHERE x = {number()}"
        else:
            yield f"DELETE FROM p WHERE x = {number()}"
    if begun:
        yield "COMMIT"


def transactions(rows):
    """Transactions as they are however a COMMIT stands among them, and what a statement caused around it.

    Differences 5, 6 and 7: the changes of each in some order, and whether there is a COMMIT at all. COMMITs of nothing
    are left out: Turso has one where a trigger's statement found no rows, SQLite where a foreign key failed.
    """
    found = {}
    for _, txn, kind, *change in rows:
        changes, commits = found.setdefault(txn, ([], set()))
        commits.add(kind == 2)
        if kind != 2:
            changes.append((kind, *change))
    return [(sorted(changes, key=repr), True in commits) for changes, commits in found.values() if changes]


def rows_of(cursor, table="turso_cdc"):
    """All rows of a change table but their times."""
    cursor.execute(
        f'SELECT change_id, change_txn_id, change_type, table_name, id, "before", "after", updates FROM {table}'
        " ORDER BY change_id"
    )
    return [tuple(row) for row in cursor.fetchall()]


def key_moved_before(rows):
    """Difference 1: Turso puts the image of a row whose key was updated into `before` of its insert."""
    for row in rows:
        kind, before = row[2], row[5]
        if kind == 1 and before is not None:
            yield (*row[:5], None, before, None)
        else:
            yield row


def made_equal(theirs, ours, upserted):
    """Turso's rows and ours, without the differences that are listed; `upserted` has the ids of what upserts wrote."""
    return [_turso(row, upserted) for row in key_moved_before(theirs)], [_own(row, upserted) for row in ours]


def _turso(row, upserted):
    if row[2] == 0 and row[3] != "sqlite_schema" and row[7] is not None:
        row = (*row[:7], _stored(row[7], row[6]))
    return _own(row, upserted)


def _own(row, upserted):
    if row[3] == "sqlite_schema":
        return _schema_row(row)
    if row[2] == 0 and row[0] in upserted:  # Difference 2: Turso has no `updates` of an upsert, and a wrong `before`.
        return (*row[:5], None, row[6], None)
    return row


def _stored(updates, after):
    """Difference 3: Turso's `updates` has values as they stand in the statement, ours as they are stored."""
    values, stored = decode(updates), decode(after)
    flags = values[: len(stored)]
    return encode([*flags, *(value if flag else None for flag, value in zip(flags, stored))])


def _schema_row(row):
    """Difference 4: SQLite keeps a statement's text, Turso writes it anew; and both have other tables of their own."""
    return (*row[:4], None, _schema_image(row[5]), _schema_image(row[6]), row[7])


def _schema_image(image):
    if image is None:
        return None
    kind, name, table, _, sql = decode(image)
    return kind, name, table, re.sub(r"\s+", "", sql).lower()
