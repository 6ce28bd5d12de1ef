"""The body of a topic's message: a value with, if it has them, a key and headers.

What is put in comes out as the same type: `bytes` are stored as they are, everything else as JSON. What JSON would
change on the way (a tuple, an int as a key of a dict, NaN, a subclass) is refused when it is sent, with its place.

    first byte      version (3 bits) | headers? (1) | kind of key (2) | codec (2)
    key             length (u16), bytes: UTF-8, raw, or a signed 64-bit number; absent without a key
    headers         length (u32), a JSON object of strings; absent without headers
    value           the rest

These numbers are on disk and never change meaning. Arrow rows have no such body: they stay columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from struct import Struct
from typing import Any, Final

import msgspec

from tidegate.errors import InvalidArgument, LimitExceeded

Key = str | bytes | int

VERSION: Final = 1
DEPTH_MAX: Final = 100
"""How deep lists and dicts may lie in each other: far below where reading them back could run out of stack."""
KEY_BYTES_MAX: Final = 0xFFFF
BODY_BYTES_MAX: Final = 16 << 20
INT_KEYS: Final = range(-(1 << 63), 1 << 63)

_RAW, _JSON = 0, 1
_NO_KEY, _STR_KEY, _BYTES_KEY, _INT_KEY = 0, 1 << 2, 2 << 2, 3 << 2
_HEADERS: Final = 1 << 4
_VERSION_BITS: Final = VERSION << 5
_KEY_BITS: Final = 3 << 2

_PLAIN_RAW: Final = bytes([_VERSION_BITS | _RAW])
_PLAIN_JSON: Final = bytes([_VERSION_BITS | _JSON])
_U16: Final = Struct("<H")
_U32: Final = Struct("<I")
_I64: Final = Struct("<q")

_dump: Final = msgspec.json.Encoder().encode
_load: Final[Any] = msgspec.json.Decoder().decode

_SCALARS: Final = frozenset({str, int, bool, type(None)})
"""Written whatever their value is; a float is not when it is NaN or infinite."""


class Value:
    """A decoded body. Its parts are read when they are asked for; the value is parsed at every asking."""

    __slots__ = ("_at", "_body", "_flags")

    def __init__(self, body: bytes) -> None:
        flags = body[0] if body else 0
        if flags >> 5 != VERSION or flags & 3 > _JSON:
            raise _refused(body)
        self._body = body
        self._flags = flags
        at = 1
        if flags & _KEY_BITS:
            at += 2 + int.from_bytes(body[1:3], "little")
        if flags & _HEADERS:
            at += 4 + int.from_bytes(body[at : at + 4], "little")
        if at > len(body):
            raise InvalidArgument(f"a message body of {len(body):,} bytes ends inside its key or headers")
        self._at = at

    @property
    def value(self) -> Any:
        """What was sent."""
        if self._flags & 3 == _RAW:
            return self._body[self._at :]
        return _load(self._body[self._at :])

    @property
    def key(self) -> Key | None:
        """The key it was sent with, or None."""
        kind = self._flags & _KEY_BITS
        if kind == _NO_KEY:
            return None
        raw = self._body[3 : 3 + int.from_bytes(self._body[1:3], "little")]
        if kind == _STR_KEY:
            return raw.decode()
        return raw if kind == _BYTES_KEY else int(_I64.unpack(raw)[0])

    @property
    def headers(self) -> dict[str, str]:
        """The headers it was sent with."""
        if not self._flags & _HEADERS:
            return {}
        at = 1 if not self._flags & _KEY_BITS else 3 + int.from_bytes(self._body[1:3], "little")
        headers: dict[str, str] = _load(self._body[at + 4 : self._at])
        return headers

    @property
    def nbytes(self) -> int:
        """What it costs in the log, key and headers included."""
        return len(self._body)

    def __repr__(self) -> str:
        return f"Value({self.value!r}, key={self.key!r}, headers={self.headers!r})"


def encode(
    value: Any,
    key: Key | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    bytes_max: int = BODY_BYTES_MAX,
) -> bytes:
    """The body of a message; `len` of it is what it counts for in every limit.

    Raises: `InvalidArgument` for what would not come back as it went in, naming its place inside the value;
    `LimitExceeded` for a body above `bytes_max`.
    """
    if type(value) is bytes:
        codec, payload = _RAW, value
    else:
        codec, payload = _JSON, _json(value, "value")
    if key is None and not headers:
        body = (_PLAIN_JSON if codec else _PLAIN_RAW) + payload
    else:
        body = _with_key_and_headers(codec, payload, key, headers)
    if len(body) > bytes_max:
        raise LimitExceeded("the size of a message", len(body), bytes_max, "message_bytes_max")
    return body


def decode_value(body: bytes) -> Any:
    """`decode(body).value`, at once where nothing but a value was sent."""
    if body[:1] == _PLAIN_JSON:
        return _load(body[1:])
    return Value(body).value


def decode(body: bytes) -> Value:
    """What `encode` made of a value.

    Raises: `InvalidArgument` when it is not such a body, or one of a newer version.
    """
    return Value(body)


def _with_key_and_headers(codec: int, payload: bytes, key: Key | None, headers: Mapping[str, str] | None) -> bytes:
    flags = _VERSION_BITS | codec
    parts = [b"", b"", b"", payload]
    if key is not None:
        kind, raw = _key(key)
        flags |= kind
        parts[1] = _U16.pack(len(raw)) + raw
    if headers:
        flags |= _HEADERS
        raw = _headers(headers)
        parts[2] = _U32.pack(len(raw)) + raw
    parts[0] = bytes((flags,))
    return b"".join(parts)


def _key(key: Key) -> tuple[int, bytes]:
    if type(key) is str:
        try:
            kind, raw = _STR_KEY, key.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"key {key!r} holds half a surrogate pair, which is not text; send bytes") from None
    elif type(key) is bytes:
        kind, raw = _BYTES_KEY, key
    elif type(key) is int:
        if key not in INT_KEYS:
            raise InvalidArgument(f"key {key} does not fit into 64 bits with a sign; send it as a string")
        kind, raw = _INT_KEY, _I64.pack(key)
    else:
        raise InvalidArgument(f"a key is a str, bytes or an int, not a {_name(key)}: {key!r}")
    if len(raw) > KEY_BYTES_MAX:
        raise InvalidArgument(f"a key has at most {KEY_BYTES_MAX:,} bytes, not {len(raw):,}; send a hash of it")
    return kind, raw


def _headers(headers: Mapping[str, str]) -> bytes:
    plain = dict(headers)
    for name, each in plain.items():
        if type(name) is not str or type(each) is not str:
            raise InvalidArgument(f"headers are strings by name: {name!r} has {each!r}, a {_name(each)}")
    return _json(plain, "headers")


def _json(value: Any, what: str) -> bytes:
    try:
        if _check(value, DEPTH_MAX):
            return _dump(value)
    except (ValueError, RecursionError):
        pass  # Half a surrogate pair, or a number of thousands of digits: looked for below.
    raise InvalidArgument(_complaint(value, what, DEPTH_MAX) or f"{what} cannot be written as JSON")


def _check(value: Any, depth: int) -> bool:
    """Whether every part is something that JSON gives back unchanged, and lies no deeper than `depth`."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is float:
        return isfinite(value)
    if depth == 0:
        return False
    if kind is dict:
        for name, each in value.items():
            if type(name) is not str or not (type(each) in _SCALARS or _check(each, depth - 1)):
                return False
        return True
    if kind is list:
        return all(type(each) in _SCALARS or _check(each, depth - 1) for each in value)
    return False


