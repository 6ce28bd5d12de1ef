"""A capture: each transaction of a source is one of ours, its position in it (promise 7; seed 003)."""

from __future__ import annotations

import io
import threading

import pyarrow as pa
import pytest
from capture_rig import captured, rows
from fake_source import ITEMS, ORDERS
from rich.console import Console

import tidegate
from helpers import eventually
from tidegate.capture.places import list_captures
from tidegate.capture.source import Column, Patch, Reshaped, Rows, SourceTable
from tidegate.cli.status import draw
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import (
    Closed,
    InvalidArgument,
    InvariantBroken,
    SourceGone,
    SourceUnreadable,
    Unavailable,
    WaitTimeout,
)


def test_what_is_there_comes_first_and_what_happens_after_it_follows(db, history):
    history.rows = [
        Rows("orders", [(1, "ann", 5.0)]),
        Rows("items", pa.table({"order": [1], "n": [1]}).to_batches()[0]),
    ]
    with captured(db) as capture:
        assert rows(db) == [(1, "ann", 5.0)]
        assert rows(db, "items", "n") == [(1, 1)]
        history.commit(Rows("orders", [(2, "bo", 1.0)]), Rows("items", [(2, 1), (2, 2)]))
        history.commit(Rows("orders", [(1,)], is_delete=True))
        capture.catch_up()
        assert rows(db) == [(2, "bo", 1.0)]
        assert sorted(rows(db, "items", "n")) == [(1, 1), (2, 1), (2, 2)]
    assert capture.state == "stopped"


def test_a_transaction_of_the_source_is_one_of_ours(db, history):
    """Promise 2: whoever reads sees all of it or nothing, at every moment."""
    with captured(db) as capture:
        for number in range(60):
            lines = [(number, n) for n in range(20)]
            history.commit(
                Rows("orders", [(number, "a", 0.0)]), Rows("items", lines), Rows("orders", [(number, "b", 1.0)])
            )
        seen = set()
        while not seen or max(seen) < 60:
            found = db.query(
                "SELECT (SELECT count(*) FROM orders) AS o, (SELECT count(*) FROM items) AS i,"
                " (SELECT count(*) FROM orders WHERE who = 'a') AS half,"
                " (SELECT count(*) FROM capture_transactions) AS t,"
                " (SELECT max(transactions) FROM capture_positions) AS p",
                "strong",
            ).rows()[0]
            assert found["i"] == 20 * found["o"] and not found["half"]
            assert found["t"] == found["o"] == found["p"]
            seen.add(found["o"])
        capture.catch_up()


