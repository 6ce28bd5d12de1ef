"""`PipeWorld`: barrier clock, alignment, workers and checkpoint commits under a seeded scheduler.

Owners and workers die between any two effects, hang and wake up as zombies, and are replaced; messages between them
are lost, repeated and late; the store's answers are lost; disks fail and power is lost. Writers append, readers pin and
read. In the end, when the faults have stopped, everything acknowledged must be visible, and nothing superfluous left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from tidegate.barrier.clock import BarrierSettings
from tidegate.barrier.cut import Span, decode_cut, decode_pointer
from tidegate.errors import OutcomeUnknown, StoreUnavailable
from tidegate.log.message import Term
from tidegate.ports.metadata import MetadataStore
from tidegate.sim.auditor import Violation
from tidegate.sim.disk import SimFiles
from tidegate.sim.network import Ask, NetPlan, Network
from tidegate.sim.pipe_auditor import FileRow, PipeAuditor
from tidegate.sim.pipe_files import (
    DATA_DIR,
    FLOOR,
    PINS,
    POINTER,
    Manifest,
    read_manifest,
    read_number,
    read_pointer,
    read_whole,
    visible_files,
)
from tidegate.sim.pipe_log import DATA, PipeLog
from tidegate.sim.pipe_owner import PipeOwner
from tidegate.sim.pipe_worker import PipeWorker
from tidegate.sim.stage import Outcome, Stage, never
from tidegate.stores.memory_metadata import MemoryMetadataStore

READERS: Final = 2
STEPS_MAX: Final = 8_000
_TERMS: Final = "terms"


class OffsetLogs:
    """What each worker's offset log binds it to. Durable; the next life has it alone, from what the last one left."""

    def __init__(self) -> None:
        self._logs: dict[str, list[Span | None]] = {}

    def take(self, worker: str) -> list[Span | None]:
        self._logs[worker] = list(self._logs.get(worker, [None]))
        return self._logs[worker]


class PipeReader:
    """A reader in a process of its own: pins the last checkpoint, reads it file by file, and lets go."""

    def __init__(self, world: PipeWorld, number: int) -> None:
        self.name = f"reader {number}"
        self._world = world
        self._store = MemoryMetadataStore(world.clock, world.state)
        self._files = SimFiles(world.disk, never)
        self._reading: Iterator[str] = iter(())

    def poll(self) -> str:
        said = next(self._reading, None)
        if said is None:
            self._reading = self._read()
            return "begins to read"
        return said

    def _read(self) -> Iterator[str]:
        pointer, _ = read_pointer(self._store)
        if not pointer.manifest:
            return
        yield "sees a checkpoint"
        self._pin(pointer.manifest)
        yield "pins it"
        if read_number(self._store, FLOOR)[0] > pointer.checkpoint:
            self._pin(None)
            yield "was too late to pin"
            return
        try:
            manifest = read_manifest(self._files, pointer.manifest)
            self._world.auditor.pin(self.name, manifest)
            yield "reads a manifest"
            yield from self._read_files(manifest)
        except (FileNotFoundError, ValueError) as error:
            raise Violation(f"pins: {self.name} reads {pointer}, and {error}") from error
        self._world.auditor.unpin(self.name)
        self._pin(None)
        yield "is done"

    def _read_files(self, manifest: Manifest) -> Iterator[str]:
        rows: dict[str, list[FileRow]] = {}
        for channel, names in sorted(visible_files(self._files, manifest).items()):
            for name in names:
                rows.setdefault(channel, []).extend(read_whole(self._files, DATA_DIR, name)["rows"])
                if self._world.rng.random() < 0.3:
                    yield "reads a file"
        self._world.auditor.was_read(self.name, manifest, rows)

    def _pin(self, manifest: str | None) -> None:
        key = PINS + self.name
        found = self._store.get(key)
        value = manifest.encode() if manifest else None
        self._store.compare_and_set(key, value, expected=found.version if found else 0)


