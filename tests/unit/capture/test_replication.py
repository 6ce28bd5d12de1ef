"""Capture and apply together: one database into another, and no change goes round in a circle (issue 7)."""

from __future__ import annotations

import io
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import turso
from rich.console import Console

import tidegate
from database_rig import quick
from helpers import eventually
from tidegate.capture import sqlite as recorded
from tidegate.capture.apply_origin import applied_by, first_of, has_come_round, is_one_of, origin_text, with_name
from tidegate.capture.target import ApplyConflict
from tidegate.cli.status import draw
from tidegate.database.database import Database
from tidegate.errors import InvalidArgument


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with tidegate.open(tmp_path / "here.tide", settings=quick(pipeline=False)) as found:
        yield found


def shop(path: Path) -> Any:
    """An application's database, whose changes are recorded."""
    connection = recorded.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT UNIQUE, total REAL)")
    connection.execute("CREATE TABLE items (order_id INTEGER, n INTEGER, what TEXT, PRIMARY KEY (order_id, n))")
    with connection:
        connection.execute("INSERT INTO orders VALUES (1, 'ann', 1.5), (2, 'bo', NULL)")
        connection.execute("INSERT INTO items VALUES (1, 1, 'pen')")
    return connection


def rows(path: Path, table: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
    finally:
        connection.close()


def equal(one: Path, other: Path) -> bool:
    return all(rows(one, each) == rows(other, each) for each in ("orders", "items"))


@pytest.mark.parametrize("seed", range(3))
def test_one_database_becomes_another(db: Database, tmp_path: Path, seed: int) -> None:
    """Whole transactions from the application's commit to the copy's, keys that move and unique values too."""
    here, there = tmp_path / "app.db", tmp_path / "copy.db"
    app = shop(here)
    pick = random.Random(seed)
    capture = db.capture(f"sqlite:///{here}", tables=["orders", "items"])
    tables = ["orders", "items"]
    db.apply(tables, f"sqlite:///{there}")
    assert equal(here, there)
    for _ in range(4):
        for _ in range(10):
            with app:
                for _ in range(pick.randint(1, 4)):
                    id, other = pick.randint(1, 6), pick.randint(1, 6)
                    app.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?)", (id, f"w{other}", other / 2))
                    app.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", (id, other, f"{id}"))
                    if pick.random() < 0.3:
                        app.execute("DELETE FROM items WHERE order_id = ?", (other,))
                    if pick.random() < 0.3:
                        app.execute("UPDATE OR IGNORE orders SET id = id + 1 WHERE id = ?", (id,))
        capture.catch_up(30)
        done = db.apply(tables, f"sqlite:///{there}", chunk_rows=pick.choice([1, 5, 1000]))
        assert not done.conflicts
        assert equal(here, there)
    capture.stop()
    app.close()


