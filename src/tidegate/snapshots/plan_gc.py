"""What may be deleted, decided from a listing, the history, the pins and the retention. No IO, no clock.

Needed is what the newest manifest names, what any manifest within retention names, and what a pinned one names. A
manifest is within retention while the time in which it was the newest reaches into the window, which ends at the
newest checkpoint: a jump of the wall clock deletes nothing.

Files that no manifest names are orphans of a crash, or being staged right now. One staged by an epoch is dead as
soon as the pointer has reached its first epoch: no commit accepts it any more. One staged by compaction is dead when
nobody has touched it for a grace time, *and* the pointer was written anew since (`Plan.fence`): a compaction that
read the pointer before fails its compare-and-set, and one that reads it later finds its files too old.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tidegate.clock.timestamp import Timestamp
from tidegate.snapshots.manifest import Manifest, ManifestName, Pointer, StagedName

DAY_MS = 24 * 60 * 60 * 1000
GRACE_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """How far back in time a table can be read."""

    default_ms: int = DAY_MS
    tables: Mapping[int, int] = field(default_factory=dict)
    """Milliseconds by table, where they differ."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A data file that was found, and for how long nobody has written or touched it."""

    path: str
    age_ms: int

    @property
    def table(self) -> int | None:
        part = self.path.split("/")[1] if self.path.startswith("tables/") else ""
        return int(part) if part.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Floor:
    """The oldest checkpoint that can be read without a pin that was there before.

    Invariant: it never goes back.
    """

    checkpoint: int = 0
    tables: Mapping[int, int] = field(default_factory=dict)
    """By table, where it differs."""

    def of(self, table: int) -> int:
        return self.tables.get(table, self.checkpoint)

    @property
    def lowest(self) -> int:
        """Below it nothing is left of any table."""
        return min([self.checkpoint, *self.tables.values()])

    def raised_to(self, other: Floor) -> Floor:
        """The higher of both, table by table. A table keeps an entry of its own only while it differs."""
        checkpoint = max(self.checkpoint, other.checkpoint)
        named = sorted({*self.tables, *other.tables})
        tables = {table: max(self.of(table), other.of(table)) for table in named}
        return Floor(checkpoint, {table: floor for table, floor in tables.items() if floor != checkpoint})


class NamedFiles:
    """From which to which checkpoint each file is named.

    Invariant: manifests are seen in the order of their numbers, each once. A file's checkpoints follow each other, so
    the first and the last say all, and history costs what its files cost, not what its manifests do.
    """

    def __init__(self) -> None:
        self._spans: dict[str, tuple[int, int]] = {}
        self.seen = 0

    def see(self, manifest: Manifest) -> None:
        self.seen = max(self.seen, manifest.checkpoint)
        for path in manifest.paths:
            span = self._spans.get(path)
            self._spans[path] = (span[0] if span else manifest.checkpoint, manifest.checkpoint)

    def span(self, path: str) -> tuple[int, int] | None:
        return self._spans.get(path)

    def forget(self, paths: Collection[str]) -> None:
        for path in paths:
            self._spans.pop(path, None)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to delete.

    Ordering: write the pointer anew if `fence`; raise the floor; look at the pins again; delete manifests, then files.
    """

    floor: Floor
    manifests: tuple[ManifestName, ...]
    files: tuple[str, ...]
    unfinished: tuple[str, ...]
    """Left behind by compactions that died. Deleted only after the pointer was written anew."""

    @property
    def fence(self) -> bool:
        return bool(self.unfinished)

    @property
    def empty(self) -> bool:
        return not (self.manifests or self.files or self.unfinished)


def plan_gc(
    *,
    listing: Sequence[Listed],
    history: Sequence[ManifestName],
    strays: Sequence[ManifestName],
    named: NamedFiles,
    pointer: Pointer,
    pins: Collection[int],
    retention: Retention,
    floor: Floor,
    grace_ms: int = GRACE_MS,
) -> Plan:
    """`history` holds the committed manifests, oldest first; `strays` those that lost the race to be one;
    `floor` is the one that was raised last.

    Ordering: `listing` was taken before the pointer, the history and the pins were read.
    """
    within = Floor(
        oldest_kept(history, pointer, retention.default_ms),
        {table: oldest_kept(history, pointer, kept_ms) for table, kept_ms in sorted(retention.tables.items())},
    )
    # The manifest after one that was pinned for long may be a much later one. What was below the floor stays below.
    floor = floor.raised_to(within)
    pinned = sorted(pins)
    manifests = [
        each
        for each in history
        if each.checkpoint < min(floor.lowest, pointer.checkpoint) and each.checkpoint not in pins
    ]
    # A number up to the pointer's is taken: whoever wrote that file can never make it the newest.
    manifests += [each for each in strays if each.checkpoint <= pointer.checkpoint]
    files, unfinished = [], []
    for each in listing:
        name, table = StagedName.parse(each.path), each.table
        if name is None or table is None:
            continue  # not ours
        span = named.span(each.path)
        if span is not None:
            first, last = span
            here = bisect_left(pinned, first)
            is_pinned = here < len(pinned) and pinned[here] <= last
            if last < min(floor.of(table), pointer.checkpoint) and not is_pinned:
                files.append(each.path)
        elif name.origin == "e":
            if name.first <= pointer.epoch:
                files.append(each.path)
        elif each.age_ms > grace_ms:
            unfinished.append(each.path)
    return Plan(floor, tuple(manifests), tuple(files), tuple(unfinished))


def oldest_kept(history: Sequence[ManifestName], pointer: Pointer, kept_ms: int) -> int:
    """The oldest checkpoint within `kept_ms`: the newest one of some moment in the window."""
    horizon = Timestamp.compose(max(0, pointer.timestamp.physical_ms - kept_ms), pointer.timestamp.logical)
    for each, after in pairwise(history):
        if after.timestamp > horizon:
            return each.checkpoint
    return pointer.checkpoint
