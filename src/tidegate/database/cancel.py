"""`Cancel`: ends a query from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Thread
from typing import Final

INSIST_S: Final = 0.05


class Cancel:
    """Ends a query from outside. Thread-safe."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._interrupt: Callable[[], None] | None = None
        self.is_set = False

    def set(self) -> None:
        """End what runs, or would. Does not wait for it."""
        with self._changed:
            if not self.is_set:
                self.is_set = True
                Thread(target=self._insist, name="tidegate-cancel", daemon=True).start()

    def _insist(self) -> None:
        """An interruption that comes before a query has begun is lost, so it is repeated until the query has ended."""
        with self._changed:
            while self._interrupt is not None:
                self._interrupt()
                self._changed.wait(INSIST_S)

    @contextmanager
    def guarding(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Call `interrupt` if it is set while this lasts. Raises: `Cancelled` when it was set before."""
        with self._changed:
            if self.is_set:
                raise Cancelled
            self._interrupt = interrupt
        try:
            yield
        finally:
            with self._changed:
                self._interrupt = None
                self._changed.notify_all()


class Cancelled(Exception):
    """A query was ended before it began."""
