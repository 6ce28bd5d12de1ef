"""Tables that are created at PostgreSQL while all of it is captured join the capture (issue 7: schema changes follow).

Every row of theirs comes once, whoever wrote it when, and whenever the capture was killed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import tidegate
from pg_mirror import Mirror, begin, catch_up, opened
from pg_server import Server
from tidegate.capture import pg_joining
from tidegate.capture.pg_source import PgSource
from tidegate.capture.source import Reshaped, Rows
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import NotFound

Db = psycopg.Connection[Any]


@pytest.fixture
def db(postgres: Server, pg_database: str) -> Iterator[Db]:
    with postgres.connect(pg_database) as connection:
        connection.execute("CREATE TABLE first (id int PRIMARY KEY, v text); INSERT INTO first VALUES (1, 'a')")
        yield connection


@pytest.fixture(params=["streaming", "polling"])
def url(request: pytest.FixtureRequest, postgres: Server, pg_database: str) -> str:
    return postgres.url(pg_database, mode=request.param)


def resume(source: PgSource, mirror: Mirror) -> None:
    source.tables(None)
    source.resume(mirror.position, list(mirror.tables.values()))


def shown(mirror: Mirror, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in mirror.rows[table].values())


def there(db: Db, table: str) -> list[tuple[Any, ...]]:
    return sorted(db.execute(f"SELECT * FROM {table}").fetchall())  # type: ignore[call-overload]


def test_a_table_that_is_created_later_comes_with_the_rows_that_it_had(db: Db, url: str) -> None:
    with opened(url) as source:
        mirror = begin(source)
        db.execute("CREATE TABLE brand (id int PRIMARY KEY, v text); INSERT INTO brand VALUES (1, 'x'), (2, 'y')")
        db.execute("CREATE TABLE loose (id int)")
        taken = catch_up(source, mirror)
        assert any(isinstance(each, Reshaped) for _, changes in taken for each in changes)
        assert shown(mirror, "brand") == [(1, "x"), (2, "y")]
        db.execute(
            "UPDATE brand SET v = 'z' WHERE id = 1; DELETE FROM brand WHERE id = 2; INSERT INTO first VALUES (2)"
        )
        db.execute("INSERT INTO brand VALUES (3, 'new'); ALTER TABLE brand ADD COLUMN more int DEFAULT 7")
        db.execute("INSERT INTO brand VALUES (4, 'new', 8)")
        catch_up(source, mirror)
        assert shown(mirror, "brand") == there(db, "brand")
        assert list(source.left_out) == ["loose"]
    with opened(url) as source:  # It is one of them now.
        resume(source, mirror)
        db.execute("UPDATE brand SET v = 'later'")
        for _, changes in catch_up(source, mirror):
            assert not any(isinstance(each, Reshaped) for each in changes)
        assert shown(mirror, "brand") == there(db, "brand")


def test_a_table_that_gets_a_key_joins_then(db: Db, url: str) -> None:
    """Also one that was there from the beginning."""
    db.execute("CREATE TABLE old AS SELECT 1 AS id")
    with opened(url) as source:
        mirror = begin(source)
        db.execute("CREATE TABLE brand AS SELECT n AS id FROM generate_series(1, 3) n")
        catch_up(source, mirror)
        assert sorted(source.left_out) == ["brand", "old"]
        db.execute("ALTER TABLE brand ADD PRIMARY KEY (id); ALTER TABLE old ADD PRIMARY KEY (id)")
        catch_up(source, mirror)
        assert shown(mirror, "brand") == there(db, "brand") and shown(mirror, "old") == there(db, "old")
        assert source.left_out == {}


def test_only_the_wanted_ones_are_taken_where_tables_are_named(db: Db, url: str) -> None:
    with opened(url) as source:
        mirror = begin(source, "first")
        db.execute("CREATE TABLE brand (id int PRIMARY KEY)")
        catch_up(source, mirror)
        assert set(mirror.rows) == {"first"} and source.left_out == {}


@pytest.mark.parametrize("given", [0, 1, 2])
def test_a_capture_that_dies_while_a_table_joins_has_it_join_once_more(db: Db, url: str, given: int) -> None:
    """Before it was given; when it was made and not filled; when it was filled and nothing was confirmed."""
    with opened(url) as source:
        mirror = begin(source)
        db.execute("CREATE TABLE brand (id int PRIMARY KEY, v text); INSERT INTO brand VALUES (1, 'x'), (2, 'y')")
        mark, count = source.mark(), 0
        while count < given and not source.has_passed(mark):
            for each in source.transactions(5):
                if count == given:
                    break
                changes = mirror.take(each)
                count += any(isinstance(change, Reshaped | Rows) for change in changes)
    db.execute("DELETE FROM brand WHERE id = 1; INSERT INTO brand VALUES (3, 'z')")
    for _ in range(2):
        with opened(url) as source:
            resume(source, mirror)
            db.execute("UPDATE brand SET v = v || '!' WHERE id = 3")
            catch_up(source, mirror)
            assert shown(mirror, "brand") == there(db, "brand")
            assert source.left_out == {}


def test_who_is_in_the_midst_of_a_transaction_may_write_to_it_later(
    postgres: Server, pg_database: str, db: Db, url: str
) -> None:
    with opened(url) as source, postgres.connect(pg_database, autocommit=False) as writer:
        mirror = begin(source)
        writer.execute("INSERT INTO first VALUES (2, 'b')")
        db.execute("CREATE TABLE brand (id int PRIMARY KEY, v text); INSERT INTO brand VALUES (1, 'x')")
        catch_up(source, mirror)
        assert shown(mirror, "brand") == [(1, "x")]
        writer.execute("INSERT INTO brand VALUES (2, 'y')")
        db.execute("INSERT INTO brand VALUES (3, 'z')")
        catch_up(source, mirror)
        writer.execute("UPDATE brand SET v = 'mine' WHERE id = 3")
        writer.commit()
        (taken,) = [changes for each, changes in catch_up(source, mirror) if each.id]
        assert {each.table for each in taken if isinstance(each, Rows)} == {"first", "brand"}
        assert shown(mirror, "brand") == there(db, "brand")


def test_a_table_that_is_being_written_to_joins_when_it_can(
    postgres: Server, pg_database: str, db: Db, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg_joining, "LOCK_MS", 50)
    with opened(url) as source, postgres.connect(pg_database, autocommit=False) as writer:
        mirror = begin(source)
        db.execute("CREATE TABLE brand (id int PRIMARY KEY)")
        writer.execute("INSERT INTO brand VALUES (1)")
        db.execute("INSERT INTO first VALUES (2, 'b')")
        catch_up(source, mirror)
        assert set(mirror.rows) == {"first"} and len(mirror.rows["first"]) == 2, "the others go on"
        assert "keeps it from being locked" in source.left_out["brand"]
        writer.commit()
        catch_up(source, mirror)
        assert shown(mirror, "brand") == [(1,)] and source.left_out == {}


def test_a_table_that_is_gone_again_was_never_there(db: Db, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(url) as source:
        mirror = begin(source)
        db.execute("CREATE TABLE brand (id int PRIMARY KEY)")
        original = pg_joining.Joining._begin

        def too_late(self: Any, shape: Any) -> Any:
            db.execute("DROP TABLE IF EXISTS brand")
            return original(self, shape)

        monkeypatch.setattr(pg_joining.Joining, "_begin", too_late)
        catch_up(source, mirror)
        assert set(mirror.rows) == {"first"} and source.left_out == {}


def test_a_table_of_somebody_else_is_named_with_what_the_server_says(
    postgres: Server, pg_database: str, db: Db
) -> None:
    """Whoever publishes a table must own it."""
    db.execute(
        "DROP ROLE IF EXISTS carrier; CREATE ROLE carrier LOGIN REPLICATION;"
        "ALTER TABLE first OWNER TO carrier; GRANT ALL ON SCHEMA public TO carrier;"
    )
    db.execute(f"GRANT ALL ON DATABASE {pg_database} TO carrier")  # type: ignore[call-overload]
    with opened(postgres.url(pg_database, user="carrier")) as source:
        mirror = begin(source)
        db.execute("CREATE TABLE secret (id int PRIMARY KEY)")
        catch_up(source, mirror)
        assert "denied" in source.left_out["secret"] or "owner" in source.left_out["secret"]
        db.execute("INSERT INTO first VALUES (2, 'b')")
        catch_up(source, mirror)
        assert len(mirror.rows["first"]) == 2
    db.execute("REASSIGN OWNED BY carrier TO postgres; DROP OWNED BY carrier; DROP ROLE carrier")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_every_row_of_every_table_comes_once(
    postgres: Server, pg_database: str, db: Db, url: str, seed: int
) -> None:
    """Writers go on while tables are created and join, and the capture is left and taken up again at random."""
    chance = random.Random(seed)
    names = [f"t{number}" for number in range(6)]
    stop = threading.Event()

    def write(number: int) -> None:
        mine = random.Random(seed * 100 + number)
        with postgres.connect(pg_database) as connection:
            for step in range(10_000):
                if stop.is_set():
                    return
                name, id = mine.choice(names), mine.randrange(50)
                try:
                    with connection.transaction():
                        connection.execute(
                            f"INSERT INTO {name} VALUES ({id}, {step}) ON CONFLICT (id) DO UPDATE SET v = {step}"
                        )  # type: ignore[call-overload]
                        connection.execute(
                            "INSERT INTO first VALUES (0, '0') ON CONFLICT (id) DO UPDATE SET v = excluded.v"
                        )
                        if step % 7 == 0:
                            connection.execute(f"DELETE FROM {name} WHERE id = {id}")  # type: ignore[call-overload]
                except psycopg.errors.UndefinedTable:
                    stop.wait(0.01)
                except psycopg.errors.DeadlockDetected:
                    pass

    source_now = opened(url)
    source = source_now.__enter__()
    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    try:
        mirror = begin(source)
        for each in writers:
            each.start()
        for name in names:
            db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")  # type: ignore[call-overload]
            for _ in range(chance.randrange(3)):
                catch_up(source, mirror, confirm=chance.random() < 0.5)
            if chance.random() < 0.5:
                source_now.__exit__(None, None, None)
                source_now = opened(url)
                source = source_now.__enter__()
                resume(source, mirror)
        stop.set()
        for each in writers:
            each.join()
        # Until each has found a moment in which nobody wrote to it.
        for _ in range(10):
            catch_up(source, mirror)
            if set(names) <= mirror.rows.keys():
                break
        for name in ("first", *names):
            assert shown(mirror, name) == there(db, name)
    finally:
        stop.set()
        for each in writers:
            if each.is_alive():
                each.join()
        source_now.__exit__(None, None, None)


def test_it_joins_a_database_with_what_is_asked_of_it(tmp_path: Any, db: Db, url: str) -> None:
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as here:
        with here.capture(url, name="c") as capture:
            db.execute("CREATE TABLE brand (id int PRIMARY KEY, v text)")
            db.execute("INSERT INTO brand SELECT n, 'v' || n FROM generate_series(1, 5000) n")
            capture.catch_up()
            db.execute("DELETE FROM brand WHERE id % 2 = 0")
            capture.catch_up()
            assert capture.status()["left_out"] == {}
        with here.capture(url, name="c") as capture:
            db.execute("UPDATE brand SET v = 'last' WHERE id = 1")
            capture.catch_up()
        found = here.query("SELECT count(*) AS n, min(v) AS v FROM brand", "strong").rows()
        assert found == [{"n": 2500, "v": "last"}]


def test_a_table_that_cannot_be_taken_here_is_left_out_and_the_others_go_on(tmp_path: Any, db: Db, url: str) -> None:
    """Names that are none here, and such as are taken."""
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as here:
        here.sql("CREATE TABLE mine (id INT PRIMARY KEY)")
        with here.capture(url, name="c") as capture:
            db.execute('CREATE TABLE "odd name" (id int PRIMARY KEY); CREATE TABLE mine (id int PRIMARY KEY)')
            db.execute("CREATE TABLE capture_tables (id int PRIMARY KEY); CREATE TABLE brand (id int PRIMARY KEY)")
            capture.catch_up()
            assert set(capture.tables) == {"first", "brand"}
            left_out = capture.status()["left_out"]
            assert sorted(left_out) == ["capture_tables", "mine", "odd name"]
            assert "into=" in left_out["mine"] and "into=" in left_out["odd name"]


def test_captures_of_two_databases_of_a_server_and_into_two_databases_have_slots_of_their_own(
    tmp_path: Any, postgres: Server, pg_database: str, db: Db, url: str
) -> None:
    """Slots are the server's: one capture must not take another's away."""
    settings = DatabaseSettings(pipeline=False)
    with postgres.database() as other, postgres.connect(other) as there_too:
        there_too.execute("CREATE TABLE second (id int PRIMARY KEY)")
        with (
            tidegate.open(tmp_path / "x.tide", settings=settings) as one,
            tidegate.open(tmp_path / "y.tide", settings=settings) as two,
        ):
            with one.capture(url) as first:
                first.catch_up()
            with one.capture(postgres.url(other)) as second, two.capture(url) as third:
                second.catch_up()
                third.catch_up()
            db.execute("INSERT INTO first VALUES (7, 'late')")
            for here in (one, two):
                with here.capture(url) as first:
                    first.catch_up()
                assert here.query("SELECT count(*) AS n FROM first", "strong").rows() == [{"n": 2}]


def test_a_capture_of_named_tables_goes_on_without_one_that_is_gone(tmp_path: Any, db: Db, url: str) -> None:
    with tidegate.open(tmp_path / "x.tide", settings=DatabaseSettings(pipeline=False)) as here:
        db.execute("CREATE TABLE gone (id int PRIMARY KEY); CREATE TABLE moved (id int PRIMARY KEY)")
        names = ["first", "gone", "moved"]
        with here.capture(url, name="c", tables=names) as capture:
            capture.catch_up()
        db.execute("DROP TABLE gone; ALTER TABLE moved RENAME TO elsewhere; INSERT INTO elsewhere VALUES (1)")
        db.execute("INSERT INTO first VALUES (2, 'b')")
        for _ in range(2):
            with here.capture(url, name="c", tables=names) as capture:
                capture.catch_up()
        assert here.query("SELECT count(*) AS n FROM moved", "strong").rows() == [{"n": 1}]
        assert here.query("SELECT count(*) AS n FROM first", "strong").rows() == [{"n": 2}]
        with pytest.raises(NotFound, match="'gone'"):
            here.capture(url, name="c", tables=names, restart=True)
