"""`EventTopic`: a connector's events in a topic of the database, as its messages became visible.

One part. A place is a Timestamp and a number: messages of one transaction have the Timestamp in common. A message is an
event, or `{"key": ..., "value": ...}`, or the JSON text of either. What is read are the log's files, so nothing is
acknowledged, and the topic's retention must cover what was not taken yet.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture.event_files import Place, Record, record_of
from tidegate.clock.timestamp import Timestamp
from tidegate.database.topic_reading import TopicReader
from tidegate.errors import SourceGone, SourceUnreadable, Truncated
from tidegate.topics.value import decode

if TYPE_CHECKING:
    from tidegate.catalog.entries import Topic
    from tidegate.database.database import Database
    from tidegate.log.message import Message

Read = tuple[int, list[tuple[int, "Message"]]]
PART: Final = "topic"
_LOOK_S: Final = 0.01
_WAIT_S: Final = 5.0
"""How long to wait for channels to come up to now."""
_NUMBER_BITS: Final = 32
"""Of a place, below the Timestamp: the number among those of one."""
_LOOK_BACK_MS: Final = 3_600_000
"""How long before a position transactions are looked for that may come again."""


class EventTopic:
    """The messages of one topic."""

    def __init__(self, db: Database, name: str) -> None:
        """Raises: `NotFound`."""
        self._db = db
        self._topic: Final[Topic] = db.topic(name, fresh=True)
        self.identity = f"debezium+topic:{db.id.hex()}/{self._topic.name}"
        self._ahead: tuple[int, Iterator[Read], deque[tuple[int, Message]]] | None = None
        """Where the reader that goes on stands, itself, and what it has read and not given."""

    def parts(self) -> list[str]:
        return [PART]

    def read(self, part: str, offset: int, most: int) -> list[tuple[int, Record, int]]:  # noqa: ARG002
        """Raises: `SourceGone` when the log before what follows is not there any more."""
        if self._ahead is None or self._ahead[0] != offset:
            self._ahead = (offset, self._messages(offset >> _NUMBER_BITS), deque())
        _, reader, waiting = self._ahead
        now = self._db.again(lambda: self._db.backend.now())
        deadline = time.monotonic() + _WAIT_S
        found: list[tuple[int, Record, int]] = []
        while len(found) < most:
            if not waiting:
                cut, more = next(reader)
                waiting.extend(more)
                if not more:
                    # What was sent before this call is given by it: channels are on their way there.
                    if found or cut >= now or time.monotonic() > deadline:
                        break
                    time.sleep(_LOOK_S)
                continue
            place, message = waiting.popleft()
            if place >= offset:
                found.append((place, self._record(place, message), place + 1))
                offset = place + 1
        self._ahead = (offset, reader, waiting)
        return found

    def fetch(self, place: Place) -> Record:
        tick = place.offset >> _NUMBER_BITS
        for _, messages in self._messages(tick, tick):
            for at, message in messages:
                if at == place.offset:
                    return self._record(at, message)
        raise SourceGone(
            f"topic {self._topic.name!r} has no message any more at {Timestamp(tick)}; raise its retention"
        )

    def may_have_boundaries(self, part: str, offset: int) -> bool:  # noqa: ARG002
        return True

    def head(self, part: str) -> str:  # noqa: ARG002
        return str(self._topic.id)

    def ended(self, part: str, offset: int) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002
        if offset <= 0:
            return
        last = Timestamp(offset >> _NUMBER_BITS)
        first = Timestamp.compose(max(last.physical_ms - _LOOK_BACK_MS, 0))
        for _, messages in self._messages(first, last):
            for at, message in messages:
                value = self._record(at, message).value if at < offset else None
                if value is not None and value.get("status", (value.get("payload") or {}).get("status")) == "END":
                    yield value

    def _messages(self, first: int, last: int | None = None) -> Iterator[Read]:
        """Messages from a Timestamp on, with their places, and up to where that is all; there may be none just now.

        With `last` it ends behind that one.
        """
        until = None if last is None else Timestamp(last)
        tick, number = -1, 0
        try:
            after = Timestamp(max(first - 1, 0))
            with TopicReader(self._db.path, self._topic, self._db.channels, after) as reader:
                for messages in reader.read(until, idle_s=0.0):
                    found = []
                    for each in messages:
                        number = number + 1 if each.time_tick == tick else 0
                        tick = each.time_tick
                        found.append(((tick << _NUMBER_BITS) + number, each))
                    yield reader.cut, found
        except Truncated as error:
            raise SourceGone(
                f"topic {self._topic.name!r}: {error}; take a new snapshot: restart=True, or --restart"
            ) from error

    def _record(self, place: int, message: Message) -> Record:
        where = f"topic {self._topic.name!r} at {Timestamp(place >> _NUMBER_BITS)}"
        value = message.row if message.body is None else decode(message.body).value
        if isinstance(value, str | bytes):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise SourceUnreadable(f"{where}: no JSON: {value[:80]!r}") from error
        return record_of(value, where)
