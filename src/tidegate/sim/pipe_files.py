"""The snapshot store of the simulated pipeline: data files, manifests, the pointer, pins, and what may be removed.

A pin and garbage collection meet like this: the collector first raises the floor (below it nobody may begin to read),
and then looks for pins; a reader first pins, and then looks at the floor. One of them sees the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidegate.barrier.cut import Pointer, decode_pointer
from tidegate.ports.metadata import MetadataStore
from tidegate.sim.disk import SimFiles

DATA_DIR: Final = "data"
MANIFESTS: Final = "manifests"
POINTER: Final = "pointer"
FLOOR: Final = "floor"
PINS: Final = "pin/"
BASE: Final = "base"


class DataName(NamedTuple):
    """What a data file's name says: who wrote it, and which epochs and channel it holds."""

    worker: str
    term: int
    first: int
    last: int
    channel: str
    attempt: int
    total: int
    """Rows of the channel up to the end of this file."""

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> DataName:
        worker, term, first, last, channel, attempt, total = text.split(".")
        return cls(worker, int(term), int(first), int(last), channel, int(attempt), int(total))


@dataclass(slots=True)
class Manifest:
    """What one checkpoint consists of."""

    name: str
    checkpoint: int
    epoch: int
    timestamp: int
    previous: str
    files: dict[str, list[str]]
    """Per channel, in order."""
    counts: dict[str, int]
    """Rows per channel so far."""

    @property
    def all_files(self) -> set[str]:
        return {name for names in self.files.values() for name in names}

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


NO_MANIFEST: Final = Manifest("", 0, 0, 0, "", {}, {})


def write_whole(files: SimFiles, directory: str, name: str, content: Any) -> None:
    """Write a file and make it durable, name included."""
    data = json.dumps(content).encode()
    file = files.create(f"{directory}/{name}", len(data))
    file.write(0, [data])
    make_durable(files, directory, file)


def make_durable(files: SimFiles, directory: str, file: Any) -> None:
    file.sync()
    files.sync_dir(directory)


def read_whole(files: SimFiles, directory: str, name: str) -> Any:
    file = files.open(f"{directory}/{name}")
    return json.loads(bytes(file.read(0, file.size())))


def read_manifest(files: SimFiles, name: str) -> Manifest:
    return Manifest(**read_whole(files, MANIFESTS, name)) if name else NO_MANIFEST


def read_pointer(store: MetadataStore) -> tuple[Pointer, int]:
    """The pointer and its version."""
    found = store.get(POINTER)
    return (decode_pointer(found.value), found.version) if found is not None else (Pointer(), 0)


def read_number(store: MetadataStore, key: str) -> tuple[int, int]:
    found = store.get(key)
    return (int(found.value), found.version) if found is not None else (0, 0)


def checkpoint_of(manifest: str) -> int:
    return int(manifest.partition("-")[0])


def term_of(manifest: str) -> int:
    return int(manifest.partition("-")[2])


def visible_files(files: SimFiles, manifest: Manifest) -> dict[str, list[str]]:
    """What a reader of a checkpoint reads: the files that its manifest names, and nothing else."""
    del files
    return manifest.files


def pinned(store: MetadataStore) -> set[str]:
    """The manifests that readers hold."""
    return {found.value.decode() for found in store.list(PINS).values()}


def kept_manifests(files: SimFiles, newest: str, floor: int, pins: set[str]) -> list[Manifest]:
    """The last checkpoint, those before it down to the floor, and the pinned ones."""
    kept = []
    name = newest
    while name and (name == newest or checkpoint_of(name) >= floor):
        manifest = read_manifest(files, name)
        kept.append(manifest)
        name = manifest.previous
    known = {manifest.name for manifest in kept}
    there = set(files.names(MANIFESTS))
    # Who pins what is gone already looks at the floor, and lets go.
    return kept + [read_manifest(files, name) for name in sorted(pins - known) if name in there]
