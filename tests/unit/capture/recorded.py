"""What the tests of recording share: a database with a table, and its change table to look at."""

from tidegate.capture.sqlite import connect
from tidegate.cdc.record import decode

COMMIT = "C"
KINDS = {1: "I", 0: "U", -1: "D", 2: COMMIT}


def database(path=":memory:", mode="full", *, sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y)",), **options):
    """A connection in autocommit to a database that was made before anything was recorded."""
    connection = connect(str(path), "off", isolation_level=None, **options)
    for statement in sql:
        connection.execute(statement)
    connection.set_capture(mode)
    return connection


def run(connection, *statements):
    for statement in statements:
        connection.execute(statement)


def log(connection, table="turso_cdc"):
    """The change table as (change_id, transaction, what), what being I, U or D with the rowid, or C."""
    rows = connection.execute(f'SELECT change_id, change_txn_id, change_type, id FROM "{table}" ORDER BY change_id')
    return [(at, txn, KINDS[kind] + ("" if rowid is None else str(rowid))) for at, txn, kind, rowid in rows]


def kinds(connection, table="turso_cdc"):
    """I, U or D with the rowid, or C, of all rows in a line."""
    return " ".join(what for _, _, what in log(connection, table))


def images(connection, table="turso_cdc"):
    """What each row but COMMITs says: (kind, before, after, updates)."""
    rows = connection.execute(
        f'SELECT change_type, "before", "after", updates FROM "{table}" WHERE change_type <> 2 ORDER BY change_id'
    )
    return [(KINDS[kind], *(None if image is None else decode(image) for image in some)) for kind, *some in rows]


def tables(connection):
    """The names of tables in the change table, in order."""
    return [
        name
        for (name,) in connection.execute("SELECT table_name FROM turso_cdc WHERE change_type <> 2 ORDER BY change_id")
    ]
