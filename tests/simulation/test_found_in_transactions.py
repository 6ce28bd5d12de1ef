"""Every bug of transactions that the simulator found, as a directed test on the simulated machine."""

import errno
from itertools import count
from random import Random

import pytest

from tidegate.errors import ClockStalled, Conflict, OutcomeUnknown, StorageFailed, TransactionAborted
from tidegate.log.message import MessageType
from tidegate.runtime.channel_writer import ChannelWriter
from tidegate.runtime.settings import LogSettings
from tidegate.sim.disk import SimDisk, SimFiles
from tidegate.sim.machine import SimClock, SimTail
from tidegate.sim.procedures import Procedure
from tidegate.sim.txn_auditor import TxnAuditor
from tidegate.sim.txn_node import DATA, SYSTEM, TxnNode, TxnSettings
from tidegate.sim.txn_work import Line, as_pieces
from tidegate.stores.memory_metadata import MemoryMetadataStore, MemoryState

KEY = 7


class Machine:
    """A disk and a store; owners follow one another on it, stepped by hand."""

    def __init__(self, redo_bytes=1 << 18):
        self.disk = SimDisk(Random(1))
        self.clock = SimClock(1_750_000_000_000)
        self.state = MemoryState()
        self.tails = {name: SimTail() for name in (SYSTEM, *DATA)}
        self.failing = {}
        self.names = count(1)
        self.settings = TxnSettings(LogSettings(), redo_bytes, 1000, 1000, 1 << 20)
        self.owner = self.take_over()

    def hook(self, operation, path, *, done):
        for place, left in self.failing.items():
            if not done and left and (operation, path.split("/")[0]) == place:
                self.failing[place] -= 1
                raise OSError(errno.EIO, "simulated", path)

    def take_over(self):
        """Another process opens the database; the one before is dead."""
        name = f"n{next(self.names)}"
        if name != "n1":
            self.state.owner_died(self.owner.name)
        self.owner = TxnNode(
            name,
            rng=Random(1),
            clock=self.clock,
            files=SimFiles(self.disk, self.hook),
            store=MemoryMetadataStore(self.clock, self.state),
            tails=self.tails,
            auditor=TxnAuditor(DATA),
            settings=self.settings,
            note=lambda _: None,
            send=lambda *_: None,
        )
        self.owner.start(0.0)
        while not self.owner.is_serving:
            self.owner.step()
        self.transactions = self.owner.transactions
        return self.owner

    def start(self, steps):
        ends = []
        return Procedure("test", steps, lambda value, error: ends.append((value, error))), ends

    def run(self, steps):
        """Run a procedure to its end."""
        procedure, ends = self.start(steps)
        for _ in range(2000):
            if procedure.has_ended:
                break
            if procedure.can_go_on:
                procedure.step(Random(1))
            else:
                self.step_channels()
        value, error = ends[0]
        if error is not None:
            raise error
        return value

    def step_channels(self):
        for channel in self.owner.channels.values():
            if channel.has_work or channel.commit is not None:
                channel.step_commit()

    def begin(self):
        return self.transactions.begin("client", 60_000)

    def commit(self, id, *channels, **options):
        return self.run(self.transactions.commit(id, writes(*channels), **options))

    def read(self, channel):
        """All messages that readers of the channel get."""
        writer = self.owner.channels[channel].writer
        for _ in range(3):
            writer.tick()
            for _ in range(20):
                self.step_channels()
        found = []
        with self.owner._log.transaction_reader(channel) as reader:
            while (delivery := reader.poll()) is not None:
                found += [(m.row or {}).get("text") or m.body.decode() for m in delivery.messages()]
        return found


def writes(*channels, rows=1, as_rows=False):
    texts = tuple(f"{at}" for at in range(rows))
    return {name: as_pieces([Line("a/0", texts, as_rows=as_rows)]) for name in channels}


def test_a_commit_can_be_repeated_for_ever_also_between_its_end_and_the_record_of_it():
    """Seeds 13 and 84: who asked in between left an entry, and later ones were told that it cannot be written to."""
    machine = Machine()
    id = machine.begin()
    at = machine.commit(id, "c0", "c1")
    assert machine.commit(id, "c0", "c1") == at
    while machine.transactions._entries[id].driving:
        machine.step_channels()
        if id not in machine.transactions._entries:
            break
    assert machine.commit(id, "c0", "c1") == at
    assert machine.run(machine.transactions.write_ends()) == 1
    assert machine.commit(id, "c0", "c1") == at
    assert machine.read("c0") == ["0"]


def test_a_large_commit_that_was_interrupted_is_not_written_twice():
    """Seeds 6, 58 and 76: its messages had been written ahead, and the repeated commit brought them once more."""
    machine = Machine(redo_bytes=1)
    id = machine.begin()
    procedure, ends = machine.start(machine.transactions.commit(id, writes("c0", "c1")))
    for _ in range(200):
        sessions = machine.transactions._entries[id].sessions.values()
        if len(sessions) == 2 and all(session.runs for session in sessions):
            break
        if procedure.can_go_on:
            procedure.step(Random(1))
        machine.step_channels()
    assert not ends
    machine.take_over()
    with pytest.raises(TransactionAborted, match="written ahead"):
        machine.commit(id, "c0", "c1")
    assert machine.read("c0") == machine.read("c1") == []


