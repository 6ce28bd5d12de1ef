"""How fresh an answer must be: what was asked for, the Timestamp that follows from it, and the cut to answer from.

    strong      everything acknowledged before the read was asked for
    session     everything acknowledged before the session began, and all that it has written or seen; the default
    bounded     everything acknowledged up to `staleness` (5 s) before the read was asked for
    eventual    the last checkpoint
    Timestamp   exactly that cut

"Before the read was asked for" is the owner's time, from the oracle; a reader's clock is never asked (seed 004).

Invariants: a session's reads never go back, whatever their level, and none is older than the last change of the tables
it reads; both but for a Timestamp that is named, which is read as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, get_args

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument

Level = Literal["strong", "session", "bounded", "eventual", "timestamp"]
Consistency = Literal["strong", "session", "bounded", "eventual"] | Timestamp
STALENESS_MS: Final = 5_000
LEVELS: Final = tuple(each for each in get_args(Level) if each != "timestamp")


class Seen(NamedTuple):
    """What a session remembers."""

    read: Timestamp = Timestamp.ZERO
    """The newest cut that it was given an answer of."""
    written: Timestamp = Timestamp.ZERO
    """Its newest write."""

    def after_read(self, at: Timestamp) -> Seen:
        return self if at <= self.read else self._replace(read=at)

    def after_write(self, at: Timestamp) -> Seen:
        return self if at <= self.written else self._replace(written=at)

    def joined(self, other: Seen) -> Seen:
        """What both remember."""
        return Seen(max(self.read, other.read), max(self.written, other.written))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a read insists on."""

    level: Level = "session"
    staleness_ms: int = STALENESS_MS
    at: Timestamp = Timestamp.ZERO
    """For the level `timestamp`."""

    def with_staleness(self, staleness_s: float | None) -> Asked:
        """With another bound. Raises: `InvalidArgument`."""
        if staleness_s is None:
            return self
        if isinstance(staleness_s, bool) or not isinstance(staleness_s, int | float) or not 0 <= staleness_s < 1e9:
            raise InvalidArgument(f"`staleness` is a number of seconds, 0 or more, not {staleness_s!r}")
        # Whole milliseconds and never more than was asked for; but 1.001 s are 1,001 ms.
        return replace(self, staleness_ms=int(staleness_s * 1000 + 1e-6))

    def __str__(self) -> str:
        if self.level == "timestamp":
            return str(self.at)
        return f"bounded {self.staleness_ms / 1000:g} s" if self.level == "bounded" else self.level


def asked(consistency: Consistency | str, staleness_s: float | None = None) -> Asked:
    """What is meant by a level's name, or by a Timestamp.

    Raises: `InvalidArgument`, naming the levels there are.
    """
    if isinstance(consistency, Timestamp):
        return Asked("timestamp", at=consistency).with_staleness(staleness_s)
    for level in LEVELS:
        if consistency == level:
            return Asked(level).with_staleness(staleness_s)
    named = "None" if consistency is None else repr(consistency)
    raise InvalidArgument(f"consistency is {', '.join(map(repr, LEVELS))} or a Timestamp, not {named}")


def guarantee(
    wanted: Asked, *, now: Timestamp, seen: Seen, changed: Timestamp, handed_out: Timestamp = Timestamp.ZERO
) -> Timestamp:
    """The Timestamp that the answer must have reached.

    `now` is the owner's, taken after the read was asked for; `changed` the last change of the tables it reads;
    `handed_out` what a bounded read needs where Timestamps did not follow the clock, see `OwnerTime`.
    """
    if wanted.level == "timestamp":
        return wanted.at
    own = max(seen.read, seen.written) if wanted.level == "session" else seen.read
    match wanted.level:
        case "strong":
            floor = now
        case "bounded":
            floor = max(_back(now, wanted.staleness_ms), handed_out)
        case _:
            floor = Timestamp.ZERO
    return max(floor, own, changed)


def cut(wanted: Asked, needed: Timestamp, *, checkpoint: Timestamp) -> Timestamp:
    """The cut to answer from: the last checkpoint if it is fresh enough, else the one that is needed."""
    return needed if wanted.level == "timestamp" else max(needed, checkpoint)


def _back(now: Timestamp, ms: int) -> Timestamp:
    return now.add(milliseconds=-min(ms, now.physical_ms))
