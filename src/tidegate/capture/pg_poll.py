"""`Poll`: a slot read by SQL, for servers that are reached by SQL alone: looked at, and moved on when it is confirmed.

The server never tears a transaction: asked for one change, it gives all of its transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from tidegate.capture.pg_connect import explained
from tidegate.capture.pg_stream import lsn_text

if TYPE_CHECKING:
    import psycopg

CHANGES: Final = 10_000
BYTES_MAX: Final = 8 << 20
"""How much is taken at a time, but for a transaction that has more."""
PAUSE_S: Final = 0.1
"""Between two looks at a slot that had nothing."""
_PEEK: Final = """
SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s, 'proto_version', '1', 'publication_names', %s{})
"""
_MESSAGES: Final = ", 'messages', 'true'"
_ROWS: Final = 1000
"""How many the client keeps in memory."""
_COMMIT: Final = ord("C")
_FLUSHED: Final = "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn"


class Poll:
    """Messages of pgoutput, from the slot's confirmed position on: again and again, until they are confirmed."""

    def __init__(
        self, connection: psycopg.Connection[Any], where: str, slot: str, publication: str, start: int
    ) -> None:
        self._connection = connection
        self._where = where
        self._slot = slot
        self._publication = '"{}"'.format(publication.replace('"', '""'))
        self._peek = _PEEK.format(_MESSAGES if connection.info.server_version >= 140_000 else "")
        self._count, self._size = CHANGES, BYTES_MAX
        self.is_more = False
        """Whether there may be more behind what was read last."""
        self.seen = start
        """Everything that was committed before this place has come."""

    def read(self) -> Iterator[bytes]:
        """What is there from the confirmed position on, whole transactions only, up to a bound."""
        with explained(self._where, f"reading slot {self._slot!r}"):
            row = self._connection.execute(_FLUSHED).fetchone()
        self.is_more = False
        count = size = 0
        with explained(self._where, f"reading slot {self._slot!r}"), self._connection.cursor() as cursor:
            arguments = [self._slot, self._count, self._publication]
            found: Any = cursor.stream(self._peek, arguments, binary=True, size=_ROWS)
            with closing(found) as rows:
                for (data,) in rows:
                    message = bytes(data)
                    count += 1
                    size += len(message)
                    yield message
                    if size > self._size and message[0] == _COMMIT:
                        self.is_more = True
                        break
        self.is_more = self.is_more or count >= self._count
        if not self.is_more and row is not None:
            self.seen = max(self.seen, int(row[0]))

    def widen(self) -> None:
        """All that was read was known: ask for more, as nothing is confirmed in between."""
        self._count *= 2
        self._size *= 2

    def confirm(self, lsn: int) -> None:
        with explained(self._where, f"confirming slot {self._slot!r}"):
            self._connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [self._slot, lsn_text(lsn)])
        self._count, self._size = CHANGES, BYTES_MAX

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, PAUSE_S))

    def close(self) -> None:
        self._connection.close()
