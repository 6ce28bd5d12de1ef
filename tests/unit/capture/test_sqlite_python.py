"""A recording connection is one of Python's sqlite3: what its users rely on. capture.md 1.3 and fact 19."""

import sqlite3
import subprocess
import sys
import threading

import pytest
from recorded import database, kinds, log, run, tables

from tidegate.capture.sqlite import Connection, Cursor, connect
from tidegate.errors import InvalidArgument


def test_counters_are_those_of_the_statement():
    """Fact 19: `changes()` and `last_insert_rowid()` as without recording; `total_changes` counts the log's rows."""
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y)",))
    for values, changes in (("(40, 1)", 1), ("(50, 1), (60, 1)", 2)):
        before = db.total_changes
        cursor = db.execute(f"INSERT INTO t VALUES {values}")
        assert db.total_changes - before == 2 * changes + 1
        assert (cursor.rowcount, cursor.lastrowid) == (changes, int(values[-6:-4].strip("(")) if changes > 1 else 40)
        counted = db.execute("SELECT changes(), last_insert_rowid(), total_changes()").fetchone()
        assert counted == (changes, cursor.lastrowid, db.total_changes)


def test_counters_are_right_behind_every_kind_of_statement():
    """Against a connection that does not record."""
    script = (
        "CREATE TABLE t(x INTEGER PRIMARY KEY, y)",
        "INSERT INTO t VALUES (5, 1), (6, 1), (7, 1)",
        "UPDATE t SET y = 2 WHERE x > 5",
        "CREATE TABLE s(a)",
        "BEGIN",
        "DELETE FROM t WHERE x = 5",
        "SAVEPOINT p",
        "INSERT INTO t(y) VALUES (changes()), (last_insert_rowid())",
        "ROLLBACK TO p",
        "COMMIT",
        "INSERT INTO t(y) SELECT changes() + 100",
        "UPDATE t SET x = 77 WHERE x = 7",
        "INSERT OR IGNORE INTO t VALUES (77, 1)",
        "DROP TABLE s",
        "WITH w AS (SELECT 9 AS a) INSERT INTO t SELECT a, a FROM w",
        "DELETE FROM t",
    )
    plain, recorded = sqlite3.connect(":memory:", isolation_level=None), connect(":memory:", isolation_level=None)
    for statement in script:
        seen = []
        for connection in (plain, recorded):
            cursor = connection.execute(statement)
            counters = connection.execute("SELECT changes(), last_insert_rowid()").fetchone()
            seen.append((cursor.rowcount, cursor.lastrowid, counters, connection.in_transaction))
        assert seen[0] == seen[1], statement
    assert plain.execute("SELECT * FROM t").fetchall() == recorded.execute("SELECT * FROM t").fetchall()


def test_a_trigger_that_asks_for_changes_is_answered_as_ever():
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y)", "CREATE TABLE l(n)"))
    run(db, "CREATE TRIGGER tr BEFORE DELETE ON t BEGIN INSERT INTO l VALUES (changes()); END")
    run(db, "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)", "DELETE FROM t WHERE x = 1")
    assert db.execute("SELECT n FROM l").fetchall() == [(3,)]


def test_the_default_opens_transactions_before_writes_as_python_does():
    db = connect(":memory:")
    db.execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")
    assert not db.in_transaction
    db.execute("INSERT INTO t VALUES (1)")
    db.execute("INSERT INTO t VALUES (2)")
    assert db.in_transaction
    db.commit()
    db.execute("DELETE FROM t")
    db.rollback()
    db.commit()
    assert log(db)[2:] == [(3, 3, "I1"), (4, 3, "I2"), (5, 3, "C")]


@pytest.mark.parametrize("level", ["", "DEFERRED", "immediate", "EXCLUSIVE"])
def test_isolation_levels_are_those_of_sqlite3(tmp_path, level):
    path = str(tmp_path / "a.db")
    connect(path, isolation_level=None).execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")
    db = connect(path, isolation_level=level)
    assert db.isolation_level == level
    db.execute("INSERT INTO t VALUES (1)")
    assert db.in_transaction
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(path, timeout=0).execute("INSERT INTO t VALUES (2)")
    db.isolation_level = None  # Which commits, as Python says.
    assert (db.in_transaction, kinds(db)) == (False, "I4 C I1 C")
    with pytest.raises(ValueError, match="isolation_level"):
        db.isolation_level = "SOMETIMES"


