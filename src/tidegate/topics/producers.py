"""Idempotent producers of one topic: a repeated send is recognised, after reconnects and restarts too.

A producer has a name and numbers its messages. A send begins, its record goes into the log in one piece with its
messages, and is applied; whoever repeats it gets the result of the first time.

    begin_open ──▶ Opening ── durable ──▶ apply ──▶ Opened(epoch, last)       or fail: the older epoch goes on
    begin      ──▶ Sending ── durable ──▶ apply ──▶ Sent                      or fail: may be begun again
               ──▶ Duplicate               accepted before
               ──▶ Wait                    its outcome is not known yet: ask again when it is

Numbers. A new producer may begin at any number (Kafka demands 0), since it may count lines or offsets of something
older. After that a *strict* one sends last + 1 and nothing else; one that is not strict may leave numbers out, never go
back. A number at or below the last accepted one is never appended again, whether its result is remembered or not.

One at a time. Sends of a producer follow each other: were two under way and the first failed, a repeat of it would
lie below the second and be taken for a duplicate. Sends of one `unit` (a transaction, one write) share their
outcome and need not wait for each other. Whoever has many messages sends many at once.

Forgetting. A producer that has been idle for `remember_ms` may be forgotten when another opens. What it then repeats
is new again, so `remember_ms` must be longer than any client goes on repeating.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Backpressure, Conflict, InvalidArgument, InvariantBroken, LeaseLost, LimitExceeded, NotFound

PRODUCERS_MAX: Final = 10_000
RESULTS_MAX: Final = 100
REMEMBER_MS: Final = 24 * 3600 * 1000
SENDING_MAX: Final = 10_000
"""Sends of one unit that may be under way."""
NAME_LENGTH_MAX: Final = 200
SEQUENCE_MAX: Final = (1 << 63) - 1
COUNT_MAX: Final = (1 << 32) - 1

_FORMAT: Final = 1
_OPEN, _SENT = 1, 2
_HEAD: Final = Struct("<BB?IQI")  # format, kind, strict, epoch, first, count; then the name


@dataclass(slots=True, eq=False)
class Opening:
    """A producer about to be opened. Its older epoch sends nothing from now on.

    Ordering: `record` is written only when every send in `after` has ended, so that `Opened.last` counts them.
    """

    name: str
    record: bytes
    after: tuple[Sending, ...]
    ended: bool = False

    @property
    def is_ready(self) -> bool:
        return all(each.ended for each in self.after)


@dataclass(slots=True, eq=False)
class Sending:
    """A send under way: `record` goes into the log with its messages, as one."""

    name: str
    first: int
    last: int
    record: bytes
    unit: object = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Accepted before, with this result; None when it is so long ago that the result was forgotten, or when the same
    unit sends it twice and has not ended."""

    timestamp: Timestamp | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Whether to send depends on how `on` ends; begin again then."""

    on: Sending


@dataclass(frozen=True, slots=True)
class New:
    """Never accepted, and the next in order."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A producer may send with `epoch`, from `last` + 1 on; from anywhere when `last` is None."""

    name: str
    epoch: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Sent:
    name: str
    first: int
    last: int
    timestamp: Timestamp


class _Producer:
    """What is known of one name. `sending` is of this process; the rest is folded from the log."""

    __slots__ = ("active_ms", "epoch", "last", "results", "sending", "strict")

    def __init__(self, epoch: int, strict: bool, active_ms: int, results_max: int) -> None:
        self.epoch = epoch
        self.strict = strict
        self.active_ms = active_ms
        self.last: int | None = None
        self.results: deque[tuple[int, int, int]] = deque(maxlen=results_max)
        """First, last and timestamp of recent sends, in order."""
        self.sending: list[Sending] = []


