"""The channel's machine over deep histories with transactions, against a twin that computes everything from scratch.

Seed 000: the watermark, ticks that never pass an open append, and both conditions of LastConfirmedMessageID.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.clock.timestamp import Timestamp
from tidegate.log.channel import Append, Channel, TickPlan
from tidegate.log.message import Position, Term


class Txn:
    """A transaction whose state changes when its commit is acknowledged, as seed 000 has it."""

    def __init__(self) -> None:
        self.done = False
        self.first: Entry | None = None
        self.commit: Entry | None = None
        self.bodies_open = 0

    @property
    def is_ready(self) -> bool:
        return self.first is not None and self.first.state == "done" and self.commit is None

    def is_resolved(self, confirmed: int) -> bool:
        return self.done


@dataclass(eq=False)
class Entry:
    """What the twin knows of one append."""

    append: Append
    held: int
    txn: Txn | None = None
    positions: list[int] = field(default_factory=list)
    state: str = "open"
    moved: bool = False

    @property
    def mark(self) -> int:
        """Where it lets the watermark stand once it is acknowledged."""
        return self.held if self.moved else self.append.last


class Twin:
    """Drives a `Channel` as a writer with many threads would, and remembers everything.

    A write gets its positions at any moment between allocation and acknowledgement.
    """

    def __init__(self) -> None:
        self.channel = Channel("c", Term(1), Timestamp(100), Position(10))
        self.clock = 100
        self.position = 10
        self.entries: list[Entry] = []
        self.txns: list[Txn] = []
        self.idle_marks = [100]
        self.plan: TickPlan | None = None
        self.ticks: list[TickPlan] = []
        self.synced = 100
        self.steps = (
            self.allocate, self.allocate, self.write, self.write, self.acknowledge, self.acknowledge, self.fail,
            self.move, self.begin, self.body, self.commit, self.tick, self.end_tick, self.acknowledge_together,
        )  # fmt: skip

    def step(self, choice: int, pick: int) -> None:
        self.steps[choice](pick)
        self.check()

    def now(self, count: int = 1) -> int:
        self.clock += 1 + count
        return self.clock - count + 1

    def open(self) -> list[Entry]:
        return [each for each in self.entries if each.state == "open"]

    def unwritten(self) -> list[Entry]:
        return [each for each in self.open() if not each.positions]

    def allocate(self, pick: int) -> None:
        self._allocate(1 + pick % 3)

    def _allocate(self, count: int, txn: Txn | None = None) -> Entry:
        first = self.now(count)
        entry = Entry(self.channel.allocate(first, count, ("v",), txn), first, txn)
        self.entries.append(entry)
        return entry

    def begin(self, pick: int) -> None:
        txn = Txn()
        txn.first = self._allocate(1, txn)
        self.txns.append(txn)

    def body(self, pick: int) -> None:
        ready = [each for each in self.txns if each.is_ready]
        if ready:
            txn = ready[pick % len(ready)]
            self._allocate(1 + pick % 2, txn)
            txn.bodies_open += 1

    def commit(self, pick: int) -> None:
        """The marker takes its TimeTick first, or moves to a later one: see `move`."""
        ready = [each for each in self.txns if each.is_ready and not each.bodies_open]
        if ready:
            txn = ready[pick % len(ready)]
            txn.commit = self._allocate(1, txn)

    def write(self, pick: int) -> None:
        waiting = self.unwritten()
        if waiting:
            entry = waiting[pick % len(waiting)]
            for _ in range(entry.append.count):
                self._place(entry)

    def _place(self, entry: Entry) -> None:
        self.position += 1
        entry.positions.append(self.position)

    def acknowledge(self, pick: int) -> None:
        written = [each for each in self.open() if each.positions]
        if written:
            self._done(written[pick % len(written)])

    def acknowledge_together(self, pick: int) -> None:
        """A commit of the writer: messages of one append may lie inside another's; then all are acknowledged."""
        random = Random(pick)
        waiting = self.unwritten()
        group = random.sample(waiting, min(len(waiting), 1 + pick % 3))
        slots = [entry for entry in group for _ in range(entry.append.count)]
        random.shuffle(slots)
        for entry in slots:
            self._place(entry)
        for entry in group:
            self._done(entry)

    def _done(self, entry: Entry) -> None:
        entry.state = "done"
        self._resolve(entry)
        self.channel.acknowledge(entry.append, max(entry.positions), first_position=min(entry.positions))

    def fail(self, pick: int) -> None:
        """Known not to be in the log; if it had positions, they are nobody's."""
        if waiting := self.open():
            entry = waiting[pick % len(waiting)]
            entry.state = "failed"
            self._resolve(entry)
            self.channel.fail(entry.append)

    def _resolve(self, entry: Entry) -> None:
        txn = entry.txn
        if txn is None:
            return
        if entry is txn.commit or (entry is txn.first and entry.state == "failed"):
            txn.done = True
        elif entry is not txn.first:
            txn.bodies_open -= 1

    def move(self, pick: int) -> None:
        held = [each for each in self.unwritten() if each.append.count == 1]
        if held:
            entry = held[pick % len(held)]
            self.channel.move(entry.append, self.now())
            entry.moved = True

    def tick(self, pick: int) -> None:
        now, force = self.now(), pick % 4 == 0
        plan = self.channel.plan_tick(now, force=force)
        if self.plan is not None:
            assert plan is None, "one tick at a time"
            return
        if not self.open():
            self.idle_marks.append(now)
        confirmed = self.confirmed()
        if confirmed == self.synced:
            assert plan is None, "nothing new to say"
            return
        news = [each for each in self.entries if each.state != "open" and self.synced < each.append.last <= confirmed]
        assert plan is not None
        assert plan.time_tick == confirmed
        assert plan.persist == (bool(news) or force), "written exactly when something happened, or when asked for"
        self.plan = plan
        self.ticks.append(plan)

    def end_tick(self, pick: int) -> None:
        if self.plan is not None:
            plan, self.plan = self.plan, None
            if pick % 3:
                self.channel.tick_appended(plan)
                self.synced = int(plan.time_tick)
            else:
                self.channel.tick_failed(plan)
                self.ticks.remove(plan)

    def confirmed(self) -> int:
        """The largest TimeTick such that everything allocated at or below it is acknowledged."""
        lowest = min((each.held for each in self.open()), default=1 << 62)
        marks = [*self.idle_marks, *(each.mark for each in self.entries if each.state != "open")]
        return max(each for each in marks if each < lowest)

    def check(self) -> None:
        status = self.channel.status()
        assert status.confirmed == self.confirmed()
        assert status.synced == self.synced
        assert status.synced <= status.confirmed <= status.allocated
        assert status.in_flight == len(self.open())
        assert status.oldest_in_flight == min((each.held for each in self.open()), default=None)
        waiting = [
            e for e in self.entries if e.state != "open" and e.held <= status.confirmed and e.append.last > self.synced
        ]
        assert status.unsynced_appends == len(waiting)

    def check_promises(self) -> None:
        """Reading from LastConfirmed yields whatever is later: each message, and each transaction from its first."""
        log = [
            (each.append.first + at, position, each.append)
            for each in self.entries
            if each.state == "done"
            for at, position in enumerate(each.positions)
        ]
        later = [(time_tick, position) for time_tick, position, _ in log]
        for txn in self.txns:
            if txn.first is not None and txn.commit is not None and txn.commit.state == "done":
                later.append((txn.commit.append.last, txn.first.positions[0]))
        starts = [("message", time_tick, int(append.last_confirmed)) for time_tick, _, append in log]
        starts += [("tick", int(each.time_tick), int(each.last_confirmed)) for each in self.ticks]
        for what, time_tick, last_confirmed in starts:
            missed = [each for each in later if each[0] > time_tick and each[1] < last_confirmed]
            assert not missed, f"who reads from {last_confirmed} as the {what} at {time_tick} says misses {missed}"


