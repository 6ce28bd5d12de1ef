"""Two databases of PostgreSQL, each captured and applied to the other: a change ends where it began."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tidegate
from database_rig import quick
from helpers import eventually
from pg_server import Server
from tidegate.capture.apply_origin import first_of
from tidegate.capture.target import open_target


@pytest.fixture
def server() -> Iterator[Server]:
    """One of its own: origins are the server's."""
    found = Server()
    yield found
    found.stop()


def _ordinary_user(server: Server, databases: list[str]) -> str:
    """One who may replicate and owns the databases, and may not use origins."""
    with server.connect("postgres") as connection:
        connection.execute("CREATE ROLE ordinary LOGIN REPLICATION")
        for each in databases:
            connection.execute(f'ALTER DATABASE "{each}" OWNER TO ordinary')  # type: ignore[arg-type,unused-ignore]
            with server.connect(each) as inside:
                inside.execute("ALTER SCHEMA public OWNER TO ordinary")
    return "ordinary"


@pytest.mark.parametrize(
    ("said_by", "mode"),
    [
        ("origins", "streaming"),
        ("messages, for want of rights", "streaming"),
        ("messages, for want of rights", "polling"),
        ("messages, for want of room", "streaming"),
    ],
)
def test_a_change_does_not_go_round_between_two_servers_databases(said_by: str, mode: str, tmp_path: Path) -> None:
    """Both ways with `overwrite`, by two Tidegates: each transaction says where it first happened."""
    # With room for two origins: each side needs two, one for its first copy and one for what it has captured.
    server = Server(max_replication_slots="2") if "room" in said_by else Server()
    with ExitStack() as stack:
        stack.callback(server.stop)
        names = [server.new_database(), server.new_database()]
        user = _ordinary_user(server, names) if "rights" in said_by else "postgres"
        urls = [server.url(each, user=user) for each in names]
        looks: list[Any] = [stack.enter_context(psycopg.connect(each, autocommit=True)) for each in urls]
        for look in looks:
            look.execute("CREATE TABLE t (id INT PRIMARY KEY, a TEXT)")
        dbs = [
            stack.enter_context(tidegate.open(tmp_path / f"{n}.tide", settings=quick(pipeline=False))) for n in (0, 1)
        ]
        for db, url, each in zip(dbs, urls, names, strict=True):
            db.capture(f"{url}&mode={mode}", ["t"], name=each)
        following = [
            stack.enter_context(db.apply("t", url, follow=True, policy="overwrite"))
            for db, url in zip(dbs, reversed(urls), strict=True)
        ]
        for number in range(6):
            look = looks[number % 2]
            look.execute("SET synchronous_commit = on")  # Only what is flushed is decoded.
            look.execute("INSERT INTO t VALUES (%s, 'x')", (number,))

            def has_come(rows: int = number + 1) -> bool:
                return all(len(each.execute("SELECT * FROM t").fetchall()) == rows for each in looks)

            eventually(has_come)
        # Rows are seen before they are counted. What had gone round would have been applied before the last ones.
        eventually(lambda: sum(each.transactions for each in following) >= 6)
        assert [each.transactions for each in following] == [3, 3]
        assert [each.error for each in following] == [None, None]
        assert [each.status()["warning"] for each in following] == [None, None]


@pytest.mark.parametrize("why", ["an old server", "no right"])
def test_where_nothing_can_say_it_apply_warns(server: Server, tmp_path: Path, why: str, monkeypatch: Any) -> None:
    """Before PostgreSQL 14 messages are not sent; and a server's owner may take the right to write them away."""
    name = server.new_database()
    user = _ordinary_user(server, [name])
    if why == "an old server":
        monkeypatch.setattr("tidegate.capture.target_postgres._MESSAGES_SINCE", 999_999)
    else:
        with server.connect(name) as owner:
            owner.execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pg_catalog FROM PUBLIC")
            owner.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pg_catalog TO ordinary")
            functions = "SELECT oid::regprocedure::text FROM pg_proc WHERE proname ~ %s"
            for (each,) in owner.execute(functions, ["^pg_logical_emit_message$|^pg_replication_origin"]).fetchall():
                owner.execute(f"REVOKE EXECUTE ON FUNCTION {each} FROM ordinary")  # type: ignore[arg-type,unused-ignore]
    with tidegate.open(tmp_path / "here.tide", settings=quick(pipeline=False)) as db:
        db.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        db.insert("t", [(1,)])
        done = db.apply("t", server.url(name, user=user))
        assert "GRANT EXECUTE on the functions pg_replication_origin_*" in done.status()["warning"]
    with server.connect(name) as look:
        assert look.execute("SELECT id FROM t").fetchall() == [(1,)]


def test_a_session_changes_its_origin_between_transactions(server: Server) -> None:
    """Where transactions of several sources are applied, each says its own; another session's origin gets a name."""
    url = server.url(server.new_database())
    first, second = open_target(url), open_target(url)
    try:
        for each in ("tidegate:aa", "tidegate:aa/from host:1/x", "tidegate:aa"):
            first.mark_origin(each, "name")
            assert first.run("SELECT pg_replication_origin_session_is_setup()") == [(True,)]
        second.mark_origin("tidegate:aa/from host:1/x", "a/name")  # It is free by now.
        second.mark_origin("tidegate:aa", "a/name")
        made = {str(name) for (name,) in first.run("SELECT roname FROM pg_replication_origin")}
        assert made == {"tidegate:aa", "tidegate:aa/from host:1/x", "tidegate:aa/a%2Fname"}
        assert {first_of(each, "s") for each in made} == {"tidegate:aa", "host:1/x"}
    finally:
        first.close()
        second.close()
