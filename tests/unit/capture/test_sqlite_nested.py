"""Recording where changes run within one another: triggers of the user, cascades, rows that are replaced. Seed 003."""

import random
import sqlite3

import pytest
from nested_scripts import nested, outcome, replayed, tables_of
from recorded import database, images, kinds, run

from tidegate.capture.sqlite import connect

T = "CREATE TABLE t(x INTEGER PRIMARY KEY, y, z)"
TOUCH = "CREATE TRIGGER touch AFTER UPDATE ON t BEGIN UPDATE t SET z = 'now' WHERE x = new.x; END"


def changes(connection, behind):
    return images(connection)[behind:]


@pytest.mark.parametrize("tens", range(40))
def test_a_recording_connection_behaves_as_a_plain_one_and_its_log_gives_the_tables(tens):
    for seed in range(tens * 10, tens * 10 + 10):
        source = random.Random(seed)
        script = list(nested(source, 12))
        plain = sqlite3.connect(":memory:", isolation_level=None)
        ours = connect(":memory:", isolation_level=None)
        for sql in script:
            assert outcome(ours, sql) == outcome(plain, sql), f"seed {seed}: {sql} of {'; '.join(script)}"
        assert tables_of(ours) == tables_of(plain), f"seed {seed}: {'; '.join(script)}"
        assert replayed(ours) == tables_of(plain), f"seed {seed}: {'; '.join(script)}"


def test_a_cascade_within_its_own_table_is_recorded_beside_the_key_that_caused_it():
    table = "CREATE TABLE t(x INTEGER PRIMARY KEY, boss REFERENCES t(x) ON UPDATE CASCADE)"
    db = database(sql=("PRAGMA foreign_keys = ON", table))
    run(db, "INSERT INTO t VALUES (1, 1), (2, 1), (3, 1)", "UPDATE t SET x = 10 WHERE x = 1")
    assert replayed(db)["t"] == {10: (10, 10), 2: (2, 10), 3: (3, 10)}
    assert kinds(db) == "I1 I2 I3 C U2 U3 U10 D1 I10 C"


def test_a_cascade_within_its_own_table_is_recorded_without_rowids_too():
    table = "CREATE TABLE w(x TEXT PRIMARY KEY, boss REFERENCES w(x) ON UPDATE CASCADE) WITHOUT ROWID"
    db = database(sql=("PRAGMA foreign_keys = ON", table))
    run(db, "INSERT INTO w VALUES ('a', NULL), ('b', 'a')", "UPDATE w SET x = 'z' WHERE x = 'a'")
    assert changes(db, 2) == [
        ("U", ["b", "a"], ["b", "z"], [0, 1, None, "z"]),
        ("D", ["a", None], None, None),
        ("I", None, ["z", None], None),
    ]


def test_an_update_of_another_row_within_that_of_a_key_is_recorded():
    db = database(sql=(T,))
    run(db, "CREATE TRIGGER b BEFORE UPDATE OF x ON t BEGIN UPDATE t SET y = 'inner' WHERE x = 99; END")
    run(db, "INSERT INTO t VALUES (1, 1, 1), (99, 1, 1)", "UPDATE t SET x = 2 WHERE x = 1")
    assert kinds(db) == "I1 I99 C U99 D1 I2 C"
    assert changes(db, 2)[0] == ("U", [99, 1, 1], [99, "inner", 1], [0, 1, 0, None, "inner", None])


def test_updates_flags_what_each_statement_sets_where_one_runs_within_another():
    """As Turso: the inner one sets z, the outer one y, and not its value decides."""
    db = database(sql=(T,))
    run(db, "CREATE TRIGGER b BEFORE UPDATE OF y ON t BEGIN UPDATE t SET z = 'i' WHERE x = 99; END")
    run(db, "INSERT INTO t VALUES (1, 1, 1), (99, 1, 1)", "UPDATE t SET y = y WHERE x = 1")
    assert [flags[:3] for *_, flags in changes(db, 2)] == [[0, 0, 1], [0, 1, 0]]


def test_an_update_is_recorded_behind_one_that_was_ignored_within_the_same_statement():
    db = database(sql=(T, "CREATE TABLE a(q)"))
    run(
        db,
        "CREATE TRIGGER tr AFTER INSERT ON a BEGIN UPDATE OR IGNORE t SET x = 2 WHERE x = 1;"
        " UPDATE t SET y = 9 WHERE x = 1; END",
    )
    run(db, "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)", "INSERT INTO a VALUES (1)")
    assert changes(db, 3) == [("U", [1, 1, 1], [1, 9, 1], [0, 1, 0, None, 9, None])]


