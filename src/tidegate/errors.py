"""The one exception tree, branched by what the caller can do next.

    TidegateError
    ├── InvalidArgument          fix the call
    │   ├── LimitExceeded            a size or count above a configured limit
    │   ├── NotFound                 no such channel, topic, position, key
    │   │   └── TransactionNotFound      never begun here, or finished so long ago that it was forgotten
    │   └── InvalidTransactionState  it has ended, or is ending the other way
    ├── Retryable                nothing was written; try again later
    │   ├── Backpressure             too much in flight
    │   ├── DiskFull                 no room on the log's disk
    │   ├── StorageFailed            the disk refused; the write is known to be absent
    │   ├── StoreUnavailable         the metadata store did not answer
    │   ├── ClockStalled             no timestamp could be had in time
    │   ├── WaitTimeout              what was waited for did not happen in time
    │   │   └── Stalled                  a read: nothing moves towards the cut that it needs
    │   ├── Conflict                 somebody else was faster; run the transaction again
    │   ├── SchemaMismatch           rows of an older schema of their table; look it up again
    │   └── TransactionAborted       it was ended from outside; run it again
    │       └── TransactionExpired       it took longer than its timeout or lease
    ├── OutcomeUnknown           it may have been written; ask before repeating
    ├── Unavailable              this handle will not work again; open a new one
    │   ├── Fenced                   a newer term owns the channel
    │   ├── NotLeader                another process holds the lease
    │   ├── InUse                    somebody else has it to himself
    │   ├── LeaseLost                this client was silent too long, and others went on without it
    │   ├── JavaMissing              Spark needs Java, and there is none (tidegate.spark.java)
    │   └── Closed                   closed by this process
    ├── Truncated                the position asked for was removed by retention
    ├── Corruption               bytes on disk are not what was written
    │   └── SnapshotDamaged          a file of a checkpoint (tidegate.snapshots.damage)
    ├── BatchFailed              a batch of the pipeline; it is run again (tidegate.spark.driver)
    └── InvariantBroken          a defect in Tidegate itself; please report it

Every message names the thing it is about and what to do. Facts a program may want are attributes.
"""

from __future__ import annotations


class TidegateError(Exception):
    """Root of every error a user of Tidegate can meet."""


class InvalidArgument(TidegateError, ValueError):
    """The call itself is wrong; nothing was done."""


class LimitExceeded(InvalidArgument):
    """A size or count is above a configured limit."""

    def __init__(self, what: str, value: int, limit: int, setting: str, *, instead: str = "send less") -> None:
        super().__init__(f"{what} is {value:,}, above the limit of {limit:,}; raise `{setting}` or {instead}")
        self.value = value
        self.limit = limit
        self.setting = setting


class NotFound(InvalidArgument):
    """No such channel, segment, position or key."""


class TransactionNotFound(NotFound):
    """No such transaction: never begun, or finished so long ago that its outcome is no longer remembered."""


class InvalidTransactionState(InvalidArgument):
    """The transaction has ended, or is ending the other way; `state` says how it stands."""

    def __init__(self, message: str, *, state: str = "") -> None:
        super().__init__(message)
        self.state = state


class Retryable(TidegateError):
    """Nothing was written; the same call may succeed later."""


class Backpressure(Retryable):
    """Too much is in flight; wait for acknowledgements and try again."""


class DiskFull(Retryable):
    """The log's disk has no room. Reads go on; appends succeed again once there is room."""


class StorageFailed(Retryable):
    """The disk refused a write that is known not to be part of the log."""


class StoreUnavailable(Retryable):
    """The metadata store could not be read or written."""


class ClockStalled(Retryable):
    """The oracle could not hand out a timestamp in time."""


class WaitTimeout(Retryable, TimeoutError):
    """What was waited for did not happen within the given time."""


class Stalled(WaitTimeout):
    """The cut that a read needs is too far off, or nothing has moved towards it for a while; `held_by` says why."""

    def __init__(self, message: str, *, why: str = "stalled", held_by: str = "") -> None:
        super().__init__(message)
        self.why = why
        """`lag` or `stalled`."""
        self.held_by = held_by


class Conflict(Retryable):
    """Another transaction was faster at the same key or message; nothing of this one remains. Run it again."""


class SchemaMismatch(Retryable):
    """The rows were made for another version of their table's schema than the one in effect since `timestamp`."""

    def __init__(self, message: str, *, table: str, timestamp: int) -> None:
        super().__init__(message)
        self.table = table
        self.timestamp = timestamp


class TransactionAborted(Retryable):
    """The transaction was ended from outside, and nothing of it remains. `reason` says by what."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class TransactionExpired(TransactionAborted):
    """The transaction took longer than its timeout, or than its lease without a sign of life."""


class OutcomeUnknown(TidegateError):
    """The write may or may not be part of the log; read before repeating it."""

    segment: object = None
    """The segment it was written to, if that is what failed. Once the channel goes on in another one, it is absent."""


class Unavailable(TidegateError):
    """This handle will not work again; open a new one."""


class Fenced(Unavailable):
    """A newer term owns the channel; this writer can never append again."""

    def __init__(self, channel: str, term: int, current: int) -> None:
        super().__init__(
            f"channel {channel!r}: term {term} was fenced by term {current}; reopen the log to write again"
        )
        self.channel = channel
        self.term = term
        self.current = current


class NotLeader(Unavailable):
    """Another process holds the lease this handle relied on."""


class InUse(Unavailable):
    """Another live process, or another consumer, has it to itself."""


class LeaseLost(Unavailable):
    """This client was silent for longer than its lease: what it held was given to others."""


class Closed(Unavailable):
    """The handle was closed."""


class Truncated(TidegateError):
    """The position asked for was removed by retention."""


class Corruption(TidegateError):
    """Bytes on disk are not what was written.

    `path` and `offset` say where; `tidegate log verify` lists every such place and
    `tidegate log repair` says what can be saved.
    """

    def __init__(self, path: str, offset: int, why: str) -> None:
        super().__init__(
            f"{path} at offset {offset:,}: {why}; run `tidegate log verify`, restore the file from a copy,"
            f" or run `tidegate log repair` to give up what cannot be read"
        )
        self.path = path
        self.offset = offset
        self.why = why


class SourceUnreadable(TidegateError):
    """What a captured database says of its changes is not what it can say: it is damaged, or of an unknown version."""


class SourceGone(TidegateError):
    """What a capture has to read next is not at the source any more: it was cleared away, or the source went back."""


class InvariantBroken(TidegateError):
    """A defect in Tidegate itself, not in the call."""
