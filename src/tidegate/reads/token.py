"""A session as a text that another process can go on with: which database, and how far the session has come.

    tg1-<base64url: database, 16 bytes | read u64 | written u64 | checksum u32>

The checksum tells a token that was cut short or mixed up; it is no secret. A token says how fresh answers must be,
never what may be read. There is one text for a session's state: what reads differently is damaged.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from struct import Struct
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.reads.consistency import Seen

DATABASE_BYTES: Final = 16
_PREFIX: Final = "tg1-"
_BODY: Final = Struct("<16sQQ")
_SUM: Final = Struct("<I")


def encode(database: bytes, seen: Seen) -> str:
    """The token of a session of the database with this id of 16 bytes."""
    if len(database) != DATABASE_BYTES:
        raise InvariantBroken(f"the id of a database has {DATABASE_BYTES} bytes, not {len(database)}")
    body = _BODY.pack(database, int(seen.read), int(seen.written))
    return _text(body)


def decode(token: str, database: bytes) -> Seen:
    """What `encode` made a token of.

    Raises: `InvalidArgument` when it is no token, damaged, or of another database.
    """
    if not isinstance(token, str) or not token.startswith(_PREFIX):
        raise InvalidArgument(f"{_shown(token)} is not the token of a session; give what `session.token` was")
    text = token.removeprefix(_PREFIX)
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raw = b""
    body = raw[: _BODY.size]
    # Python's base64 passes over what is none of its characters, and takes two alphabets: look at the text too.
    is_whole = len(raw) == _BODY.size + _SUM.size and _text(body) == token
    if not is_whole:
        raise InvalidArgument(
            f"the token {_shown(token)} is damaged or cut short; give all of what `session.token` was"
        )
    whose, read, written = _BODY.unpack(body)
    if whose != database:
        raise InvalidArgument(f"the token {_shown(token)} is of another database; begin a new session here")
    return Seen(Timestamp(read), Timestamp(written))


def _text(body: bytes) -> str:
    return _PREFIX + urlsafe_b64encode(body + _SUM.pack(zlib.crc32(body))).decode().rstrip("=")


def _shown(token: object) -> str:
    text = repr(token)
    return text if len(text) <= 24 else text[:20] + "...'"
