"""`Consumer`: what `db.subscribe()` gives: messages of a topic, one after the other, until they are acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.database.received import Received
from tidegate.database.remote.client import Disconnected
from tidegate.errors import Closed, Conflict, InvalidArgument, LeaseLost
from tidegate.topics.message_id import MessageId

if TYPE_CHECKING:
    from tidegate.database.database import Database

T = TypeVar("T")
_POLL_S = 1.0
_AHEAD = 100


class Consumer:
    """One consumer of a subscription. Use it from one thread."""

    def __init__(self, database: Database, topic: str, name: str, options: dict[str, Any]) -> None:
        self._database = database
        self.topic = topic
        self.name = name
        self._options = options
        self._id = ""
        self._life = 0
        """Which connection to the owner it was made for."""
        self._ahead: deque[Received] = deque()
        self._is_closed = False
        self.connect()

    def connect(self) -> str:
        """Connect to the subscription, again if the owner has changed; its id there."""
        if self._is_closed:
            raise Closed(f"the consumer of subscription {self.name!r} was closed; subscribe again")
        if self._life != self._database.life:
            self._ahead.clear()  # The new owner delivers them again, here or to somebody else.
            self._id = self._database.backend.subscribe(self.topic, self.name, self._options)
            self._life = self._database.life
        return self._id

    @property
    def id(self) -> str:
        """Its name among the consumers of the subscription."""
        return self._id

    def receive(self, timeout: float | None = None) -> Received | None:
        """The next message; None when the time is up without one. Without a timeout it waits."""
        if not self._ahead:
            # What is fetched ahead and given back unseen counts as redelivered, so not where that is counted.
            ahead = 1 if self._options.get("max_redeliveries") is not None else _AHEAD
            self._ahead.extend(self.receive_many(ahead, timeout))
        return self._ahead.popleft() if self._ahead else None

    def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Received]:
        """Up to `max_messages`, as soon as there is one; empty when the time is up."""
        if max_messages < 1:
            raise InvalidArgument(f"max_messages is at least 1, not {max_messages}")
        if self._ahead:
            return [self._ahead.popleft() for _ in range(min(max_messages, len(self._ahead)))]
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _POLL_S if deadline is None else max(deadline - time.monotonic(), 0)
            via, found = self._receive(max_messages, min(left, _POLL_S))
            if found:
                for each in found:
                    each.consumer, each.via = self, via
                return found
            if deadline is not None and time.monotonic() >= deadline:
                return []

    def _receive(self, max_messages: int, timeout_s: float) -> tuple[str, list[Received]]:
        def call() -> tuple[str, list[Received]]:
            via = self._id
            return via, self._database.backend.receive(via, max_messages, timeout_s)

        return self._call(call)

    async def receive_async(self, timeout: float | None = None) -> Received | None:
        """`receive` for asyncio."""
        if self._ahead:
            return self._ahead.popleft()
        return await asyncio.to_thread(self.receive, timeout)

    def __iter__(self) -> Iterator[Received]:
        while not self._is_closed:
            message = self.receive(_POLL_S)
            if message is not None:
                yield message

    def ack(self, messages: Received | Sequence[Received]) -> None:
        """Acknowledge messages: durable when this returns, and never delivered again."""
        self._ack(messages, cumulative=False)

    def ack_cumulative(self, message: Received) -> None:
        """Acknowledge everything in the message's shard up to it."""
        self._ack(message, cumulative=True)

    def _ack(self, messages: Received | Sequence[Received], *, cumulative: bool) -> None:
        many = messages if isinstance(messages, Sequence) else [messages]
        for consumer, via, ids in by_consumer(many):

            def call(via: str = via, ids: list[MessageId] = ids) -> None:
                self._database.backend.ack(via, ids, cumulative=cumulative, txn=None)

            with consumer.checking(via):
                self._call(call)

    @contextmanager
    def checking(self, via: str) -> Iterator[None]:
        """Tell who lost his place with an owner that is gone from who lost it for good.

        Raises: `Conflict` when what was received as `via` is delivered again.
        """
        try:
            yield
        except LeaseLost as error:
            if via == self._id and self._life == self._database.life:
                raise
            raise Conflict(
                f"subscription {self.name!r}: what was received through an owner that is gone and not acknowledged is"
                f" delivered again; receive it again"
            ) from error

    def nack(self, messages: Received | Sequence[Received], delay: float = 0.0) -> None:
        """Have messages delivered again, after `delay` seconds."""
        ids = [each.id for each in (messages if isinstance(messages, Sequence) else [messages])]
        self._call(lambda: self._database.backend.nack(self._id, ids, round(delay * 1000)))

    def redeliver(self) -> None:
        """Have everything delivered again that this consumer was given and has not acknowledged."""
        self._ahead.clear()
        self._call(lambda: self._database.backend.redeliver(self._id))

    def stats(self) -> dict[str, Any]:
        """Backlog, lag and counts of the subscription."""
        found: dict[str, Any] = self._call(lambda: self._database.backend.subscription_stats(self.topic, self.name))
        return found

    def close(self) -> None:
        """Leave. What was delivered and not acknowledged goes to others."""
        if not self._is_closed:
            self._is_closed = True
            self._database.forget(self)
            if self._life == self._database.life:
                with suppress(Disconnected, LeaseLost):  # Then it is gone with the owner, or was given up already.
                    self._database.backend.disconnect(self._id)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, call: Callable[[], T]) -> T:
        def connected() -> T:
            self.connect()
            return call()

        return self._database.again(connected)


def by_consumer(messages: Iterable[Received]) -> list[tuple[Consumer, str, list[MessageId]]]:
    """The ids of messages by the consumer that received them, and the id it then had.

    Raises: `InvalidArgument` for what was not received.
    """
    found: dict[tuple[Consumer, str], list[MessageId]] = {}
    messages = list(messages)
    if len({type(each) for each in messages}) == 1 and type(messages[0]) is Received:
        consumer, via = messages[0].consumer, messages[0].via
        if consumer is not None and all([each.consumer is consumer and each.via == via for each in messages]):
            return [(consumer, via, [each.id for each in messages])]  # Mostly.
    for each in messages:
        if not isinstance(each, Received) or each.consumer is None:
            raise InvalidArgument(f"only a message that was received can be acknowledged, not {each!r}")
        found.setdefault((each.consumer, each.via), []).append(each.id)
    return [(consumer, via, ids) for (consumer, via), ids in found.items()]
