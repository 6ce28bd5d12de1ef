"""Steps: a procedure that waits for appends, written once and run by a thread, an event loop or the simulator.

A procedure is a generator. It yields what it waits for, a list, and goes on when all of it is done; errors are on
what was waited for. Between two yields it does not wait, so that it can hold a lock there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, Final, Protocol, TypeVar

from tidegate.errors import TidegateError
from tidegate.runtime.pending import PendingAppend

T = TypeVar("T")


class Waitable(Protocol):
    """Something that will be done."""

    def begin(self) -> None:
        """Start it without waiting, if it was not started; never raises."""

    def wait(self) -> None:
        """Start it and wait until it is done; never raises."""

    def add_done_callback(self, callback: Callable[[Any], Any], /) -> None:
        """Call `callback` once it is done."""


Steps = Generator[Sequence[Waitable], None, T]


class Request:
    """An append that is handed over when somebody waits for it: a thread then writes it itself, if nobody else does."""

    __slots__ = ("_begun", "_submit", "item", "refused")

    def __init__(self, item: PendingAppend, submit: Callable[[PendingAppend, bool], None]) -> None:
        """`submit(item, here)` hands it over; with `here` it may write in this thread, and returns when it is done."""
        self.item = item
        self._submit = submit
        self._begun = False
        self.refused: TidegateError | None = None
        """Why it could not be handed over."""

    @property
    def error(self) -> BaseException | None:
        """Why it failed, once it is done."""
        return self.refused if self.refused is not None else self.item.error

    def begin(self) -> None:
        self._start(False)

    def wait(self) -> None:
        self._start(True)
        if self.refused is None:
            self.item.exception()

    def _start(self, here: bool) -> None:
        if self._begun:
            return
        self._begun = True
        try:
            self._submit(self.item, here)
        except TidegateError as error:
            self.refused = error

    def add_done_callback(self, callback: Callable[[Any], Any], /) -> None:
        if self.refused is not None:
            callback(self)
        else:
            self.item.add_done_callback(callback)


class Under:
    """An append that is on its way already."""

    __slots__ = ("item",)

    def __init__(self, item: PendingAppend) -> None:
        self.item = item

    @property
    def error(self) -> BaseException | None:
        return self.item.error

    def begin(self) -> None:
        pass

    def wait(self) -> None:
        self.item.exception()

    def add_done_callback(self, callback: Callable[[Any], Any], /) -> None:
        self.item.add_done_callback(callback)


class InOrder:
    """Appends that are handed over one behind the other: nothing waited for beside them comes in between."""

    __slots__ = ("requests",)

    def __init__(self, requests: Sequence[Request]) -> None:
        """At least one."""
        self.requests = requests

    def begin(self) -> None:
        for each in self.requests:
            each.begin()

    def wait(self) -> None:
        for each in self.requests[:-1]:
            each.begin()
        for each in reversed(self.requests):
            each.wait()

    def add_done_callback(self, callback: Callable[[Any], Any], /) -> None:
        left = list(self.requests)

        def done(_: object) -> None:
            if left:
                left.pop().add_done_callback(done)
            else:
                callback(self)

        done(self)


class Gate:
    """Opened once by somebody else. Costs next to nothing while nobody waits."""

    __slots__ = ("_callbacks", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._callbacks: list[Callable[[Any], Any]] | None = None

    def open(self) -> None:
        with _GATES:
            self.is_open = True
            callbacks, self._callbacks = self._callbacks, None
        for each in callbacks or ():
            each(self)

    def begin(self) -> None:
        pass

    def wait(self) -> None:
        if not self.is_open:
            opened = Event()
            self.add_done_callback(lambda _: opened.set())
            opened.wait()

    def add_done_callback(self, callback: Callable[[Any], Any], /) -> None:
        with _GATES:
            if not self.is_open:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        callback(self)


_GATES: Final = Lock()
"""Covers the callbacks of all gates: it is held for moments, and seldom asked for."""


def run(steps: Steps[T]) -> T:
    """Run a procedure in this thread. Interrupted while it waits, it is carried on elsewhere."""
    try:
        while True:
            waits = next(steps)
            try:
                for each in waits[:-1]:
                    each.begin()
                for each in reversed(waits):
                    each.wait()
            except BaseException:  # Ctrl-C
                _carry_on(steps, waits)
                raise
    except StopIteration as stop:
        value: T = stop.value
        return value


async def run_async(steps: Steps[T]) -> T:
    """Run a procedure in an event loop, in whose thread nothing waits. Cancelled, it is carried on elsewhere."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            waits = next(steps)
            try:
                for each in waits:
                    each.begin()
                for each in waits:
                    done: asyncio.Future[None] = loop.create_future()
                    each.add_done_callback(partial(_resolve, loop, done))
                    await done
            except BaseException:
                _carry_on(steps, waits)
                raise
    except StopIteration as stop:
        value: T = stop.value
        return value


def _carry_on(steps: Steps[Any], waits: Sequence[Waitable]) -> None:
    """Finish a procedure whose caller has gone: what it waits for happens all the same, and it must take note of it."""

    def finish() -> None:
        for each in waits:
            each.wait()
        with suppress(TidegateError):  # Whoever asks again is told.
            run(steps)

    Thread(target=finish, name="tidegate-carry-on", daemon=True).start()


def _resolve(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], _: object) -> None:
    def resolve() -> None:
        if not done.done():
            done.set_result(None)

    with suppress(RuntimeError):  # The loop was closed: nobody waits any more.
        loop.call_soon_threadsafe(resolve)
