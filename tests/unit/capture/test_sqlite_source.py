"""SQLite as a source: types, keys, the snapshot, modes, the schema, positions (issue 7; capture.md sections 1 to 3)."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from source_model import captured, contents, everything

from tidegate.capture.source import Reshaped, Rows
from tidegate.capture.sqlite import connect
from tidegate.capture.sqlite_source import SqliteSource
from tidegate.errors import InvalidArgument, NotFound, SourceGone, SourceUnreadable, Unavailable


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "app.db")


def application(path, *sql, mode="full", **options):
    connection = connect(path, "off", isolation_level=None, **options)
    for statement in sql:
        connection.execute(statement)
    connection.set_capture(mode)
    return connection


def run(connection, *statements):
    for statement in statements:
        connection.execute(statement)


T = "CREATE TABLE t(x INTEGER PRIMARY KEY, y TEXT)"


def resumed(path, model, **options):
    source = SqliteSource(path, **options)
    source.tables(None)
    source.resume(model.position, list(model.shapes.values()))
    return source


# Tables.


def test_columns_have_the_types_that_their_declarations_mean(path):
    application(
        path,
        "CREATE TABLE w(id INTEGER PRIMARY KEY, i INT8, v VARCHAR(9), r FLOAT, b BLOB, y BOOLEAN, d DATETIME,"
        " n DECIMAL(9, 2), j JSON, other)",
    )
    (shape,) = SqliteSource(path).tables(None)
    assert [each.type for each in shape.columns] == [
        "BIGINT", "BIGINT", "STRING", "DOUBLE", "BINARY", "BOOLEAN", "STRING", "DOUBLE", "STRING", "STRING",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("CREATE TABLE k(a INTEGER PRIMARY KEY, b)", ("a",)),
        ("CREATE TABLE k(a INTEGER PRIMARY KEY DESC, b)", ("a",)),
        ("CREATE TABLE k(a TEXT NOT NULL, b INT NOT NULL, PRIMARY KEY(b, a))", ("b", "a")),
        ("CREATE TABLE k(a TEXT PRIMARY KEY, b) WITHOUT ROWID", ("a",)),
        ("CREATE TABLE k(a, b)", ("_rowid",)),
        ("CREATE TABLE k(rowid, _rowid)", ("_rowid_",)),
    ],
)
def test_rows_are_known_by_their_primary_key_or_their_rowid(path, sql, key):
    """Inserted, updated, replaced, deleted: what is folded is what is there."""
    connection = application(path, sql)
    source = SqliteSource(path)
    model = captured(source)
    (shape,) = model.shapes.values()
    assert shape.key == key
    first, second, *_ = [row[1] for row in connection.execute("PRAGMA table_info(k)")]
    run(connection, *(f"INSERT INTO k({first}, {second}) VALUES({n}, {n})" for n in (1, 2, 3)))
    run(connection, f"UPDATE k SET {second} = 9 WHERE {first} = 2", f"UPDATE k SET {first} = 7 WHERE {first} = 1")
    run(connection, f"INSERT OR REPLACE INTO k({first}, {second}) VALUES(2, 5)", f"DELETE FROM k WHERE {first} = 3")
    for each in source.transactions(0):
        model.take(each)
    rows = connection.execute(f"SELECT {first}, {second} FROM k").fetchall()
    found = [(row[first], row[second]) for row in model.rows["k"].values()]
    assert sorted((str(a), str(b)) for a, b in found) == sorted((str(a), str(b)) for a, b in rows)


def test_a_key_is_exchanged_between_two_rows_in_one_transaction(path):
    """capture.md fact 24: both rows stay."""
    connection = application(
        path, "CREATE TABLE k(a TEXT PRIMARY KEY NOT NULL, n)", "INSERT INTO k VALUES('p', 1), ('q', 2)"
    )
    source = SqliteSource(path)
    model = captured(source)
    run(connection, "BEGIN", "UPDATE k SET a = 'z' WHERE a = 'p'", "UPDATE k SET a = 'p' WHERE a = 'q'")
    run(connection, "UPDATE k SET a = 'q' WHERE a = 'z'", "COMMIT")
    (each,) = source.transactions(0)
    model.take(each)
    assert {key: row["n"] for (key,), row in model.rows["k"].items()} == {"p": "2", "q": "1"}


def test_only_wanted_tables_are_captured_and_names_are_of_any_case(path):
    connection = application(path, T, "CREATE TABLE u(x INTEGER PRIMARY KEY)")
    source = SqliteSource(path)
    model = captured(source, ["T"])
    run(connection, "BEGIN", "INSERT INTO t VALUES(1, 'a')", "INSERT INTO u VALUES(1)", "COMMIT", "CREATE TABLE n(x)")
    ((_, changes),) = everything(source)
    assert list(model.shapes) == ["t"] and changes == [Rows("t", [(1, "a")])]
    with pytest.raises(NotFound, match=r"no table 'nix'.*t, u"):
        source.tables(["nix"])
    with pytest.raises(InvalidArgument, match="turso_cdc"):
        source.tables(["turso_cdc"])


def test_change_tables_are_never_captured_though_there_are_several(path):
    """capture.md fact 8: independent logs of two connections; the other one's rows are recorded as any table's are."""
    connection = application(path, T)
    other = connect(path, table="other_log", isolation_level=None)
    source = SqliteSource(path, table="other_log")
    model = captured(source)
    assert list(model.shapes) == ["t"]
    run(connection, "INSERT INTO t VALUES(1, 'unseen')")
    run(other, "INSERT INTO t VALUES(2, 'seen')", "DELETE FROM turso_cdc")
    assert [changes for _, changes in everything(source)] == [[Rows("t", [(2, "seen")])]]


def test_generated_columns_come_when_they_are_stored(path):
    connection = application(
        path, "CREATE TABLE g(x INTEGER PRIMARY KEY, v INT AS (x + 1), s INT AS (x + 2) STORED, y TEXT)"
    )
    source = SqliteSource(path)
    model = captured(source)
    run(connection, "INSERT INTO g(x, y) VALUES(1, 'a')")
    for each in source.transactions(0):
        model.take(each)
    assert model.rows["g"][1,] == {"x": 1, "s": 3, "y": "a"}


def test_a_database_without_a_change_table_says_how_to_record(path):
    sqlite3.connect(path).execute(T)
    with pytest.raises(InvalidArgument, match=r"nothing would follow a snapshot.*tidegate\.capture\.sqlite\.connect"):
        SqliteSource(path)
    with pytest.raises(NotFound):
        SqliteSource(path + "x")


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "x").write_text("hello " * 1000)
    with pytest.raises(SourceUnreadable, match="not readable as a SQLite database"):
        SqliteSource(str(tmp_path / "x"))


# Values.


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("i INT", "'text'", "'text' is no BIGINT"),
        ("i INT", "1.5", "1.5 is no BIGINT"),
        ("b BLOB", "'text'", "'text' is no BINARY"),
        ("s TEXT", "x'00'", "is no STRING; choose"),
        ("r REAL", "'text'", "'text' is no DOUBLE"),
        ("y BOOLEAN", "2", "2 is no BOOLEAN"),
        ("n NUMERIC", "9007199254740993", "9007199254740993 is no DOUBLE"),
    ],
)
@pytest.mark.parametrize("is_snapshot", [True, False])
def test_a_value_that_does_not_fit_names_its_place_and_what_to_choose(path, column, value, said, is_snapshot):
    """SQLite lets any value into any column; it never becomes another one here."""
    connection = application(path, f"CREATE TABLE t(x INTEGER PRIMARY KEY, {column})")
    source = SqliteSource(path)
    name = column.split()[0]
    statement = f"INSERT INTO t VALUES(7, {value})"
    if is_snapshot:
        run(connection, statement)
        work = lambda: captured(source)  # noqa: E731
    else:
        captured(source)
        run(connection, statement)
        work = lambda: everything(source)  # noqa: E731
    with pytest.raises(SourceUnreadable, match=rf"table 't', column '{name}', row 7: .*{said}.*types="):
        work()


def test_a_chosen_type_takes_what_the_declared_one_does_not(path):
    """And a capture that was stopped by such a value goes on with it, the table reshaped."""
    connection = application(path, "CREATE TABLE t(x INTEGER PRIMARY KEY, i INT)")
    source = SqliteSource(path)
    model = captured(source)
    run(connection, "INSERT INTO t VALUES(1, 'text')")
    with pytest.raises(SourceUnreadable):
        everything(source)
    again = resumed(path, model, types={"T.i": "string"})
    (first, second) = everything(again)
    assert isinstance(first[1][0], Reshaped) and first[0].position.startswith("0:0:")
    assert second[1] == [Rows("t", [(1, "text")])]
    with pytest.raises(InvalidArgument, match="no column 'nix'"):
        SqliteSource(path, types={"t.nix": "STRING"}).tables(None)
    with pytest.raises(InvalidArgument, match="types:"):
        SqliteSource(path, types={"t.i": "POINT"})


def test_a_null_in_a_key_is_refused(path):
    """SQLite allows it in keys that are not INTEGER: such a row cannot be told from others."""
    connection = application(path, "CREATE TABLE k(a TEXT PRIMARY KEY, b)")
    source = SqliteSource(path)
    captured(source)
    run(connection, "INSERT INTO k VALUES(NULL, 1)")
    with pytest.raises(SourceUnreadable, match="NULL"):
        everything(source)
    with pytest.raises(SourceUnreadable, match="NULL"):
        captured(SqliteSource(path))


# Snapshot.


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_snapshot_is_of_one_moment_and_changes_go_on_from_there(path, journal):
    """A writer commits while the snapshot is read; in a rollback journal it waits."""
    connection = application(path, f"PRAGMA journal_mode = {journal}", T, timeout=0.05)
    run(connection, "BEGIN", *(f"INSERT INTO t VALUES({n}, 'a')" for n in range(100)), "COMMIT")
    source = SqliteSource(path, batch=10)
    source.tables(None)
    snapshot = source.snapshot()
    batches = snapshot.batches()
    rows = next(batches).rows.num_rows
    try:
        run(connection, "DELETE FROM t")
    except sqlite3.OperationalError:
        assert journal == "delete"
    rows += sum(each.rows.num_rows for each in batches)
    snapshot.close()
    assert rows == snapshot.rows["t"] == 100
    if journal == "wal":
        ((_, (change,)),) = everything(source)
        assert len(change.rows) == 100 and change.is_delete
    else:
        run(connection, "DELETE FROM t")  # The reader lets go.


def test_a_snapshot_has_every_kind_of_value(path):
    connection = application(
        path,
        "CREATE TABLE w(id INTEGER PRIMARY KEY, s TEXT, r REAL, b BLOB, y BOOLEAN, n NUMERIC, o)",
        "INSERT INTO w VALUES(1, 'ü', 1.5, x'00ff', 1, 3, 7), (2, NULL, NULL, NULL, NULL, NULL, NULL),"
        " (3, '', 2, x'', 0, 2.5, 1.5), (-9223372036854775808, 'x', 1e300, x'01', 1, -4, 'o')",
    )
    model = captured(SqliteSource(path, batch=3))
    assert model.rows == contents(connection, model.shapes.values())


def test_a_table_that_was_altered_since_it_was_looked_at_is_looked_at_again(path):
    connection = application(path, T)
    source = SqliteSource(path)
    source.tables(None)
    run(connection, "ALTER TABLE t ADD COLUMN z")
    with pytest.raises(Unavailable, match="open the source again"):
        source.snapshot()


KILLED = """
import os, sys
from tidegate.capture.sqlite import connect
db = connect(sys.argv[1], "off", isolation_level=None)
db.execute(f"PRAGMA journal_mode = {sys.argv[2]}")
db.execute("CREATE TABLE t(x INTEGER PRIMARY KEY, y TEXT)")
db.set_capture("full")
db.execute("INSERT INTO t VALUES(0, 'a')")
db.execute("PRAGMA cache_size = 2")
db.execute("BEGIN")
db.executemany("INSERT INTO t VALUES(?, ?)", ((n, "x" * 500) for n in range(1, 500)))
os._exit(9)
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_what_a_killed_application_left_half_done_is_not_read(path, journal):
    """Its pages are in the file already; nobody else has opened it since."""
    subprocess.run([sys.executable, "-c", KILLED, path, journal], check=False)
    if journal == "delete":
        assert Path(f"{path}-journal").stat().st_size > 0
    assert set(captured(SqliteSource(path)).rows["t"]) == {(0,)}


