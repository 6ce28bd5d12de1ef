"""`SubWorld`: the world of transactions with a subscription in it: consumers that consume, process and produce.

In the end, when the faults have stopped, everything that was sent to the topic must be consumed once.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tidegate.catalog.entries import Kind
from tidegate.sim.stage import Outcome
from tidegate.sim.sub_auditor import SubAuditor
from tidegate.sim.sub_clients import ConsumerClient, InputClient
from tidegate.sim.sub_node import TOPIC, SubNode, SubSettings, subscription_of
from tidegate.sim.txn_liveness import _until
from tidegate.sim.txn_node import DATA
from tidegate.sim.txn_world import AssemblingFollower, TxnWorld

INPUTS = 2
CONSUMERS = 3


class SubWorld(TxnWorld):
    """One run."""

    node_type = SubNode
    auditor: SubAuditor

    def __init__(self, seed: int, *, steps: int = 2000, keep_trace: bool = False) -> None:
        super().__init__(seed, steps=steps, keep_trace=keep_trace)
        rng = self.rng
        self.plan = self.plan.milder(rng.choice((0.05, 0.3, 0.6)))  # To consume takes many requests.
        kinds: tuple[Kind, ...] = ("shared", "exclusive", "failover")
        kind = rng.choice(kinds)
        cumulative = kind != "shared" and rng.random() < 0.7
        before = {name: getattr(self.settings, name) for name in self.settings.__dataclass_fields__}
        before["log"] = replace(self.settings.log, segment_bytes=rng.choice((32 << 10, 256 << 10)))
        self.settings = SubSettings(**before, kind=kind, buffer=rng.choice((3, 10, 1000)))
        self.auditor = SubAuditor(DATA, TOPIC, subscription_of(kind))
        inputs = [InputClient(f"k{at}", **self._ports()) for at in range(INPUTS)]
        self.consumers = [
            ConsumerClient(f"k{INPUTS + at}", cumulative=cumulative, **self._ports()) for at in range(CONSUMERS)
        ]
        self.clients = [*inputs, *self.consumers]
        self._by_name = {client.name: client for client in self.clients}
        self.readers = [AssemblingFollower(self, f"follower of {name}", name) for name in DATA]
        self.note(f"the subscription is {kind}" + (", acknowledged cumulatively" if cumulative else ""))

    def _ports(self) -> dict[str, Any]:
        return {
            "rng": Random(self.rng.getrandbits(64)),
            "network": self.network,
            "auditor": self.auditor,
            "owner": self._pick_owner,
            "channels": DATA,
            "note": self.note,
        }

    def _deliver(self) -> None:
        # Asking and answering are most of what consumers do.
        super()._deliver()
        super()._deliver()

    def _recover(self) -> None:
        super()._recover()
        for client in self.consumers:
            client.is_finishing, client.is_calm = False, True
        while left := len(self.auditor.unconsumed()):
            _until(self, lambda: len(self.auditor.unconsumed()) < left, f"one of {left} inputs is not consumed")
        for client in self.consumers:
            client.is_finishing = True
        _until(self, lambda: all(client.is_idle for client in self.clients), "a client does not learn its outcome")
        newest = self.auditor.newest
        _until(
            self,
            lambda: all(self.auditor.settled(name) > newest for name in DATA),
            "ticks do not pass the last commit",
        )


def simulate(seed: int, *, steps: int = 2000) -> Outcome:
    """One run of the simulator."""
    return SubWorld(seed, steps=steps).run()