def test_the_image_before_is_what_an_inner_update_of_the_row_left():
    db = database(sql=(T,))
    run(db, "CREATE TRIGGER b BEFORE UPDATE OF y ON t BEGIN UPDATE t SET z = 'i' WHERE x = new.x; END")
    run(db, "INSERT INTO t VALUES (1, 1, 1)", "UPDATE t SET y = 2")
    assert [change[1:3] for change in changes(db, 1)] == [([1, 1, 1], [1, 1, "i"]), ([1, 1, "i"], [1, 2, "i"])]


@pytest.mark.parametrize(
    "made",
    [
        "SELECT 1",
        "CREATE TRIGGER r AFTER INSERT ON o BEGIN INSERT OR REPLACE INTO o VALUES (1); END",
        "CREATE TABLE c(n UNIQUE ON CONFLICT REPLACE)",
    ],
)
@pytest.mark.parametrize(
    "update", ["UPDATE t SET y = replace(y, 'a', 'b')", "UPDATE OR REPLACE t SET y = 5", "UPDATE t SET y = 6"]
)
def test_a_trigger_that_updates_its_own_row_does_not_call_itself_wherever_rows_are_replaced(made, update):
    db = database(sql=(T, "CREATE TABLE o(x INTEGER PRIMARY KEY)", TOUCH))
    run(db, made, "INSERT INTO t VALUES (1, 'a', 0)", update)
    assert kinds(db).endswith("U1 U1 C")
    assert db.execute("PRAGMA recursive_triggers").fetchone() == (0,)


@pytest.mark.parametrize(
    "statement", ["REPLACE INTO u VALUES (3, 1)", "UPDATE OR REPLACE u SET x = 3, y = 1 WHERE x = 2"]
)
def test_rows_that_are_replaced_are_recorded_beside_triggers_that_do_not_recurse(statement):
    db = database(sql=(T, TOUCH, "CREATE TABLE u(x INTEGER PRIMARY KEY, y UNIQUE)"))
    run(db, "CREATE TRIGGER d AFTER DELETE ON u BEGIN INSERT INTO t VALUES (1, 1, 1); END")
    run(db, "INSERT INTO u VALUES (1, 1), (2, 2)", statement)
    assert "D1" in kinds(db)
    assert replayed(db) == tables_of(db) == {"t": {}, "u": tables_of(db)["u"]}


@pytest.mark.parametrize("index", ["y COLLATE NOCASE", "lower(y)", "y COLLATE NOCASE) WHERE (z > 0"])
def test_rows_replaced_are_found_by_whatever_is_unique(index):
    db = database(sql=(T, f"CREATE UNIQUE INDEX i ON t({index})", "CREATE TABLE o(x)"))
    run(db, "CREATE TRIGGER tr AFTER INSERT ON o BEGIN SELECT 1; END")
    run(db, "INSERT INTO t VALUES (1, 'a', 1)", "REPLACE INTO t VALUES (2, 'A', 2)")
    assert kinds(db) == "I1 C D1 I2 C"


def test_the_last_record_of_a_row_is_right_whether_a_temp_trigger_ran_before_it_or_behind():
    for others in range(8):
        db = database(sql=(T, *(f"CREATE TABLE o{at}(x INTEGER PRIMARY KEY, y UNIQUE)" for at in range(others))))
        run(db, "CREATE TEMP TRIGGER i AFTER INSERT ON t BEGIN UPDATE t SET y = 'i' WHERE x = new.x; END")
        run(db, "CREATE TEMP TRIGGER u AFTER UPDATE OF z ON t BEGIN DELETE FROM t WHERE x = new.x; END")
        run(db, "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)", "UPDATE t SET z = 2 WHERE x = 1")
        assert replayed(db) == {"t": {2: (2, "i", 2)}}


def test_a_row_replaced_that_a_trigger_wrote_only_just_is_recorded():
    table = "CREATE TABLE u(x INTEGER PRIMARY KEY, y UNIQUE ON CONFLICT REPLACE)"
    db = database(sql=(table,))
    run(db, "CREATE TRIGGER b BEFORE INSERT ON u BEGIN INSERT OR IGNORE INTO u VALUES (7, new.y); END")
    run(db, "INSERT INTO u VALUES (1, 5)")
    assert kinds(db) == "I7 D7 I1 C"
