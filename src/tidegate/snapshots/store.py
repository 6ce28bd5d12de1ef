"""The directory of snapshots: the newest checkpoint, the manifests before it, and how the next one is committed.

`tables/<table>/*.parquet` and `manifests/<checkpoint>-<timestamp>-<token>.json` are files that nobody sees until the
pointer, a key of the metadata store, names them. It is replaced by compare-and-set, so of two who commit at once one
wins; the loser's manifest has a name of its own and overwrites nothing.

Ordering: every file a manifest names is durable before the manifest is, and that before the pointer names it.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, InvalidArgument, NotFound, NotLeader, OutcomeUnknown, TidegateError, Truncated
from tidegate.ports.metadata import MetadataStore
from tidegate.snapshots.damage import SnapshotDamaged, find_damage
from tidegate.snapshots.durable import make_directory, remove, write_new
from tidegate.snapshots.layer_writer import new_token
from tidegate.snapshots.manifest import FileEntry, Manifest, ManifestName, Pointer, ViewState
from tidegate.snapshots.plan_gc import Floor

POINTER_KEY: Final = "snapshots/checkpoint"
FLOOR_KEY: Final = "snapshots/floor"
TRIES_MAX: Final = 50
"""So often in a row somebody else's commit may come first before it is given up."""
CACHED_MANIFESTS: Final = 16