# Modes.


@pytest.mark.parametrize(
    ("mode", "key", "statement", "said"),
    [
        ("id", "INTEGER", "INSERT INTO t VALUES(5, 1)", "INSERT of table 't'.*the row as it is"),
        ("before", "INTEGER", "UPDATE t SET y = 2", "UPDATE of table 't'.*the row as it is"),
        ("after", "TEXT", "DELETE FROM t", "DELETE of table 't'.*the row as it was"),
        ("after", "TEXT", "UPDATE t SET x = 'z'", "UPDATE of table 't'.*the row as it was"),
        ("id", "INTEGER", "CREATE TABLE n(x)", "INSERT of table 'sqlite_schema'.*what changed in the schema"),
    ],
)
def test_a_mode_that_says_too_little_is_named_with_the_one_that_is_needed(path, mode, key, statement, said):
    """capture.md 1.4: delete needs a key, insert and update the row."""
    connection = application(
        path, f"CREATE TABLE t(x {key} PRIMARY KEY NOT NULL, y)", "INSERT INTO t VALUES(1, 1)", mode=mode
    )
    source = SqliteSource(path)
    captured(source)
    run(connection, statement)
    with pytest.raises(SourceUnreadable, match=rf"change 1, {said}.*mode='full'"):
        everything(source)


