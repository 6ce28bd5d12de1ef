"""`check_history`: whether a server's log up to a position is the one that was captured.

A volume that was put back to an older state is the same server in the same life, and its log grows past the position
again, with other commits. Its slot is put back with it, so it begins before the position: what it has up to there is
looked at once more, and must end with the commit that was captured last.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tidegate.capture.pg_connect import Address, explained
from tidegate.capture.pg_position import ANEW, Committed, Position, check_position
from tidegate.capture.pg_slots import FREE_S, patiently
from tidegate.capture.pg_stream import lsn_text
from tidegate.cdc.pgoutput import Begin, Commit, Decoder
from tidegate.errors import SourceGone

if TYPE_CHECKING:
    import psycopg

_PEEK = """
SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s, NULL, 'proto_version', '1', 'publication_names', %s{})
"""
_BEGIN, _COMMIT = b"BC"
_ROWS = 1000


def check_history(
    connection: psycopg.Connection[Any], where: str, address: Address, begins: int, position: Position
) -> None:
    """`begins` is the place from which the slot has everything. Raises: `SourceGone`, `InUse`."""
    last = position.last
    while last is not None and begins < position.lsn:
        captured = last if last.end_lsn > begins else None
        there = _last_commit(connection, where, address, position.lsn)
        if there == captured:
            return
        # What the reader before has confirmed as it ended, the server may have heard meanwhile: it shows less then.
        before, begins = begins, check_position(connection, where, address.slot, position)
        if begins == before:
            raise SourceGone(
                f"PostgreSQL at {where} went back in time, and on from there: what was captured last up to"
                f" {lsn_text(position.lsn)} is {_shown(captured)}, and its log has {_shown(there)} there; {ANEW}"
            )


def _shown(commit: Committed | None) -> str:
    return "nothing" if commit is None else f"transaction {commit.xid} at {lsn_text(commit.end_lsn)}"


def _last_commit(connection: psycopg.Connection[Any], where: str, address: Address, upto: int) -> Committed | None:
    """The last one of ours in the slot up to a place."""

    def look() -> Committed | None:
        with explained(where, f"looking at slot {address.slot!r}"):
            return _look(connection, address, upto)

    # The reader before may have been killed, and the server has not noticed yet.
    return patiently(look, FREE_S)


def _look(connection: psycopg.Connection[Any], address: Address, upto: int) -> Committed | None:
    peek = _PEEK.format(", 'messages', 'true'" if connection.info.server_version >= 140_000 else "")
    publication = '"{}"'.format(address.publication.replace('"', '""'))
    decoder, xid, found = Decoder(), 0, None
    with connection.cursor() as cursor:
        rows: Any = cursor.stream(peek, [address.slot, lsn_text(upto), publication], binary=True, size=_ROWS)
        with closing(rows):
            for (data,) in rows:
                if data[0] not in (_BEGIN, _COMMIT):
                    continue
                message = decoder.decode(bytes(data))
                if isinstance(message, Begin):
                    xid = message.xid
                elif isinstance(message, Commit):
                    if message.end_lsn > upto:
                        break
                    found = Committed(message.end_lsn, xid, message.time_us)
    return found
