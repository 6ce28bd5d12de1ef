"""The change table itself: made, versioned, switched, left alone. Seed 003; capture.md 1.1, 2 and 7."""

import sqlite3

import pytest
from recorded import database, images, kinds, log, run, tables

from tidegate.capture.sqlite import connect
from tidegate.errors import InvalidArgument, SourceUnreadable

V1 = (
    "CREATE TABLE turso_cdc (change_id INTEGER PRIMARY KEY AUTOINCREMENT, change_time INTEGER, change_type INTEGER,"
    " table_name TEXT, id, before BLOB, after BLOB, updates BLOB)"
)
VERSIONS = "CREATE TABLE turso_cdc_version (table_name TEXT PRIMARY KEY, version TEXT NOT NULL)"
SAID = "INSERT INTO turso_cdc_version VALUES ('turso_cdc', '{}')"


def test_how_a_connection_records_can_be_read():
    """Fact 12; by attribute and by Turso's pragma, also by its old name."""
    db = connect(":memory:", "off")
    assert db.capture == ("off", None, None)
    db.execute("PRAGMA capture_data_changes_conn('after')")
    assert db.capture == db.execute("PRAGMA capture_data_changes_conn").fetchone() == ("after", "turso_cdc", "v2")
    db.execute("PRAGMA unstable_capture_data_changes_conn('id,my log')")
    assert db.capture == ("id", "my log", "v2")
    db.set_capture("off")
    assert db.execute("PRAGMA capture_data_changes_conn").fetchall() == [("off", None, None)]


def test_switching_records_nothing_and_makes_nothing_twice():
    """Facts 11 and 12."""
    db = database()
    for mode in ("full", "id", "off", "before", "full", "full"):
        db.set_capture(mode)
    assert log(db) == []
    assert db.execute("SELECT * FROM turso_cdc_version").fetchall() == [("turso_cdc", "v2")]


@pytest.mark.parametrize("mode", ["FULL", "", "all", "full "])
def test_a_mode_there_is_not_is_refused(mode):
    """capture.md 1.1: lower case only."""
    with pytest.raises(InvalidArgument, match="off, id, before, after, full"):
        connect(":memory:", mode)


def test_each_log_has_its_version():
    """Facts 8 and 11. Another table is created here, where Turso fails at the next write."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)")
    db.set_capture("full", "second")
    run(db, "INSERT INTO t VALUES (2, 2)")
    assert db.execute("SELECT * FROM turso_cdc_version").fetchall() == [("turso_cdc", "v2"), ("second", "v2")]
    assert (kinds(db), kinds(db, "second")) == ("I1 C", "I2 C")


@pytest.mark.parametrize("mode", ["id", "before", "after", "full"])
@pytest.mark.parametrize("before", [(V1,), (V1, VERSIONS), (V1, VERSIONS, SAID.format("v1"))])
def test_a_log_of_version_1_stays_one(mode, before):
    """Fact 11: eight columns, no COMMIT, in all modes."""
    db = database(mode=mode, sql=(*before, "CREATE TABLE t(x INTEGER PRIMARY KEY, y)"))
    run(db, "INSERT INTO t VALUES (1, 1)", "BEGIN", "UPDATE t SET y = 2", "COMMIT", "UPDATE t SET y = 3 WHERE x = 9")
    assert db.capture.version == "v1"
    assert db.execute("SELECT change_id, change_type, id FROM turso_cdc").fetchall() == [(1, 1, 1), (2, 0, 1)]
    assert db.execute("SELECT * FROM turso_cdc_version").fetchall() == [("turso_cdc", "v1")]
    full = [("I", None, [1, 1], None), ("U", [1, 1], [1, 2], [0, 1, None, 2])]
    if mode == "full":
        assert images(db) == full


def test_a_log_of_another_version_is_not_written():
    """Fact 11."""
    db = connect(":memory:", "off", isolation_level=None)
    run(db, VERSIONS, SAID.format("v0"))
    with pytest.raises(SourceUnreadable, match="'turso_cdc' is of version 'v0'"):
        db.set_capture("full")
    assert db.capture == ("off", None, None)


def test_a_log_that_turso_made_is_gone_on_with():
    """AUTOINCREMENT or not, the next id is one more than the highest."""
    made = V1.replace("change_time INTEGER,", "change_time INTEGER, change_txn_id INTEGER,")
    sql = (
        made,
        VERSIONS,
        SAID.format("v2"),
        "CREATE TABLE t(x INTEGER PRIMARY KEY)",
    )
    db = database(sql=sql)
    run(db, "INSERT INTO t VALUES (1), (2)", "DELETE FROM turso_cdc WHERE change_id > 1", "INSERT INTO t VALUES (3)")
    assert log(db) == [(1, 1, "I1"), (2, 2, "I3"), (3, 2, "C")]


def test_the_own_log_is_not_recorded_and_that_of_others_is(tmp_path):
    """Fact 6."""
    db = database(tmp_path / "a.db")
    two = connect(str(tmp_path / "a.db"), table="second", isolation_level=None)
    run(db, "INSERT INTO t VALUES (1, 1)")
    run(db, "DELETE FROM turso_cdc WHERE change_type <> 2", "UPDATE turso_cdc_version SET version = version")
    assert log(db) == [(2, 1, "C")]
    run(two, "DELETE FROM turso_cdc WHERE change_id = 2")
    row = two.execute("SELECT change_type, table_name, id FROM second").fetchall()
    assert row == [(-1, "turso_cdc", 2), (2, None, None)]


def test_dropping_the_log_removes_its_version_and_stops_writes():
    """Fact 13 and capture.md 2."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)", "DROP TABLE turso_cdc")
    assert db.execute("SELECT * FROM turso_cdc_version").fetchall() == []
    with pytest.raises(sqlite3.OperationalError, match=r"no such table: .*turso_cdc"):
        db.execute("INSERT INTO t VALUES (2, 2)")
    assert db.execute("SELECT count(*) FROM t").fetchone() == (1,)
    db.set_capture("full")
    run(db, "INSERT INTO t VALUES (2, 2)", "DROP TABLE turso_cdc_version", "INSERT INTO t VALUES (3, 3)")
    assert kinds(db) == "I2 C I3 C"


