"""`ReadWorld`: sessions in several processes read at all levels while owners die and everything else moves.

Owners die between any two effects, hang and wake up as zombies, and are replaced; requests and answers are lost,
repeated and late; the wall clock jumps, and those of the readers are off by up to an hour; the pipeline stands for a
while; the store fails. In the end, when the faults have stopped, every read is answered.
"""

from __future__ import annotations

from random import Random
from typing import Final

from tidegate.ports.metadata import MetadataStore
from tidegate.sim.auditor import Violation
from tidegate.sim.network import Answer, Ask, NetPlan, Network
from tidegate.sim.read_auditor import ReadAuditor
from tidegate.sim.read_clients import ReadClient
from tidegate.sim.read_log import ReadLog
from tidegate.sim.read_owner import ReadOwner
from tidegate.sim.stage import Outcome, Stage
from tidegate.stores.memory_metadata import MemoryMetadataStore

CLIENTS: Final = 4
STEPS_MAX: Final = 6_000


class ReadWorld(Stage[ReadOwner, ReadClient]):
    """One run."""

    def __init__(self, seed: int, *, steps: int = 800, keep_trace: bool = False) -> None:
        super().__init__(seed, steps=steps, keep_trace=keep_trace)
        rng = self.rng
        self.plan = self.plan.milder(rng.choice((0.2, 0.5, 1.0)))
        self.auditor = ReadAuditor()
        self.log = ReadLog(self.auditor.was_decided, self.auditor.was_changed)
        self.network = Network(Random(rng.getrandbits(64)), NetPlan.draw(rng), self.note)
        self.barrier_ms = rng.choice((50, 200, 1_000))
        self.pipeline_stands = False
        self.tokens: list[tuple[str, str]] = []
        """Given away, and not taken yet: the session's name, and its token."""
        self._stands = rng.choice((0.0, 0.005, 0.02))
        """How often the pipeline stops, or goes on."""
        self._sessions = 0
        self._rest = 0
        self.clients = [ReadClient(self, at) for at in range(CLIENTS)]
        self.readers = self.clients

    def counts(self) -> tuple[int, int]:
        return self.auditor.acknowledged, self.auditor.deliveries

    # What processes ask of the world

    def open_store(self) -> MetadataStore:
        return MemoryMetadataStore(self.clock, self.state, fault=self._store_fault)

    def next_session(self) -> str:
        self._sessions += 1
        return f"session {self._sessions}"

    def owner_name(self) -> str | None:
        """Whom a client takes for the owner: the newest that serves, or the oldest that still does."""
        serving = [node.name for node in self.nodes if node.is_serving]
        if not serving:
            return self.nodes[-1].name if self.nodes else None
        return serving[0] if self.faulty and self.rng.random() < 0.5 else serving[-1]

    # The scheduler

    def _step(self) -> None:
        rng, plan = self.rng, self.plan
        self.clock.advance(rng.uniform(0.001, 0.03))
        if self.faulty:
            self._weather()
            if rng.random() < self._stands:
                self.pipeline_stands = not self.pipeline_stands
                self.note("the pipeline stands" if self.pipeline_stands else "the pipeline goes on")
        for _ in range(rng.randrange(4)):
            self._deliver()
        for client in self.clients:
            if rng.random() < 0.6:
                client.step()
        self._wake_up()
        self._staff()
        active = [node for node in self.nodes if not node.paused_until]
        if not active:
            return
        node = rng.choice(active)
        # Where it hurts most: between deciding a commit and writing it.
        if self.faulty and rng.random() < plan.kill * (8 if node.half_written else 1):
            self._kill(node, "killed")
        elif self.faulty and rng.random() < plan.pause and not node.zombie:
            self._hang(node)
        else:
            for _ in range(rng.choice((1, 2, 4))):
                if not node.has_ended:
                    self._run(node)
                    self.auditor.look_at_waits(node.name, node.service, node.checkpoint.timestamp)

    def _deliver(self) -> None:
        nodes = {node.name: node for node in self.nodes}
        clients = {client.name: client for client in self.clients}
        letter = self.network.take(
            lambda name: name in clients or (name in nodes and not nodes[name].paused_until),
            lambda name: name in clients or name in nodes,
        )
        if letter is None:
            return
        if isinstance(letter[2], Ask):
            nodes[letter[1]].take(letter[2])
        elif isinstance(letter[2], Answer):
            clients[letter[1]].hear(letter[2])

    def _hang(self, node: ReadOwner) -> None:
        node.paused_until = self.rng.randrange(5, 150)
        node.zombie = True
        if self.rng.random() < 0.7:
            self.clock.advance(4.0)  # Its lease runs out.
        self.note(f"{node.name} hangs")

    def _wake_up(self) -> None:
        for node in self.nodes:
            if node.paused_until:
                node.paused_until -= 1
                if not node.paused_until:
                    node.zombie = any(other.is_serving for other in self.nodes if other is not node)
                    self.note(f"{node.name} wakes up")
        for node in [node for node in self.nodes if node.has_ended]:
            self.note(f"{node.name} is gone")
            self._forget(node)
            self._die(node)

    def _staff(self) -> None:
        """Whoever watches the processes starts what is missing, after a while."""
        self._rest = max(self._rest - 1, 0)
        if not self._rest and not any(not node.zombie for node in self.nodes):
            self._rest = self.rng.randrange(1, 20)
            self._start_node()

    def _start_node(self) -> None:
        self._born += 1
        self.nodes.append(ReadOwner(self, self._born))
        self.note(f"{self.nodes[-1].name} is started")

    def _lose_power(self) -> None:
        for node in list(self.nodes):
            self._kill(node, "without power")

    def _die(self, node: ReadOwner) -> None:
        super()._die(node)
        self.auditor.owner_is_gone(node.name)

    # When the faults have stopped

    def _recover(self) -> None:
        self.faulty = False
        self.network.is_calm = True
        self.clock.stands = self.pipeline_stands = False
        for node in [node for node in self.nodes if node.zombie]:
            self._kill(node, "taken away")
        for client in self.clients:
            client.is_finishing = True
        for _ in range(STEPS_MAX):
            if all(client.has_finished for client in self.clients):
                break
            self._step()
        else:
            waiting = [client.name for client in self.clients if not client.has_finished]
            raise Violation(f"liveness: after all faults had stopped, {waiting} have no answers")
        for _ in range(STEPS_MAX):
            if self.auditor.is_at_rest:
                return
            self._step()

    def _check_end(self) -> None:
        self.auditor.check_end()


def simulate(seed: int, *, steps: int = 800) -> Outcome:
    """One run of the simulator."""
    return ReadWorld(seed, steps=steps).run()