# Transactions.


def test_a_transaction_is_reduced_to_the_last_change_of_each_key(path):
    connection = application(path, T, "INSERT INTO t VALUES(1, 'a'), (2, 'b')")
    source = SqliteSource(path)
    captured(source)
    run(connection, "BEGIN", "UPDATE t SET y = 'c'", "DELETE FROM t WHERE x = 1", "INSERT INTO t VALUES(3, 'd')")
    run(connection, "UPDATE t SET y = 'e' WHERE x = 3", "COMMIT")
    ((found, changes),) = everything(source)
    assert changes == [Rows("t", [(1,)], is_delete=True), Rows("t", [(2, "c"), (3, "e")])]
    assert found.id == "1" and abs(found.committed_at_us / 1e6 - time.time()) < 60


def test_many_rows_come_as_arrow(path):
    connection = application(path, T)
    source = SqliteSource(path)
    model = captured(source)
    run(
        connection,
        "BEGIN",
        *(f"INSERT INTO t VALUES({n}, '{n}')" for n in range(2000)),
        "COMMIT",
        "DELETE FROM t WHERE x",
    )
    for each in source.transactions(0):
        model.take(each)
    assert set(model.rows["t"]) == {(0,)}


def test_a_transaction_larger_than_a_page_is_read_as_it_is_gone_through(path):
    """Transactions larger than memory: no more than a page of rows is held."""
    connection = application(path, T)
    source = SqliteSource(path, page=10)
    captured(source)
    run(
        connection,
        "BEGIN",
        *(f"INSERT INTO t VALUES({n}, '{n}')" for n in range(95)),
        "COMMIT",
        "DELETE FROM t WHERE x = 1",
    )
    asked = []
    query = source._reader.query
    source._reader.query = lambda sql, *values: asked.append(sql) or query(sql, *values)
    transactions = source.transactions(0)
    large = next(transactions)
    assert asked and not isinstance(large.changes, list)
    sizes = [len(change.rows) for change in large.changes]
    assert sum(sizes) == 95 and max(sizes) <= 10
    assert [each.id for each in transactions] == ["97"]


