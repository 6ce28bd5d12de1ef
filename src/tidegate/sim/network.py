"""`Network`: carries requests and answers between clients and processes; loses, delays, reorders and repeats them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class NetPlan:
    """Chances per message; 0 turns a fault off."""

    lost: float
    repeated: float
    slow: float
    """That a message stays under way when its turn has come."""

    @classmethod
    def draw(cls, rng: Random) -> NetPlan:
        def maybe(chance: float, low: float, high: float) -> float:
            return rng.uniform(low, high) if rng.random() < chance else 0.0

        return cls(maybe(0.6, 0.01, 0.2), maybe(0.6, 0.02, 0.3), maybe(0.6, 0.1, 0.7))


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of a client. The same number is the same question, however often it is asked."""

    client: str
    number: int
    what: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process says to a request."""

    number: int
    how: str
    """`ok`, `committed`, `absent` (for certain, for ever), `retry` (nothing was written), `unknown`."""
    value: Any = None
    by: str = ""


Letter = tuple[str, str, Ask | Answer]
"""From, to, what."""


class Network:
    """Letters under way."""

    def __init__(self, rng: Random, plan: NetPlan, note: Callable[[str], None]) -> None:
        self._rng = rng
        self._plan = plan
        self._note = note
        self._letters: list[Letter] = []
        self.is_calm = False
        """Nothing is lost, repeated or delayed."""

    def __len__(self) -> int:
        return len(self._letters)

    def send(self, sender: str, to: str, what: Ask | Answer) -> None:
        rng, plan = self._rng, self._plan
        kind = "request" if isinstance(what, Ask) else "answer"
        if not self.is_calm and rng.random() < plan.lost:
            self._note(f"network loses a {kind}")
            return
        self._letters.append((sender, to, what))
        if not self.is_calm and rng.random() < plan.repeated:
            self._note(f"network repeats a {kind}")
            self._letters.append((sender, to, what))

    def take(self, is_there: Callable[[str], bool], exists: Callable[[str], bool]) -> Letter | None:
        """A letter that arrives now, at somebody who is there; None when none does."""
        self._letters = [letter for letter in self._letters if exists(letter[1])]
        ready = [at for at, letter in enumerate(self._letters) if is_there(letter[1])]
        if not ready or (not self.is_calm and self._rng.random() < self._plan.slow):
            return None
        return self._letters.pop(ready[0] if self.is_calm else self._rng.choice(ready))
