"""`World`: the scheduler of a simulated run: who runs next, what goes wrong, and in the end whether all came right.

First a phase with faults, in which nothing may ever be wrong (safety). Then the faults stop, and everything that was
promised must come about (liveness). One seed decides all of it.
"""

from __future__ import annotations

from random import Random

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption, NotLeader, TidegateError
from tidegate.log.message import NO_POSITION, Position, Tick
from tidegate.runtime.channel_reader import ChannelReader, TailSource
from tidegate.runtime.file_cursor import ChannelFiles, FileCursor
from tidegate.runtime.settings import Durability, LogSettings
from tidegate.runtime.verify import verify
from tidegate.sim.auditor import Auditor, Violation
from tidegate.sim.disk import SimFiles
from tidegate.sim.faults import Crash
from tidegate.sim.machine import SimTail
from tidegate.sim.node import Node
from tidegate.sim.stage import Outcome, Stage, never
from tidegate.stores.memory_metadata import MemoryMetadataStore

CHANNELS = ("c0", "c1")


class FollowingReader:
    """A reader in a process of its own, which follows the files alone and survives the writers."""

    def __init__(self, world: World, name: str, channel: str) -> None:
        self._world = world
        self.name = name
        self.channel = channel
        self._position = 0
        self._after = 0
        self.reader: ChannelReader | None = None

    def poll(self) -> str:
        world = self._world
        if self.reader is None:
            files = ChannelFiles(SimFiles(world.disk, never), self.channel)
            source = TailSource(files, world.tails[self.channel], is_written=world.is_written)
            position, after = Position(self._position), Timestamp(self._after)
            self.reader = ChannelReader(
                files, source, position=position, after=after, held_bytes_max=world.held_bytes_max
            )
        after_tick = self.reader.after
        delivery = self.reader.poll()
        if delivery is None:
            return "waits"
        world.auditor.delivered(self.channel, self.name, after_tick, delivery)
        self._after = int(delivery.tick.time_tick)
        self._position = int(delivery.tick.last_confirmed)
        world.note(f"{self.name} {self._after} {len(delivery)}")
        return f"reads {len(delivery)}"

    def lose_power(self, *, whole: bool) -> None:
        """It starts again from the tick it noted. Unless the log is `whole`, positions may have been given anew."""
        self.reader = None
        if not whole:
            self._position = 0


