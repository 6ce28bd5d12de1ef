"""PostgreSQL captured into a database, with a real server: what `db.capture` promises, end to end (issue 7)."""

from __future__ import annotations

import random
import threading

import pytest

import tidegate
from helpers import eventually
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import InvalidArgument, SourceGone


@pytest.fixture
def pg(postgres, pg_database):
    with postgres.connect(pg_database) as connection:
        connection.autocommit = True
        yield connection


@pytest.fixture(params=["streaming", "polling"])
def url(request, postgres, pg_database):
    return postgres.url(pg_database, mode=request.param)


@pytest.fixture
def db(tmp_path):
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as found:
        yield found


def theirs(pg, table, order="id"):
    return pg.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()


def ours(db, table, order="id"):
    return [tuple(row.values()) for row in db.query(f"SELECT * FROM {table} ORDER BY {order}", "strong").rows()]


def test_what_is_there_and_what_follows_while_others_write(db, pg, postgres, pg_database, url):
    """The snapshot and the slot are one moment: nothing between them is lost or comes twice."""
    pg.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance bigint, note text)")
    pg.execute("INSERT INTO accounts SELECT n, 100, 'x' FROM generate_series(1, 5000) n")
    stop = threading.Event()

    def transfers():
        rng = random.Random(5)
        with postgres.connect(pg_database) as other:
            other.autocommit = False
            while not stop.is_set():
                a, b = rng.sample(range(1, 5001), 2)
                other.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", [a])
                other.execute("UPDATE accounts SET balance = balance + 1, note = 'y' WHERE id = %s", [b])
                other.commit()

    writer = threading.Thread(target=transfers)
    writer.start()
    try:
        with db.capture(url) as capture:
            for _ in range(15):
                found = db.query("SELECT sum(balance) AS s, count(*) AS n FROM accounts", "strong").rows()
                assert found == [{"s": 500_000, "n": 5_000}]
            stop.set()
            writer.join()
            capture.catch_up()
            assert ours(db, "accounts") == theirs(pg, "accounts")
            assert capture.status()["transactions"] > 0
    finally:
        stop.set()
        writer.join()


def test_it_goes_on_after_a_pause_and_after_its_connections_were_cut(db, pg, url):
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with db.capture(url, name="shop") as capture:
        pg.execute("INSERT INTO t VALUES (1, 'a')")
        capture.catch_up()
    pg.execute("INSERT INTO t VALUES (2, 'b')")
    with db.capture(url, name="shop") as capture:
        capture.catch_up()
        assert ours(db, "t") == [(1, "a"), (2, "b")]
        for number in range(3, 6):
            pg.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            pg.execute("INSERT INTO t VALUES (%s, 'c')", [number])
            capture.catch_up()
        assert ours(db, "t") == theirs(pg, "t")
    taken = db.query("SELECT count(*) AS n, count(DISTINCT position) AS p FROM capture_transactions", "strong").rows()
    assert taken == [{"n": 5, "p": 5}]


def test_schema_changes_truncates_and_large_values_that_did_not_change(db, pg, url):
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text, big text)")
    pg.execute("ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL")
    with db.capture(url) as capture:
        pg.execute("INSERT INTO t VALUES (1, 'a', repeat('z', 10000)), (2, 'b', repeat('y', 10000))")
        pg.execute("UPDATE t SET v = 'changed' WHERE id = 1")
        capture.catch_up()
        assert ours(db, "t") == theirs(pg, "t")
        pg.execute("ALTER TABLE t ADD COLUMN kind text DEFAULT 'plain'")
        pg.execute("INSERT INTO t VALUES (3, 'c', 'small', 'odd')")
        capture.catch_up()
        assert ours(db, "t") == theirs(pg, "t")
        pg.execute("ALTER TABLE t DROP COLUMN v")
        pg.execute("UPDATE t SET id = id + 10 WHERE id < 3")
        capture.catch_up()
        assert ours(db, "t") == theirs(pg, "t")
        with pg.transaction():
            pg.execute("INSERT INTO t VALUES (9, 'gone', 'x')")
            pg.execute("TRUNCATE t")
            pg.execute("INSERT INTO t VALUES (10, 'stays', 'x')")
        capture.catch_up()
        assert ours(db, "t") == theirs(pg, "t") == [(10, "stays", "x")]


def test_a_transaction_larger_than_memory_is_one(db, pg, url):
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pg.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
    pg.execute("SELECT pg_reload_conf()")
    try:
        with db.capture(url) as capture:
            with pg.transaction():
                pg.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 40000) n")
                pg.execute("DELETE FROM t WHERE id % 2 = 0")
            capture.catch_up()
            assert ours(db, "t") == theirs(pg, "t")
            assert len(db.query("SELECT * FROM capture_transactions", "strong").rows()) == 1
    finally:
        pg.execute("ALTER SYSTEM RESET logical_decoding_work_mem")
        pg.execute("SELECT pg_reload_conf()")


def test_a_slot_that_was_dropped_is_noticed_and_reading_anew_mends_it(db, pg, url):
    pg.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pg.execute("INSERT INTO t VALUES (1, 'a')")
    with db.capture(url, name="shop"):
        pass
    slot = "FROM pg_replication_slots WHERE database = current_database()"
    eventually(lambda: pg.execute(f"SELECT active {slot}").fetchone() == (False,), 30, "the server lets go of the slot")
    pg.execute(f"SELECT pg_drop_replication_slot(slot_name) {slot}")
    pg.execute("UPDATE t SET v = 'missed'")
    with pytest.raises(SourceGone, match="restart"):
        db.capture(url, name="shop")
    with db.capture(url, name="shop", restart=True) as capture:
        pg.execute("INSERT INTO t VALUES (2, 'b')")
        capture.catch_up()
        assert ours(db, "t") == [(1, "missed"), (2, "b")]


def test_dropping_a_capture_leaves_nothing_at_the_server(db, pg, url):
    from tidegate.capture.dropping import drop_capture

    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with db.capture(url, name="shop"):
        pass
    made = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert pg.execute(made).fetchone() == (1,)
    drop_capture(db, url, "shop")
    assert pg.execute(made).fetchone() == (0,)
    assert pg.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)


def test_tables_are_chosen_and_named(db, pg, url):
    pg.execute("CREATE SCHEMA shop CREATE TABLE orders (id int PRIMARY KEY)")
    pg.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pg.execute("CREATE TABLE u (id int PRIMARY KEY)")
    with db.capture(url, ["shop.orders", "t"], {"t": "things"}) as capture:
        assert capture.tables == {"shop.orders": "shop.orders", "t": "things"}
        pg.execute("INSERT INTO shop.orders VALUES (1)")
        pg.execute("INSERT INTO u VALUES (1)")
        capture.catch_up()
        assert db.query("SELECT count(*) AS n FROM shop.orders", "strong").rows() == [{"n": 1}]
    with pytest.raises(InvalidArgument, match="'none'"):
        db.capture(url, ["none"], name="other")
