"""Which rows a statement leaves in the change table, and what stands in them. Seed 003; capture.md 1.2 and 7."""

import sqlite3

import pytest
from recorded import database, images, kinds, log, run, tables

from tidegate.capture.sqlite import connect
from tidegate.cdc.record import decode, encode

HISTORY = ("INSERT INTO t VALUES (1, 2), (3, 4)", "UPDATE t SET y = 3 WHERE x = 1", "DELETE FROM t WHERE x = 3")


def test_rows_stand_in_the_order_of_the_statement_and_a_commit_behind_them():
    """Fact 1."""
    db = database(mode="id")
    run(db, "INSERT INTO t VALUES (10, 10), (5, 1)")
    assert log(db) == [(1, 1, "I10"), (2, 1, "I5"), (3, 1, "C")]


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("id", [("I", None, None, None)] * 2 + [("U", None, None, None), ("D", None, None, None)]),
        ("before", [("I", None, None, None)] * 2 + [("U", [1, 2], None, None), ("D", [3, 4], None, None)]),
        (
            "after",
            [
                ("I", None, [1, 2], None),
                ("I", None, [3, 4], None),
                ("U", None, [1, 3], None),
                ("D", None, None, None),
            ],
        ),
        (
            "full",
            [
                ("I", None, [1, 2], None),
                ("I", None, [3, 4], None),
                ("U", [1, 2], [1, 3], [0, 1, None, 3]),
                ("D", [3, 4], None, None),
            ],
        ),
    ],
)
def test_a_mode_says_which_images_there_are(mode, expected):
    """Fact 2 and the mode matrix of capture.md 1.2."""
    db = database(mode=mode)
    run(db, *HISTORY)
    assert images(db) == expected
    assert log(db) == [(1, 1, "I1"), (2, 1, "I3"), (3, 1, "C"), (4, 4, "U1"), (5, 4, "C"), (6, 6, "D3"), (7, 6, "C")]


def test_the_images_of_an_update_are_those_bytes():
    """capture.md 2: the bytes that Turso writes."""
    db = database()
    run(db, *HISTORY[:2])
    row = db.execute('SELECT "before", "after", updates FROM turso_cdc WHERE change_type = 0').fetchone()
    assert [image.hex(" ") for image in row] == ["03 09 01 02", "03 09 01 03", "05 08 09 00 01 03"]


def test_a_life_of_rows_in_id_mode():
    """Fact 3: the update of a key is a delete and an insert; deletes stand in the order of the scan."""
    db = database(mode="id")
    run(
        db,
        "INSERT INTO t VALUES (20, 1), (10, 1), (5, 1)",
        "UPDATE t SET y = 2 WHERE x = 5",
        "DELETE FROM t WHERE x > 5",
        "INSERT INTO t VALUES (1, 1)",
        "UPDATE t SET x = 2 WHERE x = 1",
    )
    assert kinds(db) == "I20 I10 I5 C U5 C D10 D20 C I1 C D1 I2 C"


def test_an_updated_key_leaves_the_new_image_in_after():
    """capture.md 2: where Turso has it in `before` (issue 8656)."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 7)", "UPDATE t SET x = 2")
    assert images(db)[1:] == [("D", [1, 7], None, None), ("I", None, [2, 7], None)]


@pytest.mark.parametrize("set_", ["x = x", "rowid = 1, y = y", "y = y, oid = x"])
def test_a_key_that_is_set_is_a_delete_and_an_insert_even_if_it_stays(set_):
    """As Turso: what counts is that the statement sets it, by whatever name."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 7)", f"UPDATE t SET {set_}")
    assert kinds(db) == "I1 C D1 I1 C"


def test_updates_flags_the_columns_that_are_set_and_not_those_that_change():
    """capture.md 1.2, where comparing values would say otherwise (3)."""
    db = database(sql=("CREATE TABLE t(a, b, c)",))
    run(db, "INSERT INTO t VALUES (1, 2, 3)", "UPDATE t SET b = b, c = 4")
    assert images(db)[-1] == ("U", [1, 2, 3], [1, 2, 4], [0, 1, 1, None, 2, 4])