def test_waiting_ends_when_something_is_committed(path):
    connection = application(path, T, check_same_thread=False)
    source = SqliteSource(path)
    captured(source)
    timer = threading.Timer(0.1, run, (connection, "INSERT INTO t VALUES(1, 'a')"))
    timer.start()
    begun = time.monotonic()
    assert len(everything_within(source, 20)) == 1 and time.monotonic() - begun < 10
    timer.join()
    begun = time.monotonic()
    assert everything_within(source, 0.05) == [] and time.monotonic() - begun >= 0.05


def everything_within(source, wait_s):
    return [(each, list(each.changes)) for each in source.transactions(wait_s)]


def test_who_applied_a_transaction_is_told_and_its_note_is_no_table(path):
    """The way back writes `tidegate_applied` in its transaction: a loop is recognised by it."""
    note = "CREATE TABLE tidegate_applied(name TEXT PRIMARY KEY, position TEXT, origin TEXT)"
    connection = application(path, T, note)
    for page in (1, 5000):
        source = SqliteSource(path, page=page)
        model = captured(source)
        assert list(model.shapes) == ["t"]
        run(connection, "BEGIN", "INSERT INTO t VALUES(NULL, 'a')")
        run(connection, "INSERT OR REPLACE INTO tidegate_applied VALUES('n', '5', 'shop-b')", "COMMIT")
        run(connection, "INSERT INTO t VALUES(NULL, 'b')")
        assert [each.origin for each, _ in everything(source)] == ["shop-b", None]


