"""Policies that hide rows of a table from its user: their changes come all the same, so the rows may not be missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pg_mirror import begin, catch_up, opened
from pg_server import Server
from tidegate.errors import InvalidArgument

Db = psycopg.Connection[Any]
HIDE = "ALTER TABLE {0} ENABLE ROW LEVEL SECURITY; ALTER TABLE {0} FORCE ROW LEVEL SECURITY;"


@pytest.fixture
def db(postgres: Server, pg_database: str) -> Iterator[Db]:
    """All of it belongs to a user who may replicate, and must obey policies."""
    with postgres.connect(pg_database) as connection:
        connection.execute("DROP ROLE IF EXISTS lodger; CREATE ROLE lodger LOGIN REPLICATION")
        connection.execute(f"GRANT ALL ON DATABASE {pg_database} TO lodger; GRANT ALL ON SCHEMA public TO lodger")  # type: ignore[call-overload]
        connection.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
        connection.execute("ALTER TABLE t OWNER TO lodger")
        yield connection
        connection.execute("REASSIGN OWNED BY lodger TO postgres; DROP OWNED BY lodger; DROP ROLE lodger")


@pytest.fixture
def url(postgres: Server, pg_database: str) -> str:
    return postgres.url(pg_database, user="lodger")


def test_a_snapshot_that_would_lack_rows_is_none(db: Db, url: str) -> None:
    """It was taken without them, in silence."""
    db.execute(HIDE.format("t") + "CREATE POLICY one ON t USING (id = 1)")  # type: ignore[call-overload]
    with opened(url) as source:
        with pytest.raises(InvalidArgument, match=r"row-level security policy for table \"t\".*BYPASSRLS"):
            begin(source)
        db.execute("ALTER ROLE lodger BYPASSRLS")
        assert set(begin(source).rows["t"]) == {(1,), (2,)}


def test_a_table_that_is_created_later_with_hidden_rows_is_left_out_and_the_others_go_on(db: Db, url: str) -> None:
    with opened(url) as source:
        mirror = begin(source)
        with db.transaction():
            db.execute("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1)")
            db.execute("ALTER TABLE later OWNER TO lodger; " + HIDE.format("later"))  # type: ignore[call-overload]
        db.execute("INSERT INTO t VALUES (3)")
        catch_up(source, mirror)
        assert "BYPASSRLS, then restart=True" in source.left_out["later"]
        assert set(mirror.rows) == {"t"} and len(mirror.rows["t"]) == 3
