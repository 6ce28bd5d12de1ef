"""Which transaction a change belongs to, and when there is a COMMIT. Seed 003; capture.md 1.3, 2 and 7."""

import sqlite3

import pytest
from recorded import database, kinds, log, run

from tidegate.capture.sqlite import connect
from tidegate.capture.sqlite_recorder import Recorder


def failing(connection, *statements):
    for statement in statements:
        with pytest.raises(sqlite3.Error):
            connection.execute(statement)


def test_a_statement_alone_is_a_transaction_and_begun_ones_share_an_id():
    """Fact 14: the id is the change_id of the first change, and is set anew for the next transaction."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 2)")
    run(db, "BEGIN", *(f"INSERT INTO t VALUES ({x}, 0)" for x in (3, 4, 5)), "END", "DELETE FROM t WHERE x = 1")
    assert log(db) == [
        *((1, 1, "I1"), (2, 1, "C"), (3, 3, "I2"), (4, 3, "C")),
        *((5, 5, "I3"), (6, 5, "I4"), (7, 5, "I5"), (8, 5, "C")),
        *((9, 9, "D1"), (10, 9, "C")),
    ]


def test_the_transactions_id_is_unset_while_nothing_is_recorded():
    """Seed 003, 3 to 5: conn_txn_id and is_autocommit."""
    db = database()
    assert (db.conn_txn_id, db.is_autocommit) == (-1, True)
    run(db, "INSERT INTO t VALUES (1, 1)", "BEGIN")
    assert (db.conn_txn_id, db.is_autocommit) == (-1, False)
    run(db, "INSERT INTO t VALUES (2, 1)")
    assert (db.conn_txn_id, db.is_autocommit) == (3, False)
    run(db, "ROLLBACK")
    assert (db.conn_txn_id, db.is_autocommit) == (-1, True)


@pytest.mark.parametrize("call", ["conn_txn_id(1)", "IS_AUTOCOMMIT ( )", '"conn_txn_id"(7)'])
def test_what_recording_calls_is_not_for_users(call):
    """capture.md 1.3: rejected as internal."""
    db = database()
    with pytest.raises(sqlite3.OperationalError, match="internal function used by CDC"):
        db.execute(f"SELECT {call}")
    assert db.conn_txn_id == -1


@pytest.mark.parametrize("between", [(), ("UPDATE t SET y = 1 WHERE x = 9",), ("SELECT 1",)])
def test_a_transaction_of_nothing_leaves_nothing(between):
    """capture.md 2 and fact 16: and no COMMIT, whatever the seed says."""
    db = database()
    run(db, "BEGIN", *between, "COMMIT", "BEGIN", *between, "ROLLBACK")
    assert log(db) == []
    run(db, "CREATE TABLE u(x)", "INSERT INTO u VALUES (1)")
    assert [(txn, what) for _, txn, what in log(db) if what == "C"] == [(1, "C"), (3, "C")]


def test_what_is_rolled_back_is_not_there_and_its_ids_are_used_again():
    """capture.md 2."""
    db = database()
    run(db, "BEGIN", "INSERT INTO t VALUES (1, 1)", "ROLLBACK", "INSERT INTO t VALUES (2, 2)")
    assert log(db) == [(1, 1, "I2"), (2, 1, "C")]


def test_a_savepoint_takes_its_changes_with_it():
    """capture.md 2: rolled back in part, and all of it, which leaves a COMMIT alone."""
    db = database()
    run(db, "BEGIN", "INSERT INTO t VALUES (1, 1)", "SAVEPOINT s", "INSERT INTO t VALUES (2, 2)")
    run(db, "ROLLBACK TO s", "INSERT INTO t VALUES (3, 3)", "COMMIT")
    assert log(db) == [(1, 1, "I1"), (2, 1, "I3"), (3, 1, "C")]
    run(db, "BEGIN", "SAVEPOINT s", "INSERT INTO t VALUES (5, 5)", "ROLLBACK TRANSACTION TO s", "COMMIT")
    assert log(db)[3:] == [(4, 4, "C")]


def test_a_savepoint_that_is_a_transaction_has_no_commit():
    """capture.md 2: as in Turso; the next transaction has an id of its own."""
    db = database()
    run(db, "SAVEPOINT s", "INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 2)", "RELEASE s")
    run(db, "INSERT INTO t VALUES (3, 3)")
    assert log(db) == [(1, 1, "I1"), (2, 1, "I2"), (3, 3, "I3"), (4, 3, "C")]


def test_a_statement_that_fails_leaves_no_trace():
    """Facts 4 and 17."""
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y UNIQUE)",))
    run(db, "INSERT INTO t VALUES (1, 1)")
    failing(db, "INSERT INTO t VALUES (2, 2), (3, 1)", "UPDATE t SET y = nope", "INSERT INTO nope VALUES (1)")
    run(db, "BEGIN", "COMMIT", "INSERT INTO t VALUES (2, 2)")
    assert log(db) == [(1, 1, "I1"), (2, 1, "C"), (3, 3, "I2"), (4, 3, "C")]


def test_a_failed_statement_within_a_transaction_leaves_its_commit_alone():
    """capture.md 2."""
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y UNIQUE)",))
    run(db, "BEGIN", "INSERT INTO t VALUES (1, 1)", "COMMIT", "BEGIN")
    failing(db, "INSERT INTO t VALUES (2, 2), (3, 1)")
    run(db, "COMMIT", "INSERT INTO t VALUES (4, 4)")
    assert log(db)[2:] == [(3, 3, "C"), (4, 4, "I4"), (5, 4, "C")]


def test_what_a_failing_statement_keeps_is_recorded():
    """INSERT OR FAIL keeps the rows before the failure, OR ROLLBACK nothing of the transaction."""
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y UNIQUE)",))
    run(db, "INSERT INTO t VALUES (1, 1)")
    failing(db, "INSERT OR FAIL INTO t VALUES (2, 2), (3, 1), (4, 4)")
    assert log(db)[2:] == [(3, 3, "I2"), (4, 3, "C")]
    run(db, "BEGIN", "INSERT INTO t VALUES (5, 5)")
    failing(db, "INSERT OR ROLLBACK INTO t VALUES (6, 1)")
    assert (db.in_transaction, db.conn_txn_id) == (False, -1)
    run(db, "INSERT INTO t VALUES (7, 7)")
    assert log(db)[4:] == [(5, 5, "I7"), (6, 5, "C")]


def test_a_commit_that_is_refused_is_not_recorded():
    """capture.md 2: where Turso leaves a COMMIT in mid-transaction."""
    sql = (
        "PRAGMA foreign_keys = ON",
        "CREATE TABLE p(x INTEGER PRIMARY KEY)",
        "CREATE TABLE c(x INTEGER PRIMARY KEY, p REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
    )
    db = database(sql=sql)
    run(db, "BEGIN", "INSERT INTO c VALUES (1, 9)")
    failing(db, "COMMIT")
    with pytest.raises(sqlite3.IntegrityError):
        db.commit()
    run(db, "INSERT INTO p VALUES (9)", "COMMIT")
    assert log(db) == [(1, 1, "I1"), (2, 1, "I9"), (3, 1, "C")]
    failing(db, "INSERT INTO c VALUES (2, 8)")
    assert (len(log(db)), db.in_transaction) == (3, False)


def test_ids_begin_anew_where_the_log_is_emptied():
    """capture.md 2: also in the transaction that empties it, so that two transactions have one id."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)", "DELETE FROM turso_cdc", "INSERT INTO t VALUES (2, 2)")
    assert log(db) == [(1, 1, "I2"), (2, 1, "C")]
    run(db, "BEGIN", "INSERT INTO t VALUES (3, 3)", "DELETE FROM turso_cdc", "INSERT INTO t VALUES (4, 4)", "COMMIT")
    run(db, "INSERT INTO t VALUES (5, 5)")
    assert log(db) == [(1, 3, "I4"), (2, 3, "C"), (3, 3, "I5"), (4, 3, "C")]


