"""What is recorded of changes to the schema. capture.md 2 and 7, facts 7 and 10."""

import sqlite3

import pytest
from recorded import database, images, kinds, log, run, tables

CREATE = "CREATE TABLE u(a INTEGER PRIMARY KEY, b UNIQUE)"


def entry(connection, name):
    """A row of sqlite_schema, with its rowid before it."""
    sql = "SELECT rowid, type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE name = ?"
    return connection.execute(sql, (name,)).fetchone()


def test_what_is_created_and_dropped_is_a_row_of_the_schema():
    """Fact 10: with an image of five fields; SQLite's own indexes and those of a dropped table are no rows."""
    db = database()
    run(db, CREATE, "CREATE INDEX i ON u(b)")
    table, index = entry(db, "u"), entry(db, "i")
    assert log(db) == [(1, 1, f"I{table[0]}"), (2, 1, "C"), (3, 3, f"I{index[0]}"), (4, 3, "C")]
    assert images(db) == [("I", None, list(table[1:]), None), ("I", None, list(index[1:]), None)]
    run(db, "DROP INDEX i", "CREATE INDEX j ON u(b)", "DROP TABLE u")
    assert tables(db) == ["sqlite_schema"] * 5
    assert images(db)[2:] == [
        ("D", list(index[1:]), None, None),
        images(db)[3],
        ("D", list(table[1:]), None, None),
    ]


def test_a_column_added_or_dropped_is_an_update_with_the_statement():
    """Fact 10: only the flag of the sql column, and the text of ALTER as its value."""
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y)",))
    before = entry(db, "t")
    run(db, "ALTER TABLE t ADD COLUMN z DEFAULT 5")
    added = entry(db, "t")
    run(db, "INSERT INTO t VALUES (1, 2, 3)", "ALTER TABLE t DROP COLUMN y", "UPDATE t SET z = 4")
    dropped = entry(db, "t")
    flags = [0, 0, 0, 0, 1, None, None, None, None]
    assert images(db) == [
        ("U", list(before[1:]), list(added[1:]), [*flags, "ALTER TABLE t ADD COLUMN z DEFAULT 5"]),
        ("I", None, [1, 2, 3], None),
        ("U", list(added[1:]), list(dropped[1:]), [*flags, "ALTER TABLE t DROP COLUMN y"]),
        ("U", [1, 3], [1, 4], [0, 1, None, 4]),
    ]


@pytest.mark.parametrize("mode, images_of", [("id", (0, 0)), ("before", (1, 0)), ("after", (0, 1)), ("full", (1, 1))])
def test_the_mode_is_that_of_rows(mode, images_of):
    db = database(mode=mode)
    run(db, CREATE, "ALTER TABLE u ADD COLUMN c", "DROP TABLE u")
    shown = [(before is not None, after is not None) for _, before, after, _ in images(db)]
    before, after = map(bool, images_of)
    assert shown == [(False, after), (before, after), (before, False)]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t RENAME TO s",
        "ALTER TABLE t RENAME COLUMN y TO w",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER tr AFTER INSERT ON t BEGIN SELECT 1; END",
        "CREATE TABLE IF NOT EXISTS t(a)",
        "DROP TABLE IF EXISTS nope",
        "CREATE TEMP TABLE tt(a)",
        "REINDEX",
    ],
)
def test_of_some_statements_nothing_is_recorded(statement):
    """capture.md 2: not even a COMMIT."""
    db = database()
    run(db, statement, "BEGIN", "COMMIT")
    assert log(db) == []


def test_changes_go_on_under_a_new_name():
    db = database()
    run(db, "ALTER TABLE t RENAME TO s", "ALTER TABLE s RENAME COLUMN y TO w", "INSERT INTO s VALUES (1, 2)")
    run(db, "UPDATE s SET w = 3")
    assert tables(db) == ["s", "s"]
    assert images(db)[1] == ("U", [1, 2], [1, 3], [0, 1, None, 3])


