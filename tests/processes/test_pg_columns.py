"""What becomes of columns at PostgreSQL is followed, or ends the capture: never wrong values (issue 7).

Its log has no word of that; what is known is the catalog, as it is when the capture looks, which may be late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import tidegate
from pg_mirror import begin, catch_up, opened
from pg_server import Server
from tidegate.database.settings import DatabaseSettings
from tidegate.errors import SourceGone, SourceUnreadable

Db = psycopg.Connection[Any]
TABLE = "CREATE TABLE t (id int PRIMARY KEY, a int, b int); INSERT INTO t VALUES (1, 10, 100), (2, 20, 200)"
PARTITIONED = (
    "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY HASH (id);"
    "CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (modulus 2, remainder 0);"
    "CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (modulus 2, remainder 1); INSERT INTO t VALUES (1), (2), (3)"
)


@pytest.fixture
def db(postgres: Server, pg_database: str) -> Iterator[Db]:
    with postgres.connect(pg_database) as connection:
        yield connection


@pytest.fixture
def url(postgres: Server, pg_database: str) -> str:
    return postgres.url(pg_database)


def shown(mirror: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in mirror.rows["t"].values()), key=repr)


def there(db: Db) -> list[tuple[Any, ...]]:
    return sorted(db.execute("SELECT * FROM t").fetchall(), key=repr)


def run(db: Db, script: str) -> None:
    """Each statement by itself, but for what stands between BEGIN and COMMIT."""
    for part in script.split("; "):
        db.execute(part)  # type: ignore[call-overload]


FOLLOWED = {
    "renamed twice": "ALTER TABLE t RENAME a TO x; INSERT INTO t VALUES (3, 30, 300); ALTER TABLE t RENAME x TO y;"
    " INSERT INTO t VALUES (4, 40, 400)",
    "renamed twice at once": "BEGIN; ALTER TABLE t RENAME a TO x; INSERT INTO t VALUES (3, 30, 300);"
    " ALTER TABLE t RENAME x TO y; INSERT INTO t VALUES (4, 40, 400); COMMIT",
    "added and renamed": "ALTER TABLE t ADD c int DEFAULT 5; INSERT INTO t VALUES (3, 30, 300, 7);"
    " ALTER TABLE t RENAME c TO d; INSERT INTO t VALUES (4, 40, 400, 8)",
    "added and renamed at once": "BEGIN; ALTER TABLE t ADD c int DEFAULT 5; INSERT INTO t VALUES (3, 30, 300, 7);"
    " ALTER TABLE t RENAME c TO d; INSERT INTO t VALUES (4, 40, 400, 8); COMMIT",
    "dropped and added": "ALTER TABLE t DROP b; ALTER TABLE t ADD c int DEFAULT 5; INSERT INTO t VALUES (3, 30, 6)",
    "added, and others": "ALTER TABLE t ADD c int DEFAULT 5; INSERT INTO t VALUES (3, 30, 300, 7);"
    " ALTER TABLE t ADD d int; INSERT INTO t VALUES (4, 40, 400, 8, 9); ALTER TABLE t DROP a;"
    " INSERT INTO t VALUES (5, 50, 500, 10)",
    "a longer text": "ALTER TABLE t ADD c varchar(5) DEFAULT 'x'; INSERT INTO t VALUES (3, 30, 300, 'y');"
    " ALTER TABLE t ALTER c TYPE varchar(9); INSERT INTO t VALUES (4, 40, 400, 'z'); ALTER TABLE t ALTER c TYPE text;"
    " INSERT INTO t VALUES (5, 50, 500, 'zz')",
}


@pytest.mark.parametrize("late", [True, False], ids=["late", "at once"])
@pytest.mark.parametrize("script", FOLLOWED.values(), ids=FOLLOWED)
def test_it_is_followed(db: Db, url: str, script: str, late: bool) -> None:
    db.execute(TABLE)
    with opened(url) as source:
        mirror = begin(source)
        if late:
            run(db, script)
            catch_up(source, mirror)
        else:
            for part in script.split("; "):
                db.execute(part)  # type: ignore[call-overload]
                catch_up(source, mirror)
        assert shown(mirror) == there(db)
    with opened(url) as source:
        source.tables(None)
        source.resume(mirror.position, list(mirror.tables.values()))
        db.execute("ALTER TABLE t ADD behind int DEFAULT 1; DELETE FROM t WHERE id = 2")
        db.execute("INSERT INTO t (id) VALUES (9)")
        catch_up(source, mirror)
        assert shown(mirror) == there(db)


UNTOLD = {
    "renamed and dropped": "ALTER TABLE t RENAME a TO x; INSERT INTO t VALUES (3, 30, 300); ALTER TABLE t DROP x;"
    " INSERT INTO t VALUES (4, 400)",
    "dropped and added by the same name": "ALTER TABLE t DROP b; ALTER TABLE t ADD b int DEFAULT 9;"
    " INSERT INTO t VALUES (3, 30)",
    "dropped, and its name taken over": "ALTER TABLE t DROP a; ALTER TABLE t RENAME b TO a;"
    " INSERT INTO t VALUES (3, 30)",
    "there and back": "INSERT INTO t VALUES (3, 30, 300); ALTER TABLE t DROP b; ALTER TABLE t ADD c int;"
    " INSERT INTO t VALUES (4, 40, 400); ALTER TABLE t DROP c; ALTER TABLE t ADD b int DEFAULT 9;"
    " INSERT INTO t VALUES (5, 50)",
    "rounded": "ALTER TABLE t ADD c timestamp DEFAULT '2024-01-01 00:00:00.7'; INSERT INTO t VALUES (3, 30, 300);"
    " ALTER TABLE t ALTER c TYPE timestamp(0); INSERT INTO t VALUES (4, 40, 400)",
}


@pytest.mark.parametrize("script", UNTOLD.values(), ids=UNTOLD)
def test_what_cannot_be_told_ends_the_capture_and_says_what_to_do(db: Db, url: str, script: str) -> None:
    db.execute(TABLE)
    with opened(url) as source:
        mirror = begin(source)
        if "timestamp" in script:
            first, _, script = script.partition("; ")
            run(db, first)
            run(db, "INSERT INTO t VALUES (8, 8, 8)")
            catch_up(source, mirror)
        with pytest.raises((SourceGone, SourceUnreadable), match="restart=True"):
            run(db, script)
            catch_up(source, mirror)
    with opened(url) as source:
        assert shown(begin(source)) == there(db)


@pytest.mark.parametrize(
    ("declared", "default"),
    [
        ("box", "(1,1),(0,0)"),  # Of boxes the catalog's array has no commas in between; the first piece was taken.
        ("box[]", "{(1,1),(0,0);(3,3),(2,2)}"),
        ("text", 'a,"b"{;}'),
        ("text", ""),
        ("text", "NULL"),
        ("text[]", '{a,"b,c",NULL,"NULL"}'),
        ("bytea", "\\x00ff"),
        ("numeric(5, 2)", "1.50"),
        ("point", "(1,2)"),
    ],
)
@pytest.mark.parametrize("made", ["CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", PARTITIONED])
def test_old_rows_have_the_default_of_a_new_column_whatever_its_type(
    db: Db, url: str, declared: str, default: str, made: str
) -> None:
    db.execute(made)  # type: ignore[call-overload]
    with opened(url) as source:
        mirror = begin(source)
        db.execute(f"ALTER TABLE t ADD c {declared} DEFAULT '{default}'")  # type: ignore[call-overload]
        db.execute("INSERT INTO t VALUES (9)")
        catch_up(source, mirror)
        (_, old), *_, (_, new) = shown(mirror)
        assert old == new is not None


@pytest.mark.parametrize(
    ("declared", "default"), [("date", "infinity"), ("numeric(5, 2)", "NaN"), ("int[]", "{{1},{2}}")]
)
def test_a_new_column_whose_value_in_old_rows_can_be_none_here_is_named(
    db: Db, url: str, declared: str, default: str
) -> None:
    """It was taken for a defect of ours."""
    run(db, TABLE)
    with opened(url) as source:
        mirror = begin(source)
        db.execute(f"ALTER TABLE t ADD c {declared} DEFAULT '{default}'")  # type: ignore[call-overload]
        db.execute("INSERT INTO t (id, c) VALUES (3, NULL)")
        with pytest.raises(SourceUnreadable, match=r"table 't', column 'c', which was added .*leave the table out"):
            catch_up(source, mirror)


def test_a_column_of_a_partitioned_table_has_in_old_rows_what_its_partitions_say(db: Db, url: str) -> None:
    db.execute(PARTITIONED)
    with opened(url) as source:
        mirror = begin(source)
        db.execute("ALTER TABLE t ADD c int DEFAULT 5; UPDATE t SET c = c + 1 WHERE id = 1")
        catch_up(source, mirror)
        assert shown(mirror) == there(db) == [(1, 6), (2, 5), (3, 5)]


@pytest.mark.parametrize("wanted", [(), ("t",)])
def test_a_table_that_takes_the_name_of_a_captured_one_is_not_taken_for_it(
    db: Db, url: str, wanted: tuple[str, ...]
) -> None:
    db.execute(TABLE)
    with opened(url) as source:
        mirror = begin(source, *wanted)
        db.execute("ALTER TABLE t RENAME TO t_old; CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
        db.execute("INSERT INTO t VALUES (1, 1, 1)")
        with pytest.raises(SourceGone, match=r"table 't' .* another one took its name.*restart=True"):
            catch_up(source, mirror)


def test_a_table_whose_changes_name_no_rows_is_left_alone_unless_it_is_named(db: Db, url: str) -> None:
    """Published, its server would refuse the application's updates."""
    db.execute(TABLE + "; ALTER TABLE t REPLICA IDENTITY NOTHING; CREATE TABLE u (id int PRIMARY KEY)")
    with opened(url) as source:
        mirror = begin(source)
        db.execute("UPDATE t SET a = 1")
        catch_up(source, mirror)
        assert set(mirror.rows) == {"u"} and "REPLICA IDENTITY NOTHING" in source.left_out["t"]


