"""A view in `format("tidegate")`: its changes from checkpoint to checkpoint, for batches and streams.

Spark's offset is the end of a checkpoint's epoch, `{"epoch", "timestamp"}`: a micro-batch holds whole checkpoints, and
the same ones when it is done again, also after compaction. The first offset of a stream only says where to begin: what
that came to is the end of its first micro-batch, which Spark writes down.
"""

# mypy: disable-error-code="misc"
# Spark's base classes are not typed here.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from tidegate.catalog.views import View
from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument, NotFound
from tidegate.snapshots.reader import Duck
from tidegate.snapshots.store import SnapshotStore
from tidegate.snapshots.view_feed import ViewFeed
from tidegate.snapshots.view_history import Place, Step, ViewHistory
from tidegate.spark.cuts import Limits
from tidegate.spark.reading import catalog_log
from tidegate.spark.source_options import LATEST
from tidegate.spark.table_cut import TableCut
from tidegate.stores.sqlite_metadata import SqliteMetadataStore

_PARTS_MAX: Final = 4
"""So many at most share the checkpoints of one batch."""
_LOOK_S: Final = 0.02
_QUIET_MS: Final = 600_000
"""A view that does not change moves the stream on so rarely: it is not to fall behind the retention time."""
_BATCH_ROWS: Final = 65_536
_MEMORY: Final = "512MB"


@dataclass(frozen=True)
class ViewPlace:
    """A view, found in a database, and the columns that Spark wants of its changes."""

    path: str
    view: View
    schema: pa.Schema
    """Of all columns, as Spark writes them in Arrow."""
    names: tuple[str, ...] = ()

    def wanted(self, names: Sequence[str]) -> ViewPlace:
        """With these columns and no others. Raises: `InvalidArgument` for one that is not there."""
        folded = {each.casefold(): each for each in self.schema.names}
        for each in names:
            if each.casefold() not in folded:
                raise InvalidArgument(
                    f"view {self.view.name!r} has no column {each!r}; its changes have {', '.join(self.schema.names)}"
                )
        return replace(self, names=tuple(folded[each.casefold()] for each in names))

    def history(self) -> ViewHistory:
        return ViewHistory(_store(self.path), self.view.table)

    def check_there(self) -> None:
        """Raises: `NotFound` when it was dropped."""
        view = catalog_log(self.path).now().view_by_id(self.view.id)
        if view.dropped is not None:
            raise NotFound(f"view {view.name!r} was dropped at {view.dropped}; its changes end there")

    def read(self, steps: Sequence[Step]) -> Iterator[pa.RecordBatch]:
        """The changes of checkpoints, one after the other."""
        names = list(self.names or self.schema.names)
        wanted = pa.schema([self.schema.field(each) for each in names])
        feed = ViewFeed(_store(self.path), self.view.table, self.view.columns, _duck(self.path))
        for step in steps:
            for batch in feed.changes(step, _BATCH_ROWS):
                rows = batch.select(names)
                yield rows if rows.schema.equals(wanted) else rows.cast(wanted)


@lru_cache(maxsize=4)
def _store(path: str) -> SnapshotStore:
    """The one of this process."""
    return SnapshotStore(Path(path) / "snapshots", SqliteMetadataStore(Path(path) / "meta.sqlite"))


@lru_cache(maxsize=4)
def _duck(path: str) -> Duck:
    """The one of this process: Spark lets a process read part after part."""
    return Duck(Path(path).absolute() / "snapshots" / "spill", threads=1, memory_limit=_MEMORY)


class StepsPartition(InputPartition):
    """Some checkpoints' changes, with all that reading them needs."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__(steps)
        self.steps = steps


def _parts(steps: Sequence[Step]) -> list[StepsPartition]:
    """Checkpoints that follow each other, in few parts of about the same size."""
    groups: list[list[Step]] = [[]]
    share = sum(each.rows for each in steps) / _PARTS_MAX
    for step in steps:
        if groups[-1] and sum(each.rows for each in groups[-1]) + step.rows / 2 > share and len(groups) < _PARTS_MAX:
            groups.append([])
        groups[-1].append(step)
    return [StepsPartition(tuple(each)) for each in groups if each]


class _StepsReader:
    """What batches and streams do alike."""

    def __init__(self, place: ViewPlace) -> None:
        self._place = place

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StepsPartition):
            raise InvalidArgument(f"{type(partition).__name__} is not a part of a view's changes")
        return self._place.read(partition.steps)


class ViewReader(_StepsReader, DataSourceReader):
    """A batch: a view's rows at one checkpoint, all of them inserts; or its changes above one time up to another."""

    def __init__(self, place: ViewPlace, options: Any, cut: TableCut | None) -> None:
        """`cut` is where the rows are read; without one it is the changes that are asked for."""
        super().__init__(place)
        self._cut = cut
        self._starting, self._ending = options.get("startingTimestamp"), options.get("endingTimestamp")

    def partitions(self) -> Sequence[InputPartition]:
        history = self._place.history()
        if self._cut is not None:
            return _parts(_existing([history.rows_at(self._cut.at)])) or [StepsPartition(())]
        upto = Timestamp.MAX if self._ending is None else Timestamp.parse(self._ending)
        steps: list[Step | None] = []
        if self._starting is None:
            after = history.oldest()
            steps.append(history.rows_at(after))
        else:
            after = Timestamp.parse(self._starting)
        steps += [step for place, step in history.after(after) if place.timestamp <= upto]
        return _parts(_existing(steps)) or [StepsPartition(())]