def test_an_upsert_has_the_row_as_it_was_and_what_was_set():
    """capture.md 2: Turso has the new row in `before` and no `updates` (issue 9069)."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (1, 5) ON CONFLICT DO UPDATE SET y = excluded.y")
    assert images(db)[-1] == ("U", [1, 1], [1, 5], [0, 1, None, 5])


def test_replacing_deletes_what_was_in_the_way():
    """capture.md 2: INSERT OR REPLACE is a delete and an insert in one transaction."""
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y UNIQUE)",))
    run(db, "INSERT INTO t VALUES (1, 1), (2, 2)", "REPLACE INTO t VALUES (3, 1)")
    run(db, "UPDATE OR REPLACE t SET y = 1 WHERE x = 2")
    assert kinds(db) == "I1 I2 C D1 I3 C D3 U2 C"


def test_what_a_table_itself_says_to_replace_is_seen_too():
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y UNIQUE ON CONFLICT REPLACE)", "CREATE TABLE u(a)"))
    run(db, "CREATE TRIGGER tr AFTER INSERT ON u BEGIN SELECT 1; END")
    run(db, "INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 1)")
    assert kinds(db) == "I1 C D1 I2 C"


def test_what_was_ignored_is_a_commit_of_nothing():
    """capture.md 2: OR IGNORE, DO NOTHING and no row found are (-1, COMMIT)."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)")
    run(db, "INSERT OR IGNORE INTO t VALUES (1, 2)", "INSERT INTO t VALUES (1, 2) ON CONFLICT DO NOTHING")
    run(db, "DELETE FROM t WHERE x = 9")
    assert log(db)[2:] == [(3, -1, "C"), (4, -1, "C"), (5, -1, "C")]


def test_every_kind_of_value_is_as_it_is_stored():
    """capture.md 1.2: all stored columns, the rowid's alias filled in, values with their table's affinity."""
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, i INT, r REAL, s TEXT, b, n NUMERIC)",))
    values = [None, "12", 3, 4.5, b"\0\xff", "1e3"]
    db.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", values)
    db.execute("UPDATE t SET r = 7, s = -2.5, i = ?", (2**63 - 1,))
    assert images(db)[0] == ("I", None, [1, 12, 3.0, "4.5", b"\0\xff", 1000], None)
    *_, after, updates = images(db)[1]
    assert after == [1, 2**63 - 1, 7.0, "-2.5", b"\0\xff", 1000]
    assert updates == [0, 1, 1, 1, 0, 0, None, 2**63 - 1, 7.0, "-2.5", None, None]


def test_a_computed_column_is_in_the_image_if_it_is_stored():
    db = database(sql=("CREATE TABLE t(a, v AS (a + 1), s AS (a + 2) STORED, z)",))
    run(db, "INSERT INTO t VALUES (1, 9)", "UPDATE t SET a = 5")
    assert images(db) == [("I", None, [1, 3, 9], None), ("U", [1, 3, 9], [5, 7, 9], [1, 0, 0, 5, None, None])]


@pytest.mark.parametrize("columns", [63, 150, 700])
def test_a_row_may_have_more_columns_than_a_function_arguments(columns):
    names = [f"c{at}" for at in range(columns)]
    db = database(sql=(f"CREATE TABLE t(x INTEGER PRIMARY KEY, {', '.join(names)})",))
    values = list(range(1, columns + 2))
    db.execute(f"INSERT INTO t VALUES ({', '.join('?' * (columns + 1))})", values)
    run(db, "UPDATE t SET c2 = 'new'", "UPDATE t SET x = 7", "DELETE FROM t")
    changed = [*values[:3], "new", *values[4:]]
    flags = [int(at == 3) for at in range(columns + 1)]
    updates = [*flags, *("new" if flag else None for flag in flags)]
    assert images(db) == [
        ("I", None, values, None),
        ("U", values, changed, updates),
        ("D", changed, None, None),
        ("I", None, [7, *changed[1:]], None),
        ("D", [7, *changed[1:]], None, None),
    ]


def test_a_wide_row_that_failed_leaves_nothing_to_the_next():
    names = ", ".join(f"c{at}" for at in range(120))
    db = database(sql=(f"CREATE TABLE t({names})", f"CREATE TABLE u({names})"))
    run(db, "ALTER TABLE turso_cdc RENAME TO elsewhere")
    with pytest.raises(sqlite3.OperationalError):
        db.execute("INSERT INTO t(c0) VALUES (1)")
    run(db, "ALTER TABLE elsewhere RENAME TO turso_cdc", "INSERT INTO t(c0) VALUES (2)")
    assert images(db) == [("I", None, [2, *[None] * 119], None)]


