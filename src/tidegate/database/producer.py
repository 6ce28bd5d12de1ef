"""`Producer`: sends that are recognised when they are repeated: after a lost answer, a reconnect, a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.clock.timestamp import Timestamp
from tidegate.database.outgoing import Key, Outgoing, check_count
from tidegate.errors import InvalidArgument

if TYPE_CHECKING:
    from tidegate.database.database import Database


class Produced(NamedTuple):
    """What became of a send."""

    sequence: int
    """Of its last message."""
    timestamp: Timestamp | None
    """When it became visible; None for a repeat so late that this was forgotten."""
    duplicate: bool
    """Whether it had been sent before, and was not sent again."""


class Producer:
    """A named producer of one topic. Whoever opens the same name later fences this one. Use it from one thread."""

    def __init__(self, database: Database, topic: str, name: str) -> None:
        self._database = database
        self.topic = topic
        self.name = name
        self.epoch, self.last_sequence = database.again(lambda: database.backend.open_producer(topic, name))

    @property
    def next_sequence(self) -> int:
        """The number of the next message, if none is given."""
        return 0 if self.last_sequence is None else self.last_sequence + 1

    def send(
        self,
        value: Any,
        *,
        sequence: int | None = None,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Produced:
        """Send a message, or the rows of an Arrow batch, numbered from `sequence` on.

        Without a key a message goes to the shard that its number chooses, so that a repeat goes to the same.
        Raises: `LeaseLost` when the name was opened again by somebody else.
        """
        database = self._database
        first = self.next_sequence if sequence is None else sequence
        if first < 0:
            raise InvalidArgument(f"a sequence number is at least 0, not {first}")
        outgoing = Outgoing(database.channels, database.limits)
        count = check_count(outgoing.add(database.topic(self.topic), value, key=key, headers=headers, turn=first))
        timestamp, duplicate = database.again(
            lambda: database.backend.produce(
                self.topic, self.name, self.epoch, first, count, outgoing.writes(), outgoing.keys
            )
        )
        last = first + count - 1
        if self.last_sequence is None or last > self.last_sequence:
            self.last_sequence = last
        return Produced(last, timestamp, duplicate)
