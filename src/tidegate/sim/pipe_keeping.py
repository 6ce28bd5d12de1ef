"""What the simulated owner does beside commits: manifests, compaction, garbage collection. A simple model of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.barrier.cut import Epoch
from tidegate.barrier.work import Commit
from tidegate.log.message import Term
from tidegate.sim.pipe_files import (
    BASE,
    DATA_DIR,
    FLOOR,
    MANIFESTS,
    DataName,
    Manifest,
    checkpoint_of,
    kept_manifests,
    pinned,
    read_number,
    read_whole,
    term_of,
    write_whole,
)

if TYPE_CHECKING:
    from tidegate.sim.pipe_owner import PipeOwner

RETAINED: Final = 2
"""Checkpoints kept before the last."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A compaction: one file in place of some."""

    channel: str
    replaced: tuple[str, ...]
    name: str


def next_manifest(last: Manifest, commit: Commit, layout: Layout | None) -> Manifest:
    """What a checkpoint names: all that the last one did, and what was staged; a compaction rides along."""
    files = {channel: list(names) for channel, names in last.files.items()}
    counts = dict(last.counts)
    for name in commit.files:
        read = DataName.parse(name)
        files.setdefault(read.channel, []).append(name)
        counts[read.channel] = read.total
    if layout is not None and set(layout.replaced) <= set(files.get(layout.channel, ())):
        left = [name for name in files[layout.channel] if name not in layout.replaced]
        files[layout.channel] = [layout.name, *left]
    pointer = commit.pointer
    return Manifest(
        pointer.manifest, pointer.checkpoint, pointer.epoch, int(pointer.timestamp), last.name, files, counts
    )  # fmt: skip


def compact(owner: PipeOwner) -> Iterator[str]:
    """Merge the oldest files of a channel into one, off the critical path."""
    manifest = owner.manifest
    many = [channel for channel, names in sorted(manifest.files.items()) if len(names) >= 3]
    if not many or owner.layout is not None:
        return
    channel = owner.world.rng.choice(many)
    replaced = tuple(manifest.files[channel][: owner.world.rng.randrange(2, len(manifest.files[channel]) + 1)])
    rows: list[list[int]] = []
    count = 0
    for name in replaced:
        rows += read_whole(owner.files, DATA_DIR, name)["rows"]
        count = DataName.parse(name).total
    yield "reads files to compact"
    name = str(DataName(BASE, owner.term, 1, manifest.epoch, channel, owner.world.next_number(), count))
    write_whole(owner.files, DATA_DIR, name, {"rows": rows})
    owner.layout = Layout(channel, replaced, name)
    yield "compacts"


def collect_garbage(owner: PipeOwner) -> Iterator[str]:
    """Remove what no kept or pinned manifest names and nobody may still commit.

    Ordering: names are listed first; then the floor is raised, then pins are read; then all is decided at one moment
    against the epochs as they are. Later commits name only what was listed as staged, or was not there.
    """
    listed = owner.files.names(DATA_DIR), owner.files.names(MANIFESTS)
    yield "lists files"
    floor, version = read_number(owner.store, FLOOR)
    wanted = owner.epochs.pointer.checkpoint - RETAINED
    if wanted > floor:
        owner.store.compare_and_set(FLOOR, str(wanted).encode(), expected=version)
        yield "raises the floor"
        floor, _ = read_number(owner.store, FLOOR)
    pins = pinned(owner.store)
    yield "reads pins"
    for path in _removable(owner, *listed, floor, pins):
        if path in owner.world.disk.names:
            owner.files.remove(path)
        yield "removes a file"


def _removable(owner: PipeOwner, data: list[str], manifests: list[str], floor: int, pins: set[str]) -> list[str]:
    epochs = owner.epochs
    kept = kept_manifests(owner.files, epochs.pointer.manifest, floor, pins)
    needed = {name for manifest in kept for name in manifest.all_files}
    names = {manifest.name for manifest in kept}
    found = []
    for name in data:
        writer = DataName.parse(name)
        if writer.worker == BASE:
            spare = writer.term > owner.term or (owner.layout is not None and owner.layout.name == name)
        else:
            spare = epochs.may_become_visible(Term(writer.term), Epoch(writer.last))
        if name not in needed and not spare:
            found.append(f"{DATA_DIR}/{name}")
    for name in manifests:
        spare = term_of(name) > owner.term or (
            term_of(name) == owner.term and checkpoint_of(name) > epochs.pointer.checkpoint
        )
        if name not in names and not spare:
            found.append(f"{MANIFESTS}/{name}")
    return found