def test_a_statement_that_is_none_leaves_no_transaction_open():
    """As Python, which compiles it before; and other writers are not kept out."""
    db = database()
    db.isolation_level = ""
    for wrong in ("INSERT INTO nope VALUES (1)", "UPDATE t SET nope = 1", "INSERT t"):
        with pytest.raises(sqlite3.OperationalError):
            db.execute(wrong)
        with pytest.raises(sqlite3.OperationalError):
            db.executemany(wrong, [()])
        assert not db.in_transaction
    with pytest.raises(sqlite3.ProgrammingError):
        db.executemany("INSERT INTO t VALUES (?, ?)", [(1, 1), (2,)])
    assert db.in_transaction
    db.commit()
    assert kinds(db) == "I1 C"


def test_with_commits_or_rolls_back():
    db = database()
    db.isolation_level = ""
    with db:
        db.execute("INSERT INTO t VALUES (1, 1)")
    with pytest.raises(ZeroDivisionError), db:
        db.execute("INSERT INTO t VALUES (2, 2)")
        raise ZeroDivisionError
    assert kinds(db) == "I1 C"


def test_executemany_is_a_transaction_for_each_or_part_of_one():
    """capture.md 2."""
    db = database()
    cursor = db.executemany("INSERT INTO t VALUES (?, ?)", [(1, 1), (2, 2)])
    assert (log(db), cursor.rowcount) == ([(1, 1, "I1"), (2, 1, "C"), (3, 3, "I2"), (4, 3, "C")], 2)
    db.isolation_level = ""
    assert db.executemany("INSERT INTO t VALUES (?, ?)", iter([(3, 3), (4, 4)])).rowcount == 2
    db.commit()
    assert log(db)[4:] == [(5, 5, "I3"), (6, 5, "I4"), (7, 5, "C")]
    with pytest.raises(sqlite3.ProgrammingError):
        db.executemany("SELECT ?", [(1,)])


def test_a_script_is_recorded_statement_by_statement():
    db = connect(":memory:")
    db.execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")
    db.execute("INSERT INTO t VALUES (1)")
    db.executescript("""
        -- what was open is committed; then; each is by itself
        CREATE TABLE l(x INTEGER PRIMARY KEY);
        CREATE TRIGGER tr AFTER INSERT ON t BEGIN INSERT INTO l VALUES (new.x); SELECT ';'; END;
        INSERT INTO t VALUES (2); ; /* ; */
        BEGIN; INSERT INTO t VALUES (3); DELETE FROM t WHERE x = 1; COMMIT;
        SELECT * FROM t
    """)
    assert not db.in_transaction
    assert kinds(db) == "I4 C I1 C I5 C I2 I2 C I3 I3 D1 C"


def test_what_a_script_selects_is_gone_through_and_no_more():
    """Functions are called for each row, and rows are not made."""
    db = database()
    called = []
    db.create_function("called", 1, called.append)
    db.row_factory = db.text_factory = made = lambda *_: 1 // 0
    db.executescript(
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'); SELECT called(y), y FROM t; INSERT INTO t VALUES (3, 'c')"
    )
    assert called == ["a", "b"]
    assert db.text_factory is db.row_factory is made
    db.row_factory, db.text_factory = None, str
    assert kinds(db) == "I1 I2 C I3 C"


@pytest.mark.parametrize(
    "fetch",
    [
        list,
        lambda cursor: cursor.fetchall(),
        lambda cursor: [cursor.fetchone(), *cursor.fetchmany(5)],
        lambda cursor: [next(cursor), next(cursor)],
    ],
)
def test_what_a_statement_returns_can_be_fetched_after_its_commit(fetch):
    db = database()
    cursor = db.execute("INSERT INTO t VALUES (1, 1), (2, 2) RETURNING x, y + 1 AS z")
    assert not db.in_transaction
    assert kinds(db) == "I1 I2 C"
    assert [column[0] for column in cursor.description] == ["x", "z"]
    assert fetch(cursor) == [(1, 2), (2, 3)]
    assert cursor.fetchone() is None
    assert cursor.execute("SELECT 5").fetchall() == [(5,)]
    assert next(cursor.execute("SELECT 6")) == (6,)


def test_what_a_statement_returns_is_gone_when_its_cursor_is_closed():
    db = database()
    cursor = db.execute("INSERT INTO t VALUES (1, 1) RETURNING x")
    cursor.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
        cursor.fetchone()