def test_id_position_time_and_origin_of_every_transaction_can_be_asked_for(db, history):
    with captured(db) as capture:
        history.commit(Rows("orders", [(1, "a", 0.0)]), committed_at_us=1_700_000_000_123_456)
        history.commit(Rows("orders", [(2, "b", 0.0)]), origin="elsewhere")
        capture.catch_up()
        found = db.query("SELECT * FROM capture_transactions ORDER BY position", "strong").rows()
        where = db.query("SELECT * FROM capture_positions", "strong").rows()
    assert [(each["source_txn"], each["position"], each["origin"], each["rows"]) for each in found] == [
        ("1", "1", "fake:shop", 1),
        ("2", "2", "elsewhere", 1),
    ]
    assert found[0]["committed_at"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert [(each["capture"], each["position"], each["transactions"]) for each in where] == [("shop", "2", 2)]
    assert list_captures(db)[0]["tables"] == {"orders": "orders", "items": "items"}


def test_it_goes_on_where_it_was_and_repeats_nothing(db, history):
    """Promise 7."""
    for turn in range(3):
        with captured(db) as capture:
            history.insert((turn * 2 + 1, "a", 0.0))
            capture.catch_up()
        history.insert((turn * 2 + 2, "b", 0.0))
    with captured(db) as capture:
        capture.catch_up()
    assert [each[0] for each in rows(db)] == [1, 2, 3, 4, 5, 6]
    taken = db.query("SELECT count(*) AS n, count(DISTINCT position) AS p FROM capture_transactions", "strong").rows()
    assert taken == [{"n": 6, "p": 6}]


def test_a_source_that_cannot_be_reached_is_tried_again(db, history):
    failures = []

    def fail():
        if len(failures) < 4:
            failures.append(1)
            raise Unavailable("no route to the source")

    with captured(db) as capture:
        history.before[1] = fail
        history.insert((1, "a", 0.0))
        capture.catch_up()
        assert len(failures) == 4 and rows(db) == [(1, "a", 0.0)]


def test_while_it_cannot_be_reached_the_status_says_why(db, history):
    with captured(db) as capture:
        down = threading.Event()

        def fail():
            down.set()
            raise Unavailable("no route to the source")

        history.before[1] = fail
        history.insert((1, "a", 0.0))
        assert down.wait(30)
        with pytest.raises(WaitTimeout, match="no route to the source"):
            capture.catch_up(0.5)
        assert capture.status()["state"] == "waiting"


def test_it_does_not_wait_any_more_once_it_takes_transactions_again(db, history):
    """It said so, and why, until it had come to the end of everything."""
    held = threading.Event()

    def fail_once():
        del history.before[1]
        raise Unavailable("no route to the source")

    with captured(db) as capture:
        history.before = {1: fail_once, 2: lambda: eventually(lambda: rows(db)), 3: lambda: held.wait(30)}
        for number in (1, 2, 3):
            history.insert((number, "a", 0.0))
        try:
            eventually(lambda: rows(db) and capture.status()["state"] == "following", what="the end of its waiting")
            assert capture.error is None and len(rows(db)) < 3
        finally:
            held.set()
        capture.catch_up()


def test_what_is_gone_from_the_source_ends_it_and_says_what_to_do(db, history):
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        capture.catch_up()
    history.insert((2, "b", 0.0))
    history.insert((3, "c", 0.0))
    history.forgotten = 2
    with pytest.raises(SourceGone, match="restart=True"):
        captured(db)
    # Reading anew puts things right, in one step.
    history.rows = [Rows("orders", [(2, "b", 0.0), (3, "c", 0.0)])]
    before = db.query("SELECT count(*) AS n FROM orders", "strong")
    with captured(db, restart=True) as capture:
        capture.catch_up()
        assert rows(db) == [(2, "b", 0.0), (3, "c", 0.0)]
        assert db.query("SELECT count(*) AS n FROM orders", before.timestamp).rows() == [{"n": 1}]
        history.insert((4, "d", 0.0))
        capture.catch_up()
        assert [each[0] for each in rows(db)] == [2, 3, 4]


def test_reading_anew_with_fewer_tables_forgets_the_others(db, history):
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        capture.catch_up()
    history.insert((2, "missed", 0.0))
    with captured(db, tables=["items"], restart=True):
        pass
    with captured(db) as capture:  # Without a word it goes on with those.
        assert capture.tables == {"items": "items"}
    with pytest.raises(InvalidArgument, match="'shop' has begun with items, and not with items, orders"):
        captured(db, tables=["items", "orders"])
    history.rows = [Rows("orders", [(1, "a", 0.0), (2, "missed", 0.0)])]
    with captured(db, restart=True, tables=["orders", "items"]):
        assert rows(db) == [(1, "a", 0.0), (2, "missed", 0.0)]


def test_values_that_a_source_left_out_are_those_of_the_row_as_it_is(db, history):
    """PostgreSQL does not send large values that an update has not touched."""
    with captured(db) as capture:
        history.insert((1, "a", 1.0), (2, "b", 2.0))
        history.commit(
            Rows("orders", [(2, "changed", 2.0)]),
            Patch("orders", [(1,), (2,)], [(1, None, 10.0), (2, None, 20.0)], [("who",), ("who",)]),
        )
        history.commit(  # Keys that were exchanged.
            Patch("orders", [(1,), (2,)], [(2, None, 0.0), (1, None, 0.0)], [("who",), ("who",)]),
        )
        capture.catch_up()
        assert rows(db) == [(1, "changed", 0.0), (2, "a", 0.0)]
        history.commit(Patch("orders", [(9,)], [(9, None, 0.0)], [("who",)]))
        with pytest.raises(SourceUnreadable, match=r"the key \(9,\) that is not here"):
            capture.catch_up()


def test_a_transaction_larger_than_memory_is_one_transaction(db, history):
    with captured(db) as capture:
        step = 20_000
        history.commit(
            *(
                Rows(
                    "orders",
                    pa.table({"id": range(n * step, (n + 1) * step), "who": ["y" * 50] * step, "total": [0.0] * step}),
                )
                for n in range(5)
            )
        )
        capture.catch_up()
        assert db.query("SELECT count(*) AS n FROM orders", "strong").rows() == [{"n": 100_000}]
        assert db.query("SELECT rows FROM capture_transactions", "strong").rows() == [{"rows": 100_000}]


def test_what_we_applied_there_ourselves_does_not_come_back(db, history):
    with captured(db) as capture:
        history.commit(Rows("orders", [(1, "ours", 0.0)]), origin=f"tidegate:{db.id.hex()}")
        history.commit(Rows("orders", [(1, "ours, too", 0.0)]), origin=f"tidegate:{db.id.hex()}/second")
        history.commit(Rows("orders", [(2, "theirs", 0.0)]), origin="tidegate:00")
        capture.catch_up()
        assert rows(db) == [(2, "theirs", 0.0)]
        assert capture.position == "3"


def test_a_table_that_we_have_made_there_is_known_when_others_write_to_it(db, history):
    """Of our own transaction the rows have been here, and the table has not been met."""
    db.sql("CREATE TABLE notes (id BIGINT PRIMARY KEY, text STRING)")
    db.sql("INSERT INTO notes VALUES (1, 'ours')")
    notes = SourceTable("notes", (Column("id", "BIGINT"), Column("text", "STRING")), ("id",))
    with captured(db) as capture:
        history.commit(Reshaped(notes), Rows("notes", [(1, "ours")]), origin=f"tidegate:{db.id.hex()}")
        history.commit(Rows("notes", [(2, "theirs")]))
        capture.catch_up()
        assert rows(db, "notes") == [(1, "ours"), (2, "theirs")]


def test_tables_may_have_other_names_here(db, history):
    with captured(db, tables=["orders"], into="shop_") as capture:
        assert capture.tables == {"orders": "shop_orders"}
    with db.capture("fake://", ["items"], {"items": "lines"}, name="other") as capture:
        assert capture.tables == {"items": "lines"}


@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        ("CREATE TABLE orders (id BIGINT PRIMARY KEY, who STRING)", "its columns total differ"),
        ("CREATE TABLE orders (id BIGINT, who STRING PRIMARY KEY, total DOUBLE)", r"its key is \(who\)"),
    ],
)
def test_a_table_that_is_there_and_does_not_fit_is_left_alone(db, history, there, complaint):
    db.sql(there)
    with pytest.raises(InvalidArgument, match=complaint):
        captured(db)


