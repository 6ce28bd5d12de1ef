"""A table belongs to one capture: rows of two sources are never mixed in it."""

from __future__ import annotations

import pytest
from capture_rig import captured, rows
from fake_source import ITEMS, ORDERS

from tidegate.capture.source import Reshaped, Rows
from tidegate.errors import InvalidArgument

REFUSED = r"table 'orders' belongs to capture 'shop' of this database; .* into=\{'orders': \.\.\.\}"


def other(db, **how):
    return db.capture("fake://", name="other", **how)


def test_a_table_that_another_capture_has_is_refused_though_it_has_no_rows_yet(db, history):
    with captured(db) as capture:
        with pytest.raises(InvalidArgument, match=REFUSED):
            other(db)
        with other(db, into="other_") as second:
            history.insert((1, "a", 0.0))
            capture.catch_up()
            second.catch_up()
    assert rows(db) == rows(db, "other_orders") == [(1, "a", 0.0)]
    with captured(db), other(db):  # Both go on with their own.
        pass


def test_it_is_refused_in_a_new_snapshot_and_its_rows_stay(db, history):
    history.rows = [Rows("orders", [(1, "a", 0.0)])]
    with captured(db, tables=["orders"]):
        pass
    history.rows = []
    with other(db, tables=["items"]):
        pass
    with pytest.raises(InvalidArgument, match=REFUSED):
        other(db, restart=True)
    assert rows(db) == [(1, "a", 0.0)]


def test_it_is_refused_when_it_comes_to_the_source_later(db, history):
    with captured(db, tables=["orders"]):
        pass
    history.tables = [ITEMS]
    with other(db) as capture:
        history.commit(Reshaped(ORDERS), Rows("orders", [(1, "a", 0.0)]))
        with pytest.raises(InvalidArgument, match=REFUSED):
            capture.catch_up()
    assert rows(db) == []


def test_it_is_refused_when_the_other_capture_begins_while_this_one_reads_its_snapshot(db, history):
    def begin(*_):
        if not begun:
            begun.append(captured(db))

    begun = []
    history.rows = [Rows("items", [(1, 1)])]
    with pytest.raises(InvalidArgument, match="belongs to capture 'shop'"):
        other(db, progress=begin)
    begun[0].stop()
    assert rows(db, "items", "n") == [(1, 1)]
