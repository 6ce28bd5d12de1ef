"""The state machine of one channel in one term: TimeTicks from Allocated to Confirmed to Synced (seed 000).

    allocate ──▶ Allocated ──acknowledge──▶ Confirmed ──tick appended──▶ Synced
                     │                          ▲
                     └──────── failed ──────────┘   a failed append never blocks the watermark

Pure: timestamps come in as arguments, and nothing here reads a clock, writes or waits. The caller holds one
lock from taking timestamps out of the oracle to `allocate`, so that they enter in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvariantBroken
from tidegate.log.last_confirmed import LastConfirmed, Session
from tidegate.log.message import Position, Term


@dataclass(slots=True, eq=False)
class Append:
    """A run of TimeTicks taken together: one append, or a group of them written as one.

    Ordering: `first` holds the watermark below itself until the append is acknowledged.
    """

    first: int
    count: int
    last_confirmed: Position
    """LastConfirmedMessageID of its messages: the channel's at allocation."""
    resume: Position
    """The same without regard to open transactions."""
    vchannels: tuple[str, ...] = ()
    session: Session | None = None
    acknowledged: bool = False
    failed: bool = False
    position: int = 0
    """Of its last message, once written."""
    first_position: int = 0
    end: int = 0
    """The largest TimeTick allocated when it was acknowledged."""
    moved: int = 0
    """TimeTick of its last message, when that was moved up from the one it holds."""

    @property
    def last(self) -> int:
        return self.moved or self.first + self.count - 1


@dataclass(frozen=True, slots=True)
class TickPlan:
    """A time tick to be appended.

    Ordering: every message at or below `time_tick` is durable already. When `persist` is set the tick must be durable
    before readers are told of it; otherwise it lives in memory only.
    """

    time_tick: Timestamp
    resume: Position
    """Reading from here yields every message above `time_tick`."""
    persist: bool
    last_confirmed: Position
    """Smallest LastConfirmedMessageID among what it covers: transactions that are open now begin at or behind it."""


@dataclass(frozen=True, slots=True)
class Visible:
    """How far a virtual channel has come: the MVCC view of one."""

    time_tick: Timestamp
    confirmed: bool
    """Whether a tick has covered it; if not, asking for a tick will."""


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """All states of a channel at one moment."""

    name: str
    term: Term
    allocated: Timestamp
    confirmed: Timestamp
    synced: Timestamp
    last_confirmed: Position
    in_flight: int
    oldest_in_flight: Timestamp | None
    oldest_places: tuple[str, ...]
    """The virtual channels that the oldest in flight is for."""
    unsynced_appends: int
    vchannels: dict[str, Timestamp] = field(default_factory=dict)
    """Virtual channels with messages above the last tick."""


