"""Tables that are made anew under their names, as migrations of SQLite and Turso do it (sqlite.org/lang_altertable, 7).

Renames are not recorded, so what cannot be followed must end the capture, whichever tables were asked for.
"""

from __future__ import annotations

import pytest
import turso
from capture_rig import rows

from tidegate.capture.sqlite import connect
from tidegate.errors import SourceGone

BEFORE = ("CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER)", "INSERT INTO t VALUES(1, 10), (2, 20)")
TWELVE_STEPS = (
    "BEGIN",
    "CREATE TABLE new_t(id INTEGER PRIMARY KEY, a INTEGER, c TEXT)",
    "INSERT INTO new_t SELECT id, a, 'x' FROM t",
    "DROP TABLE t",
    "ALTER TABLE new_t RENAME TO t",
    "COMMIT",
)


@pytest.fixture(params=["sqlite", "turso"])
def application(request, tmp_path):
    path = str(tmp_path / "app.db")
    if request.param == "sqlite":
        connection = connect(path, isolation_level=None)
    else:
        connection = turso.connect(path, isolation_level=None)
        connection.execute("PRAGMA capture_data_changes_conn('full')").fetchall()
    run(connection, *BEFORE)
    yield connection, f"{request.param}:///{path}"
    connection.close()


def run(connection, *statements):
    for statement in statements:
        connection.execute(statement)


def captured(db, url, tables, **how):
    return db.capture(url, name="app", tables=tables, **how)


@pytest.mark.parametrize("tables", [["t"], None])
@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("after", [(), ("INSERT INTO t VALUES(3, 30, 'y')",)])
def test_another_table_that_takes_the_place_of_a_dropped_one_ends_the_capture(db, application, tables, is_live, after):
    """Its rows were those of another name: the old ones are not kept in silence. A new snapshot has them."""
    connection, url = application
    capture = captured(db, url, tables)
    if not is_live:
        capture.stop()
    run(connection, *TWELVE_STEPS, *after)
    if not is_live:
        capture = captured(db, url, tables)
    with pytest.raises(SourceGone, match=r"table '(new_)?t'.* there .*renamed.*restart=True, or --restart"):
        capture.catch_up()
    capture.stop()
    with captured(db, url, tables, restart=True) as capture:
        run(connection, "INSERT INTO t VALUES(4, 40, 'z')")
        capture.catch_up()
        assert rows(db, "t") == [(1, 10, "x"), (2, 20, "x"), *([(3, 30, "y")] if after else []), (4, 40, "z")]


@pytest.mark.parametrize("tables", [["t"], None])
@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("gone", ["DROP TABLE t", "ALTER TABLE t RENAME TO old"])
def test_a_table_that_is_made_under_the_name_of_one_that_went_begins_without_rows(
    db, application, tables, is_live, gone
):
    connection, url = application
    capture = captured(db, url, tables)
    if not is_live:
        capture.stop()
    run(connection, "BEGIN", gone, "CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER)", "INSERT INTO t VALUES(2, 21)")
    run(connection, "COMMIT")
    if not is_live:
        capture = captured(db, url, tables)
    capture.catch_up()
    run(connection, "INSERT INTO t VALUES(5, 50)")
    capture.catch_up()
    assert rows(db, "t") == [(2, 21), (5, 50)]
    capture.stop()
