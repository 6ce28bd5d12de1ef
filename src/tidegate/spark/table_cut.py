"""Which cut a batch of a table's rows is read at, by the options of `format("tidegate")`; without Spark.

The guarantee is the owner's to compute: whoever plans a batch asks him, and opens the database himself for as long as
that takes when it has no owner.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tidegate
from tidegate.catalog.table_fold import table_facts, table_of
from tidegate.clock.timestamp import LOGICAL_COUNT, Timestamp
from tidegate.database.read_gate import ReadAsk, ReadPlace
from tidegate.database.settings import DatabaseSettings
from tidegate.database.tails import BYTES_MAX
from tidegate.errors import InvalidArgument, Unavailable, WaitTimeout
from tidegate.reads import token as tokens
from tidegate.reads.consistency import Asked, Seen, asked
from tidegate.runtime.log_files import LogFiles
from tidegate.snapshots.manifest import Manifest
from tidegate.snapshots.store import SnapshotStore
from tidegate.spark.source_options import CUT
from tidegate.stores.sqlite_metadata import SqliteMetadataStore
from tidegate.tables.schema import Table, TableSchema
from tidegate.topics.routing import place


@dataclass(frozen=True, slots=True)
class TableCut:
    """A table at one cut, and the checkpoint it is read by.

    Invariant: what lies in the log above `after` and up to `at` is all that the checkpoint lacks.
    """

    path: str
    table: Table
    at: Timestamp
    checkpoint: int
    after: Timestamp

    @property
    def schema(self) -> TableSchema:
        """The columns that the table has in this cut."""
        return self.table.at(self.at)

    @classmethod
    def of(cls, path: str | Path, table: Table, at: Timestamp, manifest: Manifest) -> TableCut:
        return cls(str(path), table, at, manifest.checkpoint, manifest.timestamp)

    def encode(self) -> str:
        """As an option of Spark: a text."""
        facts = {"table": table_facts(self.table), "at": self.at, "checkpoint": self.checkpoint, "after": self.after}
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def decode(cls, path: str, text: str) -> TableCut:
        read = json.loads(text)
        table = table_of(read["table"])
        return cls(path, table, Timestamp(read["at"]), read["checkpoint"], Timestamp(read["after"]))


@contextmanager
def opened_store(path: str | Path) -> Iterator[SnapshotStore]:
    """The snapshots of a database, for as long as this lasts."""
    metadata = SqliteMetadataStore(Path(path) / "meta.sqlite")
    try:
        yield SnapshotStore(Path(path) / "snapshots", metadata)
    finally:
        metadata.close()


def find_cut(options: Mapping[str, str]) -> TableCut:
    """The cut that the options ask for, once it can be read.

    Raises: `InvalidArgument` for options that do not go together; `NotFound`; `Truncated` for a time that is not kept
    any more; `Stalled`, `WaitTimeout`, naming what holds it up.
    """
    path, name = options["path"], options["table"]
    if (known := options.get(CUT)) is not None:
        return TableCut.decode(path, known)
    wanted, version = _wanted(options)
    LogFiles(path)  # There must be a database: opening would make one.
    with (
        tidegate.open(path, settings=DatabaseSettings(pipeline=False)) as db,
        opened_store(path) as store,
    ):
        if version is not None:
            manifest = store.checkpoint(version)
            exact = ReadAsk(Asked("timestamp", at=manifest.timestamp), Seen(), [name])
            return _at_checkpoint(path, name, db.again(lambda: db.backend.begin_read(exact)), manifest)
        token = options.get("sessionToken")
        if token is not None:
            seen = tokens.decode(token, db.id)
        elif wanted.level == "session":
            seen = Seen(written=db.again(lambda: db.backend.now()))
        else:
            seen = Seen()

        def begin(checkpoint: bool) -> ReadPlace:
            return db.again(lambda: db.backend.begin_read(ReadAsk(wanted, seen, [name], checkpoint=checkpoint)))

        found = begin(False)
        manifest = store.at(found.at)
        if found.views:
            if manifest.timestamp != found.at and wanted.level != "timestamp":
                found = begin(True)
                manifest = store.at(found.at)
            return _at_checkpoint(path, name, found, manifest)
        if wanted.level != "timestamp" and _behind(path, found.tables[name], manifest.timestamp) > BYTES_MAX:
            # A long way through the log for every partition: a newer checkpoint is better, if one comes.
            try:
                found = begin(True)
                manifest = store.at(found.at)
            except WaitTimeout:
                pass
        return TableCut.of(path, found.tables[name], found.at, manifest)


def _at_checkpoint(path: str, name: str, found: ReadPlace, manifest: Manifest) -> TableCut:
    """A table, or a view, at a checkpoint. Raises: `InvalidArgument`; `Unavailable` for a view that is not there."""
    view = found.views.get(name)
    if view is None:
        return TableCut.of(path, found.tables[name], found.at, manifest)
    if manifest.timestamp != found.at:
        raise InvalidArgument(
            f"view {name!r} is read by Spark at checkpoints, and {found.at} is none; the last one before it is at"
            f" {manifest.timestamp}. Or ask db.query, which computes it for any time"
        )
    state = manifest.views.get(view.id)
    if state is None or state.state != "live":
        why = "is being filled" if state is None or state.state != "failed" else f"has failed: {state.error}"
        raise Unavailable(f"view {name!r} {why}; see SHOW MATERIALIZED VIEWS")
    return TableCut.of(path, view.table, found.at, manifest)


def _wanted(options: Mapping[str, str]) -> tuple[Asked, int | None]:
    """What is asked for: a level or a time; or the number of a checkpoint."""
    given = [name for name in ("consistency", "timestamp", "version") if options.get(name) is not None]
    if len(given) > 1:
        raise InvalidArgument(f"options {' and '.join(map(repr, given))} each name a cut; give one of them")
    staleness, level = options.get("staleness"), options.get("consistency")
    if staleness is not None and level != "bounded":
        raise InvalidArgument("option 'staleness' goes with .option('consistency', 'bounded')")
    if (version := options.get("version")) is not None:
        if not version.strip().isdecimal():
            raise InvalidArgument(f"option 'version' is the number of a checkpoint, not {version!r}")
        return Asked(), int(version)
    if (text := options.get("timestamp")) is not None:
        return Asked("timestamp", at=_time(text)), None
    return asked(level or "session", None if staleness is None else _seconds(staleness)), None


def _time(text: str) -> Timestamp:
    """A Timestamp, exactly; or all that became visible up to the end of a millisecond, as AS OF in a query."""
    found = Timestamp.parse(text)
    exact = text.strip().isdecimal() or "Z+" in text
    return found if exact else Timestamp.compose(found.physical_ms, LOGICAL_COUNT - 1)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"option 'staleness' is a number of seconds, not {text!r}") from None


def channels_of(path: str, table: Table) -> dict[str, tuple[str, ...]]:
    """The channels that a table's shards are in, and the virtual channels of those."""
    count = sum(1 for each in LogFiles(path).channels() if each.startswith("data-"))
    found: dict[str, tuple[str, ...]] = {}
    for shard in range(table.shards):
        channel = f"data-{place(table.id, shard, count)}"
        found[channel] = (*found.get(channel, ()), table.vchannel(shard))
    return found


def _behind(path: str, table: Table, after: Timestamp) -> int:
    """About how many bytes lie in a table's channels behind a checkpoint."""
    files = LogFiles(path)
    return sum(
        segment.size
        for channel in channels_of(path, table)
        for segment in files.segments(channel)
        if segment.last_time_tick is None or segment.last_time_tick > after
    )


__all__ = ["TableCut", "channels_of", "find_cut", "opened_store"]
