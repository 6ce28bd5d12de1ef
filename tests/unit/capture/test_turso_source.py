"""Turso as a source, with the real pyturso 0.8.3: what capture.md section 2 observed, and the ten rules behind it.

Each rule's test fails when the rule is left out of the code.
"""

from __future__ import annotations

import pytest
import turso
from source_model import captured, everything, tuples

from tidegate.capture.source import Dropped, Reshaped, Rows
from tidegate.capture.turso_source import TursoSource
from tidegate.errors import InvalidArgument, NotFound, SourceGone, SourceUnreadable

SCHEMA = (
    "CREATE TABLE t(x INTEGER PRIMARY KEY, y)",
    "CREATE TABLE u(x INTEGER PRIMARY KEY, y TEXT UNIQUE)",
    "CREATE TABLE log(x INTEGER PRIMARY KEY, y)",
)


def application(path, *sql, mode="full", journal="wal"):
    connection = turso.connect(str(path), isolation_level=None)
    if journal != "wal":
        connection.execute(f"PRAGMA journal_mode = '{journal}'").fetchall()
    for statement in (*SCHEMA, *sql):
        connection.execute(statement)
    connection.execute(f"PRAGMA capture_data_changes_conn('{mode}')")
    return connection


@pytest.fixture
def path(tmp_path):
    return tmp_path / "app.db"


def run(connection, *statements):
    for statement in statements:
        try:
            connection.execute(statement)
        except turso.Error:
            if "--fails" not in statement:
                raise


def said(changes):
    """What changes say, by table: rows that came, keys that went, columns; however many changes say it."""
    rows, found = {}, []
    for change in changes:
        match change:
            case Rows(table, some, is_delete):
                rows.setdefault((table, "-" if is_delete else "+"), []).extend(tuples(some, None))
            case Reshaped(table):
                found.append((table.name, "=", [each.name for each in table.columns]))
            case Dropped(table):
                found.append((table, "dropped"))
    return sorted([*found, *((*what, sorted(some)) for what, some in rows.items())])


def taken(source):
    """By id what each transaction did, but those of no captured table."""
    return [(each.id, said(changes)) for each, changes in everything(source) if changes]


def log(connection):
    rows = connection.execute("SELECT change_id, change_txn_id, change_type FROM turso_cdc ORDER BY change_id")
    return [tuple(row) for row in rows.fetchall()]


