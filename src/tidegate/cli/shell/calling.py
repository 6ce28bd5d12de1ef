"""Calls that Ctrl-C, or a time limit, can leave: they run in a thread of their own, and whoever waits may stop waiting.

An exception in the midst of a call could leave the database's own locks and files half way, so none is ever thrown
into one: a call that was left goes on by itself, and what it returns is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import Final, Generic, TypeVar

from tidegate.errors import WaitTimeout

_TURN_S: Final = 0.05
T = TypeVar("T")


class Call(Generic[T]):
    """A call that is under way."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        # A lock, and not an Event: Ctrl-C in the midst of what an Event does with its own would be another error.
        self._end = Lock()
        self._end.acquire()
        self._is_done = False
        self._found: T | None = None
        self._error: BaseException | None = None
        Thread(target=self._run, name="tidegate sql", daemon=True).start()

    @property
    def is_done(self) -> bool:
        return self._is_done

    def _run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._is_done = True
            self._end.release()

    def settle(self, timeout_s: float | None) -> bool:
        """Wait for its end, whatever it comes to; whether it has."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # In turns: a signal may reach another thread first, and then only ends a wait that ends by itself.
            left_s = _TURN_S if deadline is None else min(deadline - time.monotonic(), _TURN_S)
            if self._is_done:  # Whoever saw the end may have been interrupted before he let go.
                return True
            if self._end.acquire(timeout=max(left_s, 0)):
                self._end.release()
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def wait(self, timeout_s: float | None = None) -> T:
        """What it returns. Raises: what it raises; `WaitTimeout`; KeyboardInterrupt, and may be waited for again."""
        if not self.settle(timeout_s):
            raise WaitTimeout(f"there was no answer within {timeout_s:g} s; SET timeout = none waits for it")
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]