class Producers:
    """All producers of a topic.

    Invariants: no number of a producer is accepted twice; of a strict one, every number between its first and its last
    was accepted; epochs rise over the whole topic and never come back, not even for a name that was forgotten.
    """

    def __init__(
        self,
        topic: str,
        *,
        producers_max: int = PRODUCERS_MAX,
        results_max: int = RESULTS_MAX,
        remember_ms: int = REMEMBER_MS,
    ) -> None:
        self.topic: Final = topic
        self._producers_max = producers_max
        self._results_max = results_max
        self._remember_ms = remember_ms
        self._producers: dict[str, _Producer] = {}
        """The longest idle first."""
        self._openings: dict[str, Opening] = {}
        self._epoch = 0
        self._applied = Timestamp.ZERO
        self._opened = 0
        """When one was last opened, since this process began."""

    def __len__(self) -> int:
        return len(self._producers)

    # -- opening ---------------------------------------------------------------------------------------------

    def begin_open(self, name: str, now: Timestamp, *, strict: bool = True) -> Opening:
        """Open a producer, or take its name over. The older epoch is refused from now on (facts 61, 62).

        Raises: `InvalidArgument` for a bad name, `Conflict` while another opens it, `LimitExceeded`.
        """
        raw = _check_name(self.topic, name)
        if name in self._openings:
            raise Conflict(f"{self._about(name)} is being opened by another client; try again when it is open")
        there = self._producers.get(name)
        if there is None:
            live = sum(1 for each in self._producers.values() if not self._is_idle(each, now))
            live += sum(1 for each in self._openings if each not in self._producers)
            if live >= self._producers_max:
                what = f"the number of producers of topic {self.topic!r}"
                raise LimitExceeded(what, live + 1, self._producers_max, "producers_max")
        record = _HEAD.pack(_FORMAT, _OPEN, strict, 0, 0, 0) + raw
        opening = Opening(name, record, () if there is None else tuple(there.sending))
        self._openings[name] = opening
        return opening

    # -- sending ---------------------------------------------------------------------------------------------

    def check(
        self, name: str, epoch: int, first: int, count: int = 1, *, unit: object = None
    ) -> New | Duplicate | Wait:
        """What beginning this send would find. Changes nothing.

        Raises: `NotFound` for a producer that is not open; `LeaseLost` when it was opened again since;
        `InvalidArgument` for a gap, and for numbers of which some were accepted and some were not.
        """
        producer = self._get(name, epoch)
        last = self._check_numbers(name, first, count)
        accepted = producer.last
        if accepted is not None and last <= accepted:
            return Duplicate(self._result(producer, last))
        top = accepted
        if producer.sending:
            under_way = producer.sending[-1]
            if unit is None or unit != under_way.unit:
                return Wait(under_way)
            if producer.sending[0].first <= first and last <= under_way.last:
                return Duplicate(None)
            top = under_way.last
        if top is None or first == top + 1 or (first > top and not producer.strict):
            return New()
        if first > top:
            raise InvalidArgument(
                f"{self._about(name)} sends {_span(first, last)} after {top}; {top + 1} is next:"
                f" send what is missing first"
            )
        raise InvalidArgument(
            f"{self._about(name)} sends {_span(first, last)}, of which some were sent before (up to {top}) and some"
            f" were not; repeat a send as it was, or go on at {top + 1}"
        )

    def begin(
        self, name: str, epoch: int, first: int, count: int = 1, *, unit: object = None
    ) -> Sending | Duplicate | Wait:
        """Begin to send, unless it was sent before or is under way. Raises: as `check`, and `Backpressure`."""
        found = self.check(name, epoch, first, count, unit=unit)
        if not isinstance(found, New):
            return found
        producer = self._producers[name]
        if len(producer.sending) >= SENDING_MAX:
            raise Backpressure(
                f"{self._about(name)} has {SENDING_MAX:,} sends under way in one transaction; commit it, or send more"
                f" messages at once"
            )
        record = _HEAD.pack(_FORMAT, _SENT, producer.strict, epoch, first, count) + name.encode()
        sending = Sending(name, first, first + count - 1, record, unit)
        producer.sending.append(sending)
        return sending

    def fail(self, begun: Sending | Opening) -> None:
        """It is known not to be in the log. A later send of the same unit has failed with it.

        While the outcome is unknown this is not called: then repeats wait, until the log has been read.
        """
        if isinstance(begun, Opening):
            begun.ended = True
            if self._openings.get(begun.name) is begun:
                del self._openings[begun.name]
            return
        producer = self._producers.get(begun.name)
        if producer is not None and begun in producer.sending:
            at = producer.sending.index(begun)
            for each in producer.sending[at:]:
                each.ended = True
            del producer.sending[at:]
        begun.ended = True

    # -- the fold --------------------------------------------------------------------------------------------

    def apply(self, record: bytes, timestamp: Timestamp) -> Opened | Sent:
        """Take over a record that is in the log at `timestamp`.

        Ordering: each once; those of one producer, and those that open any, in the order of the log. Sends of different
        producers may change places, since they may be acknowledged in any order.
        Raises: `InvariantBroken` when that, or an invariant, is broken.
        """
        try:
            version, kind, strict, epoch, first, count = _HEAD.unpack_from(record)
            name = record[_HEAD.size :].decode()
        except (StructError, UnicodeDecodeError) as error:
            raise InvariantBroken(f"topic {self.topic!r}: {record[:40]!r} is not a record of producers") from error
        if version != _FORMAT or kind not in (_OPEN, _SENT):
            raise InvariantBroken(f"topic {self.topic!r}: a producers' record of format {version}, kind {kind}")
        self._check_order(name, kind, timestamp)
        self._applied = max(self._applied, timestamp)
        if kind == _OPEN:
            return self._apply_open(name, strict, timestamp)
        return self._apply_sent(name, strict, epoch, first, first + count - 1, timestamp)

    def _check_order(self, name: str, kind: int, timestamp: Timestamp) -> None:
        producer = self._producers.get(name)
        before = producer.results[-1][2] if producer is not None and producer.results else 0
        if kind == _OPEN:
            before, self._opened = max(before, self._opened), max(self._opened, int(timestamp))
        if timestamp < before:
            raise InvariantBroken(
                f"topic {self.topic!r}: the record of producer {name!r} at {timestamp} is after {Timestamp(before)}"
            )

    def _apply_open(self, name: str, strict: bool, timestamp: Timestamp) -> Opened:
        opening = self._openings.pop(name, None)
        if opening is not None:
            if not opening.is_ready:
                raise InvariantBroken(f"{self._about(name)} was opened before its sends under way had ended")
            opening.ended = True
        self._epoch += 1
        producer = self._touch(name, self._epoch, strict, timestamp)
        self._forget_idle(timestamp)
        producer.epoch = self._epoch
        producer.strict = strict
        return Opened(name, producer.epoch, producer.last)

    def _apply_sent(self, name: str, strict: bool, epoch: int, first: int, last: int, timestamp: Timestamp) -> Sent:
        producer = self._producers.get(name)
        if producer is not None and producer.last is not None:
            expected = producer.last + 1
            if first < expected or (first > expected and strict):
                raise InvariantBroken(f"{self._about(name)}: {_span(first, last)} is in the log, {expected} was next")
        # A producer that was forgotten while it sent is known again.
        producer = self._touch(name, epoch, strict, timestamp)
        if producer.sending and producer.sending[0].first == first:
            producer.sending.pop(0).ended = True
        producer.last = last
        producer.results.append((first, last, int(timestamp)))
        return Sent(name, first, last, timestamp)

    def _touch(self, name: str, epoch: int, strict: bool, timestamp: Timestamp) -> _Producer:
        """The producer, made if it is not known, as the one that was active last."""
        producer = self._producers.pop(name, None)
        if producer is None:
            producer = _Producer(epoch, strict, 0, self._results_max)
        producer.active_ms = timestamp.physical_ms
        self._producers[name] = producer
        return producer

    def _forget_idle(self, now: Timestamp) -> None:
        while self._producers:
            name, oldest = next(iter(self._producers.items()))
            if not self._is_idle(oldest, now):
                return
            del self._producers[name]

    def _is_idle(self, producer: _Producer, now: Timestamp) -> bool:
        return now.physical_ms - producer.active_ms > self._remember_ms

    # -- asking ----------------------------------------------------------------------------------------------

    def _get(self, name: str, epoch: int) -> _Producer:
        producer = self._producers.get(name)
        if producer is None:
            raise NotFound(
                f"{self._about(name)} is not open, or was forgotten after {self._remember_ms / 1000:,.0f} s without a"
                f" message; open it again"
            )
        if epoch != producer.epoch or name in self._openings:
            raise LeaseLost(
                f"{self._about(name)} was opened again by another client since epoch {epoch}; nothing was sent: stop"
                f" this client, or open the producer again and go on after the last number that it reports"
            )
        return producer

    def _check_numbers(self, name: str, first: int, count: int) -> int:
        if type(first) is not int or type(count) is not int or first < 0 or not 1 <= count <= COUNT_MAX:
            raise InvalidArgument(f"{self._about(name)}: a send has a number from 0 on and at least one message")
        last = first + count - 1
        if last > SEQUENCE_MAX:
            raise InvalidArgument(f"{self._about(name)}: numbers go up to {SEQUENCE_MAX}, not {last}")
        return last

    def _result(self, producer: _Producer, last: int) -> Timestamp | None:
        for first, end, timestamp in reversed(producer.results):
            if last >= first:
                return Timestamp(timestamp) if last <= end else None
        return None

    def _about(self, name: str) -> str:
        return f"producer {name!r} of topic {self.topic!r}"

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """All that the log said; what is under way is not part of it."""
        producers = [
            [name, each.epoch, each.strict, each.active_ms, each.last, list(each.results)]
            for name, each in self._producers.items()
        ]
        facts = {"format": _FORMAT, "epoch": self._epoch, "applied": self._applied, "producers": producers}
        return json.dumps(facts, separators=(",", ":")).encode()

    @classmethod
    def restore(cls, topic: str, snapshot: bytes, **settings: Any) -> Producers:
        """The producers a snapshot was taken of. Raises: `InvariantBroken` when it is none."""
        made = cls(topic, **settings)
        try:
            facts = json.loads(snapshot)
            if facts["format"] != _FORMAT:
                raise InvariantBroken(f"topic {topic!r}: a snapshot of producers of format {facts['format']}")
            made._epoch = facts["epoch"]
            made._applied = Timestamp(facts["applied"])
            for name, epoch, strict, active_ms, last, results in facts["producers"]:
                producer = _Producer(epoch, strict, active_ms, made._results_max)
                producer.last = last
                producer.results.extend((each[0], each[1], each[2]) for each in results)
                made._producers[name] = producer
        except (ValueError, KeyError, TypeError) as error:
            raise InvariantBroken(f"topic {topic!r}: {snapshot[:40]!r} is not a snapshot of producers") from error
        return made


def _check_name(topic: str, name: str) -> bytes:
    if isinstance(name, str) and 1 <= len(name) <= NAME_LENGTH_MAX:
        try:
            return name.encode()
        except UnicodeEncodeError:
            pass
    raise InvalidArgument(
        f"topic {topic!r}: a producer's name is text of 1 to {NAME_LENGTH_MAX} characters, not {name!r}"
    )


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"
