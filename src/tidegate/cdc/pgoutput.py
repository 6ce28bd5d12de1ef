"""PostgreSQL's logical replication as `pgoutput` sends it, protocol versions 1 and 2: bytes into messages.

Version 1 sends transactions whole, in the order of their commits. Version 2 may send a large one before its end, in
*streamed* parts that begin with `StreamStart` and end with `StreamStop`: what lies between belongs to a transaction
whose outcome is not known yet, and each of its messages names the (sub)transaction that made it. Values are texts, as
PostgreSQL writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from tidegate.errors import SourceUnreadable


class Unchanged:
    """A large value that an update did not touch, and that the server therefore did not send."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Cells = tuple[str | bytes | Unchanged | None, ...]
"""The values of a row; bytes where the server was asked for its binary form."""


class Column(NamedTuple):
    """A column of a relation."""

    name: str
    type: int
    """PostgreSQL's number of the type."""
    modifier: int
    is_key: bool
    """Whether it is a part of what identifies a row in updates and deletes."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message of a transaction; `lsn` is the place of its commit."""

    lsn: int
    time_us: int
    """Microseconds since 2000."""
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The last message of a transaction. `xid` is 0 unless it was streamed."""

    lsn: int
    end_lsn: int
    time_us: int
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table looks like from here on."""

    id: int
    schema: str
    name: str
    identity: str
    """`d` the primary key, `n` nothing, `f` the whole row, `i` an index."""
    columns: tuple[Column, ...]
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Insert:
    relation: int
    row: Cells
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """`before` is None when the key is the same; only its key columns are set unless `is_whole`."""

    relation: int
    before: Cells | None
    is_whole: bool
    row: Cells
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Only the key columns of `before` are set unless `is_whole`."""

    relation: int
    before: Cells
    is_whole: bool
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the transaction came to this server from."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class Said:
    """What an application has written into the log by `pg_logical_emit_message`."""

    prefix: str
    content: bytes
    lsn: int
    is_transactional: bool
    xid: int = 0


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A part of the transaction `xid` follows, the first one of it or not."""

    xid: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The end of a part."""


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """What the subtransaction made is undone; the whole transaction if it is `xid` itself."""

    xid: int
    subxid: int


Message = (
    Begin
    | Commit
    | Relation
    | Insert
    | Update
    | Delete
    | Truncate
    | Origin
    | Said
    | StreamStart
    | StreamStop
    | StreamAbort
)

_BEGIN: Final = Struct(">QqI")
_COMMIT: Final = Struct(">BQQq")
_COLUMN: Final = Struct(">Ii")
_MESSAGE: Final = Struct(">BQ")
_TWO: Final = Struct(">II")
_START: Final = Struct(">IB")
_WORD: Final = Struct(">I")
_SHORT: Final = Struct(">H")
_LONG: Final = Struct(">Q")


class Decoder:
    """One stream of messages. Raises: `SourceUnreadable` for bytes that are none."""

    def __init__(self) -> None:
        self._is_streamed = False
        """Whether a streamed part is being read: then messages begin with the transaction that made them."""

    def decode(self, data: bytes) -> Message | None:
        """A message; None for one that says nothing of rows, such as the name of a type."""
        try:
            found, at = self._message(data)
            if at != len(data):
                raise ValueError(f"{len(data) - at} bytes are left over")
        except (StructError, IndexError, ValueError) as error:
            raise SourceUnreadable(
                f"PostgreSQL sent what is no message of pgoutput 1 or 2: {data[:40].hex()}: {error}"
            ) from error
        return found

    def _message(self, data: bytes) -> tuple[Message | None, int]:
        kind, at = data[0], 1
        xid = 0
        if self._is_streamed and kind in _OF_ROWS:
            (xid,) = _WORD.unpack_from(data, at)
            at += 4
        match kind:
            case 0x49:  # I
                (relation,) = _WORD.unpack_from(data, at)
                expect(data[at + 4], "N")
                row, at = read_cells(data, at + 5)
                return Insert(relation, row, xid), at
            case 0x55:  # U
                (relation,) = _WORD.unpack_from(data, at)
                at += 4
                before, is_whole = None, False
                if data[at] != 0x4E:
                    is_whole = expect(data[at], "KO") == "O"
                    before, at = read_cells(data, at + 1)
                expect(data[at], "N")
                row, at = read_cells(data, at + 1)
                return Update(relation, before, is_whole, row, xid), at
            case 0x44:  # D
                (relation,) = _WORD.unpack_from(data, at)
                is_whole = expect(data[at + 4], "KO") == "O"
                before, at = read_cells(data, at + 5)
                return Delete(relation, before, is_whole, xid), at
            case 0x52:  # R
                return _relation(data, at, xid)
            case 0x54:  # T
                (count,) = _WORD.unpack_from(data, at)
                at += 5
                relations = Struct(f">{count}I").unpack_from(data, at)
                return Truncate(relations, xid), at + 4 * count
            case 0x42:  # B
                lsn, time_us, xid = _BEGIN.unpack_from(data, at)
                return Begin(lsn, time_us, xid), at + _BEGIN.size
            case 0x43:  # C
                _, lsn, end_lsn, time_us = _COMMIT.unpack_from(data, at)
                return Commit(lsn, end_lsn, time_us), at + _COMMIT.size
            case 0x4F:  # O
                (lsn,) = _LONG.unpack_from(data, at)
                name, at = _text(data, at + 8)
                return Origin(lsn, name), at
            case 0x4D:  # M
                return _said(data, at, xid)
            case 0x59:  # Y: what a type is called; values of it come as texts all the same.
                _, at = _text(data, at + 4)
                _, at = _text(data, at)
                return None, at
            case 0x53:  # S
                xid, first = _START.unpack_from(data, at)
                self._is_streamed = True
                return StreamStart(xid, bool(first)), at + _START.size
            case 0x45:  # E
                self._is_streamed = False
                return StreamStop(), at
            case 0x63:  # c
                (xid,) = _WORD.unpack_from(data, at)
                _, lsn, end_lsn, time_us = _COMMIT.unpack_from(data, at + 4)
                return Commit(lsn, end_lsn, time_us, xid), at + 4 + _COMMIT.size
            case 0x41:  # A
                xid, subxid = _TWO.unpack_from(data, at)
                return StreamAbort(xid, subxid), at + _TWO.size
        raise ValueError(f"there is no message {chr(kind)!r}")


_OF_ROWS: Final = frozenset(b"IUDTRYM")


def expect(byte: int, allowed: str) -> str:
    """Raises: `ValueError` for a byte that is none of those allowed."""
    found = chr(byte)
    if found not in allowed:
        raise ValueError(f"{found!r} stands where {' or '.join(allowed)} must")
    return found


def _text(data: bytes, at: int) -> tuple[str, int]:
    """A text that ends with a zero byte."""
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def read_cells(data: bytes, at: int) -> tuple[Cells, int]:
    """The row at a place, and the place behind it. Raises: `ValueError`, `IndexError`, `struct.error`."""
    (count,) = _SHORT.unpack_from(data, at)
    at += 2
    found: list[str | bytes | Unchanged | None] = []
    word = _WORD.unpack_from
    for _ in range(count):  # Once for every value that comes, so without a call more than it needs.
        kind = data[at]
        if kind == 0x74:  # t
            at += 5
            end = at + word(data, at - 4)[0]
            found.append(data[at:end].decode())
            at = end
        elif kind == 0x6E:  # n
            found.append(None)
            at += 1
        elif kind == 0x75:  # u
            found.append(UNCHANGED)
            at += 1
        else:
            expect(kind, "tb")
            at += 5
            end = at + word(data, at - 4)[0]
            found.append(data[at:end])
            at = end
    if at > len(data):
        raise ValueError(f"{at - len(data)} bytes are cut off")
    return tuple(found), at


def _relation(data: bytes, at: int, xid: int) -> tuple[Relation, int]:
    (id,) = _WORD.unpack_from(data, at)
    schema, at = _text(data, at + 4)
    name, at = _text(data, at)
    identity = expect(data[at], "dnfi")
    (count,) = _SHORT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        called, at = _text(data, at + 1)
        type, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(called, type, modifier, bool(flags & 1)))
    return Relation(id, schema or "pg_catalog", name, identity, tuple(columns), xid), at


def _said(data: bytes, at: int, xid: int) -> tuple[Said, int]:
    flags, lsn = _MESSAGE.unpack_from(data, at)
    prefix, at = _text(data, at + _MESSAGE.size)
    (length,) = _WORD.unpack_from(data, at)
    at += 4
    content = data[at : at + length]
    if len(content) != length:
        raise ValueError(f"a content of {length} bytes is cut off")
    return Said(prefix, content, lsn, bool(flags & 1), xid), at + length