ONE_ROW = [("1", [("t", "+", [(1, "1")])])]
CASES = {
    "three statements": (
        ["INSERT INTO t VALUES(1, 2), (3, 4)", "UPDATE t SET y = 3 WHERE x = 1", "DELETE FROM t WHERE x = 3"],
        [("1", [("t", "+", [(1, "2"), (3, "4")])]), ("4", [("t", "+", [(1, "3")])]), ("6", [("t", "-", [(3,)])])],
    ),
    "an update of nothing": (["UPDATE t SET y = 1 WHERE x = 1"], []),
    "transactions of nothing": (["BEGIN", "COMMIT", "BEGIN", "UPDATE t SET y = 1", "COMMIT"], []),
    "rolled back": (["BEGIN", "INSERT INTO t VALUES(9, 9)", "ROLLBACK", "INSERT INTO t VALUES(1, 1)"], ONE_ROW),
    "rolled back to a savepoint": (
        [
            "BEGIN",
            "INSERT INTO t VALUES(1, 1)",
            "SAVEPOINT s",
            "INSERT INTO t VALUES(2, 2)",
            "ROLLBACK TO s",
            "INSERT INTO t VALUES(3, 3)",
            "COMMIT",
        ],
        [("1", [("t", "+", [(1, "1"), (3, "3")])])],
    ),
    "a COMMIT alone": (["BEGIN", "SAVEPOINT s", "INSERT INTO t VALUES(1, 1)", "ROLLBACK TO s", "COMMIT"], []),
    "a statement that failed in a transaction": (
        ["BEGIN", "INSERT INTO t VALUES(1, 1), (1, 1) --fails", "COMMIT"],
        [],
    ),
    "a savepoint without BEGIN has no COMMIT": (
        ["SAVEPOINT s", "INSERT INTO t VALUES(1, 1)", "INSERT INTO t VALUES(2, 2)", "RELEASE s", "DELETE FROM t"],
        [("1", [("t", "+", [(1, "1"), (2, "2")])]), ("3", [("t", "-", [(1,), (2,)])])],
    ),
    "recording ends before the COMMIT": (
        ["BEGIN", "INSERT INTO t VALUES(1, 1)", "PRAGMA capture_data_changes_conn('off')", "COMMIT"],
        ONE_ROW,
    ),
    "a statement that failed": (["INSERT INTO t VALUES(1, 1), (1, 1) --fails", "INSERT INTO t VALUES(1, 1)"], ONE_ROW),
    "the update of a key": (
        ["INSERT INTO t VALUES(1, 5)", "UPDATE t SET x = 2"],
        [("1", [("t", "+", [(1, "5")])]), ("3", [("t", "+", [(2, "5")]), ("t", "-", [(1,)])])],
    ),
    "an upsert": (
        ["INSERT INTO t VALUES(1, 5)", "INSERT INTO t VALUES(1, 6) ON CONFLICT(x) DO UPDATE SET y = excluded.y"],
        [("1", [("t", "+", [(1, "5")])]), ("3", [("t", "+", [(1, "6")])])],
    ),
    "a row is replaced by another key's": (
        ["INSERT INTO u VALUES(1, 'a')", "INSERT OR REPLACE INTO u VALUES(2, 'a')"],
        [("1", [("u", "+", [(1, "a")])]), ("3", [("u", "+", [(2, "a")]), ("u", "-", [(1,)])])],
    ),
    "ignored": (["INSERT INTO t VALUES(1, 1)", "INSERT OR IGNORE INTO t VALUES(1, 2)"], ONE_ROW),
    "a new table, and an index": (
        ["CREATE TABLE n(a INTEGER PRIMARY KEY, b TEXT)", "CREATE INDEX i ON n(b)", "INSERT INTO n VALUES(1, 'z')"],
        [("1", [("n", "=", ["a", "b"])]), ("5", [("n", "+", [(1, "z")])])],
    ),
    "a table made of rows that are not recorded": (
        [
            "INSERT INTO t VALUES(1, 5), (2, 6)",
            "CREATE TABLE n AS SELECT x, y FROM t",
            "DELETE FROM n WHERE x = 2",
            "INSERT INTO n VALUES(3, 7)",
        ],
        [
            ("1", [("t", "+", [(1, "5"), (2, "6")])]),
            ("4", [("n", "+", [(1, 1, "5"), (2, 2, "6")]), ("n", "=", ["_rowid", "x", "y"])]),
            ("6", [("n", "-", [(2,)])]),
            ("8", [("n", "+", [(2, 3, "7")])]),
        ],
    ),
    "a table with rows is dropped": (
        ["INSERT INTO t VALUES(1, 1)", "DROP TABLE t"],
        [*ONE_ROW, ("3", [("t", "dropped")])],
    ),
    "names of any case": (
        ["INSERT INTO T VALUES(1, 1)", "UPDATE T SET y = 2"],
        [*ONE_ROW, ("3", [("t", "+", [(1, "2")])])],
    ),
}


@pytest.mark.parametrize("page", [1, 2, 5000])
@pytest.mark.parametrize("case", CASES)
def test_what_turso_records_comes_as_the_transactions_that_there_were(path, case, page):
    """The rows of the table in capture.md section 2."""
    statements, expected = CASES[case]
    connection = application(path)
    source = TursoSource(str(path), page=page)
    captured(source)
    run(connection, *statements)
    assert taken(source) == expected
    assert taken(source) == []


@pytest.mark.parametrize("page", [2, 5000])
def test_rule_1_and_2_rows_belong_together_by_their_transaction_whatever_commits_stand_among_them(path, page):
    """Rules 1 and 2: triggers and a refused COMMIT leave COMMIT rows in mid-transaction."""
    connection = application(path, "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO log(y) VALUES(new.x); END")
    source = TursoSource(str(path), page=page)
    captured(source)
    run(connection, "INSERT INTO t VALUES(1, 1), (2, 2)")
    assert [row[2] for row in log(connection)].count(2) > 1 and log(connection)[1][2] == 2
    assert taken(source) == [("1", [("log", "+", [(1, "1"), (2, "2")]), ("t", "+", [(1, "1"), (2, "2")])])]


