"""What a checkpoint consists of: which files hold which table, as plain values. No IO.

A *manifest* lists every live file of every table; the *pointer* says which manifest is the newest and up to which epoch
it counts. A file that was left out of a manifest never comes back: the checkpoints that name it follow each other.

Names say what must be known about a file that no manifest names, so that crashes need no clean-up of their own:
a file staged by an epoch can be committed only while the pointer stands below it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any, Final, Literal

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import Conflict, InvalidArgument, InvariantBroken

BASE: Final = -1
"""The level of a base: it lies below every layer, holds each key once and no deletes."""
FORMAT: Final = 1
COMPRESS_ABOVE: Final = 4096
"""Bytes. A smaller manifest takes one block of the disk however it is written."""

Origin = Literal["e", "c"]
"""Who wrote a file: an epoch, or compaction."""
ViewStanding = Literal["filling", "live", "failed"]

_FILE = re.compile(r"(?P<origin>[ec])-(?P<first>\d+)-(?P<last>\d+)-s(?P<shard>\d+)-(?P<token>[0-9a-z]+)\.parquet")
_MANIFEST = re.compile(r"(?P<number>\d+)-(?P<timestamp>\d+)-(?P<token>[0-9a-z]+)\.json(?:\.gz)?")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file: changes of one shard of one table in the epochs `first` to `last`; or a part of its base.

    Invariants: `path` is never used twice; a base has no deletes.
    """

    table: int
    shard: int
    level: int
    first: int
    last: int
    schema: int
    """The version of the table's schema that its columns are named by."""
    rows: int
    bytes: int
    min_ts: int
    max_ts: int
    deletes: int
    path: str
    """Below the directory of snapshots, with `/`."""
    sorted: bool = False
    """By the key."""
    distinct: bool = False
    """Each key once."""

    @property
    def is_base(self) -> bool:
        return self.level == BASE


@dataclass(frozen=True, slots=True)
class Pointer:
    """The newest checkpoint. `version` is the metadata store's, for the next compare-and-set.

    Invariant: neither `checkpoint` nor `epoch` nor `timestamp` nor `term` ever goes back.
    """

    checkpoint: int = 0
    epoch: int = 0
    timestamp: Timestamp = Timestamp.ZERO
    term: int = 0
    manifest: str = ""
    """Its file's name; none before the first checkpoint that holds anything."""
    version: int = 0

    def encode(self) -> bytes:
        names = ("checkpoint", "epoch", "timestamp", "term", "manifest")
        return json.dumps({name: getattr(self, name) for name in names}).encode()

    @classmethod
    def decode(cls, value: bytes, version: int) -> Pointer:
        read = json.loads(value)
        return cls(
            read["checkpoint"], read["epoch"], Timestamp(read["timestamp"]), read["term"], read["manifest"], version
        )


@dataclass(frozen=True, slots=True, order=True)
class ManifestName:
    """What the name of a manifest's file says, so that history is read from a listing."""

    checkpoint: int
    timestamp: Timestamp
    file: str

    @classmethod
    def parse(cls, file: str) -> ManifestName | None:
        found = _MANIFEST.fullmatch(file)
        return cls(int(found["number"]), Timestamp(int(found["timestamp"])), file) if found else None


@dataclass(frozen=True, slots=True)
class StagedName:
    """What the name of a data file says."""

    origin: Origin
    first: int
    last: int
    shard: int

    @classmethod
    def parse(cls, path: str) -> StagedName | None:
        found = _FILE.fullmatch(path.rpartition("/")[2])
        if found is None:
            return None
        origin: Origin = "e" if found["origin"] == "e" else "c"
        return cls(origin, int(found["first"]), int(found["last"]), int(found["shard"]))


