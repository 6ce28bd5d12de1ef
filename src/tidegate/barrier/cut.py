"""`Cut`: one barrier through all channels at once; `Span`: epochs taken together; `Pointer`: the last checkpoint.

Epoch n is everything with a Timestamp above that of cut n-1 and at or below that of cut n. A cut is durable (a record
in the system channel) before anybody works on its epoch, so that work that is done again covers exactly the same
messages. The pointer is one key of the metadata store, replaced by compare-and-set: what it names is visible,
everything else is not.

Both are written as JSON with a version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, NewType

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Corruption, InvariantBroken, NotLeader
from tidegate.log.message import Position, Term

Epoch = NewType("Epoch", int)
"""The number of an epoch, and of the cut that ends it. Rises by one; 0 is before the first."""

BEGINNING: Final = Epoch(0)
_NO_TERM: Final = Term(0)
VERSION: Final = 1


class Place(NamedTuple):
    """Where to read a channel from: reading from `position` yields every message above `tick`."""

    position: Position
    tick: Timestamp


@dataclass(frozen=True, slots=True)
class Cut:
    """A barrier that every channel has passed.

    Invariant: `since < timestamp`, and every place's tick is at or below `timestamp`: a place of a later tick would
    skip what lies between. A reader begins at the places of one cut, and keeps what is above its Timestamp.
    """

    epoch: Epoch
    since: Timestamp
    """The Timestamp of the cut before: epochs leave no gap."""
    timestamp: Timestamp
    places: Mapping[str, Place]
    """Per channel. One that is not here has nothing at or below `timestamp`; read it from its beginning."""
    is_checkpoint: bool = True
    catalog_version: int = 0
    """The newest version of the catalog at or below `timestamp`."""
    nbytes: int = 0
    """About how much of the log its epoch is; 0 where that is not known."""

    def __post_init__(self) -> None:
        if self.epoch < 1 or self.since >= self.timestamp:
            raise InvariantBroken(f"epoch {self.epoch} would go from {self.since} to {self.timestamp}")
        for channel, place in self.places.items():
            if place.tick > self.timestamp:
                raise InvariantBroken(
                    f"the cut of epoch {self.epoch} at {self.timestamp} would read {channel!r} from behind {place.tick}"
                )

    def require_after(self, before: Cut | None) -> None:
        """Raises: `InvariantBroken` when this cut does not begin where `before` ends."""
        epoch, timestamp = (before.epoch, before.timestamp) if before else (0, Timestamp.ZERO)
        if (self.epoch, self.since) != (epoch + 1, timestamp):
            raise InvariantBroken(
                f"epoch {self.epoch} begins at {self.since}, and the one before it, {epoch}, ends at {timestamp}"
            )


class Span(NamedTuple):
    """Epochs taken together, both ends included."""

    first: Epoch
    last: Epoch

    def __str__(self) -> str:
        return f"epoch {self.first}" if self.first == self.last else f"epochs {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Pointer:
    """The last checkpoint. What its manifest names is the table; `epoch` is where work goes on after a restart.

    Invariant: `checkpoint` rises by one and names `previous`; `epoch` and `timestamp` never fall (they stay where a
    checkpoint only arranges files anew); `term` never falls.
    """

    checkpoint: int = 0
    epoch: Epoch = BEGINNING
    timestamp: Timestamp = Timestamp.ZERO
    term: Term = _NO_TERM
    """Of the owner who wrote it."""
    manifest: str = ""
    """Empty before the first checkpoint."""

    @property
    def previous(self) -> int:
        """The checkpoint before this one; 0 is none."""
        return max(self.checkpoint - 1, 0)

    def claimed_by(self, term: Term) -> Pointer:
        """The same checkpoint in the name of a new owner. Once it is in place, no older owner's commit can succeed.

        Raises: `NotLeader` when a newer owner has claimed it.
        """
        if self.term > term:
            raise NotLeader(
                f"checkpoint {self.checkpoint} belongs to term {self.term}, which is newer than {term};"
                f" take a new term to own the pipeline again"
            )
        return replace(self, term=term)

    def next(self, epoch: Epoch, timestamp: Timestamp) -> Pointer:
        """The checkpoint after this one, by the same owner."""
        number = self.checkpoint + 1
        return Pointer(number, epoch, timestamp, self.term, f"{number:012d}-{self.term:06d}")


def encode_cut(cut: Cut) -> bytes:
    return _encode(
        {
            "epoch": cut.epoch,
            "since": int(cut.since),
            "timestamp": int(cut.timestamp),
            "checkpoint": cut.is_checkpoint,
            "catalog": cut.catalog_version,
            "places": {name: [place.position, int(place.tick)] for name, place in sorted(cut.places.items())},
            **({"bytes": cut.nbytes} if cut.nbytes else {}),
        }
    )


def decode_cut(data: bytes) -> Cut:
    """Raises: `Corruption` when the bytes are not a cut of a known version."""
    try:
        read = _decode(data)
        places = {
            str(name): Place(Position(int(position)), Timestamp(int(tick)))
            for name, (position, tick) in read["places"].items()
        }
        return Cut(
            Epoch(int(read["epoch"])),
            Timestamp(int(read["since"])),
            Timestamp(int(read["timestamp"])),
            places,
            bool(read["checkpoint"]),
            int(read["catalog"]),
            int(read.get("bytes", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvariantBroken) as error:
        raise Corruption("a record of a cut", 0, f"it cannot be read ({type(error).__name__}: {error})") from error


def encode_pointer(pointer: Pointer) -> bytes:
    return _encode(
        {
            "checkpoint": pointer.checkpoint,
            "epoch": pointer.epoch,
            "timestamp": int(pointer.timestamp),
            "term": pointer.term,
            "manifest": pointer.manifest,
        }
    )


def decode_pointer(data: bytes) -> Pointer:
    """Raises: `Corruption` when the bytes are not a pointer of a known version."""
    try:
        read = _decode(data)
        return Pointer(
            int(read["checkpoint"]),
            Epoch(int(read["epoch"])),
            Timestamp(int(read["timestamp"])),
            Term(int(read["term"])),
            str(read["manifest"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption("the pointer to the last checkpoint", 0, f"it cannot be read ({error})") from error


def _encode(facts: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **facts}, separators=(",", ":")).encode()


def _decode(data: bytes) -> dict[str, Any]:
    read = json.loads(data)
    if not isinstance(read, dict):
        raise ValueError("it is not a JSON object")
    if read.get("version") != VERSION:
        raise ValueError(f"version {read.get('version')} is not known; it was written by a newer Tidegate")
    return read