def test_rule_2_a_commit_that_was_refused_stands_before_the_rest_of_its_transaction(path):
    """Rule 2: COMMIT refused by a deferred foreign key, then fixed and committed."""
    connection = application(
        path,
        "CREATE TABLE p(x INTEGER PRIMARY KEY)",
        "CREATE TABLE c(x INTEGER PRIMARY KEY, p REFERENCES p(x) DEFERRABLE INITIALLY DEFERRED)",
        "PRAGMA foreign_keys = ON",
    )
    source = TursoSource(str(path))
    captured(source)
    run(connection, "BEGIN", "INSERT INTO c VALUES(1, 7)", "COMMIT --fails", "INSERT INTO p VALUES(7)", "COMMIT")
    assert [row[1:] for row in log(connection)] == [(1, 1), (1, 2), (1, 1), (1, 2)]
    assert taken(source) == [("1", [("c", "+", [(1, "7")]), ("p", "+", [(7,)])])]


def test_rule_2_a_cascade_has_two_commits_and_is_one_transaction(path):
    """Rule 2: FK ON DELETE CASCADE in autocommit."""
    connection = application(
        path,
        "CREATE TABLE p(x INTEGER PRIMARY KEY)",
        "CREATE TABLE c(x INTEGER PRIMARY KEY, p REFERENCES p(x) ON DELETE CASCADE)",
        "PRAGMA foreign_keys = ON",
    )
    run(connection, "INSERT INTO p VALUES(1)", "INSERT INTO c VALUES(1, 1), (2, 1)")
    source = TursoSource(str(path))
    captured(source)
    run(connection, "DELETE FROM p")
    assert [kind for *_, kind in log(connection)][-2:] == [2, 2]
    ((_, changes),) = taken(source)
    assert changes == [("c", "-", [(1,), (2,)]), ("p", "-", [(1,)])]


@pytest.mark.parametrize("page", [1, 2, 3])
def test_rule_3_a_page_is_extended_to_the_end_of_its_last_transaction(path, page):
    """Rule 3: five rows, pages of one to three; and what is being written meanwhile is not seen at all."""
    connection = application(path)
    source = TursoSource(str(path), page=page)
    captured(source)
    run(connection, "BEGIN", *(f"INSERT INTO t VALUES({n}, {n})" for n in range(5)))
    assert taken(source) == []
    run(connection, "COMMIT", "INSERT INTO t VALUES(9, 9)")
    first, second = everything(source)
    assert sorted(row for _, _, rows in said(first[1]) for row in rows) == [(n, str(n)) for n in range(5)]
    assert second[0].id == "7"


def test_rule_4_a_marker_of_nothing_moves_the_position_and_is_no_transaction(path):
    """Rule 4: transaction -1 stands between two rows of others; none of them is cut or joined by it."""
    connection = application(path)
    source = TursoSource(str(path), page=1)
    captured(source)
    nothing = "UPDATE t SET y = 1 WHERE x = 77"
    run(connection, nothing, "INSERT INTO t VALUES(1, 1)", nothing, nothing, "INSERT INTO t VALUES(2, 2)", nothing)
    assert [each for each, _ in taken(source)] == ["2", "6"]
    run(connection, "DELETE FROM turso_cdc WHERE change_id < 8")  # All but the last marker, which was passed.
    run(connection, "INSERT INTO t VALUES(3, 3)")
    assert [each for each, _ in taken(source)] == ["9"]


class Writers:
    """T1 and T2 of capture.md: their rows interleave, and T2 commits first."""

    def __init__(self, path):
        self.first = application(path, journal="mvcc")
        self.second = turso.connect(str(path), isolation_level=None)
        self.second.execute("PRAGMA capture_data_changes_conn('full')")

    def write(self):
        run(self.first, "BEGIN CONCURRENT", "INSERT INTO t VALUES(1, 1)")
        run(self.second, "BEGIN CONCURRENT", "INSERT INTO t VALUES(2, 2)")
        run(self.first, "INSERT INTO t VALUES(3, 3)")


