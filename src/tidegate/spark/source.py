"""The data source `format("tidegate")`, for batches and streams.

    option                  what it says
    path                    the database's directory
    topic | table           what to read
    startingTimestamp       read what is above it (a number, or an ISO time with a zone); default: everything kept
    endingTimestamp         batches only: read up to it and with it; default: as far as all channels have come
    maxEpochs, maxMessages, maxBytesPerTrigger
                            streams only: about the most that one batch takes; it takes at least one epoch. Where no
                            cuts are recorded, epochs are not counted, and the least is a segment of the log
    waitMs                  streams only: how long to wait for news before Spark asks again (default 100)

A topic has the columns key, value (JSON), bytes, headers, `_ts`, `_shard`, `_txn` and `_seq`. A table's changes have
its columns, `_ts`, `_seq` and `_op`: 1 where the row is there with these values, -1 where it is gone.

A batch is one cut through all channels, and so is every micro-batch's end: transactions come whole, in one micro-batch.
Partitions are channels. With `register`, comparisons of `_ts` and equality of `key` are applied while reading.
"""

# mypy: disable-error-code="misc"
# Spark's base classes are not typed here.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidegate.clock.timestamp import Timestamp
from tidegate.errors import InvalidArgument
from tidegate.log.batch import Batch
from tidegate.spark.cuts import Limits, Point, Points, points_of
from tidegate.spark.reading import (
    TOPIC_SCHEMA,
    Decode,
    Places,
    Span,
    TableChanges,
    find_table,
    find_topic,
    read_span,
    topic_rows,
)
from tidegate.tables.schema import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_END: Final = (1 << 63) - 1
_EPOCHS: Final = "epochs"


def register(session: SparkSession) -> None:
    """Make `format("tidegate")` known to a session, with filters applied while reading."""
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(FilteringSource)


@dataclass(frozen=True)
class What:
    """What the options name, found in the database."""

    path: str
    schema: pa.Schema
    places: Places
    table: TableChanges | None

    def decode(self, partition: SpanPartition, span: Span) -> Decode:
        if self.table is not None and partition.table is not None:
            return self.table.decode(partition.table)
        shards = self.places.by_channel[span.channel]

        def rows(batch: Batch) -> Iterator[pa.RecordBatch]:
            yield topic_rows(batch, shards)

        return rows


def find(options: Any) -> What:
    """Raises: `InvalidArgument` when the options name nothing, or too much; `NotFound`."""
    path = options.get("path")
    topic, table = options.get("topic"), options.get("table")
    if not path:
        raise InvalidArgument('format("tidegate") needs .option("path", ...): the directory of the database')
    if (topic is None) == (table is None):
        raise InvalidArgument('format("tidegate") needs either .option("topic", ...) or .option("table", ...)')
    if table is not None:
        changes = find_table(path, table)
        return What(path, arrow_of_spark(changes.schema), changes.places, changes)
    return What(path, TOPIC_SCHEMA, find_topic(path, topic), None)


def arrow_of_spark(schema: pa.Schema) -> pa.Schema:
    """The same columns as Spark writes them in Arrow: it takes no others from a source."""
    return to_arrow_schema(from_arrow_schema(schema), timezone="UTC")


