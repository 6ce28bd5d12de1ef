"""`PipeAuditor`: predicts, from what was written alone, what every checkpoint must hold, and compares."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tidegate.barrier.cut import Cut, Pointer
from tidegate.sim.auditor import Violation
from tidegate.sim.disk import Inode, SimDisk
from tidegate.sim.pipe_files import DATA_DIR, MANIFESTS, Manifest
from tidegate.sim.pipe_log import DATA, PipeLog

FileRow = tuple[int, int, int]
"""Timestamp, number of the write, rank within the channel."""


class PipeAuditor:
    """Knows all writes, and every checkpoint there was."""

    def __init__(self, log: PipeLog, disk: SimDisk) -> None:
        self._log = log
        self._disk = disk
        self.acknowledged = 0
        self.deliveries = 0
        self.newest = 0
        """Timestamp of the newest write that was acknowledged."""
        self.pointer = Pointer()
        self._at_checkpoint: dict[int, int] = {}
        self._pins: dict[str, tuple[str, frozenset[str]]] = {}
        self._read: dict[str, int] = {}
        self._cuts: dict[int, Cut] = {}
        self._parsed: dict[str, tuple[Inode, Any]] = {}

    def was_acknowledged(self, timestamp: int) -> None:
        self.acknowledged += 1
        self.newest = max(self.newest, timestamp)

    def was_cut(self, cut: Cut) -> None:
        """Fact 1 of checkpoints: epochs have no gap and no overlap. DDL takes effect at exactly one."""
        before = self._cuts.get(cut.epoch - 1)
        if cut.since != (before.timestamp if before else 0) or cut.epoch in self._cuts:
            raise Violation(f"cut: epoch {cut.epoch} begins at {cut.since}, and there is {before}")
        if cut.catalog_version != self._log.catalog_at(cut.timestamp):
            raise Violation(
                f"cut: epoch {cut.epoch} has version {cut.catalog_version} of the catalog, and at {cut.timestamp} it is"
                f" {self._log.catalog_at(cut.timestamp)}"
            )
        self._cuts[cut.epoch] = cut

    # Checkpoints

    def pointer_is(self, pointer: Pointer) -> None:
        """The pointer was replaced."""
        old = self.pointer
        claimed = pointer.checkpoint == old.checkpoint
        if pointer.term < old.term or not (claimed or pointer.checkpoint == old.checkpoint + 1):
            raise Violation(f"forward: checkpoint {old} was replaced by {pointer}")
        if (pointer.epoch == old.epoch) != (pointer.timestamp == old.timestamp) or pointer.timestamp < old.timestamp:
            raise Violation(f"forward: checkpoint {old} was replaced by {pointer}")
        if claimed and (pointer.epoch, pointer.manifest) != (old.epoch, old.manifest):
            raise Violation(f"forward: checkpoint {old} changed into {pointer}")
        self.pointer = pointer
        self._at_checkpoint[pointer.checkpoint] = pointer.timestamp
        self.check_visible()

    def power_was_lost(self) -> None:
        self._parsed.clear()
        self.check_visible()

    def check_visible(self) -> None:
        """What the pointer names is there, whole, and equal to the model."""
        if not self.pointer.manifest:
            return
        manifest = self._manifest(self.pointer.manifest)
        if (manifest.checkpoint, manifest.epoch, manifest.timestamp) != (
            self.pointer.checkpoint, self.pointer.epoch, self.pointer.timestamp,
        ):  # fmt: skip
            raise Violation(f"manifest: {manifest} is named by {self.pointer}")
        for channel in DATA:
            rows: list[FileRow] = []
            for name in manifest.files.get(channel, ()):
                rows += self._content(f"{DATA_DIR}/{name}")["rows"]
            self.check_rows("the checkpoint", channel, manifest.timestamp, rows)

    def check_rows(self, who: str, channel: str, timestamp: int, rows: Iterable[FileRow]) -> None:
        """Every write at or below the Timestamp exactly once, in its place, and none above."""
        found = sorted(map(tuple, rows))
        wanted = sorted(row for row in self._log.channels[channel].rows if row[0] <= timestamp)
        expected = [(*row, rank) for rank, row in enumerate(wanted, 1)]
        if found == expected:
            self.deliveries += len(found)
            return
        numbers = [number for _, number, _ in found]
        missing = sorted({number for _, number in wanted} - set(numbers))
        extra = sorted(set(numbers) - {number for _, number in wanted})
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        raise Violation(
            f"content: {channel} at {timestamp}, as seen by {who}, misses {missing}, has {extra} too many, {twice} more"
            f" than once" + ("" if missing or extra or twice else ", and ranks are wrong")
        )

    def flushed(self, needed: int, pointer: Pointer) -> None:
        """A flush has returned: all that was acknowledged before it began is visible (fact 2.7)."""
        if pointer.timestamp < needed or self.pointer.timestamp < needed:
            raise Violation(f"flush: {needed} was acknowledged before, and the checkpoint is at {pointer.timestamp}")

    # Readers

    def pin(self, reader: str, manifest: Manifest) -> None:
        self._pins[reader] = (manifest.name, frozenset(manifest.all_files))

    def unpin(self, reader: str) -> None:
        self._pins.pop(reader, None)

    def was_read(self, reader: str, manifest: Manifest, rows: dict[str, list[FileRow]]) -> None:
        """Fact 3: one cut over all channels, and never an earlier one than before."""
        if manifest.timestamp < self._read.get(reader, 0):
            raise Violation(f"forward: {reader} read {self._read[reader]}, and then {manifest.timestamp}")
        self._read[reader] = manifest.timestamp
        for channel in DATA:
            self.check_rows(reader, channel, manifest.timestamp, rows.get(channel, []))

    def was_removed(self, path: str) -> None:
        directory, _, name = path.partition("/")
        for who, (manifest, files) in sorted(self._pins.items()):
            if name in files if directory == DATA_DIR else name == manifest:
                raise Violation(f"pins: {path} was removed, and {who} has pinned it")
        if not self.pointer.manifest:
            return
        if name == self.pointer.manifest or name in self._manifest(self.pointer.manifest).all_files:
            raise Violation(f"files: {path} was removed, and checkpoint {self.pointer.checkpoint} names it")

    def _manifest(self, name: str) -> Manifest:
        return Manifest(**self._content(f"{MANIFESTS}/{name}"))

    def _content(self, path: str) -> Any:
        inode = self._disk.names.get(path)
        if inode is None:
            raise Violation(f"files: {path} is named, and is not there")
        known = self._parsed.get(path)
        if known is not None and known[0] is inode:
            return known[1]
        try:
            read = json.loads(bytes(inode.data))
        except ValueError:
            raise Violation(f"files: {path} is named, and is not whole") from None
        self._parsed[path] = (inode, read)
        return read

    # At the end

    def check_end(self) -> None:
        self.check_visible()
        if self.pointer.timestamp < self.newest:
            raise Violation(f"liveness: {self.newest} is acknowledged, and {self.pointer.timestamp} is visible")
        kept: set[str] = set()
        name = self.pointer.manifest
        while name and f"{MANIFESTS}/{name}" in self._disk.names:
            manifest = self._manifest(name)
            kept |= {f"{MANIFESTS}/{name}", *(f"{DATA_DIR}/{each}" for each in manifest.all_files)}
            name = manifest.previous
        if orphans := sorted(set(self._disk.names) - kept):
            raise Violation(f"orphans: nobody needs {orphans}, and they are still there")