def test_a_table_with_rows_of_somebody_else_is_left_alone(db, history):
    db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, who STRING, total DOUBLE)")
    db.sql("INSERT INTO orders VALUES (1, 'mine', 1.0)")
    with pytest.raises(InvalidArgument, match="'orders' has rows that do not come from this source"):
        captured(db)
    assert rows(db) == [(1, "mine", 1.0)]
    db.sql("DELETE FROM orders")
    with captured(db):
        pass


def test_names_that_cannot_be_are_refused_with_a_way_out(db, history):
    history.tables = [SourceTable("my orders", ORDERS.columns, ("id",))]
    with pytest.raises(InvalidArgument, match=r"into=\{'my orders': \.\.\.\}"):
        captured(db)
    history.tables = [ORDERS, ITEMS]
    with pytest.raises(InvalidArgument, match="two tables of the source would be 'x' here"):
        captured(db, into={"orders": "x", "items": "x"})


def test_a_name_belongs_to_one_source(db, history, monkeypatch):
    with captured(db):
        pass
    monkeypatch.setattr("fake_source.FakeSource.identity", "fake:other")
    with pytest.raises(InvalidArgument, match="'shop' has read fake:shop, and this is fake:other"):
        captured(db)


def test_a_table_that_is_wanted_later_needs_a_name_of_its_own(db, history):
    with captured(db, tables=["orders"]):
        pass
    with pytest.raises(InvalidArgument, match="'shop' has begun with orders, and not with orders, items"):
        captured(db, tables=["orders", "items"])


def test_a_defect_ends_it_with_a_name(db, history):
    with captured(db) as capture:
        history.before[1] = lambda: 1 / 0
        history.insert((1, "a", 0.0))
        with pytest.raises(InvariantBroken, match="ZeroDivisionError"):
            capture.catch_up()
        assert capture.status()["state"] == "failed"


