"""What PostgreSQL's log has no word of: partitions that come and go, tables that are created or created anew.

Source: nothing is lost in silence; what cannot be followed ends the capture, with what to do (issue 7).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pg_mirror import Mirror, begin, catch_up, opened
from pg_server import Server
from tidegate.capture.pg_source import PgSource
from tidegate.errors import SourceGone

Db = psycopg.Connection[Any]
ANEW = "take a new snapshot: restart=True, or --restart"


@pytest.fixture
def db(postgres: Server, pg_database: str) -> Iterator[Db]:
    with postgres.connect(pg_database) as connection:
        connection.execute(
            "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
            "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);"
            "INSERT INTO p VALUES (1, 'a'), (11, 'b')"
        )
        yield connection


@pytest.fixture(params=["streaming", "polling"])
def url(request: pytest.FixtureRequest, postgres: Server, pg_database: str) -> str:
    return postgres.url(pg_database, mode=request.param)


@pytest.fixture
def source(db: Db, url: str) -> Iterator[PgSource]:
    with opened(url) as found:
        yield found


def resumed(url: str, mirror: Mirror, wanted: list[str] | None = None) -> None:
    """Another run of the capture: up to now."""
    with opened(url) as source:
        source.tables(wanted)
        source.resume(mirror.position, list(mirror.tables.values()))
        catch_up(source, mirror)


def rows(db: Db, name: str) -> list[Any]:
    return sorted(db.execute(f"SELECT id FROM {name}").fetchall())  # type: ignore[call-overload]


UNSAID = {
    "TRUNCATE p1": "'p1' of table 'p' .* was truncated",
    "BEGIN; TRUNCATE p1; INSERT INTO p VALUES (3, 'c'); COMMIT": "'p1' of table 'p' .* was truncated",
    "ALTER TABLE p DETACH PARTITION p2": "'p2' of table 'p' .* was detached or dropped",
    "DROP TABLE p2": "'p2' of table 'p' .* was detached or dropped",
    "ALTER TABLE p DETACH PARTITION p2; DELETE FROM p2;"
    "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)": "'p2' of table 'p' .* was detached",
    "CREATE TABLE p3 (id int PRIMARY KEY, v text); INSERT INTO p3 VALUES (21, 'x');"
    "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)": "'p3' of table 'p' .* was attached with rows",
    "BEGIN; CREATE TABLE p3 (id int PRIMARY KEY, v text); INSERT INTO p3 VALUES (21, 'x');"
    "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30); COMMIT": "'p3' .* was attached with rows",
    "TRUNCATE p; INSERT INTO p VALUES (2, 'c'), (12, 'd'); TRUNCATE p2": "'p2' of table 'p' .* was truncated",
}


def run(db: Db, script: str) -> None:
    for statement in script.split(";"):
        db.execute(statement)  # type: ignore[call-overload]


@pytest.mark.parametrize("script", UNSAID)
def test_rows_that_come_or_go_with_a_partition_end_the_capture(db, source, script):
    mirror = begin(source)
    run(db, script)
    with pytest.raises(SourceGone, match=f"partition {UNSAID[script]}.*{ANEW}"):
        catch_up(source, mirror)


@pytest.mark.parametrize("script", UNSAID)
def test_partitions_that_came_or_went_while_nobody_listened_are_noticed_each_time(db, url, script):
    with opened(url) as source:
        mirror = begin(source)
    run(db, script)
    for _ in range(2):
        with pytest.raises(SourceGone, match=f"partition {UNSAID[script]}.*{ANEW}"):
            resumed(url, mirror)
    with opened(url) as source:
        mirror = begin(source)
        catch_up(source, mirror)
    assert sorted(mirror.rows["p"]) == rows(db, "p")


def test_a_truncated_partition_is_noticed_without_being_asked(db, url):
    with opened(url, idle_s=0.1) as source:
        begin(source)
        db.execute("TRUNCATE p1")
        with pytest.raises(SourceGone, match=f"'p1' of table 'p' .* was truncated.*{ANEW}"):
            for _ in range(50):
                list(source.transactions(0.2))


def test_partitions_that_bring_and_take_no_rows_are_followed(db, url):
    """Made as one, attached while it is empty, written anew with its rows; and all of the table truncated, which is
    said: also when another process goes on behind it, or before."""
    with opened(url) as source:
        mirror = begin(source)
        run(
            db,
            "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30); INSERT INTO p VALUES (21, 'n');"
            "CREATE TABLE p4 (id int PRIMARY KEY, v text);"
            "ALTER TABLE p ATTACH PARTITION p4 FOR VALUES FROM (30) TO (40); INSERT INTO p VALUES (31, 'n');"
            "CREATE TABLE p5 PARTITION OF p FOR VALUES FROM (50) TO (60) PARTITION BY RANGE (id);"
            "CREATE TABLE p50 PARTITION OF p5 FOR VALUES FROM (50) TO (55); INSERT INTO p VALUES (51, 'n');"
            "VACUUM FULL p1; INSERT INTO p VALUES (12, 'n'); CLUSTER p2 USING p2_pkey",
        )
        catch_up(source, mirror)
        assert sorted(mirror.rows["p"]) == rows(db, "p")
        run(db, "TRUNCATE p; INSERT INTO p VALUES (2, 'c'), (32, 'd')")
        catch_up(source, mirror)
        assert sorted(mirror.rows["p"]) == rows(db, "p") == [(2,), (32,)]
    resumed(url, mirror)
    run(db, "BEGIN; INSERT INTO p VALUES (3, 'c'); TRUNCATE p; INSERT INTO p VALUES (4, 'd'); COMMIT; TRUNCATE p")
    run(db, "INSERT INTO p VALUES (5, 'd')")
    resumed(url, mirror)
    assert sorted(mirror.rows["p"]) == rows(db, "p") == [(5,)]
    db.execute("DROP TABLE p")
    resumed(url, mirror)


def test_partitions_of_partitions(db, source):
    db.execute(
        "CREATE TABLE p5 PARTITION OF p FOR VALUES FROM (50) TO (60) PARTITION BY RANGE (id);"
        "CREATE TABLE p50 PARTITION OF p5 FOR VALUES FROM (50) TO (55); INSERT INTO p VALUES (51, 'x')"
    )
    mirror = begin(source)
    db.execute("TRUNCATE p5")
    with pytest.raises(SourceGone, match=r"'p50' of table 'p' .* was truncated"):
        catch_up(source, mirror)


def test_a_partitioned_table_that_is_created_later_is_not_taken_and_that_is_said_once(db, url, caplog):
    later = "created later, and partitioned or of a publication of yours: take a new snapshot: restart=True"
    caplog.set_level(logging.WARNING, "tidegate.capture")
    with opened(url) as source:
        mirror = begin(source)
        db.execute("CREATE TABLE brand (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE loose (id int)")
        db.execute("CREATE TABLE brand1 PARTITION OF brand FOR VALUES FROM (0) TO (9); INSERT INTO brand VALUES (1)")
        catch_up(source, mirror)
        db.execute("INSERT INTO brand VALUES (2)")
        catch_up(source, mirror)
        assert source.left_out["brand"] == later
        assert "no primary key" in source.left_out["loose"]
    assert [each.getMessage().count("'brand'") for each in caplog.records] == [1]
    with opened(url) as source:
        source.tables(None)
        source.resume(mirror.position, list(mirror.tables.values()))
        assert source.left_out["brand"] == later
        catch_up(source, mirror)
    assert set(mirror.rows) == {"p"}
    with opened(url) as source:
        assert sorted(begin(source).rows["brand"]) == [(1,), (2,)]
        assert sorted(source.left_out) == ["loose"]


def test_a_table_beside_those_that_are_wanted_is_nobodys_business(db, url, caplog):
    with opened(url) as source:
        mirror = begin(source, "p")
        db.execute("CREATE TABLE brand (id int PRIMARY KEY)")
        catch_up(source, mirror)
        assert source.left_out == {} and not caplog.records


def test_a_table_that_was_dropped_and_created_anew_ends_the_capture_until_it_is_restarted(db, url):
    db.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    said = f"table 't' .* was dropped and created anew.*{ANEW}"
    with opened(url) as source:
        mirror = begin(source)
        db.execute("DROP TABLE t")
        catch_up(source, mirror)
        db.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (7)")
        with pytest.raises(SourceGone, match=said):
            catch_up(source, mirror)
    for wanted in (None, ["t", "p"], None):
        with pytest.raises(SourceGone, match=said):
            resumed(url, mirror, wanted)
    with opened(url) as source:
        mirror = begin(source)
        db.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(SourceGone, match=said):
            catch_up(source, mirror)


@pytest.mark.parametrize(
    "script",
    [
        "ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b",
        "ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a",
    ],
)
def test_columns_that_exchange_names_at_once_are_not_taken_for_what_they_were(db, source, script):
    """Rows that were there would have the values of one column under the name of the other."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text); INSERT INTO t VALUES (1, 'a', 'b')")
    mirror = begin(source)
    run(db, f"BEGIN; {script}; INSERT INTO t VALUES (2, 'c', 'd'); COMMIT")
    with pytest.raises(SourceGone, match=f"columns of 't' .* exchanged names, as 'a' did.*{ANEW}"):
        catch_up(source, mirror)
