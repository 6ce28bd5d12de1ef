"""The pipeline's own stream: `option("stream", "epochs")`, whose partitions are work and whose rows are reports of it.

A share is one channel's part of a batch. Reading it folds it: the reader calls the fold that the options name and hands
on what that returns. So a batch of the pipeline is one Spark job of one stage with at most as many tasks as cores: a
task costs more than a small share. A share may be folded more than once (a task that is tried again, a batch that is
run again); it is the same share each time.
"""

# mypy: disable-error-code="misc"
# Spark's base classes are not typed here.

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.spark.cuts import CutFile, Limits, Point
from tidegate.spark.source import default_limit

REPORT_DDL: Final = "channel STRING, first BIGINT, last BIGINT, report STRING"
_SCHEMA: Final = pa.schema(
    [("channel", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("report", pa.string())]
)


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One channel's share of a batch: what became visible above `after`, up to and with `upto`."""

    database: str
    channel: str
    first: int
    """The first epoch of the batch."""
    last: int
    after: int
    upto: int
    position: int
    """Where to read from: nothing above `after` is missed."""
    catalog_version: int
    """As of the last epoch."""
    arguments: dict[str, Any]
    """What was given to the pipeline for its folds."""


Fold = Callable[[WorkItem], Iterable[dict[str, Any]]]
"""Folds a share and says what it has made, in few and small dicts that JSON takes."""


class WorkPartition(InputPartition):
    """Shares that one task folds, one after the other."""

    def __init__(self, items: Sequence[WorkItem]) -> None:
        super().__init__(None)
        self.items = [asdict(item) for item in items]


class WorkReader(DataSourceStreamReader):
    """Offers epochs as they are cut, and folds them."""

    def __init__(self, options: Any) -> None:
        self._database = str(options["path"])
        self._cuts = CutFile(options["cuts"])
        self._stop = Path(options["stopfile"])
        self._fold = str(options["fold"])
        self._arguments: dict[str, Any] = json.loads(options.get("arguments") or "{}")
        self._channels: list[str] = json.loads(options.get("channels") or "[]")
        self._start = Point(int(options.get("startepoch") or 0), Timestamp(int(options.get("starttimestamp") or 0)))
        self._wait_s = int(options.get("waitms") or 1000) / 1000
        self._tasks = int(options.get("tasks") or 1)
        epochs = options.get("maxepochs")
        self._limits = Limits(int(epochs) if epochs else None)

    def initialOffset(self) -> dict[str, int]:
        return self._start.offset

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self._limits)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        """Waits for the next epoch, so that an idle pipeline does next to nothing and a new epoch begins at once."""
        begin = Point.of(start)
        self._cuts.wait(begin, self._wait_s, self._stop.exists)
        if self._stop.exists():
            # Spark asks once the batch before is committed, so nothing is under way now, and nothing will be.
            seen_path(self._stop).touch()
            return begin.offset
        return self._cuts.latest(begin, Limits() if isinstance(limit, ReadAllAvailable) else self._limits).offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, finish = Point.of(start), Point.of(end)
        cut = self._cuts.read(finish.epoch)
        channels = self._channels or sorted(cut.places if cut is not None else ())
        items = [
            WorkItem(
                database=self._database,
                channel=channel,
                first=begin.epoch + 1,
                last=finish.epoch,
                after=int(begin.timestamp),
                upto=int(finish.timestamp),
                position=self._cuts.position(begin, channel),
                catalog_version=0 if cut is None else cut.catalog_version,
                arguments=self._arguments,
            )
            for channel in channels
            if begin.epoch < finish.epoch
        ]
        tasks = min(self._tasks, len(items))
        return [WorkPartition(items[at::tasks]) for at in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, WorkPartition):
            raise InvalidArgument(f"{type(partition).__name__} is not a share of a batch")
        fold = load_fold(self._fold)
        for facts in partition.items:
            item = WorkItem(**facts)
            reports: list[str | None] = [json.dumps(each, separators=(",", ":")) for each in fold(item)]
            reports = reports or [None]
            count = len(reports)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([item.channel] * count, pa.string()),
                    pa.array([item.first] * count, pa.int64()),
                    pa.array([item.last] * count, pa.int64()),
                    pa.array(reports, pa.string()),
                ],
                schema=_SCHEMA,
            )

    def commit(self, end: dict[str, Any]) -> None:
        self._cuts.release(Point.of(end))


def seen_path(stop: Path) -> Path:
    """The file that says that the request to stop was seen between two batches."""
    return stop.with_name(stop.name + ".seen")


@lru_cache(maxsize=8)
def load_fold(name: str) -> Fold:
    """The function that `module:function` names.

    Raises: `InvalidArgument` when there is none.
    """
    module, _, function = name.partition(":")
    try:
        fold: Fold = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"the fold {name!r} cannot be loaded: {error}; name it as `module:function`") from error
    return fold
