"""`MessageId`: which message of a topic, and its place in the order in which its shard became visible."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from tidegate.errors import InvalidArgument

SHARD_LIMIT: Final = 1 << 32
NUMBER_LIMIT: Final = 1 << 64


class MessageId(NamedTuple):
    """A message of a topic.

    Ordering: within a shard, ids compare in delivery order. All messages of a transaction carry its commit timestamp,
    and `position` orders them.

    >>> print(MessageId(3, 1700, 42))
    3:1700:42
    >>> MessageId.parse("3:1700:42") < MessageId(3, 1701, 7)
    True
    """

    shard: int
    timestamp: int
    position: int

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read what `str()` prints.

        Raises: `InvalidArgument` when it is anything else.
        """
        parts = text.split(":")
        # isdecimal alone would let through the digits of every script.
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise InvalidArgument(
                f"{text!r} is not a message id; write SHARD:TIMESTAMP:POSITION as a message prints it"
            )
        shard, timestamp, position = map(int, parts)
        if shard >= SHARD_LIMIT or timestamp >= NUMBER_LIMIT or position >= NUMBER_LIMIT:
            raise InvalidArgument(f"{text!r} is not a message id: a shard has 32 bits, the other two numbers 64")
        return cls(shard, timestamp, position)

    def __str__(self) -> str:
        # Timestamp prints as a date; an id prints as three numbers.
        return f"{int(self.shard)}:{int(self.timestamp)}:{int(self.position)}"


make_id: Final[Callable[[Iterable[Any]], MessageId]] = partial(tuple.__new__, MessageId)
"""`MessageId._make` for very many: it makes no call in Python, and does not count the three numbers."""