class SnapshotStore:
    """A directory of snapshots, shared by every process that opens it. Safe to use from several threads."""

    def __init__(self, root: Path, metadata: MetadataStore) -> None:
        self.root = root.absolute()
        self.metadata = metadata
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._seen: deque[Pointer] = deque(maxlen=CACHED_MANIFESTS)
        """The last pointers that were read here: some moved on without a manifest of their own."""
        self._lock = Lock()
        make_directory(self.root / "manifests")
        make_directory(self.root / "tables")

    # Reading

    def pointer(self) -> Pointer:
        """The newest checkpoint; number 0 while there is none."""
        found = self.metadata.get(POINTER_KEY)
        if found is None:
            return Pointer()
        pointer = Pointer.decode(found.value, found.version)
        with self._lock:
            if not self._seen or self._seen[-1].version < pointer.version:
                self._seen.append(pointer)
        return pointer

    def manifest(self, pointer: Pointer | None = None) -> Manifest:
        """What a checkpoint consists of: the newest, or the one of `pointer`, which gives its epoch and timestamp.

        Raises: `SnapshotDamaged`; `Truncated` when it was removed by retention.
        """
        if pointer is None:
            return self._newest()
        if not pointer.manifest:
            return Manifest(epoch=pointer.epoch, timestamp=pointer.timestamp, term=pointer.term)
        found = self.read_manifest(pointer.manifest, pointer.checkpoint)
        return replace(found, epoch=pointer.epoch, timestamp=pointer.timestamp, term=pointer.term)

    def _newest(self) -> Manifest:
        while True:
            pointer = self.pointer()
            try:
                return self.manifest(pointer)
            except Truncated:
                if self.pointer().manifest == pointer.manifest:
                    raise  # otherwise it was followed and removed since the pointer was read

    def read_manifest(self, file: str, checkpoint: int) -> Manifest:
        """The manifest in a file. Raises: `SnapshotDamaged`, `Truncated`."""
        with self._lock:
            if file in self._manifests:
                self._manifests.move_to_end(file)
                return self._manifests[file]
        path = self.root / "manifests" / file
        try:
            manifest = Manifest.decode(path.read_bytes())
        except FileNotFoundError:
            if checkpoint < self.floor().lowest:
                raise self._truncated(f"checkpoint {checkpoint}") from None
            raise SnapshotDamaged(str(path), "it is missing", checkpoint=checkpoint) from None
        except (OSError, ValueError) as error:
            raise SnapshotDamaged(str(path), f"it cannot be read ({error})", checkpoint=checkpoint) from error
        self._remember(file, manifest)
        return manifest

    def history(self, pointer: Pointer | None = None) -> tuple[list[ManifestName], list[ManifestName]]:
        """The manifests that were the newest up to `pointer`, oldest first; and those that were written and lost.

        Ordering: the pointer is read before the listing, so all that it follows is listed.
        """
        pointer = self.pointer() if pointer is None else pointer
        by_number: dict[int, list[ManifestName]] = {}
        for path in (self.root / "manifests").iterdir():
            name = ManifestName.parse(path.name)
            if name is not None and name.checkpoint <= pointer.checkpoint:
                by_number.setdefault(name.checkpoint, []).append(name)
        committed: list[ManifestName] = []
        strays: list[ManifestName] = []
        for number in sorted(by_number, reverse=True):
            found = sorted(by_number[number])
            if number == pointer.checkpoint:
                chosen = pointer.manifest
            elif len(found) > 1 and committed and committed[-1].checkpoint == number + 1:
                # Only the one that its successor names was ever the newest.
                chosen = self.read_manifest(committed[-1].file, number + 1).previous
            else:
                chosen = ""  # alone it is the one; in doubt all are kept
            committed.extend(each for each in found if each.file == chosen or not chosen)
            strays.extend(each for each in found if chosen and each.file != chosen)
        committed.reverse()
        return committed, strays

    def at(self, timestamp: Timestamp) -> Manifest:
        """The newest checkpoint at or before a time. Pin it before reading a table by it.

        Raises: `Truncated` when retention has removed it.
        """
        pointer = self.pointer()
        if timestamp >= pointer.timestamp:
            return self.manifest(pointer)
        floor = self.floor().lowest
        with self._lock:
            seen = [each for each in self._seen if each.timestamp <= timestamp and each.checkpoint >= max(floor, 1)]
        if seen:
            return self.manifest(seen[-1])
        if (found := self._just_before(pointer, timestamp)) is not None:
            return found
        committed, _ = self.history(pointer)
        for each in reversed(committed):
            if each.timestamp <= timestamp:
                if each.checkpoint < floor:
                    break
                return self.read_manifest(each.file, each.checkpoint)
        if floor <= 1 and (not committed or committed[0].checkpoint == 1):
            return Manifest()  # before anything was written
        raise self._truncated(f"the time {timestamp}")

    def _just_before(self, pointer: Pointer, timestamp: Timestamp) -> Manifest | None:
        """The newest at or before a time, when it is one of the last few: mostly a read was overtaken by a commit."""
        file, checkpoint = pointer.manifest, pointer.checkpoint
        floor = self.floor().lowest
        for _ in range(CACHED_MANIFESTS // 2):
            name = ManifestName.parse(file)
            if name is None or checkpoint < floor:
                return None
            found = self.read_manifest(file, checkpoint)
            if name.timestamp <= timestamp:
                return found
            file, checkpoint = found.previous, found.checkpoint - 1
        return None

    def checkpoint(self, number: int) -> Manifest:
        """A checkpoint by its number. Pin it before reading a table by it.

        Raises: `NotFound` when there was none; `Truncated` when retention has removed it.
        """
        pointer = self.pointer()
        if number == pointer.checkpoint:
            return self.manifest(pointer)
        if not 0 < number < pointer.checkpoint:
            raise NotFound(f"there is no checkpoint {number}; the newest is {pointer.checkpoint}")
        floor = self.floor().lowest
        if number >= floor:
            committed, _ = self.history(pointer)
            for each in reversed(committed):
                if each.checkpoint == number:
                    return self.read_manifest(each.file, number)
        raise Truncated(
            f"checkpoint {number} is older than the retention time; the oldest that is kept is {max(floor, 1)}."
            f" Read there, or raise the retention time"
        )

    def verify(self, manifest: Manifest) -> list[SnapshotDamaged]:
        """Read every page of every file of a checkpoint, and say which are not what was written."""
        found = []
        for table in sorted(manifest.tables):
            for each in manifest.files(table):
                if damage := find_damage(self.root, [each], whole=True):
                    path = str(self.root / each.path)
                    found.append(SnapshotDamaged(path, damage[1], checkpoint=manifest.checkpoint, table=table))
        return found

    def floor(self) -> Floor:
        """The oldest checkpoint that can be read."""
        found = self.metadata.get(FLOOR_KEY)
        if found is None:
            return Floor()
        read = json.loads(found.value)
        return Floor(read["checkpoint"], {int(table): number for table, number in read["tables"].items()})

    def raise_floor(self, floor: Floor) -> Floor:
        """Let checkpoints below `floor` be read no more. It never goes back."""
        while True:
            found = self.metadata.get(FLOOR_KEY)
            raised = self.floor().raised_to(floor)
            value = json.dumps({"checkpoint": raised.checkpoint, "tables": dict(raised.tables)}).encode()
            if found is not None and found.value == value:
                return raised
            if self.metadata.compare_and_set(FLOOR_KEY, value, expected=found.version if found else 0) is not None:
                return raised

    # Committing

    def commit(
        self,
        previous: Pointer,
        *,
        added: Collection[FileEntry] = (),
        removed: Collection[str] = (),
        dropped: Collection[int] = (),
        views: Mapping[int, ViewState] | None = None,
        epoch: int,
        timestamp: Timestamp,
        term: int,
    ) -> Pointer:
        """Make an epoch visible: one step, all tables. An epoch that changes nothing moves only the pointer.

        What compaction has committed since `previous` is taken along. `removed` names files, `dropped` tables that
        end or become empty whatever their files are called by then; of a view that ends its id must be among them.
        `views` has those that stand otherwise than before.

        Raises: `Conflict` or `NotLeader` when somebody else has committed an epoch, or holds a newer term: this epoch
        is not part of the checkpoint; `OutcomeUnknown` when it may be: read the pointer, and commit again if it has
        not reached the epoch; `DiskFull`, `StorageFailed`, `StoreUnavailable`: nothing became visible.
        """
        if epoch <= previous.epoch or timestamp < previous.timestamp or term < previous.term:
            raise InvalidArgument(
                f"epoch {epoch} at {timestamp} in term {term} does not come after the checkpoint of epoch"
                f" {previous.epoch} at {previous.timestamp} in term {previous.term}; read the pointer again"
            )
        self._must_exist(added, previous.checkpoint + 1)

        def advance(current: Pointer) -> Manifest | None:
            if current.epoch != previous.epoch:
                raise Conflict(
                    f"epoch {epoch}: checkpoint {current.checkpoint} of epoch {current.epoch} in term {current.term}"
                    f" came first; read the newest checkpoint and go on from there"
                )
            if current.term > term:
                raise NotLeader(
                    f"epoch {epoch}: term {term} was followed by term {current.term}; stop, another one commits now"
                )
            manifest = self.manifest(current)
            if not added and not removed and not manifest.is_changed_by(dropped, views or {}):
                return None
            return manifest.with_epoch(
                added, removed, dropped, after=previous.epoch, epoch=epoch, timestamp=timestamp, term=term, views=views
            )

        return self._advance(previous, advance, Pointer(epoch=epoch, timestamp=timestamp, term=term))

    def replace_files(
        self,
        inputs: Sequence[FileEntry],
        outputs: Sequence[FileEntry],
        *,
        still_fresh: Callable[[], None] = lambda: None,
    ) -> Pointer:
        """Name other files for the same contents, in whatever checkpoint is the newest by then.

        `still_fresh` is called after the pointer was read and raises if garbage collection may have taken the outputs
        for orphans.

        Raises: `Conflict` when an input is gone; otherwise as `commit`.
        """

        def advance(current: Pointer) -> Manifest:
            still_fresh()
            self._must_exist(outputs, current.checkpoint + 1)
            return self.manifest(current).with_replaced(inputs, outputs)

        return self._advance(self.pointer(), advance, None)

    def touch_pointer(self, pointer: Pointer) -> bool:
        """Write the pointer anew as it is: whoever has read it must read it again. False when it has changed."""
        return self.metadata.compare_and_set(POINTER_KEY, pointer.encode(), expected=pointer.version) is not None

    def _advance(
        self, current: Pointer, advance: Callable[[Pointer], Manifest | None], goal: Pointer | None
    ) -> Pointer:
        for _ in range(TRIES_MAX):
            try:
                manifest = advance(current)
            except Truncated:
                current = self.pointer()  # it was followed and removed since the pointer was read
                continue
            to = goal or current
            if manifest is None:
                wanted = replace(to, checkpoint=current.checkpoint, manifest=current.manifest)
            else:
                manifest = manifest.numbered(current.checkpoint + 1, current.manifest)
                file, content = manifest.encode(new_token())
                write_new(self.root / "manifests" / file, content)
                wanted = replace(to, checkpoint=manifest.checkpoint, manifest=file)
            try:
                version = self.metadata.compare_and_set(POINTER_KEY, wanted.encode(), expected=current.version)
            except OutcomeUnknown:
                raise  # it may be the newest now
            except TidegateError:
                if manifest is not None:
                    remove(self.root / "manifests" / wanted.manifest)
                raise
            found = self.pointer() if version is None else replace(wanted, version=version)
            if replace(found, version=0) == replace(wanted, version=0):
                if manifest is not None:
                    self._remember(wanted.manifest, manifest)
                return found
            if manifest is not None:
                remove(self.root / "manifests" / wanted.manifest)
            current = found
        raise Conflict(f"checkpoint {current.checkpoint}: {TRIES_MAX} commits of others came first; try again")

    def _must_exist(self, files: Collection[FileEntry], checkpoint: int) -> None:
        if damage := find_damage(self.root, files, whole=False):
            entry, why = damage
            raise SnapshotDamaged(str(self.root / entry.path), why, checkpoint=checkpoint, table=entry.table)

    def _remember(self, file: str, manifest: Manifest) -> None:
        with self._lock:
            self._manifests[file] = manifest
            while len(self._manifests) > CACHED_MANIFESTS:
                self._manifests.popitem(last=False)

    def _truncated(self, what: str) -> Truncated:
        committed, _ = self.history()
        floor = self.floor().lowest
        oldest = next((each for each in committed if each.checkpoint >= floor), None)
        hint = (
            f"the oldest that is kept is checkpoint {oldest.checkpoint} at {oldest.timestamp}"
            if oldest
            else "none is kept"
        )
        return Truncated(f"{what} is older than the retention time; {hint}. Read there, or raise the retention time")
