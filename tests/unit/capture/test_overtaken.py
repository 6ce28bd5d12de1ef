"""A capture that stood still while another one of its name went on changes no table and blames nobody. Promise 7.

Found by the simulator: statements about tables belong to no transaction, so no claim of one kept them back.
"""

from __future__ import annotations

import threading

import pytest
from capture_rig import captured, rows

from tidegate.capture.places import Places
from tidegate.capture.source import Column, Patch, Reshaped, Rows, SourceTable
from tidegate.capture.taking import Taker
from tidegate.database.database import Database
from tidegate.errors import InUse, Unavailable

WIDER = SourceTable(
    "orders",
    (Column("id", "BIGINT"), Column("who", "STRING"), Column("total", "DOUBLE"), Column("note", "STRING")),
    ("id",),
)
RENAMED = SourceTable("orders", (Column("id", "BIGINT"), Column("name", "STRING"), Column("total", "DOUBLE")), ("id",))


class Standing:
    """Whoever comes to a place first, once `is_set`, stands still there."""

    def __init__(self, monkeypatch, owner, method):
        self.there, self.goes_on = threading.Event(), threading.Event()
        self.is_set = False
        original = getattr(owner, method)

        def stand(this, *arguments, **how):
            if self.is_set and not self.there.is_set():
                self.there.set()
                assert self.goes_on.wait(60)
            return original(this, *arguments, **how)

        monkeypatch.setattr(owner, method, stand)


def test_one_that_was_overtaken_drops_no_column(db, history, monkeypatch):
    """It was about to drop a column and add it, as an interrupted one must: the other one has filled it by then."""
    standing = Standing(monkeypatch, Database, "change_behind")
    with captured(db) as first:
        history.insert((1, "a", 0.0))
        first.catch_up()
        db.sql("ALTER TABLE orders ADD COLUMN note STRING")  # As an interrupted one leaves it.
        standing.is_set = True
        history.commit(Reshaped(WIDER, {}, {"note": "filled"}), Rows("orders", [(2, "b", 0.0, "new")]))
        assert standing.there.wait(60)
        with captured(db) as second:
            second.catch_up()
            standing.goes_on.set()
            with pytest.raises(InUse, match="another capture named 'shop' has begun"):
                first.catch_up()
            history.commit(Rows("orders", [(3, "c", 0.0, "later")]))
            second.catch_up()
    assert rows(db) == [(1, "a", 0.0, "filled"), (2, "b", 0.0, "new"), (3, "c", 0.0, "later")]


def test_one_that_was_overtaken_in_its_first_snapshot_says_so(db, history, monkeypatch):
    """The rows that it finds are those of the other one: nobody should be told to drop them."""
    standing = Standing(monkeypatch, Taker, "make_targets")
    standing.is_set = True
    history.rows = [Rows("orders", [(1, "a", 0.0)])]
    first = captured(db, wait=False)
    assert standing.there.wait(60)
    with captured(db) as second:
        standing.goes_on.set()
        with pytest.raises(InUse, match="another capture named 'shop' has begun"):
            first.wait_ready(60)
        assert second.is_running
    assert rows(db) == [(1, "a", 0.0)]


def test_who_comes_behind_an_interrupted_restart_reads_everything_anew(db, history, monkeypatch):
    """Tables are as the source has them by now, and what follows the old position would need them as they were: a
    column that was renamed there begins without its values here."""
    with captured(db) as capture:
        history.insert((1, "ann", 0.0))
        capture.catch_up()
    history.commit(Reshaped(RENAMED, {"who": "name"}))
    history.tables = [RENAMED if each.name == "orders" else each for each in history.tables]
    history.rows = [Rows("orders", [(1, "ann", 0.0)])]

    def fails(self, *arguments, **how):
        raise Unavailable("the source went away")

    with monkeypatch.context() as patched:
        patched.setattr(Taker, "take_snapshot", fails)
        with pytest.raises(Unavailable):
            captured(db, restart=True)
    with captured(db) as capture:  # Nobody says that it is to read anew.
        history.commit(Patch("orders", [(1,)], [(1, None, 5.0)], [("name",)]))
        capture.catch_up()
        assert db.query("SELECT id, name, total FROM orders", "strong").rows() == [
            {"id": 1, "name": "ann", "total": 5.0}
        ]
    assert not Places(db, "shop", "fake:1").load().is_anew
    with captured(db):
        assert history.snapshots == 3  # The first one, the one that was interrupted, and the one behind it.
