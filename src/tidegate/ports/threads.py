"""What is asked of threads and of time by code that runs in several of its own: so that a simulator can be both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Running(Protocol):
    """A thread that was started."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or the time is up."""

    def is_alive(self) -> bool: ...

    @property
    def is_current(self) -> bool:
        """Whether it is the one that asks."""


class Condition(Protocol):
    """As of `threading`. Ordering: all but entering it is done inside."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> object: ...

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        """Wait until it is so, or the time is up. What it was then."""

    def notify_all(self) -> None:
        """Something has changed that others may wait for."""


class Event(Protocol):
    """As of `threading`."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Threads(Protocol):
    """Where threads come from, and their time."""

    def start(self, work: Callable[[], None], name: str) -> Running:
        """Begin a thread that does not keep the process from ending."""

    def condition(self) -> Condition: ...

    def event(self) -> Event: ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, from an arbitrary start."""


class SystemThread(threading.Thread):
    """One of the machine's."""

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self


class SystemThreads:
    """The machine's own."""

    def start(self, work: Callable[[], None], name: str) -> Running:
        thread = SystemThread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def condition(self) -> Condition:
        return threading.Condition()

    def event(self) -> Event:
        return threading.Event()

    def monotonic(self) -> float:
        return time.monotonic()


SYSTEM_THREADS = SystemThreads()
