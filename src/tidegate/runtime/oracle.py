"""`Oracle`: hands out Timestamps while it holds the lease. The shell around `OracleMachine`.

Two things keep a deposed oracle from doing harm. Its lease has a deadline on its own monotonic clock, checked
on every allocation, which comes before anybody else may lead. And its window is written by compare-and-set
over the version it wrote last, so that after a successor's first save it can never save again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from typing import Final, assert_never

from tidegate.clock.oracle import STEP_MS, OracleMachine, SaveWindow, WarnClockJump, check_count
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import (
    ClockStalled,
    Closed,
    Corruption,
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    StoreUnavailable,
    TidegateError,
    Unavailable,
    WaitTimeout,
)
from tidegate.ports.clock import Clock, SystemClock
from tidegate.ports.metadata import Lease, MetadataStore

START_TRIES: Final = 5
RETRY_S: Final = 0.05
PAUSE_S: Final = 0.001
"""How long a caller sleeps before it looks for a timestamp again."""
WARN_EVERY_S: Final = 60.0

_log = logging.getLogger("tidegate.clock")
_new_int = int.__new__
_NEVER: Final = -math.inf


class Oracle:
    """The one source of Timestamps of everybody who shares a metadata store.

    `owner` is unique among live handles. A long `lease_ttl_ms` costs nothing where the store notices the
    death of a process; elsewhere it is how long a successor waits.

    Invariant: values are strictly increasing over all oracles that ever held the lease.
    Ordering: a value is handed out after the window it lies in is durable, and before the lease's deadline.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock | None = None,
        *,
        owner: str,
        lease_ttl_ms: int = 3000,
        key: str = "oracle/window",
        lease_name: str = "oracle",
    ) -> None:
        self._store = store
        self._clock: Clock = clock or SystemClock()
        self._monotonic = self._clock.monotonic
        self._owner = owner
        self._ttl_s = lease_ttl_ms / 1000
        self._ttl_ms = lease_ttl_ms
        self._key = key
        self._lease_name = lease_name

        self._lock = threading.Lock()  # guards the machine, the deadline and `_gone`; held for no IO
        self._machine = OracleMachine()
        self._deadline = _NEVER
        self._gone: tuple[type[Unavailable], str] | None = None

        self._advancing = threading.Lock()  # one step at a time; guards what follows; taken before `_lock`
        self._lease: Lease | None = None
        self._renewed_at = _NEVER
        self._stepped_at = _NEVER
        self._version = 0
        self._unsure: dict[bytes, int] = {}  # window ends we wrote without learning whether they arrived
        self._saves = 0
        self._stalled_by = ""

        self._warned_at: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- handing out -------------------------------------------------------------------------------------

    def allocate(self, count: int = 1, timeout_s: float = 5.0) -> Timestamp:
        """The first of `count` consecutive Timestamps, all above every one handed out before.

        Waits, but not longer than `timeout_s`, while no millisecond can be had; with 0 it never sleeps.
        Raises: `NotLeader` once deposed or past the lease's deadline, `ClockStalled` when there was none in
        time, `InvalidArgument` or `LimitExceeded` for a wrong count, `Closed` after `close`.
        """
        # The machine's own `allocate`, written out: a call would add a third to what this costs. The count
        # needs no upper check, since no more than one millisecond fits below the limit, and the Timestamp
        # none of its range, since the machine keeps it.
        machine = self._machine
        with self._lock:
            first = machine.next_raw
            after = first + count
            if after <= machine.limit_raw and count > 0 and self._monotonic() < self._deadline:
                machine.next_raw = after
                return _new_int(Timestamp, first)
        return self._allocate_slowly(count, timeout_s)

    def barrier_until(self, ts: Timestamp, timeout_s: float = 5.0) -> None:
        """Return once every later allocation is strictly above `ts`.

        Raises: `WaitTimeout` when the clock did not get there within `timeout_s`; `NotLeader`, `Closed`.
        """
        began = self._monotonic()
        while True:
            self._require_leading()
            why = ""
            with self._lock:
                if self._machine.skip_past(ts):
                    return
            if self._clock.wall_ms() > self._machine.physical_ms:
                why = self._try_step()[1]
                with self._lock:
                    if self._machine.skip_past(ts):
                        return
            left_s = timeout_s - (self._monotonic() - began)
            if left_s <= 0:
                raise WaitTimeout(
                    f"the oracle is at {self._machine.physical_ms} ms and did not pass {ts}"
                    f" ({ts.physical_ms} ms) within {timeout_s} s{why and ': '}{why};"
                    f" wait longer, or check the clock of whoever chose it"
                )
            ahead_s = (ts.physical_ms - self._clock.wall_ms()) / 1000
            self._clock.wait(self._stop, max(PAUSE_S, min(left_s, ahead_s, STEP_MS / 1000)))

    def last(self) -> Timestamp:
        """The last Timestamp this oracle handed out or skipped; `Timestamp.ZERO` before the first."""
        with self._lock:
            return Timestamp(self._machine.last_raw)

    def status(self) -> dict[str, object]:
        """The state as data; `stalled_by` says why physical time does not move, if it does not."""
        with self._lock:
            machine, gone = self._machine, self._gone
            leading = gone is None and self._monotonic() < self._deadline
            return {
                "state": gone[0].__name__ if gone else "Leading" if leading else "NotLeading",
                "why": gone[1] if gone else "",
                "physical_ms": machine.physical_ms,
                "logical_used": machine.logical_used,
                "window_end_ms": machine.saved_ms,
                "ahead_of_wall_ms": machine.physical_ms - self._clock.wall_ms(),
                "last": Timestamp(machine.last_raw),
                "lease_epoch": self._lease.epoch if self._lease else 0,
                "owner": self._owner,
                "saves": self._saves,
                "stalled_by": self._stalled_by,
            }

    # -- leading -----------------------------------------------------------------------------------------

    def start(self, timeout_s: float = 10.0) -> None:
        """Take the lease, waiting for it up to `timeout_s`, and open a window above the last one.

        Ordering: the lease first, then the last window is read, then the new one is made durable, and only
        then is anything handed out. An error of the store is never taken for an absent window.
        Raises: `NotLeader` naming the holder; `StoreUnavailable` after five attempts.
        """
        with self._advancing:
            self._raise_if_gone()
            if self._lease is not None:
                raise InvalidArgument(f"oracle of {self._owner!r} was started before; make a new one")
            lease = self._acquire(timeout_s)
            try:
                self._open_window(lease)
            except BaseException:
                self._deadline = _NEVER
                with contextlib.suppress(TidegateError):  # it runs out by itself
                    self._store.release(lease)
                raise
            self._lease = lease
            _log.info(
                "oracle of %r leads with epoch %d from %d ms on",
                self._owner,
                lease.epoch,
                self._machine.physical_ms,
            )

    def advance(self) -> None:
        """One step, due every 50 ms: renew the lease after a third of its time, follow the wall clock.

        Raises: `NotLeader` when deposed; `StoreUnavailable` or `OutcomeUnknown` when the window could not be
        saved, in which case time stands and the next call tries again.
        """
        with self._advancing:
            self._require_leading()
            self._renew_if_due()
            self._step(waited=False, count=0)

    def run(self) -> None:
        """Let a daemon thread call `advance` every 50 ms until `close` or until deposed."""
        with self._advancing:
            self._require_leading()
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="tidegate-oracle", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Hand out nothing more, give back the rest of the window, release the lease. May be repeated."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._advancing:
            with self._lock:
                leading = self._gone is None and self._monotonic() < self._deadline
                if self._gone is None:
                    self._gone = (Closed, f"oracle of {self._owner!r} was closed; make a new one")
                self._deadline = _NEVER
                rest = self._machine.retire()
            lease, self._lease = self._lease, None
            # Neither is needed for safety: the window may stay long, and the lease runs out by itself.
            with contextlib.suppress(TidegateError):
                if lease is not None and leading and rest is not None:
                    value = _encode(rest.until_ms, lease)
                    self._store.compare_and_set(self._key, value, expected=self._version)
            with contextlib.suppress(TidegateError):
                if lease is not None:
                    self._store.release(lease)

    def _acquire(self, timeout_s: float) -> Lease:
        began = self._monotonic()
        failures = 0
        while True:
            asked_at = self._monotonic()
            why: TidegateError
            try:
                lease = self._store.acquire(self._lease_name, self._owner, ttl_ms=self._ttl_ms)
                if lease is not None:
                    self._renewed_at = asked_at
                    self._deadline = asked_at + self._ttl_s
                    return lease
                holder = self._store.holder(self._lease_name)
                who = f"{holder.owner!r} (epoch {holder.epoch})" if holder else "somebody who has just let go"
                why = NotLeader(
                    f"oracle of {self._owner!r}: lease {self._lease_name!r} is held by {who} after"
                    f" {timeout_s} s; go through that process, or stop it and try again"
                )
            except (StoreUnavailable, OutcomeUnknown) as error:
                # Asking again is safe whether or not it was granted: the holder gets its own lease back.
                failures += 1
                if failures == START_TRIES:
                    raise
                why = error
            left_s = timeout_s - (self._monotonic() - began)
            if left_s <= 0 and isinstance(why, NotLeader):  # a store that is away has its own number of tries
                raise why
            if self._clock.wait(self._stop, max(PAUSE_S, min(RETRY_S, left_s))):
                raise Closed(f"oracle of {self._owner!r} was closed while it waited for its lease")

    def _open_window(self, lease: Lease) -> None:
        why: TidegateError | None = None
        for attempt in range(START_TRIES):
            if attempt:
                self._clock.wait(self._stop, RETRY_S)
            try:
                found = self._store.get(self._key)
                self._version = found.version if found else 0
                saved_ms = _decode(found.value, self._key) if found else None
                (save,) = self._machine.start(self._clock.wall_ms(), saved_ms)
                assert isinstance(save, SaveWindow)
                value = _encode(save.until_ms, lease)
                version = self._store.compare_and_set(self._key, value, expected=self._version)
            except (StoreUnavailable, OutcomeUnknown) as error:
                # If it was written after all, the next attempt reads it and starts above it.
                self._machine.save_failed()
                why = error
                continue
            except BaseException:
                self._machine.save_failed()
                raise
            if version is not None:
                self._version = version
                self._saves += 1
                self._stepped_at = self._monotonic()
                with self._lock:
                    self._machine.window_saved(save.until_ms)
                return
            # A predecessor's last save arrived between our read and our write.
            self._machine.save_failed()
            why = StoreUnavailable(f"key {self._key!r} changes faster than it can be read; who else writes it?")
        if why is not None:
            raise why

    def _renew_if_due(self) -> None:
        asked_at = self._monotonic()
        if self._lease is None or asked_at - self._renewed_at < self._ttl_s / 3:
            return
        try:
            self._lease = self._store.renew(self._lease)
        except NotLeader as error:
            raise self._depose(str(error)) from error
        except (StoreUnavailable, OutcomeUnknown) as error:
            self._warn(
                "renew",
                f"the oracle's lease was not renewed, {self._deadline - asked_at:.1f} s left: {error}",
            )
            return
        with self._lock:
            if self._gone is None:
                self._renewed_at = asked_at
                self._deadline = asked_at + self._ttl_s

    def _loop(self) -> None:
        while not self._clock.wait(self._stop, STEP_MS / 1000):
            try:
                self.advance()
            except Unavailable:
                return  # logged when it happened
            except TidegateError as error:
                self._warn("advance", f"the oracle's clock stands: {error}")

    # -- moving time -------------------------------------------------------------------------------------

    def _allocate_slowly(self, count: int, timeout_s: float) -> Timestamp:
        check_count(count)
        began = self._monotonic()
        waited = False
        while True:
            self._require_leading()
            with self._lock:
                first = self._take(count)
            why = ""
            if first is None:
                first, why = self._try_step(waited=waited, count=count)
            if first is not None:
                return Timestamp(first)
            self._require_leading()  # rather than blame the clock for a lost lease
            left_s = timeout_s - (self._monotonic() - began)
            if left_s <= 0:
                raise ClockStalled(
                    f"no run of {count:,} was left at {self._machine.physical_ms} ms within {timeout_s} s:"
                    f" {why or 'the wall clock is behind'}; try again, and see the oracle's status"
                )
            self._clock.wait(self._stop, PAUSE_S)
            # From here on time is moved by the caller's waiting, even if the wall clock stands.
            waited = True

    def _try_step(self, *, waited: bool = False, count: int = 0) -> tuple[int | None, str]:
        """A step on behalf of somebody who waits: what it took for them, and what failed if it did."""
        if not self._advancing.acquire(blocking=False):
            return None, "another thread is saving the window"
        try:
            first = self._step(waited=waited, count=count)
        except (StoreUnavailable, OutcomeUnknown) as error:
            return None, f"the window could not be saved: {error}"
        finally:
            self._advancing.release()
        return first, ""

    def _step(self, *, waited: bool, count: int) -> int | None:
        """Move physical time, saving the window first if need be, and take `count` values (0: none).

        They are taken under the same lock that publishes them: a caller who needs a whole millisecond would
        otherwise find it begun every time. Who has not `waited` may not run too far ahead of the wall clock.
        `_advancing` is held.
        """
        now_s, wall_ms = self._monotonic(), self._clock.wall_ms()
        with self._lock:
            machine = self._machine
            first = self._take(count)  # somebody else may have moved time since the caller looked
            if first is not None or (count and not waited and not machine.may_run_ahead(wall_ms)):
                return first
            effects = machine.advance(
                wall_ms,
                elapsed_ms=round((now_s - self._stepped_at) * 1000),
                force=count > 0,
            )
            self._stepped_at = now_s
            first = self._take(count)
        for effect in effects:
            match effect:
                case WarnClockJump(jump_ms=jump_ms):
                    what = "ahead, and timestamps followed" if jump_ms > 0 else "back, and timestamps wait for it"
                    self._warn(
                        "jump",
                        f"the wall clock jumped by {jump_ms:+,} ms: {what}; check time synchronisation",
                    )
                case SaveWindow(until_ms=until_ms):
                    first = self._save(until_ms, count)
                case _:
                    assert_never(effect)
        return first

    def _save(self, until_ms: int, count: int) -> int | None:
        assert self._lease is not None
        value = _encode(until_ms, self._lease)
        try:
            version = self._store.compare_and_set(self._key, value, expected=self._version)
            if version is None:
                version, until_ms = self._find_own_save()
        except BaseException as error:
            if isinstance(error, OutcomeUnknown):
                self._unsure[value] = until_ms
            self._stalled_by = str(error)
            with self._lock:
                self._machine.save_failed()
            raise
        self._version = version
        self._unsure.clear()
        self._saves += 1
        self._stalled_by = ""
        with self._lock:
            self._raise_if_gone()
            self._machine.window_saved(until_ms)
            return self._take(count)

    def _find_own_save(self) -> tuple[int, int]:
        """The window has another version than we wrote: ours, arrived late, or a successor's.

        Raises: `NotLeader`, for good, when it is not ours.
        """
        found = self._store.get(self._key)
        until_ms = self._unsure.get(found.value) if found else None
        if found is None or until_ms is None:
            raise self._depose(f"somebody else wrote key {self._key!r}")
        return found.version, until_ms

    def _take(self, count: int) -> int | None:
        """`_lock` is held."""
        if count and self._gone is None and self._monotonic() < self._deadline:
            return self._machine.allocate(count)
        return None

    # -- leaving -----------------------------------------------------------------------------------------

    def _require_leading(self) -> None:
        self._raise_if_gone()
        if self._lease is None:
            raise ClockStalled(f"oracle of {self._owner!r} was not started; call start() first")
        late_s = self._monotonic() - self._deadline
        if late_s >= 0:
            raise self._depose(f"its lease of {self._ttl_s} s ran out {late_s:.3f} s ago without being renewed")

    def _raise_if_gone(self) -> None:
        if self._gone is not None:
            kind, why = self._gone
            raise kind(why)

    def _depose(self, why: str) -> Unavailable:
        """Stop for good; the error to raise."""
        with self._lock:
            if self._gone is None:
                message = f"oracle of {self._owner!r} is deposed: {why}; make a new one to lead again"
                self._gone = (NotLeader, message)
                self._deadline = _NEVER
                self._machine.stop()
                _log.error("%s", message)
            kind, message = self._gone
        return kind(message)

    def _warn(self, kind: str, message: str) -> None:
        now_s = self._monotonic()
        if now_s - self._warned_at.get(kind, _NEVER) >= WARN_EVERY_S:
            self._warned_at[kind] = now_s
            _log.warning("%s", message)


def _encode(until_ms: int, lease: Lease) -> bytes:
    """A window as it is stored: for people too, so it also says who wrote it."""
    return json.dumps({"until_ms": until_ms, "owner": lease.owner, "epoch": lease.epoch}).encode()


def _decode(value: bytes, key: str) -> int:
    try:
        until_ms = json.loads(value)["until_ms"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"metadata key {key}", 0, f"{value[:80]!r} is no window") from error
    if type(until_ms) is not int or until_ms < 0:
        raise Corruption(f"metadata key {key}", 0, f"a window does not end at {until_ms!r}")
    return until_ms
