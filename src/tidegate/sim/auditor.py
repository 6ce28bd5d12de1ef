"""The auditor: predicts, from what clients were told alone, what readers may and must see.

It knows nothing of how the log works. Its rules are the promises:

    order       every reader gets strictly ascending TimeTicks, and all readers the same messages
    tick        once anybody was given tick T, the messages at or below T are settled for ever
    survival    what was acknowledged is delivered, at the TimeTick and position it was acknowledged with
    absence     what was refused for certain is never delivered
    whole       a batch is delivered whole or not at all
    resume      from a message's LastConfirmed, everything above its TimeTick is delivered
    timeline    timestamps strictly increase over all lives of the oracle

With durability `interval` and `none` a loss of power may take away what was acknowledged, and then:

    survival    what the writer had said to be durable is still there
    prefix      what is there is all up to some place, and nothing behind it
    absence     what is gone never comes back; its position may, in a higher term, and its TimeTick does not
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.log.batch import Batch
from tidegate.log.message import Message
from tidegate.runtime.channel_reader import Delivery
from tidegate.runtime.pending import Appended


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Intent:
    """One append a client asked for."""

    number: int
    channel: str
    messages: int
    txn: int = 0
    commits: bool = False
    """It is the commit of its transaction."""
    appended: Appended | None = None
    absent: bool = False


@dataclass(slots=True)
class ChannelBook:
    """What is known of one channel."""

    seen: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """TimeTick to (append, index, position, last_confirmed), as some reader got it."""
    acknowledged: list[int] = field(default_factory=list)
    """First TimeTicks of acknowledged appends, ascending."""
    by_tick: dict[int, int] = field(default_factory=dict)
    settled: int = 0
    """The largest tick any reader was given."""
    ordered: list[int] = field(default_factory=list)
    """TimeTicks in `seen`, ascending."""
    durable: int = 0
    """The largest position that a writer said to be durable."""
    gone: set[int] = field(default_factory=set)
    """TimeTicks that a loss of power took away."""
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Position to the TimeTick and term of what some reader got there last."""


