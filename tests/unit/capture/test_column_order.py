"""A table here whose columns are in another order than at the source follows it all the same, each column by itself."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from capture_rig import captured
from fake_source import ORDERS

from helpers import eventually
from tidegate.capture import capturing
from tidegate.capture.following import follow
from tidegate.capture.source import Column, Reshaped, Rows, SourceTable
from tidegate.errors import SourceUnreadable, Unavailable


def shape(*names):
    return SourceTable("orders", (ORDERS.columns[0], *(Column(each, "STRING") for each in names)), ("id",))


def found(db):
    return db.query("SELECT * FROM orders ORDER BY id", "strong").rows()


RENAMED = Reshaped(shape("x", "b"), {"a": "x"})
EXCHANGED = Reshaped(shape("b", "a"), {"a": "b", "b": "a"})
ROUND = Reshaped(shape("b", "id_", "c"), {"a": "b", "b": "id_"})
MADE = "CREATE TABLE orders (b STRING, a STRING, id BIGINT, PRIMARY KEY (id))"


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(RENAMED, {"id": 1, "x": "was a", "b": "was b"}, id="renamed"),
        pytest.param(EXCHANGED, {"id": 1, "a": "was b", "b": "was a"}, id="exchanged"),
        pytest.param(ROUND, {"id": 1, "b": "was a", "id_": "was b", "c": None}, id="renamed-in-a-row"),
        pytest.param(Reshaped(shape("b"), {"a": "b"}), {"id": 1, "b": "was a"}, id="renamed-to-one-that-is-dropped"),
        pytest.param(Reshaped(shape("b")), {"id": 1, "b": "was b"}, id="dropped"),
    ],
)
def test_a_table_that_the_user_has_made_in_another_order_follows(db, history, step, expected, is_resumed):
    history.tables = [shape("a", "b")]
    history.rows = [Rows("orders", [(1, "was a", "was b")])]
    db.sql(MADE)
    capture = captured(db)
    if is_resumed:
        capture.stop()
        capture = captured(db)
    names = [each.name for each in step.table.columns]
    history.commit(step, Rows("orders", [(2, *names[1:])]))
    capture.catch_up()
    assert found(db) == [expected, {"id": 2, **{each: each for each in names[1:]}}]
    capture.stop()


def test_a_table_that_was_made_anew_at_the_source_in_another_order_follows_behind_a_new_snapshot(db, history):
    history.tables = [shape("a", "b")]
    with captured(db):
        pass
    history.tables = [shape("b", "a")]
    history.rows = [Rows("orders", pa.table({"id": [1], "b": ["was b"], "a": ["was a"]}))]
    with captured(db, restart=True) as capture:
        history.commit(Reshaped(shape("b", "x"), {"a": "x"}), Rows("orders", [(2, "B", "X")]))
        capture.catch_up()
    assert found(db) == [{"id": 1, "x": "was a", "b": "was b"}, {"id": 2, "x": "X", "b": "B"}]


@pytest.mark.parametrize("step", [RENAMED, EXCHANGED, ROUND])
def test_it_may_be_interrupted_anywhere(db, history, monkeypatch, step):
    history.tables = [shape("a", "b")]
    history.rows = [Rows("orders", [(1, "was a", "was b")])]
    db.sql(MADE)
    with captured(db):
        pass
    names = [each.name for each in step.table.columns]
    history.commit(step, Rows("orders", [(2, *names[1:])]))

    def failing(*_, **__):
        raise Unavailable("interrupted")

    for number in range(6):
        left = iter(range(number))

        def altering(sql, run=db.sql, left=left):
            return failing() if sql.startswith("ALTER") and next(left, None) is None else run(sql)

        with monkeypatch.context() as patched:
            patched.setattr(db, "sql", altering)
            patched.setattr(capturing.Taker, "_reshape", failing)
            patched.setattr(capturing, "PAUSE_MIN_S", 30.0)
            capture = captured(db)
            eventually(lambda capture=capture: capture.state == "waiting", 30)
            capture.stop()
    with captured(db) as capture:
        capture.catch_up()
    was = {new: f"was {old}" for old, new in step.renamed.items()}
    assert found(db) == [
        {"id": 1, **{each: was.get(each, None if each == "c" else f"was {each}") for each in names[1:]}},
        {"id": 2, **{each: each for each in names[1:]}},
    ]


def test_captures_that_have_not_noted_the_order_go_by_the_names(db, history):
    """They began before it was noted down."""
    history.tables = [shape("a", "b")]
    history.rows = [Rows("orders", pa.table({"id": [1], "a": ["was a"], "b": ["was b"]}))]
    db.sql(MADE)
    with captured(db):
        pass
    (row,) = db.query("SELECT * FROM capture_tables", "strong").rows()
    facts = json.loads(row["shape"])
    assert facts.pop("order") == ["b", "a", "id"]
    with db.transaction() as txn:
        txn.upsert("capture_tables", [{**row, "shape": json.dumps(facts)}])
    with captured(db) as capture:
        history.commit(RENAMED)
        capture.catch_up()
    assert found(db) == [{"id": 1, "x": "was a", "b": "was b"}]


def test_columns_that_are_neither_those_it_had_nor_on_the_way_to_the_new_ones_are_not_guessed_at():
    with pytest.raises(SourceUnreadable, match=r"'orders' here are b, x, id: .*drop table 'orders' here.*restart=True"):
        follow("orders", shape("a", "b"), [RENAMED], ["b", "x", "id"])
