"""`Procedure`: runs `Steps` under the scheduler: begins one wait after the other, and goes on when all are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tidegate.errors import TidegateError
from tidegate.runtime.steps import Gate, InOrder, Request, Steps, Under, Waitable

Done = Callable[[Any, TidegateError | None], None]
"""Told what a procedure returned, or what it failed with."""


class Procedure:
    """One procedure under way in one process."""

    def __init__(self, name: str, steps: Steps[Any], done: Done) -> None:
        self.name = name
        self._steps = steps
        self._done = done
        self._waits: Sequence[Waitable] = ()
        self._to_begin: list[Waitable] = []
        self.has_ended = False

    @property
    def can_go_on(self) -> bool:
        """Whether it has something to do now."""
        return bool(self._to_begin) or all(_is_done(each) for each in self._waits)

    def step(self, rng: Random) -> str:
        """Begin one of the things it waits for, or, when all are done, go on to the next."""
        if self._to_begin:
            self._to_begin.pop(rng.randrange(len(self._to_begin))).begin()
            return f"{self.name} hands over"
        try:
            self._waits = next(self._steps)
        except StopIteration as stop:
            self.has_ended = True
            self._done(stop.value, None)
            return f"{self.name} ends"
        except TidegateError as error:
            self.has_ended = True
            self._done(None, error)
            return f"{self.name} fails: {type(error).__name__}"
        self._to_begin = list(self._waits)
        return f"{self.name} goes on"


def _is_done(each: Waitable) -> bool:
    match each:
        case Request():
            return each.refused is not None or each.item.is_done
        case InOrder():
            return all(_is_done(request) for request in each.requests)
        case Under():
            return each.item.is_done
        case Gate():
            return each.is_open
    raise TypeError(f"{each!r} is nothing that a procedure waits for")
