"""`OracleMachine`: the one source of Timestamps, as a machine without a clock, a store or a thread.

It owns a *window*: a stretch of milliseconds whose end is durable before the first value inside it is
handed out. Whoever starts next begins above the durable end, so nothing is ever handed out twice or out of
order, whatever crashed and whatever the wall clock did.

    start(wall, saved) -> SaveWindow ── durable ──> window_saved ──> allocate … allocate
    advance(wall)      -> SaveWindow ── durable ──> window_saved ──> the next millisecond is published
                       -> ()                                         published at once, or nothing to do
                                    ── failed ───> save_failed  ──> everything stays as it was

The wall clock only suggests: physical time follows it forwards, stands while it stands or goes back, and is
moved on by single milliseconds when the logical part runs out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.clock.timestamp import LOGICAL_BITS, LOGICAL_COUNT, PHYSICAL_MS_MAX
from tidegate.errors import InvalidArgument, InvariantBroken, LimitExceeded

STEP_MS: Final = 50
"""How often physical time is brought up to the wall clock."""
WINDOW_MS: Final = 3000
"""How far ahead of physical time the durable end of the window is put."""
GUARD_MS: Final = 1
"""The least distance kept between physical time and the end of the window."""
JUMP_WARNING_MS: Final = 150
"""A wall clock this far from where it should be is worth a warning."""
AHEAD_MS: Final = WINDOW_MS
"""How far physical time may run ahead of the wall clock without a pause: as far as a restart can put it."""


@dataclass(frozen=True, slots=True)
class SaveWindow:
    """Make `until_ms` the durable end of the window.

    Ordering: durable before `window_saved`, hence before any value of the new window is handed out.
    Written only over what this leader read or wrote last, so that a deposed leader cannot move it.
    """

    until_ms: int


@dataclass(frozen=True, slots=True)
class WarnClockJump:
    """The wall clock is not where the time that passed would have put it. Nothing depends on this warning.

    `jump_ms` is positive for a jump ahead, which physical time follows, and negative for one back, which it
    does not.
    """

    jump_ms: int
    wall_ms: int
    physical_ms: int


Effect = SaveWindow | WarnClockJump


class OracleMachine:
    """Hands out strictly increasing values inside a window that is durable.

    Invariant: `physical_ms < saved_ms` once started, and both only grow.
    Invariant: `next_raw` and `limit_raw` lie in the millisecond `physical_ms`, or the machine hands out
    nothing (`limit_raw == 0`).

    `next_raw` and `limit_raw` are public for one caller: the shell repeats the two lines of `allocate` under
    its own lock, because a second method call would cost as much as the allocation.
    """

    __slots__ = (
        "_last_wall_ms",
        "_older_last_raw",
        "_pending_ms",
        "limit_raw",
        "next_raw",
        "physical_ms",
        "saved_ms",
    )

    def __init__(self) -> None:
        self.physical_ms = 0
        self.saved_ms = 0
        self.next_raw = 0
        self.limit_raw = 0
        self._pending_ms: int | None = None  # waits for its window to become durable
        self._older_last_raw = 0  # the last value handed out before the present millisecond
        self._last_wall_ms = 0

    @property
    def started(self) -> bool:
        """Whether a window is durable and values may be handed out."""
        return self.limit_raw != 0

    @property
    def logical_used(self) -> int:
        """How many values of the present millisecond are gone."""
        return self.next_raw - (self.physical_ms << LOGICAL_BITS)

    @property
    def last_raw(self) -> int:
        """The last value handed out or skipped, 0 before the first."""
        return self.next_raw - 1 if self.logical_used else self._older_last_raw

    def start(self, wall_ms: int, saved_ms: int | None) -> tuple[Effect, ...]:
        """Begin above everything an earlier leader may have handed out.

        `saved_ms` is the durable end of the last window; None only when the store *said* that there is none.
        May be repeated after `save_failed`.
        Ordering: nothing is handed out before `window_saved`.
        Raises: `InvariantBroken` when already started.
        """
        if self.started or self._pending_ms is not None:
            raise InvariantBroken("the oracle was started twice")
        self.saved_ms = saved_ms or 0
        first_ms = _checked(max(wall_ms, self.saved_ms + GUARD_MS))
        self._last_wall_ms = wall_ms
        self._pending_ms = first_ms
        return (SaveWindow(first_ms + WINDOW_MS),)

    def advance(self, wall_ms: int, *, elapsed_ms: int = STEP_MS, force: bool = False) -> tuple[Effect, ...]:
        """Bring physical time up to the wall clock, or one millisecond on when values run short.

        `elapsed_ms` is the time that really passed since the last call; `force` says that somebody waits for
        a value and the present millisecond has none left.
        Ordering: with a `SaveWindow` among the effects nothing has moved yet; `window_saved` moves it and
        `save_failed` leaves it. One save at a time: until either is called, further calls do nothing.
        """
        if not self.started or self._pending_ms is not None:
            return ()
        effects: list[Effect] = []
        jump_ms = wall_ms - self._last_wall_ms - elapsed_ms
        self._last_wall_ms = wall_ms
        if abs(jump_ms) > JUMP_WARNING_MS:
            effects.append(WarnClockJump(jump_ms, wall_ms, self.physical_ms))
        if _checked(wall_ms) - self.physical_ms > GUARD_MS:
            next_ms = wall_ms
        elif force or self.logical_used > LOGICAL_COUNT // 2:
            next_ms = _checked(self.physical_ms + 1)
        else:
            return tuple(effects)
        if self.saved_ms - next_ms <= GUARD_MS:
            self._pending_ms = next_ms
            effects.append(SaveWindow(next_ms + WINDOW_MS))
        else:
            self._publish(next_ms)
        return tuple(effects)

    def window_saved(self, until_ms: int) -> None:
        """The window is durable up to `until_ms`: publish what waited for it.

        A window that ends too early for what waited (an older save of ours that arrived late) is kept, and
        the next `advance` asks for a longer one.
        Raises: `InvariantBroken` when nothing was to be saved or the window would shrink.
        """
        pending_ms = self._pending_ms
        if pending_ms is None or until_ms < self.saved_ms:
            raise InvariantBroken(f"window end {until_ms} saved after {self.saved_ms}: unasked or backwards")
        self.saved_ms = until_ms
        self._pending_ms = None
        if until_ms - pending_ms > GUARD_MS:
            self._publish(pending_ms)

    def save_failed(self) -> None:
        """The window could not be made durable: nothing moves, and what is published stays usable."""
        self._pending_ms = None

    def allocate(self, count: int) -> int | None:
        """The first of `count` consecutive values, or None when this millisecond has not that many left.

        Raises: `InvalidArgument` for a count below 1, `LimitExceeded` for more than a millisecond holds.
        """
        check_count(count)
        first = self.next_raw
        if first + count > self.limit_raw:
            return None
        self.next_raw = first + count
        return first

    def skip_past(self, raw: int) -> bool:
        """Give up every value up to `raw` as far as the present millisecond goes.

        Says whether every later allocation is above `raw`.
        """
        if self.next_raw <= raw < self.limit_raw:
            self.next_raw = raw + 1
        return self.started and self.next_raw > raw

    def may_run_ahead(self, wall_ms: int) -> bool:
        """Whether one more millisecond keeps physical time within `AHEAD_MS` of the wall clock."""
        return self.physical_ms + 1 - wall_ms <= AHEAD_MS

    def retire(self) -> SaveWindow | None:
        """Stop for good, and give the unused rest of the window back.

        The saved end may be lowered to the last published millisecond: nothing above it was handed out, and
        whoever starts next begins above it. Without this, reopening often would run ahead of the wall clock.
        Ordering: nothing is handed out from here on, whether the save succeeds or not.
        """
        started = self.started
        self.stop()
        return SaveWindow(self.physical_ms) if started else None

    def stop(self) -> None:
        """Hand out nothing more."""
        self._older_last_raw = self.last_raw
        self.next_raw = self.physical_ms << LOGICAL_BITS
        self.limit_raw = 0
        self._pending_ms = None

    def _publish(self, next_ms: int) -> None:
        if not self.physical_ms < next_ms < self.saved_ms:
            raise InvariantBroken(f"{next_ms} ms is not between {self.physical_ms} and {self.saved_ms}")
        self._older_last_raw = self.last_raw
        self.physical_ms = next_ms
        self.next_raw = next_ms << LOGICAL_BITS
        self.limit_raw = (next_ms + 1) << LOGICAL_BITS


def check_count(count: int) -> None:
    """Raises: `InvalidArgument` for a count below 1, `LimitExceeded` for more than a millisecond holds."""
    if count < 1:
        raise InvalidArgument(f"a run of timestamps has at least one, not {count}")
    if count > LOGICAL_COUNT:
        raise LimitExceeded("a run of timestamps", count, LOGICAL_COUNT, "number of calls")


def _checked(ms: int) -> int:
    """`ms`, if a window that starts there still fits into a Timestamp."""
    if ms > PHYSICAL_MS_MAX - WINDOW_MS:
        raise InvalidArgument(f"{ms} ms is no time a Timestamp can hold; set the machine's clock")
    return ms
