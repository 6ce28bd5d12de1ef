"""`ViewHistory`: which checkpoints changed a view, and how that is to be found out: the steps of its change feed.

A view's checkpoints follow each other by their numbers. One that added layers changed the keys in them; one that
compaction made changed nothing; one that replaced the files, as a view made anew does, may have changed anything, and
so may several at once: then the rows before and after are compared. Steps are never left out.

A consumer's *place* is a Timestamp: it has the view as of the newest checkpoint at or before. So places survive the
numbers that compaction takes. What a view has while it is filled nobody has seen, so no place is put there: the step
that ends it goes from the last checkpoint at which the view was well. A view that has failed keeps its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Truncated
from tidegate.snapshots.manifest import FileEntry, Manifest, ManifestName, Pointer, StagedName
from tidegate.snapshots.store import SnapshotStore
from tidegate.tables.schema import Table

_WALK_MAX: Final = 8
"""So many manifests back one is looked for by way of its successors before the directory is listed."""
_UNSETTLED: Final = object()


class Place(NamedTuple):
    """How far somebody has come: he has the view as of this epoch, at this time."""

    epoch: int
    timestamp: Timestamp


@dataclass(frozen=True, slots=True)
class Step:
    """From one checkpoint of a view to another, of the epoch `epoch` at `timestamp`.

    Invariant: what changed is in the keys of `layers`; None says that it may be anything.
    """

    epoch: int
    timestamp: Timestamp
    since: int
    """The number of the checkpoint before."""
    before: tuple[FileEntry, ...]
    after: tuple[FileEntry, ...]
    layers: tuple[FileEntry, ...] | None = None

    @property
    def place(self) -> Place:
        return Place(self.epoch, self.timestamp)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All that reading it may need."""
        return (*self.before, *(self.after if self.layers is None else self.layers))

    @property
    def rows(self) -> int:
        """About how many rows it changes, at most."""
        return sum(each.rows for each in (self.files if self.layers is None else self.layers))

    @property
    def bytes(self) -> int:
        """About how much of the disk tells of them."""
        return sum(each.bytes for each in (self.files if self.layers is None else self.layers))