def test_how_far_behind_it_is_can_be_asked(path):
    connection = application(path, T)
    source = SqliteSource(path)
    assert source.behind() == {}
    captured(source)
    run(connection, "INSERT INTO t VALUES(1, 'a')")
    assert source.behind() == {"changes": 2}
    everything(source)
    assert source.behind() == {"changes": 0}


# The schema.


def test_columns_that_others_add_without_a_record_are_followed(path):
    """A connection that does not record alters the table, before rows of it are recorded, and between."""
    connection = application(path, T, "CREATE TABLE k(a TEXT PRIMARY KEY NOT NULL)")
    source = SqliteSource(path)
    model = captured(source)
    other = sqlite3.connect(path)
    other.execute("ALTER TABLE t ADD COLUMN z TEXT DEFAULT 'd'")
    other.execute("ALTER TABLE k ADD COLUMN z TEXT")
    run(connection, "INSERT INTO t VALUES(1, 'a', 'b')", "INSERT INTO k VALUES('a', 'b')")
    for each in source.transactions(0):
        model.take(each)
    other.execute("ALTER TABLE t ADD COLUMN w TEXT DEFAULT 'e'")
    for each in source.transactions(0):
        model.take(each)
    assert model.rows == contents(connection, model.shapes.values())


def test_what_others_do_without_a_record_and_cannot_be_told_stops_the_capture(path):
    connection = application(path, T, "CREATE TABLE u(x INTEGER PRIMARY KEY, a, b)")
    for statement, said in (
        ("ALTER TABLE u DROP COLUMN a", "had the columns x, a, b; now x, b"),
        ("DROP TABLE t", "'t' is not there any more"),
    ):
        source = SqliteSource(path)
        captured(source)
        other = sqlite3.connect(path)
        other.execute(statement)
        other.close()
        with pytest.raises(SourceGone, match=said):
            everything(source)
    connection.close()


