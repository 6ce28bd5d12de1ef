"""Which files to merge, decided from a manifest alone.

Layers are tiered by size: `fan` neighbours of one level become one of the next, so a shard has fewer than `fan`
files in each of a logarithmic number of levels, and a row is rewritten once per level. When the layers have grown to
a part of the base, all of them and the base become a new base, which drops deletes: nothing lies below it.

Files of a table without a key just add up: its files are concatenated, level by level, and have no base.

Invariant: only neighbours are merged, and a base only together with every layer below the newest one that it takes in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

from tidegate.snapshots.manifest import BASE, FileEntry, Manifest


@dataclass(frozen=True, slots=True)
class Tiers:
    """When compaction is due."""

    fan: int = 8
    """So many neighbours of one level become one of the next."""
    base_fraction: float = 0.25
    """The base is rewritten when the layers above it have so many of its rows."""
    large_rows: int = 100_000
    """Layers with fewer rows wait for company before the base is rewritten for them."""
    file_bytes: int = 128 << 20
    """About how large a file of a base becomes. In a table without a key, one of half that size is left alone."""
    file_rows: int = 4_000_000


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Merge `inputs`, neighbours of one shard, oldest first, into files of `level`."""

    table: int
    shard: int
    inputs: tuple[FileEntry, ...]
    level: int
    why: str

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.inputs)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.inputs)

    @property
    def first(self) -> int:
        return min(each.first for each in self.inputs)

    @property
    def last(self) -> int:
        return max(each.last for each in self.inputs)


def plan_compaction(
    manifest: Manifest,
    keyless: Collection[int],
    *,
    tiers: Tiers = Tiers(),  # noqa: B008 (frozen)
    busy: Collection[tuple[int, int]] = (),
) -> list[CompactionJob]:
    """What is due, at most one job per shard, those that take the most files out of the way first.

    `keyless` names the tables without a key; `busy` the shards that are being compacted.
    """
    jobs = []
    for (table, shard), files in manifest.shards().items():
        if (table, shard) in busy:
            continue
        job = _plan_rows(table, shard, files, tiers) if table in keyless else _plan_keyed(table, shard, files, tiers)
        if job is not None:
            jobs.append(job)
    return sorted(jobs, key=lambda job: (-len(job.inputs), job.rows, job.table, job.shard))


def _plan_keyed(table: int, shard: int, files: list[FileEntry], tiers: Tiers) -> CompactionJob | None:
    base = [each for each in files if each.is_base]
    layers = [each for each in files if not each.is_base]
    base_rows, layer_rows = sum(each.rows for each in base), sum(each.rows for each in layers)
    run = next((run for run in _runs(layers) if len(run) >= tiers.fan), None)
    enough = layer_rows >= tiers.base_fraction * base_rows
    if layers and enough and (run is not None or layer_rows >= tiers.large_rows):
        why = f"{len(layers)} layers with {layer_rows:,} rows over a base of {base_rows:,}"
        return CompactionJob(table, shard, (*base, *layers), BASE, why)
    if run is None:
        return None
    return CompactionJob(table, shard, tuple(run), run[0].level + 1, f"{len(run)} neighbours of level {run[0].level}")


def _plan_rows(table: int, shard: int, files: list[FileEntry], tiers: Tiers) -> CompactionJob | None:
    small = [each for each in files if not each.is_base and each.bytes < tiers.file_bytes // 2]
    for level in sorted({each.level for each in small}):
        found = [each for each in small if each.level == level]
        if len(found) >= tiers.fan:
            return CompactionJob(table, shard, tuple(found), level + 1, f"{len(found)} files of level {level}")
    return None


def _runs(layers: list[FileEntry]) -> Iterator[list[FileEntry]]:
    """Neighbours of one level, lowest level first. Files of one epoch are neighbours in whatever order they stand."""
    runs = [list(group) for _, group in groupby(layers, key=lambda each: each.level)]
    yield from sorted(runs, key=lambda run: run[0].level)
