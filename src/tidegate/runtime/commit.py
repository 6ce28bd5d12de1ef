"""A commit: the group of appends that is written as one, and how it becomes blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from tidegate.errors import InvalidArgument, LimitExceeded
from tidegate.log import block
from tidegate.log.batch import body_rows
from tidegate.log.block import Encoded, Stamp
from tidegate.log.channel import Append
from tidegate.log.last_confirmed import AllResolved, Session
from tidegate.log.message import ALL_VCHANNELS, MessageType
from tidegate.runtime.pending import PendingAppend
from tidegate.runtime.pieces import Piece
from tidegate.runtime.pieces import stamp as stamp_pieces
from tidegate.runtime.segments import SegmentWriter
from tidegate.runtime.settings import LogSettings

ARROW_FROM_ROWS: Final = 512
"""Groups of at least this many plain messages are encoded as Arrow, smaller ones compactly."""
ROW_OVERHEAD: Final = 32
"""Bytes a message is reckoned to cost beside its body."""
VCHANNEL_BYTES_MAX: Final = 1024
TXN_BYTES: Final = 16
_KNOWN_MAX: Final = 1 << 14
_SYSTEM_FIELDS: Final = frozenset({"_time_tick", "_position", "_last_confirmed", "_type", "_vchannel", "_txn"})


class Commit:
    """Appends between being collected and being acknowledged."""

    __slots__ = (
        "append",
        "blocks",
        "first_position",
        "items",
        "messages",
        "plain",
        "rejected",
        "size",
        "tick",
        "tick_block",
        "touched",
    )  # fmt: skip

    def __init__(self, items: list[PendingAppend]) -> None:
        self.items = items
        self.append: Append | None = None
        """The machine's entry for the items that take new TimeTicks together: `plain`."""
        self.plain: list[PendingAppend] = []
        self.rejected: list[PendingAppend] = []
        """Items that got no TimeTicks and have failed already."""
        self.blocks: list[Encoded] = []
        self.tick: PendingAppend | None = None
        """The time tick among the items, if one is."""
        self.tick_block: Encoded | None = None
        self.size = 0
        self.first_position = 0
        self.messages = 0
        self.touched = False
        """Some of it may be on disk."""

    @property
    def last_position(self) -> int:
        return self.first_position + self.messages - 1

    def encode(self, segments: SegmentWriter) -> None:
        """Turn the items into blocks for the place where `segments` stands. May be done again for another place."""
        self.blocks = []
        self.size = 0
        self.first_position = segments.position + 1
        position = self.first_position
        chain = segments.chain
        for group in _groups(self.items):
            first = group[0]
            stamp = Stamp(
                position, first.first_tick, first.last_confirmed, segments.term,
                segments.offset + self.size, segments.synced, chain,
            )  # fmt: skip
            encoded = _encode(stamp, group)
            for each in group:
                each.position = position
                position += each.count
            if first.plan is not None:
                self.tick_block = encoded
            self.blocks.append(encoded)
            self.size += encoded.size
            chain = encoded.checksum
        for item in self.items:
            if item.parts is not None:
                item.position = item.parts[-1].position
        self.messages = position - self.first_position


_Messages = PendingAppend | Piece
"""Messages of one kind in one place: an append, or a part of one."""


def _groups(items: list[PendingAppend]) -> Sequence[Sequence[_Messages]]:
    """Runs of messages that share a block: what follows one another in time, Arrow batches and ticks alone."""
    if all([each.rows is None and each.held is None and each.plan is None and each.parts is None for each in items]):
        return [items]
    groups: list[list[_Messages]] = []
    run: list[_Messages] | None = None
    following = last_confirmed = -1
    for each in _flat(items):
        if each.rows is not None or each.plan is not None:
            run = None
            groups.append([each])
            continue
        if run is None or each.first_tick != following or each.last_confirmed != last_confirmed:
            run = []
            groups.append(run)
        run.append(each)
        following, last_confirmed = each.first_tick + each.count, each.last_confirmed
    return groups


