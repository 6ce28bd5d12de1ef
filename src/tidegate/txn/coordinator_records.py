"""What a coordinator keeps: its transactions, their states, and the records and snapshots it is rebuilt from.

    OPEN ──▶ COMMITTING ──▶ COMMITTED
      └────▶ ABORTING ────▶ ABORTED

A record is one byte of version, four of head length (big endian), a head in JSON, then the commit plan as raw bytes.
A snapshot is framed the same way; its head is compressed, and the plans of what is committing follow one another.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, InvariantBroken
from tidegate.txn.txn_id import TxnId

VERSION: Final = 1
_HEAD: Final = 5


class TxnState(StrEnum):
    """Where a transaction stands."""

    OPEN = "open"
    COMMITTING = "committing"
    """It will be committed, whatever happens; not every participant has its marker yet."""
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"

    def may_become(self, new: TxnState) -> bool:
        """Whether the step from here to `new` is allowed; staying is."""
        return new is self or new in _NEXT[self]

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to do for it."""
        return not _NEXT[self]


_NEXT: Final = {
    TxnState.OPEN: (TxnState.COMMITTING, TxnState.ABORTING),
    TxnState.COMMITTING: (TxnState.COMMITTED,),
    TxnState.ABORTING: (TxnState.ABORTED,),
    TxnState.COMMITTED: (),
    TxnState.ABORTED: (),
}


@dataclass(slots=True)
class Transaction:
    """One transaction as its coordinator sees it. Others read it; only the coordinator changes it.

    Invariant: `state` takes only steps that `TxnState.may_become` allows; `commit_timestamp` is set from COMMITTING on.
    """

    id: TxnId
    client: str
    opened_ms: int
    deadline_ms: int
    """Absolute, so that a restart does not prolong it."""
    state: TxnState = TxnState.OPEN
    participants: tuple[str, ...] = ()
    """Sorted, each once: channels it wrote to and subscriptions it acknowledged in."""
    logged: bool = False
    """Whether a record of it exists. Without one, nobody but this process knows of it."""
    commit_timestamp: Timestamp | None = None
    reason: str = ""
    """Why it was aborted; empty when its owner asked."""
    ended_ms: int = 0
    plan: bytes = b""
    """How to carry its commit out; empty once that is done."""


# -- records -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opening:
    """What the first record of a transaction says beside its own matter."""

    client: str
    opened_ms: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Registered:
    """Participants were added. With `opening` it is the first record of its transaction."""

    id: TxnId
    participants: tuple[str, ...]
    opening: Opening | None = None


@dataclass(frozen=True, slots=True)
class Committing:
    """The point of no return. Complete in itself: the commit can be carried out from this record alone."""

    id: TxnId
    commit_timestamp: Timestamp
    participants: tuple[str, ...]
    opening: Opening
    plan: bytes = b""


@dataclass(frozen=True, slots=True)
class Aborting:
    """It will be aborted."""

    id: TxnId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """Every participant has its marker."""

    id: TxnId
    state: TxnState
    ended_ms: int


Record = Registered | Committing | Aborting | Ended


def encode(record: Record) -> bytes:
    """The bytes to append to the coordinator's virtual channel."""
    head: dict[str, Any]
    plan = b""
    match record:
        case Registered():
            head = {"do": "register", "id": str(record.id), "in": record.participants}
            if record.opening is not None:
                head["open"] = _opening(record.opening)
        case Committing():
            head = {
                "do": "commit",
                "id": str(record.id),
                "in": record.participants,
                "open": _opening(record.opening),
                "at": int(record.commit_timestamp),
            }
            plan = record.plan
        case Aborting():
            head = {"do": "abort", "id": str(record.id), "why": record.reason}
        case Ended():
            head = {"do": "end", "id": str(record.id), "as": record.state.value, "ms": record.ended_ms}
    return _frame(_json(head), plan)