def test_rule_5_concurrent_transactions_are_whole_and_wait_for_the_watermark(path):
    """Rule 5: T2 ends before T1 and is visible, but rows with lower ids may still come: it is not passed by."""
    writers = Writers(path)
    source = TursoSource(str(path), page=1)
    captured(source)
    writers.write()
    run(writers.second, "COMMIT")
    assert len(log(writers.second)) == 2 and taken(source) == []
    run(writers.first, "COMMIT")
    found = taken(source)
    assert [(each, sorted(row for _, _, rows in changes for row in rows)) for each, changes in found] == [
        ("2", [(2, "2")]),
        ("1", [(1, "1"), (3, "3")]),
    ]
    run(writers.second, "INSERT INTO t VALUES(4, 4)")
    assert [each for each, _ in taken(source)] == ["6"]


def test_rule_5_going_on_between_interleaved_transactions_neither_loses_nor_repeats(path):
    """Rule 5: the position behind T2 lies in the midst of T1's rows."""
    writers = Writers(path)
    source = TursoSource(str(path))
    model = captured(source)
    writers.write()
    run(writers.second, "COMMIT")
    run(writers.first, "COMMIT")
    first = next(source.transactions(0))
    again = TursoSource(str(path), page=1)
    again.tables(None)
    again.resume(first.position, list(model.shapes.values()))
    assert [each for each, _ in taken(again)] == ["1"]


def test_rule_5_a_snapshot_beside_open_writers_takes_each_transaction_once(path):
    """Rule 5: T2 is in the snapshot though the watermark is below it, T1 comes behind."""
    writers = Writers(path)
    writers.write()
    run(writers.second, "COMMIT")
    source = TursoSource(str(path))
    model = captured(source)
    assert set(model.rows["t"]) == {(2,)}
    run(writers.first, "COMMIT")
    assert [each for each, _ in taken(source)] == ["1"]
    again = TursoSource(str(path))
    again.tables(None)
    again.resume(model.position, list(model.shapes.values()))
    assert [each for each, _ in taken(again)] == ["1"]


def test_rule_6_two_transactions_that_share_an_id_are_taken_as_one(path):
    """Rule 6: a transaction that empties the log makes the next one use its id again; nothing is cut."""
    connection = application(path)
    run(connection, "INSERT INTO t VALUES(1, 1)")
    run(
        connection,
        "BEGIN",
        "INSERT INTO t VALUES(2, 2)",
        "DELETE FROM turso_cdc",
        "INSERT INTO t VALUES(3, 3)",
        "COMMIT",
    )
    run(connection, "INSERT INTO t VALUES(4, 4)")
    assert [row[1] for row in log(connection)] == [3, 3, 3, 3]
    source = TursoSource(str(path))
    source.tables(None)
    source.resume("0:0:0:0:0:0:0", source.tables(None))
    assert taken(source) == [("3", [("t", "+", [(3, "3"), (4, "4")])])]


@pytest.mark.parametrize("more", [1, 20])
def test_rule_7_a_log_that_was_emptied_and_numbers_anew_is_noticed(path, more):
    """Rule 7: in WAL mode ids begin at 1 again; whether changes were lost cannot be told, and it says what to do."""
    connection = application(path)
    run(connection, *(f"INSERT INTO t VALUES({n}, 1)" for n in range(5)))
    source = TursoSource(str(path))
    captured(source)
    run(connection, "DELETE FROM turso_cdc")
    assert taken(source) == []
    run(connection, *(f"INSERT INTO t VALUES({n}, 0)" for n in range(5, 5 + more)))
    with pytest.raises(SourceGone, match=r"begun anew.*new snapshot.*keep the last one"):
        taken(source)


@pytest.mark.parametrize("more", [1, 9])
def test_rule_7_ids_begin_anew_in_a_new_epoch_where_only_confirmed_changes_are_removed(path, more):
    """Rule 7: with fewer changes than before, and with so many that the position's own id is used again."""
    connection = application(path)
    run(connection, *(f"INSERT INTO t VALUES({n}, 1)" for n in range(5)))
    source = TursoSource(str(path), pruned="confirmed")
    captured(source)
    run(connection, "DELETE FROM turso_cdc", *(f"INSERT INTO t VALUES({n}, 0)" for n in range(5, 5 + more)))
    found = everything(source)
    assert [changes[0].rows for _, changes in found] == [[(n, "0")] for n in range(5, 5 + more)]
    assert [each.position.split(":")[0] for each, _ in found] == ["1"] * more
    assert taken(source) == []


