"""The auditor of transactions: predicts, from what clients were told alone, what readers may and must see.

It knows nothing of coordinators, markers or terms. A *deed* is what a client wants to happen: a transaction over some
channels, or one plain message. Its rules are the promises:

    atomic      once the readers of a channel were given tick T, every deed at or below T is there whole, with the same
                Timestamp as in its other channels; so every cut through all channels shows all of it or nothing
    settled     what is visible at T never changes later
    once        every reader gets each deed once, and in the order of Timestamps
    outcome     answered committed: visible at that Timestamp; answered otherwise: never visible; one answer for ever
    run         a deed that was asked for behind another one never happens without it, and never before it
    update      a counter that is read and then written loses no update
    expiry      what is asked for after its deadline does not happen
    timeline    timestamps strictly increase; a commit asked for later than another was answered has a later one
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.log.message import Message
from tidegate.runtime.channel_reader import Delivery
from tidegate.sim.auditor import Violation


@dataclass(slots=True)
class Deed:
    """One thing that a client wants to happen."""

    number: int
    parts: dict[str, int]
    """How many messages it has in each channel."""
    updates: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Counters it sets: the channel and the new value."""
    at: int | None = None
    """Its Timestamp, once somebody was told or has seen it."""
    absent: bool = False
    is_late: bool = False
    """Its commit was asked for after its deadline."""
    ahead: Deed | None = None
    """The one before it in its run."""
    floor: int = 0
    """The largest Timestamp that anybody had been told when it was first asked for."""


@dataclass(slots=True)
class Book:
    """What is known of one channel."""

    settled: int = 0
    """The largest tick any reader was given."""
    known: list[int] = field(default_factory=list)
    """Timestamps of all deeds that are known to have happened here, ascending."""
    seen: dict[int, int] = field(default_factory=dict)
    """Timestamp to the deed that some reader got there."""
    ticks: list[tuple[int, int]] = field(default_factory=list)
    """Ticks that readers were given, each with the position to read on from."""