def history(seed: int, length: int) -> list[tuple[int, int]]:
    """Deep histories from one number; a shorter one is a prefix of a longer one, so that failures shrink."""
    random = Random(seed)
    return [(random.randrange(14), random.randrange(1000)) for _ in range(length)]


histories = st.builds(history, st.integers(0, 1 << 32), st.integers(1, 120))


@settings(derandomize=True, max_examples=500, deadline=None)
@given(histories)
def test_the_machine_agrees_with_its_twin_and_keeps_every_promise(steps: list[tuple[int, int]]) -> None:
    """For every message and every tick: whoever reads from its LastConfirmed misses nothing later than it."""
    twin = Twin()
    seen = 0
    for choice, pick in steps:
        twin.step(choice, pick)
        assert twin.channel.last_confirmed.position >= seen, "LastConfirmed never goes back"
        seen = int(twin.channel.last_confirmed.position)
    while twin.open():  # whatever is still under way ends somehow
        twin.step(2, len(steps))
        twin.step(4 if len(steps) % 3 else 6, 0)
    for _ in range(2):
        twin.end_tick(1)
        twin.tick(1)
    twin.check_promises()


@settings(derandomize=True, max_examples=200, deadline=None)
@given(histories)
def test_nothing_appears_at_or_below_a_tick_after_it(steps: list[tuple[int, int]]) -> None:
    """A tick says that everything at or below it is there: what is acknowledged later lies above."""
    twin = Twin()
    for choice, pick in steps:
        before = set(map(id, twin.open()))
        tick = max((int(each.time_tick) for each in twin.ticks), default=0)
        twin.step(choice, pick)
        for entry in twin.entries:
            if entry.state == "done" and id(entry) in before:
                assert entry.append.first > tick
        ticks = [int(each.time_tick) for each in twin.ticks]
        assert ticks == sorted(set(ticks)), "ticks strictly increase"


