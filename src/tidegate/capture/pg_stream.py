"""`Stream`: PostgreSQL's replication protocol, from a slot and a position on.

The server keeps what was not confirmed: it hears of a position only by `confirm`, and that it is still listened to.
"""

from __future__ import annotations

import select
import time
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture.pg_connect import client, explain, explained
from tidegate.errors import SourceUnreadable, Unavailable

if TYPE_CHECKING:
    import psycopg

MESSAGES_MAX: Final = 20_000
BYTES_MAX: Final = 4 << 20
"""How much is taken at a time."""
STATUS_S: Final = 10.0
"""How often the server hears from an idle reader."""
_DATA, _KEEPALIVE = b"wk"
_HEAD: Final = 25
_KEPT: Final = Struct(">Qq?")
_STATUS: Final = Struct(">cQQQq?")
_EPOCH_S: Final = 946_684_800


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class Stream:
    """Messages of pgoutput as they come. Owns its connection.

    Raises: `InUse` while another one reads the slot, `Unavailable` when the connection is lost.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], where: str, slot: str, publication: str, start: int
    ) -> None:
        self._connection = connection
        self._where = where
        self._pgconn = connection.pgconn
        self._confirmed = 0
        self.seen = start
        """Everything that was committed before this place has come."""
        self._said_s = time.monotonic()
        version = connection.info.server_version
        options = f"proto_version '{2 if version >= 140_000 else 1}', publication_names '{_quoted(publication)}'"
        if version >= 140_000:
            options += ", streaming 'on', messages 'true'"
        command = f"START_REPLICATION SLOT {slot} LOGICAL {lsn_text(start)} ({options})"
        with explained(where, f"reading slot {slot!r}"):
            result = self._pgconn.exec_(command.encode())
            if result.status != client().pq.ExecStatus.COPY_BOTH:
                raise client().errors.error_from_result(result, encoding="utf-8")

    def read(self) -> list[bytes]:
        """What has come, without waiting, up to a bound."""
        found: list[bytes] = []
        size = 0
        get = self._pgconn.get_copy_data
        is_drained = False
        try:
            while size < BYTES_MAX and len(found) < MESSAGES_MAX:
                count, data = get(1)
                if count > 0:
                    is_drained = False
                    kind = data[0]
                    if kind == _DATA:
                        found.append(bytes(data[_HEAD:]))
                        size += count
                    elif kind == _KEEPALIVE:
                        self._kept(bytes(data))
                    else:
                        raise SourceUnreadable(f"PostgreSQL at {self._where} sent a {chr(kind)!r} while replicating")
                elif count == 0:
                    if is_drained:
                        break
                    self._pgconn.consume_input()  # It does not wait, and fails when the connection has ended.
                    is_drained = True
                else:
                    self._ended()
        except client().Error as error:
            raise explain(error, self._where, "replicating") from error
        if time.monotonic() - self._said_s > STATUS_S:
            self.say()
        return found

    def _ended(self) -> None:
        result = self._pgconn.get_result()
        if result is not None and result.error_message:
            raise client().errors.error_from_result(result, encoding="utf-8")
        raise Unavailable(f"PostgreSQL at {self._where} has ended the replication; try again")

    def _kept(self, data: bytes) -> None:
        end, _, wants_reply = _KEPT.unpack_from(data, 1)
        self.seen = max(self.seen, end)
        if wants_reply:
            self.say()

    def wait(self, seconds: float) -> None:
        """Until something comes, or the time is over."""
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        poll.poll(max(0.0, min(seconds, STATUS_S)) * 1000)

    def ask(self) -> None:
        """Have the server say how far it is."""
        self.say(wants_reply=True)

    def confirm(self, lsn: int) -> None:
        self._confirmed = max(self._confirmed, lsn)
        self.say()

    def say(self, *, wants_reply: bool = False) -> None:
        """What was confirmed, and that somebody is here."""
        self._said_s = time.monotonic()
        micros = int((time.time() - _EPOCH_S) * 1_000_000)
        status = _STATUS.pack(b"r", self.seen, self._confirmed, self._confirmed, micros, wants_reply)
        try:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()
        except client().Error as error:
            raise explain(error, self._where, "replicating") from error

    def close(self) -> None:
        self._connection.close()


def _quoted(publication: str) -> str:
    """A name in a list of names, within a text."""
    return '"{}"'.format(publication.replace('"', '""')).replace("'", "''")
