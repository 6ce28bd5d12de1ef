"""Opening a channel at a new term: what older terms left is found, completed and closed with the term's first tick.

In this order: fence, find the end of the log, find the transactions that are open, write the commits that were
decided and are not in the channel yet (`Redo`), then the first tick. So a decided commit is in before ticks go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Fenced, StorageFailed
from tidegate.log.batch import Batch
from tidegate.log.channel import TickPlan
from tidegate.log.message import Message, MessageType, Position, Tick
from tidegate.ports.files import Files
from tidegate.ports.tail import Tail, TailSlot, address
from tidegate.runtime.commit import Commit
from tidegate.runtime.file_cursor import ChannelFiles, FileCursor, Limit
from tidegate.runtime.pending import PendingAppend
from tidegate.runtime.pieces import Piece, commit_piece
from tidegate.runtime.segments import SegmentWriter
from tidegate.runtime.system_items import tick_item
from tidegate.runtime.writer_status import storage_error
from tidegate.txn.gather import by_position
from tidegate.txn.session import Session
from tidegate.txn.sessions import RecoveredSessions, Sessions


@dataclass(frozen=True, slots=True)
class Redo:
    """A decided commit that may be missing in a channel.

    `bodies` stand right before the commit; the first message has TimeTick `first_tick`, the others follow one by one.
    What of it is in the log already is not written again.
    """

    txn: bytes
    commit_tick: int
    first_tick: int
    bodies: Sequence[Piece]
    runs: Sequence[tuple[int, int]]
    """Positions of bodies that were written ahead."""


class OldLog:
    """A channel's log as older terms left it."""

    def __init__(self, files: Files, directory: str, limit: Limit | None) -> None:
        self._channel = ChannelFiles(files, directory)
        self._limit = limit

    def read(self, *, position: int = 0, after: int = 0) -> Iterator[Batch]:
        """Messages at or behind `position` and above TimeTick `after`, in physical order, transactions as they lie."""
        if self._limit is None:
            return
        # Retention leaves what open transactions need; what else it removed nobody here asks for.
        earliest = self._channel.header(self._channel.segments()[0]).base_position
        cursor = FileCursor(self._channel, Position(max(position, earliest)), after)
        waiting: list[Batch] = []
        try:
            for item in cursor.advance(self._limit):
                if isinstance(item, Batch):
                    waiting.append(item)
                elif all([int(each.positions.max()) < item.position for each in waiting]):
                    # A sealed segment has messages of one form together, and their order is that of positions. All that
                    # lies before a tick comes before it.
                    yield from by_position(waiting)
                    waiting = []
            yield from by_position(waiting)
        finally:
            cursor.close()

    def of_transaction(self, txn: bytes, after: int) -> Iterator[Message]:
        """The messages of one transaction above TimeTick `after`."""
        wanted = np.frombuffer(txn, "V16")[0]
        for batch in self.read(after=after):
            if batch.txns is not None and (mask := batch.txns == wanted).any():
                yield from batch.where(mask).messages()


def missing_of(redo: Redo, old: OldLog, last_confirmed: int) -> list[PendingAppend]:
    """What has to be written so that all of a decided commit is in the channel; nothing when it is."""
    there: dict[int, int] = {}
    for message in old.of_transaction(redo.txn, redo.first_tick - 1):
        if message.type is MessageType.COMMIT:
            return []
        there[int(message.time_tick)] = int(message.position)
    runs = list(redo.runs)
    lacking: list[Piece] = []
    items: list[PendingAppend] = []
    tick = redo.first_tick
    for each in redo.bodies:
        # Messages of one piece lie in one block, which is whole or absent.
        if tick in there:
            runs.append((there[tick], each.count))
        else:
            lacking.append(each)
            items.append(_item(each, redo.txn, tick, last_confirmed))
        tick += each.count
    marker = commit_piece(redo.txn, lacking, runs)
    return [*items, _item(marker, redo.txn, redo.commit_tick, last_confirmed)]


def _item(piece: Piece, txn: bytes, first_tick: int, last_confirmed: int) -> PendingAppend:
    item = PendingAppend(Lock(), piece.vchannel, piece.type, piece.size)
    item.parts = [piece]
    item.count = piece.count
    piece.txn = item.txn = txn
    item.first_tick, item.last_confirmed = first_tick, last_confirmed
    return item


class Opening:
    """What a term begins with."""

    def __init__(
        self,
        name: str,
        *,
        files: Files,
        segments: SegmentWriter,
        tail: Tail,
        slot: TailSlot,
        allocate: Callable[[int], int],
        redo: Callable[[], Sequence[Redo]],
    ) -> None:
        """Complete and close what older terms left; the fence is up and the end of the log is known.

        Raises: whatever a write failed with; a term whose first tick cannot be written does not open.
        """
        self._name = name
        self._segments = segments
        self.expired: list[Session] = []
        """Transactions whose lease ran out while nobody had the channel open."""
        before = segments.before
        old = OldLog(files, segments.directory, None if before is None else Limit(before.number, segments.previous_end))
        open_from = segments.open_from
        found = RecoveredSessions()
        for batch in old.read(position=open_from):
            found.fold_batch(batch)
        items: list[PendingAppend] = []
        for each in redo():
            items.extend(missing_of(each, old, open_from))
            found.end(each.txn)
        self.sessions: Final = Sessions(name)
        self.tick: Final = self._append(items, found, files, tail, slot, allocate)

    def _append(
        self,
        items: list[PendingAppend],
        found: RecoveredSessions,
        files: Files,
        tail: Tail,
        slot: TailSlot,
        allocate: Callable[[int], int],
    ) -> Tick:
        name, segments = self._name, self._segments
        tick = Timestamp(allocate(1))
        if tick <= segments.time_tick or any(each.first_tick >= tick for each in items):
            raise StorageFailed(
                f"channel {name!r} holds TimeTick {segments.time_tick}, above the oracle's {tick}: the"
                f" metadata store is older than the log; restore the one that belongs to it"
            )
        position = Position(segments.position + sum([each.count for each in items]) + 1)
        self.expired = self.sessions.recover(found, int(tick))
        held = self.sessions.first_position
        segments.open_from = position if held is None else held
        plan = TickPlan(tick, position, persist=True, last_confirmed=Position(segments.open_from))
        commit = Commit([*items, tick_item(plan)])
        commit.encode(segments)
        if not segments.room(commit.size):
            segments.roll()
            commit.encode(segments)
        try:
            segments.write(commit.blocks)
            segments.sync()
        except OSError as error:
            what = "its first time tick could not be written"
            raise storage_error(name, files.describe(segments.directory), error, what) from error
        current = tail.current_term()
        if current != segments.term:
            raise Fenced(name, segments.term, current)
        segments.commit(
            commit.blocks,
            position=position,
            time_tick=int(tick),
            messages=commit.messages,
            tick=int(tick),
            durable=True,
        )
        slot.publish_address(address(segments.id.number, segments.offset))
        slot.publish_tick(int(tick))
        return Tick(tick, position, position, persisted=True)
