"""`TxnWorld`: a simulated run of transactions over several channels: owners, zombies, clients, readers and faults.

First a phase with faults, in which nothing may ever be wrong. Then the faults stop, and everything that was promised
must come about: outcomes are learnt, decided commits completed, late transactions aborted, and ticks go on.
"""

from __future__ import annotations

from random import Random

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import NotLeader, TidegateError
from tidegate.log.message import Position
from tidegate.runtime.channel_reader import TailSource
from tidegate.runtime.file_cursor import ChannelFiles
from tidegate.runtime.settings import LogSettings
from tidegate.runtime.transaction_reader import TransactionReader
from tidegate.runtime.verify import verify
from tidegate.sim.auditor import Violation
from tidegate.sim.disk import SimFiles
from tidegate.sim.faults import Crash
from tidegate.sim.machine import SimTail
from tidegate.sim.network import Answer, NetPlan, Network
from tidegate.sim.stage import Outcome, Stage, never
from tidegate.sim.txn_auditor import TxnAuditor
from tidegate.sim.txn_clients import TxnClient
from tidegate.sim.txn_liveness import finish
from tidegate.sim.txn_node import DATA, SYSTEM, TxnNode, TxnSettings
from tidegate.stores.memory_metadata import MemoryMetadataStore

CLIENTS = 5
_OPENING_FAULTS = 0.15
"""Part of the faults that a process meets while it opens: with all of them hardly any would."""


class AssemblingFollower:
    """A reader in a process of its own: it follows the files, gives transactions whole, and survives the writers."""

    def __init__(self, world: TxnWorld, name: str, channel: str) -> None:
        self._world = world
        self.name = name
        self.channel = channel
        self._position = 0
        self._after = 0
        self.reader: TransactionReader | None = None

    @property
    def after(self) -> int:
        return self._after

    def poll(self) -> str:
        world = self._world
        if self.reader is None:
            files = ChannelFiles(SimFiles(world.disk, never), self.channel)
            source = TailSource(files, world.tails[self.channel], is_written=world.is_written)
            self.reader = TransactionReader(
                files,
                source,
                position=Position(self._position),
                after=Timestamp(self._after),
                assembly_bytes_max=world.settings.assembly_bytes_max,
            )
            self.reader.held_bytes_max = world.held_bytes_max
        before = self.reader.after
        delivery = self.reader.poll()
        if delivery is None:
            return "waits"
        world.auditor.delivered(self.channel, self.name, before, delivery)
        self._after = int(delivery.tick.time_tick)
        self._position = int(delivery.tick.last_confirmed)
        world.note(f"{self.name} {self._after} {len(delivery)}")
        return f"reads {len(delivery)}"

    def restart(self) -> None:
        """Begin again from the last tick, with nothing in memory."""
        self.reader = None


