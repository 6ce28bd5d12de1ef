"""Every bug that the simulator found, as a directed test: a seed means something else once the workload changes."""

import errno
from itertools import count
from random import Random

import pytest

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, NotLeader, StorageFailed
from tidegate.runtime.channel_reader import ChannelReader, TailSource
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.settings import LogSettings
from tidegate.sim.disk import SimDisk, SimFiles
from tidegate.sim.machine import SimTail
from tidegate.topics.message_id import MessageId
from tidegate.topics.subscription import Subscription
from tidegate.txn.txn_id import TxnId


class Machine:
    """One channel on a simulated disk, stepped by hand."""

    def __init__(self, **settings):
        self.disk = SimDisk(Random(1))
        self.tail = SimTail()
        self.failing = {}
        self.clock = count(1000)
        self.terms = count(1)
        self.settings = LogSettings(**settings)

    def hook(self, operation, path, *, done):
        if not done and self.failing.get(operation, 0):
            self.failing[operation] -= 1
            raise OSError(errno.EIO, "simulated", path)

    def allocate(self, number):
        first = next(self.clock)
        for _ in range(number - 1):
            next(self.clock)
        return Timestamp(first)

    def open(self):
        return ChannelWriter(
            "c",
            next(self.terms),
            files=SimFiles(self.disk, self.hook),
            directory="c",
            tail=self.tail,
            allocate=lambda number: self.allocate(number),
            wall_ms=lambda: 0,
            settings=self.settings,
            schedule=lambda: None,
            monotonic=lambda: 0.0,
        )

    def lose_power(self, torn=1.0):
        self.disk.lose_power(torn)
        self.tail = SimTail()

    def reader(self, writer=None):
        files = ChannelFiles(SimFiles(self.disk, self.hook), "c")
        return ChannelReader(files, TailSource(files, self.tail), writer=writer)


def write_all(writer):
    while (commit := writer.next_commit()) is not None:
        if commit.items:
            writer.run(commit)


def read_all(reader):
    bodies = []
    while (delivery := reader.poll()) is not None:
        bodies += [message.body for message in delivery.messages()]
    return bodies


def test_a_reader_in_memory_misses_nothing_after_a_long_hold():
    """More was written under a held watermark than the buffer keeps, and a tick below it fell in between."""
    machine = Machine(buffer_bytes_max=2_000)
    writer = machine.open()
    reader = machine.reader(writer)
    assert read_all(reader) == []
    assert reader.tailing
    early = writer.reserve("v")
    writer.append_async("v", b"between the holds")
    write_all(writer)
    late = writer.reserve("v")
    sent = [b"%02d" % number + b"x" * 500 for number in range(8)]
    for body in sent:
        writer.append_async("v", body)
        write_all(writer)
    early.release()
    writer.tick()
    write_all(writer)
    assert read_all(reader) == [b"between the holds"]
    late.release()
    writer.tick()
    write_all(writer)
    assert read_all(reader) == sent


def test_what_only_the_page_cache_holds_is_not_built_upon():
    """A sync failed, the writer died, and so did the next one's first attempt to sync; then the power failed."""
    machine = Machine()
    writer = machine.open()
    lost = writer.append_async("v", b"whole in memory only")
    commit = writer.next_commit()
    writer.write(commit)
    machine.failing["sync"] = 1
    with pytest.raises(OSError):
        writer.sync(commit)
    assert not lost.done()  # The process dies here.
    second = machine.open()
    kept = second.append_async("v", b"after")
    write_all(second)
    assert kept.error is None
    machine.lose_power()
    third = machine.open()
    third.tick()
    write_all(third)
    bodies = read_all(machine.reader())
    assert bodies in ([b"whole in memory only", b"after"], [b"after"])


def test_last_confirmed_does_not_pass_a_transaction_that_began_in_the_same_group():
    """A reserved message was written in the middle of a group that holds the beginning of a transaction."""

    class Open:
        def is_resolved(self, confirmed):
            return False

    machine = Machine()
    writer = machine.open()
    hold = writer.reserve("v")
    begin = writer.append_async("v", b"begin", txn=bytes(15) + b"\1", session=Open())
    inside = hold.append_async(b"reserved")
    writer.append_async("v", b"behind")
    write_all(writer)
    for _ in range(4):
        writer.append_async("v", b"more")
        write_all(writer)
        writer.tick()
        write_all(writer)
    assert inside.position > begin.position
    assert writer.status().channel.last_confirmed <= begin.position


def test_a_tick_without_a_timestamp_does_not_fail_a_finished_append():
    machine = Machine(buffer_bytes_max=10_000)
    writer = machine.open()
    done = writer.append_async("v", b"x" * 6_000)  # More than half of the buffer: a tick is due.
    commit = writer.next_commit()

    def deposed(number):
        raise NotLeader("gone")

    machine.allocate = deposed
    writer.run(commit)
    assert done.result().messages == 1