def test_a_transaction_is_in_the_log_for_others_when_it_commits(tmp_path):
    """capture.md 1.3: written by the same transaction as the data."""
    db = database(tmp_path / "a.db")
    other = sqlite3.connect(tmp_path / "a.db")
    run(db, "BEGIN", "INSERT INTO t VALUES (1, 1)")
    assert kinds(db) == "I1"
    assert other.execute("SELECT count(*) FROM turso_cdc").fetchone() == (0,)
    run(db, "COMMIT")
    assert other.execute("SELECT count(*) FROM turso_cdc").fetchone() == (2,)


def test_what_was_not_committed_goes_with_the_connection(tmp_path):
    """capture.md 2."""
    db = database(tmp_path / "a.db")
    run(db, "BEGIN", "INSERT INTO t VALUES (1, 1)")
    db.close()
    assert kinds(database(tmp_path / "a.db", sql=())) == ""


def test_a_transaction_in_which_recording_ends_has_no_commit():
    """capture.md 2."""
    db = database()
    run(db, "BEGIN", "INSERT INTO t VALUES (1, 1)", "PRAGMA capture_data_changes_conn('off')", "COMMIT")
    assert log(db) == [(1, 1, "I1")]


def test_a_table_that_others_make_is_recorded_from_its_first_row(tmp_path):
    """The triggers are renewed when the schema is not the one that they were made for."""
    db = database(tmp_path / "a.db")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("CREATE TABLE u(x INTEGER PRIMARY KEY)")
    run(db, "INSERT INTO u VALUES (1)")
    other.execute("ALTER TABLE t ADD COLUMN z")
    run(db, "BEGIN", "INSERT INTO t VALUES (2, 2, 2)", "COMMIT")
    other.execute("DROP TABLE u")
    other.execute("CREATE TABLE u(a, b, x INTEGER PRIMARY KEY)")
    db.isolation_level = "DEFERRED"
    db.execute("INSERT INTO u VALUES (1, 2, 3)")
    db.commit()
    assert kinds(db) == "I1 C I2 C I3 C"