class PipeWorld(Stage[PipeOwner | PipeWorker, PipeReader]):
    """One run."""

    def __init__(self, seed: int, *, steps: int = 1000, keep_trace: bool = False) -> None:
        super().__init__(seed, steps=steps, keep_trace=keep_trace)
        rng = self.rng
        self.plan = self.plan.milder(rng.choice((0.2, 0.5, 1.0)))
        self.log = PipeLog()
        self.auditor = PipeAuditor(self.log, self.disk)
        self.network = Network(Random(rng.getrandbits(64)), NetPlan.draw(rng), self.note)
        self.worker_names = [f"w{at}" for at in range(rng.choice((1, 1, 2, 3, 4)))]
        self.ahead_max = rng.choice((1, 2, 3))
        self.span_epochs_max = rng.choice((1, 3, 600))
        self.barrier_settings = self._draw_settings()
        self.offsets = OffsetLogs()
        self.readers = [PipeReader(self, at) for at in range(READERS)]
        self._under_way: list[tuple[int, int, list[str]]] = []
        """Writes: Timestamp, number, channels still to be written."""
        self._late: deque[tuple[float, str, Ask]] = deque()
        """Reports that will arrive a second time."""
        self._numbers = 0
        self._rest = 0
        self._seen = self.state.version
        self.note(f"{len(self.worker_names)} workers")

    def _draw_settings(self) -> BarrierSettings:
        rng = self.rng
        return BarrierSettings(rng.choice((50, 150, 400)), rng.choice((1, 1, 2, 5)), rng.choice((2, 5, 1000)))

    def counts(self) -> tuple[int, int]:
        return self.auditor.acknowledged, self.auditor.deliveries

    # What processes ask of the world

    def open_store(self) -> MetadataStore:
        return MemoryMetadataStore(self.clock, self.state, fault=self._fault)

    def _fault(self, operation: str, key: str, done: bool) -> None:
        if (
            self.faulty
            and not done
            and operation == "compare_and_set"
            and self.rng.random() < self.plan.store_error / 2
        ):
            raise OutcomeUnknown(f"simulated: {operation} of {key}")  # And it is absent.
        if done and key == POINTER and operation == "compare_and_set":
            self._look_at_pointer()
        self._store_fault(operation, key, done)

    def _disk_hook(self, node: PipeOwner | PipeWorker, operation: str, path: str, done: bool) -> None:
        if done and operation == "remove":
            self.auditor.was_removed(path)
        super()._disk_hook(node, operation, path, done)

    def _look_at_pointer(self) -> None:
        """The auditor sees the pointer whenever it was replaced."""
        found = self.state.values.get(POINTER)
        if found is not None and found.version > self._seen:
            self._seen = found.version
            self.auditor.pointer_is(decode_pointer(found.value))

    def fresh_term(self, store: MetadataStore) -> int:
        """A term that nobody has, owners and workers alike."""
        while True:
            term, version = read_number(store, _TERMS)
            if store.compare_and_set(_TERMS, str(term + 1).encode(), expected=version) is not None:
                return term + 1

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def append_cut(self, term: Term, data: bytes) -> None:
        """Raises: `OutcomeUnknown`, now and then, whether it is recorded or not."""
        if self.faulty and self.rng.random() < self.plan.store_error / 2:
            raise StoreUnavailable("simulated: the log does not take a cut")
        self.log.record_cut(term, data)
        self.auditor.was_cut(decode_cut(data))
        if self.faulty and self.rng.random() < self.plan.store_error / 2:
            raise OutcomeUnknown("simulated: a cut is recorded, and nobody says so")

    def owner_name(self) -> str | None:
        """Whom a worker takes for the owner: the newest, and now and then one that was."""
        owners = self._owners()
        if not owners:
            return None
        return self.rng.choice(owners).name if self.faulty and self.rng.random() < 0.05 else owners[-1].name

    def worker_name(self, worker: str, term: Term) -> str | None:
        return next((node.name for node in self._workers() if node.is_of(worker, term)), None)

    def is_deserted(self, owner: str | None) -> bool:
        """Whether a worker notices that its owner is gone, or that there is a newer one."""
        owners = [node.name for node in self._owners()]
        return bool(owners) and (owner not in owners or (owner != owners[-1] and self.rng.random() < 0.05))

    def _owners(self) -> list[PipeOwner]:
        return [node for node in self.nodes if isinstance(node, PipeOwner)]

    def _workers(self) -> list[PipeWorker]:
        return [node for node in self.nodes if isinstance(node, PipeWorker)]

    # The scheduler

    def _step(self) -> None:
        rng, plan = self.rng, self.plan
        self.clock.advance(rng.uniform(0.001, 0.03))
        if self.faulty:
            self._weather()
        self._write()
        for _ in range(rng.randrange(3)):
            self._deliver()
        draw = rng.random()
        if draw < 0.15:
            reader = rng.choice(self.readers)
            self.note(f"{reader.name} {reader.poll()}")
        elif self.faulty and rng.random() < plan.power_loss / 2:
            self._lose_power()
        else:
            self._step_node()

    def _write(self) -> None:
        """Writers, and those who ask for things."""
        rng = self.rng
        if self.faulty and rng.random() < 0.15:
            channels = rng.sample(DATA, rng.choice((1, 1, 2)))
            at = self.log.next_timestamp(self.clock.wall_ms())
            for name in channels:
                self.log.channels[name].in_flight.add(at)
            self._under_way.append((at, self.next_number(), channels))
        if self._under_way and rng.random() < 0.3:
            self._write_part(rng.randrange(len(self._under_way)))
        serving = [owner for owner in self._owners() if owner.is_serving and not owner.paused_until]
        if not serving or not self.faulty:
            return
        owner, draw = serving[-1], rng.random()
        if draw < 0.01:
            owner.flush(self.auditor.newest)
        elif draw < 0.015:
            self.log.change_catalog(self.log.next_timestamp(self.clock.wall_ms()))
            owner.catalog_changed()
        elif draw < 0.018:
            owner.pause_or_resume()
        elif draw < 0.02:
            self.barrier_settings = self._draw_settings()
            owner.clock.change(self.barrier_settings, owner.now_ms)

    def _write_part(self, which: int) -> None:
        at, number, channels = self._under_way[which]
        channel = self.log.channels[channels.pop()]
        channel.in_flight.discard(at)
        channel.rows.append((at, number))
        self.log.newest_write = max(self.log.newest_write, at)
        if not channels:
            del self._under_way[which]
            self.auditor.was_acknowledged(at)

    def _deliver(self) -> None:
        nodes = {node.name: node for node in self.nodes}
        letter = self.network.take(lambda name: name in nodes and not nodes[name].paused_until, nodes.__contains__)
        if letter is not None and isinstance(letter[2], Ask):
            self._take_once_more_later(letter[1], letter[2])
            nodes[letter[1]].take(letter[2])
        if self._late and self._late[0][0] <= self.clock.monotonic():
            _, to, ask = self._late.popleft()
            if to in nodes and not nodes[to].paused_until:
                self.note("a report arrives once more, late")
                nodes[to].take(ask)

    def _take_once_more_later(self, to: str, ask: Ask) -> None:
        if self.faulty and ask.what == "report" and self.rng.random() < 0.3:
            self._late.append((self.clock.monotonic() + self.rng.uniform(0.3, 3), to, ask))

    def _step_node(self) -> None:
        rng, plan = self.rng, self.plan
        for node in self.nodes:
            if node.paused_until:
                node.paused_until -= 1
                if not node.paused_until:
                    self.note(f"{node.name} wakes up")
        for node in [node for node in self.nodes if node.has_ended]:
            self.note(f"{node.name} is gone")
            self._forget(node)
        self._staff()
        active = [node for node in self.nodes if not node.paused_until]
        if not active:
            return
        node = rng.choice(active)
        if self.faulty and rng.random() < plan.kill * (3 if isinstance(node, PipeWorker) else 1):
            self._kill(node, "killed")
        elif self.faulty and rng.random() < plan.pause and not node.zombie:
            node.paused_until = rng.randrange(5, 150)
            node.zombie = True
            self.note(f"{node.name} hangs")
        else:
            for _ in range(rng.choice((1, 2, 4))):
                if node in self.nodes and not node.has_ended:
                    self._run(node)

    def _staff(self) -> None:
        """Whoever watches the processes starts what is missing, after a while."""
        self._rest = max(self._rest - 1, 0)
        if self._rest:
            return
        missing = [
            name
            for name in self.worker_names
            if not any(node.worker == name and not node.zombie for node in self._workers())
        ]
        if not any(not owner.zombie for owner in self._owners()):
            self._rest = self.rng.randrange(1, 20)
            self._start_node()
        elif missing:
            self._rest = self.rng.randrange(1, 8)
            self._born += 1
            self.nodes.append(PipeWorker(self, self.rng.choice(missing), self._born))
            self.note(f"{self.nodes[-1].name} is started")
        elif self.faulty and self.rng.random() < self.plan.pause / 4:
            for owner in self._owners():
                owner.zombie = True
            self._start_node()

    def _start_node(self) -> None:
        self._born += 1
        self.nodes.append(PipeOwner(self, self._born))
        self.note(f"{self.nodes[-1].name} is started")

    def _lose_power(self) -> None:
        self.crashes += 1
        self.note("power is lost")
        self.nodes.clear()
        self.disk.lose_power(self.plan.torn)
        self.auditor.power_was_lost()

    # When the faults have stopped

    def _recover(self) -> None:
        self.faulty = False
        self.network.is_calm = True
        self.disk.full = self.clock.stands = False
        while self._under_way:
            self._write_part(0)
        for node in [node for node in self.nodes if node.zombie]:
            self._kill(node, "taken away")
        for owner in self._owners():
            if owner.is_serving:
                owner.resume()
        self._until(lambda: self.auditor.pointer.timestamp >= self.auditor.newest, "not all is visible")
        self.log.newest_write = self.log.next_timestamp(self.clock.wall_ms())  # One more epoch, with nothing in it.
        newest = self.log.newest_write
        self._until(lambda: self.auditor.pointer.timestamp >= newest, "an empty epoch is not committed")
        self._until(self._is_tidy, "something that nobody needs is still there")

    def _is_tidy(self) -> bool:
        try:
            self.auditor.check_end()
        except Violation:
            return False
        return True

    def _until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        for at in range(STEPS_MAX):
            if at % 20 == 0 and is_so():
                return
            self._step()
        raise Violation(f"liveness: after all faults had stopped, {otherwise}")

    def _check_end(self) -> None:
        self.auditor.check_end()

    def _die(self, node: PipeOwner | PipeWorker) -> None:
        """Nothing of a process outlives it but what it wrote."""


def simulate(seed: int, *, steps: int = 1000) -> Outcome:
    """One run of the simulator."""
    return PipeWorld(seed, steps=steps).run()
