"""Known bugs of reads, planted one at a time, to prove that the simulator can fail. See `bugs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.clock.allocator import LocalAllocator
from tidegate.clock.timestamp import Timestamp
from tidegate.reads import token
from tidegate.reads.consistency import Asked, Seen, guarantee
from tidegate.reads.waiting import Ready, Waiting
from tidegate.sim import read_clients
from tidegate.sim.bugs import Bug, replaced
from tidegate.sim.network import Answer, Ask
from tidegate.sim.read_clients import ReadClient
from tidegate.sim.read_log import Checkpoint, Contents
from tidegate.sim.read_owner import Read, ReadOwner

READ_BUGS: dict[str, Callable[[], Any]] = {}


def _bug(plant: Bug) -> Bug:
    READ_BUGS[plant.__name__.replace("_", "-")] = contextmanager(plant)
    return plant


@_bug
def session_goes_back() -> Iterator[None]:
    """What a session has seen counts at its own level alone."""

    def needed(self: ReadOwner, wanted: Asked, now: Timestamp, seen: Seen, changed: Timestamp) -> Timestamp:  # noqa: ARG001
        return guarantee(wanted, now=now, seen=seen if wanted.level == "session" else Seen(), changed=changed)

    with replaced(ReadOwner, "needed_by", needed):
        yield


@_bug
def session_takes_the_last_cut_for_the_newest() -> Iterator[None]:
    """After a look at an old cut, a session goes on from there."""

    def last(self: Seen, at: Timestamp) -> Seen:
        return self._replace(read=at)

    with replaced(Seen, "after_read", last):
        yield


@_bug
def guarantee_from_the_clients_clock() -> Iterator[None]:
    """Now is what the reader's clock says (seed 004's first problem)."""

    def now(self: ReadOwner, ask: Ask) -> Timestamp:  # noqa: ARG001
        return Timestamp.compose(ask.arguments["clock_ms"])

    with replaced(ReadOwner, "now_of", now):
        yield


@_bug
def now_from_a_range_fetched_before() -> Iterator[None]:
    """Now comes from a range of Timestamps that was fetched for many reads."""
    ranges: dict[str, LocalAllocator] = {}

    def now(self: ReadOwner, ask: Ask) -> Timestamp:  # noqa: ARG001
        local = ranges.setdefault(self.name, LocalAllocator(lambda count: self.oracle.allocate(count, 0.0), 20))
        return local.allocate()

    with replaced(ReadOwner, "now_of", now):
        yield


@_bug
def deposed_owner_goes_on_reading() -> Iterator[None]:
    """Now is the last Timestamp that was handed out here; nobody looks whether another owner leads."""

    def now(self: ReadOwner, ask: Ask) -> Timestamp:  # noqa: ARG001
        return self.oracle.last()

    with replaced(ReadOwner, "now_of", now):
        yield


@_bug
def bounded_from_the_checkpoint() -> Iterator[None]:
    """A bound is counted from the last checkpoint, not from now."""

    def needed(self: ReadOwner, wanted: Asked, now: Timestamp, seen: Seen, changed: Timestamp) -> Timestamp:
        since = self.checkpoint.timestamp if wanted.level == "bounded" else now
        return guarantee(wanted, now=since, seen=seen, changed=changed)

    with replaced(ReadOwner, "needed_by", needed):
        yield


@_bug
def change_of_a_table_is_not_waited_for() -> Iterator[None]:
    """A read may be older than the table it reads."""

    def never(self: ReadOwner, tables: tuple[str, ...]) -> Timestamp:  # noqa: ARG001
        return Timestamp.ZERO

    with replaced(ReadOwner, "changed_last", never):
        yield


@_bug
def tables_are_read_at_different_cuts() -> Iterator[None]:
    """Each table is read as far as it is served when its turn comes."""

    def newest(self: ReadOwner, table: str, base: Checkpoint, at: Timestamp) -> Contents:
        return self.log.read(table, base, max(at, self.service))

    with replaced(ReadOwner, "read_table", newest):
        yield


@_bug
def snapshot_moves_on() -> Iterator[None]:
    """The queries of a snapshot only never go back."""

    def session(self: ReadClient, at: Timestamp) -> Asked:  # noqa: ARG001
        return Asked("session")

    with replaced(ReadClient, "again", session):
        yield


@_bug
def wait_misses_a_wake_up() -> Iterator[None]:
    """A read looks, and enters the list of those who wait a little later, without looking again."""

    def later(self: ReadOwner, read: Read) -> Iterator[str]:
        yield "is about to let a read wait"
        self.waiting.append(read)

    def wait(self: ReadOwner, read: Read) -> None:
        self.under_way.append(later(self, read))

    with replaced(ReadOwner, "wait", wait):
        yield


@_bug
def checkpoint_wakes_nobody() -> Iterator[None]:
    """Who waits for a checkpoint is woken by ticks alone."""

    def nothing(self: ReadOwner) -> None:
        """Forgotten."""

    with replaced(ReadOwner, "checkpoint_moved", nothing):
        yield


@_bug
def read_does_not_wait() -> Iterator[None]:
    """A read is answered from what has arrived so far."""

    def look(self: Waiting, service: Timestamp, now_ms: int) -> Ready:  # noqa: ARG001
        return Ready(service)

    with replaced(Waiting, "look", look):
        yield


@_bug
def service_time_of_the_fastest_channel() -> Iterator[None]:
    """One channel has ticked, and all are taken to have."""

    def fastest(self: ReadOwner) -> Timestamp:
        return Timestamp(max(channel.synced for channel in self.channels.values()))

    with replaced(ReadOwner, "reached", fastest):
        yield


@_bug
def first_tick_before_decided_commits() -> Iterator[None]:
    """An owner serves at once, and completes what its predecessor had decided by and by."""
    original = ReadOwner.complete_commits

    def later(self: ReadOwner) -> Iterator[str]:
        for _ in range(20):
            yield "has not come to that yet"
        yield from original(self)

    def by_and_by(self: ReadOwner) -> Iterator[str]:
        self.under_way.append(later(self))
        return iter(())

    with replaced(ReadOwner, "complete_commits", by_and_by):
        yield


@_bug
def token_forgets_the_writes() -> Iterator[None]:
    """A token says what was read, not what was written."""

    def read_alone(database: bytes, seen: Seen) -> str:
        return token.encode(database, Seen(read=seen.read))

    with replaced(read_clients, "encode", read_alone):
        yield


@_bug
def answer_to_an_earlier_question_is_taken() -> Iterator[None]:
    """Whatever answer comes is taken for the one that is waited for."""
    original = ReadClient.is_meant

    def any_answer(self: ReadClient, answer: Answer) -> bool:
        return original(self, answer) or (self.asks_for == "read" and answer.how == "ok")

    with replaced(ReadClient, "is_meant", any_answer):
        yield