def test_a_flush_waits_for_what_the_sources_had_committed(db, history):
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        with pytest.raises(tidegate.TidegateError):
            db.flush(5.0)  # Nobody makes checkpoints here; but the rows are in.
        assert capture.position == "1"


def test_the_status_of_the_database_tells_of_its_captures(db, history):
    """Promise 8: what holds something back has a name."""
    with captured(db) as capture:
        history.insert((1, "a", 0.0))
        capture.catch_up()
        found = db.status()["captures"]
        assert [(each["name"], each["state"], each["transactions"]) for each in found] == [("shop", "following", 1)]
        screen = Console(width=100, file=io.StringIO())
        screen.print(draw({**db.status(), "opened_by_this_command": False}))
        assert "shop" in screen.file.getvalue() and "following" in screen.file.getvalue()
    assert db.status()["captures"] == []
    with captured(db) as capture:
        history.before[2] = lambda: 1 / 0
        history.insert((2, "a", 0.0))
        with pytest.raises(InvariantBroken):
            capture.catch_up()
    assert db.status()["captures"][0]["state"] == "failed"


def test_tables_that_are_not_taken_are_named(db, history):
    """Also those that the source meets while it is read."""
    history.left_out["log"] = "it has no key"
    with captured(db) as capture:
        assert capture.status()["left_out"] == {"log": "it has no key"}
        history.left_out["brand"] = "created later"
        capture.catch_up()
        capture.catch_up()
        assert capture.status()["left_out"] == {"log": "it has no key", "brand": "created later"}
        screen = Console(width=100, file=io.StringIO())
        screen.print(draw({**db.status(), "opened_by_this_command": False}))
        assert "without log, brand" in screen.file.getvalue()


def test_reading_anew_makes_tables_that_are_gone(db, history):
    with captured(db):
        pass
    db.sql("DROP TABLE orders")
    history.rows = [Rows("orders", [(1, "a", 0.0)])]
    with captured(db, restart=True):
        assert rows(db) == [(1, "a", 0.0)]


def test_what_an_earlier_one_of_its_name_failed_by_is_forgotten(db, history):
    for number in range(1, 4):
        with captured(db) as capture:
            history.before[number] = lambda: 1 / 0
            history.insert((number, "a", 0.0))
            with pytest.raises(InvariantBroken):
                capture.catch_up()
        del history.before[number]
    assert len(db.status()["captures"]) == 1


def test_a_progress_that_fails_and_a_name_for_no_table_are_said(db, history):
    history.rows = [Rows("orders", [(1, "a", 0.0)])]
    with pytest.raises(InvalidArgument, match="`progress` has failed with ZeroDivisionError"):
        captured(db, progress=lambda *_: 1 / 0)
    with pytest.raises(InvalidArgument, match="into: 'Orders' is no table that is captured; there are: orders, items"):
        captured(db, into={"Orders": "x"})


def test_no_tables_at_all_are_not_all_tables(db, history):
    with pytest.raises(InvalidArgument, match="name at least one, or leave them out"):
        captured(db, tables=[])


def test_closing_the_database_stops_its_captures(tmp_path, history):
    with tidegate.open(tmp_path / "y.tide", settings=DatabaseSettings(pipeline=False)) as db:
        capture = captured(db)
    assert capture.state == "stopped" and not capture.is_running
    with pytest.raises(Closed):
        capture.catch_up()


def test_progress_is_told_table_by_table(db, history):
    history.rows = [Rows("orders", [(1, "a", 0.0)]), Rows("orders", [(2, "b", 0.0)]), Rows("items", [(1, 1)])]
    told = []
    with captured(db, progress=lambda *each: told.append(each)):
        pass
    assert told[-1] == ("items", 1, 1) and ("orders", 2, 2) in told


def test_a_snapshot_that_fails_leaves_nothing_and_is_taken_whole_the_next_time(db, history, monkeypatch):
    def batches(self):
        yield Rows("orders", [(1, "a", 0.0)])
        raise Unavailable("the source went away")

    history.rows = [Rows("orders", [(1, "a", 0.0)]), Rows("orders", [(2, "b", 0.0)])]
    with monkeypatch.context() as patched:
        patched.setattr("fake_source.FakeSnapshot.batches", batches)
        with pytest.raises(Unavailable, match="went away"):
            captured(db)
    assert rows(db) == []
    with captured(db):
        assert rows(db) == [(1, "a", 0.0), (2, "b", 0.0)]