class TxnAuditor:
    """Raises `Violation` the moment a promise is seen to be broken."""

    def __init__(self, channels: tuple[str, ...]) -> None:
        self._books: Final = {name: Book() for name in channels}
        self._deeds: dict[int, Deed] = {}
        self._by_timestamp: dict[int, int] = {}
        self._counters: dict[str, list[tuple[int, int]]] = {}
        """Of each counter its values, with their Timestamps."""
        self.last_timestamp = 0
        self._told = 0
        self.acknowledged = 0
        self.deliveries = 0

    # What clients want and learn

    def allocated(self, first: int, count: int) -> None:
        if first <= self.last_timestamp:
            raise Violation(f"timeline: {first} was handed out after {self.last_timestamp}")
        self.last_timestamp = first + count - 1

    def wanted(self, parts: dict[str, int], ahead: Deed | None = None) -> Deed:
        deed = Deed(len(self._deeds) + 1, parts, ahead=ahead)
        self._deeds[deed.number] = deed
        return deed

    def asked(self, deed: Deed, deadline_ms: int | None = None) -> None:
        """Its commit is asked for, for the first time."""
        deed.floor = self._told
        now_ms = Timestamp(self.last_timestamp).physical_ms
        deed.is_late = deadline_ms is not None and now_ms >= deadline_ms

    def was_committed(self, deed: Deed, at: int) -> None:
        """Somebody was told that it has happened."""
        if deed.absent:
            raise Violation(f"outcome: deed {deed.number} was refused for certain, and then committed at {at}")
        if deed.at is not None and deed.at != at:
            raise Violation(f"outcome: deed {deed.number} is committed at {deed.at}, and somebody was told {at}")
        if at <= deed.floor:
            raise Violation(
                f"timeline: deed {deed.number} was asked for after {deed.floor} was answered, and is at {at}"
            )
        self.acknowledged += at not in self._by_timestamp
        self._told = max(self._told, at)
        self._know(deed, at)

    def was_refused(self, deed: Deed) -> None:
        """It is certain that it has not happened and never will."""
        if deed.at is not None:
            raise Violation(
                f"outcome: deed {deed.number} is committed at {deed.at}, and somebody was told that it is not"
            )
        deed.absent = True

    # What readers get

    def delivered(self, channel: str, who: str, after: int, delivery: Delivery) -> None:
        """A reader that had everything up to tick `after` got this."""
        book = self._books[channel]
        self.deliveries += 1
        tick = int(delivery.tick.time_tick)
        if tick <= after:
            raise Violation(f"once: {who} got tick {tick} after {after}")
        found = self._deeds_in(channel, who, delivery)
        for at, deed, indexes in found:
            if indexes != list(range(deed.parts.get(channel, 0))):
                raise Violation(
                    f"atomic: {who} got messages {indexes} of the {deed.parts.get(channel, 0)} that deed {deed.number}"
                    f" has in {channel}, at {at}"
                )
        times = [at for at, _, _ in found]
        if any(left >= right for left, right in zip([after, *times], times, strict=False)):
            raise Violation(f"once: {who} got {times} after {after}: they do not ascend")
        if times and times[-1] > tick:
            raise Violation(f"settled: {who} got {times[-1]} with tick {tick}")
        for at, deed, _ in found:
            self._see(book, channel, who, at, deed)
        if tick > book.settled:
            book.settled = tick
            book.ticks.append((tick, int(delivery.tick.last_confirmed)))
        expected = book.known[bisect_right(book.known, after) : bisect_right(book.known, tick)]
        if expected != times:
            missing = sorted({*expected} - {*times})
            numbers = [self._by_timestamp[each] for each in missing]
            raise Violation(
                f"atomic: {who} in {channel} came from tick {after} to {tick} without deeds {numbers} at {missing}"
            )

    def _deeds_in(self, channel: str, who: str, delivery: Delivery) -> list[tuple[int, Deed, list[int]]]:
        found: list[tuple[int, Deed, list[int]]] = []
        for message in delivery.messages():
            if self._is_record(channel, message):
                continue
            number, index = self._identify(channel, who, message)
            at = int(message.time_tick)
            if not found or found[-1][0] != at or found[-1][1].number != number:
                found.append((at, self._deeds[number], []))
            found[-1][2].append(index)
        return found

    def _is_record(self, channel: str, message: Message) -> bool:  # noqa: ARG002
        """Whether it is no part of a deed, but a record that somebody keeps in the channel."""
        return False

    def _identify(self, channel: str, who: str, message: Message) -> tuple[int, int]:
        text = message.body.decode() if message.body is not None else str((message.row or {}).get("text"))
        name, number, index, *_ = text.split("|")
        if name != channel or int(number) not in self._deeds:
            raise Violation(f"once: {who} got {text!r} in {channel}, which nobody wrote there")
        return int(number), int(index)

    def _see(self, book: Book, channel: str, who: str, at: int, deed: Deed) -> None:
        before = book.seen.get(at)
        if before is not None:
            if before != deed.number:
                raise Violation(f"settled: {who} got deed {deed.number} at {at}, where another had got {before}")
            return
        if deed.absent:
            raise Violation(f"outcome: {who} got deed {deed.number} in {channel}, which had been refused for certain")
        if at <= book.settled:
            raise Violation(f"settled: {who} got deed {deed.number} at {at}, below tick {book.settled} of {channel}")
        if deed.at is not None and deed.at != at:
            raise Violation(f"atomic: {who} got deed {deed.number} at {at} in {channel}, and it is at {deed.at}")
        book.seen[at] = deed.number
        self._know(deed, at)
        for key, (place, value) in deed.updates.items():
            if place == channel:
                self._update(key, at, value, deed)

    def _know(self, deed: Deed, at: int) -> None:
        """It has happened at this Timestamp: so it has in all of its channels."""
        if deed.is_late:
            raise Violation(f"expiry: deed {deed.number} is committed at {at}, and was asked for after its deadline")
        other = self._by_timestamp.setdefault(at, deed.number)
        if other != deed.number:
            raise Violation(f"timeline: deeds {other} and {deed.number} are both at {at}")
        ahead = deed.ahead
        if ahead is not None and (ahead.absent or (ahead.at is not None and ahead.at >= at)):
            raise Violation(f"run: deed {deed.number} is at {at}, and {ahead.number} before it at {ahead.at}")
        if deed.at is None:
            deed.at = at
            for name in deed.parts:
                insort(self._books[name].known, at)
        for name in deed.parts:
            book = self._books[name]
            if at <= book.settled and at not in book.seen:
                raise Violation(
                    f"atomic: deed {deed.number} is committed at {at}; {name} came to tick {book.settled} without it"
                )

    def _update(self, key: str, at: int, value: int, deed: Deed) -> None:
        history = self._counters.setdefault(key, [])
        last = history[-1][1] if history else 0
        if value != last + 1:
            raise Violation(f"update: deed {deed.number} sets {key} to {value} at {at}, and it was {last}")
        history.append((at, value))

    # What clients read

    def settled(self, channel: str) -> int:
        return self._books[channel].settled

    def sample(self, channel: str, at: int) -> tuple[int, int]:
        """Some tick that a reader was given, and the position to read on from."""
        ticks = self._books[channel].ticks
        return ticks[at % len(ticks)] if ticks else (0, 0)

    def value_at(self, key: str, at: int) -> int:
        """A counter's value as readers see it at a tick that they have reached."""
        history = self._counters.get(key, [])
        place = bisect_right(history, (at, 1 << 62))
        return history[place - 1][1] if place else 0

    # At the end

    @property
    def newest(self) -> int:
        """The largest Timestamp of anything that has happened."""
        return max(self._by_timestamp, default=0)

    def check_end(self) -> None:
        """Once more and by brute force: at every cut all of a deed is visible or nothing."""
        for deed in self._deeds.values():
            if deed.at is not None and deed.ahead is not None and deed.ahead.at is None:
                raise Violation(f"run: deed {deed.number} has happened, and {deed.ahead.number} before it has not")
            there = {name for name in deed.parts if deed.at is not None and self._books[name].seen.get(deed.at)}
            if deed.at is None or deed.absent:
                if there:
                    raise Violation(f"outcome: deed {deed.number} is visible in {sorted(there)}")
            elif there != set(deed.parts):
                raise Violation(f"atomic: deed {deed.number} at {deed.at} is visible in {sorted(there)} only")