def test_the_status_tells_of_what_is_applied_elsewhere(db: Database, tmp_path: Path) -> None:
    """Promise 8: what holds something back has a name."""
    db.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, who STRING)")
    there = tmp_path / "copy.db"

    def told() -> list[tuple[str, str, int]]:
        return [(each["name"], each["state"], each["transactions"]) for each in db.status()["applies"]]

    def drawn() -> str:
        screen = Console(width=120, file=io.StringIO())
        screen.print(draw({**db.status(), "opened_by_this_command": False}))
        return screen.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    with db.apply("orders", f"sqlite:///{there}?busy_s=0.1", name="copy", follow=True) as work:
        eventually(lambda: work.position, 30)  # What is there comes first, and is no transaction.
        work.wait_for(db.insert("orders", [(1, "ann")]).timestamp)
        assert told() == [("copy", "following", 1)]
        assert "copy.db" in drawn() and "following" in drawn()
        blocker = sqlite3.connect(there, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        db.insert("orders", [(2, "bo")])
        eventually(lambda: told() == [("copy", "waiting", 1)], 60)
        assert "locked" in drawn()
        blocker.execute("ROLLBACK")
        blocker.close()
        eventually(lambda: told() == [("copy", "following", 2)], 30)
    assert told() == []
    with sqlite3.connect(there) as other:
        other.execute("UPDATE orders SET who = 'eve'")
    other.close()
    work = db.apply("orders", f"sqlite:///{there}", name="copy", follow=True)
    db.insert("orders", [(1, "cy")])
    eventually(lambda: told() == [("copy", "failed", 0)], 30)
    with pytest.raises(ApplyConflict):
        work.stop()
    assert told() == [("copy", "failed", 0)]


def test_what_came_from_a_database_is_not_applied_to_it_again(db: Database, tmp_path: Path) -> None:
    """Both ways between two: each has the other's changes, once, and none goes round."""
    here = tmp_path / "app.db"
    app = shop(here)
    url = f"sqlite:///{here}"
    capture = db.capture(url, tables=["orders", "items"])
    assert db.apply(["orders", "items"], url).done.copied == 0  # All of it is there.
    with app:
        app.execute("UPDATE orders SET total = 7 WHERE id = 1")
        app.execute("INSERT INTO items VALUES (1, 2, 'ink')")
    capture.catch_up(30)
    with db.transaction() as txn:
        txn.upsert("orders", [(3, "cy", 3.0)])
        txn.delete("items", [(1, 1)])
    done = db.apply(["orders", "items"], url)
    assert (done.done.left_out, done.transactions, done.done.conflicts) == (1, 1, 0)
    assert rows(here, "orders") == [(1, "ann", 7.0), (2, "bo", None), (3, "cy", 3.0)]
    assert rows(here, "items") == [(1, 2, "ink")]
    before = db.query("SELECT count(*) AS n FROM capture_transactions", "strong").rows()
    capture.catch_up(30)
    assert db.query("SELECT count(*) AS n FROM capture_transactions", "strong").rows() == before
    assert db.apply(["orders", "items"], url).transactions == 0
    capture.stop()
    app.close()


def opened(path: Path) -> Database:
    return tidegate.open(path, settings=quick(pipeline=False))


def test_what_is_applied_to_a_recorded_file_goes_on_from_there(db: Database, tmp_path: Path) -> None:
    """A chain of databases: the application's, a copy whose changes are recorded, and who captures the copy."""
    here, there = tmp_path / "app.db", tmp_path / "copy.db"
    app = shop(here)
    copy = recorded.connect(there)
    tables = ["orders", "items"]
    with opened(tmp_path / "next.tide") as other:
        first = db.capture(f"sqlite:///{here}", tables=tables)
        db.apply(tables, f"sqlite:///{there}")
        back = db.capture(f"sqlite:///{there}", name="back", into="back_")
        second = other.capture(f"sqlite:///{there}", tables=tables)
        with app:
            app.execute("UPDATE orders SET total = 7 WHERE id = 1")
            app.execute("DELETE FROM items")
        with copy:
            copy.execute("INSERT INTO orders VALUES (9, 'of the copy', 9.0)")
        first.catch_up(30)
        assert db.apply(tables, f"sqlite:///{there}").transactions == 1
        second.catch_up(30)
        back.catch_up(30)
        found = other.query("SELECT * FROM orders ORDER BY id", "strong").rows()
        assert [tuple(each.values()) for each in found] == rows(there, "orders") != rows(here, "orders")
        assert other.query("SELECT * FROM items", "strong").rows() == []
        came = other.query("SELECT origin FROM capture_transactions", "strong").rows()
        assert sum(each["origin"].startswith("tidegate:") for each in came) == 1
        # What this database has applied itself is not taken back; what the copy's own application did is.
        kept = db.query("SELECT rows FROM capture_transactions WHERE capture = 'back'", "strong").rows()
        assert [each["rows"] for each in kept] == [1]
    app.close()
    copy.close()


def test_a_file_that_is_recorded_later_is_recorded_from_then_on(db: Database, tmp_path: Path) -> None:
    """Who follows notices it at its next chunk."""
    there = tmp_path / "copy.db"
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    with db.apply("t", f"sqlite:///{there}", follow=True) as following:
        following.wait_for(db.insert("t", [(1,)]).timestamp)
        copy = recorded.connect(there)
        following.wait_for(db.insert("t", [(2,)]).timestamp)
    found = copy.execute("SELECT change_type, id FROM turso_cdc WHERE table_name = 't'").fetchall()
    assert found == [(1, 2)]
    copy.close()


def test_a_change_table_can_be_chosen(db: Database, tmp_path: Path) -> None:
    """Of several that are there, none of them the usual one, somebody has to say which."""
    there = tmp_path / "copy.db"
    for name in ("log_a", "log_b"):
        recorded.connect(there, table=name).close()
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.insert("t", [(1,)])
    with pytest.raises(InvalidArgument, match=r"several change tables, log_a, log_b.*\?table=log_a"):
        db.apply("t", f"sqlite:///{there}")
    with pytest.raises(InvalidArgument, match=r"no change table 'none'"):
        db.apply("t", f"sqlite:///{there}?table=none")
    db.apply("t", f"sqlite:///{there}?table=log_b")
    assert len(rows(there, "log_a")) == 0
    assert ("t", 1) in {(row[4], row[5]) for row in rows(there, "log_b")}


def test_what_is_applied_to_a_turso_file_that_is_recorded_is_recorded(db: Database, tmp_path: Path) -> None:
    """As of SQLite's, by Turso's own recording."""
    there = tmp_path / "copy.db"
    app = turso.connect(str(there), isolation_level=None)
    app.execute("PRAGMA capture_data_changes_conn('full')")
    app.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    db.insert("t", [(1,)])
    db.apply("t", f"turso:///{there}")
    found = app.execute("SELECT change_type, id FROM turso_cdc WHERE table_name = 't'").fetchall()
    assert [tuple(each) for each in found] == [(1, 1)]
    app.close()


def test_a_change_does_not_go_round_in_a_ring_of_two(db: Database, tmp_path: Path) -> None:
    """Each of two applies what it captures to the other's source, whatever is there: it ends where it began."""
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    apps = [shop(one), recorded.connect(two)]
    tables = ["orders", "items"]
    with opened(tmp_path / "other.tide") as other:
        first = db.capture(f"sqlite:///{one}", tables=tables)
        db.apply(tables, f"sqlite:///{two}", policy="overwrite")
        second = other.capture(f"sqlite:///{two}", tables=tables)
        other.apply(tables, f"sqlite:///{one}", policy="overwrite")
        db.apply(tables, f"sqlite:///{two}", policy="overwrite")

        def round() -> tuple[int, int]:
            """How many transactions were applied to the second, and how many to the first."""
            first.catch_up(30)
            there = db.apply(tables, f"sqlite:///{two}", policy="overwrite")
            second.catch_up(30)
            back = other.apply(tables, f"sqlite:///{one}", policy="overwrite")
            return there.transactions, back.transactions

        round()
        round()  # By now the rows of the start have been all round.
        assert round() == (0, 0)
        for number, app in enumerate(apps):
            with app:
                app.execute("UPDATE orders SET total = ? WHERE id = 1", (number + 1,))
            assert round() == ((1, 0), (0, 1))[number]
            assert round() == (0, 0)
            taken = first.status()["transactions"], second.status()["transactions"]
            assert round() == (0, 0)
            assert (first.status()["transactions"], second.status()["transactions"]) == taken
            assert rows(one, "orders")[0] == rows(two, "orders")[0] == (1, "ann", number + 1)
        with db.transaction() as txn:
            txn.upsert("orders", [(1, "ann", 3.0)])
        assert round() == (1, 1)
        assert round() == round() == (0, 0)
        assert equal(one, two) and rows(one, "orders")[0] == (1, "ann", 3.0)
    for app in apps:
        app.close()


def test_a_transaction_says_where_it_first_happened_however_far_it_went() -> None:
    """What is passed on is always the first place; the one who wrote it last is known, too."""
    a, b, source = "tidegate:aa", "tidegate:bb", "host:5432/shop"
    assert first_of(None, source) == first_of("pg_16395", source) == source
    once = origin_text(a, first_of(None, source))
    twice = origin_text(b, first_of(once, "other:1/copy"))
    assert (first_of(once, "x"), first_of(twice, "y")) == (source, source)
    assert (applied_by(once), applied_by(twice), applied_by(with_name(twice, "n"))) == (a, b, b)
    assert first_of(with_name(twice, "a name"), "x") == source
    # It is back where it was taken from, whatever others call that place; or it was ours all along.
    assert has_come_round(twice, source, a) and has_come_round(once, "other:1/copy", a)
    assert has_come_round(origin_text(b, first_of(origin_text(a, None), "x")), source, a)
    assert not has_come_round(once, "other:1/copy", b) and not has_come_round(None, source, a)
    # PostgreSQL's names have 512 bytes.
    long = f"sqlite:///{'ü' * 1000}.db"
    text = origin_text(a, long)
    assert len(text.encode()) < 512 and is_one_of(first_of(text, "x"), [source, long])
    assert not is_one_of(first_of(text, "x"), [source])


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": Path("app.db")}, r"url: .*for a file write 'sqlite:///app.db'"),
        ({"url": None}, "url: a source is named by a URL"),
        ({"url": 5}, "url: a source is named by a URL"),
        ({"tables": 5}, "tables are names of tables, or None for all, not 5"),
        ({"tables": {"orders": 1}}, "tables are names"),
        ({"tables": [5]}, "tables are names of tables, and 5 is none"),
        ({"types": "x"}, r"types: 'x' is not of the form \{'table.column': type\}"),
        ({"types": {"orders.total": 5}}, "types: .*is not of the form"),
        ({"types": {"none.total": "STRING"}}, "types: .*has no table 'none'; there are: items, orders"),
        ({"types": {"orders.total": "NOPE"}}, "'NOPE' is not of the form"),
        ({"name": 5}, "name is a text, not 5"),
        ({"into": 5}, "into is what goes in front .*not 5"),
        ({"into": {"orders": 5}}, "into: 'orders': 5"),
        ({"progress": 5}, "progress is a function .*not 5"),
        ({"page": 0}, "page is a number of rows, at least 1, not 0"),
        ({"batch": -1}, "batch is a number of rows, at least 1, not -1"),
        ({"batch": "many"}, "batch is a number of rows, at least 1, not 'many'"),
    ],
)
def test_what_a_capture_cannot_be_given_is_named(
    db: Database, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    shop(tmp_path / "app.db").close()
    with pytest.raises(InvalidArgument, match=said):
        db.capture(**{"url": f"sqlite:///{tmp_path}/app.db", **given})
    assert db.captures == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"to": None}, "to: a database to apply to is named by a URL"),
        ({"to": Path("x.db")}, "for a file write 'sqlite:///x.db'"),
        ({"tables": 5}, "tables are names of tables, not 5"),
        ({"tables": [1]}, "tables are names of tables, and 1 is none"),
        ({"tables": []}, "at least one table"),
        ({"name": 5}, "name is a text, not 5"),
        ({"chunk_rows": "x"}, "chunk_rows is a number above 0, not 'x'"),
        ({"to": "sqlite:///x.db?busy_s=abc"}, "busy_s is a number of seconds .*not 'abc'"),
        ({"restart": True, "start": "now"}, "restart replaces the rows .* and start='now' says to copy none"),
        ({"to": "turso:///x.db?busy_s=-1"}, "busy_s is a number of seconds .*not '-1'"),
    ],
)
def test_what_cannot_be_applied_is_named(db: Database, given: dict[str, Any], said: str) -> None:
    db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    with pytest.raises(InvalidArgument, match=said):
        db.apply(**{"tables": "t", "to": "sqlite:///x.db", **given})


@pytest.mark.parametrize("written", ["a#b.db", "a%23b.db"])
def test_a_file_may_have_a_hash_in_its_name(db: Database, tmp_path: Path, written: str) -> None:
    """Fragments mean nothing in these URLs, at a source as at a target."""
    shop(tmp_path / "a#b.db").close()
    capture = db.capture(f"sqlite:///{tmp_path}/{written}", ["orders", "ORDERS"])
    assert capture.tables == {"orders": "orders"}  # In whatever case: one table.
    assert db.apply("orders", f"sqlite:///{tmp_path}/{written}").done.copied == 0
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".db"] == ["a#b.db"]
