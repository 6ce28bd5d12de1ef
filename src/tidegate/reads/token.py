"""A session as a text that another process can go on with: which database, and how far the session has come.

    tg1-<base64url: database, 16 bytes | read u64 | written u64 | checksum u32>

The checksum tells a token that was cut short or mixed up; it is no secret. A token says how fresh answers must be,
never what may be read.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from struct import Struct
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.reads.consistency import Seen

_PREFIX: Final = "tg1-"
_BODY: Final = Struct("<16sQQ")
_SUM: Final = Struct("<I")


def encode(database: bytes, seen: Seen) -> str:
    """The token of a session of the database with this id."""
    body = _BODY.pack(database, int(seen.read), int(seen.written))
    return _PREFIX + urlsafe_b64encode(body + _SUM.pack(zlib.crc32(body))).decode().rstrip("=")


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
    if len(raw) != _BODY.size + _SUM.size or _SUM.unpack(raw[_BODY.size :])[0] != zlib.crc32(body):
        raise InvalidArgument(
            f"the token {_shown(token)} is damaged or cut short; give all of what `session.token` was"
        )
    whose, read, written = _BODY.unpack(body)
    if whose != database:
        raise InvalidArgument(f"the token {_shown(token)} is of another database; begin a new session here")
    return Seen(Timestamp(read), Timestamp(written))


def _shown(token: object) -> str:
    text = repr(token)
    return text if len(text) <= 24 else text[:20] + "...'"