def test_a_table_without_rowid_has_images_and_no_id():
    """Turso refuses to record such tables."""
    db = database(sql=("CREATE TABLE t(a, b, c, PRIMARY KEY (b, a)) WITHOUT ROWID",))
    run(db, "INSERT INTO t VALUES ('k', 1, 2)", "UPDATE t SET c = 3", "UPDATE t SET b = 2", "DELETE FROM t")
    assert kinds(db) == "I C U C D I C D C"
    assert [change[:3] for change in images(db)] == [
        ("I", None, ["k", 1, 2]),
        ("U", ["k", 1, 2], ["k", 1, 3]),
        ("D", ["k", 1, 3], None),
        ("I", None, ["k", 2, 3]),
        ("D", ["k", 2, 3], None),
    ]


def test_names_may_be_anything():
    name = 'it\'s a "table"'
    table = '"' + name.replace('"', '""') + '"'
    db = database(sql=(f'CREATE TABLE {table}(rowid TEXT, "select" INTEGER PRIMARY KEY, [a b])',))
    run(db, f"INSERT INTO {table} VALUES ('r', 5, 1)", f"UPDATE {table} SET rowid = 's'")
    assert tables(db) == [name] * 2
    assert kinds(db) == "I5 C U5 C"
    assert images(db)[1] == ("U", ["r", 5, 1], ["s", 5, 1], [1, 0, 0, "s", None, None])


def test_a_key_that_descends_is_not_the_rowid():
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY DESC, y)",))
    run(db, "INSERT INTO t VALUES (7, 1)", "UPDATE t SET x = 8", "UPDATE t SET rowid = 3")
    assert kinds(db) == "I1 C U1 C D1 I3 C"


def test_triggers_and_cascades_leave_one_commit_at_the_end():
    """capture.md 2: where Turso has COMMITs in mid-transaction, and two of them for a cascade."""
    db = database(
        sql=(
            "PRAGMA foreign_keys = ON",
            "CREATE TABLE p(x INTEGER PRIMARY KEY)",
            "CREATE TABLE c(x INTEGER PRIMARY KEY, p REFERENCES p ON DELETE CASCADE)",
            "CREATE TABLE l(x INTEGER PRIMARY KEY)",
            "CREATE TRIGGER tr AFTER INSERT ON p BEGIN INSERT INTO l VALUES (new.x + 100); END",
        )
    )
    run(db, "INSERT INTO p VALUES (1), (2)", "INSERT INTO c VALUES (7, 1), (8, 1)", "DELETE FROM p WHERE x = 1")
    assert kinds(db) == "I1 I101 I2 I102 C I7 I8 C D1 D7 D8 C"
    assert {txn for _, txn, _ in log(db)} == {1, 6, 9}


@pytest.mark.parametrize("trigger", ["TRIGGER tr BEFORE DELETE", "TRIGGER tr DELETE", "TEMP TRIGGER tr BEFORE DELETE"])
def test_a_delete_that_a_trigger_forbids_is_not_recorded(trigger):
    db = database()
    run(db, f"CREATE {trigger} ON t WHEN old.y = 1 BEGIN SELECT RAISE(IGNORE); END")
    run(db, "INSERT INTO t VALUES (1, 1), (2, 2)", "DELETE FROM t")
    assert kinds(db) == "I1 I2 C D2 C"


def test_flags_are_those_of_the_update_even_where_one_causes_another():
    db = database(sql=("CREATE TABLE t(x INTEGER PRIMARY KEY, y, z)", "CREATE TABLE u(x INTEGER PRIMARY KEY, a, b)"))
    run(db, "CREATE TRIGGER tr BEFORE UPDATE OF y ON t BEGIN UPDATE u SET b = new.y; END")
    run(db, "INSERT INTO t VALUES (1, 2, 3)", "INSERT INTO u VALUES (1, 2, 3)", "UPDATE t SET y = 5, z = 6")
    assert [updates for *_, updates in images(db)[2:]] == [[0, 0, 1, None, None, 5], [0, 1, 1, None, 5, 6]]


def test_triggers_of_the_user_do_not_begin_to_call_themselves():
    """Recording needs `recursive_triggers`, but only where rows may be replaced."""
    db = database(sql=("CREATE TABLE t(x)",))
    run(db, "CREATE TRIGGER tr AFTER INSERT ON t WHEN new.x < 5 BEGIN INSERT INTO t VALUES (new.x + 1); END")
    run(db, "INSERT INTO t VALUES (1)")
    assert db.execute("SELECT x FROM t").fetchall() == [(1,), (2,)]
    run(db, "PRAGMA recursive_triggers = ON", "INSERT INTO t VALUES (3)")
    assert db.execute("SELECT x FROM t").fetchall() == [(1,), (2,), (3,), (4,), (5,)]


