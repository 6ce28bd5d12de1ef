"""`BarrierClock`: decides when the next barrier is due, and whether it is a checkpoint (seed 001).

Every `interval_ms`, and whenever somebody asks. Asks that wait share one barrier, and it puts the timer back, so a
storm of them adds no periodic ones. A barrier that comes late moves the next one: after a pause of the process there
is no burst. Every N-th barrier is a checkpoint, and every asked one that wants to be.

Where nothing was written since the last barrier, a periodic one is skipped, except that cuts which wait for their
checkpoint get it then: nothing is coming that would be worth waiting for. One that was asked for is never skipped.

Paused: no periodic barriers. One that is asked for is still taken, because a change of the catalog needs its cut, but
who would wait for its checkpoint is told so at once.

Pure: monotonic milliseconds come in as arguments. Time that seems to go back stands still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvalidArgument, Retryable

INTERVAL_MS_MIN: Final = 50
_INTERVAL_MS_LONG: Final = 300_000
_CHECKPOINT_EVERY_MANY: Final = 60
_REASONS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class BarrierSettings:
    """How often barriers come. All of it can be changed while the clock runs."""

    interval_ms: int = 1000
    checkpoint_every: int = 1
    """Every so many barriers one is a checkpoint."""
    in_flight_max: int = 1000
    """Barriers without a checkpoint yet at which periodic ones are skipped; the next then covers more. Where cuts wait
    for the barrier that is their checkpoint, that one is taken."""

    def __post_init__(self) -> None:
        if self.interval_ms < INTERVAL_MS_MIN:
            raise InvalidArgument(f"`barrier_interval` is at least {INTERVAL_MS_MIN} ms, not {self.interval_ms}")
        if self.checkpoint_every < 1:
            raise InvalidArgument(f"`checkpoint_every` is at least 1, not {self.checkpoint_every}")
        if self.in_flight_max < 1:
            raise InvalidArgument(f"`barriers_in_flight_max` is at least 1, not {self.in_flight_max}")

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should be told about these settings, if anything."""
        found = []
        if self.interval_ms > _INTERVAL_MS_LONG:
            found.append(f"with `barrier_interval` {self.interval_ms:,} ms, writes become visible after minutes")
        if self.checkpoint_every > _CHECKPOINT_EVERY_MANY:
            found.append(f"with `checkpoint_every` {self.checkpoint_every:,}, a restart does much work again")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier to be taken now.

    Ordering: its Timestamp is taken from the oracle after this, so it is above all that was acknowledged before the
    asks it answers.
    """

    is_checkpoint: bool
    answers: int
    """It answers every ask up to this number."""
    reasons: tuple[str, ...]
    """Why it was asked for; empty when it is periodic."""


class BarrierClock:
    """The clock of one database.

    Invariant: after a checkpoint barrier, at most `checkpoint_every - 1` others come before the next.
    """

    def __init__(self, settings: BarrierSettings, now_ms: int, *, uncheckpointed: int = 0) -> None:
        """`uncheckpointed`: recorded cuts since the last checkpoint cut, found at a restart."""
        self._settings = settings
        self._now_ms = now_ms
        self._due_ms = now_ms
        self._uncheckpointed = uncheckpointed
        self._has_uncheckpointed = uncheckpointed > 0
        self._asked = 0
        self._answered = 0
        self._wants_checkpoint = False
        self._reasons: list[str] = []
        self._paused_ms: int | None = None
        self.asked_ms: int | None = None
        """When the oldest ask that is not answered was made."""
        self.taken_ms: int | None = None
        """When the last barrier was taken."""
        self.skipped = 0
        """Periodic barriers passed over because too many were in flight."""

    @property
    def settings(self) -> BarrierSettings:
        return self._settings

    @property
    def paused_since_ms(self) -> int | None:
        return self._paused_ms

    @property
    def next_ms(self) -> int:
        """When to poll again at the latest. An ask makes it now."""
        return self._now_ms if self._asked > self._answered else self._due_ms

    def change(self, settings: BarrierSettings, now_ms: int) -> None:
        """Go on with other settings: timer and counter begin anew, and the first barrier is due at once."""
        now_ms = self._advance(now_ms)
        self._uncheckpointed = 0
        self._settings = settings
        self._due_ms = now_ms

    def ask(self, now_ms: int, reason: str, *, checkpoint: bool = True, waits: bool = True) -> int:
        """Ask for a barrier now. Returns the number of the ask: the first barrier whose `answers` reaches it is its.

        `waits`: somebody will wait for the checkpoint.
        Raises: `Retryable` when somebody would wait and the pipeline is paused; nothing was asked then.
        """
        now_ms = self._advance(now_ms)
        if waits and self._paused_ms is not None:
            raise Retryable(
                f"{reason}: the pipeline has been paused for {now_ms - self._paused_ms:,} ms, so there will be"
                f" no checkpoint to wait for; resume it and try again"
            )
        if self._asked == self._answered:
            self.asked_ms = now_ms
        self._asked += 1
        self._wants_checkpoint = self._wants_checkpoint or checkpoint
        if reason not in self._reasons and len(self._reasons) < _REASONS_MAX:
            self._reasons.append(reason)
        return self._asked

    def poll(self, now_ms: int, *, in_flight: int, is_dirty: bool) -> Barrier | None:
        """The barrier that is due, if one is; it counts as taken.

        `in_flight`: barriers taken that no checkpoint covers yet. `is_dirty`: whether anything was written since the
        last barrier; ticks, and the records of cuts themselves, are not writes.
        """
        now_ms = self._advance(now_ms)
        if self._asked > self._answered:
            return self._take(now_ms, self._wants_checkpoint)
        if self._paused_ms is not None or now_ms < self._due_ms:
            return None
        is_full = in_flight >= self._settings.in_flight_max
        if self._has_uncheckpointed and (is_full or not is_dirty):
            return self._take(now_ms, True)  # Those in flight may wait for nothing but this.
        if is_full:
            self.skipped += 1
        elif is_dirty:
            return self._take(now_ms, False)
        self._due_ms = now_ms + self._settings.interval_ms
        return None

    def pause(self, now_ms: int) -> bool:
        """No periodic barriers from here on. False when it was paused already."""
        now_ms = self._advance(now_ms)
        if self._paused_ms is not None:
            return False
        self._paused_ms = now_ms
        return True

    def resume(self, now_ms: int) -> bool:
        """Go on; one barrier is due at once, however long the pause was. False when it was not paused."""
        now_ms = self._advance(now_ms)
        if self._paused_ms is None:
            return False
        self._paused_ms = None
        self._due_ms = now_ms
        return True

    def _take(self, now_ms: int, checkpoint: bool) -> Barrier:
        checkpoint = checkpoint or self._uncheckpointed + 1 >= self._settings.checkpoint_every
        taken = Barrier(checkpoint, self._asked, tuple(self._reasons))
        self._uncheckpointed = 0 if checkpoint else self._uncheckpointed + 1
        self._has_uncheckpointed = not checkpoint
        self._answered = self._asked
        self._wants_checkpoint = False
        self._reasons.clear()
        self.asked_ms = None
        self.taken_ms = now_ms
        self._due_ms = now_ms + self._settings.interval_ms
        return taken

    def _advance(self, now_ms: int) -> int:
        self._now_ms = max(self._now_ms, now_ms)
        return self._now_ms