def test_recording_that_began_in_a_transaction_rolled_back_writes_nothing_unrecorded():
    """capture.md 2: the state stays on, and the next write fails."""
    db = connect(":memory:", "off", isolation_level=None)
    run(db, "CREATE TABLE t(x)", "BEGIN")
    db.set_capture("full")
    run(db, "ROLLBACK")
    assert db.capture.mode == "full"
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        db.execute("INSERT INTO t VALUES (1)")
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)


@pytest.mark.parametrize("pragma", ["journal_mode = wal", "main.journal_mode(WAL)", "JOURNAL_MODE='wal'"])
def test_the_journal_mode_stays_while_changes_are_recorded(tmp_path, pragma):
    """Fact 18."""
    db = database(tmp_path / "a.db")
    with pytest.raises(sqlite3.OperationalError, match=r"CDC .*capture_data_changes_conn"):
        db.execute(f"PRAGMA {pragma}")
    assert db.execute("PRAGMA journal_mode = delete").fetchone() == ("delete",)
    run(db, "INSERT INTO t VALUES (1, 1)")
    assert kinds(db) == "I1 C"
    db.set_capture("off")
    assert db.execute(f"PRAGMA {pragma}").fetchone() == ("wal",)


def test_sqlites_own_tables_do_not_show_up():
    """Fact 18."""
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY AUTOINCREMENT, y)",))
    run(db, "INSERT INTO t(y) VALUES (1)", "ANALYZE", "BEGIN", "ANALYZE", "INSERT INTO t(y) VALUES (2)", "COMMIT")
    assert tables(db) == ["t", "t"]


def test_recording_is_of_the_connection_and_not_of_the_database(tmp_path):
    """capture.md 1.1: nothing of it is left for those who come later."""
    db = database(tmp_path / "a.db")
    run(db, "INSERT INTO t VALUES (1, 1)")
    db.close()
    plain = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    plain.execute("INSERT INTO t VALUES (2, 2)")
    names = plain.execute("SELECT name FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchall()
    assert names == [("t",), ("turso_cdc",), ("turso_cdc_version",)]
    assert plain.execute("SELECT count(*) FROM turso_cdc").fetchone() == (2,)
    assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("level", [None, ""])
@pytest.mark.parametrize("pragma", ["temp_store = MEMORY", "temp_store(2)", "Temp_Store=file"])
def test_recording_goes_on_in_another_temporary_database(pragma, level):
    """SQLite removes the one there is, and all triggers in it, without a word."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)", f"PRAGMA {pragma}")
    db.isolation_level = level
    run(db, "INSERT INTO t VALUES (2, 2)")
    db.commit()
    assert kinds(db) == "I1 C I2 C"
    assert db.execute("PRAGMA temp_store").fetchone() in ((1,), (2,))