@dataclass(frozen=True, slots=True)
class ViewState:
    """How a view stands at a checkpoint, and since when: since `epoch`, at `timestamp`.

    A view that no manifest knows is being filled, like one that is `filling`.
    """

    state: ViewStanding
    epoch: int
    timestamp: Timestamp
    error: str = ""
    """Why it failed."""
    signature: str = ""
    """Of the plan that its rows were made by: with another one they are made anew."""


def data_path(table: int, origin: Origin, first: int, last: int, shard: int, token: str) -> str:
    """Where a file of a table lies. `token` makes it one of its kind."""
    path = f"tables/{table}/{origin}-{first}-{last}-s{shard}-{token}.parquet"
    if StagedName.parse(path) is None:
        raise InvalidArgument(
            f"{path!r} cannot be the name of a layer: epochs are not negative, tokens are a-z and 0-9"
        )
    return path


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every live file at a checkpoint, and how the views stand.

    Invariants: in one shard, every layer is younger than the base; paths differ.
    """

    checkpoint: int = 0
    epoch: int = 0
    timestamp: Timestamp = Timestamp.ZERO
    term: int = 0
    previous: str = ""
    """The file of the manifest before: only what is reached from the pointer by it was ever committed."""
    tables: Mapping[int, tuple[FileEntry, ...]] = field(default_factory=dict)
    views: Mapping[int, ViewState] = field(default_factory=dict)
    """By the view's id."""

    def files(self, table: int) -> tuple[FileEntry, ...]:
        """The files of a table; none if it is empty or unknown."""
        return self.tables.get(table, ())

    @property
    def paths(self) -> set[str]:
        return {each.path for files in self.tables.values() for each in files}

    def shards(self) -> dict[tuple[int, int], list[FileEntry]]:
        """Files by table and shard, oldest first."""
        found: dict[tuple[int, int], list[FileEntry]] = {}
        for table in sorted(self.tables):
            for each in sorted(self.tables[table], key=lambda each: (each.first, each.last, each.path)):
                found.setdefault((table, each.shard), []).append(each)
        return found

    def with_epoch(
        self,
        added: Collection[FileEntry],
        removed: Collection[str],
        dropped: Collection[int],
        *,
        after: int,
        epoch: int,
        timestamp: Timestamp,
        term: int,
        views: Mapping[int, ViewState] | None = None,
    ) -> Manifest:
        """The manifest of an epoch: without the files `removed` and those of the tables `dropped`, with those `added`.

        Views among those `dropped` are forgotten; then those in `views` stand as it says, and all others as before.

        Raises: `InvalidArgument` when an added file is not of the epochs above `after`, `Conflict` when a removed one
        is gone.
        """
        for each in added:
            if not after < each.first <= each.last <= epoch:
                raise InvalidArgument(
                    f"{each.path} holds the epochs {each.first} to {each.last}, but this checkpoint holds those above"
                    f" {after} up to {epoch}; stage its changes again"
                )
        tables = {table: files for table, files in self.tables.items() if table not in dropped}
        tables = _without(tables, removed, self.checkpoint)
        standing = {view: state for view, state in self.views.items() if view not in dropped} | dict(views or {})
        changed = replace(
            self, epoch=epoch, timestamp=timestamp, term=term, tables=_with(tables, added), views=standing
        )
        changed._check({(each.table, each.shard) for each in added})
        return changed

    def is_changed_by(self, dropped: Collection[int], views: Mapping[int, ViewState]) -> bool:
        """Whether an epoch that adds and removes no file changes anything."""
        if any(self.files(each) or each in self.views for each in dropped):
            return True
        return any(self.views.get(view) != state for view, state in views.items())

    def with_replaced(self, inputs: Collection[FileEntry], outputs: Collection[FileEntry]) -> Manifest:
        """The same contents in other files.

        Raises: `Conflict` when an input is gone: somebody else compacted it, or its table was dropped or emptied.
        """
        tables = _without(self.tables, [each.path for each in inputs], self.checkpoint)
        changed = replace(self, tables=_with(tables, outputs))
        changed._check({(each.table, each.shard) for each in outputs})
        return changed

    def numbered(self, checkpoint: int, previous: str) -> Manifest:
        return replace(self, checkpoint=checkpoint, previous=previous)

    def encode(self, token: str) -> tuple[str, bytes]:
        """The name of its file and the bytes in it."""
        tables = {
            str(table): [list(astuple(each))[1:] for each in files] for table, files in self.tables.items() if files
        }
        head = {name: getattr(self, name) for name in ("checkpoint", "epoch", "timestamp", "term", "previous")}
        body: dict[str, Any] = {"format": FORMAT, **head, "columns": _COLUMNS, "tables": tables}
        if self.views:
            body["views"] = {str(view): asdict(state) for view, state in self.views.items()}
        content = json.dumps(body, separators=(",", ":"))
        name = f"{self.checkpoint:012d}-{int(self.timestamp)}-{token}.json"
        if len(content) <= COMPRESS_ABOVE:
            return name, content.encode()
        return f"{name}.gz", gzip.compress(content.encode(), compresslevel=1, mtime=0)

    @classmethod
    def decode(cls, content: bytes) -> Manifest:
        """Raises: `ValueError` when this is no manifest, or one of a format not known here."""
        try:
            read = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
            if read["format"] != FORMAT or read["columns"] != _COLUMNS:
                raise ValueError(f"it has format {read['format']}, and this version of Tidegate reads {FORMAT}")
            tables = {
                int(table): tuple(FileEntry(int(table), *values) for values in files)
                for table, files in read["tables"].items()
            }
            head = (read["checkpoint"], read["epoch"], Timestamp(read["timestamp"]), read["term"], read["previous"])
            views = read.get("views", {})  # Not in those from before there were views.
            return cls(*head, tables, {int(view): _view_state(state) for view, state in views.items()})
        except (KeyError, TypeError, OSError, EOFError) as error:
            raise ValueError(f"it does not hold a manifest: {error!r}") from error

    def _check(self, shards: Collection[tuple[int, int]]) -> None:
        touched = {table for table, _ in shards}
        files = [each for table in touched for each in self.files(table)]
        if len({each.path for each in files}) != len(files):
            raise InvariantBroken(
                f"checkpoint {self.checkpoint}: a file is named twice among {[each.path for each in files]}"
            )
        bases: dict[tuple[int, int], int] = {}
        for each in files:
            if each.is_base:
                where = each.table, each.shard
                bases[where] = max(bases.get(where, 0), each.last)
                if each.deletes:
                    raise InvariantBroken(f"the base {each.path} holds {each.deletes} deletes")
        for each in files:
            if not each.is_base and each.first <= bases.get((each.table, each.shard), -1):
                raise InvariantBroken(f"the layer {each.path} is not younger than its base")


def _view_state(facts: dict[str, Any]) -> ViewState:
    return ViewState(**{**facts, "timestamp": Timestamp(facts["timestamp"])})


_COLUMNS: Final = [name for name in FileEntry.__slots__ if name != "table"]


def _without(
    tables: Mapping[int, tuple[FileEntry, ...]], removed: Collection[str], checkpoint: int
) -> dict[int, tuple[FileEntry, ...]]:
    gone = set(removed)
    found: set[str] = set()
    kept = {}
    for table, files in tables.items():
        found.update(each.path for each in files if each.path in gone)
        left = tuple(each for each in files if each.path not in gone)
        if left:
            kept[table] = left
    if missing := sorted(gone - found):
        raise Conflict(
            f"{', '.join(missing)} is not part of checkpoint {checkpoint} any more: replaced by compaction, or its"
            f" table was dropped; read the newest manifest and start again"
        )
    return kept


def _with(tables: dict[int, tuple[FileEntry, ...]], added: Iterable[FileEntry]) -> dict[int, tuple[FileEntry, ...]]:
    for each in added:
        tables[each.table] = (*tables.get(each.table, ()), each)
    return tables
