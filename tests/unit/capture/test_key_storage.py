"""A key without a declared type: numbers and texts that look alike are two rows at the source, and never one here."""

from __future__ import annotations

import pytest
import turso
from source_model import captured, everything

from tidegate.capture.sqlite import connect
from tidegate.capture.sqlite_source import SqliteSource
from tidegate.capture.turso_source import TursoSource
from tidegate.errors import SourceUnreadable

ONE, COMPOSITE = "CREATE TABLE t(id PRIMARY KEY NOT NULL, v)", "CREATE TABLE t(n INT, id, v, PRIMARY KEY(id, n))"


@pytest.fixture(params=["sqlite", "turso"])
def database(request, tmp_path):
    path = str(tmp_path / "app.db")
    if request.param == "sqlite":
        connection = connect(path, isolation_level=None)
    else:
        connection = turso.connect(path, isolation_level=None)
        connection.execute("PRAGMA capture_data_changes_conn('full')").fetchall()
    yield connection, lambda: (SqliteSource if request.param == "sqlite" else TursoSource)(path)
    connection.close()


def run(connection, *statements):
    for statement in statements:
        connection.execute(statement)


TWINS = [("1", "'1'", r"1 \(integer\)", r"'1' \(text\)"), ("'2.5'", "2.5", r"2\.5 \(real\)", r"'2\.5' \(text\)")]


@pytest.mark.parametrize("table", [ONE, COMPOSITE])
@pytest.mark.parametrize(("one", "other", "number", "text"), TWINS)
@pytest.mark.parametrize("before", [0, 1, 2], ids=["both-live", "one-in-the-snapshot", "both-in-the-snapshot"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_two_that_would_be_one_row_end_the_capture(database, table, one, other, number, text, before, is_gone):
    """Also when the second one is gone by now: with its delete the first one would go."""
    connection, opened = database
    into = "INSERT INTO t(id, v) VALUES" if table == ONE else "INSERT INTO t(n, id, v) VALUES"
    statements = [f"{into}({'' if table == ONE else '7, '}{each}, 0)" for each in (one, other)]
    run(connection, table, *statements[:before])
    said = rf"table 't', column 'id': ({number} and {text}|{text} and {number}) are two keys .*restart=True"
    if before == 2:
        with pytest.raises(SourceUnreadable, match=said):
            captured(opened())
        return
    source = opened()
    captured(source)
    run(connection, *statements[before:], *([f"DELETE FROM t WHERE id = {other}"] if is_gone else []))
    with pytest.raises(SourceUnreadable, match=said):
        everything(source)


@pytest.mark.parametrize("type", ["", "TEXT"])
def test_keys_that_differ_also_as_texts_are_rows_of_their_own(database, type):
    connection, opened = database
    run(connection, f"CREATE TABLE t(id {type} PRIMARY KEY NOT NULL, v)", "INSERT INTO t VALUES(1, 'a')")
    source = opened()
    model = captured(source)
    values = "(2, 'b'), ('3', 'c'), ('x', 'd'), ('01', 'e'), (4.5, 'f'), ('1e400', 'g'), ('99999999999999999999', 'h')"
    run(connection, f"INSERT INTO t VALUES {values}", "UPDATE t SET v = 'z'", "DELETE FROM t WHERE id = '3'")
    for each in source.transactions(0):
        model.take(each)
    found = {row["id"] for row in model.rows["t"].values()}
    assert found == {"1", "2", "x", "01", "4.5", "1e400", "99999999999999999999"}


def test_a_key_that_becomes_a_number_is_no_other_one(database):
    """There was never more than one row."""
    connection, opened = database
    run(connection, ONE, "INSERT INTO t VALUES('1', 'a')")
    source = opened()
    model = captured(source)
    run(connection, "UPDATE t SET v = 'b'")
    run(connection, "UPDATE t SET id = 1", "UPDATE t SET v = 'c'")
    for each in source.transactions(0):
        model.take(each)
    assert model.rows["t"] == {("1",): {"id": "1", "v": "c"}}


def test_a_table_that_is_gone_by_now_is_read_to_its_end(database):
    connection, opened = database
    run(connection, ONE)
    source = opened()
    model = captured(source)
    run(connection, "INSERT INTO t VALUES(1, 'a')", "DROP TABLE t")
    for each in source.transactions(0):
        model.take(each)
    assert model.rows == {}