class Channel:
    """Decides watermark, ticks and LastConfirmedMessageID.

    Invariants: `synced <= confirmed <= allocated`; all three never go back; no TimeTick at or below
    `confirmed` is unacknowledged; ticks strictly increase.
    """

    def __init__(
        self, name: str, term: Term, first_tick: Timestamp, position: Position, open_from: Position | None = None
    ) -> None:
        """`first_tick` is the persisted tick that opened the term, at `position`.

        `open_from` is where the first of the transactions begins that older terms left open.
        """
        self.name: Final = name
        self.term: Final = term
        self.allocated = int(first_tick)
        self.confirmed = int(first_tick)
        self.synced = int(first_tick)
        self.last_confirmed = LastConfirmed(position, open_from)
        self._in_flight: list[tuple[int, Append]] = []
        self._to_tick: list[Append] = []
        """Confirmed, not yet covered by a tick that was appended."""
        self._vchannels: dict[str, int] = {}
        self._ticking: TickPlan | None = None
        self._read_from = (position, self.last_confirmed.position)
        """`resume` and LastConfirmedMessageID as of `confirmed`. What is known of transactions that were resolved since
        must not move the latter: one may have its commit above `confirmed`, and its first message before."""

    def allocate(
        self, first: int, count: int, vchannels: tuple[str, ...] = (), session: Session | None = None
    ) -> Append:
        """Enter `count` TimeTicks from `first` on as in flight.

        Raises: `InvariantBroken` when they are not above everything allocated before.
        """
        if first <= self.allocated or count < 1:
            raise InvariantBroken(f"channel {self.name!r}: TimeTick {first} was allocated after {self.allocated}")
        known = self.last_confirmed
        append = Append(first, count, known.position, known.resume, vchannels, session)
        self.allocated = append.last
        heappush(self._in_flight, (first, append))
        return append

    def acknowledge(self, append: Append, position: int, *, first_position: int | None = None) -> None:
        """The append is durable, its last message at `position`, its first at `first_position`.

        Without the latter its messages lie next to each other.
        """
        append.position = position
        append.first_position = position - append.count + 1 if first_position is None else first_position
        for vchannel in append.vchannels:
            if append.last > self._vchannels.get(vchannel, self.synced):
                self._vchannels[vchannel] = append.last
        self._confirm(append)

    def fail(self, append: Append) -> None:
        """The append is known not to be part of the log. It blocks nobody from now on."""
        append.failed = True
        self._confirm(append)

    def move(self, append: Append, time_tick: int) -> None:
        """Give the last message of a held append its TimeTick, above the ones that are held.

        The watermark stays below the held ones until the append is acknowledged, so no tick can reach
        `time_tick` before the message is durable.
        """
        if append.acknowledged or time_tick < append.first + append.count - 1:
            raise InvariantBroken(f"channel {self.name!r}: a held append cannot move to {time_tick}")
        append.moved = time_tick
        self.allocated = max(self.allocated, time_tick)

    def _confirm(self, append: Append) -> None:
        if append.acknowledged:
            raise InvariantBroken(f"channel {self.name!r}: TimeTick {append.first} acknowledged twice")
        append.acknowledged = True
        append.end = self.allocated
        heap = self._in_flight
        while heap and heap[0][1].acknowledged:
            done = heappop(heap)[1]
            # Where its last message has moved to, others may be in flight; they are confirmed in their own turn.
            self.confirmed = max(self.confirmed, done.first + done.count - 1)
            self._read_from = (done.resume, done.last_confirmed)
            self._to_tick.append(done)
            if not done.failed:
                self.last_confirmed.add(done.position, done.end, done.session, first=done.first_position)
        self.last_confirmed.advance(self.confirmed)

    def plan_tick(self, now: int, *, force: bool = False) -> TickPlan | None:
        """A tick that covers all that is confirmed, or None when there is nothing new to say.

        `now` is a fresh timestamp: with nothing in flight the watermark moves up to it, so that
        an idle channel's clock goes on. `force` persists the tick though nothing happened.
        """
        if self._ticking is not None:
            return None
        if now <= self.allocated:
            raise InvariantBroken(f"channel {self.name!r}: TimeTick {now} was allocated after {self.allocated}")
        self.allocated = now
        if not self._in_flight:
            self.confirmed = now
            self.last_confirmed.advance(now)
            self._read_from = (self.last_confirmed.resume, self.last_confirmed.position)
        covered = self._covered(self.confirmed)
        if self.confirmed <= self.synced and not covered:
            return None
        resume, last_confirmed = self._read_from
        plan = TickPlan(
            Timestamp(self.confirmed),
            min((each.resume for each in covered), default=resume),
            bool(covered) or force,
            min((each.last_confirmed for each in covered), default=last_confirmed),
        )
        self._ticking = plan
        return plan

    def tick_appended(self, plan: TickPlan) -> None:
        """The tick is where it belongs: in the log if it is persisted, else in memory."""
        self._end_tick(plan)
        self.synced = int(plan.time_tick)
        self._to_tick = [each for each in self._to_tick if each.last > self.synced]
        if self._vchannels:
            self._vchannels = {name: tick for name, tick in self._vchannels.items() if tick > self.synced}

    def tick_failed(self, plan: TickPlan) -> None:
        """The tick could not be appended; the next one covers what this one would have."""
        self._end_tick(plan)

    def _end_tick(self, plan: TickPlan) -> None:
        if self._ticking is not plan:
            raise InvariantBroken(f"channel {self.name!r}: a tick ended that was not under way")
        self._ticking = None

    def _covered(self, tick: int) -> list[Append]:
        return [each for each in self._to_tick if each.last <= tick]

    def visible(self, vchannel: str) -> Visible:
        """The largest TimeTick written to a virtual channel, or the last tick when that covers it."""
        pending = self._vchannels.get(vchannel)
        if pending is not None:
            return Visible(Timestamp(pending), confirmed=False)
        return Visible(Timestamp(self.synced), confirmed=True)

    def in_flight(self) -> Iterable[Append]:
        """What is allocated and not acknowledged, in no particular order."""
        return (append for _, append in self._in_flight if not append.acknowledged)

    def status(self) -> ChannelStatus:
        oldest = min(self.in_flight(), key=lambda append: append.first, default=None)
        return ChannelStatus(
            name=self.name,
            term=self.term,
            allocated=Timestamp(self.allocated),
            confirmed=Timestamp(self.confirmed),
            synced=Timestamp(self.synced),
            last_confirmed=self.last_confirmed.position,
            in_flight=sum(1 for _ in self.in_flight()),
            oldest_in_flight=None if oldest is None else Timestamp(oldest.first),
            oldest_places=() if oldest is None else oldest.vchannels,
            unsynced_appends=len(self._to_tick),
            vchannels={name: Timestamp(tick) for name, tick in sorted(self._vchannels.items())},
        )