def test_rows_and_text_are_made_as_the_user_wants_them():
    """And the recorder's own queries are not disturbed by it."""
    db = connect(":memory:", isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES)
    db.row_factory = sqlite3.Row
    db.text_factory = bytes
    run(
        db,
        "CREATE TABLE t(x INTEGER PRIMARY KEY, y TEXT)",
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD COLUMN z",
    )
    row = db.execute("UPDATE t SET z = 'b' RETURNING *").fetchone()
    assert dict(zip(row.keys(), row)) == {"x": 1, "y": b"a", "z": b"b"}
    db.row_factory, db.text_factory = None, str
    assert kinds(db) == "I4 C I1 C U4 C U1 C"


def test_a_statement_behind_with_is_seen():
    db = connect(":memory:")
    db.execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")
    db.execute("/* c */ WITH w(a) AS (SELECT 1 UNION SELECT 2) INSERT INTO t SELECT a FROM w")
    assert kinds(db) == "I4 C I1 I2 C"


@pytest.mark.parametrize(
    "statement",
    ["EXPLAIN INSERT INTO t VALUES (1, 1)", "SELECT * FROM t", "PRAGMA user_version", "VALUES (1)", " ", "-- nothing"],
)
def test_what_changes_nothing_is_not_recorded(statement):
    db = database()
    db.execute(statement)
    assert log(db) == []


def test_parameters_by_name_and_errors_are_those_of_sqlite3():
    db = database()
    db.execute("INSERT INTO t VALUES (:x, :y)", {"x": 1, "y": "returning"})
    with pytest.raises(sqlite3.ProgrammingError):
        db.execute("INSERT INTO t VALUES (?, ?)", (1,))
    with pytest.raises((sqlite3.ProgrammingError, sqlite3.Warning), match="one statement at a time"):
        db.execute("INSERT INTO t VALUES (2, 2); DELETE FROM t")
    with pytest.raises(TypeError):
        db.execute(b"SELECT 1")
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        db.execute("INSERT t")
    assert not db.in_transaction
    assert kinds(db) == "I1 C"


def test_writing_past_the_recorder_is_refused():
    db = database()
    run(db, "INSERT INTO t VALUES (1, x'00')")
    with pytest.raises(sqlite3.NotSupportedError, match="use UPDATE"):
        db.blobopen("t", "y", 1)
    with db.blobopen("t", "y", 1, readonly=True) as blob:
        assert blob.read() == b"\0"
    with pytest.raises(InvalidArgument, match="do not record"):
        db.cursor(sqlite3.Cursor)
    for options in ({"factory": sqlite3.Connection}, {"autocommit": True}):
        with pytest.raises(InvalidArgument):
            connect(":memory:", **options)


def test_own_cursors_and_connections_may_be_derived():
    class OwnCursor(Cursor):
        __slots__ = ("executed",)

        def execute(self, *arguments):
            self.executed = getattr(self, "executed", 0) + 1
            return super().execute(*arguments)

        def fetchone(self):
            row = super().fetchone()
            return None if row is None else dict(zip([column[0] for column in self.description], row))

        def only(self):
            return self.fetchone()["x"]

    class OwnConnection(Connection):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.execute("PRAGMA foreign_keys = ON")
            self.execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")

    for shared in (False, True):
        db = connect(":memory:", factory=OwnConnection, isolation_level=None, check_same_thread=not shared)
        assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)
        cursor = db.cursor(OwnCursor)
        assert cursor.execute("INSERT INTO t VALUES (1) RETURNING x").only() == 1
        assert cursor.execute("INSERT INTO t VALUES (2) RETURNING x").fetchall() == [(2,)]
        assert isinstance(cursor.execute("SELECT 1"), OwnCursor)
        assert cursor.executed == 3
        assert isinstance(db, OwnConnection)
        assert shared or (type(db), type(cursor)) == (OwnConnection, OwnCursor)
        assert kinds(db) == "I1 C I2 C"


def test_a_writer_in_the_way_is_waited_for_and_then_said(tmp_path):
    db = database(tmp_path / "a.db", timeout=0.05)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        db.execute("INSERT INTO t VALUES (1, 1)")
    other.execute("ROLLBACK")
    run(db, "INSERT INTO t VALUES (1, 1)")
    assert kinds(db) == "I1 C"


def test_a_connection_for_several_threads_records(tmp_path):
    db = database(tmp_path / "a.db", check_same_thread=False)
    thread = threading.Thread(target=run, args=(db, "INSERT INTO t VALUES (1, 1)"))
    thread.start()
    thread.join()
    assert kinds(db) == "I1 C"