@pytest.mark.parametrize("kept", ["change_id >= 2", "change_id > 2"])
def test_rule_7_what_was_read_may_be_removed(path, kept):
    """Rule 7: with the last row that was read, or without any of them, as long as ids go on."""
    connection = application(path)
    run(connection, "INSERT INTO t VALUES(1, 1)")
    source = TursoSource(str(path))
    captured(source)
    run(connection, "INSERT INTO t VALUES(2, 2)", f"DELETE FROM turso_cdc WHERE NOT ({kept})")
    assert [each for each, _ in taken(source)] == ["3"]


def test_rule_7_changes_that_were_removed_unread_are_missed(path):
    """Rule 7: the first id behind the position is not the next one."""
    connection = application(path)
    source = TursoSource(str(path))
    captured(source)
    run(
        connection,
        "INSERT INTO t VALUES(1, 1)",
        "INSERT INTO t VALUES(2, 2)",
        "DELETE FROM turso_cdc WHERE change_id < 3",
    )
    with pytest.raises(SourceGone, match="changes 1 to 2 were removed"):
        taken(source)


@pytest.mark.parametrize("page", [1, 5000])
def test_rule_7_changes_that_were_removed_out_of_the_midst_are_missed(path, page):
    """Rule 7: between transactions, and within one."""
    connection = application(path)
    run(connection, "INSERT INTO t VALUES(1, 1)")
    source = TursoSource(str(path), page=page)
    captured(source)
    run(connection, "INSERT INTO t VALUES(2, 2)", "INSERT INTO t VALUES(3, 3), (4, 4), (5, 5)")
    run(connection, "DELETE FROM turso_cdc WHERE change_id = 6")
    with pytest.raises(SourceGone, match="changes 6 to 6 were removed"):
        taken(source)


@pytest.mark.parametrize("page", [1, 5000])
@pytest.mark.parametrize("has_version_table", [True, False])
def test_rule_8_a_log_of_version_1_is_one_transaction_as_far_as_it_goes(path, has_version_table, page):
    """Rule 8: eight columns, no transaction, no COMMIT."""
    connection = turso.connect(str(path), isolation_level=None)
    run(
        connection,
        *SCHEMA,
        "CREATE TABLE turso_cdc(change_id INTEGER PRIMARY KEY AUTOINCREMENT, change_time INTEGER, change_type INTEGER,"
        " table_name TEXT, id, before BLOB, after BLOB, updates BLOB)",
    )
    if has_version_table:
        run(connection, "CREATE TABLE turso_cdc_version(table_name TEXT PRIMARY KEY, version TEXT NOT NULL)")
        run(connection, "INSERT INTO turso_cdc_version VALUES('turso_cdc', 'v1')")
    run(connection, "PRAGMA capture_data_changes_conn('full')")
    source = TursoSource(str(path), page=page)
    captured(source)
    run(connection, "INSERT INTO t VALUES(1, 1)", "INSERT INTO t VALUES(2, 2)", "DELETE FROM t WHERE x = 1")
    ((_, changes),) = everything(source)
    rows = {}
    for change in changes:
        rows |= {row[0]: not change.is_delete for row in change.rows}
    assert rows == {1: False, 2: True}
    run(connection, "INSERT INTO t VALUES(4, 4)")
    assert [changes for _, changes in taken(source)] == [[("t", "+", [(4, "4")])]]


def test_rule_9_records_are_read_with_the_schema_of_their_time(path):
    """Rule 9: columns come and go between changes that are read at once."""
    connection = application(path)
    source = TursoSource(str(path))
    captured(source)
    run(
        connection,
        "INSERT INTO t VALUES(1, 1)",
        "ALTER TABLE t ADD COLUMN z TEXT DEFAULT 'd'",
        "INSERT INTO t VALUES(2, 2, 'e')",
        "ALTER TABLE t DROP COLUMN y",
        "INSERT INTO t VALUES(3, 'f')",
    )
    assert [changes for _, changes in taken(source)] == [
        [("t", "+", [(1, "1")])],
        [("t", "=", ["x", "y", "z"])],
        [("t", "+", [(2, "2", "e")])],
        [("t", "=", ["x", "z"])],
        [("t", "+", [(3, "f")])],
    ]


