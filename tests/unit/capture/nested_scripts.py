"""Random scripts in which changes run within one another, and what a change table says of them.

Rows refer to their own table with cascades, triggers change the row at hand and others before and after, keys move
beneath them, rows are replaced, and some triggers are TEMP.
"""

import sqlite3

from tidegate.cdc.record import decode

TABLES = {
    "t": ("x INTEGER PRIMARY KEY, y, z", ("x", "y", "z")),
    "u": ("x INTEGER PRIMARY KEY, y UNIQUE, z", ("x", "y", "z")),
    "e": (
        "x INTEGER PRIMARY KEY, y REFERENCES e(x) ON UPDATE CASCADE ON DELETE SET NULL, z",
        ("x", "y", "z"),
    ),
    "w": ("x TEXT COLLATE NOCASE, y UNIQUE, z, PRIMARY KEY (x)", ("x", "y", "z")),
    "k": ("x TEXT PRIMARY KEY, y REFERENCES k(x) ON UPDATE CASCADE, z", ("x", "y", "z")),
    "r": ("x INTEGER PRIMARY KEY, y UNIQUE ON CONFLICT REPLACE, z", ("x", "y", "z")),
}
CLAUSES = ("", "", "", " OR IGNORE", " OR REPLACE")
WITHOUT_ROWID = ("w", "k")
KEY_OF = dict.fromkeys(WITHOUT_ROWID, 0)


def nested(random, length):
    """A script: a schema, triggers, and statements."""
    names = random.sample(sorted(TABLES), random.randint(2, 3))
    enforced = random.random() < 0.6
    # Where a statement replaces rows of such a table, SQLite without triggers lets rows pass whose parents are missing.
    clauses = CLAUSES[:-1] if enforced and "e" in names else CLAUSES
    names = [name for name in names if name != "r" or clauses is CLAUSES]
    yield f"PRAGMA foreign_keys = {'ON' if enforced else 'OFF'}"
    yield f"PRAGMA recursive_triggers = {random.choice(('OFF', 'OFF', 'ON'))}"
    for name in names:
        yield f"CREATE TABLE {name}({TABLES[name][0]}){' WITHOUT ROWID' if name in WITHOUT_ROWID else ''}"
    if random.random() < 0.3:
        yield f"CREATE UNIQUE INDEX i ON {names[0]}(z || 'a' COLLATE NOCASE DESC) WHERE z > 3"
    for at in range(random.randint(0, 4)):
        table = random.choice(names)
        kind = random.choice(("TRIGGER", "TRIGGER", "TEMP TRIGGER"))
        time = random.choice(("BEFORE", "AFTER", "AFTER"))
        event = random.choice(("INSERT", "UPDATE", "UPDATE OF z", "DELETE"))
        row = "old" if event == "DELETE" else "new"
        body = "; ".join(_change(random, random.choice(names), row, clauses) for _ in range(random.randint(1, 2)))
        yield f"CREATE {kind} tr{at} {time} {event} ON {table} WHEN {row}.z IS NOT 5 BEGIN {body}; END"
    for _ in range(length):
        yield _change(random, random.choice(names), None, clauses)


def _change(random, table, row, clauses):
    """A statement; within a trigger, about its `row` or another one."""
    number = lambda: str(random.randrange(1, 6))  # noqa: E731
    value = lambda: random.choice((number(), number(), "NULL", f"{row}.x" if row else "'a'"))  # noqa: E731
    where = random.choice(
        (f"x = {row}.x", f"x = {number()}", f"z = {number()}") if row else (f"x = {number()}", "y > 2")
    )
    clause = random.choice(clauses)
    choose = random.random()
    if choose < 0.35:
        return f"INSERT{clause} INTO {table} VALUES ({number()}, {value()}, {value()})"
    if choose < 0.9:
        column = random.choice(("x", "y", "z", "z"))
        new = random.choice((column, f"{column} + 1", number())) if column != "x" else random.choice(("x", number()))
        more = random.choice(("", f", z = {number()}")) if column != "z" else ""
        return f"UPDATE{clause} {table} SET {column} = {new}{more} WHERE {where}"
    return f"DELETE FROM {table} WHERE {where}"


def tables_of(connection):
    """The rows of the tables of a script, by key."""
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    found = {}
    for (name,) in rows:
        if name in TABLES:
            key = "x" if name in WITHOUT_ROWID else "rowid"
            found[name] = {row[0]: row[1:] for row in connection.execute(f"SELECT {key}, * FROM {name}")}
    return found


def replayed(connection):
    """The tables as the change table says that they are. A row that is there is written over."""
    found = {name: {} for name in tables_of(connection)}
    for kind, name, rowid, before, after in connection.execute(
        'SELECT change_type, table_name, id, "before", "after" FROM turso_cdc ORDER BY change_id'
    ):
        if name not in found or kind == 2:
            continue
        table = found[name]
        if kind == -1:
            table.pop(decode(before)[KEY_OF[name]] if name in KEY_OF else rowid, None)
            continue
        row = tuple(decode(after))
        table[row[KEY_OF[name]] if name in KEY_OF else rowid] = row
    return found


def outcome(connection, sql):
    """What a statement does: rows changed, or an error."""
    try:
        return connection.execute(sql).rowcount
    except sqlite3.Error as error:
        return type(error), str(error)