def _flat(items: list[PendingAppend]) -> Iterator[_Messages]:
    for item in items:
        if item.parts is None:
            yield item
        else:
            stamp_pieces(item.parts, item.first_tick, item.last_confirmed, 0 if item.held is None else item.held.moved)
            yield from item.parts


def _encode(stamp: Stamp, group: Sequence[_Messages]) -> Encoded:
    first = group[0]
    if first.rows is not None:
        return block.encode_arrow(stamp, first.rows, first.type, first.vchannel, txn=first.txn)
    if len(group) == 1 and first.bodies is None:
        txn = None if first.txn is None else [first.txn]
        return block.encode_rows(stamp, [first.type], [first.vchannel], [first.body], txn)
    txns: list[bytes | None] | None = None
    if all([each.bodies is None for each in group]):
        bodies = [each.body for each in group]
        types = [each.type for each in group]
        vchannels = [each.vchannel for each in group]
        if any([each.txn for each in group]):
            txns = [each.txn for each in group]
    else:
        bodies, types, vchannels = [], [], []
        for each in group:
            bodies += each.bodies or (each.body,)
            types += [each.type] * each.count
            vchannels += [each.vchannel] * each.count
        if any([each.txn for each in group]):
            txns = []
            for each in group:
                txns += [each.txn] * each.count
    if len(bodies) >= ARROW_FROM_ROWS and txns is None:
        kind, vchannel = types[0], vchannels[0]
        if types.count(kind) == len(types) and vchannels.count(vchannel) == len(vchannels):
            return block.encode_arrow(stamp, body_rows(bodies), kind, vchannel)
    return block.encode_rows(stamp, types, vchannels, bodies, txns)