def test_a_table_that_somebody_keeps_locked_holds_up_no_other(
    postgres: Server, pg_database: str, db: Db, url: str
) -> None:
    """Also while it is being dropped."""
    db.execute(TABLE + "; CREATE TABLE u (id int PRIMARY KEY)")
    with opened(url) as source, postgres.connect(pg_database, autocommit=False) as other:
        mirror = begin(source)
        for statement in ("LOCK TABLE t IN ACCESS EXCLUSIVE MODE", "DROP TABLE t"):
            other.execute(statement)  # type: ignore[call-overload]
            db.execute("INSERT INTO u SELECT count(*) FROM u")
            catch_up(source, mirror)
            assert len(mirror.rows["u"]) == len(db.execute("SELECT FROM u").fetchall())
        other.commit()
        catch_up(source, mirror)
        assert set(mirror.rows) == {"u"}


def test_large_values_that_a_large_transaction_leaves_alone_are_those_that_were_there(
    tmp_path: Any, db: Db, url: str
) -> None:
    """Larger than what a transaction holds in memory: rows that were there before, and rows of its own."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text); ALTER TABLE t ALTER b SET STORAGE EXTERNAL")
    large = "repeat(md5(n::text), 100)"
    db.execute(f"INSERT INTO t SELECT n, n, {large} FROM generate_series(1, 600) n")  # type: ignore[call-overload]
    settings = DatabaseSettings(pipeline=False, transaction_buffer_bytes=1 << 16)
    with tidegate.open(tmp_path / "x.tide", settings=settings) as here, here.capture(url, name="c") as capture:
        db.execute("UPDATE t SET a = a + 1")
        capture.catch_up()
        with db.transaction():
            db.execute(f"INSERT INTO t SELECT n, n, {large} FROM generate_series(601, 900) n")  # type: ignore[call-overload]
            db.execute("UPDATE t SET a = a + 1")
            db.execute("DELETE FROM t WHERE id % 10 = 0")
            db.execute("UPDATE t SET id = id + 10000 WHERE id % 10 = 1")
            db.execute("UPDATE t SET a = a + 1, b = CASE id % 7 WHEN 0 THEN 'short' ELSE b END")
        capture.catch_up()
        with db.transaction():  # And once more, all of it new.
            db.execute("UPDATE t SET a = a + 1; TRUNCATE t")
            db.execute(f"INSERT INTO t SELECT n, n, {large} FROM generate_series(1, 300) n")  # type: ignore[call-overload]
            db.execute("UPDATE t SET a = a + 1 WHERE id % 2 = 0")
            state = there(db)
        found = here.query("SELECT id, a, b FROM t", "strong").rows()
        assert len(found) == 810
        capture.catch_up()
        found = here.query("SELECT id, a, b FROM t", "strong").rows()
        assert sorted((tuple(row.values()) for row in found), key=repr) == state


@pytest.mark.parametrize("empties", [False, True])
def test_a_column_that_a_large_transaction_adds_has_its_value_in_the_rows_that_are_there_then(
    tmp_path: Any, db: Db, url: str, empties: bool
) -> None:
    """Those of before, and those that it has brought, changed, moved and taken away: it ended the capture."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text); ALTER TABLE t ALTER b SET STORAGE EXTERNAL")
    large = "repeat(md5(n::text), 100)"
    db.execute(f"INSERT INTO t SELECT n, n, {large} FROM generate_series(1, 100) n")  # type: ignore[call-overload]
    settings = DatabaseSettings(pipeline=False, transaction_buffer_bytes=1 << 16)
    with tidegate.open(tmp_path / "x.tide", settings=settings) as here, here.capture(url, name="c") as capture:
        with db.transaction():
            if empties:
                db.execute("TRUNCATE t")
            db.execute(f"INSERT INTO t SELECT n, n, {large} FROM generate_series(601, 900) n")  # type: ignore[call-overload]
            db.execute("DELETE FROM t WHERE id % 10 = 0")
            db.execute("UPDATE t SET a = -a WHERE id % 10 = 2; UPDATE t SET id = id + 10000 WHERE id % 10 = 1")
            db.execute("ALTER TABLE t ADD c int DEFAULT 7")
            db.execute("INSERT INTO t VALUES (20000, 1, 'x', 8); UPDATE t SET c = NULL WHERE id % 10 = 3")
            db.execute("ALTER TABLE t ADD d text DEFAULT 'd', ADD e int; ALTER TABLE t RENAME c TO f")
            db.execute("UPDATE t SET a = a + 1, e = 5 WHERE id % 2 = 0; UPDATE t SET id = id + 1000 WHERE id % 10 = 5")
        capture.catch_up()
        found = here.query("SELECT id, a, b, f, d, e FROM t", "strong").rows()
        state = db.execute("SELECT id, a, b, f, d, e FROM t").fetchall()
        assert sorted((tuple(row.values()) for row in found), key=repr) == sorted(state, key=repr)


def test_a_large_transaction_that_moves_rows_and_leaves_values_alone_ends_as_the_source_has_it(
    tmp_path: Any, db: Db, url: str
) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text); ALTER TABLE t ALTER b SET STORAGE EXTERNAL")
    settings = DatabaseSettings(pipeline=False, transaction_buffer_bytes=1 << 16)
    with tidegate.open(tmp_path / "x.tide", settings=settings) as here, here.capture(url, name="c") as capture:
        with db.transaction():
            db.execute("INSERT INTO t SELECT n, n, repeat(md5(n::text), 100) FROM generate_series(1, 500) n")
            db.execute("UPDATE t SET a = 0 WHERE id % 3 = 0; DELETE FROM t WHERE id % 10 = 0")
            db.execute("UPDATE t SET id = -id WHERE id % 5 = 1; UPDATE t SET b = 'short' WHERE id % 7 = 0")
            db.execute("UPDATE t SET a = a + 1; ALTER TABLE t RENAME b TO body; UPDATE t SET a = a + 1")
        capture.catch_up()
        found = here.query("SELECT id, a, body FROM t", "strong").rows()
        assert sorted((tuple(row.values()) for row in found), key=repr) == there(db)