def test_a_segment_that_could_not_be_created_cuts_nothing_off_when_it_comes_back():
    """Its name was gone but not durably; meanwhile the segment before it was written to (seed 2188)."""
    machine = Machine(segment_bytes=4096)
    writer = machine.open()
    writer.append_async("v", b"a" * 2_500)
    write_all(writer)
    refused = writer.append_async("v", b"b" * 2_500)  # Does not fit: a new segment is begun, and that fails.
    machine.failing["sync_dir"] = 2
    write_all(writer)
    assert isinstance(refused.error, StorageFailed)
    small = writer.append_async("v", b"fits into the old one")
    write_all(writer)
    assert small.error is None
    machine.lose_power()
    machine.open()
    assert read_all(machine.reader()) == [b"a" * 2_500, b"fits into the old one"]


def append(writer, body):
    pending = writer.append_async("v", body)
    write_all(writer)
    return pending


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_a_segment_that_a_failed_write_ends_is_durable_before_the_next_one_begins(durability):
    """Else a loss of power takes what was acknowledged in the old one and keeps the new one: a hole (seed 93)."""
    machine = Machine(durability=durability)
    writer = machine.open()
    assert append(writer, b"acknowledged, not synced").error is None
    machine.failing["write"] = 1
    assert isinstance(append(writer, b"refused").error, StorageFailed)
    assert append(writer, b"in the next segment").error is None
    machine.lose_power(torn=0.0)
    machine.open()
    assert read_all(machine.reader()) == [b"acknowledged, not synced"]


@pytest.mark.parametrize("torn", [0.0, 0.5, 1.0])
def test_after_a_failed_interval_sync_the_next_one_writes_again_what_the_first_had_lost(torn):
    """The system takes it for written, so that a second sync alone says that all is well (seed 28)."""
    machine = Machine(durability="interval")
    writer = machine.open()
    assert append(writer, b"acknowledged").error is None
    machine.failing["sync"] = 1
    with pytest.raises(StorageFailed, match="may not survive a loss of power"):
        writer.sync_now()
    before = writer.status()
    assert before.durable_to < before.offset
    writer.sync_now()
    after = writer.status()
    assert after.durable_to == after.offset
    machine.lose_power(torn)
    machine.open()
    assert read_all(machine.reader()) == [b"acknowledged"]


def test_after_a_failed_interval_sync_the_next_segment_waits_until_the_last_one_is_durable():
    machine = Machine(durability="interval")
    writer = machine.open()
    assert append(writer, b"acknowledged").error is None
    machine.failing["sync"] = 2
    with pytest.raises(StorageFailed):
        writer.sync_now()
    assert isinstance(append(writer, b"refused: it cannot be left yet").error, StorageFailed)
    assert append(writer, b"in the next segment").error is None
    machine.lose_power(torn=0.0)
    machine.open()
    assert read_all(machine.reader()) == [b"acknowledged"]


def test_what_cannot_be_read_back_after_a_failed_sync_is_not_built_upon():
    """The page cache may have let go of it: then nothing more is acknowledged until the log was opened again."""
    machine = Machine(durability="interval")
    writer = machine.open()
    synced = append(writer, b"synced")
    writer.sync_now()
    assert append(writer, b"lost by the disk").error is None
    machine.failing["sync"] = 1
    with pytest.raises(StorageFailed):
        writer.sync_now()
    inode = machine.disk.names[f"c/{writer.segments.id.name}"]
    inode.data[:] = inode.durable
    with pytest.raises(StorageFailed, match="cannot be read back"):
        writer.sync_now()
    assert isinstance(append(writer, b"refused").error, StorageFailed)
    second = machine.open()
    assert append(second, b"after").error is None
    second.tick()
    write_all(second)
    assert synced.error is None
    assert read_all(machine.reader()) == [b"synced", b"after"]


@pytest.mark.parametrize("in_txn", [False, True])
def test_everything_up_to_a_message_does_not_cover_what_an_aborted_transaction_gave_back(in_txn):
    """World of subscriptions, seed 2: what the first transaction held was acknowledged, processed by nobody.

    The consumer still has the last message in its hands when another's transaction, left open, is aborted.
    """
    first, second = (TxnId.make(0, number).to_bytes16() for number in (1, 2))
    ids = [MessageId(0, 1000 + number, number) for number in (1, 2, 3)]
    sub = Subscription("s", "failover")
    sub.feed(0, [(id, id.position) for id in ids])
    sub.add_consumer("dies")
    sub.take("dies", 2, 0)
    sub.confirm(sub.ack_cumulative_in_txn("dies", ids[1], first))
    sub.remove_consumer("dies")
    sub.add_consumer("next")
    assert [each.id for each in sub.take("next", 9, 0)] == ids[2:]
    sub.end_txn(first, committed=False)
    with pytest.raises(Conflict, match="was given back and waits to be delivered again"):
        sub.ack_cumulative_in_txn("next", ids[2], second) if in_txn else sub.ack_cumulative("next", ids[2])
    assert [each.id for each in sub.take("next", 9, 0)] == ids
