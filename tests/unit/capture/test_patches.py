"""Values that a source has left out because they did not change are those that are there (`Patch`)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from capture_rig import captured, rows

from tidegate.capture.source import Column, Patch, Reshaped, Rows, SourceTable

MANY = 30_000
"""Rows of a transaction that is written ahead of its commit."""


def shape(*names):
    return SourceTable("orders", (Column("id", "BIGINT"), *(Column(each, "STRING") for each in names)), ("id",))


@pytest.fixture
def history(history):
    history.tables = [shape("a", "big")]
    history.rows = [Rows("orders", [(1, "x", "large"), (2, "y", "huge")])]
    return history


PATCH = Patch("orders", [(1,)], [(1, "z", None)], [("big",)])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([PATCH], [(1, "z", "large"), (2, "y", "huge")], id="alone"),
        pytest.param(
            [PATCH, Reshaped(shape("a", "b"), {"big": "b"})], [(1, "z", "large"), (2, "y", "huge")], id="renamed"
        ),
        pytest.param([PATCH, Reshaped(shape("a"))], [(1, "z"), (2, "y")], id="dropped"),
        pytest.param(
            [PATCH, Reshaped(shape("a")), Reshaped(shape("a", "big"))],
            [(1, "z", None), (2, "y", None)],
            id="dropped-and-added",
        ),
        pytest.param(
            [Patch("orders", [(1,)], [(1, None, None)], [("a", "big")]), Reshaped(shape("a"))],
            [(1, "x"), (2, "y")],
            id="one-of-two-dropped",
        ),
    ],
)
def test_a_column_that_is_gone_by_the_end_of_the_transaction_is_not_asked_for(db, history, changes, expected):
    with captured(db) as capture:
        history.commit(*changes)
        capture.catch_up()
        assert rows(db) == expected


def large():
    """Rows of their own that a transaction does not hold in memory."""
    return pa.table({"id": range(10, 10 + MANY), "a": ["x" * 40] * MANY, "big": ["y"] * MANY})


def test_a_transaction_larger_than_memory_finds_what_it_left_out(db, history):
    """In the table as it was, and among what it has written itself."""
    own = Patch("orders", [(11,), (12,)], [(11, "new", None), (-12, "moved", None)], [("big",), ("big",)])
    with captured(db) as capture:
        history.commit(Rows("orders", large()), PATCH, own, Rows("orders", [(12,)], is_delete=True))
        capture.catch_up()
        found = {row[0]: row for row in rows(db)}
    assert len(found) == MANY + 2
    assert found[1] == (1, "z", "large") and found[2] == (2, "y", "huge")
    assert found[11] == (11, "new", "y") and found[-12] == (-12, "moved", "y") and 12 not in found


def test_a_new_column_of_a_transaction_larger_than_memory_has_its_value_in_the_rows_that_are_there_then(db, history):
    """In those of before, and in its own; not in those that come later, or have gone."""
    change = Reshaped(shape("a", "big", "c"), filled={"c": "d"})
    gone = Rows("orders", [(2,), (12,)], is_delete=True)
    with captured(db) as capture:
        history.commit(Rows("orders", large()), gone, change, Rows("orders", [(-1, "x", "later", None)]))
        capture.catch_up()
        found = {row[0]: row for row in rows(db)}
    assert len(found) == MANY + 1
    assert found[1] == (1, "x", "large", "d") and found[-1] == (-1, "x", "later", None)
    assert {found[each][3] for each in range(10, 10 + MANY) if each != 12} == {"d"} and not {2, 12} & found.keys()