def test_rule_9_rows_that_were_there_have_the_default_of_a_new_column(path):
    connection = application(path)
    source = TursoSource(str(path))
    captured(source)
    run(connection, "ALTER TABLE t ADD COLUMN z TEXT DEFAULT 'd'")
    ((_, (change,)),) = everything(source)
    assert change.filled == {"z": "d"}


def test_rule_10_the_row_of_an_insert_may_stand_in_before(path):
    """Rule 10: Turso's update of a key."""
    connection = application(path)
    run(connection, "INSERT INTO t VALUES(1, 5)")
    source = TursoSource(str(path))
    captured(source)
    run(connection, "UPDATE t SET x = 2")
    rows = connection.execute('SELECT change_type, "after" IS NULL, "before" IS NULL FROM turso_cdc').fetchall()
    assert (1, 1, 0) in [tuple(row) for row in rows]
    assert taken(source)[0][1] == [("t", "+", [(2, "5")]), ("t", "-", [(1,)])]


def test_rule_10_the_before_of_an_upsert_is_not_asked(path):
    """Rule 10: it has the new row in `before`; an update of a rowid's row needs none."""
    connection = application(path)
    run(connection, "INSERT INTO u VALUES(1, 'a')")
    source = TursoSource(str(path))
    captured(source)
    run(connection, "INSERT INTO u VALUES(2, 'a') ON CONFLICT(y) DO UPDATE SET y = 'b'")
    assert taken(source)[0][1] == [("u", "+", [(1, "b")])]


def test_a_column_that_was_renamed_is_seen_once_everything_recorded_was_given(path):
    """RENAME COLUMN is not recorded; values keep their place."""
    connection = application(path)
    source = TursoSource(str(path))
    captured(source)
    run(connection, "INSERT INTO t VALUES(1, 1)", "ALTER TABLE t RENAME COLUMN y TO why", "INSERT INTO t VALUES(2, 2)")
    found = everything(source)
    (change,) = found[-1][1]
    assert change.renamed == {"y": "why"} and [each.name for each in change.table.columns] == ["x", "why"]
    assert taken(source) == []


def test_a_table_that_was_renamed_is_gone(path):
    """RENAME TO is not recorded: where its rows went cannot be told."""
    connection = application(path)
    source = TursoSource(str(path))
    captured(source)
    run(connection, "ALTER TABLE t RENAME TO tt")
    with pytest.raises(SourceGone, match=r"'t' is not there any more.*new snapshot"):
        taken(source)


@pytest.mark.parametrize("mode", ["id", "before"])
def test_a_mode_without_rows_is_refused_and_says_which_is_needed(path, mode):
    """capture.md 1.4: insert and update need `after`."""
    connection = application(path, mode=mode)
    source = TursoSource(str(path))
    captured(source)
    run(connection, "INSERT INTO t VALUES(1, 1)")
    with pytest.raises(SourceUnreadable, match=r"change 1, INSERT of table 't'.*mode='full'"):
        taken(source)


def test_a_rowid_is_enough_to_delete_by(path):
    """Mode after: deletes have no image."""
    connection = application(path, mode="after")
    source = TursoSource(str(path))
    captured(source)
    run(connection, "INSERT INTO t VALUES(1, 1)", "DELETE FROM t")
    assert [changes for _, changes in taken(source)] == [[("t", "+", [(1, "1")])], [("t", "-", [(1,)])]]


def test_what_is_not_committed_is_not_seen_and_leaves_nothing(path):
    connection = application(path)
    source = TursoSource(str(path))
    captured(source)
    run(connection, "BEGIN", "INSERT INTO t VALUES(1, 1)")
    connection.close()
    assert taken(source) == []


def test_a_database_that_records_nothing_says_how_to_record(path):
    turso.connect(str(path), isolation_level=None).execute("CREATE TABLE t(x)")
    with pytest.raises(InvalidArgument, match="capture_data_changes_conn"):
        TursoSource(str(path))
    with pytest.raises(NotFound, match="no Turso database"):
        TursoSource(str(path) + "x")
