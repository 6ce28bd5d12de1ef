"""Laws of idempotent producers: over any history of failures, lost answers and restarts, each number once, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, LeaseLost
from tidegate.topics.producers import Duplicate, New, Opened, Opening, Producers, Sending, Sent, Wait

outcomes = st.sampled_from(["acknowledged", "failed", "answer lost", "unknown, written", "unknown, absent"])
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 3), outcomes),
    st.tuples(st.just("send"), st.integers(1, 3), outcomes),
    st.tuples(st.just("repeat"), st.integers(0, 12), st.integers(1, 4)),
    st.tuples(st.just("open"), st.booleans()),
    st.tuples(st.just("zombie"), st.integers(0, 12)),
    st.tuples(st.just("restart"), st.integers(0, 40)),
)


@dataclass
class World:
    """A topic's log, the process that owns it, and a client that numbers its messages from 0 and repeats."""

    results_max: int
    log: list[tuple[bytes, Timestamp]] = field(default_factory=list)
    producers: Producers = field(init=False)
    epoch: int = 0
    old_epochs: list[int] = field(default_factory=list)
    acknowledged: int = 0
    """What the client knows to be sent: every number below."""
    begun: tuple[int, int] | None = None
    """What it sent without learning the outcome: it repeats that, as it was, before anything else."""
    stuck: Sending | None = None
    accepted: dict[int, Timestamp] = field(default_factory=dict)
    """The dumb twin: what the log holds, number by number."""

    def __post_init__(self) -> None:
        self.producers = Producers("t", results_max=self.results_max)
        self.open(True)

    def write(self, record: bytes) -> Opened | Sent:
        self.log.append((record, Timestamp(len(self.log) + 1)))
        done = self.producers.apply(*self.log[-1])
        self.note(done)
        return done

    def note(self, done: Opened | Sent) -> None:
        if isinstance(done, Sent):
            for number in range(done.first, done.last + 1):
                assert number == len(self.accepted), "each number once, and in order"
                self.accepted[number] = done.timestamp

    def open(self, written: bool) -> None:
        opening: Opening = self.producers.begin_open("p", Timestamp(1))
        if not opening.is_ready or not written:
            self.producers.fail(opening)
            return
        if self.epoch:
            self.old_epochs.append(self.epoch)
        opened = self.write(opening.record)
        assert isinstance(opened, Opened) and opened.epoch > self.epoch
        assert opened.last == (len(self.accepted) - 1 if self.accepted else None)
        self.epoch = opened.epoch

    def send(self, count: int, outcome: str) -> None:
        if self.begun is None:
            self.begun = (self.acknowledged, count)
        first, count = self.begun
        found = self.producers.begin("p", self.epoch, first, count)
        if isinstance(found, Wait):
            assert found.on is self.stuck
            return
        if isinstance(found, Duplicate):
            assert first in self.accepted
            self.acknowledge()
            return
        assert isinstance(found, Sending)
        match outcome:
            case "acknowledged":
                self.write(found.record)
                self.acknowledge()
            case "answer lost":
                self.write(found.record)
            case "failed":
                self.producers.fail(found)
                self.begun = None  # it knows that nothing was written, and may send something else instead
            case "unknown, written":
                self.log.append((found.record, Timestamp(len(self.log) + 1)))
                self.stuck = found
            case "unknown, absent":
                self.stuck = found

    def acknowledge(self) -> None:
        assert self.begun is not None
        self.acknowledged = self.begun[0] + self.begun[1]
        self.begun = None

    def repeat(self, first: int, count: int) -> None:
        """Any numbers at all, against the twin."""
        numbers = range(first, first + count)
        known = [number in self.accepted for number in numbers]
        try:
            found = self.producers.check("p", self.epoch, first, count)
        except InvalidArgument:
            assert not all(known) and first != len(self.accepted)
            return
        match found:
            case Duplicate(timestamp):
                assert all(known)
                assert timestamp in (None, self.accepted[numbers[-1]])
                if len(self.log) <= self.results_max:
                    assert timestamp is not None
            case Wait():
                assert self.stuck is not None and not all(known)
            case New():
                assert not any(known) and (first == len(self.accepted) or not self.accepted)

    def restart(self, cut: int) -> None:
        """The process dies; the next one reads a snapshot of the log's beginning and the rest record by record."""
        cut = min(cut, len(self.log))
        early = Producers("t", results_max=self.results_max)
        for record, timestamp in self.log[:cut]:
            early.apply(record, timestamp)
        self.producers = Producers.restore("t", early.snapshot(), results_max=self.results_max)
        self.accepted = {}
        whole = Producers("t", results_max=self.results_max)
        for index, (record, timestamp) in enumerate(self.log):
            done = whole.apply(record, timestamp)
            self.note(done)
            if index >= cut:
                assert self.producers.apply(record, timestamp) == done
        assert self.producers.snapshot() == whole.snapshot()
        self.stuck = None


@given(st.lists(steps, max_size=40), st.sampled_from([1, 3, 100]))
@settings(max_examples=300, deadline=None)
def test_each_number_is_in_the_log_once_and_in_order_and_whoever_repeats_gets_through(
    history: list[tuple[Any, ...]], results_max: int
) -> None:
    world = World(results_max)
    for step in history:
        match step:
            case ("send", count, outcome):
                world.send(count, outcome)
            case ("repeat", first, count):
                world.repeat(first, count)
            case ("open", written):
                world.open(written)
            case ("zombie", first):
                for epoch in world.old_epochs:
                    try:
                        world.producers.begin("p", epoch, first)
                    except LeaseLost:
                        continue
                    raise AssertionError(f"epoch {epoch} was let through after {world.epoch}")
            case ("restart", cut):
                world.restart(cut)
    world.restart(0)
    for _ in range(2):  # what is left over, then one more
        world.send(1, "acknowledged")
    assert world.begun is None
    assert world.acknowledged == len(world.accepted)