class Auditor:
    """Raises `Violation` the moment a promise is seen to be broken."""

    def __init__(self, channels: list[str], *, all_durable: bool = True) -> None:
        """`all_durable`: whatever is acknowledged must survive a loss of power."""
        self._all_durable = all_durable
        self._books = {name: ChannelBook() for name in channels}
        self._intents: dict[int, Intent] = {}
        self._last_timestamp = 0
        self.deliveries = 0
        self.acknowledged = 0

    # What clients learn

    def allocated(self, first: int, count: int) -> None:
        if first <= self._last_timestamp:
            raise Violation(f"timeline: {first} was handed out after {self._last_timestamp}")
        self._last_timestamp = first + count - 1

    def asked(self, channel: str, messages: int, *, txn: int = 0, commits: bool = False) -> Intent:
        intent = Intent(len(self._intents) + 1, channel, messages, txn, commits)
        self._intents[intent.number] = intent
        return intent

    def was_acknowledged(self, intent: Intent, appended: Appended) -> None:
        book = self._books[intent.channel]
        intent.appended = appended
        self.acknowledged += 1
        first = int(appended.time_tick)
        insort(book.acknowledged, first)
        book.by_tick[first] = intent.number
        if first <= book.settled and first not in book.seen:
            raise Violation(
                f"tick: append {intent.number} was acknowledged at {first}, after tick {book.settled} promised"
                f" that everything up to it had arrived"
            )

    def was_refused(self, intent: Intent) -> None:
        """It is certain that the append is not part of the log."""
        intent.absent = True
        if any(number == intent.number for number, *_ in self._books[intent.channel].seen.values()):
            raise Violation(f"absence: append {intent.number} was delivered and then refused")

    def said_durable(self, channel: str, position: int) -> None:
        """A writer said that everything up to `position` survives a loss of power."""
        book = self._books[channel]
        book.durable = max(book.durable, position)

    # What a loss of power leaves

    def power_was_lost(self, channel: str, found: Mapping[int, int], end: int) -> int:
        """`found` is what the files hold: TimeTick to position. `end` is the largest position, ticks included.

        Returns how many messages are gone that somebody knew of.
        """
        book = self._books[channel]
        if end < book.durable:
            raise Violation(f"survival: {channel} ends at {end}, and had been said to be durable up to {book.durable}")
        known = {tick: position for tick, (_, _, position, _) in book.seen.items()}
        for first, number in book.by_tick.items():
            intent = self._intents[number]
            if intent.appended is not None:
                parts = range(intent.messages)
                known.update({first + part: int(intent.appended.position) + part for part in parts})
                if len({first + part in found for part in parts}) > 1:
                    raise Violation(f"whole: a loss of power left a part of append {number} in {channel}")
        gone = {tick: position for tick, position in known.items() if tick not in found}
        kept = {tick: position for tick, position in known.items() if tick in found}
        for tick, position in kept.items():
            if found[tick] != position:
                raise Violation(f"survival: {channel} has {tick} at position {found[tick]}, not {position}")
        if not gone:
            return 0
        first_gone = min(gone.values())
        if self._all_durable or first_gone <= book.durable:
            raise Violation(f"survival: {channel} lost what was durable, from position {first_gone} on")
        if kept and max(kept.values()) > first_gone:
            raise Violation(f"prefix: {channel} lost position {first_gone} and kept position {max(kept.values())}")
        book.gone.update(gone)
        book.seen = {tick: entry for tick, entry in book.seen.items() if tick not in gone}
        book.ordered = [tick for tick in book.ordered if tick not in gone]
        book.acknowledged = [tick for tick in book.acknowledged if tick not in gone]
        book.by_tick = {tick: number for tick, number in book.by_tick.items() if tick not in gone}
        return len(gone)

    # What readers get

    def delivered(self, channel: str, who: str, after: int, delivery: Delivery) -> None:
        book = self._books[channel]
        self.deliveries += 1
        tick = int(delivery.tick.time_tick)
        if tick <= after:
            raise Violation(f"order: {who} got tick {tick} after {after}")
        ticks: list[int] = []
        for batch in delivery.batches:
            ticks.extend(self._check_batch(book, channel, who, batch))
        if any(left >= right for left, right in zip([after, *ticks], ticks, strict=False)):
            raise Violation(f"order: {who} got TimeTicks that do not ascend from {after}: {ticks}")
        if ticks and ticks[-1] > tick:
            raise Violation(f"tick: {who} got {ticks[-1]} with tick {tick}")
        self._check_complete(book, channel, who, after, tick, ticks)
        book.settled = max(book.settled, tick)

    def _check_batch(self, book: ChannelBook, channel: str, who: str, batch: Batch) -> list[int]:
        found = []
        for message in batch.messages():
            number, index = self._identify(message, channel, who)
            tick = int(message.time_tick)
            found.append(tick)
            entry = (number, index, int(message.position), int(message.last_confirmed))
            before = book.seen.get(tick)
            if before is not None:
                if before != entry:
                    raise Violation(f"order: {who} got {entry} at {tick}, another reader had got {before}")
                continue
            if tick in book.gone:
                raise Violation(f"absence: {who} got append {number} at {tick}, which a loss of power had taken away")
            if tick <= book.settled:
                raise Violation(f"tick: {who} got append {number} at {tick}, below the settled tick {book.settled}")
            self._check_against_intent(self._intents[number], index, message, who)
            self._check_place(book, message, who)
            book.seen[tick] = entry
            insort(book.ordered, tick)
        return found

    def _check_place(self, book: ChannelBook, message: Message, who: str) -> None:
        position, tick, term = int(message.position), int(message.time_tick), int(message.term)
        before = book.places.get(position)
        if before is not None and (before[0] not in book.gone or term <= before[1]):
            raise Violation(
                f"order: {who} got {tick} of term {term} at position {position},"
                f" where {before[0]} of term {before[1]} was"
            )
        book.places[position] = (tick, term)

    def _identify(self, message: Message, channel: str, who: str) -> tuple[int, int]:
        text = message.body.decode() if message.body is not None else str((message.row or {}).get("text"))
        name, number, index, *_ = text.split("|")
        if name != channel or int(number) not in self._intents:
            raise Violation(f"order: {who} got {text!r} in channel {channel}, which nobody appended there")
        return int(number), int(index)

    def _check_against_intent(self, intent: Intent, index: int, message: Message, who: str) -> None:
        if intent.absent:
            raise Violation(f"absence: {who} got append {intent.number}, which had been refused for certain")
        appended = intent.appended
        if appended is None:
            return
        told = (int(appended.time_tick) + index, int(appended.position) + index, int(appended.last_confirmed))
        got = (int(message.time_tick), int(message.position), int(message.last_confirmed))
        if told != got:
            raise Violation(f"survival: {who} got append {intent.number} at {got}, acknowledged at {told}")

    def _check_complete(
        self, book: ChannelBook, channel: str, who: str, after: int, tick: int, ticks: list[int]
    ) -> None:
        got = set(ticks)
        low, high = bisect_right(book.acknowledged, after), bisect_right(book.acknowledged, tick)
        for first in book.acknowledged[low:high]:
            if first not in got:
                raise Violation(
                    f"survival: {who} in {channel} did not get append {book.by_tick[first]}, acknowledged at {first},"
                    f" between ticks {after} and {tick}"
                )
        low, high = bisect_right(book.ordered, after), bisect_right(book.ordered, tick)
        for each in book.ordered[low:high]:
            if each not in got:
                raise Violation(f"order: {who} in {channel} did not get {each}, which another reader had got")
        parts: dict[int, list[int]] = {}
        for each in ticks:
            number, index, *_ = book.seen[each]
            parts.setdefault(number, []).append(index)
            if index and len(parts[number]) == 1 and each - index > after:
                raise Violation(f"whole: {who} got append {number} without its beginning")
        for number, indexes in parts.items():
            count = self._intents[number].messages
            if indexes != list(range(indexes[0], count)):
                raise Violation(f"whole: {who} got {indexes} of the {count} messages of append {number}")

    # At the end

    def settled(self, channel: str) -> int:
        return self._books[channel].settled

    def sample(self, channel: str, at: int) -> tuple[int, int] | None:
        """TimeTick and LastConfirmed of some delivered message."""
        book = self._books[channel]
        if not book.ordered:
            return None
        tick = book.ordered[at % len(book.ordered)]
        return tick, book.seen[tick][3]

    def check_last_confirmed(self) -> None:
        """By brute force: nothing above a message's TimeTick lies before its LastConfirmed, transactions included."""
        for channel, book in self._books.items():
            first_of: dict[int, int] = {}
            for tick in book.ordered:
                number, _, position, _ = book.seen[tick]
                txn = self._intents[number].txn
                first_of[txn] = min(first_of.get(txn, position), position)
            lowest = 1 << 62
            for tick in reversed(book.ordered):
                number, _, position, last_confirmed = book.seen[tick]
                if lowest < last_confirmed:
                    raise Violation(
                        f"resume: in {channel}, append {number} at {tick} says to read from {last_confirmed}, but what"
                        f" is needed after it starts at {lowest}"
                    )
                intent = self._intents[number]
                # A transaction takes place at its commit, and needs its first message to be assembled.
                lowest = min(lowest, first_of[intent.txn] if intent.commits else position)
