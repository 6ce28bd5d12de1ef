"""The metadata store in memory, for tests and the simulator, and a clock that moves only when told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.errors import Closed, NotLeader
from tidegate.ports.clock import Clock
from tidegate.ports.metadata import Lease, Versioned

Fault = Callable[[str, str, bool], None]
"""Called as `fault(operation, key, done)` before each operation takes effect and, with `done`, after.

Raise `StoreUnavailable` before, or `OutcomeUnknown` either before or after, to play a failing store.
"""


@dataclass(slots=True)
class _LeaseRow:
    lease: Lease
    ends_at_s: float
    ended: bool = False


@dataclass(slots=True)
class MemoryState:
    """What a set of handles share, and what survives when the processes of a simulation die."""

    values: dict[str, Versioned] = field(default_factory=dict)
    version: int = 0  # one counter for all keys, so that no key ever sees a version twice
    leases: dict[str, _LeaseRow] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def owner_died(self, owner: str) -> None:
        """Every lease of `owner` ends now, as when a store notices the death of a process."""
        with self.lock:
            for row in self.leases.values():
                if row.lease.owner == owner:
                    row.ended = True


class MemoryMetadataStore:
    """One handle on a `MemoryState`. Durable only as long as the state object lives."""

    def __init__(self, clock: Clock, state: MemoryState | None = None, *, fault: Fault | None = None) -> None:
        self.state = MemoryState() if state is None else state
        self.fault = fault
        self._clock = clock
        self._closed = False

    def get(self, key: str) -> Versioned | None:
        self._may_fail("get", key, False)
        with self.state.lock:
            found = self.state.values.get(key)
        self._may_fail("get", key, True)
        return found

    def compare_and_set(self, key: str, value: bytes | None, *, expected: int) -> int | None:
        self._may_fail("compare_and_set", key, False)
        with self.state.lock:
            present = self.state.values.get(key)
            matches = (present.version if present else 0) == expected
            if matches:
                self.state.version += 1
                if value is None:
                    self.state.values.pop(key, None)
                else:
                    self.state.values[key] = Versioned(bytes(value), self.state.version)
            version = self.state.version
        self._may_fail("compare_and_set", key, True)
        return version if matches else None

    def list(self, prefix: str) -> dict[str, Versioned]:
        self._may_fail("list", prefix, False)
        with self.state.lock:
            found = {key: value for key, value in sorted(self.state.values.items()) if key.startswith(prefix)}
        self._may_fail("list", prefix, True)
        return found

    def acquire(self, name: str, owner: str, *, ttl_ms: int) -> Lease | None:
        self._may_fail("acquire", name, False)
        now_s = self._clock.monotonic()
        with self.state.lock:
            row = self.state.leases.get(name)
            held = self._live(name, now_s)
            lease: Lease | None = None
            if held is None:
                lease = Lease(name, owner, row.lease.epoch + 1 if row else 1, ttl_ms)
            elif held.owner == owner:
                lease = Lease(name, owner, held.epoch, ttl_ms)
            if lease is not None:
                self.state.leases[name] = _LeaseRow(lease, now_s + ttl_ms / 1000)
        self._may_fail("acquire", name, True)
        return lease

    def renew(self, lease: Lease) -> Lease:
        self._may_fail("renew", lease.name, False)
        now_s = self._clock.monotonic()
        with self.state.lock:
            held = self._live(lease.name, now_s)
            if held is None or (held.owner, held.epoch) != (lease.owner, lease.epoch):
                raise lost(lease, held)
            self.state.leases[lease.name] = _LeaseRow(lease, now_s + lease.ttl_ms / 1000)
        self._may_fail("renew", lease.name, True)
        return lease

    def release(self, lease: Lease) -> None:
        self._may_fail("release", lease.name, False)
        with self.state.lock:
            row = self.state.leases.get(lease.name)
            if row and (row.lease.owner, row.lease.epoch) == (lease.owner, lease.epoch):
                row.ended = True
        self._may_fail("release", lease.name, True)

    def holder(self, name: str) -> Lease | None:
        self._may_fail("holder", name, False)
        now_s = self._clock.monotonic()
        with self.state.lock:
            held = self._live(name, now_s)
        self._may_fail("holder", name, True)
        return held

    def close(self) -> None:
        self._closed = True

    def _live(self, name: str, now_s: float) -> Lease | None:
        row = self.state.leases.get(name)
        return row.lease if row and not row.ended and now_s < row.ends_at_s else None

    def _may_fail(self, operation: str, key: str, done: bool) -> None:
        if self._closed:
            raise Closed("this handle on the metadata store was closed; open another")
        if self.fault is not None:
            self.fault(operation, key, done)


def lost(lease: Lease, held: Lease | None) -> NotLeader:
    """The error for a renewal that came too late."""
    now = f"{held.owner!r} holds it with epoch {held.epoch}" if held else "nobody holds it now"
    return NotLeader(
        f"lease {lease.name!r}: epoch {lease.epoch} of {lease.owner!r} has ended, and {now};"
        f" acquire it anew, as a new leader"
    )


class ManualClock:
    """A clock that moves only when told: by `pass_s`, by setting `wall`, or by a wait, which passes its time.

    Waiting for an event that is set takes no time. Counted in whole microseconds, so that adding up is exact.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_s: int = 100) -> None:
        self.wall = wall_ms
        self.wall_stands = False
        self._monotonic_us = monotonic_s * 1_000_000

    def wall_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self._monotonic_us / 1_000_000

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.pass_s(timeout_s)
        return event.is_set()

    def pass_s(self, seconds: float) -> None:
        """Let time pass, a microsecond at least; on a wall clock that stands only the monotonic one moves."""
        before_us = self._monotonic_us
        self._monotonic_us += max(1, round(seconds * 1_000_000))
        if not self.wall_stands:
            self.wall += self._monotonic_us // 1000 - before_us // 1000
