"""The metadata store: a few small keys with compare-and-set, and leases.

Laws, checked by `tests/conformance/test_metadata_store.py` against every implementation:

1.  *Linearizable.* Each call takes effect at one moment between its start and its return, seen alike
    by every process that has the store open.
2.  *Versions.* A key's version is 0 while it is absent. Every successful `compare_and_set` gives the key
    a version it never had before and never will again, deletes included.
3.  *Compare-and-set.* It writes if and only if the key's version is the expected one; otherwise it returns
    None and changes nothing.
4.  *Durable.* What a returned call wrote survives the death of every process and of the machine.
5.  *Errors are not absence.* A key that could not be read raises `StoreUnavailable`; None means absent.
6.  *Exclusive leases.* At any moment at most one owner holds a lease of a given name. A lease ends when it
    is released, when its time is up without renewal, or when its owner is known to be dead.
7.  *Lease epochs.* Every new holder gets a larger epoch than all holders of that name before it. Renewing keeps it.
8.  *A lost lease stays lost.* Once renewal has failed with `NotLeader`, that epoch never holds again.
9.  *Unknown outcomes are named.* A write that may or may not have happened raises `OutcomeUnknown`,
    every other error means that nothing was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and the version that `compare_and_set` must name to replace it."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act under `name`, held by `owner` until it ends.

    `ttl_ms` counts from the moment the acquiring or renewing call *started*: a holder that measures from
    there, on its own monotonic clock, stops before anybody else may start.
    """

    name: str
    owner: str
    epoch: int
    ttl_ms: int


class MetadataStore(Protocol):
    """Where the oracle's window, channel terms, pins and leases live."""

    def get(self, key: str) -> Versioned | None:
        """The value of `key`, or None when it is absent."""

    def compare_and_set(self, key: str, value: bytes | None, *, expected: int) -> int | None:
        """Write `value` (None deletes) if the version is `expected`; the new version, or None if it is not."""

    def list(self, prefix: str) -> dict[str, Versioned]:
        """Every present key that starts with `prefix`, at one moment, in key order."""

    def acquire(self, name: str, owner: str, *, ttl_ms: int) -> Lease | None:
        """Take the lease if nobody holds it; None if somebody does. The holder itself gets its lease back."""

    def renew(self, lease: Lease) -> Lease:
        """Hold on for another `ttl_ms`.

        Raises: `NotLeader` when the lease has ended.
        """

    def release(self, lease: Lease) -> None:
        """End the lease now. Releasing one that has ended is no error."""

    def holder(self, name: str) -> Lease | None:
        """Who holds the lease now, if anybody."""

    def close(self) -> None:
        """Give up resources; leases held through this handle end by themselves."""
