"""Fixtures of tests with real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apply_rig import Rig
from helpers import eventually
from pg_server import Server, shared


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests of a process."""
    server = shared()
    yield server
    server.stop()


@pytest.fixture
def pg_database(postgres: Server) -> Iterator[str]:
    """An empty database of it, removed with its slots at the end."""
    with postgres.database() as name:
        yield name


@pytest.fixture
def pg_rig(postgres: Server, pg_database: str, tmp_path: Path) -> Iterator[Rig]:
    """A database of ours to apply from, and an empty one there to apply to."""
    found = Rig(tmp_path / "here.tide", postgres.url(pg_database), postgres.connect(pg_database), "postgresql")
    yield found
    found.close()
    drop = "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname LIKE 'tidegate:%'"
    with postgres.connect("postgres") as connection:
        eventually(lambda: _is_done(connection, drop))


def _is_done(connection: Any, sql: str) -> bool:
    try:
        connection.execute(sql)
    except Exception:
        return False  # A session that is ending.
    return True