def test_a_commit_that_failed_is_checked_again_when_it_is_tried_again():
    """Seeds 25 and 61: what it had read was forgotten with the first attempt, and an update was lost."""
    machine = Machine()
    id = machine.begin()
    machine.transactions.note_read(id, [KEY])
    machine.failing[("write", SYSTEM)] = 1
    with pytest.raises(StorageFailed):
        machine.commit(id, "c0", "c1", keys=[KEY])
    machine.commit(machine.begin(), "c0", keys=[KEY])
    with pytest.raises(Conflict):
        machine.commit(id, "c0", "c1", keys=[KEY])


def test_a_conflict_whose_abort_failed_stays_a_conflict():
    """Seed 97: the reading had ended, and asking again was taken for a defect."""
    machine = Machine()
    id = machine.begin()
    at = machine.transactions.note_read(id, [KEY])
    machine.run(machine.transactions.write_ahead(id, writes("c0")))
    machine.commit(machine.begin(), "c1", keys=[KEY])
    machine.failing[("write", SYSTEM)] = 1
    with pytest.raises(StorageFailed):
        machine.commit(id, keys=[KEY], read_at=at)
    with pytest.raises(Conflict):
        machine.commit(id, keys=[KEY], read_at=at)


def test_what_was_read_at_another_owner_is_refused():
    """Seeds 72 and 218: the next owner knows the transaction and not what it has read."""
    machine = Machine()
    id = machine.begin()
    at = machine.transactions.note_read(id, [KEY])
    machine.run(machine.transactions.write_ahead(id, writes("c0")))
    machine.take_over()
    with pytest.raises(Conflict, match="another owner"):
        machine.commit(id, keys=[KEY], read_at=at)


def test_what_ended_in_a_channel_is_not_committed_without_its_messages_there():
    """Seed 49: DDL had ended it in one channel, and the next owner committed the rest."""
    machine = Machine()
    id = machine.begin()
    machine.run(machine.transactions.write_ahead(id, writes("c0", "c1")))
    ddl = as_pieces([Line("a/0", ("ddl",), exclusive=True)])[0]
    assert ddl.type is MessageType.DDL
    machine.run(machine.transactions.append_plain("c0", ddl))
    machine.take_over()
    with pytest.raises(TransactionAborted, match="channel/c0"):
        machine.commit(id)
    assert machine.read("c1") == []


def test_messages_of_an_open_transaction_are_found_in_sealed_segments():
    """Seed 1057: sealing puts rows together, and they came before the beginning of their transaction."""
    machine = Machine()
    machine.run(machine.transactions.commit(machine.begin(), writes("c0", rows=2, as_rows=True)))
    id = machine.begin()
    machine.run(machine.transactions.write_ahead(id, writes("c0", rows=5, as_rows=True)))
    owner = machine.take_over()
    assert owner.seal_one(owner.channels["c0"]) == "seal"
    machine.take_over()
    machine.commit(id, "c1")
    assert machine.read("c0") == ["0", "1", "0", "1", "2", "3", "4"]


def test_a_commit_whose_owner_was_fenced_cannot_be_aborted_there():
    """Seed 1041: the next owner found its decision in the log, when the old one had answered that it is aborted."""
    machine = Machine()
    id = machine.begin()
    procedure, ends = machine.start(machine.transactions.commit(id, writes("c0", "c1")))
    system = machine.owner.channels[SYSTEM]
    while system.stage != "sync":
        if procedure.can_go_on:
            procedure.step(Random(1))
        else:
            machine.step_channels()
    machine.tails[SYSTEM].fence(99)
    while not ends:
        if procedure.can_go_on:
            procedure.step(Random(1))
        else:
            machine.step_channels()
    assert isinstance(ends[0][1], OutcomeUnknown)
    with pytest.raises(OutcomeUnknown):
        machine.run(machine.transactions.abort(id))


def test_a_commit_that_fails_before_it_is_decided_keeps_no_keys():
    """Seed 2017: what it wrote ahead had an unknown outcome, and whoever wrote its keys later waited for ever."""
    machine = Machine(redo_bytes=1)
    id = machine.begin()
    machine.failing.update({("write", "c0"): 3, ("create", "c0"): 3})
    with pytest.raises((OutcomeUnknown, StorageFailed)):
        machine.commit(id, "c0", "c1", keys=[KEY])
    machine.failing.clear()
    assert machine.transactions._conflicts.status().claims == 0


def test_a_decided_commit_that_gets_no_timestamp_is_committed_and_written_later(monkeypatch):
    """Asked for by reading: the answer was an error that says that nothing was written."""
    machine = Machine()
    id = machine.begin()

    def stalled(self, held, at):
        raise ClockStalled("no timestamp")

    with monkeypatch.context() as patched:
        patched.setattr(ChannelWriter, "_check_at", stalled)
        at = machine.commit(id, "c0", "c1")
    assert machine.run(machine.transactions.drive_on()) == 0
    assert machine.read("c0") == machine.read("c1") == ["0"]
    assert machine.commit(id, "c0", "c1") == at
