"""What tests of the log share: a counter for an oracle, a tail in memory, disks that fail when told to."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.clock.timestamp import LOGICAL_BITS
from tidegate.errors import Closed
from tidegate.log.message import Message, Term
from tidegate.ports.files import File, Files
from tidegate.ports.tail import Tail
from tidegate.runtime.channel_reader import ChannelReader, TailSource
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.opening import Redo
from tidegate.runtime.sealer import seal
from tidegate.runtime.settings import LogSettings
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.stores.local_files import LocalFiles

SMALL_SEGMENT = 64 << 10


def eventually(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "the condition") -> Any:
    """Poll until `condition` holds; its value. Fails the test when the time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s} s")
        time.sleep(0.002)


def held_open(root: Path) -> list[str]:
    """The files below `root` that this process has open or mapped into memory."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = {line.split(maxsplit=5)[5] for line in maps if str(root) in line}
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The descriptor that lists them is gone by now.
            found.add(str(each.readlink()))
    return sorted(each for each in found if each.startswith(str(root)))


class Calls:
    """Runs calls in threads of their own. One that hangs fails its test and no other."""

    def __call__(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future


class CountingOracle:
    """Hands out 1, 2, 3... and can be told to fail."""

    def __init__(self, start: int = 100) -> None:
        self._next = start
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def allocate(self, count: int = 1) -> int:
        with self._lock:
            if self.error is not None:
                raise self.error
            first = self._next
            self._next += count
            return first

    def pass_ms(self, ms: int) -> None:
        """Let time go by."""
        with self._lock:
            self._next += ms << LOGICAL_BITS


class MemorySlot:
    def __init__(self) -> None:
        self._address = self._tick = 0

    def publish_address(self, value: int) -> None:
        self._address = value

    def publish_tick(self, value: int) -> None:
        self._tick = value

    def address(self) -> int:
        return self._address

    def tick(self) -> int:
        return self._tick

    def close(self) -> None:
        pass


class MemoryTail:
    """The tail port for writers and readers of one test."""

    def __init__(self) -> None:
        self._term = 0
        self._slots: dict[int, MemorySlot] = {}

    def current_term(self) -> int:
        return self._term

    def fence(self, term: int) -> MemorySlot:
        slot = self._slots[term] = MemorySlot()
        self._term = max(self._term, term)
        return slot

    def slot(self, term: int) -> MemorySlot | None:
        return self._slots.get(term)

    def close(self) -> None:
        pass


@dataclass
class FailingFiles:
    """A disk that raises at chosen calls. `rule(call, path)` returns an error number, or None to go on."""

    inner: Files
    rule: Callable[[str, str], int | None] = lambda call, path: None
    calls: list[tuple[str, str]] = field(default_factory=list)

    def check(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        number = self.rule(call, path)
        if number is not None:
            raise OSError(number, os.strerror(number))

    def count(self, call: str) -> int:
        """How often it was called so far."""
        return sum(1 for each, _ in self.calls if each == call)

    @contextmanager
    def failing(self, number: int, *calls: str, after: int = 0, only: str = "") -> Iterator[None]:
        """Let every named call on a path that contains `only` fail, after `after` of them went well."""
        seen = 0

        def rule(call: str, path: str) -> int | None:
            nonlocal seen
            if call not in calls or only not in path:
                return None
            seen += 1
            return number if seen > after else None

        old, self.rule = self.rule, rule
        try:
            yield
        finally:
            self.rule = old

    def create(self, path: str, size: int) -> File:
        self.check("create", path)
        return FailingFile(self, path, self.inner.create(path, size))

    def open(self, path: str, *, write: bool = False) -> File:
        return FailingFile(self, path, self.inner.open(path, write=write))

    def rename(self, old: str, new: str) -> None:
        self.check("rename", new)
        self.inner.rename(old, new)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        self.inner.remove(path)

    def names(self, path: str) -> list[str]:
        return self.inner.names(path)

    def make_dir(self, path: str) -> None:
        self.inner.make_dir(path)

    def sync_dir(self, path: str) -> None:
        self.check("sync_dir", path)
        self.inner.sync_dir(path)

    def describe(self, path: str) -> str:
        return self.inner.describe(path)


@dataclass
class FailingFile:
    files: FailingFiles
    path: str
    inner: File

    def write(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        try:
            self.files.check("write", self.path)
        except OSError:
            # Law 5 of the port: a write that raises may have written any part of its bytes.
            raw = b"".join(bytes(each) for each in buffers)
            self.inner.write(offset, [raw[: len(raw) // 2]])
            raise
        self.inner.write(offset, buffers)

    def sync(self) -> None:
        self.files.check("sync", self.path)
        self.inner.sync()

    def read(self, offset: int, size: int) -> memoryview:
        self.files.check("read", self.path)
        return self.inner.read(offset, size)

    def size(self) -> int:
        return self.inner.size()

    def next_data(self, offset: int) -> int:
        return self.inner.next_data(offset)

    def truncate(self, size: int) -> None:
        self.inner.truncate(size)

    def close(self) -> None:
        self.inner.close()


FULL = errno.ENOSPC
BROKEN = errno.EIO


@dataclass
class Rig:
    """One channel without a log around it: writers of any term, readers, and the files between them."""

    root: Path
    tail: Tail = field(default_factory=MemoryTail)
    oracle: CountingOracle = field(default_factory=CountingOracle)
    directory: str = "c"
    opened: list[Any] = field(default_factory=list)
    term: int = 0
    deferred: bool = False
    """Whether appends wait until somebody calls `commit_all`."""

    def __post_init__(self) -> None:
        self.files = FailingFiles(LocalFiles(self.root))
        self.files.make_dir(self.directory)

    def writer(
        self,
        term: int | None = None,
        *,
        start: bool = False,
        inline: bool = False,
        redo: Callable[[], Sequence[Redo]] = tuple,
        **settings: Any,
    ) -> ChannelWriter:
        """A writer of the next term. Without `start` only threads that wait write; with `inline` whoever hands over
        an append writes it before he goes on, unless `deferred` is set."""
        self.term = self.term + 1 if term is None else term
        settings.setdefault("segment_bytes", SMALL_SEGMENT)

        def schedule() -> None:
            if inline and not self.deferred:
                commit_all(writer)

        writer = ChannelWriter(
            "c",
            Term(self.term),
            files=self.files,
            directory=self.directory,
            tail=self.tail,
            allocate=self.oracle.allocate,
            wall_ms=lambda: 1_700_000_000_000,
            settings=LogSettings(**settings),
            redo=redo,
            schedule=None if start else schedule,
        )
        if start:
            writer.start()
        self.opened.append(writer)
        return writer

    @property
    def channel(self) -> ChannelFiles:
        return ChannelFiles(self.files, self.directory)

    def reader(self, writer: ChannelWriter | None = None, **options: Any) -> ChannelReader:
        """A reader; with `writer` it tails from memory, without it only reads files."""
        source = TailSource(self.channel, self.tail, is_written=lambda: True)
        reader = ChannelReader(self.channel, source, writer=writer, **options)
        self.opened.append(reader)
        return reader

    def transactions(self, writer: ChannelWriter | None = None, **options: Any) -> TransactionReader:
        """A reader that gives transactions whole; with `writer` it tails from memory."""
        source = TailSource(self.channel, self.tail, is_written=lambda: True)
        reader = TransactionReader(self.channel, source, writer=writer, **options)
        self.opened.append(reader)
        return reader

    def messages(self, writer: ChannelWriter | None = None, **options: Any) -> list[Message]:
        """Everything a new reader gets without waiting."""
        return drain(self.reader(writer, **options))

    def bodies(self, writer: ChannelWriter | None = None, **options: Any) -> list[bytes | None]:
        return [each.body for each in self.messages(writer, **options)]

    def seal(self, writer: ChannelWriter) -> int:
        """Seal what `writer` has closed."""
        closed = writer.segments.closed
        done = 0
        while closed:
            done += seal(self.files, self.directory, closed.pop(0)) is not None
        return done

    def crash(self) -> None:
        """The process that wrote is gone: nothing is finished, ticked or closed any more."""
        for each in self.opened:
            if isinstance(each, ChannelWriter) and each._closed is None:
                each._closed = Closed("the process is gone")
                each._thread, thread = None, each._thread
                if thread is not None:
                    each._work.put(False)
                    thread.join(10)

    def path(self, name: str) -> Path:
        return self.root / self.directory / name

    def segment_paths(self) -> list[Path]:
        return [self.path(each.name) for each in self.channel.segments()]

    def close(self) -> None:
        for each in reversed(self.opened):
            each.close()


def drain(reader: ChannelReader) -> list[Message]:
    """What a reader has to give now; checks promise 1 on the way: TimeTicks and ticks only ascend."""
    found: list[Message] = []
    last, last_tick = -1, -1
    while (delivery := reader.poll()) is not None:
        assert delivery.tick.time_tick > last_tick
        for message in delivery.messages():
            assert last_tick < message.time_tick <= delivery.tick.time_tick
            assert message.time_tick > last
            last = int(message.time_tick)
            found.append(message)
        last_tick = int(delivery.tick.time_tick)
    return found


def drain_whole(reader: TransactionReader) -> list[Message]:
    """What a reader of transactions has to give now; checks on the way that they come whole and at one TimeTick, and
    that nothing comes at or below a tick that was delivered."""
    found: list[Message] = []
    last, last_tick = -1, reader.after
    ended: set[bytes] = set()
    while (delivery := reader.poll()) is not None:
        assert delivery.tick.time_tick > last_tick
        txn = None
        for message in delivery.messages():
            assert last_tick < message.time_tick <= delivery.tick.time_tick
            assert message.time_tick > last or (message.time_tick == last and message.txn == txn is not None)
            assert not message.type.is_system
            if message.txn != txn:
                assert message.txn not in ended, "a transaction comes in one piece and once"
            if message.txn is not None:
                ended.add(message.txn)
            last, txn = int(message.time_tick), message.txn
            found.append(message)
        last_tick = int(delivery.tick.time_tick)
    return found


def txn_id(number: int) -> bytes:
    """The id of a transaction."""
    return (number + 1).to_bytes(16, "big")


def commit_all(writer: ChannelWriter) -> int:
    """Do by hand what the writing thread does: commit until nothing can be written; how many commits that took."""
    done = 0
    while (commit := writer.next_commit()) is not None:
        if commit.items:
            writer.run(commit)
        done += 1
    return done


def tick(writer: ChannelWriter, *, force: bool = False) -> None:
    """A tick that covers what was acknowledged before, and is there when this returns."""
    if writer._thread is None:
        writer.tick(force=force)
        commit_all(writer)
        return
    goal = writer.status().channel.confirmed

    def covered() -> bool:
        writer.tick(force=force)
        return writer.status().channel.synced >= goal

    eventually(covered)
