"""Who uses the database, and who has been silent for too long.

A client in another process proves that it lives by its requests. One that is silent for longer than its lease is
given up: its transactions are aborted and its consumers removed, and whatever it asks later is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from tidegate.errors import LeaseLost

_AWAY_S: Final = 1.0
"""Without a look for so long, the owner itself stood still."""


@dataclass(slots=True)
class Client:
    """One opening of the database."""

    id: str
    name: str
    since_s: float
    seen_s: float
    lease_s: float | None
    """None for the process that owns the database: it lives as long as the owner."""


class Clients:
    """All clients of a database. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = Lock()
        self._clients: dict[str, Client] = {}
        self._looked_s = monotonic()

    def add(self, id: str, name: str, lease_ms: int | None) -> bool:
        """A client has come; whether it was here before: it comes again when it has missed an answer."""
        now = self._monotonic()
        with self._lock:
            known = id in self._clients
            self._clients[id] = Client(id, name, now, now, None if lease_ms is None else lease_ms / 1000)
            return known

    def check(self, id: str) -> None:
        """A sign of life.

        Raises: `LeaseLost` when it comes too late.
        """
        with self._lock:
            client = self._clients.get(id)
            if client is None:
                raise LeaseLost(
                    f"client {id} was silent for longer than its lease, and its transactions and consumers were ended;"
                    f" open the database again"
                )
            client.seen_s = self._monotonic()

    def remove(self, id: str) -> None:
        """It has left."""
        with self._lock:
            self._clients.pop(id, None)

    def take_silent(self) -> list[str]:
        """Give up those whose lease has run out; their ids."""
        now = self._monotonic()
        with self._lock:
            away_s, self._looked_s = now - self._looked_s, now
            if away_s > _AWAY_S:
                # We stood still ourselves: nobody could be heard. Everybody gets that time on top.
                for each in self._clients.values():
                    each.seen_s = min(each.seen_s + away_s, now)
            gone = [
                each.id
                for each in self._clients.values()
                if each.lease_s is not None and now - each.seen_s > each.lease_s
            ]
            for id in gone:
                del self._clients[id]
        return gone

    def all(self) -> list[Client]:
        with self._lock:
            return list(self._clients.values())


OWNER: Final = "owner"
"""The client id of the process that owns the database."""