def test_a_table_that_others_made_without_a_record_comes_with_its_first_change(path):
    connection = application(path, T)
    source = SqliteSource(path)
    captured(source)
    sqlite3.connect(path).execute("CREATE TABLE n(a INTEGER PRIMARY KEY)")
    run(connection, "INSERT INTO n VALUES(1)")
    ((_, changes),) = everything(source)
    assert isinstance(changes[0], Reshaped) and changes[1] == Rows("n", [(1,)])


def test_a_table_is_dropped_and_made_anew_with_other_columns_while_nobody_reads(path):
    connection = application(path, T)
    source = SqliteSource(path)
    model = captured(source)
    run(connection, "INSERT INTO t VALUES(1, 'a')", "DROP TABLE t", "CREATE TABLE t(k TEXT PRIMARY KEY NOT NULL)")
    run(connection, "INSERT INTO t VALUES('b')")
    again = resumed(path, model)
    for each in again.transactions(0):
        model.take(each)
    assert model.rows == {"t": {("b",): {"k": "b"}}}


# Positions.


def test_pruning_what_was_read_is_no_error_as_long_as_ids_go_on(path):
    connection = application(path, T)
    source = SqliteSource(path)
    model = captured(source)
    for n in range(5):
        run(connection, f"INSERT INTO t VALUES({n}, 'a')")
        for each in source.transactions(0):
            model.take(each)
        last = int(model.position.split(":")[1])
        run(connection, f"DELETE FROM turso_cdc WHERE change_id < {last}")
        model = model.copy()
        source = resumed(path, model)
    run(connection, "DELETE FROM turso_cdc")
    assert everything(resumed(path, model)) == []


def test_a_log_that_was_emptied_with_unread_changes_in_it_is_not_passed_over(path):
    """Issue 7: truncated change logs and re-used ids are detected, with an error that says what to do."""
    connection = application(path, T)
    run(connection, *(f"INSERT INTO t VALUES({n}, 'a')" for n in range(5)))
    model = captured(SqliteSource(path))
    run(connection, "INSERT INTO t VALUES(50, 'lost')", "DELETE FROM turso_cdc")
    run(connection, *(f"INSERT INTO t VALUES({n}, 'b')" for n in range(10, 20)))
    with pytest.raises(SourceGone, match=r"begun anew.*new snapshot"):
        resumed(path, model)


@pytest.mark.parametrize("more", [0, 1, 10])
def test_a_database_that_went_back_in_time_is_noticed(path, tmp_path, more):
    """It was replaced by an older copy, and perhaps went on from there."""
    connection = application(path, T)
    run(connection, *(f"INSERT INTO t VALUES({n}, 'a')" for n in range(3)))
    shutil.copy(path, tmp_path / "copy")
    run(connection, *(f"INSERT INTO t VALUES({n}, 'a')" for n in range(3, 6)))
    model = captured(SqliteSource(path))
    connection.close()
    shutil.copy(tmp_path / "copy", path)
    connection = connect(path, isolation_level=None)
    run(connection, *(f"INSERT INTO t VALUES({n}, 'b')" for n in range(10, 10 + more)))
    with pytest.raises(SourceGone, match=r"went back.*older copy"):
        resumed(path, model)


def test_a_file_that_was_replaced_under_an_open_source_is_noticed(path, tmp_path):
    connection = application(path, T)
    source = SqliteSource(path)
    captured(source)
    shutil.copy(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    with pytest.raises(Unavailable, match="open the source again"):
        everything(source)
    connection.close()


def test_a_position_that_is_none_is_refused(path):
    application(path, T)
    with pytest.raises(SourceUnreadable, match="no position"):
        SqliteSource(path).resume("17", [])