class Requests:
    """Checks what callers hand in, so that nothing in a commit can fail for its own fault."""

    def __init__(self, channel: str, settings: LogSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._message_bytes_max = settings.message_bytes_max
        self.known: set[str] = set()
        """Names of virtual channels that were checked."""

    def check_body(self, body: bytes) -> None:
        if type(body) is not bytes:
            raise InvalidArgument(f"a message's body is bytes, not {type(body).__name__}; encode it first")
        if len(body) > self._settings.message_bytes_max:
            what = f"channel {self._channel!r}: the size of the message in bytes"
            raise LimitExceeded(what, len(body), self._settings.message_bytes_max, "message_bytes_max")

    def check_place(self, vchannel: str) -> None:
        """Whether a virtual channel can have that name."""
        if vchannel in self.known:
            return
        if not isinstance(vchannel, str) or vchannel == ALL_VCHANNELS:
            raise InvalidArgument(
                f"a virtual channel's name is a non-empty text, not {vchannel!r}; only an exclusive message may be for"
                f" all of them"
            )
        try:
            size = len(vchannel.encode())
        except UnicodeEncodeError:
            raise InvalidArgument(f"the name {vchannel!r} of a virtual channel cannot be written as UTF-8") from None
        if size > VCHANNEL_BYTES_MAX:
            raise InvalidArgument(
                f"a virtual channel's name has at most {VCHANNEL_BYTES_MAX} bytes, not {size:,}: {vchannel[:40]!r}..."
            )
        if len(self.known) >= _KNOWN_MAX:
            self.known.clear()
        self.known.add(vchannel)

    def check_message(
        self, vchannel: str, body: bytes, kind: MessageType, *, exclusive: bool, txn: bytes | None = None
    ) -> None:
        if type(body) is not bytes or len(body) > self._message_bytes_max:
            self.check_body(body)
        if vchannel != ALL_VCHANNELS or not exclusive:
            self.check_place(vchannel)
        _check_kind(kind)
        _check_txn(txn)

    def check_pieces(self, pieces: Sequence[Piece], txn: bytes | None) -> None:
        """Whether they can be written together as (part of) a transaction."""
        if txn is None:
            raise InvalidArgument("a transaction's messages carry its id; there is none")
        _check_txn(txn)
        size = 0
        for each in pieces:
            if each.type in _ALONE:
                raise InvalidArgument(
                    f"a message of type {MessageType(each.type).name} cannot be part of a transaction"
                )
            payload = each.rows if each.rows is not None else each.bodies
            if payload is None:
                self.check_body(each.body)
                self.check_place(each.vchannel)
            else:
                self.check_batch(each.vchannel, payload, MessageType(each.type), txn, each.size)
            each.txn = txn
            size += each.size
        self._check_size(f"channel {self._channel!r}: the transaction's", size)

    def check_batch(
        self,
        vchannel: str,
        rows: pa.RecordBatch | Sequence[bytes],
        kind: MessageType,
        txn: bytes | None,
        nbytes: int | None = None,
    ) -> tuple[list[bytes] | None, pa.RecordBatch | None, int, int]:
        """The batch as bodies or as Arrow, whichever suits its size; its number of rows; its size.

        `nbytes` is that of Arrow rows, for whoever knows it.
        """
        settings = self._settings
        what = f"channel {self._channel!r}: the batch's"
        self.check_place(vchannel)
        _check_kind(kind)
        _check_txn(txn)
        if kind.is_exclusive:
            raise InvalidArgument(f"a message of type {kind.name} is appended alone, not in a batch; use append()")
        arrow: pa.RecordBatch | None = rows if isinstance(rows, pa.RecordBatch) else None
        count = len(rows) if arrow is None else arrow.num_rows
        if not count:
            raise InvalidArgument(f"{what} number of rows is 0; there is nothing to append")
        if count > settings.batch_rows_max:
            raise LimitExceeded(f"{what} number of rows", count, settings.batch_rows_max, "batch_rows_max")
        if arrow is not None:
            clash = _SYSTEM_FIELDS.intersection(arrow.schema.names)
            if clash:
                raise InvalidArgument(f"{what} columns {sorted(clash)} have names that the log uses; rename them")
            if not arrow.num_columns:
                raise InvalidArgument(f"{what} rows have no columns; there is nothing to append")
            for field in arrow.schema:
                if _has_dictionary(field.type):
                    raise InvalidArgument(
                        f"{what} column {field.name!r} is dictionary-encoded; cast it to {field.type.value_type}"
                        if pa.types.is_dictionary(field.type)
                        else f"{what} column {field.name!r} holds dictionary-encoded values; cast them first"
                    )
            size = arrow.nbytes if nbytes is None else nbytes
            self._check_size(what, size)
            return None, arrow, count, size
        bodies = list(rows)
        if set(map(type, bodies)) != {bytes} or max(map(len, bodies)) > settings.message_bytes_max:
            for body in bodies:
                self.check_body(body)
        size = sum(map(len, bodies)) + ROW_OVERHEAD * count
        self._check_size(what, size)
        if count >= ARROW_FROM_ROWS:
            return None, body_rows(bodies), count, size
        return bodies, None, count, size

    def _check_size(self, what: str, size: int) -> None:
        if size > self._settings.block_bytes_max:
            raise LimitExceeded(f"{what} size in bytes", size, self._settings.block_bytes_max, "block_bytes_max")


_ALONE: Final = frozenset(int(each) for each in MessageType if each.is_system or each.is_exclusive)
"""Types that are no part of a transaction."""


def _check_kind(kind: MessageType) -> None:
    if type(kind) is not MessageType:
        raise InvalidArgument(f"a message's type is a MessageType, not {kind!r}")
    if kind is MessageType.TIME_TICK:
        raise InvalidArgument("time ticks are made by the channel itself; use tick()")
    if kind.is_system:
        raise InvalidArgument(f"{kind.name} messages are made by transactions; use begin() or append_transaction()")


def _check_txn(txn: bytes | None) -> None:
    if txn is not None and (type(txn) is not bytes or len(txn) != TXN_BYTES or not any(txn)):
        raise InvalidArgument(f"a transaction's id is {TXN_BYTES} bytes, not all of them zero; not {txn!r}")


def _has_dictionary(kind: pa.DataType) -> bool:
    """Whether a type needs dictionaries, which a record batch does not carry with it."""
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


def session_of(items: Sequence[PendingAppend]) -> Session | None:
    """The transactions among the items, as one."""
    sessions = [each.session for each in items if each.session is not None]
    if len(sessions) > 1:
        return AllResolved(sessions)
    return sessions[0] if sessions else None
