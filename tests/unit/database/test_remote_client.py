"""A client's connection to the owner: what is under way when it is given up comes to its end first."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.database.remote import client, frames
from tidegate.database.remote.client import Disconnected, RemoteBackend

HELLO = {
    "version": frames.VERSION, "pid": 1, "channels": 1, "limits": {}, "database": "00", "lease_ms": 60_000_000,
}  # fmt: skip


class Connection:
    """As Arrow's client: whoever calls it while it is closed, or closes it during a call, ends the process."""

    def __init__(self) -> None:
        self.under_way, self.goes_on = Event(), Event()
        self.calls = 0
        self.closed: list[int] = []
        """How many calls were under way at each closing."""

    def do_action(self, action: Any, _: object) -> Iterator[Any]:
        assert not self.closed
        self.calls += 1
        try:
            if action.type == "now":
                self.under_way.set()
                assert self.goes_on.wait(60)
            answer = {"ok": HELLO if action.type == "hello" else 5}
            yield SimpleNamespace(body=frames.pack(answer, ()))
        finally:
            self.calls -= 1

    def close(self) -> None:
        self.closed.append(self.calls)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    found = Connection()
    monkeypatch.setattr(client, "find", lambda _: "grpc+unix:///nowhere")
    monkeypatch.setattr(client.flight, "connect", lambda _: found)
    return found


@pytest.mark.parametrize("goodbye", [False, True])
def test_a_connection_is_closed_when_the_last_call_has_come_back(connection: Connection, goodbye: bool) -> None:
    """Arrow frees what calls of other threads work with: a process was seen to die of it (SIGSEGV)."""
    backend = RemoteBackend(Path("shop.tide"), "me", "me", 10.0)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(backend.now)
        assert connection.under_way.wait(60)
        backend.drop(goodbye=goodbye)
        assert connection.closed == []
        with pytest.raises(Disconnected, match="topic: the connection was given up"):
            backend.topic("t")
        connection.goes_on.set()
        assert asked.result(60) == 5
    assert connection.closed == [0]
    backend.drop(goodbye=goodbye)
    assert connection.closed == [0]


def test_a_connection_without_calls_is_closed_at_once(connection: Connection) -> None:
    backend = RemoteBackend(Path("shop.tide"), "me", "me", 10.0)
    backend.close()
    assert connection.closed == [0]