def test_a_table_that_others_make_as_the_transaction_begins_is_not_written_unrecorded(tmp_path):
    """What was looked at before BEGIN may be old when the first write has its lock."""
    db = database(tmp_path / "a.db")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    run(db, "BEGIN")
    other.execute("CREATE TABLE u(x INTEGER PRIMARY KEY)")
    with pytest.raises(sqlite3.OperationalError, match="changed the schema as the transaction began"):
        db.execute("INSERT INTO u VALUES (1)")
    assert not db.in_transaction
    run(db, "BEGIN", "INSERT INTO u VALUES (1)", "COMMIT")
    assert other.execute("SELECT count(*) FROM u").fetchone() == (1,)
    assert kinds(db) == "I1 C"


@pytest.mark.parametrize("sql", ["DROP TABLE t", "ALTER TABLE t RENAME TO s"])
def test_a_table_that_others_take_away_does_not_stop_recording(tmp_path, sql):
    """Once a reader has seen that it is gone, SQLite knows the triggers for it no longer, and yet keeps them."""
    db = database(tmp_path / "a.db", sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y)", "CREATE TABLE u(a)"))
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    run(db, "INSERT INTO t VALUES (1, 1)")
    other.execute(sql)
    assert db.execute("SELECT * FROM u").fetchall() == []
    before = db.total_changes
    run(db, "BEGIN", "UPDATE u SET a = 1", "ROLLBACK", "BEGIN")
    counters = db.execute("SELECT changes(), last_insert_rowid(), total_changes()").fetchone()
    assert counters == (0, 1, before) == (0, 1, db.total_changes)
    run(db, "INSERT INTO u VALUES (1)", "COMMIT")
    other.execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")
    run(db, "INSERT INTO t VALUES (7)", "UPDATE t SET x = 8")
    assert kinds(db) == "I1 C I1 C I7 C D7 I8 C"
    db.set_capture("off")
    assert db.execute(
        "SELECT count(*) FROM sqlite_temp_schema WHERE type = 'trigger' AND tbl_name = 't'"
    ).fetchone() == (0,)


def test_two_connections_are_recorded_each_by_its_own(tmp_path):
    """Facts 5 and 8: only what a connection does while its own recording is on."""
    one = database(tmp_path / "a.db")
    two = connect(str(tmp_path / "a.db"), "off", isolation_level=None)
    run(one, "INSERT INTO t VALUES (1, 1)")
    run(two, "INSERT INTO t VALUES (2, 2)")
    two.set_capture("id", "second")
    run(two, "INSERT INTO t VALUES (3, 3)")
    one.set_capture("off")
    run(one, "INSERT INTO t VALUES (4, 4)")
    one.set_capture("full")
    run(one, "INSERT INTO t VALUES (5, 5)")
    assert kinds(one) == "I1 C I5 C"
    assert kinds(two, "second") == "I3 C"


def test_a_transaction_that_ends_as_rows_are_fetched_leaves_its_id_to_no_other():
    """SQLite rolls a transaction back if a statement that writes is interrupted, also when it only gives rows out."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)", "BEGIN", "CREATE TABLE s(a)")
    cursor = db.execute("INSERT INTO t VALUES (2, 2), (3, 3), (4, 4) RETURNING x")
    db.set_progress_handler(lambda: 1, 1)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        cursor.fetchall()
    db.set_progress_handler(None, 1)
    assert not db.in_transaction
    run(db, "DELETE FROM turso_cdc", "INSERT INTO t VALUES (5, 5)", "CREATE TABLE s(a INTEGER PRIMARY KEY)")
    run(db, "INSERT INTO s VALUES (7)")
    transactions = [(txn, what) for _, txn, what in log(db)]
    assert transactions == [(1, "I5"), (1, "C"), (3, "I5"), (3, "C"), (5, "I7"), (5, "C")]


@pytest.mark.parametrize("sql", ["INSERT INTO t VALUES (1, 1)", "CREATE TABLE s(a)"])
def test_who_is_interrupted_while_waiting_for_the_lock_does_not_keep_it(monkeypatch, sql):
    """CTRL-C is noticed when SQLite has answered: the transaction is begun, and nobody would ever end it."""
    db = database()
    run_plain = Recorder.run

    def interrupted(self, sql, *values):
        cursor = run_plain(self, sql, *values)
        if sql == "BEGIN IMMEDIATE":
            raise KeyboardInterrupt
        return cursor

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Recorder, "run", interrupted)
        db.execute(sql)
    assert (db.in_transaction, db.is_autocommit, db.conn_txn_id) == (False, True, -1)
    run(db, "INSERT INTO t VALUES (2, 2)")
    assert log(db) == [(1, 1, "I2"), (2, 1, "C")]


def test_a_statement_whose_rows_cannot_be_made_is_done_and_recorded():
    """As without recording, where that is found when they are fetched."""
    db = database()
    db.row_factory = lambda *_: 1 // 0
    with pytest.raises(ZeroDivisionError):
        db.execute("INSERT INTO t VALUES (1, 1), (2, 2) RETURNING x")
    assert not db.in_transaction
    db.row_factory = None
    assert log(db) == [(1, 1, "I1"), (2, 1, "I2"), (3, 1, "C")]
    assert db.execute("SELECT count(*) FROM t").fetchone() == (2,)
