"""`Received`: a message as a consumer gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.clock.timestamp import Timestamp
from tidegate.topics.message_id import MessageId
from tidegate.topics.value import Value, decode, decode_value

if TYPE_CHECKING:
    from tidegate.database.consumer import Consumer


class Received:
    """One message of a topic. Its value is decoded when it is first asked for."""

    __slots__ = ("_decoded", "_value", "body", "consumer", "id", "redelivery_count", "row", "topic", "via")

    def __init__(
        self,
        id: MessageId,
        topic: str,
        redelivery_count: int,
        body: bytes | None,
        row: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        """Its place in the topic; also what acknowledges it."""
        self.topic = topic
        self.redelivery_count = redelivery_count
        """How often it was given back before."""
        self.body = body
        self.row = row
        """The columns of a message that was sent as an Arrow row."""
        self.consumer: Consumer | None = None
        self.via = ""
        """The id that the consumer had when it received it."""
        self._decoded: Value | None = None
        self._value: Any = _UNREAD

    @property
    def timestamp(self) -> Timestamp:
        """When it became visible: the commit Timestamp of its transaction, if it had one."""
        return Timestamp(self.id.timestamp)

    @property
    def value(self) -> Any:
        """What was sent."""
        if self._value is _UNREAD:
            self._value = self.row if self.row is not None else decode_value(self.body or b"")
        return self._value

    @property
    def key(self) -> str | bytes | int | None:
        return None if self.row is not None else self._parts.key

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.row is not None else self._parts.headers

    @property
    def _parts(self) -> Value:
        if self._decoded is None:
            self._decoded = decode(self.body or b"")
        return self._decoded

    def __repr__(self) -> str:
        again = f", redelivered {self.redelivery_count} times" if self.redelivery_count else ""
        return f"<message {self.id} of {self.topic}: {self.value!r}{again}>"


_UNREAD: Any = object()