def _complaint(value: Any, path: str, depth: int) -> str | None:
    """What is wrong and where: the slow way, taken only when something is."""
    if depth < 0:
        return f"{path[:60]}... lies more than {DEPTH_MAX} levels deep, or contains itself; send it flatter"
    kind = type(value)
    if kind is dict:
        for name, each in value.items():
            if type(name) is not str:
                return f"{path} has the key {name!r}, {_article(name)}; keys inside a value are strings"
            if not _is_text(name):
                return f"{path} has the key {name!r} with half a surrogate pair, which is not text"
            inner = f"{path}.{name}" if name.isidentifier() else f"{path}[{name!r}]"
            if (found := _complaint(each, inner, depth - 1)) is not None:
                return found
    elif kind is list:
        for index, each in enumerate(value):
            if (found := _complaint(each, f"{path}[{index}]", depth - 1)) is not None:
                return found
    elif kind is not float and kind not in _SCALARS:
        return f"{path} is {_article(value)}; {_ADVICE.get(kind, 'send it as a str, number, list or dict')}"
    elif kind is str and not _is_text(value):
        return f"{path} holds half a surrogate pair, which is not text; send bytes"
    elif kind is float and (value != value or value in (float("inf"), float("-inf"))):
        return f"{path} is {value!r}, which JSON does not have; send None or a string"
    elif kind is int:
        try:
            str(value)
        except ValueError:
            return f"{path} is a number of too many digits; send it as a string"
    return None


_ADVICE: Final[dict[type, str]] = {
    tuple: "send a list",
    set: "send a sorted list",
    frozenset: "send a sorted list",
    bytes: "bytes are a value of their own; inside another one send text",
    bytearray: "send bytes",
    memoryview: "send bytes",
}


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "datetime") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _article(value: Any) -> str:
    name = _name(value)
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def _refused(body: bytes) -> InvalidArgument:
    if not body:
        return InvalidArgument("an empty body is not a message of a topic; `encode` makes one")
    version = body[0] >> 5
    if version > VERSION:
        return InvalidArgument(f"a message body of version {version}; this Tidegate reads {VERSION}: upgrade it")
    return InvalidArgument(f"a body that starts with the byte {body[0]:#04x} is not a message of a topic")