def test_a_commit_has_only_its_first_four_columns():
    """Fact 15: nine columns, `change_txn_id` the third."""
    db = database()
    run(db, "INSERT INTO t VALUES (1, 1)")
    columns = [name for _, name, *_ in db.execute("PRAGMA table_info(turso_cdc)")]
    assert columns == [
        "change_id",
        "change_time",
        "change_txn_id",
        "change_type",
        "table_name",
        "id",
        "before",
        "after",
        "updates",
    ]
    *_, commit = db.execute("SELECT * FROM turso_cdc")
    assert (commit[0], commit[2:]) == (2, (1, 2, None, None, None, None, None))
    assert abs(commit[1] - db.execute("SELECT unixepoch()").fetchone()[0]) <= 2


def test_a_database_attached_is_recorded_under_the_bare_names_of_its_tables(tmp_path):
    """Fact 27."""
    db = database(tmp_path / "a.db")
    db.execute("ATTACH ? AS other", (str(tmp_path / "b.db"),))
    run(db, "CREATE TABLE other.s(x INTEGER PRIMARY KEY, y)", "INSERT INTO s VALUES (1, 2)")
    run(db, "UPDATE other.s SET y = 3", "DELETE FROM s")
    assert tables(db) == ["sqlite_schema", "s", "s", "s"]
    assert images(db)[2] == ("U", [1, 2], [1, 3], [0, 1, None, 3])
    run(db, "DETACH other", "INSERT INTO t VALUES (1, 1)")
    assert kinds(db).endswith("I1 C")


def test_tables_of_the_connection_alone_are_not_recorded():
    """Turso records them; nobody else can ever read them."""
    db = database()
    run(db, "CREATE TEMP TABLE tt(a)", "INSERT INTO tt VALUES (1)")
    assert [what for _, txn, what in log(db) if txn != -1] == []


def test_text_and_floats_of_all_lengths_are_records():
    """The fast images are those of `tidegate.cdc.record`."""
    db = database()
    values = ["", "é" * 57, "x" * 57, "x" * 58, "y" * 9000, 0.0, -0.0, 1e308, b"", b"z" * 300]
    values += [-1, 0, 1, 127, 128, 4095, 4096, -129, 1 << 47]
    for at, value in enumerate(values):
        db.execute("INSERT INTO t VALUES (?, ?)", (at, value))
        db.execute("UPDATE t SET y = ? WHERE x = ?", (value, at))
    rows = db.execute('SELECT "after", id, updates FROM turso_cdc WHERE change_type <> 2 ORDER BY change_id').fetchall()
    assert [bytes(image) for image, *_ in rows[::2]] == [encode((at, value)) for at, value in enumerate(values)]
    assert [repr(decode(image)) for image, *_ in rows[1::2]] == [repr([at, value]) for at, value in enumerate(values)]
    assert [bytes(updates) for *_, updates in rows[1::2]] == [encode((0, 1, None, value)) for value in values]


def test_nothing_is_recorded_of_a_connection_that_is_off():
    db = connect(":memory:", "off")
    with db:
        db.execute("CREATE TABLE t(x)")
        db.execute("INSERT INTO t VALUES (1)")
    assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("t",)]


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_database_of_another_encoding_is_recorded_as_any(encoding):
    """Records are in UTF-8: what is in the log is the same."""
    logs = []
    for pragma in ("PRAGMA encoding = 'UTF-8'", f"PRAGMA encoding = '{encoding}'"):
        db = database(sql=(pragma, 'CREATE TABLE "tä€"(x INTEGER PRIMARY KEY, "ñ" TEXT UNIQUE, z DEFAULT \'ü\')'))
        assert db.execute("PRAGMA encoding").fetchone() == (pragma[-9:].strip(" ='"),)
        run(db, "CREATE TABLE l(a)", 'CREATE TRIGGER tr AFTER UPDATE ON "tä€" BEGIN INSERT INTO l VALUES (new.z); END')
        run(db, "INSERT INTO \"tä€\" VALUES (1, 'é😀', 'a'||char(0)||'b')", 'UPDATE "tä€" SET z = 5')
        run(
            db,
            'REPLACE INTO "tä€"(x, "ñ") VALUES (2, \'é😀\')',
            "ALTER TABLE l ADD COLUMN b DEFAULT 'ö'",
            "DROP TABLE l",
        )
        logs.append([kinds(db), tables(db), images(db)])
    assert logs[0] == logs[1]
    assert logs[0][0].startswith("I") and "tä€" in logs[0][1]
