"""`Log`: a directory of channels with one timeline. What a process opens to write; `LogFiles` is what any may read.

PATH/meta.sqlite     the oracle's window, channel terms, pins, leases
PATH/log/lock        held by the process that writes
PATH/log/CHANNEL/    segments, their indexes, and the tail shared with readers
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock, RLock, Thread
from typing import Any, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    Closed,
    Corruption,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    NotLeader,
    TidegateError,
)
from tidegate.log.message import NO_POSITION, MessageType, Position, Term
from tidegate.log.segment import newest_term
from tidegate.ports.clock import Clock, SystemClock
from tidegate.ports.metadata import MetadataStore
from tidegate.runtime.channel_reader import ChannelReader, TailSource
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.log_files import LogFiles
from tidegate.runtime.opening import Redo
from tidegate.runtime.oracle import Oracle
from tidegate.runtime.retention import SegmentFacts, facts, remove_old
from tidegate.runtime.sealer import remove_leftovers, seal
from tidegate.runtime.segments import Closed as ClosedSegment
from tidegate.runtime.settings import Durability, LogSettings
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.runtime.watermarks import Watermarks
from tidegate.runtime.writer_lock import LOCK, take_lock
from tidegate.stores.local_files import LocalFiles
from tidegate.stores.shared_tail import SharedTail
from tidegate.stores.sqlite_metadata import SqliteMetadataStore

_logger = logging.getLogger("tidegate.log")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MAINTAIN_EVERY_S: Final = 0.25
_STORE: Final = "meta.sqlite"
__all__ = ["Log", "LogFiles", "LogStatus"]


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A log at one moment, as plain data."""

    path: str
    oracle: dict[str, Any]
    watermark: dict[str, Any]
    channels: dict[str, dict[str, Any]]
    troubles: dict[str, str]
    """What background work failed at last, and why; empty when all is well."""