class TxnWorld(Stage[TxnNode, AssemblingFollower]):
    """One run."""

    node_type: type[TxnNode] = TxnNode

    def __init__(self, seed: int, *, steps: int = 1200, keep_trace: bool = False) -> None:
        super().__init__(seed, steps=steps, keep_trace=keep_trace)
        rng = self.rng
        self.plan = self.plan.milder(rng.choice((0.2, 0.5, 1.0)))  # A transaction is longer on its way than an append.
        self.tails = {name: SimTail() for name in (SYSTEM, *DATA)}
        self.auditor = TxnAuditor(DATA)
        self.held_bytes_max = rng.choice((3_000, 30_000, 1 << 20))
        self.settings = TxnSettings(
            log=LogSettings(
                segment_bytes=rng.choice((16 << 10, 32 << 10, 64 << 10)),
                commit_bytes_max=rng.choice((2_000, 8_000, 60_000)),
                batch_rows_max=1000,
                block_bytes_max=1 << 20,
                message_bytes_max=1 << 17,
                in_flight_bytes_max=1 << 26,
                buffer_bytes_max=rng.choice((2_000, 20_000, 1 << 20)),
            ),
            redo_bytes=rng.choice((300, 3_000, 1 << 18)),
            conflict_keys_max=rng.choice((2, 1000)),
            remembered_max=rng.choice((3, 1000)),
            assembly_bytes_max=rng.choice((500, 1 << 20)),
        )
        self._rest = 0
        """Steps until the next process tries to become the owner."""
        self.network = Network(Random(rng.getrandbits(64)), NetPlan.draw(rng), self.note)
        self.clients = [
            TxnClient(
                f"k{number}",
                rng=Random(rng.getrandbits(64)),
                network=self.network,
                auditor=self.auditor,
                owner=self._pick_owner,
                channels=DATA,
                note=self.note,
            )
            for number in range(CLIENTS)
        ]
        self._by_name = {client.name: client for client in self.clients}
        self.readers = [AssemblingFollower(self, f"follower of {name}", name) for name in DATA]

    def counts(self) -> tuple[int, int]:
        return self.auditor.acknowledged, self.auditor.deliveries

    def _pick_owner(self) -> str | None:
        """Whom a client takes for the owner: the newest process, and now and then one that was."""
        if not self.nodes:
            return None
        return self.rng.choice(self.nodes).name if self.faulty and self.rng.random() < 0.2 else self.nodes[-1].name

    # The scheduler

    def _step(self) -> None:
        rng, plan = self.rng, self.plan
        self.clock.advance(rng.uniform(0.0001, 0.012))
        if self.faulty:
            self._weather()
        for client in self.clients:
            client.step()
        if rng.random() < 0.6:
            self._deliver()
        draw = rng.random()
        if draw < 0.12:
            reader = rng.choice(self.readers)
            self.note(f"{reader.name} {reader.poll()}")
            if rng.random() < 0.1:
                reader.restart()
        elif self.faulty and rng.random() < plan.power_loss:
            self._lose_power()
        else:
            self._step_node()

    def _step_node(self) -> None:
        rng, plan = self.rng, self.plan
        for node in [node for node in self.nodes if node.paused_until]:
            node.paused_until -= 1
            if not node.paused_until:
                self.note(f"{node.name} wakes up")
        active = [node for node in self.nodes if not node.paused_until]
        if not any(not node.zombie for node in active):
            self._rest = max(self._rest - 1, 0)
            if not self._rest:
                self._rest = rng.randrange(1, 25)
                self._start_node()
                return
            if not active:
                return
        node = rng.choice(active)
        if (node.is_deposed or (node.is_fenced and not self.faulty)) and rng.random() < 0.05:
            self._kill(node, "gone: it leads no more")
        elif self.faulty and node.is_fenced and rng.random() < 0.05:
            self._kill(node, "gone: it was fenced")
        elif self.faulty and rng.random() < plan.kill:
            self._kill(node, "killed")
        elif self.faulty and rng.random() < plan.pause and not node.zombie:
            node.paused_until = rng.randrange(5, 120)
            node.zombie = True
            # Whoever takes over must not wait for ever for its lease.
            self.clock.advance(4.0)
            self.note(f"{node.name} hangs")
        else:
            for _ in range(rng.choice((1, 2, 4))):
                if node in self.nodes and not node.paused_until:
                    self._run(node)
            if node.failed is not None:
                self.note(f"{node.name} cannot open: {type(node.failed).__name__}")
                self._forget(node)
                self._die(node)

    def _deliver(self) -> None:
        letter = self.network.take(self._is_there, self._exists)
        if letter is None:
            return
        _, to, what = letter
        if isinstance(what, Answer):
            self._by_name[to].hear(what)
        else:
            self._node(to).take(what)
            self.note(f"{what.what} reaches {to}")

    def _is_there(self, name: str) -> bool:
        return name in self._by_name or any(node.name == name and not node.paused_until for node in self.nodes)

    def _exists(self, name: str) -> bool:
        return name in self._by_name or any(node.name == name for node in self.nodes)

    def _node(self, name: str) -> TxnNode:
        return next(node for node in self.nodes if node.name == name)

    def _start_node(self) -> None:
        rng = self.rng
        self._born += 1
        name = f"n{self._born}"
        born: list[TxnNode] = []
        files = SimFiles(self.disk, lambda op, path, *, done: self._disk_hook(born[0], op, path, done))
        node = self.node_type(
            name,
            rng=Random(rng.getrandbits(64)),
            clock=self.clock,
            files=files,
            store=MemoryMetadataStore(
                self.clock,
                self.state,
                fault=lambda operation, key, done: self._store_hook(born[0], operation, key, done),
            ),
            tails=self.tails,
            auditor=self.auditor,
            settings=self.settings,
            note=self.note,
            send=self.network.send,
        )
        born.append(node)
        try:
            node.start(0.0)
            self.nodes.append(node)
            self.note(f"{name} leads")
        except NotLeader:
            self.note(f"{name} is not let in")
            self.clock.advance(0.5)
        except TidegateError as error:
            self.note(f"{name} cannot lead: {type(error).__name__}")
            self._die(node)

    def _lose_power(self) -> None:
        self.crashes += 1
        self.note("power is lost")
        for node in self.nodes:
            self._die(node)
        self.nodes.clear()
        self.disk.lose_power(self.plan.torn)
        self.tails.update({name: SimTail() for name in (SYSTEM, *DATA)})
        for reader in self.readers:
            reader.restart()

    def _disk_hook(self, node: TxnNode, operation: str, path: str, done: bool) -> None:
        if node not in self.nodes:
            raise Crash(power=False)  # The dead do nothing any more, whatever unwinds.
        if node.is_serving or self.rng.random() < _OPENING_FAULTS:
            super()._disk_hook(node, operation, path, done)

    def _store_hook(self, node: TxnNode, operation: str, key: str, done: bool) -> None:
        if node.is_serving or self.rng.random() < _OPENING_FAULTS:
            self._store_fault(operation, key, done)

    # The end

    def _recover(self) -> None:
        self.faulty = False
        self.network.is_calm = True
        self.disk.full = False
        self.clock.stands = False
        for node in [each for each in self.nodes if each.zombie]:
            # A process that woke up late must find out by itself that it was fenced.
            node.paused_until = 0
            for _ in range(30):
                self._run(node)
            self._kill(node, "stopped")
        for node in list(self.nodes):
            try:
                node.oracle.advance()  # Renews a lease that is about to run out.
            except TidegateError:
                self._kill(node, "restarted: its oracle was deposed")
        for node in list(self.nodes):
            if any(self.tails[name].current_term() != each.writer.term for name, each in node.channels.items()):
                self._kill(node, "restarted: a process that hung while it was opening has fenced it")
        finish(self)

    def _check_end(self) -> None:
        """Read everything once more, from files that were closed, sealed and opened again."""
        node = self.nodes[0]
        for channel in node.channels.values():
            while channel.writer.segments.closed:
                node.seal_one(channel)
        self._kill(node, "closed")
        for name in DATA:
            checked = verify(ChannelFiles(SimFiles(self.disk, never), name), name)
            if checked.problems:
                raise Violation(f"survival: {name} is damaged: {checked.problems}")
            target = self.auditor.settled(name)
            fresh = AssemblingFollower(self, f"fresh reader of {name}", name)
            while fresh.poll() != "waits":
                pass
            if fresh.after < target:
                raise Violation(f"liveness: a fresh reader of {name} did not reach tick {target}")
        self.auditor.check_end()

    def step(self) -> None:
        """One step of the scheduler, for whoever finishes the run."""
        self._step()

    def begin_owner(self) -> None:
        """Let a new process lead."""
        self._start_node()


def simulate(seed: int, *, steps: int = 1200) -> Outcome:
    """One run of the simulator."""
    return TxnWorld(seed, steps=steps).run()
