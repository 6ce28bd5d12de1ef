"""Two databases of PostgreSQL, each captured and applied to the other: a change ends where it began."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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


def test_a_change_does_not_go_round_between_two_servers_databases(server: Server, tmp_path: Path) -> None:
    """Both ways with `overwrite`, by two Tidegates: origins say where a transaction first happened."""
    names = [server.new_database(), server.new_database()]
    with ExitStack() as stack:
        looks: list[Any] = [stack.enter_context(server.connect(each)) for each in names]
        for look in looks:
            look.execute("CREATE TABLE t (id INT PRIMARY KEY, a TEXT)")
        dbs = [
            stack.enter_context(tidegate.open(tmp_path / f"{n}.tide", settings=quick(pipeline=False))) for n in (0, 1)
        ]
        for db, each in zip(dbs, names, strict=True):
            db.capture(server.url(each), ["t"], name=each)
        following = [
            stack.enter_context(db.apply("t", server.url(each), follow=True, policy="overwrite"))
            for db, each in zip(dbs, reversed(names), strict=True)
        ]
        for number in range(6):
            look = looks[number % 2]
            look.execute("SET synchronous_commit = on")  # Only what is flushed is decoded.
            look.execute("INSERT INTO t VALUES (%s, 'x')", (number,))

            def has_come(rows: int = number + 1) -> bool:
                return all(len(each.execute("SELECT * FROM t").fetchall()) == rows for each in looks)

            eventually(has_come)
        # Whatever had gone round would have been applied before the last rows were.
        assert [each.transactions for each in following] == [3, 3]
        assert [each.error for each in following] == [None, None]


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
