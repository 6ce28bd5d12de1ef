"""A table follows what happens to its shape at the source (reference/capture.md, schema changes)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from capture_rig import captured, rows
from fake_source import ITEMS, ORDERS

from helpers import eventually
from tidegate.capture import capturing
from tidegate.capture.source import Column, Dropped, Reshaped, Rows, SourceTable, Truncated
from tidegate.errors import (
    SourceUnreadable,
    Unavailable,
)


def test_a_new_column_follows_and_old_rows_have_what_the_source_gave_them(db, history):
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        wider = SourceTable("orders", (*ORDERS.columns, Column("note", "STRING"), Column("vip", "BOOLEAN")), ("id",))
        history.commit(Reshaped(wider, filled={"note": "old"}), Rows("orders", [(2, "b", 0.0, "new", True)]))
        history.commit(Rows("orders", [(3, "c", 0.0, None, None)]))
        capture.catch_up()
    assert rows(db) == [(1, "a", 0.0, "old", None), (2, "b", 0.0, "new", True), (3, "c", 0.0, None, None)]
    with captured(db) as capture:
        history.commit(Rows("orders", [(4, "d", 0.0, "x", False)]))
        capture.catch_up()
    assert rows(db)[-1] == (4, "d", 0.0, "x", False)


def shape(*names, table="orders"):
    return SourceTable(table, (ORDERS.columns[0], *(Column(each, "STRING") for each in names)), ("id",))


@pytest.mark.parametrize("many", [0, 200])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            [Reshaped(shape("b", "a"), {"a": "b", "b": "a"}), Rows("orders", [(2, "B", "A")])],
            [{"id": 1, "a": "was b", "b": "was a"}, {"id": 2, "a": "A", "b": "B"}],
            id="exchanged",
        ),
        pytest.param(
            [Reshaped(shape("a", "b", "c")), Rows("orders", [(2, "A", "B", "C")]), Reshaped(shape("a", "b"))],
            [{"id": 1, "a": "was a", "b": "was b"}, {"id": 2, "a": "A", "b": "B"}],
            id="added-and-dropped",
        ),
        pytest.param(
            [
                Reshaped(shape("a")),
                Rows("orders", [(2, "A")]),
                Reshaped(shape("a", "b")),
                Rows("orders", [(3, "A", "new")]),
            ],
            [{"id": 1, "a": "was a", "b": None}, {"id": 2, "a": "A", "b": None}, {"id": 3, "a": "A", "b": "new"}],
            id="dropped-and-added",
        ),
        pytest.param(
            [
                Reshaped(shape("x", "b"), {"a": "x"}),
                Rows("orders", [(2, "X", "B")]),
                Reshaped(shape("y", "b"), {"x": "y"}),
                Rows("orders", pa.table({"id": [3], "y": ["Y"], "b": ["B"]})),
            ],
            [{"id": 1, "y": "was a", "b": "was b"}, {"id": 2, "y": "X", "b": "B"}, {"id": 3, "y": "Y", "b": "B"}],
            id="renamed-twice",
        ),
        pytest.param(
            [Reshaped(shape("b"), {"a": "b"}), Rows("orders", [(2, "B")])],
            [{"id": 1, "b": "was a"}, {"id": 2, "b": "B"}],
            id="renamed-to-one-that-is-dropped",
        ),
    ],
)
def test_whatever_happens_to_columns_in_one_transaction_is_followed_to_its_end(db, history, changes, expected, many):
    """Also when rows of another table come first, so many that the shape is met when they have been written."""
    history.tables = [shape("a", "b"), ITEMS]
    history.rows = [Rows("orders", [(1, "was a", "was b")])]
    with captured(db) as capture:
        versions = len(db.table("orders", fresh=True).table.versions)
        history.commit(*(Rows("items", [(0, n)]) for n in range(many)), *changes)
        capture.catch_up()
        assert db.query("SELECT * FROM orders ORDER BY id", "strong").rows() == expected
        assert len(db.table("orders", fresh=True).table.versions) <= versions + 6
        history.opened = 0
        history.commit(Rows("items", [(1, 1)]))
        capture.catch_up()
        assert history.opened == 0


def test_a_change_of_shape_that_was_interrupted_anywhere_comes_to_the_same(db, history, monkeypatch):
    """Statements about a table belong to no transaction: they may be carried out, and the rows not."""
    history.tables = [shape("a", "b")]
    history.rows = [Rows("orders", [(1, "was a", "was b")])]
    with captured(db):
        pass
    history.commit(Reshaped(shape("b", "a", "c"), {"a": "b", "b": "a"}), Rows("orders", [(2, "B", "A", "C")]))
    for number in range(6):
        left = iter(range(number))

        def failing(sql, run=db.sql, left=left):
            if sql.startswith("ALTER") and next(left, None) is None:
                raise Unavailable("interrupted")
            return run(sql)

        with monkeypatch.context() as patched:
            patched.setattr(db, "sql", failing)
            patched.setattr(capturing, "PAUSE_MIN_S", 30.0)
            capture = captured(db)
            eventually(lambda capture=capture: capture.state == "waiting" or capture.position == "1", 30)
            capture.stop()
    with captured(db) as capture:
        capture.catch_up()
    assert db.query("SELECT * FROM orders ORDER BY id", "strong").rows() == [
        {"id": 1, "b": "was a", "a": "was b", "c": None},
        {"id": 2, "b": "B", "a": "A", "c": "C"},
    ]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("after_rows", [True, False])
def test_a_table_that_is_dropped_and_made_again_begins_without_rows(db, history, at_once, after_rows):
    history.rows = [Rows("orders", [(1, "a", 0.0), (2, "b", 0.0)])]
    wider = SourceTable("orders", (*ORDERS.columns, Column("note", "STRING")), ("id",))
    drop = [*([Rows("orders", [(3, "c", 0.0)])] if after_rows else []), Dropped("orders")]
    make = [Reshaped(wider), Rows("orders", [(7, "new", 0.0, "x")])]
    with captured(db) as capture:
        if at_once:
            history.commit(*drop, *make)
        else:
            history.commit(*drop)
            capture.catch_up()
            assert len(rows(db)) == 2 + after_rows  # As it was in the end.
            capture.stop()
            capture = captured(db)  # Resumed without it.
            history.commit(*make)
        capture.catch_up()
        assert rows(db) == [(7, "new", 0.0, "x")]
        capture.stop()


@pytest.mark.parametrize("ahead", [0, 200])
def test_a_shape_that_changes_in_the_midst_of_a_transaction(db, history, ahead):
    """With few changes before it, and with so many that rows have been written when it comes."""
    with captured(db) as capture:
        narrower = SourceTable("orders", ORDERS.columns[:2], ("id",))
        before = [Rows("orders", [(n, "a", float(n))]) for n in range(ahead)]
        history.commit(*before, Reshaped(narrower), Rows("orders", [(1_000, "b")]))
        capture.catch_up()
    assert rows(db) == [*((n, "a") for n in range(ahead)), (1_000, "b")]


def test_a_renamed_column_keeps_its_values(db, history):
    with captured(db) as capture:
        history.insert((1, "a", 0.5))
        columns = (ORDERS.columns[0], Column("customer", "STRING"), ORDERS.columns[2])
        history.commit(Reshaped(SourceTable("orders", columns, ("id",)), renamed={"who": "customer"}))
        history.insert((2, "b", 1.5))
        capture.catch_up()
    assert db.query("SELECT id, customer FROM orders ORDER BY id", "strong").rows() == [
        {"id": 1, "customer": "a"},
        {"id": 2, "customer": "b"},
    ]


def test_a_type_that_changed_ends_it_and_says_what_to_do(db, history):
    with captured(db) as capture:
        columns = (*ORDERS.columns[:2], Column("total", "DECIMAL(10,2)"))
        history.commit(Reshaped(SourceTable("orders", columns, ("id",))))
        with pytest.raises(SourceUnreadable, match=r"'total' from DOUBLE to DECIMAL\(10,2\).*--restart"):
            capture.catch_up()


def test_a_new_table_comes_with_its_first_rows_and_a_dropped_one_stays(db, history):
    with captured(db) as capture:
        new = SourceTable("notes", (Column("id", "BIGINT"), Column("text", "STRING")), ("id",))
        history.commit(Reshaped(new), Rows("notes", [(1, "x")]))
        history.commit(Rows("notes", [(2, "y")]))
        history.commit(Dropped("notes"))
        capture.catch_up()
        assert rows(db, "notes") == [(1, "x"), (2, "y")]
        assert capture.tables["notes"] == "notes"
    with captured(db) as capture:  # It knows the table again.
        history.insert((1, "a", 0.0))
        capture.catch_up()


def test_an_emptied_table_is_empty_and_then_has_what_came_after(db, history):
    with captured(db) as capture:
        history.insert((1, "a", 0.0), (2, "b", 0.0))
        history.commit(Truncated("orders"), Rows("orders", [(2, "again", 1.0)]))
        capture.catch_up()
        assert rows(db) == [(2, "again", 1.0)]


@pytest.mark.parametrize("many", [1, 30_000])
def test_rows_that_a_transaction_wrote_before_it_emptied_the_table_never_come(db, history, many):
    """Also when it is too large to be kept in memory, and emptied twice."""
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        batch = pa.table({"id": range(many), "who": ["x" * 40] * many, "total": [1.0] * many})
        history.commit(
            Rows("orders", batch),
            Truncated("orders"),
            Rows("orders", batch),
            Rows("items", [(1, 1)]),
            Truncated("orders"),
            Rows("orders", [(5, "last", 2.0)]),
        )
        capture.catch_up()
        assert rows(db) == [(5, "last", 2.0)] and rows(db, "items", "n") == [(1, 1)]


def test_a_table_without_a_key_cannot_be_emptied_and_says_so(db, history):
    history.tables = [SourceTable("log", (Column("text", "STRING"),), ())]
    with captured(db) as capture:
        history.commit(Rows("log", [("a",), ("a",)]))
        capture.catch_up()
        assert rows(db, "log", "text") == [("a",), ("a",)]
        history.commit(Truncated("log"))
        with pytest.raises(SourceUnreadable, match="'log' of the source has no key"):
            capture.catch_up()


def test_rows_without_a_key_get_no_column_with_a_value_and_are_read_anew(db, history):
    """They could only be added once more. The table is dropped here, and a new snapshot has the column."""
    log = SourceTable("log", (Column("text", "STRING"),), ())
    wider = SourceTable("log", (*log.columns, Column("n", "BIGINT")), ())
    history.tables = [log]
    with captured(db) as capture:
        history.commit(Rows("log", [("a",), ("a",)]))
        history.commit(Reshaped(wider, filled={"n": 4}), Rows("log", [("b", 5)]))
        with pytest.raises(SourceUnreadable, match=r"'log' .* has got column 'n' .*drop table 'log' .*restart=True"):
            capture.catch_up()
    assert rows(db, "log", "text") == [("a", None), ("a", None)]
    history.tables, history.rows = [wider], [Rows("log", [("a", 4), ("a", 4), ("b", 5)])]
    db.sql("DROP TABLE log")
    with captured(db, restart=True) as capture:
        history.commit(Rows("log", [("c", 6)]))
        capture.catch_up()
    assert rows(db, "log", "text") == [("a", 4), ("a", 4), ("b", 5), ("c", 6)]


def test_a_table_without_rows_and_key_gets_a_column_with_a_value(db, history):
    history.tables = [log] = [SourceTable("log", (Column("text", "STRING"),), ())]
    with captured(db) as capture:
        wider = SourceTable("log", (*log.columns, Column("n", "BIGINT")), ())
        history.commit(Reshaped(wider, filled={"n": 4}), Rows("log", [("b", 5)]))
        capture.catch_up()
    assert rows(db, "log", "text") == [("b", 5)]
