"""The machines of one life of the pipeline, made anew from what is durable after every failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Event
from typing import Final

from tidegate.barrier import cut as cuts
from tidegate.barrier.alignment import Alignment, AlignmentEffect, AskTicks
from tidegate.barrier.clock import Barrier, BarrierClock, BarrierSettings
from tidegate.barrier.collection import Epochs
from tidegate.barrier.cut import Cut, Epoch
from tidegate.clock.timestamp import Timestamp
from tidegate.log.message import NO_POSITION, Term
from tidegate.pipeline.fold import ROWS
from tidegate.pipeline.owner import Owner
from tidegate.runtime.journal import Journal
from tidegate.runtime.log import Log
from tidegate.snapshots.manifest import Pointer

_TICK_S: Final = 0.05
_READ_S: Final = 0.5


class Machines:
    """When to cut, where the cut lies, who has reported."""

    def __init__(
        self,
        engine: Owner,
        journal: Journal,
        known: Iterable[Cut],
        pointer: Pointer,
        term: int,
        settings: BarrierSettings,
    ) -> None:
        """`known` are the recorded cuts; `pointer` was claimed by `term`."""
        self.journal = journal
        self.cuts: dict[int, Cut] = {each.epoch: each for each in known if each.epoch >= pointer.epoch}
        """From the last checkpoint's on."""
        self.channels = (*engine.channels, "system")
        at = cuts.Pointer(pointer.checkpoint, Epoch(pointer.epoch), pointer.timestamp, Term(term), pointer.manifest)
        self.epochs = Epochs(Term(term), at, self.cuts.values(), channels=engine.channels, now_ms=now_ms())
        self.alignment = Alignment(self.epochs.newest)
        self.clock = BarrierClock(settings, now_ms(), uncheckpointed=self.epochs.uncommitted)
        self.written = written_bytes(engine.log, engine.channels)
        """How much was in the log at the last barrier; only differences mean anything."""

    def pause(self) -> None:
        """No periodic barriers, and nothing handed out."""
        self.clock.pause(now_ms())
        self.epochs.pause()

    def kept(self, since: int) -> list[Cut]:
        """The cuts from an epoch on, in order."""
        return [self.cuts[epoch] for epoch in sorted(self.cuts) if epoch >= since]


def take_barrier(log: Log, machines: Machines, barrier: Barrier, on_cut: Callable[[Cut], None], stop: Event) -> None:
    """Put a barrier through all channels: each ticks past it, then `on_cut` gets the cut. Waits for as long as a
    channel takes."""
    alignment = machines.alignment
    writers = {name: log.channel(name, create=False) for name in machines.channels}

    def record(effects: Iterable[AlignmentEffect]) -> None:
        for effect in effects:
            if not isinstance(effect, AskTicks):
                before, machines.written = machines.written, written
                on_cut(replace(effect.cut, nbytes=max(written - before, 0)))

    def tell(name: str) -> None:
        tick = writers[name].latest_tick
        record(alignment.ticked(name, tick.time_tick, tick.last_confirmed))

    written = written_bytes(log, machines.channels[:-1])
    for name in writers:
        tell(name)
    timestamp = Timestamp(log.allocate(1))
    record(alignment.begin(timestamp, machines.channels, is_checkpoint=barrier.is_checkpoint, now_ms=now_ms()))
    while not stop.is_set():
        waiting = sorted({name for each in alignment.pending for name in each.waiting})
        if not waiting:
            return
        for name in waiting:
            writers[name].tick()
        for name in waiting:
            writers[name].wait_for_tick(int(timestamp) - 1, _TICK_S)
            tell(name)


def written_bytes(log: Log, channels: Iterable[str]) -> int:
    """About how much was written to channels since ever: what a segment's end left unused is counted."""
    found = [log.channel(name, create=False).segments for name in channels]
    return sum(each.id.number * each.size + each.offset for each in found)


def was_written_since(owner: Owner, cut: Cut | None) -> bool:
    """Whether rows were written, or the catalog changed, since a cut: by the last owner, or before this one watched."""
    catalog, log = owner.catalog, owner.log
    if cut is None or catalog.changed > cut.timestamp:
        return True
    vchannels = frozenset(name for table in catalog.tables() for name in table.vchannels)
    for name in owner.channels:
        last = log.channel(name, create=False).latest_tick.time_tick
        at = cut.places.get(name)
        with log.transaction_reader(
            name,
            position=NO_POSITION if at is None else at.position,
            after=cut.timestamp,
            vchannels=vchannels,
            types=ROWS,
        ) as reader:
            while reader.after < last:
                delivery = reader.read(_READ_S)
                if delivery is None or delivery.batches:
                    return True
    return False


def now_ms() -> int:
    """Monotonic."""
    return time.monotonic_ns() // 1_000_000