class TidegateSource(DataSource):
    """`format("tidegate")`."""

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    @property
    def _is_work(self) -> bool:
        return bool(self.options.get("stream") == _EPOCHS)

    def schema(self) -> StructType | str:
        if self._is_work:
            from tidegate.spark.work import REPORT_DDL

            return REPORT_DDL
        return from_arrow_schema(find(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return TidegateReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        if self._is_work:
            module = import_module("tidegate.spark.work")
            reader: DataSourceStreamReader = module.WorkReader(self.options)
            return reader
        return TidegateStreamReader(self.options)


class FilteringSource(TidegateSource):
    """The same where the session allows filters to be pushed down; Spark refuses such a reader in any other."""

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return FilteringReader(self.options)


class SpanPartition(InputPartition):
    """One channel's part of a batch, with all that reading it needs: it looks nothing up."""

    def __init__(self, span: Span | None, table: Table | None = None) -> None:
        super().__init__(span)
        self.span = span
        self.table = table


@dataclass
class Pushed:
    """What filters leave to read. Rows that it lets through are filtered by Spark again only where it is told to."""

    after: int = 0
    upto: int = _END
    keys: list[str] = field(default_factory=list)
    is_keyed: bool = False

    def take(self, each: Filter) -> bool:
        """Whether the filter is applied from now on."""
        match each:
            case GreaterThan(("_ts",), int(value)):
                self.after = max(self.after, value)
            case GreaterThanOrEqual(("_ts",), int(value)):
                self.after = max(self.after, value - 1)
            case LessThan(("_ts",), int(value)):
                self.upto = min(self.upto, value - 1)
            case LessThanOrEqual(("_ts",), int(value)):
                self.upto = min(self.upto, value)
            case EqualTo(("_ts",), int(value)):
                self.after, self.upto = max(self.after, value - 1), min(self.upto, value)
            case EqualTo(("key",), str(value)):
                self.keys.append(value)
            case IsNotNull(("_ts",)):
                pass  # It never is.
            case IsNotNull(("key",)):
                self.is_keyed = True
            case _:
                return False
        return True

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.is_keyed:
            rows = rows.filter(pc.is_valid(rows.column("key")))
        for key in self.keys:
            rows = rows.filter(pc.equal(rows.column("key"), pa.scalar(key, pa.string())))
        return rows


def _read(what: What, partition: InputPartition, pushed: Pushed | None = None) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SpanPartition):
        raise InvalidArgument(f"{type(partition).__name__} is not a part of a batch")
    span = partition.span
    if span is None:
        return
    decode = what.decode(partition, span)
    for batch in read_span(what.path, span):
        for rows in decode(batch):
            kept = rows if pushed is None else pushed.apply(rows)
            if kept.num_rows:
                yield kept if kept.schema.equals(what.schema) else kept.cast(what.schema)


def _spans(what: What, start: Point, end: Point, points: Points) -> list[SpanPartition]:
    if start.timestamp >= end.timestamp:
        return []
    table = None if what.table is None else what.table.table_at(points.catalog_version(end))
    return [
        SpanPartition(
            Span(
                channel,
                max(int(start.timestamp), int(what.places.created)),
                int(end.timestamp),
                points.position(start, channel),
                tuple(vchannels),
            ),
            table,
        )
        for channel, vchannels in sorted(what.places.by_channel.items())
    ]


def _starting(options: Any) -> Timestamp:
    text = options.get("startingTimestamp")
    return Timestamp.ZERO if text is None else Timestamp.parse(text)


class TidegateReader(DataSourceReader):
    """Reads one cut."""

    def __init__(self, options: Any) -> None:
        self._what = find(options)
        self._cuts = options.get("cuts")
        self._pushed = Pushed(after=int(_starting(options)))
        if (ending := options.get("endingTimestamp")) is not None:
            self._pushed.upto = min(int(Timestamp.parse(ending)), _END)

    def partitions(self) -> Sequence[InputPartition]:
        points = points_of(self._what.path, self._what.places.by_channel, self._cuts)
        newest = points.latest(Point(), Limits())
        end = Point(newest.epoch, min(newest.timestamp, Timestamp(self._pushed.upto)))
        start = Point(0, Timestamp(max(self._pushed.after, 0)))
        return list(_spans(self._what, start, end, points)) or [SpanPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._what, partition, self._pushed)


class FilteringReader(TidegateReader):
    """Applies what it can of a query's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        # A table's column may be called `key`, and mean something else.
        for each in filters:
            if (self._what.table is not None and getattr(each, "attribute", ()) == ("key",)) or not self._pushed.take(
                each
            ):
                yield each


class TidegateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads from cut to cut."""

    def __init__(self, options: Any) -> None:
        self._what = find(options)
        self._points = points_of(self._what.path, self._what.places.by_channel, options.get("cuts"))
        self._starting = _starting(options)
        names = ("maxEpochs", "maxMessages", "maxBytesPerTrigger")
        self._limits = Limits(*(_number(options, name) for name in names))
        self._wait_s = (_number(options, "waitMs") or 100) / 1000
        self._target: Point | None = None

    def initialOffset(self) -> dict[str, int]:
        return Point(0, self._starting).offset

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self._limits)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        begin = Point.of(start)
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        if self._target is None:
            found = self._points.latest(begin, limits)
            if found == begin:
                self._points.wait(begin, self._wait_s, lambda: False)
                found = self._points.latest(begin, limits)
            return found.offset
        return min(self._points.latest(begin, limits), max(self._target, begin)).offset

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._points.latest(Point(0, self._starting), Limits())

    def reportLatestOffset(self) -> dict[str, int] | None:
        return self._points.latest(Point(), Limits()).offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _spans(self._what, Point.of(start), Point.of(end), self._points)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._what, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._points.release(Point.of(end))


def default_limit(limits: Limits) -> ReadLimit:
    """Spark's name for limits of our own: a batch is asked for with it; with `ReadAllAvailable` none apply."""
    return ReadAllAvailable() if limits.is_none else ReadMaxFiles(limits.epochs or 1_000_000)


def _number(options: Any, name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidArgument(f"option {name!r} is a number above zero, not {text!r}")
    return int(text)