def test_threads_that_use_a_connection_at_once_wait_for_one_another():
    """In a process of its own: without that it crashes, or stands still with all its threads."""
    program = """if True:
        import threading
        from tidegate.capture.sqlite import connect

        db = connect(":memory:", isolation_level=None, check_same_thread=False)
        db.execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")

        def write(first):
            for x in range(first, first + 300):
                db.execute("INSERT INTO t VALUES (?)", (x,))
                assert db.execute("INSERT INTO t VALUES (?) RETURNING x", (-x,)).fetchall() == [(-x,)]

        def read():
            for x in range(500):
                db.execute("SELECT x FROM t WHERE x > ? LIMIT 5", (x,)).fetchall()

        threads = [threading.Thread(target=write, args=(first,)) for first in (1000, 2000, 3000)]
        threads.append(threading.Thread(target=read))
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        rows = db.execute("SELECT change_txn_id, change_type FROM turso_cdc ORDER BY change_id").fetchall()
        print(rows[2:] == [(at, kind) for at in range(3, 3603, 2) for kind in (1, 2)])
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_a_thread_may_interrupt_the_statement_of_another():
    """And does not wait for it to end."""
    db = connect(":memory:", check_same_thread=False, isolation_level=None)
    db.execute("CREATE TABLE t(x)")
    begun = threading.Event()
    db.create_function("begun", 0, begun.set)
    failed = []

    def endless():
        try:
            db.execute(
                "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
                " INSERT INTO t SELECT count(n) FROM c WHERE n > 1 OR begun() IS NULL"
            )
        except sqlite3.OperationalError as error:
            failed.append(str(error))

    thread = threading.Thread(target=endless)
    thread.start()
    begun.wait()
    while thread.is_alive():
        db.interrupt()
        thread.join(0.01)
    assert failed == ["interrupted"]
    assert tables(db) == ["sqlite_schema"]


def test_a_connection_that_is_off_counts_and_opens_transactions_as_ever():
    db = connect(":memory:", "off")
    run(db, "CREATE TABLE t(x)", "INSERT INTO t VALUES (1)", "UPDATE t SET x = 2")
    assert (db.in_transaction, db.total_changes) == (True, 2)
    db.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
    db.rollback()
    assert db.execute("SELECT count(*), changes() FROM t").fetchone() == (0, 1)


def test_changes_of_a_statement_that_failed_are_none():
    """As without recording: and not those of the statement before."""
    for isolation_level in (None, ""):
        db = connect(":memory:", isolation_level=isolation_level)
        run(db, "CREATE TABLE t(x INTEGER PRIMARY KEY, y)", "INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET y = 0")
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("UPDATE t SET x = 2 WHERE x < 5")
        assert db.execute("SELECT changes()").fetchone() == (0,)
        with pytest.raises(sqlite3.IntegrityError):
            db.executemany("INSERT INTO t VALUES (?, 1)", [(7,), (1,)])
        assert db.execute("SELECT changes()").fetchone() == (0,)


def test_counters_of_a_new_connection_are_those_of_one_that_did_nothing():
    db = connect(":memory:")
    assert db.total_changes == 0
    assert db.execute("SELECT changes(), last_insert_rowid(), total_changes()").fetchone() == (0, 0, 0)


def test_a_closed_connection_says_so():
    for connection in (sqlite3.connect(":memory:"), connect(":memory:")):
        connection.close()
        for use in (connection.__enter__, connection.commit, connection.cursor):
            with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
                use()
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            connection.isolation_level = connection.isolation_level


def test_pythons_own_transactions_are_refused():
    """It would open and end them where no COMMIT is recorded."""
    db = connect(":memory:")
    for wanted in (True, False):
        with pytest.raises(sqlite3.NotSupportedError, match="use `isolation_level`"):
            db.autocommit = wanted
    db.autocommit = db.autocommit


def test_wrong_arguments_are_the_errors_that_they_are_in_sqlite3():
    for connection in (sqlite3.connect(":memory:"), connect(":memory:")):
        with pytest.raises(TypeError, match="isolation_level must be"):
            connection.isolation_level = 1
        with pytest.raises(TypeError, match="argument 1 must be str"):
            connection.execute(1)
        with pytest.raises(ValueError, match="null character"):
            connection.executescript("SELECT 1;\0")