class World(Stage[Node, FollowingReader]):
    """One run."""

    def __init__(self, seed: int, *, steps: int = 700, keep_trace: bool = False) -> None:
        super().__init__(seed, steps=steps, keep_trace=keep_trace)
        self.tails = {name: SimTail() for name in CHANNELS}
        self._whole = self.plan.durability is Durability.SYNC
        self.auditor = Auditor(list(CHANNELS), all_durable=self._whole)
        self.held_bytes_max = self.rng.choice((3_000, 30_000, 1 << 20))
        self.settings = LogSettings(
            durability=self.plan.durability,
            segment_bytes=self.rng.choice((8 << 10, 16 << 10, 64 << 10)),
            commit_bytes_max=self.rng.choice((2_000, 8_000, 60_000)),
            batch_rows_max=1000,
            block_bytes_max=1 << 20,
            message_bytes_max=1 << 16,
            in_flight_bytes_max=1 << 20,
            buffer_bytes_max=self.rng.choice((2_000, 20_000, 1 << 20)),
        )
        self.readers = [FollowingReader(self, f"follower of {name}", name) for name in CHANNELS]

    def counts(self) -> tuple[int, int]:
        return self.auditor.acknowledged, self.auditor.deliveries

    # The scheduler

    def _step(self) -> None:
        rng, plan = self.rng, self.plan
        self.clock.advance(rng.uniform(0.0001, 0.03))
        self._weather()
        if rng.random() < 0.15:
            reader = rng.choice(self.readers)
            self.note(f"{reader.name} {reader.poll()}")
            return
        if rng.random() < plan.power_loss:
            self._lose_power()
            return
        active = [node for node in self.nodes if not node.paused_until]
        for node in [node for node in self.nodes if node.paused_until]:
            node.paused_until -= 1
            if not node.paused_until:
                self.note(f"{node.name} wakes up")
        if not any(not node.zombie for node in active):
            self._start_node()
            return
        node = rng.choice(active)
        if node.is_fenced and rng.random() < 0.2:
            self._kill(node, "gone: it was fenced")
        elif rng.random() < plan.kill:
            self._kill(node, "killed")
        elif rng.random() < plan.pause and not node.zombie:
            node.paused_until = rng.randrange(5, 120)
            node.zombie = True
            # Whoever takes over must not wait for ever for its lease.
            self.clock.advance(4.0)
            self.note(f"{node.name} hangs")
        else:
            self._run(node)

    def _start_node(self) -> None:
        rng = self.rng
        self._born += 1
        name = f"n{self._born}"
        files = SimFiles(self.disk, lambda op, path, *, done: self._disk_hook(born[0], op, path, done))
        born: list[Node] = []
        node = Node(
            name,
            rng=Random(rng.getrandbits(64)),
            clock=self.clock,
            files=files,
            store=MemoryMetadataStore(self.clock, self.state, fault=self._store_fault),
            tails=self.tails,
            auditor=self.auditor,
            settings=self.settings,
            held_bytes_max=self.held_bytes_max,
            note=self.note,
        )
        born.append(node)
        before, self._running = self._running, node
        try:
            node.start(0.0)
            self.nodes.append(node)
            for channel in CHANNELS:
                node.open_channel(channel)
        except Crash as crash:
            self.note(f"{name} dies while opening")
            self._crashed(node, crash)
        except NotLeader:
            self.note(f"{name} is not let in")
            self.clock.advance(0.5)
            self._forget(node)
        except (TidegateError, OSError) as error:
            self.note(f"{name} cannot open: {type(error).__name__}: {error}")
            if "Corruption" in type(error).__name__:
                raise Violation(f"survival: {name} found damage that no fault explains: {error}") from error
            self._forget(node)
            self._die(node)
        finally:
            self._running = before

    def _lose_power(self) -> None:
        self.crashes += 1
        self.note("power is lost")
        for node in self.nodes:
            self._die(node)
        self.nodes.clear()
        self.disk.lose_power(self.plan.torn)
        self.tails.update({name: SimTail() for name in CHANNELS})
        for reader in self.readers:
            reader.lose_power(whole=self._whole)
        for name in CHANNELS:
            self._look_at_files(name)

    def _look_at_files(self, name: str) -> None:
        """Tell the auditor what a loss of power left of a channel, before anybody opens it."""
        channel = ChannelFiles(SimFiles(self.disk, never), name)
        found: dict[int, int] = {}
        last = 0
        try:
            limit = channel.end_of_log()
            for item in () if limit is None else FileCursor(channel, NO_POSITION, 0).advance(limit):
                if isinstance(item, Tick):
                    last = max(last, int(item.position))
                else:
                    found.update(zip(item.time_ticks.tolist(), item.positions.tolist(), strict=True))
        except Corruption as error:
            raise Violation(f"survival: a loss of power left damage in {name}: {error}") from error
        gone = self.auditor.power_was_lost(name, found, max([last, *found.values()]))
        if gone:
            self.note(f"{name} has lost {gone} messages")

    # Liveness

    def _recover(self) -> None:
        """Stop all faults, and let one process finish everything."""
        self.faulty = False
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
        for _ in range(50):
            if self.nodes:
                break
            self.clock.advance(1.0)
            self._start_node()
        if len(self.nodes) != 1 or set(self.nodes[0].channels) != set(CHANNELS):
            raise Violation("liveness: no process could open the log after all faults had stopped")
        node = self.nodes[0]
        for channel in node.channels.values():
            for reservation, _ in channel.reserved:
                reservation.release()
            channel.reserved.clear()
        targets = {name: self._write_one(node, name) for name in CHANNELS}
        for _ in range(200):
            self.clock.advance(0.05)
            node.oracle.advance()
            for channel in node.channels.values():
                self._finish_commits(node, channel.name)
                channel.writer.tick()
                self._finish_commits(node, channel.name)
            for reader in self.readers:
                while reader.poll() != "waits":
                    pass
            if all(self.auditor.settled(name) >= target for name, target in targets.items()):
                return
        stuck = {name: (self.auditor.settled(name), target) for name, target in targets.items()}
        raise Violation(f"liveness: ticks did not reach what was written after the faults: {stuck}")

    def _write_one(self, node: Node, name: str) -> int:
        """One append that must succeed."""
        channel = node.channels[name]
        self._finish_commits(node, name)
        for _ in range(10):
            node.append_one(channel)
            pending = channel.waiting[-1].pending
            self._finish_commits(node, name)
            if pending.done() and pending.error is None:
                return int(pending.result().time_tick)
            self.clock.advance(0.2)
            node.oracle.advance()
        raise Violation(f"liveness: {name} accepts no append after all faults had stopped: {pending.error}")

    def _finish_commits(self, node: Node, name: str) -> None:
        channel = node.channels[name]
        for _ in range(500):
            if not channel.has_work and channel.commit is None:
                break
            channel.step_commit()
            node.hear(channel)

    def _check_end(self) -> None:
        """Read everything once more, from files that were closed, sealed and opened again."""
        self.auditor.check_last_confirmed()
        node = self.nodes[0]
        for channel in node.channels.values():
            while channel.writer.segments.closed:
                node.seal_one(channel)
        self._kill(node, "closed")
        for name in CHANNELS:
            files = SimFiles(self.disk, never)
            checked = verify(ChannelFiles(files, name), name)
            if checked.problems:
                raise Violation(f"survival: {name} is damaged: {checked.problems}")
            target = self.auditor.settled(name)
            fresh = FollowingReader(self, f"fresh reader of {name}", name)
            while fresh.poll() != "waits":
                pass
            if fresh.reader is None or fresh.reader.after < target:
                raise Violation(f"liveness: a fresh reader of {name} did not reach tick {target}")


def simulate(seed: int, *, steps: int = 700) -> Outcome:
    """One run of the simulator."""
    return World(seed, steps=steps).run()