@settings(derandomize=True, max_examples=100, deadline=None)
@given(histories)
def test_last_confirmed_catches_up_once_everything_is_done(steps: list[tuple[int, int]]) -> None:
    """With nothing in flight and every transaction resolved, reading may start at the last message."""
    twin = Twin()
    for choice, pick in steps:
        twin.step(choice, pick)
    while twin.open():
        twin.write(0)
        twin.acknowledge(0)
    for txn in twin.txns:
        txn.done = True
    for _ in range(2):
        twin.end_tick(1)
        twin.tick(1)
    assert twin.channel.last_confirmed.position == max(
        (max(each.positions) for each in twin.entries if each.state == "done"), default=10
    )
    assert len(twin.channel.last_confirmed) == 0, "and nothing is kept"


# -- what deep histories found -------------------------------------------------------------------------------


def channel_with_an_open_transaction() -> tuple[Channel, Txn]:
    """The transaction's first message is at position 2; position 3 is an ordinary one; ticks up to 105."""
    channel = Channel("c", Term(1), Timestamp(100), Position(1))
    txn = Txn()
    channel.acknowledge(channel.allocate(101, 1, session=txn), 2)
    channel.acknowledge(channel.allocate(102, 1), 3)
    for now in (104, 105):
        plan = channel.plan_tick(now)
        assert plan is not None and plan.last_confirmed <= 2
        channel.tick_appended(plan)
    return channel, txn


def test_a_tick_below_a_moved_commit_leads_readers_to_the_transactions_beginning() -> None:
    """Seed 000, assembled transactions included: at tick 106 the commit at 108 is still to come, from position 2 on."""
    channel, txn = channel_with_an_open_transaction()
    commit = channel.allocate(106, 1, session=txn)
    channel.allocate(107, 1)  # stays in flight and keeps the watermark at 106
    channel.move(commit, 108)
    txn.done = True
    channel.acknowledge(commit, 4)
    plan = channel.plan_tick(109)
    assert plan is not None and plan.time_tick == 106
    assert plan.last_confirmed <= 2


def test_an_idle_channels_tick_leads_readers_to_the_last_message_and_not_further_back() -> None:
    """Who resumes from a tick of a quiet channel has nothing to read again; an open transaction is what holds it."""
    channel, txn = channel_with_an_open_transaction()
    txn.done = True
    plan = channel.plan_tick(106)
    assert plan is not None and not plan.persist
    assert plan.last_confirmed == 3


def test_a_tick_made_up_for_later_leads_readers_where_it_would_have_led_them_then() -> None:
    """A tick at 106 fails; until it is made again a transaction commits above it. Its beginning must not be skipped."""
    channel, txn = channel_with_an_open_transaction()
    failed = channel.plan_tick(106, force=True)
    assert failed is not None
    channel.tick_failed(failed)
    channel.allocate(107, 1)  # stays in flight
    commit = channel.allocate(108, 1, session=txn)
    txn.done = True
    channel.acknowledge(commit, 4)
    plan = channel.plan_tick(109)
    assert plan is not None and plan.time_tick == 106
    assert plan.last_confirmed <= 2