def test_a_table_made_from_a_query_is_recorded_without_its_rows():
    """capture.md 2: and a table dropped without deleting its."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)", "CREATE TABLE s AS SELECT * FROM t", "DELETE FROM s", "DROP TABLE t")
    assert [(kind[0], table) for kind, table in zip(images(db), tables(db))] == [
        ("I", "t"),
        ("I", "sqlite_schema"),
        ("D", "s"),
        ("D", "sqlite_schema"),
    ]


def test_a_transaction_may_change_schema_and_rows():
    """Fact 7: over two tables, and one COMMIT."""
    db = database()
    run(db, "BEGIN", "INSERT INTO t VALUES (1, 1)", CREATE, "INSERT INTO u VALUES (7, 7)", "ALTER TABLE t ADD COLUMN z")
    run(db, "UPDATE t SET z = 1", "DROP TABLE u", "COMMIT")
    assert tables(db) == ["t", "sqlite_schema", "u", "sqlite_schema", "t", "sqlite_schema"]
    assert [txn for _, txn, _ in log(db)] == [1] * 7
    assert kinds(db).count("C") == 1


@pytest.mark.parametrize("undo", [("ROLLBACK",), ("ROLLBACK TO s", "COMMIT")])
def test_a_schema_that_is_rolled_back_is_recorded_as_it_was(undo):
    db = database()
    run(db, "BEGIN", "SAVEPOINT s", "ALTER TABLE t ADD COLUMN z", CREATE, "INSERT INTO t VALUES (9, 9, 9)", *undo)
    run(
        db,
        "DELETE FROM turso_cdc",
        "INSERT INTO t VALUES (1, 2)",
        "UPDATE t SET y = 3",
        CREATE,
        "INSERT INTO u VALUES (5, 5)",
    )
    assert kinds(db).startswith("I1 C U1 C I")
    assert tables(db) == ["t", "t", "sqlite_schema", "u"]


def test_a_change_of_the_schema_that_fails_leaves_recording_as_it_was():
    db = database()
    for begin in ((), ("BEGIN",)):
        run(db, *begin)
        for statement in (
            "ALTER TABLE t DROP COLUMN x",
            "ALTER TABLE t ADD COLUMN y",
            "CREATE TABLE t(a)",
            "DROP TABLE s",
        ):
            with pytest.raises(sqlite3.OperationalError):
                db.execute(statement)
    run(db, "INSERT INTO t VALUES (1, 1)", "UPDATE t SET y = 2", "COMMIT")
    assert kinds(db) == "I1 U1 C"


def test_a_reader_that_is_not_done_does_not_hinder_changes_of_the_schema():
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1), (2, 2)")
    reader = db.execute("SELECT x FROM t")
    assert reader.fetchone() == (1,)
    run(db, CREATE, "INSERT INTO u VALUES (1, 1)", "ALTER TABLE u ADD COLUMN c")
    assert kinds(db).count("C") == 4


def test_a_reader_that_is_not_done_goes_on_behind_a_change_of_the_schema_that_fails():
    """As in migrations: who adds a column wherever there is none."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)", "CREATE TABLE w(a)", "INSERT INTO w VALUES (1), (1)")
    reader = db.execute("SELECT x FROM t")
    for x, statement in enumerate(
        (
            "ALTER TABLE t ADD COLUMN y",
            "CREATE TABLE t(a)",
            "CREATE UNIQUE INDEX i ON w(a)",
            "ALTER TABLE t DROP COLUMN x",
        )
    ):
        assert reader.fetchone() == (x + 1,)
        with pytest.raises(sqlite3.Error):
            db.execute(statement)
        assert not db.in_transaction
    schema = db.execute("PRAGMA schema_version").fetchone()
    assert reader.fetchone() is None
    run(db, "UPDATE t SET y = 5 WHERE x = 1")
    assert db.execute("PRAGMA schema_version").fetchone() == schema
    assert kinds(db).endswith("U1 C")
    assert db.execute("SELECT name FROM sqlite_schema WHERE name = 'i'").fetchall() == []


def test_many_tables_come_and_go():
    db = database()
    for round in range(3):
        for at in range(20):
            run(db, f"CREATE TABLE n{at}(x INTEGER PRIMARY KEY, {', '.join(f'c{c}' for c in range(at + 1))})")
        for at in range(20):
            run(db, f"INSERT INTO n{at}(x) VALUES ({at})", f"UPDATE n{at} SET c{at} = {round}", f"DROP TABLE n{at}")
    updates = [updates for kind, _, _, updates in images(db) if kind == "U"]
    assert updates == [[0] * (at + 1) + [1] + [None] * (at + 1) + [round] for round in range(3) for at in range(20)]


def test_a_virtual_table_is_used_as_ever_and_not_recorded():
    db = database()
    run(db, "CREATE VIRTUAL TABLE f USING fts5(a)", "INSERT INTO f VALUES ('some words')", "ALTER TABLE f RENAME TO g")
    assert db.execute("SELECT * FROM g('words')").fetchall() == [("some words",)]
    run(db, "UPDATE g SET a = 'others'", "DROP TABLE g", "INSERT INTO t VALUES (1, 1)")
    assert tables(db) == ["t"]


def test_a_vacuum_is_followed():
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)", "VACUUM", "INSERT INTO t VALUES (2, 2)", "PRAGMA optimize")
    run(db, "BEGIN", "INSERT INTO t VALUES (3, 3)", "COMMIT")
    assert kinds(db) == "I1 C I2 C I3 C"