class Log:
    """A log open for writing. One process at a time; use it as a context manager.

    Ordering: the oracle starts before any channel, and channels close before it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        takeover: bool = False,
    ) -> None:
        """Open or create the log at `path`.

        Raises: `InUse` when another live process writes it. With `takeover` that process is fenced instead: whatever
        it still writes is not part of the log, and its appends fail. It must hang or be stopped: one that runs
        keeps the oracle's lease, and then this raises `NotLeader` after 10 s.
        """
        self.path: Final = Path(path)
        self.settings: Final = settings or LogSettings()
        self._clock = clock or SystemClock()
        _make_directory(self.path)
        self._files = LocalFiles(self.path / "log")
        self._guard = RLock()
        self._writers: dict[str, ChannelWriter] = {}
        self.watermarks: Final = Watermarks()
        self._stop = Event()
        self._wake = Event()
        self._unexamined: list[str] = []
        """Channels whose older segments nobody has looked at yet; opening does not wait for that."""
        self._to_seal: list[tuple[str, ClosedSegment]] = []
        self._sealing = Lock()
        self._troubles: dict[str, str] = {}
        self._leading = Lock()
        self._threads: list[Thread] = []
        with ExitStack() as ends:
            self._lock = take_lock(self.path, takeover=takeover)
            ends.callback(self._lock.let_go)
            self._store: MetadataStore = SqliteMetadataStore(str(self.path / _STORE))
            ends.callback(self._store.close)
            self.oracle = Oracle(self._store, self._clock, owner=_owner())
            ends.callback(lambda: self.oracle.close())  # Whichever it then is: see _lead_again.
            self.oracle.start()
            self.oracle.run()
            ends.callback(self._stop_threads)
            self._start_thread(self._tick_loop, "tidegate-ticks")
            self._start_thread(self._maintain_loop, "tidegate-maintenance")
            self._ends = ends.pop_all()

    def _start_thread(self, loop: Callable[[], None], name: str) -> None:
        thread = Thread(target=loop, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _stop_threads(self) -> None:
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join()

    # Channels

    def channels(self) -> list[str]:
        """The names of all channels, open or not."""
        return LogFiles(self.path).channels()

    def channel(self, name: str, *, create: bool = True, redo: Callable[[], Sequence[Redo]] = tuple) -> ChannelWriter:
        """The channel of that name, opened at a new term when this process has not opened it yet.

        `redo` returns the commits that were decided and may be missing in it; see `opening`.

        Raises: `InvalidArgument` for a bad name, `LimitExceeded` beyond `channels_max`, `NotFound` when it does
        not exist and `create` is off, `Corruption` when its files are damaged.
        """
        with self._guard:
            self._check_open()
            writer = self._writers.get(name)
            if writer is not None:
                # One that was fenced stays so: opening it again here would take it away from its new owner.
                writer.check_open()
                return writer
            if not _NAME.fullmatch(name) or name == LOCK:
                raise InvalidArgument(
                    f"{name!r} is no channel name: letters, digits, '_', '.', '-', at most 100, starting with a letter"
                    f" or digit; {LOCK!r} is taken"
                )
            known = self.channels()
            if name not in known:
                if not create:
                    raise NotFound(f"{self.path} has no channel {name!r}; there are: {', '.join(known) or 'none yet'}")
                if len(known) >= self.settings.channels_max:
                    what = f"{self.path}: the number of channels"
                    raise LimitExceeded(what, len(known) + 1, self.settings.channels_max, "channels_max")
                self._files.make_dir(name)
            writer = self._open_channel(name, redo)
            self._writers[name] = writer
            return writer

    def _open_channel(self, name: str, redo: Callable[[], Sequence[Redo]]) -> ChannelWriter:
        term = self._next_term(name)
        with ExitStack() as undo:
            tail = SharedTail(self.path / "log" / name)
            undo.callback(tail.close)
            writer = ChannelWriter(
                name,
                term,
                files=self._files,
                directory=name,
                tail=tail,
                allocate=self.allocate,
                wall_ms=self._clock.wall_ms,
                settings=self.settings,
                redo=redo,
            )
            undo.callback(writer.close)
            writer.start()
            undo.pop_all()
        found = writer.recovered
        if found.cut_bytes:
            _logger.warning(
                "channel %r: cut %d bytes of an unfinished write behind the last whole block of %s",
                name, found.cut_bytes, found.segment,
            )  # fmt: skip
        for path in found.discarded:
            _logger.warning("channel %r: removed %s, which a dead or fenced writer left unused", name, path)
        self._unexamined.append(name)
        self._wake.set()
        return writer

    def allocate(self, count: int = 1) -> Timestamp:
        """The first of `count` consecutive Timestamps."""
        try:
            return self.oracle.allocate(count)
        except NotLeader:
            self._lead_again()
            return self.oracle.allocate(count)

    def _lead_again(self) -> None:
        """After the lease was lost, as when the machine slept: take it back, if nobody else has it.

        Channels that somebody else has taken over meanwhile stay fenced all the same.
        """
        with self._leading:
            if self._stop.is_set() or self.oracle.status()["state"] == "Leading":
                return
            self.oracle.close()  # It hands out nothing any more; what it may still hold is let go.
            oracle = Oracle(self._store, self._clock, owner=_owner())
            oracle.start(timeout_s=0.0)
            oracle.run()
            self.oracle = oracle
            _logger.warning("%s: the oracle's lease had run out and was taken again", self.path)

    def _next_term(self, name: str) -> Term:
        """Take the next term. Terms come from the metadata store, one at a time, and are never given twice.

        The files know terms as well: if the store was lost or is an old copy, what they have seen counts.
        """
        key = f"channel/{name}"
        with closing(SharedTail(self.path / "log" / name)) as tail:
            seen = max(newest_term(self._files.names(name)), tail.current_term())
        while True:
            found = self._store.get(key)
            term = max(seen, 0 if found is None else json.loads(found.value)["term"]) + 1
            value = json.dumps({"term": term}).encode()
            if self._store.compare_and_set(key, value, expected=0 if found is None else found.version) is not None:
                return Term(term)

    def reader(
        self,
        name: str,
        *,
        position: Position = NO_POSITION,
        after: Timestamp = Timestamp.ZERO,
        vchannel: str | None = None,
        types: frozenset[MessageType] | None = None,
    ) -> ChannelReader:
        """A reader that catches up from the files and then follows from memory; see `ChannelReader`."""
        writer = self.channel(name, create=False)
        channel, source = self._followed(name)
        return ChannelReader(
            channel, source, position=position, after=after, vchannel=vchannel, types=types, writer=writer
        )

    def transaction_reader(
        self,
        name: str,
        *,
        position: Position = NO_POSITION,
        after: Timestamp = Timestamp.ZERO,
        vchannels: frozenset[str] | None = None,
        types: frozenset[MessageType] | None = None,
    ) -> TransactionReader:
        """A reader that gives transactions whole; see `TransactionReader`."""
        writer = self.channel(name, create=False)
        channel, source = self._followed(name)
        return TransactionReader(
            channel, source, position=position, after=after, vchannels=vchannels, types=types, writer=writer
        )

    def _followed(self, name: str) -> tuple[ChannelFiles, TailSource]:
        channel = ChannelFiles(self._files, name)
        return channel, TailSource(channel, SharedTail(self.path / "log" / name), is_written=lambda: True)

    def segments(self, name: str) -> list[SegmentFacts]:
        """What is known of every segment of a channel."""
        return facts(ChannelFiles(self._files, name))

    @property
    def metadata(self) -> MetadataStore:
        """Where the few facts are kept that must be known before the log can be read."""
        return self._store

    # Retention

    def pin(self, channel: str, name: str, position: Position) -> None:
        """Keep everything from `position` on, whatever the retention settings say, until `unpin`."""
        key = f"pin/{channel}/{name}"
        while True:
            found = self._store.get(key)
            expected = 0 if found is None else found.version
            if self._store.compare_and_set(key, str(int(position)).encode(), expected=expected) is not None:
                return

    def unpin(self, channel: str, name: str) -> None:
        """Let go of what `pin` keeps."""
        key = f"pin/{channel}/{name}"
        while (found := self._store.get(key)) is not None:
            if self._store.compare_and_set(key, None, expected=found.version) is not None:
                return

    def pins(self, channel: str) -> dict[str, Position]:
        """Who needs what of a channel."""
        prefix = f"pin/{channel}/"
        return {key[len(prefix) :]: Position(int(v.value)) for key, v in self._store.list(prefix).items()}

    def truncate(self, channel: str, before: Position) -> list[str]:
        """Remove sealed segments wholly before `before`, before every pin and every open transaction; their paths."""
        self.channel(channel, create=False)
        return self._remove(channel, before=before)

    def _remove(self, name: str, *, before: Position | None = None) -> list[str]:
        needed = list(self.pins(name).values())
        writer = self._writers.get(name)
        if writer is not None:
            with writer.mutex:
                open_from = writer.sessions.first_position
            if open_from is not None:
                needed.append(Position(open_from))
        removed = remove_old(
            ChannelFiles(self._files, name),
            needed_from=min(needed, default=None),
            before=before,
            age_max_s=None if before is not None else self.settings.retention_age_s,
            bytes_max=None if before is not None else self.settings.retention_bytes,
            now_ms=self._clock.wall_ms(),
        )
        for path in removed:
            _logger.info("channel %r: retention removed %s", name, path)
        return removed

    # Sealing

    def _find_unsealed(self) -> None:
        """Segments that an earlier life closed and did not seal, and what it left of those that it did."""
        for name in list(self._unexamined):
            try:
                known = facts(ChannelFiles(self._files, name))
                remove_leftovers(self._files, name, [each.name for each in known if each.sealed])
            except OSError as error:
                self._trouble(f"examine {name}", str(error))
                continue  # It stays in the list, so the next round tries again.
            self._troubles.pop(f"examine {name}", None)
            with self._guard:
                self._unexamined.remove(name)
                self._to_seal.extend((name, each.closed) for each in known if each.closed is not None)

    def seal(self) -> int:
        """Seal every closed segment now instead of in the background; how many were."""
        with self._sealing:
            self._find_unsealed()
            with self._guard:
                todo, self._to_seal = self._to_seal, []
                for name, writer in self._writers.items():
                    closed = writer.segments.closed
                    while closed:
                        todo.append((name, closed.pop(0)))
            return sum(self._seal_one(name, closed) for name, closed in todo)

    def _seal_one(self, name: str, closed: ClosedSegment) -> int:
        try:
            sealed = seal(self._files, name, closed, by=self._writers[name].term)
        except FileNotFoundError:
            return 0  # Retention was faster.
        except Corruption as error:
            self._trouble(f"seal {name}", str(error))
            return 0
        except OSError as error:
            self._trouble(f"seal {name}", str(error))
            with self._guard:
                self._to_seal.append((name, closed))
            return 0
        self._troubles.pop(f"seal {name}", None)
        return int(sealed is not None)

    # Threads

    def _tick_loop(self) -> None:
        interval = self.settings.tick_interval_ms / 1000
        while not self._stop.wait(interval):
            for writer in self._open_writers():
                try:
                    writer.tick()
                except TidegateError as error:
                    self._trouble(f"tick {writer.name}", str(error))
                else:
                    self._troubles.pop(f"tick {writer.name}", None)
            self._collect_watermark()

    def _collect_watermark(self) -> None:
        try:
            # The timestamp first: what is not in flight when it is taken has arrived or will be above it.
            now = self.allocate()
            ticks = {writer.name: writer.latest_tick.time_tick for writer in self._open_writers()}
            self.watermarks.collect(ticks, now)
        except TidegateError as error:
            self._trouble("watermark", str(error))
        else:
            self._troubles.pop("watermark", None)

    def _maintain_loop(self) -> None:
        interval = _MAINTAIN_EVERY_S
        by_interval = self.settings.durability is Durability.INTERVAL
        if by_interval:
            interval = min(interval, self.settings.sync_interval_ms / 1000)
        while not self._stop.is_set():
            self._wake.wait(interval)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self._lock.try_lock()
                if by_interval:
                    for writer in self._open_writers():
                        writer.sync_now()
                self.seal()
                if self.settings.retention_age_s is not None or self.settings.retention_bytes is not None:
                    for name in list(self._writers):
                        self._remove(name)
            except (TidegateError, OSError) as error:
                self._trouble("maintenance", str(error))
            except Exception as error:
                # A defect of ours must not end sealing and retention without a word.
                self._trouble("maintenance", repr(error))
            else:
                self._troubles.pop("maintenance", None)

    def _open_writers(self) -> Iterator[ChannelWriter]:
        with self._guard:
            writers = list(self._writers.values())
        return (writer for writer in writers if writer.is_open)

    def _trouble(self, what: str, why: str) -> None:
        if self._troubles.get(what) != why:
            self._troubles[what] = why
            _logger.warning("%s: %s", what, why)

    def status(self) -> LogStatus:
        """Everything that waits, and on what."""
        with self._guard:
            channels = {name: asdict(writer.status()) for name, writer in sorted(self._writers.items())}
        return LogStatus(str(self.path), self.oracle.status(), self.watermarks.status(), channels, dict(self._troubles))

    def _check_open(self) -> None:
        if self._stop.is_set():
            raise Closed(f"the log at {self.path} was closed; open it again")
        if self._lock.is_inherited:
            raise Closed(f"the log at {self.path} was opened before a fork; close it there and open it here")

    def close(self) -> None:
        """Finish what is under way, tick once more so that readers get all of it, and let go.

        Where one part cannot be closed the others are all the same; then its error is raised. In a forked child this
        does nothing: the log is its parent's.
        """
        if self._lock.is_inherited:
            return
        with self._guard:
            if self._stop.is_set():
                return
            self._stop.set()
        # Last in, first out: the threads, the channels, the oracle, the store, the lock.
        with self._ends as ends:
            for writer in self._writers.values():
                ends.callback(writer.close)
            ends.callback(self._stop_threads)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _owner() -> str:
    """A name that no other handle has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _make_directory(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"{path} is a file; a log is a directory")
    try:
        LocalFiles(path).make_dir("log")
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be created: {error.strerror}; choose a place you may write to") from error