def decode(raw: bytes) -> Record:
    """Read a record.

    Raises: `InvalidArgument` for one of a newer version; `InvariantBroken` for what is no record at all.
    """
    text, plan = _unframe(raw, "a coordinator's record")
    try:
        head = json.loads(text)
        id = TxnId.parse(head["id"])
        match head["do"]:
            case "register":
                return Registered(id, tuple(head["in"]), Opening(*head["open"]) if "open" in head else None)
            case "commit":
                return Committing(id, Timestamp(head["at"]), tuple(head["in"]), Opening(*head["open"]), plan)
            case "abort":
                return Aborting(id, head["why"])
            case "end":
                state = TxnState(head["as"])
                if not state.has_ended:
                    raise ValueError(f"it ends as {state}")
                return Ended(id, state, head["ms"])
            case other:
                raise ValueError(f"it says {other!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise InvariantBroken(f"a coordinator's record cannot be read: {error}") from error


def _opening(opening: Opening) -> list[Any]:
    return [opening.client, opening.opened_ms, opening.deadline_ms]


# -- snapshots -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Totals:
    """How many transactions there have been, as far as the log and the last snapshot tell."""

    begun: int = 0
    committed: int = 0
    aborted: int = 0
    expired: int = 0
    """Of those aborted, the ones that outlived their timeout or their client's lease."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a coordinator knows and a restart must not lose."""

    coordinator: int
    largest: int
    """The largest counter seen."""
    totals: Totals
    live: tuple[Transaction, ...]
    ended: tuple[Transaction, ...]
    """In the order in which they ended."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Equal snapshots give equal bytes."""
    head = {
        "coordinator": snapshot.coordinator,
        "largest": snapshot.largest,
        "totals": asdict(snapshot.totals),
        "live": [_row(txn) for txn in snapshot.live],
        "ended": [_row(txn) for txn in snapshot.ended],
    }
    return _frame(zlib.compress(_json(head), 1), b"".join(txn.plan for txn in snapshot.live))


def decode_snapshot(raw: bytes) -> Snapshot:
    """Read a snapshot. Raises: as `decode` does."""
    text, plans = _unframe(raw, "a coordinator's snapshot")
    try:
        head = json.loads(zlib.decompress(text))
        live, start = [], 0
        for row in head["live"]:
            txn, size = _transaction(head["coordinator"], row)
            txn.plan = plans[start : start + size]
            start += size
            live.append(txn)
        if start != len(plans):
            raise ValueError(f"its plans have {len(plans)} bytes, not {start}")
        ended = tuple(_transaction(head["coordinator"], row)[0] for row in head["ended"])
        return Snapshot(head["coordinator"], head["largest"], Totals(**head["totals"]), tuple(live), ended)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise InvariantBroken(f"a coordinator's snapshot cannot be read: {error}") from error


def _row(txn: Transaction) -> list[Any]:
    return [
        txn.id.counter,
        txn.state.value,
        txn.client,
        txn.opened_ms,
        txn.deadline_ms,
        txn.ended_ms,
        txn.commit_timestamp,
        txn.reason,
        int(txn.logged),
        txn.participants,
        len(txn.plan),
    ]


def _transaction(coordinator: int, row: list[Any]) -> tuple[Transaction, int]:
    counter, state, client, opened_ms, deadline_ms, ended_ms, timestamp, reason, logged, participants, size = row
    txn = Transaction(
        id=TxnId.make(coordinator, counter),
        client=client,
        opened_ms=opened_ms,
        deadline_ms=deadline_ms,
        state=TxnState(state),
        participants=tuple(participants),
        logged=bool(logged),
        commit_timestamp=None if timestamp is None else Timestamp(timestamp),
        reason=reason,
        ended_ms=ended_ms,
    )
    return txn, size


def _json(head: dict[str, Any]) -> bytes:
    return json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _frame(head: bytes, blob: bytes) -> bytes:
    return b"".join((bytes((VERSION,)), len(head).to_bytes(4, "big"), head, blob))


def _unframe(raw: bytes, what: str) -> tuple[bytes, bytes]:
    if raw and raw[0] > VERSION:
        raise InvalidArgument(f"{what} has version {raw[0]}; open it with the newer Tidegate that wrote it")
    size = int.from_bytes(raw[1:_HEAD], "big")
    if len(raw) < _HEAD + size or raw[0] != VERSION:
        raise InvariantBroken(f"{what} cannot be read: {len(raw)} bytes that begin with {raw[:_HEAD]!r}")
    return raw[_HEAD : _HEAD + size], raw[_HEAD + size :]
