"""`Transactions`: messages of pgoutput into whole transactions, in the order of their commits.

Messages of rows are not looked into: they are put into a `Held`, which may well be a file, and what is remembered of
them is which *spans* of it count. So memory does not grow with a transaction, but with how often its parts take turns.

A transaction that is streamed before its end is held by its xid until its commit. A subtransaction that is undone takes
its own changes with it. What it said about the look of tables stays: the server says that once for the whole
transaction, in whichever part it comes first. When all of a transaction is undone, the server says it again.

Where a transaction comes from it says by a replication origin, or by a logical message of the prefix `said`; the
message counts, as it says it in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from tidegate.cdc.pgoutput import Begin, Commit, Decoder, Origin, Said, StreamAbort, StreamStart, StreamStop
from tidegate.errors import SourceUnreadable

_ROWS: Final = frozenset(b"IUDTR")
"""What a transaction consists of: rows, truncations, and the look of tables."""
_RUN: Final = 1000
_TYPE: Final = 0x59
"""The name of a type, which says nothing of rows."""
_RELATION: Final = 0x52
_WORD: Final = Struct(">I")
Spans = list[tuple[int, int]]


class Held(Protocol):
    """Where the messages of one transaction are kept, in order."""

    @property
    def end(self) -> int:
        """The place behind the last message."""

    def append(self, message: bytes) -> None: ...

    def extend(self, messages: list[bytes]) -> None: ...

    def close(self) -> None:
        """It is not wanted any more."""


class Finished(NamedTuple):
    """A committed transaction. What `spans` of `held` say, in order, is its messages, without xids in them."""

    xid: int
    end_lsn: int
    time_us: int
    """Microseconds since 2000."""
    origin: str | None
    held: Held
    spans: Spans


class _Open:
    """A transaction that goes on. Invariant: spans rise and do not touch each other with the same xid."""

    __slots__ = ("_ends", "_starts", "_xids", "held", "origin", "said", "xid")

    def __init__(self, xid: int, held: Held) -> None:
        self.xid = xid
        self.held = held
        self.origin: str | None = None
        """The session's."""
        self.said: str | None = None
        """What the transaction itself says."""
        self._xids: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def comes_from(self) -> str | None:
        return self.said or self.origin

    def add(self, xid: int, message: bytes) -> None:
        start = self.held.end
        self.held.append(message)
        if self._xids and self._xids[-1] == xid and self._ends[-1] == start:
            self._ends[-1] = self.held.end
        else:
            self._xids.append(xid)
            self._starts.append(start)
            self._ends.append(self.held.end)

    def undo(self, xid: int) -> None:
        if xid in self._xids:
            left = [index for index, each in enumerate(self._xids) if each != xid]
            self._xids = [self._xids[index] for index in left]
            self._starts = [self._starts[index] for index in left]
            self._ends = [self._ends[index] for index in left]

    def spans(self) -> Spans:
        found: Spans = []
        for start, end in zip(self._starts, self._ends):
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found


class Transactions:
    """One stream of messages. `hold` gives an empty `Held` for each transaction."""

    def __init__(self, hold: Callable[[], Held], said: str | None = None) -> None:
        """`said` is the prefix of the messages by which transactions say their origin."""
        self._hold = hold
        self._said = said
        self._decoder = Decoder()
        self._streamed: dict[int, _Open] = {}
        self._now: _Open | None = None
        """The one whose messages are coming: between Begin and Commit, or in a part that is streamed."""
        self._is_part = False

    @property
    def is_inside(self) -> bool:
        """Whether a transaction's messages are coming, and what is said of positions must wait."""
        return self._now is not None

    @property
    def open(self) -> int:
        """How many transactions are held that were streamed and have not ended."""
        return len(self._streamed)

    def feed(self, messages: Iterable[bytes]) -> Iterator[Finished]:
        """The transactions that messages complete.

        Raises: `SourceUnreadable` for messages that make no sense here.
        """
        run: list[bytes] = []
        for message in messages:
            kind = message[0]
            if kind in _ROWS:
                if self._is_part:
                    self._add(message)
                    continue
                # This is done for every row that comes: together they cost less.
                run.append(message)
                if len(run) < _RUN:
                    continue
            elif kind == _TYPE:
                continue
            if run:
                self._extend(run)
                run = []
            if kind not in _ROWS:
                found = self._control(message)
                if found is not None:
                    yield found
        if run:
            self._extend(run)

    def _extend(self, messages: list[bytes]) -> None:
        if self._now is None:
            raise SourceUnreadable("PostgreSQL sent a row that is of no transaction")
        self._now.held.extend(messages)

    def _add(self, message: bytes) -> None:
        now = self._now
        if now is None:
            raise SourceUnreadable("PostgreSQL sent a row that is of no transaction")
        # The look of tables outlives the subtransaction that said it.
        xid = now.xid if message[0] == _RELATION else _WORD.unpack_from(message, 1)[0]
        now.add(xid, message[:1] + message[5:])

    def _control(self, data: bytes) -> Finished | None:
        message = self._decoder.decode(data)
        now = self._now
        match message:
            case Begin() if now is None:
                self._now = _Open(message.xid, self._hold())
            case Commit() if message.xid == 0 and now is not None and not self._is_part:
                self._now = None
                spans = [(0, now.held.end)] if now.held.end else []
                return Finished(now.xid, message.end_lsn, message.time_us, now.comes_from, now.held, spans)
            case Commit() if message.xid and now is None:
                # One that had nothing to say of our tables has not been streamed.
                whole = self._streamed.pop(message.xid, None) or _Open(message.xid, self._hold())
                return Finished(
                    whole.xid, message.end_lsn, message.time_us, whole.comes_from, whole.held, whole.spans()
                )
            case Origin() if now is not None:
                now.origin = message.name
            case Said():
                # Applications write into the log, too, and not only within transactions.
                if message.prefix == self._said and message.is_transactional and now is not None:
                    now.said = message.content.decode("utf-8", "replace")
            case StreamStart() if now is None:
                if message.is_first or message.xid not in self._streamed:
                    self._forget(message.xid)
                    self._streamed[message.xid] = _Open(message.xid, self._hold())
                self._now, self._is_part = self._streamed[message.xid], True
            case StreamStop() if now is not None and self._is_part:
                self._now, self._is_part = None, False
            case StreamAbort() if now is None:
                if message.xid == message.subxid:
                    self._forget(message.xid)
                elif message.xid in self._streamed:
                    self._streamed[message.xid].undo(message.subxid)
            case _:
                raise SourceUnreadable(f"PostgreSQL sent {message} where it cannot be")
        return None

    def _forget(self, xid: int) -> None:
        gone = self._streamed.pop(xid, None)
        if gone is not None:
            gone.held.close()

    def close(self) -> None:
        """Let go of all that is held."""
        for each in [*self._streamed.values(), *([self._now] if self._now else [])]:
            each.held.close()
        self._streamed.clear()
        self._now = None