class ViewHistory:
    """The checkpoints of one view. Used by one thread at a time."""

    def __init__(self, store: SnapshotStore, view: Table) -> None:
        """`view` is the table that holds the view's rows; it has the view's id."""
        self._store = store
        self.view: Final = view
        self._listed: list[ManifestName] = []
        """Of the last listing, what was behind the place then."""

    def newest(self) -> Place:
        """The newest checkpoint of the database."""
        pointer = self._store.pointer()
        return Place(pointer.epoch, pointer.timestamp)

    def oldest(self) -> Timestamp:
        """The oldest checkpoint that is kept; ZERO while all are."""
        floor = self._store.floor().of(self.view.id)
        if floor <= 1:
            return Timestamp.ZERO
        committed, _ = self._store.history()
        return min((each.timestamp for each in committed if each.checkpoint >= floor), default=Timestamp.ZERO)

    def rows_at(self, timestamp: Timestamp | None = None) -> Step | None:
        """The view's rows, as a step from nothing, at the newest checkpoint at or before a time, or at all.

        None when the view is not there yet, or is being filled.
        Raises: `Truncated`.
        """
        pointer = self._store.pointer()
        manifest = self._at(pointer.timestamp if timestamp is None else timestamp, pointer)
        if _is_nothing(manifest, self.view.id):
            return None
        return Step(manifest.epoch, manifest.timestamp, manifest.checkpoint, (), manifest.files(self.view.id))

    def after(self, timestamp: Timestamp) -> Iterator[tuple[Place, Step | None]]:
        """The places behind one, in order, each with the step that leads there if anything changed.

        Nothing is given while checkpoints at or before `timestamp` may still come, nor behind the view's end: that it
        was dropped is for the catalog to say.
        Raises: `Truncated` when retention has removed what the first step begins with, also while steps are taken.
        """
        pointer = self._store.pointer()
        if pointer.timestamp <= timestamp:
            return
        before = last = self._at(timestamp, pointer)
        for manifest in self._following(before, pointer):
            last = manifest
            step = self._step(before, manifest)
            if step is not _UNSETTLED:
                before = manifest
                yield Place(manifest.epoch, manifest.timestamp), step if isinstance(step, Step) else None
        if before is last and pointer.timestamp > last.timestamp:
            yield Place(pointer.epoch, pointer.timestamp), None

    # -- steps -----------------------------------------------------------------------------------------------

    def _step(self, before: Manifest, after: Manifest) -> Step | object | None:
        """From one checkpoint to a later one; None when nothing changed; `_UNSETTLED` when no place is put there."""
        id = self.view.id
        had_nothing, has_nothing = _is_nothing(before, id), _is_nothing(after, id)
        if has_nothing:
            return None if had_nothing else _UNSETTLED
        old, new = () if had_nothing else before.files(id), after.files(id)
        # By their paths: compaction may call a layer the base as it is.
        had, has = {each.path for each in old}, {each.path for each in new}
        added = [each for each in new if each.path not in had]
        removed = had - has
        is_next = after.checkpoint == before.checkpoint + 1
        if not added and not removed:
            return None
        if is_next and removed and added and all(_is_of_compaction(each) for each in added):
            return None
        if after.views[id].state == "failed":
            return _UNSETTLED
        if is_next and not had_nothing and not removed and not any(each.is_base for each in added):
            return Step(after.epoch, after.timestamp, before.checkpoint, old, new, tuple(added))
        return Step(after.epoch, after.timestamp, before.checkpoint, old, new)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _at(self, timestamp: Timestamp, pointer: Pointer) -> Manifest:
        """The newest checkpoint at or before a time, with its own epoch. Raises: `Truncated`."""
        found = Manifest()
        for name in reversed(self._behind(pointer, timestamp)):
            if name.timestamp <= timestamp:
                found = self._read(name)
                break
        floor = self._store.floor().of(self.view.id)
        if found.checkpoint < floor and (found.checkpoint or floor > 1):
            raise self._truncated(timestamp)
        return found

    def _following(self, before: Manifest, pointer: Pointer) -> Iterator[Manifest]:
        """Those behind one, without a gap."""
        number = before.checkpoint
        for name in self._behind(pointer, before.timestamp):
            if name.checkpoint > number:
                if name.checkpoint != number + 1:
                    raise self._truncated(before.timestamp)
                number = name.checkpoint
                yield self._read(name)

    def _behind(self, pointer: Pointer, timestamp: Timestamp) -> Sequence[ManifestName]:
        """The checkpoints behind a time and the one before them, at least, oldest first."""
        if not pointer.manifest:
            return []
        found: list[ManifestName] = []
        file = pointer.manifest
        for _ in range(_WALK_MAX):
            name = ManifestName.parse(file)
            if name is None:
                return found[::-1]  # It was the first one.
            found.append(name)
            if name.timestamp <= timestamp:
                return found[::-1]
            try:
                file = self._store.read_manifest(file, name.checkpoint).previous
            except Truncated:
                break
        found.reverse()
        listed = self._listed
        if not (listed and listed[0].timestamp <= timestamp and listed[-1].checkpoint >= found[0].checkpoint - 1):
            listed, _ = self._store.history(pointer)
        first = max((at for at, each in enumerate(listed) if each.timestamp <= timestamp), default=0)
        self._listed = listed[first:]
        known = self._listed[-1].checkpoint if self._listed else 0
        return [*self._listed, *(each for each in found if each.checkpoint > known)]

    def _read(self, name: ManifestName) -> Manifest:
        return self._store.read_manifest(name.file, name.checkpoint)

    def _truncated(self, timestamp: Timestamp) -> Truncated:
        floor = self._store.floor().of(self.view.id)
        return Truncated(
            f"view {self.view.name!r}: its changes since {timestamp} are older than the retention time, the oldest"
            f" checkpoint that is kept is {floor}; read the view anew and its changes from there, or raise the"
            f" retention time"
        )


def _is_nothing(manifest: Manifest, view: int) -> bool:
    """Whether nobody has seen rows of the view there: it is not there yet, or being filled."""
    state = manifest.views.get(view)
    return state is None or state.state == "filling"


def _is_of_compaction(entry: FileEntry) -> bool:
    name = StagedName.parse(entry.path)
    return name is not None and name.origin == "c"