def _existing(steps: Sequence[Step | None]) -> list[Step]:
    return [each for each in steps if each is not None]


class ViewStreamReader(_StepsReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: first a view's rows, unless it begins elsewhere, then its changes."""

    def __init__(
        self, place: ViewPlace, begin: str | Timestamp, limits: Limits, limit: ReadLimit, wait_s: float
    ) -> None:
        """It begins at `earliest`, at `latest`, or with what is above a time; `limit` is Spark's name for `limits`."""
        super().__init__(place)
        self._begin = begin
        self._limits = limits
        self._limit = limit
        self._wait_s = wait_s
        self._target: Timestamp | None = None
        self._history: ViewHistory | None = None
        self._checked_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_history": None}  # It goes where partitions are read, and what it opened does not.

    def initialOffset(self) -> dict[str, Any]:
        if isinstance(self._begin, Timestamp):
            return {"epoch": 0, "timestamp": int(self._begin)}
        return {"epoch": 0, "timestamp": 0, "from": self._begin}

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._limit

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        found = self._latest(start, limits)
        if found is None and self._target is None:
            self._wait()
            found = self._latest(start, limits)
        return start if found is None else {"epoch": found.epoch, "timestamp": int(found.timestamp)}

    def _latest(self, start: dict[str, Any], limits: Limits) -> Place | None:
        """How far a batch may go; None when there is nothing to tell yet. Raises: `Truncated`; `NotFound`."""
        history = self._the_history()
        if (begin := start.get("from")) is not None:
            if begin == LATEST:
                return history.newest()
            first = history.rows_at()
            return None if first is None else first.place
        found: Place | None = None
        steps = rows = nbytes = 0
        for place, step in history.after(Timestamp(int(start["timestamp"]))):
            if self._target is not None and place.timestamp > self._target:
                break
            if step is not None:
                rows, nbytes = rows + step.rows, nbytes + step.bytes
                if steps and _is_above(limits, steps + 1, rows, nbytes):
                    break
                steps += 1
            found = place
        if steps:
            return found
        self._check_there()
        began = Timestamp(int(start["timestamp"]))
        return found if found is not None and found.timestamp.ms_since(began) >= _QUIET_MS else None

    def _check_there(self) -> None:
        if monotonic() - self._checked_s > 1:
            self._checked_s = monotonic()
            self._place.check_there()

    def _wait(self) -> None:
        """Until there may be a new checkpoint, but not for long."""
        deadline = monotonic() + self._wait_s
        newest = self._the_history().newest()
        while monotonic() < deadline and self._the_history().newest() == newest:
            sleep(_LOOK_S)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._the_history().newest().timestamp

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self._the_history().newest()
        return {"epoch": newest.epoch, "timestamp": int(newest.timestamp)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        history, upto = self._the_history(), Timestamp(int(end["timestamp"]))
        if (begin := start.get("from")) is not None:
            return [] if begin == LATEST else _parts(_existing([history.rows_at(upto)]))
        after = history.after(Timestamp(int(start["timestamp"])))
        steps = []
        for place, step in after:
            if place.timestamp > upto:
                break
            steps.append(step)
        return _parts(_existing(steps))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is held."""

    def _the_history(self) -> ViewHistory:
        if self._history is None:
            self._history = self._place.history()
        return self._history


def _is_above(limits: Limits, epochs: int, rows: int, nbytes: int) -> bool:
    pairs = ((limits.epochs, epochs), (limits.messages, rows), (limits.bytes, nbytes))
    return any(most is not None and count > most for most, count in pairs)
