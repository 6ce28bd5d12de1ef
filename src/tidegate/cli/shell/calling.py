"""Calls that Ctrl-C, or a time limit, can leave: they run in a thread of their own, and whoever waits may stop waiting.

An exception in the midst of a call could leave the database's own locks and files half way, so none is ever thrown
into one: a call that was left goes on by itself, and what it returns is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

from tidegate.errors import WaitTimeout

T = TypeVar("T")


class Call(Generic[T]):
    """A call that is under way."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = Event()
        self._found: T | None = None
        self._error: BaseException | None = None
        Thread(target=self._run, name="tidegate sql", daemon=True).start()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def _run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def settle(self, timeout_s: float) -> bool:
        """Wait for its end, whatever it comes to; whether it has."""
        return self._done.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> T:
        """What it returns. Raises: what it raises; `WaitTimeout`; KeyboardInterrupt, and may be waited for again."""
        if not self._done.wait(timeout_s):
            raise WaitTimeout(f"there was no answer within {timeout_s:g} s; SET timeout = none waits for it")
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]
