"""Fixtures of tests with real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
