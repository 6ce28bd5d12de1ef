"""Known bugs, planted one at a time, to prove that the simulator can fail.

Each is a small wrong change to real code, of the kind people make. `tests/simulation` asserts that every one is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tidegate.clock.oracle import OracleMachine
from tidegate.log.channel import Append, Channel
from tidegate.log.last_confirmed import LastConfirmed
from tidegate.log.message import Position
from tidegate.log.reorder import ReorderBuffer
from tidegate.runtime import file_cursor, segments
from tidegate.runtime.channel_reader import TailSource
from tidegate.runtime.commit import Commit
from tidegate.runtime.committer import Committer
from tidegate.runtime.held_back import HeldBack
from tidegate.runtime.oracle import Oracle
from tidegate.runtime.segments import SegmentWriter
from tidegate.sim.machine import SimTail

Bug = Callable[[], Iterator[None]]
BUGS: dict[str, Callable[[], Any]] = {}


def _bug(plant: Bug) -> Bug:
    BUGS[plant.__name__.replace("_", "-")] = contextmanager(plant)
    return plant


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """One attribute of a class, for a while."""
    old = owner.__dict__[name]
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


@_bug
def acknowledge_before_sync() -> Iterator[None]:
    """Appends are acknowledged when they are written, not when they are durable."""

    def sync(self: Committer, commit: Commit) -> None:
        """Forgotten."""

    with replaced(Committer, "sync", sync):
        yield


@_bug
def last_confirmed_ignores_concurrent_writes() -> Iterator[None]:
    """The first condition of LastConfirmed is missing: what was allocated meanwhile need not be confirmed."""
    original = LastConfirmed.add

    def add(self: LastConfirmed, position: int, end: int, session: Any = None, *, first: int | None = None) -> None:
        original(self, position, 0, session, first=first)

    with replaced(LastConfirmed, "add", add):
        yield


@_bug
def last_confirmed_ignores_transactions() -> Iterator[None]:
    """The second condition of LastConfirmed is missing: the transaction need not be resolved."""
    original = LastConfirmed.add

    def add(self: LastConfirmed, position: int, end: int, session: Any = None, *, first: int | None = None) -> None:
        original(self, position, end, None, first=first)

    with replaced(LastConfirmed, "add", add):
        yield


@_bug
def failed_append_blocks_the_watermark() -> Iterator[None]:
    """A failed append stays in flight for ever."""

    def fail(self: Channel, append: Append) -> None:
        """Forgotten."""

    with replaced(Channel, "fail", fail):
        yield


@_bug
def oracle_starts_at_the_wall_clock() -> Iterator[None]:
    """The persisted window is not read."""
    original = OracleMachine.start

    def start(self: OracleMachine, wall_ms: int, saved_ms: int | None) -> Any:
        return original(self, wall_ms, None)

    with replaced(OracleMachine, "start", start):
        yield


@_bug
def old_term_may_append() -> Iterator[None]:
    """The fence is not looked at before acknowledging."""
    original = Committer.finish

    def finish(self: Committer, commit: Commit, error: Any = None) -> None:
        tail = self._tail
        self._tail = SimTail(int(self.term))
        try:
            original(self, commit, error)
        finally:
            self._tail = tail

    with replaced(Committer, "finish", finish):
        yield


@_bug
def tick_passes_what_is_in_flight() -> Iterator[None]:
    """A tick covers all that was allocated, confirmed or not."""
    original = Channel.plan_tick

    def plan_tick(self: Channel, now: int, *, force: bool = False) -> Any:
        self.confirmed = max(self.confirmed, self.allocated)
        return original(self, now, force=force)

    with replaced(Channel, "plan_tick", plan_tick):
        yield


def _roll_in_place(self: SegmentWriter) -> None:
    """After a failed write: go on at the same place, in the same segment."""
    if not self.broken:
        _original_roll(self)
    self.broken = False


_original_roll = SegmentWriter.roll


@_bug
def failed_write_is_not_cut_off() -> Iterator[None]:
    """After a failed write the writer goes on at the same place, and says the append is not part of the log."""
    with replaced(SegmentWriter, "roll", _roll_in_place):
        yield


@_bug
def reader_reads_what_is_not_published() -> Iterator[None]:
    """A reader in another process takes every intact block for a part of the log."""
    original = TailSource.limit

    def limit(self: TailSource) -> Any:
        found, tick = original(self)
        end = self._channel.end_of_log()
        return (end if found is not None else None), tick

    with replaced(TailSource, "limit", limit):
        yield


@_bug
def reader_takes_the_address_before_the_tick() -> Iterator[None]:
    """A reader applies a newer tick to an older part of the log."""
    original = TailSource.limit

    def limit(self: TailSource) -> Any:
        found = original(self)
        stale = self.__dict__.get("stale", found)
        self.__dict__["stale"] = found
        return stale[0], found[1]

    with replaced(TailSource, "limit", limit):
        yield


@_bug
def reorder_buffer_keeps_physical_order() -> Iterator[None]:
    """Messages are delivered as they were written."""

    def pop_until(self: ReorderBuffer, tick: int) -> Any:
        ready = [each.batch for each in self._held]
        self._held, self.nbytes = [], 0
        return ready

    with replaced(ReorderBuffer, "pop_until", pop_until):
        yield


@_bug
def held_back_part_is_forgotten() -> Iterator[None]:
    """What a reader left in the files for want of memory is not read again."""

    def pop_until(self: HeldBack, tick: int) -> Any:
        return self._buffer.pop_until(tick), tick

    with replaced(HeldBack, "pop_until", pop_until):
        yield


@_bug
def recovery_trusts_the_page_cache() -> Iterator[None]:
    """What a dead writer left unsynced is built upon without making it durable."""
    original = SegmentWriter._recover_last

    def recover_last(self: SegmentWriter, *arguments: Any) -> Any:
        files = self._files

        class NoSync:
            def __getattr__(self, name: str) -> Any:
                return getattr(files, name)

            def open(self, path: str, *, write: bool = False) -> Any:
                file = files.open(path)
                del write

                class Quiet:
                    def __getattr__(self, name: str) -> Any:
                        return getattr(file, name)

                    def write(self, *_: Any) -> None: ...

                    def sync(self) -> None: ...

                return Quiet()

        self._files = NoSync()
        try:
            return original(self, *arguments)
        finally:
            self._files = files

    with replaced(SegmentWriter, "_recover_last", recover_last):
        yield


@_bug
def durable_to_runs_ahead() -> Iterator[None]:
    """What is acknowledged between two syncs is said to be durable already."""

    def sync_committed(self: SegmentWriter) -> None:
        self.synced = self.offset

    with replaced(SegmentWriter, "sync_committed", sync_committed):
        yield


@_bug
def segment_is_left_before_it_is_durable() -> Iterator[None]:
    """The next segment is begun while the end of the last one is only in the page cache."""
    original = SegmentWriter.roll

    def roll(self: SegmentWriter) -> None:
        self.__dict__["sync_committed"] = lambda: None
        try:
            original(self)
        finally:
            del self.__dict__["sync_committed"]

    with replaced(SegmentWriter, "roll", roll):
        yield


@_bug
def failed_sync_is_believed() -> Iterator[None]:
    """After a failed sync all is taken to be durable, as a second sync without another write would say."""
    original = SegmentWriter._sync

    def sync(self: SegmentWriter) -> None:
        self._doubtful = False
        if self.synced == self.offset:
            original(self)
            return
        with suppress(OSError):
            original(self)

    with replaced(SegmentWriter, "_sync", sync):
        yield


@_bug
def end_of_a_segment_is_not_settled() -> Iterator[None]:
    """A reader goes on behind the place where a newer segment says that the older one ends."""

    def end(self: file_cursor.FileCursor, opened: Any, limit: Any) -> int:
        if opened.trailer is not None:
            return int(opened.trailer.end)
        if opened.id.number >= limit.number:
            return int(limit.offset)
        found = segments.scan_end(self._channel.files, self._channel.directory, opened.id, opened.file, opened.header)
        return found.offset

    with replaced(file_cursor.FileCursor, "_end", end):
        yield


@_bug
def oracle_keeps_going_when_deposed() -> Iterator[None]:
    """An oracle hands out timestamps after its lease has run out."""
    original = Oracle._renew_if_due

    def renew(self: Any) -> None:
        original(self)
        self._deadline = float("inf")

    with replaced(Oracle, "_renew_if_due", renew):
        yield


@_bug
def group_takes_last_confirmed_of_its_end() -> Iterator[None]:
    """Messages of a commit get the LastConfirmed of the moment it is acknowledged, not of its allocation."""
    original = Channel.allocate

    def allocate(self: Channel, first: int, count: int, *arguments: Any, **options: Any) -> Append:
        append = original(self, first, count, *arguments, **options)
        append.last_confirmed = Position(self.last_confirmed.position + len(self._in_flight) - 1)
        return append

    with replaced(Channel, "allocate", allocate):
        yield
